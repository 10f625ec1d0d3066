"""Does the server answer, and does it serve? Plain HTTP with the standard library: asked once a second for each service
that starts, now and then for one that answers.

No proxy and no redirect: the address is the service's own.
"""

from __future__ import annotations

import functools
import http.client
import io
import json
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ops.jobs.errors import BadInput
from ops.records import ServiceRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `status` None if nothing did, with the reason in `why`."""

    status: int | None
    body: bytes = b""
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    @property
    def sensible(self) -> bool:
        """Whether it can be what a server says of its health: vLLM's /health has no body, others' a small JSON text; a page of a proxy is neither."""
        if not self.ok or not self.body.strip():
            return self.ok
        try:
            json.loads(self.body)
        except (ValueError, RecursionError):
            return False
        return True


class _Timed(io.RawIOBase):
    """What a socket gives, until `end` (time.monotonic()): each read of a socket has a time limit, but many short ones have none together."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._raw, self._end = sock, sock.makefile("rb", buffering=0), end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Reply(http.client.HTTPResponse):
    """One whose head, and whatever it is made to wait for before it (100 Continue), has come by `end`, and its body too."""

    def __init__(self, sock: socket.socket, *arguments: Any, end: float, **more: Any) -> None:
        super().__init__(sock, *arguments, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_Timed(sock, end))


def _connect(base_url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BadInput(f"`{base_url}` is not an address of a server", hint="For example http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_s), parts.path.rstrip("/")


def port_of(base_url: str) -> int:
    """The TCP port of an address. Raises BadInput if it has none that is valid."""
    parts = urlsplit(base_url)
    try:
        return parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError) as error:
        raise BadInput(f"`{base_url}` is not an address of a server", hint="For example http://127.0.0.1:8000") from error


def api_key(record: ServiceRecord) -> str:
    """The key that the server asks for, if its settings hold one: --api-key (of several the first), or VLLM_API_KEY. Empty if it asks for none."""
    for index, flag in enumerate(record.flags):
        name, sign, value = flag.partition("=")
        if name.replace("_", "-") == "--api-key":
            return value if sign else "".join(record.flags[index + 1:index + 2])
    from ops.services import launch  # here: the launcher's module is not needed by whoever only asks an address

    return launch.variables(record).get("VLLM_API_KEY", "")


def ask(base_url: str, path: str, *, payload: dict[str, Any] | None = None, timeout_s: float = 2.0, limit_bytes: int = 1 << 20,
        api_key: str | None = None) -> Answer:
    """One request, GET or (with `payload`) POST. A server that hangs or dribbles is given up after about `timeout_s`."""
    end = time.monotonic() + timeout_s
    connection, prefix = _connect(base_url, timeout_s)
    connection.response_class = functools.partial(_Reply, end=end)  # type: ignore[assignment]
    began = False
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        if payload is None:
            connection.request("GET", prefix + path, headers=headers)
        else:
            connection.request("POST", prefix + path, body=json.dumps(payload), headers=headers | {"Content-Type": "application/json"})
        reply = connection.getresponse()
        body, began = b"", True
        while len(body) < limit_bytes and (part := reply.read1(min(65536, limit_bytes - len(body)))):
            body += part
        return Answer(reply.status, body)
    except TimeoutError:
        return Answer(None, why=f"the answer did not end within {timeout_s:g} s" if began else f"no answer within {timeout_s:g} s")
    except ConnectionRefusedError:
        return Answer(None, why="the port refuses connections")
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, why=str(error) or type(error).__name__)
    finally:
        connection.close()


def health(base_url: str, *, timeout_s: float = 2.0) -> Answer:
    """GET /health: vLLM answers 200 with an empty body once it serves."""
    return ask(base_url, "/health", timeout_s=timeout_s, limit_bytes=4096)
