"""An honest stop: afterwards no process of the service is left, and its GPUs are free, or it is said what holds them.

Seen with real vLLM: SIGTERM is ignored while the engine starts; an open stream keeps the main process waiting for its client without
limit; a worker may go on for seconds after the main process is gone. So the port, and even the main process, say nothing about memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.gpus import processes
from ops.gpus.source import MIB, GpuReading, GpuSnapshot, GpuSource
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import state
from ops.services.manager import manager_for
from ops.services.status import ServiceState

TOLERANCE_BYTES = 64 * MIB  # a driver's own bookkeeping varies by some MiB between two idle moments
STARTING_TIMEOUT_S = 10.0  # a server that is still starting ignores SIGTERM, and has no request to finish
_KILL_LIMIT_S = 15.0  # SIGKILL takes effect at once, but freeing some hundred GiB of pinned memory takes seconds
_POLL_S = 0.1


def stop(context: Context, record: ServiceRecord, *, timeout_s: float = 30.0) -> str:
    """Stops the service: SIGTERM to its main process, `timeout_s` for all of its processes to end, then SIGKILL to those that are left.

    Gives how it went, in one line. Raises OpsError naming what is still there after SIGKILL (a process stuck in the driver, say).
    """
    manager = manager_for(record)
    began = time.monotonic()
    seen = manager.pids()
    if not seen:
        return "was not running"
    status = manager.status()
    main = status.pid
    if status.state == ServiceState.STARTING:
        timeout_s = min(timeout_s, STARTING_TIMEOUT_S)
    context.log(f"SIGTERM to process {main}; {len(seen)} processes belong to the service")
    manager.terminate()
    left = _wait_until_gone(context, manager.pids, timeout_s)
    if not left:
        return f"ended {time.monotonic() - began:.1f} s after SIGTERM"
    ignored = main in left
    context.log(f"After {timeout_s:g} s {len(left)} processes are left: {_named(left)}. SIGKILL")
    manager.kill()
    still = _wait_until_gone(context, manager.pids, _KILL_LIMIT_S, again=manager.kill)
    if still:
        raise OpsError(
            f"{len(still)} processes of service `{record.name}` do not end even after SIGKILL: {_named(still)}",
            why="A process that waits inside the kernel (a GPU driver, a file system) cannot be ended",
            hint="Look at the kernel log for NVRM or Xid lines; if they stay, only a restart of the machine helps",
        )
    how = "the main process did not react to SIGTERM" if ignored else "the main process ended, others stayed"
    return f"ended by SIGKILL after {timeout_s:g} s: {how} ({len(left)} processes)"


def _wait_until_gone(context: Context, pids: Callable[[], set[int]], limit_s: float, *, again: Callable[[], None] | None = None) -> set[int]:
    """What is left after at most `limit_s`. `again` is called at each look: a process may have forked between a look and a signal."""
    end, count, told = time.monotonic() + limit_s, 0, 0.0
    while left := pids():
        if time.monotonic() > end:
            return left
        count = max(count, len(left))
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            context.progress(count - len(left), count, "processes", f"{len(left)} of {count} processes are still there")
        if again:
            again()
        context.sleep(_POLL_S)
    return set()


def _named(pids: set[int]) -> str:
    return ", ".join(f"{pid} ({(processes.describe(pid)[1] or '?')[:80]})" for pid in sorted(pids))


def wait_gpus_free(context: Context, record: ServiceRecord, source: GpuSource, *, limit_s: float = 60.0, poll_s: float = 0.25) -> str:
    """Waits until every GPU of the service is free: no process of the service on it, and memory (version 2) at most what was recorded with
    the service down + 64 MiB, in two readings in a row. Without a record, 0 counts as recorded, and the note says so.

    Raises OpsError naming what holds memory, by GPU, pid, user, command and MiB.
    """
    manager = manager_for(record)
    known = state.baseline(record)
    began, end = time.monotonic(), time.monotonic() + limit_s
    calm, told = 0, 0.0
    while True:
        snapshot = processes.claim(source.read(), {record.name: manager.pids()})
        if not record.gpus and not snapshot.gpus:
            return f"no GPU to wait for: {snapshot.problem or 'none is listed for this service'}"
        held = _holders(record, snapshot, known or {})
        calm = 0 if held else calm + 1
        gpus = _chosen(record, snapshot)
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            context.progress(len(gpus) - len(held), len(gpus), "GPUs", held[0] if held else "all free, looking once more")
        if calm == 2:
            note = f"{len(gpus)} GPUs free after {time.monotonic() - began:.1f} s"
            return note if known is not None else f"{note} (no baseline was recorded, so 0 MiB was asked for)"
        if time.monotonic() > end:
            raise OpsError(
                f"{held[0]}" if len(held) == 1 else f"{len(held)} GPUs of service `{record.name}` are not free after {limit_s:g} s",
                why="\n".join(held),
                hint="End what holds the memory, if it may be ended, and try again. Do not lower the memory utilization instead",
                kind="gpus_not_free",
            )
        context.sleep(poll_s)


def _chosen(record: ServiceRecord, snapshot: GpuSnapshot) -> list[GpuReading]:
    return [gpu for gpu in snapshot.gpus if not record.gpus or gpu.index in record.gpus]


def _holders(record: ServiceRecord, snapshot: GpuSnapshot, known: dict[int, int]) -> list[str]:
    """One sentence for each GPU that is not free; empty if all are."""
    told = []
    present = {gpu.index for gpu in snapshot.gpus}
    for index in record.gpus:
        if index not in present:
            told.append(f"GPU {index} is not there: {snapshot.problem or f'only {len(present)} GPUs answer'}")
    for gpu in _chosen(record, snapshot):
        own = [process for process in gpu.processes if process.service == record.name]
        allowed = known.get(gpu.index, 0) + TOLERANCE_BYTES
        if gpu.error:
            told.append(f"GPU {gpu.index} does not answer: {gpu.error}")
        elif gpu.used_bytes is None:
            told.append(f"GPU {gpu.index}: its memory cannot be read, so nobody can say that it is free")
        elif own or gpu.used_bytes > allowed:
            who = "; ".join(
                f"pid {process.pid}, user {process.user or 'unknown'}, `{(process.command or 'unknown command')[:120]}`"
                f", {_mib(process.used_bytes)}{', of this service' if process in own else ''}"
                for process in gpu.processes
            )
            told.append(f"GPU {gpu.index} holds {_mib(gpu.used_bytes)} ({_mib(allowed)} are allowed): {who or 'no process is listed for it'}")
    return told


def _mib(amount: int | None) -> str:
    return "unknown MiB" if amount is None else f"{amount / MIB:,.0f} MiB"


def record_baseline(record: ServiceRecord, snapshot: GpuSnapshot) -> None:
    """Remembers what the service's GPUs hold with the service down. A lower value from before stays: else the 64 MiB would add up stop by stop."""
    used = {str(gpu.index): gpu.used_bytes for gpu in _chosen(record, snapshot) if gpu.used_bytes is not None}

    def edit(known: dict[str, object]) -> None:
        old = known.get("baseline")
        before: dict[str, int] = dict(old) if isinstance(old, dict) else {}
        known["baseline"] = before | {index: min(amount, before.get(index, amount)) for index, amount in used.items()}

    if used:
        state.change(record, edit)
