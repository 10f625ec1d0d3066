"""Files of a model folder, read with care: the folder is untrusted, and its files are huge.

Nothing is imported or run, no tensor is loaded; of a shard only the header is read. What was found out about a file is remembered by its device,
inode, size and times, so that the next look costs one stat.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError
from ops.records import NEVER_IN_TEXT
from ops.services import state

SIZE_LIMIT = 16 * 1024 * 1024  # bytes; a tokenizer.json reaches 10 MB, a config.json 100 kB
INDEX_LIMIT = 256 * 1024 * 1024  # bytes; 276,000 tensors of a model with 384 experts in 61 layers make an index of 33 MB
HEADER_LIMIT = 32 * 1024 * 1024  # bytes of a shard's header; about 100 a tensor
LISTED = 20_000  # entries of a folder that are looked at
LFS = b"version https://git-lfs.github.com/spec/v1"
LFS_LIMIT = 1024  # bytes; a pointer is shorter, says its specification
REMEMBERED = 4096
RACY_NS = 2_000_000_000  # a file that was changed just now may change again within the same tick of its clock: look at it again


def read_limited(path: Path, limit: int = SIZE_LIMIT) -> bytes:
    """A regular file's content. Raises FileNotFoundError, or OpsError if it is no regular file, larger than `limit`, or unreadable.

    Links are followed: hub caches keep every model file as a link to a blob. A FIFO does not block.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise OpsError(f"`{path}` cannot be read", why=getattr(error, "strerror", None) or str(error)) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OpsError(f"`{path}` is no regular file")
        if found.st_size > limit:
            raise OpsError(f"`{path}` is too large to be read", why=f"{found.st_size:,} bytes; the limit is {limit:,}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1)[:limit]
    except OSError as error:
        raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
    finally:
        os.close(descriptor)


def as_text(text: str) -> str:
    """Text of a model folder as every page, event and database can hold it: halves of characters (of JSON, of file names) and NUL are replaced."""
    return NEVER_IN_TEXT.sub("\ufffd", text)


def file_key(path: Path) -> list[int]:
    """What changes with the content of a regular file: device, inode, size, times of content and of inode. Raises OSError; also for other kinds."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file", str(path))
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@dataclass
class Memory:
    """What was found out about files: in this process, and in a file where one is given (`services/<name>/guard-cache.json`)."""

    store: Path | None = None
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = False

    @classmethod
    def of(cls, folder: Path) -> Memory:
        """The memory of a service, whose folder may not be there yet (then it lasts as long as this object)."""
        memory = cls(store=folder / "guard-cache.json")
        try:
            memory.known = {name: entry for name, entry in (state.read_json(folder / "guard-cache.json") or {}).items() if isinstance(entry, dict)}
        except OpsError:  # torn or foreign: all of it can be found out again
            memory.changed = True
        return memory

    def get(self, path: Path, subject: str, key: list[int]) -> Any:
        """What is known about the file's `subject`, if `key` is still the same; else None."""
        entry = self.known.get(f"{subject}:{path}")
        return entry["value"] if entry and entry.get("key") == key and "value" in entry else None

    def put(self, path: Path, subject: str, key: list[int], value: Any) -> None:
        """`key` ends with the time of the last change, in ns."""
        if time.time_ns() - key[-1] < RACY_NS:
            return
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        self.known[f"{subject}:{path}"] = {"key": key, "value": value}
        self.changed = True

    def save(self) -> None:
        """Keeps what is new for the next process, where the service's folder is there and can be written."""
        if not self.changed or self.store is None:
            return
        try:
            if not self.store.parent.is_dir():
                return
            state.write_file(self.store, json.dumps(self.known, separators=(",", ":")) + "\n")
            self.changed = False
        except OSError:  # a full disk, say: nothing is lost but the time to find it out again
            return


def sha256(path: Path, memory: Memory) -> str:
    """The file's digest. Raises OSError."""
    key = file_key(path)
    known = memory.get(path, "sha256", key)
    if isinstance(known, str):
        return known
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_key(path) == key:  # not written to meanwhile
        memory.put(path, "sha256", key, digest)
    return digest


def is_lfs_pointer(path: Path) -> bool:
    """Whether the file is the few lines that git leaves where a large file was not fetched. Raises OSError."""
    if file_key(path)[2] > LFS_LIMIT:
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(len(LFS)) == LFS


def names(folder: Path) -> Iterator[str]:
    """Names of what lies in the folder, links and files, at most `LISTED`. Raises OSError."""
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= LISTED:
                return
            if not entry.is_dir():
                yield entry.name


@dataclass(frozen=True, slots=True)
class Shards:
    """What an index, or a single file, says of the weights. `wrong`: sentences, one a shard that is not whole."""

    names: list[str]
    wrong: list[str]
    bytes: int


def shards(folder: Path, index: str, memory: Memory) -> Shards:
    """Holds the weights against `index` (`*.index.json`, or one weights file): each shard there, no pointer, with all of its bytes and tensors.

    Raises FileNotFoundError where the index is not there, OpsError where it cannot be read.
    """
    path = folder / index
    if not index.endswith(".json"):
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            raise
        except OSError as error:
            raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
        problem = _shard_problem(path, None, None, memory)
        return Shards([index], [f"`{index}` {problem}"] if problem else [], length)
    try:
        key = file_key(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
    listed = memory.get(path, "index", key)
    tensors: dict[str, set[str]] | None = None
    if listed is None:
        tensors = _read_index(path)
        listed = sorted(tensors)
        memory.put(path, "index", key, listed)
    wrong, size = [], 0
    for name in listed:
        shard = path.parent / name
        if name != Path(name).name or name in ("", ".", "..") or len(name) > 255 or NEVER_IN_TEXT.search(name):
            wrong.append(f"`{as_text(name[:100])}` is no name of a file in the folder")
            continue
        try:
            shard_key = file_key(shard)
        except OSError as error:
            wrong.append(f"`{name}` is missing" if isinstance(error, FileNotFoundError) else f"`{name}`: {error.strerror or error}")
            continue
        size += shard_key[2]
        both = [*key, *shard_key]
        problem = memory.get(shard, "shard", both)
        if problem is None:
            tensors = tensors if tensors is not None else _read_index(path)
            problem = _shard_problem(shard, tensors.get(name), both, memory)
        if problem:
            wrong.append(f"`{name}` {problem}")
    return Shards(listed, wrong, size)


def _read_index(path: Path) -> dict[str, set[str]]:
    """Name of each shard to the tensors that it must hold. Raises OpsError."""
    try:
        raw = json.loads(read_limited(path, INDEX_LIMIT))
    except (ValueError, RecursionError) as error:
        raise OpsError(f"`{path}` is not JSON", why=str(error)) from error
    weights = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise OpsError(f"`{path}` names no shards", why="It has no weight_map")
    found: dict[str, set[str]] = {}
    for tensor, name in weights.items():
        found.setdefault(str(name), set()).add(tensor)
    return found


def _shard_problem(path: Path, tensors: set[str] | None, key: list[int] | None, memory: Memory) -> str:
    """What is wrong with a shard, as the end of a sentence; "" if nothing. Remembered under `key`."""
    try:
        key = key or file_key(path)
        known = memory.get(path, "shard", key)
        if isinstance(known, str):
            return known
        problem = "is only a Git LFS pointer: the file itself was never fetched" if is_lfs_pointer(path) else _content_problem(path, tensors)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    memory.put(path, "shard", key, problem)
    return problem


def _content_problem(path: Path, tensors: set[str] | None) -> str:
    length = path.stat().st_size
    if path.suffix != ".safetensors":
        return "" if length else "is empty"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        begin = file.read(8)
        if len(begin) < 8:
            return f"is no safetensors file: it has {length} bytes"
        (size,) = struct.unpack("<Q", begin)
        if size > length - 8:
            return f"is cut off: it has {length:,} bytes, and its header alone {size:,}"
        if size > HEADER_LIMIT:
            return f"has a header of {size:,} bytes, which no usual shard has"
        content = file.read(size)
    try:
        header = json.loads(content)
        offsets = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        end = max((int(stop) for start, stop in offsets.values() if 0 <= int(start) <= int(stop)), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:  # OverflowError: 1e999 is infinite
        return f"has a header that cannot be read ({type(error).__name__})"
    wanted = 8 + size + end
    if length < wanted:
        return f"is cut off: it has {length:,} of {wanted:,} bytes"
    if length > wanted:
        return f"has {length:,} bytes, {length - wanted:,} more than its header names"
    if tensors is not None and (missing := tensors - offsets.keys()):
        return f"lacks {len(missing):,} of the {len(tensors):,} tensors that the index places in it, such as `{as_text(min(missing)[:100])}`"
    return ""
