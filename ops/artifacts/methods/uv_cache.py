"""uv's cache as a leftover: what `uv cache prune` would take, which uv itself decides and does.

uv does not tell beforehand how much that is. The estimate counts what it is known to take (crates/uv-cache, `Cache::prune`): unpacked archives that
no entry of the cache links to, folders of cache versions that were given up for newer ones, cached environments. What came is measured afterwards.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ops.artifacts.conditions import Conditions
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Entry, shown
from ops.artifacts.kinds import Kind
from ops.artifacts.methods import measure, whole
from ops.artifacts.places import Place
from ops.environments.uv import Uv
from ops.jobs.errors import OpsError

_BUCKET = re.compile(r"([a-z-]+)-v(\d+)\Z")
# All that lies directly in a cache of uv (crates/uv-cache, `CacheBucket`, also earlier ones), and what Roundhouse itself puts there. uv takes a cache
# folder for its own, and prunes away whatever else is in it.
_BUCKETS = frozenset({"archive", "binaries", "builds", "built-wheels", "environments", "flat-index", "git", "interpreter", "python", "sdists",
                      "simple", "wheels"})
_MARKS = frozenset({"CACHEDIR.TAG", ".gitignore", ".git", ".lock"})
_PASSING = re.compile(r"\.tmp[A-Za-z0-9]{6}\Z|fetch-[a-z0-9_]{8}\Z")


def find(kind: Kind, place: Place, *, conditions: Conditions, check: Callable[[], None], problem: Callable[[str], None]) -> Iterator[Artifact]:
    cache = Path(place.path)
    try:
        found = os.lstat(cache)
        size = _estimate(cache, check)
    except OSError as error:
        problem(f"uv's cache `{cache}` cannot be looked at: {error.strerror or error}")
        return
    if not size.files:
        return
    try:
        kept = _obstacle(cache, conditions, check)
    except OSError as error:
        kept = f"It cannot be looked at: {error.strerror or error}"
    kept = kept or conditions.verdict(kind, str(cache), stat=found, service=place.service) or ""
    why = kept or f"An estimate: uv itself decides what goes. {kind.keeping}"
    yield Artifact(
        number=0, kind=kind.name, unit=kind.unit, path=str(cache), size_bytes=size.size_bytes, files=size.files, mtime_ns=found.st_mtime_ns,
        uid=found.st_uid, owner=measure.owner(found.st_uid), device=found.st_dev, inode=found.st_ino,
        state=KEPT if kept else OFFERED if kind.offered else OPTIONAL, why=why, service=place.service)


def purge(artifact: Artifact, kind: Kind, *, conditions: Conditions, log: Callable[[str], None], check: Callable[[], None]) -> Entry:
    """What lies in the cache may change between preview and purge: uv decides anew, and only whether it is the same cache is looked at here."""
    cache = Path(artifact.path)

    entry = partial(Entry.of, artifact, kind.leftover)

    try:
        found = os.lstat(cache)
        if (found.st_dev, found.st_ino) != (artifact.device, artifact.inode):
            return entry("kept", "Another folder lies there now")
        if why := _obstacle(cache, conditions, check) or conditions.verdict(kind, artifact.path, stat=found, service=artifact.service):
            return entry("kept", why)
        before = measure.folder(cache, check)
        Uv(cache=cache, log=log).prune()
        after = measure.folder(cache, check)
    except FileNotFoundError:
        return entry("gone")
    except OpsError as error:
        return entry("kept", f"{error.what}{f': {error.why}' if error.why else ''}")
    except OSError as error:
        return entry("kept", error.strerror or str(error))
    freed, files = max(0, before.size_bytes - after.size_bytes), max(0, before.files - after.files)
    if not files:
        return entry("kept", "uv found nothing in it that nothing needs")
    log(f"uv pruned {cache}: {freed:,} bytes")
    return entry("deleted", freed_bytes=freed, deleted_files=files)


def _obstacle(cache: Path, conditions: Conditions, check: Callable[[], None]) -> str:
    """Why uv is not let loose on this folder; "" if nothing is in the way. Raises OSError."""
    if not (cache / "CACHEDIR.TAG").is_file():
        return "It is no cache of uv: it holds no CACHEDIR.TAG"
    for entry in sorted(cache.iterdir()):
        bucket = _BUCKET.match(entry.name)
        known = entry.name in _MARKS or _PASSING.match(entry.name) is not None or (bucket is not None and bucket[1] in _BUCKETS)
        if not known or entry.is_symlink():
            return f"It holds `{shown(entry.name)}`, which is not uv's, and uv would delete that as well"
        if entry.name.startswith("fetch-") and _is_locked(entry):
            return "A build fetches into it right now"
    return whole.obstacle(str(cache), conditions=conditions, check=check).why


def _is_locked(folder: Path) -> bool:
    """Whether whoever fetches into it still lives (ops/environments/uv.py)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _estimate(cache: Path, check: Callable[[], None]) -> measure.Measured:
    buckets: dict[str, list[tuple[int, Path]]] = {}
    for path in cache.iterdir():
        if (match := _BUCKET.match(path.name)) is not None and path.is_dir() and not path.is_symlink():
            buckets.setdefault(match[1], []).append((int(match[2]), path))
    going: list[Path] = [path for _, path in buckets.pop("environments", [])]
    for bucket in buckets.values():
        going += [path for _, path in sorted(bucket)[:-1]]
    if archives := sorted(buckets.get("archive", []))[-1:]:
        linked = _linked(cache, check)
        going += [path for path in archives[0][1].iterdir() if path.name not in linked]
    files = size = 0
    for path in going:
        if path.is_dir() and not path.is_symlink():
            found = measure.folder(path, check)
            files, size = files + found.files, size + found.size_bytes
    return measure.Measured(files, size)


def _linked(cache: Path, check: Callable[[], None]) -> set[str]:
    """Names of the archives that entries of the cache link to."""
    names: set[str] = set()
    pending = [path for pattern in ("wheels-v*", "sdists-v*", "built-wheels-v*") for path in cache.glob(pattern) if not path.is_symlink()]
    while pending:
        check()
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    names.add(Path(os.readlink(entry.path)).name)  # noqa: PTH115
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
    return names
