"""Who starts and stops a service: one interface, whatever does it.

`process` is the plain-process manager (practice, hosts without systemd). What a `systemd` record gets says clearly that it cannot yet.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord


class ServiceState(StrEnum):
    """`unknown`: it runs and was healthy, but does not answer now, or nothing can be told."""

    HEALTHY = "healthy"
    STARTING = "starting"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """A service at one moment. `detail` is one sentence for people; `exit_code` None if it runs or the code is not known."""

    state: str
    pid: int | None = None
    start_ticks: int | None = None
    started_at: float | None = None  # seconds since the epoch
    release: str | None = None
    exit_code: int | None = None
    log_path: str | None = None
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def runs(self) -> bool:
        return self.pid is not None and self.exit_code is None and self.state not in {ServiceState.STOPPED, ServiceState.FAILED}


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
        from ops.services.process import ProcessManager

        return ProcessManager(record)
    raise OpsError(
        f"Service `{record.name}` is the systemd unit `{record.unit}`, which this version cannot start or stop",
        why="Only services of the plain-process manager can be controlled so far; units come with the systemd manager",
        hint="Its pages, packages and benchmarks work. To control it here, run it under the process manager (`manager: process`)",
        kind="unsupported",
    )
