"""Room that is kept on the node's disk for the night on which it is full: without a byte left, the job that gives room back could not even begin.

A scan and a purge write a journal, a preview and a manifest before the first file goes. So a file of real blocks lies in the state folder; a job of
these kinds lets it go when it finds the disk full, and it is made again when there is room.
"""

from __future__ import annotations

import os
from pathlib import Path

BYTES = 16 * 2**20  # a journal, a manifest and a preview of some 50,000 leftovers
ROOM = 2**30  # it is made only where as much is free: it shall not be what fills a small disk
JOBS = frozenset({"artifact-scan", "purge"})


def file_in(root: Path) -> Path:
    """`root`: the node's state folder."""
    return root / "reserve"


def keep(root: Path) -> bool:
    """Makes it if it is not there. Whether it is there then: not with too little room, or where a file system cannot keep any. All works without it,
    until the disk is full."""
    path = file_in(root)
    try:
        if path.exists():
            return True
        if _free(root) < ROOM:
            return False
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, BYTES)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
    except FileExistsError:
        return True  # another process of the node was quicker
    except OSError:
        return False
    return True


def let_go_if_full(root: Path) -> bool:
    """Lets it go if less than that is free, or all inodes are taken. Whether it did."""
    try:
        state = os.statvfs(root)
        if state.f_bavail * state.f_frsize >= BYTES and (state.f_favail or not state.f_files):
            return False
        file_in(root).unlink()
    except OSError:
        return False  # it is not there, or cannot be removed: then the job says what it cannot write
    return True


def _free(root: Path) -> int:
    state = os.statvfs(root)
    return state.f_bavail * state.f_frsize
