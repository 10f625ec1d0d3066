"""The list of guards in a service's own record on its node: read, changed as a whole, stored in one step. Nothing else of the record changes."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.agent.config import NodePaths
from ops.environments import guards
from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError
from ops.records import NAME, Guard, ServiceRecord
from ops.services.state import write_file

GUARDS_MAX = 100
TEXT_LENGTH = 1000  # characters of a file's name, and of a key
VALUE_BYTES = 4096


def own_record(paths: NodePaths, name: str) -> ServiceRecord:
    """The service's record as this node stores it, secrets included. Raises OpsError if there is none, or if it cannot be read."""
    return ServiceRecord.from_dict(_read(_path(paths, name)))


def store(paths: NodePaths, name: str, wanted: Any, *, seen: Any = None) -> ServiceRecord:
    """Makes `wanted` the guards of the service; gives its record with them. The caller holds the service's lock.

    `wanted`: guards as dicts, and {"preset": name} for those of a preset that fit this model folder; one that stands there twice counts once.
    `seen`: the list that the person who changed it had before them, as announced, or None. Raises BadInput for what is no guard or for more than
    GUARDS_MAX, OpsError (kind "changed") if the list is another one than `seen`, OpsError where the record cannot be written.
    """
    path = _path(paths, name)
    raw = _read(path)
    record = ServiceRecord.from_dict(raw)
    if seen is not None and seen != announced(record):
        raise OpsError(f"The guards of service `{name}` were changed meanwhile", why="Somebody else has set others since this list was shown",
                       hint="Look at them as they are now, and change them again", kind="changed")
    chosen = expanded(wanted, record)
    if chosen == record.guards:
        return record
    text = json.dumps({**raw, "guards": chosen}, indent=1, ensure_ascii=False) + "\n"
    try:
        write_file(path, text, mode=stat.S_IMODE(path.stat().st_mode))
    except OSError as error:
        raise OpsError(f"`{path}` cannot be written", why=error.strerror or str(error)) from error
    return replace(record, guards=chosen)


def announced(record: ServiceRecord) -> list[Any]:
    """The guards as they leave the node."""
    return list(redact.hide_in_record({"guards": record.guards})["guards"])


def expanded(wanted: Any, record: ServiceRecord) -> list[dict[str, Any]]:
    """The whole list that is asked for: presets as the guards that fit the model, the service's own as they stand. Raises BadInput."""
    if not isinstance(wanted, list) or len(wanted) > GUARDS_MAX:
        raise BadInput(f"A service has a list of guards, at most {GUARDS_MAX}")
    shown = announced(record)
    found: list[dict[str, Any]] = []
    for one in wanted:
        if isinstance(one, dict) and set(one) == {"preset"}:
            found += [guard.as_dict() for guard in guards.from_preset(str(one["preset"]), record.model_path)]
        elif one in shown:
            found.append(record.guards[shown.index(one)])
        else:
            found.append(check(one).as_dict())
    once: dict[str, dict[str, Any]] = {}
    for raw in found:
        once.setdefault(json.dumps(Guard.from_dict(raw).as_dict(), sort_keys=True), raw)
    if len(once) > GUARDS_MAX:
        raise BadInput(f"That would be {len(once)} guards", why=f"A service has at most {GUARDS_MAX}", hint="Remove some first")
    return list(once.values())


def check(raw: Any) -> Guard:
    """A guard that somebody wrote. Raises BadInput for one that is none, or that is too long."""
    guard = Guard.from_dict(raw)
    for text in (guard.file, guard.key):
        if len(text) > TEXT_LENGTH or not text.isprintable():
            raise BadInput(f"A guard's file and key are one line each, of at most {TEXT_LENGTH} characters")
    try:
        value = json.dumps(guard.value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("A guard's value must be plain JSON", why=str(error)) from error
    if len(value) > VALUE_BYTES:
        raise BadInput(f"A guard's value is at most {VALUE_BYTES} bytes of JSON")
    if redact.HIDDEN in json.dumps(guard.as_dict(), ensure_ascii=False):
        raise BadInput(f"A guard holds `{redact.HIDDEN}`", why="That stands for something secret, which only the node knows",
                       hint="Write the value itself")
    return guard


def _path(paths: NodePaths, name: str) -> Path:
    if not NAME.match(name):
        raise BadInput(f"`{name[:80]}` is not a service name")
    return Path(os.path.realpath(paths.announced / f"{name}.json"))


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise OpsError(f"This node has no service `{path.stem}`", why=f"There is no `{path}`") from error
    except (OSError, ValueError, RecursionError) as error:
        raise OpsError(f"The record `{path}` cannot be read", why=str(error)) from error
    if not isinstance(raw, dict):
        raise OpsError(f"The record `{path}` is no JSON object")
    return raw
