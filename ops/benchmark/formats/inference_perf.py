"""inference-perf: `stage_N_lifecycle_metrics.json`, a file a level. Seconds; `median` instead of `p50`.

Its first token is the first of `content`: a reasoning model's is our TTFC, and there is no TTFT. Tokens of one chunk give gaps of zero, so its
`inter_token_latency` is no gap between chunks: only in `reported`. `summary_lifecycle_metrics.json` mixes the stages and is no level unless the
run had one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ops.benchmark.formats.levels import Point, blank, documents, finish, put, report
from ops.benchmark.formats.source import Content, Fields, Notes, content_of
from ops.jobs.errors import BadInput

TOOL = "inference-perf"
STAGE = re.compile(r"stage_(\d{1,4})_lifecycle_metrics\.json\Z")
_PERCENTILE = re.compile(r"p\d{1,2}(?:\.\d{1,3})?\Z")


def fits(value: dict[str, Any]) -> bool:
    return isinstance(value.get("successes"), dict) and isinstance(value.get("load_summary"), dict)


def fits_requests(content: Content) -> bool:
    """`per_request_lifecycle_metrics.json`: single requests, without their load."""
    first = next(iter(content.objects), {})
    return "start_time" in first and "end_time" in first and isinstance(first.get("info"), dict)


def read(name: str, content: Content, raw: bytes, beside: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """A stage as a run of one level; with its other stages beside it, all of them as the levels of one run. Raises BadInput for a summary that
    mixes several stages and has none of them beside it."""
    notes = Notes()
    stages = {other: found for other, found in beside.items() if STAGE.search(other) and other != name}
    own = [one for one in content.objects if fits(one)]
    points: list[Point] = []
    is_summary = "summary_lifecycle_metrics" in name
    if not (is_summary and stages):
        points += [_point(one, notes, is_summary) for one in own]
    whole_raw = raw
    for other in sorted(stages, key=_stage_number):
        told = content_of(other, stages[other])
        points += [_point(one, notes, False) for one in told.objects if fits(one)]
        whole_raw += stages[other]
    return documents(points, tool=TOOL, notes=notes, raw=whole_raw)


def _stage_number(name: str) -> int:
    found = STAGE.search(name)
    return int(found[1]) if found else 0


def _point(value: dict[str, Any], notes: Notes, is_summary: bool) -> Point:
    told = Fields(value, notes)
    load, good, bad = told.inner("load_summary"), told.inner("successes"), told.inner("failures")
    concurrency, rate = load.count("concurrency"), load.number("requested_rate")
    if not concurrency and not rate:
        if is_summary:
            raise BadInput("This summary mixes all stages of the run", why="It tells neither a concurrency nor a rate",
                           hint="Give the files stage_0_lifecycle_metrics.json, stage_1_..., together")
        raise BadInput("This stage tells neither its concurrency nor its rate", why="`load_summary` has no `concurrency` and no `requested_rate`",
                       hint="Add the one that was used to the file")
    level = blank("closed", float(concurrency)) if concurrency else blank("open", rate or 0.0)
    finished, failed = good.count("count"), bad.count("count")
    latency, throughput = good.inner("latency"), good.inner("throughput")
    goodput = (good if "goodput_metrics" in good else told).inner("goodput_metrics")
    level |= {
        "finished": finished, "errors": failed, "unfinished": 0 if failed is not None else None, "requests": load.count("count"),
        "sent": load.count("count"), "whole_s": told.measured("benchmark_time_seconds"),
        "whole_output_tok_s": throughput.number("output_tokens_per_sec"), "whole_requests_s": throughput.number("requests_per_sec"),
        "goodput_s": goodput.number("request_goodput"), "output_tokens": _total(good, "output_tokens", "output_len", finished),
        "prompt_tokens": _total(good, "prompt_tokens", "prompt_len", finished),
    }
    if level["load"] == "open":
        level["achieved_s"] = load.number("achieved_rate")
    # requests have more than one token time where responses were streamed
    put(level, "ttfc", _spread(latency.inner("time_to_first_token"), 1000.0), finished)
    put(level, "tpot", _spread(latency.inner("time_per_output_token"), 1000.0), finished)
    put(level, "e2e", _spread(latency.inner("request_latency"), 1.0), finished)
    report(level, "inter_token_latency", "ms", _spread(latency.inner("inter_token_latency"), 1000.0))
    delay = load.inner("schedule_delay")
    put(level, "queue", _delay(delay), load.count("count"))
    level["streaming"] = True if level["ttfc_p50_ms"] is not None else None
    for label, found in list(bad.inner("by_label").raw.items())[:20]:
        one = Fields(found, notes, "failures.by_label")
        level["errors_by_kind"][label[:80]] = one.count("count") or 0
        if not level["first_error"]:
            level["first_error"] = next((text for message in one.objects("messages") if (text := message.text("message", 300))), "")
    if failed and not level["errors_by_kind"]:
        level["errors_by_kind"] = {"not reported": failed}
    notes.add("Time to first token is not reported: this tool's first token is the first of the answer, shown as time to first answer. For a model "
              "that reasons, its time per output token spreads the answer's time over all tokens, and is too small")
    finish(level)
    return Point(level)


def _spread(found: Fields, scale: float) -> dict[str, float | None]:
    told: dict[str, float | None] = {}
    for name in found.raw:
        ours = {"mean": "mean", "median": "p50"}.get(name) or (name if _PERCENTILE.match(name) else None)
        if ours and (value := found.measured(name, scale=scale)) is not None:
            told[ours] = value
    return told


def _delay(found: Fields) -> dict[str, float | None]:
    """Schedule delays may be negative by a clock's grain: the request went out just before its time, so it waited for nothing."""
    told: dict[str, float | None] = {}
    for name, value in found.raw.items():
        ours = {"mean": "mean", "median": "p50"}.get(name) or (name if _PERCENTILE.match(name) else None)
        if ours and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9:
            told[ours] = max(0.0, value * 1000)
    return told


def _total(good: Fields, name: str, length: str, finished: int | None) -> int | None:
    """A sum of tokens: told as one, or the mean length times the requests."""
    total = good.inner(name).number("total") if isinstance(good.raw.get(name), dict) else None
    if total is None:
        mean = good.inner(length).number("mean")
        total = mean * finished if mean is not None and finished is not None else None
    return None if total is None else round(total)
