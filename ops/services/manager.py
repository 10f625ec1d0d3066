"""Who starts and stops a service: one interface, whatever does it.

`process` is the plain-process manager (practice, hosts without systemd), `systemd` a unit of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ops.records import ServiceRecord
from ops.services.process import ProcessManager
from ops.services.status import ServiceStatus


class RunLog(Protocol):
    """The log of one run as it grows: lines in the order in which they were written, from the beginning of the run."""

    where: str  # for people: a path, or a journalctl command

    def read(self, limit: int = 1 << 20) -> bytes:
        """What it grew by, at most about `limit` bytes, in any pieces (a line may come in two). b"" if nothing is there now; never blocks for long.

        A journal's entries come as `2026-11-29T23:44:38.123456+0000 host ident[pid]: message` lines, which `log_lines.parse` reads. What is gone
        (the journal was rotated meanwhile) is a line of its own that says so.
        """
        ...

    def close(self) -> None: ...


class Manager(Protocol):
    """Starts, stops and looks at one service."""

    def status(self) -> ServiceStatus:
        """Never raises for a service that is in a bad state: that is what `state` and `detail` are for."""
        ...

    def start(self) -> ServiceStatus:
        """Starts it and comes back at once; the same status if it runs already. Raises OpsError if it cannot be started."""
        ...

    def terminate(self) -> None:
        """Asks it to end (SIGTERM to the main process, or what the unit says) and comes back at once."""
        ...

    def kill(self) -> None:
        """SIGKILL to every process of it."""
        ...

    def pids(self) -> set[int]:
        """Every living process of it: main, engine, workers, also those that left its session."""
        ...

    def log_path(self) -> Path | None:
        """The file that holds the log of the current (else the last) run; None if there is none, and under systemd."""
        ...

    def run_log(self) -> RunLog | None:
        """The log of the current (else the last) run, to be followed from its beginning; None if it never ran. Raises OpsError if it may not be
        read."""
        ...

    def log_lines(self, invocation: str = "") -> Iterator[str]:
        """The log of that run, by default of the current (else the last) one, so far, line by line, however long it is. A manager that keeps each
        run's log in a file of its own, and starts nothing by itself, has the last one only. Raises OpsError if it may not be read."""
        ...

    def stop_limit_s(self) -> float:
        """How long a stop may take before whoever asked for it must use force: the unit's own TimeoutStopSec= and a margin, or a default."""
        ...

    def variables(self) -> dict[str, str]:
        """The whole environment that a start would give the launcher (PATH, HOME, USER, the unit's Environment= and files), without `record.env`."""
        ...

    def open_files_limit(self) -> int | None:
        """The hard limit of open files that a start would get; None: unlimited."""
        ...

    def reset_failed(self) -> None:
        """Forgets a failed state, and a start limit that was hit. Nothing where the manager has no such thing."""
        ...


def manager_for(record: ServiceRecord, *, health_every_s: float = 0) -> Manager:
    """The manager of this service. Raises BadInput for a unit that is none.

    `health_every_s`: a run that answered its health question is taken to answer for so long, in this process; how its processes are is looked
    at each time. vLLM writes a line of log for each question.
    """
    if record.manager == "process":
        return ProcessManager(record, health_every_s=health_every_s)
    from ops.services.systemd import SystemdManager

    return SystemdManager(record, health_every_s=health_every_s)
