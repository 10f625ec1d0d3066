"""Releases of a service: built beside the live one, verified, switched to in one step, kept for the way back.

A release is an environment at its final place (scripts and pyvenv.cfg hold their own path, so it cannot be moved), named
`<YYYYmmdd-HHMMSS>-<version>` (UTC). While it is built it has a file `roundhouse-building`; what still has it was never finished.
`roundhouse-release.json` says what it was built from and whether it passed its verification.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ops.environments import coupling as coupling_rules
from ops.environments import integrity, packages, wheelhouse
from ops.environments import plan as planning
from ops.environments.integrity import IntegrityReport
from ops.environments.plan import Plan
from ops.environments.uv import Uv
from ops.jobs import commands
from ops.jobs.errors import BadInput, CommandFailed, OpsError, Timeout
from ops.jobs.journal import sync_folder
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state

MARKER = "roundhouse-building"
MANIFEST = "roundhouse-release.json"
LOCK_FILE = "roundhouse-lock.txt"
IMPORTS = {"vllm": "vllm", "flashinfer-python": "flashinfer"}  # distribution to module: what a release must be able to import
IMPORT_S = 300  # seconds; importing vLLM took 17 s on an idle machine with a cold disk, 50 s on a busy one
PROGRESS_S = 1.0
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What a verification looked at; it raises if anything is wrong, so this is the good news. `warnings` are for the step's log."""

    release: str
    checked_files: int
    checked_bytes: int
    distributions: int
    versions: dict[str, str]  # of the packages of interest
    imported: list[str]
    vllm_version: str | None
    took_s: float
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"release": self.release, "checked_files": self.checked_files, "checked_bytes": self.checked_bytes,
                "distributions": self.distributions, "versions": self.versions, "imported": self.imported, "vllm_version": self.vllm_version,
                "took_s": self.took_s, "warnings": self.warnings}


@dataclass(frozen=True, slots=True)
class Release:
    """A kept release as lists show it. `size_bytes` and `built_at` are None where nobody wrote them down."""

    name: str
    path: Path
    version: str | None
    built_at: float | None
    size_bytes: int | None
    verified: bool
    is_current: bool
    is_last_good: bool
    unfinished: bool

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "path": str(self.path), "version": self.version, "built_at": self.built_at, "size_bytes": self.size_bytes,
                "verified": self.verified, "is_current": self.is_current, "is_last_good": self.is_last_good, "unfinished": self.unfinished}


# Building


def build(context: Context, record: ServiceRecord, channel: Channel, plan: Plan) -> Path:
    """Builds exactly the plan's release beside the live one and gives its folder.

    Raises BadInput if channel and plan do not belong together, OpsError if uv fails or the disk is full; what was half built is
    removed then. A killed build leaves the marker: `remove_unfinished` takes it away, and building the same plan again starts anew.
    """
    if (channel.name, record.name) != (plan.channel, plan.service):
        raise BadInput(f"The plan is for service `{plan.service}` from channel `{plan.channel}`, not for `{record.name}` from `{channel.name}`")
    release = _free_folder(record, plan.release)
    try:
        release.mkdir(mode=0o755, parents=True)
        (release / MARKER).write_text(json.dumps({"plan": plan.hash, "job": context.job, "since": time.time()}) + "\n")
        state.write_file(release / LOCK_FILE, lock_text(plan), mode=0o644)
        uv = Uv(cache=planning.default_uv(record).cache, context=context)
        uv.venv(release, python=plan.python["path"])
        context.check()
        with _progress(context, release, channel, plan):
            uv.install(release, release / LOCK_FILE, channel, strategy=plan.options.get("index_strategy", "first-index"))
        context.check()
        write_manifest(record, release, channel=channel.as_dict(), plan=plan)
        (release / MARKER).unlink()
        sync_folder(release)
    except BaseException as error:
        _take_away(release)
        if isinstance(error, OSError):
            raise OpsError(f"The release `{release.name}` cannot be built", why=error.strerror or str(error),
                           hint="Look at the disk below " + str(record.releases)) from error
        raise
    return release


def _free_folder(record: ServiceRecord, name: str) -> Path:
    """The folder for a new release: of an unfinished build of that name nothing stays, a finished one keeps its name."""
    for number in range(1, 100):
        folder = inside(record, name if number == 1 else f"{name}-{number}")
        if (folder / MARKER).exists() or (folder.is_dir() and not any(folder.iterdir())):
            _take_away(folder)
        if not os.path.lexists(folder):
            return folder
    raise OpsError(f"There are 99 releases named `{name}` already")


def lock_text(plan: Plan) -> str:
    """The release as a requirements file with hashes: what uv is told to install, and nothing else."""
    return "".join(f"{package['name']}=={package['new']} --hash=sha256:{package['sha256']}\n" for package in plan.locked)


def write_manifest(record: ServiceRecord, release: Path, *, channel: Mapping[str, Any] | None = None, plan: Plan | None = None,
                   verified: bool = False, note: str = "") -> dict[str, Any]:
    """Writes `roundhouse-release.json`: what a release was made from. Without a plan (an environment that was there before us) it
    tells what is installed now."""
    installed = packages.read(release)
    wheels = {package["name"]: package for package in plan.locked} if plan else {}
    manifest = {
        "release": release.name, "service": record.name, "built_at": time.time(), "verified": verified, "note": note,
        "plan": plan.hash if plan else None, "channel": dict(channel) if channel else None, "practice": record.practice,
        "python": {"path": os.path.realpath(release / "bin" / "python"), "version": installed.python_version},
        "version": installed.version(planning.MAIN), "size_bytes": size_on_disk(release),
        "packages": [{"name": name, "version": version, "file": wheels.get(name, {}).get("file"), "sha256": wheels.get(name, {}).get("sha256")}
                     for name, version in installed.versions().items()],
    }
    state.write_file(release / MANIFEST, json.dumps(manifest, indent=1) + "\n", mode=0o644)
    return manifest


def manifest(release: Path) -> dict[str, Any] | None:
    """The manifest, or None for an environment that has none. Raises OpsError if it cannot be read."""
    return state.read_json(release / MANIFEST)


@contextmanager
def _progress(context: Context, release: Path, channel: Channel, plan: Plan) -> Iterator[None]:
    """While uv copies (it says nothing then), counts what has arrived once a second and reports it against what is announced."""
    local = [Path(channel.wheelhouse, package["file"]) for package in plan.locked] if channel.kind == "wheelhouse" else []
    known = [wheelhouse.contents(path) for path in local if path.is_file()]
    files = sum(wheel.files for wheel in known) if local and len(known) == len(local) else None
    size = plan.expected_bytes()
    total_bytes = sum(wheel.size_bytes for wheel in known) if files is not None else size * planning.UNPACKED_FACTOR if size is not None else None
    library = packages.site_packages(release)[0]
    ended = threading.Event()

    def watch() -> None:
        last = (0, 0)
        while not ended.wait(PROGRESS_S):
            now = count(library)
            if now != last and now[0]:
                report(now)
                last = now

    def report(now: tuple[int, int]) -> None:
        done, text = now[0], f"{now[0]:,} files, {now[1] / 1e6:,.0f} MB"
        if files is not None:
            context.progress(min(done, files), files, "files", text, estimate=True)
        else:
            context.progress(now[1] if total_bytes is None else min(now[1], total_bytes), total_bytes, "bytes", text, estimate=True)

    thread = threading.Thread(target=watch, name="build-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    done = count(library)
    context.progress(done[0], done[0], "files", f"{done[0]:,} files, {done[1] / 1e6:,.0f} MB", estimate=False)


def count(folder: Path) -> tuple[int, int]:
    """Number and size of the files below `folder`; what comes or goes meanwhile is counted or not."""
    files = size = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        files += 1
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:  # gone in the meantime
            continue
    return files, size


def size_on_disk(release: Path) -> int:
    """Bytes that the release's files take (blocks, not lengths; links not followed)."""
    total = 0
    for folder, _, names in os.walk(release):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


# Verifying


def verify(context: Context, record: ServiceRecord, release: Path, plan: Plan) -> VerifyResult:
    """Holds a built release against its plan: versions, coupling, imports, `vllm --version`, every file against RECORD.

    Raises OpsError with all that differs. A plan with coupling off may have the mismatch that it announced. What passes is marked
    verified; only that can be switched to.
    """
    began = time.monotonic()
    release = inside(record, release.name)
    if (release / MARKER).exists():
        raise OpsError(f"The release `{release.name}` was never finished", hint="Run the job again: it builds it anew")
    installed = packages.read(release)
    wrong = _wrong_versions(installed, plan)
    warnings: list[str] = []
    mismatches = coupling_rules.findings(installed, env=record.env)
    for found in mismatches:
        (wrong if plan.coupling and found.level == "stop" else warnings).append(f"{found.title}. {found.why}")
    context.log("\n".join(f"{name} {version}" for name, version in interesting(installed).items()))
    expected_to_fail = {"flashinfer"} if not plan.coupling and mismatches else set()
    imported = []
    for distribution, module in IMPORTS.items():
        if plan.planned(distribution) is None:
            continue
        failure = _import_failure(context, record, release, module)
        if failure is None:
            imported.append(module)
        else:
            (warnings if module in expected_to_fail else wrong).append(failure)
    told = _told_version(context, record, release, plan, wrong)
    wrong += _not_as_in_wheels(installed, plan, manifest(release) or {})
    report = integrity.check(release, progress=lambda done, total: context.progress(done, total, "files"))
    wrong += _wrong_files(report)
    for text in warnings:
        context.finding("verify", "warning", text.splitlines()[0], why="\n".join(text.splitlines()[1:]))
    if wrong:
        raise OpsError(f"The release `{release.name}` is not what was planned: {wrong[0].splitlines()[0]}", why="\n".join(wrong),
                       hint="The live release was not touched", kind="not_verified", release=release.name)
    _mark_verified(release)
    return VerifyResult(release.name, report.checked_files, report.checked_bytes, report.distributions, interesting(installed), imported, told,
                        time.monotonic() - began, warnings)


def interesting(installed: packages.EnvironmentPackages) -> dict[str, str]:
    """Versions that people ask for first."""
    names = [planning.MAIN, *coupling_rules.coupled_names(), "torch", "transformers"]
    return {name: version for name in names if (version := installed.version(name)) is not None}


def _wrong_versions(installed: packages.EnvironmentPackages, plan: Plan) -> list[str]:
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


def _not_as_in_wheels(installed: packages.EnvironmentPackages, plan: Plan, known: Mapping[str, Any]) -> list[str]:
    """Holds each installed RECORD against the one in the wheel, where the wheel is at hand.

    A file that was edited in uv's cache by hand comes with a RECORD that may fit it; the wheel with the planned hash cannot lie.
    """
    folder = str((known.get("channel") or {}).get("wheelhouse") or "")
    wrong = []
    for package in plan.locked if folder else []:
        wheel = Path(folder, package["file"])
        found = installed.distributions.get(package["name"])
        if found is None or not wheel.is_file() or wheelhouse.sha256(wheel) != package["sha256"]:
            continue
        there = dict(integrity.rows(found))
        differ = sorted(path for path, digest in wheelhouse.record_rows(wheel).items() if there.get(path) != digest)
        if differ:
            wrong.append(f"`{package['name']}` is not as in its wheel: `{differ[0]}`" + (f" and {len(differ) - 1} more" if len(differ) > 1 else "")
                         + ". uv's cache may have been edited: clean it for this package, then run the job again")
    return wrong


def _import_failure(context: Context, record: ServiceRecord, release: Path, module: str) -> str | None:
    """Imports a module in the release's own interpreter, isolated from user site, PYTHON* and the working folder; None: it works."""
    try:
        commands.run([release / "bin" / "python", "-I", "-c", f"import {module}"], context=context, env=_environment(record, release), cwd=release,
                     timeout_s=IMPORT_S)
    except CommandFailed as error:
        lines = [line for line in str(error.facts.get("tail", "")).splitlines() if line.strip()]
        return f"`import {module}` fails: {lines[-1] if lines else error.what}\n" + "\n".join(lines[-12:])
    except Timeout as error:
        if context.deadline is not None and time.monotonic() > context.deadline:
            raise
        return f"`import {module}` did not end within {IMPORT_S} s: {error.what}"
    return None


def _told_version(context: Context, record: ServiceRecord, release: Path, plan: Plan, wrong: list[str]) -> str | None:
    """What `vllm --version` says; a version that is not the plan's goes to `wrong`."""
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
        wrong.append(f"`vllm --version` fails: {error.what}\n{error.facts.get('tail', '')}")
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


def _mark_verified(release: Path) -> None:
    known = manifest(release) or {"release": release.name}
    state.write_file(release / MANIFEST, json.dumps({**known, "verified": True, "verified_at": time.time()}, indent=1) + "\n", mode=0o644)


# Which one is in use


def current(record: ServiceRecord) -> Path | None:
    """The release in use, or None."""
    return record.release_in_use()


def switch(record: ServiceRecord, release: Path) -> None:
    """Points `current` at a verified release, in one step: at any moment it names one whole release or the other.

    Raises BadInput for a release that is not below `releases`, was never finished or never verified. The last good release and the
    one in use before may always be gone back to.
    """
    release = _own(record, release)
    if not release.is_dir() or (release / MARKER).exists() or not (release / "bin" / "python").exists():
        raise BadInput(f"The release `{release.name}` is not whole", hint="Choose another release, or build it again")
    known = manifest(release)
    remembered = state.read(record)
    way_back = release.name in (remembered.get("last_good"), remembered.get("previous"))
    if not (known and known.get("verified")) and not way_back:
        raise BadInput(f"The release `{release.name}` was never verified", hint="Verify it first: only what passed can be used")
    before = current(record)
    if before is not None and before != release:
        try:
            state.change(record, lambda remembered: remembered.update(previous=before.name))
        except OSError:
            if not way_back:  # a full disk does not bar the way back, which needs no other one behind it
                raise
    half = record.folder / f".current.{secrets.token_hex(6)}"
    try:
        half.symlink_to(Path("releases", release.name))
        half.replace(record.current)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise OpsError(f"`{record.current}` cannot be switched", why=error.strerror or str(error),
                       hint="If it is a folder, it was not made by Roundhouse: move it away by hand") from error
    sync_folder(record.folder)


def listing(record: ServiceRecord) -> list[Release]:
    """All releases of the service, the newest first (by name, which begins with the time)."""
    if not record.releases.is_dir():
        return []
    live, good = current(record), last_good(record)
    found = []
    for folder in sorted(record.releases.iterdir(), key=lambda folder: folder.name, reverse=True):
        if not folder.is_dir() or folder.is_symlink() or folder.name.startswith("."):
            continue
        try:
            known = manifest(folder) or {}
        except OpsError:  # a torn or foreign manifest: the folder is still listed, as not verified
            known = {}
        found.append(Release(
            name=folder.name, path=folder, version=known.get("version"), built_at=known.get("built_at"), size_bytes=known.get("size_bytes"),
            verified=bool(known.get("verified")), is_current=live is not None and folder.name == live.name, is_last_good=folder.name == good,
            unfinished=(folder / MARKER).exists()))
    return found


def remove(record: ServiceRecord, release: Path) -> None:
    """Removes a release. Raises BadInput for the one in use, the last good one, and whatever is not below `releases`."""
    release = _own(record, release)
    live = current(record)
    if live is not None and live.name == release.name:
        raise BadInput(f"The release `{release.name}` is in use", hint="Switch to another one first")
    if last_good(record) == release.name:
        raise BadInput(f"The release `{release.name}` is the last good one", why="It is the way back if the next one fails")
    if not release.is_dir() or release.is_symlink():
        raise BadInput(f"There is no release `{release.name}`")
    _take_away(release)


def remove_unfinished(record: ServiceRecord, *, keep: str | None = None) -> list[str]:
    """Removes what was never finished or never passed its verification, and what an interrupted removal left; gives their names.

    The release in use, the last good one, `keep`, and folders that are not ours (no marker, no manifest) stay.
    """
    removed: list[str] = []
    if not record.releases.is_dir():
        return removed
    for folder in list(record.releases.iterdir()):
        if folder.name.startswith(".removing-"):
            _delete(folder)
    live = current(record)
    for release in listing(record):
        if release.is_current or release.is_last_good or release.name == keep or (live is not None and release.path == live):
            continue
        ours = release.unfinished or (not release.verified and (release.path / MANIFEST).exists()) or not any(release.path.iterdir())
        if ours:
            _take_away(release.path)
            removed.append(release.name)
    return removed


def mark_good(record: ServiceRecord, release: Path | str) -> None:
    """Remembers the release that last passed everything: what a failed redeploy goes back to."""
    name = release if isinstance(release, str) else release.name
    state.set_last_good(record, inside(record, name).name)


def last_good(record: ServiceRecord) -> str | None:
    """Its name, or None before the first one."""
    return state.last_good(record)


def inside(record: ServiceRecord, name: str) -> Path:
    """The folder of the release named `name`. Raises BadInput for a name that is none."""
    if not _NAME.match(name) or name in (".", ".."):
        raise BadInput(f"`{name[:80]}` is no name of a release")
    return record.releases / name


def _own(record: ServiceRecord, release: Path) -> Path:
    """The folder of a release that was given by its path. Raises BadInput if it lies elsewhere."""
    if release.parent not in (record.releases, Path(os.path.realpath(record.releases))):
        raise BadInput(f"`{release}` is no release of `{record.name}`", why=f"Its releases lie in `{record.releases}`")
    return inside(record, release.name)


def _take_away(release: Path) -> None:
    """Renames first, so that nobody sees half a release under its name, then deletes."""
    if not os.path.lexists(release):
        return
    half = release.with_name(f".removing-{release.name}-{secrets.token_hex(4)}")
    release.rename(half)
    _delete(half)


def _delete(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise OpsError(f"`{folder}` cannot be removed", why=error.strerror or str(error)) from error
