"""Server-sent events out of a response's body, segment by segment as they came: HTTP chunks undone, events cut, their data handed out.

Any cut into segments and chunks gives the same events, each with the segment that brought its last newline. No byte is looked at much more
than once, whatever arrives: an event of megabytes is gathered in a bytearray.
"""

from __future__ import annotations

import re

from ops.benchmark.stamped_connection import chunk_size

_NEWLINE = re.compile(rb"\r\n|\n|\r")


class EventCutter:
    """`feed` the body's bytes in order. `chunked`: they are in HTTP chunks."""

    __slots__ = ("_carry", "_chunked", "_due", "_ended", "_held", "_left", "_lines", "_returns", "_searched")

    def __init__(self, *, chunked: bool) -> None:
        self._chunked = chunked
        self._held = b""  # of a chunk's size line
        self._left = 0  # bytes of the chunk that are to come
        self._due = 0  # of its CR LF
        self._ended = False  # the last chunk was seen, or something that is no chunk
        self._carry = bytearray()  # of an event that has not ended; with returns: of its line
        self._searched = 0  # of the carry
        self._returns = False  # the stream has CR or CR LF for newlines
        self._lines: list[bytes] = []  # with returns: of the event

    @property
    def between(self) -> bool:
        """Whether the next byte begins an event, and a chunk where there are chunks."""
        return not (self._carry or self._held or self._left or self._due or self._lines or self._ended or self._returns)

    def feed(self, segment: bytes) -> list[bytes]:
        """The data of the events that end in this segment."""
        found: list[bytes] = []
        if not self._chunked:
            self._cut(segment, found)
            return found
        blob, pos = self._held + segment if self._held else segment, 0
        self._held, size_of_blob = b"", len(blob)
        while pos < size_of_blob and not self._ended:
            if self._left:
                text = blob[pos:pos + self._left]
                pos += len(text)
                self._left -= len(text)
                self._due = 0 if self._left else 2
                self._cut(text, found)
            elif self._due:
                skipped = min(self._due, size_of_blob - pos)
                pos += skipped
                self._due -= skipped
            else:
                line_end = blob.find(b"\r\n", pos)
                if line_end < 0:
                    self._held = blob[pos:]
                    break
                try:
                    self._left = chunk_size(blob[pos:line_end])
                except ValueError:  # the connection has failed for it already
                    self._left = 0
                self._ended = not self._left
                pos = line_end + 2
        return found

    def finish(self) -> list[bytes]:
        """The data of a last event without its blank line, for servers that leave it out."""
        found: list[bytes] = []
        if self._returns:
            self._cut_lines(found, last=True)
            self._lines.append(bytes(self._carry))
        else:
            self._lines = bytes(self._carry).split(b"\n")
        _add(found, self._lines)
        return found

    def _cut(self, text: bytes, found: list[bytes]) -> None:
        if self._returns or b"\r" in text:
            if not self._returns:
                self._returns, self._searched = True, 0
            self._carry += text
            self._cut_lines(found)
            return
        if self._carry:
            self._carry += text
            if self._carry.find(b"\n\n", self._searched) < 0:
                self._searched = len(self._carry) - 1
                return
            text = bytes(self._carry)
            self._carry.clear()
        pos = 0
        while (end := text.find(b"\n\n", pos)) >= 0:
            if text.startswith(b"data:", pos) and text.find(b"\n", pos, end) < 0:
                found.append(text[pos + 5:end])
            else:
                _add(found, text[pos:end].split(b"\n"))
            pos = end + 2
        if pos < len(text):
            self._carry += text[pos:]
            self._searched = len(self._carry) - 1

    def _cut_lines(self, found: list[bytes], *, last: bool = False) -> None:
        """By lines, whatever ends them. A CR at the very end may be half of a CR LF: it waits."""
        end = len(self._carry) - (1 if self._carry.endswith(b"\r") and not last else 0)
        newlines = [newline.span() for newline in _NEWLINE.finditer(self._carry, self._searched, end)]
        start = 0
        for newline, after in newlines:
            if newline > start:
                self._lines.append(bytes(self._carry[start:newline]))
            else:
                _add(found, self._lines)
                self._lines = []
            start = after
        del self._carry[:start]
        self._searched = end - start


def _add(found: list[bytes], lines: list[bytes]) -> None:
    """The event's data, if it has any: several `data:` lines join with a newline, other fields and comments are passed over."""
    data = [line[6:] if line.startswith(b"data: ") else line[5:] for line in lines if line.startswith(b"data:")]
    if data:
        found.append(b"\n".join(data))
