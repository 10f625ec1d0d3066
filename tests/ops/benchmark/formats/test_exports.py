"""A run written out: for sheets (where a text is never a formula), for people, for vLLM's own tools, and as itself, which comes back unchanged."""

from __future__ import annotations

import csv
import io
import json
from array import array
from typing import Any

import pytest

from ops.benchmark import presets
from ops.benchmark.formats import detect, exports
from ops.benchmark.formats.levels import blank
from ops.benchmark.metrics import level_metrics
from ops.benchmark.request_record import RequestRecord
from ops.benchmark.results import SweepResult
from ops.benchmark.sweep import asked_of_level
from tests.ops.benchmark.formats import samples
from tests.ops.benchmark.formats.samples import GUIDELLM, METRICS, TRUTH, VLLM

NS = 1_000_000_000


def records() -> list[RequestRecord]:
    """The invented run as our own client would have recorded it."""
    made = []
    for index, one in enumerate(TRUTH["requests"]):
        sent = round(one["start"] * NS)
        record = RequestRecord(index=index, slot=index % 4, t_sched=sent, t_send=sent, prompt_tokens=one["prompt_tokens"])
        if one["error"]:
            record.t_end = sent + 1
            record.fail("http", one["error"])
        else:
            record.times = array("q", [round(chunk["t"] * NS) for chunk in one["chunks"]])
            record.kinds = "".join(chunk["kind"][0] for chunk in one["chunks"])
            record.chunk_tokens = [chunk["tokens"] for chunk in one["chunks"]]
            record.t_end, record.output_tokens, record.finish_reason = record.times[-1], one["n"], "length"
        made.append(record)
    return made


@pytest.fixture
def own() -> dict[str, Any]:
    """That run as a document of ours."""
    level = level_metrics(records(), load="closed", value=4, requests=9, gpu_count=8, slos=METRICS["slo"]).as_dict()
    return SweepResult(
        run_id="6b1f5c7e-3b0a-5f7e-9d55-0e3c1f2a6128", state="done", reason="", preset="custom", model="org/model-a", base_url="http://127.0.0.1:8000",
        practice=True, short=True, started_at=1790078400.0, finished_at=1790078402.0, duration_s=2.0,
        levels=[{**level, "endpoint_kind": "chat", "max_tokens": 24, "state": "done", "started_at": 1790078400.0}],
        settings={"model": "org/model-a", "max_tokens": 24}, endpoint={}, fingerprint={"release": "r1", "packages": {"vllm": "0.16.0"}},
        label="=2+3", notes="one\ntwo", tags=["nightly"], warnings=["@SUM(1)"]).as_dict()


def test_our_own_fields_are_all_known_to_imports_and_exports(own: dict[str, Any]) -> None:
    told = own["levels"][0] | asked_of_level(presets.settings("custom", base_url="http://127.0.0.1:1", model="m")) | {"stopped": "time"}
    assert set(told) - set(blank("closed", 1)) == set(), "name them in ops/benchmark/formats/levels.py"
    [again] = detect.read("run.json", json.dumps(own | {"levels": [told]}).encode())
    assert {name: (one, told[name]) for name, one in again["levels"][0].items() if name in told and one != told[name]} == {}


def test_json_comes_back_as_it_was(own: dict[str, Any]) -> None:
    [again] = detect.read("run.json", exports.to_json(own).encode())
    level = own["levels"][0]
    assert {name: again["levels"][0][name] for name in level} == level
    for name in ("run_id", "model", "practice", "settings", "fingerprint", "label", "notes", "tags", "warnings", "origin", "tool"):
        assert again[name] == own[name], name
    assert [one["run_id"] for one in detect.read("runs.json", exports.to_json([own, own]).encode())] == [own["run_id"]] * 2


def test_a_text_of_a_sheet_is_never_a_formula(own: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(exports.to_csv(own, samples.read(samples.raw(GUIDELLM))[0]), newline="")))
    assert [row["label"] for row in rows] == ["'=2+3", "node=node-a"] and rows[0]["practice"] == "yes"
    assert float(rows[0]["tpot_p50_ms"]) == pytest.approx(METRICS["tpot_ms"]["p50"]) and rows[1]["icl_p50_ms"] == "" and rows[0]["ttft_n"] == "8"


def test_markdown_says_practice_and_nothing_in_it_is_markup(own: dict[str, Any]) -> None:
    own |= {"label": "a|b <script>", "warnings": ["[x](y)"]}
    told = exports.to_markdown(own)
    assert "**PRACTICE**" in told and "a\\|b \\<script\\>" in told and "- \\[x\\](y)" in told and "> two" in told
    assert "| C=4 |" in told and "| n/a |" in told


def test_the_schema_of_vllm_bench_serve_says_what_that_tool_would(own: dict[str, Any]) -> None:
    told = exports.to_vllm_bench(own, own["levels"][0], records())
    theirs = samples.value(VLLM)
    for name in ("max_concurrency", "request_rate", "burstiness", "backend", "endpoint_type", "model_id", "num_prompts", "completed", "failed",
                 "total_input_tokens", "total_output_tokens", "input_lens", "output_lens"):
        assert told[name] == theirs[name], name
    assert told["errors"][:8] == [""] * 8 and told["errors"][8] == "HTTP 503" and len(told["itls"]) == 9
    parts, metrics = ("mean", "median", "p90", "p99", "std"), ("ttft", "tpot", "e2el")
    for name in (*(f"{part}_{metric}_ms" for part in parts for metric in metrics), "request_goodput"):
        assert told[name] == pytest.approx(theirs[name], rel=1e-6), name
    assert told["median_itl_ms"] == pytest.approx(METRICS["icl_ms"]["p50"], rel=1e-6), "without the role-only event's gap"
    assert told["steady_output_throughput"] == own["levels"][0]["steady_output_tok_s"] and told["date"].startswith("20260922-1200")
    assert set(theirs) - set(told) <= {"tensor_parallel_size", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"}


def test_practice_stays_practice_through_the_schema_of_vllm_and_levels_stay_together(own: dict[str, Any]) -> None:
    levels = [own["levels"][0] | {"value": c, "steady_output_tok_s": 10.0 * c} for c in (4, 8)]
    lines = "".join(json.dumps(exports.to_vllm_bench(own | {"practice": True}, level, records())) + "\n" for level in levels)
    [document] = detect.read("mine.jsonl", lines.encode())
    assert document["practice"] is True and len(document["levels"]) == 2 and "steady_output_throughput" not in document["label"]


def test_what_was_written_for_vllm_is_read_again(own: dict[str, Any]) -> None:
    lines = "".join(json.dumps(exports.to_vllm_bench(own, own["levels"][0] | {"value": c}, records())) + "\n" for c in (4, 8))
    [document] = detect.read("x.json", lines.encode())
    level = document["levels"][0]
    assert [one["value"] for one in document["levels"]] == [4, 8] and level["icl_p50_ms"] == pytest.approx(METRICS["icl_ms"]["p50"], rel=1e-6)
    assert (level["errors"], level["gpu_count"], document["tool"]) == (1, 8, "vllm bench serve")


def test_an_open_loop_is_a_rate_and_what_is_unknown_has_no_key() -> None:
    told = exports.to_vllm_bench({"tool": "roundhouse", "settings": {"max_in_flight": 64}}, blank("open", 2.5))
    assert (told["request_rate"], told["max_concurrency"]) == (2.5, 64) and "median_ttft_ms" not in told and "duration" not in told
