"""What a plan offers to purge, and the pages of scans and purges; also of nodes that told them in the form of earlier versions."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import Client

from dashboard import dispatch, job_story, purge_story
from dashboard.models import ArtifactKind, Job, JobLock
from ops.artifacts.found import Choice, shown
from ops.jobs.errors import BadInput
from ops.jobs.events import EventType
from tests.dashboard.pages import cleanup_data, factory
from tests.dashboard.pages.reading import text

CONFIRM = {"plan_hash": "f" * 64, "smoke": "on", "rollback": "on", "preset": "quick"}


def body(client: Client, job: Job, page: str = "jobs") -> str:
    return client.get(f"/{page}/{job.number}/").content.decode()


def old_plan(story: factory.Story) -> Job:
    job = story.plan_job()
    made = {name: value for name, value in job.result["plan"].items() if name != "cleanup"} | {"artifacts": cleanup_data.old_artifacts()}
    Job.objects.filter(pk=job.pk).update(result={**job.result, "plan": made})
    job.refresh_from_db()
    return job


# ---- the plan ----


def test_a_plan_offers_each_kind_with_count_size_reason_and_paths(visitor: Client, story: factory.Story) -> None:
    job = story.plan_job()
    seen = text(visitor.get(f"/plans/{job.number}/"))
    assert "35 debug tensors, 65.2 MB, will be deleted for good." in seen
    assert "3 stale compile caches 4.2 GB Compiled graphs for a vLLM version that no kept release has. Keeping: Spares about 2 minutes" in seen
    assert "All 3 paths; 1 more must stay" in seen
    assert "/srv/roundhouse/practice/tmp/dbg_layer34_000.pt 1.9 MB" in seen
    assert "3 shared-memory segments must stay: Open in Worker_TP0 (pid 613118)" in seen


def test_only_what_is_made_to_go_with_a_redeploy_is_ticked(visitor: Client, story: factory.Story) -> None:
    page = body(visitor, story.plan_job(), "plans")
    boxes = [tag for tag in page.split("<input ") if 'name="purge_kinds"' in tag.split(">")[0]]
    assert [("checked" in box.split(">")[0], box.split('value="')[1].split('"')[0]) for box in boxes] == [
        (True, "debug-tensor"), (False, "compile-cache"), (False, "nccl-dump"), (False, "core-dump")]


@pytest.mark.parametrize(("ticked", "purges"), [(["debug-tensor", "core-dump"], True), ([], False)], ids=["two kinds", "none"])
def test_a_redeploy_purges_the_kinds_that_were_ticked(visitor: Client, story: factory.Story, redis_url: str, ticked: list[str], purges: bool) -> None:
    plan = story.plan_job()
    visitor.post(f"/plans/{plan.number}/redeploy/", {**CONFIRM, "purge_kinds": ticked})
    params = Job.objects.get(type="redeploy").params
    assert (params["purge"], params["purge_kinds"]) == (purges, ticked)


def test_a_kind_that_the_plan_did_not_find_is_refused(visitor: Client, story: factory.Story) -> None:
    plan = story.plan_job()
    refused = visitor.post(f"/plans/{plan.number}/redeploy/", {**CONFIRM, "purge_kinds": ["shm-segment"]})
    assert refused.status_code == 400
    assert "this plan found no leftovers of the kind" in refused.content.decode()
    with pytest.raises(BadInput, match="no leftovers of the kind"):
        dispatch.start_redeploy(plan_job=plan, user=None, options={"purge_kinds": ["../etc"]})


def test_a_redeploy_that_says_nothing_of_kinds_purges_what_the_page_has_ticked(story: factory.Story, redis_url: str) -> None:
    plan = story.plan_job()
    assert dispatch.start_redeploy(plan_job=plan, user=None, options={}).params["purge_kinds"] == ["debug-tensor"]


def test_a_redeploy_takes_the_kinds_of_admins_along_as_they_are_when_it_is_confirmed(story: factory.Story, redis_url: str) -> None:
    plan, purges = story.plan_job(), cleanup_data.OWN_KIND
    ArtifactKind.objects.create(name="bench-scratch", record=purges)
    job = dispatch.start_redeploy(plan_job=plan, user=None, options={})
    assert job.envelope["snapshot"]["kinds"] == [purges]
    Job.objects.filter(pk=job.pk).update(state="succeeded")
    JobLock.objects.update(held=False)
    ArtifactKind.objects.all().delete()
    assert dispatch.start_redeploy(plan_job=plan, user=None, options={}).envelope["snapshot"]["kinds"] == []


def test_a_plan_without_leftovers_says_so(visitor: Client, story: factory.Story) -> None:
    job = story.plan_job()
    Job.objects.filter(pk=job.pk).update(result={"plan": {**job.result["plan"], "cleanup": {
        "scan": "", "digest": "", "kinds": [], "listed": [], "problems": ["`/scratch` is not in `artifact_roots`"]}}})
    seen = text(visitor.get(f"/plans/{job.number}/"))
    assert "Purge leftovers None was found that could go. /scratch is not in artifact_roots" in seen


def test_a_plan_of_an_earlier_version_opens_and_purges_nothing(visitor: Client, story: factory.Story, redis_url: str) -> None:
    plan = old_plan(story)
    seen = text(visitor.get(f"/plans/{plan.number}/"))
    assert "35 debug tensors 65.2 MB" in seen
    assert "Found by an earlier version. Plan again to purge them with the redeploy." in seen
    visitor.post(f"/plans/{plan.number}/redeploy/", {**CONFIRM, "purge": "on"})
    assert Job.objects.get(type="redeploy").params["purge"] is False


# ---- a scan ----


def test_a_scans_page_has_its_kinds_its_problems_and_leads_to_the_preview(visitor: Client, story: factory.Story) -> None:
    job, found = cleanup_data.scan_job(story, problems=cleanup_data.PROBLEMS)
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert f"{len(found.artifacts):,} leftovers" in seen
    assert "Core dumps Written by the kernel when a process crashed 1 must stay: The newest core dump stays" in seen
    assert "core dump stays 3 17.1 GB 2 if chosen 11.3 GB 1 5.8 GB" in seen
    assert "cannot be read: Permission denied" in seen
    assert f"scan={job.number}" in body(visitor, job)


def test_a_running_scan_says_how_far_it_is_and_may_be_cancelled(visitor: Client, story: factory.Story) -> None:
    job, _ = cleanup_data.scan_job(story, end=False)
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "8,112 files" in seen
    assert "/srv/roundhouse/practice/cache/flashinfer" in seen
    assert "It only reads" in text(visitor.get(f"/jobs/{job.number}/cancel/"))


# ---- a purge ----


def test_a_purges_page_says_by_kind_what_went_and_why_the_rest_stayed(visitor: Client, story: factory.Story) -> None:
    scan, found = cleanup_data.scan_job(story)
    job = cleanup_data.purge_job(story, scan, found, partial=True)
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "Kind Chosen Deleted Stayed Was gone Freed" in seen and "Debug tensors 35 32 2 1 59.6 MB" in seen
    assert "dbg_layer32_000.pt Open in python3 (pid 4711) Kept" in seen
    assert "2f81c09aab 1 file is new since the preview: computation_graph.py Partly" in seen
    assert "dbg_layer34_000.pt Was gone" in seen
    assert "25.7 GB of 240 GB free on /srv/roundhouse/practice now" in seen
    assert seen.index("2f81c09aab 1 file is new") < seen.index("dbg_layer34_000.pt Was gone"), "what needs a look stands first"
    assert job_story.result_line(job).startswith("2 stale compile caches and 32 debug tensors, 4.3\u202fGB freed; 3 stayed")


def test_a_cancelled_purge_says_how_many_were_not_looked_at(visitor: Client, story: factory.Story) -> None:
    scan, found = cleanup_data.scan_job(story)
    seen = text(visitor.get(f"/jobs/{cleanup_data.purge_job(story, scan, found, cancelled=True).number}/"))
    assert "19 chosen things were not looked at, and are as they were. What was deleted stays deleted." in seen


def test_nobody_is_said_to_have_cancelled_a_purge_whose_runner_died(visitor: Client, story: factory.Story) -> None:
    scan, found = cleanup_data.scan_job(story)
    job = cleanup_data.purge_job(story, scan, found, cancelled=True)
    Job.objects.filter(pk=job.pk).update(state="interrupted", reason="Interrupted in step `purge`: its runner (pid 7) was killed")
    for page in (f"/jobs/{job.number}/", f"/cleanup/manifests/{job.number}/", f"/cleanup/practice/?scan={scan.number}", "/cleanup/"):
        assert "cancelled" not in (seen := text(visitor.get(page))) and "nterrupted" in seen, page


def test_a_purge_whose_runner_died_shows_the_lines_that_came(visitor: Client, story: factory.Story) -> None:
    scan, found = cleanup_data.scan_job(story)
    job = story.job("purge", of=story.the_node, steps=cleanup_data.PURGE_STEPS, params={"scan": str(scan.pk)})
    story.step(job, "purge", end=False)
    story.say(job, EventType.PURGE_ENTRIES, scan=str(scan.pk), entries=[
        line.as_dict() for line in cleanup_data.entries(found.of("debug-tensor")[:7])])
    story.end(job, "interrupted", reason="The runner died at step `purge`")
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "It ended before it said what came of it" in seen
    assert "Debug tensors 7 0 13.0 MB" in seen


def test_a_purge_of_an_earlier_version_opens(visitor: Client, story: factory.Story) -> None:
    job = story.job("purge", steps=cleanup_data.PURGE_STEPS)
    story.step(job, "purge", end=False)
    story.say(job, EventType.PURGE_RESULT, **cleanup_data.old_purge(kept=2))
    story.finish_step(job, "purge", note="33 files, 61 MB freed")
    story.end(job, "partial", reason="2 files were kept")
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "Purged 33 deleted, 61.5 MB freed" in seen
    assert "dbg_layer34_000.pt Kept open in process 4711" in seen
    assert job_story.result_line(job) == "33 debug tensors, 61.5\u202fMB freed; 2 stayed"


def test_the_report_of_an_earlier_version_keeps_its_cleanup(visitor: Client, story: factory.Story) -> None:
    job = story.redeploy()
    old = cleanup_data.old_purge(kept=1)
    job.purged.all().delete()
    Job.objects.filter(pk=job.pk).update(result={**job.result, "purge": old, "report": {**job.result["report"], "cleanup": {
        "deleted_count": 34, "freed_bytes": old["freed_bytes"], "kept": old["kept"], "deleted": old["deleted"]}}})
    seen = text(visitor.get(f"/jobs/{job.number}/"))
    assert "Leftovers in /srv/roundhouse/practice/tmp" in seen
    assert "34 debug tensors deleted, 63.3 MB freed. Kept /srv/roundhouse/practice/tmp/dbg_layer34_000.pt : open in process 4711" in seen


def test_hostile_names_act_on_no_page(visitor: Client, story: factory.Story) -> None:
    rows = cleanup_data.hostile_rows(at=time.time())
    scan = story.job("artifact-scan", of=story.the_node, steps=cleanup_data.SCAN_STEPS)
    found = cleanup_data.world(str(scan.pk), rows=rows)
    cleanup_data.tell_found(story, scan, found)
    story.end(scan)
    told = [cleanup_data.entry(row, result="kept", why=f"Open in {shown(row.path)}") for row in rows]
    purge = story.job("purge", of=story.the_node, steps=cleanup_data.PURGE_STEPS)
    story.step(purge, "purge", end=False)
    cleanup_data.tell_purged(story, purge, str(scan.pk), rows, told)
    story.end(purge, "partial")
    plan = story.plan_job()
    Job.objects.filter(pk=plan.pk).update(result={"plan": {**plan.result["plan"], "cleanup": {
        "scan": "", "digest": "", "kinds": found.summary["kinds"], "listed": [row.as_dict() for row in rows], "problems": []}}})
    for page in (body(visitor, scan), body(visitor, purge), body(visitor, plan, "plans")):
        assert "<img src=x" not in page
        assert "window.canary=1</script>" not in page
        assert "\u202e" not in page


LIES: list[Any] = [None, 7, "x", [], {"deleted": 5}, {"kinds": {"a": 1}, "deleted": {"count": "many"}}, {"deleted": [1, None, {"path": 3}]},
                   {"deleted": {}, "kept": "x", "kinds": [{"kind": None, "title": [1], "deleted": -4}], "manifest": 3, "took_s": "long"}]


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_result_of_no_known_form_breaks_no_page(visitor: Client, story: factory.Story, lie: Any) -> None:
    scan, found = cleanup_data.scan_job(story)
    job = cleanup_data.purge_job(story, scan, found)
    plan = story.plan_job()
    Job.objects.filter(pk=job.pk).update(result={"purge": lie, "scan": lie})
    Job.objects.filter(pk=plan.pk).update(result={"plan": {**plan.result["plan"], "cleanup": lie, "artifacts": lie}})
    for path in (f"/jobs/{job.number}/", f"/plans/{plan.number}/", "/jobs/"):
        assert visitor.get(path).status_code == 200, path
    assert purge_story.kinds_of_plan({"cleanup": lie}) == ([], [])


def test_a_whole_kind_counts_what_is_not_listed(visitor: Client, story: factory.Story) -> None:
    scan, found = cleanup_data.scan_job(story)
    job = cleanup_data.purge_job(story, scan, found, choice=Choice(kinds=["function-trace"]))
    assert "Function traces 3,140 3,140 0 1.3 GB" in text(visitor.get(f"/jobs/{job.number}/"))
