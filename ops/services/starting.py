"""Starts a service: its launcher's files, its process, and a first look whether it lives."""

from __future__ import annotations

import time

from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import launch
from ops.services.manager import manager_for
from ops.services.status import ServiceState

_LOOK_S = 0.5  # long enough for a launcher that cannot run at all; what dies later is the warmup watch's


def start(context: Context, record: ServiceRecord) -> str:
    """Starts the service and gives a note with pid and release. Raises OpsError if it cannot start or ends at once.

    A service that ends a moment later, with a log to read, is left to the warmup watch, which tells why.
    """
    launch.write(record)
    manager = manager_for(record)
    status = manager.start()
    end = time.monotonic() + _LOOK_S
    while time.monotonic() < end and status.state not in {ServiceState.FAILED, ServiceState.STOPPED}:
        context.sleep(0.1)
        status = manager.status()
    if status.state in {ServiceState.FAILED, ServiceState.STOPPED} and not _has_log(status.log_path):
        raise OpsError(f"Service `{record.name}` ended at once and wrote nothing", why=status.detail, hint=f"Look at `{status.log_path}`")
    return f"pid {status.pid}, {status.release}"


def _has_log(path: str | None) -> bool:
    from pathlib import Path

    return path is not None and Path(path).exists() and Path(path).stat().st_size > 0
