"""Hashes lists of files and tells which differ from what was said of them: the inner loop of `integrity`, and a program of its own.

As a program (`python -I -S hash_worker.py`) it reads a list as a line of JSON and answers with a line of JSON, until its stdin
ends: so it ends with whoever asked it, however that ended. It needs the standard library only, and starts in some 20 ms.

In processes because of the GIL: small files cost as much Python as hashing, and two threads spend 1.5 s on what two of these
processes do in 0.95 s (2.06 GB in 45,000 files, warm page cache, two cores). One read into a buffer that is used again is the
cheapest of what was tried (`os.read`, `mmap`, blocks of 64 KiB to 1 MiB); `mmap` would also die of SIGBUS when a file is cut
short meanwhile.
"""

from __future__ import annotations

import binascii
import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = 256 * 1024
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY  # opening a FIFO does not wait for its writer
NO_FILE = "is no regular file"
TOO_LONG = "is too long to be what was installed, and was not hashed"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

Row = tuple[str, str, str, int]  # absolute path, algorithm, expected (as RECORD writes it, "" for none), the most bytes worth hashing
Difference = list[Any]  # index of the row, what (a word of DIFFERENCES), SHA-256 (hex) or null, size or null, mtime or null, error or ""
DIFFERENCES = ("changed", "missing", "unreadable")


def hash_files(rows: Sequence[Row], block: int = BLOCK) -> dict[str, Any]:
    """`{"bytes": n, "differ": [Difference, ...]}`. A row without an expected hash is only looked for.

    "changed" is other content, or what is no regular file; "unreadable" is what could not be opened or read to its end.
    """
    buffer = bytearray(block)
    view = memoryview(buffer)
    into = [view]
    differ: list[Difference] = []
    done = 0
    for index, (path, algorithm, expected, most) in enumerate(rows):
        try:
            if not expected:
                os.lstat(path)
                continue
            descriptor = os.open(path, FLAGS)
        except OSError as error:
            differ.append([index, *_failure(error, path)])
            continue
        try:
            state = os.fstat(descriptor)
            size, mtime = state.st_size, state.st_mtime
            if not stat.S_ISREG(state.st_mode):
                differ.append([index, "changed", None, None, mtime, NO_FILE])
                continue
            if size > most:
                differ.append([index, "changed", None, size, mtime, TOO_LONG])
                continue
            count = os.readv(descriptor, into)
            if count == size and count < block:
                done += count
                digest = hashlib.sha256(view[:count]).digest() if algorithm == "sha256" else hashlib.new(algorithm, view[:count]).digest()
                if as_recorded(digest) == expected:
                    continue
                sha256 = digest.hex() if algorithm == "sha256" else hashlib.sha256(view[:count]).hexdigest()
                differ.append([index, "changed", sha256, count, mtime, ""])
                continue
            total = hashlib.new(algorithm)
            also = None if algorithm == "sha256" else hashlib.sha256()
            size = 0
            while count:
                total.update(view[:count])
                if also is not None:
                    also.update(view[:count])
                size += count
                count = os.readv(descriptor, into)
            done += size
            if as_recorded(total.digest()) != expected:
                differ.append([index, "changed", (also or total).hexdigest(), size, mtime, ""])
        except OSError as error:
            differ.append([index, *_failure(error, path)])
        finally:
            os.close(descriptor)
    return {"bytes": done, "differ": differ}


def as_recorded(digest: bytes) -> str:
    """As RECORD writes it: urlsafe base64 without padding."""
    return binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE, b"=").decode()


def _failure(error: OSError, path: str) -> list[Any]:
    """A difference without its index."""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        if error.errno == errno.ENOENT and os.path.islink(path):  # noqa: PTH114
            return ["changed", None, None, None, "a link to nothing"]
        return ["missing", None, None, None, ""]
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a loop of links, a socket or a device, a folder: there, and no file
        return ["changed", None, None, None, why]
    return ["unreadable", None, None, None, why]


def hash_file(path: str | Path, algorithm: str = "sha256") -> tuple[bytes, int, float]:
    """Digest, size and mtime of a regular file (links are followed). Raises OSError, also for what is no regular file; never waits on a FIFO."""
    view = memoryview(bytearray(BLOCK))
    total = hashlib.new(algorithm)
    size = 0
    descriptor = os.open(path, FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(0, NO_FILE, str(path))
        while count := os.readv(descriptor, [view]):
            total.update(view[:count])
            size += count
    finally:
        os.close(descriptor)
    return total.digest(), size, state.st_mtime


def main() -> None:
    """Answers lists until stdin ends."""
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(hash_files(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
