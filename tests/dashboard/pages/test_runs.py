"""The pages of runs: the list, one run, what people say of it, imports, exports, and a service over time."""

from __future__ import annotations

import gzip
import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard import run_charts, run_list, run_summaries, trends
from dashboard.models import BenchmarkLevel, BenchmarkRun, Service
from dashboard.run_list import Chosen
from tests.dashboard.pages import factory, run_data
from tests.dashboard.pages.reading import text

SERVICE = "/services/practice/kimi-k25/"


@pytest.fixture
def runs(story: factory.Story) -> dict[str, BenchmarkRun]:
    """Runs that differ in everything that a list filters by, newest first in this order."""
    made = {}
    now = timezone.now()
    for n, (name, more) in enumerate({
        "plain": {}, "failed": {"state": "failed"}, "real": {"practice": False, "model": "glm-5"},
        "old": {"started_at": now - timedelta(days=400), "release": factory.OLD}, "tagged": {"tags": ["nightly", "größer"], "label": "Before <b>"},
        "theirs": {"tool": "guidellm", "tool_version": "0.8", "origin": "imported", "service": None, "node_name": "", "service_name": ""},
    }.items()):
        values: dict[str, Any] = {
            "service": story.the_service, "node_name": "practice", "service_name": "kimi-k25", "model": "kimi-k2.5",
            "endpoint": "http://127.0.0.1:8000", "preset": "story", "release": factory.NEW, "practice": True, "state": "done",
            "started_at": now - timedelta(hours=n), "settings": run_data.settings(), "fingerprint": story.fingerprint(factory.NEW), **more}
        run = made[name] = BenchmarkRun.objects.create(**values)
        BenchmarkLevel.objects.create(run=run, load="closed", value=1, concurrency=1, state="done", output_tok_s=50.0 + n, errors=n % 2)
        run_summaries.summarise(run)
    return made


def listed(**asked: str) -> set[uuid.UUID]:
    return {run.pk for run in run_list.page(Chosen.of(asked), 1)[1]}


ALL = "plain failed real old tagged theirs"
LONG_AGO = (timezone.now() - timedelta(days=300)).date().isoformat()
FOUND: dict[str, tuple[dict[str, str], str]] = {
    "service": ({"service": "practice/kimi-k25"}, "plain failed real old tagged"), "model": ({"model": "glm-5"}, "real"),
    "release": ({"release": factory.OLD}, "old"), "tool": ({"tool": "guidellm"}, "theirs"), "tag": ({"tag": "nightly"}, "tagged"),
    "tag-not-ascii": ({"tag": "größer"}, "tagged"), "tag-whole": ({"tag": "night"}, ""), "kind": ({"kind": "real"}, "real"),
    "state": ({"state": "failed"}, "failed"), "search": ({"q": "BEFORE <b> nightly"}, "tagged"), "search-no-pattern": ({"q": "%"}, ""),
    "until-none": ({"until": "2000-01-01"}, ""), "since": ({"since": LONG_AGO}, "plain failed real tagged theirs"),
    "until": ({"until": LONG_AGO}, "old"), "unknown-values": ({"kind": "odd", "state": "odd", "since": "x"}, ALL)}


@pytest.mark.parametrize(("asked", "found"), FOUND.values(), ids=FOUND)
def test_a_filter_finds_what_it_names(runs: dict[str, BenchmarkRun], asked: dict[str, str], found: str) -> None:
    assert listed(**asked) == {runs[name].pk for name in found.split()}


@pytest.mark.parametrize("column", run_list.COLUMNS, ids=[column.name for column in run_list.COLUMNS])
def test_every_column_orders_both_ways_and_the_unknown_comes_last(runs: dict[str, BenchmarkRun], visitor: Client, column: run_list.Column) -> None:
    BenchmarkRun.objects.filter(pk=runs["old"].pk).update(single_tok_s=None, peak_tok_s=None, peak_p99_s=2.0)
    for sort in (column.name, f"-{column.name}"):
        values = [getattr(run, column.order) for run in run_list.page(Chosen.of({"sort": sort}), 1)[1]]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=sort.startswith("-")) and values[:len(known)] == known
    page = visitor.get("/benchmarks/", {"sort": f"-{column.name}", "state": "done"}).content.decode()
    assert len(re.findall('aria-sort="descending"', page)) == 1
    assert f"state=done&amp;sort={column.name}" in page  # pressed again it turns round, and the filter stays


def test_a_list_reads_neither_fingerprints_nor_levels(runs: dict[str, BenchmarkRun], django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(3):  # how many, which, and their rows
        page, rows = run_list.page(Chosen.of({"q": "kimi", "kind": "practice"}), 1)
        assert page.paginator.count == len(rows) == 5
        assert all({"fingerprint", "settings", "notes", "search"} <= run.get_deferred_fields() for run in rows)


def test_the_index_of_lists_answers_any_mixture_of_filters(runs: dict[str, BenchmarkRun]) -> None:
    asked = Chosen.of({"q": "kimi", "service": "practice/kimi-k25", "model": "kimi-k2.5", "tag": "nightly", "kind": "practice", "state": "done",
                       "since": "2020-01-01", "release": factory.NEW, "tool": "roundhouse", "sort": "-p99"})
    assert "COVERING INDEX list_of_runs" in run_list.runs(asked).values_list("pk").explain()


def test_what_people_wrote_is_text_on_every_page(runs: dict[str, BenchmarkRun], visitor: Client) -> None:
    for path in ("/benchmarks/", f"/benchmarks/{runs['tagged'].pk}/", f"/benchmarks/{runs['tagged'].pk}/edit/", f"{SERVICE}trend/"):
        page = visitor.get(path)
        assert page.status_code == 200 and "Before <b>" not in page.content.decode() and "Before &lt;b&gt;" in page.content.decode(), path


def test_a_run_shows_every_chart_with_a_table_of_the_same_numbers(visitor: Client, story: factory.Story) -> None:
    run = story.measured(slos={"ttft_ms": 1000.0, "tpot_ms": 60.0})[0]
    page = visitor.get(f"/benchmarks/{run.pk}/").content.decode()
    for chart in ("throughput", "latency", "ttft", "tpot", "pareto", "goodput", "ecdf-ttft", "ecdf-icl", "level-seconds", "level-requests"):
        assert f'id="{chart}"' in page and f'data-png="{chart}"' in page, chart
    data = json.loads(re.search(r'id="run-data" type="application/json">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert [one["label"] for one in data["points"]] == ["1", "8", "32", "128"]
    assert data["slos"] == {"ttft_ms": 1000.0, "tpot_ms": 60.0} and data["target"] == [40, 50]
    assert len(data["shapes"]["ttft"]["closed:8"]) == 101
    seen = text(visitor.get(f"/benchmarks/{run.pk}/"))
    assert "target 40–50 met" in seen and "PRACTICE" in seen and "goodput" in seen.lower()
    assert run_charts.twins(data)["goodput"]["rows"][-1][1] != "n/a"
    level = visitor.get(f"/benchmarks/{run.pk}/levels/closed:8/").json()
    assert len(level["timeline"]) == 100 and level["seconds"]["tok_s"] and level["seconds"]["from"] is not None
    for wrong in ("closed:9", "closed:x", "odd", "closed:nan"):
        assert visitor.get(f"/benchmarks/{run.pk}/levels/{wrong}/").status_code == 404


def test_a_level_longer_than_its_bars_stands_at_its_own_seconds_and_one_without_a_steady_window_has_its_whole_rate(
        visitor: Client, runs: dict[str, BenchmarkRun]) -> None:
    run = runs["plain"]
    run.levels.update(metrics={"steady_requests_s": None, "whole_requests_s": 2.5},
                      detail={"seconds": {"tok_s": [10.0] * 400, "step_s": 4, "from_s": 8.0, "to_s": 1500.0}})
    level = run.levels.all()[0]
    seconds = visitor.get(f"/benchmarks/{run.pk}/levels/{run_charts.key(level)}/").json()["seconds"]
    assert (len(seconds["tok_s"]), seconds["step"], seconds["to"]) == (400, 4, 1500)
    assert run_charts.point(level)["requests_s"] == 2.5


def test_numbers_that_are_none_are_left_out_of_a_runs_page(visitor: Client, runs: dict[str, BenchmarkRun]) -> None:
    run = runs["plain"]
    run.levels.update(
        metrics={"ttft_p50_ms": "Infinity", "tpot_p50_ms": "9", "marks": [1, "short", {}], "gpus": [None, {"utilization_mean": "x"}],
                 "server": 3, "errors_by_kind": {"x": None}, "finished": None, "e2e_n": 10**400},
        detail={"ecdf": {"ttft_ms": [1] * 7, "icl_ms": ["x"] * 101}, "seconds": {"tok_s": "x"},
                "timeline": [1, {"s": None}, {"s": 1, "q": "x"}]})
    page = visitor.get(f"/benchmarks/{run.pk}/")
    assert page.status_code == 200 and "n/a" in text(page)
    assert "Infinity" not in page.content.decode()
    told = visitor.get(f"/benchmarks/{run.pk}/levels/closed:1/").json()
    assert told["seconds"] is None and told["timeline"] == [{"q": None, "s": 1.0, "f": None, "c": None, "e": None, "err": ""}]


def test_a_queue_delay_above_a_millisecond_stands_beside_the_latency_that_holds_it(visitor: Client, runs: dict[str, BenchmarkRun]) -> None:
    run = runs["plain"]
    for queue, told in ((0.9, False), (5020.0, True)):
        run.levels.update(metrics={"queue_p50_ms": queue, "queue_p99_ms": None, "e2e_p50_s": 8.4, "e2e_from_schedule_p50_s": 13.42})
        seen = text(visitor.get(f"/benchmarks/{run.pk}/"))
        assert ("P50 with queue" in seen) is told and ("13.4" in seen) is told


def test_a_label_notes_and_tags_are_found_by_a_search(member: Client, runs: dict[str, BenchmarkRun]) -> None:
    address = f"/benchmarks/{runs['plain'].pk}/edit/"
    assert member.post(address, {"label": "Quiet night", "tags": "One two, nightly ,, nightly", "notes": "fans at 40 %"}).status_code == 302
    run = BenchmarkRun.objects.get(pk=runs["plain"].pk)
    assert run.tags == ["one two", "nightly"]
    assert run.pk in listed(q="fans quiet") and run.pk in listed(tag="one two")
    refused = member.post(address, {"label": "x" * 121, "tags": ",".join(f"t{n}" for n in range(21))})
    assert refused.status_code == 400 and "At most 20 tags" in refused.content.decode()
    assert "nightly" in member.get(address, headers={"X-Roundhouse-Fragment": "dialog"}).content.decode()


def test_a_run_is_pinned_and_unpinned_by_post(member: Client, runs: dict[str, BenchmarkRun]) -> None:
    address = f"/benchmarks/{runs['plain'].pk}/baseline/"
    assert member.get(address).status_code == 405
    member.post(address)
    assert Service.objects.get().baseline_id == runs["plain"].pk
    assert "baseline" in text(member.get("/benchmarks/"))
    assert "Compare with the baseline" in text(member.get(f"/benchmarks/{runs['old'].pk}/"))
    assert f"?side={runs['plain'].pk}&amp;side={runs['old'].pk}" in member.get(f"/benchmarks/{runs['old'].pk}/").content.decode()
    member.post(address, {"pin": "no"})
    assert Service.objects.get().baseline_id is None
    assert member.post(f"/benchmarks/{runs['theirs'].pk}/baseline/").status_code == 400


def test_a_run_and_the_one_before_it_are_two_sides_though_their_stacks_are_equal(visitor: Client, story: factory.Story) -> None:
    values: dict[str, Any] = {
        "service": story.the_service, "node_name": "practice", "service_name": "kimi-k25", "model": "kimi-k2.5", "practice": True, "state": "done",
        "fingerprint": story.fingerprint(factory.NEW), "settings": run_data.settings(), "stack": "s", "sweep_key": "k"}
    group = uuid.uuid4()
    made = [BenchmarkRun.objects.create(started_at=timezone.now() + timedelta(minutes=n), group=group if n in (1, 2) else None, group_index=n,
                                        **values) for n in range(4)]
    for run in made:
        BenchmarkLevel.objects.create(run=run, load="closed", value=1, concurrency=1, state="done", output_tok_s=50.0)
        run_summaries.summarise(run)

    def sides(run: BenchmarkRun) -> list[str]:
        link = re.search(r'href="(/benchmarks/compare/[^"]*)">Compare with the run before', visitor.get(f"/benchmarks/{run.pk}/").content.decode())
        assert link is not None
        return re.findall(r"side=([^&]*)", link[1])

    keys = [str(run.pk) for run in made]
    assert sides(made[3]) == [",".join(keys[1:3]), keys[3]], "all repeats of the one before"
    assert sides(made[2]) == keys[1:3], "within one group each by itself"


def test_a_run_that_names_neither_service_nor_model_can_be_opened_and_adds_no_empty_choice(visitor: Client, runs: dict[str, BenchmarkRun]) -> None:
    BenchmarkRun.objects.filter(pk=runs["theirs"].pk).update(model="", endpoint="", label="", tool="sglang bench_serving")
    page = visitor.get("/benchmarks/").content.decode()
    assert f'href="/benchmarks/{runs["theirs"].pk}/">sglang bench_serving</a>' in page
    assert "<h1>sglang bench_serving</h1>" in visitor.get(f"/benchmarks/{runs['theirs'].pk}/").content.decode()
    assert run_list.choices()["models"] == ["glm-5", "kimi-k2.5"]


def test_the_fleet_page_takes_no_imported_run_for_a_sweep(visitor: Client, runs: dict[str, BenchmarkRun]) -> None:
    BenchmarkRun.objects.exclude(pk=runs["theirs"].pk).delete()
    assert "no sweep yet" in text(visitor.get("/"))


def test_a_run_is_exported_and_its_original_comes_back_as_it_was(visitor: Client, story: factory.Story) -> None:
    ours, theirs = story.measured()[0], story.imported()
    for fmt, part in (("csv", "1226.61"), ("json", '"roundhouse.sweep/'), ("md", "| C=128 |")):
        answer = visitor.get(f"/benchmarks/{ours.pk}/export/{fmt}/")
        assert answer.status_code == 200 and part in answer.content.decode(), fmt
        assert answer.headers["Content-Disposition"].startswith('attachment; filename="kimi-k25-')
    assert visitor.get(f"/benchmarks/{ours.pk}/export/vllm/?level=closed:8").json()["max_concurrency"] == 8
    for wrong in ("pdf/", "vllm/", "vllm/?level=closed:9"):
        assert visitor.get(f"/benchmarks/{ours.pk}/export/{wrong}").status_code == 404
    assert theirs.imported is not None
    original = visitor.get(f"/benchmarks/{theirs.pk}/original/")
    assert original.content == gzip.decompress(theirs.imported.content) and original.headers["Content-Type"] == "application/octet-stream"
    assert visitor.get(f"/benchmarks/{ours.pk}/original/").status_code == 404


def test_a_file_of_another_tool_is_imported_once(member: Client, story: factory.Story) -> None:
    run = story.measured()[0]
    content = member.get(f"/benchmarks/{run.pk}/export/vllm/?level=closed:8").content

    def sent(data: bytes) -> Any:
        return member.post("/benchmarks/import/", {"files": SimpleUploadedFile("result.json", data)}, follow=True)

    first = sent(content)
    made = BenchmarkRun.objects.get(origin="imported")
    assert first.redirect_chain == [(f"/benchmarks/{made.pk}/", 302)] and "whose definitions are not ours" in text(first)
    assert "already" in text(sent(content)) and BenchmarkRun.objects.filter(origin="imported").count() == 1
    BenchmarkLevel.objects.filter(run=made).update(metrics={"errors": None})
    run_summaries.summarise(made)
    assert "not reported" in text(member.get(f"/benchmarks/{made.pk}/")).split("Errors", 1)[1][:20], "errors that a tool does not tell are not none"
    refused = sent(b'{"what": "is this"}')
    assert refused.status_code == 400 and "Not imported" in refused.content.decode() and "result.json" in refused.content.decode()
    assert "Choose a file" in member.post("/benchmarks/import/", {}).content.decode()


def test_a_trend_names_what_changed_and_takes_medians_between_changes(visitor: Client, story: factory.Story) -> None:
    story.measured(ago_s=5 * 86400, release=factory.OLD, repeats=3)
    story.measured(ago_s=86400, repeats=3, scale=0.9)
    found = trends.trend(story.the_service)
    assert found["level"] == "closed:1" and [one["runs"] for one in found["stretches"]] == [3, 3]
    assert [round(one["median"], 1) for one in found["stretches"]] == [61.0, 54.9]
    (change,) = found["changes"]
    assert any("0.16.0rc2.dev344" in word for word in change["words"])
    assert trends.trend(story.the_service, level="closed:128", metric="ttft_p50_ms", kind="odd")["unit"] == "ms"
    page = visitor.get(f"{SERVICE}trend/?level=open:3&metric=odd")
    assert page.status_code == 200 and 'id="change-1"' in page.content.decode()
    assert "Nothing to draw yet" in text(visitor.get(f"{SERVICE}trend/")) if BenchmarkRun.objects.all().delete() else None


def test_a_target_is_set_and_given_back_to_the_record(member: Client, story: factory.Story) -> None:
    address = f"{SERVICE}target/"
    for wrong in ({"low": "50", "high": "40"}, {"low": "5"}, {"low": "nan", "high": "1"}, {"low": "x", "high": "1"}, {"low": "-1", "high": "1"}):
        assert member.post(address, wrong).status_code == 400, wrong
    member.post(address, {"low": "45", "high": "60"})
    assert Service.objects.get().target_tok_s == [45.0, 60.0]
    story.measured()
    assert "Target 45–60 tok/s" in text(member.get(SERVICE)) and "45–60 tok/s, single stream" in text(member.get(SERVICE))
    run = BenchmarkRun.objects.filter(origin="roundhouse").order_by("-started_at")[0]
    run.levels.filter(concurrency=1).update(output_tok_s=44.0)
    assert "target 45–60 not met" in text(member.get("/")), "not that of the record"
    member.post(address, {"low": "", "high": ""})
    assert Service.objects.get().target_tok_s is None


def test_who_is_not_signed_in_sees_no_run(runs: dict[str, BenchmarkRun], admin: User) -> None:
    for path in ("/benchmarks/", "/benchmarks/import/", f"/benchmarks/{runs['plain'].pk}/", f"/benchmarks/{runs['plain'].pk}/export/csv/",
                 f"/benchmarks/{runs['plain'].pk}/levels/closed:1/", f"{SERVICE}trend/", f"{SERVICE}target/"):
        assert Client().get(path).status_code == 302, path


def test_only_a_runs_own_page_reads_the_curves_of_its_levels(visitor: Client, story: factory.Story) -> None:
    run = story.measured()[0]
    assert run.job is not None
    own = f"/benchmarks/{run.pk}/"
    for path in ("/", "/services/", SERVICE, f"/jobs/{run.job.number}/?step=sweep", f"{SERVICE}trend/", f"{SERVICE}sweep/", "/benchmarks/", own):
        with CaptureQueriesContext(connection) as queries:
            assert visitor.get(path).status_code == 200
        assert sum('"dashboard_benchmarklevel"."detail"' in query["sql"] for query in queries) == (path == own), path
