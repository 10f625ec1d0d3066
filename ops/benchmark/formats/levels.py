"""Levels and runs of other tools in our form: every field of ours is there, None where the tool does not tell.

A level has one key that our own levels lack: `reported`, all that the tool says of its distributions (`ttft_p95_ms`, `itl_mean_ms`, ...), with
its percentiles however few samples they come from. The fields proper follow our rule: P90 needs 20 samples and P99 needs 100, unless the tool
does not say how many there were.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ops.benchmark.formats.source import Notes
from ops.benchmark.metrics import ERROR_RATE_LIMIT, P90_NEEDS, P99_NEEDS, SHORT_WINDOW_S, percentile, requests_for_full
from ops.benchmark.results import SweepResult
from ops.jobs.errors import BadInput

RUNS_MOST, LEVELS_MOST = 400, 64  # points in a file, levels in a run
CONCURRENCY_MOST, RATE_MOST = 1_000_000, 1_000_000.0
SECONDS_MOST, TIMELINE_MOST = 900, 200
NAMESPACE = uuid.UUID("b2f4d6a0-5f1e-4c7e-9a53-0d6d1c2e9f10")  # of run ids that are made from a file's bytes: the same file, the same ids
SPREADS = (("ttft", "ms"), ("ttfc", "ms"), ("e2e", "s"), ("icl", "ms"), ("tpot", "ms"), ("queue", "ms"), ("e2e_from_schedule", "s"))
PARTS = ("mean", "p50", "p90", "p99")
ECDFS = {"ttft": "ms", "icl": "ms", "e2e": "s", "tpot": "ms"}
NUMBERS = (
    "requests", "sent", "finished", "errors", "unfinished", "error_rate", "output_tok_s", "steady_output_tok_s", "whole_output_tok_s",
    "steady_requests_s", "whole_requests_s", "steady_s", "whole_s", "output_tok_s_per_gpu", "gpu_count", "output_tokens", "reasoning_tokens",
    "content_tokens", "prompt_tokens", "prompt_tokens_mean", "chunks", "tokens_per_chunk", "queue_max_ms", "interactivity_tok_s_user",
    "spread_p99_p50", "scaling_x", "scaling_efficiency", "length_before_content", "bunched_share", "whole_answers_share",
    "power_mean_w", "tokens_per_joule", "energy_j",
    "client_lag_p50_ms", "client_lag_p99_ms", "client_lag_max_ms", "client_cpu_share", "connects_in_level", "retries", "goodput_s",
    "goodput_left_out", "offered_s", "achieved_s", "kernel_delay_p50_us", "kernel_delay_p99_us", "kernel_delay_max_us", "client_clock_steps",
    "max_tokens",
    "max_tokens_proposed", "prompt_words", "prompt_tokens_asked", "temperature", "started_at")
OTHERS = ("slos", "server", "gpus", "stamps", "endpoint_kind", "output_mode", "reasoning", "streaming", "counted_by",
          "prompt_source")  # words, switches, objects
COUNTED = {"ttft": "time to first token", "e2e": "latency", "tpot": "time per output token"}


def blank(load: str, value: float) -> dict[str, Any]:
    """A level of which nothing is known but its load ("closed": `value` requests in flight; "open": `value` requests a second).

    Raises BadInput for a load that can be nobody's.
    """
    if not 0 < value <= (CONCURRENCY_MOST if load == "closed" else RATE_MOST):
        raise BadInput(f"A level of {value:g} {'requests in flight' if load == 'closed' else 'requests a second'} cannot be")
    level: dict[str, Any] = {"load": load, "value": value, "concurrency": int(value) if load == "closed" else None}
    level |= dict.fromkeys((*NUMBERS, *OTHERS))
    for name, unit in SPREADS:
        level[f"{name}_n"] = None
        level |= dict.fromkeys(f"{name}_{part}_{unit}" for part in PARTS)
    level |= {"errors_by_kind": {}, "first_error": "", "marks": [], "window": "whole", "detail": {}, "reported": {}, "state": "done", "stopped": ""}
    if load == "open":
        level["offered_s"] = value
    return level


def put(level: dict[str, Any], name: str, told: Mapping[str, float | None], n: int | None) -> None:
    """A distribution into a level. `told`: any of mean, p50, p90, p99, and others that only `reported` keeps, in the unit of SPREADS."""
    unit = dict(SPREADS)[name]
    report(level, name, unit, told)
    known = {part: told.get(part) for part in PARTS}
    if n is not None and n < P90_NEEDS:
        known["p90"] = None
    if n is not None and n < P99_NEEDS:
        known["p99"] = None
    level |= {f"{name}_{part}_{unit}": value for part, value in known.items()}
    if any(value is not None for value in told.values()):
        level[f"{name}_n"] = n


def report(level: dict[str, Any], name: str, unit: str, told: Mapping[str, float | None]) -> None:
    """Only into `reported`: what has no field of ours, or means something else than our field of that name."""
    level["reported"] |= {f"{name}_{part}_{unit}": value for part, value in told.items() if value is not None}


def spread_of(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles of single values, as `put` takes them."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {"mean": math.fsum(ordered) / len(ordered), **{f"p{p}": percentile(ordered, p) for p in (50, 90, 95, 99)}}


def finish(level: dict[str, Any]) -> None:
    """What follows from the rest: rates per GPU, error rate, interactivity, marks. Call it last."""
    tok_s, gpus = level["whole_output_tok_s"], level["gpu_count"]
    finished, errors, tokens, reasoning = level["finished"], level["errors"], level["output_tokens"], level["reasoning_tokens"]
    level["output_tok_s"] = tok_s
    if tok_s is not None and gpus:
        level["output_tok_s_per_gpu"] = tok_s / gpus
    if finished is not None and errors is not None and finished + errors:
        level["error_rate"] = errors / (finished + errors)
    if level["sent"] is None and finished is not None and errors is not None:
        level["sent"] = finished + errors + (level["unfinished"] or 0)
    if tokens is not None and reasoning is not None:
        level["content_tokens"] = max(0, tokens - reasoning)
    if tokens is not None and level["chunks"]:
        level["tokens_per_chunk"] = tokens / level["chunks"]
    if level["prompt_tokens"] is not None and finished:
        level["prompt_tokens_mean"] = level["prompt_tokens"] / finished
    if level["tpot_p50_ms"]:
        level["interactivity_tok_s_user"] = 1000 / level["tpot_p50_ms"]
    if level["e2e_p99_s"] is not None and level["e2e_p50_s"]:
        level["spread_p99_p50"] = level["e2e_p99_s"] / level["e2e_p50_s"]
    asked = level["sent"] if level["sent"] is not None else finished
    few = level["load"] == "closed" and asked is not None and asked < requests_for_full(level["concurrency"])
    if few or (level["whole_s"] is not None and level["whole_s"] < SHORT_WINDOW_S):
        level["marks"].append("short")
    if level["load"] == "closed" and asked is not None and 0 < asked < level["concurrency"]:
        level["marks"].append("never full")
    if level["error_rate"] is not None and level["error_rate"] > ERROR_RATE_LIMIT:
        level["marks"].append("errors")


# ---- single requests, where a tool kept them ----


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a tool's own record, times in seconds from any zero that all share. `times`: of its chunks, where they are known;
    `first` and `last` chunk else. A failed one has `error`."""

    start: float | None = None
    first: float | None = None
    content: float | None = None  # first chunk of the answer
    last: float | None = None
    times: tuple[float, ...] = ()
    tokens: int | None = None
    queued: float | None = None  # seconds before the start
    error: str = ""

    @property
    def ttft(self) -> float | None:
        return _span(self.start, self.first)

    @property
    def e2e(self) -> float | None:
        return _span(self.start, self.last)

    @property
    def tpot(self) -> float | None:
        span = _span(self.first, self.last)
        return span / (self.tokens - 1) if span is not None and self.tokens is not None and self.tokens > 1 else None


def _span(start: float | None, end: float | None) -> float | None:
    """Seconds between two stamps; None where one is missing, or the later one is not later."""
    return end - start if start is not None and end is not None and end >= start else None


def detail_of(requests: Sequence[Request]) -> dict[str, Any]:
    """ECDFs, tokens a second and a timeline, of all requests of a level. Only for a record that is whole: a sample would draw another curve.

    Without the time of each chunk there is no ECDF of gaps and no throughput over time.
    """
    good = [one for one in requests if not one.error]
    gaps = [after - before for one in good for before, after in pairwise(one.times)]
    values = {"ttft": [v * 1000 for one in good if (v := one.ttft) is not None], "icl": [gap * 1000 for gap in gaps],
              "e2e": [v for one in good if (v := one.e2e) is not None], "tpot": [v * 1000 for one in good if (v := one.tpot) is not None]}
    detail: dict[str, Any] = {"ecdf": {f"{name}_{unit}": ecdf(values[name]) for name, unit in ECDFS.items()}}
    starts = [one.start - (one.queued or 0.0) for one in requests if one.start is not None]
    if starts:
        zero = min(starts)
        detail["timeline"] = [_bar(one, zero) for one in sorted(requests, key=lambda one: one.start or 0.0)[:TIMELINE_MOST] if one.start is not None]
        if good and all(one.times and one.tokens is not None for one in good):
            rates, step = _seconds(good, zero)
            detail["seconds"] = {"tok_s": rates, "step_s": step, "from_s": None, "to_s": None}
    return detail


def ecdf(values: Iterable[float]) -> list[float] | None:
    """Values at 0, 1, ... 100 percent; None for no values."""
    ordered = sorted(values)
    return [value for p in range(101) if (value := percentile(ordered, p)) is not None] or None


def _bar(one: Request, zero: float) -> dict[str, Any]:
    start = one.start or 0.0
    ms = {"q": start - (one.queued or 0.0), "s": start, "f": one.first, "c": one.content, "e": one.last}
    return {**{name: None if at is None else round((at - zero) * 1000, 3) for name, at in ms.items()}, "err": one.error[:80]}


def _seconds(good: Sequence[Request], zero: float) -> tuple[list[float], int]:
    """Output tokens a second, over steps of so many seconds that `SECONDS_MOST` are enough; a request's tokens are spread over its chunks, of which
    the first is one token."""
    took = max(one.times[-1] for one in good) - zero
    step = max(1, math.ceil(took / SECONDS_MOST))
    counts = [0.0] * max(1, min(SECONDS_MOST, int(took / step) + 1))
    for one in good:
        later = ((one.tokens or 1) - 1) / (len(one.times) - 1) if len(one.times) > 1 else 0.0
        for at, time in enumerate(one.times):
            place = int((time - zero) / step)
            if 0 <= place < len(counts):
                counts[place] += later if at else 1.0
    return [round(count / step, 3) for count in counts], step


# ---- points to runs ----


@dataclass(slots=True)
class Point:
    """One measured level, as a tool stores it. Points whose `kind` is equal belong to one sweep; the same level twice is a repeat."""

    level: dict[str, Any]
    model: str = ""
    kind: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # names of ops.benchmark.presets.SweepSettings, only what is known
    label: str = ""
    started_at: float | None = None  # seconds since the epoch
    finished_at: float | None = None
    state: str = "done"
    base_url: str = ""
    practice: bool = False  # of an export of ours


def documents(points: Sequence[Point], *, tool: str, notes: Notes, raw: bytes, tool_version: str = "") -> list[dict[str, Any]]:
    """Runs in our form from a file's points, in the order in which they stand. `raw` is the file: run ids follow from it.

    Raises BadInput for no point, or more than can be one file's.
    """
    if not points:
        raise BadInput("There is no measurement in this file")
    if len(points) > RUNS_MOST:
        raise BadInput(f"This file holds {len(points):,} measurements", hint=f"At most {RUNS_MOST} can be imported at once: split it")
    sweeps: dict[str, list[list[Point]]] = {}
    for point in points:
        runs = sweeps.setdefault(json.dumps([point.model, point.kind], sort_keys=True, default=str), [])
        mark = (point.level["load"], point.level["value"])
        free = next((run for run in runs if all((one.level["load"], one.level["value"]) != mark for one in run)), None)
        if free is None:
            runs.append([point])
        else:
            free.append(point)
    digest = hashlib.sha256(raw).hexdigest()
    made: list[dict[str, Any]] = []
    for number, runs in enumerate(sweeps.values()):
        group = str(uuid.uuid5(NAMESPACE, f"{digest} group {number}")) if len(runs) > 1 else None
        for index, run in enumerate(runs):
            if len(run) > LEVELS_MOST:
                raise BadInput(f"One run of this file has {len(run)} levels", hint=f"At most {LEVELS_MOST} can be shown together")
            run_id = str(uuid.uuid5(NAMESPACE, f"{digest} run {number}.{index}"))
            made.append(_document(run, run_id, tool, tool_version, notes, group, index, len(runs)))
    return made


def _document(run: list[Point], run_id: str, tool: str, tool_version: str, notes: Notes, group: str | None, index: int,
              repeats: int) -> dict[str, Any]:
    run.sort(key=lambda point: (point.level["load"], point.level["value"]))
    levels = [point.level for point in run]
    base = next((level["output_tok_s"] for level in levels if level["load"] == "closed" and level["value"] == 1), None)
    for point in run:
        level = point.level
        level["started_at"], level["state"] = point.started_at, point.state
        if base and level["output_tok_s"] is not None and level["load"] == "closed":
            level["scaling_x"] = level["output_tok_s"] / base
            level["scaling_efficiency"] = level["scaling_x"] / level["value"]
    starts = [at for point in run if (at := point.started_at) is not None]
    ends = [at for point in run if (at := point.finished_at) is not None]
    started, ended = min(starts, default=None), max(ends, default=None)
    settings = _settings(run)
    lacking = [words for name, words in COUNTED.items() if all(level[f"{name}_p50_{dict(SPREADS)[name]}"] is None for level in levels)]
    if all(level["output_tok_s"] is None for level in levels):
        lacking.insert(0, "output throughput")
    told = notes.told() + ([f"Not reported by this file: {', '.join(lacking)}"] if lacking else [])
    spent = [seconds for level in levels if (seconds := level["whole_s"]) is not None]
    result = SweepResult(
        run_id=run_id, state="cancelled" if any(point.state == "cancelled" for point in run) else "done", reason="", preset="imported",
        model=run[0].model, base_url=run[0].base_url, practice=any(point.practice for point in run),
        short=any("short" in level["marks"] for level in levels),
        started_at=started or 0.0, finished_at=ended or 0.0, duration_s=sum(spent), levels=levels, settings=settings, endpoint={},
        warnings=told, origin="imported", tool=tool, tool_version=tool_version, sweep_key=_sweep_key(settings), group=group, group_index=index,
        repeats=repeats, label=run[0].label)
    return result.as_dict() | {"started_at": started, "finished_at": ended, "duration_s": sum(spent) if spent else None}


def _settings(run: list[Point]) -> dict[str, Any]:
    """What all points say alike, with the levels as our own settings name them."""
    first = run[0].settings
    settings = {name: value for name, value in first.items() if value is not None and all(point.settings.get(name) == value for point in run)}
    loads = {point.level["load"] for point in run}
    settings |= {"preset": "imported", "model": run[0].model, "load": loads.pop() if len(loads) == 1 else "mixed",
                 "concurrencies": [int(point.level["value"]) for point in run if point.level["load"] == "closed"],
                 "rates": [point.level["value"] for point in run if point.level["load"] == "open"]}
    requests = [point.level["requests"] for point in run]
    if None not in requests:
        settings["requests"] = requests
    return settings


def _sweep_key(settings: dict[str, Any]) -> str:
    from ops.benchmark.comparing import keys

    return keys.sweep_key(settings)
