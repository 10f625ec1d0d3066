"""An environment that may not move is changed where it lies: copied beforehand, so that the way back is one exchange of two folders.

    before the stop   the folder is copied to `<environment>.roundhouse-<release>`, beside it; the wheels are fetched into uv's cache
    service down      stray files go, uv installs exactly the plan's lock, the result is verified, links name the new release
    way back          the two folders are exchanged (renameat2, one step); nothing is fetched, nothing is built

Scripts and pyvenv.cfg hold the environment's path, so whatever is to run must lie there: `current` leads to that folder at every moment,
and what is exchanged is its content. Which of the two folders lies there is told by their inodes, so every step can be repeated after a
crash at any line.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ops.environments import building, copying, integrity, packages, releases
from ops.environments import plan as planning
from ops.jobs import claim, commands
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.journal import sync_folder
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state

COPY_S = 3600
_PART = ".part"  # a copy that is not complete yet
_AWAY = ".away"  # only where the kernel cannot exchange two folders in one step
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change in place, as a job's facts keep it. `here` and `there` are the identities ([device, inode]) of the folder that lay at
    `environment` when it began, and of the one at `backup`; both None where no copy could be made.

    `owner`: the release that `environment` held, `release` the one that it is to hold, `previous` the one that was in use.
    """

    environment: str
    backup: str | None
    here: list[int] | None
    there: list[int] | None
    owner: str
    release: str
    previous: str | None
    begun: bool = False  # the content at `environment` may be another one

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Change:
        return cls(**raw)


def check_allowed(context: Context, record: ServiceRecord, *, as_it_is: bool = False) -> Path:
    """The environment's folder. Raises Refused if node.toml does not allow it to be changed, BadInput if it is no environment (not asked with
    `as_it_is`: it is to be exchanged, and may be damaged or gone), and OpsError if another service runs from it."""
    target = releases.environment(record)
    if target is None:
        raise BadInput(f"Service `{record.name}` names no environment to be changed in place")
    context.config.require_inside(target, context.config.environment_roots, "environment")
    for library in [] if as_it_is else packages.site_packages(target):
        if not Path(os.path.realpath(library)).is_relative_to(target):
            raise OpsError(f"The packages of `{target}` lie elsewhere, in `{os.path.realpath(library)}`",
                           why="A copy of the folder would not hold them, so there would be no way back",
                           hint="Redeploy beside it: set `in_place` to false in the service's record")
    for path in sorted(context.paths.announced.glob("*.json")):
        other = _other(path)
        if other is None or other.name == record.name:
            continue
        used = releases.current(other)
        if used is not None and Path(os.path.realpath(used)) == target and _runs(other):
            raise OpsError(f"Service `{other.name}` runs from the same environment", why=f"`{target}` would change under it",
                           hint="Stop it first, or give this service an environment of its own")
    return target


def _other(path: Path) -> ServiceRecord | None:
    try:
        return ServiceRecord.from_dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError, BadInput):
        return None  # no record that a service could be started from


def _runs(record: ServiceRecord) -> bool:
    from ops.services.manager import manager_for

    return bool(manager_for(record).pids())


# ---- before the service is stopped ----


def begin(record: ServiceRecord, plan: planning.Plan) -> Change:
    """What is about to be changed; nothing is done yet, but for the link of an environment that was never adopted."""
    target = releases.environment(record)
    if target is None:
        raise BadInput(f"Service `{record.name}` names no environment to be changed in place")
    owner = releases.in_environment(record) or releases.adopt(record).name
    live = releases.current(record)
    backup = plan.rollback.get("backup") or f"{target}.roundhouse-{plan.release}"
    name = _free_name(record, plan.release)
    return Change(environment=str(target), backup=str(backup) if plan.rollback.get("possible", True) else None, here=_identity(target), there=None,
                  owner=owner, release=name, previous=live.name if live else None)


def _free_name(record: ServiceRecord, name: str) -> str:
    number = 1
    while os.path.lexists(releases.inside(record, one := name if number == 1 else f"{name}-{number}")):
        number += 1
    return one


def copy_beforehand(context: Context, record: ServiceRecord, change: Change) -> Change:
    """Copies the environment to its backup; gives the change with the copy's identity. Raises OpsError where that is not possible."""
    if change.backup is None:
        return change
    source, target = Path(change.environment), Path(change.backup)
    if not releases.is_backup(record, target):
        raise Refused(f"`{target}` is no place for a copy of `{source}`", why="It must lie beside it")
    if os.path.lexists(target):
        raise OpsError(f"`{target}` is there already", hint="Look at it, then move it away")
    part = Path(f"{target}{_PART}")
    size = releases.size_on_disk(source)
    free = shutil.disk_usage(source.parent).free
    if size > free and not shares_blocks(source):
        raise OpsError(f"There is no room for a copy of `{source}`: {size / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free", kind="disk_full",
                       hint="Free some room, or make a new plan and accept that there is no way back")
    try:
        releases.take_away(part)
        commands.run(["cp", "--archive", "--reflink=auto", "--", source, part], context=context, on_line=context.log, timeout_s=COPY_S)
        commands.run(["sync", "--file-system", "--", part], context=context, on_line=context.log, timeout_s=COPY_S)
        part.rename(target)
    except BaseException as error:
        releases.take_away(part)
        if isinstance(error, OpsError) and "No space left" in str(error):
            raise OpsError("The disk is full", why=f"`{source}` cannot be copied to `{target}`", kind="disk_full",
                           hint="Free some room; nothing was changed") from error
        if isinstance(error, OSError):
            raise OpsError(f"`{source}` cannot be copied to `{target}`", why=error.strerror or str(error), hint="Nothing was changed") from error
        raise
    return replace(change, there=_identity(target))


def shares_blocks(folder: Path) -> bool:
    """Whether copies of files take no room there (Btrfs, XFS with reflinks)."""
    one, other = (folder.parent / f".{folder.name}.roundhouse-probe-{number}" for number in (1, 2))
    try:
        one.write_bytes(b"x" * 4096)
        with one.open("rb") as reader, other.open("wb") as writer:
            return copying.clone(reader.fileno(), writer.fileno())
    except OSError:  # nothing can be written there: the copy itself will say so
        return False
    finally:
        one.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def fetch(context: Context, record: ServiceRecord, channel: Channel, plan: planning.Plan) -> str:
    """Gets the plan's wheels into uv's cache, so that no network is needed while the service is down."""
    building.check_fits(record, channel, plan)
    uv = building.uv_for(context, record)
    building.drop_edited(context, uv, plan)
    lock = _lock(context, plan)
    uv.fetch(lock, channel, plan.python["path"])
    return f"{len(lock.read_text().splitlines())} wheels are at hand"


def _lock(context: Context, plan: planning.Plan) -> Path:
    """The lock file of what is installed: all of the plan, or what a restoring plan installs anew."""
    anew = building.to_restore(plan) if plan.mode == "restore" else None
    lines = [releases.lock_line(package) for package in plan.locked if anew is None or package["name"] in anew]
    path = context.folder / "in-place-lock.txt"
    state.write_file(path, "".join(lines))
    return path


# ---- while it is down ----


def install(context: Context, record: ServiceRecord, channel: Channel, plan: planning.Plan, change: Change, extra: list[str]) -> Path:
    """Makes the environment be what the plan says; gives the release's link. `extra`: files in no RECORD, which are on the shelf; they go.

    The caller has saved the change with `begun` set: from here on only `put_back` leads back.
    """
    root = Path(change.environment)
    release = releases.inside(record, change.release)
    uv = building.uv_for(context, record)
    try:
        _take_out(root, extra)
        _cut_links(context, root)
        lock = _lock(context, plan)
        if plan.mode == "restore":
            installed = packages.read(root)
            for name in sorted(building.to_restore(plan)):
                copying.uninstall(installed, name)
            rows = [package for package in plan.locked if package["name"] in building.to_restore(plan)]
            if rows:
                building.install(context, uv, root, lock, channel, rows, offline=True)
        else:
            uv.sync(root, lock, channel, offline=True)
            _take_out(root, _stray_bytecode(root))
        context.check()
        releases.point(release, root)
        releases.write_manifest(record, release, channel=channel.as_dict(), plan=plan, kind="in-place")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OpsError("The disk is full" if full else f"`{root}` cannot be changed", why=error.strerror or str(error),
                       kind="disk_full" if full else None) from error
    return release


def _take_out(root: Path, paths: list[str]) -> None:
    folders = set()
    for name in paths:
        path = Path(os.path.normpath(root / name))
        if root in path.parents and Path(os.path.realpath(path.parent)).is_relative_to(root) and (path.is_symlink() or path.is_file()):
            path.unlink()
            folders.add(str(path.parent))
    copying.remove_empty(folders, str(root))


def _cut_links(context: Context, root: Path) -> None:
    """Takes out links by which a listed file would lie outside: installers follow them, and would delete and write there. The copy has them still."""
    known: dict[str, bool] = {}
    installed = packages.read(root)
    for distribution in [*installed.distributions.values(), *installed.duplicates]:
        library = os.path.realpath(distribution.location.parent)
        for name, _ in integrity.rows(distribution):
            path = os.path.normpath(os.path.join(library, name))  # noqa: PTH118
            if "\0" in name or not path.startswith(f"{root}{os.sep}"):
                continue
            folder = os.path.dirname(path)  # noqa: PTH120
            if folder not in known:
                known[folder] = Path(os.path.realpath(folder)).is_relative_to(root)
            if known[folder] and not (os.path.islink(path) and os.path.isdir(path)):  # noqa: PTH112, PTH114
                continue
            for place in [*reversed(Path(path).parents), Path(path)]:
                if root in place.parents and place.is_symlink() and place.is_dir() and not Path(os.path.realpath(place)).is_relative_to(root):
                    context.log(f"Took out the link `{place}`, which leads to `{os.path.realpath(place)}`: an installer would have followed it")
                    place.unlink()
                    known.clear()
                    break


def _stray_bytecode(root: Path) -> list[str]:
    """Compiled files whose source is gone: an installer that replaces a package may leave them."""
    found = []
    for library in packages.site_packages(root):
        for compiled in library.rglob("__pycache__/*.pyc"):
            source = compiled.parent.parent / f"{compiled.name.split('.', 1)[0]}.py"
            if not source.exists():
                found.append(str(compiled.relative_to(root)))
    return found


def take_over(record: ServiceRecord, change: Change) -> None:
    """Names what lies at the environment's place now: the new release there, the one before at the backup. `current` leads there throughout."""
    root = Path(change.environment)
    try:
        releases.point(releases.inside(record, change.release), root)
        releases.switch(record, releases.inside(record, change.release))
        owner = releases.inside(record, change.owner)
        if change.backup is not None and change.here is not None:
            releases.point(owner, Path(change.backup))
        elif owner.is_symlink() and change.owner != change.release:  # what it named is no more
            beside = releases.manifest_path(owner)
            owner.unlink()
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OpsError(f"The links of `{record.name}` cannot be changed", why=error.strerror or str(error)) from error


# ---- to and fro ----


def nobody_changes(context: Context, record: ServiceRecord) -> None:
    """Raises Busy while a job of another service changes the environment that this service runs from: what would be started is half installed."""
    lock = f"env:{os.path.realpath(record.current)}"
    if record.in_place or not claim.lock_file(context.paths, lock).exists():
        return
    claim.release(claim.lock_all(context.paths, [lock], give_up=context.check))


def begin_exchange(record: ServiceRecord, release: Path) -> Change:
    """The change that puts a backup at the environment's place: of a roll back. Raises BadInput if `release` is none."""
    target, backup = releases.environment(record), Path(os.path.realpath(release))
    if target is None or not releases.is_backup(record, backup) or not backup.is_dir():
        raise BadInput(f"The release `{release.name}` is no copy of the environment")
    owner = releases.in_environment(record)
    live = releases.current(record)
    if owner is None:
        raise OpsError(f"Nobody knows what lies in `{target}`", why="No release points at it", hint="Adopt the environment first")
    return Change(environment=str(target), backup=str(backup), here=_identity(target), there=_identity(backup), owner=owner, release=release.name,
                  previous=live.name if live else owner, begun=True)


def exchange(record: ServiceRecord, change: Change) -> None:
    """Puts the backup at the environment's place, and the links right. May be repeated."""
    _hold(change, change.there)
    take_over(record, change)


def put_back(record: ServiceRecord, change: Change, *, keep: bool = False) -> str:
    """The environment as it was, from whatever moment; "" if nothing had changed. May be repeated.

    `keep`: both folders stay releases (after a roll back that failed); else the one that was changed is removed from the list, and its folder
    is left to `discard`. Raises OpsError where no copy was made and the content was touched: then nothing leads back.
    """
    if not change.begun:
        return ""
    root, owner, release = Path(change.environment), releases.inside(record, change.owner), releases.inside(record, change.release)
    if not keep and change.backup is None:
        raise OpsError(f"`{root}` was changed, and there is no copy to go back to", why="The plan said so, and it was accepted",
                       hint="Run the redeploy again, or repair the environment by hand, then restart the service")
    try:
        moved = _hold(change, change.here if keep else change.there)
    except OpsError:
        if not keep:
            _name_both(record, change)
        raise
    try:
        releases.point(owner, root)
        if change.previous is not None:
            releases.point(record.current, Path("releases", change.previous))
        if keep:
            releases.point(release, Path(str(change.backup)))
        elif release.is_symlink():
            beside = releases.manifest_path(release)
            release.unlink()
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OpsError(f"The links of `{record.name}` cannot be put back", why=error.strerror or str(error)) from error
    return f"`{root}` is as it was" if moved else ""


def _name_both(record: ServiceRecord, change: Change) -> None:
    """After an exchange that was not possible: what lies where gets its name, so that a roll back to the copy can be tried again by one click.
    `current` goes with what lies at the environment's place, for it leads there at every moment."""
    root, backup, release = Path(change.environment), Path(str(change.backup)), releases.inside(record, change.release)
    if _identity(root) != change.here or _identity(backup) != change.there:
        return  # somebody has moved them: nobody knows what lies where
    with suppress(OSError):  # the failed exchange is what is told
        releases.point(release, root)
        if not releases.manifest_path(release).exists():
            told = {"release": release.name, "kind": "in-place", "verified": False, "note": "It was changed half way"}
            state.write_file(releases.manifest_path(release), json.dumps(told, indent=1) + "\n", mode=0o644)
        releases.point(record.current, Path("releases", change.release))
        releases.point(releases.inside(record, change.owner), backup)


def discard(record: ServiceRecord, change: Change) -> str:
    """Removes the copy of a job that failed, unless a release needs it; gives what was removed."""
    if change.backup is None:
        return ""
    backup = Path(change.backup)
    removed = ""
    for folder in (Path(f"{backup}{_PART}"), Path(f"{backup}{_AWAY}"), backup):
        if folder.is_dir() and releases.is_backup(record, folder) and not releases.points_at(record, folder):
            if change.begun and _identity(folder) == change.there and _identity(Path(change.environment)) != change.here:
                continue  # never the only whole one
            releases.take_away(folder)
            removed = f"removed `{folder}`"
    return removed


def _hold(change: Change, wanted: list[int] | None) -> bool:
    """Makes the folder with the identity `wanted` lie at the environment's place, and the other one at the backup's; whether anything moved."""
    root, backup = Path(change.environment), Path(str(change.backup))
    away = Path(f"{backup}{_AWAY}")
    moved = False
    try:
        if _identity(root) != wanted:
            if _identity(backup) != wanted:
                raise OpsError(f"Neither `{root}` nor `{backup}` is the folder that is looked for", why="Somebody has moved them meanwhile",
                               hint="Put the folders back by hand, then start the service")
            if wanted is None:  # nothing lay there
                root.rename(backup)
            elif os.path.lexists(root):
                _swap(root, backup, away)
            else:
                backup.rename(root)
            moved = True
        if os.path.lexists(away) and not os.path.lexists(backup):
            away.rename(backup)
            moved = True
    except OSError as error:
        raise OpsError(f"`{root}` and `{backup}` cannot be exchanged", why=error.strerror or str(error)) from error
    return moved


def _swap(one: Path, other: Path, away: Path) -> None:
    """Exchanges two folders, in one step where the kernel and the file system can. Raises OSError."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        sync_folder(one.parent)
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        raise OSError(number, os.strerror(number), str(one))
    one.rename(away)
    other.rename(one)
    away.rename(other)
    sync_folder(one.parent)


def _identity(folder: Path) -> list[int] | None:
    """[device, inode] of the folder; None if there is none."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    return [found.st_dev, found.st_ino]
