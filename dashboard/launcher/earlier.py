"""One start per state folder, and what an earlier one left behind.

The launcher holds a lock on `<state>/launcher.lock` while it lives. Every process that it starts carries `ROUNDHOUSE_START=<state folder>`
in its environment, also those that these start in turn. They die with the launcher, yet need a moment for it; so whoever still
carries the mark when the next start has the lock is ended first. Two kinds are not the launcher's to end and go on: a job's
processes (they carry `ROUNDHOUSE_JOB`) and services (started with a clean environment).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ops.agent.config import make_private
from ops.gpus.processes import boot_id, environment, is_alive, marked_with, start_ticks
from ops.jobs.errors import BadInput, Busy, OpsError
from ops.jobs.marks import JOB_MARK, end, tell

START_MARK = "ROUNDHOUSE_START"


def check_state_folder(state: Path) -> None:
    """Makes the folder, private to this user. Raises BadInput, with nothing done, if that cannot be."""
    hint = "Choose another folder with ROUNDHOUSE_STATE"
    try:
        make_private(state)
        if state.stat().st_uid != os.getuid():
            raise BadInput(f"The state folder `{state}` belongs to another user", hint=hint)
        tempfile.TemporaryFile(dir=state).close()
    except OSError as error:
        raise BadInput(f"The state folder `{state}` cannot be written to: {error.strerror or error}", hint=hint) from error


class Start:
    """This start: its lock on the state folder, its mark, and `launcher.json`, which says who it is."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.mark = str(state)
        self._lock: int | None = None

    @property
    def record(self) -> Path:
        return self.state / "launcher.json"

    def take(self) -> None:
        """Takes the lock and sets the mark. Raises Busy naming the launcher that has it."""
        descriptor = os.open(self.state / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Busy(f"Roundhouse already runs with the state folder `{self.state}`{_where(self._read())}",
                       hint="End it with Ctrl-C, or choose another folder with ROUNDHOUSE_STATE") from None
        self._lock = descriptor
        os.environ[START_MARK] = self.mark

    def write(self, **facts: Any) -> None:
        """Says who runs here: pid, start time, boot, and the facts given (address, practice)."""
        made = self.state / ".launcher.json.new"
        told = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot_id": boot_id(), "started_at": time.time(), **facts}
        made.write_text(json.dumps(told) + "\n")
        made.replace(self.record)

    def left(self) -> set[int]:
        """Processes of this state folder's starts, without this one and without those of jobs."""
        return {pid for pid in marked_with(START_MARK, self.mark) if pid != os.getpid() and not (environment(pid) or {}).get(JOB_MARK)}

    def end_leftovers(self) -> int:
        """Ends what an earlier start left: TERM, after 10 s KILL. Gives how many; raises OpsError if one cannot be ended."""
        found = self.left()
        if found and (stuck := end(self.left, self._is_left)):
            raise OpsError(f"An earlier start left processes that cannot be ended: {tell(stuck)}", hint="Restart this machine")
        return len(found)

    def _is_left(self, pid: int) -> bool:
        return pid in self.left()

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.record.read_text()))
        except (OSError, ValueError):  # just starting
            return {}

    def release(self) -> None:
        """Lets the folder go, at the very end."""
        self.record.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def running_address(state: Path) -> str | None:
    """The web address of the launcher that runs with this state folder; None if none does."""
    known = Start(state)._read()
    pid, ticks = known.get("pid"), known.get("start_ticks")
    alive = isinstance(pid, int) and isinstance(ticks, int) and is_alive(pid, ticks)
    return str(known["address"]) if alive and known.get("address") else None


def _where(known: dict[str, Any]) -> str:
    """` (pid 12, http://127.0.0.1:8470)`, or nothing if the record is not of the one that holds the lock."""
    pid, ticks = known.get("pid"), known.get("start_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int) or not is_alive(pid, ticks):
        return ""
    return f" (pid {pid}, {known['address']})" if known.get("address") else f" (pid {pid})"
