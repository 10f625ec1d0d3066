"""What events about environments mean for rows: the patch shelf, guards, fingerprints, recipes."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.models import Job, JobEvent, Service, ShelvedPatch
from dashboard.projection import DIFF_LENGTH
from dashboard.recorder import record
from ops.jobs.events import EventType
from tests.dashboard.conftest import Speaker, fresh, new_job

pytestmark = pytest.mark.django_db(transaction=True)

FOLDER = "20260301-101010-dev313"
PATH = "lib/python3.12/site-packages/vllm/model_executor/models/deepseek_v2.py"


def saved(**more: Any) -> dict[str, Any]:
    return {"folder": FOLDER, "path": PATH, "package": "vllm", "version": "0.16.0rc2.dev313", "release": "r1", "change": "changed",
            "size_bytes": 4200, "sha256": "a" * 64, "pristine_sha256": "b" * 64, "diff": "--- a\n+++ b\n+torch.save(x)\n", "diff_cut": False,
            "debris": [{"line": 3, "text": "torch.save(x)", "what": "writes a tensor"}], "note": "",
            "where": f"/srv/shelf/{FOLDER}/{PATH}", **more}


def test_a_saved_patch_becomes_a_row_of_its_service_and_job(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved())])
    patch = ShelvedPatch.objects.get()
    assert (patch.service, patch.job, patch.path, patch.change, patch.size_bytes) == (job.service, job, PATH, "changed", 4200)
    assert patch.debris == [{"line": 3, "text": "torch.save(x)", "what": "writes a tensor"}]
    assert patch.forgotten_at is None and patch.diff is not None


def test_the_same_file_saved_twice_is_one_row_and_another_save_is_another(told: tuple[Job, Speaker]) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved()), node.event(EventType.SHELF_SAVED, **saved(note="again")),
            node.event(EventType.SHELF_SAVED, **saved(folder="20260302-000000-dev344"))])
    assert sorted(ShelvedPatch.objects.values_list("folder", "note")) == [(FOLDER, "again"), ("20260302-000000-dev344", "")]


def test_a_forgotten_patch_keeps_its_row_without_content(told: tuple[Job, Speaker]) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved()), node.event(EventType.SHELF_FORGOTTEN, folder=FOLDER, path=PATH)])
    patch = ShelvedPatch.objects.get()
    assert (patch.diff, patch.debris, patch.package) == (None, [], "vllm")
    assert patch.forgotten_at is not None


def test_a_job_forgets_nothing_of_another_service(told: tuple[Job, Speaker], service: Service) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved())])
    other = Service.objects.create(node=service.node, name="other", record={**service.record, "name": "other"})
    stranger = Speaker(new_job(other))
    record([stranger.claimed(), stranger.event(EventType.SHELF_FORGOTTEN, folder=FOLDER, path=PATH)])
    assert ShelvedPatch.objects.get().forgotten_at is None


def test_a_file_without_a_difference_has_none_rather_than_an_empty_one(told: tuple[Job, Speaker]) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved(change="extra", diff=None, pristine_sha256=None, debris=[]))])
    patch = ShelvedPatch.objects.get()
    assert (patch.diff, patch.pristine_sha256) == (None, "")


def test_a_difference_is_cut_and_says_so(told: tuple[Job, Speaker]) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved(diff="+" * (DIFF_LENGTH + 1)))])
    patch = ShelvedPatch.objects.get()
    assert patch.diff is not None and len(patch.diff) == DIFF_LENGTH and patch.diff_cut


@pytest.mark.parametrize("wrong", [
    {"folder": ""}, {"folder": None}, {"folder": "x" * 201}, {"path": ["a"]}, {"path": "x" * 1001}, {"change": "eaten"}, {"change": None}])
def test_what_names_no_file_makes_no_row_and_stops_nothing(told: tuple[Job, Speaker], wrong: dict[str, Any]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved(**wrong)), node.log(), node.finished()])
    assert not ShelvedPatch.objects.exists()
    assert (fresh(job).state, JobEvent.objects.filter(job=job).count()) == ("succeeded", 4)


@pytest.mark.parametrize("odd", [
    {"package": 3}, {"version": {"a": 1}}, {"size_bytes": -1}, {"size_bytes": "big"}, {"size_bytes": 2**70}, {"size_bytes": True},
    {"sha256": "f" * 900}, {"diff": 7}, {"diff_cut": "yes"}, {"debris": "torch.save"},
    {"debris": [1, None, {"line": "x", "text": 4}]}, {"note": "n" * 9000},
    {"where": None}, {"debris": [{"line": 1, "text": "t" * 9000, "what": "w"}] * 900}])
def test_a_value_of_another_form_is_left_out_of_the_row(told: tuple[Job, Speaker], odd: dict[str, Any]) -> None:
    _, node = told
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved(**odd))])
    patch = ShelvedPatch.objects.get()
    assert patch.size_bytes is None or patch.size_bytes == 4200
    assert len(patch.debris) <= 200 and all(len(one["text"]) <= 500 for one in patch.debris)
    assert len(patch.note) <= 2000 and len(patch.sha256) <= 64


def test_a_job_without_a_service_puts_nothing_on_a_shelf(service: Service) -> None:
    node = Speaker(job := new_job(service))
    Job.objects.filter(pk=job.pk).update(service=None)
    record([node.claimed(), node.event(EventType.SHELF_SAVED, **saved()), node.finished()])
    assert not ShelvedPatch.objects.exists() and fresh(job).state == "succeeded"


def test_guards_as_last_checked_with_all_that_was_applied(told: tuple[Job, Speaker]) -> None:
    job, node = told
    failing, holding = {"guard": {"kind": "key_absent"}, "holds": False}, {"guard": {"kind": "key_absent"}, "holds": True}
    record([node.claimed(), node.event(EventType.GUARDS, results=[failing], applied=[{"file": "config.json", "backup": "/b/1", "diff": "-x"}]),
            node.event(EventType.GUARDS, results=[holding, "odd"], applied=[])])
    kept = fresh(job).result["guards"]
    assert kept == {"results": [holding], "applied": [{"file": "config.json", "backup": "/b/1", "diff": "-x"}]}


@pytest.mark.parametrize("odd", [{}, {"results": None, "applied": None}, {"results": {"a": 1}, "applied": "x"}, {"results": [1], "applied": [None]}])
def test_odd_guards_are_no_guards(told: tuple[Job, Speaker], odd: dict[str, Any]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.GUARDS, **odd)])
    assert fresh(job).result["guards"] == {"results": [], "applied": []}


def test_the_last_fingerprint_of_a_job_stays_with_what_changed(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.FINGERPRINT, moment="before", fingerprint={"hash": "1"}, changed=["torch 2.9 -> 2.10"], since=5.0),
            node.event(EventType.FINGERPRINT, moment="good-start", fingerprint={"hash": "2"}, changed=[], since=9.0),
            node.event(EventType.FINGERPRINT, moment="end", fingerprint={"hash": "2"}, changed=None, since=None)])
    found = fresh(job)
    assert found.fingerprint == {"hash": "2"}
    assert found.result["changed"] == {"since": 5.0, "words": ["torch 2.9 -> 2.10"]}  # not emptied by a start that went well


@pytest.mark.parametrize("wrong", [None, [], "x", {"big": "x" * 1_100_000}])
def test_what_is_no_fingerprint_is_not_kept(told: tuple[Job, Speaker], wrong: Any) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.FINGERPRINT, moment="end", fingerprint=wrong), node.finished()])
    assert (fresh(job).fingerprint, fresh(job).state) == (None, "succeeded")


def test_a_recipe_is_kept_with_its_job(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.RECIPE, recipe={"hash": "h"}, name="dev344.json")])
    assert fresh(job).result["recipe"] == {"recipe": {"hash": "h"}, "name": "dev344.json"}


def test_lists_of_jobs_leave_large_columns_where_they_are(service: Service) -> None:
    Service.objects.filter(pk=service.pk).update(environment={"path": "/srv"})
    new_job(service)
    job = Job.objects.select_related("service", "service__node").get()
    assert {"envelope", "fingerprint"} <= job.get_deferred_fields()
    assert job.service is not None and "environment" in job.service.get_deferred_fields()
    assert job.service.environment == {"path": "/srv"}  # read when it is asked for
