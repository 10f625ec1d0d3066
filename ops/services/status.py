"""What is known of a service at one moment: the words for its state, and the facts beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


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
    log_path: str | None = None  # of the plain-process manager; None under systemd, whose log is the journal
    detail: str = ""
    since: float | None = None  # seconds since the epoch: when it came into this state, as far as its manager knows
    ended_at: float | None = None  # when the last run ended, as far as it is known
    restarts: int | None = None  # how often its manager has started it again by itself; None where it does not count
    ending: bool = False  # its main process is gone, and its manager still ends what is left of it: what comes next is not known yet
    restarting: bool = False  # it has ended, and its manager is about to start it again by itself
    invocation: str = ""  # names this run: a new value is a new process
    log_where: str = ""  # for people: the log's path, or the journalctl command that shows this run

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def runs(self) -> bool:
        return self.pid is not None and self.exit_code is None and self.state not in {ServiceState.STOPPED, ServiceState.FAILED}
