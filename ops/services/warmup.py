"""From process start to the first answer: which phase a starting vLLM server is in, how far, and how long it will still take.

Until the port answers, at the very end, the log is the only source (milestones.py reads it). `watch` follows the log of a service, tells phases
and progress, and ends with the first answer or with a diagnosis.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ops.gpus import processes
from ops.gpus.source import GpuSource
from ops.jobs.errors import OpsError, Timeout
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.jobs.redact import log_text, record_secrets
from ops.records import ServiceRecord
from ops.services import diagnosis, health, listeners, log_lines, state
from ops.services.manager import Manager, manager_for
from ops.services.milestones import PHASES, POSITION, TITLES, Change, Parser
from ops.services.process import how_it_ended
from ops.services.status import ServiceState, ServiceStatus

__all__ = ["PHASES", "Parser", "ServiceCrashed", "WarmupResult", "estimate_s", "watch"]


class ServiceCrashed(OpsError):
    """The server ended while it was starting. `what` is the decisive line; `facts["diagnosis"]` the whole diagnosis."""

    kind = "service_crashed"


# ---- how long will it take? ----


def estimate_s(parser: Parser, elapsed_s: float, history: Sequence[dict[str, Any]]) -> float | None:
    """Seconds from process start to the first answer, or None ("no estimate yet").

    From this service's own earlier warmups with the same state of the compile cache: what passed, plus the median of what is left of the
    phase that runs (by its share of progress, where it tells that), plus the medians of the phases after it. As long as the log does not
    say whether the cache hits, the last warmup's state is taken.
    """
    if not history:
        return None
    wanted = parser.cache if parser.cache != "unknown" else history[-1].get("cache", "unknown")
    same = [one["phases"] for one in history if one.get("cache", "unknown") == wanted and one.get("phases")]
    if not same:
        return None
    here = parser.current
    usual = median(one.get(here.phase, 0.0) for one in same)
    in_phase = elapsed_s - here.began_s
    if here.done and here.total:
        left = max(usual, in_phase) * (1 - here.done / here.total)
    else:
        left = max(0.0, usual - in_phase)
    later = [name for name, _ in PHASES[POSITION[here.phase] + 1 :]]
    return elapsed_s + left + sum(median(one.get(name, 0.0) for one in same) for name in later)


# ---- following a service ----


@dataclass(frozen=True, kw_only=True)
class WarmupResult:
    """A warmup that ended with an answer. `total_s` from process start; None where the start was not seen."""

    total_s: float
    phases: list[dict[str, Any]]
    cache: str
    release: str | None
    first_answer_s: float  # the small chat request alone

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class _LogFollower:
    """Reads what a log grew by, and hands it on as step.log events: at most 64 KB or 250 ms each, and at most 1 MB a second."""

    CHUNK, EVERY_S, RATE = 64_000, 0.25, 1_000_000

    def __init__(self, context: Context, path: Path, secrets: Sequence[str]) -> None:
        self._context, self._path, self._secrets = context, path, secrets
        self._file: Any = None
        self._splitter = log_lines.Splitter()
        self._waiting: list[str] = []
        self._size = self._dropped = 0
        self._last = self._second = time.monotonic()
        self._sent = 0

    def read(self, limit: int = 1 << 20) -> list[str]:
        """New complete lines, at most about `limit` bytes of them."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except FileNotFoundError:
                return []
        data = self._file.read(limit)
        lines = self._splitter.feed(data) if data else []
        for line in lines:
            self._add(line)
        self.flush()
        return lines

    @property
    def unfinished(self) -> str:
        return self._splitter.unfinished

    def rest(self) -> list[str]:
        lines = self._splitter.rest()
        for line in lines:
            self._add(line)
        self.flush(now=True)
        return lines

    def _add(self, line: str) -> None:
        # vLLM writes its process prefix, then the bar's own carriage return: a terminal shows the bar over it, and so does this log.
        if _BARE_PREFIX.fullmatch(line):
            return
        # Of a progress bar that is redrawn, only the newest state is worth a line.
        bar = _BAR.match(line)
        if bar and self._waiting and (before := _BAR.match(self._waiting[-1])) and before["label"] == bar["label"]:
            self._size -= len(self._waiting.pop()) + 1
        self._waiting.append(line)
        self._size += len(line) + 1
        if self._size >= self.CHUNK:
            self.flush(now=True)

    def flush(self, *, now: bool = False) -> None:
        clock = time.monotonic()
        if not self._waiting or not (now or clock - self._last >= self.EVERY_S):
            return
        text = log_text("\n".join(self._waiting), self._secrets) + "\n"
        self._waiting, self._size, self._last = [], 0, clock
        if clock - self._second >= 1:
            self._second, self._sent = clock, 0
        if self._sent + len(text) > self.RATE:
            self._dropped += len(text.encode())
            return
        for start in range(0, len(text), self.CHUNK):
            part = text[start : start + self.CHUNK]
            self._sent += len(part)
            self._context.emit(EventType.STEP_LOG, {"step": self._context.step, "text": part, "dropped_bytes": self._dropped})
            self._dropped = 0

    def close(self) -> None:
        self.flush(now=True)
        if self._dropped:
            self._context.emit(EventType.STEP_LOG, {"step": self._context.step, "text": "", "dropped_bytes": self._dropped})
            self._dropped = 0
        if self._file is not None:
            self._file.close()


_LOG_ROOM_BYTES = 256 * 1024  # with less, a dying service cannot even write its last words
_BARE_PREFIX = re.compile(r"(\s*\((?:APIServer|EngineCore|Worker|VllmWorker|MainProcess)[\w ,=-]*\))+\s*")
_BAR = re.compile(r"(?P<label>.{3,200}?): +\d+%\D")


class _Watch:
    """One warmup being watched."""

    PROGRESS_S = 0.5
    POLL_S = 0.05
    STALL_LOOK_S = 5.0

    def __init__(self, context: Context, record: ServiceRecord, manager: Manager, status: ServiceStatus, source: GpuSource | None,
                 stall_s: float) -> None:
        self.context, self.record, self.manager, self.status, self.source, self.stall_s = context, record, manager, status, source, stall_s
        # Seconds since process start, on the monotonic clock: its wall-clock start is looked at once.
        self.wall_start = status.started_at or time.time()
        self.zero = time.monotonic() - max(0.0, time.time() - self.wall_start)
        self.late = self.now() > 5.0  # somebody else started it, some time ago
        self.parser = Parser()
        self.history = state.warmups(record)
        self.secrets = record_secrets(record.as_dict())
        self.told_at = 0.0
        self.moved_at = time.monotonic()
        self.failed_at: float | None = None
        self.stamped_s = 0.0  # of the last line with a time of its own

    def now(self) -> float:
        return time.monotonic() - self.zero

    def alive(self) -> bool:
        return self.status.pid is not None and self.status.start_ticks is not None and processes.is_alive(self.status.pid, self.status.start_ticks)

    def run(self) -> WarmupResult:
        path = self.manager.log_path()
        if path is None:
            raise OpsError(f"Service `{self.record.name}` has no log to watch")
        follower = _LogFollower(self.context, path, self.secrets)
        try:
            self._tell([Change(self.parser.current, milestone=True)])
            return self._follow(follower)
        finally:
            follower.close()

    def _follow(self, follower: _LogFollower) -> WarmupResult:
        asked_at = stall_looked_at = 0.0
        while True:
            self.context.check()
            self._read(follower)
            if not self.alive():
                self._crashed(follower)
            if self.failed_at is not None and time.monotonic() - self.failed_at > _FAILED_LIMIT_S:
                self._crashed(follower)
            self._progress()
            clock = time.monotonic()
            # Before the log says that the server listens, the port answers nothing; asking it once a second costs nothing either.
            if clock - asked_at >= (0.1 if POSITION[self.parser.current.phase] >= POSITION["listening"] else 1.0):
                asked_at = clock
                if health.health(self.record.base_url).ok:
                    self._ours()
                    return self._answer(follower)
            if clock - stall_looked_at >= self.STALL_LOOK_S:
                stall_looked_at = clock
                self._look_for_stall()
            time.sleep(self.POLL_S)

    def _read(self, follower: _LogFollower) -> None:
        self._parse(follower.read(), self.now())
        if _BAR.match(bar := follower.unfinished):
            self._parse([bar], self.now())  # says nothing new the second time

    def _parse(self, lines: list[str], at: float) -> None:
        for line in lines:
            if _ENGINE_FAILED.search(line) and self.failed_at is None:
                self.failed_at = time.monotonic()
            changes = self.parser.feed(line, self._time_of(line, at) if self.late else at)
            if changes:
                self.moved_at = time.monotonic()
                self._tell([change for change in changes if change.milestone])

    def _time_of(self, line: str, at: float) -> float:
        """For lines that were written before we came: seconds since process start by the line's own clock (whole seconds, no year)."""
        stamp = log_lines.parse(line).stamp
        if not stamp:
            return self.stamped_s
        began = time.localtime(self.wall_start)
        try:
            when = time.strptime(f"{began.tm_year}-{stamp}", "%Y-%m-%d %H:%M:%S")
        except ValueError:
            return at
        self.stamped_s = min(max(self.stamped_s, time.mktime(when) - time.mktime(began)), at)
        return self.stamped_s

    def _tell(self, changes: list[Change]) -> None:
        guess = estimate_s(self.parser, self.now(), self.history)
        for change in changes:
            phase = change.phase
            self.context.emit(EventType.WARMUP_PHASE, phase.as_dict() | {
                "began_s": round(phase.began_s, 3), "elapsed_s": round(self.now(), 3), "estimate_s": _rounded(guess), "cache": self.parser.cache,
            })

    def _progress(self) -> None:
        clock = time.monotonic()
        if clock - self.told_at < self.PROGRESS_S:
            return
        self.told_at = clock
        elapsed, phase = self.now(), self.parser.current
        guess = estimate_s(self.parser, elapsed, self.history)
        text = TITLES[phase.phase]
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

    def _ours(self) -> None:
        """Raises OpsError if another program answers at the service's port: its answers say nothing of this service, which cannot open the port."""
        port = health.port_of(self.record.base_url)
        if other := listeners.foreign(port, self.manager.pids()):
            raise OpsError(f"Port {port} of service `{self.record.name}` is answered by something else: {other}",
                           why="The service cannot open it", hint=f'`ss -ltnp "sport = :{port}"` names it: stop it, then start the job again',
                           kind="port_taken")

    def _answer(self, follower: _LogFollower) -> WarmupResult:
        end = time.monotonic() + 5.0
        while (lines := follower.read()) and time.monotonic() < end:  # what the log says comes before the answer, in the order it happened
            self._parse(lines, self.now())
        self._tell(self.parser.answered(self.now()))
        asked = time.monotonic()
        first = self._first_answer(follower)
        # Whoever comes to a server that answers already takes the time from its log, not the time until somebody looked.
        total = self.parser.current.began_s + (first - asked) if self.late else self.now()
        self._tell([self.parser.finish(total)])
        told = [phase.as_dict() for phase in self.parser.phases]
        self.context.emit(EventType.WARMUP_DONE, {
            "total_s": round(total, 3), "phases": [{key: one[key] for key in ("phase", "title", "took_s")} for one in told],
            "cache": self.parser.cache, "release": self.status.release, "first_answer_s": round(first - asked, 3),
        })
        if not self.late:
            state.add_warmup(self.record, {
                "at": time.time(), "release": self.status.release, "total_s": round(total, 3), "cache": self.parser.cache,
                "phases": {phase.phase: round(phase.took_s or 0.0, 3) for phase in self.parser.phases},
            })
        return WarmupResult(total_s=total, phases=told, cache=self.parser.cache, release=self.status.release, first_answer_s=first - asked)

    def _first_answer(self, follower: _LogFollower) -> float:
        """One tiny chat answer: a server that is healthy but cannot answer is not warm. Gives when it came (monotonic)."""
        question = {"model": self.record.served_model_name, "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 8, "temperature": 0}
        end = time.monotonic() + _FIRST_ANSWER_LIMIT_S
        while True:
            answer = health.ask(self.record.base_url, "/v1/chat/completions", payload=question, timeout_s=_FIRST_ANSWER_LIMIT_S,
                                api_key=health.api_key(self.record))
            if answer.ok and _has_choices(answer.body):
                return time.monotonic()
            self._parse(follower.read(), self.now())
            if not self.alive():
                self._crashed(follower)
            refused = answer.status is not None and 400 <= answer.status < 500 and answer.status != 429
            if refused or time.monotonic() > end:
                told = log_text(answer.body[:500].decode(errors="replace"), self.secrets)
                raise OpsError(
                    f"`{self.record.base_url}` is healthy, but does not answer a chat request for model `{self.record.served_model_name}`",
                    why=f"status {answer.status}: {told}" if answer.status else answer.why,
                    hint="Compare the service's model name with what /v1/models lists" if answer.status == 404 else "Look at the service's log",
                    kind="no_answer",
                )
            self.context.sleep(0.2)

    # ---- the bad ends ----

    def _crashed(self, follower: _LogFollower) -> None:
        """Reads what is left of the log (a dying process and its workers go on writing), says why it died, raises ServiceCrashed."""
        end, quiet = time.monotonic() + _LAST_WORDS_LIMIT_S, time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < min(end, quiet):
            if lines := follower.read():
                self._parse(lines, self.now())
                quiet = time.monotonic() + _LAST_WORDS_S
            time.sleep(0.05)
        self._parse(follower.rest(), self.now())
        status = self.manager.status()
        if status.state == ServiceState.STOPPED:
            raise OpsError(f"Service `{self.record.name}` was stopped while it was starting", why="Somebody else stopped it", kind="stopped")
        path = self.manager.log_path()
        found = diagnosis.diagnose_file(path) if path is not None and path.exists() else diagnosis.diagnose("")
        said: dict[str, Any] = {key: log_text(value, self.secrets) if isinstance(value, str) else value for key, value in found.as_dict().items()}
        said["context"] = [{"number": one["number"], "text": log_text(one["text"], self.secrets)} for one in found.context]
        code = status.exit_code
        alive = self.alive()
        how = "its engine failed, its main process still waits" if alive else how_it_ended(code)
        self.context.emit(EventType.DIAGNOSIS, said | {"service": self.record.name, "exit_code": code, "phase": self.parser.current.phase})
        where = f"while it was in phase `{TITLES[self.parser.current.phase]}`"
        if found.fault and found.text:
            why = f"{said['diagnosis']} (service `{self.record.name}` ended {where}, {how})".strip()
            raise ServiceCrashed(said["text"], why=why, hint=said["fix"], diagnosis=said)
        free = shutil.disk_usage(self.record.folder).free
        if free < _LOG_ROOM_BYTES:  # what it wanted to say, and its exit code, had no room either
            raise ServiceCrashed(
                f"Service `{self.record.name}` ended {where}: the disk below `{self.record.folder}` is full",
                why=f"{free / 1024:,.0f} KiB are free; its log and its exit code could not be written", hint="Make room there, then start it again",
                diagnosis=said,
            )
        raise ServiceCrashed(
            f"Service `{self.record.name}` ended {where}, {how}", why="Its log names no cause",
            hint="Look at the kernel log for an out-of-memory kill or an Xid line", diagnosis=said,
        )

    def _look_for_stall(self) -> None:
        """A stall: no milestone, no progress, and nothing works on it. A long silence alone is none (compiling is silent)."""
        quiet = time.monotonic() - self.moved_at
        if quiet < self.stall_s:
            return
        busy = self._busy()
        if busy:
            self.moved_at = time.monotonic() - self.stall_s + min(30.0, self.stall_s / 2)  # look again in a while
            return
        phase = self.parser.current
        at = f"{phase.done} of {phase.total}" if phase.done is not None else phase.detail or "its beginning"
        idle = "its GPUs are idle" if busy is False else "its processes are idle"
        raise OpsError(
            f"Service `{self.record.name}` hangs in phase `{TITLES[phase.phase]}`, at {at}",
            why=f"For {_span(quiet)} there was no milestone and no progress in its log, and {idle}",
            hint="Typical are GPU-to-GPU transfers that hang (start with NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce to try), "
                 "or a file system that does not answer",
            kind="stalled", phase=phase.phase, quiet_s=round(quiet),
        )

    def _busy(self) -> bool | None:
        """Whether something works on it: its GPUs, where they can be read (False: idle); else processor time (None: idle)."""
        if self.source is not None:
            used = [gpu.utilization for gpu in self.source.read().gpus if not self.record.gpus or gpu.index in self.record.gpus]
            known = [percent for percent in used if percent is not None]
            if known:
                return max(known) > 5.0
        before = self._cpu_seconds()
        self.context.sleep(1.0)
        return True if self._cpu_seconds() - before > 0.1 else None

    def _cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(pid) or 0.0 for pid in self.manager.pids())


_ENGINE_FAILED = re.compile(r"Engine core initialization failed|EngineCore failed to start|engine core exited unexpectedly")
_FAILED_LIMIT_S = 20.0  # seen: the main process may wait ten minutes for an engine that is gone
_FIRST_ANSWER_LIMIT_S = 120.0
_LAST_WORDS_S, _LAST_WORDS_LIMIT_S = 0.5, 15.0  # a log is complete when it was quiet for the first, or after the second


def watch(
    context: Context, record: ServiceRecord, *, source: GpuSource | None = None, stall_s: float = 300.0, deadline_s: float | None = None,
) -> WarmupResult:
    """Follows the service from process start until it answers a chat request.

    Emits step.log, warmup.phase, step.progress (at most every 0.5 s), warmup.done; stores the warmup in state.json if it was seen from
    its beginning. Raises ServiceCrashed after emitting `diagnosis` if the server ends; OpsError with kind "stalled" if nothing moves for
    `stall_s` and its GPUs (else its processes) are idle; Timeout after `deadline_s`; OpsError if it does not run or does not answer.
    `source` is opened from the node's settings if it is not given.
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
        return _Watch(context, record, manager, status, source, stall_s).run()
    except Timeout as error:
        raise Timeout(f"Service `{record.name}` did not answer in time", why=error.what, hint="Its log shows how far it came") from error
    finally:
        context.deadline = given


def _has_choices(body: bytes) -> bool:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and bool(raw.get("choices"))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _span(seconds: float) -> str:
    """In words: "40 s", "9 min", "1 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
