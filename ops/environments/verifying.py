"""Is a built release what was planned? Versions, coupling, every file against RECORD and the wheels, imports, `vllm --version`.

A fresh environment whose files are not those of the wheels got them from uv's cache: uv keeps wheels unpacked there, and where its files
are hard links of an environment's (uv's default), an edit in that environment is an edit in the cache, which every later install gives
out again. Such packages are dropped from the cache, taken out, installed anew and looked at again; one sentence says which edit came back.
What comes out of the fresh wheel as before is no edit: then the wheel's own RECORD is wrong (faulty_wheels.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.environments import building, copying, faulty_wheels, integrity, packages, releases, wheelhouse
from ops.environments import coupling as coupling_rules
from ops.environments import plan as planning
from ops.environments.integrity import FileFinding, IntegrityReport
from ops.jobs import commands
from ops.jobs.errors import BadInput, CommandFailed, OpsError, Timeout
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state

IMPORTS = {"vllm": "vllm", "flashinfer-python": "flashinfer"}  # distribution to module: what a release must be able to import
IMPORT_S = 300  # seconds; importing vLLM took 17 s on an idle machine with a cold disk, 50 s on a busy one
NO_DEVICE = "Failed to infer device type"  # vLLM 0.25.1 without a GPU, whatever it was asked
AGAIN_FILE = "roundhouse-again.txt"  # the lock of what was installed twice, in the job's folder
_LOOKED_UP = 200  # findings that are looked up in uv's cache


def verify(context: Context, record: ServiceRecord, release: Path, plan: planning.Plan) -> releases.VerifyResult:
    """Holds a built release against its plan; what passes is marked verified, and only that can be switched to.

    Raises OpsError with all that differs. A plan with coupling off may have the mismatch that it announced. `context.kept["integrity"]` has
    the last look at the files by the release's name afterwards.
    """
    began = time.monotonic()
    release = releases.inside(record, release.name)
    if releases.is_unfinished(release):
        raise OpsError(f"The release `{release.name}` was never finished", hint="Run the job again: it builds it anew")
    installed = packages.read(release)
    wrong = _wrong_versions(installed, plan)
    warnings: list[str] = []
    mismatches = coupling_rules.findings(installed, env=record.env)
    for found in mismatches:
        (wrong if plan.coupling and found.level == "stop" else warnings).append(f"{found.title}. {found.why}")
    context.log("\n".join(f"{name} {version}" for name, version in releases.interesting(installed).items()))
    report = _check(context, release)
    unlike = _unlike_wheels(installed, plan, releases.manifest(release) or {})
    leaks: list[str] = []
    if not wrong and (report.findings or unlike) and (again := _clean_again(context, record, release, plan, report, unlike)):
        first, installed, report = report, packages.read(release), _check(context, release)
        if faulty := _faulty(first, report, again):
            releases.note_faulty(release, [[*faulty_wheels.named(one.path, one.expected), faulty_wheels.as_recorded(one.sha256)] for one in faulty])
            report = _check(context, release)
        leaks = _tell_again(context, again, faulty)
        unlike = _unlike_wheels(installed, plan, releases.manifest(release) or {})
    wrong += [_told_unlike(name, paths) for name, paths in unlike.items()]
    wrong += _wrong_files(report)
    imported = _imports(context, record, release, plan, wrong, warnings, {"flashinfer"} if not plan.coupling and mismatches else set())
    told = _told_version(context, record, release, plan, wrong, warnings)
    for text in warnings:
        context.finding("verify", "warning", text.splitlines()[0], why="\n".join(text.splitlines()[1:]))
    if wrong:
        raise OpsError(f"The release `{release.name}` is not what was planned: {wrong[0].splitlines()[0]}", why="\n".join(wrong),
                       hint="The live release was not touched" if not release.is_symlink() else "", kind="not_verified", release=release.name)
    releases.mark_verified(release)
    context.kept.setdefault("integrity", {})[release.name] = report
    return releases.VerifyResult(release.name, report.checked_files, report.checked_bytes, report.distributions, releases.interesting(installed),
                                 imported, told, time.monotonic() - began, warnings, leaks)


def _check(context: Context, release: Path) -> IntegrityReport:
    return integrity.check(release, progress=lambda done, total: context.progress(done, total, "files"))


def _wrong_versions(installed: packages.EnvironmentPackages, plan: planning.Plan) -> list[str]:
    there, wanted = installed.versions(), {package["name"]: package["new"] for package in plan.locked}
    wrong = [f"`{name}` is {there.get(name) or 'not installed'}, planned was {wanted.get(name) or 'none'}"
             for name in sorted(there.keys() | wanted.keys()) if there.get(name) != wanted.get(name)]
    return wrong + [f"`{found.name}` is installed twice" for found in installed.duplicates]


def _wrong_files(report: IntegrityReport) -> list[str]:
    wrong = list(report.problems)
    for kind, found in (("changed", report.changed), ("missing", report.missing), ("in no RECORD", report.extra)):
        if found:
            names = ", ".join(f"`{finding.path}`" for finding in found[:5])
            wrong.append(f"{len(found)} file{'s are' if len(found) > 1 else ' is'} {kind}: {names}" + (" and more" if len(found) > 5 else ""))
    return wrong


def _unlike_wheels(installed: packages.EnvironmentPackages, plan: planning.Plan, known: Mapping[str, Any]) -> dict[str, list[str]]:
    """Holds each installed RECORD against the one in the wheel, where the wheel is at hand: package to the paths that differ.

    A file that was edited in uv's cache by hand comes with a RECORD that may fit it; the wheel with the planned hash cannot lie.
    """
    folder = str((known.get("channel") or {}).get("wheelhouse") or "")
    wrong = {}
    for package in plan.locked if folder else []:
        wheel = Path(folder, package["file"] or "")
        found = installed.distributions.get(package["name"])
        if found is None or not wheel.is_file() or wheelhouse.sha256(wheel) != package["sha256"]:
            continue
        there = dict(integrity.rows(found))
        if differ := sorted(path for path, digest in wheelhouse.record_rows(wheel).items() if there.get(path) != digest and not _rewritten(path)):
            wrong[package["name"]] = differ
    return wrong


def _rewritten(path: str) -> bool:
    """Whether a restored release may have rewritten the file for its new place (copying.py)."""
    return path.endswith(".pth") and "/" not in path


def _told_unlike(name: str, paths: list[str]) -> str:
    return f"`{name}` is not as in its wheel: `{paths[0]}`" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


# What came back through a cache


@dataclass(frozen=True, slots=True)
class _Again:
    """A package that was installed anew: the paths (as RECORD has them) that were not those of its wheel, whether the cache had them as they were,
    and whether it had nothing of the wheel unpacked any more before, so that uv had to unpack it."""

    name: str
    paths: list[str]
    cached: bool
    unpacked: bool


def _clean_again(context: Context, record: ServiceRecord, release: Path, plan: planning.Plan, report: IntegrityReport,
                 unlike: Mapping[str, list[str]]) -> list[_Again]:
    """Installs the packages anew whose files are not those of their wheels, out of a clean cache; gives them.

    Empty if nothing could be done: a file that belongs to no planned package, or one that nobody can install again.
    """
    channel = _channel(release)
    rows = {package["name"]: package for package in plan.locked if package.get("sha256")}
    cache = planning.default_uv(record).cache
    library = _library(release)
    owner_in_cache = _in_cache(cache, report.findings, library)
    affected: dict[str, list[str]] = {name: list(paths) for name, paths in unlike.items()}
    for finding in report.findings:
        if name := finding.package or owner_in_cache.get(finding.path, ""):
            affected.setdefault(name, []).append(finding.path.removeprefix(f"{library}/"))
    chosen = {name: sorted(set(paths)) for name, paths in affected.items() if name in rows}
    if channel is None or not chosen:
        return []
    uv = building.uv_for(context, record)
    uv.clean_cache(sorted(chosen))
    gone = {name for name in chosen if uv.at_hand(name, rows[name].get("file") or "") is None}
    installed = packages.read(release)
    _take_out(release, installed, [finding for finding in report.extra if (finding.package or owner_in_cache.get(finding.path)) in chosen])
    for name in chosen:
        copying.uninstall(installed, name)
    again = context.folder / AGAIN_FILE
    state.write_file(again, "".join(releases.lock_line(rows[name]) for name in chosen))
    building.install(context, uv, release, again, channel, [rows[name] for name in chosen])
    return [_Again(name, paths, name in unlike or any(f"{library}/{path}" in owner_in_cache for path in paths), name in gone)
            for name, paths in chosen.items()]


def _library(release: Path) -> str:
    return str(packages.site_packages(release)[0].relative_to(release))


def _faulty(first: IntegrityReport, second: IntegrityReport, again: list[_Again]) -> list[FileFinding]:
    """Files of packages that were installed twice and came out as they were: the second time from the wheel with the planned hash, which uv had to
    fetch and unpack anew. So that is what the wheel holds, whatever its RECORD says."""
    before = {(one.path, one.expected, one.sha256) for one in first.changed}
    names = {one.name for one in again if one.unpacked}
    return [one for one in second.changed if one.package in names and one.sha256 and (one.path, one.expected, one.sha256) in before]


def _tell_again(context: Context, again: list[_Again], faulty: list[FileFinding]) -> list[str]:
    """Says what was found out about each package that was installed anew; gives the sentences about edits that had come back."""
    told = []
    for one in again:
        wrong = [finding for finding in faulty if finding.package == one.name]
        if wrong:
            context.finding("verify", "note", f"The wheel of `{one.name}` has a wrong RECORD: {_counted_files(wrong)} not as it says",
                            why="The same came out of the wheel with the planned hash, fetched and unpacked anew, so its publisher changed it after "
                            "RECORD was written. That is how this package is, and no edit")
        excused = {faulty_wheels.inside(finding.path) for finding in wrong}
        if edits := [path for path in one.paths if path not in excused]:
            told.append(_sentence(one.name, edits, cached=one.cached))
            context.finding("verify", "warning", told[-1], why="uv gives out what lies unpacked in its cache and never looks whether it is still "
                            "what the wheel held. Where an environment's files are hard links into a cache, an edit in the one is one in the other")
    return told


def _counted_files(found: list[FileFinding]) -> str:
    path = faulty_wheels.inside(found[0].path)
    return f"`{path}` is" if len(found) == 1 else f"{len(found)} files (`{path}`, …) are"


def _sentence(name: str, paths: list[str], *, cached: bool) -> str:
    one = len(paths) == 1
    which = f"`{paths[0]}`" if one else f"{len(paths)} files (`{paths[0]}`, …)"
    if cached:
        return f"The {'edit' if one else 'edits'} to {which} came back through uv's cache: `{name}` was dropped from it and installed anew"
    return f"{which} did not arrive as in {'its' if one else 'their'} wheel: `{name}` was dropped from uv's cache and installed anew"


def _channel(release: Path) -> Channel | None:
    raw = (releases.manifest(release) or {}).get("channel")
    try:
        return Channel.from_dict(raw) if raw else None
    except BadInput:
        return None


def _take_out(release: Path, installed: packages.EnvironmentPackages, extra: Iterable[FileFinding]) -> None:
    """Deletes stray files of a fresh environment: a reinstall would leave them."""
    root = os.path.realpath(installed.path)
    folders = set()
    for finding in extra:
        path = Path(root, finding.path)
        path.unlink(missing_ok=True)
        folders.add(str(path.parent))
    copying.remove_empty(folders, root)


def _in_cache(cache: Path, findings: list[FileFinding], library: str) -> dict[str, str]:
    """Path of a finding to the distribution in uv's cache that has the very same content at that path (or, of a missing file, has none).

    uv keeps unpacked wheels in `archive-v0/<id>/`, laid out as site-packages is.
    """
    archives = {folder: names for folder in cache.glob("archive-v*/*") if (names := [found.name for found in folder.glob("*.dist-info")])}
    owners: dict[str, str] = {}
    for finding in findings[:_LOOKED_UP]:
        inside = finding.path.removeprefix(f"{library}/")
        for folder, names in archives.items():
            name = canonicalize_name(names[0].partition("-")[0])
            if finding.change == "missing":
                same = name == finding.package and not (folder / inside).exists()
            else:
                same = finding.sha256 is not None and _holds(folder / inside, finding)
            if same:
                owners[finding.path] = name
                break
    return owners


def _holds(path: Path, finding: FileFinding) -> bool:
    try:
        if path.stat().st_size != finding.size_bytes:
            return False
        return integrity.hash_file(path)[0].hex() == finding.sha256
    except OSError:  # not in this archive
        return False


# What it can do


def _imports(context: Context, record: ServiceRecord, release: Path, plan: planning.Plan, wrong: list[str], warnings: list[str],
             expected_to_fail: set[str]) -> list[str]:
    imported = []
    for distribution, module in IMPORTS.items():
        if plan.planned(distribution) is None:
            continue
        failure = _import_failure(context, record, release, module)
        if failure is None:
            imported.append(module)
        else:
            (warnings if module in expected_to_fail else wrong).append(failure)
    return imported


def _import_failure(context: Context, record: ServiceRecord, release: Path, module: str) -> str | None:
    """Imports a module in the release's own interpreter, isolated from user site, PYTHON* and the working folder; None: it works."""
    try:
        commands.run([release / "bin" / "python", "-I", "-c", f"import {module}"], context=context, env=_environment(record, release), cwd=release,
                     timeout_s=IMPORT_S)
    except CommandFailed as error:
        lines = _tail(error)
        return f"`import {module}` fails: {lines[-1] if lines else error.what}\n" + "\n".join(lines[-12:])
    except Timeout as error:
        if context.deadline is not None and time.monotonic() > context.deadline:
            raise
        return f"`import {module}` did not end within {IMPORT_S} s: {error.what}"
    return None


def _tail(error: CommandFailed) -> list[str]:
    """The last lines of what failed."""
    return [line for line in str(error.facts.get("tail", "")).splitlines() if line.strip()]


def _told_version(context: Context, record: ServiceRecord, release: Path, plan: planning.Plan, wrong: list[str], warnings: list[str]) -> str | None:
    """What `vllm --version` says; a version that is not the plan's goes to `wrong`.

    vLLM looks for its device even then. That it finds none is no fault of the release, but a service that has GPUs would not start either.
    """
    planned = plan.planned(planning.MAIN)
    if planned is None:
        return None
    program = release / "bin" / "vllm"
    if not program.exists():
        wrong.append("There is no `bin/vllm`")
        return None
    try:
        done = commands.run([program, "--version"], context=context, env=_environment(record, release), cwd=release, timeout_s=IMPORT_S)
    except CommandFailed as error:
        lines = _tail(error)
        told = "\n".join([f"`vllm --version` fails: {lines[-1] if lines else error.what}", *lines[-12:]])
        if any(NO_DEVICE in line for line in lines):
            told = "\n".join(["vLLM finds no GPU on this machine, so `vllm --version` does not answer", "There is none, or no driver, or one that "
                              "does not fit its library (after an upgrade without a restart): `nvidia-smi` tells", *lines[-1:]])
        (warnings if NO_DEVICE in told and not record.gpus else wrong).append(told)
        return None
    except Timeout as error:
        if context.deadline is not None and time.monotonic() > context.deadline:
            raise
        wrong.append(f"`vllm --version` did not end within {IMPORT_S} s: {error.what}")
        return None
    for word in reversed(done.stdout.split()):
        try:
            if Version(word) == Version(planned) or coupling_rules.public(word) == coupling_rules.public(planned):
                return word
        except InvalidVersion:
            continue
    wrong.append(f"`vllm --version` says `{done.stdout.strip()[-200:]}`, planned was {planned}")
    return None


def _environment(record: ServiceRecord, release: Path) -> dict[str, str]:
    """The service's own variables, with the release's bin first on PATH, as its launcher does."""
    return {**record.env, "PATH": f"{release / 'bin'}{os.pathsep}{record.env.get('PATH') or commands.PATH}", "VIRTUAL_ENV": str(release)}
