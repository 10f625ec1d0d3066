"""Do the installed distributions have what they need? Each `Requires-Dist` is held against what is installed.

Markers (`python_version < "3.12"`, `sys_platform == "linux"`) are evaluated for the environment's interpreter, not for ours: it is
asked once, isolated and without site, or, where it no longer runs, they are made up from what pyvenv.cfg and the folders tell.
An extra counts where another installed distribution asks for it; what a person once asked for is not recorded anywhere.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.environments import packages
from ops.environments.packages import Distribution, EnvironmentPackages
from ops.jobs import commands
from ops.jobs.errors import OpsError, Timeout

ASK_S = 10.0  # seconds; an interpreter answers within 0.05
_ASK = """\
import json, os, platform, sys
info = sys.implementation.version
level = info.releaselevel
print(json.dumps({
    "implementation_name": sys.implementation.name,
    "implementation_version": "%d.%d.%d" % info[:3] + ("" if level == "final" else level[0] + str(info.serial)),
    "os_name": os.name, "platform_machine": platform.machine(), "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(), "platform_system": platform.system(), "platform_version": platform.version(),
    "python_full_version": platform.python_version(), "python_version": ".".join(platform.python_version_tuple()[:2]),
    "sys_platform": sys.platform}))
"""


@dataclass(frozen=True, slots=True)
class RequirementFinding:
    """A requirement that the environment does not meet.

    `kind`: "missing" (nothing of that name is installed), "conflict" (another version is), or "unreadable" (no requirement: nobody can
    tell). `needs` is the requirement without its marker, `marker` why it counts here ("" always), `found` the installed version.
    """

    package: str
    needs: str
    found: str | None
    kind: str
    marker: str = ""
    version: str = ""  # of `package`

    @property
    def title(self) -> str:
        """One sentence."""
        if self.kind == "unreadable":
            return f"`{self.package}` {self.version} has a requirement that cannot be read: `{self.needs}`"
        has = "which is not installed" if self.found is None else f"and {self.found} is installed"
        return f"`{self.package}` {self.version} needs `{self.needs}`, {has}"

    def as_dict(self) -> dict[str, Any]:
        return {"package": self.package, "version": self.version, "needs": self.needs, "found": self.found, "kind": self.kind,
                "marker": self.marker, "title": self.title}


def check(installed: EnvironmentPackages, *, markers: Mapping[str, str] | None = None) -> list[RequirementFinding]:
    """Requirements that are not met, in order of the names. `markers`: the interpreter's marker values, if they are known already.

    Packages that the environment sees outside of itself (`include-system-site-packages = true`) count as installed.
    """
    values = dict(markers if markers is not None else markers_of(installed)[0])
    versions: dict[str, str] = {**_outside(installed), **{name: found.version for name, found in installed.distributions.items()}}
    wanted: dict[str, set[str]] = {name: {""} for name in installed.distributions}  # extras to look at, "" is none of them
    found: dict[tuple[str, str, str], RequirementFinding] = {}
    pending = [(name, "") for name in sorted(installed.distributions)]
    while pending:
        name, extra = pending.pop()
        distribution = installed.distributions[name]
        if not extra and (finding := _python(distribution, values)) is not None:
            found[name, "python", ""] = finding
        for text, requirement in _active(distribution, extra, values):
            if requirement is None:
                found[name, text, ""] = RequirementFinding(name, text[:200], None, "unreadable", version=distribution.version)
                continue
            if (unmet := _unmet(distribution, requirement, versions)) is not None:
                found[name, unmet.needs, unmet.marker] = unmet
            target = str(canonicalize_name(requirement.name))
            for other in sorted(requirement.extras):
                if target in wanted and (normal := str(canonicalize_name(other))) not in wanted[target]:
                    wanted[target].add(normal)
                    pending.append((target, normal))
    return [finding for _, finding in sorted(found.items())]


def _active(distribution: Distribution, extra: str, values: Mapping[str, str]) -> Iterator[tuple[str, Requirement | None]]:
    """The requirements that count for an extra ("": the ones that always count); None for what is no requirement."""
    for text in distribution.requires:
        if extra and "extra" not in text:
            continue
        parsed = _parsed(text)
        if parsed is None:
            if not extra:
                yield text, None
            continue
        try:
            counts = parsed.marker is None or parsed.marker.evaluate({**values, "extra": extra})
        except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
            counts = False
            if not extra:
                yield text, None
        if counts and not (extra and parsed.marker is None):
            yield text, parsed


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _unmet(distribution: Distribution, requirement: Requirement, versions: Mapping[str, str]) -> RequirementFinding | None:
    there = versions.get(str(canonicalize_name(requirement.name)))
    marker = str(requirement.marker) if requirement.marker else ""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    needs = f"{requirement.name}{extras}{requirement.specifier}" if not requirement.url else f"{requirement.name}{extras} @ {requirement.url}"
    needs = re.sub(r"//[^/@]*@", "//", needs)  # it is shown
    if there is None:
        return RequirementFinding(distribution.name, needs, None, "missing", marker, distribution.version)
    if _fits(there, requirement.specifier):
        return None
    return RequirementFinding(distribution.name, needs, there, "conflict", marker, distribution.version)


def _fits(version: str, specifier: SpecifierSet) -> bool:
    try:
        return specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:  # told by packages.read; only `===` can name it
        return all(one.operator == "===" and one.version == version for one in specifier)


def _python(distribution: Distribution, values: Mapping[str, str]) -> RequirementFinding | None:
    if not distribution.requires_python:
        return None
    try:
        wanted = SpecifierSet(distribution.requires_python)
    except InvalidSpecifier:
        return RequirementFinding(distribution.name, f"Python {distribution.requires_python}"[:200], None, "unreadable", version=distribution.version)
    has = values.get("python_full_version", "")
    if not has or _fits(has.rstrip("+"), wanted):
        return None
    return RequirementFinding(distribution.name, f"Python {distribution.requires_python}", has, "conflict", version=distribution.version)


def _outside(installed: EnvironmentPackages) -> dict[str, str]:
    """Versions that the environment sees outside of itself: none unless pyvenv.cfg includes the system's."""
    if installed.settings.get("include-system-site-packages", "").lower() != "true" or not installed.settings.get("home"):
        return {}
    prefix, library = Path(installed.settings["home"]).parent, installed.site_packages[0].parent.name
    found: dict[str, str] = {}
    for folder in (prefix / "local" / "lib" / library / "dist-packages", prefix / "lib" / "python3" / "dist-packages",
                   prefix / "lib" / library / "dist-packages", prefix / "lib" / library / "site-packages"):
        found.update(packages.versions_in(folder))
    return found


# The interpreter's markers


def markers_of(installed: EnvironmentPackages, *, timeout_s: float = ASK_S) -> tuple[dict[str, str], str | None]:
    """The marker values of the environment's interpreter, and why they were not asked of it (None: they were).

    Raises OpsError if neither the interpreter nor the environment's files tell its version.
    """
    try:
        return _asked(installed.python, timeout_s), None
    except OpsError as error:
        return _derived(installed), f"{error.what}: {error.why}" if error.why else error.what


def _asked(python: Path, timeout_s: float) -> dict[str, str]:
    try:
        done = commands.run([python, "-I", "-S", "-c", _ASK], timeout_s=timeout_s, check=False)
    except Timeout as error:
        raise OpsError("The environment's Python does not answer", why=f"`{python}` was silent for {timeout_s:.0f} s") from error
    try:
        raw = json.loads(done.stdout) if done.code == 0 else None
    except ValueError:
        raw = None
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        last = done.stderr.strip().splitlines()[-1:]
        raise OpsError("The environment's Python does not run", why=last[0][:300] if last else f"`{python}` ended with {done.code}")
    return raw


def _derived(installed: EnvironmentPackages) -> dict[str, str]:
    """From the files alone; the machine is this one, where its packages were installed to run."""
    match = re.match(r"(\d+)\.(\d+)", installed.python_version or "")
    if match is None:
        raise OpsError(f"The Python version of `{installed.path}` is not known", why="Neither its interpreter nor its files tell it")
    short = f"{match[1]}.{match[2]}"
    full = installed.python_version or short
    implementation = installed.settings.get("implementation", "CPython")
    return {"implementation_name": implementation.lower(), "implementation_version": full, "os_name": os.name,
            "platform_machine": platform.machine(), "platform_python_implementation": implementation, "platform_release": platform.release(),
            "platform_system": platform.system(), "platform_version": platform.version(),
            "python_full_version": full if full.count(".") > 1 else f"{short}.0", "python_version": short, "sys_platform": sys.platform}
