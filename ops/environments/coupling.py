"""Do the coupled packages agree? The rules are data (`coupling.toml`); this compares versions, nothing is imported.

The same mismatch is fatal in one version and harmless in the next, so a finding's level depends on the leader's version.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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
class CouplingFinding:
    """Packages that do not agree. `level`: "stop" (the service cannot start) or "warning".

    `action` is the fix for programs: `{"do": "install" | "remove", "package", "version"}`; the fix is one that can succeed.
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
def rules() -> tuple[Rule, ...]:
    """The table, read once. Raises OpsError if the file is not as it should be."""
    path = Path(__file__).with_name("coupling.toml")
    try:
        raw = tomllib.loads(path.read_text())
        return tuple(
            Rule(leader=rule["leader"], bypass=rule.get("bypass", ""), members=tuple(
                Member(name=member["name"], without=member["without"], fatal_below=member.get("fatal_below", ""),
                       ignored=member.get("ignored", ""), sources=tuple(member["sources"])) for member in rule["member"]))
            for rule in raw["rule"])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise OpsError("The table of coupled packages cannot be read", why=f"{path}: {error!r}") from error


def coupled_names() -> list[str]:
    """All names in the table, leaders first."""
    return [name for rule in rules() for name in (rule.leader, *(member.name for member in rule.members))]


def public(version: str) -> str:
    """The version without its local suffix: `0.6.4+cu130` is `0.6.4`. Text that is no version stays as it is."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version.partition("+")[0]


def findings(packages: EnvironmentPackages | Mapping[str, str], *, available: Available | None = None,
             env: Mapping[str, str] | None = None) -> list[CouplingFinding]:
    """What does not agree among the coupled packages; empty if all is well.

    `packages`: an environment, or name to version. `available` looks a wheel up in the channel, so that installing is offered
    only where it can succeed; without it, or where it does not know, the offer is to remove the optional package. `env` is the
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
                found.append(_finding(rule, leader, member, version, bypassed, available))
    return found


def is_fatal(leader_version: str, member: Member) -> bool:
    """Whether a member that differs makes the leader's import raise, at that version of the leader."""
    if not member.fatal_below:
        return True
    try:
        return Version(public(leader_version)) < Version(member.fatal_below)
    except InvalidVersion:
        return True  # an unknown version is judged by the stricter rule


def _finding(rule: Rule, leader: str, member: Member, version: str, bypassed: bool, available: Available | None) -> CouplingFinding:
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
        known = "The channel has no" if there is False else "A plan looks up whether the channel has"
        fix = f"Remove `{member.name}`: {member.without}. {known} `{member.name}=={wanted}`"
        action = {"do": "remove", "package": member.name, "version": ""}
    return CouplingFinding(
        level="stop" if fatal else "warning", packages={rule.leader: leader, member.name: version},
        title=f"Packages do not agree: `{rule.leader}` is {leader}, `{member.name}` is {version}", why=why, fix=fix, action=action)
