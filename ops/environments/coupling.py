"""Do the coupled packages agree? The rules are data (`coupling.toml`); this compares versions, nothing is imported.

Two kinds: packages that must share a version though nothing says so (FlashInfer's three), and what a package's METADATA asks of
another one (vLLM's torch and transformers). The same mismatch is fatal in one version and harmless in the next, so a finding's level
depends on the leader's version. A fix is looked up in the channel before it is offered.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.environments import channels
from ops.environments.packages import EnvironmentPackages
from ops.jobs.errors import OpsError

Available = Callable[[str, str], bool | None]  # (package, public version): does the channel have that wheel? None: unknown


@dataclass(frozen=True, slots=True)
class Member:
    """A distribution that must have its leader's version."""

    name: str
    without: str
    fatal_below: str = ""
    ignored: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A leader and those that follow it. `bypass`: environment variable that switches the leader's own check off."""

    leader: str
    members: tuple[Member, ...]
    bypass: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a leader's METADATA asks of a member. `level`: of a finding; `otherwise`: what happens with another version."""

    leader: str
    member: str
    level: str
    otherwise: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CouplingFinding:
    """Packages that do not agree. `level`: "stop" (the service cannot start) or "warning".

    `action` is the fix for programs: `{"do": "install" | "remove" | "redeploy", "package", "version"}`; the fix is one that can succeed.
    `packages`: name to installed version ("" where it is not installed).
    """

    level: str
    packages: dict[str, str]
    title: str
    why: str
    fix: str
    action: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"level": self.level, "packages": self.packages, "title": self.title, "why": self.why, "fix": self.fix, "action": self.action}


@cache
def _table() -> tuple[tuple[Rule, ...], tuple[Pinned, ...]]:
    path = Path(__file__).with_name("coupling.toml")
    try:
        raw = tomllib.loads(path.read_text())
        shared = tuple(
            Rule(leader=rule["leader"], bypass=rule.get("bypass", ""), members=tuple(
                Member(name=member["name"], without=member["without"], fatal_below=member.get("fatal_below", ""),
                       ignored=member.get("ignored", ""), sources=tuple(member["sources"])) for member in rule["member"]))
            for rule in raw["rule"])
        asked = tuple(Pinned(leader=rule["leader"], member=rule["member"], level=rule["level"], otherwise=rule["otherwise"],
                             sources=tuple(rule["sources"])) for rule in raw["pinned"])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise OpsError("The table of coupled packages cannot be read", why=f"{path}: {error!r}") from error
    return shared, asked


def rules() -> tuple[Rule, ...]:
    """The packages that must share a version, read once. Raises OpsError if the file is not as it should be."""
    return _table()[0]


def pins() -> tuple[Pinned, ...]:
    """The pairs where the leader's METADATA decides."""
    return _table()[1]


def coupled_names() -> list[str]:
    """The packages that must share a version, leaders first."""
    return [name for rule in rules() for name in (rule.leader, *(member.name for member in rule.members))]


def public(version: str) -> str:
    """The version without its local suffix: `0.6.4+cu130` is `0.6.4`. Text that is no version stays as it is."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def findings(packages: EnvironmentPackages | Mapping[str, str], *, available: Available | None = None,
             indexes: Sequence[str] = (), env: Mapping[str, str] | None = None) -> list[CouplingFinding]:
    """What does not agree among the coupled packages; empty if all is well.

    `packages`: an environment, or name to version (then only what needs no METADATA is looked at). `available` looks a wheel up in the
    channel, so that installing is offered only where it can succeed; without it, or where it does not know, the offer is to remove the
    optional package. `indexes`: the addresses that the channel asks, to say whether FlashInfer's own is among them. `env` is the
    service's environment: with the leader's bypass variable set to 1 the import does not raise.
    """
    versions: dict[str, str] = packages.versions() if isinstance(packages, EnvironmentPackages) else {
        str(canonicalize_name(name)): version for name, version in packages.items()}
    found = []
    for rule in rules():
        leader = versions.get(rule.leader)
        if leader is None:
            continue
        bypassed = bool(rule.bypass and (env or {}).get(rule.bypass) == "1")
        for member in rule.members:
            version = versions.get(member.name)
            if version is not None and public(version) != public(leader):
                found.append(_finding(rule, leader, member, version, bypassed, available, indexes))
    if isinstance(packages, EnvironmentPackages):
        for pinned in pins():
            found += _against_metadata(packages, pinned, available)
    return found


def _against_metadata(packages: EnvironmentPackages, pinned: Pinned, available: Available | None) -> Iterator[CouplingFinding]:
    leader = packages.distributions.get(pinned.leader)
    if leader is None:
        return
    for needed in _needs(leader.requires, pinned.member, packages.python_version):
        version = packages.version(pinned.member)
        if version is not None and _holds(needed, version):
            continue
        exact = next((spec.version for spec in needed.specifier if spec.operator == "==" and not spec.version.endswith(".*")), None)
        if exact and available and available(pinned.member, exact):
            fix = f"Install `{pinned.member}=={exact}`, then start the service again"
            action = {"do": "install", "package": pinned.member, "version": exact}
        else:
            fix = f"Redeploy: a new release is resolved as a whole, with `{pinned.member}{needed.specifier}`"
            action = {"do": "redeploy", "package": pinned.member, "version": exact or ""}
        title = (f"`{pinned.leader}` {leader.version} needs `{pinned.member}{needed.specifier}`, but "
                 + ("it is not installed" if version is None else f"{version} is installed"))
        yield CouplingFinding(level=pinned.level, packages={pinned.leader: leader.version, pinned.member: version or ""}, title=title,
                              why=pinned.otherwise, fix=fix, action=action)


def _needs(requires: list[str], member: str, python_version: str | None) -> Iterator[Requirement]:
    """What METADATA asks of `member` on that interpreter, extras left out. A line that cannot be read asks nothing."""
    about: dict[str, str] = {"extra": ""}
    if python_version:
        about |= {"python_full_version": python_version, "python_version": ".".join(python_version.split(".")[:2])}
    for text in requires:
        try:
            needed = Requirement(text)
            if canonicalize_name(needed.name) == member and (needed.marker is None or needed.marker.evaluate(about)):
                yield needed
        except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
            continue


def _holds(needed: Requirement, version: str) -> bool:
    try:
        return needed.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def is_fatal(leader_version: str, member: Member) -> bool:
    """Whether a member that differs makes the leader's import raise, at that version of the leader."""
    if not member.fatal_below:
        return True
    try:
        return Version(public(leader_version)) < Version(member.fatal_below)
    except InvalidVersion:
        return True  # an unknown version is judged by the stricter rule


def _finding(rule: Rule, leader: str, member: Member, version: str, bypassed: bool, available: Available | None,
             indexes: Sequence[str]) -> CouplingFinding:
    fatal = is_fatal(leader, member) and not bypassed
    wanted = public(leader)
    if bypassed:
        why = f"{rule.bypass}=1 switches {rule.leader}'s own check off; kernels of another version may run"
    elif fatal:
        why = f"`import flashinfer` raises RuntimeError: {member.name} must have exactly the version of {rule.leader}, so the service cannot start"
    else:
        why = member.ignored or f"{member.name} must have the version of {rule.leader}"
    there = available(member.name, wanted) if available else None
    if there:
        fix = f"Install `{member.name}=={wanted}`, then start the service again"
        action = {"do": "install", "package": member.name, "version": wanted}
    else:
        fix = f"Remove `{member.name}`: {member.without}. {_elsewhere(member.name, wanted, there, indexes)}"
        action = {"do": "remove", "package": member.name, "version": ""}
    return CouplingFinding(
        level="stop" if fatal else "warning", packages={rule.leader: leader, member.name: version},
        title=f"Packages do not agree: `{rule.leader}` is {leader}, `{member.name}` is {version}", why=why, fix=fix, action=action)


def _elsewhere(name: str, wanted: str, there: bool | None, indexes: Sequence[str]) -> str:
    """Where else the matching wheel could come from: what is known, and who may do something about it."""
    address = channels.flashinfer_address()
    if there is None:
        return f"A plan looks up whether the channel has `{name}=={wanted}`"
    if any(one.startswith(address.rstrip("/")) for one in indexes):
        return f"The channel has no `{name}=={wanted}`, FlashInfer's own index included"
    return f"The channel has no `{name}=={wanted}`; an admin may add FlashInfer's own index ({address}) to it, which may have it"
