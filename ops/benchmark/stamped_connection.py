"""One HTTP/1.1 connection that notes when bytes arrived, and does nothing else with them while they flow.

The hot path is one read, one stamp, two appends, one look at the last bytes. No decoding, no waking of a reader, no objects that the
garbage collector tracks (an array of stamps and a list of bytes): the price of a chunk is a few microseconds, so one stream's work does not
delay another stream's stamp. When the response is complete, `on_end` is called in that very callback, so the next request can leave at once.
What the bytes say is read later, by `chat_stream`.

`StampedConnection` is a protocol on any loop's transport (TLS; loops that are not ours) and stamps when the bytes reach the process.
`PlainConnection` owns a TCP socket in a SocketLoop and stamps when the bytes reached the kernel, where the kernel tells.
"""

from __future__ import annotations

import asyncio
import re
import socket
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

from ops.benchmark.kernel_stamps import ANCILLARY, LONGEST_NS, TIMESPEC, ask_for_stamps
from ops.benchmark.request_record import ErrorKind
from ops.benchmark.socket_loop import READ, WRITE, DirectSelector

MAX_READ = 65_536
MAX_HEAD = 64 * 1024
MAX_LINE = 64 * 1024  # of a chunk's size, and of the trailers
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_STATUS = re.compile(rb"[1-9]\d\d")
_LENGTH_VALUE = re.compile(r"[0-9]{1,15}")

_IDLE, _HEAD, _CHUNKED, _LENGTH, _CLOSE = range(5)


@dataclass(slots=True)
class RawResponse:
    """A response as it came in: segments with their stamps, not yet read.

    `stamps[i]` is when `pieces[i]` was in. `framing`: "chunked", "length", "close", or "" when no whole head arrived. `complete`: the
    response ended as HTTP says; otherwise `failure` has the kind (ErrorKind) and the text.
    """

    stamps: array[int]
    pieces: list[bytes]
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body_start: int = 0
    framing: str = ""
    complete: bool = False
    failure: tuple[str, str] | None = None
    ended_at: int = 0

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").split(";")[0].strip().lower()


class StampedConnection(asyncio.Protocol):
    """Sends one request at a time. `closed` is true once it cannot be used again."""

    __slots__ = ("_body_start", "_head", "_left", "_mode", "_on_end", "_skip", "_socket", "_sse", "_status", "_tail", "_transport", "_walked",
                 "closed", "on_lost", "pieces", "stamps", "used")

    kernel_stamps = False

    def __init__(self, raw_socket: socket.socket | None = None) -> None:
        self._socket = raw_socket  # plain TCP: we send on it ourselves
        self._transport: asyncio.Transport | None = None
        self._mode = _IDLE
        self._on_end: Callable[[RawResponse], None] | None = None
        self.on_lost: Callable[[], None] | None = None  # told when an idle connection is gone
        self.closed = False
        self.used = False
        self.stamps: array[int] = array("q")
        self.pieces: list[bytes] = []

    # -- sending ------------------------------------------------------------------------------------------------------------

    def send(self, request: bytes, on_end: Callable[[RawResponse], None]) -> int:
        """Sends the request and returns t_send. `on_end` gets the response, complete or failed, exactly once."""
        if self._mode != _IDLE or self.closed:
            raise RuntimeError("the connection is not free")
        self.stamps, self.pieces = array("q"), []
        self._mode, self._on_end = _HEAD, on_end
        self._tail, self._skip, self._walked, self._left = b"", 0, 0, 0
        self._body_start, self._sse = 0, False
        self._status: int | None = None
        self._head: dict[str, str] = {}
        self.used = True
        at = perf_counter_ns()
        # uvloop's transport keeps a write until the end of the loop's turn; with many requests in one turn t_send would be too early
        sent = 0
        if self._socket is not None:
            try:
                sent = self._socket.send(request)
            except BlockingIOError:
                pass
            except OSError:
                sent = len(request)  # the lost connection is reported where it is read
        if sent < len(request):
            self._write_later(request[sent:] if sent else request)
        return at

    def _write_later(self, rest: bytes) -> None:
        if self._transport is None:
            raise RuntimeError("the connection is not made")
        self._transport.write(rest)

    def fail(self, kind: str, text: str) -> None:
        """Ends the request in flight with this failure, and the connection with it."""
        self.closed = True  # before anybody is told: the next request must not go out on it
        self._end(failure=(kind, text))
        self.close()

    def close(self) -> None:
        self.closed = True
        self.on_lost = None
        if self._transport is not None:
            self._transport.abort()

    # -- receiving ----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream socket gives a Transport

    def data_received(self, data: bytes) -> None:
        self.stamps.append(perf_counter_ns())
        self.pieces.append(data)
        if self._mode != _CHUNKED or data[-4:] == b"\r\n\r\n" or len(data) < 8:
            self._look_at(data)

    def _look_at(self, data: bytes) -> None:
        """What just came, where it may be more than a piece of a stream's middle."""
        mode = self._mode
        if mode == _CHUNKED:
            self._look_for_the_end(data)
        elif mode == _LENGTH:
            self._left -= len(data)
            if self._left <= 0:
                self._end()
        elif mode == _HEAD:
            self._read_head()
        elif mode == _IDLE:  # nobody asked: a 408 before closing, or not HTTP
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        was_idle = self._mode == _IDLE
        self.closed = True
        if not was_idle:
            if self._mode == _CLOSE and exc is None:
                self._end()
            elif self.pieces:
                self._end(failure=(ErrorKind.CUT, "The connection ended before the response did"))
            else:
                self._end(failure=(ErrorKind.CUT, "The server closed the connection without an answer"))
        elif self.on_lost is not None:
            self.on_lost()

    def _end(self, failure: tuple[str, str] | None = None) -> None:
        on_end, mode = self._on_end, self._mode
        if on_end is None:
            return
        now = perf_counter_ns()
        raw = RawResponse(
            stamps=self.stamps, pieces=self.pieces, status=self._status, headers=self._head, body_start=self._body_start,
            framing={_CHUNKED: "chunked", _LENGTH: "length", _CLOSE: "close"}.get(mode, ""),
            complete=failure is None, failure=failure, ended_at=self.stamps[-1] if failure is None and self.stamps else now,
        )
        self._mode, self._on_end = _IDLE, None
        self.stamps, self.pieces = array("q"), []
        if failure is None and (mode == _CLOSE or raw.headers.get("connection", "").lower() == "close"):
            self.closed = True
            self._shut()
        on_end(raw)

    def _shut(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _read_head(self) -> None:
        blob = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        start = 0
        while True:
            end = blob.find(b"\r\n\r\n", start)
            if end < 0:
                if len(blob) > MAX_HEAD:
                    self.fail(ErrorKind.PROTOCOL, "The response's head is longer than 64 KiB")
                return
            lines = blob[start:end].split(b"\r\n")
            words = lines[0].split(None, 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not _STATUS.fullmatch(words[1]) or words[1] == b"101":
                self.fail(ErrorKind.PROTOCOL, f"Not an HTTP/1.1 answer: {lines[0][:80]!r}")
                return
            status = int(words[1])
            start = end + 4
            if status >= 200:  # 100 Continue and its like come before the real head
                break
        head: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            head[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        self._status, self._head, self._body_start = status, head, start
        self._sse = head.get("content-type", "").lower().startswith("text/event-stream")
        if "chunked" in head.get("transfer-encoding", "").lower():
            self._mode, self._skip = _CHUNKED, start
            self._look_for_the_end(blob[start:])
        elif "content-length" in head:
            if not _LENGTH_VALUE.fullmatch(head["content-length"]):
                self.fail(ErrorKind.PROTOCOL, f"Content-Length is {head['content-length'][:40]!r}")
                return
            self._mode, self._left = _LENGTH, int(head["content-length"]) - (len(blob) - start)
            if self._left <= 0:
                self._end()
        elif status in (204, 304):
            self._mode, self._left = _LENGTH, 0
            self._end()
        else:
            self._mode = _CLOSE

    def _look_for_the_end(self, data: bytes) -> None:
        """Ends the response if the last chunk (`0 CRLF CRLF`, perhaps with trailers) is in.

        An event stream with plain newlines shows its end in its last bytes: text lines cannot look like it. Everything else is held
        against the grammar of chunks, from where the last look stopped, so that no byte is looked at twice.
        """
        if self._sse:
            if data.endswith(b"\n\n\r\n0\r\n\r\n"):
                self._end()
                return
            if data == b"0\r\n\r\n" and len(self.pieces) > 1 and self.pieces[-2].endswith(b"\n\n\r\n"):
                self._end()
                return
        blob = self._tail + b"".join(self.pieces[self._walked:])
        self._walked = len(self.pieces)
        pos, size_of_blob = self._skip, len(blob)
        while pos < size_of_blob:
            line_end = blob.find(b"\r\n", pos)
            if line_end < 0:
                break
            try:
                size = chunk_size(blob[pos:line_end])
            except ValueError:
                self.fail(ErrorKind.PROTOCOL, f"Not a chunk size: {blob[pos:line_end][:40]!r}")
                return
            if size == 0:
                if blob.startswith(b"\r\n", line_end + 2) or blob.find(b"\r\n\r\n", line_end + 2) >= 0:
                    self._end()
                    return
                break
            pos = line_end + 2 + size + 2
        self._tail, self._skip = (b"", pos - size_of_blob) if pos >= size_of_blob else (blob[pos:], 0)
        if len(self._tail) > MAX_LINE:
            self.fail(ErrorKind.PROTOCOL, f"A chunk's size, or what follows the last chunk, is longer than {MAX_LINE // 1024} KiB")


class PlainConnection(StampedConnection):
    """Over a connected, non-blocking TCP socket that it owns, in the loop whose selector is given.

    `kernel_stamps`: `stamps` tell when the kernel had the segment (of a read that brought several: the last). What each read waited for us is
    appended to the selector's `delays`.
    """

    __slots__ = ("_clock", "_delays", "_number", "_raw", "_recv", "_recvmsg", "_selector", "_unsent", "kernel_stamps")

    def __init__(self, raw_socket: socket.socket, selector: DirectSelector, *, kernel_stamps: bool = True) -> None:
        super().__init__(raw_socket)
        self._raw = raw_socket
        self._selector, self._clock, self._delays = selector, selector.clock, selector.delays
        self._recvmsg, self._recv, self._number = raw_socket.recvmsg, raw_socket.recv, raw_socket.fileno()
        self._unsent = b""
        self.kernel_stamps = kernel_stamps and ask_for_stamps(raw_socket)
        selector.add(self._number, self._serve if self.kernel_stamps else self._serve_unstamped)

    def _serve(self, events: int) -> bool:
        """Readable: one read. What follows is written out for speed: a call costs as much as the rest of it."""
        if events != READ and not self._serve_more(events):
            return True
        try:
            data, ancillary, _, _ = self._recvmsg(MAX_READ, ANCILLARY)
        except BlockingIOError:
            return False
        except OSError as error:
            return self._lost(error)
        now = perf_counter_ns()
        if ancillary:
            seconds, nanoseconds = TIMESPEC.unpack(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + nanoseconds - self._clock.offset
            if not 0 <= now - stamp < LONGEST_NS:
                stamp = self._clock.corrected(seconds * 1_000_000_000 + nanoseconds, now)
            self._delays.append(now - stamp)
            self.stamps.append(stamp)
        elif data:
            self.stamps.append(now)
        else:
            return self._lost(None)
        pieces = self.pieces
        pieces.append(data)
        if self._mode != _CHUNKED or data[-4:] == b"\r\n\r\n" or len(data) < 8:
            self._look_at(data)
            return self.pieces is not pieces  # the response has ended, and its owner was told
        return False

    def _serve_unstamped(self, events: int) -> bool:
        """As `_serve`, with our own stamps. Its last lines stand in both: every chunk would pay for a call."""
        if events != READ and not self._serve_more(events):
            return True
        try:
            data = self._recv(MAX_READ)
        except BlockingIOError:
            return False
        except OSError as error:
            return self._lost(error)
        if not data:
            return self._lost(None)
        self.stamps.append(perf_counter_ns())
        pieces = self.pieces
        pieces.append(data)
        if self._mode != _CHUNKED or data[-4:] == b"\r\n\r\n" or len(data) < 8:
            self._look_at(data)
            return self.pieces is not pieces  # the response has ended, and its owner was told
        return False

    def _serve_more(self, events: int) -> bool:
        """Sends the rest of a request if the socket takes it; whether there is something to read as well (a hang-up is read too)."""
        if events & WRITE and self._unsent:
            try:
                self._unsent = self._unsent[self._raw.send(self._unsent):]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent = b""  # reported by the read
            if not self._unsent:
                self._selector.watch_writing(self._number, False)
        return bool(events & ~WRITE)

    def _write_later(self, rest: bytes) -> None:
        self._unsent = rest
        self._selector.watch_writing(self._number, True)

    def _lost(self, error: OSError | None) -> bool:
        self._shut()
        self.connection_lost(error)
        return True

    def _shut(self) -> None:
        if self._raw.fileno() >= 0:
            self._selector.remove(self._number)
            self._raw.close()

    def close(self) -> None:
        self.closed = True
        self.on_lost = None
        self._shut()
        self._end(failure=(ErrorKind.CUT, "The connection was closed by us"))  # of a request in flight, if there is one


def chunk_size(line: bytes) -> int:
    """The size in a chunk's first line (hex digits, perhaps extensions). Raises ValueError on anything else (`+5`, `-5`, `0x5`, `5_0`)."""
    digits = line.split(b";", 1)[0].strip()
    if not _SIZE.fullmatch(digits):
        raise ValueError(f"not a chunk size: {line[:40]!r}")
    return int(digits, 16)
