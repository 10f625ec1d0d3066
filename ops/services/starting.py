"""Starts a service: its launcher's files, its process, and a first look whether it lives."""

from __future__ import annotations

import time

from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import launch, ownership, pending
from ops.services.manager import Manager, manager_for
from ops.services.status import ServiceState

_LOOK_S = 0.5  # long enough for a launcher that cannot run at all; what dies later is the warmup watch's


def start(context: Context, record: ServiceRecord) -> str:
    """Starts the service and gives a note with pid and release. Raises OpsError if it cannot start or ends at once.

    A service that ends a moment later, with a log to read, is left to the warmup watch, which tells why.
    """
    launch.write(record)
    manager = manager_for(record)
    note, given = _what_runs(record, manager), pending.digest(record)
    status = manager.start()
    pending.note_start(record, status.invocation, given)
    end = time.monotonic() + _LOOK_S
    while time.monotonic() < end and status.state not in {ServiceState.FAILED, ServiceState.STOPPED}:
        context.sleep(0.1)
        status = manager.status()
    ownership.remember(record, status, manager.pids())
    if status.state in {ServiceState.FAILED, ServiceState.STOPPED} and not _has_log(manager):
        raise OpsError(f"Service `{record.name}` ended at once and wrote nothing", why=status.detail,
                       hint=f"Look at `{status.log_where or status.log_path}`")
    pid = f"pid {status.pid}" if status.pid is not None else "it has ended already"
    return f"{pid}, {status.release or 'its release is not known'}{note}"


def _what_runs(record: ServiceRecord, manager: Manager) -> str:
    """Where a unit does not start our launcher, what it starts is its own command line: "" otherwise."""
    installed = getattr(manager, "launcher_installed", None)
    if installed is None or installed():
        return ""
    return f"; `{record.unit}` runs its own command, not the launcher: releases and settings of this console do not count for it yet"


def _has_log(manager: Manager) -> bool:
    """Whether it wrote anything by which the warmup watch can say why it ended."""
    try:
        return next(iter(manager.log_lines()), None) is not None
    except OpsError:
        return False
