"""An honest stop: afterwards no process of the service is left, and its GPUs are free, or it is said what holds them.

Seen with real vLLM: SIGTERM is ignored while the engine starts; an open stream keeps the main process waiting for its client without
limit; a worker may go on for seconds after the main process is gone. So the port, and even the main process, say nothing about memory.
Each of these is told while it is waited for.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from ops.gpus import processes
from ops.gpus.source import MIB, GpuProcess, GpuReading, GpuSnapshot, GpuSource
from ops.jobs import marks
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import health, listeners, ownership, state
from ops.services.manager import Manager, manager_for
from ops.services.status import ServiceState

TOLERANCE_BYTES = 64 * MIB  # a driver's own bookkeeping varies by some MiB between two idle moments
STARTING_TIMEOUT_S = 10.0  # a server that is still starting ignores SIGTERM, and has no request to finish
KILL_LIMIT_S = 15.0  # SIGKILL takes effect at once, but freeing some hundred GiB of pinned memory takes seconds
WORKERS_S = 15.0  # a worker was seen to go on for 8 s after its main process
EXPLAIN_AFTER_S = 1.0  # an idle server ends within 0.7 s
NOTHING_ENDED_S = 2.0  # for GPUs whose service had no process to end: nothing frees what another program holds
UNREADABLE_S = 5.0  # for a driver that answers nothing at all: it will not free anything either
_POLL_S = 0.1
_ENDED = "stopping.ended"  # in a job's `kept`: whether its stop had something to end


def stop(context: Context, record: ServiceRecord, *, timeout_s: float | None = None) -> str:
    """Stops the service: SIGTERM to its main process (or what its unit says), time for all of its processes to end, then SIGKILL to those left.

    `timeout_s`: by default what its manager says (`stop_limit_s`), and at most STARTING_TIMEOUT_S while it starts. Gives how it went, in one line.
    Raises OpsError naming what is still there after SIGKILL (a process stuck in the driver, say).
    """
    manager = manager_for(record)
    began = time.monotonic()
    status = manager.status()
    seen = manager.pids()
    ownership.remember(record, status, seen, ending=True)
    context.kept[_ENDED] = bool(seen) or status.state not in {ServiceState.STOPPED, ServiceState.FAILED}
    if not seen:
        return _stay_down(context, record, manager)
    main = status.pid
    if timeout_s is None:
        timeout_s = manager.stop_limit_s()
    if status.state == ServiceState.STARTING and timeout_s > STARTING_TIMEOUT_S:
        timeout_s = STARTING_TIMEOUT_S
        context.log(f"It is still starting: vLLM ignores SIGTERM then, so what is left after {timeout_s:g} s is ended by SIGKILL")
    context.log(f"SIGTERM to {'its processes' if main is None else f'process {main}'}; {len(seen)} processes belong to the service")
    manager.terminate()
    if not status.runs:  # its main process is gone: nobody would ask the others
        for pid in seen:
            marks.send(pid, signal.SIGTERM, lambda pid: pid in manager.pids())
    ownership.remember(record, status, manager.pids(), ending=True)  # what was started since the first look
    left = _wait_until_gone(context, manager.pids, timeout_s, explain=lambda left: _why_still(record, main, seen, left),
                            over=_Workers(main).had_their_time if main is not None or not status.runs else None)
    waited = time.monotonic() - began
    if not left:
        return f"ended {waited:.1f} s after SIGTERM"
    ignored = main in left
    context.log(f"After {waited:.1f} s {len(left)} processes are left: {_named(left)}. SIGKILL")
    manager.kill()
    still = _wait_until_gone(context, manager.pids, KILL_LIMIT_S, again=manager.kill)
    if still:
        raise OpsError(
            f"{len(still)} processes of service `{record.name}` do not end even after SIGKILL: {_named(still)}",
            why="A process that waits inside the kernel (a GPU driver, a file system) cannot be ended",
            hint="Look at the kernel log for NVRM or Xid lines; if they stay, only a restart of the machine helps",
        )
    how = "the main process did not react to SIGTERM" if ignored else "the main process ended, others stayed"
    return f"ended by SIGKILL after {waited:.1f} s: {how} ({len(left)} processes)"


class _Workers:
    """Once the main process is gone, what is left gets WORKERS_S and no more: nothing asks it to end any more, and nothing collects it."""

    def __init__(self, main: int | None) -> None:
        self._main, self._gone_at = main, 0.0

    def had_their_time(self, left: set[int]) -> bool:
        if self._main in left:
            self._gone_at = 0.0
            return False
        self._gone_at = self._gone_at or time.monotonic()
        return time.monotonic() - self._gone_at > WORKERS_S


def _stay_down(context: Context, record: ServiceRecord, manager: Manager) -> str:
    """A unit without a process may be about to start again (Restart=always): it is told to stay down. Nothing where nothing starts it again."""
    if record.manager != "systemd" or (before := manager.status()).state == ServiceState.STOPPED:
        return "was not running"
    manager.terminate()
    if left := _wait_until_gone(context, manager.pids, manager.stop_limit_s()):
        manager.kill()
        left = _wait_until_gone(context, manager.pids, KILL_LIMIT_S, again=manager.kill)
    if left:
        raise OpsError(f"Service `{record.name}` was started again while it was stopped: {_named(left)}", hint="Stop it once more")
    return f"no process of it ran; it was {before.state}, and stays down"


def _why_still(record: ServiceRecord, main: int | None, seen: set[int], left: set[int]) -> str:
    """What a stop waits for, as far as it can be told; "" if it cannot. All of these were seen with real vLLM."""
    if main is None:
        return ""
    if main not in left:
        return f"The main process has ended, {len(left)} of its workers go on for now: a worker may need seconds to free its GPU"
    if len(seen) > 1 and left == {main} and (streams := listeners.connections(health.port_of(record.base_url))):
        return (f"The engine has ended; the main process waits for {streams} open connection{'' if streams == 1 else 's'}: a client that holds a "
                "stream keeps it, without an error and without an end, until the limit")
    return ""


def _wait_until_gone(context: Context, pids: Callable[[], set[int]], limit_s: float, *, again: Callable[[], None] | None = None,
                     explain: Callable[[set[int]], str] | None = None, over: Callable[[set[int]], bool] | None = None) -> set[int]:
    """What is left after at most `limit_s`, or once `over` holds of it. `again` is called at each look: a process may have forked between a look and
    a signal. What `explain` says of those that are left after a second is told, each sentence once."""
    began = time.monotonic()
    end, count, told, said = began + limit_s, 0, 0.0, ""
    while left := pids():
        if time.monotonic() > end or (over is not None and over(left)):
            return left
        count = max(count, len(left))
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            why = explain(left) if explain and told - began > EXPLAIN_AFTER_S else ""
            if why and why != said:
                context.log(said := why)
            context.progress(count - len(left), count, "processes", why or f"{len(left)} of {count} processes are still there")
        if again:
            again()
        context.sleep(_POLL_S)
    return set()


def _named(pids: set[int]) -> str:
    return ", ".join(f"{pid} ({(processes.describe(pid)[1] or '?')[:80]})" for pid in sorted(pids))


def nothing_to_end(context: Context) -> bool:
    """Whether this job's stop found the service down. False where another process of the job did the stop: what it found is not known."""
    return not context.kept.get(_ENDED, True)


def time_to_free_s(context: Context, record: ServiceRecord, usual_s: float) -> float:
    """How long the GPUs may take to come free after this job's stop: `usual_s`, or NOTHING_ENDED_S where it found nothing to end, and the service had
    not ended by itself shortly before."""
    if not nothing_to_end(context):
        return usual_s
    ended_at = manager_for(record).status().ended_at
    return usual_s if ended_at is not None and time.time() - ended_at < usual_s else min(usual_s, NOTHING_ENDED_S)


def wait_gpus_free(context: Context, record: ServiceRecord, source: GpuSource, *, limit_s: float = 60.0, poll_s: float = 0.25) -> str:
    """Waits until every GPU of the service is free: no process of the service on it, and memory (version 2) at most what was recorded with
    the service down + 64 MiB, in two readings in a row. Without a record, 0 counts as recorded, and the note says so.

    Raises OpsError naming what holds memory, by GPU, pid, user, unit, command, start time and MiB.
    """
    manager = manager_for(record)
    known = state.baseline(record)
    mine = set(ownership.left_over(record, manager))  # of an earlier run too: told as such
    began, end = time.monotonic(), time.monotonic() + limit_s
    calm, told = 0, 0.0
    while True:
        snapshot = processes.claim(source.read(), {record.name: manager.pids() | mine})
        if not record.gpus and not snapshot.gpus:
            return f"no GPU to wait for: {snapshot.problem or 'none is listed for this service'}"
        holders = not_free(record, snapshot)
        held = [one.words for one in holders]
        calm = 0 if held else calm + 1
        gpus = _chosen(record, snapshot)
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            context.progress(len(gpus) - len(held), len(gpus), "GPUs", held[0] if held else "all free, looking once more")
        if calm == 2:
            note = f"{len(gpus)} GPUs free after {time.monotonic() - began:.1f} s"
            return note if known is not None else f"{note} (no baseline was recorded, so 0 MiB was asked for)"
        if held and not snapshot.gpus and time.monotonic() - began > min(limit_s, UNREADABLE_S):
            raise OpsError(f"No GPU of this machine can be read, so whether those of service `{record.name}` are free is not known",
                           why=snapshot.problem or "", kind="gpus_not_free",
                           hint="`nvidia-smi` must list them. If this machine has none, take `gpus` out of the service's record")
        if time.monotonic() > end:
            raise OpsError(
                f"{held[0]}" if len(held) == 1 else f"{len(held)} GPUs of service `{record.name}` are not free after {limit_s:g} s",
                why="\n".join(held),
                hint="Look at `nvidia-smi`: a GPU that does not answer may need a reset, or a restart of the machine"
                     if all(one.used_bytes is None for one in holders) else
                     "End what holds the memory, if it may be ended (a leftover of this service can be, by the job `end-leftovers`), and try again. "
                     "Do not lower the memory utilization instead",
                kind="gpus_not_free",
            )
        context.sleep(poll_s)


def _chosen(record: ServiceRecord, snapshot: GpuSnapshot) -> list[GpuReading]:
    return [gpu for gpu in snapshot.gpus if not record.gpus or gpu.index in record.gpus]


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU of a service that is not free, in one sentence."""

    index: int
    used_bytes: int | None
    allowed_bytes: int
    words: str


def not_free(record: ServiceRecord, snapshot: GpuSnapshot) -> list[Held]:
    """Each GPU of the service that is not free: one of its processes (as the snapshot claims them) is on it, or it holds more than what was recorded
    with the service down (nothing, where that was never recorded) + 64 MiB, or that cannot be told. Empty if all are free."""
    known = state.baseline(record) or {}
    told = []
    present = {gpu.index for gpu in snapshot.gpus}
    for index in record.gpus:
        if index not in present:
            told.append(Held(index, None, known.get(index, 0) + TOLERANCE_BYTES,
                             f"GPU {index} is not there: {snapshot.problem or f'only {len(present)} GPUs answer'}"))
    for gpu in _chosen(record, snapshot):
        own = [process for process in gpu.processes if process.service == record.name]
        allowed = known.get(gpu.index, 0) + TOLERANCE_BYTES
        if gpu.error:
            words = f"GPU {gpu.index} does not answer: {gpu.error}"
        elif gpu.used_bytes is None:
            words = f"GPU {gpu.index}: its memory cannot be read, so nobody can say that it is free"
        elif own or gpu.used_bytes > allowed:
            who = "; ".join(_holder(process, own=process in own) for process in gpu.processes)
            words = (f"GPU {gpu.index} holds {_mib(gpu.used_bytes)} ({_mib(allowed)} are allowed): "
                     f"{who or 'no process is listed for it (one in a container, or a driver that has lost it)'}")
        else:
            continue
        told.append(Held(gpu.index, gpu.used_bytes, allowed, words))
    return told


def _holder(process: GpuProcess, *, own: bool) -> str:
    unit = processes.unit_of(process.pid)
    began = process.started_at if process.started_at is not None else processes.describe(process.pid)[2]
    return ", ".join(part for part in (
        f"pid {process.pid}", f"user {process.user or 'unknown'}", f"unit {unit}" if unit else "no unit",
        f"`{(process.command or 'unknown command')[:120]}`",
        "started at an unknown time" if began is None else f"started {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(began))}",
        _mib(process.used_bytes), "of this service" if own else "") if part)


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
