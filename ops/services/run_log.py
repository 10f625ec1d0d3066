"""The log of one run as a file that grows: what the plain-process manager's services write. Implements manager.RunLog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class FileLog:
    """Follows one file from its beginning. A file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        self._file: Any = None

    def read(self, limit: int = 1 << 20) -> bytes:
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except FileNotFoundError:
                return b""
        return bytes(self._file.read(limit))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def lines(path: Path, *, limit: int = 1 << 20) -> Iterator[str]:
    """The lines of a log file without their ends, read in pieces; a line longer than `limit` bytes is cut there. Raises OSError."""
    with path.open("rb") as file:
        rest, cut = b"", False  # cut: the line's beginning was given already, what follows of it is dropped
        while block := file.read(1 << 20):
            parts = block.split(b"\n")
            for index, part in enumerate(parts):
                if index:
                    if not cut:
                        yield rest.decode(errors="replace")
                    rest, cut = part, False
                elif not cut:
                    rest += part
            if not cut and len(rest) > limit:
                yield rest[:limit].decode(errors="replace")
                rest, cut = b"", True
        if rest and not cut:
            yield rest.decode(errors="replace")
