"""The way to what a purge deletes: each folder opened in the one above it without following a link, and the kinds that can come true there.

A path is only a way to a file, and may lead elsewhere a moment later; what is held by a descriptor stays what it is.
"""
# ruff: noqa: PTH116, PTH123

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.artifacts.kinds import Kind, shape
from ops.artifacts.places import Place, Places, is_inside
from ops.artifacts.recognise import Picker, Pickers
from ops.artifacts.walk import open_folder

SEEN_S = 0.005  # how long one that was found at its path is taken to be there still: a second file in it is not looked for anew
HELD_S = 1.0  # how long a folder that is held is taken to be in its place, and on the way there nothing to be mounted
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_THE_WAY = {
    errno.EPERM: "The file system does not let it go: it may be immutable (lsattr shows an `i`), or the folder keeps it for its owner",
    errno.EACCES: "Its folder may not be written to, or not be looked into",
    errno.EBUSY: "It is in use by the kernel: something is mounted on it",
    errno.EROFS: "Its file system is read-only",
    errno.ELOOP: "A link lies on the way to it",
    errno.ENOTDIR: "A link, or something that is no folder, lies on the way to it",
}


class Stays(Exception):
    """Something stays, and why; `reason`: the same without what is this one's alone (a pid)."""

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.why, self.reason = why, reason or why


@dataclass(slots=True)
class Reached:
    """A folder in a place, held by its descriptor."""

    path: str
    descriptor: int
    device: int
    inode: int
    mount: int
    since: float
    picker: Picker
    seen: float = 0.0  # when it was last found at its path


class Reach:
    """Holds one folder at a time; `leave` lets go of it."""

    def __init__(self, places: Places, kinds: Sequence[Kind]) -> None:
        self._places = places
        self._pickers = Pickers()
        self._roots: dict[str, list[Place]] = {}
        self._held: Reached | None = None
        for kind in kinds:
            for place in places.of(kind) if kind.method == "files" else ():
                self._pickers.look_for(kinds, kind, place)
                self._roots.setdefault(place.path, [])
                if place not in self._roots[place.path]:
                    self._roots[place.path].append(place)

    def folder(self, path: str) -> Reached:
        """The folder of an artifact. One that is held already counts if it is still what is found at its path, for a second."""
        held, now = self._held, time.monotonic()
        if held is not None and held.path == path and now - held.since < HELD_S:
            if now - held.seen < SEEN_S:
                return held
            try:
                state = os.stat(path, follow_symlinks=False)
                if (state.st_dev, state.st_ino) == (held.device, held.inode):
                    held.seen = now
                    return held
            except OSError:  # told when it is opened anew
                pass
        self.leave()
        self._held = self._open(path)
        return self._held

    def _open(self, path: str) -> Reached:
        """From the outermost place that it lies in down to it; where that way is closed (a mount, a folder that is never entered), from one further
        in, as the scan goes. Raises Stays or OSError."""
        roots = sorted((root for root in self._roots if is_inside(path, root)), key=len)
        if os.path.normpath(path) != path:
            roots = []
        closed = Stays("It lies outside of the folders that a purge may touch")
        for named, error in self._places.refused.items() if not roots else ():
            if is_inside(path, named):
                os.lstat(named)  # FileNotFoundError: then it is gone, with all that was in it
                closed = Stays(f"The folder that it was found in can be none of leftovers any more: {error.what}")
        for root in roots:
            try:
                return self._descend(root, path)
            except Stays as stays:
                closed = stays
        raise closed

    def _descend(self, root: str, path: str) -> Reached:
        descriptor = open_folder(root)
        try:
            first = state = os.fstat(descriptor)
            mount, here, states = mount_of(descriptor), root, self._begin(root)
            self._enter(descriptor, state, here)
            for part in path[len(root):].strip("/").split("/") if path != root else ():
                below = os.open(part, FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
                here = f"{here.rstrip('/')}/{part}"
                state = os.fstat(descriptor)
                if state.st_dev != first.st_dev or mount_of(descriptor) != mount:
                    raise Stays("It lies on another file system than the folder that it was found below: something is mounted on the way")
                self._enter(descriptor, state, here)
                states = self._pickers.of(states).below(part) | self._begin(here)
            return Reached(path, descriptor, state.st_dev, state.st_ino, mount, time.monotonic(), self._pickers.of(states))
        except BaseException:
            os.close(descriptor)
            raise

    def _begin(self, path: str) -> frozenset[Any]:
        found: frozenset[Any] = frozenset()
        for place in self._roots.get(path, ()):
            found |= self._pickers.begin(place)
        return found

    def _enter(self, descriptor: int, state: os.stat_result, path: str) -> None:
        """Raises Stays for a folder that is never entered."""
        if (why := self._places.never.enters(state, path) or shape(descriptor)) is not None:
            raise Stays(f"It lies in a folder that is never entered: {why}")

    def leave(self) -> None:
        if self._held is not None:
            os.close(self._held.descriptor)
            self._held = None


def mount_of(descriptor: int) -> int:
    """The mount that an open folder lies in (mnt_id of /proc/self/fdinfo): one folder bound over another has the same device. Raises OSError."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENOTSUP, "The kernel does not say which mount a folder lies in")


def in_the_way(error: OSError) -> str:
    return _IN_THE_WAY.get(error.errno or 0) or error.strerror or str(error)
