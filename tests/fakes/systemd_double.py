"""A small systemd for tests where no real one can run: `systemctl` and `journalctl` as programs, with the texts and exit codes of systemd 252.

    double = SystemdDouble(folder)      # folder/bin goes first on PATH, folder/units holds unit files
    double.close()                      # ends what it started

It starts real processes, restarts them as Restart= says, counts, gives each run an invocation, keeps a journal in JSON, forgets a unit that
ended well, and refuses as real ones do. tests/ops/services/test_systemd.py runs the same tests against it and against a real systemd, which
holds it to the truth. What it does not know: dependencies, cgroups (its `cgroup.procs` are written from the invocation in
/proc/PID/environ), other job modes, users.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
CLEAN = {0, -signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM, -signal.SIGPIPE}
NO_RUN: dict[str, Any] = {
    "ActiveState": "inactive", "SubState": "dead", "Result": "success", "MainPID": 0, "ExecMainPID": 0, "ExecMainCode": 0, "ExecMainStatus": 0,
    "NRestarts": 0, "InvocationID": "", "StateChangeTimestamp": "", "ExecMainStartTimestampMonotonic": 0, "ExecMainExitTimestamp": "",
    "ExecMainExitTimestampMonotonic": 0, "ActiveEnterTimestampMonotonic": 0, "ActiveExitTimestampMonotonic": 0, "Job": "", "keeper": 0}


class SystemdDouble:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "units", "state", "cgroup"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("systemctl", "journalctl"):
            program = folder / "bin" / name
            program.write_text(f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
                               f"from tests.fakes import systemd_double\nsystemd_double.{name}({str(folder)!r}, sys.argv[1:])\n")
            program.chmod(0o755)

    def close(self) -> None:
        for file in (self.folder / "state").glob("*.json"):
            _end(json.loads(file.read_text()))


def _end(run: dict[str, Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if run["keeper"]:
            os.kill(run["keeper"], signal.SIGKILL)
    for pid in _marked(run["InvocationID"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marked(invocation: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir() if invocation else ():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or f"INVOCATION_ID={invocation}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
    return found


class Unit:
    """A unit file and what is known of its run."""

    def __init__(self, folder: str, name: str) -> None:
        self.root, self.name = Path(folder), name
        self.file, self.state_file = self.root / "units" / name, self.root / "state" / f"{name}.json"
        self.settings: dict[str, str] = {}
        texts = [self.file, *sorted((self.root / "units" / f"{name}.d").glob("*.conf"))]
        self.masked = self.file.is_symlink() and os.path.realpath(self.file) == "/dev/null"
        self.exists = self.file.exists() and not self.masked
        for text in texts if self.exists else []:
            for line in text.read_text().splitlines():
                key, sign, value = line.partition("=")
                if sign:
                    self.settings[key] = value

    @contextlib.contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        """What is known of its run, under a lock; what is changed is kept."""
        with (self.root / "state" / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run = {**NO_RUN, **(json.loads(self.state_file.read_text()) if self.state_file.exists() else {})}
            yield run
            new = self.state_file.with_suffix(".new")
            new.write_text(json.dumps(run))
            new.replace(self.state_file)

    def seconds(self, key: str, otherwise: float) -> float:
        return float(self.settings.get(key, otherwise))

    def show(self) -> dict[str, Any]:
        with self.state() as run:
            shown = {**run}
        if run["ActiveState"] == "inactive" and not run["Job"] and run["Result"] == "success" and "WantedBy" not in self.settings:
            shown = dict(NO_RUN)  # forgotten
        group = self.root / "cgroup" / "system.slice" / self.name
        pids = _marked(run["InvocationID"])
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        command = self.settings.get("ExecStart", "")
        words = shlex.split(command)
        return {
            **shown, "Id": self.name, "LoadState": "masked" if self.masked else "loaded" if self.exists else "not-found",
            "LoadError": "" if self.exists or self.masked else f'org.freedesktop.systemd1.NoSuchUnit "Unit {self.name} not found."',
            "ControlGroup": f"/system.slice/{self.name}" if pids else "", "Slice": "system.slice", "RuntimeMaxUSec": "infinity",
            "SuccessExitStatus": "", "UnitFileState": "enabled" if "WantedBy" in self.settings else "static" if self.exists else "",
            "FragmentPath": str(self.file) if self.exists else "", "NeedDaemonReload": "no",
            "ExecStart": f"{{ path={words[0]} ; argv[]={' '.join(words)} ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; "
                         "code=(null) ; status=0/0 }" if words else "",
            "Restart": self.settings.get("Restart", "no"), "KillMode": self.settings.get("KillMode", "control-group"),
            "SendSIGKILL": "yes", "TimeoutStopUSec": f"{self.seconds('TimeoutStopSec', 90):g}s", "TimeoutStartUSec": "1min 30s",
            "Type": self.settings.get("Type", "simple"), "MemoryMax": "infinity", "LimitNOFILE": "524288", "User": self.settings.get("User", "")}


# ---- the programs ----


def _fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(code)


def systemctl(folder: str, arguments: list[str]) -> None:
    options = [word for word in arguments if word.startswith("-") and word != "--"]
    words = [word for word in arguments if not word.startswith("-")]
    verb, names = words[0], words[1:]
    if (Path(folder) / "no-bus").exists():
        _fail("System has not been booted with systemd as init system (PID 1). Can't operate.\nFailed to connect to bus: Host is down")
    if verb == "show-environment":
        print("LANG=C.UTF-8\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        return
    if verb == "daemon-reload":
        return
    unit = Unit(folder, names[0])
    if verb == "show":
        wanted = next(word.partition("=")[2].split(",") for word in options if word.startswith("--property="))
        shown = unit.show()
        print("\n".join(f"{name}={shown[name]}" for name in shown if name in wanted))
        return
    if (Path(folder) / "not-permitted").exists():
        _fail(f"Failed to {verb} {unit.name}: Interactive authentication required.\nSee system logs and 'systemctl status {unit.name}' for details.")
    if verb == "start" and unit.masked:
        _fail(f"Failed to start {unit.name}: Unit {unit.name} is masked.")
    if verb in ("start", "stop") and not unit.exists and not unit.masked:
        _fail(f"Failed to {verb} {unit.name}: Unit {unit.name} not {'found' if verb == 'start' else 'loaded'}.", 5)
    {"start": _start, "stop": _stop, "kill": _kill, "reset-failed": _reset}[verb](unit)


def _start(unit: Unit) -> None:
    with unit.state() as run:
        if run["ActiveState"] in ("active", "deactivating"):
            return
        if run["keeper"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(run["keeper"], signal.SIGKILL)
        run |= {**NO_RUN, "Job": "1"}
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        try:
            _keep(unit)
        finally:
            os._exit(0)


def _stop(unit: Unit) -> None:
    with unit.state() as run:
        if run["SubState"] == "auto-restart":
            os.kill(run["keeper"], signal.SIGKILL)
            run |= {"ActiveState": "inactive", "SubState": "dead", "keeper": 0, "Result": "success"}
            _say(unit, run["InvocationID"], f"Stopped {unit.name}.", id="9d1aaa27d60140bd96365438aad20286")
        elif run["ActiveState"] == "active":
            run |= {"ActiveState": "deactivating", "SubState": "stop-sigterm", "ActiveExitTimestampMonotonic": _monotonic(),
                    "StateChangeTimestamp": _stamp()}
            _say(unit, run["InvocationID"], f"Stopping {unit.name}...", id="de5b426a63be47a7b6ac3eaac82e2f6f")
            os.kill(run["keeper"], signal.SIGTERM)


def _kill(unit: Unit) -> None:
    with unit.state() as run:
        pids = _marked(run["InvocationID"])
    if not pids:
        _fail(f"Failed to kill unit {unit.name}: No such process")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reset(unit: Unit) -> None:
    with unit.state() as run:
        forgotten = run["ActiveState"] == "inactive"
        run |= {"NRestarts": 0, "starts": []}
        if run["ActiveState"] == "failed":
            run |= {**NO_RUN}
    if forgotten:
        _fail(f"Failed to reset failed state of unit {unit.name}: Unit {unit.name} not loaded.")


# ---- a unit's life ----


def _monotonic() -> int:
    return int(time.monotonic() * 1_000_000)


def _stamp() -> str:
    return time.strftime("%a %Y-%m-%d %H:%M:%S UTC", time.gmtime())


def _keep(unit: Unit) -> None:
    """Runs the unit until it is over: what systemd's service.c does, for Type=simple."""
    restarts, starts = 0, []
    command = shlex.split(unit.settings["ExecStart"])
    while True:
        starts = [at for at in starts if time.monotonic() - at < unit.seconds("StartLimitIntervalSec", 10)]
        if len(starts) >= unit.seconds("StartLimitBurst", 5):
            with unit.state() as run:
                run |= {"ActiveState": "failed", "SubState": "failed", "Job": "", "keeper": 0, "StateChangeTimestamp": _stamp(),
                        "Result": run["Result"] if run["Result"] != "success" else "start-limit-hit"}
            _say(unit, run["InvocationID"], f"{unit.name}: Start request repeated too quickly.")
            return
        starts.append(time.monotonic())
        invocation = uuid.uuid4().hex
        asked, forced = threading.Event(), False
        signal.signal(signal.SIGTERM, lambda *_, flag=asked: flag.set())
        with unit.state() as run:  # started within it: a stop that comes now waits, and finds what it has to stop
            main = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                    env={"PATH": os.environ["PATH"], "INVOCATION_ID": invocation, "SYSTEMD_DOUBLE": str(unit.root)})
            run |= {**NO_RUN, "ActiveState": "active", "SubState": "running", "MainPID": main.pid, "ExecMainPID": main.pid, "NRestarts": restarts,
                    "InvocationID": invocation, "ExecMainStartTimestampMonotonic": _monotonic(), "ActiveEnterTimestampMonotonic": _monotonic(),
                    "StateChangeTimestamp": _stamp(), "keeper": os.getpid()}
        _say(unit, invocation, f"Started {unit.name}.", id="39f53479d3a045ac8e11786248231fbf")
        reader = threading.Thread(target=_copy, args=(unit, invocation, main, Path(command[0]).name), daemon=True)
        reader.start()
        while main.poll() is None and not asked.is_set():
            time.sleep(0.005)
        ended = _monotonic() if main.poll() is not None else 0  # by itself
        if not ended:
            for pid in [main.pid] if unit.settings.get("KillMode") == "mixed" else _marked(invocation):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            try:
                main.wait(unit.seconds("TimeoutStopSec", 90))
            except subprocess.TimeoutExpired:
                forced = True
                _say(unit, invocation, f"{unit.name}: State 'stop-sigterm' timed out. Killing.")
        for pid in _marked(invocation) if unit.settings.get("KillMode") != "process" else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = main.wait()
        reader.join(2)
        clean = code in CLEAN
        result = "timeout" if forced else "success" if clean else "signal" if code < 0 else "exit-code"
        if not clean:
            word, number = ("exited", code) if code > 0 else ("killed", -code)
            name = f"{number}/FAILURE" if code == 1 else f"{number}/n/a" if code > 0 else f"{number}/{signal.Signals(number).name[3:]}"
            _say(unit, invocation, f"{unit.name}: Main process exited, code={word}, status={name}", id="98e322203f7a4ed290d09fe03c09fe15",
                 EXIT_CODE=word, EXIT_STATUS=str(number))
        _say(unit, invocation, f"{unit.name}: Deactivated successfully." if result == "success" else f"{unit.name}: Failed with result '{result}'.")
        policy = unit.settings.get("Restart", "no")
        with unit.state() as run:
            # systemd does one thing after another: where a stop was first, the end came after it, even if the process was about to end by itself.
            stopped = run["ActiveState"] == "deactivating"
            again = not stopped and (policy == "always" or (policy == "on-failure" and not clean))
            now = {"MainPID": 0, "ExecMainCode": 1 if code >= 0 else 2, "ExecMainStatus": abs(code), "Result": result,
                   "ExecMainExitTimestamp": _stamp(), "ExecMainExitTimestampMonotonic": ended if ended and not stopped else _monotonic(),
                   "StateChangeTimestamp": _stamp()}
            run |= now if stopped else {**now, "ActiveExitTimestampMonotonic": _monotonic()}
            state = "failed" if result != "success" else "inactive"
            run |= {"ActiveState": "activating", "SubState": "auto-restart"} if again else {
                "ActiveState": state, "SubState": state if state == "failed" else "dead", "keeper": 0}
        if not again:
            if stopped:
                _say(unit, invocation, f"Stopped {unit.name}.", id="9d1aaa27d60140bd96365438aad20286")
            return
        time.sleep(unit.seconds("RestartSec", 0.1))
        restarts += 1
        _say(unit, invocation, f"{unit.name}: Scheduled restart job, restart counter is at {restarts}.")


# ---- the journal ----


def _copy(unit: Unit, invocation: str, main: subprocess.Popen[bytes], ident: str) -> None:
    assert main.stdout is not None
    for line in main.stdout:
        try:
            text: str | list[int] = line.rstrip(b"\n").decode()
            assert isinstance(text, str)
            text = text if not re.search(r"[\x00-\x08\x0b-\x1f]", text) else list(text.encode())
        except UnicodeDecodeError:
            text = list(line.rstrip(b"\n"))
        _write(unit, {"MESSAGE": text, "SYSLOG_IDENTIFIER": ident, "_PID": str(main.pid), "_SYSTEMD_INVOCATION_ID": invocation,
                      "_SYSTEMD_UNIT": unit.name})


def _say(unit: Unit, invocation: str, text: str, *, id: str = "", **fields: str) -> None:
    _write(unit, {"MESSAGE": text, "SYSLOG_IDENTIFIER": "systemd", "_PID": "1", "INVOCATION_ID": invocation, "UNIT": unit.name,
                  **({"MESSAGE_ID": id} if id else {}), **fields})


def _write(unit: Unit, fields: dict[str, Any]) -> None:
    entry = {"__REALTIME_TIMESTAMP": str(int(time.time() * 1e6)), "_HOSTNAME": "double", "_UID": "0", **fields}
    with (unit.root / "journal.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        entry["__CURSOR"] = f"s={file.tell():012d}"
        file.write(json.dumps(entry).encode() + b"\n")


def _chosen(entry: dict[str, Any], wanted: list[list[str]]) -> bool:
    return not wanted or any(all(entry.get(match.partition("=")[0]) == match.partition("=")[2] for match in group) for group in wanted)


def journalctl(folder: str, arguments: list[str]) -> None:
    if (Path(folder) / "journal-not-permitted").exists():
        _fail("Hint: You are currently not seeing messages from other users and the system.\n      Users in groups 'adm', 'systemd-journal' can see "
              "all messages.\n      Pass -q to turn off this notice.\nNo journal files were opened due to insufficient permissions.")
    file = Path(folder) / "journal.jsonl"
    if (Path(folder) / "no-journal").exists():
        print("No journal files were found.", file=sys.stderr)
        return
    wanted: list[list[str]] = [[]]
    count, cursor, since, follow = None, "", 0.0, "--follow" in arguments
    for word in arguments:
        if word == "+":
            wanted.append([])
        elif word.startswith("--unit="):
            name = word.partition("=")[2]
            wanted = [[f"_SYSTEMD_UNIT={name}"], [f"UNIT={name}"]]
        elif re.match(r"_?[A-Z][A-Z_]*=", word):
            wanted[-1].append(word)
        elif word.startswith("--lines=") and word != "--lines=all":
            count = int(word.partition("=")[2])
        elif word.startswith("--cursor="):
            cursor = word.partition("=")[2]
        elif word.startswith("--since=@"):
            since = float(word.partition("@")[2]) * 1e6
    file.touch()
    with file.open("rb") as journal:
        found, place = [], b""
        while True:
            while line := journal.readline():
                place += line
                if not place.endswith(b"\n"):
                    continue
                entry, place = json.loads(place), b""
                if _chosen(entry, wanted) and entry["__CURSOR"] >= cursor and int(entry["__REALTIME_TIMESTAMP"]) >= since:
                    found.append(json.dumps(entry))
            for text in found[-count:] if count is not None else found:
                print(text, flush=True)
            found, count = [], None
            if not follow:
                return
            time.sleep(0.02)
            if os.getppid() == 1:
                return
