"""Does the server answer, and does it serve? Plain HTTP with the standard library: asked once a second for each service.

No proxy and no redirect: the address is the service's own.
"""

from __future__ import annotations

import http.client
import json
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
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        if payload is None:
            connection.request("GET", prefix + path, headers=headers)
        else:
            connection.request("POST", prefix + path, body=json.dumps(payload), headers=headers | {"Content-Type": "application/json"})
        reply = connection.getresponse()
        body = b""
        while len(body) < limit_bytes and (part := reply.read1(min(65536, limit_bytes - len(body)))):
            body += part
            if time.monotonic() > end:
                return Answer(None, why=f"the answer did not end within {timeout_s:g} s")
        return Answer(reply.status, body)
    except TimeoutError:
        return Answer(None, why=f"no answer within {timeout_s:g} s")
    except ConnectionRefusedError:
        return Answer(None, why="the port refuses connections")
    except (OSError, http.client.HTTPException) as error:
        return Answer(None, why=str(error) or type(error).__name__)
    finally:
        connection.close()


def health(base_url: str, *, timeout_s: float = 2.0) -> Answer:
    """GET /health: vLLM answers 200 with an empty body once it serves."""
    return ask(base_url, "/health", timeout_s=timeout_s, limit_bytes=4096)
