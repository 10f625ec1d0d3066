"""Columns of runs that lists read, and runs whose job has ended."""

from __future__ import annotations

import uuid

import pytest

from dashboard import run_summaries
from dashboard.models import BenchmarkLevel, BenchmarkRun, Job, Service
from dashboard.recorder import record
from ops.jobs.events import EventType
from tests.dashboard.conftest import Speaker
from tests.dashboard.pages import factory, run_data


def test_a_run_is_summarised_from_its_levels_as_they_are_told(story: factory.Story) -> None:
    run, = story.measured(errors=2)
    assert run.single_tok_s == pytest.approx(61 * 0.99)
    assert (run.peak_tok_s, run.peak_at) == (pytest.approx(1239 * 0.99), "128")
    assert run.peak_p99_s == pytest.approx(52.8 * 1.04 / 0.99)
    assert (run.errors, run.levels_measured) == (8, 4)
    assert "practice/kimi-k25" in run.search
    assert run.stack == run_summaries.stack(run.fingerprint) != ""
    level = run.levels.get(value=8)
    assert (level.load, level.concurrency, level.tpot_p50_ms) == ("closed", 8, level.metrics["tpot_p50_ms"])
    assert len(level.detail["ecdf"]["ttft_ms"]) == 101
    assert "detail" not in level.metrics


def test_rates_are_levels_of_their_own(story: factory.Story) -> None:
    run, = story.measured(rates=True, slos={"ttft_ms": 500.0})
    assert [(level.load, level.value, level.concurrency) for level in run.levels.all()] == [("open", v, None) for v in (0.5, 1.0, 2.0, 2.5)]
    assert run.peak_at.endswith("/s")
    assert run.single_tok_s is None


def test_repeats_of_one_job_are_runs_of_one_group(story: factory.Story) -> None:
    runs = story.measured(repeats=3)
    assert [run.group_index for run in runs] == [0, 1, 2]
    assert len({run.group for run in runs}) == 1
    assert runs[0].group is not None
    assert runs[0].job is not None
    assert runs[0].job.result["run_ids"] == [str(run.pk) for run in runs]


def test_labels_notes_and_tags_are_found_by_a_search_once_summarised(story: factory.Story) -> None:
    run = story.imported()
    run.label, run.notes, run.tags = "After the Driver", "Fans at 90 %", ["Winter"]
    run_summaries.summarise(run)
    found = BenchmarkRun.objects.get(pk=run.pk).search
    assert all(word in found for word in ("after the driver", "fans at 90 %", "winter", "vllm bench serve"))


@pytest.mark.parametrize("state", ["interrupted", "cancelled", "succeeded"])
def test_a_job_that_has_ended_leaves_no_run_running(told: tuple[Job, Speaker], state: str) -> None:
    _, node = told
    run_id = str(uuid.uuid4())
    node.claimed()
    node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[1, 8], requests=[2, 16], model="m", endpoint="e",
               settings=run_data.settings(), fingerprint={})
    node.event(EventType.LEVEL_STARTED, run_id=run_id, load="closed", value=1, concurrency=1, requests=2)
    node.event(EventType.LEVEL_FINISHED, run_id=run_id, metrics=run_data.metrics(1, tok_s=61, mean_s=8.4, ttft_ms=210))
    node.event(EventType.LEVEL_STARTED, run_id=run_id, load="closed", value=8, concurrency=8, requests=16)
    node.finished(state)
    record(node.said)
    run = BenchmarkRun.objects.get(pk=run_id)
    assert run.state == ("cancelled" if state == "cancelled" else "failed")
    assert run.finished_at is not None
    assert (run.single_tok_s, run.levels_measured) == (61, 1)
    assert list(BenchmarkLevel.objects.filter(run=run).values_list("state", flat=True)) == ["done", "failed"]


def test_levels_that_ran_before_concurrency_1_are_scaled_when_the_sweep_ends(told: tuple[Job, Speaker]) -> None:
    node = told[1]
    run_id = str(uuid.uuid4())
    node.claimed()
    node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[8, 1])
    eight = {"load": "closed", "value": 8, "state": "done", "output_tok_s": 240.0, "scaling_x": None, "scaling_efficiency": None, "errors": 0}
    one = eight | {"value": 1, "output_tok_s": 60.0, "scaling_x": 1.0, "scaling_efficiency": 1.0}
    for level in (eight, one):
        node.event(EventType.LEVEL_FINISHED, run_id=run_id, metrics=level | {"detail": {"ecdf": {"ttft_ms": [1.0] * 101}}})
    node.event(EventType.SWEEP_FINISHED, run_id=run_id, result={"state": "done", "levels": [
        eight | {"scaling_x": 4.0, "scaling_efficiency": 0.5, "output_tok_s": 7}, one, "no level", {"load": "closed", "value": 512, "scaling_x": 9.0},
        {"load": "closed", "value": 10**400, "scaling_x": 10**400}]})
    record(node.said)
    levels = BenchmarkLevel.objects.filter(run=run_id)
    assert [(level.value, level.metrics["scaling_x"], level.metrics["scaling_efficiency"]) for level in levels] == [(1, 1.0, 1.0), (8, 4.0, 0.5)]
    assert levels.get(value=8).metrics["output_tok_s"] == levels.get(value=8).output_tok_s == 240
    assert len(levels.get(value=8).detail["ecdf"]["ttft_ms"]) == 101


def test_numbers_beyond_every_column_are_left_out(told: tuple[Job, Speaker]) -> None:
    job, node = told
    run_id, huge = str(uuid.uuid4()), 10**400
    node.claimed()
    node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[1, huge, 2**40], rates=[huge], group_index=huge)
    level = {"load": "closed", "value": 1, "output_tok_s": huge, "finished": huge, "errors": 2**40}
    node.event(EventType.LEVEL_FINISHED, run_id=run_id, metrics=level)
    node.event(EventType.LEVEL_STARTED, run_id=run_id, load="closed", value=1, requests=huge)
    node.finished(duration_s=huge)
    record(node.said)
    row, = BenchmarkLevel.objects.filter(run=run_id)
    assert (row.value, row.output_tok_s, row.requests, row.finished, row.errors) == (1, None, 0, 0, 0)
    job.refresh_from_db()
    assert (job.state, job.duration_s) == ("succeeded", None)


def test_nonsense_of_a_node_in_a_sweep_is_left_out_and_the_rest_goes_on(service: Service, told: tuple[Job, Speaker]) -> None:
    job, node = told
    run_id = str(uuid.uuid4())
    node.claimed()
    node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[1], fingerprint="none", settings=[], group="not a group")
    node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[1], fingerprint={"packages": []}, group_index=-5)
    node.event(EventType.SWEEP_FINISHED, run_id=run_id, result={"state": "wonderful", "settings": "s", "fingerprint": [], "warnings": {}})
    node.finished()
    record(node.said)
    run = BenchmarkRun.objects.get(pk=run_id)
    assert (run.state, run.group, run.group_index, run.stack, run.peak_tok_s) == ("failed", None, 0, run_summaries.stack(run.fingerprint), None)
    job.refresh_from_db()
    assert job.state == "succeeded"


def test_a_list_of_many_runs_is_made_with_its_summaries(story: factory.Story) -> None:
    story.many_runs(12)
    assert BenchmarkRun.objects.exclude(peak_tok_s=None).count() == 12
