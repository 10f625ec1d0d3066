"""Do the model folder's expectations hold? Read before and after a change; nothing is written here.

A model folder is untrusted: files are only parsed as JSON, up to a size, and nothing in it is imported or run.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError
from ops.records import Guard, ServiceRecord

SIZE_LIMIT = 16 * 1024 * 1024  # bytes; a tokenizer.json reaches 10 MB, a config.json 100 kB
_MISSING = object()


@dataclass(frozen=True, slots=True)
class GuardResult:
    """One guard held against the model folder. `sha256` is the file's, so that before and after can be compared; None: no such file."""

    guard: dict[str, Any]
    holds: bool
    explains: str
    path: str
    sha256: str | None = None
    fix: str = ""
    found: Any = field(default=None)  # what stands at the key, shortened; None also for an absent key

    def as_dict(self) -> dict[str, Any]:
        return {"guard": self.guard, "holds": self.holds, "explains": self.explains, "path": self.path, "sha256": self.sha256,
                "fix": self.fix, "found": self.found}


def check(record: ServiceRecord) -> list[GuardResult]:
    """One result for each guard of the service, in its order. Raises BadInput for a guard that is none."""
    return [_check_one(Guard.from_dict(raw), Path(record.model_path)) for raw in record.guards]


def _check_one(guard: Guard, folder: Path) -> GuardResult:
    path = folder / guard.file
    told = guard.as_dict()
    try:
        content = read_limited(path)
    except FileNotFoundError:
        return _no_file(guard, folder, path)
    except OpsError as error:
        return GuardResult(told, False, f"{error.what}: {error.why}" if error.why else error.what, str(path))
    digest = hashlib.sha256(content).hexdigest()
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        return GuardResult(told, False, f"`{guard.file}` is not JSON: {reason}", str(path), digest)
    value = look_up(document, guard.key)
    shown = shorten(None if value is _MISSING else value)
    if guard.kind == "key_absent":
        if value is _MISSING:
            return GuardResult(told, True, f"`{guard.key}` is not in `{guard.file}`", str(path), digest)
        if value is None:  # what readers of these files take as absent
            return GuardResult(told, True, f"`{guard.key}` is null in `{guard.file}`, which says the same as absent", str(path), digest)
        return GuardResult(told, False, f"`{guard.key}` is in `{guard.file}`, but must not be", str(path), digest,
                           f"Remove `{guard.key}` from `{path}`", shown)
    if value is not _MISSING and value == guard.value and isinstance(value, bool) == isinstance(guard.value, bool):
        return GuardResult(told, True, f"`{guard.key}` in `{guard.file}` is {shorten(guard.value)}", str(path), digest, "", shown)
    now = "is not there" if value is _MISSING else f"is {shown}"
    return GuardResult(told, False, f"`{guard.key}` in `{guard.file}` {now}, but must be {shorten(guard.value)}", str(path), digest,
                       f"Set `{guard.key}` to {shorten(guard.value)} in `{path}`", shown)


def _no_file(guard: Guard, folder: Path, path: Path) -> GuardResult:
    told = guard.as_dict()
    if not folder.is_dir():
        return GuardResult(told, False, f"The model folder `{folder}` does not exist", str(path))
    if guard.kind == "key_absent" and path.name != "config.json":  # optional files; every model has a config.json
        return GuardResult(told, True, f"There is no `{guard.file}`, so `{guard.key}` is not in it", str(path))
    return GuardResult(told, False, f"There is no `{guard.file}` in `{folder}`", str(path))


def read_limited(path: Path, limit: int = SIZE_LIMIT) -> bytes:
    """A regular file's content. Raises FileNotFoundError, or OpsError if it is no regular file, larger than `limit`, or unreadable.

    Links are followed: hub caches keep every model file as a link to a blob. A FIFO does not block.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OpsError(f"`{path}` is no regular file")
        if state.st_size > limit:
            raise OpsError(f"`{path}` is too large to be read", why=f"{state.st_size:,} bytes; the limit is {limit:,}")
        try:
            return file.read(limit + 1)[:limit]
        except OSError as error:
            raise OpsError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error


def look_up(document: Any, key: str) -> Any:
    """What stands at the dotted `key` (numbers index lists), or a private mark where nothing does."""
    value = document
    for part in key.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def is_missing(value: Any) -> bool:
    """Whether `look_up` found nothing."""
    return value is _MISSING


def shorten(value: Any, limit: int = 200) -> str | None:
    """The value as JSON text, cut to `limit` characters; None stays None."""
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
