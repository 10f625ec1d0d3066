"""What a sweep may be asked for: presets, and the limits that hold for all (so that no form or envelope can flood a server)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.benchmark.endpoint import normalise
from ops.benchmark.metrics import requests_for_full
from ops.jobs.errors import BadInput
from ops.records import Record

MAX_LEVELS = 16
MAX_CONCURRENCY = 2048
MAX_REQUESTS = 20_000  # in one level
MAX_TOKENS = 32_768
MAX_MINUTES = 240.0
MAX_PROMPT_WORDS = 100_000


@dataclass(kw_only=True)
class SweepSettings(Record):
    """All that was asked for. Stored with the run; holds no secret.

    `load`: "closed" (levels are `concurrencies`: so many slots, the next request as soon as one ends) or "open" (levels are `rates`:
    requests a second, Poisson arrivals, no cap unless `max_in_flight`). `requests[i]` belongs to the level of the same place.
    `endpoint_kind`: "chat" or "completions". `prompt_source`: "synthetic" (`prompt_words` words, or `prompt_tokens` tokens where set) or
    "file" (`prompt_file`: JSONL, ShareGPT-like or a prompt a line; `prompt_sha256` is of its bytes). `slos`: limits of goodput, any of
    `ttft_ms`, `tpot_ms`, `e2e_s`. `repeats`: the whole sweep so many times, each a run of its own with prompts of its own. `reasoning`:
    "on", "off" (sent as the chat template's switch) or "" (as the server has it).
    `output_mode`: "fixed" (`ignore_eos`, `min_tokens` = `max_tokens`: capacity) or "natural"
    (the model ends when it wants). `burst`: all slots start at once; otherwise they start staggered over one request's time.
    `level_seconds`: no request is sent that would not end by then; those in flight get `drain_seconds` more, then they are ended as
    unfinished. Before each level, `warmup_per_slot` x min(C, `warmup_slots`) requests are sent and thrown away. `stop_error_rate`: the
    sweep stops when more than this share of a level's requests failed. `practice`: as the service's record says; None: ask the server.
    `gpu_count`: how many GPUs the service holds, for per-GPU numbers.
    """

    preset: str
    base_url: str
    model: str
    concurrencies: list[int]
    requests: list[int]
    max_tokens: int
    output_mode: str = "fixed"
    temperature: float = 0.0
    prompt_words: int = 48
    seed: int = 1
    burst: bool = False
    order: str = "ascending"
    level_seconds: float = 300.0
    drain_seconds: float = 30.0
    request_timeout_s: float = 600.0
    warmup_per_slot: float = 2.0
    warmup_slots: int = 32
    stop_error_rate: float = 0.5
    practice: bool | None = None
    gpu_count: int | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    endpoint_kind: str = "chat"
    load: str = "closed"
    rates: list[float] = field(default_factory=list)
    max_in_flight: int | None = None
    prompt_source: str = "synthetic"
    prompt_tokens: int | None = None
    prompt_file: str = ""
    prompt_sha256: str = ""
    slos: dict[str, float] = field(default_factory=dict)
    repeats: int = 1
    reasoning: str = ""

    def check(self) -> None:
        """Raises BadInput naming the setting that cannot be, or is above its limit."""
        normalise(self.base_url)
        if not self.model:
            raise BadInput("A sweep needs a model's name")
        _integers("Concurrency", self.concurrencies, 1, MAX_CONCURRENCY)
        if len(self.concurrencies) > MAX_LEVELS:
            raise BadInput(f"A sweep has at most {MAX_LEVELS} levels, not {len(self.concurrencies)}")
        if len(set(self.concurrencies)) != len(self.concurrencies):
            raise BadInput("Each concurrency can stand only once in a sweep", hint=f"Use {','.join(map(str, sorted(set(self.concurrencies))))}")
        _integers("Requests of a level", self.requests, 1, MAX_REQUESTS)
        if len(self.requests) != len(self.concurrencies):
            raise BadInput(f"{len(self.requests)} request counts for {len(self.concurrencies)} levels",
                           hint="Give one for each level, or one for all")
        _integers("max_tokens", [self.max_tokens], 1, MAX_TOKENS)
        _integers("prompt_words", [self.prompt_words], 1, MAX_PROMPT_WORDS)
        _numbers("level_seconds", self.level_seconds, 0.1, 3600)
        _numbers("drain_seconds", self.drain_seconds, 0, 3600)
        _numbers("request_timeout_s", self.request_timeout_s, 0.1, 3600)
        _numbers("warmup_per_slot", self.warmup_per_slot, 0, 10)
        _integers("warmup_slots", [self.warmup_slots], 0, 256)
        _numbers("stop_error_rate", self.stop_error_rate, 0, 1)
        _numbers("temperature", self.temperature, 0, 2)
        if self.output_mode not in ("fixed", "natural"):
            raise BadInput(f"Unknown output mode `{self.output_mode}`", hint="Use fixed or natural")
        if self.order not in ("ascending", "given"):
            raise BadInput(f"Unknown order `{self.order}`", hint="Use ascending or given")
        if reserved := set(self.extra_body) & {"model", "messages", "stream", "stream_options", "max_tokens", "min_tokens", "n"}:
            raise BadInput(f"`{min(reserved)}` cannot be set through extra_body")
        if self.most_minutes() > MAX_MINUTES:
            raise BadInput(f"This sweep may take {self.most_minutes():.0f} minutes; at most {MAX_MINUTES:.0f} are allowed",
                           hint="Fewer levels, or a smaller level_seconds")

    def levels(self) -> list[tuple[int, int]]:
        """(concurrency, requests) in the order in which they run."""
        pairs = list(zip(self.concurrencies, self.requests, strict=True))
        return sorted(pairs) if self.order == "ascending" else pairs

    def warmup_requests(self, concurrency: int) -> int:
        return round(self.warmup_per_slot * min(concurrency, self.warmup_slots))

    def most_minutes(self) -> float:
        """The longest that the measured levels may take, without warm-up."""
        return len(self.concurrencies) * (self.level_seconds + self.drain_seconds) / 60

    def size(self) -> dict[str, float]:
        """What a form says before the start: requests (warm-up included), output tokens at most, minutes at most."""
        requests = sum(self.requests) + sum(self.warmup_requests(c) for c in self.concurrencies)
        return {"requests": requests, "output_tokens": requests * self.max_tokens, "minutes": self.most_minutes()}

    @property
    def short(self) -> bool:
        """Some level has fewer requests than a full one needs, by plan."""
        return any(requests < requests_for_full(c) for c, requests in zip(self.concurrencies, self.requests, strict=True))


def _integers(name: str, values: Any, low: int, high: int) -> None:
    if not isinstance(values, list) or not values:
        raise BadInput(f"{name}: nothing was given")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadInput(f"{name} must be a whole number, not `{str(value)[:40]}`")
        if not low <= value <= high:
            raise BadInput(f"{name} {value} is outside of {low} to {high}", hint=f"Give a whole number from {low} to {high}")


def _numbers(name: str, value: Any, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{name} must be a number from {low:g} to {high:g}, not `{str(value)[:40]}`")


# What each preset fixes; anything may be overridden. `requests` is a rule from the concurrency.
PRESETS: dict[str, dict[str, Any]] = {
    # after a redeploy: a look, not a measurement; marked short
    "quick": {"concurrencies": [1, 8, 32, 128], "max_tokens": 64, "requests": lambda c: 2 * c, "burst": True, "level_seconds": 10.0,
              "drain_seconds": 20.0, "warmup_per_slot": 1.0, "warmup_slots": 4},
    # the table of the story: 1 to 128, 512 tokens, because a reasoning model thinks first
    "story": {"concurrencies": [1, 2, 4, 8, 16, 32, 64, 128], "max_tokens": 512, "requests": requests_for_full, "level_seconds": 420.0,
              "drain_seconds": 120.0},
    "custom": {"concurrencies": [1, 8], "max_tokens": 128, "requests": requests_for_full},
}


def settings(preset: str, *, base_url: str, model: str, **overrides: Any) -> SweepSettings:
    """The settings of `quick`, `story` or `custom`, with overrides (`concurrencies`, `max_tokens`, `requests`, ...) in their place.

    `requests` may be one number for every level. Raises BadInput for an unknown preset or setting, or one beyond the limits.
    """
    if preset not in PRESETS:
        raise BadInput(f"Unknown preset `{preset[:80]}`", hint=f"Presets: {', '.join(PRESETS)}")
    values = {**PRESETS[preset], **{name: value for name, value in overrides.items() if value is not None}}
    concurrencies: Sequence[int] = values["concurrencies"]
    _integers("Concurrency", list(concurrencies), 1, MAX_CONCURRENCY)
    requests = values["requests"]
    if callable(requests):
        requests = [requests(c) for c in concurrencies]
    elif isinstance(requests, int):
        requests = [requests] * len(concurrencies)
    elif isinstance(requests, list) and len(requests) == 1:
        requests = requests * len(concurrencies)
    values.update(preset=preset, base_url=normalise(base_url), model=model, concurrencies=list(concurrencies), requests=list(requests))
    return SweepSettings.from_dict(values)
