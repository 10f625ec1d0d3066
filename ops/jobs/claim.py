"""Taking a job on this node, so that it runs at most once and alone on its locks.

The order is the protocol: (1) `jobs/<id>` exists: attach; (2) flock on each lock's file, in sorted order, else busy; (3) the
fence must exceed the stored one; (4) mkdir `jobs/<id>`, atomic; (5) store the fence, forced to disk; (6) `job.claimed` in the
journal. A crash between any two leaves either nothing, or a folder that the reconciler closes as interrupted.

Who claims is the process that runs the job, in itself: so lock, journal and the pid in `job.claimed` have one owner from the
first moment, the lock is gone exactly when that process (and every child that inherited it) is gone, and a crash of the agent
at any point can neither lose a claimed job nor leave a lock without its job.

No time frees a lock. Beside the flock, a lock is held by a `.held` file (a rollback failed: a person has to look), and by the
last holder's journal as long as that has no final line: a half-done job is undone before the next one begins.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.agent.config import NodePaths
from ops.gpus.processes import boot_id, start_ticks
from ops.jobs.envelope import Envelope
from ops.jobs.errors import Busy, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.journal import Journal, final_event, journal_path, sync_folder, write_atomically, write_json
from ops.jobs.redact import HIDDEN

# A runner says `job.finished`, then lets its locks go; the next job's order may already be here in that moment.
LOCK_PATIENCE_S = 1.0
# What a person does after a failed rollback: these may take a lock that is kept for a person; when they succeed it is free again.
# A roll back is one of them: it ends with a release that serves and passed its tests, from whatever a failed undo left; without it nothing
# but a person's shell would help where the release in use does not start.
REPAIRS = frozenset({"restart", "start", "rollback", "practice-reset"})
# These may take such a lock too, since a person needs them on the way to a repair, but they leave it kept: the service does not serve by them.
ON_KEPT = REPAIRS | {"stop", "end-leftovers", "reset-failed", "settings-set"}


class Attached(Exception):
    """Not an error: this job is here already, running or ended."""


def slug(lock: str) -> str:
    """The lock's name as a file name: readable, and distinct by a hash."""
    return f"{re.sub(r'[^a-z0-9._-]+', '-', lock.lower())[-60:].strip('-.')}-{hashlib.sha256(lock.encode()).hexdigest()[:10]}"


def lock_file(paths: NodePaths, lock: str) -> Path:
    return paths.locks / f"{slug(lock)}.lock"


def fence_file(paths: NodePaths, lock: str) -> Path:
    """`{"lock", "fence", "job"}`: the highest fence that was ever claimed here, and by whom."""
    return paths.locks / f"{slug(lock)}.fence"


def held_file(paths: NodePaths, lock: str) -> Path:
    """`{"lock", "job", "why", "at"}`: kept after a failed rollback until a person lets it go."""
    return paths.locks / f"{slug(lock)}.held"


@dataclass
class Claim:
    """A claimed job: its folder, its journal (open for writing), its locks."""

    envelope: Envelope
    folder: Path
    journal: Journal
    lock_fds: tuple[int, ...] = field(default=())

    def release(self) -> None:
        """Lets the locks go, as far as this process goes: a child that inherited them still holds them."""
        release(self.lock_fds)
        self.lock_fds = ()


def release(descriptors: Sequence[int]) -> None:
    """Closes lock descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def stored_fence(paths: NodePaths, lock: str) -> tuple[int, str | None]:
    """The highest fence claimed so far and its job; (0, None) for a lock that was never taken. Raises OpsError if the file is damaged."""
    path = fence_file(paths, lock)
    try:
        raw = json.loads(path.read_text())
        return int(raw["fence"]), str(raw["job"])
    except FileNotFoundError:
        return 0, None
    except (ValueError, KeyError, TypeError) as error:
        raise OpsError(f"The fence file `{path}` is damaged", why=str(error),
                       hint="Restore it from a backup, or remove it when no job of this lock runs") from error


def next_fences(paths: NodePaths, locks: Sequence[str]) -> dict[str, int]:
    """Fences for a job that the command line starts on the node itself. The console learns them from `job.claimed`."""
    return {lock: stored_fence(paths, lock)[0] + 1 for lock in locks}


def hold(paths: NodePaths, locks: Sequence[str], job: str, why: str) -> None:
    """Keeps the locks after the job's end, until a person looked (`let_go`)."""
    for lock in locks:
        write_json(held_file(paths, lock), {"lock": lock, "job": job, "why": why, "at": time.time()})


def held(paths: NodePaths, lock: str) -> dict[str, Any] | None:
    """Why the lock is kept for a person, or None."""
    try:
        return dict(json.loads(held_file(paths, lock).read_text()))
    except FileNotFoundError:
        return None


def let_go(paths: NodePaths, lock: str) -> None:
    """A person looked: the next job may begin. What the same failed job kept besides (its environment's lock) goes with it."""
    kept = held(paths, lock)
    held_file(paths, lock).unlink(missing_ok=True)
    for path in paths.locks.glob("*.held") if kept else ():
        try:
            other = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # gone meanwhile, or not ours to judge: it stays
        if isinstance(other, dict) and kept and other.get("job") == kept.get("job"):
            path.unlink(missing_ok=True)
    sync_folder(paths.locks)


def lock_all(paths: NodePaths, locks: Sequence[str], *, give_up: Callable[[], None] = lambda: None,
             patience_s: float = LOCK_PATIENCE_S) -> tuple[int, ...]:
    """Takes the flocks in sorted order; gives their descriptors. Raises Busy if one is held for longer than `patience_s`.

    `give_up` is called between tries and may raise to stop waiting.
    """
    taken: list[int] = []
    deadline = time.monotonic() + patience_s
    try:
        for lock in sorted(locks):
            descriptor = os.open(lock_file(paths, lock), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            taken.append(descriptor)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise OpsError(f"The lock `{lock}` cannot be taken", why=str(error)) from error
                give_up()
                if time.monotonic() > deadline:
                    holder = stored_fence(paths, lock)[1]
                    raise Busy(f"`{lock}` is in use", why=f"Job {holder} holds it" if holder else "",
                               hint="Wait for it to end, or cancel it", lock=lock, job=holder)
                time.sleep(0.05)
    except BaseException:
        release(taken)
        raise
    return tuple(taken)


def claim(paths: NodePaths, envelope: Envelope, *, steps: Sequence[dict[str, Any]] = (), nudge: Callable[[str], None] | None = None,
          secrets: Sequence[str] = ()) -> Claim:
    """Takes the job for this process. `steps` are `Step.describe()` of each, for `job.claimed`.

    Raises Attached if the job is here already, Busy if a lock is in use (or kept for a person), Refused if the fence is stale.
    """
    folder = paths.jobs / envelope.job

    def here_already() -> None:
        if folder.exists():
            raise Attached(envelope.job)

    here_already()
    descriptors = lock_all(paths, envelope.locks, give_up=here_already)
    try:
        here_already()
        for lock in envelope.locks:
            _check_lock(paths, envelope, lock)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise Attached(envelope.job) from error
        except OSError as error:
            raise OpsError(f"The job's folder `{folder}` cannot be made", why=str(error)) from error
        sync_folder(paths.jobs)
        for lock in envelope.locks:
            write_json(fence_file(paths, lock), {"lock": lock, "fence": envelope.fence[lock], "job": envelope.job})
        write_atomically(folder / "envelope.json", envelope.to_json())
        journal = Journal.create(envelope.job, folder, nudge=nudge, secrets=secrets)
        sync_folder(folder)
        journal(EventType.JOB_CLAIMED, {
            "type": envelope.type, "service": envelope.service_name, "params": _shown(envelope.params), "locks": envelope.locks,
            "fence": envelope.fence, "by": envelope.by, "boot_id": boot_id(), "pid": os.getpid(), "start_time": start_ticks(os.getpid()),
            "steps": list(steps),
        })
    except BaseException:
        release(descriptors)
        raise
    return Claim(envelope, folder, journal, descriptors)


def _shown(params: Any) -> Any:
    """An order's params as everybody may see them: without sealed values (ops/sealed.py). Nobody can read one, but whoever has it could let the node
    open it under another name, which is shown."""
    if isinstance(params, dict):
        return {name: HIDDEN if name == "sealed" else _shown(inner) for name, inner in params.items()}
    return [_shown(inner) for inner in params] if isinstance(params, list) else params


def _check_lock(paths: NodePaths, envelope: Envelope, lock: str) -> None:
    if (kept := held(paths, lock)) and envelope.type not in ON_KEPT:
        raise Busy(f"`{lock}` is kept for a person to look at", why=str(kept["why"]),
                   hint="Look at the service, then restart it, or roll it back", lock=lock, job=kept["job"])
    fence, last = stored_fence(paths, lock)
    if last is not None and last != envelope.job and (paths.jobs / last).exists() and final_event(journal_path(paths, last)) is None:
        raise Busy(f"`{lock}` is in use", why=f"Job {last} stopped half way and is being put right", hint="Wait for it to end", lock=lock, job=last)
    if envelope.fence[lock] <= fence:
        raise Refused(f"A later job has already used `{lock}`", why=f"This order has fence {envelope.fence[lock]}, the lock is at {fence}",
                      hint="Start the job again", kind="stale_fence")
