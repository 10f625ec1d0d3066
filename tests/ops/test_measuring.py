"""Sweeps as steps of jobs: several runs, the watch against a baseline that came with the job, the noise floor, and what the report says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import measuring, report
from ops.benchmark import repeats, sweep
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.keys import sweep_key
from ops.benchmark.results import SweepResult
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.kinds import KINDS
from ops.records import ServiceRecord
from tests.fakes.paced_server import compile_rig, paced
from tests.ops.services.conftest import Job, job

__all__ = ["job"]

ASKED: dict[str, Any] = {"concurrencies": [2], "requests": [8], "max_tokens": 8, "warmup_per_slot": 0.5, "level_seconds": 5.0}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with paced(compile_rig(tmp_path_factory.mktemp("rig")), rate=400, ttft_ms=5) as address:
        yield address


@pytest.fixture
def given(job: Job, url: str, tmp_path: Path) -> Job:
    job.context.service = ServiceRecord(name="svc", root=str(tmp_path / "svc"), model_path=str(tmp_path), served_model_name="paced", base_url=url)
    job.context.params = {"preset": "custom", "sweep_settings": dict(ASKED)}
    job.context.step = "sweep"
    return job


def baseline(given: Job, faster: float) -> dict[str, Any]:
    """What the console sends along: a run that was `faster` than one of now, without detail."""
    was = sweep.run(measuring.settings_of(given.context), emit=lambda type, data: None).as_dict()
    for level in was["levels"]:
        level.pop("detail", None)
        level["output_tok_s"] *= faster
    return {"documents": [was], "floors": [], "label": "r13"}


def test_a_repeated_sweep_is_one_group_and_says_so(given: Job) -> None:
    given.context.params["sweep_settings"]["repeats"] = 2
    given.context.params |= {"group": "8a7d1f0e-0000-4000-8000-000000000001", "group_from": 1}
    assert measuring.run_sweep(given.context).endswith("tok/s in 2 runs")
    started = given.of(EventType.SWEEP_STARTED)
    assert [one["group_index"] for one in started] == [1, 2]
    assert {one["group"] for one in started} == {"8a7d1f0e-0000-4000-8000-000000000001"}
    assert not given.of(EventType.REGRESSION)


def test_a_sweep_is_held_against_the_baseline_that_came_with_the_job_and_the_report_tells_it(given: Job) -> None:
    given.context.snapshot["baseline"] = baseline(given, faster=3)
    report.collect(given.context)
    measuring.run_sweep(given.context)
    (found,) = given.of(EventType.REGRESSION)
    throughput = found["levels"][0]["metrics"][0]
    assert re.fullmatch(r"outside it \(−[6-9]\d\.\d %\), not tested", throughput["word"])  # a third of it, or less on a busy machine
    assert (found["outside"] >= 1, found["baseline"]["label"]) == (True, "r13")
    part = report._benchmark(given.context.facts["said"])
    assert part is not None
    assert part["baseline"]["words"] == found["words"]
    assert "detail" not in part["levels"][0]
    text = "\n".join(report._benchmark_lines({"benchmark": part}))
    assert "Against the baseline r13, not interleaved:" in text
    assert re.search(r"^- C=2[^:]*short[^:]*: outside the noise floor, not tested: Output throughput −[6-9]", text, re.MULTILINE)


def test_the_noise_floor_is_measured_told_and_found_again(given: Job) -> None:
    given.context.params["sweep_settings"]["repeats"] = 3
    assert measuring.measure_noise_floor(given.context).startswith("3 runs; throughput differs from itself by up to ±")
    (found,) = given.of(EventType.NOISE_FLOOR)
    assert (found["service"], len(found["run_ids"]), found["floors"][0]["runs"]) == ("svc", 3, 3)
    assert found["sweep_key"] == sweep_key(given.of(EventType.SWEEP_STARTED)[0]["settings"])
    assert Floors(found["floors"]).lookup("closed", 2, "output_tok_s")[1] == "measured"


def test_a_noise_floor_takes_six_runs_unless_told_otherwise_and_never_fewer_than_three(given: Job) -> None:
    assert measuring.settings_of(given.context, default_repeats=measuring.NOISE_RUNS).repeats == 6
    given.context.params["sweep_settings"]["repeats"] = 2
    with pytest.raises(BadInput, match="needs 3 runs, not 2"):
        measuring.measure_noise_floor(given.context)


def test_a_run_that_stops_early_fails_the_step_and_leaves_what_was_measured(given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def two(settings: Any, **more: Any) -> list[SweepResult]:
        done = sweep.run(settings, emit=given.emit)
        failed = SweepResult.from_dict(done.as_dict())
        failed.state, failed.reason = "failed", "half of the requests failed"
        return [done, failed]

    monkeypatch.setattr(repeats, "run_repeats", two)
    with pytest.raises(OpsError, match="The sweep stopped early"):
        measuring.run_sweep(given.context)
    assert given.of(EventType.SWEEP_FINISHED)


@pytest.mark.parametrize("asked", [{"base_url": "http://127.0.0.1:1"}, {"prompt_file": "/etc/passwd"}, {"prompt_source": "file"},
                                   {"practice": False}], ids=["address", "file", "source", "practice"])
def test_a_job_is_not_told_what_is_the_services_own_and_reads_no_file(given: Job, asked: dict[str, Any]) -> None:
    given.context.params["sweep_settings"] |= asked
    with pytest.raises(BadInput):
        measuring.settings_of(given.context)


def test_no_floor_is_made_of_a_level_that_is_never_full(given: Job) -> None:
    given.context.params["sweep_settings"] |= {"concurrencies": [8], "requests": [2]}
    with pytest.raises(BadInput, match="No noise floor"):
        measuring.measure_noise_floor(given.context)
    assert not given.of(EventType.SWEEP_STARTED)
    given.context.params["sweep_settings"] |= {"repeats": 1}
    measuring.run_sweep(given.context)
    result = given.of(EventType.SWEEP_FINISHED)[0]["result"]
    assert "never full" in result["levels"][0]["marks"]
    assert any("never full" in words and "only 2 were sent" in words for words in result["warnings"])


def test_a_step_has_time_for_all_of_its_repeats(given: Job) -> None:
    given.context.params["sweep_settings"] |= {"level_seconds": 3600.0, "repeats": 3}
    (step,) = KINDS["noise-floor"].steps(given.context)
    assert (step.name, step.title) == ("sweep", "Noise floor")
    assert step.deadline_s is not None and step.deadline_s > 3 * 3600 * 1.4
