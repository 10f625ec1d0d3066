"""`status`, `start`, `stop`, `restart`, `switch`, `leftovers`, `end-leftovers`, `reset-failed`, `warmup`, `log`: a service and what it does.

What changes something is a job of this node, with its locks and its journal (jobs.py). `status` and `log` only look.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from ops.agent.config import NodePaths
from ops.command_line import jobs, targets
from ops.command_line.output import INTERRUPTED, WrongArguments, print_json, size, table
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import JobState
from ops.jobs.redact import log_text
from ops.records import ServiceRecord
from ops.services.status import ServiceState, ServiceStatus

AS_WANTED = {ServiceState.HEALTHY, ServiceState.STARTING, ServiceState.STOPPED}
LOOK_S = 0.2  # between two looks at a log that is followed
STATUS_S = 1.0  # between two looks whether its run goes on, while it says nothing
_FILES_SHOWN = 10
_BATCH = 500  # lines of a log that are freed of secrets together


# ---- looking ----


def status(arguments: argparse.Namespace) -> int:
    """Of one service, or of all of this node. Exit code 1 if one has failed, or if its state is not known."""
    targets.own_node(NodePaths.default())  # what is noted at a look must be the agent's to read
    if arguments.service:
        told = _status(targets.service(arguments.service))
        if arguments.json:
            print_json(told)
        else:
            _print_status(told)
        return int(told["state"] not in AS_WANTED)
    services = [_status_or_error(name) for name in targets.names()]
    if arguments.json:
        print_json({"services": services})
    elif services:
        table(["service", "state", "since", "restarts", "release", "detail"], [
            [one["service"], one["state"], _ago(one["since"]), _number(one["restarts"]), one["release"] or "-", one["detail"]] for one in services],
            left={0, 1, 2, 4, 5})
    else:
        print("This node has no service")
    return int(any(one["state"] not in AS_WANTED for one in services))


def _status(record: ServiceRecord) -> dict[str, Any]:
    """All that is known of a service at this moment, as JSON."""
    from ops.services import failures, state
    from ops.services.manager import manager_for

    manager = manager_for(record)
    found = manager.status()
    try:
        known, problem = state.read(record), ""
    except OpsError as error:
        known, problem = {}, error.what
    facts = getattr(manager, "facts", None)
    return {"service": record.name, "manager": record.manager, **found.as_dict(), "since": found.since or found.started_at,
            "uptime_s": _uptime(found), "unit": facts() if facts is not None else None,
            "last_failure": next(reversed(failures.kept(known)), None), "problem": problem}


def _status_or_error(name: str) -> dict[str, Any]:
    """One whose record cannot be read does not hide the others."""
    try:
        return _status(targets.service(name))
    except OpsError as error:
        return {"service": name, "state": str(ServiceState.UNKNOWN), "detail": error.what, "since": None, "restarts": None, "release": None,
                "problem": f"{error.what}: {error.why}" if error.why else error.what}


def _uptime(found: ServiceStatus) -> float | None:
    """Seconds since its process began, by the clock that nobody sets; None without a process."""
    from ops.services import warmup

    return warmup.age_s(found) if found.runs and found.started_at is not None else None


def _print_status(told: dict[str, Any]) -> None:
    rows = [("service", f"{told['service']} ({told['unit']['name']}, {told['unit']['scope']} unit)" if told["unit"] else
             f"{told['service']} (process of Roundhouse)"),
            ("state", f"{told['state']}: {told['detail']}"), ("since", _ago(told["since"]))]
    if told["uptime_s"] is not None:
        rows.append(("runs", f"pid {told['pid']}, for {_span(told['uptime_s'])}"))
    elif told["ended_at"] is not None or told["exit_code"] is not None:
        rows.append(("ended", f"{_ago(told['ended_at'])}, exit code {_number(told['exit_code'])}"))
    rows.append(("release", told["release"] or "unknown"))
    if told["restarts"] is not None:
        rows.append(("restarts", f"{told['restarts']} by its manager"))
    if told["unit"]:
        rows += _unit_rows(told["unit"])
    rows += [("log", told["log_where"])] if told["log_where"] else []
    rows += [("problem", told["problem"])] if told["problem"] else []
    rows += _failure_rows(told["last_failure"]) if told["last_failure"] else []
    for head, text in rows:
        print(f"{head:<13} {text}")


def _unit_rows(unit: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if unit["problem"]:
        yield "unit", unit["problem"]
    if unit["state"] is None:
        return
    boot = {True: "starts with the machine", False: "does not start with the machine", None: "whether it starts with the machine is not known"}
    yield "unit", f"{unit['state']} ({unit['sub'] or 'unknown'}), {boot[unit['enabled']]}"
    if unit["needs_reload"]:
        yield "", "its files were changed since systemd read them: systemctl daemon-reload"
    if unit["launcher_installed"] is False:
        yield "", "it does not start Roundhouse's launcher: an admin runs, once, `python -m ops adopt --unit UNIT --apply --install`"
    for note in unit.get("notes") or []:
        yield "", note


def _failure_rows(failure: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "last failure", f"{_ago(failure.get('ended_at') or failure.get('at'))}: {failure.get('detail') or 'unknown'}"
    found = failure.get("diagnosis")
    if isinstance(found, dict) and found.get("fault"):
        where = f"line {found['line']}: " if found.get("line") else ""
        yield "", f"{where}{found.get('text') or ''}".strip()
        yield "", str(found.get("diagnosis") or "")
        if found.get("fix"):
            yield "", f"fix: {found['fix']}"
    elif isinstance(found, dict):
        yield "", "its log names no cause"
    elif failure.get("problem"):
        yield "", str(failure["problem"])


def _ago(at: float | None) -> str:
    """`2026-11-30 00:12:34 (2:03 h ago)`; "unknown"."""
    if at is None:
        return "unknown"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} ({_span(max(0.0, time.time() - at))} ago)"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _number(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def log(arguments: argparse.Namespace) -> int:
    """The log of the current (else the last) run, without secrets; with --follow until that run has ended and nothing starts it again."""
    from ops.services import launch
    from ops.services.manager import manager_for

    if arguments.lines is not None and arguments.lines < 0:
        raise WrongArguments(f"There are no {arguments.lines} lines", hint="--lines takes a whole number from 0")
    targets.own_node(NodePaths.default())
    record = targets.service(arguments.service)
    printer = _Printer(launch.secrets(record), as_json=arguments.json, last=arguments.lines)
    manager = manager_for(record)
    if arguments.follow:
        _follow(record, manager, printer)
    else:
        found = manager.status()
        if not found.log_where and not found.invocation:
            raise _never_ran(record, found)
        print(f"Log of {record.name}: {found.log_where}", file=sys.stderr)
        printer.give(manager.log_lines())
        printer.caught_up()
    return 0


def _never_ran(record: ServiceRecord, found: ServiceStatus) -> BadInput:
    return BadInput(f"Service `{record.name}` has no log", why=found.detail, hint=f"Start it: python -m ops start --service {record.name}")


class _Printer:
    """Prints lines of a log as they may leave the node. `last`: of what is there already only so many."""

    def __init__(self, secrets: list[str], *, as_json: bool, last: int | None) -> None:
        self._secrets, self._as_json = secrets, as_json
        self._held: deque[str] | None = None if last is None else deque(maxlen=last)

    def give(self, lines: Iterable[str]) -> None:
        batch: list[str] = []
        for line in lines:
            if self._held is not None:
                self._held.append(line)
                continue
            batch.append(line)
            if len(batch) >= _BATCH:
                self._print(batch)
                batch = []
        self._print(batch)

    def caught_up(self) -> None:
        """All that was there has been given: from here on everything is printed."""
        held, self._held = self._held, None
        if held:
            self._print(list(held))

    def _print(self, lines: list[str]) -> None:
        if not lines:
            return
        if self._as_json:
            text = "\n".join(json.dumps({"text": log_text(line, self._secrets)}, ensure_ascii=False) for line in lines)
        else:
            text = log_text("\n".join(lines), self._secrets)
        print(text, flush=True)


def _follow(record: ServiceRecord, manager: Any, printer: _Printer) -> None:
    """Run after run, as long as its manager starts another one."""
    found = manager.status()
    while True:
        followed = manager.run_log()
        if followed is None:
            raise _never_ran(record, found)
        try:
            if manager.status().invocation != found.invocation:  # another run began in between: which one the log is of is not known
                found = manager.status()
                continue
            print(f"Log of {record.name}: {followed.where}", file=sys.stderr)
            over = _follow_run(manager, followed, found.invocation, printer)
        finally:
            followed.close()
        while over.invocation == found.invocation and over.restarting:
            time.sleep(STATUS_S)
            over = manager.status()
        if over.invocation == found.invocation:
            print(f"Its run is over: {over.detail}", file=sys.stderr)
            return
        print("Its run is over, and another one has begun", file=sys.stderr)
        found = over


def _follow_run(manager: Any, followed: Any, invocation: str, printer: _Printer) -> ServiceStatus:
    """Prints what the run says until it has ended; gives the status that said so."""
    from ops.services import log_lines

    splitter, looked_at, over = log_lines.Splitter(), time.monotonic(), None
    while True:
        if data := followed.read():
            printer.give(splitter.feed(data))
            continue
        printer.caught_up()
        if over is not None:  # what it wrote at its end has been read too
            printer.give(splitter.rest())
            return over
        time.sleep(LOOK_S)
        if time.monotonic() - looked_at >= STATUS_S:
            found, looked_at = manager.status(), time.monotonic()
            ended = found.state in (ServiceState.STOPPED, ServiceState.FAILED) and not found.ending
            over = found if ended or found.invocation != invocation else None


# ---- jobs ----


def start(arguments: argparse.Namespace) -> int:
    return jobs.run(arguments, "start", targets.service(arguments.service), {"smoke": not arguments.no_smoke})


def stop(arguments: argparse.Namespace) -> int:
    return jobs.run(arguments, "stop", targets.service(arguments.service), {})


def restart(arguments: argparse.Namespace) -> int:
    return jobs.run(arguments, "restart", targets.service(arguments.service), {"smoke": not arguments.no_smoke})


def switch(arguments: argparse.Namespace) -> int:
    record, to = targets.service(arguments.service), targets.service(arguments.to)
    if to.name == record.name:
        raise WrongArguments(f"`{to.name}` cannot be switched to itself", hint="`restart` stops and starts it")
    if to.practice != record.practice:
        raise BadInput(f"`{to.name}` cannot take the place of `{record.name}`", why="Practice never mixes with real services")
    return jobs.run(arguments, "switch", record, {"to": to.name, "smoke": not arguments.no_smoke})


def reset_failed(arguments: argparse.Namespace) -> int:
    return jobs.run(arguments, "reset-failed", targets.service(arguments.service), {})


def warmup(arguments: argparse.Namespace) -> int:
    result, error = jobs.execute(arguments, "warmup", targets.service(arguments.service), {})
    if not arguments.json and error is None and (told := result.get("warmup")):
        table(["phase", "took s", "usually s"], [
            [phase["title"], _tenths(phase["took_s"]), _tenths(phase.get("usual_s"))] for phase in told["phases"]], left={0})
        if (compared := told.get("compared")) is not None:
            print(f"{told['total_s']:.1f} s in all; of {compared['count']} earlier ones with the same caches the median was "
                  f"{_tenths(compared['median_s'])} s")
    return jobs.conclude(arguments, result, error)


def _tenths(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f}"


def leftovers(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something is left that holds what the next start needs."""
    result, error = jobs.execute(arguments, "leftovers", targets.service(arguments.service), {})
    found = result.get("leftovers")
    if found is not None and not arguments.json:
        _print_leftovers(found, whole=arguments.verbose)
    code = jobs.conclude(arguments, result, error)
    return code or int(found is not None and any(found[name] for name in ("processes", "gpus", "ports", "shm")))


def _print_leftovers(found: dict[str, Any], *, whole: bool = False) -> None:
    if found["processes"]:
        table(["pid", "whose", "user", "unit", "started", "GPU memory", "command"], [
            [str(one["pid"]), "its own" if one["own"] else one["service"] or "others'", one["user"] or "unknown", one["unit"] or "-",
             _ago(one["started_at"]), ", ".join(f"GPU {gpu['index']}: {size(gpu['used_bytes'])}" for gpu in one["gpus"]) or "-",
             (one["command"] or "unknown")[:80]] for one in found["processes"]], left={1, 2, 3, 4, 5, 6})
    for gpu in found["gpus"]:
        print(f"GPU {gpu['index']} is not free: {gpu['problem']}")
    for port in found["ports"]:
        print(f"port {port['port']} is in use by " + ("a process of another user" if port["pid"] is None else
                                                      f"{port['pid']} {port['command'] or ''}".strip()))
    files = [f"{file['path']}: {size(file['size_bytes'])} of shared memory that no process uses" for file in found["shm"]]
    files += [f"{file['path']}: {file['what']}" for file in found["ipc"]]
    for text in files if whole else files[:_FILES_SHOWN]:
        print(text)
    if len(files) > _FILES_SHOWN and not whole:
        print(f"... and {len(files) - _FILES_SHOWN} further files (--verbose names them)")
    for problem in found["problems"]:
        print(f"note: {problem}")


def end_leftovers(arguments: argparse.Namespace) -> int:
    """Looks, shows what would end, asks (a person at a terminal; else --yes says it), then ends exactly that. The node proves whose they are anew."""
    if not arguments.yes and not sys.stdin.isatty():
        raise WrongArguments("Processes would be ended", hint="Say --yes if nobody is there to ask; `leftovers` lists them")
    record = targets.service(arguments.service)
    result, error = jobs.execute(arguments, "leftovers", record, {})
    if result["state"] == JobState.CANCELLED:
        return INTERRUPTED
    if error is not None:
        raise error
    own = {one["pid"]: one for one in result["leftovers"]["processes"] if one["own"]}
    if arguments.pid and (strange := [pid for pid in arguments.pid if pid not in own]):
        raise BadInput(f"Process {strange[0]} is no leftover of service `{record.name}`", why="Only what belonged to the service can be ended",
                       hint=f"It has: {', '.join(map(str, sorted(own)))}" if own else "It has none")
    chosen = [one for pid, one in sorted(own.items()) if not arguments.pid or pid in arguments.pid]
    if not chosen:
        if arguments.json:
            print_json(result)
        else:
            print(f"Nothing of {record.name} is left that could be ended")
        return 0
    if not arguments.yes:
        _print_leftovers({**result["leftovers"], "processes": chosen})
        if input(f"End {len(chosen)} processes of {record.name}? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was ended", file=sys.stderr)
            return 1
    return jobs.run(arguments, "end-leftovers", record, {"processes": [{"pid": one["pid"], "start_ticks": one["start_ticks"]} for one in chosen]})
