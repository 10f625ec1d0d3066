"""InferenceX (InferenceMAX): `agg_*.json`, one row a point. Seconds, with `_ms` taken off the names.

`*_intvty` is 1000 / TPOT in ms, so its `p99` is the slow tail: it is not imported, ours follows from the median TPOT. `tput_per_gpu` counts input
and output tokens: output throughput is `output_tput_per_gpu`. `*_itl` has the role-only event in it, as vLLM's: only in `reported`.
"""

from __future__ import annotations

import re
from typing import Any

from ops.benchmark.formats.levels import Point, blank, documents, finish, put, report
from ops.benchmark.formats.source import Content, Fields, Notes, clean
from ops.jobs.errors import BadInput

TOOL = "InferenceX"
_SUMMARY = re.compile(r"(mean|median|std|p\d{1,2}(?:\.\d{1,3})?)_(ttft|tpot|itl|e2el)\Z")
SPLIT = ("hw", "device", "framework", "precision", "spec_decoding", "mtp", "disagg", "is_multinode", "isl", "osl", "tp", "pp", "ep", "dp_attention",
         "image", "dcp_size", "pcp_size", "num_prefill_gpu", "num_decode_gpu", "infmax_model_prefix")


def fits(value: dict[str, Any]) -> bool:
    inner = value.get("metrics")
    return "conc" in value and ("tput_per_gpu" in value or (isinstance(inner, dict) and "tput_per_gpu" in inner))


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """Runs of the file. Raises BadInput for none."""
    notes = Notes()
    content.note(notes)
    notes.add("The file tells neither how many requests were measured nor how many failed")
    return documents([_point(one, notes) for one in content.objects if fits(one)], tool=TOOL, notes=notes, raw=raw)


def _point(value: dict[str, Any], notes: Notes) -> Point:
    told = Fields(value, notes)
    numbers = told.inner("metrics") if "metrics" in told else told
    concurrency = told.count("conc")
    if not concurrency:
        raise BadInput("A row has no concurrency (`conc`)", why="Without it the row is no level")
    level = blank("closed", float(concurrency))
    gpus = _gpus(told)
    per_gpu = numbers.number("output_tput_per_gpu")
    level |= {"gpu_count": gpus, "whole_output_tok_s": per_gpu * gpus if per_gpu is not None and gpus else None, "streaming": True,
              "prompt_tokens_asked": told.count("isl"), "max_tokens": told.count("osl")}
    for name, theirs, scale in (("ttft", "ttft", 1000.0), ("tpot", "tpot", 1000.0), ("e2e", "e2el", 1.0)):
        put(level, name, numbers.summary(_SUMMARY, theirs, scale=scale), None)
    report(level, "itl", "ms", numbers.summary(_SUMMARY, "itl", scale=1000.0))
    total = numbers.number("tput_per_gpu")
    if total is not None:
        level["reported"]["input_and_output_tok_s_per_gpu"] = total
    finish(level)
    level["output_tok_s_per_gpu"] = per_gpu
    if per_gpu is not None and not gpus:
        notes.add("How many GPUs a prefill and a decode half share is not told: throughput only per GPU")
    split = {name: clean(str(told.raw.get(name)), 100) for name in SPLIT if told.raw.get(name) is not None}
    words = (told.text("hw", 40) or told.text("device", 40), told.text("framework", 30), told.text("precision", 20))
    label = " ".join(word for word in words if word)
    settings = {"prompt_tokens": level["prompt_tokens_asked"], "max_tokens": level["max_tokens"], "gpu_count": gpus, "metadata": split or None}
    return Point(level, model=told.text("model", 300), kind=split, settings=settings, label=label)


def _gpus(told: Fields) -> int | None:
    """GPUs of the one server: TP x PP. None where prefill and decode have their own, whose shares mean different things in different versions."""
    if told.raw.get("disagg") in (True, "true") or told.raw.get("is_multinode") in (True, "true"):
        return None
    tp = told.count("tp")
    return tp * (told.count("pp") or 1) if tp else None
