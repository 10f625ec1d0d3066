"""aiperf: `profile_export_aiperf.json` (each metric has its unit), with `profile_export.jsonl` beside it (a request a line) for curves.

`inter_token_latency` is our TPOT, gaps are `inter_chunk_latency`. Lines of another phase than `profiling` are warm-up. Derived metrics have only
an `avg`. A cancelled run is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from ops.benchmark.formats.levels import Point, Request, blank, detail_of, documents, finish, put, report, spread_of
from ops.benchmark.formats.source import Content, Fields, Notes, clean, content_of, nanoseconds, number, server_address, whole
from ops.jobs.errors import BadInput

TOOL = "aiperf"
PARTS = {"avg": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "std": "std"}
SECONDS = {"ns": 1e-9, "nanoseconds": 1e-9, "us": 1e-6, "microseconds": 1e-6, "ms": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
LINES = "profile_export.jsonl"


def fits(value: dict[str, Any]) -> bool:
    """The aggregate file."""
    inner = value.get("metrics")
    metrics = inner if isinstance(inner, dict) else value
    latency = metrics.get("request_latency")
    return "aiperf_version" in value or (isinstance(latency, dict) and "unit" in latency and "request_throughput" in metrics)


def fits_line(value: dict[str, Any]) -> bool:
    """One request of the `.jsonl` file."""
    about, metrics = value.get("metadata"), value.get("metrics")
    return isinstance(about, dict) and isinstance(metrics, dict) and "request_start_ns" in about


def read(content: Content, raw: bytes, beside: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The run of the aggregate file, with curves where its `.jsonl` file is given beside it. Raises BadInput if its load is not told."""
    notes = Notes()
    lines = next((found for name, found in beside.items() if name.rsplit("/", 1)[-1].endswith(".jsonl") and b"request_start_ns" in found), None)
    requests = None
    if lines is not None:
        told = content_of(LINES, lines)
        told.note(notes)
        requests = _requests(told.objects, notes)
    points, version = [], ""
    for value in content.objects:
        if fits(value):
            version = version or clean(value.get("aiperf_version"), 80)
            points.append(_point(value, notes, requests))
    return documents(points, tool=TOOL, tool_version=version, notes=notes, raw=raw)


def read_lines(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """A `.jsonl` file alone: every number follows from its requests; the level is the most that were in flight at once."""
    notes = Notes()
    content.note(notes)
    requests = _requests(content.objects, notes)
    good = [one for one in requests if not one.error]
    if not good:
        raise BadInput("No request of this file was measured well", why="All are of the warm-up, or failed",
                       hint="profile_export_aiperf.json has the summary")
    level = blank("closed", float(_most_in_flight(good)))
    notes.add("The concurrency is the most requests that were in flight at once: `profile_export_aiperf.json` would tell what was asked for")
    began = min((one.start for one in requests if one.start is not None), default=None)
    ended = max((one.last for one in good if one.last is not None), default=None)
    tokens = [one.tokens for one in good]
    took = ended - began if began is not None and ended is not None and ended > began else None
    level |= {"finished": len(good), "errors": len(requests) - len(good), "unfinished": 0, "whole_s": took, "streaming": True,
              "output_tokens": sum(one for one in tokens if one is not None) if None not in tokens else None}
    if level["whole_s"]:
        level["whole_requests_s"] = len(good) / level["whole_s"]
        level["whole_output_tok_s"] = level["output_tokens"] / level["whole_s"] if level["output_tokens"] is not None else None
    for name, values in (("ttft", [one.ttft for one in good]), ("e2e", [one.e2e for one in good]), ("tpot", [one.tpot for one in good])):
        known = [value * (1 if name == "e2e" else 1000) for value in values if value is not None]
        put(level, name, spread_of(known), len(known))
    contents = [(one.content - one.start) * 1000 for one in good if one.content is not None and one.start is not None]
    put(level, "ttfc", spread_of(contents), len(contents))
    _gaps(level, good)
    _failed(level, requests)
    level["detail"] = detail_of(requests)
    finish(level)
    return documents([Point(level, started_at=began, finished_at=ended)], tool=TOOL, notes=notes, raw=raw)


def _point(value: dict[str, Any], notes: Notes, requests: list[Request] | None) -> Point:
    told = Fields(value, notes)
    metrics = told.inner("metrics") if isinstance(value.get("metrics"), dict) else told
    asked = told.inner("input_config")
    level = blank(*_load(asked, told))
    finished = _count(metrics, "request_count")
    failed = _count(metrics, "error_request_count")
    summary = list(told.objects("error_summary"))
    if failed is None and summary:
        failed = sum(one.count("count") or 0 for one in summary)
    if failed is None and "error_summary" in told:
        failed = 0
    level |= {
        "finished": finished, "errors": failed, "unfinished": 0 if failed is not None else None,
        "requests": finished + failed if finished is not None and failed is not None else None,
        "whole_s": _seconds(metrics, "benchmark_duration"), "whole_output_tok_s": _average(metrics, "output_token_throughput"),
        "whole_requests_s": _average(metrics, "request_throughput"), "goodput_s": _average(metrics, "goodput"),
        "output_tokens": _count(metrics, "total_osl") or _count(metrics, "total_output_tokens"), "prompt_tokens": _count(metrics, "total_isl"),
        "reasoning_tokens": _count(metrics, "total_reasoning_tokens") or _sum(metrics, "reasoning_token_count"),
    }
    if level["output_tokens"] is None:
        level["output_tokens"] = _sum(metrics, "output_sequence_length")
    if level["prompt_tokens"] is None:
        level["prompt_tokens"] = _sum(metrics, "input_sequence_length")
    for name, theirs, scale in (("ttft", "time_to_first_token", 1000.0), ("ttfc", "time_to_first_output_token", 1000.0),
                                ("e2e", "request_latency", 1.0), ("tpot", "inter_token_latency", 1000.0), ("icl", "inter_chunk_latency", 1000.0)):
        found = metrics.inner(theirs)
        put(level, name, _spread(found, scale), found.count("count") if "count" in found else None if name == "icl" else finished)
    report(level, "time_to_second_token", "ms", _spread(metrics.inner("time_to_second_token"), 1000.0))
    if level["load"] == "open":
        level["achieved_s"] = level["whole_requests_s"]
    if summary and failed:
        for one in summary[:20]:
            about = one.inner("error_details")
            kind = " ".join(part for part in (str(about.count("code") or ""), about.text("type", 80)) if part) or "not reported"
            level["errors_by_kind"][kind] = level["errors_by_kind"].get(kind, 0) + (one.count("count") or 0)
        level["first_error"] = summary[0].inner("error_details").text("message", 300)
    if requests is not None:
        good = [one for one in requests if not one.error]
        if finished is None or len(good) == finished:
            level["detail"] = detail_of(requests)
        else:
            notes.add(f"`{LINES}` holds {len(good)} good requests, the summary says {finished}: no curves are drawn from it")
    endpoint = asked.inner("endpoint")
    kind = endpoint.text("type", 40)
    level["endpoint_kind"] = {"chat": "chat", "completions": "completions"}.get(kind, kind) or None
    level["streaming"] = endpoint.raw.get("streaming") if isinstance(endpoint.raw.get("streaming"), bool) else None
    finish(level)
    if endpoint.raw.get("use_server_token_count") is True:
        level["counted_by"] = "usage"
    level["slos"] = _slos(asked.inner("slos")) or None
    settings = {"endpoint_kind": level["endpoint_kind"], "slos": level["slos"]}
    address = _first(endpoint.raw.get("urls") or endpoint.raw.get("url"))
    started = _time(told, "start_time")
    return Point(level, model=_model(asked, told), base_url=server_address(address), settings=settings,
                 kind={"endpoint": level["endpoint_kind"], "streaming": level["streaming"]},
                 started_at=started, finished_at=_time(told, "end_time"), state="cancelled" if value.get("was_cancelled") is True else "done")


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _model(asked: Fields, told: Fields) -> str:
    """Its name: of the list of models, the endpoint's settings, or beside all others, as versions have it."""
    models = asked.raw.get("models")
    items = models.get("items") if isinstance(models, dict) else models
    first = _first(items)
    names = (first.get("name") if isinstance(first, dict) else first, _first(asked.inner("endpoint").raw.get("model_names")), told.raw.get("model"))
    return next((name for one in names if (name := clean(one, 300))), "")


def _slos(told: Fields) -> dict[str, float]:
    """In our names; the tool's are in ms. Others than these three are not ours: then goodput is of more than can be shown."""
    names = {"time_to_first_token": ("ttft_ms", 1.0), "inter_token_latency": ("tpot_ms", 1.0), "request_latency": ("e2e_s", 0.001)}
    found = {}
    for name, value in told.raw.items():
        limit = number(value)
        if name in names and limit is not None and limit > 0:
            found[names[name][0]] = limit * names[name][1]
        else:
            told.notes.add(f"Goodput also counts the limit `{clean(name, 60)}`, which has no name here")
    return found


def _load(asked: Fields, told: Fields) -> tuple[str, float]:
    """Concurrency or rate of the profiling phase; in earlier versions of the load generator's settings, or beside all others."""
    phases = list(asked.objects("phases")) if isinstance(asked.raw.get("phases"), list) else []
    places = [*(one for one in phases if "profiling" in (one.text("kind", 60), one.text("name", 60))), asked.inner("loadgen"),
              asked.inner("load_generator"), asked, told]
    for one in places:
        rate = one.number("request_rate") or one.number("rate")
        if rate:
            mode = one.text("request_rate_mode", 40) or one.text("arrival_pattern", 40)
            if mode and mode != "poisson":
                told.notes.add(f"Arrivals were `{mode}`, no Poisson process")
            return "open", rate
        concurrency = one.count("concurrency")
        if concurrency:
            return "closed", float(concurrency)
    raise BadInput("This aiperf file tells neither its concurrency nor its request rate", why="Without one of them it is no level",
                   hint="Its `input_config` has them: give the file as aiperf wrote it")


def _scale(found: Fields) -> float | None:
    """Seconds of one unit; None where the unit is no time that is known."""
    unit = found.text("unit", 40).lower()
    scale = SECONDS.get(unit)
    if scale is None and found.raw:
        found.notes.add(f"`{found.where}` has the unit `{unit or 'not told'}`, which is no time that is known here: not imported")
    return scale


def _spread(found: Fields, scale: float) -> dict[str, float | None]:
    seconds = _scale(found)
    if seconds is None:
        return {}
    told: dict[str, float | None] = {}
    for theirs, ours in PARTS.items():
        value = found.number(theirs) if theirs == "std" else found.measured(theirs)
        if value is not None:
            told[ours] = value * seconds * scale
    return told


def _seconds(metrics: Fields, name: str) -> float | None:
    found = metrics.inner(name)
    seconds, value = (_scale(found), found.measured("avg")) if found.raw else (None, None)
    return value * seconds if value is not None and seconds is not None else None


def _average(metrics: Fields, name: str) -> float | None:
    return metrics.inner(name).number("avg")


def _count(metrics: Fields, name: str) -> int | None:
    value = _average(metrics, name)
    return None if value is None else round(value)


def _sum(metrics: Fields, name: str) -> int | None:
    """`sum`, or the average times the count in versions without one."""
    found = metrics.inner(name)
    total = found.number("sum")
    average, count = found.number("avg"), found.count("count")
    if total is None and average is not None and count is not None:
        total = average * count
    return None if total is None else round(total)


def _time(told: Fields, name: str) -> float | None:
    text = told.text(name, 60)
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        told.strange(name, "a time")
        return None
    if at.tzinfo is None:
        told.notes.add("The file's times name no zone: read as UTC")
        at = at.replace(tzinfo=UTC)
    return at.timestamp()


def _requests(lines: Iterable[dict[str, Any]], notes: Notes) -> list[Request]:
    """Requests of the profiling phase, times in seconds since the epoch."""
    made, others = [], 0
    for at, line in enumerate(lines):
        one = Fields(line, notes, f"line {at + 1}")
        about, metrics = one.inner("metadata"), one.inner("metrics")
        if (about.text("phase_kind", 40) or about.text("benchmark_phase", 40)) not in ("profiling", ""):  # a phase may have a name of its own
            others += 1
            continue
        start = nanoseconds(about.raw.get("request_start_ns"))
        if start is None or one.raw.get("error") is not None or about.raw.get("was_cancelled") is True:
            error = one.raw.get("error")
            words = clean(error.get("message") or error.get("type"), 300) if isinstance(error, dict) else clean(error, 300)
            made.append(Request(start=start, error=words or ("cancelled" if about.raw.get("was_cancelled") is True else "not reported")))
            continue
        ttft, latency = _value(metrics, "time_to_first_token"), _value(metrics, "request_latency")
        content = _value(metrics, "time_to_first_output_token")
        gaps = metrics.inner("inter_chunk_latency")
        scale = _scale(gaps) if gaps.raw else None
        told = [gap * scale for one_gap in gaps.list("value") or () if (gap := number(one_gap)) is not None and gap >= 0] if scale else []
        times = tuple(accumulate(told, initial=start + ttft)) if ttft is not None and told else ()
        issued = nanoseconds(about.raw.get("credit_issued_ns"))
        made.append(Request(start=start, first=None if ttft is None else start + ttft, content=None if content is None else start + content,
                            last=None if latency is None else start + latency, times=times,
                            tokens=whole(metrics.inner("output_sequence_length").raw.get("value")),
                            queued=start - issued if issued is not None and issued <= start else None))
    if others:
        notes.add(f"{others} requests of the warm-up are left out")
    return made


def _value(metrics: Fields, name: str) -> float | None:
    """Seconds."""
    found = metrics.inner(name)
    scale, value = (_scale(found), found.measured("value")) if found.raw else (None, None)
    return value * scale if value is not None and scale is not None else None


def _gaps(level: dict[str, Any], good: list[Request]) -> None:
    gaps = [(after - before) * 1000 for one in good for before, after in zip(one.times, one.times[1:], strict=False)]
    if gaps:
        put(level, "icl", spread_of(gaps), len(gaps))
        level["chunks"] = sum(len(one.times) for one in good)


def _failed(level: dict[str, Any], requests: list[Request]) -> None:
    for one in requests:
        if one.error:
            level["first_error"] = level["first_error"] or one.error
            kind = one.error[:80]
            if kind in level["errors_by_kind"] or len(level["errors_by_kind"]) < 20:
                level["errors_by_kind"][kind] = level["errors_by_kind"].get(kind, 0) + 1


def _most_in_flight(good: Iterable[Request]) -> int:
    steps = [(at, step) for one in good for at, step in ((one.start, 1), (one.last, -1)) if at is not None]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most or 1
