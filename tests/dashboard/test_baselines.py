"""The pinned baseline and its copy for jobs, noise floors, edits by hand, and the reference of the practice box."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied

from dashboard import baselines, dispatch, noise_floors, practice_reference, run_edits
from dashboard.announcements import apply_announcement
from dashboard.models import AuditEntry, BenchmarkRun, NoiseFloor, Service
from ops.benchmark import presets
from ops.benchmark.presets import NODE_SAYS, SweepSettings
from ops.jobs.errors import BadInput
from ops.jobs.events import EventType
from tests.dashboard.pages import factory
from tests.dashboard.pages.factory import RECORD


def test_a_pinned_run_is_a_side_of_all_that_were_measured_with_it(story: factory.Story, operator: User) -> None:
    runs = story.measured(repeats=3)
    service = baselines.pin(runs[1], operator)
    told = baselines.snapshot(service)
    assert told is not None
    assert [one["run_id"] for one in told["documents"]] == [str(run.pk) for run in runs]
    level = told["documents"][0]["levels"][0]
    assert (level["value"], level["output_tok_s"], level["counted_by"]) == (1, pytest.approx(61 * 0.99), "usage")
    assert not {"detail", "gpus", "server"} & level.keys()
    assert told["documents"][0]["fingerprint"]["release"] == factory.NEW
    assert AuditEntry.objects.get(action="benchmark.pin").by == operator


def test_a_side_keeps_the_runs_that_a_press_of_decide_added(story: factory.Story) -> None:
    runs = story.measured(repeats=3, values=(8,))
    runs += story.measured(repeats=12, values=(8,), group=str(runs[0].group))
    assert {run.pk for run in baselines.side_of(runs[0])} == {run.pk for run in runs}


def test_the_copy_for_a_job_keeps_within_its_limit_and_keeps_the_pinned_run(story: factory.Story, admin: User,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    runs = story.measured(repeats=4)
    service = baselines.pin(runs[3], admin)
    whole = baselines.snapshot(service)
    assert whole is not None
    monkeypatch.setattr(baselines, "SNAPSHOT_BYTES", len(json.dumps(whole)) // 2)
    kept = baselines.snapshot(service)
    assert kept is not None
    assert 0 < len(kept["documents"]) < 4
    assert str(runs[3].pk) in [one["run_id"] for one in kept["documents"]]


def test_runs_that_nothing_can_be_held_against_are_not_pinned(story: factory.Story, admin: User) -> None:
    with pytest.raises(BadInput, match="of no service"):
        baselines.pin(story.imported(), admin)
    run, = story.measured()
    BenchmarkRun.objects.filter(pk=run.pk).update(state="failed")
    run.refresh_from_db()
    with pytest.raises(BadInput, match="failed"):
        baselines.pin(run, admin)
    BenchmarkRun.objects.filter(pk=run.pk).update(state="done", origin="imported")
    run.refresh_from_db()
    with pytest.raises(BadInput, match="another tool"):
        baselines.pin(run, admin)
    assert baselines.snapshot(story.the_service) is None


def test_unpinning_leaves_a_trace_once(story: factory.Story, admin: User) -> None:
    run, = story.measured()
    service = baselines.pin(run, admin)
    baselines.unpin(service, admin)
    baselines.unpin(Service.objects.get(pk=service.pk), admin)
    assert AuditEntry.objects.filter(action="benchmark.unpin").count() == 1
    assert Service.objects.get(pk=service.pk).baseline is None


def test_a_measured_floor_takes_the_place_of_the_old_one(story: factory.Story) -> None:
    for width in (0.05, 0.02):
        job = story.job("noise-floor", ago_s=60)
        story.say(job, EventType.NOISE_FLOOR, service="kimi-k25", sweep_key="k" * 64, stack="s" * 64, run_ids=[], floors=[
            {"load": "closed", "value": 8, "metric": "output_tok_s", "half_width": width, "runs": 6},
            {"load": "closed", "value": 8, "metric": "invented", "half_width": 1, "runs": 6},
            {"load": "closed", "value": 8, "metric": "tpot_p50_ms", "half_width": "wide", "runs": 6},
            {"load": "closed", "value": 0, "metric": "tpot_p50_ms", "half_width": 0.1, "runs": 6}, "no row"])
        story.end(job)
    row = NoiseFloor.objects.get()
    assert (row.half_width, row.runs, row.stack, row.job) == (0.02, 6, "s" * 64, job)
    assert job.result["noise_floor"]["rows"] == 1
    floors = noise_floors.floors(story.the_service, "k" * 64)
    assert floors.lookup("closed", 8, "output_tok_s") == (0.02, "measured")
    assert floors.lookup("closed", 16, "output_tok_s") == (0.03, "default")
    known = noise_floors.summary(story.the_service)
    assert known is not None
    assert (known["runs"], known["levels"], known["throughput"]) == (6, 1, 0.02)


def test_edits_are_kept_found_and_traced(story: factory.Story, operator: User) -> None:
    run, = story.measured()
    run_edits.edit(run, operator, label=" Night run ", notes="quiet machine", tags=["Nightly", "nightly ", "a  b"])
    run.refresh_from_db()
    assert (run.label, run.notes, run.tags) == ("Night run", "quiet machine", ["nightly", "a b"])
    assert "night run" in run.search
    run_edits.edit(run, operator, label="Night run", notes="quiet machine", tags=["nightly", "a b"])
    assert AuditEntry.objects.get(action="benchmark.edit").data["changed"] == ["label", "notes", "tags"]
    for wrong in ({"label": "x" * 121}, {"notes": "n" * 4001}, {"tags": ["a,b"]}, {"tags": [str(n) for n in range(21)]}, {"label": "a\x00"}):
        with pytest.raises(BadInput):
            run_edits.edit(run, operator, **{"label": "", "notes": "", "tags": [], **wrong})  # type: ignore[arg-type]
    with pytest.raises(PermissionDenied):
        run_edits.edit(run, AnonymousUser(), label="x", notes="", tags=[])  # type: ignore[arg-type]


def test_a_target_set_here_stands_before_the_record_s(story: factory.Story, operator: User) -> None:
    service = story.the_service
    assert run_edits.target(service) == [40, 50]
    run_edits.set_target(service, operator, (55.0, 65.0))
    assert run_edits.target(Service.objects.get(pk=service.pk)) == [55, 65]
    run_edits.set_target(service, operator, None)
    assert run_edits.target(Service.objects.get(pk=service.pk)) == [40, 50]
    with pytest.raises(BadInput):
        run_edits.set_target(service, operator, (50.0, 40.0))
    assert AuditEntry.objects.filter(action="service.target").count() == 2


def test_the_practice_box_brings_the_published_figures_once(db: None) -> None:
    said = {"node": "practice", "practice": True, "services": [{"record": RECORD}], "channels": []}
    apply_announcement(said)
    run = BenchmarkRun.objects.get()
    assert (run.origin, run.practice, run.single_tok_s, run.peak_tok_s, run.peak_at) == (practice_reference.ORIGIN, True, 61, 1239, "128")
    levels = {level.value: level for level in run.levels.all()}
    assert [(value, level.output_tok_s, level.e2e_mean_s) for value, level in levels.items()] == [(1, 61, 8.4), (8, 277, None), (128, 1239, 52.8)]
    assert all(level.ttft_p50_ms is None and level.metrics["finished"] is None for level in levels.values())
    BenchmarkRun.objects.update(label="ours")
    apply_announcement(said)
    assert BenchmarkRun.objects.get().label == "ours"


def test_a_real_node_brings_no_published_figures(db: None) -> None:
    apply_announcement({"node": "gpu01", "practice": False, "services": [{"record": {**RECORD, "practice": False}}]})
    assert not BenchmarkRun.objects.exists()


@pytest.fixture
def asked() -> SweepSettings:
    return presets.settings("custom", base_url="http://127.0.0.1:8000", model="kimi-k2.5", practice=True, gpu_count=8, concurrencies=[1, 8])


def test_a_sweep_s_job_takes_the_baseline_along_beside_its_params(story: factory.Story, operator: User, asked: SweepSettings) -> None:
    run, = story.measured()
    service = baselines.pin(run, operator)
    job = dispatch.start_sweep(service=service, settings=asked, user=operator, repeats=3)
    assert job.params["preset"] == "custom"
    assert (job.params["sweep_settings"]["repeats"], job.params["sweep_settings"]["concurrencies"]) == (3, [1, 8])
    assert not NODE_SAYS & job.params["sweep_settings"].keys()
    assert [one["run_id"] for one in job.envelope["snapshot"]["baseline"]["documents"]] == [str(run.pk)]
    assert "baseline" not in job.params


def test_what_the_node_gets_makes_the_same_settings_again(story: factory.Story, operator: User) -> None:
    wanted = presets.settings("custom", base_url="http://127.0.0.1:8000", model="kimi-k2.5", practice=True, gpu_count=8, rates=[0.5, 2.0],
                              slos={"ttft_ms": 500.0}, max_in_flight=64)
    job = dispatch.start_sweep(service=story.the_service, settings=wanted, user=operator)
    again = presets.settings(job.params["preset"], base_url="http://127.0.0.1:8000", model="kimi-k2.5", practice=True, gpu_count=8,
                             **job.params["sweep_settings"])
    assert again == wanted


def test_deciding_measures_the_same_again_as_one_side_with_prompts_of_its_own(story: factory.Story, operator: User) -> None:
    story.service(release=factory.NEW)
    run, = story.measured()
    job = dispatch.start_decide(run=run, more=2, user=operator)
    run.refresh_from_db()
    assert run.group is not None
    assert (job.params["group"], job.params["group_from"]) == (str(run.group), 1)
    settings = job.params["sweep_settings"]
    assert (settings["repeats"], settings["seed"], settings["concurrencies"]) == (2, run.settings["seed"], run.settings["concurrencies"])


def test_nothing_is_decided_for_a_release_that_does_not_run_any_more(story: factory.Story, operator: User) -> None:
    run, = story.measured()
    with pytest.raises(BadInput, match="another release"):
        dispatch.start_decide(run=run, more=2, user=operator)
    run.refresh_from_db()
    assert run.group is None


def test_repeats_and_files_that_cannot_be_are_refused_in_words(story: factory.Story, operator: User, asked: SweepSettings) -> None:
    for repeats in (0, 13):
        with pytest.raises(BadInput, match=f"{repeats} runs"):
            dispatch.start_sweep(service=story.the_service, settings=asked, user=operator, repeats=repeats)
    with pytest.raises(BadInput, match="2 runs"):
        dispatch.start_noise_floor(service=story.the_service, settings=asked, user=operator, repeats=2)
    with pytest.raises(BadInput, match="No noise floor") as few:
        dispatch.start_noise_floor(service=story.the_service, settings=replace(asked, concurrencies=[8], requests=[4]), user=operator)
    assert "concurrency 8 has 4 requests" in few.value.why
    asked.prompt_source = "file"
    with pytest.raises(BadInput, match="file"):
        dispatch.start_sweep(service=story.the_service, settings=asked, user=operator)
