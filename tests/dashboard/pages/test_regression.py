"""A sweep against the baseline on its job's page: one run says little, three a side decide, and a button measures them."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import baselines, comparison_words, comparisons, deciding, regression_story
from dashboard.compared_sides import Chosen
from dashboard.models import BenchmarkRun, Job
from ops.benchmark.comparing.verdicts import MIN_RUNS, said
from ops.jobs.events import EventType
from tests.dashboard.pages import factory
from tests.dashboard.pages.reading import text


@pytest.fixture
def base(story: factory.Story, admin: User) -> list[BenchmarkRun]:
    story.service(release=factory.NEW)
    runs = story.measured(ago_s=5 * 86400, repeats=3, release=factory.OLD)
    baselines.pin(runs[0], admin)
    return runs


def page(client: Client, job: Job | None) -> str:
    assert job is not None
    return text(client.get(f"/jobs/{job.number}/", {"step": "sweep"}))


def test_one_slower_sweep_is_outside_the_floor_and_nothing_more_is_said(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured(scale=0.85, against=base)
    seen = page(visitor, run.job)
    assert "Against the baseline" in seen
    assert "outside the noise floor, not tested" in seen
    assert "Decide: run 2 more" in seen
    assert not any(f" {word} " in seen for word in ("worse", "better", "not decided"))


def test_one_equal_sweep_is_within_the_floor(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured(scale=1.02, against=base)
    seen = page(visitor, run.job)
    assert "Within the noise floor" in seen
    assert "outside" not in seen


def test_the_button_measures_more_and_three_a_side_decide(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured(scale=0.85, against=base)
    key = uuid.uuid4().hex
    answers = [visitor.post(f"/benchmarks/{run.pk}/decide/", {"more": "2", "idempotency_key": key}) for _ in range(2)]
    assert answers[0].url == answers[1].url  # type: ignore[attr-defined]
    asked = Job.objects.filter(type="sweep").order_by("-number").first()
    assert asked is not None
    assert asked.params["sweep_settings"]["repeats"] == 2
    later = story.measured(scale=0.85, repeats=2, group=asked.params["group"], against=base)
    seen = page(visitor, later[-1].job)
    assert "Decide:" not in seen
    assert "worse" in seen
    assert "Not interleaved" in seen


def test_the_job_and_the_compare_page_offer_the_same_runs_of_the_same_side(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run = story.measured(scale=0.96, repeats=3, against=base)[0]
    found = regression_story.panel(run.job, run) if run.job else None
    assert found is not None
    offer = f"Decide: run {found['more'].now} more of B"
    assert found["more"].now > 0
    assert offer in page(visitor, run.job)
    assert offer in text(visitor.get(found["compare"]))


def test_the_card_says_what_the_compare_page_says_with_the_marks_of_either_side_beside_it(
        visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run = story.measured(scale=0.85, repeats=3, against=base)[0]
    for one, marks in ((run, ["short"]), (base[0], ["client-bound", "bunched"])):
        for level in one.levels.all():
            level.metrics["marks"] = marks
            level.save(update_fields=["metrics"])
    found = regression_story.panel(run.job, run) if run.job else None
    comparison = comparisons.held_against([Chosen("A", base), Chosen("B", baselines.side_of(run))])
    assert found is not None
    assert comparison is not None
    assert [[cell["word"] for cell in row["cells"]] for row in found["rows"]] == [
        [said(level["verdicts"][1][name]) for name in regression_story.SHOWN] for level in comparison.as_dict()["levels"]]
    assert {cell["beside"] for row in found["rows"] for cell in row["cells"] if cell["percent"]} == {"client-bound, short"}
    assert "worse client-bound, short" in page(visitor, run.job)
    assert "worse (client-bound, short)" in text(visitor.get(found["compare"]))


def test_a_word_that_falls_to_the_correction_has_no_colour() -> None:
    assert comparison_words.mark({"word": "better", "holds": True}) == ("up", "better")
    assert comparison_words.mark({"word": "better", "holds": False}) == ("ask", "")


def test_what_is_asked_for_is_what_one_job_can_measure_and_one_side_can_hold() -> None:
    undecided = [{"word": "not decided", "more_runs": 40}, {"word": "not tested", "more_runs": 90}, {"word": "same", "more_runs": None}]
    assert deciding.more_runs(1, undecided) == deciding.MoreRuns(2, 2)
    assert deciding.more_runs(3, undecided) == deciding.MoreRuns(deciding.MORE_AT_ONCE, 40)
    assert deciding.more_runs(deciding.SIDE_MOST - 1, undecided).now == 1
    assert deciding.more_runs(15, undecided[1:]).now == 0
    assert deciding.SIDE_MOST >= MIN_RUNS + deciding.MORE_AT_ONCE


@pytest.mark.parametrize("more", ["", "0", "-1", "x", "0120", "1000000", "13"])
def test_so_many_runs_as_nobody_can_measure_are_not_asked_for(visitor: Client, story: factory.Story, base: list[BenchmarkRun], more: str) -> None:
    run, = story.measured(against=base)
    jobs = Job.objects.count()
    assert visitor.post(f"/benchmarks/{run.pk}/decide/", {"more": more}).status_code == 400
    assert Job.objects.count() == jobs


def test_a_baseline_of_one_run_says_what_is_missing(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured(scale=0.85, against=base[:1])
    assert "The baseline has 1 run" not in page(visitor, run.job)  # the two measured later count
    BenchmarkRun.objects.filter(pk__in=[one.pk for one in base[1:]]).delete()
    seen = page(visitor, run.job)
    assert "pin a run of this release" in seen
    assert "Pin this run" in seen
    assert "The baseline has 1 run, and a verdict needs 3 a side" in seen
    assert "Decide:" not in seen
    story.service(release=factory.OLD)
    assert "Run 2 more of the baseline" in page(visitor, run.job)


def test_a_release_that_is_not_the_one_measured_is_not_repeated(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured(scale=0.85, against=base)
    story.service(release=factory.OLD)
    assert "runs another release now" in page(visitor, run.job)
    assert "another release" in visitor.post(f"/benchmarks/{run.pk}/decide/", {"more": "2"}).content.decode()


def test_what_a_hostile_node_says_is_shown_as_text_or_not_at_all(visitor: Client, story: factory.Story, base: list[BenchmarkRun]) -> None:
    run, = story.measured()
    assert run.job is not None
    for told in ({"baseline": ["x"], "levels": "none", "words": [1, {}]},
                 {"levels": [{"label": 5, "metrics": "m"}, 3], "baseline": {"run_ids": ["no id"]}},
                 {"levels": [{"label": "<script>x</script>", "value": 8, "metrics": [{"metric": "output_tok_s", "ratio": "big", "floor": []}, 1]}],
                  "words": ["<b>bold</b>"]}):
        run.job.result["regression"] = told
        run.job.save(update_fields=["result"])
        body = visitor.get(f"/jobs/{run.job.number}/", {"step": "sweep"}).content.decode()
        assert "<script>x" not in body
        assert "<b>bold" not in body


def test_a_measured_floor_is_shown_by_its_job(visitor: Client, story: factory.Story) -> None:
    job = story.job("noise-floor", ago_s=60, steps=(("sweep", "Noise floor", False),))
    story.step(job, "sweep", end=False, index=0)
    story.say(job, EventType.NOISE_FLOOR, service="kimi-k25", sweep_key="k" * 64, stack="", run_ids=["a", "b", "c"], floors=[
        {"load": "closed", "value": 8, "metric": "output_tok_s", "half_width": 0.0213, "runs": 3}])
    story.finish_step(job, "sweep")
    story.end(job)
    shown = regression_story.noise_panel(job)
    assert shown is not None
    assert shown["rows"][0]["cells"][0] == 0.0213
    assert "2.1 %" in page(visitor, job)
