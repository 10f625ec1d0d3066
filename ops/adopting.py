"""Adopting a unit as jobs: one reads it and says what it would become; the other makes it a service, if it still is exactly what was looked at.

What was looked at is known by a keyed hash of the whole record and the drop-in. The key never leaves the node: a plain hash beside a record whose
secrets are hidden would let anybody try out secrets against it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.records import NAME, NEVER_IN_TEXT
from ops.services import adoption, unit_files
from ops.services.adoption import Adoption

MANAGERS = ("systemd", "process")
FINDINGS_TOLD = 200
TEXT_TOLD = 4000  # characters of one text of a finding
PATH_LENGTH = 1000
RECORD_BYTES = 96 * 1024  # the order to adopt it carries the record, and an order has a limit
KEY = "adoption.key"


@dataclass(frozen=True)
class Asked:
    """What a job about a unit is asked. `environment` goes over the one that the unit's command line names."""

    unit: str
    name: str = ""
    environment: str = ""
    in_place: bool = False
    manager: str = "systemd"

    @classmethod
    def of(cls, params: dict[str, Any]) -> Asked:
        """Raises BadInput for what is no unit's name (never a path: it comes from elsewhere), no service's name, no absolute path."""
        raw = {name: params[name] for name in cls.__dataclass_fields__ if name in params}
        in_place = raw.pop("in_place", False)
        if not isinstance(in_place, bool) or any(not isinstance(value, str) or NEVER_IN_TEXT.search(value) for value in raw.values()):
            raise BadInput("The order to read a unit has the wrong form")
        asked = cls(**{"unit": "", **raw}, in_place=in_place)
        unit_files.unit_name(asked.unit)
        if asked.name and not NAME.match(asked.name):
            raise BadInput(f"`{asked.name[:80]}` is not a service name", hint="Lower-case letters, digits, dot, dash, underscore")
        if asked.environment and (not asked.environment.startswith("/") or len(asked.environment) > PATH_LENGTH):
            raise BadInput(f"The environment `{asked.environment[:200]}` is no absolute path")
        if asked.manager not in MANAGERS:
            raise BadInput(f"Unknown service manager `{asked.manager[:40]}`", hint="Use process or systemd")
        return asked


def look(context: Context) -> str:
    """Params: `unit`, and optionally `name`, `environment`, `in_place`, `manager`. Reads; nothing is changed."""
    asked = Asked.of(context.params)
    made = _read(context, asked)
    _tell(context, made, asked, stored=None)
    if made.stops:
        return f"it cannot be adopted: {made.stops[0]['title']}"
    return f"it can become service `{made.record.name}`" + (", once node.toml allows it" if made.node_toml else "")


def make_service(context: Context) -> str:
    """Params: as `look` was asked, with the `name` that it found, and of what it told `hash`, `record` and `drop_in`.

    Raises OpsError (kind "differs") if the unit would become something else by now, Refused outside of node.toml, BadInput for what forbids it.
    """
    params = context.params
    asked = Asked.of(params)
    if not asked.name:
        raise BadInput("The order to adopt a unit names no service")
    made = _read(context, asked)
    if not hmac.compare_digest(seal(context.paths, made).encode(), str(params.get("hash")).encode()):
        raise OpsError(f"`{made.unit}` is not what was looked at any more", why=_differences(params, made), kind="differs",
                       hint="Nothing was changed. Read it again, and look at what it is now")
    if made.node_toml and not made.stops:
        raise Refused(f"This node does not allow service `{made.record.name}`", why="; ".join(made.node_toml),
                      hint=f"Its owner adds these lines to {context.paths.node_toml}; then adopt it again")
    stored = adoption.apply(context.paths, made, locked=True)
    _tell(context, made, asked, stored=str(stored))
    return f"service `{made.record.name}` is stored"


def seal(paths: NodePaths, made: Adoption) -> str:
    """A hash of the whole record, secrets included, and of the drop-in, which only this node can make. Raises OpsError."""
    content = json.dumps({"record": made.record.as_dict(), "drop_in": made.drop_in, "path": made.drop_in_path}, sort_keys=True)
    return hmac.new(_key(paths), content.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _key(paths: NodePaths) -> bytes:
    path = paths.root / KEY
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        key = path.read_bytes()
        if len(key) < 32:
            raise OpsError(f"`{path}` holds no key", hint="Move it away: a new one is made") from None
        return key
    except OSError as error:
        raise OpsError(f"`{path}` cannot be written", why=error.strerror or str(error)) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(key := secrets.token_hex(32).encode())
    return key


def _read(context: Context, asked: Asked) -> Adoption:
    config = context.config
    if config.practice:
        raise Refused(f"`{config.name}` is a practice node", why="Practice never mixes with real services, so it adopts no unit",
                      hint="Adopt it on a real node: `make up`, with a state folder of its own (ROUNDHOUSE_STATE)")
    made = adoption.read(asked.unit, paths=context.paths, name=asked.name, environment=asked.environment, in_place=asked.in_place,
                         manager=asked.manager)
    _hold_to_limits(made, config, asked, context.paths)
    return made


def _hold_to_limits(made: Adoption, config: NodeConfig, asked: Asked, paths: NodePaths) -> None:
    """The unit is of this host, but an environment that is named by hand comes from elsewhere: the owner must allow where it lies."""
    if not asked.environment or made.record.in_place or not made.record.environment:
        return
    try:
        config.require_inside(made.record.environment, config.environment_roots, "environment")
    except Refused:
        folder = str(Path(os.path.realpath(made.record.environment)).parent)
        made.node_toml.append(f"environment_roots = {json.dumps([*config.environment_roots, folder])}")
        made.findings.insert(len(made.stops), {
            "level": "warning", "title": "This node does not allow the environment that was named by hand",
            "why": f"`{made.record.environment}` lies below none of its environment_roots", "fix": f"Its owner adds it to {paths.node_toml}"})


def _tell(context: Context, made: Adoption, asked: Asked, *, stored: str | None) -> None:
    data = made.as_dict()
    text = redact.redact(made.drop_in)
    if len(json.dumps([data["record"], text, data["node_toml"], data["files"]])) > RECORD_BYTES:
        raise OpsError(f"What `{made.unit}` starts is too long to be shown", why=f"Record and drop-in have more than {RECORD_BYTES // 1024} KiB",
                       hint=f"Adopt it on the node itself: python -m ops adopt --unit {made.unit} --apply")
    findings = [{part: finding[part][:TEXT_TOLD] for part in ("level", "title", "why", "fix")} for finding in made.findings[:FINDINGS_TOLD]]
    context.emit(EventType.ADOPTION, {
        **data, "findings": findings, "asked": asdict(asked), "hash": seal(context.paths, made), "stored": stored,
        "drop_in": {"path": made.drop_in_path, "text": text, "hidden": text != made.drop_in}})


def _differences(params: dict[str, Any], made: Adoption) -> str:
    """In words, of what may be shown: fields of the record, the drop-in, or a secret."""
    before, now = params.get("record"), redact.hide_in_record(made.record.as_dict())
    before = before if isinstance(before, dict) else {}
    found = [f"`{name}` was {_short(before.get(name))}, is {_short(now.get(name))}" for name in sorted(before.keys() | now.keys())
             if before.get(name) != now.get(name)]
    if not found and params.get("drop_in") != redact.redact(made.drop_in):
        found = ["what stands in front of the launcher, or where its drop-in belongs"]
    return "; ".join(found[:8]) or "A value that is hidden here, as it is secret, or this node's own key"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"
