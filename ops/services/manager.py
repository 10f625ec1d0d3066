"""Who starts and stops a service: one interface, whatever does it.

`process` is the plain-process manager (practice, hosts without systemd). What a `systemd` record gets says clearly that it cannot yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services.process import ProcessManager
from ops.services.status import ServiceStatus


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
        """The log of the current (else the last) run; None if there is none."""
        ...


def manager_for(record: ServiceRecord) -> Manager:
    """The manager of this service. Raises OpsError for `systemd`."""
    if record.manager == "process":
        return ProcessManager(record)
    raise OpsError(
        f"Service `{record.name}` is the systemd unit `{record.unit}`, which this version cannot start or stop",
        why="Only services of the plain-process manager can be controlled so far; units come with the systemd manager",
        hint="Its pages, packages and benchmarks work. To control it here, run it under the process manager (`manager: process`)",
        kind="unsupported",
    )
