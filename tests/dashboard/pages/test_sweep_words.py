"""A running sweep on its page: levels by concurrency and by rate, the newest second in words, and events that say nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard import charts, job_story, practice_reference, run_charts, sweep_words
from dashboard.models import Job
from ops.jobs.events import EventType
from tests.dashboard.pages import reading
from tests.dashboard.pages.factory import Story

SECOND = {
    "load": "closed", "value": 32.0, "concurrency": 32, "second": 7, "output_tok_s": 688.2, "in_flight": 32, "finished": 12, "errors": 1,
    "ttft_p50_ms": 710.3, "ttft_p90_ms": 1204.2, "ttft_p99_ms": None, "icl_p50_ms": 46.23, "icl_p90_ms": 48.0, "icl_p99_ms": 61.0, "e2e_p50_s": 23.6,
    "e2e_mean_s": 23.7, "throughput_so_far_tok_s": 650.0,
    "server": {"running": 30.0, "waiting": 2.0, "kv_use": 0.1364, "prefix_hit_rate": 0.0031, "spec_acceptance": None},
    "gpus": [{"index": 0, "power_w": 420.4, "utilization": 91.0, "used_bytes": 88 * 2**30}, {"index": 1, "power_w": None}], "power_w": 3420.0,
    "tokens_per_joule": 0.19,
}


def test_a_second_is_told_in_words_and_what_is_not_known_is_said_so() -> None:
    told = sweep_words.live_words(SECOND, 160)
    assert {name: told[name] for name in ("tok_s", "so_far", "per_user", "in_flight", "finished", "errors")} == {
        "tok_s": "688", "so_far": "650", "per_user": "20.3", "in_flight": "32", "finished": "12 of 160", "errors": "1"}
    assert [told[f"ttft_{part}"] for part in ("p50", "p90", "p99")] == ["710", "1,204", "n/a"]
    assert (told["icl_p50"], told["e2e_mean"], told["e2e_p90"]) == ("46.2", "23.7", "n/a")
    assert (told["running"], told["waiting"], told["kv"], told["prefix"], told["accepted"]) == ("30", "2", "13.6", "0.3", "not reported")
    assert (told["power"], told["tokens_per_joule"]) == ("3.42", "0.19")
    assert [(gpu["index"], gpu["util"], gpu["used"], gpu["power"]) for gpu in sweep_words.gpu_rows(SECOND)] == [
        (0, "91", "88.0", "420"), (1, "not reported", "not reported", "not reported")]


@pytest.mark.parametrize("value", [None, "x", [], {}, float("nan"), float("inf"), True, 10**400], ids=range(8))
def test_a_second_of_nonsense_is_no_error(value: Any) -> None:
    nonsense = dict.fromkeys(SECOND, value)
    told = sweep_words.live_words(nonsense, value)
    assert told["running"] == "not reported" and told["ttft_p50"] == "n/a" and told["finished"] == "0"
    assert sweep_words.gpu_rows({"gpus": [nonsense, value, {"index": value, "utilization": value}]}) == []
    assert charts.level_seconds([nonsense])["x"] == [] and charts.told_level(nonsense) is None
    assert charts.level_seconds([{"second": 1, "value": 2.5, "load": "open", "server": value, "errors": value, "output_tok_s": value}])["y"] == [None]


def test_seconds_are_columns_and_errors_are_of_each_second() -> None:
    rows = [{**SECOND, "second": n, "errors": errors} for n, errors in ((1, 0), (3, 4), (2, 1))]
    found = charts.level_seconds(rows)
    assert (found["x"], found["errors"], found["key"], found["name"], found["c"]) == ([1, 2, 3], [0, 1, 3], "32", "C = 32", 32)
    assert found["running"] == [30.0] * 3 and charts.level_seconds([{**SECOND, "server": None}])["running"] is None
    assert charts.level_seconds([{**SECOND, "second": n, "load": "open", "value": 2.5} for n in range(2000)])["x"] == list(range(1100, 2000))


def test_what_no_level_says_of_its_server_has_no_column() -> None:
    rows = [{"label": 1, "server": {"running_max": 1.0, "spec_acceptance": None}, "metrics": {"energy_j": 5000.0}},
            {"label": 8, "server": {}, "metrics": {}}, {"label": 32, "server": {"running_max": 32.0}, "metrics": {}}]
    assert sweep_words.beside_table(rows) == {"heads": [("Running", ""), ("Energy", "kJ")], "lines": [
        {"label": 1, "texts": ["1", "5.00"]}, {"label": 32, "texts": ["32", "not reported"]}]}
    assert sweep_words.beside_table(rows[1:2]) is None


@pytest.mark.django_db
def test_scaling_and_spread_stand_beside_each_level(client: Client, admin_user: Any) -> None:
    """The readings of the story, also of levels that ran before concurrency 1 and of figures that somebody published."""
    story = Story()
    story.node()
    story.service()
    job = story.job("sweep", steps=(("sweep", "Sweep", False),))
    story.step(job, "sweep", end=False, index=0)
    run = "11111111-2222-4333-8444-777777777777"
    story.say(job, EventType.SWEEP_STARTED, run_id=run, preset="story", load="closed", concurrencies=[128, 1, 8], rates=[], requests=[640, 10, 80],
              max_tokens=64, model="m", endpoint="http://127.0.0.1:8000", practice=True, short=False, started_at=story.at, fingerprint={},
              settings={"load": "closed", "concurrencies": [128, 1, 8], "requests": [640, 10, 80]})
    for value, tok_s, more in ((128, 1239.0, {"spread_p99_p50": 1.37, "e2e_p50_s": 50.0, "e2e_p99_s": 68.5}), (1, 61.0, {"scaling_x": 1.0})):
        story.say(job, EventType.LEVEL_FINISHED, run_id=run, metrics={
            "load": "closed", "value": value, "concurrency": value, "requests": 5 * value, "finished": 5 * value, "errors": 0, "output_tok_s": tok_s,
            "scaling_x": None, "marks": [], **more})
    story.say(job, EventType.LEVEL_STARTED, run_id=run, load="closed", value=8, concurrency=8, requests=80, started_at=story.at)
    found = Job.objects.get(pk=story.tell(job).pk)
    rows = job_story.level_rows(found.runs.get())
    assert [(row["c"], row["scaling"], row["spread"]) for row in rows] == [
        (1, 1.0, None), (8, None, None), (128, pytest.approx(20.31, abs=0.01), 1.37)]
    client.force_login(admin_user)
    page = client.get(f"/jobs/{found.number}/").content.decode()
    for text in ('title="16 % of 128 single streams">20.3×</td>', '<td class="num hide-s">1.4</td>', "Scaling"):
        assert text in page, text
    published = practice_reference.seed()
    assert published is not None
    told = reading.text(client.get(f"/benchmarks/{published.pk}/"))
    assert "20.3×" in told and "P99/P50" in told
    assert [(row["value"], row["scaling"]) for row in run_charts.rows(published.levels.all())] == [
        (1, 1.0), (8, pytest.approx(4.54, abs=0.01)), (128, pytest.approx(20.31, abs=0.01))]


@pytest.mark.django_db
def test_a_sweep_of_rates_is_shown_by_rate_while_it_runs(client: Client, admin_user: Any) -> None:
    story = Story()
    story.node()
    story.service()
    job = story.job("sweep", steps=(("sweep", "Sweep", False),))
    story.step(job, "sweep", end=False, index=0)
    run = "11111111-2222-4333-8444-666666666666"
    story.say(job, EventType.SWEEP_STARTED, run_id=run, preset="latency", load="open", concurrencies=[], rates=[0.5, 2.5], requests=[30, 150],
              max_tokens=64, model="m", endpoint="http://127.0.0.1:8000", practice=True, short=False, started_at=story.at,
              settings={"load": "open", "rates": [0.5, 2.5], "requests": [30, 150]}, fingerprint={})
    story.say(job, EventType.LEVEL_STARTED, run_id=run, load="open", value=0.5, concurrency=None, requests=30, started_at=story.at)
    story.say(job, EventType.LEVEL_FINISHED, run_id=run, metrics={
        "load": "open", "value": 0.5, "concurrency": None, "requests": 30, "finished": 30, "errors": 0, "output_tok_s": 30.0, "achieved_s": 0.49,
        "e2e_p50_s": 1.0, "energy_j": 5000.0, "power_mean_w": 2500.0, "tokens_per_joule": 0.012, "marks": ["client-bound", "short"],
        "server": {"running_max": 4.0, "waiting_max": 0.0, "kv_use_max": 0.01, "prefix_hit_rate": 0.0, "spec_acceptance": None, "preemptions": 0.0}})
    story.say(job, EventType.LEVEL_STARTED, run_id=run, load="open", value=2.5, concurrency=None, requests=150, started_at=story.at)
    story.say(job, EventType.LEVEL_SECOND, run_id=run, **{**SECOND, "load": "open", "value": 2.5, "concurrency": None})
    found = Job.objects.get(pk=story.tell(job).pk)
    rows = job_story.level_rows(found.runs.get())
    assert [(row["key"], row["name"], row["c"], row["state"], row["requests"]) for row in rows] == [
        ("0.5/s", "0.5 requests/s", None, "done", 30), ("2.5/s", "2.5 requests/s", None, "running", 150)]
    client.force_login(admin_user)
    page = client.get(f"/jobs/{found.number}/").content.decode()
    for text in ('data-level="2.5/s"', "This level<span data-level-name>, 2.5 requests/s", "12 of 150", "client-bound", "at 2.5 requests/s",
                 '<td class="num">5.00</td>', "over the rate"):
        assert text in page, text
