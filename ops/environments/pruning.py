"""Kept releases have limits: so many of them (`keep_releases`), and so many bytes (`keep_bytes`). What goes first is the oldest."""

from __future__ import annotations

from collections.abc import Sequence

from ops.environments import patches, releases
from ops.environments.releases import Release
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import state


def prune(context: Context | None, record: ServiceRecord, *, keep: Sequence[str | None] = ()) -> list[str]:
    """Removes the oldest releases that are too many or too large together; gives their names.

    What somebody edited in them goes onto the patch shelf first. Also verified ones that never came into use (of redeploys that failed).
    Never: the one in use, the last good one, the newest verified one that is older than the one in use (the way back), the one that was in
    use before, `keep`, one that is being built, and the environment that was here before us, of which nothing is ours. Those that must stay
    count as well. Raises OpsError if a folder cannot be removed, or an edit cannot be saved.
    """
    releases.finish_removals(record)
    listed = releases.listing(record)
    known = state.read(record)  # what was in use before also stays: by their names alone a clock that was set back makes the older one the newer
    staying = {name for name in (*keep, known.get("last_good"), known.get("previous"), way_back(listed)) if name}
    counted = [release for release in listed if release.kind in ("built", "backup") or release.is_current]
    sizes = {release.name: _size(release) for release in counted} if record.keep_bytes is not None else {}
    removed: list[str] = []
    for release in reversed(counted):
        too_many = len(counted) - len(removed) > record.keep_releases
        left = sum(size for name, size in sizes.items() if name not in removed)
        if not too_many and (record.keep_bytes is None or left <= record.keep_bytes):
            break
        if release.is_current or release.name in staying or releases.is_being_built(release.path):
            continue
        size = sizes.get(release.name)
        patches.keep_edits(record, release.path, job=context.job if context else None, emit=context.emit if context else None)
        releases.remove(record, release.path)
        removed.append(release.name)
        if context is not None:
            context.log(f"Removed release {release.name}" + (f", {size / 1e9:,.2f} GB" if size else ""))
    return removed


def way_back(listed: Sequence[Release]) -> str | None:
    """The newest verified release that is older than the one in use."""
    live = next((index for index, release in enumerate(listed) if release.is_current), None)
    if live is None:
        return None
    return next((release.name for release in listed[live + 1:] if release.verified and not release.unfinished), None)


def _size(release: Release) -> int:
    if release.size_bytes is not None:
        return release.size_bytes
    try:
        return releases.size_on_disk(release.path)
    except OSError as error:
        raise OpsError(f"The size of release `{release.name}` cannot be found out", why=error.strerror or str(error)) from error
