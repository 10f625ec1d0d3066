"""The load client: chat completions over connections that were opened beforehand, each with stamps of its own.

    client = ChatClient("http://127.0.0.1:8000", "kimi-k2.5")
    connection = await client.connect()
    t_send = connection.send(client.request_bytes(body), on_end)      # the engine's way: a callback, no task per request
    record, stream = await client.complete(body)                      # one request, read to its end

Only the bytes' way is our own, because a general client's parsing stands between the socket and the clock; everything outside the load
(models, version, smoke tests) goes through httpx.
"""

from __future__ import annotations

import asyncio
import json
import socket
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from ops.benchmark.chat_stream import ChatStream, read_in_steps, settle
from ops.benchmark.endpoint import normalise, tls_context, unreachable
from ops.benchmark.request_record import ErrorKind, RequestRecord
from ops.benchmark.socket_loop import SocketLoop
from ops.benchmark.stamped_connection import PlainConnection, RawResponse, StampedConnection

MAX_RESPONSE = 64 * 1024 * 1024  # bytes; 32,768 chunks of 500 bytes are 16 MB
LOOK_S = 0.2


class ChatClient:
    """One chat (or, with `endpoint_kind` "completions", completions) endpoint. Not for several event loops at once.

    Raises BadInput for an address that is none. `api_key` goes into the Authorization header and nowhere else.
    """

    def __init__(self, base_url: str, model: str, *, api_key: str = "", connect_timeout_s: float = 10.0, kernel_stamps: bool = True,
                 endpoint_kind: str = "chat") -> None:
        self.base_url = normalise(base_url)
        self.model = model
        self.connect_timeout_s, self.kernel_stamps = connect_timeout_s, kernel_stamps
        parts = urlsplit(self.base_url)
        self._tls = tls_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._addresses: list[tuple[socket.AddressFamily, Any]] = []
        path = "completions" if endpoint_kind == "completions" else "chat/completions"
        head = [f"POST {parts.path}/v1/{path} HTTP/1.1", f"host: {parts.netloc}", "content-type: application/json",
                "accept: text/event-stream", "accept-encoding: identity", "user-agent: roundhouse"]
        if api_key:
            head.append(f"authorization: Bearer {api_key}")
        self._head = "\r\n".join(head).encode("latin-1")

    def request_bytes(self, body: dict[str, Any]) -> bytes:
        """The whole request as it goes to the socket; made before the level, sent within it."""
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        return b"%s\r\ncontent-length: %d\r\n\r\n%s" % (self._head, len(payload), payload)

    async def connect(self) -> StampedConnection:
        """An open connection. Raises OpsError (kind `unreachable`)."""
        try:
            return await asyncio.wait_for(self._connect(), self.connect_timeout_s)
        except TimeoutError as error:
            raise unreachable(self.base_url, TimeoutError(f"no connection within {self.connect_timeout_s:g} s")) from error
        except OSError as error:
            raise unreachable(self.base_url, error) from error

    async def open(self, count: int, *, at_once: int = 64) -> list[StampedConnection]:
        """`count` open connections, made before a level so that no connect falls into it. Raises OpsError, leaving none open."""
        connections: list[StampedConnection] = []
        while len(connections) < count:
            made = await asyncio.gather(*(self.connect() for _ in range(min(at_once, count - len(connections)))), return_exceptions=True)
            connections += [one for one in made if isinstance(one, StampedConnection)]
            for one in made:
                if isinstance(one, BaseException):
                    for connection in connections:
                        connection.close()
                    raise one
        return connections

    async def _connect(self) -> StampedConnection:
        loop = asyncio.get_running_loop()
        if self._tls is not None:
            _, secured = await loop.create_connection(StampedConnection, self._host, self._port, ssl=self._tls)
            return secured
        if not self._addresses:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = [(family, address) for family, _, _, _, address in found]
        failure: OSError = OSError(f"`{self._host}` has no address")
        for family, address in self._addresses:
            raw = socket.socket(family, socket.SOCK_STREAM)
            raw.setblocking(False)
            try:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(raw, address)
                if isinstance(loop, SocketLoop):
                    return PlainConnection(raw, loop.direct, kernel_stamps=self.kernel_stamps)
                _, connection = await loop.create_connection(lambda raw=raw: StampedConnection(raw), sock=raw)  # type: ignore[misc]
                return connection
            except OSError as error:
                raw.close()
                failure = error
            except asyncio.CancelledError:
                raw.close()
                raise
        raise failure

    async def complete(self, body: dict[str, Any], *, timeout_s: float = 600.0, index: int = 0) -> tuple[RequestRecord, ChatStream]:
        """One streamed request on a connection of its own: its record, and the stream with its texts. Failures are in the record.

        Raises OpsError only where no connection can be made.
        """
        connection = await self.connect()
        ended: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
        record = RequestRecord(index=index, slot=0, t_sched=perf_counter_ns(), connected=True)
        record.t_send = connection.send(self.request_bytes({"model": self.model, "stream": True, **body}), ended.set_result)
        until = perf_counter_ns() + int(timeout_s * 1e9)
        try:
            while not ended.done():
                left_s = (until - perf_counter_ns()) / 1e9
                await asyncio.wait([ended], timeout=min(LOOK_S, max(0.0, left_s)))
                if not ended.done() and left_s <= 0:
                    connection.fail(ErrorKind.TIMEOUT, f"No end within {timeout_s:g} s")
                elif not ended.done() and sum(map(len, connection.pieces)) > MAX_RESPONSE:
                    connection.fail(ErrorKind.PROTOCOL, f"The answer is longer than {MAX_RESPONSE // 1024**2} MiB")
            raw = ended.result()
        finally:
            connection.close()
        _exhaust(settle(record, raw))
        return record, _exhaust(read_in_steps(raw, keep_text=True))


def _exhaust(steps: Any) -> Any:
    """Runs a step generator to its end; its value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
