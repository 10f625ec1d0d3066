"""What a scan and a purge mean for rows, and what a choice of a scan comes to, told by the very events that a node sends."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied

from dashboard import cleanup_choice, cleanup_exports, cleanup_rows, dispatch, purge_story, recorder
from dashboard.models import ArtifactKind, ArtifactScan, Channel, Job, JobEvent, Node, PurgedArtifact, ScannedArtifact
from ops.agent.config import NodePaths
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Choice
from ops.jobs import claim, journal, runner
from ops.jobs.envelope import Envelope
from ops.jobs.errors import BadInput, Busy
from ops.jobs.events import Event, EventType
from ops.jobs.kinds import KINDS
from ops.records import ServiceRecord
from tests.dashboard.pages import cleanup_data as said
from tests.dashboard.pages.factory import Story

pytestmark = pytest.mark.django_db


def node_counts(found: said.World, choice: Choice) -> dict[str, int]:
    """What a node counts: artifact by artifact, in the preview."""
    taken = found.chosen(choice)
    return {"count": len(taken), "files": sum(one.files for one in taken), "size_bytes": sum(one.size_bytes for one in taken)}


def counted(totals: dict[str, Any]) -> dict[str, int]:
    return {part: totals[part] for part in ("count", "files", "size_bytes")}


def scanned(story: Story, **more: Any) -> tuple[ArtifactScan, said.World]:
    job, found = said.scan_job(story, **more)
    return ArtifactScan.objects.get(job=job), found


def short_world(**more: Any) -> said.World:
    """A few tensors of which some are optional: a kind with both states, wholly listed or not."""
    rows = [row for row in said.artifacts(at=1_790_000_000.0) if row.kind in ("debug-tensor", "compile-cache", "core-dump")]
    for row in rows[:5]:
        row.state = OPTIONAL
    return said.world("", rows=rows, **more)


def entry(row: Artifact, **more: Any) -> dict[str, Any]:
    return said.entry(row, **more).as_dict()


# ---- scans ----


def test_a_scan_becomes_a_row_with_exact_totals_and_the_artifacts_that_it_lists(story: Story) -> None:
    scan, found = scanned(story)
    assert scan.finished and scan.digest == said.DIGEST and scan.node == story.the_node and scan.practice and scan.took_s == 1.9
    assert scan.offered_bytes == sum(one.size_bytes for one in found.artifacts if one.state == OFFERED)
    assert scan.artifacts.count() == len(found.listed) < len(found.artifacts)
    assert scan.job.result["scan"] == {
        "files": found.summary["files"], "size_bytes": found.summary["size_bytes"], "count": len(found.artifacts),
        "kinds": len(found.summary["kinds"]),
        "kept": sum(1 for one in found.artifacts if one.state == KEPT), "offered_bytes": found.summary["offered_bytes"],
        "choosable_bytes": found.summary["choosable_bytes"], "problems": 0}
    row, told = scan.artifacts.get(kind="core-dump", state=KEPT), next(one for one in found.of("core-dump") if one.state == KEPT)
    assert (row.path, row.size_bytes, row.why, row.owner) == (told.path, told.size_bytes, told.why, told.owner)
    assert abs(row.newest.timestamp() - told.mtime_ns / 1e9) < 1e-3
    held = scan.artifacts.get(path__endswith="psm_91d20b7e")
    assert held.open_by == said.open_in(613_007, "EngineCore")


def test_the_same_events_told_again_change_nothing(story: Story) -> None:
    scan, found = scanned(story)
    purge = said.purge_job(story, scan.job, found)
    before = {model: list(model.objects.order_by("pk").values()) for model in (ArtifactScan, ScannedArtifact, PurgedArtifact)}
    for job in (scan.job, purge):
        recorder.record([Event(job=str(job.pk), seq=row.seq, at=row.at, type=row.type, data=row.data)
                         for row in JobEvent.objects.filter(job=job).order_by("seq")])
    assert before == {model: list(model.objects.order_by("pk").values()) for model in before}


def test_a_node_that_tells_the_same_once_more_as_something_new_changes_nothing(story: Story) -> None:
    scan, found = scanned(story)
    purge = said.purge_job(story, scan.job, found)
    before = {model: list(model.objects.order_by("pk").values()) for model in (ArtifactScan, ScannedArtifact, PurgedArtifact)}
    results = [Job.objects.get(pk=job.pk).result for job in (scan.job, purge)]
    for job in (scan.job, purge):
        for row in JobEvent.objects.filter(job=job).exclude(type__startswith="job.").order_by("seq"):
            more = {"freed_bytes": row.data["freed_bytes"] + 10**9} if row.type == EventType.PURGE_RESULT else {}
            story.say(job, row.type, **{**row.data, **more})
        story.tell(job)
    assert before == {model: list(model.objects.order_by("pk").values()) for model in before}
    assert results == [Job.objects.get(pk=job.pk).result for job in (scan.job, purge)]


def test_only_the_newest_scans_keep_their_artifacts_and_every_manifest_stays(story: Story) -> None:
    first, found = scanned(story, ago_s=9000)
    said.purge_job(story, first.job, found, ago_s=8000)
    lines = PurgedArtifact.objects.count()
    unended = ArtifactScan.objects.create(job=story.job("artifact-scan"), node=story.the_node, at=first.at)
    ScannedArtifact.objects.create(scan=unended, number=1, kind="debug-tensor", unit="file", path="/x", size_bytes=1, files=1, newest=first.at,
                                   owner="llm", state=OFFERED)
    scans = [scanned(story, ago_s=ago, found=short_world())[0] for ago in (600, 500, 400)]
    assert not first.artifacts.exists() and not unended.artifacts.exists() and all(scan.artifacts.exists() for scan in scans)
    assert ArtifactScan.objects.filter(pk=first.pk, offered_bytes__gt=0).exists() and PurgedArtifact.objects.count() == lines > 0


# ---- choices ----


@pytest.mark.parametrize("choice", [
    Choice(kinds=["debug-tensor"]), Choice(kinds=["function-trace"]), Choice(kinds=["function-trace", "core-dump", "bench-scratch"]),
    Choice(kinds=["compile-cache", "nccl-dump", "ipc-socket", "uv-cache", "old-release"])], ids=lambda choice: choice.kinds[-1])
def test_a_choice_of_whole_kinds_comes_to_what_the_node_counts_even_beyond_what_is_listed(story: Story, choice: Choice) -> None:
    scan, found = scanned(story)
    totals = cleanup_choice.totals(scan, choice)
    assert counted(totals) == node_counts(found, choice)
    assert [row["kind"] for row in totals["kinds"]] == [kind for kind in said.KINDS if kind in choice.kinds]


def test_a_choice_less_some_and_with_others_comes_to_what_the_node_counts(story: Story) -> None:
    scan, found = scanned(story)
    tensors, cores, traces = ([row.number for row in found.listed if row.kind == kind and row.choosable]
                              for kind in ("debug-tensor", "core-dump", "function-trace"))
    kept = [row.number for row in found.listed if row.state == KEPT]
    for choice in (
        Choice(kinds=["debug-tensor"], without=tensors[:7]), Choice(numbers=tensors[:3]), Choice(numbers=[*cores, *cores, tensors[0]]),
        Choice(kinds=["function-trace", "function-trace"], without=[traces[0], traces[0]], numbers=[tensors[0], traces[0], traces[1]]),
        Choice(kinds=["nccl-dump"], without=kept), Choice(kinds=["debug-tensor"], numbers=tensors, without=[*cores, 10**6]),
        Choice(numbers=[tensors[0], tensors[1]], without=[tensors[1]]),
    ):
        assert counted(cleanup_choice.totals(scan, choice)) == node_counts(found, choice), choice


def test_what_cannot_be_chosen_is_refused(story: Story) -> None:
    scan, found = scanned(story)
    held = next(row for row in found.listed if row.state == KEPT)
    for choice, words in ((Choice(kinds=["no-such-kind"]), "nothing of a kind"), (Choice(numbers=[10**6]), "lists no artifact"),
                          (Choice(numbers=[held.number]), "cannot be chosen")):
        with pytest.raises(BadInput, match=words):
            cleanup_choice.totals(scan, choice)


@pytest.mark.parametrize("listed", [60, 4])
def test_what_is_chosen_at_first_is_what_is_offered_and_never_what_is_optional(story: Story, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "TOLD_OF_A_KIND", listed)
    scan, found = scanned(story, found=short_world())
    taken = found.chosen(cleanup_choice.all_offered(scan))
    assert {row.state for row in taken} == {OFFERED}
    if listed == 60:
        assert sum(row.size_bytes for row in taken) == scan.offered_bytes


# ---- purges ----


def test_a_purge_marks_what_its_scan_listed_and_counts_what_is_left(story: Story) -> None:
    scan, found = scanned(story)
    choice = Choice(kinds=["debug-tensor", "compile-cache", "function-trace"])
    job = said.purge_job(story, scan.job, found, choice=choice, partial=True)
    scan.refresh_from_db()
    told = {row.number: row for row in PurgedArtifact.objects.filter(job=job)}
    assert len(told) == len(found.chosen(choice))
    assert {row.number: row.result for row in scan.artifacts.exclude(result="")} == {
        number: row.result for number, row in told.items() if scan.artifacts.filter(number=number).exists()}
    freed = sum(row.freed_bytes for row in told.values())
    assert scan.freed_bytes == freed == job.result["purge"]["freed_bytes"]
    assert scan.purged_count == sum(1 for row in told.values() if row.result == "deleted")
    totals = cleanup_choice.totals(scan, choice)
    assert counted(totals) == node_counts(found, choice)  # the node counts what it previewed
    gone = [row for row in told.values() if row.result in ("deleted", "gone")]
    assert totals["gone"] == {"count": len(gone), "files": sum(row.files for row in gone), "size_bytes": sum(row.size_bytes for row in gone)}
    tensors = [row for row in found.of("debug-tensor") if told[row.number].result == "deleted"]
    less = replace(choice, without=[row.number for row in tensors[:4]])
    assert cleanup_choice.totals(scan, less)["gone"]["count"] == len(gone) - 4
    partly = next(row for row in told.values() if row.result == "partly")
    assert cleanup_rows.left(scan)["offered_bytes"] == scan.offered_bytes - sum(row.size_bytes for row in gone) - partly.freed_bytes


def test_a_second_purge_of_the_same_scan_takes_nothing_away_twice(story: Story) -> None:
    scan, found = scanned(story)
    for kind in ("function-trace", "debug-tensor"):  # one of which not everything is listed
        first = said.purge_job(story, scan.job, found, choice=Choice(kinds=[kind]))
        scan.refresh_from_db()
        left, totals = cleanup_rows.left(scan), cleanup_choice.totals(scan, Choice(kinds=[kind]))
        again = story.job("purge", params=first.params)
        rows = [entry(row, result="gone", why="It was not there any more") for row in found.of(kind)]
        for at in range(0, len(rows), 1000):
            story.say(again, EventType.PURGE_ENTRIES, scan=str(scan.job_id), entries=rows[at:at + 1000])
        story.tell(again)
        scan.refresh_from_db()
        assert (cleanup_rows.left(scan), cleanup_choice.totals(scan, Choice(kinds=[kind]))) == (left, totals)
        assert totals["gone"]["count"] == totals["count"] == len(rows) == PurgedArtifact.objects.filter(job=again).count()
        assert set(scan.artifacts.filter(kind=kind).values_list("result", flat=True)) == {"deleted"}


def test_purging_what_was_only_optional_leaves_what_is_offered(story: Story) -> None:
    scan, found = scanned(story)
    said.purge_job(story, scan.job, found, choice=Choice(kinds=["core-dump"]))
    scan.refresh_from_db()
    freed = node_counts(found, Choice(kinds=["core-dump"]))["size_bytes"]
    assert cleanup_rows.left(scan) == {"offered_bytes": scan.offered_bytes, "choosable_bytes": scan.choosable_bytes - freed}


def test_what_a_redeploy_deletes_is_gone_from_the_nodes_scan_too(story: Story) -> None:
    scan, found = scanned(story)
    redeploy = story.job("redeploy", ago_s=60)
    rows = [entry(replace(row, number=n)) for n, row in enumerate(found.of("debug-tensor"), start=900)]  # numbered by the plan's preview
    story.say(redeploy, EventType.PURGE_ENTRIES, scan=str(uuid.uuid4()), entries=rows)
    story.tell(redeploy)
    scan.refresh_from_db()
    gone = node_counts(found, Choice(kinds=["debug-tensor"]))
    assert cleanup_choice.totals(scan, Choice(kinds=["debug-tensor"]))["gone"] == gone
    assert cleanup_rows.left(scan)["offered_bytes"] == scan.offered_bytes - gone["size_bytes"]
    assert scan.freed_bytes == 0 and cleanup_rows.newest_scans([story.the_node]) == {story.the_node.pk: scan}


def test_lines_that_were_not_told_count_as_freed(story: Story) -> None:
    scan, found = scanned(story)
    job, rows = story.job("purge"), found.of("debug-tensor")
    story.say(job, EventType.PURGE_ENTRIES, scan=str(scan.job_id), entries=[entry(row) for row in rows[:10]])
    story.say(job, EventType.PURGE_RESULT, **said.purge_result(str(scan.job_id), str(job.pk), rows, said.entries(rows)))
    story.tell(job)
    scan.refresh_from_db()
    assert (scan.freed_bytes, scan.purged_count) == (sum(row.size_bytes for row in rows), len(rows))


@pytest.mark.slow
def test_what_the_console_counts_is_what_a_real_node_counts_and_frees(story: Story, short_path: Path) -> None:
    """A real scan and a real purge of files, their journals read by the console; of a kind of which not everything is listed."""
    paths, box = NodePaths(short_path / "node").make(), short_path / "box"
    for name in ("tmp/deep", "models"):
        (box / name).mkdir(parents=True)
    record = ServiceRecord(name="svc", root=str(paths.services / "svc"), model_path=str(box / "models"), served_model_name="tiny", practice=True,
                           base_url="http://127.0.0.1:9", artifact_roots=[str(box / "tmp")], env={"PRACTICE_BOX": str(box)})
    (paths.announced / "svc.json").write_text(json.dumps(record.as_dict()))
    lines = {"name": "practice", "practice": True, "gpu_source": "practice", "practice_root": str(box), "service_roots": [str(paths.services)],
             "model_roots": [str(box / "models")], "artifact_roots": [str(box / "tmp")]}
    paths.node_toml.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
    for n in range(2030):  # 30 more than a scan lists of a kind
        path = box / "tmp" / ("deep" if n % 2 else "") / f"layer{n}.pt"
        path.write_bytes(b"x" * (1 + 5000 * (n % 4)))
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def run(type: str, params: dict[str, Any]) -> Job:
        locks = sorted(KINDS[type].locks(None, params))
        envelope = Envelope.make(type=type, node="practice", params=params, locks=locks, fence=claim.next_fences(paths, locks), by="test",
                                 now=time.time())
        runner.run_here(paths, envelope)
        told = [recorder.parse(event.to_json()) for event in journal.read(journal.journal_path(paths, envelope.job))]
        recorder.record(told, node_of={envelope.job: "practice"})
        return Job.objects.get(pk=envelope.job)

    scan = ArtifactScan.objects.get(job=run("artifact-scan", {"roots": None, "kinds": ["debug-tensor"]}))
    assert scan.artifacts.count() == 2000 and cleanup_choice.all_offered(scan) == Choice(kinds=["debug-tensor"])
    choice = Choice(kinds=["debug-tensor"], without=list(scan.artifacts.values_list("number", flat=True)[:7]))
    totals = cleanup_choice.totals(scan, choice)
    (box / "tmp" / f"{scan.artifacts.order_by('number').last().path}").write_bytes(b"changed since")  # type: ignore[union-attr]
    purge = run("purge", {"scan": str(scan.job_id), "digest": scan.digest, "choice": choice.as_dict(),
                          "services": cleanup_choice.services(scan, choice)})
    told = purge.result["purge"]
    assert (purge.state, told["chosen"]) == ("partial", counted(totals)) and totals["count"] == 2023
    scan.refresh_from_db()
    assert scan.freed_bytes == told["freed_bytes"] and scan.purged_count == told["deleted"]["count"] == 2022
    assert PurgedArtifact.objects.filter(job=purge).count() == told["manifest"]["entries"] == 2023
    assert cleanup_choice.totals(scan, choice)["gone"]["count"] == 2022
    assert cleanup_rows.left(scan)["offered_bytes"] == scan.offered_bytes - scan.freed_bytes


# ---- jobs ----


def test_a_purge_names_the_preview_the_choice_and_the_services_that_it_locks(story: Story, operator: User) -> None:
    scan, found = scanned(story)
    tensor = next(row.number for row in found.listed if row.kind == "debug-tensor")
    job = dispatch.start_purge(scan=scan, choice=Choice(kinds=["flashinfer-jit"], numbers=[tensor]), user=operator)
    assert job.params == {"scan": str(scan.job_id), "digest": said.DIGEST, "services": ["kimi-k25"],
                          "choice": {"kinds": ["flashinfer-jit"], "numbers": [tensor], "without": []}}
    assert sorted(job.locks.values_list("lock", flat=True)) == ["node:purge", "service:kimi-k25"] and job.service is None
    assert job.envelope["snapshot"] == {"kinds": []}  # an admin's kinds as they are now: one that was removed since the scan takes nothing


def test_a_kind_that_is_not_wholly_listed_may_belong_to_any_service_of_the_node(story: Story) -> None:
    scan, _ = scanned(story)
    story.the_service.pk = None
    story.the_service.name = "glm-5"
    story.the_service.save()
    assert cleanup_choice.services(scan, Choice(kinds=["function-trace"])) == ["glm-5", "kimi-k25"]
    listed = list(scan.artifacts.filter(kind="function-trace").values_list("number", flat=True))
    assert cleanup_choice.services(scan, Choice(kinds=["function-trace"], without=listed)) == ["glm-5", "kimi-k25"]
    assert cleanup_choice.services(scan, Choice(kinds=["debug-tensor"])) == ["kimi-k25"]
    assert cleanup_choice.services(scan, Choice(kinds=["ipc-socket", "nccl-dump"])) == []


def test_a_cache_that_several_services_may_use_locks_all_of_the_node(story: Story) -> None:
    scan, _ = scanned(story)
    story.the_service.pk = None
    story.the_service.name = "glm-5"
    story.the_service.save()
    row = scan.artifacts.filter(kind="debug-tensor").first()
    row.kind, row.service = "triton-cache", ""
    row.save()
    assert cleanup_choice.services(scan, Choice(numbers=[row.number])) == ["glm-5", "kimi-k25"]
    row.service = "glm-5"
    row.save()
    assert cleanup_choice.services(scan, Choice(numbers=[row.number])) == ["glm-5"]


def test_a_purge_of_nothing_or_of_a_scan_that_has_not_ended_is_refused(story: Story, operator: User) -> None:
    scan, found = scanned(story)
    numbers = [row.number for row in found.of("flashinfer-jit")]
    for choice in (Choice(), Choice(kinds=["flashinfer-jit"], without=numbers)):
        with pytest.raises(BadInput, match="Nothing was chosen"):
            dispatch.start_purge(scan=scan, choice=choice, user=operator)
    job, _ = said.scan_job(story, end=False)
    running = ArtifactScan.objects.create(job=job, node=story.the_node, at=scan.at)
    with pytest.raises(BadInput, match="no preview yet"):
        dispatch.start_purge(scan=running, choice=Choice(kinds=["debug-tensor"]), user=operator)


def test_a_second_purge_of_a_scan_leaves_out_what_the_first_one_deleted(story: Story, operator: User) -> None:
    scan, found = scanned(story)
    traces, tensors = found.of("function-trace"), found.of("debug-tensor")  # of the traces not everything is listed
    first = said.purge_job(story, scan.job, found, choice=Choice(kinds=["function-trace"], numbers=[tensors[0].number]), partial=True)
    gone = PurgedArtifact.objects.filter(job=first, result="deleted").values_list("number", flat=True)
    scan.refresh_from_db()
    choice = Choice(kinds=["function-trace"], numbers=[row.number for row in tensors[:3]], without=[traces[-1].number])
    job = dispatch.start_purge(scan=scan, choice=choice, user=operator, idempotency_key="k")
    assert job.params["choice"] == {"kinds": ["function-trace"], "numbers": [row.number for row in tensors[:3] if row.number not in gone],
                                    "without": sorted({traces[-1].number, *(row.number for row in traces if row.number in gone)})}
    with pytest.raises(Busy, match="cleanup of practice` is busy"):  # another person's wish
        dispatch.start_purge(scan=scan, choice=Choice(kinds=["ipc-socket"]), user=operator, idempotency_key="another")
    said.purge_job(story, scan.job, found, choice=Choice(kinds=["function-trace", "debug-tensor"]))
    scan.refresh_from_db()
    again = Choice(kinds=["debug-tensor"])
    assert dispatch.start_purge(scan=scan, choice=again, user=operator, idempotency_key="k") == job  # the second click, late
    with pytest.raises(BadInput, match="Nothing of what was chosen is left"):
        dispatch.start_purge(scan=scan, choice=again, user=operator, idempotency_key="another")


def test_a_scan_and_a_plan_take_the_kinds_of_admins_along_that_this_version_takes(story: Story, operator: User) -> None:
    record = said.OWN_KIND
    ArtifactKind.objects.create(name="bench-scratch", record=record)
    ArtifactKind.objects.create(name="of-an-older-version", record={"name": "of-an-older-version", "title": "No places"})
    channel = Channel.objects.filter(practice=True)[0]
    plan = dispatch.start_plan(service=story.the_service, channel=channel, user=operator)
    assert plan.envelope["snapshot"]["kinds"] == [record]
    job = dispatch.start_scan(node=story.the_node, user=operator, kinds=["bench-scratch", "debug-tensor"])
    assert job.envelope["snapshot"] == {"kinds": [record]} and not job.locks.exists()
    assert job.params == {"roots": None, "kinds": ["bench-scratch", "debug-tensor"]}
    for roots, kinds in ((None, ["nothing"]), (None, []), (["tmp"], None), (["/tmp/\0"], None), ([], None)):
        with pytest.raises(BadInput):
            dispatch.start_scan(node=story.the_node, user=operator, roots=roots, kinds=kinds)
    with pytest.raises(PermissionDenied):
        dispatch.start_scan(node=story.the_node, user=User(is_active=False))


# ---- a node that is not believed ----


def test_artifacts_that_are_none_are_left_out_and_the_others_kept(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    job, _ = said.scan_job(story, end=False)
    good = said.hostile_rows(at=1_790_000_000.0)
    for n, row in enumerate(good, start=1):
        row.number = n
    story.say(job, EventType.ARTIFACTS_FOUND, scan=str(job.pk), artifacts=[*said.lying_artifacts(), *[row.as_dict() for row in good],
                                                                            *[row.as_dict() for row in good]])
    lies: tuple[Any, ...] = (None, "many", {"a": 1}, [[]] * 5, [{"number": 50 + n} for n in range(700)])
    for lie in lies:
        story.say(job, EventType.ARTIFACTS_FOUND, scan=str(job.pk), artifacts=lie)
    for scan in (None, 3, str(uuid.uuid4())):
        story.say(job, EventType.ARTIFACTS_FOUND, scan=scan, artifacts=[{**good[0].as_dict(), "number": 77}])
    story.events = [recorder.parse(event.to_json()) for event in story.events]  # as they come from Redis
    story.tell(job)
    rows = {row.number: row for row in ArtifactScan.objects.get(job=job).artifacts.all()}
    assert set(range(1, len(good) + 1)) <= set(rows) and 77 not in rows and not {103, 104, 105, 107, 108, 112} & set(rows)
    assert all(len(row.path) <= cleanup_rows.PATH_MAX and len(row.why) <= cleanup_rows.SENTENCE_MAX and 0 <= row.size_bytes < 2**62
               and all(set(one) == {"pid", "name", "service"} for one in row.open_by) for row in rows.values())
    assert "are left out" in caplog.text


def test_a_scans_totals_that_are_none_break_nothing(story: Story) -> None:
    good = said.world("x").summary
    lies: list[Any] = [None, "x", -1, True, math.pi, 10**40, [], {}, [None, 1, "x", {}], {"a": {"b": [1] * 50}}, "y" * 100_000, [{}] * 3000]
    for n, lie in enumerate(lies):
        job, _ = said.scan_job(story, end=False)
        told = dict.fromkeys(good, lie) if n % 2 else {**good, "kinds": [{**kind, **{key: lie for key in list(kind)[n % 3::2] if key != "kind"}}
                                                                            for kind in good["kinds"]]}
        story.say(job, EventType.ARTIFACTS_SCANNED, **{**told, "scan": str(job.pk)})
        story.say(job, EventType.PURGE_RESULT, **dict.fromkeys(said.purge_result("x", "y", [], []), lie))
        story.tell(job)
        scan = ArtifactScan.objects.get(job=job)
        assert scan.finished and set(scan.summary) == {*good, "purges", "offered_gone_bytes", "choosable_gone_bytes"} - {"scan", "at"}
        assert cleanup_choice.totals(scan, Choice())["count"] == 0 and cleanup_rows.left(scan)["offered_bytes"] >= 0
        cleanup_choice.totals(scan, Choice(kinds=[kind["kind"] for kind in scan.summary["kinds"]]))
        job.refresh_from_db()
        told_of = purge_story.purged(job)
        assert told_of is None or isinstance(told_of["kinds"], list)


def test_lines_of_a_manifest_that_are_none_are_left_out_and_no_node_speaks_of_anothers_scan(story: Story) -> None:
    scan, found = scanned(story, found=short_world())
    other = Node.objects.create(name="other")
    stranger: Job = story.job("purge", of=other)
    rows = [entry(row) for row in found.of("debug-tensor")]
    story.say(stranger, EventType.PURGE_ENTRIES, scan=str(scan.job_id), entries=rows)
    story.tell(stranger)
    job = story.job("purge")
    wrong: list[dict[str, Any]] = [
        {"result": "burnt"}, {"freed_bytes": -1}, {"freed_bytes": 2**62}, {"deleted_files": None}, {"number": 0}, {"kind": ""}, {"path": 3},
        {"mtime_ns": "now"}, {"size_bytes": 2**50}]
    story.say(job, EventType.PURGE_ENTRIES, scan=["x"], entries=[
        None, 3, [], *[{**rows[0], "number": 100 + n, **one} for n, one in enumerate(wrong)]])
    story.say(job, EventType.PURGE_ENTRIES, scan=str(scan.job_id), entries=[rows[0], rows[0], {**rows[0], "freed_bytes": 7}])
    story.tell(job)
    scan.refresh_from_db()
    assert PurgedArtifact.objects.filter(job=job).count() == 1 and PurgedArtifact.objects.filter(job=stranger).count() == len(rows)
    assert (scan.freed_bytes, scan.purged_count) == (rows[0]["freed_bytes"], 1) and scan.artifacts.exclude(result="").count() == 1


def test_a_node_cannot_fill_the_console_with_artifacts(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup_rows, "LISTED_MOST", 20)
    monkeypatch.setattr(cleanup_rows, "LINES_MOST", 20)
    job, found = said.scan_job(story)
    assert ArtifactScan.objects.get(job=job).artifacts.count() == 20
    said.purge_job(story, job, found)
    assert PurgedArtifact.objects.count() == 20


# ---- a manifest to take along ----


def test_a_manifest_is_exported_whole_and_its_hostile_names_do_no_harm(story: Story) -> None:
    rows = said.hostile_rows(at=1_790_000_000.0)
    scan, found = scanned(story, found=said.world("", rows=rows))
    job = said.purge_job(story, scan.job, found, choice=Choice(kinds=["debug-tensor"]))
    assert PurgedArtifact.objects.filter(job=job).count() == len(rows)
    lines = list(csv.reader(io.StringIO("".join(cleanup_exports.text(job, "csv")))))
    assert len(lines) == len(rows) + 1 and not [cell for line in lines for cell in line if cell[:1] in ("=", "+", "-", "@", "\t")]
    told = json.loads("".join(cleanup_exports.text(job, "json")))
    assert (told["job"], told["deleted"], told["freed_bytes"]) == (str(job.pk), len(rows), sum(row.size_bytes for row in rows))
    assert [entry["path"] for entry in told["entries"]] == [row.as_dict()["path"] for row in found.chosen(Choice(kinds=["debug-tensor"]))]
    written = "".join(cleanup_exports.text(job, "md"))
    assert sum(1 for line in written.splitlines() if line.startswith("| deleted |")) == len(rows) and "<script>" not in written
    wanted = {"path", "kind", "size_bytes", "age_s", "owner", "reason", "result", "why"}
    assert wanted <= set(lines[0]) and wanted <= set(told["entries"][0]) and all(entry["age_s"] > 0 and entry["reason"] for entry in told["entries"])
    heads = next(line for line in written.splitlines() if line.startswith("| Result"))
    assert heads == "| Result | Path | Kind | Size | Freed | Age | Owner | Why it was a leftover | Why it stayed |"
    assert all(line.count("|") - line.count("\\|") == heads.count("|") for line in written.splitlines() if line.startswith("| deleted"))
