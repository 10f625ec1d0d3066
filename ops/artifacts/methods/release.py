"""Releases as leftovers: builds that failed, and old releases. They go as Roundhouse removes a release, edits onto the shelf first.

Two kinds share this method: "failed-build" (never finished, never verified, or half removed already) and any other of it ("old-release"). What
pruning never takes (ops/environments/pruning.py) is kept here as well: the release in use, the last good one, the one before, the way back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ops.artifacts.conditions import Conditions
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Entry
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import Kind
from ops.artifacts.methods import measure, whole
from ops.artifacts.places import Place
from ops.environments import patches, pruning, releases
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state

FAILED = "failed-build"
_REMOVING = ".removing-"


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path  # below releases/
    folder: Path  # what lies on the disk: of a link to a backup the copy
    failed: bool
    kept: str  # why it may not go; "" if it may
    reason: str


def find(kind: Kind, place: Place, *, conditions: Conditions, check: Callable[[], None], problem: Callable[[str], None]) -> Iterator[Artifact]:
    record = next((record for record in conditions.records if record.name == place.service), None)
    if record is None:
        return
    try:
        candidates = list(_candidates(record))
    except (OpsError, OSError) as error:
        problem(f"The releases of `{record.name}` cannot be looked at: {error.what if isinstance(error, OpsError) else error.strerror or error}")
        return
    for candidate in candidates:
        check()
        if candidate.failed != (kind.name == FAILED):
            continue
        try:
            found = os.lstat(candidate.folder)
            size = measure.folder(candidate.folder, check)
            seen = whole.obstacle(os.path.realpath(candidate.folder), conditions=conditions, check=check)
        except FileNotFoundError:  # it goes right now
            continue
        except OSError as error:
            problem(f"The release `{candidate.path.name}` cannot be looked at: {error.strerror or error}")
            continue
        kept, held = candidate.kept, []
        if not kept:
            kept, held = seen.why, _told_of(conditions, seen.pids)
        if not kept:
            kept = conditions.verdict(kind, str(candidate.path), stat=found, service=record.name, folder_newest_ns=found.st_mtime_ns) or ""
        state_word = KEPT if kept else OFFERED if kind.offered else OPTIONAL
        yield Artifact(
            number=0, kind=kind.name, unit=kind.unit, path=str(candidate.path), size_bytes=size.size_bytes, files=size.files,
            mtime_ns=found.st_mtime_ns, uid=found.st_uid, owner=measure.owner(found.st_uid), device=found.st_dev, inode=found.st_ino,
            state=state_word, why=kept or (candidate.reason if kind.offered else kind.keeping), open_by=held, service=record.name)


def purge(artifact: Artifact, kind: Kind, *, conditions: Conditions, log: Callable[[str], None], check: Callable[[], None]) -> Entry:
    record = next((record for record in conditions.records if record.name == artifact.service), None)

    # What is optional tells in `why` what keeping it is worth, which is no reason to delete it
    entry = partial(Entry.of, artifact, artifact.why if artifact.state == OFFERED else kind.leftover)

    if record is None:
        return entry("kept", f"Its service `{artifact.service}` is not known here any more")
    try:
        candidate = next((one for one in _candidates(record) if str(one.path) == artifact.path), None)
        if candidate is None:
            return entry("kept", "It is no release that can go") if os.path.lexists(artifact.path) else entry("gone")
        found = os.lstat(candidate.folder)
        if (found.st_dev, found.st_ino) != (artifact.device, artifact.inode):
            return entry("kept", "Another release has its name now")
        if found.st_mtime_ns != artifact.mtime_ns:
            return entry("kept", "It was changed since it was listed")
        if candidate.failed != (kind.name == FAILED):
            return entry("kept", "It is no failed build any more" if kind.name == FAILED else "It is a failed build now")
        if candidate.kept:
            return entry("kept", candidate.kept)
        size = measure.folder(candidate.folder, check)
        why = whole.obstacle(os.path.realpath(candidate.folder), conditions=conditions, check=check).why or conditions.verdict(
            kind, artifact.path, stat=found, service=record.name, folder_newest_ns=found.st_mtime_ns)
        if why:
            return entry("kept", why)
        if candidate.failed:
            releases.take_away(candidate.path)
        else:
            if saved := patches.keep_edits(record, candidate.path):
                log(f"Saved {saved:,} edited files of {candidate.path.name} on the shelf")
            check()
            releases.remove(record, candidate.path)
    except FileNotFoundError:
        return entry("gone")
    except OpsError as error:
        return entry("kept", f"{error.what}{f': {error.why}' if error.why else ''}")
    except OSError as error:
        return entry("kept", error.strerror or str(error))
    log(f"Removed release {candidate.path.name}, {size.size_bytes:,} bytes")
    return entry("deleted", freed_bytes=size.size_bytes, deleted_files=size.files)


def _candidates(record: ServiceRecord) -> Iterator[_Candidate]:
    """Every folder that is a failed build or an old release, also those that may not go. The environment that was here before us is none."""
    listed = releases.listing(record)
    known = state.read(record)
    ways = {known.get("last_good"): "It is the last good one: what a failed redeploy goes back to",
            known.get("previous"): "It was in use before: what a rollback goes back to"}
    way_back = pruning.way_back(listed)
    for release in listed:
        if release.kind not in ("built", "backup"):
            continue
        folder = Path(release.target) if release.target else release.path
        kept = "It is in use" if release.is_current else ways.get(release.name, "")
        if not kept and release.name == way_back:
            kept = "It is the newest verified one before the one in use: the way back"
        if not kept and releases.is_being_built(release.path):
            kept = "It is being built"
        unverified = release.kind == "built" and not release.verified
        failed = release.unfinished or (unverified and ((release.path / releases.MANIFEST).exists() or _is_empty(release.path)))
        if unverified and not failed and not kept:
            kept = "Roundhouse did not make it, as far as it can tell"
        reason = "Its build never came to an end" if release.unfinished else "It never passed its verification" if failed else "It is an old release"
        yield _Candidate(release.path, folder, failed, kept, reason)
    for path in sorted(record.releases.glob(f"{_REMOVING}*")) if record.releases.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            yield _Candidate(path, path, True, "", "Its removal was interrupted")


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _told_of(conditions: Conditions, pids: Sequence[int]) -> list[dict[str, Any]]:
    """Processes as an artifact tells them."""
    return conditions.holders.told(pids) if pids and isinstance(conditions.holders, Holders) else []
