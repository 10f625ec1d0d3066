"""The text/event-stream format."""

from __future__ import annotations

import json
import re
from typing import Any

PING = b": ping\n\n"
_LINE_ENDS = re.compile(rb"\r\n|\r|\n")


def event(name: str, data: bytes | str | dict[str, Any], *, id: int | None = None) -> bytes:
    """One event; `data` is JSON (bytes, text, or an object to be encoded). With `id`, a browser that reconnects says it in Last-Event-ID."""
    if isinstance(data, dict):
        data = json.dumps(data, separators=(",", ":"))
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    if b"\n" in data or b"\r" in data:
        data = _LINE_ENDS.sub(b"\ndata: ", data)
    head = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (head, name.encode(), data)


def retry(milliseconds: int) -> bytes:
    """How long a browser waits before it connects again."""
    return b"retry: %d\n\n" % milliseconds
