"""The last ends of a service that nobody asked for, each with what its log says: noticed by the agent, kept in `state.json`, announced.

    "failures": [{"at", "ended_at", "release", "invocation", "exit_code", "restarts", "detail", "where", "problem", "diagnosis"}, ...]   oldest first

    "last_run": {"boot_id", "invocation", "restarts", "release", "began_at", "where", "state", "settings"}   the run that was seen last

`at` is when it was noticed, `ended_at` when it ended as far as that is known (seconds since the epoch), `restarts` how often its manager had started
it again by itself until then, `where` its log for people, `problem` why there is no diagnosis, `diagnosis` what `told` gives; null while it is made.
`kernel` comes with the diagnosis: whether the kernel's log of that time could be read, `{"problem": "" or why not}`.

An end is noticed by the run's name (its invocation), not by a moment in which the service is seen down: a manager that starts it again at once, or a
job that does, hides no crash. A log may have gigabytes, so it is read in a process of its own, at low priority and with a limit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.agent.config import REPOSITORY
from ops.gpus import processes
from ops.jobs import redact
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import launch, pending, state
from ops.services.process import ProcessManager, how_it_ended
from ops.services.status import ServiceState, ServiceStatus

if TYPE_CHECKING:
    from ops.services.diagnosis import Diagnosis
    from ops.services.manager import Manager

log = logging.getLogger("roundhouse.failures")

KEPT = 20
WAITING_MAX = 5  # ends of a service whose log was not read yet; a unit in a quick restart loop ends faster than logs can be read
UNCLEAR_S = 3.0  # how a process ended is written down just after its end: so long "not known" is not taken for an answer
SETTLE_S = 1.0  # workers of a dying server go on writing for a moment, and its manager says how it ended
LIMIT_S = 600.0  # for reading one log
KERNEL_S, KERNEL_AFTER_S = 3600.0, 5.0  # of the kernel's log: so much before an end whose beginning is not known, and so much after it
AGAIN_S = 30.0  # between two tries to store what could not be stored (a full disk)
TEXT_MAX, CONTEXT_MAX = 2000, 500  # characters
COMMAND = [sys.executable, "-m", "ops.services.failures"]


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as it was last seen."""

    invocation: str
    restarts: int | None
    release: str | None
    began_at: float | None
    where: str
    state: str
    settings: str | None = None  # what its start was given: `pending.digest`; None if that is not what the record says


class Watch:
    """Notices ends, and has them diagnosed. `look` never waits for a log."""

    def __init__(self, *, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._seen: dict[str, _Run | None] = {}
        self._noted: dict[str, set[str]] = {}
        self._unsaved: dict[str, list[dict[str, Any]]] = {}
        self._try_at: dict[str, float] = {}  # monotonic
        self._unclear: dict[str, tuple[str, float]] = {}  # invocation, and since when (monotonic)
        self._waiting: list[tuple[ServiceRecord, dict[str, Any]]] = []  # oldest first
        self._reading = False
        self._wake = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Watch:
        self._thread = threading.Thread(target=self._work, name="failures", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        with self._wake:
            self._wake.notify_all()
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def look(self, record: ServiceRecord, status: ServiceStatus, manager: Manager) -> None:
        """Holds what is now against what was seen before. Once a second, for one service by one thread at a time."""
        name = record.name
        if status.state == ServiceState.UNKNOWN and not status.invocation:
            return  # its manager could not be asked
        if name not in self._seen:
            self._begin(record)
        before = self._seen[name]
        if self._is_unclear(name, status, manager):
            return  # the next look tells
        for ended in self._ends(before, status, manager):
            key = _key(ended)
            if key not in self._noted[name]:
                self._noted[name].add(key)
                self._note(record, ended)
        known = before if before is not None and before.invocation == status.invocation else None
        began_at = status.started_at if status.started_at is not None else known.began_at if known is not None else None
        settings = known.settings if known is not None else pending.started_with(record, began_at, status.invocation)
        self._seen[name] = now = _Run(status.invocation, status.restarts, status.release, began_at, status.log_where, status.state, settings)
        if now.invocation and known is None:
            self._store(record, None, now)
        elif name in self._unsaved and time.monotonic() >= self._try_at.get(name, 0.0):
            self._store(record, None)

    def _is_unclear(self, name: str, status: ServiceStatus, manager: Manager) -> bool:
        """Whether a process has just ended, and its exit code may still come."""
        if status.state != ServiceState.FAILED or status.exit_code is not None or not isinstance(manager, ProcessManager):
            self._unclear.pop(name, None)
            return False
        invocation, since = self._unclear.get(name, ("", 0.0))
        if invocation != status.invocation:
            since = time.monotonic()
            self._unclear[name] = (status.invocation, since)
        return time.monotonic() - since < UNCLEAR_S

    def unsaved(self, name: str) -> list[dict[str, Any]]:
        """Failures that could not be stored yet, oldest first: they are in no `state.json`."""
        return list(self._unsaved.get(name, []))

    def is_pending(self, record: ServiceRecord) -> bool | None:
        """Whether the launch settings are others than those that the process which runs was given; None if no process of it was seen."""
        run = self._seen.get(record.name)
        if run is None or not run.invocation or run.state in (ServiceState.STOPPED, ServiceState.FAILED):
            return None
        return run.settings != pending.digest(record)

    def idle(self) -> bool:
        """Whether every log that was to be read has been read."""
        with self._wake:
            return not self._waiting and not self._reading

    # ---- noticing ----

    def _begin(self, record: ServiceRecord) -> None:
        """What an agent before this one has left: the run that it saw last, and ends whose log it did not get to read."""
        self._noted[record.name], self._seen[record.name] = set(), None
        try:
            known = state.read(record)
        except OpsError as error:
            log.warning("what is remembered of service `%s` cannot be read: %s", record.name, error)
            return
        for one in kept(known):
            self._noted[record.name].add(_key(one))
            if one.get("diagnosis") is None and not one.get("problem"):
                self._submit(record, one)
        last = known.get("last_run")
        if isinstance(last, dict) and last.get("boot_id") == processes.boot_id() and isinstance(last.get("invocation"), str):
            self._seen[record.name] = _Run(last["invocation"], last.get("restarts"), last.get("release"), last.get("began_at"),
                                           str(last.get("where") or ""), str(last.get("state") or ""), last.get("settings"))

    @staticmethod
    def _ends(before: _Run | None, status: ServiceStatus, manager: Manager) -> Iterator[dict[str, Any]]:
        """Every end that shows now, as a failure without its diagnosis."""
        another = before is None or before.invocation != status.invocation
        if isinstance(manager, ProcessManager):
            previous = manager.previous_run() if another else None
            if previous is not None and not previous["stopping"]:
                code = previous["exit_code"]
                yield _failure(invocation=previous["invocation"], release=previous["release"], exit_code=code, ended_at=previous["ended_at"],
                               restarts=None, where=previous["log"],
                               detail=f"It ended without being asked to, {how_it_ended(code)}; it was started again since")
        elif before is not None and another and status.restarts:
            yield from _restarted(before, status, status.restarts)
        if status.state == ServiceState.FAILED and (status.invocation or status.ended_at or (before and before.state != ServiceState.FAILED)):
            yield _failure(invocation=status.invocation, release=status.release, exit_code=status.exit_code, ended_at=status.ended_at,
                           restarts=status.restarts, where=status.log_where, detail=status.detail,
                           began_at=before.began_at if before is not None and not another else status.started_at)

    def _note(self, record: ServiceRecord, failure: dict[str, Any]) -> None:
        log.warning("service `%s`: %s", record.name, failure["detail"])
        self._store(record, failure)
        if not failure["problem"]:
            self._submit(record, failure)

    # ---- storing ----

    def _store(self, record: ServiceRecord, failure: dict[str, Any] | None, run: _Run | None = None) -> None:
        """Writes a failure (new, or with its diagnosis), all that could not be written before, and the run that runs now."""
        with self._lock:
            waiting = self._unsaved.get(record.name, [])
            if failure is not None:
                there = any(_same(one, failure) for one in waiting)
                waiting = [failure if _same(one, failure) else one for one in waiting] if there else [*waiting, failure][-KEPT:]

            def edit(known: dict[str, Any]) -> None:
                if waiting:
                    told = kept(known)
                    for one in waiting:
                        at = next((index for index, other in enumerate(told) if _same(other, one)), None)
                        if at is None:
                            told.append(one)
                        else:
                            told[at] = one
                    known["failures"] = _newest(told)
                if run is not None:
                    known["last_run"] = {"boot_id": processes.boot_id(), "invocation": run.invocation, "restarts": run.restarts,
                                         "release": run.release, "began_at": run.began_at, "where": run.where, "state": run.state,
                                         "settings": run.settings}

            try:
                state.change(record, edit)
            except (OSError, OpsError) as error:
                if waiting:
                    self._unsaved[record.name] = waiting
                    self._try_at[record.name] = time.monotonic() + AGAIN_S
                log.warning("the state of service `%s` cannot be stored: %s", record.name, error)
            else:
                self._unsaved.pop(record.name, None)

    # ---- diagnosing ----

    def _submit(self, record: ServiceRecord, failure: dict[str, Any]) -> None:
        with self._wake:
            self._waiting.append((record, failure))
            late = [item for item in self._waiting if item[0].name == record.name][:-WAITING_MAX]
            self._waiting = [item for item in self._waiting if not any(item is other for other in late)]
            self._wake.notify_all()
        for _, one in late:
            self._store(record, {**one, "problem": "Its log was not read: ends came faster than logs can be read"})

    def _next(self) -> tuple[ServiceRecord, dict[str, Any]] | None:
        """The newest end whose log was not read yet: that is what a page shows. Waits for one; None once it is to stop."""
        with self._wake:
            self._reading = False
            while not self._waiting and not self._stop.is_set():
                self._wake.wait()
            if self._stop.is_set():
                return None
            self._reading = True
            return self._waiting.pop()

    def _work(self) -> None:
        while (item := self._next()) is not None:
            record, failure = item
            try:
                if not self._stop.wait(self._settle_s):
                    self._store(record, {**failure, **self._read(record, failure)})
            except Exception:  # a thread would end in silence
                log.exception("the end of service `%s` cannot be diagnosed", record.name)

    def _read(self, record: ServiceRecord, failure: dict[str, Any]) -> dict[str, Any]:
        """`diagnosis` or `problem`, and what the log tells of the end itself (`exit_code`, `ended_at`)."""
        order = json.dumps({"record": record.as_dict(), "failure": failure})
        with self._lock:
            if self._stop.is_set():
                return {}
            self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                             cwd=REPOSITORY)
        try:
            said, wrong = self._process.communicate(order, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {"problem": f"Its log could not be read within {LIMIT_S:.0f} s"}
        if self._stop.is_set():
            return {}  # the next agent reads it
        try:
            return dict(json.loads(said))
        except ValueError:
            log.error("the diagnosis of service `%s` ended with code %s: %s", record.name, self._process.returncode, wrong[-2000:])
            return {"problem": f"Reading its log failed ({how_it_ended(self._process.returncode)})"}


def _restarted(before: _Run, status: ServiceStatus, restarts: int) -> Iterator[dict[str, Any]]:
    """Ends of runs that a manager has followed up by itself: it counts them, from 0 at each start that somebody asks for. Of several between two
    looks only the first is told, with how many there were."""
    counted_on = before.state != ServiceState.STOPPED and restarts > (before.restarts or 0)
    more = restarts - (before.restarts or 0) - 1 if counted_on else restarts
    again = f"It ended without being asked to, and its manager started it again (restart {restarts})"
    if counted_on and before.state != ServiceState.FAILED and before.invocation:
        hidden = f"; {more} further {'end' if more == 1 else 'ends'} came before anybody looked" if more else ""
        yield _failure(invocation=before.invocation, release=before.release, exit_code=None, ended_at=None, restarts=before.restarts,
                       where=before.where, began_at=before.began_at, detail=again + hidden)
    elif more > 0:
        unseen = _failure(invocation="", release=status.release, exit_code=None, ended_at=None, restarts=restarts - 1, where="", detail=again)
        yield {**unseen, "problem": "It was over before anybody looked, so it is not known which lines of the journal are its own"}


def kept(known: dict[str, Any]) -> list[dict[str, Any]]:
    """The failures in what `state.read` gives, oldest first."""
    told = known.get("failures")
    return [one for one in told if isinstance(one, dict)][-KEPT:] if isinstance(told, list) else []


def merged(known: list[dict[str, Any]], unsaved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of `state.json`, and what could not be written there."""
    return _newest([*[one for one in known if not any(_same(one, other) for other in unsaved)], *unsaved])


def _newest(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By when they were noticed: a log that took long to be read is not that of the newest end."""
    return sorted(told, key=lambda one: at if isinstance(at := one.get("at"), int | float) else 0.0)[-KEPT:]


def key(told: Any) -> str:
    """Changes with a new failure, and when the newest one got its diagnosis; "" where there is none. For a page that shows them."""
    newest = told[-1] if isinstance(told, list) and told else None
    if not isinstance(newest, dict) or not isinstance(newest.get("at"), int | float):
        return ""
    return f"{newest['at']:.3f}:{int(bool(newest.get('diagnosis') or newest.get('problem')))}"


def _failure(*, invocation: str, release: str | None, exit_code: int | None, ended_at: float | None, restarts: int | None, where: str, detail: str,
             began_at: float | None = None) -> dict[str, Any]:
    return {"at": time.time(), "began_at": began_at, "ended_at": ended_at, "release": release, "invocation": invocation, "exit_code": exit_code,
            "restarts": restarts, "detail": detail[:TEXT_MAX], "where": where, "problem": "", "diagnosis": None}


def _key(failure: dict[str, Any]) -> str:
    """What makes an end the same one when it is seen again."""
    return str(failure.get("invocation") or f"{failure.get('release')}@{failure.get('ended_at') or failure.get('at')}")


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.get("at") == other.get("at") and one.get("invocation") == other.get("invocation")


_NATIVE = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def meaning(exit_code: int | None) -> str:
    """What an end by a signal usually means, as a sentence; "" for any other end. Codes above 128 are a shell's or a container's for the same."""
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128
    try:
        sent = signal.Signals(number)
    except ValueError:
        return ""
    if sent == signal.SIGKILL:
        return "SIGKILL comes from outside: from the kernel when memory has run out, from a manager whose time for a stop is over, or from a person."
    if sent in _NATIVE:
        return f"{sent.name} is a crash in native code (CUDA, NCCL, a kernel), not in Python."
    return f"{sent.name} was sent from outside, by a person or a manager, and not by this console."


def kernel_words(problem: str) -> str:
    """Whether the kernel's log excludes a kill for memory, where the diagnosis names no line of it. `problem`: why it could not be read, or ""."""
    if not problem:
        return "The kernel's log of that time was read: it names no kill for memory, no segfault and no Xid."
    return f"The kernel's log could not be read ({problem}): `journalctl -k` as root shows whether memory had run out."


def told(found: Diagnosis, secrets: list[str]) -> dict[str, Any]:
    """A diagnosis as it may leave the node: without secrets and control characters, its texts cut."""
    said = {name: redact.log_text(value, secrets)[:TEXT_MAX] if isinstance(value, str) else value for name, value in found.as_dict().items()}
    said["context"] = [{"number": one["number"], "text": redact.log_text(one["text"], secrets)[:CONTEXT_MAX]} for one in found.context]
    return said


# ---- from here on: in a process of its own ----


def diagnosed(record: ServiceRecord, failure: dict[str, Any]) -> dict[str, Any]:
    """Reads the log of the run that ended. Gives `diagnosis` and `kernel`, or `problem`; of a unit also `exit_code` and `ended_at`, which the
    journal knows."""
    from ops.services import kernel_log

    secrets = launch.secrets(record)
    end = _end_in_journal(record, failure["invocation"]) if record.manager == "systemd" else {}
    ended_at = end.get("ended_at") or failure["ended_at"] or failure["at"]
    kernel = kernel_log.read(failure.get("began_at") or ended_at - KERNEL_S, ended_at + KERNEL_AFTER_S)
    try:
        found = _found(record, failure, kernel.lines)
    except OpsError as error:
        return {"problem": redact.log_text(f"{error.what}: {error.why}" if error.why else error.what, secrets)[:TEXT_MAX], **end}
    except OSError as error:
        return {"problem": f"Its log cannot be read: {error.strerror or error}"[:TEXT_MAX]}
    return {"diagnosis": told(found, secrets), "kernel": {"problem": redact.log_text(kernel.problem, secrets)[:CONTEXT_MAX]}, **end}


def _found(record: ServiceRecord, failure: dict[str, Any], kernel: list[str]) -> Diagnosis:
    from ops.services import diagnosis, journal

    if record.manager == "systemd":
        lines = journal.lines(record.unit, user=record.unit_scope == "user", invocation=failure["invocation"] or None)
        return diagnosis.diagnose_lines(lines, kernel=kernel, ended=True)
    return diagnosis.diagnose_file(Path(failure["where"]), kernel=kernel, ended=True)


def _end_in_journal(record: ServiceRecord, invocation: str) -> dict[str, Any]:
    from ops.services import journal

    try:
        said = journal.manager_entries(record.unit, invocation, user=record.unit_scope == "user") if invocation else []
    except OpsError:
        return {}  # the diagnosis stands; how it ended was not seen, and is not known
    for entry in reversed(said):
        if "Main process exited" in str(entry.get("MESSAGE")):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                code = int(entry["EXIT_STATUS"])
                return {"exit_code": -code if entry["EXIT_CODE"] in ("killed", "dumped") else code,
                        "ended_at": int(entry["__REALTIME_TIMESTAMP"]) / 1e6}
    return {}


def main() -> None:
    """Reads an order (`record`, `failure`) as JSON from stdin, prints what `diagnosed` gives."""
    os.nice(10)
    order = json.load(sys.stdin)
    json.dump(diagnosed(ServiceRecord.from_dict(order["record"]), order["failure"]), sys.stdout)


if __name__ == "__main__":
    main()
