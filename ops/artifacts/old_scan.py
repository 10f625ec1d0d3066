"""Which leftovers lie in the allowed roots? Files are looked at by name and metadata only: never opened, never unpickled.

Folders are walked through descriptors, without following links and without leaving the root's file system.
"""
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from ops.artifacts.kinds import KINDS, NEVER_BESIDE, Kind, kind_of
from ops.jobs.errors import BadInput

LIMIT = 100_000  # files that a scan gives; more is told as an error, not cut silently
_MAPPED = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) +/")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A leftover file as it was seen. `safe` with `why`: whether a purge would delete it, and the reason.

    Device, inode and mtime are its identity: a purge deletes exactly this file or nothing. `open_by`: pids that have it open or mapped.
    """

    path: str
    size_bytes: int
    kind: str
    mtime_ns: int
    inode: int
    device: int
    uid: int
    open_by: list[int] = field(default_factory=list)
    safe: bool = True
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Raises BadInput if it is none."""
        types = {"path": str, "size_bytes": int, "kind": str, "mtime_ns": int, "inode": int, "device": int, "uid": int, "open_by": list,
                 "safe": bool, "why": str}
        if not isinstance(raw, dict) or set(raw) != {f.name for f in fields(cls)}:
            raise BadInput("This is no artifact", hint="Scan again: a purge deletes only what a scan listed")
        for name, kind in types.items():
            if not isinstance(raw[name], kind) or (kind is int and isinstance(raw[name], bool)):
                raise BadInput(f"An artifact's `{name}` has the wrong form")
        return cls(**raw)


def scan(roots: Sequence[Path | str], *, owner_uid: int | None = None, min_age_s: float = 0, kinds: Sequence[Kind] = KINDS) -> list[Artifact]:
    """All known leftovers below `roots`, sorted by path; those that a purge would keep have `safe` False and say why.

    `owner_uid`: whose files may be deleted, ours if None. A root that does not exist has none. Raises BadInput for a root that is
    no folder or a link, or for more than 100,000 files.
    """
    owner = os.geteuid() if owner_uid is None else owner_uid
    now = time.time_ns()
    found: dict[str, tuple[os.stat_result, Kind]] = {}
    for root in roots:
        for path, state, kind in _walk_root(Path(root), kinds):
            found.setdefault(path, (state, kind))
            if len(found) > LIMIT:
                raise BadInput(f"There are more than {LIMIT:,} leftover files below `{root}`", hint="Look at a smaller folder")
    opened = open_files() if found else {}
    artifacts = []
    for path, (state, kind) in sorted(found.items()):
        pids = sorted(opened.get((state.st_dev, state.st_ino), ()))
        reason = why_not(state, owner=owner, open_by=pids)
        if reason is None and now - state.st_mtime_ns < min_age_s * 1e9:
            reason = f"younger than {min_age_s:,.0f} s"
        artifacts.append(Artifact(
            path=path, size_bytes=state.st_size, kind=kind.name, mtime_ns=state.st_mtime_ns, inode=state.st_ino, device=state.st_dev,
            uid=state.st_uid, open_by=pids, safe=reason is None, why=reason or kind.leftover))
    return artifacts


def why_not(state: os.stat_result, *, owner: int, open_by: Sequence[int]) -> str | None:
    """Why a file may not be deleted, as far as its metadata tells; None: it may."""
    if not stat.S_ISREG(state.st_mode):
        return "no regular file"
    if state.st_uid != owner:
        return f"belongs to another user (uid {state.st_uid})"
    if state.st_nlink != 1:
        return f"has {state.st_nlink} names (hard links)"
    if open_by:
        return f"open in process {', '.join(map(str, open_by[:5]))}"
    return None


def _walk_root(root: Path, kinds: Sequence[Kind]) -> Iterator[tuple[str, os.stat_result, Kind]]:
    if not root.is_absolute():
        raise BadInput(f"`{root}` is no absolute path")
    try:
        descriptor = open_folder(root)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadInput(f"`{root}` cannot be searched for leftovers", why=error.strerror or str(error)) from error
    try:
        device = os.fstat(descriptor).st_dev
        yield from _walk(descriptor, str(root), device, max((kind.depth for kind in kinds), default=0), kinds)
    finally:
        os.close(descriptor)


def _walk(folder: int, path: str, device: int, depth: int, kinds: Sequence[Kind]) -> Iterator[tuple[str, os.stat_result, Kind]]:
    try:
        names = os.listdir(folder)
    except OSError:  # no permission, or gone: nothing to give
        return
    if any(name in names for name in NEVER_BESIDE):
        return
    for name in sorted(names):
        try:
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:  # gone in the meantime
            continue
        if stat.S_ISDIR(state.st_mode):
            if depth <= 0 or state.st_dev != device:
                continue
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _walk(below, f"{path}/{name}", device, depth - 1, kinds)
            finally:
                os.close(below)
            continue
        kind = kind_of(name)
        if kind in kinds and kind is not None and state.st_dev == device and not stat.S_ISLNK(state.st_mode) and _is_text(f"{path}/{name}"):
            yield f"{path}/{name}", state, kind


def _is_text(path: str) -> bool:
    """Names that are no UTF-8 cannot stand in an event; they stay where they are."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def open_folder(path: Path) -> int:
    """A descriptor of an absolute folder, reached without following a link in any component. Raises OSError."""
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in Path(os.path.normpath(path)).parts[1:]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_files() -> dict[tuple[int, int], set[int]]:
    """(device, inode) of every file that a process has open or mapped, with its pids, as far as we may look (root sees all)."""
    found: dict[tuple[int, int], set[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        pid = int(name)
        for key in (*_open_in(pid), *_mapped_in(pid)):
            found.setdefault(key, set()).add(pid)
    return found


def _open_in(pid: int) -> Iterator[tuple[int, int]]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # ended, or another user's
        return
    for name in names:
        try:
            state = os.stat(f"{folder}/{name}")
        except OSError:
            continue
        if stat.S_ISREG(state.st_mode):
            yield state.st_dev, state.st_ino


def _mapped_in(pid: int) -> Iterator[tuple[int, int]]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                if match := _MAPPED.match(line):
                    major, minor, inode = int(match[1], 16), int(match[2], 16), int(match[3])
                    yield os.makedev(major, minor), inode
    except OSError:
        return
