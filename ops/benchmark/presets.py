"""What a sweep may be asked for: presets, and the limits that hold for all (so that no form or envelope can flood a server)."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.benchmark.endpoint import normalise
from ops.benchmark.metrics import MAX_REQUESTS, requests_for_full
from ops.jobs.errors import BadInput
from ops.records import Record

MAX_LEVELS = 16
MAX_CONCURRENCY = 2048
MIN_RATE, MAX_RATE = 0.01, 2000.0  # requests a second
MAX_TOKENS = 32_768
MAX_MINUTES = 240.0
MAX_PROMPT_WORDS = 100_000
MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 32, 200_000
MAX_REPEATS = 20
SEEDS = 2**31
TOKENS_PER_WORD = 1.35  # of synthetic prompts, about: for sizes told before the start
SLOS = ("ttft_ms", "tpot_ms", "e2e_s")
NODE_SAYS = frozenset({"preset", "base_url", "model", "practice", "gpu_count"})  # of a job's sweep: its service's own, not the console's to say


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
    `gpu_count`: how many GPUs the service holds, for per-GPU numbers. `order`: "ascending", "given" or "shuffled" (by `order_seed`, which all
    repeats share, while each has a `seed` of its own).
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
    order_seed: int = 1

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
        self._check_prompts()
        _check_slos(self.slos)
        _integers("repeats", [self.repeats], 1, MAX_REPEATS)
        _integers("seed", [self.seed, self.order_seed], 0, 2**53)
        if self.gpu_count is not None:
            _integers("gpu_count", [self.gpu_count], 1, 4096)
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
        try:
            json.dumps(self.extra_body, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise BadInput("extra_body cannot be sent as JSON", why=str(error)) from error
        if reserved := set(self.extra_body) & {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "min_tokens", "n"}:
            raise BadInput(f"`{min(reserved)}` cannot be set through extra_body")
        if self.most_minutes() > MAX_MINUTES:
            raise BadInput(f"This sweep may take {self.most_minutes():.0f} minutes; at most {MAX_MINUTES:.0f} are allowed",
                           hint="Fewer levels or repeats, or a smaller level_seconds")

    def _check_prompts(self) -> None:
        if self.endpoint_kind not in ("chat", "completions"):
            raise BadInput(f"Unknown endpoint `{str(self.endpoint_kind)[:40]}`", hint="Use chat or completions")
        if self.reasoning not in ("", "on", "off"):
            raise BadInput(f"Unknown reasoning `{str(self.reasoning)[:40]}`", hint="Use on or off, or leave it out")
        if self.reasoning and self.endpoint_kind == "completions":
            raise BadInput("Reasoning is switched in the chat template, which completions do not use", hint="Measure chat completions")
        if self.prompt_source not in ("synthetic", "file"):
            raise BadInput(f"Unknown prompts `{str(self.prompt_source)[:40]}`", hint="Use synthetic or file")
        if self.prompt_source == "file" and not self.prompt_file:
            raise BadInput("Prompts from a file need the file's path")
        _integers("prompt_words", [self.prompt_words], 1, MAX_PROMPT_WORDS)
        if self.prompt_tokens is not None:
            _integers("prompt_tokens", [self.prompt_tokens], MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS)

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
        if len({f"{value:g}" for value in self.values}) != len(self.values):  # as levels are named, on disk and in seeds
            named = "concurrency" if self.load == "closed" else "rate"
            raise BadInput(f"Each {named} can stand only once in a sweep", hint=f"Use {','.join(f'{v:g}' for v in sorted(set(self.values)))}")

    @property
    def values(self) -> list[int] | list[float]:
        """Of the levels, as asked: concurrencies or rates."""
        return self.concurrencies if self.load == "closed" else self.rates

    def levels(self) -> list[LevelPlan]:
        """In the order in which they run."""
        plans = [LevelPlan(self.load, value, requests) for value, requests in zip(self.values, self.requests, strict=True)]
        if self.order == "shuffled":
            random.Random(f"{self.order_seed}/order").shuffle(plans)  # noqa: S311  # reproducible, not a secret
            return plans
        return sorted(plans) if self.order == "ascending" else plans

    def warmup_requests(self, plan: LevelPlan) -> int:
        """How many are sent and thrown away before the level. A rate says nothing of how many will be in flight: all warm-up slots are used."""
        slots = min(plan.concurrency or self.warmup_slots, self.warmup_slots)
        return min(round(self.warmup_per_slot * slots), plan.requests) if plan.load == "open" else round(self.warmup_per_slot * slots)

    def most_minutes(self) -> float:
        """The longest that the measured levels may take, without warm-up."""
        return self.repeats * len(self.values) * (self.level_seconds + self.drain_seconds) / 60

    def size(self) -> dict[str, Any]:
        """As `size` without history."""
        return size(self)

    def check_floor(self) -> None:
        """Raises BadInput where no noise floor can be made of these settings, beside how often they are repeated."""
        if told := self.never_full():
            raise BadInput("No noise floor can be measured with these settings", why=told,
                           hint="Ask for as many requests as slots, better ten times as many")

    def never_full(self) -> str:
        """Which levels cannot be what they are called, in words: a closed loop with fewer requests than slots. "" where there is none."""
        few = [plan for plan in self.levels() if plan.load == "closed" and plan.requests < plan.value]
        told = ", ".join(f"concurrency {plan.value:g} has {plan.requests} {'request' if plan.requests == 1 else 'requests'}" for plan in few)
        return f"Never full: {told}, so fewer are in flight at once than the level says" if few else ""

    @property
    def short(self) -> bool:
        """Some level has fewer requests than a full one needs, by plan."""
        return any(plan.requests < requests_for_full(plan.value, plan.load) for plan in self.levels())


def size(settings: SweepSettings, history: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What a form says before the start: `requests` (warm-up and repeats included), `input_tokens` and `output_tokens` (about, at most),
    `minutes`, and `minutes_from`: "earlier levels" or "upper bound" (the time limits).

    `history`: levels (LevelMetrics.as_dict()) that the same service gave before; a level's time is taken from the nearest load among them,
    scaled by the output length. `levels`: the same for each, in their order, without repeats.
    """
    words = 24 + settings.prompt_words  # with the nonce and the task
    prompt = settings.prompt_tokens or math.ceil(words * TOKENS_PER_WORD)
    levels: list[dict[str, Any]] = []
    for plan in settings.levels():
        requests, most = plan.requests + settings.warmup_requests(plan), settings.level_seconds + settings.drain_seconds
        seconds = _from_history(settings, plan, history or ())
        levels.append({**plan.as_dict(), "name": plan.name, "requests": requests, "input_tokens": requests * prompt,
                       "output_tokens": requests * settings.max_tokens, "minutes": (most if seconds is None else min(seconds, most)) / 60,
                       "minutes_from": "upper bound" if seconds is None else "earlier levels"})
    total: dict[str, Any] = {name: settings.repeats * sum(level[name] for level in levels)
                             for name in ("requests", "input_tokens", "output_tokens", "minutes")}
    known = all(level["minutes_from"] == "earlier levels" for level in levels)
    return {**total, "minutes_from": "earlier levels" if known else "upper bound", "levels": levels}


def _from_history(settings: SweepSettings, plan: LevelPlan, history: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds that a level with its warm-up should take, from the nearest load measured before; None where there is none within a factor of 4."""
    best: tuple[float, float] | None = None
    for level in history:
        load, value, took = level.get("load", "closed"), level.get("value", level.get("concurrency")), level.get("e2e_mean_s")
        if load != plan.load or not isinstance(value, int | float) or not isinstance(took, int | float) or value <= 0 or took <= 0:
            continue
        far = abs(math.log2(value / plan.value))
        length = level.get("max_tokens")
        scaled = took * settings.max_tokens / length if isinstance(length, int) and length > 0 else took
        if far <= 2 and (best is None or far < best[0]):
            best = (far, scaled)
    if best is None:
        return None
    one = best[1]
    slots = plan.concurrency or settings.warmup_slots
    warm = settings.warmup_requests(plan) / min(slots, settings.warmup_slots) if settings.warmup_slots else 0
    if plan.load == "open":
        return plan.requests / plan.value + one + warm * one
    return (max(1.0, plan.requests / slots) + (0 if settings.burst else 1) + warm) * one


def _check_slos(slos: Any) -> None:
    if not isinstance(slos, dict):
        raise BadInput("SLOs are an object such as {\"ttft_ms\": 500}")
    for name, limit in slos.items():
        if name not in SLOS:
            raise BadInput(f"There is no SLO `{str(name)[:40]}`", hint=f"SLOs: {', '.join(SLOS)}")
        _numbers(f"SLO {name}", limit, 0.001, 10_000_000)


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
    # what it gives at most: prompts and answers of one size, up to where throughput ends to grow
    "capacity": {"concurrencies": [1, 16, 64, 128, 256], "max_tokens": 256, "prompt_tokens": 512, "requests": requests_for_full,
                 "level_seconds": 300.0, "drain_seconds": 60.0},
    # what users feel at a rate of requests, and how many of them get what they were promised
    "latency": {"load": "open", "rates": [0.5, 1.0, 2.0, 4.0, 8.0], "concurrencies": [], "max_tokens": 256, "prompt_tokens": 512,
                "requests": requests_for_full, "level_seconds": 120.0, "drain_seconds": 60.0, "slos": {"ttft_ms": 1000.0, "tpot_ms": 50.0}},
    "custom": {"concurrencies": [1, 8], "max_tokens": 128, "requests": requests_for_full},
}


def settings(preset: str, *, base_url: str, model: str, **overrides: Any) -> SweepSettings:
    """The settings of a preset, with overrides (`concurrencies`, `max_tokens`, `requests`, ...) in their place. Without a `seed` one is drawn.

    `requests` may be one number for every level. Raises BadInput for an unknown preset or setting, or one beyond the limits.
    """
    if preset not in PRESETS:
        raise BadInput(f"Unknown preset `{preset[:80]}`", hint=f"Presets: {', '.join(PRESETS)}")
    values = {**PRESETS[preset], **{name: value for name, value in overrides.items() if value is not None}}
    if not overrides.get("load") and (overrides.get("rates") or overrides.get("concurrencies")):
        values["load"] = "open" if overrides.get("rates") else "closed"
    load = values.get("load", "closed")
    asked: Sequence[float]
    if load == "open":
        values["concurrencies"] = list(overrides.get("concurrencies") or [])
        asked = values["rates"] = list(values.get("rates") or [])
        if not all(isinstance(rate, int | float) and not isinstance(rate, bool) and MIN_RATE <= rate <= MAX_RATE for rate in asked) or not asked:
            raise BadInput(f"Rates are numbers from {MIN_RATE:g} to {MAX_RATE:g} requests a second", hint="An open loop needs at least one")
        asked = values["rates"] = [float(rate) for rate in asked]
    else:
        values["rates"] = list(overrides.get("rates") or [])
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
    # another seed each time: a sweep with the prompts of the one before would be answered out of the prefix cache
    values.setdefault("seed", secrets.randbelow(SEEDS))
    values.update(preset=preset, base_url=normalise(base_url), model=model, requests=list(requests))
    return SweepSettings.from_dict(values)
