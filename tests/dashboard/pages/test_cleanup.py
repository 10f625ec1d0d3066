"""Cleanup as pages: what a node can give back, a preview that works without scripts, the question before a purge, and manifests."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http.request import QueryDict
from django.test import Client

from dashboard import cleanup_story
from dashboard.models import ArtifactScan, AuditEntry, Job, PurgedArtifact, ScannedArtifact
from ops.artifacts.found import Choice
from tests.dashboard.pages import cleanup_data, factory
from tests.dashboard.pages.reading import form_with, text

pytestmark = pytest.mark.django_db
PAGE, ROWS, PURGE, SCAN = "/cleanup/practice/", "/cleanup/practice/rows/", "/cleanup/practice/purge/", "/cleanup/practice/scan/"


@pytest.fixture
def scanned(story: factory.Story) -> tuple[Job, cleanup_data.World]:
    return cleanup_data.scan_job(story)


def sent(response: Any, **changed: Any) -> dict[str, Any]:
    """What a browser without scripts would send of the page's form."""
    return form_with(response, "scan") | {name: value if isinstance(value, list) else [value] for name, value in changed.items()}


# ---- states of a node ----


def test_a_node_that_was_never_scanned_says_what_a_scan_does_and_offers_one(visitor: Client, story: factory.Story) -> None:
    seen = text(visitor.get(PAGE))
    assert "practice was never scanned" in seen
    assert "It opens no file and changes nothing" in seen
    assert "Nobody has looked yet" in text(visitor.get("/cleanup/"))


def test_the_list_says_what_can_be_given_back_and_how_full_the_disks_are(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    seen = text(visitor.get("/cleanup/"))
    assert "10.2 GB can be given back; up to 52.2 GB with what may still be worth keeping" in seen
    assert "21.4 GB free of 240 GB" in seen


def test_a_running_scan_shows_how_far_it_is(visitor: Client, story: factory.Story) -> None:
    job, _ = cleanup_data.scan_job(story, end=False, ago_s=5)
    seen = text(visitor.get(PAGE))
    assert f"Scanning the disks #{job.number}" in seen
    assert "/srv/roundhouse/practice/cache/flashinfer 8,112 files" in seen
    part = visitor.get(f"{PAGE}?part=running", headers={"X-Roundhouse-Fragment": "part"})
    assert (part["X-Job-Seq"], f'data-running-job="{job.pk}"' in part.content.decode()) == (str(job.last_seq), True)


def test_a_scan_that_failed_says_why_beside_what_is_known_from_before(visitor: Client, story: factory.Story) -> None:
    cleanup_data.scan_job(story)
    job = story.job("artifact-scan", ago_s=60, of=story.the_node)
    story.end(job, "failed", reason="The disk of the state folder is full")
    seen = text(visitor.get(PAGE))
    assert "The newest scan failed" in seen
    assert "The disk of the state folder is full What is shown is of the scan before it." in seen
    assert "Debug tensors 35 files" in seen


def test_a_scan_that_found_nothing_is_good_news(visitor: Client, story: factory.Story) -> None:
    found = cleanup_data.world("", rows=[])
    cleanup_data.scan_job(story, found=found)
    assert "Nothing to clean up" in text(visitor.get(PAGE))


# ---- the preview ----


def test_a_preview_opens_with_all_that_is_offered_chosen_and_exact_totals(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    response = visitor.get(PAGE)
    seen = text(response)
    offered = scanned[1].chosen(scanned[1].offered)
    assert f"Chosen {len(offered):,} items 10.2 GB" in seen
    assert "Free now 21.4 GB of 240 GB on /srv/roundhouse/practice Free after 31.6 GB" in seen
    ticked = form_with(response, "scan")["kinds"]
    assert "debug-tensor" in ticked and "core-dump" not in ticked and "shm-segment" not in ticked
    assert "not chosen: May still explain a crash" in seen
    assert "FlashInfer 0.6.3 is installed in kimi-k25" in seen


def test_rows_are_ordered_and_filtered_by_the_server(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    by_path = text(visitor.get(ROWS, {"sort": "path", "q": "dbg_layer1"}))
    assert "11 of 35 files" in by_path
    assert by_path.index("dbg_layer10_000.pt") < by_path.index("dbg_layer11_000.pt")
    assert "dbg_layer10_000.pt of kimi-k25" in by_path  # which service it came from
    assert "Stale compile caches" not in by_path
    assert "psm_3fa81c02" in text(visitor.get(ROWS, {"state": "kept", "kind": "shm-segment"}))
    old = visitor.get(ROWS, {"older": "1209600", "larger": "1000000000", "numbers": "1"}).json()["kinds"]
    assert {kind: len(rows) for kind, rows in old.items()} == {"compile-cache": 2, "flashinfer-jit": 1, "old-release": 2, "core-dump": 1}


def test_more_rows_of_a_kind_come_as_a_fragment_and_the_last_line_tells_of_those_that_are_not_listed(
        visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    first = text(visitor.get(ROWS, {"of": "function-trace", "start": "6"}))
    assert first.count("VLLM_TRACE_FUNCTION") == 50 and "4 more" in first
    last = text(visitor.get(ROWS, {"of": "function-trace", "start": "56"}))
    assert last.count("VLLM_TRACE_FUNCTION") == 4
    assert "and 3,080 more that are not listed" in last


def test_without_scripts_a_filter_keeps_what_was_chosen(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    form = sent(visitor.get(PAGE))
    left_out, *form["number"] = form["shown-debug-tensor"][0].split(",")  # one debug tensor stays, and nothing of other kinds goes
    form["kinds"] = ["debug-tensor"]
    filtered = visitor.post(PAGE, form | {"q": "torch_compile_cache", "filter": "yes"})
    assert "34 debug tensors" in text(filtered)
    back = visitor.post(PAGE, sent(filtered, q=""))
    assert "34 debug tensors" in text(back)
    assert left_out not in form_with(back, "scan").get("number", [])
    asked = visitor.post(PURGE, sent(back))
    assert "Delete 34 items, 63.4 MB, on practice?" in text(asked)


@pytest.mark.parametrize(("press", "more", "words"), [
    ("none", {}, "Nothing is chosen."), ("all", {}, "items of 11 kinds"), ("all", {"q": "dbg_layer1"}, "items of 7 kinds"),
    ("none", {"kind": "debug-tensor"}, "items of 6 kinds")], ids=["none", "all", "all-of-a-filter", "none-of-a-filter"])
def test_without_scripts_all_and_none_act_on_what_the_filter_finds(
        visitor: Client, scanned: tuple[Job, cleanup_data.World], press: str, more: dict[str, str], words: str) -> None:
    assert words in text(visitor.post(PAGE, sent(visitor.get(PAGE), choose=press) | more))


@pytest.mark.parametrize(("form", "choice"), [
    ("kinds=a&number=1&number=2&shown-a=1,2,3", Choice(kinds=["a"], without=[3])),
    ("number=1&number=2&shown-a=1,2,3", Choice(numbers=[1, 2])),
    ("kinds=a&number=7&shown-a=1,2&shown-b=7,8", Choice(kinds=["a"], numbers=[7], without=[1, 2])),
    ("kinds=a&numbers=40,41,1&without=9,2&number=1&shown-a=1,2", Choice(kinds=["a"], numbers=[40, 41], without=[2, 9])),
    ("numbers=1,x,-3,,99999999999999&without=", Choice(numbers=[1])),
    ("kinds=a&kinds=a", Choice(kinds=["a"])), ("", Choice())],
    ids=["whole-without-one", "single-rows", "two-kinds", "carried", "nonsense", "twice", "nothing"])
def test_a_form_is_read_as_the_choice_that_its_boxes_show(form: str, choice: Choice) -> None:
    assert cleanup_story.chosen(QueryDict(form)) == choice


def test_after_a_purge_the_preview_marks_what_has_gone_and_chooses_nothing(visitor: Client, story: factory.Story) -> None:
    job, found = cleanup_data.scan_job(story)
    purge = cleanup_data.purge_job(story, job, found, partial=True)
    seen = text(visitor.get(PAGE))
    assert f"34 items deleted, 4.3 GB freed; 3 were kept #{purge.number}" in seen
    assert "Chosen 0 items nothing yet" in seen
    assert "Partly" in seen and "Deleted" in seen
    deleted = ScannedArtifact.objects.filter(result="deleted")[0]
    assert str(deleted.number) not in {str(row[0]) for rows in visitor.get(ROWS, {"numbers": "1"}).json()["kinds"].values() for row in rows}


def test_an_older_scan_has_an_address_and_says_that_there_is_a_newer_one(visitor: Client, story: factory.Story) -> None:
    old, _ = cleanup_data.scan_job(story, ago_s=7200)
    cleanup_data.scan_job(story)
    assert "There is a newer scan than this one." in text(visitor.get(PAGE, {"scan": str(old.number)}))
    assert visitor.get(PAGE, {"scan": "99999"}).status_code == 404


def test_a_newer_scan_of_a_part_changes_no_number_of_the_fleet_and_says_where_the_whole_is(visitor: Client, story: factory.Story) -> None:
    whole, _ = cleanup_data.scan_job(story, ago_s=7200)
    for _ in range(4):  # more than keep what they list: the whole one keeps it nevertheless
        cleanup_data.scan_job(story, found=cleanup_data.world("", rows=cleanup_data.hostile_rows(at=story.at)), roots=["/tmp"])
    cleanup_data.scan_job(story, end=False)
    for page in ("/", "/cleanup/", "/nodes/practice/"):
        assert f'href="{PAGE}?scan={whole.number}"' in visitor.get(page).content.decode(), page
    seen = text(visitor.get(PAGE))
    assert "This scan looked at a part only." in seen and re.search(rf"from scan #{whole.number} ?, the newest of everything", seen)
    shown = text(visitor.get(PAGE, {"scan": str(whole.number)}))
    assert "There is a newer scan than this one." in shown and "looked at a part" not in shown
    assert ScannedArtifact.objects.filter(scan__job=whole).exists()


def test_whatever_a_file_is_called_it_is_text(visitor: Client, story: factory.Story) -> None:
    found = cleanup_data.world("", rows=cleanup_data.hostile_rows(at=story.at))
    job, found = cleanup_data.scan_job(story, found=found)
    purge = cleanup_data.purge_job(story, job, found, choice=Choice(kinds=["debug-tensor"]))
    for address in (PAGE, f"{ROWS}?of=debug-tensor", f"/cleanup/manifests/{purge.number}/", "/cleanup/"):
        body = visitor.get(address).content.decode()
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", body), address
        assert "<img src=x" not in body and "<script>window" not in body, address
        assert "{{7*7}}" in body or address in (PAGE, "/cleanup/"), address


def test_a_page_without_scripts_never_has_more_rows_than_its_form_can_send(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    scan = ArtifactScan.objects.get()
    ScannedArtifact.objects.bulk_create([ScannedArtifact(
        scan=scan, number=10_000 + n, kind="ipc-socket" if n % 2 else "nccl-dump", unit="file", path=f"/tmp/{n}", size_bytes=4096, files=1,
        newest=datetime(2026, 1, 1, tzinfo=UTC), owner="llm", state="offered") for n in range(2000)], batch_size=500)
    page = visitor.get(PAGE, {"open": ["ipc-socket:1000"], "show": "nccl-dump:650"})
    form = sent(page, choose="none")
    assert sum(len(values) if isinstance(values, list) else 1 for values in form.values()) < 800
    assert page.content.count(b'name="number"') > 600
    assert visitor.post(PAGE, form).status_code == 200


@pytest.mark.slow
def test_a_scan_that_lists_40000_things_opens_as_a_small_page(visitor: Client, scanned: tuple[Job, cleanup_data.World],
                                                             django_assert_max_num_queries: Any) -> None:
    scan = ArtifactScan.objects.get()
    kinds = scan.summary["kinds"][0]
    scan.summary["kinds"] = [{**kinds, "kind": f"kind-{n}", "offered": {**kinds["offered"], "count": 50_000}} for n in range(20)]
    scan.save()
    ScannedArtifact.objects.all().delete()
    ScannedArtifact.objects.bulk_create([ScannedArtifact(
        scan=scan, number=n, kind=f"kind-{n % 20}", unit="file", path=f"/tmp/{'deep/' * 20}a-file-with-a-name-{n}.pt", size_bytes=4096 * n, files=1,
        newest=datetime(2026, 1, 1, tzinfo=UTC), owner="llm", state="offered") for n in range(40_000)], batch_size=2000)
    with django_assert_max_num_queries(60):
        response = visitor.get(PAGE)
    assert len(response.content) < 300_000
    assert len(visitor.get(PAGE, {"q": "file"}).content) < 300_000
    assert sum(map(len, visitor.get(ROWS, {"numbers": "1", "q": "file"}).json()["kinds"].values())) == 40_000


# ---- scan, purge, manifest ----


def test_a_scan_is_started_of_everything_or_of_some_folders_and_kinds(visitor: Client, story: factory.Story) -> None:
    form = form_with(visitor.get(SCAN), "roots")
    assert visitor.post(SCAN, form)["Location"] == PAGE
    everything = Job.objects.get(type="artifact-scan")
    assert everything.params == {"roots": None, "kinds": None}
    Job.objects.update(state="succeeded")
    visitor.post(SCAN, {"roots": "/tmp\r\n/var/tmp\r\n", "kind": ["core-dump"], "every": form["every"]})
    assert Job.objects.latest("number").params == {"roots": ["/tmp", "/var/tmp"], "kinds": ["core-dump"]}


def test_the_question_before_a_purge_says_exactly_what_goes_what_keeping_is_worth_and_which_services_are_locked(
        visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    asked = visitor.post(PURGE, {"scan": str(scanned[0].number), "kinds": ["debug-tensor", "core-dump"], "numbers": "", "without": "1,2"})
    seen = text(asked)
    dumps = [one for one in scanned[1].of("core-dump") if one.state != "kept"]
    size = cleanup_story.size(33 * cleanup_data.TENSOR_BYTES + sum(one.size_bytes for one in dumps)).replace("\u202f", " ")
    assert f"Delete {33 + len(dumps)} items, {size}, on practice?" in seen
    assert "33 of 35" in seen
    assert "Worth keeping: May still explain a crash" in seen
    assert "kimi-k25 is locked meanwhile" in seen
    assert not Job.objects.filter(type="purge").exists()


def test_confirming_starts_a_purge_of_that_very_choice_once(member: Client, operator: User, scanned: tuple[Job, cleanup_data.World]) -> None:
    form = form_with(member.post(PURGE, {"scan": str(scanned[0].number), "kinds": "debug-tensor", "without": "1"}), "without")
    for _ in range(2):
        job = Job.objects.filter(type="purge").first()
        answer = member.post(PURGE, form | {"step": "start"})
        assert job is None or Job.objects.filter(type="purge").get() == job
    job = Job.objects.get(type="purge")
    assert answer["Location"] == f"/jobs/{job.number}/"
    assert job.params["choice"] == Choice(kinds=["debug-tensor"], without=[1]).as_dict()
    assert (job.params["scan"], job.params["services"]) == (str(scanned[0].pk), ["kimi-k25"])
    assert AuditEntry.objects.filter(action="job.purge", by=operator).count() == 1
    assert "A purge runs" in text(member.get(PAGE))


def test_a_purge_of_nothing_goes_back_to_the_preview(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    answer = visitor.post(PURGE, {"scan": str(scanned[0].number)})
    assert answer["Location"] == f"{PAGE}?scan={scanned[0].number}"
    assert visitor.post(PURGE, {"scan": str(scanned[0].number), "numbers": "123456789"}).status_code == 400


def test_a_manifest_tells_each_line_what_stayed_first_and_can_be_filtered(visitor: Client, story: factory.Story) -> None:
    job, found = cleanup_data.scan_job(story)
    purge = cleanup_data.purge_job(story, job, found, partial=True)
    address = f"/cleanup/manifests/{purge.number}/"
    seen = text(visitor.get(address))
    assert "Chosen 38 items" in seen and "Kept 3 items each with its reason; 1 was gone before" in seen
    assert seen.index("Open in python3 (pid 4711)") < seen.index("dbg_layer0_000.pt of kimi-k25")
    assert "38 lines" in seen
    assert "1 line found" in text(visitor.get(address, {"result": "gone"}))
    assert "3 lines found" in text(visitor.get(address, {"kind": "compile-cache"}))
    assert visitor.get("/cleanup/manifests/1/").status_code == 404
    assert PurgedArtifact.objects.filter(job=purge).count() == 38
    assert f'href="{address}"' in visitor.get("/cleanup/").content.decode()


def test_a_manifest_is_taken_along_in_three_forms_in_which_no_name_does_harm(visitor: Client, story: factory.Story) -> None:
    found = cleanup_data.world("", rows=cleanup_data.hostile_rows(at=story.at))
    job, found = cleanup_data.scan_job(story, found=found)
    purge = cleanup_data.purge_job(story, job, found, choice=Choice(kinds=["debug-tensor"]))
    address = f"/cleanup/manifests/{purge.number}/"
    files = {fmt: visitor.get(f"{address}{fmt}/") for fmt in ("csv", "json", "md")}
    assert {fmt: file["Content-Disposition"] for fmt, file in files.items()} == {
        fmt: f'attachment; filename="manifest-{purge.number}.{fmt}"' for fmt in files}
    rows = list(csv.DictReader(io.StringIO(files["csv"].content.decode())))
    assert len(rows) == len(cleanup_data.HOSTILE_NAMES)
    assert {row["result"] for row in rows} == {"deleted"}
    assert not [cell for row in rows for cell in row.values() if cell.lstrip()[:1] in ("=", "+", "@")]
    told = json.loads(files["json"].content)
    assert (told["node"], told["deleted"], len(told["entries"])) == ("practice", len(rows), len(rows))
    assert files["md"].content.decode().count("\n| deleted |") == len(rows)
    assert visitor.get(f"{address}exe/").status_code == 404


def test_a_purge_of_a_redeploy_has_its_manifest_too(visitor: Client, story: factory.Story) -> None:
    redeploy = story.redeploy()
    assert f"Manifest of Redeploy kimi-k25 #{redeploy.number}" in text(visitor.get(f"/cleanup/manifests/{redeploy.number}/"))


def test_the_data_for_the_page_s_script_counts_what_the_server_counts(visitor: Client, scanned: tuple[Job, cleanup_data.World]) -> None:
    body = visitor.get(PAGE).content.decode()
    data = json.loads(re.search(r'<script id="choice-data" type="application/json">(.*?)</script>', body, re.S)[1])  # type: ignore[index]
    chosen = sum(kind["bytes"] - sum(row[1] for row in kind["minus"]) if kind["whole"] else sum(row[1] for row in kind["plus"])
                 for kind in data["kinds"].values())
    assert chosen == ArtifactScan.objects.get().offered_bytes
    assert sum(of[1] for kind in data["kinds"].values() for of in kind["on"]) == ArtifactScan.objects.get().choosable_bytes
