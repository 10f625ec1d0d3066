"""Runs held against each other: what becomes a side, what is drawn, what is withheld, and the comparison as files."""

from __future__ import annotations

import csv
import io
import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dashboard import comparison_words, comparisons, practice_reference, run_summaries
from dashboard.models import BenchmarkLevel, BenchmarkRun, NoiseFloor, Service
from tests.dashboard.pages import factory, run_data
from tests.dashboard.pages.reading import text

PAGE = "/benchmarks/compare/"
OLD = {"packages": {"vllm": "0.16.0rc2.dev313", "torch": "2.9.1"}, "flags": ["--gpu-memory-utilization", "0.92"], "hash": "1" * 64}
NEW = {"packages": {"vllm": "0.16.0rc2.dev344", "torch": "2.9.1"}, "flags": ["--gpu-memory-utilization", "0.90"], "hash": "2" * 64}


def made(scales: list[float], *, hours: int = 0, fingerprint: dict[str, Any] | None = None, service: Service | None = None, practice: bool = True,
         values: tuple[float, ...] = (1, 8, 128), load: str = "closed", **more: Any) -> list[BenchmarkRun]:
    """Finished runs, `scale` of the story's numbers each, a minute apart from `hours` on. `max_tokens` is of settings and levels,
    the rest of the run."""
    runs = []
    tokens = more.pop("max_tokens", 512)
    for n, scale in enumerate(scales):
        run = BenchmarkRun.objects.create(
            service=service, node_name="practice", service_name="kimi-k25", model=more.pop("model", "kimi-k2.5"), endpoint="http://127.0.0.1:8000",
            preset="story", practice=practice, state="done", started_at=timezone.now() + timedelta(hours=hours, minutes=n),
            settings=run_data.settings(max_tokens=tokens), fingerprint=OLD if fingerprint is None else fingerprint, **more)
        for value in values:
            tok_s, mean_s, _, _, ttft_ms = factory.LEVELS[int(value) if int(value) in factory.LEVELS else 8]
            told = run_data.metrics(value, load=load, tok_s=tok_s, mean_s=mean_s, ttft_ms=ttft_ms, scale=scale, max_tokens=tokens,
                                    with_detail=value == values[-1])
            detail = told.pop("detail", {})
            columns = ("requests", "finished", "errors", "output_tok_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "ttft_p50_ms", "tpot_p50_ms")
            BenchmarkLevel.objects.create(run=run, load=load, value=value, concurrency=told["concurrency"], state="done", metrics=told, detail=detail,
                                          **{name: told[name] for name in columns})
        run_summaries.summarise(run)
        runs.append(run)
    return runs


def sides(*runs: list[BenchmarkRun]) -> str:
    return f"{PAGE}?{'&'.join('side=' + ','.join(str(run.pk) for run in side) for side in runs)}"


def data(response: Any) -> dict[str, Any]:
    """What the charts draw."""
    found = re.search(r'<script id="comparison-data" type="application/json">(.*?)</script>', response.content.decode())
    assert found
    told: dict[str, Any] = json.loads(found.group(1))
    return told


@pytest.fixture
def two(db: None) -> tuple[list[BenchmarkRun], list[BenchmarkRun]]:
    """Three runs of one release, and three of the next, ten percent slower."""
    return made([1.0, 1.01, 0.99]), made([0.9, 0.909, 0.891], hours=1, fingerprint=NEW)


def test_three_runs_a_side_get_verdicts_a_headline_and_an_interval(visitor: Client, two: Any) -> None:
    seen = text(visitor.get(sides(*two)))
    assert "worse" in seen
    assert "Headline: B to A −10.0 ± 0.0 % , geometric mean of the throughput over 3 levels; no errors in any run" in seen
    assert "A and B were not interleaved: all runs of A came first" in seen
    assert seen.count("not tested") == 1  # in the legend


def test_charts_get_every_side_with_the_mean_of_its_runs(visitor: Client, two: Any) -> None:
    told = data(visitor.get(sides(*two)))
    assert [side["name"] for side in told["sides"]] == ["A", "B"]
    assert told["levels"] == [1, 8, 128]
    assert told["points"][0][2]["tput"] == pytest.approx(1239 * (1.0 * 1.01 * 0.99) ** (1 / 3))
    assert told["points"][0][2]["low"] < 1239 < told["points"][0][2]["high"]
    assert [item["word"] for row in told["ratio"]["rows"] for item in row["items"]] == ["worse"] * 3
    assert told["ratio"]["rows"][0]["items"][0]["diff"] == pytest.approx(-10, abs=0.01)
    assert len(told["ecdf"]["sides"][1]["ttft_ms"]) == 101


def test_the_other_metric_has_its_own_ratios(visitor: Client, two: Any) -> None:
    told = data(visitor.get(f"{sides(*two)}&metric=tpot_p50_ms"))
    assert told["ratio"]["title"] == "TPOT P50"
    assert not told["ratio"]["higher"]
    assert told["ratio"]["rows"][0]["items"][0]["diff"] == pytest.approx(100 / 0.9 - 100, abs=0.2)


def test_ticked_runs_become_sides_by_what_they_measured_the_oldest_first(visitor: Client, two: Any) -> None:
    old, new = two
    ticked = "&".join(f"run={run.pk}" for run in [new[0], old[2], new[1], old[0], new[2], old[1]])
    assert visitor.get(f"{PAGE}?{ticked}").url == sides(old, new)


def test_one_more_run_joins_the_sides_that_are_there(visitor: Client, two: Any) -> None:
    other = made([1.0], hours=2, model="glm-5")
    assert visitor.get(f"{sides(*two)}&run={other[0].pk}").url == sides(*two, other)


def test_with_one_run_a_side_it_is_only_said_whether_the_difference_is_outside_the_noise_floor(visitor: Client, db: None) -> None:
    seen = text(visitor.get(sides(made([1.0]), made([0.9], hours=1, fingerprint=NEW))))
    assert "not tested (outside it)" in seen
    assert "2 more runs would decide" in seen
    assert "not interleaved" not in seen
    assert "worse" not in seen.replace("worse same not decided not tested", "")  # the legend


def test_practice_and_real_runs_are_refused_in_words_with_the_way_to_each(visitor: Client, two: Any) -> None:
    real = made([1.0, 1.0], hours=2, practice=False)
    response = visitor.get(sides(two[0], real))
    body = response.content.decode()
    assert response.status_code == 400
    assert "Practice runs are never compared with real ones" in body
    assert sides(two[0]).replace("&", "&amp;") in body
    assert sides(real).replace("&", "&amp;") in body
    assert visitor.get(sides(two[0], real).replace("compare/?", "compare/export/csv/?")).status_code == 400


def test_nine_sides_are_refused_in_words(visitor: Client, db: None) -> None:
    runs = [made([1.0], model=f"model-{n}", values=(1,)) for n in range(9)]
    response = visitor.get(sides(*runs))
    assert response.status_code == 400
    assert "9 sides are too many to be told apart; at most 8" in response.content.decode()
    assert visitor.get(sides(*runs[:8])).status_code == 200
    assert len({(side["color"], side["marker"]) for side in data(visitor.get(sides(*runs[:8])))["sides"]}) == 8


def test_the_published_figures_are_drawn_beside_a_practice_run_without_a_verdict(visitor: Client, db: None) -> None:
    practice_reference.seed()
    reference = [BenchmarkRun.objects.get(origin="practice-reference")]
    response = visitor.get(sides(reference, made([1.0])))
    told, seen = data(response), text(response)
    assert [one["tput"] for one in told["points"][0]] == [61, 277, 1239]
    assert [one["latency"] for one in told["points"][0]] == [8.4, None, 52.8]
    assert told["points"][0][0]["ttft"] is None
    assert [side["imported"] for side in told["sides"]] == [True, False]
    assert {item["word"] for row in told["ratio"]["rows"] for item in row["items"]} == {"no verdict"}
    assert "no verdict" in seen
    assert "A does not report" in seen
    assert "n/a" in seen


def test_the_published_figures_stay_away_from_real_runs(visitor: Client, db: None) -> None:
    practice_reference.seed()
    assert visitor.get(sides([BenchmarkRun.objects.get(origin="practice-reference")], made([1.0], practice=False))).status_code == 400


def test_what_was_asked_otherwise_stands_above_and_withholds_the_verdict_only(visitor: Client, two: Any) -> None:
    response = visitor.get(sides(two[0], made([0.5, 0.51, 0.49], hours=2, max_tokens=128)))
    assert "Measured differently" in text(response)
    assert re.search(r"output tokens asked for 512 128 every shared level", text(response))
    assert {item["word"] for row in data(response)["ratio"]["rows"] for item in row["items"]} == {"no verdict"}
    assert len(data(response)["points"][1]) == 3


def test_levels_without_a_counterpart_are_listed(visitor: Client, db: None) -> None:
    seen = text(visitor.get(sides(made([1.0]), made([1.0], hours=1, fingerprint=NEW, values=(1, 32)))))
    assert "A: C=8, C=128 are in no other side" in seen
    assert "B: C=32 is not in the baseline" in seen
    assert "no such level" in seen


def test_a_measured_noise_floor_takes_the_place_of_the_default(visitor: Client, story: factory.Story) -> None:
    old, new = made([1.0], service=story.the_service), made([0.9], hours=1, fingerprint=NEW, service=story.the_service)
    assert {row["items"][0]["floor"] for row in data(visitor.get(sides(old, new)))["ratio"]["rows"]} == {3.0}
    NoiseFloor.objects.create(node=story.the_node, service=story.the_service, sweep_key=old[0].sweep_key, load="closed", value=8,
                              metric="output_tok_s", half_width=0.12, runs=6, measured_at=timezone.now())
    response = visitor.get(sides(old, new))
    assert [row["items"][0]["floor"] for row in data(response)["ratio"]["rows"]] == [3.0, 12.0, 3.0]
    assert "within the noise floor" in text(response)
    assert "1 value measured on practice" in text(response)
    assert "Decide: run 2 more of B" in text(response)


def test_facts_that_differ_are_marked_and_all_can_be_shown(visitor: Client, two: Any) -> None:
    seen = text(visitor.get(sides(*two)))
    assert "0.16.0rc2.dev313 0.16.0rc2.dev344" in seen
    assert "--gpu-memory-utilization 0.92 0.90" in seen
    assert "torch" not in seen
    assert "torch 2.9.1 2.9.1" in text(visitor.get(f"{sides(*two)}&facts=all"))


def test_a_run_that_is_gone_is_left_out_and_said(visitor: Client, two: Any) -> None:
    seen = text(visitor.get(f"{sides(*two)},{uuid.uuid4()}"))
    assert "1 run is not here any more, and left out" in seen
    response = visitor.get(f"{PAGE}?side={uuid.uuid4()}")
    assert response.status_code == 404
    assert "not here any more" in response.content.decode()


@pytest.mark.parametrize("query", ["side=x", "side=1,2", "run=../../etc"], ids=["word", "numbers", "path"])
def test_what_is_no_id_is_told_so(visitor: Client, two: Any, query: str) -> None:
    response = visitor.get(f"{PAGE}?{query}")
    assert response.status_code == 400
    assert "is not the id of a run" in response.content.decode()


@pytest.mark.parametrize("query", ["metric=<b>", "load=x", "level=closed:7", "level=closed:nan", "facts=none", "level=open:1"])
def test_a_choice_that_there_is_not_shows_the_usual_one(visitor: Client, two: Any, query: str) -> None:
    assert "Headline" in text(visitor.get(f"{sides(*two)}&{query}"))


def test_runs_that_would_decide_are_offered_while_the_service_still_runs_that_release(visitor: Client, story: factory.Story) -> None:
    old = made([1.0], service=story.the_service, release="before")
    new = made([0.9], hours=1, fingerprint=NEW, service=story.the_service, release=factory.OLD)
    seen = text(visitor.get(sides(old, new)))
    assert "Decide: run 2 more of B" in seen
    assert "more of A" not in seen
    other = made([0.9], hours=2, service=story.the_service, release=factory.OLD, values=(32,))
    assert "Decide: run" not in text(visitor.get(sides(old, other)))


def test_rates_have_charts_of_their_own(visitor: Client, two: Any) -> None:
    rates = made([1.0], hours=3, values=(0.5, 2.5), load="open")
    told = data(visitor.get(f"{sides(two[0], rates)}&load=open"))
    assert told["names"] == ["0.5/s", "2.5/s"]
    assert told["points"][0] == []
    assert data(visitor.get(sides(two[0], rates)))["load"] == "closed"


def test_one_run_alone_is_drawn_and_asks_for_another(visitor: Client, two: Any) -> None:
    response = visitor.get(sides(two[0][:1]))
    assert "alone: add a run" in text(response)
    assert data(response)["ratio"] is None
    assert f"run={two[1][0].pk}" in response.content.decode()


def test_runs_of_nothing_are_told_so(visitor: Client, db: None) -> None:
    response = visitor.get(sides(made([1.0], values=()), made([1.0], values=())))
    assert response.status_code == 400
    assert "None of these runs has a level that was measured" in response.content.decode()


def test_text_of_people_and_files_is_text(visitor: Client, db: None) -> None:
    bad = "<script>alert(1)</script>"
    body = visitor.get(sides(made([1.0], label=bad, model=bad), made([1.0], hours=1, fingerprint={"packages": {bad: bad}}))).content.decode()
    assert bad not in body
    assert "&lt;script&gt;alert(1)" in body


def test_csv_json_and_markdown_say_what_the_page_says(visitor: Client, two: Any) -> None:
    def export(fmt: str) -> Any:
        response = visitor.get(sides(*two).replace("compare/?", f"compare/export/{fmt}/?"))
        assert response.status_code == 200
        assert response["Content-Disposition"] == f'attachment; filename="comparison.{fmt}"'
        return response.content.decode()

    told = json.loads(export("json"))
    assert told["schema"] == "roundhouse.comparison/1"
    assert told["levels"][0]["verdicts"][1]["output_tok_s"]["word"] == "worse"
    rows = list(csv.DictReader(io.StringIO(export("csv"))))
    mine = next(row for row in rows if row["metric"] == "output_tok_s" and row["side"] == "B" and float(row["value"]) == 8)
    assert mine["verdict"] == "worse"
    assert float(mine["ratio_to_baseline"]) == pytest.approx(0.9)
    assert "worse" in export("md")


def test_each_side_is_given_out_in_the_schema_of_vllm_bench(visitor: Client, two: Any) -> None:
    links = re.findall(r'href="(/benchmarks/[^"]*/export/vllm/[^"]*)"', visitor.get(sides(*two)).content.decode())
    told = [visitor.get(link.replace("&amp;", "&")).json() for link in links]
    assert [one["output_throughput"] for one in told] == pytest.approx([0.93 * 1239, 0.93 * 0.9 * 1239])  # of the whole run, as that tool counts
    assert told[0]["max_concurrency"] == 128


def test_a_file_of_another_kind_is_not_there(visitor: Client, two: Any) -> None:
    assert visitor.get(sides(*two).replace("compare/?", "compare/export/exe/?")).status_code == 404


def test_six_runs_are_a_handful_of_queries_and_a_small_page(visitor: Client, two: Any, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    visitor.get(sides(*two))
    with django_assert_max_num_queries(22):
        response = visitor.get(sides(*[[run] for side in two for run in side]))
    assert len(response.content) < 300_000


def test_errors_beat_every_other_verdict(visitor: Client, two: Any) -> None:
    better = made([1.2, 1.21, 1.19], hours=3, fingerprint=NEW)
    for level in BenchmarkLevel.objects.filter(run__in=better, value=8):
        level.metrics |= {"errors": 1, "finished": 199, "errors_by_kind": {"http_500": 1}}
        level.save()
    told = data(visitor.get(sides(two[0], better)))
    assert [row["items"][0]["word"] for row in told["ratio"]["rows"]] == ["better", "worse", "better"]
    assert "errors" in told["ratio"]["rows"][1]["items"][0]["note"]


def test_the_first_comparison_is_one_click_away(visitor: Client, db: None) -> None:
    practice_reference.seed()
    run = made([1.0])[0]
    body = visitor.get(PAGE).content.decode()
    assert f"{PAGE}?side={practice_reference.ID}&amp;side={run.pk}" in body
    assert "beside the published figures" in body


def test_the_mean_of_a_side_is_geometric_and_knows_nothing_of_what_is_not_there() -> None:
    assert comparisons.centre([1.0, None, 4.0]) == pytest.approx(2.0)
    assert comparisons.centre([None, "x", True]) is None
    assert comparisons.centre([0.0, 4.0]) == 2.0
    assert comparisons.interval([3.0]) == (None, None)


def test_what_holds_of_several_sides_is_said_once() -> None:
    order = [f"A and {name} were not interleaved: all runs of A came first" for name in "BC"]
    withheld = [f"{name} gets no verdict: imported runs get no verdict against measured ones" for name in "DEF"]
    assert comparison_words.notes({"notes": [*order, *withheld, "B: few requests or a short window at C=1"]}) == [
        "A, B and C were not interleaved: all runs of A came first",
        "D, E and F get no verdict: imported runs get no verdict against measured ones", "B: few requests or a short window at C=1"]


HOSTILE = {"word": "<b>x</b>", "negative": -5.0, "huge": 1e308, "integer": 10**400, "list": [1], "truth": True, "nothing": None, "object": {"a": {}}}


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_number_that_is_none_is_not_reported_and_breaks_nothing(visitor: Client, db: None, bad: Any) -> None:
    old, new = made([1.0], values=(8,)), made([0.9], values=(8,), hours=1)
    for level in BenchmarkLevel.objects.filter(run__in=new):
        level.metrics = dict.fromkeys(level.metrics, bad) | {"load": "closed", "value": 8, "state": "done"}
        level.detail = {"ecdf": {"ttft_ms": [bad] * 101, "icl_ms": bad}}
        level.save()
    response = visitor.get(sides(old, new))
    assert response.status_code == 200
    assert "<b>x</b>" not in response.content.decode()
    assert not re.search(r"\b(NaN|Infinity)\b", response.content.decode())
    assert visitor.get(sides(old, new).replace("compare/?", "compare/export/csv/?")).status_code == 200


def test_runs_of_one_stack_that_are_ticked_alone_are_held_against_each_other_by_job(visitor: Client, story: factory.Story) -> None:
    story.node()
    story.service()
    runs = [*story.measured(ago_s=9000, repeats=2), *story.measured(ago_s=600)]
    got = visitor.get("/benchmarks/compare/", {"run": [str(run.pk) for run in runs]}, follow=True)
    assert got.redirect_chain[0][0].count("side=") == 2
    assert "Each job is a side of its own" in got.content.decode()
