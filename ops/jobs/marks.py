"""Which processes belong to a job, and how to end all of them: every child carries `ROUNDHOUSE_JOB=<id>` in its environment.

A process group misses a child that called setsid; the mark does not. The runner carries it too, and leaves itself out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

from ops.gpus.processes import describe, environment, look, marked_with

JOB_MARK = "ROUNDHOUSE_JOB"


def marked(job: str, *, leave: Collection[int] = ()) -> set[int]:
    """Pids of the job's living processes, without this one and those in `leave`. Zombies do not count."""
    return {pid for pid in marked_with(JOB_MARK, job) if pid != os.getpid() and pid not in leave}


def end_marked(job: str, *, grace_s: float = 10, kill_s: float = 5, leave: Collection[int] = ()) -> set[int]:
    """TERM to all of the job's processes, after `grace_s` KILL; gives those that are left even so (stuck in the kernel): normally none."""
    return end(lambda: marked(job, leave=leave), lambda pid: _has_mark(pid, job), grace_s=grace_s, kill_s=kill_s)


def end(find: Callable[[], set[int]], still: Callable[[int], bool], *, grace_s: float = 10, kill_s: float = 5) -> set[int]:
    """TERM to what `find` gives, again for whatever appears meanwhile; after `grace_s` KILL until nothing is left or `kill_s` more passed.

    `still(pid)` is asked once more when the process cannot be replaced by another one any more (through a pidfd).
    """
    told: set[int] = set()
    began = time.monotonic()
    while left := find() or _once_more(find):
        waited = time.monotonic() - began
        if waited > grace_s + kill_s:
            return left
        if waited >= grace_s:
            for pid in left:
                send(pid, signal.SIGKILL, still)
        else:
            for pid in left - told:
                send(pid, signal.SIGTERM, still)
            told |= left
        time.sleep(0.05 if waited < 1 or waited > grace_s else 0.2)
    return set()


def _once_more(find: Callable[[], set[int]]) -> set[int]:
    """A process that is just becoming another program has no environment to read for a moment, so one look may miss it."""
    time.sleep(0.02)
    return find()


def send(pid: int, number: signal.Signals, still: Callable[[int], bool]) -> None:
    """As *signal_one*; of a process that may not be signalled any more the caller sees that it is left (it changed its user)."""
    with contextlib.suppress(PermissionError):
        signal_one(pid, number, still)


def signal_one(pid: int, number: signal.Signals, still: Callable[[int], bool]) -> None:
    """Sends a signal to this very process, if `still(pid)` holds; nothing if it has ended. Raises PermissionError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if still(pid):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return  # ended meanwhile
    finally:
        os.close(descriptor)


def _has_mark(pid: int, job: str) -> bool:
    return (environment(pid) or {}).get(JOB_MARK) == job


def tell(pids: Collection[int]) -> str:
    """`pid 12 (python x), pid 13 (...)`, for messages."""
    return ", ".join(f"pid {pid} ({(describe(pid)[1] or '?')[:80]})" for pid in sorted(pids))


def ended(pid: int) -> bool:
    """Whether no process has this pid, or only a zombie."""
    found = look(pid)
    return found is None or found.state in "ZX"
