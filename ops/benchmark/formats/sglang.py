"""SGLang's `bench_serving` (JSON lines, one run a line).

`concurrency` is the mean number in flight, not the level. Where the server sends no usage, `total_output_tokens` is the length that was asked
for: it is held against the tool's own count of the text. Gaps between chunks are only what the name says for endpoints of OpenAI's kind, and
not when `accept_length` is told: then the tool divides them among tokens.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from ops.benchmark.formats.levels import Point, Request, blank, detail_of, documents, finish, put, report
from ops.benchmark.formats.source import Content, Fields, Notes, clean, number, whole
from ops.benchmark.formats.vllm_bench import endpoint_kind, load_of

TOOL = "sglang bench_serving"
_SUMMARY = re.compile(r"(mean|median|std|max|p\d{1,2}(?:\.\d{1,3})?)_(e2e_latency|ttft|tpot|itl)_ms\Z")
ASKED_NOT_GOT = 0.1  # text that is so much shorter than the counted tokens was not counted


def fits(value: dict[str, Any]) -> bool:
    return "completed" in value and "duration" in value and ("mean_e2e_latency_ms" in value or "total_output_tokens_retokenized" in value)


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """Runs of the file. Raises BadInput for none, or one without a level."""
    notes = Notes()
    content.note(notes)
    return documents([_point(one, notes) for one in content.objects if fits(one)], tool=TOOL, notes=notes, raw=raw)


def _point(value: dict[str, Any], notes: Notes) -> Point:
    told = Fields(value, notes)
    backend = told.text("backend", 60)
    load, number_of = load_of(told)
    level = blank(load, number_of)
    completed, requests = told.count("completed"), _requests(told)
    failed = None if requests is None else sum(1 for one in requests if one.error)
    tokens, counted = told.count("total_output_tokens"), told.count("total_output_tokens_retokenized")
    level |= {
        "requests": told.count("num_prompts") or (len(requests) if requests is not None else None), "finished": completed, "errors": failed,
        "unfinished": 0 if failed is not None else None, "whole_s": told.measured("duration"),
        "whole_output_tok_s": told.number("output_throughput"), "whole_requests_s": told.number("request_throughput"), "output_tokens": tokens,
        "prompt_tokens": told.count("total_input_tokens"), "endpoint_kind": "generate" if backend == "sglang" else endpoint_kind(backend),
        "streaming": True,
    }
    if level["load"] == "open":
        level["achieved_s"] = level["whole_requests_s"]
    if failed:
        level["errors_by_kind"] = {"not reported": failed}
        level["first_error"] = next(one.error for one in requests or () if one.error)
    for name, theirs, scale in (("ttft", "ttft", 1.0), ("tpot", "tpot", 1.0), ("e2e", "e2e_latency", 0.001)):
        put(level, name, told.summary(_SUMMARY, theirs, scale=scale), completed)
    gaps = told.summary(_SUMMARY, "itl")
    if backend != "sglang" and told.number("accept_length") is None:
        put(level, "icl", gaps, sum(len(one.times) - 1 for one in requests if not one.error) if requests is not None else None)
        if requests is not None:
            level["detail"] = detail_of(requests)
            level["chunks"] = sum(len(one.times) for one in requests if not one.error)
    elif gaps:
        report(level, "itl", "ms", gaps)
        notes.add("`*_itl_ms` is divided among the tokens of each chunk here: not imported as gaps between chunks")
    mean_in_flight = told.number("concurrency")
    if mean_in_flight is not None:
        level["reported"]["mean_in_flight"] = mean_in_flight
    accepted = told.number("accept_length")
    if accepted is not None:
        level["reported"]["spec_accept_length"] = accepted
    if tokens and counted is not None and counted < tokens * (1 - ASKED_NOT_GOT):
        level["marks"].append("length not counted")
        notes.add(f"{tokens:,} output tokens were counted, but the text holds {counted:,}: the server sent no usage, and the length that was asked "
                  "for was taken instead. Throughput and time per output token are not to be trusted")
    finish(level)
    asked = {name: told.count(name) for name in ("random_input_len", "random_output_len")}
    dataset = told.text("dataset_name", 60)
    if dataset == "random":
        level |= {"prompt_tokens_asked": asked["random_input_len"], "max_tokens": asked["random_output_len"]}
    settings = {"endpoint_kind": level["endpoint_kind"], "dataset": dataset or None, "prompt_tokens": level["prompt_tokens_asked"],
                "max_tokens": level["max_tokens"], "max_in_flight": told.count("max_concurrency") if level["load"] == "open" else None}
    model = told.text("model", 300) or clean(told.inner("server_info").raw.get("model_path"), 300)
    return Point(level, model=model, label=told.text("tag", 120), settings=settings,
                 kind={"backend": backend, "load": level["load"], "dataset": dataset, **asked, "tag": told.text("tag", 120)})


def _requests(told: Fields) -> list[Request] | None:
    """Single requests of `--output-details`. Their starts are not in the file: no timeline."""
    ttfts, itls, lengths, errors = (told.list(name) for name in ("ttfts", "itls", "output_lens", "errors"))
    if not ttfts or not itls or not lengths or {len(ttfts), len(itls), len(lengths)} != {len(ttfts)}:
        return None
    made = []
    for at, first in enumerate(ttfts):
        error = clean(errors[at], 300) if errors and at < len(errors) else ""
        ttft, tokens = number(first), whole(lengths[at])
        gaps = [gap for one in itls[at] if (gap := number(one)) is not None and gap >= 0] if isinstance(itls[at], list) else []
        if error or not ttft or not tokens:
            made.append(Request(error=error or "no tokens"))
            continue
        times = tuple(accumulate(gaps, initial=ttft))
        made.append(Request(start=0.0, first=times[0], last=times[-1], times=times, tokens=tokens))
    return made
