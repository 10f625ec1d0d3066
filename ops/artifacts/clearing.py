"""Takes a folder artifact apart: looked at as a whole before anything in it is touched, then entry by entry as the preview has them.

What is new or has changed stays, with the folders that it lies in, and so does what nobody may delete; the artifact then went in part.
"""
# ruff: noqa: PTH116

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

from ops.artifacts.found import Artifact, Entry, shown
from ops.artifacts.kinds import Kind, shape
from ops.artifacts.last_look import ANOTHER, LastLook
from ops.artifacts.places import is_inside
from ops.artifacts.preview import FILE, FOLDER, Row, Tree
from ops.artifacts.reach import FLAGS, SEEN_S, Reached, Stays, in_the_way, mount_of
from ops.artifacts.walk import Frame
from ops.jobs.errors import Cancelled, OpsError

DEEPEST = 200  # folders held open one in the other: a folder artifact that is deeper stays
_REMEMBERED = 10_000  # entries of a folder that stayed, so that what is new can be told from them


class FolderLook:
    """A look at a folder artifact as it is now, before anything in it is touched. `obstacle`: why it has to stay whole. What is new or has changed
    is none: that stays for itself, unless the kind's conditions say more of a folder in which something is so young."""

    def __init__(self, last: LastLook, artifact: Artifact, kind: Kind, mount: int) -> None:
        self._last, self._artifact, self._kind, self._mount = last, artifact, kind, mount
        self.obstacle: Stays | None = None
        self.newest_ns: int | None = None

    def enter(self, frame: Frame) -> bool:
        state = frame.state
        if frame.above is None and (state.st_dev, state.st_ino) != (self._artifact.device, self._artifact.inode):
            return self._stays(ANOTHER)
        if frame.depth > DEEPEST:
            return self._stays(f"Its folders go deeper than {DEEPEST}")
        if mount_of(frame.descriptor) != self._mount:
            return self._stays("Another file system is mounted in it")
        if (why := self._last.never.enters(state, frame.path) or shape(frame.descriptor)) is not None:
            return self._stays(f"A folder in it is never entered: {why}")
        self._examine(frame.path, state)
        return self.obstacle is None

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        if self.obstacle is None and stat.S_ISREG(state.st_mode):
            if self.newest_ns is None or state.st_mtime_ns > self.newest_ns:
                self.newest_ns = state.st_mtime_ns
            self._examine(f"{frame.path}/{name}", state)

    def leave(self, frame: Frame) -> None:
        """Nothing is summed up."""

    def mount(self, frame: Frame, name: str) -> None:
        self._stays("Another file system is mounted in it")

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        self._stays(f"Not all of it could be looked at: {error.strerror or error}")

    def _examine(self, path: str, state: os.stat_result) -> None:
        last = self._last
        if (why := last.never.takes(state, path)) is not None:
            self._stays(why)
        elif state.st_uid != last.owner and not self._kind.any_owner:
            self._stays(f"Something in it belongs to another user (uid {state.st_uid})", "Something in it belongs to another user")
        elif state.st_nlink != 1 and stat.S_ISREG(state.st_mode):
            self._stays("A file in it has several names (hard links)")
        elif pids := last.others(state, path) if stat.S_ISDIR(state.st_mode) else last.holders.seen(state.st_dev, state.st_ino, path):
            self.obstacle = self.obstacle or last.open_in(pids, "something in it is ")

    def _stays(self, why: str, reason: str = "") -> bool:
        self.obstacle = self.obstacle or Stays(why, reason)
        return False


class Clearing:
    """Takes a folder artifact apart, entry by entry as the preview has them, and each folder once it is empty."""

    def __init__(self, last: LastLook, artifact: Artifact, kind: Kind, reached: Reached, name: str, entry: Entry) -> None:
        self._last, self._artifact, self._kind, self._reached, self._name, self._entry = last, artifact, kind, reached, name, entry
        self._chain: list[tuple[str, int, int, int]] = []  # (path below the artifact, descriptor, device, inode), each in the one before
        self._seen = (-1, 0.0)  # the descriptor of the folder that was last found at its path, and when
        self._stayed: set[str] = set()
        self._whys: dict[str, list[Any]] = {}
        self._new: list[Any] = [0, ""]
        self._folders = 0
        self._whole = False

    def __enter__(self) -> Clearing:
        return self

    def __exit__(self, *_: object) -> None:
        self._up(0)

    def run(self, tree: Tree, between: Callable[[], None]) -> None:
        """`between` is called between two entries, and may raise to end it: what has gone by then is in the entry, and is told."""
        self._into("", self._name, self._reached.descriptor)
        rows = iter(tree)
        while (row := self._next(rows)) is not None:
            try:
                between()
            except (Cancelled, OpsError) as error:
                self._stay("the purge was cancelled" if isinstance(error, Cancelled) else error.what, row.path)
                raise
            try:
                self._entry_of(row)
            except FileNotFoundError:  # it went by itself: nothing of it is left
                continue
            except Stays as stays:
                self._stay(stays.why, row.path)
            except OSError as error:
                self._stay(in_the_way(error), row.path)

    def _next(self, rows: Iterator[Row]) -> Row | None:
        try:
            return next(rows, None)
        except OpsError as error:  # the preview was cut, or somebody made it
            self._stay(error.what, "")
            raise

    def tell(self) -> None:
        """What became of the artifact, in its entry."""
        entry = self._entry
        if self._whole:
            entry.result = "deleted"
            return
        entry.result = "partly" if entry.deleted_files or self._folders else "kept"
        words = [f"`{example}` stays: {why[:1].lower()}{why[1:]}" if count == 1 else f"{count:,} entries stay, such as `{example}`: "
                 f"{why[:1].lower()}{why[1:]}" for why, (count, example) in sorted(self._whys.items(), key=lambda row: -row[1][0])[:3]]
        if count := self._new[0]:
            first = f"`{self._new[1]}`"
            words.insert(0, f"{first} is new since the preview" if count == 1 else f"{count:,} entries are new since the preview, such as {first}")
        told = "; ".join(words) or "It is not empty"
        entry.why = f"{told}; {entry.why}" if entry.why else told

    def _entry_of(self, row: Row) -> None:
        if row.path == "":
            self._up(0)
            self._rmdir(self._reached.descriptor, self._name, row)
            return
        parent, _, name = row.path.rpartition("/")
        folder = self._down(parent)
        if row.type == FOLDER:
            self._rmdir(folder, name, row)
        elif row.type == FILE:
            entry = self._entry
            entry.freed_bytes += self._last.unlink(name, folder, row, self._reached.device, self._kind, f"{self._artifact.path}/{row.path}", entry)
            entry.deleted_files += 1
        else:
            raise Stays("It is no regular file")

    def _rmdir(self, folder: int, name: str, row: Row) -> None:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(state.st_mode) or (state.st_dev, state.st_ino) != (row.device, row.inode):
            raise Stays(ANOTHER)
        path = f"{self._artifact.path}/{row.path}".rstrip("/")
        if pids := self._last.others(state, path):
            raise self._last.open_in(pids, "")
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._note_new(folder, name, row.path)
            return
        self._folders += 1
        self._whole = row.path == ""
        self._entry.freed_bytes += state.st_blocks * 512

    def _note_new(self, folder: int, name: str, path: str) -> None:
        """What lies in a folder that is not empty, beyond what is known to have stayed."""
        self._stayed.add(path)
        if len(self._stayed) > _REMEMBERED:
            return
        descriptor = os.open(name, FLAGS, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for one in entries:
                    if (below := f"{path}/{one.name}".lstrip("/")) not in self._stayed:
                        self._new[0] += 1
                        self._new[1] = self._new[1] or shown(below)
        finally:
            os.close(descriptor)

    def _stay(self, why: str, path: str) -> None:
        if len(self._stayed) <= _REMEMBERED:
            self._stayed.add(path)
        self._whys.setdefault(why, [0, shown(path) or "itself"])[0] += 1

    def _down(self, path: str) -> int:
        """The descriptor of a folder of the artifact; one that is held counts if it is still what is found at its path."""
        chain = self._chain
        while chain and not (chain[-1][0] == "" or is_inside(path, chain[-1][0])):
            self._up(len(chain) - 1)
        if not chain:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        rest = path[len(chain[-1][0]):].strip("/")
        for part in rest.split("/") if rest else ():
            self._into(f"{chain[-1][0]}/{part}".lstrip("/"), part, chain[-1][1])
        held, descriptor, device, inode = chain[-1]
        now = time.monotonic()
        if self._seen[0] == descriptor and now - self._seen[1] < SEEN_S:
            return descriptor
        state = os.stat(f"{self._artifact.path}/{held}".rstrip("/"), follow_symlinks=False)
        if (state.st_dev, state.st_ino) != (device, inode):
            raise Stays("A folder on its way was moved, or something else has taken its place")
        self._seen = (descriptor, now)
        return descriptor

    def _into(self, path: str, name: str, above: int) -> None:
        descriptor = os.open(name, FLAGS, dir_fd=above)
        state = os.fstat(descriptor)
        self._chain.append((path, descriptor, state.st_dev, state.st_ino))
        if path == "" and (state.st_dev, state.st_ino) != (self._artifact.device, self._artifact.inode):
            raise Stays(ANOTHER)
        if state.st_dev != self._reached.device or mount_of(descriptor) != self._reached.mount:
            self._up(len(self._chain) - 1)
            raise Stays("Another file system is mounted in it")

    def _up(self, length: int) -> None:
        while len(self._chain) > length:
            os.close(self._chain.pop()[1])
            self._seen = (-1, 0.0)
