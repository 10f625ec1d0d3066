"""`vllm bench serve --save-result` (and `--append-result`: objects one a line, `--save-detailed`: lists of single requests).

Seconds in lists, `*_ms` in summaries; throughput is over the whole run. On a chat endpoint the role-only event counts as the first token: the
gap after it is near zero and no gap at all, so gaps come from `itls` without a first one below 1 ms, and the tool's own `*_itl_ms` stay in
`reported`. Keys of `--metadata` lie beside all others, and so do those that `vllm bench sweep` adds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from ops.benchmark.formats.levels import Point, Request, blank, detail_of, documents, finish, put, report, spread_of
from ops.benchmark.formats.source import Content, Fields, Notes, clean, number, whole
from ops.jobs.errors import BadInput

TOOL = "vllm bench serve"
ROLE_GAP_S = 0.001  # a first gap below it is the role-only event's
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "latencies", "queue_times", "generated_texts", "errors", "start_timestamps",
         "concurrent_requests_per_s", "output_tokens_per_s", "rps_change_events", "spec_decode_per_position_acceptance_rates")
OUR_KEYS = frozenset({  # what exports.to_vllm_bench adds
    "measured_by", "run_id", "steady_output_throughput", "steady_request_goodput", "gpu_count", "max_tokens", "output_mode", "practice"})
KNOWN = frozenset({
    *LISTS, "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness",
    "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "request_goodput:", "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
    "run_number", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "use_beam_search", "best_of", "server_load"})
_SUMMARY = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d{1,3})?)_([a-z0-9_]{1,40})_ms\Z")
_DERIVED = re.compile(r"(spec_decode|diffusion|probe|audio|total_audio)_")
GPU_KEYS = (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp"), ("data_parallel_size", "dp"))


def fits(value: dict[str, Any]) -> bool:
    """Whether an object is one result of this tool."""
    return "duration" in value and "completed" in value and "request_throughput" in value and ("backend" in value or "endpoint_type" in value)


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """Runs of the file. Raises BadInput for results that are no text generation or have no level."""
    notes = Notes()
    content.note(notes)
    points = [point(one, notes) for one in content.objects if fits(one)]
    return documents(points, tool=TOOL, notes=notes, raw=raw)


def point(value: dict[str, Any], notes: Notes) -> Point:
    """One result object."""
    told = Fields(value, notes)
    if value.get("output_throughput") is None and value.get("total_output_tokens") is None:
        raise BadInput("This `vllm bench serve` result has no output tokens", why="It measured embeddings or another task without generated text")
    level = blank(*load_of(told))
    completed, failed = told.count("completed"), told.count("failed")
    requests = _requests(told)
    if failed is None and requests is not None:
        failed = sum(1 for one in requests if one.error)
    level |= {
        "requests": told.count("num_prompts"), "finished": completed, "errors": failed, "unfinished": 0 if failed is not None else None,
        "whole_s": told.measured("duration"), "whole_output_tok_s": told.number("output_throughput"),
        "whole_requests_s": told.number("request_throughput"), "output_tokens": told.count("total_output_tokens"),
        "prompt_tokens": told.count("total_input_tokens"), "goodput_s": told.number("request_goodput"), "gpu_count": gpu_count(told),
        "endpoint_kind": endpoint_kind(told.text("backend", 60) or told.text("endpoint_type", 60)), "streaming": True,
    }
    if level["goodput_s"] is None:  # some versions wrote the colon into the key
        level["goodput_s"] = told.number("request_goodput:")
    if level["load"] == "open":
        level["achieved_s"] = level["whole_requests_s"]
    _latencies(told, level, requests, completed)
    _errors(level, requests, failed)
    rate = told.number("spec_decode_acceptance_rate", scale=0.01)
    if rate is not None:
        level["server"] = {**dict.fromkeys(("prefix_hit_rate", "kv_use_max", "running_max", "waiting_max", "preemptions")), "spec_acceptance": rate}
    finish(level)
    started, finished = _times(told, level["whole_s"])
    extra = metadata(value)
    label = told.text("label", 120) or ", ".join(f"{name}={text}" for name, text in extra.items())[:120]
    settings = {"endpoint_kind": level["endpoint_kind"], "max_in_flight": told.count("max_concurrency") if level["load"] == "open" else None,
                "gpu_count": level["gpu_count"], "metadata": extra or None}
    return Point(level, model=told.text("model_id", 300), kind={"endpoint": level["endpoint_kind"], "load": level["load"], "extra": extra},
                 settings=settings, label=label, started_at=started, finished_at=finished,
                 practice="measured_by" in told and told.text("practice", 8) == "yes")


def load_of(told: Fields) -> tuple[str, float]:
    """("closed", requests in flight) or ("open", requests a second). `request_rate` may be the word "inf". Raises BadInput if neither is told."""
    rate, cap = told.raw.get("request_rate"), told.count("max_concurrency")
    if told.text("ramp_up_strategy", 40):
        raise BadInput("This run ramped its request rate up", why="It has no one rate, so it is no level that could be drawn or compared")
    if isinstance(rate, str) and rate.strip().lower() in ("inf", "infinity"):
        rate = None
    asked = told.number("request_rate") if rate is not None else None
    if asked:
        burstiness = told.number("burstiness")
        if burstiness is not None and burstiness != 1:
            told.notes.add(f"Arrivals were no Poisson process: burstiness {burstiness:g}")
        return "open", asked
    if cap:
        return "closed", float(cap)
    prompts = told.count("num_prompts")
    if prompts:
        told.notes.add(f"All {prompts:,} requests were sent at once, without a limit: shown as a level of {prompts:,} in flight")
        return "closed", float(prompts)
    raise BadInput("This result tells neither `max_concurrency` nor `request_rate`", why="Without one of them it is no level",
                   hint="Add the one that was used to the file")


def endpoint_kind(backend: str) -> str | None:
    """"chat" or "completions"; another backend by its name; None if it is not told."""
    if not backend:
        return None
    if backend.endswith("chat"):
        return "chat"
    return "completions" if backend in ("openai", "vllm", "openai-completions", "lmdeploy", "sglang-oai", "scalellm") else backend


def gpu_count(told: Fields) -> int | None:
    """From `--metadata`, where a person wrote it there: TP x PP x DP. None without TP and without a count."""
    for name in ("gpu_count", "num_gpus"):
        if name in told:
            return told.count(name) or None
    sizes = [next((found for name in names if (found := whole(number_of(told.raw.get(name))))), None) for names in GPU_KEYS]
    return sizes[0] * (sizes[1] or 1) * (sizes[2] or 1) if sizes[0] else None


def number_of(value: Any) -> Any:
    """A number that stands in quotes, as metadata do."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value) else value


def metadata(value: dict[str, Any]) -> dict[str, str]:
    """Keys that are not the tool's own: `--metadata`, and what a sweep varied. At most 20, as text. Those that our export adds are none."""
    found: dict[str, str] = {}
    known = KNOWN | OUR_KEYS if "measured_by" in value else KNOWN
    for name, one in value.items():
        if name in known or _SUMMARY.match(name) or _DERIVED.match(name) or one is None or isinstance(one, dict | list) or len(found) >= 20:
            continue
        found[clean(name, 60)] = clean(one, 100) if isinstance(one, str) else str(one)[:40]
    return found


def summary(told: Fields, name: str) -> dict[str, float | None]:
    """`mean_<name>_ms`, `median_...`, `p99_...` and whatever other percentiles were asked for, in ms. `p50` is the median."""
    return told.summary(_SUMMARY, name)


def _latencies(told: Fields, level: dict[str, Any], requests: list[Request] | None, completed: int | None) -> None:
    good = [one for one in requests if not one.error] if requests is not None else None
    single = {"ttft": [v for one in good or () if (v := one.ttft) is not None], "e2e": [v for one in good or () if (v := one.e2e) is not None],
              "tpot": [v for one in good or () if (v := one.tpot) is not None]}
    if good is not None and completed is not None and len(good) != completed:
        told.notes.add(f"The lists hold {len(good):,} good requests, the summary says {completed:,}: single requests are not used")
        requests = good = None
        single = {name: [] for name in single}
    if not single["e2e"]:
        single["e2e"] = _left_latencies(told, completed)
    for name, theirs, scale in (("ttft", "ttft", 1.0), ("tpot", "tpot", 1.0), ("e2e", "e2el", 0.001)):
        own = {part: value * scale for part, value in summary(told, theirs).items() if value is not None}
        counted = spread_of([value * 1000 * scale for value in single[name]])
        if (mean := counted.get("mean")) and own.get("mean") and abs(own["mean"] / mean - 1) > 0.01:
            told.notes.add(f"`mean_{theirs}_ms` and the single requests disagree: the summary is shown")
        put(level, name, {**counted, **own}, len(single[name]) or completed)
    report(level, "itl", "ms", summary(told, "itl"))
    if requests is None or good is None:
        if summary(told, "itl") and level["endpoint_kind"] == "chat":
            told.notes.add("`*_itl_ms` counts the role-only event of each response as a token: not imported as gaps between chunks")
        return
    gaps = [after - before for one in good for before, after in zip(one.times, one.times[1:], strict=False)]
    if gaps:
        put(level, "icl", spread_of([gap * 1000 for gap in gaps]), len(gaps))
        level["chunks"] = sum(len(one.times) for one in good)
    queued = [one.queued * 1000 for one in good if one.queued is not None]
    if queued:
        put(level, "queue", spread_of(queued), len(queued))
        level["queue_max_ms"] = max(queued)
    level["detail"] = detail_of(requests)


def _left_latencies(told: Fields, completed: int | None) -> list[float]:
    """Some versions leave `latencies` in a file without details. Failed requests have 0 there."""
    values = [value for one in told.list("latencies") or () if (value := number(one)) is not None and value > 0]
    return values if values and len(values) == completed else []


def _requests(told: Fields) -> list[Request] | None:
    """Single requests of `--save-detailed`; None if there are none, or the lists do not belong together."""
    ttfts, itls = told.list("ttfts"), told.list("itls")
    if not ttfts or not itls:
        return None
    others: dict[str, Sequence[Any]] = {name: told.list(name) or () for name in ("output_lens", "latencies", "start_times", "queue_times", "errors")}
    if len(itls) != len(ttfts) or any(values and len(values) != len(ttfts) for values in others.values()):
        told.notes.add("The lists of single requests have different lengths: they are not used")
        return None
    made = []
    for at, first in enumerate(ttfts):
        error, tokens = clean(_at(others["errors"], at), 300), whole(_at(others["output_lens"], at))
        start, ttft = number(_at(others["start_times"], at)), number(first)
        if error or not tokens or ttft is None or ttft <= 0 or not isinstance(itls[at], list):
            made.append(Request(start=start, error=error or "no tokens"))
            continue
        gaps = [gap for one in itls[at] if (gap := number(one)) is not None and gap >= 0]
        if len(gaps) != len(itls[at]):
            told.notes.add("`itls` holds gaps that are no numbers: single requests are not used")
            return None
        if gaps and gaps[0] < ROLE_GAP_S:
            gaps = gaps[1:]  # the first "token" was the role-only event, and the first text came with it
        begin = start if start is not None else 0.0
        times = tuple(accumulate(gaps, initial=begin + ttft))
        latency = number(_at(others["latencies"], at))
        made.append(Request(start=begin, first=times[0], times=times, tokens=tokens, queued=_wait(_at(others["queue_times"], at)),
                            last=begin + latency if latency and latency > 0 else times[-1]))
    return made


def _wait(value: Any) -> float | None:
    """Seconds before a request went out; a negative one is no wait."""
    found = number(value)
    return found if found is not None and found >= 0 else None


def _at(values: Sequence[Any], at: int) -> Any:
    return values[at] if at < len(values) else None


def _errors(level: dict[str, Any], requests: list[Request] | None, failed: int | None) -> None:
    kinds: dict[str, int] = {}
    for one in requests or ():
        if one.error:
            last = one.error.splitlines()[-1] if one.error.splitlines() else one.error
            kinds[last[:80]] = kinds.get(last[:80], 0) + 1
    if kinds and sum(kinds.values()) == failed:
        level["errors_by_kind"] = dict(sorted(kinds.items(), key=lambda item: -item[1])[:20])
        level["first_error"] = next(one.error for one in requests or () if one.error)
    elif failed:
        level["errors_by_kind"] = {"not reported": failed}


def _times(told: Fields, duration: float | None) -> tuple[float | None, float | None]:
    """`date` is the end, in the local time of a machine that the file does not name: read as UTC, which is said."""
    text = told.text("date", 40)
    if not text:
        return None, None
    try:
        end = datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        told.strange("date", "a time such as 20260922-120000")
        return None, None
    told.notes.add("The file's time names no zone: read as UTC")
    return end - (duration or 0.0), end
