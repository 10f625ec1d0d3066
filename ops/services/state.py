"""What a node remembers of a service between jobs: `services/<name>/state.json`.

    {"baseline": {"0": bytes, ...},        memory of each GPU with the service down
     "last_good": "release name",          the release that last passed everything
     "warmups": [{"at", "release", "total_s", "cache", "phases": {phase: seconds}}, ...],   the last 20, oldest first
     "failures": [...], "last_run": {...},  see failures.py
     "runs": [...],                         see ownership.py
     "started": {...}}                      see pending.py
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord

WARMUPS_KEPT = 20


def write_file(path: Path, content: str, *, mode: int = 0o600) -> None:
    """Replaces `path` in one step and forces it to disk: after a crash it holds the old content or the new one, whole."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None if there is no such file. Raises OpsError if it is not a JSON object."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise OpsError(f"`{path}` cannot be read", why=str(error), hint="Move the file away: what it held is learned again") from error
    if not isinstance(raw, dict):
        raise OpsError(f"`{path}` does not hold a JSON object", hint="Move the file away: what it held is learned again")
    return raw


def path(record: ServiceRecord) -> Path:
    return record.folder / "state.json"


def read(record: ServiceRecord) -> dict[str, Any]:
    """All that is remembered; empty for a new service."""
    return read_json(path(record)) or {}


def change(record: ServiceRecord, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Lets `edit` change the state in place and stores it; one writer at a time, across processes. Gives the new state."""
    record.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (record.folder / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = read(record)
        edit(known)
        write_file(path(record), json.dumps(known, indent=1) + "\n")
        return known


def baseline(record: ServiceRecord) -> dict[int, int] | None:
    """Bytes in use per GPU index with the service down; None if that was never recorded."""
    known = read(record).get("baseline")
    return None if known is None else {int(index): int(used) for index, used in known.items()}


def last_good(record: ServiceRecord) -> str | None:
    return read(record).get("last_good")


def set_last_good(record: ServiceRecord, release: str) -> None:
    change(record, lambda known: known.update(last_good=release))


def warmups(record: ServiceRecord) -> list[dict[str, Any]]:
    """The last warmups that ended well, oldest first."""
    return list(read(record).get("warmups", []))


def add_warmup(record: ServiceRecord, warmup: dict[str, Any]) -> None:
    change(record, lambda known: known.update(warmups=[*known.get("warmups", []), warmup][-WARMUPS_KEPT:]))
