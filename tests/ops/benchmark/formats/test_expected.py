"""Each importer gives the truth of the invented run back, as far as its tool's schema tells it."""

from __future__ import annotations

from typing import Any

import pytest

from ops.benchmark.formats import detect
from ops.benchmark.formats.levels import SPREADS
from tests.ops.benchmark.formats import samples
from tests.ops.benchmark.formats.samples import AIPERF, GUIDELLM, INFERENCE_PERF, INFERENCEX, METRICS, SGLANG, SWEEP, TRUTH, VLLM

ALL = (50, 90, 99)
# what of the truth each schema holds: our metric, the percentiles that it tells, how many samples it tells
HOLDS: dict[str, dict[str, tuple[tuple[int, ...], int | None]]] = {
    VLLM: {"ttft": (ALL, 8), "e2e": (ALL, 8), "tpot": (ALL, 8), "icl": (ALL, 152)},
    SWEEP: {"ttft": (ALL, 8), "e2e": (ALL, 8), "tpot": (ALL, 8)},
    GUIDELLM: {"ttft": (ALL, 8), "ttfc": (ALL, 8), "e2e": (ALL, 8), "tpot": (ALL, 8)},
    AIPERF: {"ttft": (ALL, 8), "ttfc": (ALL, 8), "e2e": (ALL, 8), "tpot": (ALL, 8), "icl": (ALL, 152)},
    INFERENCE_PERF: {"ttfc": (ALL, 8), "e2e": (ALL, 8)},
    SGLANG: {"ttft": ((50, 99), 8), "e2e": ((50, 99), 8), "tpot": ((50, 99), 8), "icl": ((50, 99), None)},
    INFERENCEX: {"ttft": (ALL, None), "e2e": (ALL, None), "tpot": (ALL, None)},
}
# tools whose request ends when the response does, 1 ms after its last chunk in the invented run
LATE_END_MS = {GUIDELLM: 1.0, INFERENCE_PERF: 1.0}
COUNTS = {VLLM: (8, 1), SWEEP: (8, 1), GUIDELLM: (8, 1), AIPERF: (8, 1), INFERENCE_PERF: (8, 1), SGLANG: (8, None), INFERENCEX: (None, None)}
NO_GOODPUT = (GUIDELLM, INFERENCE_PERF, SGLANG, INFERENCEX)


@pytest.mark.parametrize("name", HOLDS)
def test_the_truth_comes_back(name: str) -> None:
    document = detect.read(name, samples.raw(name))[0]
    [level] = document["levels"]
    told = level["reported"]
    for metric, unit in SPREADS:
        truth = METRICS.get(f"{metric}_ms")
        percentiles, n = HOLDS[name].get(metric, ((), None))
        if truth is None or not percentiles:
            assert level[f"{metric}_p50_{unit}"] is None or (name, metric) in ((INFERENCE_PERF, "tpot"), (INFERENCE_PERF, "queue"), (VLLM, "queue"))
            continue
        scale = 1000 if unit == "s" else 1
        late = LATE_END_MS.get(name, 0.0) if metric == "e2e" else 0.0
        for p in percentiles:
            assert told[f"{metric}_p{p}_{unit}"] * scale == pytest.approx(truth[f"p{p}"] + late, rel=1e-9), (metric, p)
        assert level[f"{metric}_p50_{unit}"] == told[f"{metric}_p50_{unit}"] and level[f"{metric}_n"] == n
        few = n is not None and n < 100
        assert (level[f"{metric}_p99_{unit}"] is None) == few, "P99 needs 100 samples"
    finished, errors = COUNTS[name]
    assert (level["finished"], level["errors"]) == (finished, errors)
    assert (level["load"], level["value"], level["concurrency"]) == ("closed", TRUTH["concurrency"], TRUTH["concurrency"])
    assert level["output_tok_s"] == pytest.approx(METRICS["output_throughput"]) and level["window"] == "whole"
    assert level["steady_output_tok_s"] is None and document["origin"] == "imported"
    assert level["goodput_s"] == (None if name in NO_GOODPUT else pytest.approx(METRICS["goodput_rps"]))
    if name != INFERENCEX:
        assert level["whole_requests_s"] == pytest.approx(METRICS["request_throughput"])
        assert level["whole_s"] == pytest.approx(METRICS["duration_s"], abs=1e-6) and level["output_tokens"] == METRICS["output_tokens"]
    if name == AIPERF:
        assert level["reasoning_tokens"] == METRICS["reasoning_tokens"]


def test_every_run_says_whose_it_is() -> None:
    told = {name: detect.read(name, samples.raw(name))[0] for name in HOLDS}
    assert {name: (one["tool"], one["tool_version"]) for name, one in told.items()} == {
        VLLM: ("vllm bench serve", ""), SWEEP: ("vllm bench serve", ""), GUIDELLM: ("guidellm", "0.8.1"), AIPERF: ("aiperf", "0.13.0"),
        INFERENCE_PERF: ("inference-perf", ""), SGLANG: ("sglang bench_serving", ""), INFERENCEX: ("InferenceX", "")}
    assert {one["schema"] for one in told.values()} == {"roundhouse.sweep/2"}
    assert told[VLLM]["started_at"] == pytest.approx(1790078400 - METRICS["duration_s"]) and told[SGLANG]["started_at"] is None


def test_the_same_file_gives_the_same_ids_and_another_file_others() -> None:
    first, again = (detect.read(VLLM, samples.raw(VLLM))[0]["run_id"] for _ in range(2))
    other: dict[str, Any] = samples.value(VLLM) | {"label": "other"}
    assert first == again != samples.read(other)[0]["run_id"]


def test_curves_come_from_all_requests_and_hold_the_truth() -> None:
    level = samples.level(samples.raw(VLLM))
    curves = level["detail"]["ecdf"]
    for name, metric in (("ttft_ms", "ttft"), ("tpot_ms", "tpot"), ("icl_ms", "icl")):
        assert len(curves[name]) == 101 and curves[name][50] == pytest.approx(METRICS[f"{metric}_ms"]["p50"])
    assert curves["e2e_s"][100] == pytest.approx(max(one["e2e"] for one in TRUTH["requests"] if "e2e" in one))
    bars = level["detail"]["timeline"]
    assert (bars[0]["q"], bars[0]["s"], bars[0]["e"]) == (0, pytest.approx(0.1), pytest.approx(804.21))
    assert [bar["err"] for bar in bars] == [""] * 8 + ["Service Unavailable"]
    assert sum(level["detail"]["seconds"]["tok_s"]) == pytest.approx(METRICS["output_tokens"])
