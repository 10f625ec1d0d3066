"""A small HTTP/1.1 server on asyncio: keep-alive, pipelining, chunked answers. It knows no route and no JSON."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024


class Request:
    """One request. Header names are in lower case."""

    __slots__ = ("begun", "body", "headers", "method", "path", "version")

    def __init__(self, method: str, path: str, version: str, headers: dict[str, str]) -> None:
        self.method, self.path, self.version, self.headers = method, path, version, headers
        self.body = b""
        self.begun = time.monotonic()


class Connection(asyncio.Protocol):
    """One client. `handle(request, connection)` must in time call `respond`, or `begin_stream` and later `end_stream`.

    While an answer is under way further requests wait in the buffer. `on_close`, if set, is called when the client goes away.
    """

    def __init__(self, handle: Callable[[Request, "Connection"], None], done: Callable[[Request, int, int, str], None],
                 everyone: set["Connection"]) -> None:
        self._handle, self._done, self._everyone = handle, done, everyone
        self._buffer = bytearray()
        self._reading: Request | None = None  # its head is read, its body not yet whole
        self._needed: int | None = None  # bytes of body, None: chunked
        self._sent = 0
        self.request: Request | None = None  # being answered
        self.status = 0
        self.on_close: Callable[[], None] | None = None
        self.transport: asyncio.Transport
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        name = transport.get_extra_info("peername") or ("", 0)
        self.peer = f"{name[0]}:{name[1]}"
        self._everyone.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._everyone.discard(self)
        if self.on_close:
            on_close, self.on_close = self.on_close, None
            on_close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._parse()

    def _parse(self) -> None:
        while self.request is None and not self.transport.is_closing():
            if self._reading is None and not self._read_head():
                return
            if self._reading is None or not self._read_body(self._reading):
                return
            request, self._reading = self._reading, None
            self.request, self.status, self._sent = request, 0, 0
            self._handle(request, self)

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        head = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 4]
        first, *lines = head.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._refuse(HTTPStatus.BAD_REQUEST)
            return False
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        path = words[1].partition("?")[0]
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if length.isdigit() else HTTPStatus.BAD_REQUEST)
            return False
        self._needed = None if headers.get("transfer-encoding", "").lower() == "chunked" else int(length)
        self._reading = Request(words[0], path, words[2], headers)
        if headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_body(self, request: Request) -> bool:
        """Whether the body is whole; it is then in `request.body`."""
        if self._needed is not None:
            if len(self._buffer) < self._needed:
                return False
            request.body = bytes(self._buffer[: self._needed])
            del self._buffer[: self._needed]
            return True
        while True:
            end = self._buffer.find(b"\r\n")
            if end < 0:
                return False
            try:
                size = int(bytes(self._buffer[:end]).partition(b";")[0], 16)
            except ValueError:
                self._refuse(HTTPStatus.BAD_REQUEST)
                return False
            if len(self._buffer) < end + 2 + size + 2:
                return False
            request.body += bytes(self._buffer[end + 2 : end + 2 + size])
            del self._buffer[: end + 2 + size + 2]
            if not size:
                return True

    def _refuse(self, status: HTTPStatus) -> None:
        self.transport.write(f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        self.transport.close()

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        self.status = status
        close = "connection: close\r\n" if self._closes else ""
        return (f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ndate: {_date()}\r\nserver: uvicorn\r\n{framing}"
                f"{content_type and f'content-type: {content_type}' + chr(13) + chr(10)}{close}\r\n").encode()

    @property
    def _closes(self) -> bool:
        request = self.request
        wanted = request.headers.get("connection", "").lower() if request else "close"
        return wanted == "close" or (request is not None and request.version == "HTTP/1.0" and wanted != "keep-alive")

    def respond(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        """A whole answer."""
        head = self._head(status, content_type if body else "", f"content-length: {len(body)}\r\n")
        self._sent = len(body)
        self.transport.write(head if self.request and self.request.method == "HEAD" else head + body)
        self._finish()

    def begin_stream(self, content_type: str) -> None:
        """Status 200 and the head of an answer in chunks."""
        self.transport.write(self._head(200, content_type, "transfer-encoding: chunked\r\n"))

    def send(self, data: bytes) -> None:
        """One chunk; events that are due together share it."""
        self._sent += len(data)
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self, data: bytes = b"") -> None:
        """The last chunk and the end."""
        if data:
            self._sent += len(data)
            self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        else:
            self.transport.write(b"0\r\n\r\n")
        self._finish()

    def _finish(self) -> None:
        request, closes = self.request, self._closes
        self.request, self.on_close = None, None
        if request:
            self._done(request, self.status, self._sent, self.peer)
        if closes:
            self.transport.close()
        elif self._buffer:
            asyncio.get_running_loop().call_soon(self._parse)


_date_cache: tuple[int, str] = (0, "")


def _date() -> str:
    """The Date header, made once a second."""
    global _date_cache
    second = int(time.time())
    if _date_cache[0] != second:
        _date_cache = (second, formatdate(second, usegmt=True))
    return _date_cache[1]
