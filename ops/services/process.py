"""The plain-process manager: runs `services/<name>/launch` as a detached process, for practice and for hosts without systemd.

`process.json` beside the launcher says what was started: pid, start time, boot id, log, release, and a random mark that every process of
the service carries in its environment (SERVICE_INVOCATION), by which also those are found that left the session or lost their parent.
It is written before the start as well, so that a crash in between leaves a mark to look for instead of an unknown process.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import answering, launch, run_log, spawner
from ops.services.state import read_json, write_file
from ops.services.status import ServiceState, ServiceStatus

MARK = "SERVICE_INVOCATION"
STOP_LIMIT_S = 30.0
LOGS_KEPT = 20
_EXIT_S = 1.0  # for the keeper to write down how the process ended: a loaded machine, a slow disk
_FIELDS = {"pid", "start_ticks", "boot_id", "invocation", "log", "release", "stopping"}


class ProcessManager:
    """Implements Manager. Holds no state of its own: any process may make one and sees the same service."""

    def __init__(self, record: ServiceRecord, *, health_every_s: float = 0) -> None:
        """`health_every_s`: see manager.manager_for."""
        self.record = record
        self.health_every_s = health_every_s
        self._file = record.folder / "process.json"
        self._exit_file = record.folder / "exit.json"

    # ---- looking ----

    def status(self) -> ServiceStatus:
        try:
            known = self._known()
        except OpsError as error:
            return ServiceStatus(state=ServiceState.UNKNOWN, detail=error.what)
        if known is None:
            return ServiceStatus(state=ServiceState.STOPPED, detail="It was never started here")
        common = {"release": known["release"], "log_path": known["log"], "log_where": known["log"], "invocation": known["invocation"]}
        if known["boot_id"] != processes.boot_id():
            return ServiceStatus(state=ServiceState.STOPPED, detail="The machine was restarted since it was started", **common)
        if known["pid"] is None:
            return ServiceStatus(state=ServiceState.FAILED, detail="Its start was interrupted before the process existed", **common)
        pid, ticks = known["pid"], known["start_ticks"]
        if not processes.is_alive(pid, ticks):
            return self._ended(known, common)
        common |= {"pid": pid, "start_ticks": ticks, "started_at": processes.started_at(ticks)}
        return answering.status(self.record, invocation=known["invocation"], stopping=known["stopping"], pids=self.pids, facts=common,
                                every_s=self.health_every_s)

    def _ended(self, known: dict[str, Any], common: dict[str, Any]) -> ServiceStatus:
        self._wait_for_keeper(known)
        code, common = self._exit_code(known), {**common, "since": self._ended_at(known), "ended_at": self._ended_at(known)}
        if known["stopping"]:
            return ServiceStatus(state=ServiceState.STOPPED, exit_code=code, detail="It was stopped", **common)
        # vLLM ends with code 0 when its engine dies: whatever the code, nobody asked it to end.
        return ServiceStatus(state=ServiceState.FAILED, exit_code=code, detail=f"It ended without being asked to, {how_it_ended(code)}", **common)

    def pids(self) -> set[int]:
        known = self._known()
        if known is None or known["boot_id"] != processes.boot_id():
            return set()
        table = {process.pid: process for process in processes.all_processes() if process.state not in "ZX"}
        mine = {pid for pid in processes.marked_with(MARK, known["invocation"]) if pid in table and processes.real_uid(pid) == os.getuid()}
        main, ticks = known["pid"], known["start_ticks"]
        if main is not None and main in table and table[main].start_ticks == ticks:
            mine.add(main)
        if main not in table or table[main].start_ticks == ticks:  # else its pid came back, and leads a session of its own
            mine |= {pid for pid, process in table.items() if self._lost_mark_in_session(process, known)}
        grown = True
        while grown:  # children that threw the mark away (an empty environment), as long as their parents live
            children = {pid for pid, process in table.items() if process.parent in mine} - mine
            mine |= children
            grown = bool(children)
        return mine

    @staticmethod
    def _lost_mark_in_session(process: processes.Process, known: dict[str, Any]) -> bool:
        """In the service's session but without a readable mark: its title was written over it. A pid that came back has another environment."""
        if known["pid"] is None or process.session != known["pid"] or process.start_ticks < known["start_ticks"]:
            return False
        environment = processes.environment(process.pid)
        return environment is not None and not environment

    def log_path(self) -> Path | None:
        known = self._known()
        return Path(known["log"]) if known else None

    def run_log(self) -> run_log.FileLog | None:
        path = self.log_path()
        return run_log.FileLog(path) if path is not None else None

    def log_lines(self, invocation: str = "") -> Iterator[str]:
        path = self.log_path()
        if path is None:
            return
        try:
            yield from run_log.lines(path)
        except OSError as error:
            raise OpsError(f"The log `{path}` cannot be read", why=error.strerror or str(error)) from error

    def stop_limit_s(self) -> float:
        return STOP_LIMIT_S

    def variables(self) -> dict[str, str]:
        return spawner.clean_environment({})

    def open_files_limit(self) -> int | None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return None if hard == resource.RLIM_INFINITY else hard

    def reset_failed(self) -> None:
        """A process has no failed state that would keep it from starting."""

    def previous_run(self) -> dict[str, Any] | None:
        """The run before the one that was started last, as it was found then: invocation, log, release, stopping (somebody asked it to end),
        exit_code, ended_at. None if there was none since the machine was started, or if it never became a process."""
        known = self._known()
        previous = known.get("previous") if known is not None and known["boot_id"] == processes.boot_id() else None
        return previous if isinstance(previous, dict) else None

    def exit_code(self) -> int | None:
        """How the last run ended; negative for a signal; None while it runs, or if that was not seen."""
        known = self._known()
        return self._exit_code(known) if known else None

    # ---- acting ----

    def start(self) -> ServiceStatus:
        known = self._known()
        if known is not None and known["boot_id"] == processes.boot_id() and known["pid"] is not None and processes.is_alive(
            known["pid"], known["start_ticks"]
        ):
            return self.status()
        if left := self.pids():
            raise OpsError(
                f"Processes of the last run of service `{self.record.name}` are still there: {', '.join(map(str, sorted(left)))}",
                why="They may hold GPU memory and the port", hint="Stop the service first: that ends them",
            )
        launcher = launch.launch_path(self.record)
        if not launcher.exists():
            raise OpsError(f"Service `{self.record.name}` has no launcher `{launcher}`", hint="It is written when a job starts the service")
        live = self.record.release_in_use()
        release = live.name if live is not None else self.record.current.resolve().name if self.record.current.exists() else None
        if release is None:
            raise OpsError(f"Service `{self.record.name}` has no release: `{self.record.current}` points nowhere", hint="Redeploy it first")
        logs = self.record.folder / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        log = _new_log(logs, release)
        invocation = uuid.uuid4().hex
        previous = self._as_previous(known)
        self._exit_file.unlink(missing_ok=True)
        answering.healthy_file(self.record).unlink(missing_ok=True)
        what = {
            "pid": None, "start_ticks": None, "boot_id": processes.boot_id(), "invocation": invocation, "log": str(log), "release": release,
            "at": time.time(), "stopping": False, "previous": previous,
        }
        self._write(what)
        pid, ticks = spawner.spawn(
            # The service's own variables come from env.json, which the launcher reads: one source.
            [str(launcher)], env={MARK: invocation, "SPT_NOENV": "1"}, cwd=self.record.folder, log_path=log, exit_path=self._exit_file,
        )
        self._write({**what, "pid": pid, "start_ticks": ticks})
        _drop_old_logs(logs)
        return self.status()

    def terminate(self) -> None:
        known = self._mark_stopping()
        if known and known["pid"] is not None and processes.is_alive(known["pid"], known["start_ticks"]):
            _send(known["pid"], signal.SIGTERM)

    def kill(self) -> None:
        self._mark_stopping()
        for pid in self.pids():
            _send(pid, signal.SIGKILL)

    def _as_previous(self, known: dict[str, Any] | None) -> dict[str, Any] | None:
        """What is kept of a run that another one follows: whoever looks only now can still tell that it crashed."""
        if known is None or known["pid"] is None or known["boot_id"] != processes.boot_id():
            return None
        return {**{name: known[name] for name in ("invocation", "log", "release", "stopping")}, "exit_code": self._exit_code(known),
                "ended_at": self._ended_at(known)}

    # ---- what is stored ----

    def _known(self) -> dict[str, Any] | None:
        known = read_json(self._file)
        if known is not None and (missing := _FIELDS - set(known)):
            raise OpsError(f"`{self._file}` has no `{min(missing)}`", why="It was not written by Roundhouse, or by another version of it",
                           hint="Move the file away; a service that still runs has to be ended by hand")
        if known is not None and known["pid"] is None and known["boot_id"] == processes.boot_id():
            known |= self._adopted(known["invocation"])
        return known

    def _adopted(self, invocation: str) -> dict[str, Any]:
        """A start that was cut off after the process existed: its mark finds it. The session's first process is the main one."""
        for pid in processes.marked_with(MARK, invocation):
            found = processes.look(pid)
            if found is not None and found.session == pid and found.state not in "ZX":
                return {"pid": pid, "start_ticks": found.start_ticks}
        ended = read_json(self._exit_file)
        return {"pid": ended["pid"], "start_ticks": ended["start_ticks"]} if ended else {}

    def _write(self, what: dict[str, Any]) -> None:
        write_file(self._file, json.dumps(what, indent=1) + "\n")

    def _mark_stopping(self) -> dict[str, Any] | None:
        """From here on an end of the process was asked for. Only while its main process lives: a crash stays a crash."""
        known = self._known()
        if known is not None and not known["stopping"] and known["pid"] is not None and processes.is_alive(known["pid"], known["start_ticks"]):
            known["stopping"] = True
            with contextlib.suppress(OSError):  # a full disk must not keep a service running: its end looks like a crash then
                self._write(known)
        return known

    def _exit(self, known: dict[str, Any]) -> dict[str, Any] | None:
        ended = read_json(self._exit_file)
        if ended is None or ended["pid"] != known["pid"] or ended["start_ticks"] != known["start_ticks"]:
            return None
        return ended

    def _wait_for_keeper(self, known: dict[str, Any]) -> None:
        """A process that has just ended is a zombie until its keeper (ops/services/spawner.py) has written down how."""
        end = time.monotonic() + _EXIT_S
        while (found := processes.look(known["pid"])) is not None and found.start_ticks == known["start_ticks"] and found.state == "Z":
            if self._exit(known) is not None or time.monotonic() > end:
                return
            time.sleep(0.01)

    def _exit_code(self, known: dict[str, Any]) -> int | None:
        ended = self._exit(known)
        return int(ended["code"]) if ended is not None else None

    def _ended_at(self, known: dict[str, Any]) -> float | None:
        ended = self._exit(known)
        return float(ended["at"]) if ended is not None and "at" in ended else None


def how_it_ended(code: int | None) -> str:
    """In words: an exit code, a signal's name, or that it is not known."""
    if code is None:
        return "and its exit code is not known"
    if code < 0:
        try:
            return f"by {signal.Signals(-code).name}"
        except ValueError:
            return f"by signal {-code}"
    return f"with exit code {code}"


def _new_log(logs: Path, release: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path, number = logs / f"{stamp}-{release}.log", 1
    while path.exists():  # two starts within one second
        number += 1
        path = logs / f"{stamp}-{release}-{number}.log"
    return path


def _drop_old_logs(logs: Path) -> None:
    """Keeps the newest ones. Their names begin with the time."""
    for path in sorted(logs.glob("*.log"))[:-LOGS_KEPT]:
        path.unlink(missing_ok=True)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended: what was wanted
    except PermissionError as error:
        raise OpsError(f"Process {pid} of the service may not be ended by this user", why=str(error)) from error
