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
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.agent.config import NodeConfig
from ops.artifacts import scan
from ops.environments import channels, guards, integrity, packages, wheelhouse
from ops.environments import coupling as coupling_rules
from ops.environments.uv import LockedPackage, LockedWheel, NoSolution, Origin, Uv
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import Channel, ServiceRecord

MAIN = "vllm"  # the package whose version a release is named by
MODES = ("full", "restore")
OPTIONS = {"allow_variant_change": bool}
UNPACKED_FACTOR = 3  # installed size of a wheel whose contents are not known: vLLM 2.6, torch 2.5, flashinfer-cubin 4.3 times the download
SPARE_BYTES = 256 * 1024 * 1024  # room left beside a build: bytecode, logs
ARTIFACTS_LISTED = 1000
SHOWN = frozenset({"diff", "diff_lines", "added", "removed", "debris", "mtime"})  # of a patched file: to look at; its hash alone decides
_VARIANT = re.compile(r"(cu\d+|rocm[\d.]*|cpu|xpu|practice)\Z")
_CUDA_LIBRARY = re.compile(r"nvidia-[a-z0-9-]+-cu(\d{2})\Z")  # nvidia-nccl-cu13: the CUDA that torch's libraries are for
_COMMIT_IN_VERSION = re.compile(r"g([0-9a-f]{7,40})\Z")


@dataclass(frozen=True, slots=True)
class PlannedPackage:
    """One package, now and then. `change`: "added", "changed", "removed" or "same"; of a removed one `new` and what follows are None."""

    name: str
    old: str | None
    new: str | None
    change: str
    why: str
    file: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None  # of the wheel; None: the index does not tell
    index: str | None = None  # that it comes from: an address, or a folder's file:// address; None: not looked up
    at_hand: bool = False  # no download: in the wheelhouse, or in uv's cache

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    artifacts: list[dict[str, Any]]
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
         config: NodeConfig | None = None, progress: integrity.Progress | None = None) -> Plan:
    """The plan for a new release of the service out of the channel; nothing is changed.

    `version`: of vllm, the newest in the channel if None. `coupling=False` keeps coupled packages as they are installed today.
    `mode="restore"`: the versions of today, edited packages from pristine wheels. `progress` follows the hashing of the release in use.
    A record that says `in_place` gets a plan for its environment where it is. Raises BadInput (NoSolution: with what conflicts with
    what; a version, a pre-release or a CUDA variant that is not the wanted one), Refused for practice wheels on a real node and the
    reverse, or for what `config` forbids, OpsError where an index does not answer.
    """
    chosen = _options(options)
    if mode not in MODES:
        raise BadInput(f"There is no mode `{str(mode)[:40]}` of a plan", hint=f"Use one of {', '.join(MODES)}")
    channels.check(channel)
    _allowed(record, channel, config)
    say = log or (lambda text: None)
    live, current = in_use(record)
    asks = _Asks(uv or default_uv(record, log), channel, record, packages.read(live) if live else None, interpreter(live))
    findings: list[dict[str, Any]] = []
    wanted = channels.version(version) if version else None
    report = _look_at_files(live, say, progress) if mode == "restore" else None
    if mode == "restore":
        drawn = _restored(asks, live, current, report, wanted)
    else:
        drawn = _resolved(asks, wanted, coupling, findings)
    new = {row.name: row.new for row in drawn.rows if row.new is not None}
    main = new.get(MAIN) or next((new[name] for name in channels.names(drawn.requirements) if name in new), "unknown")
    if mode == "full":
        _assert_version(wanted, new, asks, findings)
        _assert_origin(channel, new, drawn.origins)
        _assert_variant(asks, new, chosen, findings)
    _assert_practice(record, channel, new)
    _look_at_coupling(new, coupling, asks, findings)
    _look_at_removed(drawn.rows, asks.installed, findings)
    report = report or _look_at_files(live, say, progress)
    edited = _edited(report)
    rows = _at_hand(asks, drawn, edited)
    patched = _look_at_patches(live, report, findings, mode)
    results = guards.check(record)
    _look_at_guards(results, findings)
    created_at = time.time()
    release = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{main}"
    disk = _look_at_disk(asks, rows, drawn.restore if mode == "restore" else None, findings)
    plan = Plan(
        service=record.name, channel=channel.name, mode=mode, in_place=record.in_place, source=_source(channel), requirements=drawn.requirements,
        version=main, wanted_version=wanted, coupling=coupling, options=chosen, python=asks.python, release=release, created_at=created_at,
        current=current, practice=record.practice, packages=[row.as_dict() for row in rows], restore=drawn.restore, edited=edited,
        download_bytes=_download([row for row in rows if mode == "full" or row.name in drawn.restore]),
        ways=_ways(asks, mode, rows, drawn.restore, edited, report, findings),
        rollback=_look_at_rollback(record, live, release, disk, rows, findings), findings=findings, patched_files=patched,
        guards=[result.as_dict() for result in results], artifacts=_look_at_artifacts(record, findings), disk=disk,
        input_state=_input_state(record, current, report, results), hash="")
    return Plan(**{**{f.name: getattr(plan, f.name) for f in fields(Plan)}, "hash": _hash(plan)})


@dataclass(frozen=True, slots=True)
class _Asks:
    """What every look at the channel needs."""

    uv: Uv
    channel: Channel
    record: ServiceRecord
    installed: packages.EnvironmentPackages | None
    python: dict[str, str]  # path, version

    def lock(self, requirements: Sequence[str], *, no_deps: bool = False, among: Sequence[LockedPackage] = ()) -> list[LockedPackage]:
        return self.uv.lock(requirements, self.channel, python=self.python["path"], no_deps=no_deps, among=among)

    def has(self, name: str, version: str) -> bool:
        """Whether the channel has that wheel for this interpreter."""
        try:
            return bool(self.lock([f"{name}=={version}"], no_deps=True))
        except NoSolution:
            return False


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What came out: the packages, what was asked, where each comes from, what is installed anew (mode "restore")."""

    requirements: list[str]
    rows: list[PlannedPackage]
    origins: dict[str, Origin]
    restore: list[str]


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
        raise BadInput(f"The interpreter of `{env}` is gone", why=f"`{path}` cannot be run", hint="Install that Python again")
    version = packages.pyvenv(env)
    told = version.get("version_info") or version.get("version") or packages.site_packages(env)[0].parent.name.removeprefix("python")
    return {"path": path, "version": ".".join(told.split(".")[:3])}


# What is asked for, and completed


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


def _asked(channel: Channel, wanted: str | None) -> list[str]:
    """The channel's requirements, with vllm at the wanted version."""
    asked = [channels.requirement(text) for text in channel.requirements]
    if not asked:
        raise BadInput(f"The channel `{channel.name}` installs nothing", hint="Give it a requirement, such as vllm")
    if wanted is None:
        return asked
    if MAIN not in channels.names(asked):
        raise BadInput(f"The channel `{channel.name}` does not install `{MAIN}`, so no version of it can be chosen")
    pinned = next((limit.version for limit in channels.constraints(channel) if limit.name == MAIN), None)
    if pinned is not None and not _fits(pinned, wanted):
        raise BadInput(f"Wanted `{MAIN}` {wanted}, but the channel `{channel.name}` is pinned to {pinned}", hint="Choose another channel")
    replaced = []
    for text in asked:
        parsed = Requirement(text)
        if canonicalize_name(parsed.name) == MAIN:
            extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
            text = f"{MAIN}{extras}=={wanted}"
        replaced.append(text)
    return replaced


def _resolved(asks: _Asks, wanted: str | None, coupling: bool, findings: list[dict[str, Any]]) -> _Drawn:
    """The channel's answer, completed with coupled packages; or a recipe's own packages, exactly."""
    channel = asks.channel
    if channel.kind == "recipe":
        limits = _recipe(channel)
        requirements = [f"{limit.name}=={limit.version}" for limit in limits]
        locked = asks.lock(requirements, no_deps=True)
        rows = _rows(asks, locked, limits, [], dict.fromkeys((limit.name for limit in limits), "in the recipe"), {})
        return _Drawn(requirements, rows, {}, [])
    asked = _asked(channel, wanted)
    requirements, added, locked = _complete(asks, asked, coupling, findings)
    origins = asks.uv.origins(locked, requirements, channel, python=asks.python["path"])
    limits = channels.constraints(channel)
    known = {limit.name for limit in limits}
    if limits and (loose := sorted(package.name for package in locked if package.name not in known)):
        findings.append(_finding("note", f"The channel's lock does not name {', '.join(f'`{name}`' for name in loose[:5])}"
                                 + (f" and {len(loose) - 5} more" if len(loose) > 5 else ""),
                                 why="This interpreter needs more than the one that the lock was made for; the index tells their hashes"))
    return _Drawn(requirements, _rows(asks, locked, limits, asked, added, origins), origins, [])


def _recipe(channel: Channel) -> list[channels.Constraint]:
    """The recipe's packages; each must tell the hash of its file."""
    listed = channel.recipe.get("packages")
    if not isinstance(listed, list) or not listed:
        raise BadInput(f"The recipe of channel `{channel.name}` lists no packages")
    found = []
    for package in listed:
        told = package if isinstance(package, dict) else {}
        if not told.get("sha256"):
            raise BadInput(f"The recipe of channel `{channel.name}` tells no hash for `{str(told.get('name'))[:60]}`",
                           why="A release is built from files with known hashes only",
                           hint="Make the recipe from a release that Roundhouse built itself")
        found.append(channels.constraint(f"{told.get('name')}=={told.get('version')} --hash=sha256:{told['sha256']}"))
    return found


def _complete(asks: _Asks, asked: list[str], coupling: bool,
              findings: list[dict[str, Any]]) -> tuple[list[str], dict[str, str], list[LockedPackage]]:
    """The requirements with coupled packages, those that were added (name to why), and the resolution.

    Only what is installed today is completed: a coupled package is optional, and its absence is a choice.
    """
    base = asks.lock(asked)
    versions = {package.name: package.version for package in base}
    requirements, added = list(asked), {}
    for rule in coupling_rules.rules():
        leader = versions.get(rule.leader)
        if leader is None:
            continue
        for member in rule.members:
            there = asks.installed.version(member.name) if asks.installed else None
            if there is None or member.name in channels.names(asked) or (coupling and member.name in versions):
                continue  # not in use; the channel itself says which one; or vllm itself pins it
            wanted = coupling_rules.public(leader) if coupling else there
            if not asks.has(member.name, wanted):
                findings.append(_finding(
                    "warning", f"`{member.name}` will not be in the new release",
                    why=f"The channel `{asks.channel.name}` has no `{member.name}` {wanted}, which `{rule.leader}` {leader} needs; {member.without}"
                    if coupling else f"The channel `{asks.channel.name}` has no `{member.name}` {wanted}, which is installed today",
                    fix=_where_else(asks.channel, member.name, wanted)))
                continue
            requirements.append(f"{member.name}=={wanted}")
            if coupling:
                added[member.name] = "coupled, added by Roundhouse"
                if coupling_rules.public(there) != wanted:
                    findings.append(_finding("note", f"`{member.name}` goes with `{rule.leader}` to {wanted}",
                                             why=f"It is {there} today and must have the version of `{rule.leader}`, but nothing else asks for it"))
            else:
                added[member.name] = "kept as installed (coupling is off)"
    if not added:
        return requirements, added, base
    # Without coupling a member may be one that the resolution had in another version, so nothing holds it to that.
    among = [package for package in base if package.name not in added]
    return requirements, added, asks.lock(requirements, among=among)


def _where_else(channel: Channel, name: str, version: str) -> str:
    if channel.wheelhouse:
        return f"Put `{name}=={version}` into the wheelhouse if you want it"
    if not name.startswith("flashinfer-") or channels.flashinfer_index(channel):
        return f"Nothing needs to be done: the service runs without `{name}`"
    return f"Nothing needs to be done; or an admin adds FlashInfer's own index ({channels.flashinfer_address()}) to the channel, which may have it"


def _rows(asks: _Asks, locked: list[LockedPackage], limits: Sequence[channels.Constraint], asked: list[str], added: Mapping[str, str],
          origins: Mapping[str, Origin]) -> list[PlannedPackage]:
    asked_names = channels.names(asked)
    hashes = {limit.name: limit.hashes for limit in limits}
    old = asks.installed.versions() if asks.installed else {}
    rows = []
    for package in locked:
        wheel = _wheel(asks, package, hashes.get(package.name, frozenset()))
        before, origin = old.get(package.name), origins.get(package.name)
        if package.name in added:
            why = added[package.name]
        elif package.name in asked_names:
            why = "asked for"
        else:
            named = origin.parents if origin else []
            main = [name for name in named if name == MAIN] or named[:2]
            more = len(named) - len(main)
            why = f"{' and '.join(main)} {'need' if len(main) > 1 else 'needs'} it" + (f", and {more} more" if more > 0 else "") if main else "needed"
        rows.append(PlannedPackage(
            package.name, before, package.version, "added" if before is None else "same" if _equal(before, package.version) else "changed",
            why, wheel.file, wheel.sha256, wheel.size_bytes, index=origin.index if origin else None))
    new = {row.name for row in rows}
    gone = "nothing in the new release needs it"
    rows += [PlannedPackage(name, version, None, "removed", gone) for name, version in old.items() if name not in new]
    return sorted(rows, key=lambda row: row.name)


def _wheel(asks: _Asks, package: LockedPackage, hashes: frozenset[str] = frozenset()) -> LockedWheel:
    """The wheel that the interpreter takes. With `hashes` only a file that has one of them."""
    wheels = [wheel for wheel in package.wheels if not hashes or not wheel.sha256 or wheel.sha256 in hashes]
    if not wheels:
        raise _other_file(asks, package, package.wheels[0])
    file = wheelhouse.best([wheel.file for wheel in wheels], asks.python["version"])
    wheel = next((wheel for wheel in wheels if wheel.file == file), wheels[0])
    if not wheel.sha256:
        path = Path(wheel.url.removeprefix("file://"))
        if not path.is_file():
            raise BadInput(f"The channel tells no hash for `{wheel.file}`", why="A release is built from files with known hashes only",
                           hint="Use an index that tells sha256 hashes, or a wheelhouse")
        # a wheelhouse without hashes in its listing: the file itself is at hand
        wheel = LockedWheel(wheel.file, wheel.url, wheelhouse.sha256(path), path.stat().st_size)
        if hashes and wheel.sha256 not in hashes:
            raise _other_file(asks, package, wheel)
    return wheel


def _other_file(asks: _Asks, package: LockedPackage, wheel: LockedWheel) -> BadInput:
    channel = asks.channel
    what = "recipe" if channel.kind == "recipe" else "lock"
    made_for = str((channel.recipe.get("python") or {}).get("version") or "") if isinstance(channel.recipe.get("python"), dict) else ""
    other_python = made_for and made_for.split(".")[:2] != asks.python["version"].split(".")[:2]
    return BadInput(f"`{package.name}` {package.version} of channel `{channel.name}` is another file than the {what} names",
                    why=f"The {what} was made for Python {made_for}, the interpreter is {asks.python['version']}" if other_python
                    else f"`{wheel.file}` has none of the hashes that the {what} names", kind="hash_mismatch",
                    hint="Choose that Python" if other_python else "Find out where that file comes from")


def _equal(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _fits(got: str, wanted: str) -> bool:
    """Whether a version is the wanted one; a local suffix counts only if it was named."""
    return _equal(got, wanted) or (Version(wanted).local is None and coupling_rules.public(got) == wanted)


# The versions of today, from pristine wheels


def _look_at_files(live: Path | None, say: Callable[[str], None], progress: integrity.Progress | None) -> integrity.IntegrityReport | None:
    say("Holding the release in use against its RECORDs" if live else "There is no release in use yet")
    return integrity.check(live, progress=progress) if live else None


def _edited(report: integrity.IntegrityReport | None) -> list[str]:
    """Packages with changed or missing files."""
    found = {canonicalize_name(one.package) for one in (*report.changed, *report.missing) if one.package} if report else set()
    return sorted(found)


def _restored(asks: _Asks, live: Path | None, current: str | None, report: integrity.IntegrityReport | None, wanted: str | None) -> _Drawn:
    """Today's packages; those that were edited, or that cannot be copied for want of a RECORD, from the channel's wheels of the same version."""
    if live is None or asks.installed is None or report is None:
        raise BadInput(f"Service `{asks.record.name}` has no release whose files could be restored", hint="Make a full plan")
    if wanted is not None:
        raise BadInput("Restoring keeps every version, no other can be chosen", hint="Make a full plan for another version")
    known = _known_wheels(asks.record, live)
    unlisted = [name for name, found in asks.installed.distributions.items() if not found.record.is_file()]
    edited = _edited(report)
    anew = sorted({*edited, *unlisted})
    pins = [f"{name}=={asks.installed.version(name)}" for name in anew]
    wheels = {package.name: _same_wheel(asks, package, known.get(package.name, {})) for package in _lock_each(asks, pins)}
    rows = []
    for name, version in asks.installed.versions().items():
        wheel, told = wheels.get(name), known.get(name, {})
        why = "copied as it is" if wheel is None else f"{'its files were edited' if name in edited else 'it has no RECORD'}: installed anew"
        rows.append(PlannedPackage(name, version, version, "same", why, wheel.file if wheel else told.get("file"),
                                   wheel.sha256 if wheel else told.get("sha256"), wheel.size_bytes if wheel else None))
    return _Drawn(pins, rows, {}, anew)


def _known_wheels(record: ServiceRecord, live: Path) -> dict[str, dict[str, Any]]:
    """What the release in use was made from, as its manifest says: name to its row; empty for an environment that we did not build."""
    from ops.environments import releases

    told = releases.manifest(live) or {}
    return {str(row.get("name")): row for row in told.get("packages", []) if isinstance(row, dict)}


def _lock_each(asks: _Asks, pins: list[str]) -> list[LockedPackage]:
    """Exactly these wheels. Raises NoSolution with all that the channel does not have."""
    if not pins:
        return []
    try:
        return asks.lock(pins, no_deps=True)
    except NoSolution:
        gone = [pin for pin in pins if not asks.has(*pin.split("=="))]
        if not gone:
            raise
        raise NoSolution(f"The channel `{asks.channel.name}` does not have {', '.join(f'`{pin}`' for pin in gone[:5])}"
                         + (f" and {len(gone) - 5} more" if len(gone) > 5 else ""),
                         why="Restoring needs the wheels that were installed",
                         hint="Choose the channel that they came from, or make a full plan") from None


def _same_wheel(asks: _Asks, package: LockedPackage, known: Mapping[str, Any]) -> LockedWheel:
    sha256 = known.get("sha256")
    try:
        return _wheel(asks, package, frozenset([sha256]) if sha256 else frozenset())
    except BadInput as error:
        if error.kind != "hash_mismatch":
            raise
        raise BadInput(f"The channel `{asks.channel.name}` has another file under the name of `{package.name}` {package.version}",
                       why="The release in use was made from a wheel with another hash", kind="hash_mismatch",
                       hint="Choose the channel that it came from, or make a full plan") from error


# What must hold


def _assert_version(wanted: str | None, new: dict[str, str], asks: _Asks, findings: list[dict[str, Any]]) -> None:
    got, before = new.get(MAIN), asks.installed.version(MAIN) if asks.installed else None
    if wanted is not None:
        if got is None or not _fits(got, wanted):
            raise BadInput(f"Wanted `{MAIN}` {wanted}, but the channel `{asks.channel.name}` gives {got or 'none'}",
                           why="A version that was replaced silently is a failed plan",
                           hint="Choose a version that the channel has, or another channel")
        return
    try:
        old, now = Version(before or ""), Version(got or "")
    except InvalidVersion:
        return  # not there before, or not there after
    if old.is_prerelease and not now.is_prerelease and now < old:
        raise BadInput(f"`{MAIN}` is the pre-release {before} today, and the channel `{asks.channel.name}` would replace it by the stable {got}",
                       why="A pre-release that is replaced silently by an older stable one is a failed plan",
                       hint=f"Choose {got} as the version if that is what you want, or another channel")
    if now < old:
        findings.append(_finding("warning", f"`{MAIN}` would go back from {before} to {got}", why="It is the newest that the channel has"))
    elif old.is_prerelease and not now.is_prerelease:
        findings.append(_finding("note", f"`{MAIN}` goes from the pre-release {before} to the stable {got}"))


def _assert_origin(channel: Channel, new: dict[str, str], origins: Mapping[str, Origin]) -> None:
    """A nightly or a commit's build must come from the index that publishes it, and be what it says."""
    got = new.get(MAIN)
    if channel.preset not in ("nightly", "commit") or got is None:
        return
    wanted = "a nightly" if channel.preset == "nightly" else f"the build of commit {channel.commit[:12]}"
    origin = origins[MAIN].index if MAIN in origins else None
    published = channel.extra_index_urls[0] if channel.extra_index_urls else ""
    parsed = Version(got)
    commit = next((found[1] for part in (parsed.local or "").split(".") if (found := _COMMIT_IN_VERSION.match(part))), None)
    if channel.preset == "nightly" and not parsed.is_prerelease:
        problem = f"the stable {got}"
    elif origin is not None and origin.rstrip("/") != published.rstrip("/"):
        problem = f"{got} from another index"
    elif channel.preset == "commit" and commit is not None and not channel.commit.startswith(commit):
        problem = f"{got}, of another commit"
    else:
        return
    raise BadInput(f"Wanted {wanted} of `{MAIN}`, but the channel `{channel.name}` gives {problem}",
                   why=f"`{published}` has no wheel that fits this interpreter and machine, or does not have that build any more",
                   hint="Choose another build or commit, or the stable channel")


def variant(version: str | None) -> str | None:
    """What a local suffix says about the build: "cu129", "cpu", "practice", ...; None: it says nothing."""
    try:
        parts = (Version(version).local or "").split(".") if version else []
    except InvalidVersion:
        return None
    return next((part for part in parts if _VARIANT.match(part)), None)


def cuda_majors(names: Sequence[str] | Mapping[str, str]) -> set[str]:
    """The CUDA majors that NVIDIA's libraries in a set of packages are for: `nvidia-nccl-cu13` is "13"."""
    return {found[1] for name in names if (found := _CUDA_LIBRARY.match(name))}


def _assert_variant(asks: _Asks, new: dict[str, str], options: dict[str, Any], findings: list[dict[str, Any]]) -> None:
    if asks.channel.variant:
        _assert_wanted_variant(asks.channel, new)
    allowed = bool(options.get("allow_variant_change"))
    for name in (MAIN, "torch"):
        before, after = asks.installed.version(name) if asks.installed else None, new.get(name)
        if before is None or after is None or variant(before) == variant(after):
            continue
        told = f"`{name}` would change its build from {variant(before) or 'no suffix'} to {variant(after) or 'no suffix'}: {before} -> {after}"
        if variant(before) is None or allowed or variant(after) == asks.channel.variant:
            findings.append(_finding("warning", told, why="Another CUDA build may need another driver"))
        else:
            raise BadInput(told, why="Wheels for another CUDA fail at import where the driver is too old",
                           hint="Choose a channel with that build, or allow the change")
    old = cuda_majors(asks.installed.versions()) if asks.installed else set()
    now = cuda_majors(new)
    if old and now and old != now:
        findings.append(_finding("warning", f"CUDA would change from {' and '.join(sorted(old))} to {' and '.join(sorted(now))}",
                                 why="The new release's libraries are for another CUDA: the driver must be new enough for it"))


def _assert_wanted_variant(channel: Channel, new: dict[str, str]) -> None:
    wanted = channel.variant
    for name in (MAIN, "torch"):
        got = new.get(name)
        if got is None or variant(got) == wanted or (variant(got) is None and (name == "torch" or channel.preset in ("nightly", "commit"))):
            continue  # a published index for one build names it in its address, not always in the version
        raise BadInput(f"Wanted the build {wanted}, but the channel `{channel.name}` gives `{name}` {got}, {_build_words(variant(got))}",
                       why="A build that was replaced silently is a failed plan", hint="Choose the channel's build anew, or another channel")
    major = wanted[2:4] if wanted.startswith("cu") else None
    other = sorted(cuda_majors(new) - ({major} if major else set()))
    if other and (major or wanted == "cpu"):
        library = next(name for name in sorted(new) if (found := _CUDA_LIBRARY.match(name)) and found[1] in other)
        raise BadInput(f"Wanted the build {wanted}, but the channel `{channel.name}` gives libraries for CUDA {other[0]}: `{library}`",
                       why=f"`torch` {new.get('torch', 'of the channel')} is built for it",
                       hint="Choose PyTorch's index for that build in the channel (torch-backend)")


def _build_words(build: str | None) -> str:
    return f"which is {build}" if build else "which names no build"


def _assert_practice(record: ServiceRecord, channel: Channel, new: dict[str, str]) -> None:
    practice = sorted(name for name, version in new.items() if variant(version) == "practice")
    if practice and not record.practice:
        raise Refused(f"`{practice[0]}` {new[practice[0]]} is a practice wheel", why="Practice wheels never go onto a real node")
    real = [name for name in (MAIN, *coupling_rules.coupled_names()) if name in new and name not in practice]
    if record.practice and real:
        raise Refused(f"`{real[0]}` {new[real[0]]} is no practice wheel", why="A practice service takes practice wheels only")


# What a person should know


def _finding(level: str, title: str, *, why: str = "", fix: str = "") -> dict[str, Any]:
    return {"level": level, "title": title, "why": why, "fix": fix}


def _look_at_coupling(new: dict[str, str], coupling: bool, asks: _Asks, findings: list[dict[str, Any]]) -> None:
    mismatches = coupling_rules.findings(new, available=channels.availability(asks.has), env=asks.record.env,
                                         indexes=[*asks.channel.extra_index_urls, asks.channel.index_url])
    for found in mismatches:
        if not coupling:
            fatal = found.level == "stop"
            findings.append(_finding(
                "warning", found.title,
                why=f"Coupling is off. {found.why}" + (". The new release will crash at its start, and the job will go back to the last good one"
                                                       if fatal else ""),
                fix="Make the plan with coupled packages completed"))
        else:
            findings.append(_finding(found.level, found.title, why=found.why, fix=found.fix))


def _look_at_removed(rows: list[PlannedPackage], installed: packages.EnvironmentPackages | None, findings: list[dict[str, Any]]) -> None:
    removed = {row.name for row in rows if row.change == "removed"}
    by_hand = sorted(name for name in removed if installed and installed.distributions[name].requested and name not in {"pip", "setuptools", "wheel"})
    if by_hand:
        findings.append(_finding("warning", f"Installed by hand, and not in the new release: {', '.join(f'`{name}`' for name in by_hand[:8])}"
                                 + (f" and {len(by_hand) - 8} more" if len(by_hand) > 8 else ""),
                                 why="Nothing in the plan needs them", fix="Add them to the channel's requirements if the service uses them"))


def _look_at_patches(live: Path | None, report: integrity.IntegrityReport | None, findings: list[dict[str, Any]],
                     mode: str) -> list[dict[str, Any]]:
    from ops.environments import patches

    if live is None or report is None:
        return []
    listed = report.findings[:integrity.LISTED * 3]
    try:
        shown = patches.shown_differences(live, listed)
    except OpsError as error:
        shown = {}
        findings.append(_finding("note", "What was edited in the patched files cannot be shown", why=error.what))
    patched = [{**found.as_dict(), **shown.get(found.path, {})} for found in listed]
    if patched:
        owners = sorted({found.package for found in report.findings if found.package})
        files = "1 file differs" if len(report.findings) == 1 else f"{len(report.findings):,} files differ"
        findings.append(_finding(
            "warning", f"{files} from what was installed" + (f", in {', '.join(f'`{name}`' for name in owners[:4])}" if owners else ""),
            why="The new release is built from pristine wheels: these edits will not be in it" if mode == "full"
            else "Their packages are installed anew from the same wheels: these edits will not be in the new release",
            fix="They are saved to the patch shelf before the switch") | {"about": "patched_files"})
    for problem in report.problems[:5]:
        findings.append(_finding("note", problem))
    return patched


def _look_at_guards(results: list[guards.GuardResult], findings: list[dict[str, Any]]) -> None:
    for result in results:
        if not result.holds:
            findings.append(_finding("stop", f"A guard does not hold: {result.explains}", fix=result.fix,
                                     why="The service would start with another model configuration"))
    if results and all(result.holds for result in results):
        findings.append(_finding("note", f"All {len(results)} guards hold" if len(results) > 1 else "The guard holds"))


def _at_hand(asks: _Asks, drawn: _Drawn, edited: Sequence[str]) -> list[PlannedPackage]:
    """The rows, with what needs no download: files of the wheelhouse, and what uv's cache has unpacked. An edited package is dropped from the
    cache before the build, so its wheel is fetched again."""
    folder = asks.channel.wheelhouse
    rows = []
    for row in drawn.rows:
        there = False
        if row.new is not None and row.file is not None:
            there = Path(folder, row.file).is_file() if folder else row.name not in edited and asks.uv.at_hand(row.name, row.file) is not None
        rows.append(replace(row, at_hand=there))
    return rows


def _download(rows: Sequence[PlannedPackage]) -> int | None:
    """Bytes to fetch for these packages; None: the size of one is not known."""
    sizes = [row.size_bytes for row in rows if row.new is not None and not row.at_hand]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def _ways(asks: _Asks, mode: str, rows: list[PlannedPackage], restore: list[str], edited: list[str], report: integrity.IntegrityReport | None,
          findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For a patched release both ways with what each costs; empty if nothing was edited. `packages` and `files` are how many are written anew."""
    if report is None or not report.findings:
        return []
    put_right = len(report.changed) + len(report.missing)
    planned = [row for row in rows if row.new is not None]
    full = {"mode": "full", "possible": True, "download_bytes": _download(planned) if mode == "full" else None,
            "packages": len(planned), "files": report.checked_files, "why": "A whole new release from pristine wheels, in the versions of this plan"
            if mode == "full" else "A whole new release from pristine wheels; a full plan tells what it costs"}
    try:
        if mode == "full":
            known, installed = _known_wheels(asks.record, asks.installed.path if asks.installed else Path()), asks.installed
            pins = [f"{name}=={installed.version(name)}" for name in edited] if installed else []
            wheels = {package.name: _same_wheel(asks, package, known.get(package.name, {})) for package in _lock_each(asks, pins)}
            there = [name for name, wheel in wheels.items() if asks.channel.wheelhouse and Path(asks.channel.wheelhouse, wheel.file).is_file()]
            sizes = [wheel.size_bytes for name, wheel in wheels.items() if name not in there]
            cost = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
        else:
            cost = _download([row for row in rows if row.name in restore])
        same = {"mode": "restore", "possible": True, "download_bytes": cost, "packages": len(edited), "files": put_right,
                "why": "The same versions: untouched packages are copied, the edited ones come anew from the same wheels"}
    except (BadInput, OpsError) as error:
        same = {"mode": "restore", "possible": False, "download_bytes": None, "packages": len(edited), "files": put_right, "why": str(error.what)}
    return [same, full]


def _unpacked(asks: _Asks, row: PlannedPackage) -> tuple[int | None, bool]:
    """Installed size of a planned wheel, and whether that is an estimate: its contents where it is at hand, else three times the download."""
    folder = asks.channel.wheelhouse
    local = Path(folder, row.file) if folder and row.file else None
    if local and local.is_file():
        return wheelhouse.contents(local).size_bytes, False
    if row.size_bytes is not None:
        return UNPACKED_FACTOR * row.size_bytes, True
    if row.file is not None and (unpacked := asks.uv.at_hand(row.name, row.file)) is not None:
        return disk_bytes(unpacked), False
    return None, True


def _look_at_disk(asks: _Asks, rows: list[PlannedPackage], restore: Sequence[str] | None, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Room that the release needs, and what uv unpacks into its cache beside it. In place the release takes the room of the old one."""
    record, needed, cache, estimate = asks.record, 0, 0, False
    unknown = False
    for row in rows:
        if row.new is None or (restore is not None and row.name not in restore):
            continue
        size, guessed = _unpacked(asks, row)
        estimate |= guessed
        if size is None:
            unknown = True
            continue
        needed += size
        if asks.uv.at_hand(row.name, row.file or "") is None:
            cache += size
    copied = 0
    if asks.installed and (record.in_place or restore is not None):
        copied = disk_bytes(asks.installed.path.resolve())
    if record.in_place:
        needed = 0 if restore is not None else max(0, needed - copied)
    elif restore is not None:
        needed = copied  # all of it is written anew, most of it from the release in use
    start = Path(record.environment).parent if record.in_place else record.releases
    place = next(folder for folder in (start, *start.parents) if folder.exists())
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    store = next(folder for folder in (asks.uv.cache, *asks.uv.cache.parents) if folder.exists())
    together = needed + cache if store.stat().st_dev == place.stat().st_dev else needed
    if unknown:
        findings.append(_finding("note", "How much disk the release needs is not known", why="The channel does not tell the size of every wheel"))
    elif together + SPARE_BYTES > free:
        findings.append(_finding("stop", f"There is not enough disk: {_size(together)} needed, {_size(free)} free below `{place}`",
                                 fix="Remove an old release, or free disk elsewhere"))
    return {"path": str(place), "needed_bytes": None if unknown else needed, "cache_bytes": None if unknown else cache, "free_bytes": free,
            "estimate": estimate or unknown}


def disk_bytes(folder: Path) -> int:
    """Bytes that the files below `folder` take on disk (blocks, not lengths; links not followed)."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _look_at_rollback(record: ServiceRecord, live: Path | None, release: str, disk: dict[str, Any], rows: list[PlannedPackage],
                      findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether there is a way back. Beside the live release there always is; in place the folder has to be copied beforehand."""
    if not record.in_place:
        return {"possible": True, "backup": None, "backup_bytes": None,
                "why": "The release in use stays as it is" if live else "There is no release yet: a job that fails takes away what it built"}
    environment = Path(os.path.realpath(record.environment))
    backup = environment.parent / f"{environment.name}.roundhouse-{release}"
    told: dict[str, Any] = {"possible": False, "why": "", "backup": str(backup), "backup_bytes": None}
    if not os.access(environment, os.W_OK | os.X_OK):
        findings.append(_finding("stop", f"The environment `{environment}` cannot be changed", why="It belongs to another user, or is read-only",
                                 fix="Let the agent's user write to it, or have releases built beside it"))
    if not os.access(environment.parent, os.W_OK | os.X_OK):
        told["why"] = f"`{environment.parent}` cannot be written to, so the environment cannot be copied beside it"
    elif environment.stat().st_dev != environment.parent.stat().st_dev:
        told["why"] = f"`{environment}` is a file system of its own, so a copy beside it cannot be swapped in"
    else:
        size = told["backup_bytes"] = disk_bytes(environment)
        needed = size + (disk["needed_bytes"] or 0) + SPARE_BYTES
        if needed > disk["free_bytes"] and not _shares_blocks(environment):
            told["why"] = f"There is no room for a copy of the environment: {_size(needed)} needed, {_size(disk['free_bytes'])} free"
        else:
            told |= {"possible": True, "why": f"The environment is copied to `{backup}` before the service stops, and swapped back if anything fails"}
    if told["possible"]:
        findings.append(_finding("note", "The environment is changed in place: the service is down while it is installed", why=told["why"])
                        | {"about": "rollback"})
    else:
        told["backup"] = None
        findings.append(_finding("warning", "No rollback: the environment is changed in place, and cannot be copied beforehand", why=told["why"],
                                 fix="Free room or give the permission, or confirm that there is no way back") | {"about": "rollback"})
    return told


def _shares_blocks(environment: Path) -> bool:
    """Whether a copy beside the environment takes no room (Btrfs, XFS with reflinks)."""
    from ops.environments import in_place

    return in_place.shares_blocks(environment)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _look_at_artifacts(record: ServiceRecord, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        found = scan.scan([Path(root) for root in record.artifact_roots])
    except OpsError as error:
        findings.append(_finding("note", error.what, why=error.why))
        return []
    if len(found) > ARTIFACTS_LISTED:
        findings.append(_finding("note", f"{len(found):,} leftover files were found; the plan lists the first {ARTIFACTS_LISTED:,}",
                                 fix="Run a purge for the rest"))
    return [artifact.as_dict() for artifact in found[:ARTIFACTS_LISTED]]


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
