"""The systemd manager: a unit that an admin wrote, controlled by `systemctl`, its log in the journal. Implements manager.Manager.

Nothing is cached: each look is one `systemctl show`. The unit is never written to; what it starts is the launcher, once an admin has installed
the drop-in of the adoption (`launcher_installed`).

What systemd does not tell, and how it is known here:

- Was an end asked for? A stop makes the unit leave `active` *before* its main process ends; a process that ends by itself does so *after*.
  So the two times of one run say it. vLLM ends with code 0 when its engine dies, which systemd calls a success: nobody asked it to.
- A unit that is neither enabled nor failed is forgotten as soon as it ended. What was seen of its last run lies in `unit.json` beside the
  launcher, and what systemd said of its end stands in the journal, each kind of entry under a fixed number (systemd.journal-fields(7), MESSAGE_ID).
- A try of a restart loop is `activating (auto-restart)` between two runs: `failed` here, and `starting` in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import answering, env_files, journal, launch, process, systemctl, unit_files
from ops.services.state import read_json, write_file
from ops.services.status import ServiceState, ServiceStatus

STOP_MARGIN_S = 10.0
DEFAULT_STOP_S = 90.0  # DefaultTimeoutStopSec= of systemd itself
START_LIMIT_S = 10.0  # for a queued start to become a run: conditions, the order of other units
ENDLESS_STOP_S = 3600.0  # TimeoutStopSec=infinity: an hour, so that a stop that never ends is told at all
_FORGOTTEN_AGAIN_S = 60.0  # a unit that systemd has forgotten: the journal is asked for its last run at most so often
_POLL_S = 0.05
_CGROUP = Path("/sys/fs/cgroup")

_STATUS = (
    "Id", "LoadState", "LoadError", "ActiveState", "SubState", "Result", "MainPID", "ExecMainPID", "ExecMainCode", "ExecMainStatus", "NRestarts",
    "InvocationID", "StateChangeTimestamp", "ExecMainStartTimestampMonotonic", "ExecMainExitTimestamp", "ExecMainExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic", "ActiveExitTimestampMonotonic", "RuntimeMaxUSec", "ControlGroup", "Slice", "SuccessExitStatus", "ExecStart")
_FACTS = (*_STATUS, "UnitFileState", "FragmentPath", "NeedDaemonReload", "Restart", "KillMode", "SendSIGKILL",
          "TimeoutStopUSec", "TimeoutStartUSec", "MemoryMax", "User")
_ACTIVE = {"active", "reloading", "refreshing", "maintenance"}
_ENABLED = {"enabled": True, "enabled-runtime": True, "linked": False, "linked-runtime": False, "disabled": False, "masked": False,
            "masked-runtime": False}  # what else there is (static, indirect, generated) says nothing about the boot
_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}  # systemd calls an end by these a success
_RESULTS = {
    "timeout": "a time limit of the unit passed", "oom-kill": "the kernel ended it: the machine, or its memory limit, was out of memory",
    "start-limit-hit": "it failed too often in a short time, so systemd starts it no more", "watchdog": "it missed its watchdog",
    "protocol": "it did not do what its Type= says", "resources": "systemd could not give it what it needs",
    "exec-condition": "its ExecCondition= says no",
}
_EXEC_FAILURES = {200: "its working folder is not there (200/CHDIR)", 203: "its program cannot be run (203/EXEC)",
                  216: "its group does not exist (216/GROUP)", 217: "its user does not exist (217/USER)", 226: "its file system view cannot be made "
                  "(226/NAMESPACE)", 209: "its output cannot be opened (209/STDOUT)"}
_STOPPING = {"de5b426a63be47a7b6ac3eaac82e2f6f", "9d1aaa27d60140bd96365438aad20286"}  # "Stopping ...", "Stopped ..."
_MAIN_EXITED = "98e322203f7a4ed290d09fe03c09fe15"


class SystemdManager:
    """One unit. Holds no state of its own: any process may make one and sees the same service."""

    def __init__(self, record: ServiceRecord, *, health_every_s: float = 0) -> None:
        """`health_every_s`: see manager.manager_for. Raises BadInput if the record's unit is no service unit's name."""
        self.record = record
        self.health_every_s = health_every_s
        self.unit = unit_files.unit_name(record.unit)
        self.user = record.unit_scope == "user"
        self._memory_file = record.folder / "unit.json"

    # ---- looking ----

    def status(self) -> ServiceStatus:
        try:
            told = self.show(_STATUS)
            return self._status(told)
        except OpsError as error:
            return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"{error.what}{f': {error.why}' if error.why else ''}"[:500])

    def show(self, properties: tuple[str, ...]) -> dict[str, str]:
        """Properties of the unit, as text. Raises OpsError."""
        return systemctl.show(self.unit, properties, user=self.user)

    def _status(self, told: Mapping[str, str]) -> ServiceStatus:
        active, sub = told.get("ActiveState", ""), told.get("SubState", "")
        invocation = told.get("InvocationID", "")
        if not told.get("LoadState"):
            return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"systemd says nothing about `{self.unit}`")
        if active in ("inactive", ""):
            if told["LoadState"] == "not-found":
                return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"There is no unit `{self.unit}`")
            if told["LoadState"] not in ("loaded", "masked"):
                return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"systemd cannot read the unit `{self.unit}`: {_load_error(told)}")
        if not invocation:
            return self._forgotten(told)
        memory = self._remember(invocation, told)
        facts: dict[str, Any] = {
            "invocation": invocation, "restarts": _number(told, "NRestarts"), "since": _moment(told.get("StateChangeTimestamp", "")),
            "log_where": journal.command(self.unit, user=self.user, invocation=invocation), "release": memory.get("release"),
        }
        loop = f"systemd has started it again {_times(facts['restarts'])}" if facts["restarts"] else ""
        main = _number(told, "MainPID") or None
        if main is not None and active != "failed":
            facts |= {"pid": main, **_start_of(main)}
            starts = f"It starts ({loop})" if loop else "It starts"
            if active == "activating" and sub not in ("start", "start-post"):
                return ServiceStatus(state=ServiceState.STARTING, detail=f"{starts}: {sub}", **facts)
            stopping = active == "deactivating" or memory.get("stopping") is True
            return answering.status(self.record, invocation=invocation, stopping=stopping, pids=lambda: self._pids(told), facts=facts, starts=starts,
                                    every_s=self.health_every_s)
        if active in _ACTIVE:
            return ServiceStatus(state=ServiceState.UNKNOWN, detail=f"The unit is {active} ({sub}) without a main process", **facts)
        if active == "activating" and sub != "auto-restart":
            return ServiceStatus(state=ServiceState.STARTING, detail=f"It starts: {sub} (what the unit runs before the server)", **facts)
        code = _exit_code(told)
        facts |= {"exit_code": code, "ended_at": _moment(told.get("ExecMainExitTimestamp", ""))}
        asked = self._asked(told, memory)
        if active == "deactivating":
            state = ServiceState.UNKNOWN if asked else ServiceState.FAILED
            how = "It is being stopped" if asked else f"It ended without being asked to, {process.how_it_ended(code)}"
            return ServiceStatus(state=state, detail=f"{how}; systemd ends what is left of it ({sub})", ending=True, **facts)
        result, ending = told.get("Result", ""), process.how_it_ended(code)
        if asked:
            forced = "; systemd had to use SIGKILL, as its time limit had passed" if result == "timeout" else ""
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"It was stopped{forced}", **facts)
        if active == "inactive" and result == "success" and not _is_clean(told, code):
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"Its failure was reset (it had ended {ending})", **facts)
        if active == "inactive" and result != "success":
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"It was stopped between two tries (it had ended {ending})", **facts)
        how = f"It ended without being asked to, {ending}"
        more = [_EXEC_FAILURES.get(code or 0, ""), _RESULTS.get(result, "")]
        if sub == "auto-restart":
            more.append(f"it is in a restart loop: {loop}, and will do so again" if loop else "systemd will start it again")
        elif loop:
            more.append(f"{loop}, and does so no more" if active == "failed" else loop)
        return ServiceStatus(state=ServiceState.FAILED, detail="; ".join([how, *filter(None, more)]), restarting=sub == "auto-restart", **facts)

    def _asked(self, told: Mapping[str, str], memory: Mapping[str, Any]) -> bool:
        """Whether the end of this run was asked for (by a stop of the unit): see the head of this module."""
        if memory.get("stopping") is True:
            return True
        began, left, ended = (_number(told, f"{name}TimestampMonotonic") or 0 for name in ("ExecMainStart", "ActiveExit", "ExecMainExit"))
        if told.get("Result") not in ("success", "exit-code", "signal", "core-dump", "timeout"):
            return False
        if told.get("ActiveState") == "deactivating" and not ended > began:
            return True  # the main process still lives, or was never there
        if told.get("Result") == "timeout" and (limit := systemctl.seconds(told.get("RuntimeMaxUSec", ""))) is not None:
            entered = _number(told, "ActiveEnterTimestampMonotonic") or 0
            if left - entered >= limit * 1_000_000:
                return False
        return 0 < began <= left <= ended

    def _forgotten(self, told: Mapping[str, str]) -> ServiceStatus:
        """A unit without a run in systemd's memory: it never ran since the boot, or was forgotten when it ended."""
        memory = self._memory()
        if memory is not None and memory.get("boot_id") != processes.boot_id():
            return ServiceStatus(state=ServiceState.STOPPED, detail="The machine was restarted since it was started", release=memory.get("release"))
        if memory is None or "ended" not in memory or not 0 <= time.time() - float(memory.get("looked_at") or 0) <= _FORGOTTEN_AGAIN_S:
            memory = self._look_back(memory)  # also where the clock was set back
        masked = " (the unit is masked: nobody may start it)" if told.get("LoadState") == "masked" else ""
        invocation = str(memory.get("invocation") or "")
        if not invocation:
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"It was not started since the machine's start{masked}")
        ended = memory.get("ended") or {}
        code = ended.get("code")
        facts: dict[str, Any] = {
            "invocation": invocation, "release": memory.get("release"), "exit_code": code, "ended_at": ended.get("at"), "since": ended.get("at"),
            "log_where": journal.command(self.unit, user=self.user, invocation=invocation), "restarts": 0}
        if ended.get("asked") is None:
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"It does not run; systemd has forgotten how it ended{masked}", **facts)
        if ended["asked"]:
            return ServiceStatus(state=ServiceState.STOPPED, detail=f"It was stopped{masked}", **facts)
        how = process.how_it_ended(code) if code is not None else "with exit code 0 most likely (systemd calls it a success)"
        return ServiceStatus(state=ServiceState.FAILED, detail=f"It ended without being asked to, {how}{masked}", **facts)

    def _look_back(self, memory: dict[str, Any] | None) -> dict[str, Any]:
        """Asks the journal for the last run and its end, and remembers it. Where the journal may not be read, that stays unknown."""
        made: dict[str, Any] = {**(memory or {}), "boot_id": processes.boot_id(), "looked_at": time.time()}
        try:
            invocation = journal.last_invocation(self.unit, user=self.user)
            if invocation and invocation != made.get("invocation"):
                made = {"boot_id": made["boot_id"], "looked_at": made["looked_at"], "invocation": invocation, "release": None, "stopping": False}
            invocation = invocation or made.get("invocation")
            made["ended"] = self._end_of(invocation, made) if invocation else {}
        except OpsError:
            made["ended"] = {"asked": True if made.get("stopping") else None, "code": None, "at": None}
        made.setdefault("invocation", "")
        self._write_memory(made)
        return made

    def _end_of(self, invocation: str, memory: Mapping[str, Any]) -> dict[str, Any]:
        said = journal.manager_entries(self.unit, invocation, user=self.user)
        asked = memory.get("stopping") is True or any(entry.get("MESSAGE_ID") in _STOPPING for entry in said)
        code = None
        for entry in said:  # an end that systemd calls a success is not written down
            if entry.get("MESSAGE_ID") == _MAIN_EXITED and str(entry.get("EXIT_STATUS", "")).isdigit():
                code = int(entry["EXIT_STATUS"]) * (1 if entry.get("EXIT_CODE") == "exited" else -1)
        at = int(said[-1].get("__REALTIME_TIMESTAMP") or 0) / 1_000_000 if said else None
        return {"asked": asked if said else None, "code": code, "at": at}

    def pids(self) -> set[int]:
        """The living processes of the unit's cgroup and of those below it. Raises OpsError if systemd does not answer."""
        return self._pids(self.show(("ControlGroup", "Slice", "Id")))

    def _pids(self, told: Mapping[str, str]) -> set[int]:
        found: set[int] = set()
        for group in self._groups(told):
            found |= _members(group)
        return {pid for pid in found if (known := processes.look(pid)) is not None and known.state not in "ZX"}

    def _groups(self, told: Mapping[str, str]) -> list[Path]:
        """The unit's cgroup. systemd does not name that of a dead unit, though processes may be left there (KillMode=process, a stuck driver)."""
        path = told.get("ControlGroup", "")
        if not path and not self.user:
            path = f"{_slice_path(told.get('Slice') or 'system.slice')}/{self.unit}"
        if not path or ".." in Path(path).parts:
            return []
        return [place for mount in _mounts() if (place := mount / path.lstrip("/")).is_dir()]

    # ---- its log ----

    def log_path(self) -> None:
        """None: the log is the journal."""

    def run_log(self) -> journal.JournalLog | None:
        invocation = self._invocation()
        return journal.follow(self.unit, user=self.user, invocation=invocation) if invocation else None

    def log_lines(self, invocation: str = "") -> Iterator[str]:
        invocation = invocation or self._invocation()
        if invocation:
            yield from journal.lines(self.unit, user=self.user, invocation=invocation)

    def _invocation(self) -> str:
        """The current (else the last) run; "" if it never ran, as far as systemd and the journal know. Raises OpsError."""
        told = self.show(("InvocationID",))
        if told.get("InvocationID"):
            return told["InvocationID"]
        found = journal.last_invocation(self.unit, user=self.user)
        memory = self._memory() or {}
        return found or str(memory.get("invocation") or "")

    # ---- what a start gives, and a stop may take ----

    def stop_limit_s(self) -> float:
        limit = systemctl.seconds(text := self.show(("TimeoutStopUSec",)).get("TimeoutStopUSec", ""))
        if text == "infinity":
            return ENDLESS_STOP_S
        return (DEFAULT_STOP_S if limit is None else limit) + STOP_MARGIN_S

    def variables(self) -> dict[str, str]:
        """See manager.Manager. Files that this user may not read are left out: systemd reads them as root. Raises OpsError."""
        found = manager_environment(systemctl.call(["show-environment"], user=self.user))
        found.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        unit = unit_files.read(self.unit, user=self.user)
        if (account := unit.account()) is not None and (unit.value("User") or self.user):
            found |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell or "/bin/sh"}
        found |= unit.environment()
        for named in unit.environment_files():
            optional, pattern = named.startswith("-"), named.removeprefix("-")
            for path in unit_files.matching(pattern):
                with contextlib.suppress(OSError, ValueError):
                    found |= env_files.read(f"-{path}" if optional else path)
        for setting in unit.values("UnsetEnvironment"):
            for word in unit_files.split_plain(unit.expand(setting.value)):
                name, sign, value = word.partition("=")
                if not sign or found.get(name) == value:
                    found.pop(name, None)
        return found

    def open_files_limit(self) -> int | None:
        """See manager.Manager. Raises OpsError."""
        text = self.show(("LimitNOFILE",)).get("LimitNOFILE", "")
        return int(text) if text.isdigit() and int(text) < 2**63 else None

    def launcher_installed(self) -> bool:
        """Whether the unit starts this service's launcher, as systemd has read it. Raises OpsError."""
        return self._starts_launcher(self.show(("ExecStart",)).get("ExecStart", ""))

    def _starts_launcher(self, exec_start: str) -> bool:
        path = launch.launch_path(self.record)
        spellings = {str(path), str(path.parent.resolve() / path.name)}
        return any(re.search(rf"(?:^|[\s=]){re.escape(one)}(?:\s|$)", exec_start) for one in spellings)

    def facts(self) -> dict[str, Any]:
        """The unit as pages show it. Never raises: `problem` says in a sentence what stands in the way ("" if nothing does).

        `stop_limit_s` and `start_limit_s` are seconds (None: without limit), `memory_max` bytes (None: none), `notes` unit_files.unit_notes.
        """
        made: dict[str, Any] = {"name": self.unit, "scope": self.record.unit_scope, "state": None, "sub": None, "result": None, "restarts": None,
                                "enabled": None, "needs_reload": None, "launcher_installed": None, "problem": ""}
        try:
            told = self.show(_FACTS)
        except OpsError as error:
            return {**made, "problem": error.what}
        if told.get("LoadState") != "loaded":
            problems = {"not-found": f"There is no unit `{self.unit}`", "masked": f"The unit `{self.unit}` is masked: nobody may start it"}
            made["problem"] = problems.get(told.get("LoadState", ""), f"systemd cannot read the unit `{self.unit}`: {_load_error(told)}")
        made |= {
            "state": told.get("ActiveState") or None, "sub": told.get("SubState") or None, "result": told.get("Result") or None,
            "restarts": _number(told, "NRestarts"), "enabled": _ENABLED.get(told.get("UnitFileState", "")),
            "needs_reload": told.get("NeedDaemonReload") == "yes",
            "launcher_installed": self._starts_launcher(told.get("ExecStart", "")), "file": told.get("FragmentPath") or None,
            "user": told.get("User") or ("" if self.user else "root"), "restart": told.get("Restart") or None,
            "kill_mode": told.get("KillMode") or None,
            "stop_limit_s": systemctl.seconds(told.get("TimeoutStopUSec", "")), "start_limit_s": systemctl.seconds(told.get("TimeoutStartUSec", "")),
            "memory_max": _amount(told.get("MemoryMax", "")), "notes": unit_files.unit_notes(told),
        }
        return made

    def permission(self) -> str:
        """Why this user may not start and stop the unit; "" if it may, or that cannot be told without doing it.

        A start of a unit that runs, and a stop of one that does not, change nothing, but are refused to whoever may not do them. Other units
        that this one needs are left out (--job-mode=ignore-requirements).
        """
        try:
            active = self.show(("ActiveState",)).get("ActiveState")
            if active in ("active", "inactive"):
                verb = "start" if active == "active" else "stop"
                systemctl.call([verb, "--no-block", "--job-mode=ignore-requirements", "--", self.unit], user=self.user)
        except OpsError as error:
            return error.why or error.what if error.kind == "not_permitted" else ""
        return ""

    # ---- acting ----

    def start(self) -> ServiceStatus:
        """See manager.Manager. Comes back when the run exists (or has failed to), after START_LIMIT_S at most. Raises OpsError."""
        told = self.show(("LoadState", "LoadError", "ActiveState", "SubState", "InvocationID", "Result"))
        self._must_exist(told)
        if told.get("ActiveState") in _ACTIVE or (told.get("ActiveState") == "activating" and told.get("SubState") != "auto-restart"):
            return self.status()
        if told.get("ActiveState") == "failed":  # its start limit may have been hit; Result= goes on naming the first thing that went wrong
            self.reset_failed()
        with contextlib.suppress(OSError):  # it is written at a later look
            answering.healthy_file(self.record).unlink(missing_ok=True)
        systemctl.call(["start", "--no-block", "--", self.unit], user=self.user)
        before, end = told.get("InvocationID", ""), time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            now = self.show(("InvocationID", "ActiveState", "Result", "Job"))
            if now.get("InvocationID") and now["InvocationID"] != before:
                break
            if not now.get("Job") or now["Job"] == "0":
                if now.get("Result") == "start-limit-hit":
                    raise systemctl.refusal(["start", self.unit], 1, "start-limit-hit", user=self.user)
                if now.get("ActiveState") != "inactive" or now.get("InvocationID"):
                    break  # it came and went
                if time.monotonic() > end - START_LIMIT_S + 1.0:
                    break
            time.sleep(_POLL_S)
        return self.status()

    def terminate(self) -> None:
        """Asks systemd to stop it: from here on TimeoutStopSec= counts. Raises OpsError as `systemctl.call`."""
        systemctl.call(["stop", "--no-block", "--", self.unit], user=self.user)
        self._mark_stopping()

    def kill(self) -> None:
        """SIGKILL to every process of its cgroup, after a stop was asked for: else Restart= would bring it back.

        Where this user may not let systemd do it (polkit), but the processes are its own, they get the signal from here. Raises OpsError.
        """
        told = self.show(("ActiveState", "ControlGroup", "Slice", "Id"))
        if told.get("ActiveState") not in ("deactivating", "inactive", "failed"):
            self.terminate()
        if not self._pids(told):
            return
        try:
            try:
                systemctl.call(["kill", "--kill-whom=all", "--signal=SIGKILL", "--", self.unit], user=self.user)
            except OpsError as error:
                if "kill-whom" not in error.why:
                    raise
                systemctl.call(["kill", "--kill-who=all", "--signal=SIGKILL", "--", self.unit], user=self.user)  # before systemd 252
        except OpsError as error:
            left = self._pids(told)
            if error.kind == "not_permitted":
                for pid in left:
                    _send_kill(pid, error)
            elif left:  # a unit that ended meanwhile has nothing to be killed any more, and says so
                raise

    def reset_failed(self) -> None:
        """Raises OpsError as `systemctl.call`; a unit that systemd has forgotten has nothing to be reset."""
        try:
            systemctl.call(["reset-failed", "--", self.unit], user=self.user)
        except OpsError as error:
            if error.kind != "no_unit" or self.show(("LoadState",)).get("LoadState") == "not-found":
                raise

    def _must_exist(self, told: Mapping[str, str]) -> None:
        if told.get("LoadState") == "not-found":
            raise systemctl.refusal(["start", self.unit], 5, _load_error(told), user=self.user)
        if told.get("LoadState") == "masked":
            raise systemctl.refusal(["start", self.unit], 1, f"Unit {self.unit} is masked.", user=self.user)

    # ---- what is remembered: invocation, boot, release, whether a stop was asked for by us; and of a forgotten run, how it ended ----

    def _memory(self) -> dict[str, Any] | None:
        try:
            return read_json(self._memory_file)
        except OpsError:  # not ours, or damaged: it is learned again
            return None

    def _write_memory(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk, or a look by another user: the state is told all the same
            write_file(self._memory_file, json.dumps(what, indent=1) + "\n")

    def _remember(self, invocation: str, told: Mapping[str, str]) -> dict[str, Any]:
        memory = self._memory()
        if memory is not None and memory.get("invocation") == invocation and memory.get("boot_id") == processes.boot_id():
            if memory.get("release") or not _number(told, "MainPID"):
                return memory
        else:
            memory = {"invocation": invocation, "boot_id": processes.boot_id(), "release": None, "stopping": False}
        made = {**memory, "release": self._release(_number(told, "MainPID")) or self._release_by_link(told)}
        if made != self._memory():
            self._write_memory(made)
        return made

    def _release(self, main: int | None) -> str | None:
        """The release that the main process runs: the launcher puts it into its environment, and the interpreter lies in it. None: not known."""
        if not main:
            return None
        folders = [(processes.environment(main) or {}).get("VIRTUAL_ENV", "")]
        try:
            words = (processes.PROC / str(main) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            words = []
        folders += [os.path.dirname(os.path.dirname(word.decode(errors="replace"))) for word in words[:2] if b"/bin/" in word]  # noqa: PTH120
        for folder in filter(None, folders):
            if Path(folder).parent in (self.record.releases, self.record.releases.resolve()):
                return Path(folder).name
            for one in self._linked_releases():
                if str(one.resolve()) == os.path.normpath(folder):
                    return one.name
        return None

    def _release_by_link(self, told: Mapping[str, str]) -> str | None:
        """Where the process cannot be asked (it is gone, or another user's): what `current` pointed at when the launcher read it."""
        try:
            since = time.time() - self.record.current.lstat().st_mtime
        except OSError:
            return None
        began = _number(told, "ExecMainStartTimestampMonotonic")
        if not began or since <= time.monotonic() - began / 1_000_000 or not self._starts_launcher(told.get("ExecStart", "")):
            return None  # it was changed since
        live = self.record.release_in_use()
        return live.name if live else None

    def _linked_releases(self) -> list[Path]:
        """Releases that are links: an adopted environment, or one that is changed in place."""
        try:
            return [one for one in self.record.releases.iterdir() if one.is_symlink()]
        except OSError:
            return []

    def _mark_stopping(self) -> None:
        memory = self._memory()
        if memory is not None and not memory.get("stopping") and memory.get("boot_id") == processes.boot_id():
            told = self.show(("InvocationID", "ActiveState"))
            if told.get("InvocationID") == memory.get("invocation") and told.get("ActiveState") == "deactivating":
                self._write_memory({**memory, "stopping": True})


# ---- reading what systemd says ----


def manager_environment(text: str) -> dict[str, str]:
    """What `systemctl show-environment` prints: NAME=VALUE, odd values as $'...' with C escapes."""
    found = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            if value.startswith("$'") and value.endswith("'") and len(value) >= 3:
                value = "".join(word or "" for word in unit_files.split(f'"{value[2:-1]}"'.replace("\\'", "'")))
            found[name] = value
    return found


def _number(told: Mapping[str, str], name: str) -> int | None:
    text = told.get(name, "")
    return int(text) if text.isdigit() else None


def _load_error(told: Mapping[str, str]) -> str:
    """`org.freedesktop.systemd1.NoSuchUnit "Unit x.service not found."`: its words."""
    return told.get("LoadError", "").partition(" ")[2].strip('"') or told.get("LoadState") or "it does not say why"


def _amount(text: str) -> int | None:
    """Bytes; None for "infinity" and "[not set]"."""
    return int(text) if text.isdigit() and int(text) < 2**63 else None


def _moment(text: str) -> float | None:
    """Seconds since the epoch of a time as systemctl prints it in UTC: `Sun 2026-11-29 23:54:11 UTC`."""
    found = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", text)
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() if found else None


def _start_of(pid: int) -> dict[str, Any]:
    ticks = processes.start_ticks(pid)
    return {"start_ticks": ticks, "started_at": processes.started_at(ticks)} if ticks is not None else {}


def _exit_code(told: Mapping[str, str]) -> int | None:
    """As a process has it: negative for a signal; None if no main process has ended."""
    kind, status = told.get("ExecMainCode"), _number(told, "ExecMainStatus")
    if status is None or kind not in ("1", "2", "3"):  # CLD_EXITED, CLD_KILLED, CLD_DUMPED
        return None
    return status if kind == "1" else -status


def _is_clean(told: Mapping[str, str], code: int | None) -> bool:
    """Whether systemd counts this end as a success (systemd.service(5), SuccessExitStatus=, and `-` before the command)."""
    if code is None or code == 0 or -code in _CLEAN_SIGNALS or "; ignore_errors=yes ;" in told.get("ExecStart", ""):
        return True
    extra = told.get("SuccessExitStatus", "").split()
    return (str(code) if code > 0 else str(-code)) in extra


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _slice_path(name: str) -> str:
    """Where a slice's cgroup is: `a-b.slice` lies in `a.slice`."""
    parts = name.removesuffix(".slice").split("-") if name != "-.slice" else []
    return "".join(f"/{'-'.join(parts[:count])}.slice" for count in range(1, len(parts) + 1))


def _mounts() -> list[Path]:
    """Where systemd's cgroups are mounted: of version 2 alone, beside version 1, or its own hierarchy of version 1."""
    return [place for place in (_CGROUP, _CGROUP / "unified", _CGROUP / "systemd") if (place / "cgroup.procs").exists()]


def _members(group: Path) -> set[int]:
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        try:
            text = Path(folder, "cgroup.procs").read_text()
        except OSError:  # it was removed meanwhile, or is one of threads alone
            continue
        found |= {int(line) for line in text.split() if line != "0"}  # 0: a process outside of this pid namespace
    return found


def _send_kill(pid: int, refused: OpsError) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended: what was wanted
    except PermissionError:
        raise refused from None
