"""The last look at what a purge deletes, and its end: whether it still is what was previewed, and nobody has it open.

Between the last look at a name and its unlinking stand two system calls with nothing between them but comparisons; ops/artifacts/purge.py says what
that leaves open.
"""
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from ops.artifacts.found import Entry
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import Kind
from ops.artifacts.places import Never
from ops.artifacts.preview import Row
from ops.artifacts.reach import Stays

ANOTHER = "It is another one than the one in the preview"
_FORMS = {"regular": (stat.S_IFREG, "regular file"), "socket": (stat.S_IFSOCK, "socket")}
_CHANGED = "It was written to since the preview"
_TOUCHED = "Something of it changed since the preview, so that it may be another file by now"


class LastLook:
    """`owner`: whose files may go. `holders` is as fresh as whoever calls keeps it."""

    def __init__(self, never: Never, holders: Holders, owner: int) -> None:
        self.never, self.holders, self.owner = never, holders, owner
        self.gone: list[tuple[tuple[int, int], int, Entry]] = []  # ((device, inode), bytes, entry) of what went, until `opened_meanwhile`
        self._me = os.getpid()

    def unlink(self, name: str, folder: int, row: Row, device: int, kind: Kind, path: str, entry: Entry) -> int:
        """Gives the bytes that went. Raises Stays or OSError."""
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self.same(row, state, device, kind, path)
        os.unlink(name, dir_fd=folder)
        size = state.st_blocks * 512
        self.gone.append(((row.device, row.inode), size, entry))
        return size

    def same(self, row: Row, state: os.stat_result, device: int, kind: Kind, path: str) -> None:
        """Raises Stays unless it is the file that was previewed, and nobody has it open."""
        form, words = _FORMS[kind.file_type]
        if state.st_mode & 0o170000 != form:  # said first: a link made a moment ago may have the old file's inode number
            raise Stays(f"It is no {words} any more")
        if state.st_dev != device:
            raise Stays("Something is mounted on it")
        if (state.st_dev, state.st_ino) != (row.device, row.inode):
            raise Stays(ANOTHER)
        if (why := self.never.takes(state, path)) is not None:
            raise Stays(why)
        if state.st_mtime_ns != row.mtime_ns or state.st_size != row.length:
            raise Stays(_CHANGED)
        if state.st_uid != row.uid or (state.st_uid != self.owner and not kind.any_owner):
            raise Stays(f"It belongs to another user (uid {state.st_uid})", "It belongs to another user")
        if state.st_nlink != 1:
            raise Stays(f"It has {state.st_nlink:,} names (hard links)", "It has several names (hard links)")
        if state.st_ctime_ns != row.ctime_ns:
            raise Stays(_TOUCHED)
        if pids := self.holders.seen(state.st_dev, state.st_ino, path):
            raise self.open_in(pids, "")

    def others(self, state: os.stat_result, path: str) -> list[int]:
        """Who has a folder open, or works in it, but for ourselves: we hold it while we take it apart."""
        return [pid for pid in self.holders.seen(state.st_dev, state.st_ino, path) if pid != self._me]

    def open_in(self, pids: Sequence[int], words: str) -> Stays:
        return Stays(_sentence(words + self.holders.words(pids)), _sentence(f"{words}open in a process"))

    def opened_meanwhile(self) -> Iterator[tuple[Entry, int, int]]:
        """(entry, pid, bytes) of what a process holds although it went: it opened it right before. Asks of all that went since the last time."""
        opened = self.holders.among(file for file, _, _ in self.gone)
        for file, size, entry in self.gone if opened else ():
            if file not in opened:
                continue
            holder = next((pid for pid in self.holders.seen(*file, "") if _still_has(pid, *file)), None)
            if holder is not None:
                yield entry, holder, size
        self.gone.clear()


def _still_has(pid: int, device: int, inode: int) -> bool:
    """Whether a process holds a file that has no name any more: its inode number may belong to a new file by now."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                state = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:  # closed meanwhile
                continue
            if (state.st_dev, state.st_ino, state.st_nlink) == (device, inode, 0):
                return True
        number = f" {inode} ".encode()
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(line.endswith(b" (deleted)\n") and number in line for line in file)
    except OSError:  # it has ended, or may not be looked into
        return False


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
