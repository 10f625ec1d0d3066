"""Were the launch settings changed since the process that runs was started? What a start was given is noted when it is started, else when its run is
first seen: then the files' times say whether they were changed before. A wall clock that is set shows in those alone.

    state.json: "started": {"invocation", "settings": digest}   the run that Roundhouse started last
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state
from ops.services.state import read_json

_CLOCK_S = 2.0  # a process's start is known to about a second, and its settings may be written just before it


def digest(record: ServiceRecord) -> str:
    """Of all that the launcher is given: model, flags, variables, and the state (time, size) of each environment file. Stays on the node."""
    files = [(path, *_stamp(Path(path.removeprefix("-")))) for path in record.env_files]
    text = json.dumps([record.model_path, record.flags, sorted(record.env.items()), files])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def note_start(record: ServiceRecord, invocation: str, given: str) -> None:
    """Keeps what this run was given (`digest`, from before its start). Not on a full disk: then the files' times have to do."""
    if invocation:
        with contextlib.suppress(OSError, OpsError):
            state.change(record, lambda known: known.update(started={"invocation": invocation, "settings": given}))


def started_with(record: ServiceRecord, started_at: float | None, invocation: str = "") -> str | None:
    """`digest` of what a process was given that started at `started_at` (seconds since the epoch); None if that is others than the record's now,
    or was changed since. A service that was never started by Roundhouse was given what its record says: that was read from it."""
    try:
        started = state.read(record).get("started")
        if isinstance(started, dict) and invocation and started.get("invocation") == invocation:
            return now if (now := digest(record)) == started.get("settings") else None
        given, env = read_json(record.folder / "launch.json"), read_json(record.folder / "env.json")
    except OpsError:
        return None
    if given is None or env is None:
        return digest(record)
    if given != {"model": record.model_path, "flags": record.flags, "env_files": record.env_files} or env != record.env:
        return None
    paths = [record.folder / "launch.json", record.folder / "env.json", *(Path(path.removeprefix("-")) for path in record.env_files)]
    if started_at is not None and any((at := _stamp(path)[0]) is not None and at / 1e9 > started_at + _CLOCK_S for path in paths):
        return None
    return digest(record)


def _stamp(path: Path) -> tuple[int | None, int | None]:
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_mtime_ns, found.st_size
