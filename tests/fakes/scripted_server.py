"""A server on 127.0.0.1 that answers with scripted bytes: for what a real server cannot be made to send on demand."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

CLOSE = object()  # in a script: end the connection here
RESET = object()  # end it with a TCP reset

Script = Iterable[Any]  # bytes are sent, floats are slept, CLOSE and RESET end the connection


def response(status: int, body: Any, *, content_type: str = "application/json", extra: str = "") -> bytes:
    """A whole response with Content-Length."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(payload)}\r\n{extra}\r\n".encode() + payload


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def event(delta: dict[str, Any] | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    """One chat completion event."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    document = {"id": "x", "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def usage(output: int, reasoning: int | None = None) -> bytes:
    """The usage event before `[DONE]`."""
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return event(None, usage={"prompt_tokens": 7, "total_tokens": 7 + output, "completion_tokens": output, **details})


DONE = b"data: [DONE]\n\n"


def good_stream(tokens: int = 3) -> list[bytes]:
    """A whole well-formed stream of `tokens` content chunks, one HTTP chunk an event."""
    events = [event({"role": "assistant", "content": ""}), *(event({"content": f" w{i}"}) for i in range(tokens - 1)),
              event({"content": " end"}, finish="length"), usage(tokens), DONE]
    return [STREAM_HEAD, *(chunk(e) for e in events), STREAM_END]


class ScriptedServer:
    """`chat(n, body)` gives the script for the n-th chat request (from 1); other paths are in `paths`: path to whole response, or to
    a function from the JSON body to it or to a script.

    `requests` collects (path, JSON body or None), `connections` counts.
    """

    def __init__(self, chat: Callable[[int, dict[str, Any]], Script], *, models: tuple[str, ...] = ("m",), version: str | None = None,
                 tls: ssl.SSLContext | None = None, paths: dict[str, Any] | None = None) -> None:
        listed = [{"id": name, "object": "model", "max_model_len": 4096} for name in models]
        self.paths: dict[str, Any] = {"/v1/models": response(200, {"object": "list", "data": listed}), **(paths or {})}
        if version is not None:
            self.paths["/version"] = response(200, {"version": version})
        self.chat, self.tls = chat, tls
        self.requests: list[tuple[str, Any]] = []
        self.connections = 0
        self._chats = 0
        self._lock = threading.Lock()
        owner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads, request_queue_size = True, True, 256
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients of these tests break connections on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self.tls.wrap_socket(raw, server_side=True) if self.tls else raw
        with connection:
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
        kept = b""
        while True:
            while b"\r\n\r\n" not in kept:
                got = connection.recv(65536)
                if not got:
                    return
                kept += got
            head, kept = kept.split(b"\r\n\r\n", 1)
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            while len(kept) < length:
                kept += connection.recv(65536)
            body, kept = kept[:length], kept[length:]
            path = head.split(b" ")[1].decode()
            parsed = json.loads(body) if body else None
            with self._lock:
                self.requests.append((path, parsed))
                is_chat = path.endswith("/completions")
                self._chats += is_chat
                number = self._chats
            answer = self.paths.get(path, response(404, {"detail": "Not Found"}))
            given = answer(parsed) if callable(answer) and not is_chat else answer
            script = self.chat(number, parsed) if is_chat else [given] if isinstance(given, bytes) else given
            if not _play(connection, script):
                return


def _play(connection: socket.socket, script: Script) -> bool:
    for part in script:
        if part is CLOSE:
            connection.shutdown(socket.SHUT_RDWR)
            return False
        if part is RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            return False
        if isinstance(part, float):
            time.sleep(part)
        else:
            connection.sendall(part)
    return True


@contextmanager
def scripted(chat: Callable[[int, dict[str, Any]], Script], **options: Any) -> Any:
    """A running ScriptedServer."""
    with ScriptedServer(chat, **options) as server:
        yield server
