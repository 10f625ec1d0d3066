"""Releases of a service: where they lie, what they were made from, which one is in use, and the way back.

A release is an environment at its final place (scripts and pyvenv.cfg hold their own path, so it cannot be moved), named
`<YYYYmmdd-HHMMSS>-<version>` (UTC). `releases/<name>` is one of

    a folder        built by us ("built"). `roundhouse-release.json` in it says what from, and whether it passed its verification.
                    While it is built it has a file `roundhouse-building`; what still has it was never finished
    a link          to the environment that adoption found ("adopted"), or that a redeploy in place has changed since ("in-place"), or to
                    the copy that was made of it beforehand ("backup"). Nothing of ours is written into such a folder: what is known
                    of it lies beside the link, in `.<name>.json`

Building is in building.py, verifying in verifying.py, changing an environment where it lies in in_place.py, limits in pruning.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.artifacts.found import shown
from ops.artifacts.walk import mounts
from ops.environments import coupling as coupling_rules
from ops.environments import faulty_wheels, packages
from ops.environments import plan as planning
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.journal import sync_folder
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state

MARKER = "roundhouse-building"
MANIFEST = "roundhouse-release.json"
LOCK_FILE = "roundhouse-lock.txt"
ADOPTED = "adopted"  # the name of the release that is the environment which adoption found
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What a verification looked at; it raises if anything is wrong, so this is the good news. `warnings` are for the step's log.

    `leaks`: a sentence for each edit that had come back through uv's cache, and was cleaned away.
    """

    release: str
    checked_files: int
    checked_bytes: int
    distributions: int
    versions: dict[str, str]  # of the packages of interest
    imported: list[str]
    vllm_version: str | None
    took_s: float
    warnings: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"release": self.release, "checked_files": self.checked_files, "checked_bytes": self.checked_bytes,
                "distributions": self.distributions, "versions": self.versions, "imported": self.imported, "vllm_version": self.vllm_version,
                "took_s": self.took_s, "warnings": self.warnings, "leaks": self.leaks}


@dataclass(frozen=True, slots=True)
class Release:
    """A kept release as lists show it. `size_bytes` and `built_at` are None where nobody wrote them down.

    `kind`: "built", "adopted", "in-place" or "backup" (the module's words). `target`: the folder that a link points at, else None.
    """

    name: str
    path: Path
    version: str | None
    built_at: float | None
    size_bytes: int | None
    verified: bool
    is_current: bool
    is_last_good: bool
    unfinished: bool
    kind: str = "built"
    target: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "path": str(self.path), "version": self.version, "built_at": self.built_at, "size_bytes": self.size_bytes,
                "verified": self.verified, "is_current": self.is_current, "is_last_good": self.is_last_good, "unfinished": self.unfinished,
                "kind": self.kind, "target": self.target}


def build(context: Context, record: ServiceRecord, channel: Channel, plan: planning.Plan) -> Path:
    """Builds exactly the plan's release beside the live one and gives its folder (building.py)."""
    from ops.environments import building

    return building.build(context, record, channel, plan)


def verify(context: Context, record: ServiceRecord, release: Path, plan: planning.Plan) -> VerifyResult:
    """Holds a built release against its plan and every file against RECORD; what passes is marked verified (verifying.py)."""
    from ops.environments import verifying

    return verifying.verify(context, record, release, plan)


# What a release was made from


def lock_text(plan: planning.Plan) -> str:
    """The release as a requirements file with hashes: what uv is told to install, and nothing else.

    A package that a restoring plan copies, and of whose wheel nobody knows the hash any more, stands there without one.
    """
    return "".join(lock_line(package) for package in plan.locked)


def lock_line(package: Mapping[str, Any]) -> str:
    """One line of it."""
    known = f" --hash=sha256:{package['sha256']}" if package.get("sha256") else ""
    return f"{package['name']}=={package['new']}{known}\n"


def write_manifest(record: ServiceRecord, release: Path, *, channel: Mapping[str, Any] | None = None, plan: planning.Plan | None = None,
                   verified: bool = False, note: str = "", kind: str = "built", size_bytes: int | None = None) -> dict[str, Any]:
    """Writes what a release was made from to `manifest_path`. Without a plan (an environment that was there before us) it tells what is
    installed now. `size_bytes`: on disk, if somebody has just counted it."""
    installed = packages.read(release)
    wheels = {package["name"]: package for package in plan.locked} if plan else {}
    told = {
        "release": release.name, "service": record.name, "built_at": time.time(), "verified": verified, "note": note, "kind": kind,
        "mode": plan.mode if plan else None,
        "plan": plan.hash if plan else None, "channel": dict(channel) if channel else None, "practice": record.practice,
        "python": {"path": os.path.realpath(release / "bin" / "python"), "version": installed.python_version},
        "version": installed.version(planning.MAIN), "size_bytes": size_on_disk(release) if size_bytes is None else size_bytes,
        "packages": [{"name": name, "version": version, "file": wheels.get(name, {}).get("file"), "sha256": wheels.get(name, {}).get("sha256")}
                     for name, version in installed.versions().items()],
        # what was learned of wheels stays true in the next release; where a file is another one by then it does not count
        faulty_wheels.KEY: faulty_wheels.learned(live) if (live := current(record)) is not None else [],
    }
    state.write_file(manifest_path(release), json.dumps(told, indent=1) + "\n", mode=0o644)
    return told


def manifest_path(release: Path) -> Path:
    """Where the manifest of a release lies: in its folder, or beside a link, whose folder is not ours to write into."""
    return release.with_name(f".{release.name}.json") if release.is_symlink() else release / MANIFEST


def manifest(release: Path) -> dict[str, Any] | None:
    """The manifest, or None for an environment that has none. Raises OpsError if it cannot be read."""
    return state.read_json(manifest_path(release))


def note_faulty(release: Path, rows: list[list[str]]) -> None:
    """Notes files that are not as their RECORD says, but as their wheels have them (faulty_wheels.py)."""
    known = manifest(release) or {"release": release.name}
    told = {faulty_wheels.KEY: sorted({tuple(row) for row in [*faulty_wheels.learned(release), *rows]})}
    state.write_file(manifest_path(release), json.dumps({**known, **told}, indent=1) + "\n", mode=0o644)


def mark_verified(release: Path) -> None:
    """Notes that a release passed its verification: from now on it can be switched to."""
    known = manifest(release) or {"release": release.name}
    state.write_file(manifest_path(release), json.dumps({**known, "verified": True, "verified_at": time.time()}, indent=1) + "\n", mode=0o644)


def interesting(installed: packages.EnvironmentPackages) -> dict[str, str]:
    """Versions that people ask for first."""
    names = [planning.MAIN, *coupling_rules.coupled_names(), "torch", "transformers"]
    return {name: version for name in names if (version := installed.version(name)) is not None}


def size_on_disk(release: Path) -> int:
    """Bytes that the release's files take (blocks, not lengths; links in it not followed)."""
    return count(release)[2]


def count(folder: Path) -> tuple[int, int, int]:
    """Number of the files below `folder`, their length, and the bytes that they take on disk; what comes or goes meanwhile is counted or not."""
    files = size = blocks = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        found = entry.stat(follow_symlinks=False)
                        files += 1
                        size += found.st_size
                        blocks += found.st_blocks
        except OSError:  # gone in the meantime
            continue
    return files, size, blocks * 512


# The environment that was there before us


def environment(record: ServiceRecord) -> Path | None:
    """The real folder of the environment that adoption found, links followed; None where there was none."""
    return Path(os.path.realpath(record.environment)) if record.environment else None


def adopt(record: ServiceRecord) -> Path:
    """Makes the environment that adoption found a release: `releases/adopted` points at it, and `current` at that if nothing is in use yet.

    Nothing in the environment is written, and nothing that is there already is changed, so it may be called again.
    Raises BadInput if the record names no environment, or what it names is none.
    """
    target = environment(record)
    if target is None:
        raise BadInput(f"Service `{record.name}` names no environment", hint="Set `environment` in its record: the folder that holds bin/python")
    packages.site_packages(target)  # BadInput if it is none
    release = record.releases / ADOPTED
    try:
        record.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not os.path.lexists(release):
            point(release, target)
        if manifest(release) is None:
            write_manifest(record, release, kind=ADOPTED, note="The environment that was here before Roundhouse")
        if not os.path.lexists(record.current):
            point(record.current, Path("releases", ADOPTED))
    except OSError as error:
        raise OpsError(f"The environment `{target}` cannot be made a release of `{record.name}`", why=error.strerror or str(error)) from error
    return release


def in_environment(record: ServiceRecord) -> str | None:
    """The name of the release that the adopted environment holds at the moment; None if no release is there."""
    target = environment(record)
    if target is None or not record.releases.is_dir():
        return None
    live = record.release_in_use()
    names = sorted((link.name for link in record.releases.iterdir() if link.is_symlink() and Path(os.path.realpath(link)) == target
                    and not link.name.startswith(".")), reverse=True)
    if live is not None and live.name in names:
        return live.name
    return names[0] if names else None


def is_backup(record: ServiceRecord, folder: Path) -> bool:
    """Whether `folder` is a copy of the adopted environment that we made beside it: what may be removed with its release."""
    target = environment(record)
    return target is not None and folder.parent == target.parent and folder.name.startswith(f"{target.name}.roundhouse-")


def kind_of(record: ServiceRecord, release: Path) -> str:
    """"built", "adopted", "in-place" or "backup"."""
    if not release.is_symlink():
        return "built"
    if is_backup(record, Path(os.path.realpath(release))):
        return "backup"
    try:
        return str((manifest(release) or {}).get("kind") or ADOPTED)
    except OpsError:
        return ADOPTED


def point(link: Path, target: Path) -> None:
    """Makes `link` point at `target`, in one step: at any moment it points at the old or the new one. Raises OSError."""
    half = link.with_name(f".{link.name}.{secrets.token_hex(6)}")
    try:
        half.symlink_to(target)
        half.replace(link)
    except BaseException:
        half.unlink(missing_ok=True)
        raise
    sync_folder(link.parent)


# Which one is in use


def current(record: ServiceRecord) -> Path | None:
    """The release in use, or None."""
    return record.release_in_use()


def check_usable(record: ServiceRecord, release: Path) -> Path:
    """The release's path below `releases`, if it may be switched to. Raises BadInput for one that is not below `releases`, was never finished,
    or never verified. The last good release, the one in use before, and an environment that was there before us may always be gone back to."""
    release = own(record, release)
    if not release.is_dir() or is_unfinished(release) or not (release / "bin" / "python").exists():
        raise BadInput(f"The release `{release.name}` is not whole", hint="Choose another release, or build it again")
    if not _is_way_back(record, release) and not (manifest(release) or {}).get("verified"):
        raise BadInput(f"The release `{release.name}` was never verified", hint="Verify it first: only what passed can be used")
    return release


def _is_way_back(record: ServiceRecord, release: Path) -> bool:
    remembered = state.read(record)
    return release.name in (remembered.get("last_good"), remembered.get("previous"), ADOPTED)


def switch(record: ServiceRecord, release: Path) -> None:
    """Points `current` at a usable release (`check_usable`), in one step: at any moment it names one whole release or the other."""
    release = check_usable(record, release)
    before = current(record)
    if before is not None and before != release:
        try:
            state.change(record, lambda remembered: remembered.update(previous=before.name))
        except OSError:
            if not _is_way_back(record, release):  # a full disk does not bar the way back, which needs no other one behind it
                raise
    try:
        point(record.current, Path("releases", release.name))
    except OSError as error:
        raise OpsError(f"`{record.current}` cannot be switched", why=error.strerror or str(error),
                       hint="If it is a folder, it was not made by Roundhouse: move it away by hand") from error


def listing(record: ServiceRecord) -> list[Release]:
    """All releases of the service, the newest first (by name, which begins with the time; an adopted environment is the oldest)."""
    if not record.releases.is_dir():
        return []
    live, good = current(record), last_good(record)
    found = []
    for folder in sorted(record.releases.iterdir(), key=lambda folder: (folder.name != ADOPTED, folder.name), reverse=True):
        if folder.name.startswith(".") or not (folder.is_symlink() or folder.is_dir()):
            continue
        try:
            known = manifest(folder) or {}
        except OpsError:  # a torn or foreign manifest: the folder is still listed, as not verified
            known = {}
        found.append(Release(
            name=folder.name, path=folder, version=known.get("version"), built_at=known.get("built_at"), size_bytes=known.get("size_bytes"),
            verified=bool(known.get("verified")), is_current=live is not None and folder.name == live.name, is_last_good=folder.name == good,
            unfinished=is_unfinished(folder), kind=kind_of(record, folder),
            target=os.path.realpath(folder) if folder.is_symlink() else None))
    return found


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


def own(record: ServiceRecord, release: Path) -> Path:
    """The folder of a release that was given by its path. Raises BadInput if it lies elsewhere."""
    if release.parent not in (record.releases, Path(os.path.realpath(record.releases))):
        raise BadInput(f"`{release}` is no release of `{record.name}`", why=f"Its releases lie in `{record.releases}`")
    return inside(record, release.name)


# What goes


def is_unfinished(release: Path) -> bool:
    """Whether its building never came to an end, or goes on right now."""
    return not release.is_symlink() and (release / MARKER).exists()


def is_being_built(release: Path) -> bool:
    """Whether somebody builds it right now: its marker is locked (by the builder, for as long as that lives)."""
    try:
        descriptor = os.open(release / MARKER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def remove(record: ServiceRecord, release: Path) -> None:
    """Removes a release; of an adopted environment only the link, of a backup the copy too.

    Raises BadInput for the one in use, the last good one, one that is being built, and whatever is not below `releases`.
    """
    release = check_removable(record, release)
    if release.is_symlink():
        _remove_link(record, release)
    else:
        take_away(release)


def check_removable(record: ServiceRecord, release: Path) -> Path:
    """The release's own folder. Raises BadInput as `remove` does; nothing is removed."""
    release = own(record, release)
    live = current(record)
    if live is not None and live.name == release.name:
        raise BadInput(f"The release `{release.name}` is in use", hint="Switch to another one first")
    if last_good(record) == release.name:
        raise BadInput(f"The release `{release.name}` is the last good one", why="It is the way back if the next one fails")
    if is_being_built(release):
        raise BadInput(f"The release `{release.name}` is being built", hint="Wait for that job to end, or cancel it")
    if not release.is_symlink() and not release.is_dir():
        raise BadInput(f"There is no release `{release.name}`")
    return release


def _remove_link(record: ServiceRecord, release: Path) -> None:
    target = Path(os.path.realpath(release))
    # The copy loses its name first: cut off in between, finish_removals knows it, where a copy that no link names would stay for ever.
    half = _set_aside(target) if is_backup(record, target) and points_at(record, target) == [release.name] else None
    _unlink(release)
    if half is not None:
        _delete(half)


def _unlink(release: Path) -> None:
    beside = manifest_path(release)
    release.unlink()
    beside.unlink(missing_ok=True)


def points_at(record: ServiceRecord, folder: Path) -> list[str]:
    """Names of the releases that are links to `folder`."""
    if not record.releases.is_dir():
        return []
    return sorted(link.name for link in record.releases.iterdir()
                  if link.is_symlink() and not link.name.startswith(".") and Path(os.path.realpath(link)) == folder)


def remove_unfinished(record: ServiceRecord, *, keep: str | None = None) -> list[str]:
    """Removes what was never finished or never passed its verification, and what an interrupted removal left; gives their names.

    The release in use, the last good one, `keep`, what is being built right now, and folders that are not ours (no marker, no manifest) stay.
    """
    removed: list[str] = []
    if not record.releases.is_dir():
        return removed
    finish_removals(record)
    live = current(record)
    for release in listing(record):
        if release.kind != "built" or release.is_current or release.is_last_good or release.name == keep or is_being_built(release.path):
            continue
        if live is not None and release.path == live:
            continue
        ours = release.unfinished or (not release.verified and (release.path / MANIFEST).exists()) or not any(release.path.iterdir())
        if ours:
            take_away(release.path)
            removed.append(release.name)
    return removed


def finish_removals(record: ServiceRecord) -> None:
    """Deletes what an interrupted removal left under another name."""
    places = [record.releases]
    if (target := environment(record)) is not None:
        places.append(target.parent)
    for place in places:
        for folder in place.glob(".removing-*") if place.is_dir() else ():
            if place == record.releases:
                _delete(folder)
            elif target is not None and folder.name.startswith(f".removing-{target.name}.roundhouse-"):
                copy = place / folder.name.removeprefix(".removing-").rpartition("-")[0]
                for name in points_at(record, copy) if not os.path.lexists(copy) else ():
                    _unlink(record.releases / name)
                _delete(folder)


def take_away(folder: Path) -> None:
    """Renames first, so that nobody sees half a release under its name, then deletes. Raises OpsError."""
    if (half := _set_aside(folder)) is not None:
        _delete(half)


def _set_aside(folder: Path) -> Path | None:
    """Gives the folder a name under which it is on its way out; None if it is not there. Raises OpsError where something is mounted in it."""
    if not os.path.lexists(folder):
        return None
    _check_nothing_mounted(folder)
    half = folder.with_name(f".removing-{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(half)
    except OSError as error:
        raise OpsError(f"`{folder}` cannot be removed", why=error.strerror or str(error)) from error
    return half


def _check_nothing_mounted(folder: Path) -> None:
    """What is mounted (bound) in a folder is not part of it, and would be deleted with it. Raises OpsError if something is."""
    try:
        inside = f"{os.path.realpath(folder.parent)}/{folder.name}"
        mounted = next((f"{holder}/{next(iter(names))}" for holder, names in mounts().items()
                        if holder == inside or holder.startswith(f"{inside}/")), None)
    except OSError as error:
        raise OpsError(f"`{folder}` is not removed: whether something is mounted in it is not known", why=error.strerror or str(error)) from error
    if mounted is not None:
        raise OpsError(f"`{folder}` is not removed: something is mounted in it", why=shown(mounted), hint="Unmount that first")


def _delete(folder: Path) -> None:
    _check_nothing_mounted(folder)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise OpsError(f"`{folder}` cannot be removed", why=error.strerror or str(error)) from error
