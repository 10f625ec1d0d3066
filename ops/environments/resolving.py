"""What a plan asks a channel for, and what comes out: a whole environment, completed with coupled packages, or the versions of today.

The wheel of each package is chosen for the interpreter that the release will have, and held against the hashes that a lock, a recipe
or the release in use names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.environments import channels, integrity, packages, wheelhouse
from ops.environments import coupling as coupling_rules
from ops.environments.uv import LockedPackage, LockedWheel, NoSolution, Origin, Uv
from ops.jobs.errors import BadInput
from ops.records import Channel, ServiceRecord

MAIN = "vllm"  # the package whose version a release is named by


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


@dataclass(frozen=True, slots=True)
class Asks:
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
class Drawn:
    """What came out: the packages, what was asked, where each comes from, what is installed anew (mode "restore")."""

    requirements: list[str]
    rows: list[PlannedPackage]
    origins: dict[str, Origin]
    restore: list[str]


def finding(level: str, title: str, *, why: str = "", fix: str = "") -> dict[str, Any]:
    return {"level": level, "title": title, "why": why, "fix": fix}


# What is asked for, and completed


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
    if pinned is not None and not fits(pinned, wanted):
        raise BadInput(f"Wanted `{MAIN}` {wanted}, but the channel `{channel.name}` is pinned to {pinned}", hint="Choose another channel")
    replaced = []
    for text in asked:
        parsed = Requirement(text)
        if canonicalize_name(parsed.name) == MAIN:
            extras = f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else ""
            text = f"{MAIN}{extras}=={wanted}"
        replaced.append(text)
    return replaced


def resolved(asks: Asks, wanted: str | None, coupling: bool, findings: list[dict[str, Any]]) -> Drawn:
    """The channel's answer, completed with coupled packages; or a recipe's own packages, exactly."""
    channel = asks.channel
    if channel.kind == "recipe":
        limits = _recipe(channel)
        requirements = [f"{limit.name}=={limit.version}" for limit in limits]
        locked = asks.lock(requirements, no_deps=True)
        rows = _rows(asks, locked, limits, [], dict.fromkeys((limit.name for limit in limits), "in the recipe"), {})
        return Drawn(requirements, rows, {}, [])
    asked = _asked(channel, wanted)
    requirements, added, locked = _complete(asks, asked, coupling, findings)
    origins = asks.uv.origins(locked, requirements, channel, python=asks.python["path"])
    limits = channels.constraints(channel)
    known = {limit.name for limit in limits}
    if limits and (loose := sorted(package.name for package in locked if package.name not in known)):
        findings.append(finding("note", f"The channel's lock does not name {', '.join(f'`{name}`' for name in loose[:5])}"
                                 + (f" and {len(loose) - 5} more" if len(loose) > 5 else ""),
                                 why="This interpreter needs more than the one that the lock was made for; the index tells their hashes"))
    return Drawn(requirements, _rows(asks, locked, limits, asked, added, origins), origins, [])


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


def _complete(asks: Asks, asked: list[str], coupling: bool,
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
                findings.append(finding(
                    "warning", f"`{member.name}` will not be in the new release",
                    why=f"The channel `{asks.channel.name}` has no `{member.name}` {wanted}, which `{rule.leader}` {leader} needs; {member.without}"
                    if coupling else f"The channel `{asks.channel.name}` has no `{member.name}` {wanted}, which is installed today",
                    fix=_where_else(asks.channel, member.name, wanted)))
                continue
            requirements.append(f"{member.name}=={wanted}")
            if coupling:
                added[member.name] = "coupled, added by Roundhouse"
                if coupling_rules.public(there) != wanted:
                    findings.append(finding("note", f"`{member.name}` goes with `{rule.leader}` to {wanted}",
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


def _rows(asks: Asks, locked: list[LockedPackage], limits: Sequence[channels.Constraint], asked: list[str], added: Mapping[str, str],
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
            package.name, before, package.version, "added" if before is None else "same" if same_version(before, package.version) else "changed",
            why, wheel.file, wheel.sha256, wheel.size_bytes, index=origin.index if origin else None))
    new = {row.name for row in rows}
    gone = "nothing in the new release needs it"
    rows += [PlannedPackage(name, version, None, "removed", gone) for name, version in old.items() if name not in new]
    return sorted(rows, key=lambda row: row.name)


def _wheel(asks: Asks, package: LockedPackage, hashes: frozenset[str] = frozenset()) -> LockedWheel:
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


def _other_file(asks: Asks, package: LockedPackage, wheel: LockedWheel) -> BadInput:
    channel = asks.channel
    what = "recipe" if channel.kind == "recipe" else "lock"
    made_for = str((channel.recipe.get("python") or {}).get("version") or "") if isinstance(channel.recipe.get("python"), dict) else ""
    other_python = made_for and made_for.split(".")[:2] != asks.python["version"].split(".")[:2]
    return BadInput(f"`{package.name}` {package.version} of channel `{channel.name}` is another file than the {what} names",
                    why=f"The {what} was made for Python {made_for}, the interpreter is {asks.python['version']}" if other_python
                    else f"`{wheel.file}` has none of the hashes that the {what} names", kind="hash_mismatch",
                    hint="Choose that Python" if other_python else "Find out where that file comes from")


def same_version(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def fits(got: str, wanted: str) -> bool:
    """Whether a version is the wanted one; a local suffix counts only if it was named."""
    return same_version(got, wanted) or (Version(wanted).local is None and coupling_rules.public(got) == wanted)


# The versions of today, from pristine wheels


def edited_packages(report: integrity.IntegrityReport | None) -> list[str]:
    """Packages with changed or missing files."""
    found = {canonicalize_name(one.package) for one in (*report.changed, *report.missing) if one.package} if report else set()
    return sorted(found)


def restored(asks: Asks, live: Path | None, report: integrity.IntegrityReport | None, wanted: str | None) -> Drawn:
    """Today's packages; those that were edited, or that cannot be copied for want of a RECORD, from the channel's wheels of the same version."""
    if live is None or asks.installed is None or report is None:
        raise BadInput(f"Service `{asks.record.name}` has no release whose files could be restored", hint="Make a full plan")
    if wanted is not None:
        raise BadInput("Restoring keeps every version, no other can be chosen", hint="Make a full plan for another version")
    known = known_wheels(asks.record, live)
    unlisted = [name for name, found in asks.installed.distributions.items() if not found.record.is_file()]
    edited = edited_packages(report)
    anew = sorted({*edited, *unlisted})
    pins = [f"{name}=={asks.installed.version(name)}" for name in anew]
    wheels = {package.name: same_wheel(asks, package, known.get(package.name, {})) for package in lock_each(asks, pins)}
    rows = []
    for name, version in asks.installed.versions().items():
        wheel, told = wheels.get(name), known.get(name, {})
        why = "copied as it is" if wheel is None else f"{'its files were edited' if name in edited else 'it has no RECORD'}: installed anew"
        rows.append(PlannedPackage(name, version, version, "same", why, wheel.file if wheel else told.get("file"),
                                   wheel.sha256 if wheel else told.get("sha256"), wheel.size_bytes if wheel else None))
    return Drawn(pins, rows, {}, anew)


def known_wheels(record: ServiceRecord, live: Path) -> dict[str, dict[str, Any]]:
    """What the release in use was made from, as its manifest says: name to its row; empty for an environment that we did not build."""
    from ops.environments import releases

    told = releases.manifest(live) or {}
    return {str(row.get("name")): row for row in told.get("packages", []) if isinstance(row, dict)}


def lock_each(asks: Asks, pins: list[str]) -> list[LockedPackage]:
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


def same_wheel(asks: Asks, package: LockedPackage, known: Mapping[str, Any]) -> LockedWheel:
    sha256 = known.get("sha256")
    try:
        return _wheel(asks, package, frozenset([sha256]) if sha256 else frozenset())
    except BadInput as error:
        if error.kind != "hash_mismatch":
            raise
        raise BadInput(f"The channel `{asks.channel.name}` has another file under the name of `{package.name}` {package.version}",
                       why="The release in use was made from a wheel with another hash", kind="hash_mismatch",
                       hint="Choose the channel that it came from, or make a full plan") from error
