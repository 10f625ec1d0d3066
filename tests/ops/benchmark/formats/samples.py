"""The sample results of tests/fixtures/bench: one invented run, in each tool's schema as that tool would report it; `expected.json` is the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ops.benchmark.formats import detect

FOLDER = Path(__file__).resolve().parents[3] / "fixtures/bench"
TRUTH: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
METRICS: dict[str, Any] = TRUTH["metrics"]
VLLM, SWEEP, GUIDELLM = "vllm_bench_serve.detailed.json", "vllm_bench_sweep.summary.json", "guidellm_report.json"
AIPERF, AIPERF_LINES = "aiperf/profile_export_aiperf.json", "aiperf/profile_export.jsonl"
INFERENCE_PERF, SGLANG, INFERENCEX = "inference_perf/stage_0_lifecycle_metrics.json", "sglang_bench_serving.jsonl", "inferencex_agg.json"


def raw(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def value(name: str) -> Any:
    """The sample's JSON, to be changed by a test; of JSON lines the first."""
    text = raw(name).decode()
    return json.loads(text.splitlines()[0]) if name.endswith(".jsonl") else json.loads(text)


def read(told: Any, name: str = "result.json") -> list[dict[str, Any]]:
    """Runs of a value, written as a tool would."""
    return detect.read(name, told if isinstance(told, bytes) else json.dumps(told).encode())


def level(told: Any, name: str = "result.json") -> dict[str, Any]:
    """The only level of the only run."""
    [document] = read(told, name)
    [one] = document["levels"]
    return dict(one)
