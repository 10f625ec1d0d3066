"""Looks at a systemd unit, without touching it: is it there, does it start the launcher, may this user control it, do its settings suit vLLM?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import launch, systemctl
from ops.services.manager import manager_for
from ops.services.preflight import machine
from ops.services.preflight.looks import Looks
from ops.services.surroundings import Surroundings
from ops.services.systemd import SystemdManager

_SANDBOX = ("PrivateDevices", "ProtectHome", "ProtectSystem", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "BindPaths",
            "BindReadOnlyPaths", "StateDirectory", "CacheDirectory", "LogsDirectory", "RuntimeDirectory", "PrivateTmp")
_HOMES = [Path("/home"), Path("/root"), Path("/run/user")]
_WAITING_TYPES = {"notify", "notify-reload", "forking", "dbus", "oneshot"}  # systemd waits for more than the process's existence


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What a unit limits, for other looks; None: no limit, or none that is known."""

    memory_bytes: int | None = None  # MemoryMax=
    start_s: float | None = None  # TimeoutStartSec=, where its type makes systemd wait


def limits(record: ServiceRecord) -> UnitLimits:
    """Empty for a service of the process manager, and where the unit cannot be read (`look` says that)."""
    manager = manager_for(record)
    if not isinstance(manager, SystemdManager):
        return UnitLimits()
    facts = manager.facts()
    if facts["problem"]:
        return UnitLimits()
    try:
        kind = manager.show(("Type",)).get("Type", "")
    except OpsError:
        kind = ""
    return UnitLimits(facts.get("memory_max"), facts.get("start_limit_s") if kind in _WAITING_TYPES else None)


def starts_launcher(record: ServiceRecord) -> bool:
    """Whether a start of the service runs its launcher, as far as is known: a unit may still start a command of its own."""
    manager = manager_for(record)
    return not isinstance(manager, SystemdManager) or manager.facts()["launcher_installed"] is not False


def look(looks: Looks, record: ServiceRecord, plan: Mapping[str, Any] | None) -> None:
    """`plan` is not None where another release is to be started than the one that runs: only the launcher can do that."""
    manager = manager_for(record)
    if not isinstance(manager, SystemdManager):
        return
    facts = manager.facts()
    if facts["problem"]:
        looks.add("stop", str(facts["problem"]), why="The service could not be started", fix=_fix(facts, record))
        return
    _launcher(looks, record, bool(facts["launcher_installed"]), plan)
    if facts["needs_reload"]:
        looks.add("warning", f"The files of unit `{record.unit}` have changed since systemd read them", why="What starts is what systemd read then",
                  fix="An admin runs `systemctl daemon-reload`" if record.unit_scope == "system" else "Run `systemctl --user daemon-reload`")
    _type(looks, record, manager)
    for sentence in facts.get("notes") or []:
        looks.add("note", str(sentence), fix="An admin changes the unit (`systemctl edit`)")
    if why := manager.permission():
        looks.add("stop", f"This user may not start and stop `{record.unit}`", why=why,
                  fix="An admin installs the polkit rule of docs/systemd/50-roundhouse.rules with this unit in its list")
    else:
        looks.add("ok", f"The unit `{record.unit}` is there ({facts['state'] or 'in an unknown state'}); this user may control it as far as is known")


def _launcher(looks: Looks, record: ServiceRecord, installed: bool, plan: Mapping[str, Any] | None) -> None:
    path = launch.launch_path(record)
    if installed:
        looks.add("ok", f"The unit starts the launcher `{path}`")
        return
    place, lines, command = _drop_in(looks, record)
    text = f"`{place}` with the lines {' / '.join(lines)}"
    if plan is None:
        looks.add("warning", f"The unit `{record.unit}` starts a command of its own, not the launcher",
                  why="What runs is what its ExecStart= says: the release in use and the launch settings count only once the drop-in is installed",
                  fix=f"An admin runs `{command}`, which writes {text}")
    else:
        looks.add("stop", f"The unit `{record.unit}` does not start the launcher: another release would not be used",
                  why=f"Its ExecStart= is a command of its own. What is missing: {text}", fix=f"An admin runs once: `{command}`")


def _drop_in(looks: Looks, record: ServiceRecord) -> tuple[str, list[str], str]:
    """Where the drop-in belongs, its lines as an adoption of the unit makes them, and the command that installs it."""
    from ops.services import adoption

    try:
        made = adoption.read(record.unit, user=record.unit_scope == "user", paths=looks.context.paths, name=record.name)
        if made.record.root == record.root:
            lines = [line for line in made.drop_in.splitlines() if line and not line.startswith("#")]
            return made.drop_in_path, lines, adoption.install_command(made)
    except OpsError:
        pass  # what it starts now is not vLLM, say: what has to stand there is the same
    folder, user = ("/etc/systemd/system", "") if record.unit_scope == "system" else ("~/.config/systemd/user", " --user")
    return (f"{folder}/{record.unit}.d/{adoption.DROP_IN}", ["[Service]", "ExecStart=", f"ExecStart={launch.launch_path(record)}"],
            f"python -m ops adopt --unit {record.unit}{user} --name {record.name} --apply --install")


def _type(looks: Looks, record: ServiceRecord, manager: SystemdManager) -> None:
    told = manager.show(("Type", "TimeoutStartUSec"))
    kind = told.get("Type", "")
    if kind in _WAITING_TYPES:
        limit = systemctl.seconds(told.get("TimeoutStartUSec", ""))
        looks.add("warning" if limit is None else "stop", f"The unit's Type={kind} makes systemd wait for something that vLLM never says",
                  why="It stays in `activating`" + ("" if limit is None else f" and is ended after {limit:,.0f} s (TimeoutStartSec=)"),
                  fix="An admin sets Type=exec in the unit")


def sandbox(looks: Looks, record: ServiceRecord, found: Surroundings) -> None:
    """What the unit's own sandbox takes away: devices, homes, and places to write to (systemd.exec(5))."""
    manager = manager_for(record)
    if not isinstance(manager, SystemdManager):
        return
    told = manager.show(_SANDBOX)
    if told.get("PrivateDevices") == "yes" and record.gpus:
        looks.add("stop", "The unit's PrivateDevices=yes hides the GPUs", why="vLLM would say: failed to infer device type",
                  fix="An admin takes PrivateDevices= out of the unit")
    homes = told.get("ProtectHome", "no")
    if homes in ("yes", "tmpfs"):
        needed = (("the launcher", record.folder), ("the model", Path(record.model_path)), ("the release", Path(os.path.realpath(record.current))))
        opened = _paths(told.get("BindPaths", "")) + _paths(told.get("BindReadOnlyPaths", ""))
        for what, path in needed:
            if _below(path, _HOMES) and not _below(path, opened):
                looks.add("stop", f"The unit's ProtectHome={homes} hides {what} (`{path}`)", why="The start would not find it",
                          fix="An admin takes ProtectHome= out of the unit, or moves that folder")
    writable = _paths(told.get("ReadWritePaths", "")) + _paths(told.get("BindPaths", ""))
    for name, base in (("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache"), ("LogsDirectory", "/var/log"), ("RuntimeDirectory", "/run")):
        writable += [Path(base, word) for word in told.get(name, "").split()]
    if told.get("PrivateTmp") in ("yes", "disconnected"):
        writable += [Path("/tmp"), Path("/var/tmp")]  # noqa: S108  (its own)
    closed = _paths(told.get("ReadOnlyPaths", "")) + _paths(told.get("InaccessiblePaths", ""))
    closed += _HOMES if homes != "no" else []
    closed += {"strict": [Path("/")], "full": [Path("/usr"), Path("/boot"), Path("/efi"), Path("/etc")],
               "yes": [Path("/usr"), Path("/boot"), Path("/efi")]}.get(told.get("ProtectSystem", "no"), [])
    for name, text in machine.caches_of(found).items():
        path = Path(os.path.realpath(text))
        if _deepest(path, closed) > _deepest(path, [*writable, Path("/dev")]):
            looks.add("stop", f"The unit's own sandbox does not let it write its cache `{text}` ({name})",
                      why="ProtectSystem=, ProtectHome= or ReadOnlyPaths= of the unit covers it; the start would fail late",
                      fix=f"An admin adds ReadWritePaths={text} to the unit, or set {name} in the launch settings to a place that it may write")


def _paths(text: str) -> list[Path]:
    """Paths of a setting as systemctl prints it: words, `-` and `+` before them, `source:target:options` of a bind."""
    found = []
    for word in text.split():
        parts = word.lstrip("-+").split(":")
        found.append(Path(parts[1] if len(parts) > 1 and parts[1].startswith("/") else parts[0]))
    return found


def _below(path: Path, folders: list[Path]) -> bool:
    return _deepest(path, folders) > 0


def _deepest(path: Path, folders: list[Path]) -> int:
    """The length of the longest of the folders that the path lies in; 0 if it lies in none: of two settings the nearer one counts."""
    return max((len(folder.parts) for folder in folders if folder == path or folder in path.parents), default=0)


def _fix(facts: Mapping[str, Any], record: ServiceRecord) -> str:
    problem = str(facts["problem"])
    if "masked" in problem:
        return f"`systemctl unmask {record.unit}`, if it may run at all"
    if "no unit" in problem:
        return f"Install the unit, or correct the service's record: `systemctl list-unit-files {record.unit}` shows whether systemd knows it"
    return f"`systemctl status {record.unit}` tells more"
