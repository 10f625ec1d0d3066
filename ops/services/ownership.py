"""Which processes are this service's, also when the run that started them is over? Only what can be proven counts: it may be ended.

A worker that outlives its main process holds gigabytes, and may have lost its parent, its session and its mark by then. So the processes of a run
are remembered while it runs (`remember`): pid *and* start time, within one boot, in `state.json`:

    "runs": [{"boot_id", "invocation", "main": [pid, start_ticks], "seen": ticks, "pids": [[pid, start_ticks], ...]}, ...]   oldest first

`seen` is when that was last written, in clock ticks since boot: up to then the main process was alive, so its session's number was its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state
from ops.services.manager import Manager
from ops.services.process import MARK
from ops.services.status import ServiceStatus

RUNS_KEPT = 5
PIDS_KEPT = 1000  # of one run
_SYSTEMD_MARK = "INVOCATION_ID"  # which systemd gives to every process of a unit's run


@dataclass(frozen=True, slots=True)
class Owned:
    """A living process that is the service's. `why`: what proves it, in words."""

    pid: int
    start_ticks: int
    why: str


def remember(record: ServiceRecord, status: ServiceStatus, pids: Iterable[int], *, ending: bool = False) -> None:
    """Notes the processes of the run that runs. Call it now and then: it reads one small file, and writes only for processes that are new, and
    (`ending`) when the run is about to be ended. On a full disk, or where `state.json` cannot be used, nothing is noted: no reason to stop less."""
    if status.pid is None or status.start_ticks is None:
        return
    found = [[pid, ticks] for pid in sorted(pids) if (ticks := processes.start_ticks(pid)) is not None]
    main = [status.pid, status.start_ticks]
    with contextlib.suppress(OSError, OpsError):
        run = _run(_runs(record), status.invocation, main)
        if ending or run is None or not all(one in run["pids"] for one in [main, *found]):
            state.change(record, lambda known: _note(known, status.invocation, main, found))


def _note(known: dict[str, Any], invocation: str, main: list[int], found: list[list[int]]) -> None:
    boot = processes.boot_id()
    runs = [run for run in known.get("runs") or [] if _is_run(run) and run["boot_id"] == boot]
    run = _run(runs, invocation, main)
    if run is None:
        run = {"boot_id": boot, "invocation": invocation, "main": main, "seen": 0, "pids": []}
        runs.append(run)
    run["seen"] = _now_ticks()
    living = [one for one in run["pids"] if processes.is_alive(*one)]
    now = [main, *(one for one in found if one != main)]
    run["pids"] = (living + [one for one in now if one not in living])[-PIDS_KEPT:]
    for other in runs:
        if other is not run:
            other["pids"] = [one for one in other["pids"] if processes.is_alive(*one)]
    known["runs"] = runs[-RUNS_KEPT:]


def _run(runs: list[dict[str, Any]], invocation: str, main: list[int]) -> dict[str, Any] | None:
    return next((run for run in reversed(runs) if run["main"] == main and run["invocation"] == invocation), None)


def _runs(record: ServiceRecord) -> list[dict[str, Any]]:
    """The remembered runs of this boot."""
    return [run for run in state.read(record).get("runs") or [] if _is_run(run) and run["boot_id"] == processes.boot_id()]


def _is_run(raw: Any) -> bool:
    return isinstance(raw, dict) and {"boot_id", "invocation", "main", "seen", "pids"} <= set(raw)


def _now_ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def began_at(record: ServiceRecord, invocation: str) -> float | None:
    """When the main process of this run started (seconds since the epoch); None for a run of another boot, or one that was never seen."""
    run = next((run for run in reversed(_runs(record)) if run["invocation"] == invocation), None)
    return processes.started_at(run["main"][1]) if run is not None else None


def of_running(manager: Manager, status: ServiceStatus | None = None) -> set[int]:
    """The processes of the run that runs now: no leftovers, whatever they hold. Empty while the main process is gone."""
    status = status or manager.status()
    return manager.pids() if status.runs else set()


def left_over(record: ServiceRecord, manager: Manager, *, status: ServiceStatus | None = None) -> dict[int, Owned]:
    """Living processes of this service that are none of the run that runs now, by pid, each with its proof.

    Proof is any of: it was seen among the service's processes (pid and start time), it carries the random mark of one of its runs, it joined the
    session of a main process while that lived, it is in the unit's control group, or one of these is its parent.
    """
    status = status or manager.status()
    table = {process.pid: process for process in processes.all_processes() if process.state not in "ZX"}
    running = of_running(manager, status)
    never = running | _ourselves(table)
    runs = _runs(record)
    seen = {(one[0], one[1]) for run in runs for one in run["pids"]}
    marks = {run["invocation"] for run in runs if run["invocation"]} | ({status.invocation} if status.invocation else set())
    rest = manager.pids() - running
    uid: int | None = None  # of the service's user: whoever else carries a mark has put it there, for it stands in logs and on pages
    found: dict[int, Owned] = {}
    for pid, process in table.items():
        if pid in never:
            continue
        if (pid, process.start_ticks) in seen:
            why = "it was seen among the service's processes"
        elif pid in rest:
            why = "it is one of the service's processes, whose main process is gone"
        elif record.manager == "systemd" and in_unit(pid, record):
            why = f"it is in the control group of `{record.unit}`"
        elif any(_joined(process, run) for run in runs):
            why = "it is in the session of the service's main process"
        elif marks and _carries(pid, marks) and processes.real_uid(pid) == (uid := user_of(record, manager)[0] if uid is None else uid):
            why = "it carries the mark of a run of the service"
        else:
            continue
        found[pid] = Owned(pid, process.start_ticks, why)
    grown = True
    while grown:
        children = {pid for pid, process in table.items() if process.parent in found and pid not in found and pid not in never}
        found |= {pid: Owned(pid, table[pid].start_ticks, f"pid {table[pid].parent}, which is the service's, started it") for pid in children}
        grown = bool(children)
    return found


def _joined(process: processes.Process, run: dict[str, Any]) -> bool:
    """Whether it has been in the main process's session since a moment at which that lived: a session's number is nobody else's as long."""
    main = run["main"]
    return bool(process.session == main[0] and main[1] <= process.start_ticks <= run["seen"])


def _carries(pid: int, marks: set[str]) -> bool:
    environment = processes.environment(pid) or {}
    return environment.get(MARK) in marks or environment.get(_SYSTEMD_MARK) in marks


def _ourselves(table: dict[int, processes.Process]) -> set[int]:
    """This process and all above it: whatever the proof says, a job never ends itself."""
    mine, pid = {0, 1}, os.getpid()
    while pid in table and pid not in mine:
        mine.add(pid)
        pid = table[pid].parent
    return mine


def in_unit(pid: int, record: ServiceRecord) -> bool:
    """Whether it is in the control group of the service's unit: of the system, or of the user's own manager, as the record says.

    The outermost unit counts: below its own another user, or a container, may name a group as it likes.
    """
    units = [part for part in (processes.control_group(pid) or "").split("/") if part.endswith((".service", ".scope"))]
    if record.unit_scope == "user":
        return units[:2] == [f"user@{os.getuid()}.service", record.unit]
    return units[:1] == [record.unit]


def user_of(record: ServiceRecord, manager: Manager) -> tuple[int, str]:
    """Who the service's processes run as (uid, name): its unit's user, else this process's own."""
    import pwd

    if record.manager == "systemd" and record.unit_scope != "user":
        with contextlib.suppress(OpsError, KeyError):  # the unit is gone, or its user is: what this user left is all that can be looked for
            found = pwd.getpwnam(manager.variables().get("USER") or "root")
            return found.pw_uid, found.pw_name
    uid = os.geteuid()
    try:
        return uid, pwd.getpwuid(uid).pw_name
    except KeyError:
        return uid, str(uid)
