"""Which phase a starting vLLM server is in, read from its log: milestones of vLLM 0.6 to 0.33.

Their words change from version to version, so they are matched loosely; only rank 0 prints most of them, and a phase that a server does not
have (graphs on a CPU, compilation with --enforce-eager) is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ops.services import log_lines

# (name, title), in the order in which they happen. A phase that a server does not have (graphs on a CPU, say) is left out.
PHASES: tuple[tuple[str, str], ...] = (
    ("start", "Start processes"),
    ("load", "Load weights"),
    ("compile", "Compile"),
    ("kv_cache", "Size KV cache"),
    ("autotune", "Autotune kernels"),
    ("capture", "Capture graphs"),
    ("listening", "Open the port"),
    ("healthy", "First answer"),
)
TITLES = dict(PHASES)
POSITION = {name: index for index, (name, _) in enumerate(PHASES)}


@dataclass(slots=True)
class Phase:
    """One phase that was seen. Times are seconds since process start."""

    phase: str
    began_s: float
    ended_s: float | None = None
    detail: str = ""
    done: int | None = None
    total: int | None = None
    moved_s: float = 0.0  # when `done` was reached
    bars: int = 0  # progress bars that it has begun to draw

    @property
    def took_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.began_s

    def as_dict(self) -> dict[str, Any]:
        return {"phase": self.phase, "title": TITLES[self.phase], "state": "running" if self.ended_s is None else "done",
                "took_s": None if self.took_s is None else round(self.took_s, 3), "detail": self.detail, "done": self.done, "total": self.total}


# What a line says. `begin`: the phase runs from here. `within`: the phase is known to run (begins it if it was not seen yet).
# `moves`: as `within`, but only progress, of which there may be much. `end`: the phase is over, and what comes next is another one. The groups fill
# `detail`; done/total are progress.
_MILESTONES: list[tuple[str, str, re.Pattern[str], str]] = [
    ("start", "within", re.compile(r"version (?P<v>\d+\.\d+\S*)(?:, serving model|\s*$)"), "vLLM {v}"),
    ("start", "within", re.compile(r"(?:vLLM API server version) (?P<v>\S+)"), "vLLM {v}"),
    ("start", "within", re.compile(r"Resolved architecture: (?P<a>\S+)"), "{a}"),
    ("start", "within", re.compile(r"Initializing an? (?:V\d )?LLM engine \((?P<v>v[^)]+)\)"), "engine starts"),
    ("start", "within", re.compile(r"world_size=(?P<n>\d+) rank=0 "), "workers: {n}"),
    ("load", "begin", re.compile(r"Starting to load model |Loading model from scratch"), ""),
    ("load", "moves", re.compile(r"Prefetching checkpoint files: +(?P<p>\d+)%"), "read ahead: {p} %"),
    ("load", "moves", re.compile(r"(?P<f>[\w.-]{1,80}\.(?:safetensors|bin|gguf|pth?)): +(?P<p>\d+)%\|"), "downloading {f}: {p} %"),
    ("load", "within", re.compile(r"Time spent downloading weights for \S+: (?P<s>[\d.]+) s"), "downloaded in {s} s"),
    ("load", "within", re.compile(r"Loading [\w.-]+ using [\w .:-]{1,60}: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), ""),
    ("load", "within", re.compile(r"Loading [\w.-]+ checkpoint shards: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), ""),
    ("load", "within", re.compile(r"(?:Multi-thread loading|Loading weights|Loading) shards: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), ""),
    ("load", "within", re.compile(r"Loading weights took (?P<s>[\d.]+) s"), "weights read in {s} s"),
    ("load", "end", re.compile(r"Model loading took (?P<g>[\d.]+) GiB(?: memory)? and (?P<s>[\d.]+) s"), "{g} GiB on each GPU"),
    ("load", "end", re.compile(r"Loading model weights took (?P<g>[\d.]+) (?P<u>GB|GiB)"), "{g} {u} on each GPU"),
    ("compile", "begin", re.compile(r"Warming up model for the compilation"), ""),
    ("compile", "within", re.compile(r"Using cache directory: .*torch\.compile"), ""),
    ("compile", "within", re.compile(r"Dynamo bytecode transform time: (?P<s>[\d.]+) s"), "traced in {s} s"),
    ("compile", "within", re.compile(r"Directly load (?:the compiled graph|AOT compilation)"), "from the compile cache"),
    ("compile", "within", re.compile(r"Cache the graph of (?:compile range|shape|dynamic shape)"), "compiling, no cached graph"),
    ("compile", "within", re.compile(r"Compiling a graph for .* takes (?P<s>[\d.]+) s"), "graph compiled in {s} s"),
    ("compile", "within", re.compile(r"saved AOT compiled function"), "compiled and stored"),
    ("compile", "within", re.compile(r"torch\.compile (?:takes|took) (?P<s>[\d.]+) s in total"), "torch.compile took {s} s"),
    ("compile", "within", re.compile(r"Initial profiling/warmup run took (?P<s>[\d.]+) s"), "first run took {s} s"),
    ("compile", "within", re.compile(r"Profiling CUDA graph memory"), "profiling graphs"),
    ("compile", "within", re.compile(r"Warming up done"), ""),
    ("kv_cache", "begin", re.compile(r"Available KV cache memory: (?P<g>[\d.]+) GiB"), "{g} GiB available"),
    ("kv_cache", "begin", re.compile(r"set \([\d.]+/[\d.]+\) GiB for KV cache"), ""),
    ("kv_cache", "begin", re.compile(r"Memory profiling (?:takes|results: duration=)"), ""),
    ("kv_cache", "within", re.compile(r"KV cache size: (?P<t>[\d,]+) tokens"), "{t} tokens"),
    ("kv_cache", "within", re.compile(r"# (?:GPU|CPU|cuda) blocks: (?P<t>[\d,]+)"), "{t} blocks"),
    ("autotune", "begin", re.compile(r"(?i)\[?autotuner\]?: autotuning process starts"), ""),
    ("autotune", "within", re.compile(r"\[AutoTuner\]: Tuning .*?\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), ""),
    ("autotune", "within", re.compile(r"FlashInfer autotune cache file"), "with an autotune cache"),
    ("autotune", "within", re.compile(r"Deep(?:GEMM|Gemm)\S* warmup.*?: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), ""),
    ("autotune", "within", re.compile(r"(?i)\[?autotuner\]?: autotuning process ends"), ""),
    ("capture", "within", re.compile(r"Capturing CUDA graphs?(?: shapes)?(?: \((?P<k>[^)]*)\))?: +\d+%.*?(?P<done>\d+)/(?P<total>\d+)"), "{k}"),
    ("capture", "begin", re.compile(r"Capturing (?:the model for )?(?:CUDA graphs?|cudagraphs)"), ""),
    ("capture", "within", re.compile(r"Graph capturing finished in (?P<s>[\d.]+) secs?, took (?P<g>-?[\d.]+) GiB"), "{g} GiB"),
    ("capture", "within", re.compile(r"Graph capturing finished in (?P<s>[\d.]+) secs?"), ""),
    ("listening", "begin", re.compile(r"init engine \(profile, create kv cache, warmup model\) took "), ""),
    ("listening", "within", re.compile(r"Starting vLLM (?:API )?server(?: \d+)? on (?P<u>\S+)"), "{u}"),
    ("listening", "within", re.compile(r"^INFO: +Waiting for application startup"), ""),
    ("healthy", "begin", re.compile(r"Application startup complete"), ""),
]
_CACHE_HIT = re.compile(r"Directly load (?:the compiled graph|AOT compilation)")
_CACHE_MISS = re.compile(r"Cache the graph of |Compiling a graph for |saved AOT compiled function")
_NO_COMPILE = re.compile(
    r"enforce_eager=True|'enforce_eager': True|Enforce eager set|Initializing an LLM engine \(v0\.[0-7]\.|Initializing a V0 LLM engine")
_PROFILED = re.compile(r"Estimated CUDA graph memory|Available KV cache memory")
# A quick refusal of almost every line: each milestone holds one of these words.
_MAYBE = re.compile(
    r"version|architecture|LLM|world_size|[Ll]oad|shards|[Cc]ompil|[Ww]arm|cache|Dynamo|KV|blocks|[Aa]uto[Tt]un|[Cc]aptur|init engine"
    r"|Starting|startup|eager|Prefetching|rofiling|CUDA graph|\d%\|"
)


@dataclass(frozen=True, slots=True)
class Change:
    """What a line changed: a phase that began, moved or ended. `milestone` false: only progress inside it."""

    phase: Phase
    milestone: bool


@dataclass
class Parser:
    """Reads a server's log line by line. `phases` are those seen so far, in order; all but the last have ended."""

    phases: list[Phase] = field(default_factory=lambda: [Phase("start", 0.0)])
    cache: str = "unknown"  # of torch.compile: "hit", "miss", "unknown"
    eager: bool = False
    profiling: bool = False  # graphs are captured to see how much memory they take, before the KV cache is sized: that is no capture phase yet

    @property
    def current(self) -> Phase:
        return self.phases[-1]

    def feed(self, line: str, at: float = 0.0) -> list[Change]:
        """What this line changes; `at` is seconds since process start. Lines of any layout; carriage returns already split."""
        if not _MAYBE.search(line):
            return []
        parsed = log_lines.parse(line)
        message = parsed.message
        if _NO_COMPILE.search(message):
            self.eager = True
        if "Profiling CUDA graph memory" in message:
            self.profiling = True
        elif self.profiling and _PROFILED.search(message):
            self.profiling = False
        if _CACHE_HIT.search(message):
            self.cache = "hit"
        elif self.cache != "hit" and _CACHE_MISS.search(message):
            self.cache = "miss"  # a hit stays: with several graphs some are stored anew
        for name, kind, pattern, detail in _MILESTONES:
            if (found := pattern.search(message)) is not None:
                if (name == "capture" and self.profiling) or (kind == "end" and parsed.process == "VllmWorkerProcess"):
                    return []  # the latter: another rank has loaded its weights, rank 0 (without a prefix in these versions) may still read
                return self._apply(name, kind, found, detail, at)
        return []

    def _apply(self, name: str, kind: str, found: re.Match[str], detail: str, at: float) -> list[Change]:
        position, here = POSITION[name], POSITION[self.current.phase]
        groups = {key: value or "" for key, value in found.groupdict().items()}
        text = detail.format(**groups)
        progress = "done" in groups or kind == "moves"
        if position < here:
            # What belongs to an earlier phase only adds to it (other ranks repeat milestones, later compilations are small).
            return []
        moved = self._go_to(name, at) if position > here else []
        phase = self.current
        if "done" in groups:
            done, total = int(groups["done"]), int(groups["total"])
            news = (done, total) != (phase.done, phase.total)
            if news:
                phase.bars += phase.done is None or done < phase.done or total != phase.total
                phase.done, phase.total, phase.moved_s = done, total, at
        else:
            news = bool(text) and text != phase.detail
        if text and text != phase.detail:
            phase.detail, news = text, True
        if kind == "end":
            # The quiet stretch after loading is the profile run: torch.compile works in it, or without that the KV cache is sized.
            return moved[:1] + self._go_to("kv_cache" if self.eager else "compile", at)
        if moved or not news:
            return moved  # that it began is told once, with what this line says about it
        return [Change(phase, milestone=not progress)]

    def _go_to(self, name: str, at: float) -> list[Change]:
        last = self.current
        last.ended_s = max(at, last.began_s)
        if last.total is not None:
            last.done = last.total  # the last redraw of a progress bar is often lost, but what came after it says that it was whole
        begun = Phase(name, last.ended_s)
        self.phases.append(begun)
        return [Change(last, milestone=True), Change(begun, milestone=True)]

    def answered(self, at: float) -> list[Change]:
        """The server answers: whatever was not seen in the log is over."""
        return self._go_to("healthy", at) if self.current.phase != "healthy" else []

    def finish(self, at: float) -> Change:
        self.current.ended_s = max(at, self.current.began_s)
        return Change(self.current, milestone=True)
