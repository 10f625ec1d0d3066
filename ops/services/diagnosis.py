"""Why did it crash? The decisive line of a log, what it means and what to do, wherever the line stands.

The last error of a log is mostly a wrapper ("Engine core initialization failed. See root cause above"). What counts instead:

1. Only the current run: an earlier crash above a healthy start is no fault. A stop that was asked for is none either.
2. Rules (diagnosis_rules.toml) name known faults; the heaviest match wins.
3. Without a rule the generic search names the root: kernel lines, compiler output, C++ prints, then the first exception of the lowest
   process (worker before engine before API server) that is no wrapper, through exception chains.

The text is read once, line by line, and only candidates are kept, so its size does not matter.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ops.services import run_log
from ops.services.log_lines import LINE_LIMIT, LogLine, parse, unwrapped
from ops.services.milestones import Parser

CONTEXT_LINES = 3
# What a button beside an answer may start; "" where nothing here can help. The console decides what each means on the service's page.
ACTIONS = frozenset({"", "plan", "restore", "rollback", "restart", "settings", "end-leftovers", "guards-apply", "reset-failed"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of diagnosis_rules.toml."""

    id: str
    kind: str
    family: str
    pattern: re.Pattern[str]
    meaning: str
    fix: str
    weight: int = 50
    phases: frozenset[str] = frozenset()
    preflight: bool | None = None
    needs: re.Pattern[str] | None = None  # another line of the same run must match this too
    action: str = ""  # one of ACTIONS
    action_hint: str = ""  # what to do there: the flag or the variable to edit, the guard to apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer. `fault` false: nothing is wrong with the current run, and all else is empty."""

    fault: bool
    line: int | None = None  # counted from 1
    text: str = ""  # the decisive line's message
    kind: str = ""
    diagnosis: str = ""  # one sentence
    fix: str = ""
    rule: str = ""  # the rule's id, or "generic"
    context: list[dict[str, Any]] = field(default_factory=list)  # {"number", "text"} around the line
    lines: int = 0  # of the whole text
    preflight: bool | None = None  # could it have been found before the start?
    state: str = ""  # of the current run: "serving", "starting", "stopped", "failed", "stalled", "empty"
    family: str = ""  # group of kinds: the rule's, or "unknown"
    source: str = "log"  # where the decisive line stands: "log", or "kernel" (then `line` is None: the line is no line of this log)
    action: str = ""  # one of ACTIONS
    action_hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules of the file beside this module. Raises ValueError for an entry that is not a rule (a bug, found by a test)."""
    raw = tomllib.loads(Path(__file__).with_name("diagnosis_rules.toml").read_text(encoding="utf-8"))
    made = []
    for entry in raw["rule"]:
        entry = dict(entry)
        entry["pattern"] = re.compile(entry["pattern"])
        entry["phases"] = frozenset(entry.get("phases", ()))
        if "needs" in entry:
            entry["needs"] = re.compile(entry["needs"])
        made.append(Rule(**entry))
        if made[-1].action not in ACTIONS:
            raise ValueError(f"rule {made[-1].id}: there is no action `{made[-1].action}`")
    return tuple(made)


# ---- what lines say, without rules ----

# Alarming, and nothing: never evidence.
_HARMLESS = re.compile(
    r"resource_tracker: There appear to be|Found ulimit of|nanobind: |Skipping tactic|leaked (?:function|type|instance|shared_memory|semaphore)"
    r"|FutureWarning|UserWarning: resource_tracker|DeprecationWarning|Skipping import of cpp extensions|Error calling init hook on unused backend"
    r"|If this problem persists|Search for `cuda|consider passing CUDA_LAUNCH_BLOCKING"
)
# Generic sentences that hide a cause: never the answer while there is another.
_WRAPPER = re.compile(
    r"WorkerProc (?:failed to start|hit an exception|initialization failed)|Engine core initialization failed|EngineCore failed to start"
    r"|EngineCore (?:hit an exception|encountered a fatal error|encountered an issue)|EngineDeadError|EngineGenerateError"
    r"|AsyncLLM output_handler failed"
    r"|Worker failed with error|died unexpectedly|exited unexpectedly|Frontend process failed|RuntimeError: cancelled|CalledProcessError"
    r"|SystemExit|KeyboardInterrupt|CancelledError|BrokenPipeError|ConnectionResetError|EOFError|See root cause above|See stack trace"
    r"|Ninja build failed|RPC call to \S+ timed out|process \d+ terminated with|ProcessExitedException|LifespanFailure"
)
# The run ended badly, or is about to.
_DEATH = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|EngineDeadError|EngineCore encountered a fatal error|WorkerProc failed to start"
    r"|died unexpectedly|exited unexpectedly|Main process exited, code=(?:exited, status=[1-9]|killed|dumped)|Failed with result '"
    r"|\[exit code [1-9]|start operation timed out|terminate called after throwing|Segmentation fault"
)
_STOP = re.compile(
    r"received signal=SIGTERM|\[shutdown\] API server: shutdown triggered|Shutting down FastAPI HTTP server|^INFO: +Shutting down$"
)
_SERVING = re.compile(r"Application startup complete")
_BANNER = re.compile(r"vLLM (?:API )?server version |version \d+\.\d+\S*, serving model|[█▄▀] +version \d")
_STALL = re.compile(r"No available shared memory broadcast block found")
_ALIVE_WORK = re.compile(
    r"\d+%.*\d+/\d+|took |takes |Starting to load|Using cache|Dynamo|Capturing|Autotun|KV cache|Cache the graph|Directly load|Supported tasks"
)

_GENERIC: list[tuple[int, str, re.Pattern[str]]] = [
    (90, "kernel", re.compile(r"NVRM: Xid|Out of memory: Killed process|oom-kill:|segfault at|general protection fault")),
    (88, "compiler", re.compile(
        r"(?:^|\s)(?:nvcc|ptxas|ld|cc1plus)?\s?fatal\s*:|: fatal error: |: error: .*(?:not declared|expected|undefined reference|no member)"
        r"|undefined reference to|: (?:command )?not found$|collect2: error"
    )),
    (82, "native", re.compile(
        r"^Failed: Cuda error|terminate called after throwing|what\(\):  |NCCL WARN .*(?:[Ee]rror|[Ff]ail)|Segmentation fault|Bus error"
        r"|Assertion `.*' failed"
    )),
    (70, "arguments", re.compile(r"^(?:\S+: )?error: (?:unrecognized|argument|the following|ambiguous)|^\S+: error: ")),
]
_EXCEPTION = re.compile(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*))?\Z")
_VALUE_ERROR = re.compile(r"^  (?:Value error|Assertion failed|Input should|Field required|Extra inputs)")
_DIRECT = "The above exception was the direct cause of the following exception"

# A line without one of these holds no evidence. Tried first: a log of a million lines has few that pass.
_QUICK = re.compile(
    r"rror|xception|raceback|fatal|Started|Stopp|Starting|version|startup complete|Shutting down|shutdown|exited|died|Failed|NVRM|illed"
    r"|NCCL|No available|signal|\[exit code|not found|undefined|cannot open|Xid|segfault|terminate called|what\(\)|Assertion|PTX"
    r"|kernel image|imed out|too old|No such file|not supported|No valid|is not installed|gated|deserializ|Incomplete|above exception|ptxas"
    r"|oom|memory|non-default args|mismatch|detected platform|File \"|Loading|Captur|Tuning|Dynamo|ache|took|takes"
)

# While a server serves, its log may be endless and full of clients' mistakes, which count for nothing unless it dies. Only these words are looked
# for then; the last lines are kept, and read in full when one of `_WAKES` comes.
_WHILE_SERVING = re.compile(
    r"died|exited|Dead|atal error|failed to start|Failed with|initialization failed|exit code|timed out\. Term|terminate called|Segmentation|segfault"
    r"|Stopping|Started|Starting|version|SIGTERM|shutdown triggered|Shutting down|NVRM|oom|Killed|killed|startup complete|detected platform"
)
_WAKES = re.compile(_DEATH.pattern + r"|NVRM: |oom-kill|Killed process|killed by the OOM killer|segfault at")
_KEPT_LINES, _KEPT_CHARACTERS = 5000, 4000


@dataclass(slots=True)
class _Hit:
    """A line that may be the answer."""

    weight: int
    rank: int
    line: int
    text: str
    rule: Rule | None
    groups: dict[str, str]
    what: str = ""  # of a generic hit: "exception", "compiler", ...
    context: list[tuple[int, str]] = field(default_factory=list)
    progress: int = 0  # milestones of the run before it


@dataclass(slots=True)
class _Traceback:
    """One being read, of one process."""

    began: int
    chained: bool  # it follows "direct cause": what it ends in is derived
    pending: tuple[int, str] | None = None  # a ValidationError whose own sentence follows on the next line


@dataclass
class _Run:
    """One start of the server."""

    began: int
    facts: dict[str, str] = field(default_factory=dict)
    hits: list[_Hit] = field(default_factory=list)
    serving: int | None = None
    stop: int | None = None
    deaths: list[_Hit] = field(default_factory=list)
    stall: list[int] = field(default_factory=list)  # lines of the last unbroken series
    stall_text: str = ""
    nccl: bool = False
    loaded: bool = False
    banner: bool = False
    pids: set[int] = field(default_factory=set)
    lines: int = 0
    milestones: int = 0
    awake: bool = False  # it served, and something happened since
    met: set[str] = field(default_factory=set)  # patterns of `needs` that a line matched
    parser: Parser = field(default_factory=Parser)


class _Reader:
    """Reads lines, keeps runs."""

    def __init__(self, known: Sequence[Rule]) -> None:
        self.known = known
        self.needs = {rule.needs.pattern: rule.needs for rule in known if rule.needs is not None}
        self.ring: deque[tuple[int, str]] = deque(maxlen=CONTEXT_LINES + 1)
        self.waiting: list[tuple[int, _Hit]] = []  # hits that still want lines after them
        self.runs: list[_Run] = [_Run(1)]
        self.blocks: dict[tuple[str, int | None], _Traceback] = {}
        self.chained: set[tuple[str, int | None]] = set()
        self.number = 0
        self.asleep: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)

    @property
    def run(self) -> _Run:
        return self.runs[-1]

    def feed(self, raw: str) -> None:
        self.number += 1
        number = self.number
        if raw.startswith("{"):
            raw = unwrapped(raw[: 8 * LINE_LIMIT])  # a message with control characters is a list of numbers there: no word could be found in it
        run = self.run
        if run.serving is not None and not run.awake:
            if _WHILE_SERVING.search(raw) is None:
                self.asleep.append((number, raw if len(raw) < _KEPT_CHARACTERS else raw[:_KEPT_CHARACTERS]))
                run.lines += 1
                return
            if _WAKES.search(raw):
                self._wake()
        self._take(number, raw)

    def _wake(self) -> None:
        """The server that served is in trouble: what it said before that is read after all."""
        run, before = self.run, list(self.asleep)
        self.asleep.clear()
        run.awake = True
        run.lines -= len(before)
        for number, raw in before:
            self._take(number, raw)

    def _take(self, number: int, raw: str) -> None:
        self.ring.append((number, raw[:LINE_LIMIT]))
        self.run.lines += 1
        if self.waiting:
            self._fill(number, raw)
        quick = _QUICK.search(raw)
        if quick is None and not self.blocks:
            return
        if quick is not None and quick.start() > LINE_LIMIT:
            return
        self._line(parse(raw, number), raw)

    def _fill(self, number: int, raw: str) -> None:
        for until, hit in self.waiting:
            hit.context.append((number, raw))
            if number >= until:
                self.waiting = [item for item in self.waiting if item[0] > number]

    def _line(self, line: LogLine, raw: str) -> None:
        message = line.message
        if message.startswith(("  ", "\t")) and not _VALUE_ERROR.match(message):
            self._environment(message)  # a frame of a traceback, or compiler output's quotation: never the decisive line
            return
        self._starts(line)
        run = self.run
        if run.stop is None and (message.startswith("Stopping ") if line.ident == "systemd" else _STOP.search(message)):
            run.stop = line.number
        if _HARMLESS.search(message):
            return
        if _SERVING.search(message):
            run.serving = line.number
        if "non-default args" in message or "Initializing a" in message:
            self._facts(message)
        if _STALL.search(message):
            run.stall.append(line.number)
            run.stall_text = run.stall_text or message
            return
        changes = run.parser.feed(raw)
        if changes or (_ALIVE_WORK.search(message) and line.level in {"INFO", ""} and "rror" not in message):
            run.stall.clear()
            run.milestones += 1
        if "NCCL" in message or "nccl" in message:
            run.nccl = True
        self._environment(message)
        if _DEATH.search(message):
            run.deaths.append(self._hit(5, line, message, None, {}, "death"))
        if line.ident == "systemd" and "killed by the OOM killer" not in message:
            return
        matched = self._rules(line)
        self._traceback(line, matched)
        if not matched:
            for weight, what, pattern in _GENERIC:
                if pattern.search(message) and not _WRAPPER.search(message):
                    self._keep(self._hit(weight, line, message, None, {}, what))
                    break

    # ---- runs ----

    def _starts(self, line: LogLine) -> None:
        """A new run: systemd says so, or another server says its version after the last one ended or served."""
        message, run = line.message, self.run
        if line.ident == "systemd" and message.startswith(("Started ", "Starting ")):
            if run.lines > 1 and (run.pids or run.deaths or run.hits):
                self.runs.append(_Run(line.number))
            return
        pid = line.pid if line.rank == 1 else None
        over = bool(run.deaths) or run.serving is not None or run.stop is not None
        if pid is not None and pid not in run.pids:
            if run.pids and over and (_BANNER.search(message) or "Automatically detected platform" in message or "non-default args" in message):
                self.runs.append(_Run(line.number))
            self.run.pids.add(pid)
        elif pid is None and _BANNER.search(message):
            if run.banner and over:
                self.runs.append(_Run(line.number))
            self.run.banner = True
        if line.ident_pid is not None and line.ident not in {"systemd", "kernel"}:
            self.run.pids.add(line.ident_pid)

    def _facts(self, message: str) -> None:
        facts = self.run.facts
        for name, pattern in (("model", r"'?model'?[:=] ?'([^']+)'"), ("port", r"'port': (\d+)")):
            if (found := re.search(pattern, message)) is not None:
                facts.setdefault(name, found[1])

    def _environment(self, message: str) -> None:
        if "env" not in self.run.facts and (found := re.search(r'File "(/[^"]+?)/lib/python3\.\d+/site-packages/', message)) is not None:
            self.run.facts["env"] = found[1]

    # ---- candidates ----

    def _hit(self, weight: int, line: LogLine, text: str, rule: Rule | None, groups: dict[str, str], what: str) -> _Hit:
        hit = _Hit(weight, line.rank, line.number, text.strip(), rule, groups, what, list(self.ring), self.run.milestones)
        self.waiting.append((line.number + CONTEXT_LINES, hit))
        return hit

    def _keep(self, hit: _Hit) -> None:
        # Ranks repeat: the first ones of a kind are enough, and memory stays bounded.
        same = sum(1 for one in self.run.hits if one.rule is hit.rule and one.what == hit.what and one.rank == hit.rank)
        if same < 40:
            self.run.hits.append(hit)

    def _rules(self, line: LogLine) -> bool:
        phase = self.run.parser.current.phase
        for pattern, needed in self.needs.items():
            if pattern not in self.run.met and needed.search(line.message):
                self.run.met.add(pattern)
        for rule in self.known:
            if (found := rule.pattern.search(line.message)) is not None and (not rule.phases or phase in rule.phases):
                if line.message.lstrip().startswith(("raise ", "File ", "assert ", "warnings.warn")):
                    return False  # source code quoted in a traceback
                groups = {key: value for key, value in found.groupdict().items() if value}
                self._keep(self._hit(rule.weight, line, line.message, rule, groups, "rule"))
                if rule.needs is None:
                    return True  # else it may turn out not to hold, and what else the line says counts
        return False

    def _traceback(self, line: LogLine, matched: bool) -> None:
        message = line.message
        key = (line.process, line.pid or line.ident_pid)
        if message.startswith("Traceback (most recent call last):"):
            self.blocks[key] = _Traceback(line.number, key in self.chained)
            self.chained.discard(key)
            return
        if _DIRECT in message:
            self.chained.add(key)
            return
        block = self.blocks.get(key)
        if block is None:
            return
        if block.pending is not None:
            del self.blocks[key]
            number, text = block.pending
            if _VALUE_ERROR.match(message):
                number, text = line.number, message
            if not matched:
                self._exception(line, number, text, block)
            return
        if not message.strip() or message.startswith((" ", "\t")):
            return
        found = _EXCEPTION.match(message)
        if found is None:
            if line.number - block.began > 400:
                del self.blocks[key]  # not a traceback after all
            return
        if "validation error" in message:
            block.pending = (line.number, message)
            return
        del self.blocks[key]
        if not matched:
            self._exception(line, line.number, message, block)

    def _exception(self, line: LogLine, number: int, text: str, block: _Traceback) -> None:
        wrapper = bool(_WRAPPER.search(text))
        # A derived exception is less telling than what it was raised from; a wrapper only counts if there is nothing else.
        weight = 4 if wrapper else 28 if block.chained else 34
        hit = self._hit(weight, line, text, None, {}, "wrapper" if wrapper else "exception")
        hit.line = number
        self._keep(hit)


# ---- the answer ----


def diagnose(text: str, *, known: Sequence[Rule] | None = None) -> Diagnosis:
    """What is wrong in this log. Any layout; an empty text is no fault. `known`: the rules to use, all by default."""
    return diagnose_lines(text.split("\n") if not text.endswith("\n") else text[:-1].split("\n"), known=known) if text else _none(0, "empty")


def diagnose_file(path: Path, *, known: Sequence[Rule] | None = None) -> Diagnosis:
    """The same for a file, read in pieces: neither its size nor a line without an end matters. Raises OSError if it cannot be read."""
    return diagnose_lines(run_log.lines(path, limit=4 * LINE_LIMIT), known=known)


def diagnose_lines(lines: Iterable[str], *, known: Sequence[Rule] | None = None) -> Diagnosis:
    """The same for lines without their ends."""
    reader = _Reader(rules() if known is None else known)
    for raw in lines:
        reader.feed(raw)
    runs = reader.runs
    answer = _of_run(runs[-1], reader.number)
    if answer.state == "starting" and len(runs) > 1:
        # A restart loop that is just starting again: the fault of the run before is still the fault, unless this one already came further.
        before = _of_run(runs[-2], reader.number)
        if before.fault and runs[-1].milestones <= runs[-2].milestones:
            return before
    return answer


def _none(lines: int, state: str) -> Diagnosis:
    return Diagnosis(fault=False, lines=lines, state=state)


def _of_run(run: _Run, lines: int) -> Diagnosis:
    hits, deaths = [hit for hit in run.hits if hit.rule is None or hit.rule.needs is None or hit.rule.needs.pattern in run.met], run.deaths
    if run.stop is not None:
        # What follows a stop that was asked for is its noise; what came before it is not.
        hits = [hit for hit in hits if hit.line < run.stop]
        deaths = [hit for hit in deaths if hit.line < run.stop]
    if run.serving is not None:
        deaths = [hit for hit in deaths if hit.line > run.serving]
        hits = [hit for hit in hits if hit.line > run.serving]
        if not deaths:
            return _none(lines, "stopped" if run.stop is not None else "serving")
    if not deaths:
        # Nobody says that it ended: what was followed by more progress was overcome.
        hits = [hit for hit in hits if hit.progress == run.milestones and hit.what != "wrapper"]
    if len(run.stall) >= 4 and run.serving is None and not any(hit.weight >= 30 for hit in hits):
        return _stalled(run, lines)
    if not hits and not deaths:
        return _none(lines, "stopped" if run.stop is not None else "starting" if run.milestones or run.pids or run.banner else "empty")
    best = min(hits or deaths, key=lambda hit: (-hit.weight, -hit.rank, hit.line))
    return _told(best, run, lines)


def _told(hit: _Hit, run: _Run, lines: int) -> Diagnosis:
    if hit.rule is not None:
        facts = {**run.facts, **hit.groups}
        return Diagnosis(
            fault=True, line=hit.line, text=hit.text, kind=hit.rule.kind, diagnosis=_filled(hit.rule.meaning, facts),
            fix=_filled(hit.rule.fix, facts), rule=hit.rule.id, context=_context(hit), lines=lines, preflight=hit.rule.preflight, state="failed",
            family=hit.rule.family, action=hit.rule.action, action_hint=_filled(hit.rule.action_hint, facts),
        )
    meaning, fix = _GENERIC_WORDS.get(hit.what, _GENERIC_WORDS["exception"])
    return Diagnosis(fault=True, line=hit.line, text=hit.text, kind=f"unknown-{hit.what}", diagnosis=meaning, fix=fix, rule="generic",
                     context=_context(hit), lines=lines, state="failed", family="unknown")


_GENERIC_WORDS = {
    "kernel": ("The kernel reported a fault that hit this service.", "Look at the whole kernel log around that time before starting again"),
    "compiler": ("A compiler that runs at start failed; this is its own message.",
                 "Correct what the line names (toolkit, header, architecture), then start again"),
    "native": ("Native code failed; this is its own message.", "Search for this message together with your vLLM version; try the last good release"),
    "arguments": ("vLLM does not accept its command line.", "Correct the service's flags (vllm serve --help of this release lists them)"),
    "exception": ("No rule knows this fault. This is the first exception of the process that failed first; all that follows is its consequence.",
                  "Search for this message together with your vLLM version; the last good release can be started meanwhile"),
    "wrapper": ("The log holds only the message of a process that noticed the failure, not its cause.",
                "Look above in the full log, and in the kernel log, for what ended the worker or the engine"),
    "death": ("The server ended, and its log names no cause.", "Look at the kernel log for an out-of-memory kill, a segfault or an Xid line"),
}


def _stalled(run: _Run, lines: int) -> Diagnosis:
    first = run.stall[0]
    if run.nccl and run.parser.current.phase == "start":
        return Diagnosis(
            fault=True, line=first, text=run.stall_text, kind="nccl-p2p-hang", state="stalled", lines=lines, rule="stall", preflight=True,
            family="comms", action="settings", action_hint="NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce",
            diagnosis=f"All ranks stopped after NCCL connected, before any weight was loaded: transfers between GPUs over PCIe hang (IOMMU or ACS). "
                      f"{len(run.stall)} such messages in a row, with nothing in between.",
            fix="Switch off IOMMU and ACS redirection in the BIOS or kernel (iommu=pt), or set NCCL_P2P_DISABLE=1 "
                "and add --disable-custom-all-reduce",
        )
    return Diagnosis(
        fault=True, line=first, text=run.stall_text, kind="stalled", state="stalled", lines=lines, rule="stall",
        family="runtime", action="restart",
        diagnosis=f"Nothing moves any more: {len(run.stall)} such messages in a row, with no milestone and no progress in between.",
        fix="Look whether a worker still works (GPU utilization, py-spy dump); if all are idle, stop the service and start it again",
    )


def _filled(text: str, facts: dict[str, str]) -> str:
    """Fills {name}; what the log does not tell becomes a word that says so."""
    unknown = {"env": "ENV", "model": "the model", "port": "PORT", "fits": "what the line says"}
    return re.sub(r"\{(\w+)\}", lambda found: facts.get(found[1]) or unknown.get(found[1], "unknown"), text)


def _context(hit: _Hit) -> list[dict[str, Any]]:
    return [{"number": number, "text": parse(raw).message[:2000]} for number, raw in hit.context if abs(number - hit.line) <= CONTEXT_LINES]
