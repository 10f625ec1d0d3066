"""Building a release beside the live one, exactly as its plan says, with files that are copies.

    full       every package of the plan is installed by uv, from wheels with the planned hashes
    restore    packages that nobody touched are copied from the live release by RECORD (copying.py); only the plan's `restore` list is
               installed anew, from the same wheels

Packages that were edited by hand are dropped from uv's cache before: uv gives out what lies there unpacked, and does not look whether that
is what the wheel held. What comes out is held against RECORD by the verification (verifying.py), not here: every file is hashed once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ops.environments import copying, packages, releases, wheelhouse
from ops.environments import plan as planning
from ops.environments.uv import Uv
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.journal import sync_folder
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state

PROGRESS_S = 1.0
RESTORE_FILE = "roundhouse-restore.txt"  # of a restored release: what was installed anew
_ARRIVED = re.compile(r"\s*Downloaded (\S+)")


def build(context: Context, record: ServiceRecord, channel: Channel, plan: planning.Plan) -> Path:
    """Builds the plan's release and gives its folder.

    Raises BadInput if channel and plan do not belong together, OpsError if uv fails or the disk is full; what was half built is
    removed then. A killed build leaves the marker: `releases.remove_unfinished` takes it away, and building the same plan again starts anew.
    """
    check_fits(record, channel, plan)
    _check_room(record, plan)
    with _new_folder(context, record, plan) as release:
        uv = uv_for(context, record)
        drop_edited(context, uv, plan)
        state.write_file(release / releases.LOCK_FILE, releases.lock_text(plan), mode=0o644)
        uv.venv(release, python=plan.python["path"])
        context.check()
        if plan.mode == "restore":
            _restore(context, record, uv, release, channel, plan)
        else:
            install(context, uv, release, release / releases.LOCK_FILE, channel, plan.locked)
        context.check()
        files, length, on_disk = releases.count(release)
        context.progress(files, files, "files", f"{files:,} files, {length / 1e6:,.0f} MB", estimate=False)
        releases.write_manifest(record, release, channel=channel.as_dict(), plan=plan, size_bytes=on_disk)
    return release


def check_fits(record: ServiceRecord, channel: Channel, plan: planning.Plan) -> None:
    """Raises BadInput if the plan was made for another service or channel."""
    if (channel.name, record.name) != (plan.channel, plan.service):
        raise BadInput(f"The plan is for service `{plan.service}` from channel `{plan.channel}`, not for `{record.name}` from `{channel.name}`")


def uv_for(context: Context, record: ServiceRecord) -> Uv:
    """uv with the node's cache, whose lines go to the step's log."""
    return replace(planning.default_uv(record), context=context)


def drop_edited(context: Context, uv: Uv, plan: planning.Plan) -> list[str]:
    """Drops the packages that are edited now from uv's cache, exactly those; gives their names."""
    planned = {package["name"] for package in plan.locked}
    edited: list[str] = sorted({canonicalize_name(name) for name in plan.edited} & planned)
    if edited:
        uv.clean_cache(edited)
        context.log(f"Dropped from uv's cache, because their files were edited: {', '.join(edited)}")
    return edited


def _check_room(record: ServiceRecord, plan: planning.Plan) -> None:
    needed = plan.disk.get("needed_bytes")
    place = next(folder for folder in (record.releases, *record.releases.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if needed is not None and needed > free:
        raise OpsError(f"There is not enough disk below `{place}`: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free", kind="disk_full",
                       hint="Remove an old release, or free disk elsewhere; nothing was changed")


@contextmanager
def _new_folder(context: Context, record: ServiceRecord, plan: planning.Plan) -> Iterator[Path]:
    """A folder that carries the marker of an unfinished release while the body runs; gone if the body fails.

    The marker stays locked as long as this process lives, so that nobody takes a running build for one that was killed.
    """
    release, descriptor = _claim_folder(record, plan.release)
    try:
        with os.fdopen(descriptor, "w") as marker:
            marker.write(json.dumps({"plan": plan.hash, "job": context.job, "since": time.time()}) + "\n")
            marker.flush()
            yield release
            (release / releases.MARKER).unlink()
        sync_folder(release)
    except BaseException as error:
        releases.take_away(release)
        if isinstance(error, OSError):
            raise _not_built(record, release, error) from error
        raise


def _not_built(record: ServiceRecord, release: Path, error: OSError) -> OpsError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OpsError("The disk is full", why=f"The release `{release.name}` cannot be built: {error.strerror}", kind="disk_full",
                        hint="Free some room, then run the job again")
    return OpsError(f"The release `{release.name}` cannot be built", why=error.strerror or str(error),
                    hint=f"Look at the disk below `{record.releases}`")


def _claim_folder(record: ServiceRecord, name: str) -> tuple[Path, int]:
    """A new folder of that name with its marker, locked: of an unfinished build of that name nothing stays, a finished one keeps its name."""
    for number in range(1, 100):
        folder = releases.inside(record, name if number == 1 else f"{name}-{number}")
        try:
            empty = folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())
            if (releases.is_unfinished(folder) and not releases.is_being_built(folder)) or empty:
                releases.take_away(folder)
            record.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Made under another name, so that it is never there without its locked marker.
            half = folder.with_name(f".removing-{folder.name}-new-{os.getpid()}-{threading.get_ident()}")
            half.mkdir(mode=0o755)
            descriptor = os.open(half / releases.MARKER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _not_built(record, folder, error) from error
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            if os.path.lexists(folder):
                raise FileExistsError
            half.rename(folder)  # onto a folder with something in it this fails, so two builds never share one
            return folder, descriptor
        except OSError:
            os.close(descriptor)
            shutil.rmtree(half, ignore_errors=True)
            if not os.path.lexists(folder):
                raise
    raise OpsError(f"There are 99 releases named `{name}` already")


def install(context: Context, uv: Uv, env: Path, lock: Path, channel: Channel, rows: list[dict[str, Any]], *, offline: bool = False) -> None:
    """Lets uv install the lock file's wheels (`rows` of the plan) into `env`, and tells how far it is."""
    with progress(context, env, channel, rows) as arrived:
        replace(uv, on_line=arrived).install(env, lock, channel, offline=offline)


def _restore(context: Context, record: ServiceRecord, uv: Uv, release: Path, channel: Channel, plan: planning.Plan) -> None:
    live, name = planning.in_use(record)
    if live is None or name != plan.current:
        raise OpsError("The release in use is not the one that the plan restores", why=f"It is {name or 'none'}, not {plan.current}",
                       hint="Make a new plan")
    anew = to_restore(plan)
    kept = [package["name"] for package in plan.locked if package["name"] not in anew]
    copying.copy(context, live, release, kept, names_of=record)
    rows = [package for package in plan.locked if package["name"] in anew]
    state.write_file(release / RESTORE_FILE, "".join(map(releases.lock_line, rows)), mode=0o644)
    if rows:
        install(context, uv, release, release / RESTORE_FILE, channel, rows)


def to_restore(plan: planning.Plan) -> set[str]:
    """Names of the packages that a restoring plan installs anew."""
    return {canonicalize_name(name) for name in plan.restore}


@contextmanager
def progress(context: Context, env: Path, channel: Channel, rows: list[dict[str, Any]]) -> Iterator[Any]:
    """While uv fetches and copies, tells once a second how far it is; gives what is to be told each of uv's lines.

    Fetching: the announced sizes of what has arrived. Copying (uv says nothing then): files that are there now against those that the wheels
    hold, or bytes against an estimate where the wheels are not at hand. All of it is marked an estimate.
    """
    local = [Path(channel.wheelhouse, package["file"]) for package in rows if package.get("file")] if channel.wheelhouse else []
    known = [wheelhouse.contents(path) for path in local if path.is_file()]
    sizes = [package["size_bytes"] for package in rows]
    size = None if any(one is None for one in sizes) else sum(sizes)
    files = sum(wheel.files for wheel in known) if len(known) == len(rows) else None
    total_bytes = size * planning.UNPACKED_FACTOR if size is not None else None
    library = packages.site_packages(env)[0]
    before = releases.count(library)
    announced = {package["name"]: package["size_bytes"] for package in rows}
    fetched: set[str] = set()
    ended = threading.Event()

    def arrived(line: str) -> None:
        if found := _ARRIVED.match(line):
            fetched.add(canonicalize_name(found.group(1)))
            done = sum(announced.get(name) or 0 for name in fetched)
            context.progress(done if size is None else min(done, size), size, "bytes", f"fetched {', '.join(sorted(fetched)[-3:])}", estimate=True)

    def watch() -> None:
        last = before[0]
        while not ended.wait(PROGRESS_S):
            now = releases.count(library)
            if now[0] > last:  # uv also takes temporary files away: no step backwards is told
                last = now[0]
                tell(now[0] - before[0], now[1] - before[1])

    def tell(count: int, length: int) -> None:
        text = f"{count:,} files, {length / 1e6:,.0f} MB"
        if files is not None:
            context.progress(min(count, files), files, "files", text, estimate=True)
        else:
            context.progress(length if total_bytes is None else min(length, total_bytes), total_bytes, "bytes", text, estimate=True)

    thread = threading.Thread(target=watch, name="build-progress", daemon=True)
    thread.start()
    try:
        yield arrived
    finally:
        ended.set()
        thread.join()
