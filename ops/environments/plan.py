"""What a redeploy would change, package by package, found out before anything stops.

Two modes. "full": a whole environment, resolved anew from the channel. What people forget is completed: a package that must share
another's version is looked up in the channel and planned in that version, or left out. "restore": the same versions as today;
packages that nobody edited are copied, the others installed anew from the same wheels. What was wanted is asserted: a pre-release
that was replaced by a stable one, or a build for another CUDA, is a failed plan.

The plan has a hash over all that decides the build and over what the build replaces: the job builds that plan or fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ops.agent.config import NodeConfig
from ops.environments import channels, expectations, guards, integrity, outlook, packages, resolving
from ops.environments.outlook import UNPACKED_FACTOR
from ops.environments.resolving import MAIN, Asks, PlannedPackage, finding
from ops.environments.uv import NoSolution, Uv
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import Channel, ServiceRecord

__all__ = ["MAIN", "MODES", "UNPACKED_FACTOR", "NoSolution", "Plan", "PlannedPackage", "default_uv", "differences", "from_dict", "in_use",
           "interpreter", "make", "same_build"]

MODES = ("full", "restore")
OPTIONS = {"allow_variant_change": bool, "python": str}  # python: the interpreter of a full plan, such as "3.12"; else the one in use
SHOWN = frozenset({"diff", "diff_lines", "added", "removed", "debris", "mtime"})  # of a patched file: to look at; its hash alone decides


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a job needs to build the release, and all that a person needs to say yes."""

    service: str
    channel: str
    mode: str  # "full" or "restore"
    in_place: bool  # the service's environment is changed where it is, while the service is down
    source: dict[str, Any]  # what of the channel decides the build (channels.source), and the digests of its constraints and its recipe
    requirements: list[str]  # what the resolver was asked, with coupled packages completed
    version: str  # of vllm
    wanted_version: str | None
    coupling: bool
    options: dict[str, Any]
    python: dict[str, str]  # path, version
    release: str  # name to be: <YYYYmmdd-HHMMSS in UTC>-<version>
    created_at: float
    current: str | None  # name of the release in use
    practice: bool
    packages: list[dict[str, Any]]
    restore: list[str]  # mode "restore": packages that are installed anew, the others are copied
    edited: list[str]  # packages with changed or missing files now
    download_bytes: int | None  # of all wheels that are not at hand; None: the channel does not tell the size of one
    ways: list[dict[str, Any]]  # for a patched release: mode, possible, download_bytes, packages, files, why
    rollback: dict[str, Any]  # possible, why, backup (path of the copy, in place only), backup_bytes
    findings: list[dict[str, Any]]  # level note|warning|stop, title, why, fix
    patched_files: list[dict[str, Any]]  # of the current release: they will not be in the new one; some with what was edited (`SHOWN`)
    guards: list[dict[str, Any]]
    cleanup: dict[str, Any]  # what a purge could give back: see outlook.cleanup
    disk: dict[str, Any]  # path, needed_bytes (of the release), cache_bytes (of uv's cache beside it), free_bytes, estimate
    input_state: str
    hash: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def locked(self) -> list[dict[str, Any]]:
        """The packages of the new release."""
        return [package for package in self.packages if package["new"] is not None]

    @property
    def stops(self) -> list[dict[str, Any]]:
        """Findings that forbid to go on."""
        return [finding for finding in self.findings if finding["level"] == "stop"]

    def planned(self, name: str) -> str | None:
        """The version of a package in the new release; None: not in it."""
        return next((package["new"] for package in self.packages if package["name"] == canonicalize_name(name)), None)

    def expected_bytes(self) -> int | None:
        """Size of all wheels; None if one is unknown."""
        sizes = [package["size_bytes"] for package in self.locked]
        return None if any(size is None for size in sizes) else sum(sizes)


def from_dict(raw: Any) -> Plan:
    """The plan from its JSON. Raises BadInput if it is none, or if it was changed (its hash does not fit)."""
    if not isinstance(raw, dict):
        raise BadInput("A plan must be a JSON object")
    known = {f.name for f in fields(Plan)}
    raw = {"cleanup": outlook.no_cleanup(), **raw}  # of a plan made before there was one
    if missing := sorted(known - set(raw)):
        raise BadInput(f"This is no plan: the field `{missing[0]}` is missing")
    plan = Plan(**{name: raw[name] for name in known})  # what a job added beside (an estimate of the downtime, say) is not ours
    try:
        expected = _hash(plan)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput("This is no plan", why=repr(error)) from error
    if expected != plan.hash:
        raise BadInput("The plan was changed after it was made", why="Its hash does not fit its content", hint="Make the plan again")
    return plan


def same_build(one: Plan, other: Plan) -> bool:
    """Whether both build the same from the same: packages, python, channel, and what they replace (release, its files, guards)."""
    return one.hash == other.hash


def differences(one: Plan, other: Plan) -> list[str]:
    """In words, what keeps two plans from being the same build; empty if they are."""
    told = []
    before, after = ({package["name"]: package for package in plan.locked} for plan in (one, other))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            told.append(f"`{name}` is {'new' if old is None else 'gone'}")
        elif old["new"] != new["new"]:
            told.append(f"`{name}` was {old['new']}, is {new['new']}")
        elif old["sha256"] != new["sha256"]:
            told.append(f"`{name}` {old['new']} is another file")
    for name, title in (("channel", "the channel"), ("coupling", "the coupling choice"), ("python", "the interpreter"), ("options", "an option"),
                        ("current", "the release in use"), ("wanted_version", "the wanted version"), ("mode", "the way"),
                        ("in_place", "whether it is in place"), ("restore", "what is installed anew")):
        if getattr(one, name) != getattr(other, name):
            told.append(f"{title} changed from {getattr(one, name)} to {getattr(other, name)}")
    for name in sorted(one.source.keys() | other.source.keys()):
        if one.source.get(name) != other.source.get(name):
            told.append(f"the channel's {name} changed from {one.source.get(name)} to {other.source.get(name)}")
    if moved := _told_guards(one) ^ _told_guards(other):
        told.append(f"a guard, or a file that one looks at, changed: {_few({path for path, _ in moved})}")
    if moved := _told_files(one) ^ _told_files(other):
        told.append(f"files of the release in use were edited: {_few({path for path, _ in moved})}")
    if not told and one.input_state != other.input_state:
        told.append("files of the release in use changed")
    return told


def _told_guards(plan: Plan) -> set[tuple[str, str]]:
    return {(guard["path"], json.dumps([guard["guard"], guard["holds"], guard["sha256"]], sort_keys=True)) for guard in plan.guards}


def _told_files(plan: Plan) -> set[tuple[str, str]]:
    return {(found["path"], json.dumps({k: v for k, v in found.items() if k not in SHOWN}, sort_keys=True)) for found in plan.patched_files}


def _few(names: set[str]) -> str:
    some = sorted(names)
    return ", ".join(f"`{name}`" for name in some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")


def default_uv(record: ServiceRecord, log: Callable[[str], None] | None = None) -> Uv:
    """uv with the node's own cache, shared by its services: beside `services/`, else in the service's folder."""
    folder = record.folder.parent.parent if record.folder.parent.name == "services" else record.folder
    return Uv(cache=folder / "uv-cache", log=log)


def make(record: ServiceRecord, channel: Channel, *, version: str | None = None, coupling: bool = True, mode: str = "full",
         options: Mapping[str, Any] | None = None, uv: Uv | None = None, log: Callable[[str], None] | None = None,
         config: NodeConfig | None = None, progress: integrity.Progress | None = None,
         leftovers: Callable[[], dict[str, Any]] | None = None) -> Plan:
    """The plan for a new release of the service out of the channel; nothing is changed.

    `version`: of vllm, the newest in the channel if None. `coupling=False` keeps coupled packages as they are installed today.
    `mode="restore"`: the versions of today, edited packages from pristine wheels. `progress` follows the hashing of the release in use.
    `leftovers` looks for what a purge could delete (None: nobody looks). A record that says `in_place` gets a plan for its environment where it
    is. Raises BadInput (NoSolution: with what conflicts with
    what; a version, a pre-release or a CUDA variant that is not the wanted one), Refused for practice wheels on a real node and the
    reverse, or for what `config` forbids, OpsError where an index does not answer.
    """
    chosen = _options(options)
    if mode not in MODES:
        raise BadInput(f"There is no mode `{str(mode)[:40]}` of a plan", hint=f"Use one of {', '.join(MODES)}")
    channels.check(channel)
    _allowed(record, channel, config)
    say = log or (lambda text: None)
    findings: list[dict[str, Any]] = []
    live, current = in_use(record)
    broken = None
    if live is not None and mode == "full" and not record.in_place and (why := _no_environment(live)):
        findings.append(finding("warning", f"The release in use, `{current}`, is no environment any more", why=why,
                                fix="Everything is installed anew; if that fails, there is nothing to go back to"))
        live, broken = None, live
    uv = uv or default_uv(record, log)
    asks = Asks(uv, channel, record, packages.read(live) if live else None, _interpreter(live, record, mode, chosen, uv, broken=broken))
    outlook.recipe(channel, record, asks.python["version"], findings)
    wanted = channels.version(version) if version else None
    report = _look_at_files(live, say, progress) if mode == "restore" else None
    drawn = resolving.restored(asks, live, report, wanted) if mode == "restore" else resolving.resolved(asks, wanted, coupling, findings)
    new = {row.name: row.new for row in drawn.rows if row.new is not None}
    main = new.get(MAIN) or next((new[name] for name in channels.names(drawn.requirements) if name in new), "unknown")
    if mode == "full":
        expectations.version_is(wanted, new, asks, findings)
        expectations.origin_is(channel, new, drawn.origins)
        expectations.variant_is(asks, new, chosen, findings)
    expectations.practice_is(record, channel, new)
    outlook.coupled(new, coupling, asks, findings)
    outlook.removed(drawn.rows, asks.installed, findings)
    report = report or _look_at_files(live, say, progress)
    edited = resolving.edited_packages(report)
    rows = outlook.at_hand(asks, drawn, edited)
    patched = outlook.patched(record, live, report, findings, mode)
    results = guards.check(record)
    outlook.guarded(results, findings)
    created_at = time.time()
    release = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{main}"
    disk = outlook.disk(asks, rows, drawn.restore if mode == "restore" else None, findings)
    plan = Plan(
        service=record.name, channel=channel.name, mode=mode, in_place=record.in_place, source=_source(channel), requirements=drawn.requirements,
        version=main, wanted_version=wanted, coupling=coupling, options=chosen, python=asks.python, release=release, created_at=created_at,
        current=current, practice=record.practice, packages=[row.as_dict() for row in rows], restore=drawn.restore, edited=edited,
        download_bytes=outlook.download([row for row in rows if mode == "full" or row.name in drawn.restore]),
        ways=outlook.ways(asks, mode, rows, drawn.restore, edited, report),
        rollback=outlook.rollback(record, live, release, disk, findings), findings=findings, patched_files=patched,
        guards=[result.as_dict() for result in results], cleanup=outlook.cleanup(leftovers, findings), disk=disk,
        input_state=_input_state(record, current, report, results), hash="")
    return Plan(**{**{f.name: getattr(plan, f.name) for f in fields(Plan)}, "hash": _hash(plan)})


def in_use(record: ServiceRecord) -> tuple[Path | None, str | None]:
    """The environment that the service runs from, and the name of its release. Before adoption made the link that is the record's environment."""
    if (release := record.release_in_use()) is not None:
        return release, release.name
    if record.environment:
        return Path(record.environment), "adopted"
    return None, None


def interpreter(env: Path | None) -> dict[str, str]:
    """Path and version of the base interpreter that `env` was made from; ours where there is no environment yet."""
    if env is None:
        base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        return {"path": base, "version": ".".join(map(str, sys.version_info[:3]))}
    path = os.path.realpath(env / "bin" / "python")
    if not os.access(path, os.X_OK):
        raise BadInput(f"The interpreter of `{env}` is gone", why=f"`{path}` cannot be run",
                       hint="Install that Python again, or choose another one for the new release")
    version = packages.pyvenv(env)
    told = version.get("version_info") or version.get("version") or packages.site_packages(env)[0].parent.name.removeprefix("python")
    return {"path": path, "version": ".".join(told.split(".")[:3])}


def _options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    chosen = dict(options or {})
    for name, value in chosen.items():
        if name not in OPTIONS or not isinstance(value, OPTIONS[name]):
            raise BadInput(f"A plan has no option `{str(name)[:40]}` of that form", hint=f"Known: {', '.join(OPTIONS)}")
    return chosen


def _allowed(record: ServiceRecord, channel: Channel, config: NodeConfig | None) -> None:
    if record.practice != channel.practice:
        raise Refused(f"The channel `{channel.name}` does not fit the service `{record.name}`",
                      why="Practice wheels never go onto a real node" if channel.practice else "A practice service takes practice wheels only")
    if config is None:
        return
    if config.practice != record.practice:
        raise Refused(f"The service `{record.name}` does not fit the node `{config.name}`", why="Practice and real never mix")
    channels.allowed(channel, config)
    if record.in_place:
        config.require_inside(record.environment, config.environment_roots, "environment to be changed in place")


def _look_at_files(live: Path | None, say: Callable[[str], None], progress: integrity.Progress | None) -> integrity.IntegrityReport | None:
    say("Holding the release in use against its RECORDs" if live else "There is no release in use yet")
    return integrity.check(live, progress=progress) if live else None


def _no_environment(live: Path) -> str:
    """Why nothing can be read of the release in use; "" if it can."""
    try:
        packages.site_packages(live)
    except BadInput as error:
        return f"{error.what}: {error.why}"
    return ""


def _interpreter(live: Path | None, record: ServiceRecord, mode: str, chosen: Mapping[str, Any], uv: Uv, *,
                 broken: Path | None = None) -> dict[str, str]:
    """The interpreter of the release: the one that was chosen, else that of the release in use (of a `broken` one as it was noted, if that is there
    still)."""
    if "python" not in chosen:
        noted = _noted_python(broken) if broken else None
        return noted or interpreter(live)
    if mode == "restore" or record.in_place:
        raise BadInput("The interpreter can only be chosen for a new release that is built as a whole",
                       why="An environment that is changed in place, or copied, keeps its interpreter")
    path = uv.find_python(chosen["python"])
    return {"path": path, "version": chosen["python"]}


def _noted_python(release: Path) -> dict[str, str] | None:
    from ops.environments import releases

    try:
        told = (releases.manifest(release) or {}).get("python")
    except OpsError:  # torn, as the rest of it
        return None
    path, version = (str(told.get(name) or "") for name in ("path", "version")) if isinstance(told, dict) else ("", "")
    if not version or not path.startswith("/") or not os.access(path, os.X_OK) or not Path(path).is_file():
        return None
    return {"path": path, "version": ".".join(version.split(".")[:3])}


# Identity


def _source(channel: Channel) -> dict[str, Any]:
    told = channels.source(channel)
    if channel.constraints:
        told["constraints"] = _digest(sorted(channel.constraints))
    if channel.recipe:
        told["recipe"] = _digest(channel.recipe)
    return told


def _input_state(record: ServiceRecord, current: str | None, report: integrity.IntegrityReport | None, results: list[guards.GuardResult]) -> str:
    """What the build replaces: the release in use, its edits, the files that guards look at; in place also the folder itself."""
    return _digest({"current": current, "integrity": report.digest() if report else None,
                    "environment": os.path.realpath(record.environment) if record.in_place else None,
                    "guards": [[result.guard, result.holds, result.sha256] for result in results]})


def _hash(plan: Plan) -> str:
    return _digest({
        "service": plan.service, "channel": plan.channel, "source": plan.source, "mode": plan.mode, "in_place": plan.in_place,
        "requirements": plan.requirements, "wanted_version": plan.wanted_version, "coupling": plan.coupling, "options": plan.options,
        "python": plan.python, "restore": plan.restore, "input_state": plan.input_state,
        "packages": [[package["name"], package["new"], package["file"], package["sha256"]] for package in plan.locked],
    })


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
