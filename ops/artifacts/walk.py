"""A walk through folders that anybody may change meanwhile: through descriptors, without following a link, across no mount.

Every folder is opened by its name in the descriptor of the one above, never by a path, so a folder swapped for a link is not entered. What a folder
holds comes from the kernel a block at a time, so one with a million files costs no memory. However deep the folders go, at most `OPEN_MOST` of them
are open: one that is closed meanwhile is reached again by `..`, and must then be the very same one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

OPEN_MOST = 64  # folders open at once, two descriptors each
LONGEST_PATH = 4095  # bytes: the kernel takes no longer path, so nobody uses by its path what lies deeper
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHECKED_EACH = 2048  # entries between two looks at whether to go on
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class Frame:
    """A folder on the way down. The visitor may set `data` in `enter`, and find its parent's in `above`."""

    __slots__ = ("_entries", "_names", "above", "data", "depth", "descriptor", "name", "path", "state")

    def __init__(self, name: str, path: str, state: os.stat_result, above: Frame | None, descriptor: int) -> None:
        self.name = name
        self.path = path  # absolute
        self.state = state
        self.above = above
        self.depth: int = above.depth + 1 if above is not None else 0
        self.descriptor = descriptor  # -1 while it is closed
        self.data: object = None
        self._entries: Iterator[os.DirEntry[str]] | None = None
        self._names: list[str] = []  # of folders in it that are still to be entered, where it is not read entry by entry


class Visitor(Protocol):
    """What is told of a walk. A frame's descriptor is open in `enter` alone."""

    def enter(self, frame: Frame) -> bool:
        """Whether to look into this folder. Without it, `leave` is not called."""

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        """Anything in `frame` that is no folder."""

    def leave(self, frame: Frame) -> None:
        """All that lies in it was told."""

    def mount(self, frame: Frame, name: str) -> None:
        """Something in `frame` that is mounted there: another file system, or a folder or file from elsewhere. It is not looked at."""

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        """A folder (or entry) in `frame` that could not be looked at, for another reason than that it is gone."""


def walk(root: str, visitor: Visitor, *, check: Callable[[], None] | None = None, descriptor: int | None = None) -> None:
    """Tells `visitor` all that lies below `root`, an absolute folder. `check` may raise to end the walk; it is called every few thousand entries.

    `descriptor`: of the root, if it is open already (`open_folder`); it is closed. Without it, raises OSError if the root cannot be opened (ELOOP or
    ENOTDIR: a link, or no folder, on the way).
    """
    descriptor = open_folder(root) if descriptor is None else descriptor
    try:
        top = Frame(os.path.basename(root), root, os.fstat(descriptor), None, descriptor)  # noqa: PTH119
        work = _Walk(visitor, top, check)
        entered = visitor.enter(top)
    except BaseException:
        os.close(descriptor)
        raise
    if entered:
        work.run()
    else:
        os.close(descriptor)


class _Walk:
    def __init__(self, visitor: Visitor, top: Frame, check: Callable[[], None] | None) -> None:
        self._visitor, self._check = visitor, check
        self._stack = [top]
        self._mounts = mounts()
        self._left = CHECKED_EACH

    def run(self) -> None:
        stack, visitor = self._stack, self._visitor
        try:
            self._list(stack[0])
            while stack:
                frame = stack[-1]
                below = self._next(frame)
                if below is not None:
                    stack.append(below)
                    self._list(below)
                    if frame.depth >= OPEN_MOST:
                        _close(frame)
                    continue
                visitor.leave(frame)
                stack.pop()
                if stack and stack[-1].descriptor < 0:
                    self._reopen(stack[-1], frame)
                _close(frame)
        finally:
            for frame in stack:
                _close(frame)

    def _list(self, frame: Frame) -> None:
        """Begins to read a folder; one that lies deep is read at once, so that it can be closed while those in it are looked at."""
        try:
            frame._entries = os.scandir(frame.descriptor)
        except OSError as error:
            self._visitor.unreadable(frame.path, error, frame)
            return
        if frame.depth >= OPEN_MOST:
            while (name := self._name(frame)) is not None:
                frame._names.append(name)

    def _next(self, frame: Frame) -> Frame | None:
        """The next folder in this one that is to be entered, opened. None at the end."""
        if frame.depth >= OPEN_MOST:
            while frame._names and frame.descriptor >= 0:
                if (below := self._entered(frame, frame._names.pop())) is not None:
                    return below
            return None
        while (name := self._name(frame)) is not None:
            if (below := self._entered(frame, name)) is not None:
                return below
        return None

    def _name(self, frame: Frame) -> str | None:
        """The name of the next folder in this one; tells the files that come before it. None at the end."""
        if frame._entries is None:
            return None
        entries, file, device, mounted = frame._entries, self._visitor.file, frame.state.st_dev, self._mounts.get(frame.path, ())
        while True:
            try:
                entry = next(entries, None)
            except OSError as error:  # the folder cannot be read on
                self._visitor.unreadable(frame.path, error, frame)
                entry = None
            if entry is None:
                break
            self._left -= 1
            if self._left <= 0:
                self._left = CHECKED_EACH
                if self._check is not None:
                    self._check()
            if mounted and entry.name in mounted:
                self._visitor.mount(frame, entry.name)
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    return entry.name
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone in the meantime
                continue
            except OSError as error:
                self._visitor.unreadable(below_path(frame.path, entry.name), error, frame)
                continue
            if state.st_dev == device:
                file(frame, entry.name, state)
            else:
                self._visitor.mount(frame, entry.name)
        frame._entries.close()  # type: ignore[attr-defined]  # scandir's own iterator
        frame._entries = None
        return None

    def _entered(self, frame: Frame, name: str) -> Frame | None:
        path = below_path(frame.path, name)
        if len(path) > LONGEST_PATH // 4 and len(os.fsencode(path)) > LONGEST_PATH:
            self._visitor.unreadable(path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)), frame)
            return None
        try:
            descriptor = os.open(name, _FLAGS, dir_fd=frame.descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):  # gone, or swapped for a link or a file, in the meantime
                self._visitor.unreadable(path, error, frame)
            return None
        entered = False
        try:
            below = Frame(name, path, os.fstat(descriptor), frame, descriptor)
            if below.state.st_dev != frame.state.st_dev:
                self._visitor.mount(frame, name)
            else:
                entered = self._visitor.enter(below)
        finally:
            if not entered:
                os.close(descriptor)
        return below if entered else None

    def _reopen(self, frame: Frame, below: Frame) -> None:
        """The way back up to a folder that was closed."""
        try:
            if below.descriptor < 0:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            descriptor = os.open("..", _FLAGS, dir_fd=below.descriptor)
            state = os.fstat(descriptor)
            if (state.st_dev, state.st_ino) != (frame.state.st_dev, frame.state.st_ino):
                os.close(descriptor)
                raise OSError(errno.ESTALE, "A folder in it was moved away while it was looked at")
        except OSError as error:
            if frame._names or below.descriptor >= 0:
                self._visitor.unreadable(frame.path, error, frame)
            return
        frame.descriptor = descriptor


def mounts(table: str = "/proc/self/mountinfo") -> dict[str, frozenset[str]]:
    """Names of what is mounted, by the folder that each lies in. A folder or file that is bound from the same file system has its device number, so
    only this table tells it. Raises OSError."""
    found: dict[str, set[str]] = {}
    for line in Path(table).read_bytes().split(b"\n")[:-1]:
        above, _, name = unescaped(line.split(b" ", 5)[4]).rpartition("/")
        found.setdefault(above or "/", set()).add(name)
    return {above: frozenset(names) for above, names in found.items()}


def unescaped(written: bytes) -> str:
    """A path as /proc/self/mountinfo writes it (a space is `\\040`)."""
    return os.fsdecode(_ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 8)]), written))


def below_path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder != "/" else f"/{name}"


def open_folder(path: str | Path) -> int:
    """A descriptor of an absolute folder, reached without following a link in any component. Raises OSError."""
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in Path(os.path.normpath(path)).parts[1:]:
            below = os.open(part, _FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _close(frame: Frame) -> None:
    if frame._entries is not None:
        frame._entries.close()  # type: ignore[attr-defined]  # scandir's own iterator
        frame._entries = None
    if frame.descriptor >= 0:
        os.close(frame.descriptor)
        frame.descriptor = -1
