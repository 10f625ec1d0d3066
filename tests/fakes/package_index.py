"""A tiny package index on loopback, for the real uv: PEP 503 pages over a folder of wheels, and conditional requests answered as real indexes do."""

from __future__ import annotations

import hashlib
import html
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote


class Index:
    """What the server knows: its folder, whether it answers 304, and every request that came ("GET 304 /simple/x/")."""

    def __init__(self, wheels: Path, *, answers_304: bool) -> None:
        self.wheels, self.answers_304 = wheels, answers_304
        self.asked: list[str] = []
        self.url = ""

    def page(self, path: str) -> tuple[bytes, str] | None:
        """Body and type of what lies at `path`; None: nothing."""
        parts = unquote(path).strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            files = sorted(file for file in self.wheels.glob("*.whl") if _name(file) == parts[1])
            links = "".join(f'<a href="/files/{file.name}#sha256={_sha256(file.read_bytes())}">{html.escape(file.name)}</a>\n' for file in files)
            return (f"<!DOCTYPE html><html><body>\n{links}</body></html>\n".encode(), "text/html") if files else None
        if parts[0] == "files" and len(parts) == 2 and (file := self.wheels / parts[1]).is_file():
            return file.read_bytes(), "application/octet-stream"
        return None


@contextmanager
def package_index(wheels: Path, *, answers_304: bool = True) -> Iterator[Index]:
    """Serves the wheels in `wheels`; `.url` is the index address. Without `answers_304` a question for news gets the whole file again."""
    index = Index(wheels, answers_304=answers_304)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def answer(self, *, body: bool) -> None:
            found = index.page(self.path.partition("?")[0])
            if found is None:
                index.asked.append(f"{self.command} 404 {self.path}")
                self.send_error(404)
                return
            content, kind = found
            tag = f'"{_sha256(content)}"'
            same = index.answers_304 and self.headers.get("If-None-Match") == tag
            index.asked.append(f"{self.command} {304 if same else 200} {self.path}")
            self.send_response(304 if same else 200)
            self.send_header("ETag", tag)
            self.send_header("Cache-Control", "max-age=600")
            if not same:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body and not same:
                self.wfile.write(content)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="package-index")
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _name(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
