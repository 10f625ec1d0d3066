"""What every client is asked to do, and what it hands back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(slots=True)
class Measured:
    """One load: processor time of the process in seconds (sending, reading, cutting events), and errors against the server's truth in ns.

    `delays`: a chunk's stamp - the time that stands in its text. `ttft_errors`: our time to the first token - the server's.
    """

    cpu_s: float = 0.0
    delays: list[int] = field(default_factory=list)
    ttft_errors: list[int] = field(default_factory=list)
    span: tuple[int, int] = (1 << 62, 0)  # the server's times of the first and the last chunk
    more: dict[str, Any] = field(default_factory=dict)

    def add_stream(self, sent: int, chunks: Iterable[tuple[int, bytes]]) -> None:
        """One stream's (stamp, event data) pairs; events without a token are passed over."""
        first = True
        for stamp, data in chunks:
            at = data.find(b'"content":" ')
            if at < 0:
                continue
            truth = int(data[at + 12:at + 28], 16)
            self.add_chunk(stamp, truth)
            if first:
                identity = data.index(b"chatcmpl-") + 9
                self.ttft_errors.append((stamp - sent) - (truth - int(data[identity:identity + 16], 16)))
                first = False

    def add_chunk(self, stamp: int, truth: int) -> None:
        self.delays.append(stamp - truth)
        self.span = min(self.span[0], truth), max(self.span[1], truth)

    def as_json(self) -> str:
        return json.dumps({"cpu_s": self.cpu_s, "delays": self.delays, "ttft_errors": self.ttft_errors, "span_ns": self.span[1] - self.span[0],
                           **self.more})


def body(tokens: int) -> dict[str, Any]:
    """The request's JSON: the same for every client."""
    return {"model": "paced", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
            "messages": [{"role": "user", "content": "x" * 200}]}


def request_bytes(url: str, tokens: int) -> bytes:
    """The whole request, for clients that write to sockets themselves."""
    payload = json.dumps(body(tokens), separators=(",", ":")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload
