"""What a sweep may be asked for: presets, and the limits that hold for all (so that no form or envelope can flood a server)."""

from __future__ import annotations

import random
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
MIN_RATE, MAX_RATE = 0.01, 2000.0  # requests a second
MAX_TOKENS = 32_768
MAX_MINUTES = 240.0
MAX_PROMPT_WORDS = 100_000


@dataclass(frozen=True, slots=True, order=True)
class LevelPlan:
    """One level as it is asked for: `value` is a concurrency (closed loop) or requests a second (open loop)."""

    load: str
    value: float
    requests: int

    @property
    def concurrency(self) -> int | None:
        """Of a closed loop; None for a rate."""
        return int(self.value) if self.load == "closed" else None

    @property
    def name(self) -> str:
        """For people: `concurrency 8`, `2.5 requests/s`."""
        return f"concurrency {self.value:g}" if self.load == "closed" else f"{self.value:g} requests/s"

    @property
    def key(self) -> str:
        """For seeds: `8`, `r2.5`."""
        return f"{self.value:g}" if self.load == "closed" else f"r{self.value:g}"

    @property
    def file_stem(self) -> str:
        """`c8`, `r2.5`."""
        return f"c{self.value:g}" if self.load == "closed" else self.key

    def as_dict(self) -> dict[str, Any]:
        """The fields by which events and results name a level."""
        return {"load": self.load, "value": self.value, "concurrency": self.concurrency}


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
        self._check_load()
        _integers("Requests of a level", self.requests, 1, MAX_REQUESTS)
        if len(self.requests) != len(self.values):
            raise BadInput(f"{len(self.requests)} request counts for {len(self.values)} levels", hint="Give one for each level, or one for all")
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
        if self.order not in ("ascending", "given", "shuffled"):
            raise BadInput(f"Unknown order `{self.order}`", hint="Use ascending, given or shuffled")
        if reserved := set(self.extra_body) & {"model", "messages", "stream", "stream_options", "max_tokens", "min_tokens", "n"}:
            raise BadInput(f"`{min(reserved)}` cannot be set through extra_body")
        if self.most_minutes() > MAX_MINUTES:
            raise BadInput(f"This sweep may take {self.most_minutes():.0f} minutes; at most {MAX_MINUTES:.0f} are allowed",
                           hint="Fewer levels, or a smaller level_seconds")

    def _check_load(self) -> None:
        if self.load not in ("closed", "open"):
            raise BadInput(f"Unknown load `{str(self.load)[:40]}`", hint="Use closed (concurrencies) or open (rates)")
        if self.load == "closed":
            _integers("Concurrency", self.concurrencies, 1, MAX_CONCURRENCY)
            if self.rates:
                raise BadInput("A closed loop has concurrencies, not rates", hint="Rates need load open")
        else:
            if not isinstance(self.rates, list) or not self.rates:
                raise BadInput("Rate: nothing was given")
            for rate in self.rates:
                _numbers("Rate", rate, MIN_RATE, MAX_RATE)
            if self.concurrencies:
                raise BadInput("An open loop has rates, not concurrencies", hint="Concurrencies need load closed")
            if self.max_in_flight is not None:
                _integers("max_in_flight", [self.max_in_flight], 1, MAX_CONCURRENCY)
        if len(self.values) > MAX_LEVELS:
            raise BadInput(f"A sweep has at most {MAX_LEVELS} levels, not {len(self.values)}")
        if len(set(self.values)) != len(self.values):
            named = "concurrency" if self.load == "closed" else "rate"
            raise BadInput(f"Each {named} can stand only once in a sweep", hint=f"Use {','.join(f'{v:g}' for v in sorted(set(self.values)))}")

    @property
    def values(self) -> list[int] | list[float]:
        """Of the levels, as asked: concurrencies or rates."""
        return self.concurrencies if self.load == "closed" else self.rates

    def levels(self) -> list[LevelPlan]:
        """In the order in which they run; `shuffled` is by the seed."""
        plans = [LevelPlan(self.load, value, requests) for value, requests in zip(self.values, self.requests, strict=True)]
        if self.order == "shuffled":
            random.Random(f"{self.seed}/order").shuffle(plans)  # noqa: S311  # reproducible, not a secret
            return plans
        return sorted(plans) if self.order == "ascending" else plans

    def warmup_requests(self, plan: LevelPlan) -> int:
        """How many are sent and thrown away before the level. A rate says nothing of how many will be in flight: all warm-up slots are used."""
        slots = min(plan.concurrency or self.warmup_slots, self.warmup_slots)
        return min(round(self.warmup_per_slot * slots), plan.requests) if plan.load == "open" else round(self.warmup_per_slot * slots)

    def most_minutes(self) -> float:
        """The longest that the measured levels may take, without warm-up."""
        return self.repeats * len(self.values) * (self.level_seconds + self.drain_seconds) / 60

    def size(self) -> dict[str, float]:
        """What a form says before the start: requests (warm-up included), output tokens at most, minutes at most."""
        requests = self.repeats * sum(plan.requests + self.warmup_requests(plan) for plan in self.levels())
        return {"requests": requests, "output_tokens": requests * self.max_tokens, "minutes": self.most_minutes()}

    @property
    def short(self) -> bool:
        """Some level has fewer requests than a full one needs, by plan."""
        return any(plan.requests < requests_for_full(plan.value, plan.load) for plan in self.levels())


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
    if overrides.get("rates") and not overrides.get("load"):
        values["load"] = "open"
    load = values.get("load", "closed")
    asked: Sequence[float]
    if load == "open":
        values["concurrencies"] = list(overrides.get("concurrencies") or [])
        asked = values["rates"] = list(values.get("rates") or [])
        if not all(isinstance(rate, int | float) and not isinstance(rate, bool) and MIN_RATE <= rate <= MAX_RATE for rate in asked) or not asked:
            raise BadInput(f"Rates are numbers from {MIN_RATE:g} to {MAX_RATE:g} requests a second", hint="An open loop needs at least one")
        asked = values["rates"] = [float(rate) for rate in asked]
    else:
        asked = values["concurrencies"] = list(values["concurrencies"])
        _integers("Concurrency", asked, 1, MAX_CONCURRENCY)
    requests = values["requests"]
    if callable(requests):
        rule = requests if load == "closed" else lambda rate: requests_for_full(rate, "open")
        requests = [min(rule(value), MAX_REQUESTS) for value in asked]
    elif isinstance(requests, int):
        requests = [requests] * len(asked)
    elif isinstance(requests, list) and len(requests) == 1:
        requests = requests * len(asked)
    values.update(preset=preset, base_url=normalise(base_url), model=model, requests=list(requests))
    return SweepSettings.from_dict(values)
