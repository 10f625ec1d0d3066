"""How much a folder gives back when it goes, and whose it is."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Measured:
    """`size_bytes`: allocated on disk by the folder, by those in it, and by files that have no other name outside of it. `files`: all that are no
    folders."""

    files: int
    size_bytes: int


def folder(path: Path, check: Callable[[], None] = lambda: None) -> Measured:
    """Links are not followed; what comes or goes meanwhile is counted or not. Raises OSError if the folder itself cannot be read."""
    files, size = 0, os.lstat(path).st_blocks * 512
    linked: dict[tuple[int, int], list[int]] = {}  # of files with several names: names seen, names in all, bytes
    pending, first = [os.fspath(path)], True
    while pending:
        check()
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        continue
                    found = entry.stat(follow_symlinks=False)
                    files += 1
                    if found.st_nlink == 1:
                        size += found.st_blocks * 512
                    else:
                        row = linked.setdefault((found.st_dev, found.st_ino), [0, found.st_nlink, found.st_blocks * 512])
                        row[0] += 1
        except OSError:
            if first:
                raise
        first = False
    return Measured(files, size + sum(size for seen, names, size in linked.values() if seen >= names))


def owner(uid: int) -> str:
    """The user's name, or the number as text."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
