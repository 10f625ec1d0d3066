"""guidellm's report (`benchmarks.json`): versions 2 (`config`) and 1 (`args`), and reports that name no version.

`inter_token_latency_ms` is our TPOT; `time_per_output_token_ms` has the first token in it and is only kept in `reported`. Every distribution
comes for successful, errored and incomplete requests and for all together: only the successful ones are read. Times per token are weighed by each
request's tokens, and their `count` is one of tokens: a P99 of 40 requests is none, however many tokens they had. The stored requests may be a
sample (`sample_size`), so percentiles never come from them, and curves only where all are there. First and last token times only: no gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ops.benchmark.formats.levels import Point, Request, blank, detail_of, documents, finish, put, report
from ops.benchmark.formats.source import Content, Fields, Notes, clean, number, server_address, whole
from ops.jobs.errors import BadInput

TOOL = "guidellm"
PERCENTILES = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}
BODY_BYTES = 1_000_000
RATES = ("constant", "poisson", "async", "rate")


def fits(value: dict[str, Any]) -> bool:
    benchmarks, about = value.get("benchmarks"), value.get("metadata")
    if not isinstance(benchmarks, list):
        return False
    if isinstance(about, dict) and "guidellm_version" in about:
        return True
    first = benchmarks[0] if benchmarks and isinstance(benchmarks[0], dict) else {}
    return isinstance(first.get("metrics"), dict) and "type_" in first


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """Runs of the report: its benchmarks are the levels. Raises BadInput for a report without one, or one whose load is not told."""
    notes = Notes()
    made: list[dict[str, Any]] = []
    for at, value in enumerate(one for one in content.objects if fits(one)):
        report_ = Fields(value, notes)
        about = report_.inner("metadata")
        asked = report_.inner("config") if "config" in report_ else report_.inner("args")
        rates = _list(asked.raw.get("rate"))
        benchmarks = list(report_.objects("benchmarks"))
        if not benchmarks:
            raise BadInput("This guidellm report has no benchmark", why="Its `benchmarks` are empty: the run ended before one was finished")
        points = [_point(one, asked, rates[index] if index < len(rates) else None) for index, one in enumerate(benchmarks)]
        made += documents(points, tool=TOOL, tool_version=about.text("guidellm_version", 80), notes=notes, raw=raw if at == 0 else raw + b"%d" % at)
    return made


def _point(told: Fields, asked: Fields, rate: Any) -> Point:
    config, metrics = told.inner("config"), told.inner("metrics")
    level = blank(*_load(told, config, asked, rate))
    totals = next((one for one in (metrics.inner("request_totals"), told.inner("scheduler_metrics").inner("requests_made"),
                                   told.inner("run_stats").inner("requests_made")) if one.raw), Fields({}, told.notes))
    finished = totals.count("successful")
    if finished is None:
        finished = whole(_successful(metrics, "request_latency").raw.get("count"))
    level |= {"finished": finished, "errors": totals.count("errored"), "unfinished": totals.count("incomplete"), "sent": totals.count("total"),
              "requests": totals.count("total"), "whole_s": _duration(told), "whole_output_tok_s": _mean(metrics, "output_tokens_per_second"),
              "whole_requests_s": _mean(metrics, "requests_per_second"), "goodput_s": _goodput(metrics), "streaming": True}
    for ours, theirs in (("output_tokens", "output_token_count"), ("prompt_tokens", "prompt_token_count")):
        level[ours] = _total(metrics, theirs)
    for name, theirs in (("ttft", "time_to_first_token_ms"), ("ttfc", "time_to_first_output_token_ms"), ("tpot", "inter_token_latency_ms"),
                         ("e2e", "request_latency")):
        found = _successful(metrics, theirs)
        counts = [count for count in (found.count("count"), level["finished"]) if count is not None]
        put(level, name, _spread(found), min(counts, default=None))
    report(level, "time_per_output_token", "ms", _spread(_successful(metrics, "time_per_output_token_ms")))
    mean_in_flight = _mean(metrics, "request_concurrency")
    if mean_in_flight is not None:
        level["reported"]["mean_in_flight"] = mean_in_flight
    if level["load"] == "open":
        level["achieved_s"] = level["whole_requests_s"]
    if level["errors"]:
        level["errors_by_kind"] = {"not reported": level["errors"]}
    limits = _slos(config)
    if limits:
        level["slos"] = limits
    _requests(told, level)
    backend = _backend(config, asked)
    level["endpoint_kind"] = _endpoint(backend, config, asked)
    finish(level)
    started, ended = _times(told)
    model = clean(backend.get("model"), 300) or asked.text("model", 300)
    data = _data(asked)
    level |= _body(told)
    settings = {"endpoint_kind": level["endpoint_kind"], "slos": limits or None, "dataset": data or None, "max_tokens": level["max_tokens"],
                "output_mode": level["output_mode"], "temperature": level["temperature"]}
    labels = asked.inner("labels") if "labels" in asked else asked.inner("metadata").inner("labels")
    label = ", ".join(f"{clean(name, 30)}={clean(value, 40)}" for name, value in list(labels.raw.items())[:6] if isinstance(value, str))[:120]
    return Point(level, model=model, kind={"data": data}, settings=settings, label=label, started_at=started, finished_at=ended,
                 base_url=server_address(backend.get("target") or asked.raw.get("target")))


def _load(told: Fields, config: Fields, asked: Fields, rate: Any) -> tuple[str, float]:
    """From the strategy; its name and its fields changed places over the versions."""
    strategy = next((one for one in (config.raw.get("strategy"), told.inner("args").raw.get("strategy"), told.inner("scheduler").raw.get("strategy"))
                     if one is not None), None)
    facts: Mapping[str, Any] = strategy if isinstance(strategy, dict) else {}
    profile = config.raw.get("profile") if config.raw.get("profile") is not None else asked.raw.get("profile")
    kind = _word(facts.get("type_")) or _word(facts.get("kind")) or _word(strategy) or _word(profile)
    if isinstance(profile, dict):
        kind = kind or _word(profile.get("kind")) or _word(profile.get("type_"))
    asked_rate = number(facts.get("rate")) or number(rate)
    if kind == "synchronous":
        return "closed", 1.0
    if kind in ("concurrent", "throughput"):
        names = ("streams", "max_concurrency") if kind == "concurrent" else ("max_concurrency", "streams")
        value = next((found for name in names if (found := whole(facts.get(name)))), None)
        value = value or (int(asked_rate) if kind == "concurrent" and asked_rate and asked_rate == int(asked_rate) else None)
        if value is None and kind == "throughput":
            raise BadInput("A benchmark of this report has no limit of requests in flight (`throughput` without `max_concurrency`)",
                           why="All requests were sent at once, so it is no level")
        if value:
            return "closed", float(value)
    if kind in RATES and asked_rate:
        if kind == "constant":
            told.notes.add("Arrivals were evenly spaced (`constant`), no Poisson process")
        return "open", asked_rate
    raise BadInput("A benchmark of this report tells neither its concurrency nor its rate", why=f"Its strategy is `{clean(kind, 40) or 'not told'}`")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _successful(metrics: Fields, name: str) -> Fields:
    """The distribution of the successful requests. One without a sample is empty: its zeros are no measurement."""
    found = metrics.inner(name).inner("successful") if name in metrics else Fields({}, metrics.notes)
    return Fields({}, metrics.notes) if whole(found.raw.get("count")) == 0 else found


def _spread(found: Fields) -> dict[str, float | None]:
    percentiles = found.inner("percentiles")
    told: dict[str, float | None] = {ours: percentiles.measured(theirs) for theirs, ours in PERCENTILES.items() if theirs in percentiles}
    told |= {name: value for name, value in (("mean", found.measured("mean")), ("std", found.number("std_dev"))) if value is not None}
    if told.get("p50") is None and (median := found.measured("median")) is not None:
        told["p50"] = median
    return told


def _mean(metrics: Fields, name: str) -> float | None:
    return _successful(metrics, name).number("mean")


def _total(metrics: Fields, name: str) -> int | None:
    found = _successful(metrics, name).number("total_sum")
    return None if found is None else round(found)


def _goodput(metrics: Fields) -> float | None:
    """A number, or a distribution by status."""
    if isinstance(metrics.raw.get("request_goodput"), dict):
        return _mean(metrics, "request_goodput")
    return metrics.number("request_goodput")


def _slos(config: Fields) -> dict[str, float]:
    """SLOs in our names, where the report tells them as numbers."""
    found: dict[str, float] = {}
    slo = config.raw.get("slo")
    for theirs, ours, scale in (("ttft_ms", "ttft_ms", 1.0), ("tpot_ms", "tpot_ms", 1.0), ("e2el_ms", "e2e_s", 0.001)):
        value = number(slo.get(theirs)) if isinstance(slo, dict) else None
        if value is not None and value > 0:
            found[ours] = value * scale
    return found


def _times(told: Fields) -> tuple[float | None, float | None]:
    """Wall-clock start and end of the benchmark, in seconds since the epoch."""
    stats = told.inner("run_stats")
    start, end = told.measured("start_time") or stats.measured("start_time"), told.measured("end_time") or stats.measured("end_time")
    return (start if start and start > 1e9 else None), (end if end and end > 1e9 else None)  # older mock reports have times of day zero


def _duration(told: Fields) -> float | None:
    """Of the measured part: the scheduler's, else the benchmark's own."""
    scheduler = told.inner("scheduler_metrics")
    start, end = scheduler.number("measure_start_time"), scheduler.number("measure_end_time")
    if start is not None and end is not None and end > start:
        return end - start
    duration = told.measured("duration")
    start, end = _times(told)
    return duration or (end - start if start and end and end > start else None)


def _requests(told: Fields, level: dict[str, Any]) -> None:
    """Curves and a timeline, only where every finished request is stored."""
    stored = told.inner("requests")
    good = [_request(one) for one in stored.objects("successful")] if isinstance(stored.raw.get("successful"), list) else []
    if not good:
        return
    if len(good) != level["finished"]:
        told.notes.add(f"Of {level['finished'] or 'an unknown number of'} requests {len(good)} are stored: a sample, so no curves are drawn from it")
        return
    bad = [Request(start=one.start, error="errored") for one in map(_request, stored.objects("errored"))] if stored.list("errored") else []
    level["detail"] = detail_of([*good, *bad])


def _request(one: Fields) -> Request:
    timings = one.inner("info").inner("timings")
    old = not timings.raw
    start = one.number("start_time") if old else timings.number("request_start")
    first = one.number("first_token_time") if old else timings.number("first_token_iteration") or timings.number("first_iteration")
    last = one.number("last_token_time") if old else timings.number("last_token_iteration") or timings.number("last_iteration")
    content = None if old else timings.number("first_output_token_iteration")
    return Request(start=start, first=first, content=content, last=last, tokens=one.count("output_tokens"))


def _backend(config: Fields, asked: Fields) -> Mapping[str, Any]:
    for found in (config.raw.get("backend"), asked.raw.get("backend"), asked.raw.get("backend_kwargs"), asked.inner("spec").raw.get("backend")
                  if isinstance(asked.raw.get("spec"), dict) else None):
        if isinstance(found, dict):
            return found
    return {}


def _endpoint(backend: Mapping[str, Any], config: Fields, asked: Fields) -> str | None:
    kinds = (backend.get("request_format"), backend.get("request_type"), asked.raw.get("request_type"), config.raw.get("request_type"))
    word = next((one for one in kinds if isinstance(one, str) and one), "")
    return "chat" if "chat" in word else "completions" if "completions" in word else None


def _data(asked: Fields) -> str:
    """What the prompts were made of: a description of synthetic ones, or a file's name."""
    inner = asked.raw.get("spec")
    found = asked.raw.get("data") if asked.raw.get("data") is not None else inner.get("data") if isinstance(inner, dict) else None
    first = found[0] if isinstance(found, list) and found else found
    if isinstance(first, dict):
        facts = {name: one for name, one in first.items() if isinstance(one, str | int | float) and not isinstance(one, bool)}
        return clean(", ".join(f"{name}={str(one).rsplit('/', 1)[-1]}" for name, one in facts.items()), 200)
    return clean(first, 200)


def _body(told: Fields) -> dict[str, Any]:
    """What the first stored request asked for, which the report has as JSON in a text: the length, whether it was fixed, the temperature."""
    stored = told.inner("requests").raw.get("successful")
    first = stored[0] if isinstance(stored, list) and stored else None
    text = first.get("request_args") if isinstance(first, dict) else None
    try:
        body = json.loads(text).get("body") if isinstance(text, str) and len(text) < BODY_BYTES else None
    except (ValueError, AttributeError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    most = whole(body.get("max_completion_tokens")) or whole(body.get("max_tokens"))
    made: dict[str, Any] = {"max_tokens": most} if most else {}
    if most and isinstance(body.get("ignore_eos"), bool):
        made["output_mode"] = "fixed" if body["ignore_eos"] else "natural"
    if (temperature := number(body.get("temperature"))) is not None and temperature >= 0:
        made["temperature"] = temperature
    return made
