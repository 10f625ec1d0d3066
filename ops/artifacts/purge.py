"""Deletes exactly the files that a scan listed, or says why one was kept.

A path is only a way to a file, and may lead elsewhere a moment later. So each folder on the way is opened without following
links and held by its descriptor, the file is compared with what was previewed (device, inode, mtime, size, owner, one name, no
one has it open), and then unlinked in that very folder. Nothing is opened, nothing is unpickled.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ops.artifacts.scan import Artifact, open_files, open_folder, why_not

OPEN_FILES_AGE_S = 1.0  # who has what open is read again after that long: one look costs some 20 ms on a small host, 1 s on a large one


@dataclass(slots=True)
class PurgeResult:
    """What went and what stayed. `deleted`: artifacts; `kept`: [{path, why}]."""

    artifacts: list[Artifact]
    deleted: list[Artifact] = field(default_factory=list)
    kept: list[dict[str, str]] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        return sum(artifact.size_bytes for artifact in self.deleted)

    def as_dict(self) -> dict[str, Any]:
        return {"artifacts": [artifact.as_dict() for artifact in self.artifacts], "deleted": [artifact.path for artifact in self.deleted],
                "kept": list(self.kept), "freed_bytes": self.freed_bytes}


def purge(artifacts: Sequence[Artifact], *, roots: Sequence[Path | str], log: Callable[[str], None] | None = None,
          owner_uid: int | None = None) -> PurgeResult:
    """Deletes each artifact that is still what was previewed and lies below one of `roots`; goes on after one that is not.

    `owner_uid`: whose files may be deleted, ours if None. Each path is told to `log` with its size, or with why it was kept.
    """
    owner = os.geteuid() if owner_uid is None else owner_uid
    result = PurgeResult(list(artifacts))
    allowed = [PurePosixPath(os.path.normpath(root)) for root in roots]
    say = log or (lambda text: None)
    holders = _Holders()
    for artifact in artifacts:
        reason = _purge_one(artifact, allowed, owner, holders)
        if reason is None:
            result.deleted.append(artifact)
            say(f"deleted {artifact.path} ({artifact.size_bytes:,} bytes)")
        else:
            result.kept.append({"path": artifact.path, "why": reason})
            say(f"kept {artifact.path}: {reason}")
    return result


class _Holders:
    """Who has which file open, as of at most `OPEN_FILES_AGE_S` ago."""

    def __init__(self) -> None:
        self._opened: dict[tuple[int, int], set[int]] = {}
        self._looked_at = float("-inf")

    def of(self, state: os.stat_result) -> list[int]:
        if time.monotonic() - self._looked_at > OPEN_FILES_AGE_S:
            self._opened, self._looked_at = open_files(), time.monotonic()
        return sorted(self._opened.get((state.st_dev, state.st_ino), ()))


def _purge_one(artifact: Artifact, roots: Sequence[PurePosixPath], owner: int, holders: _Holders) -> str | None:
    """None: deleted. Otherwise why not."""
    path = PurePosixPath(artifact.path)
    root = next((root for root in roots if root.is_absolute() and root in path.parents), None)
    if root is None or str(path) != os.path.normpath(path) or "\0" in artifact.path:
        return "lies outside of the allowed folders"
    if not artifact.safe:
        return artifact.why or "was not safe to delete when it was listed"
    try:
        folder = open_folder(Path(root))
    except OSError as error:
        return f"its folder cannot be opened: {error.strerror}"
    try:
        device = os.fstat(folder).st_dev
        for part in path.parent.relative_to(root).parts:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
            if os.fstat(folder).st_dev != device:
                return "lies on another file system than its root"
        state = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if (reason := _changed(artifact, state, device)) is not None:
            return reason
        if (reason := why_not(state, owner=owner, open_by=holders.of(state))) is not None:
            return reason
        os.unlink(path.name, dir_fd=folder)
    except FileNotFoundError:
        return "is gone already"
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return "a folder on its way is a link now, or no folder"
        return error.strerror or str(error)
    finally:
        os.close(folder)
    return None


def _changed(artifact: Artifact, state: os.stat_result, device: int) -> str | None:
    """Whether it is the file that was previewed."""
    if not stat.S_ISREG(state.st_mode):  # said first: a link made a moment ago may have the old file's inode number
        return "is no regular file any more"
    if state.st_dev != device:
        return "lies on another file system than its root"
    if (state.st_dev, state.st_ino) != (artifact.device, artifact.inode):
        return "is another file than the one that was listed"
    if state.st_mtime_ns != artifact.mtime_ns or state.st_size != artifact.size_bytes:
        return "was written to since it was listed"
    return None
