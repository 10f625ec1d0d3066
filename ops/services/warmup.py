"""From process start to the first answer: which phase a starting vLLM server is in, how far, and how long it will still take.

Until the port answers, at the very end, the log is the only source (milestones.py reads it). `watch` follows the log of a service, tells phases
and progress, and ends with the first answer or with a diagnosis. Under a manager that starts a crashed service again by itself, the next try is
watched, until a second one crashes for the same reason.

All times are measured on the monotonic clock from the process's age, so a wall clock that jumps changes none of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from ops.gpus import processes
from ops.gpus.source import GpuSource
from ops.jobs.errors import OpsError, Timeout
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.jobs.redact import log_text
from ops.records import ServiceRecord
from ops.services import diagnosis, estimate, health, kernel_log, launch, listeners, log_lines, state
from ops.services.estimate import estimate_s
from ops.services.log_follower import BAR, LogFollower, journal_time
from ops.services.manager import Manager, manager_for
from ops.services.milestones import PHASES, POSITION, TITLES, Change, Parser
from ops.services.process import how_it_ended
from ops.services.status import ServiceState, ServiceStatus

__all__ = ["PHASES", "Parser", "ServiceCrashed", "WarmupResult", "estimate_s", "watch"]


class ServiceCrashed(OpsError):
    """The server ended while it was starting. `what` is the decisive line; `facts["diagnosis"]` the whole diagnosis, `facts["tries"]` how many starts
    were watched, `facts["loop"]` whether the last two ended for the same reason."""

    kind = "service_crashed"


@dataclass(frozen=True, kw_only=True)
class WarmupResult:
    """A warmup that ended with an answer. `total_s` from process start; `tries`: how many starts were watched until one came up."""

    total_s: float
    phases: list[dict[str, Any]]
    cache: str
    release: str | None
    first_answer_s: float  # the small chat request alone
    tries: int = 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_LOG_ROOM_BYTES = 256 * 1024  # with less, a dying service cannot even write its last words
_ENGINE_FAILED = re.compile(r"Engine core initialization failed|EngineCore failed to start|engine core exited unexpectedly")
_FAILED_LIMIT_S = 20.0  # seen: the main process may wait ten minutes for an engine that is gone
_FIRST_ANSWER_LIMIT_S = 120.0
_SILENT_LIMIT_S = 60.0  # for /health, once the log says that the server has started
_LAST_WORDS_S, _LAST_WORDS_LIMIT_S = 0.5, 15.0  # a log is complete when it was quiet for the first, or after the second
_JOURNAL_LIMIT_S = 3.0
_RUN_IS_OVER = re.compile(r"systemd\[\d+\]: .*(?:Main process exited|Deactivated successfully|Failed with result|Succeeded\.|Scheduled restart job)")
_SETTLES_LIMIT_S = 120.0  # TimeoutStopSec= of units, for workers that do not end with their server, is 90 s where nobody set it
_TRIES_LIMIT = 5
_LATE_S = 5.0
_COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "ninja", "cc1plus", "cc1", "c++", "g++", "gcc", "ld", "clang++", "clang"})
_READS_BYTES = 1 << 20  # in a second: less is no loading of weights


class _NextTry(Exception):
    """The manager has started the service again; carries the new run's status."""

    def __init__(self, status: ServiceStatus) -> None:
        super().__init__()
        self.status = status


class _Watch:
    """The warmups of one service being watched: one, or several tries."""

    PROGRESS_S = 0.5
    POLL_S = 0.05
    HEALTH_S = 2.0
    STALL_LOOK_S = 5.0
    PATIENCE = 4  # times stall_s, where the GPUs are idle but processors are not

    def __init__(self, context: Context, record: ServiceRecord, manager: Manager, source: GpuSource | None, stall_s: float) -> None:
        self.context, self.record, self.manager, self.source, self.stall_s = context, record, manager, source, stall_s
        self.journal = manager.log_path() is None  # its manager may start it again by itself, and then the log is another run's
        self.history = state.warmups(record)
        self.secrets = launch.secrets(record)
        self.tries = 0
        self.causes: list[tuple[str, str]] = []  # of the tries that crashed

    def run(self, status: ServiceStatus) -> WarmupResult:
        while True:
            self._begin(status)
            try:
                return self._follow()
            except _NextTry as again:
                status = again.status
            finally:
                self.follower.close()

    def _begin(self, status: ServiceStatus) -> None:
        while True:
            log = self.manager.run_log()
            if log is None:
                raise OpsError(f"Service `{self.record.name}` has no log to watch")
            if not self.journal or (now := self.manager.status()).invocation == status.invocation:
                break
            log.close()  # started again in between: this log may be the one run's or the other's
            status = now
        self.tries += 1
        self.status = status
        age = age_s(status)
        self.zero = time.monotonic() - age
        self.wall_start = time.time() - age
        self.late = self.catching_up = age > _LATE_S  # somebody else started it, some time ago
        self.parser = Parser()
        self.told_at = 0.0
        self.moved_at = time.monotonic()
        self.stall_again_at = 0.0
        self.stall_told = False
        self.failed_at: float | None = None
        self.silent_since: float | None = None
        self.stamped_s = 0.0  # of the last line with a time of its own
        self.follower = LogFollower(self.context, log, self.secrets, journal=self.journal)
        if self.tries > 1:
            self.context.log(f"--- try {self.tries}: pid {status.pid} ---")
        self._tell([Change(self.parser.current, milestone=True)])

    def now(self) -> float:
        return time.monotonic() - self.zero

    def alive(self) -> bool:
        return self.status.pid is not None and self.status.start_ticks is not None and processes.is_alive(self.status.pid, self.status.start_ticks)

    def _follow(self) -> WarmupResult:
        asked_at = stall_looked_at = 0.0
        while True:
            self.context.check()
            self._read()
            if not self.alive() or (self.failed_at is not None and time.monotonic() - self.failed_at > _FAILED_LIMIT_S):
                self._ended()
            self._progress()
            clock = time.monotonic()
            listens = POSITION[self.parser.current.phase] >= POSITION["listening"]
            # Before the log says that the server listens, the port answers nothing; asking it once a second costs nothing either.
            if clock - asked_at >= (0.1 if listens else 1.0):
                asked_at = clock
                if self._healthy(listens):
                    return self._answer()
            if clock - stall_looked_at >= self.STALL_LOOK_S:
                stall_looked_at = clock
                self._look_for_stall()
            time.sleep(self.POLL_S)

    # ---- the log ----

    def _read(self) -> None:
        end = time.monotonic() + 0.5
        while lines := self.follower.read():  # a flood is read in pieces, so that a cancel is seen
            self._parse(lines, self.now())
            if time.monotonic() > end:
                break
        else:
            self.catching_up = False  # from here on lines are read when they are written
        if BAR.match(bar := self.follower.unfinished):
            self._parse([bar], self.now())  # says nothing new the second time

    def _parse(self, lines: Iterable[str], at: float) -> None:
        for line in lines:
            if _ENGINE_FAILED.search(line) and self.failed_at is None:
                self.failed_at = time.monotonic()
            changes = self.parser.feed(line, self._time_of(line, at) if self.catching_up else at)
            if changes:
                self.moved_at = time.monotonic()
                self.stall_told = False
                self._tell([change for change in changes if change.milestone])

    def _time_of(self, line: str, at: float) -> float:
        """For lines that were written before we came: seconds since process start by the journal's clock or the line's own (whole seconds, no year).
        Never before the line above it, and never in the future, whatever that clock did."""
        if (written := journal_time(line)) is not None:
            since = written - self.wall_start
        else:
            stamp = log_lines.parse(line).stamp
            if not stamp:
                return self.stamped_s
            began = time.localtime(self.wall_start)
            try:
                found = [time.mktime(time.strptime(f"{year}-{stamp}", "%Y-%m-%d %H:%M:%S")) for year in (began.tm_year, began.tm_year + 1)]
            except ValueError:
                return at
            since = min((when - time.mktime(began) for when in found), key=abs)  # a start across New Year
        self.stamped_s = min(max(self.stamped_s, since), at)
        return self.stamped_s

    # ---- what is told ----

    def _tell(self, changes: Iterable[Change]) -> None:
        guess = self._estimate()
        for change in changes:
            phase = change.phase
            self.context.emit(EventType.WARMUP_PHASE, phase.as_dict() | {
                "began_s": round(phase.began_s, 3), "elapsed_s": round(self.now(), 3), "estimate_s": _rounded(guess), "cache": self.parser.cache,
                "try": self.tries,
            })

    def _estimate(self) -> float | None:
        return estimate_s(self.parser, self.now(), self.history, self.status.release)

    def _progress(self) -> None:
        clock = time.monotonic()
        if clock - self.told_at < self.PROGRESS_S:
            return
        self.told_at = clock
        elapsed, phase = self.now(), self.parser.current
        guess = self._estimate()
        text = f"Try {self.tries}: " if self.tries > 1 else ""
        text += TITLES[phase.phase]
        if phase.done is not None:
            text += f": {phase.done} of {phase.total}" + (" shards" if phase.phase == "load" else "")
        elif phase.detail:
            text += f": {phase.detail}"
        text += f"; about {_span(max(0.0, guess - elapsed))} left" if guess is not None else "; no estimate yet"
        self.context.emit(EventType.STEP_PROGRESS, {
            "step": self.context.step, "done": round(elapsed, 1), "total": _rounded(guess), "unit": "s", "text": text, "estimate": True,
            "estimate_s": _rounded(guess), "phase": phase.phase, "phase_done": phase.done, "phase_total": phase.total,
        })

    # ---- the good end ----

    def _healthy(self, listens: bool) -> bool:
        """Whether /health says that this service serves. Raises OpsError where something else answers at its port, or where a server that has started
        by its own log gives no answer, or nonsense, for a minute."""
        answer = health.health(self.record.base_url, timeout_s=self.HEALTH_S if listens else self.HEALTH_S / 2)
        if answer.ok:
            self._ours()
        if answer.sensible:
            return True
        if not listens or (not answer.ok and self.parser.current.phase != "healthy"):
            return False
        clock = time.monotonic()
        self.silent_since = self.silent_since or clock
        if clock - self.silent_since < _SILENT_LIMIT_S:
            return False
        told = f"status {answer.status}: {self._plain(answer.body)}" if answer.status else answer.why
        address = next((phase.detail for phase in self.parser.phases if phase.phase == "listening" and "://" in phase.detail), "")
        raise OpsError(f"Service `{self.record.name}` has started, but `{self.record.base_url}/health` gives no answer of a vLLM server",
                       why=f"For {_span(clock - self.silent_since)}: {told or 'nothing'}"
                           + (f". Its log says that it listens on {address}" if address else ""),
                       hint="Compare the service's address with what its log says; look whether a proxy stands in between", kind="no_answer")

    def _ours(self) -> None:
        """Raises OpsError if another program answers at the service's port: its answers say nothing of this service, which cannot open the port."""
        port = health.port_of(self.record.base_url)
        if other := listeners.foreign(port, self.manager.pids()):
            raise OpsError(f"Port {port} of service `{self.record.name}` is answered by something else: {other}",
                           why="The service cannot open it", hint=f'`ss -ltnp "sport = :{port}"` names it: stop it, then start the job again',
                           kind="port_taken")

    def _answer(self) -> WarmupResult:
        end = time.monotonic() + 5.0
        while (lines := self.follower.read()) and time.monotonic() < end:  # what the log says comes before the answer, in the order it happened
            self._parse(lines, self.now())
        self._tell(self.parser.answered(self.now()))
        asked = time.monotonic()
        first = self._first_answer()
        # Whoever comes to a server that answers already takes the time from its log, not the time until somebody looked.
        total = self.parser.current.began_s + (first - asked) if self.late else self.now()
        self._tell([self.parser.finish(total)])
        told = [phase.as_dict() for phase in self.parser.phases]
        cache = self.parser.cache
        usual = estimate.usual_phases(self.history, cache)
        self.context.emit(EventType.WARMUP_DONE, {
            "total_s": round(total, 3),
            "phases": [{**{key: one[key] for key in ("phase", "title", "took_s")}, "usual_s": _rounded(usual.get(one["phase"]))} for one in told],
            "cache": cache, "release": self.status.release, "first_answer_s": round(first - asked, 3),
            "compared": estimate.compared(self.history, cache), "try": self.tries,
        })
        if not self.late:
            state.add_warmup(self.record, {
                "at": time.time(), "release": self.status.release, "total_s": round(total, 3), "cache": cache,
                "phases": {phase.phase: round(phase.took_s or 0.0, 3) for phase in self.parser.phases},
                "bars": {phase.phase: phase.bars for phase in self.parser.phases if phase.bars},
            })
        return WarmupResult(total_s=total, phases=told, cache=cache, release=self.status.release, first_answer_s=first - asked, tries=self.tries)

    def _first_answer(self) -> float:
        """One tiny chat answer: a server that is healthy but cannot answer is not warm. Gives when it came (monotonic)."""
        question = {"model": self.record.served_model_name, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 8, "temperature": 0}
        end = time.monotonic() + _FIRST_ANSWER_LIMIT_S
        nonsense = 0
        while True:
            answer = health.ask(self.record.base_url, "/v1/chat/completions", payload=question, timeout_s=_FIRST_ANSWER_LIMIT_S,
                                api_key=health.api_key(self.record))
            if answer.ok and _has_choices(answer.body):
                return time.monotonic()
            self._parse(self.follower.read(), self.now())
            if not self.alive():
                self._ended()
            refused = answer.status is not None and 400 <= answer.status < 500 and answer.status != 429
            nonsense += answer.ok  # a 200 that is no chat completion gets no better by asking on
            if refused or nonsense >= 5 or time.monotonic() > end:
                raise OpsError(
                    f"`{self.record.base_url}` is healthy, but does not answer a chat request for model `{self.record.served_model_name}`",
                    why=f"status {answer.status}: {self._plain(answer.body)}" if answer.status else answer.why,
                    hint="Compare the service's model name with what /v1/models lists" if answer.status == 404 else
                         "Is this address the service's own server? Its answer is no chat completion" if answer.ok else "Look at the service's log",
                    kind="no_answer",
                )
            self.context.sleep(0.2)

    def _plain(self, body: bytes) -> str:
        return log_text(body[:500].decode(errors="replace"), self.secrets).strip()

    # ---- the bad ends ----

    def _ended(self) -> NoReturn:
        """The main process is gone, or waits for an engine that is. Reads what is left of the log (a dying process and its workers go on writing) and
        says why. Raises _NextTry if the manager has started it again, ServiceCrashed if not, or if it would only crash again."""
        self._last_words()
        status = self._settled()
        if status.state == ServiceState.STOPPED:
            raise OpsError(f"Service `{self.record.name}` was stopped while it was starting", why="Somebody else stopped it", kind="stopped")
        alive = self.alive()
        again = not alive and (status.restarting or self._is_new(status) or (status.pid is None and status.state == ServiceState.STARTING))
        said = self._diagnosis()
        # Of a run that was followed by another one, the manager tells the exit code no more.
        how = "its engine failed, its main process still waits" if alive else how_it_ended(None if self._is_new(status) else status.exit_code)
        if not alive and status.exit_code is None and not self._is_new(status) and (told := status.detail.partition("being asked to, ")[2]):
            how = told.partition(";")[0]  # a unit that systemd has forgotten: what its manager makes of it
        cause = _cause(said, how)
        loop = cause in self.causes
        self.causes.append(cause)
        if again and not loop and self.tries < _TRIES_LIMIT:
            self.context.emit(EventType.WARMUP_TROUBLE, {
                "kind": "crash", "text": f"Try {self.tries} ended in phase `{TITLES[self.parser.current.phase]}`, {how}; its manager starts it again",
                "diagnosis": said if said["fault"] else None, "try": self.tries,
            })
            status = self._next_run(status)
            if self._is_new(status) or status.invocation != self.status.invocation:
                raise _NextTry(status)
            again = False
        raise self._crash(said, status, how, loop=loop, again=again)

    def _last_words(self) -> None:
        """Reads until the log is quiet; a journal, which comes through two other processes, until systemd has said there that the run is over."""
        began, quiet = time.monotonic(), time.monotonic() + _LAST_WORDS_S
        over = not self.journal or self.alive()
        while (clock := time.monotonic()) < began + _LAST_WORDS_LIMIT_S and (clock < quiet or (not over and clock < began + _JOURNAL_LIMIT_S)):
            if lines := self.follower.read():
                self._parse(lines, self.now())
                over = over or any(_RUN_IS_OVER.search(line) for line in lines)
                quiet = time.monotonic() + _LAST_WORDS_S
            time.sleep(0.05)
        self._parse(self.follower.rest(), self.now())

    def _settled(self) -> ServiceStatus:
        """What the manager says once it has seen the end, and has ended what was left: only then it is known whether there is another try."""
        end = time.monotonic() + _SETTLES_LIMIT_S
        status = self.manager.status()
        while time.monotonic() < end and not self.alive() and (status.ending or (status.pid is not None and status.pid == self.status.pid)):
            self.context.sleep(0.1)
            status = self.manager.status()
        return status

    def _is_new(self, status: ServiceStatus) -> bool:
        return status.pid is not None and (status.pid, status.start_ticks) != (self.status.pid, self.status.start_ticks) and status.runs

    def _next_run(self, status: ServiceStatus) -> ServiceStatus:
        """Waits until the manager has started it again (that run may have ended already), or has given up: the same run still, without a process."""
        while status.pid is None and (status.state == ServiceState.STARTING or (status.restarting and status.invocation == self.status.invocation)):
            self.context.sleep(0.2)
            status = self.manager.status()
        return status

    def _diagnosis(self) -> dict[str, Any]:
        """What the log of this try, and the kernel's log of that time, say; with secrets hidden."""
        self.kernel = kernel_log.read(self.wall_start, time.time())
        ended = not self.alive()
        try:
            found = diagnosis.diagnose_lines(self.manager.log_lines(self.status.invocation), kernel=self.kernel.lines, ended=ended)
        except OpsError as error:
            self.context.log(f"Its log cannot be read for a diagnosis: {error.what}. {error.why}")
            found = diagnosis.diagnose_lines((), kernel=self.kernel.lines, ended=ended)
        said: dict[str, Any] = {key: log_text(value, self.secrets) if isinstance(value, str) else value for key, value in found.as_dict().items()}
        said["context"] = [{"number": one["number"], "text": log_text(one["text"], self.secrets)} for one in found.context]
        return said

    def _emit_diagnosis(self, said: dict[str, Any], code: int | None) -> None:
        self.context.emit(EventType.DIAGNOSIS, said | {"service": self.record.name, "exit_code": code, "phase": self.parser.current.phase})

    def _crash(self, said: dict[str, Any], status: ServiceStatus, how: str, *, loop: bool, again: bool) -> ServiceCrashed:
        self._emit_diagnosis(said, None if self._is_new(status) else status.exit_code)
        where = f"while it was in phase `{TITLES[self.parser.current.phase]}`"
        facts: dict[str, Any] = {"diagnosis": said, "tries": self.tries, "loop": loop}
        more = ""
        if loop:
            more = f" This is a crash loop: {self.tries} starts were watched, and the cause is the same again; another start changes nothing."
        elif again:
            more = f" {self.tries} starts were watched, and all of them crashed, each in another way; its manager goes on starting it."
        elif self.tries > 1:
            more = f" {self.tries} starts were watched; its manager starts it no more."
        if said["fault"] and said["text"]:
            why = f"{said['diagnosis']} (service `{self.record.name}` ended {where}, {how}).{more}".strip()
            return ServiceCrashed(said["text"], why=why, hint=said["fix"], **facts)
        free = shutil.disk_usage(self.record.folder).free
        if free < _LOG_ROOM_BYTES:  # what it wanted to say, and its exit code, had no room either
            return ServiceCrashed(
                f"Service `{self.record.name}` ended {where}: the disk below `{self.record.folder}` is full",
                why=f"{free / 1024:,.0f} KiB are free; its log and its exit code could not be written.{more}",
                hint="Make room there, then start it again", **facts)
        return ServiceCrashed(f"Service `{self.record.name}` ended {where}, {how}", why=f"Its log names no cause.{more}",
                              hint="Look at the kernel log for an out-of-memory kill or an Xid line"
                                   + (f" (it could not be read here: {self.kernel.problem})" if self.kernel.problem else ""), **facts)

    # ---- does it still move? ----

    def _look_for_stall(self) -> None:
        """A stall: no milestone, no progress, idle GPUs, and nothing else that works on it. A long silence alone is none (compiling is silent), nor
        is vLLM's line about a shared-memory block, which it writes during every long phase."""
        quiet = time.monotonic() - self.moved_at
        if quiet < self.stall_s or time.monotonic() < self.stall_again_at:
            return
        gpus, others = self._busy_gpus(), ""
        if gpus is not True:
            others = self._other_work()
        self.stall_again_at = time.monotonic() + min(30.0, self.stall_s / 2)
        phase = self.parser.current
        at = f"{phase.done} of {phase.total}" if phase.done is not None else phase.detail or "its beginning"
        if gpus is True:
            self._tell_own_opinion(quiet)
            return
        compiling = phase.phase in ("compile", "autotune")
        if others and (others != "processors" or gpus is None or compiling or quiet < self.PATIENCE * self.stall_s):
            if others == "processors" and gpus is False:
                self._tell_stall(f"For {_span(quiet)} nothing moved in phase `{TITLES[phase.phase]}`, at {at}: its GPUs are idle, but its processes "
                                 "use the processor, so it is watched further", None)
            return
        idle = "its GPUs are idle" if gpus is False else "its processes are idle"
        said = self._diagnosis()
        known = bool(said["fault"] and said["text"])
        if known:
            self._emit_diagnosis(said, None)
        raise OpsError(
            f"Service `{self.record.name}` hangs in phase `{TITLES[phase.phase]}`, at {at}",
            why=f"For {_span(quiet)} there was no milestone and no progress in its log, and {idle}" + (f". {said['diagnosis']}" if known else ""),
            hint=said["fix"] if known else
                 "Typical are GPU-to-GPU transfers that hang (start with NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce to try), "
                 "or a file system that does not answer",
            kind="stalled", phase=phase.phase, quiet_s=round(quiet), **({"diagnosis": said} if known else {}),
        )

    def _tell_own_opinion(self, quiet: float) -> None:
        """GPUs that wait for each other look busy: where the log itself shows a hang, that is told, and the watch goes on."""
        if quiet < 2 * self.stall_s or self.stall_told:
            return
        said = self._diagnosis()
        if said["fault"] and said["state"] == "stalled":
            self._tell_stall(f"For {_span(quiet)} there was no progress, although its GPUs are busy: they may be waiting for each other", said)

    def _tell_stall(self, text: str, said: dict[str, Any] | None) -> None:
        if not self.stall_told:
            self.stall_told = True
            self.context.emit(EventType.WARMUP_TROUBLE, {"kind": "stall", "text": text, "diagnosis": said, "try": self.tries})

    def _busy_gpus(self) -> bool | None:
        """Whether a GPU of it works; None where that cannot be read."""
        if self.source is None:
            return None
        used = [gpu.utilization for gpu in self.source.read().gpus if not self.record.gpus or gpu.index in self.record.gpus]
        known = [percent for percent in used if percent is not None]
        return max(known) > 5.0 if known else None

    def _other_work(self) -> str:
        """What its processes did in one second: "compiler" (one of them is a compiler), "disk", "processors", or "" (nothing)."""
        pids = self.manager.pids()
        if any(_name(pid) in _COMPILERS for pid in pids):
            return "compiler"
        cpu, read = self._cpu_seconds(pids), _read_bytes(pids)
        self.context.sleep(1.0)
        if _read_bytes(pids) - read > _READS_BYTES:
            return "disk"
        return "processors" if self._cpu_seconds(pids) - cpu > 0.1 else ""

    @staticmethod
    def _cpu_seconds(pids: Iterable[int]) -> float:
        return sum(processes.cpu_seconds(pid) or 0.0 for pid in pids)


def watch(
    context: Context, record: ServiceRecord, *, source: GpuSource | None = None, stall_s: float = 300.0, deadline_s: float | None = None,
) -> WarmupResult:
    """Follows the service from process start until it answers a chat request.

    Emits step.log, warmup.phase, step.progress (at most every 0.5 s), warmup.trouble, warmup.done; stores the warmup in state.json if it was seen
    from its beginning. Raises ServiceCrashed after emitting `diagnosis` if the server ends and is not started again by its manager, or if a
    second start ends for the same reason; OpsError with kind "stalled" if nothing moves for `stall_s` and its GPUs (else its processes) are
    idle, "port_taken" if something else answers, "no_answer" if it is up and does not answer sensibly, "stopped" if somebody stops it; Timeout
    after `deadline_s`. `source` is opened from the node's settings if it is not given.
    """
    manager = manager_for(record)
    status = manager.status()
    if status.state == ServiceState.STOPPED:
        raise OpsError(f"Service `{record.name}` does not run", why=status.detail, hint="Start it first")
    if source is None:
        from ops.gpus.open_source import open_source

        source = open_source(context.config)
    given = context.deadline
    if deadline_s is not None:
        context.deadline = min(given or float("inf"), time.monotonic() + deadline_s)
    try:
        while status.pid is None and status.state == ServiceState.STARTING:  # its manager prepares the start
            context.sleep(0.2)
            status = manager.status()
        return _Watch(context, record, manager, source, stall_s).run(status)
    except Timeout as error:
        raise Timeout(f"Service `{record.name}` did not answer in time", why=error.what, hint="Its log shows how far it came") from error
    finally:
        context.deadline = given


def age_s(status: ServiceStatus) -> float:
    """How long the process has been running, by the clock that no one sets; by the wall clock where only that is known; 0 without a process."""
    if status.start_ticks is not None:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - status.start_ticks / os.sysconf("SC_CLK_TCK"))
    return max(0.0, time.time() - status.started_at) if status.started_at is not None else 0.0


def _cause(said: dict[str, Any], how: str) -> tuple[str, str]:
    """What two crashes for the same reason have in common: the rule, and the decisive text without numbers, addresses and random names."""
    if not said["fault"] or not said["text"]:
        return "", how
    return said["rule"], re.sub(r"0x[0-9a-f]+|[0-9a-f-]{8,}|\d+", "#", said["text"])


def _has_choices(body: bytes) -> bool:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and isinstance(raw.get("choices"), list) and bool(raw["choices"])


def _name(pid: int) -> str:
    try:
        return (processes.PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _read_bytes(pids: Iterable[int]) -> int:
    """What they have read so far, from disks and through system calls; another user's processes do not tell."""
    total = 0
    for pid in pids:
        try:
            counts = dict(line.split(": ") for line in (processes.PROC / str(pid) / "io").read_text().splitlines())
        except OSError:
            continue
        total += max(int(counts.get("rchar", 0)), int(counts.get("read_bytes", 0)))
    return total


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _span(seconds: float) -> str:
    """In words: "40 s", "9 min", "1 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
