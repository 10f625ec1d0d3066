"""The state of a service whose main process lives: does it answer, and is it the one who answers? The same under every manager."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.jobs.redact import log_text
from ops.records import ServiceRecord
from ops.services import health, launch, listeners
from ops.services.state import write_file
from ops.services.status import ServiceState, ServiceStatus

HEALTH_TIMEOUT_S = 2.0
_answered: dict[Path, tuple[tuple[Any, ...], float]] = {}  # of a service's folder: the run that answered last, and when (monotonic)


def status(record: ServiceRecord, *, invocation: str, stopping: bool, pids: Callable[[], set[int]], facts: dict[str, Any],
           starts: str = "It starts", every_s: float = 0) -> ServiceStatus:
    """Asks /health once. `facts`: the other fields of the status; `starts`: how its start is told.

    With `every_s`, a process that answered is not asked again for so long, and is taken to answer; one that does not is asked each time.
    The file `healthy` beside the launcher keeps the run (`invocation`) that was healthy once: from then on silence is no start any more.
    """
    run = (record.base_url, invocation, facts.get("pid"), facts.get("start_ticks"))
    known, at = _answered.get(record.folder, (None, 0.0))
    if known == run and not stopping and time.monotonic() - at < every_s:
        return ServiceStatus(state=ServiceState.HEALTHY, detail="It answers", **facts)
    _answered.pop(record.folder, None)
    was_healthy = _was_healthy(record, invocation)
    answer = health.health(record.base_url, timeout_s=HEALTH_TIMEOUT_S)
    if answer.sensible and stopping:  # it may go on answering for a moment, or until its last stream ends
        return ServiceStatus(state=ServiceState.UNKNOWN, detail="It is being stopped, and still answers", **facts)
    if answer.ok and not was_healthy and not stopping and (other := listeners.foreign(health.port_of(record.base_url), pids())):
        return ServiceStatus(state=ServiceState.STARTING, detail=f"Its port is answered by something else: {other}", **facts)
    if answer.sensible:
        if not was_healthy:
            with contextlib.suppress(OSError):  # a full disk: it is noted at a later look
                write_file(healthy_file(record), invocation)
        _answered[record.folder] = (run, time.monotonic())
        return ServiceStatus(state=ServiceState.HEALTHY, detail="It answers", **facts)
    told = f"/health answers {answer.status}" if answer.status else answer.why
    if answer.ok:
        shown = log_text(answer.body[:80].decode(errors="replace"), launch.secrets(record)).strip()
        told += f", but says nothing that a server says of its health: `{shown}`"
    if was_healthy or stopping:
        ending = "It is being stopped" if stopping else "It was healthy, but does not answer now"
        return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"{ending}: {told}", **facts)
    return ServiceStatus(state=ServiceState.STARTING, detail=f"{starts}: {told}", **facts)


def healthy_file(record: ServiceRecord) -> Path:
    return record.folder / "healthy"


def _was_healthy(record: ServiceRecord, invocation: str) -> bool:
    try:
        return healthy_file(record).read_text() == invocation
    except (FileNotFoundError, NotADirectoryError):
        return False
