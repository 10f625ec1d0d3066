"""A run written out for others: CSV and Markdown for people and sheets, JSON for this product, and the schema of `vllm bench serve` for its tools.

What is not known is an empty cell, "n/a", or a key that is not there: never 0.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from ops.benchmark import harmless
from ops.benchmark.formats.levels import PARTS, SPREADS, spread_of
from ops.benchmark.metrics import tpot
from ops.benchmark.request_record import RequestRecord

RUN_COLUMNS = ("run_id", "label", "model", "service", "release", "vllm_version", "origin", "tool", "tool_version", "practice", "started_at")
LEVEL_COLUMNS = (
    "load", "value", "state", "requests", "finished", "errors", "error_rate", "unfinished", "output_tok_s", "window", "steady_output_tok_s",
    "whole_output_tok_s", "output_tok_s_per_gpu", "gpu_count", "interactivity_tok_s_user", "steady_requests_s", "whole_requests_s", "goodput_s",
    "goodput_left_out", "offered_s", "achieved_s", "scaling_x", "spread_p99_p50",
    *(f"{name}_{part}_{unit}" for name, unit in SPREADS for part in PARTS), *(f"{name}_n" for name, _ in SPREADS),
    "output_tokens", "reasoning_tokens", "prompt_tokens", "prompt_tokens_mean", "tokens_per_chunk", "counted_by", "steady_s", "whole_s",
    "power_mean_w", "energy_j", "tokens_per_joule", "client_lag_p99_ms", "client_cpu_share", "stamps", "kernel_delay_p99_us", "endpoint_kind",
    "output_mode", "max_tokens", "prompt_tokens_asked", "prompt_words", "temperature", "reasoning", "marks")
_TABLE = (("Output tok/s", "output_tok_s", 1), ("TTFT P50 ms", "ttft_p50_ms", 1), ("TTFT P99 ms", "ttft_p99_ms", 1),
          ("TPOT P50 ms", "tpot_p50_ms", 2), ("Latency P50 s", "e2e_p50_s", 2), ("Latency P99 s", "e2e_p99_s", 2), ("Goodput req/s", "goodput_s", 2))
PERCENTILES = (50, 90, 99)


def to_csv(*documents: Mapping[str, Any]) -> str:
    """A row a level of each run, with what the run is in the first columns; an empty cell is not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*RUN_COLUMNS, *LEVEL_COLUMNS])
    for document in documents:
        run = [harmless.cell(cell) for cell in _run_cells(document)]
        for level in document["levels"]:
            writer.writerow([*run, *(harmless.cell(_cell(level.get(name))) for name in LEVEL_COLUMNS)])
    return out.getvalue()


def to_json(document: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """The document itself (or several), as this product reads it again. Raises ValueError for a number that JSON has not; ours have none."""
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def to_markdown(document: Mapping[str, Any]) -> str:
    """What the run is, its levels as a table, and what must be known to read it."""
    title = ", ".join(part for part in (document["model"], document["label"]) if part) or f"Measured by {document['tool']}"
    lines = [f"# {harmless.markdown(title)}", ""]
    if document["practice"]:
        lines += ["**PRACTICE**: numbers of the practice box, not of a GPU", ""]
    facts = [(name.replace("_", " "), cell) for name, cell in zip(RUN_COLUMNS, _run_cells(document), strict=True)
             if cell not in ("", None) and name not in ("practice", "label", "model")]
    lines += [f"- {name}: {harmless.markdown(str(cell))}" for name, cell in facts]
    if document["origin"] != "roundhouse":
        lines.append("- these numbers are another tool's, by its own definitions; what it does not report is n/a")
    lines += ["", "| Load | " + " | ".join(name for name, _, _ in _TABLE) + " | n | Errors | Marks |",
              "| ---: |" + " ---: |" * (len(_TABLE) + 2) + " --- |"]
    for level in document["levels"]:
        cells = [_load(level), *(_number(level.get(name), digits) for _, name, digits in _TABLE), _number(level.get("finished"), 0),
                 _number(level.get("errors"), 0), harmless.markdown(", ".join(level.get("marks") or []))]
        lines.append("| " + " | ".join(cells) + " |")
    if document["warnings"]:
        lines += ["", *(f"- {harmless.markdown(word)}" for word in document["warnings"])]
    if document["notes"]:
        lines += ["", *(f"> {harmless.markdown(line)}" for line in document["notes"].splitlines())]
    return "\n".join(lines) + "\n"


def to_vllm_bench(document: Mapping[str, Any], level: Mapping[str, Any], records: Sequence[RequestRecord] | None = None) -> dict[str, Any]:
    """One level in the schema of `vllm bench serve --save-result`, with `records` as with `--save-detailed`.

    Throughput and goodput are over the whole run, as there; our steady ones and what else the schema lacks have keys of their own, as `--metadata`
    has. TTFT is that of the first text: this client counts no role-only event, so `itls` has no near-zero first gap.
    """
    closed = level.get("load") != "open"
    value = level.get("value", level.get("concurrency"))
    kind = level.get("endpoint_kind")
    backend = "openai-chat" if kind == "chat" else "openai" if kind == "completions" else kind
    started, whole_s = document.get("started_at"), level.get("whole_s")
    at = level.get("started_at") if level.get("started_at") is not None else started
    tokens, prompts, finished = level.get("output_tokens"), level.get("prompt_tokens"), level.get("finished")
    made: dict[str, Any] = {
        "date": datetime.fromtimestamp(at + (whole_s or 0.0), UTC).strftime("%Y%m%d-%H%M%S") if at else None,
        "endpoint_type": backend, "backend": backend, "label": document.get("label") or None, "model_id": document.get("model") or None,
        "tokenizer_id": document.get("model") or None, "num_prompts": level.get("requests"), "request_rate": "inf" if closed else value,
        "burstiness": 1.0, "max_concurrency": int(value) if closed and value else document.get("settings", {}).get("max_in_flight"),
        "duration": whole_s, "completed": finished, "failed": level.get("errors"), "total_input_tokens": prompts, "total_output_tokens": tokens,
        "request_throughput": level.get("whole_requests_s"), "request_goodput": _goodput(level, records),
        "output_throughput": level.get("whole_output_tok_s") if level.get("whole_output_tok_s") is not None else level.get("output_tok_s"),
        "total_token_throughput": (tokens + prompts) / whole_s if tokens is not None and prompts is not None and whole_s else None,
    }
    good = [record for record in records or () if record.ok and record.times]
    single = _single(good)
    for name, theirs, unit, scale in (("ttft", "ttft", "ms", 1), ("tpot", "tpot", "ms", 1), ("icl", "itl", "ms", 1), ("e2e", "e2el", "s", 1000)):
        told = spread_of(single[name]) if single.get(name) else {part: _scaled(_known(level, f"{name}_{part}_{unit}"), scale) for part in PARTS}
        made |= {f"mean_{theirs}_ms": told.get("mean"), f"median_{theirs}_ms": told.get("p50"), f"std_{theirs}_ms": _deviation(single.get(name))}
        made |= {f"p{p}_{theirs}_ms": told.get(f"p{p}") for p in PERCENTILES}
    made |= {
        "measured_by": f"{document.get('tool')} {document.get('tool_version') or ''}".strip(), "run_id": document.get("run_id"),
        "steady_output_throughput": level.get("steady_output_tok_s"),
        "steady_request_goodput": level.get("goodput_s") if level.get("window") == "steady" else None,
        "gpu_count": level.get("gpu_count"), "max_tokens": level.get("max_tokens"),
        "output_mode": level.get("output_mode"), "practice": "yes" if document.get("practice") else None,
    }
    made = {name: one for name, one in made.items() if one is not None or name in ("label", "max_concurrency", "request_goodput")}
    return made | _lists(records) if records is not None else made


def _goodput(level: Mapping[str, Any], records: Sequence[RequestRecord] | None) -> float | None:
    """Requests a second over the whole run that met every SLO. Ours is of the steady window: another number, so that is left out."""
    slos, whole_s = level.get("slos"), level.get("whole_s")
    if records is None or not slos or not whole_s:
        return level.get("goodput_s") if level.get("window") != "steady" else None
    good = 0
    for record in records:
        if not record.ok or not record.times:
            continue
        after = tpot(record)
        values = {"ttft_ms": (record.times[0] - record.t_send) / 1e6, "e2e_s": (record.times[-1] - record.t_send) / 1e9,
                  "tpot_ms": None if after is None else after / 1e6}
        met = [(value := values.get(name)) is not None and value <= limit for name, limit in slos.items()]
        good += all(met)
    return good / whole_s


def _single(good: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Values of single requests in ms, by the definitions of `vllm bench serve`."""
    made: dict[str, list[float]] = {"ttft": [], "tpot": [], "icl": [], "e2e": []}
    for record in good:
        times, tokens = record.times, record.output_tokens if record.output_tokens is not None else len(record.times)
        made["ttft"].append((times[0] - record.t_send) / 1e6)
        made["e2e"].append((times[-1] - record.t_send) / 1e6)
        made["icl"] += [(after - before) / 1e6 for before, after in pairwise(times)]
        if tokens > 1:
            made["tpot"].append((times[-1] - times[0]) / 1e6 / (tokens - 1))
    return made


def _lists(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Requests that ended, well or not, in seconds; texts are not kept, so `generated_texts` holds none."""
    ended = [record for record in records if record.ok or record.error_kind]
    well = [record.ok and bool(record.times) for record in ended]
    return {
        "input_lens": [record.prompt_tokens or 0 for record in ended],
        "output_lens": [(record.output_tokens if record.output_tokens is not None else len(record.times)) if ok else 0
                        for record, ok in zip(ended, well, strict=True)],
        "ttfts": [(record.times[0] - record.t_send) / 1e9 if ok else 0.0 for record, ok in zip(ended, well, strict=True)],
        "itls": [[(after - before) / 1e9 for before, after in pairwise(record.times)] if ok else [] for record, ok in zip(ended, well, strict=True)],
        "latencies": [(record.times[-1] - record.t_send) / 1e9 if ok else 0.0 for record, ok in zip(ended, well, strict=True)],
        "start_times": [record.t_send / 1e9 for record in ended],
        "queue_times": [max(0, record.t_send - record.t_sched) / 1e9 for record in ended],
        "generated_texts": ["" for _ in ended],
        "errors": ["" if ok else record.error or str(record.error_kind) or "no text" for record, ok in zip(ended, well, strict=True)],
    }


def _deviation(values: Sequence[float] | None) -> float | None:
    """Of the population, as numpy's `std`."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def _known(level: Mapping[str, Any], name: str) -> Any:
    """A level's number; where ours hides a percentile of few samples, what the tool reported."""
    return level[name] if level.get(name) is not None else (level.get("reported") or {}).get(name)


def _scaled(value: Any, scale: int) -> float | None:
    return value * scale if isinstance(value, int | float) else None


def _run_cells(document: Mapping[str, Any]) -> Iterable[Any]:
    fingerprint = document.get("fingerprint") or {}
    packages = fingerprint.get("packages")
    node, service = document.get("node_name"), document.get("service_name")
    at = document.get("started_at")
    known = {
        **document, "service": f"{node}/{service}" if node and service else service or "",
        "release": document.get("release") or fingerprint.get("release"),
        "vllm_version": document.get("vllm_version") or (packages.get("vllm") if isinstance(packages, dict) else None),
        "started_at": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds") if at else None,
    }
    return [known.get(name) for name in RUN_COLUMNS]


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, str | int | float | bool) or value is None else json.dumps(value)


def _load(level: Mapping[str, Any]) -> str:
    value = level.get("value", level.get("concurrency"))
    return f"{value:g} req/s" if level.get("load") == "open" else f"C={value:g}"


def _number(value: Any, digits: int) -> str:
    return f"{value:,.{digits}f}" if isinstance(value, int | float) and not isinstance(value, bool) else "n/a"
