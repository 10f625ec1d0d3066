"""Where a tool's word is not ours, where its versions differ, and what a missing or strange field gives: a clear word each, never a wrong number."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from typing import Any

import pytest

from ops.benchmark.formats import detect
from ops.jobs.errors import BadInput
from tests.ops.benchmark.formats import samples
from tests.ops.benchmark.formats.samples import AIPERF, AIPERF_LINES, GUIDELLM, INFERENCE_PERF, INFERENCEX, METRICS, SGLANG, SWEEP, VLLM

ICL_P50 = METRICS["icl_ms"]["p50"]


def notes(told: Any, name: str = "result.json") -> str:
    return "\n".join(samples.read(told, name)[0]["warnings"])


# ---- vllm bench serve and sweep ----


def test_vllm_the_gap_after_the_role_only_event_is_no_gap() -> None:
    level = samples.level(samples.raw(VLLM))
    assert level["icl_p50_ms"] == pytest.approx(ICL_P50) and level["icl_n"] == 8 * 19
    assert level["reported"]["itl_p50_ms"] == pytest.approx(24.054) and level["tokens_per_chunk"] == pytest.approx(192 / 160)
    told = samples.value(VLLM)
    told["itls"] = [gaps[1:] for gaps in told["itls"]]  # a completions endpoint: no such event, and the first gap stays
    assert samples.level(told)["icl_n"] == 8 * 19


def test_vllm_failed_requests_enter_no_statistics() -> None:
    told = samples.value(VLLM)
    for name in [name for name in told if name.endswith("_ms")]:
        del told[name]
    level = samples.level(told)
    assert level["ttft_n"] == 8 and level["reported"]["ttft_p99_ms"] == pytest.approx(METRICS["ttft_ms"]["p99"])
    assert level["errors_by_kind"] == {"Service Unavailable": 1} and level["first_error"] == "Service Unavailable"


def test_vllm_metadata_lie_beside_the_tools_own_keys() -> None:
    told = samples.value(VLLM) | {"tensor_parallel_size": "4", "pp": "2", "version": "0.3.3", "note": "=cmd()"}
    [document] = samples.read(told)
    assert document["levels"][0]["gpu_count"] == 8 and document["settings"]["metadata"]["version"] == "0.3.3"
    assert document["levels"][0]["output_tok_s_per_gpu"] == pytest.approx(METRICS["output_throughput"] / 8)


def test_vllm_the_peak_of_its_buckets_is_not_the_concurrency() -> None:
    told = samples.value(VLLM)
    assert told["max_concurrent_requests"] == 8 and samples.level(told)["value"] == 4


@pytest.mark.parametrize(("rate", "cap", "load", "value"), [("inf", 4, "closed", 4), (2.5, 4, "open", 2.5), (2.5, None, "open", 2.5),
                                                            ("2.5", None, "open", 2.5), ("inf", None, "closed", 9)])
def test_vllm_a_rate_may_be_the_word_inf(rate: Any, cap: int | None, load: str, value: float) -> None:
    [document] = samples.read(samples.value(VLLM) | {"request_rate": rate, "max_concurrency": cap})
    level = document["levels"][0]
    assert (level["load"], level["value"], level["offered_s"]) == (load, value, value if load == "open" else None)
    assert any("sent at once" in word for word in document["warnings"]) == (rate == "inf" and cap is None)


def test_vllm_percentiles_are_whatever_was_asked_for() -> None:
    told = samples.value(SWEEP)[0]
    del told["p90_ttft_ms"], told["p50_ttft_ms"]
    level = samples.level(told | {"p99.9_ttft_ms": 343.0, "p95_ttft_ms": 342.0})
    assert level["reported"]["ttft_p99.9_ms"] == 343.0 and level["reported"]["ttft_p95_ms"] == 342.0
    assert level["ttft_p50_ms"] == pytest.approx(METRICS["ttft_ms"]["p50"]), "the median is P50"
    assert "ttft_p90_ms" not in level["reported"] and level["ttft_p90_ms"] is None


def test_vllm_zeros_of_a_run_without_a_sample_are_no_latency() -> None:
    told = {name: 0.0 if name.endswith("_ms") else one for name, one in samples.value(SWEEP)[0].items()}
    level = samples.level(told | {"completed": 0, "failed": 9, "total_output_tokens": 0, "output_throughput": 0.0, "request_throughput": 0.0})
    assert all(level[name] is None for name in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_s", "interactivity_tok_s_user"))
    assert (level["error_rate"], level["output_tok_s"]) == (1.0, 0.0) and "errors" in level["marks"]


def test_vllm_goodput_under_the_key_with_a_colon() -> None:
    told = samples.value(VLLM)
    told["request_goodput:"] = told.pop("request_goodput")
    assert samples.level(told)["goodput_s"] == pytest.approx(METRICS["goodput_rps"])


def test_vllm_latencies_that_some_versions_leave_in_a_file_without_details() -> None:
    told = {name: one for name, one in samples.value(VLLM).items() if name not in ("ttfts", "itls", "errors", "start_times") and "e2el" not in name}
    level = samples.level(told)
    assert level["e2e_p50_s"] * 1000 == pytest.approx(METRICS["e2e_ms"]["p50"]) and level["icl_p50_ms"] is None


def test_vllm_lists_that_do_not_belong_together_are_not_used() -> None:
    told = samples.value(VLLM)
    told["itls"] = told["itls"][:5]
    [document] = samples.read(told)
    assert document["levels"][0]["icl_p50_ms"] is None and document["levels"][0]["ttft_p50_ms"] == pytest.approx(METRICS["ttft_ms"]["p50"])
    assert any("different lengths" in word for word in document["warnings"])
    assert "disagree" in notes(samples.value(VLLM) | {"mean_ttft_ms": 500.0})


def test_vllm_appended_runs_are_one_sweep_and_a_cut_last_line_is_told() -> None:
    lines = [json.dumps(samples.value(SWEEP)[0] | {"max_concurrency": c, "output_throughput": 30.0 * c}) for c in (1, 4, 16)]
    [document] = samples.read(("\n".join([*lines, lines[0][:80]])).encode())
    assert [level["value"] for level in document["levels"]] == [1, 4, 16]
    assert document["levels"][2]["scaling_x"] == pytest.approx(16) and document["settings"]["concurrencies"] == [1, 4, 16]
    assert any("1 line is no JSON" in word and "line 4" in word for word in document["warnings"])


def test_vllm_files_of_a_sweep_come_together_and_a_repeat_is_a_run_of_its_own() -> None:
    files = {f"c{c}.json": json.dumps(samples.value(VLLM) | {"max_concurrency": c}).encode() for c in (1, 4, 8)}
    [document] = detect.read("c1.json", files["c1.json"], beside=files)
    assert [level["value"] for level in document["levels"]] == [1, 4, 8]
    runs = samples.read(samples.value(SWEEP))
    assert [(run["group_index"], run["repeats"]) for run in runs] == [(0, 2), (1, 2)] and runs[0]["group"] == runs[1]["group"] is not None


def test_vllm_other_server_settings_are_other_runs_with_what_was_swept_as_their_name() -> None:
    items = [samples.value(SWEEP)[0] | {"max_num_seqs": size, "run_number": n} for size in (128, 256) for n in (0, 1)]
    runs = samples.read([*items, items[0] | {"run_number": -1}])
    assert [(run["label"], run["group_index"]) for run in runs] == [("max_num_seqs=128", 0), ("max_num_seqs=128", 1), ("max_num_seqs=256", 0),
                                                                    ("max_num_seqs=256", 1)]


@pytest.mark.parametrize(("change", "word"), [
    ({"output_throughput": None, "total_output_tokens": None}, "no output tokens"),
    ({"max_concurrency": None, "num_prompts": None, "request_rate": "inf"}, "neither `max_concurrency` nor `request_rate`"),
    ({"ramp_up_strategy": "linear"}, "ramped"), ({"max_concurrency": 10**12}, "cannot be")])
def test_vllm_what_is_no_level_is_refused_in_words(change: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        samples.read(samples.value(VLLM) | change)


# ---- guidellm ----


def test_guidellm_time_per_output_token_with_the_first_one_in_it_is_not_our_tpot() -> None:
    level = samples.level(samples.raw(GUIDELLM))
    assert level["tpot_p50_ms"] == pytest.approx(METRICS["tpot_ms"]["p50"])
    assert level["reported"]["time_per_output_token_p50_ms"] == pytest.approx(714.581 / 24, rel=0.05)


def test_guidellm_a_sample_of_requests_draws_no_curve_and_all_of_them_do() -> None:
    told = samples.value(GUIDELLM)
    assert not samples.level(told)["detail"] and "Of 8 requests 2 are stored" in notes(told)
    stored = told["benchmarks"][0]["requests"]["successful"]
    told["benchmarks"][0]["requests"]["successful"] = stored * 4
    level = samples.level(told)
    assert len(level["detail"]["ecdf"]["ttft_ms"]) == 101 and level["detail"]["ecdf"]["icl_ms"] is None and "seconds" not in level["detail"]


def test_guidellm_only_successful_requests_are_read() -> None:
    told = samples.value(GUIDELLM)
    metrics = told["benchmarks"][0]["metrics"]
    for name in ("time_to_first_token_ms", "output_tokens_per_second", "request_latency"):
        metrics[name]["errored"] = metrics[name]["total"] = {"mean": 9e5, "median": 9e5, "count": 3, "percentiles": {"p50": 9e5}}
    metrics["inter_token_latency_ms"]["successful"] |= {"count": 0, "mean": 0.0, "median": 0.0, "percentiles": {}}
    level = samples.level(told)
    assert level["ttft_p50_ms"] == pytest.approx(METRICS["ttft_ms"]["p50"]) and level["tpot_p50_ms"] is None
    assert level["output_tok_s"] == pytest.approx(METRICS["output_throughput"])


@pytest.mark.parametrize(("strategy", "load", "value"), [
    ({"type_": "concurrent", "streams": 32, "max_concurrency": 64}, "closed", 32), ({"kind": "concurrent", "max_concurrency": 4}, "closed", 4),
    ({"type_": "synchronous"}, "closed", 1), ({"type_": "poisson", "rate": 2.5}, "open", 2.5), ({"type_": "constant", "rate": 3}, "open", 3),
    ({"type_": "throughput", "max_concurrency": 512}, "closed", 512)])
def test_guidellm_strategies_of_all_versions(strategy: dict[str, Any], load: str, value: float) -> None:
    told = samples.value(GUIDELLM)
    told["benchmarks"][0]["config"]["strategy"] = strategy
    level = samples.level(told)
    assert (level["load"], level["value"]) == (load, value)


def test_guidellm_version_1_has_args_and_its_key_is_said_not_copied() -> None:
    told = samples.value(GUIDELLM)
    del told["config"]
    told |= {"metadata": {"version": 1, "guidellm_version": "0.6.0"}, "args": {
        "profile": "concurrent", "rate": [32], "data": ["prompt_tokens=512,output_tokens=256"], "request_type": "chat_completions",
        "backend_kwargs": {"target": "http://user:word@server:8000/v1?k=1", "model": "org/model-b", "api_key": "sk-abcdef"}}}
    told["benchmarks"][0]["config"]["strategy"] = {"type_": "concurrent"}
    [document] = samples.read(told)
    assert (document["model"], document["base_url"], document["tool_version"]) == ("org/model-b", "http://server:8000", "0.6.0")
    assert document["levels"][0]["value"] == 32 and document["levels"][0]["endpoint_kind"] == "chat"
    assert any("hold a secret (`args.backend_kwargs.api_key`)" in word for word in document["warnings"])
    assert "sk-abcdef" not in json.dumps(document) and "word" not in document["base_url"]


def test_guidellm_benchmarks_are_levels_and_an_empty_report_says_so() -> None:
    told = samples.value(GUIDELLM)
    more = json.loads(json.dumps(told["benchmarks"][0]))
    more["config"]["strategy"]["max_concurrency"] = 16
    [document] = samples.read(told | {"benchmarks": [more, told["benchmarks"][0]]})
    assert [level["value"] for level in document["levels"]] == [4, 16]
    for benchmarks, word in (([], "no benchmark"), ([{"type_": "x", "metrics": {}}], "neither its concurrency nor its rate")):
        with pytest.raises(BadInput, match=word):
            samples.read(told | {"benchmarks": benchmarks})


def test_guidellm_a_report_that_the_tool_really_wrote() -> None:
    """guidellm 0.8.1 against a streaming server at 4 in flight: 40 requests, of which 2 are left in the file."""
    [document] = samples.read(samples.raw("guidellm_0.8.1.real.json"))
    level = document["levels"][0]
    assert (document["model"], document["base_url"], document["tool_version"]) == ("paced", "http://127.0.0.1:8000", "0.8.1")
    assert (level["value"], level["finished"], level["errors"], level["output_tokens"], level["prompt_tokens"]) == (4, 40, 0, 960, 320)
    assert (level["endpoint_kind"], level["output_mode"], level["max_tokens"]) == ("chat", "fixed", 24)
    assert level["output_tok_s"] == pytest.approx(960 / level["whole_s"], rel=0.01) and level["whole_requests_s"] == pytest.approx(14.01, abs=0.01)
    assert level["ttfc_p50_ms"] > level["ttft_p50_ms"] and level["reported"]["tpot_p99_ms"] < level["reported"]["time_per_output_token_p99_ms"]
    assert (level["tpot_n"], level["tpot_p99_ms"]) == (40, None), "its count is one of tokens, because it weighs by them"
    assert document["settings"]["dataset"] == "kind=json_file, path=prompts.jsonl"


def test_guidellm_slos_in_its_names() -> None:
    told = samples.value(GUIDELLM)
    told["benchmarks"][0]["config"]["slo"] = {"ttft_ms": 300.0, "tpot_ms": 30.0, "e2el_ms": 2000.0}
    told["benchmarks"][0]["metrics"]["request_goodput"] = {"successful": {"mean": 2.7, "count": 8}}
    level = samples.level(told)
    assert level["slos"] == {"ttft_ms": 300.0, "tpot_ms": 30.0, "e2e_s": 2.0} and level["goodput_s"] == 2.7


# ---- aiperf ----


def test_aiperf_units_are_obeyed_and_unknown_ones_refused() -> None:
    told = samples.value(AIPERF)
    told["time_to_first_token"] = {name: one / 1000 if name not in ("unit", "count") else one
                                   for name, one in told["time_to_first_token"].items()} | {"unit": "sec"}
    told["request_latency"]["unit"] = "fortnights"
    [document] = samples.read(told)
    assert document["levels"][0]["ttft_p50_ms"] == pytest.approx(METRICS["ttft_ms"]["p50"]) and document["levels"][0]["e2e_p50_s"] is None
    assert any("`request_latency` has the unit `fortnights`" in word for word in document["warnings"])


def test_aiperf_lines_of_the_warm_up_are_left_out() -> None:
    first = json.loads(samples.raw(AIPERF_LINES).splitlines()[0])
    warm = json.loads(json.dumps(first))
    warm["metadata"]["benchmark_phase"] = "warmup"
    warm["metrics"]["time_to_first_token"]["value"] = 90_000.0
    content = samples.raw(AIPERF_LINES) + json.dumps(warm).encode() + b"\n"
    [document] = detect.read("profile_export.jsonl", content)
    level = document["levels"][0]
    assert level["finished"] == 2 and level["ttft_p50_ms"] == pytest.approx((342.502 + 333.204) / 2) and level["icl_n"] == 38
    assert any("1 requests of the warm-up" in word for word in document["warnings"])


def test_aiperf_curves_only_if_every_request_is_beside() -> None:
    files = {"profile_export.jsonl": samples.raw(AIPERF_LINES)}
    [document] = detect.read("profile_export_aiperf.json", samples.raw(AIPERF), beside=files)
    assert not document["levels"][0]["detail"] and any("holds 2 good requests, the summary says 8" in word for word in document["warnings"])
    files["profile_export.jsonl"] *= 4
    [document] = detect.read("profile_export_aiperf.json", samples.raw(AIPERF), beside=files)
    assert len(document["levels"][0]["detail"]["ecdf"]["icl_ms"]) == 101


def test_aiperf_averages_rates_and_a_cancelled_run() -> None:
    told = samples.value(AIPERF)
    told["input_config"]["phases"] = [{"name": "warmup", "concurrency": 64}, {"name": "profiling", "request_rate": 5.0, "concurrency": 9}]
    told["time_to_first_token"] = {"unit": "ms", "avg": 263.0}
    [document] = samples.read(told | {"was_cancelled": True})
    level = document["levels"][0]
    assert (level["load"], level["value"], document["state"]) == ("open", 5.0, "cancelled")
    assert level["ttft_mean_ms"] == 263.0 and level["ttft_p50_ms"] is None
    with pytest.raises(BadInput, match="neither its concurrency nor its request rate"):
        samples.read(told | {"input_config": {}})


def test_aiperf_a_file_that_the_tool_really_wrote() -> None:
    """aiperf 0.13.0 against a streaming server at 4 in flight that fails every tenth request."""
    [document] = samples.read(samples.raw("aiperf/profile_export_aiperf.0.13.0.real.json"))
    level = document["levels"][0]
    assert (document["model"], document["base_url"], document["tool_version"]) == ("paced", "http://127.0.0.1:8000", "0.13.0")
    assert (level["value"], level["finished"], level["errors"], level["requests"], level["output_tokens"], level["reasoning_tokens"]) == (
        4, 36, 4, 40, 864, 288)
    assert level["errors_by_kind"] == {"503 Service Unavailable": 4} and "paced failure" in level["first_error"]
    assert (level["slos"], level["counted_by"], level["streaming"]) == ({"ttft_ms": 300.0, "tpot_ms": 50.0}, "usage", True)
    assert level["goodput_s"] == pytest.approx(4.02, abs=0.01) and level["icl_n"] == 828 and level["icl_p99_ms"] == pytest.approx(160.668, abs=0.01)
    assert document["warnings"] == ["The file's times name no zone: read as UTC"]


def test_aiperf_a_phases_own_copy_is_no_second_run() -> None:
    files = {f"out/{place}profile_export_aiperf.json": samples.raw(AIPERF) for place in ("", "phases/profiling/")}
    assert len(detect.read("out/profile_export_aiperf.json", samples.raw(AIPERF), beside=files)) == 1


# ---- inference-perf ----


def test_inference_perf_first_token_is_the_answers_and_gaps_of_zero_are_none() -> None:
    [document] = samples.read(samples.raw(INFERENCE_PERF), "stage_0_lifecycle_metrics.json")
    level = document["levels"][0]
    assert level["ttft_p50_ms"] is None and level["ttfc_p50_ms"] == pytest.approx(METRICS["ttfc_ms"]["p50"])
    assert level["icl_p50_ms"] is None and level["reported"]["inter_token_latency_p50_ms"] == pytest.approx(23.6605)
    assert level["errors_by_kind"] == {"HTTP 503": 1} and level["first_error"] == "busy"
    assert any("first of the answer" in word for word in document["warnings"])


def test_inference_perf_stages_are_levels_and_a_summary_of_several_is_none() -> None:
    stage = samples.value(INFERENCE_PERF)
    files = {f"reports/stage_{n}_lifecycle_metrics.json": json.dumps(
        stage | {"load_summary": {"count": 9, "requested_rate": 1.0 + n, "achieved_rate": 1.0, "schedule_delay": {"mean": -0.0001, "median": 0.0}}}
    ).encode() for n in range(3)}
    summary = json.dumps(stage | {"load_summary": {"count": 27, "schedule_delay": None}}).encode()
    [document] = detect.read("reports/summary_lifecycle_metrics.json", summary, beside=files)
    assert [(level["load"], level["value"], level["achieved_s"]) for level in document["levels"]] == [("open", 1, 1), ("open", 2, 1), ("open", 3, 1)]
    assert document["levels"][0]["queue_mean_ms"] == 0.0
    with pytest.raises(BadInput, match="mixes all stages"):
        detect.read("reports/summary_lifecycle_metrics.json", summary)
    with pytest.raises(BadInput, match="single requests of inference-perf"):
        samples.read([{"start_time": 1.0, "end_time": 2.0, "info": {"output_tokens": 3}}])


def test_inference_perf_earlier_versions_have_lengths_and_no_failures() -> None:
    told = samples.value(INFERENCE_PERF)
    told["successes"] = {name: one for name, one in told["successes"].items() if name not in ("prompt_tokens", "output_tokens")}
    told["successes"]["prompt_len"] = {"mean": 64.0}
    level = samples.level(told | {"failures": {"count": 0, "request_latency": None, "prompt_len": None}}, "stage_0_lifecycle_metrics.json")
    assert (level["output_tokens"], level["prompt_tokens"], level["errors"], level["errors_by_kind"]) == (192, 512, 0, {})


# ---- SGLang, InferenceX ----


def test_sglang_a_length_that_was_asked_for_is_told_from_one_that_came() -> None:
    level = samples.level(samples.raw(SGLANG))
    assert level["value"] == 4 and level["reported"]["mean_in_flight"] == pytest.approx(3.95474, rel=1e-4)
    assert "length not counted" not in level["marks"]
    told = samples.value(SGLANG) | {"total_output_tokens_retokenized": 90}
    assert "length not counted" in samples.level(told)["marks"] and "sent no usage" in notes(told)


@pytest.mark.parametrize("change", [{"backend": "sglang"}, {"accept_length": 2.4}], ids=["native", "speculative"])
def test_sglang_gaps_that_are_divided_among_tokens_are_no_gaps(change: dict[str, Any]) -> None:
    level = samples.level(samples.value(SGLANG) | change)
    assert level["icl_p50_ms"] is None and level["reported"]["itl_p50_ms"] == pytest.approx(ICL_P50)


def test_sglang_runs_of_a_file_are_levels_and_details_give_errors_and_curves() -> None:
    vllm = samples.value(VLLM)
    lists = {"ttfts": vllm["ttfts"], "itls": [gaps[1:] for gaps in vllm["itls"]], "output_lens": vllm["output_lens"], "errors": vllm["errors"]}
    lines = [samples.value(SGLANG) | {"max_concurrency": c} | lists for c in (4, 1)]
    [document] = samples.read("\n".join(map(json.dumps, lines)).encode())
    assert [level["value"] for level in document["levels"]] == [1, 4]
    level = document["levels"][0]
    assert (level["errors"], level["icl_n"]) == (1, 152) and level["detail"]["ecdf"]["icl_ms"][50] == pytest.approx(ICL_P50)


def test_inferencex_the_slow_tail_is_named_p99_and_throughput_counts_only_output() -> None:
    told = samples.value(INFERENCEX)
    level = samples.level(told)
    assert told[0]["p99_intvty"] < told[0]["p50_intvty"] and level["interactivity_tok_s_user"] == pytest.approx(1000 / METRICS["tpot_ms"]["p50"])
    assert level["output_tok_s_per_gpu"] == pytest.approx(METRICS["output_throughput"] / 8) != pytest.approx(told[0]["tput_per_gpu"])
    assert level["ttft_p99_ms"] == pytest.approx(METRICS["ttft_ms"]["p99"]) and level["ttft_n"] is None and level["finished"] is None


def test_inferencex_rows_split_by_what_they_ran_on_and_halves_have_no_common_count() -> None:
    [row] = samples.value(INFERENCEX)
    nested = {name: one for name, one in row.items() if "t" not in name or name in ("framework", "precision")}
    nested |= {"tp": 8, "metrics": {name: one for name, one in row.items() if name not in nested}, "conc": 8}
    runs = samples.read([row, row | {"conc": 64}, row | {"hw": "other-gpu"}, row | {"disagg": True}, nested])
    assert [[level["value"] for level in run["levels"]] for run in runs][:3] == [[4, 64], [4], [4]]
    assert runs[2]["levels"][0]["output_tok_s"] is None and runs[2]["levels"][0]["output_tok_s_per_gpu"] is not None
    assert runs[3]["levels"][0]["ttft_p50_ms"] == pytest.approx(METRICS["ttft_ms"]["p50"])


# ---- all of them ----


def test_gzip_and_zip_are_unpacked() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in (VLLM, GUIDELLM, AIPERF, AIPERF_LINES):
            archive.writestr(name, samples.raw(name))
        archive.writestr("notes.txt", "nothing")
    runs = detect.read("all.zip", packed.getvalue())
    assert sorted(run["tool"] for run in runs) == ["aiperf", "guidellm", "vllm bench serve"]
    assert any("A file was left out: `notes.txt`" in word for word in runs[0]["warnings"])
    assert detect.read("x.json.gz", gzip.compress(samples.raw(VLLM)))[0]["model"] == "org/model-a"
