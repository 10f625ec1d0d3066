"""What a redeploy would change, package by package, found out before anything stops.

The release is built beside the live one, so a plan is a whole environment, resolved anew from the channel. What people forget
is completed: a package that must share another's version is looked up in the channel and planned in that version, or left out.
The plan has a hash over all that decides the build and over what the build replaces: the job builds that plan or fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.agent.config import NodeConfig
from ops.artifacts import scan
from ops.environments import coupling as coupling_rules
from ops.environments import guards, integrity, packages, wheelhouse
from ops.environments import uv as uv_runner
from ops.environments.uv import LockedPackage, LockedWheel, NoSolution, Uv
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import Channel, ServiceRecord

MAIN = "vllm"  # the package whose version a release is named by
OPTIONS = {"allow_variant_change": bool, "index_strategy": str}
UNPACKED_FACTOR = 3  # installed size of a wheel whose contents are not known: vLLM 2.6, torch 2.5, flashinfer-cubin 4.3 times the download
SPARE_BYTES = 256 * 1024 * 1024  # room left beside a build: bytecode, logs
ARTIFACTS_LISTED = 1000
SHOWN = frozenset({"diff", "diff_lines", "added", "removed"})  # of a patched file: to look at; its hash alone decides
_VARIANT = re.compile(r"(cu\d+|rocm[\d.]*|cpu|xpu|practice)\Z")


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a job needs to build the release, and all that a person needs to say yes."""

    service: str
    channel: str
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
    findings: list[dict[str, Any]]  # level note|warning|stop, title, why, fix
    patched_files: list[dict[str, Any]]  # of the current release: they will not be in the new one; some with what was edited (`SHOWN`)
    guards: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]
    disk: dict[str, Any]  # path, needed_bytes, free_bytes, estimate
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
                        ("current", "the release in use"), ("wanted_version", "the wanted version")):
        if getattr(one, name) != getattr(other, name):
            told.append(f"{title} changed from {getattr(one, name)} to {getattr(other, name)}")
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


def make(record: ServiceRecord, channel: Channel, *, version: str | None = None, coupling: bool = True, options: Mapping[str, Any] | None = None,
         uv: Uv | None = None, log: Callable[[str], None] | None = None, config: NodeConfig | None = None,
         progress: integrity.Progress | None = None) -> Plan:
    """The plan for a new release of the service out of the channel; nothing is changed.

    `version`: of vllm, the newest in the channel if None. `coupling=False` keeps coupled packages as they are installed today.
    `progress` follows the hashing of the release in use. Raises BadInput (NoSolution: with what conflicts with what; a version or a
    CUDA variant that is not the wanted one), Refused for practice wheels on a real node and the reverse, or for what `config` forbids.
    """
    chosen = _options(options)
    _allowed(record, channel, config)
    uv = uv or default_uv(record, log)
    say = log or (lambda text: None)
    live = record.release_in_use()
    installed = packages.read(live) if live else None
    python = interpreter(live)
    strategy = chosen.get("index_strategy", "first-index")
    findings: list[dict[str, Any]] = []
    wanted = uv_runner.version(version) if version else None
    asked = _asked(channel, wanted)
    requirements, added, locked = _complete(uv, channel, asked, installed, python["path"], strategy, coupling, findings)
    parents = uv.parents([*requirements, *(f"{package.name}=={package.version}" for package in locked)], channel, python=python["path"],
                         strategy=strategy)
    rows = _rows(locked, installed, asked, added, parents, python["version"])
    new = {row.name: row.new for row in rows if row.new is not None}
    main = new.get(MAIN) or next((new[name] for name in _names(asked) if name in new), "unknown")
    _assert_version(wanted, new, channel)
    _assert_variant(installed, new, chosen, findings)
    _assert_practice(record, channel, new)
    _look_at_coupling(new, coupling, record, findings)
    _look_at_removed(rows, installed, findings)
    say("Holding the release in use against its RECORDs" if live else "There is no release in use yet")
    report = integrity.check(live, progress=progress) if live else None
    patched = _look_at_patches(live, report, findings)
    results = guards.check(record)
    _look_at_guards(results, findings)
    disk = _look_at_disk(record, channel, rows, findings)
    artifacts = _look_at_artifacts(record, findings)
    created_at = time.time()
    plan = Plan(
        service=record.name, channel=channel.name, requirements=requirements, version=main, wanted_version=wanted, coupling=coupling,
        options=chosen, python=python, release=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{main}", created_at=created_at,
        current=live.name if live else None, practice=record.practice, packages=[row.as_dict() for row in rows], findings=findings,
        patched_files=patched, guards=[result.as_dict() for result in results], artifacts=artifacts, disk=disk,
        input_state=_input_state(live, report, results), hash="")
    return Plan(**{**{f.name: getattr(plan, f.name) for f in fields(Plan)}, "hash": _hash(plan)})


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
    if channel.kind == "wheelhouse":
        config.require_inside(channel.wheelhouse, config.wheelhouse_roots, "wheelhouse")
        return
    for address in [channel.index_url, *channel.extra_index_urls]:
        if address and address not in config.index_urls:
            raise Refused(f"This node does not allow the index `{address}`", why=f"Allowed: {', '.join(config.index_urls) or 'none'}",
                          hint="The node's owner sets this in node.toml")


def _asked(channel: Channel, wanted: str | None) -> list[str]:
    """The channel's requirements, with vllm at the wanted version."""
    asked = [uv_runner.requirement(text) for text in channel.requirements]
    if not asked:
        raise BadInput(f"The channel `{channel.name}` installs nothing", hint="Give it a requirement, such as vllm")
    if wanted is None:
        return asked
    if MAIN not in _names(asked):
        raise BadInput(f"The channel `{channel.name}` does not install `{MAIN}`, so no version of it can be chosen")
    replaced = []
    for text in asked:
        parsed = Requirement(text)
        if canonicalize_name(parsed.name) == MAIN:
            extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
            text = f"{MAIN}{extras}=={wanted}"
        replaced.append(text)
    return replaced


def _names(requirements: list[str]) -> list[str]:
    return [canonicalize_name(Requirement(text).name) for text in requirements]


def _complete(uv: Uv, channel: Channel, asked: list[str], installed: packages.EnvironmentPackages | None, python: str, strategy: str,
              coupling: bool, findings: list[dict[str, Any]]) -> tuple[list[str], dict[str, str], list[LockedPackage]]:
    """The requirements with coupled packages, those that were added (name to why), and the resolution.

    Only what is installed today is completed: a coupled package is optional, and its absence is a choice.
    """
    base = uv.lock(asked, channel, python=python, strategy=strategy)
    versions = {package.name: package.version for package in base}
    requirements, added = list(asked), {}
    for rule in coupling_rules.rules():
        leader = versions.get(rule.leader)
        if leader is None:
            continue
        for member in rule.members:
            there = installed.version(member.name) if installed else None
            if there is None or member.name in _names(asked) or (coupling and member.name in versions):
                continue  # not in use; the channel itself says which one; or vllm itself pins it
            wanted = coupling_rules.public(leader) if coupling else there
            if not _has(uv, channel, member.name, wanted, python, strategy):
                findings.append(_finding(
                    "warning", f"`{member.name}` will not be in the new release",
                    why=f"The channel `{channel.name}` has no `{member.name}` {wanted}, which `{rule.leader}` {leader} needs; {member.without}"
                    if coupling else f"The channel `{channel.name}` has no `{member.name}` {wanted}, which is installed today",
                    fix=f"Put `{member.name}=={wanted}` into the channel if you want it"))
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
    return requirements, added, uv.lock(requirements, channel, python=python, strategy=strategy)


def _has(uv: Uv, channel: Channel, name: str, version: str, python: str, strategy: str) -> bool:
    try:
        return bool(uv.lock([f"{name}=={version}"], channel, python=python, no_deps=True, strategy=strategy))
    except NoSolution:
        return False


def _rows(locked: list[LockedPackage], installed: packages.EnvironmentPackages | None, asked: list[str], added: dict[str, str],
          parents: dict[str, list[str]], python_version: str) -> list[PlannedPackage]:
    asked_names = _names(asked)
    old = installed.versions() if installed else {}
    rows = []
    for package in locked:
        wheel = _wheel(package, python_version)
        before = old.get(package.name)
        if package.name in added:
            why = added[package.name]
        elif package.name in asked_names:
            why = "asked for"
        else:
            named = parents.get(package.name, [])
            main = [name for name in named if name == MAIN] or named[:2]
            more = len(named) - len(main)
            why = f"{' and '.join(main)} {'need' if len(main) > 1 else 'needs'} it" + (f", and {more} more" if more > 0 else "") if main else "needed"
        rows.append(PlannedPackage(
            package.name, before, package.version, "added" if before is None else "same" if _equal(before, package.version) else "changed",
            why, wheel.file, wheel.sha256, wheel.size_bytes))
    new = {row.name for row in rows}
    gone = "nothing in the new release needs it"
    rows += [PlannedPackage(name, version, None, "removed", gone) for name, version in old.items() if name not in new]
    return sorted(rows, key=lambda row: row.name)


def _wheel(package: LockedPackage, python_version: str) -> LockedWheel:
    file = wheelhouse.best([wheel.file for wheel in package.wheels], python_version)
    wheel = next((wheel for wheel in package.wheels if wheel.file == file), package.wheels[0])
    if wheel.sha256:
        return wheel
    path = Path(wheel.url.removeprefix("file://"))
    if path.is_file():  # a wheelhouse without hashes in its listing: the file itself is at hand
        return LockedWheel(wheel.file, wheel.url, wheelhouse.sha256(path), path.stat().st_size)
    raise BadInput(f"The channel tells no hash for `{wheel.file}`", why="A release is built from files with known hashes only",
                   hint="Use an index that tells sha256 hashes, or a wheelhouse")


def _equal(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


# What must hold


def _assert_version(wanted: str | None, new: dict[str, str], channel: Channel) -> None:
    if wanted is None:
        return
    got = new.get(MAIN)
    if got is None or (not _equal(got, wanted) and not (Version(wanted).local is None and coupling_rules.public(got) == wanted)):
        raise BadInput(f"Wanted `{MAIN}` {wanted}, but the channel `{channel.name}` gives {got or 'none'}",
                       why="A version that was replaced silently is a failed plan", hint="Choose a version that the channel has, or another channel")


def variant(version: str | None) -> str | None:
    """What a local suffix says about the build: "cu129", "cpu", "practice", ...; None: it says nothing."""
    try:
        parts = (Version(version).local or "").split(".") if version else []
    except InvalidVersion:
        return None
    return next((part for part in parts if _VARIANT.match(part)), None)


def _assert_variant(installed: packages.EnvironmentPackages | None, new: dict[str, str], options: dict[str, Any],
                    findings: list[dict[str, Any]]) -> None:
    for name in (MAIN, "torch"):
        before, after = installed.version(name) if installed else None, new.get(name)
        if before is None or after is None or variant(before) == variant(after):
            continue
        told = f"`{name}` would change its build from {variant(before) or 'no suffix'} to {variant(after) or 'no suffix'}: {before} -> {after}"
        if variant(before) is None or options.get("allow_variant_change"):
            findings.append(_finding("warning", told, why="Another CUDA build may need another driver"))
        else:
            raise BadInput(told, why="Wheels for another CUDA fail at import where the driver is too old",
                           hint="Choose a channel with that build, or allow the change")


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


def _look_at_coupling(new: dict[str, str], coupling: bool, record: ServiceRecord, findings: list[dict[str, Any]]) -> None:
    for found in coupling_rules.findings(new, env=record.env):
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


def _look_at_patches(live: Path | None, report: integrity.IntegrityReport | None, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
            why="The new release is built from pristine wheels: these edits will not be in it",
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


def _look_at_disk(record: ServiceRecord, channel: Channel, rows: list[PlannedPackage], findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Room needed: unpacked sizes where the wheels are at hand, else three times the download, marked an estimate."""
    needed: int | None = 0
    estimate = False
    for row in rows:
        if row.new is None or row.file is None or needed is None:
            continue
        local = Path(channel.wheelhouse, row.file) if channel.kind == "wheelhouse" else None
        if local and local.is_file():
            needed += wheelhouse.contents(local).size_bytes
        elif row.size_bytes is not None:
            needed, estimate = needed + UNPACKED_FACTOR * row.size_bytes, True
        else:
            needed = None
    place = next(folder for folder in (record.releases, *record.releases.parents) if folder.exists())
    state = os.statvfs(place)
    free = state.f_bavail * state.f_frsize
    if needed is None:
        findings.append(_finding("note", "How much disk the release needs is not known", why="The channel does not tell the size of every wheel"))
    elif needed + SPARE_BYTES > free:
        findings.append(_finding("stop", f"There is not enough disk: {_size(needed)} needed, {_size(free)} free below `{place}`",
                                 fix="Remove an old release, or free disk elsewhere"))
    return {"path": str(place), "needed_bytes": needed, "free_bytes": free, "estimate": estimate or needed is None}


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


def _input_state(live: Path | None, report: integrity.IntegrityReport | None, results: list[guards.GuardResult]) -> str:
    """What the build replaces: the release in use, its edits, the files that guards look at."""
    return _digest({"current": live.name if live else None, "integrity": report.digest() if report else None,
                    "guards": [[result.guard, result.holds, result.sha256] for result in results]})


def _hash(plan: Plan) -> str:
    return _digest({
        "service": plan.service, "channel": plan.channel, "requirements": plan.requirements, "wanted_version": plan.wanted_version,
        "coupling": plan.coupling, "options": plan.options, "python": plan.python, "input_state": plan.input_state,
        "packages": [[package["name"], package["new"], package["file"], package["sha256"]] for package in plan.locked],
    })


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
