"""A log as blocks of whole lines, whatever its size and encoding: UTF-8 with broken bytes, UTF-16, NUL holes, gzip, lines of any length.

Line numbers stay those of the text: a line that is cut still is one line. Memory is bounded by the size of a block.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

BLOCK_BYTES = 1 << 18
LINE_BYTES = 1 << 17  # of a line that does not end within a block only this much is kept
HEAD_BYTES = 8192

# What other packers write first. gzip is read as it is (rotated logs).
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}


class Source(Protocol):
    """Something with bytes."""

    def read(self, size: int, /) -> bytes: ...


def is_gzip(head: bytes) -> bool:
    return head.startswith(b"\x1f\x8b\x08")


def encoding(head: bytes) -> str:
    """"utf-16-le", "utf-16-be" or "utf-8" (which includes every log whose bytes are of something else: its English words are the same)."""
    pairs = head[: len(head) // 2 * 2]
    if len(pairs) >= 8:
        even, odd, half = pairs[::2].count(0), pairs[1::2].count(0), len(pairs) // 2
        if odd > 0.6 * half and even < 0.2 * half:
            return "utf-16-le"
        if even > 0.6 * half and odd < 0.2 * half:
            return "utf-16-be"
    return "utf-8"


def problem(head: bytes) -> str:
    """Why something that begins like this is no log, in words for people; "" if it may be one."""
    for mark, name in _PACKED.items():
        if head.startswith(mark):
            return f"It is packed with {name}"
    if is_gzip(head) or encoding(head) != "utf-8":
        return ""
    # A log that was cut while its writer went on begins with NUL bytes; many in between are no text.
    text = head.lstrip(b"\0")
    return "It holds many NUL bytes, so it is no text" if text.count(0) * 50 > len(text) else ""


class _Unpacked:
    """Reads gzip; a file that was cut, or is damaged further on, ends there."""

    def __init__(self, source: Source) -> None:
        self._file = gzip.GzipFile(fileobj=cast(BinaryIO, source), mode="rb")

    def read(self, size: int) -> bytes:
        try:
            return self._file.read1(size)  # `read` would lose what came before the cut
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""


class _Recoded:
    """Reads UTF-16 as UTF-8."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._decoder, self._over = source, codecs.getincrementaldecoder(name)(errors="replace"), False

    def read(self, size: int) -> bytes:
        while not self._over:
            data = self._source.read(size)
            self._over = not data
            if text := self._decoder.decode(data, final=self._over):
                return text.encode("utf-8", "replace")
        return b""


class _Begun:
    """A source whose first bytes were read already."""

    def __init__(self, head: bytes, source: Source) -> None:
        self._head, self._source = head, source

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = (self._head, b"") if size < 0 else (self._head[:size], self._head[size:])
            return head
        return self._source.read(size)


def blocks(source: Source) -> Iterator[bytes]:
    """Blocks of whole lines with their newlines; only the last line may lack its own. Raises OSError."""
    head = source.read(HEAD_BYTES)
    while 0 < len(head) < HEAD_BYTES and (more := source.read(HEAD_BYTES - len(head))):
        head += more
    if not head:
        return
    source = _Begun(head, source)
    if is_gzip(head):
        source = _Unpacked(source)
        head = source.read(HEAD_BYTES)
        source = _Begun(head, source)
    if (name := encoding(head)) != "utf-8":
        source = _Recoded(source, name)
    yield from _lines(source)


def _lines(source: Source) -> Iterator[bytes]:
    rest, cut, first = b"", False, True  # cut: the line's beginning is in `rest`, what follows of it is dropped
    while block := source.read(BLOCK_BYTES):
        if b"\0" in block:
            block = block.replace(b"\0", b"")
        if first and block:
            block, first = block.removeprefix(codecs.BOM_UTF8), False
        end = block.rfind(b"\n") + 1
        if not end:
            if not cut:
                rest += block
                if len(rest) > LINE_BYTES:
                    rest, cut = rest[:LINE_BYTES], True
            continue
        if cut:
            yield rest + block[block.index(b"\n") : end]
        else:
            yield rest + block[:end]
        rest, cut = block[end:], False
    if rest:
        yield rest


def plain_size(path: Path) -> int | None:
    """The size of a file that is text as it is, so that it can be read from any place; None if it is gzip or UTF-16. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        return None if is_gzip(head) or encoding(head) != "utf-8" else file.seek(0, 2)


def count(path: Path, end: int) -> int:
    """Newlines in a file's first `end` bytes. Raises OSError."""
    with path.open("rb") as file:
        total = 0
        while end > 0 and (block := file.read(min(BLOCK_BYTES * 4, end))):
            total += block.count(b"\n")
            end -= len(block)
        return total
