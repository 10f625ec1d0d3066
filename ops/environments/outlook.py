"""What a person should know before saying yes to a plan: edits that go, guards, disk, download, the other way, the way back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.environments import channels, guards, integrity, packages, wheelhouse
from ops.environments import coupling as coupling_rules
from ops.environments.resolving import Asks, Drawn, PlannedPackage, finding, known_wheels, lock_each, same_wheel
from ops.jobs.errors import BadInput, OpsError
from ops.records import Channel, ServiceRecord

UNPACKED_FACTOR = 3  # installed size of a wheel whose contents are not known: vLLM 2.6, torch 2.5, flashinfer-cubin 4.3 times the download
SPARE_BYTES = 256 * 1024 * 1024  # room left beside a build: bytecode, logs


def coupled(new: dict[str, str], coupling: bool, asks: Asks, findings: list[dict[str, Any]]) -> None:
    mismatches = coupling_rules.findings(new, available=channels.availability(asks.has), env=asks.record.env,
                                         indexes=[*asks.channel.extra_index_urls, asks.channel.index_url])
    for found in mismatches:
        if not coupling:
            fatal = found.level == "stop"
            findings.append(finding(
                "warning", found.title,
                why=f"Coupling is off. {found.why}" + (". The new release will crash at its start, and the job will go back to the last good one"
                                                       if fatal else ""),
                fix="Make the plan with coupled packages completed"))
        else:
            findings.append(finding(found.level, found.title, why=found.why, fix=found.fix))


def removed(rows: list[PlannedPackage], installed: packages.EnvironmentPackages | None, findings: list[dict[str, Any]]) -> None:
    removed = {row.name for row in rows if row.change == "removed"}
    by_hand = sorted(name for name in removed if installed and installed.distributions[name].requested and name not in {"pip", "setuptools", "wheel"})
    if by_hand:
        findings.append(finding("warning", f"Installed by hand, and not in the new release: {', '.join(f'`{name}`' for name in by_hand[:8])}"
                                 + (f" and {len(by_hand) - 8} more" if len(by_hand) > 8 else ""),
                                 why="Nothing in the plan needs them", fix="Add them to the channel's requirements if the service uses them"))


def recipe(channel: Channel, record: ServiceRecord, python_version: str, findings: list[dict[str, Any]]) -> None:
    """A recipe's packages are what the channel installs; what else it says is held against the service and left to a person. Raises Refused for a
    recipe of another Python or machine."""
    from ops.environments import recipe as recipes

    if channel.kind != "recipe" or "schema" not in channel.recipe:  # packages that an admin wrote down by hand: no more is known of them
        return
    checked = recipes.read(channel.recipe)
    recipes.require_fit(checked, record, python_version=python_version)
    if told := recipes.held_against(checked, record):
        more = f"; and {len(told) - 8} more" if len(told) > 8 else ""
        findings.append(finding("note", f"The recipe `{checked['label']}` was made with other settings", why="; ".join(told[:8]) + more,
                                fix="A channel brings packages only: change the service where it should be alike"))


def patched(record: ServiceRecord, live: Path | None, report: integrity.IntegrityReport | None, findings: list[dict[str, Any]],
            mode: str) -> list[dict[str, Any]]:
    from ops.environments import patches

    if live is None or report is None:
        return []
    listed = report.findings[:integrity.LISTED * 3]
    try:
        shown = patches.shown_differences(live, listed, record=record)
    except OpsError as error:
        shown = {}
        findings.append(finding("note", "What was edited in the patched files cannot be shown", why=error.what))
    patched = [{**found.as_dict(), **shown.get(found.path, {})} for found in listed]
    if patched:
        owners = sorted({found.package for found in report.findings if found.package})
        files = "1 file differs" if len(report.findings) == 1 else f"{len(report.findings):,} files differ"
        findings.append(finding(
            "warning", f"{files} from what was installed" + (f", in {', '.join(f'`{name}`' for name in owners[:4])}" if owners else ""),
            why="The new release is built from pristine wheels: these edits will not be in it" if mode == "full"
            else "Their packages are installed anew from the same wheels: these edits will not be in the new release",
            fix="They are saved to the patch shelf before the switch") | {"about": "patched_files"})
    for problem in report.problems[:5]:
        findings.append(finding("note", problem))
    return patched


def guarded(results: list[guards.GuardResult], findings: list[dict[str, Any]]) -> None:
    for result in results:
        if not result.holds:
            findings.append(finding("stop", f"A guard does not hold: {result.explains}", fix=result.fix,
                                     why="The service would start with another model configuration"))
    if results and all(result.holds for result in results):
        findings.append(finding("note", {1: "The guard holds", 2: "Both guards hold"}.get(len(results), f"All {len(results)} guards hold")))


def at_hand(asks: Asks, drawn: Drawn, edited: Sequence[str]) -> list[PlannedPackage]:
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


def download(rows: Sequence[PlannedPackage]) -> int | None:
    """Bytes to fetch for these packages; None: the size of one is not known."""
    sizes = [row.size_bytes for row in rows if row.new is not None and not row.at_hand]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def ways(asks: Asks, mode: str, rows: list[PlannedPackage], restore: list[str], edited: list[str],
         report: integrity.IntegrityReport | None) -> list[dict[str, Any]]:
    """For a patched release both ways with what each costs; empty if nothing was edited. `packages` and `files` are how many are written anew."""
    if report is None or not report.findings:
        return []
    put_right = len(report.changed) + len(report.missing)
    planned = [row for row in rows if row.new is not None]
    full = {"mode": "full", "possible": True, "download_bytes": download(planned) if mode == "full" else None,
            "packages": len(planned), "files": report.checked_files, "why": "A whole new release from pristine wheels, in the versions of this plan"
            if mode == "full" else "A whole new release from pristine wheels; a full plan tells what it costs"}
    try:
        if mode == "full":
            known, installed = known_wheels(asks.record, asks.installed.path if asks.installed else Path()), asks.installed
            pins = [f"{name}=={installed.version(name)}" for name in edited] if installed else []
            wheels = {package.name: same_wheel(asks, package, known.get(package.name, {})) for package in lock_each(asks, pins)}
            there = [name for name, wheel in wheels.items() if asks.channel.wheelhouse and Path(asks.channel.wheelhouse, wheel.file).is_file()]
            sizes = [wheel.size_bytes for name, wheel in wheels.items() if name not in there]
            cost = None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
        else:
            cost = download([row for row in rows if row.name in restore])
        same = {"mode": "restore", "possible": True, "download_bytes": cost, "packages": len(edited), "files": put_right,
                "why": "The same versions: untouched packages are copied, the edited ones come anew from the same wheels"}
    except (BadInput, OpsError) as error:
        same = {"mode": "restore", "possible": False, "download_bytes": None, "packages": len(edited), "files": put_right, "why": str(error.what)}
    return [same, full]


def _unpacked(asks: Asks, row: PlannedPackage) -> tuple[int | None, bool]:
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


def disk(asks: Asks, rows: list[PlannedPackage], restore: Sequence[str] | None, findings: list[dict[str, Any]]) -> dict[str, Any]:
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
        in_cache = row.at_hand if not asks.channel.wheelhouse else asks.uv.at_hand(row.name, row.file or "") is not None
        if not in_cache:
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
        findings.append(finding("note", "How much disk the release needs is not known", why="The channel does not tell the size of every wheel"))
    elif together + SPARE_BYTES > free:
        findings.append(finding("stop", f"There is not enough disk: {_size(together)} needed, {_size(free)} free below `{place}`",
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


def rollback(record: ServiceRecord, live: Path | None, release: str, disk: dict[str, Any],
                      findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether there is a way back. Beside the live release there always is; in place the folder has to be copied beforehand."""
    if not record.in_place:
        return {"possible": True, "backup": None, "backup_bytes": None,
                "why": "The release in use stays as it is" if live else "There is no release yet: a job that fails takes away what it built"}
    environment = Path(os.path.realpath(record.environment))
    backup = environment.parent / f"{environment.name}.roundhouse-{release}"
    told: dict[str, Any] = {"possible": False, "why": "", "backup": str(backup), "backup_bytes": None}
    if not os.access(environment, os.W_OK | os.X_OK):
        findings.append(finding("stop", f"The environment `{environment}` cannot be changed", why="It belongs to another user, or is read-only",
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
        findings.append(finding("note", "The environment is changed in place: the service is down while it is installed", why=told["why"])
                        | {"about": "rollback"})
    else:
        told["backup"] = None
        findings.append(finding("warning", "No rollback: the environment is changed in place, and cannot be copied beforehand", why=told["why"],
                                 fix="Free room or give the permission, or confirm that there is no way back") | {"about": "rollback"})
    return told


def _shares_blocks(environment: Path) -> bool:
    """Whether a copy beside the environment takes no room (Btrfs, XFS with reflinks)."""
    from ops.environments import in_place

    return in_place.shares_blocks(environment)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def no_cleanup() -> dict[str, Any]:
    """Of a plan for which nobody looked for leftovers."""
    return {"scan": "", "digest": "", "kinds": [], "listed": [], "problems": []}


def cleanup(look: Callable[[], dict[str, Any]] | None, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """What a purge could delete: {scan (whose preview it is; "" where nobody looked), digest (of the preview), kinds (as in the event
    artifacts.scanned), listed (the largest, as dicts of ops/artifacts/found.py Artifact), problems [sentence]}. What cannot be looked at keeps
    nobody from a redeploy: it is a note."""
    if look is None:
        return no_cleanup()
    try:
        return look()
    except OpsError as error:
        findings.append(finding("note", f"Leftovers could not be looked for: {error.what}", why=error.why, fix=error.hint))
        return no_cleanup()
