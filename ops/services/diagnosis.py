"""Why did it crash? The decisive line of a log, what it means and what to do, wherever the line stands.

The last error of a log is mostly a wrapper ("Engine core initialization failed. See root cause above"). What counts instead:

1. Only the current run: an earlier crash above a healthy start is no fault. A stop that was asked for is none either.
2. Rules (diagnosis_rules.toml) name known faults; the heaviest match wins.
3. Without a rule the generic search names the root: kernel lines, compiler output, C++ prints, then the first exception of the lowest
   process (worker before engine before API server) that is no wrapper, through exception chains.

4. Beside the log the kernel's lines of the same time may tell more: a GPU that fell off the bus, a process killed for memory.

Size does not matter. A run's beginning is read line by line and only candidates are kept. While a server serves, and after a run's first
`_READ_LINES` lines, whole blocks are only searched for the words that tell a death, a stop or a new start; the last lines before a death are kept,
and then read after all. Of a file with many runs only the last ones are read.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ops.services import log_files
from ops.services.log_lines import LINE_LIMIT, LogLine, parse, unwrapped
from ops.services.milestones import Parser
from ops.services.quick_patterns import Finder, Quick

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
_HARMLESS = Quick(
    r"resource_tracker: There appear to be|Found ulimit of|nanobind: |Skipping tactic|leaked (?:function|type|instance|shared_memory|semaphore)"
    r"|FutureWarning|UserWarning: resource_tracker|DeprecationWarning|Skipping import of cpp extensions|Error calling init hook on unused backend"
    r"|If this problem persists|Search for `cuda|consider passing CUDA_LAUNCH_BLOCKING|Ignoring incompatible \S+ package|Exception ignored in"
    r"|Warning: WARNING: |^[\s|+-]*(?:Exception Group Traceback|ExceptionGroup:)|Cannot use FA version|does not exist or is not accessible"
    r"|Error retrieving (?:safetensors|file list)|stats\.vllm\.ai|Could not cache non-existence of file|\[c10d\] The (?:IPv6|client socket cannot)"
    r"|Unable to register cu\w+ factory|Could not find TensorRT"
)
# Generic sentences that hide a cause: never the answer while there is another.
_WRAPPER = Quick(
    r"WorkerProc (?:failed to start|hit an exception|initialization failed)|Engine (?:core initialization|process) failed|EngineCore failed to start"
    r"|Error raised in subprocess|Error executing method|failed to be inspected|Failed to import \S+ because of the following error"
    r"|EngineCore (?:hit an exception|encountered a fatal error|encountered an issue)|EngineDeadError|EngineGenerateError"
    r"|AsyncLLM output_handler failed"
    r"|Worker failed with error|died unexpectedly|exited unexpectedly|Frontend process failed|RuntimeError: cancelled|CalledProcessError"
    r"|SystemExit|KeyboardInterrupt|CancelledError|BrokenPipeError|ConnectionResetError|EOFError|See root cause above|See stack trace"
    r"|Ninja build failed|RPC call to \S+ timed out|process \d+ terminated with|ProcessExitedException|LifespanFailure"
    r"|remote process exited or there was a network error|failed to recv, got 0 bytes|(?:recvValue|(?:send|recv)Bytes|recvVector) failed"
    r"|ncclRemoteError|Connection (?:closed|reset) by (?:remote )?peer|Background loop|An exception occurred in a subprocess"
    r"|raylet died|ActorDiedError|RayActorError|is already dead, terminating|Engine process \(pid \d+\) died"
)
# The run ended badly, or is about to.
_DEATH = Quick(
    r"Engine core initialization failed|EngineCore failed to start|EngineDeadError|EngineCore encountered a fatal error|WorkerProc failed to start"
    r"|died unexpectedly|exited unexpectedly|died, exit code: -?\d|Failed with result '"
    r"|Main process exited, code=(?:exited, status=[1-9]|killed|dumped)"
    r"|error while attempting to bind on address|\bKilled$|\(core dumped\)|Segfault encountered"
    r"|Control process exited, code=(?:exited, status=[1-9]|killed)"
    r"|^(?:[\w./-]+(?: [\w-]+){0,2}: )?error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)"
    r"|\[exit code [1-9]|start operation timed out|terminate called after throwing|Segmentation fault"
    r"|terminating server process|Engine process \(pid \d+\) died"
)
# Of all generic sentences the most telling.
_GONE = Quick(r"died unexpectedly|exited unexpectedly|died, exit code: -?(?!15\b)\d+|terminated with signal SIG(?!TERM)")
_STOP = Quick(
    r"received signal=SIGTERM|\[shutdown\] API server: shutdown triggered|Shutting down FastAPI HTTP server|^(?:\^C)?INFO: +Shutting down$"
)
_SERVING = re.compile(r"Application startup complete")
_BANNER = re.compile(r"vLLM (?:API )?server version |version \d+\.\d+\S*, serving model|[█▄▀] +version \d")
_STALL = Quick(r"No available shared memory broadcast block found")
_ALIVE_WORK = Quick(
    r"\d%.{0,400}\d/\d|took |takes |Starting to load|Using cache|Dynamo|Capturing|Autotun|KV cache|Cache the graph|Directly load|Supported tasks"
)

# What systemd says about a unit and counts as a cause; its other lines only tell that something ended.
_SYSTEMD = Quick(
    r"killed by the OOM killer|Failed at step|Failed to load environment|Unable to locate executable|operation timed out|status=2\d\d/"
    r"|code=(?:killed|dumped)|Watchdog timeout"
)
_NO_START = Quick(r"Failed to load environment|Failed to run 'start' task|Unable to locate executable|Failed at step")
# Weights lie below the rules that name a cause, and above the exceptions that only follow from it.
_GENERIC: list[tuple[int, str, re.Pattern[str]]] = [
    (57, "kernel", re.compile(
        r"NVRM: Xid|Out of memory: Killed process|oom-kill:|segfault at|general protection fault|killed by the OOM killer|^Killed$"
        r"|: line \d+: +\d+ Killed\b"
    )),
    (56, "compiler", re.compile(
        r"(?:^|\s)(?:nvcc|ptxas|ld|cc1plus)?\s?fatal\s*:|:\d+: (?:fatal )?error: |: fatal error: "
        r"|: error: .*(?:not declared|expected|undefined reference|no member)|undefined reference to"
        r"|\b(?:nvcc|ptxas|ninja|gcc|g\+\+|cc|c\+\+|ld|vllm|python[\d.]*): (?:command )?not found$"
        r"|ld: cannot find -l|nvcc error\s*:|died due to signal \d|bad interpreter: "
    )),
    (55, "compiler", re.compile(r"collect2: error")),
    (54, "native", re.compile(
        r"^Failed: Cuda error|NCCL WARN .*(?:[Ee]rror|[Ff]ail|[Dd]uplicate|no socket interface|not supported)|Segmentation fault|[Bb]us error"
        r"|Segfault encountered"
        r"|Assertion `.*' failed|Fatal Python error|^LLVM ERROR|^Illegal instruction"
    )),
    (33, "compiler", re.compile(r": (?:command )?not found$")),
    (31, "native", re.compile(r"Watchdog caught")),
    (54, "arguments", re.compile(r"^(?:[\w./-]+(?: [\w-]+){0,2}: )?error: ")),
    (53, "install", re.compile(r"requirements are unsatisfiable|ResolutionImpossible|No matching distribution found")),
    (52, "systemd", re.compile(r"Failed at step|Failed to load environment|Unable to locate executable|Watchdog timeout \(limit")),
    (36, "import", re.compile(r"^Failed to import from vllm\.\S+ with ImportError")),
    (33, "native", re.compile(r"^ *what\(\):  ")),
    (32, "bind", re.compile(r"error while attempting to bind on address")),
    (20, "native", re.compile(r"terminate called after throwing")),
]
_GENERIC_FINDER = Finder([pattern for _, _, pattern in _GENERIC])
# A program of this name may belong to the service; the kernel names others too.
_OURS = re.compile(r"(?i)vllm|python|ray|worker|engine|pt_main|cicc|ptxas|cudafe|cc1plus|nvcc|ninja|fatbin|nvlink|uvicorn|gunicorn")
_KERNEL_NAME = Quick(r"Killed process \d+ \(([^)]*)\)|Xid .*?: (?:13|31|43|45|68|69|109), .*?name=([^,]+)|oom-kill:.*task=([^,]+)")
# Programs whose lines stand in a whole machine's journal beside the service's own.
_OTHERS = re.compile(
    r"(?:sshd|sudo|su|cron|CRON|dockerd|containerd|kubelet|NetworkManager|snapd|rsyslogd|dbus-daemon|chronyd|ntpd|dhclient|login|polkitd|multipathd"
    r"|systemd-\S+|nginx|postgres|redis-server|prometheus|node_exporter|grafana|audit\w*|kernel-\S+|apt\S*|unattended-\S*)\Z"
)
_ENGINE_FILE = re.compile(r"multiproc|core|worker|gpu_|model_runner|ray_|executor|dump_input|engine\.py")  # of vLLM: it runs in no API server
_STARVED = 3  # connections that a serving server could not take in for want of files: from then on that is a fault, though it lives
# The outermost frame of a program that ends of this traceback: a request's own begins elsewhere.
_MAIN_FRAME = re.compile(
    r'  File "(?:\S*/bin/(?:vllm|python[\d.]*)|<frozen runpy>|\S*/runpy\.py|\S*/api_server\.py)", line \d+, in (?:<module>|_run_module_as_main)'
)
_ASKED_TO_END = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|CancelledError)\b")
_FALLBACK = re.compile(r"(?i)fall(?:ing)? ?back|will be ignored|ignoring|skipping|is disabled|will be disabled|optional|retrying")
_QUOTES = "Worker failed with error"  # and a part of the worker's own message
_UNIT = re.compile(r"(?:Started|Starting|Stopping|Stopped|Reloading) (\S+\.(?:service|scope|socket|timer|slice|mount|target))\b")
_OF_UNIT = re.compile(r"(\S+\.(?:service|scope|socket|timer|slice|mount|target)): ")
_NO_SERVICE = re.compile(r"Stopping (?:Session|User|Daily|Regular|Cleanup)\b")
_EXCEPTION = re.compile(r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::(?: (?P<message>.*))?)?\Z")
_VALUE_ERROR = re.compile(r"^  (?:Value error|Assertion failed|Input should|Field required|Extra inputs)")
_INDENTED = re.compile(r"\s+(?:what\(\):  |.*unsatisfiable)")  # deep in the line, and evidence all the same
_NO_MATTER = Quick(r"^--- Logging error ---|^Exception in thread \S+ \(_report_usage")
_NO_MATTER_LINES = 200
_MUTE = frozenset({"TimeoutError", "queue.Empty", "_queue.Empty", "concurrent.futures._base.TimeoutError", "asyncio.exceptions.TimeoutError"})
_DIRECT = "The above exception was the direct cause of the following exception"

# A line without one of these holds no evidence. Tried first: a log of a million lines has few that pass.
_QUICK = Quick(
    r"\" 200|rror|xception|raceback|fatal|Started|Stopp|Starting|version|startup complete|Shutting down|shutdown|exited|died|Failed|NVRM|illed"
    r"|NCCL|nccl|No available|signal|\[exit code|not found|undefined|cannot open|Xid|segfault|terminate called|what\(\)|Assertion|PTX"
    r"|kernel image|imed out|too old|No such file|not supported|No valid|is not installed|gated|deserializ|Incomplete|above exception|ptxas"
    r"|oom|memory|non-default args|mismatch|detected platform|File \"|Loading|Captur|Tuning|utotun|Dynamo|ache|took|takes|unsatisfiable|Resolution"
    r"|already dead|terminating server|Too many open|matching dist|different Python|bad interpreter|cannot find|Unable to locate|Bus err|incompat"
    r"|Watchdog|Segfault"
)

# A server that was found while it served: its log begins somewhere in its life.
_TRAFFIC = Quick(r'"POST /\S+ HTTP/\d\.\d" 200\b|Avg prompt throughput: ')

# A long log is not read in full. While a server serves it may be endless and full of clients' mistakes, which count for nothing unless it dies; a
# start that writes more than this is mostly repetition. Then only these words are looked for, in whole blocks: each line that `_WAKES` and
# `_NEWS` know holds one of them. The last lines are kept, and read in full when one of `_WAKES` comes.
_READ_LINES = 6_000  # of each run, from its beginning
_DEATH_WORDS = (
    b"ialization failed", b"failed to start", b"EngineDeadError", b"a fatal error", b"unexpectedly", b"process exited", b"Failed with result",
    b"[exit code ", b"operation timed out", b"terminate called", b"egmentation fault", b"egfault ", b"core dumped", b"NVRM: ", b"oom-kill",
    b"Killed", b"killed by the", b"Timed out waiting", b"attempting to bind",
    b"died, exit code", b"error: unrecognized", b"error: argument ", b"error: the following", b"error: ambiguous",
)
_SERVING_WORDS = (b"terminating server process", b"Engine process (pid", b"Too many open files", b"bin/vllm", b"_run_module_as_main")
_OTHER_WORDS = (
    b"signal=SIGTERM", b"shutdown triggered", b"Shutting down", b"systemd", b"startup complete", b"detected platform", b"  version ",
    b"server version ", b", serving model",    b"non-default args",
)
# Journal entries as JSON: a message with control characters is a list of numbers there, in which no word can be found.
_NUMBERS = (b'"MESSAGE":[', b'"MESSAGE": [', b'"MESSAGE" : [')
_WAKES = Quick(
    _DEATH.pattern.replace("^", r"(?:^|[|:\s])").replace("$", r"\s*$")
    + r"|NVRM: |oom-kill|Killed process|killed by the OOM killer|segfault at|Timed out waiting for engine"
    + r'|Too many open files|bin/vllm", line |_run_module_as_main'
)
_NEWS = Quick(
    f"{_BANNER.pattern}|{_SERVING.pattern}|signal=SIGTERM|shutdown triggered|Shutting down|detected platform|non-default args"
    r"|systemd.*\b(?:Started|Starting|Stopping) "
)
# In a start that is too long to be read in full these are looked at too, with the lines after them, some times.
_TROUBLE = (b"Traceback (most recent call last)", b"rror: ", b" ERROR ", b"fatal")
_TROUBLES, _TROUBLE_LINES = 40, 50
_WAKINGS = 5  # of one run: what dies oftener dies of the same
_DEATH_LINES, _LATER_LINES = 2500, 300  # read before and after its first death, and after later ones
_KEPT_BYTES = 1 << 20
_DEATHS_KEPT = 200
_STARTS_READ, _START_LINES = 100, 20  # after systemd says that something starts: so often, so many lines are read, to see whether it was the service
_ECHO = frozenset({"logger.py", "request_logger.py"})  # files of vLLM that log what clients send


@lru_cache(maxsize=16)
def _looked_for(deaths: bool, serving: bool, trouble: bool, numbers: bool) -> tuple[bytes, ...]:
    return (*(_DEATH_WORDS if deaths else ()), *(_SERVING_WORDS if deaths and serving else ()),
            *_OTHER_WORDS, *(_TROUBLE if trouble else ()), *(_NUMBERS if numbers else ()))


def _places(word: bytes, data: bytes) -> Iterator[int]:
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + 1)


def _record(raw: str) -> str:
    """What a JSON record says (a message with control characters is a list of numbers there: no word could be found in it), also where the record
    is vLLM's own and a journal, compose or kubernetes put a head before it. Other lines as they are."""
    if raw.startswith("{"):
        raw = unwrapped(raw)
    if raw.endswith(("}", "}\r")) and '"message"' in raw and (at := raw.find('{"')) > 0 and "\n" not in raw:
        head, rest = raw[:at], raw[at:]
        if (said := unwrapped(rest)) is not rest:
            return "\n".join(head + line for line in said.split("\n"))
    return raw


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
    mild: bool = False  # no error by its own words: a warning, or a print outside of any traceback
    warned: bool = False  # a warning
    outside: bool = False  # the kernel or systemd said it
    api: bool = False  # the API server's, as far as the line tells: the process that answers clients


@dataclass(slots=True)
class _Traceback:
    """One being read, of one process."""

    began: int
    chained: bool  # it follows "direct cause": what it ends in is derived
    pending: tuple[int, str] | None = None  # an exception whose own sentence follows on the next line
    main: bool = False  # of a program as a whole, not of one request
    imports: int = 0  # its frames in modules: more than one of a program that came no further than its imports


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
    pids: set[int] = field(default_factory=set)  # of main processes
    idents: set[str] = field(default_factory=set)  # of the journal: the service's own
    unit: str = ""  # its name, as far as systemd told it
    all_pids: set[int] = field(default_factory=set)
    lines: int = 0  # read in full
    milestones: int = 0
    read_until: int = _READ_LINES  # so many lines of it are read in full; what follows is only searched for words
    wakings: int = 0
    starts: int = 0
    troubles: int = 0
    starved: int = 0  # lines that tell, while it served, that it had too many files open
    met: set[str] = field(default_factory=set)  # patterns of `needs` that a line matched
    parser: Parser = field(default_factory=Parser)


class _Reader:
    """Reads lines, keeps runs."""

    def __init__(self, known: Sequence[Rule], number: int = 0) -> None:
        self.known = known
        self.finder = Finder([rule.pattern for rule in known])
        self.needs = {rule.needs.pattern: rule.needs for rule in known if rule.needs is not None}
        self.ring: deque[tuple[int, str]] = deque(maxlen=CONTEXT_LINES + 1)
        self.waiting: list[tuple[int, _Hit]] = []  # hits that still want lines after them
        self.run = _Run(number + 1)
        self.before: _Run | None = None  # the run before it
        self.runs = 1
        self.blocks: dict[tuple[str, int | None], _Traceback] = {}
        self.chained: set[tuple[str, int | None]] = set()
        self.aside: dict[tuple[str, int | None], int] = {}  # processes that print a traceback of no consequence, and since which line
        self.number = number
        self.begins: int | None = None  # the line in which systemd said that something starts, until a program says something
        self.starting = ""  # the unit of which it said so
        self.unknown: set[str] = set()  # messages that no rule matches: logs repeat themselves
        self.kept: deque[tuple[int, bytes]] = deque()  # blocks of lines that were not read, with the number of their first line
        self.kept_bytes = 0
        self.searched: tuple[bytes, tuple[bytes, ...], list[int]] = (b"", (), [])  # a block, and where the words are that were looked for in it

    def feed(self, data: bytes) -> None:
        """Whole lines, with their newlines (the last one of a text may lack it)."""
        at, size = 0, len(data)
        while at < size:
            if self.run.lines >= self.run.read_until and (at := self._skip(data, at)) >= size:
                return
            end = data.find(b"\n", at)
            if end < 0:
                end = size
            self.number += 1
            self._one(data[at : min(end, at + 8 * LINE_LIMIT)])
            at = end + 1

    def end(self) -> None:
        """The text is over. A start whose last lines were not read may have failed in them."""
        run = self.run
        if run.lines >= run.read_until and run.serving is None:
            self._read_kept(_DEATH_LINES)

    def _skip(self, data: bytes, at: int) -> int:
        """Goes on to the next line that holds one of the words; the size of `data` if there is none."""
        run = self.run
        words = _looked_for(
            run.wakings < _WAKINGS, run.serving is not None, run.serving is None and run.troubles < _TROUBLES, data.startswith(b"{"))
        if self.searched[0] is not data or self.searched[1] is not words:  # in most blocks there is none
            self.searched = (data, words, sorted(place for word in words if word in data for place in _places(word, data)))
        places = self.searched[2]
        index = bisect_left(places, at)
        upto = len(data) if index == len(places) else max(at, data.rfind(b"\n", at, places[index]) + 1)
        if upto > at:
            piece = data[at:upto]
            self._keep_unread(piece)
            self.number += piece.count(b"\n") + (0 if piece.endswith(b"\n") else 1)
        return upto

    def _keep_unread(self, piece: bytes) -> None:
        self.kept.append((self.number + 1, piece))
        self.kept_bytes += len(piece)
        while len(self.kept) > 1 and self.kept_bytes - len(self.kept[0][1]) >= _KEPT_BYTES:
            self.kept_bytes -= len(self.kept.popleft()[1])

    def _one(self, line: bytes) -> None:
        """One line, whose number `self.number` is."""
        run, raw = self.run, line.decode(errors="replace")
        raw = _record(raw)
        if run.lines >= run.read_until:
            if run.wakings < _WAKINGS and _WAKES.search(raw) is not None:
                run.wakings += 1
                size = _LATER_LINES if run.deaths else _DEATH_LINES
                self._read_kept(size)
                run.read_until = run.lines + size
            elif _NEWS.search(raw) is not None:
                if run.starts < _STARTS_READ and "systemd" in raw:
                    run.starts += 1
                    run.read_until = run.lines + _START_LINES
            elif run.serving is None and run.troubles < _TROUBLES and any(word in line for word in _TROUBLE):
                run.troubles += 1
                run.read_until = run.lines + _TROUBLE_LINES
            else:
                self.number -= 1
                self._keep_unread(line + b"\n")
                self.number += 1
                return
        self._take(self.number, raw)

    def _read_kept(self, count: int) -> None:
        """There is trouble: what was said just before it is read after all."""
        before = [(first + index, line) for first, piece in self.kept for index, line in enumerate(piece.removesuffix(b"\n").split(b"\n"))]
        self._forget_kept()
        begins, self.begins = self.begins, None
        for number, line in before[-count:]:
            if begins is not None and number > begins:
                begins, self.begins = None, begins
            self._take(number, _record(line[: 8 * LINE_LIMIT].decode(errors="replace")))
        self.begins = self.begins or begins

    def _forget_kept(self) -> None:
        self.kept.clear()
        self.kept_bytes = 0

    def _new_run(self, number: int) -> None:
        self.before, self.run = self.run, _Run(number, idents=set(self.run.idents), unit=self.run.unit)
        self.runs += 1
        self._forget_kept()

    def _new_run_of(self, began: int) -> None:
        """A run began some lines ago, and nothing said so: what was found since then is its own."""
        hits = self.run.hits
        self._new_run(began)
        self.run.hits = [hit for hit in hits if hit.line >= began]
        hits[:] = [hit for hit in hits if hit.line < began]

    def _take(self, number: int, raw: str) -> None:
        if "\n" in raw:  # a message of several lines, which its wrapping made one
            for part in raw.split("\n"):
                self._take(number, part)
            return
        if len(raw) > LINE_LIMIT:
            raw = raw[:LINE_LIMIT]
        if not self.ring or self.ring[-1][0] != number:
            self.ring.append((number, raw))
        self.run.lines += 1
        if self.waiting:
            self._fill(number, raw)
        if self.blocks or _QUICK.may_match(raw):
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
            self._needed(message)
            if message.startswith('  File "') and (key := (line.process, line.pid or line.ident_pid)) not in self.blocks:
                self.blocks[key] = _Traceback(line.number, False)  # its beginning was cut off
            elif self.run.serving is not None or self.run.stop is not None:
                self._frame(self.blocks.get((line.process, line.pid or line.ident_pid)), line)
            if _INDENTED.match(message) is None:
                return
        if line.level == "INFO" and (line.source in _ECHO or message.startswith("Received request ")):
            return  # what a client sent, over as many lines as it had
        if line.ident and (self._foreign(line) or (line.ident == "systemd" and self._other_unit(message))):
            return
        self._starts(line)
        run = self.run
        if line.pid is not None and len(run.all_pids) < 4096:
            run.all_pids.add(line.pid)
        if run.stop is None and (message.startswith("Stopping ") if line.ident == "systemd" else _STOP.search(message)):
            run.stop = line.number
        if _HARMLESS.search(message) or self._aside(line):
            return
        if _SERVING.search(message) or (run.serving is None and not run.deaths and _TRAFFIC.search(message)):
            run.serving = line.number
            run.read_until = run.lines
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
        if line.level == "INFO" or (line.level in {"WARNING", "DEBUG"} and _FALLBACK.search(message)):
            return  # news, and what clients sent, and what vLLM can do without: never the cause
        if (named := _KERNEL_NAME.search(message)) is not None and not _OURS.search(next(filter(None, named.groups()), "")):
            return  # another program's end
        if len(run.deaths) < _DEATHS_KEPT and _DEATH.search(message):
            if not run.deaths:
                run.read_until = min(run.read_until, run.lines + _DEATH_LINES)
            run.deaths.append(self._hit(5, line, message, None, {}, "death"))
        if run.serving is not None and "Too many open files" in message:
            run.starved += 1
            if run.starved == _STARVED:
                run.deaths.append(self._hit(5, line, message, None, {}, "death"))
        if line.ident == "systemd" and not _SYSTEMD.search(message):
            return
        matched = self._rules(line)
        self._traceback(line, matched)
        if not matched:
            for index in _GENERIC_FINDER.worth(message):
                weight, what, pattern = _GENERIC[index]
                if pattern.search(message) and not _WRAPPER.search(message):
                    self._keep(self._hit(weight, line, message, None, {}, what))
                    break
            else:
                if _GONE.search(message):
                    self._keep(self._hit(6, line, message, None, {}, "wrapper"))

    def _aside(self, line: LogLine) -> bool:
        """Whether the line belongs to the traceback of a helper that nothing depends on. It is over when a logger speaks again."""
        key = (line.process, line.pid or line.ident_pid)
        if _NO_MATTER.search(line.message):
            self.aside[key] = line.number
        if not self.aside or (since := self.aside.get(key)) is None:
            return False
        if line.number - since < _NO_MATTER_LINES and not line.level and not line.message.startswith(("INFO:", "ERROR:")):
            return True
        del self.aside[key]
        self.blocks.pop(key, None)
        return False

    def _frame(self, block: _Traceback | None, line: LogLine) -> None:
        """A line of a traceback that stands after a server served or stopped: is it that of a program which ends of it?"""
        if block is None:
            return
        if not block.main and block.began == line.number - 1 and _MAIN_FRAME.match(line.message) is not None:
            block.main = True
            self.run.read_until = max(self.run.read_until, self.run.lines + _LATER_LINES)
        block.imports += block.main and line.message.endswith(", in <module>")

    # ---- runs ----

    def _starts(self, line: LogLine) -> None:
        """A new run: systemd says so, or another server says its version after the last one ended or served."""
        message, run = line.message, self.run
        if line.ident == "systemd":
            if message.startswith(("Started ", "Starting ")):
                self.begins = self.begins or line.number
                if (found := _UNIT.match(message)) is not None and ("llm" in found[1] or "llm" not in self.starting):
                    self.starting = found[1]
            elif _NO_START.search(message) and run.pids and (run.stop is not None or run.serving is not None):
                self._new_run(self.begins or line.number)  # a start that came to no program, which could have said that it begins
                self.begins = None
            return
        if self.begins is not None and line.ident != "kernel":
            # Of a whole machine's journal, other units start too: only a new process that speaks for the service begins a run.
            began, self.begins = self.begins, None
            if line.ident_pid not in run.pids and run.lines > 1 and (run.pids or run.deaths or run.hits):
                self._new_run(began)
                run = self.run
            if line.ident and self.starting and self.starting == run.unit and not _OTHERS.match(line.ident):
                run.idents.add(line.ident)  # what the unit runs before the server itself
            run.unit, self.starting = self.starting or run.unit, ""
        pid = line.pid if line.rank == 1 else None
        over = bool(run.deaths) or run.serving is not None or run.stop is not None
        banner = _BANNER.search(message) is not None
        if pid is not None and pid not in run.pids:
            if run.pids and over and (banner or "Automatically detected platform" in message or "non-default args" in message):
                self._new_run(line.number)
            self.run.pids.add(pid)
        elif run.banner and over and (banner or (pid is not None and "Automatically detected platform" in message)):
            self._new_run(line.number)  # in a container each start has the same process numbers
            if pid is not None:
                self.run.pids.add(pid)
        self.run.banner = self.run.banner or banner
        if line.ident_pid is not None and line.ident != "kernel":
            self.run.pids.add(line.ident_pid)
            self.run.all_pids.add(line.ident_pid)

    def _foreign(self, line: LogLine) -> bool:
        """Whether another program wrote it: the journal of a whole machine holds them too."""
        if line.ident in {"systemd", "kernel"} or line.ident in self.run.idents:
            return False
        if line.process or line.level or _BANNER.search(line.message) or not (self.run.idents or _OTHERS.match(line.ident)):
            if line.process or line.level:
                self.run.idents.add(line.ident)
            return False
        return self.begins is None or bool(_OTHERS.match(line.ident))

    def _other_unit(self, message: str) -> bool:
        """Whether systemd speaks of another unit than the service's."""
        found = _UNIT.match(message) or _OF_UNIT.match(message)
        if found is None:
            return message.startswith("Stopping ") and (bool(self.run.unit) or _NO_SERVICE.match(message) is not None)
        unit = found[1]
        if self.run.unit and not message.startswith(("Started ", "Starting ")):
            return unit != self.run.unit
        return not unit.endswith(".service") or _OTHERS.match(unit.removesuffix(".service")) is not None

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
        printed = not line.level and line.ident not in {"systemd", "kernel"} and what != "exception"
        mild = line.level in {"WARNING", "DEBUG"} or (printed and (line.process, line.pid or line.ident_pid) not in self.blocks)
        hit = _Hit(
            weight, line.rank, line.number, text.strip(), rule, groups, what, list(self.ring), self.run.milestones, mild,
            warned=line.level in {"WARNING", "DEBUG"}, outside=line.ident in {"systemd", "kernel"},
            api=line.rank == 1 or (line.rank == 0 and _ENGINE_FILE.match(line.source) is None),
        )
        self.waiting.append((line.number + CONTEXT_LINES, hit))
        return hit

    def _keep(self, hit: _Hit) -> None:
        # Ranks repeat: the first ones of a kind are enough, and memory stays bounded.
        same = sum(1 for one in self.run.hits if one.rule is hit.rule and one.what == hit.what and one.rank == hit.rank)
        if same < 40:
            self.run.hits.append(hit)

    def _rules(self, line: LogLine) -> bool:
        if line.message.lstrip().startswith(("raise ", "File ", "assert ", "warnings.warn")):
            return False  # source code quoted in a traceback
        message, phase = line.message, self.run.parser.current.phase
        self._needed(message)
        if message in self.unknown:
            return False
        best: tuple[Rule, re.Match[str]] | None = None
        matches = False
        for index in self.finder.worth(message):
            rule = self.known[index]
            if (found := rule.pattern.search(message)) is None:
                continue
            matches = True
            if rule.phases and phase not in rule.phases:
                continue
            if rule.needs is not None:  # it may turn out not to hold: what else the line says counts too
                self._keep(self._hit(rule.weight, line, line.message, rule, _groups(found), "rule"))
            elif best is None or rule.weight > best[0].weight:
                best = rule, found
        if not matches:
            if len(self.unknown) >= 4096:
                self.unknown.clear()
            self.unknown.add(message)
        if best is None:
            return False
        weight = best[0].weight - (20 if _QUOTES in message else 0)
        self._keep(self._hit(weight, line, message, best[0], _groups(best[1]), "rule"))
        return True

    def _needed(self, message: str) -> None:
        for pattern, needed in self.needs.items():
            if pattern not in self.run.met and needed.search(message):
                self.run.met.add(pattern)

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
            if self.blocks and line.number % 1000 == 0:  # of processes that are gone
                self.blocks = {one: block for one, block in self.blocks.items() if line.number - block.began < 5000}
            return
        if block.pending is not None:
            del self.blocks[key]
            number, text = block.pending
            if _VALUE_ERROR.match(message) or (text.endswith(":") and message.strip()):
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
        if "validation error" in message or (message.endswith(":") and not found["message"]):
            block.pending = (line.number, message)
            return
        del self.blocks[key]
        if block.main and not _ASKED_TO_END.match(message) and (self.run.stop is None or block.imports > 1):
            # A start that came no further than this, or the end of the server itself.
            if self.run.stop is not None:
                self._new_run_of(block.began)
            self.run.deaths.append(self._hit(5, line, message, None, {}, "death"))
        if not matched:
            self._exception(line, line.number, message, block)

    def _exception(self, line: LogLine, number: int, text: str, block: _Traceback) -> None:
        wrapper = bool(_WRAPPER.search(text))
        # A derived exception is less telling than what it was raised from; a wrapper only counts if there is nothing else.
        weight = 4 if wrapper else 3 if text in _MUTE else 27 if ":" not in text else 28 if block.chained else 34
        if text.startswith("AttributeError: '_OpNamespace'"):
            weight = 15  # an operator is missing because an import failed before
        hit = self._hit(weight, line, text, None, {}, "wrapper" if wrapper else "exception")
        hit.line = number
        self._keep(hit)


# ---- the answer ----


def diagnose(text: str, *, known: Sequence[Rule] | None = None, kernel: Iterable[str] = (), ended: bool = False) -> Diagnosis:
    """What is wrong in this log. Any layout; an empty text is no fault. `known`: the rules to use, all by default. The rest: `diagnose_lines`."""
    return _read([text.encode("utf-8", "replace")], known, kernel, ended)


def diagnose_file(path: Path, *, known: Sequence[Rule] | None = None, kernel: Iterable[str] = (), ended: bool = False) -> Diagnosis:
    """The same for a file of any size, also packed with gzip or in UTF-16: neither a line without an end nor broken bytes matter.

    Raises OSError if it cannot be read.
    """
    kernel = list(kernel)
    size = log_files.plain_size(path)
    for window in _WINDOWS:
        # Of a log with many runs the last two decide. They are whole if a third one, whole or not, is seen before them.
        if size is None or size <= 3 * window:
            break
        if (found := _read_end(path, size - window, known, kernel, ended)) is not None:
            return found
    with path.open("rb") as file:
        return _read(log_files.blocks(file), known, kernel, ended)


def diagnose_stream(source: log_files.Source, *, known: Sequence[Rule] | None = None, kernel: Iterable[str] = (), ended: bool = False) -> Diagnosis:
    """The same for anything with a `read` of bytes (stdin, an upload). Raises OSError."""
    return _read(log_files.blocks(source), known, kernel, ended)


def diagnose_lines(
    lines: Iterable[str], *, known: Sequence[Rule] | None = None, kernel: Iterable[str] = (), ended: bool = False,
) -> Diagnosis:
    """The same for lines without their ends.

    `kernel`: lines of the kernel log of the run's time (kernel_log.read). They are asked when the log says that the run failed, and when `ended` says
    that it ended unasked, whatever the log says. An answer from there has source "kernel", and no line of this log.
    """
    return _read(_blocks_of(lines), known, kernel, ended)


_WINDOWS = (1 << 21, 1 << 24)  # bytes
_STARTS = (b"  version ", b"server version ", b"detected platform", b"Started ")


def _blocks_of(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines as the reader wants them. A newline inside a line (nobody's log has one) is none."""
    batch: list[str] = []
    for line in lines:
        batch.append(line.replace("\n", " ") if "\n" in line else line)
        if len(batch) >= 256 or len(line) > LINE_LIMIT:
            yield ("\n".join(batch) + "\n").encode("utf-8", "replace")
            batch.clear()
    if batch:
        yield ("\n".join(batch) + "\n").encode("utf-8", "replace")


def _read_end(path: Path, start: int, known: Sequence[Rule] | None, kernel: Iterable[str], ended: bool) -> Diagnosis | None:
    """The answer, if what follows `start` holds the last two runs as a whole."""
    with path.open("rb") as file:
        file.seek(start)
        file.readline()
        begin = file.tell()
        starts = 0
        while (block := file.read(1 << 20)) and starts < 3:
            starts += sum(block.count(word) for word in _STARTS)
        if starts < 3:
            return None
        reader = _Reader(rules() if known is None else known, log_files.count(path, begin))
        file.seek(begin)
        for block in log_files.blocks(file):
            reader.feed(block)
    return _answer(reader, kernel, ended) if reader.runs >= 3 else None


def _read(blocks: Iterable[bytes], known: Sequence[Rule] | None, kernel: Iterable[str], ended: bool) -> Diagnosis:
    reader = _Reader(rules() if known is None else known)
    for block in blocks:
        reader.feed(block)
    return _answer(reader, kernel, ended)


def _answer(reader: _Reader, kernel: Iterable[str], ended: bool) -> Diagnosis:
    reader.end()
    run, before = reader.run, reader.before
    answer, weight = _of_run(run, reader.number)
    if answer.state == "starting" and before is not None:
        # A restart loop that is just starting again: the fault of the run before is still the fault, unless this one already came further.
        earlier, its_weight = _of_run(before, reader.number)
        if earlier.fault and run.milestones <= before.milestones:
            run, answer, weight = before, earlier, its_weight
    if answer.fault or (ended and answer.state != "stopped"):
        return _of_kernel(kernel, reader, run, weight) or answer
    return answer


# Xid codes that a program of its own causes, or that only tell the end of one: a companion of what the log says, not the cause.
_PROGRAMS_XIDS = frozenset({13, 31, 43, 45, 68, 69})
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
_KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)|(?P<name2>[^\s\[]{1,64})\[(?P<pid2>\d+)\]: segfault at")


def _of_kernel(kernel: Iterable[str], reader: _Reader, run: _Run, weight: int) -> Diagnosis | None:
    """The kernel's own word, if it is more telling than what the log says (`weight`)."""
    lines = [parse(raw, number) for number, raw in enumerate(kernel, start=1)]
    best: tuple[int, LogLine, Rule | None, dict[str, str]] | None = None
    for line in lines:
        message = line.message
        if not _GENERIC[0][2].search(message):
            continue
        if (victim := _KILLED.search(message)) is not None:
            pid, name = victim["pid"] or victim["pid2"], victim["name"] or victim["name2"]
            if int(pid) not in run.all_pids and not _OURS.search(name):
                continue  # another program's misfortune
        found = next(((rule, match) for rule in reader.known if (match := rule.pattern.search(message)) is not None), None)
        value = found[0].weight if found is not None else _GENERIC[0][0]
        if (xid := _XID.search(message)) is not None and int(xid[1]) in _PROGRAMS_XIDS:
            value = min(value, 50)
        if value > weight and (best is None or value > best[0]):
            best = (value, line, *((found[0], {key: one for key, one in found[1].groupdict().items() if one}) if found is not None else (None, {})))
    if best is None:
        return None
    value, line, rule, groups = best
    hit = _Hit(value, 0, line.number, line.message.strip(), rule, groups, "kernel")
    told = _told(hit, run, reader.number)
    context = [{"number": one.number, "text": one.message[:2000]} for one in lines if abs(one.number - line.number) <= CONTEXT_LINES]
    return replace(told, source="kernel", line=None, context=context)


def _none(lines: int, state: str) -> Diagnosis:
    return Diagnosis(fault=False, lines=lines, state=state)


def _of_run(run: _Run, lines: int) -> tuple[Diagnosis, int]:
    """What is wrong with one run, and how much it weighs."""
    hits, deaths = [hit for hit in run.hits if hit.rule is None or hit.rule.needs is None or hit.rule.needs.pattern in run.met], run.deaths
    if run.stop is not None:
        # What follows a stop that was asked for is its noise; what came before it is not.
        hits = [hit for hit in hits if hit.line < run.stop]
        deaths = [hit for hit in deaths if hit.line < run.stop]
    if run.serving is not None:
        deaths = [hit for hit in deaths if hit.line > run.serving]
        hits = [hit for hit in hits if hit.line > run.serving]
        if not deaths:
            return _none(lines, "stopped" if run.stop is not None else "serving"), 0
    if not deaths:
        # Nobody says that it ended: what was followed by more progress was overcome.
        # NCCL warns of much that it can do without.
        last = [hit for hit in hits if hit.progress == run.milestones and hit.what != "wrapper"]
        last = [hit for hit in last if hit.rule is not None or "NCCL WARN" not in hit.text]
        hits = last + [hit for hit in hits if hit.mild and hit.rule is not None and hit.progress < run.milestones] if last else []
    still = len(run.stall) >= _STALLS.get(run.parser.current.phase, 6) and run.serving is None
    if still and not any(hit.weight >= 30 and "timed out" not in hit.text for hit in hits):
        return _stalled(run, lines), 30
    if not hits and not deaths:
        return _none(lines, "stopped" if run.stop is not None else "starting" if run.milestones or run.pids or run.banner else "empty"), 0
    best = min(hits or deaths, key=lambda hit: (-_weight(hit, run), -hit.rank, hit.line))
    return _told(best, run, lines), round(_weight(best, run))


# The broadcast message comes each minute. So many in a row, with nothing in between, are a stall: some models compile for half an hour in silence.
_STALLS = {"start": 4, "load": 10, "compile": 40, "autotune": 8}
_OVERCOME = 3  # milestones after a line, from which on it did not stop the start


def _weight(hit: _Hit, run: _Run) -> float:
    """A warning, or a print, after which the start went on, says less than what stands where it ended."""
    if run.serving is not None and not hit.mild and not hit.outside and hit.api and hit.what in {"rule", "exception"}:
        first = min((death.line for death in run.deaths if death.line > run.serving), default=0)
        return hit.weight / 3 if hit.line < first else hit.weight  # a client's mistake, most likely: the server went on
    if hit.rule is None and "NCCL WARN" in hit.text and not any("nccl" in one.text.lower() for one in run.hits if not one.mild):
        return min(hit.weight, 19)  # NCCL warns of much that it can do without
    if not hit.mild or (run.milestones - hit.progress < _OVERCOME and not (hit.warned and any(not one.mild and one.weight > 6 for one in run.hits))):
        return hit.weight
    return hit.weight / 2 if hit.rule is not None or hit.what == "import" else min(hit.weight, 19)


def _groups(found: re.Match[str]) -> dict[str, str]:
    groups = {key: value for key, value in found.groupdict().items() if value}
    if "fit" in groups:
        groups["fits"] = groups["fit"]
    return groups


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
    "install": ("Packages were to be installed before the start, and no set of versions satisfies all requirements.",
                "Do not install in the unit's start; build a release beside, and put the index with the wanted build first"),
    "systemd": ("The service manager could not start the program at all.",
                "Correct the unit (ExecStart=, User=, WorkingDirectory=, EnvironmentFile=), or build the environment anew"),
    "import": ("A compiled part of vLLM could not be imported; what follows is its consequence.",
               "Build the release anew, without overriding torch"),
    "bind": ("The server could not listen on its address.", "Free the port, or give the service another address or port"),
    "wrapper": ("The log holds only the message of a process that noticed the failure, not its cause.",
                "Look above in the full log, and in the kernel log, for what ended the worker or the engine"),
    "death": ("The server ended, and its log names no cause.", "Look at the kernel log for an out-of-memory kill, a segfault or an Xid line"),
}


def _stalled(run: _Run, lines: int) -> Diagnosis:
    first = run.stall[0]
    if run.parser.current.phase == "autotune":
        return Diagnosis(
            fault=True, line=first, text=run.stall_text, kind="autotune-stalled", state="stalled", lines=lines, rule="stall", preflight=False,
            family="comms" if run.nccl else "runtime", action="settings", action_hint="--no-enable-flashinfer-autotune, or another --moe-backend",
            diagnosis=f"The autotuner of FlashInfer does not come to an end: {len(run.stall)} such messages in a row, with no profile in between.",
            fix="Start without autotuning (--no-enable-flashinfer-autotune) or with another --moe-backend; on several GPUs without NVLink also try "
                "NCCL_P2P_DISABLE=1 together with --disable-custom-all-reduce",
        )
    if run.nccl and run.parser.current.phase == "start":
        return Diagnosis(
            fault=True, line=first, text=run.stall_text, kind="nccl-p2p-hang", state="stalled", lines=lines, rule="stall", preflight=True,
            family="comms", action="settings", action_hint="NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce",
            diagnosis=f"All ranks stopped at their first transfers after NCCL connected: transfers between GPUs over PCIe hang (IOMMU or ACS). "
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
    """Fills {name}; what the log does not tell becomes a word that says so. Of names side by side, {one}{other}, those that it tells are enough."""
    unknown = {"env": "ENV", "model": "the model", "port": "PORT", "fits": "what the line says"}

    def fill(found: re.Match[str]) -> str:
        names = re.findall(r"\w+", found[0])
        return "".join(facts.get(name, "") for name in names) or unknown.get(names[0], "unknown")

    return re.sub(r"(?:\{\w+\})+", fill, text)


def _context(hit: _Hit) -> list[dict[str, Any]]:
    near: dict[int, str] = {}
    for number, raw in hit.context:
        if abs(number - hit.line) <= CONTEXT_LINES:
            near.setdefault(number, parse(raw).message[:2000])
    if hit.line in near and hit.text not in near[hit.line]:
        near[hit.line] = hit.text[:2000]  # one of several lines in one
    return [{"number": number, "text": text} for number, text in near.items()]
