"""Kinds of leftovers in Settings: what they are, and the form in which an admin adds one. What Fleet says of disks and of what can be given back."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import cleanup_rows, dispatch, kind_forms
from dashboard.models import ArtifactKind, ArtifactScan, AuditEntry, Node
from ops.agent.config import NodeConfig
from ops.artifacts import kinds, places
from ops.artifacts.found import Choice
from tests.dashboard.pages import cleanup_data
from tests.dashboard.pages.factory import Story

pytestmark = pytest.mark.django_db

GOOD: dict[str, Any] = {
    "name": "nightly", "title": "Nightly files", "one": "nightly file", "places": "/scratch/nightly\n/tmp/nightly/\n",
    "patterns": "run-*.bin\nruns/*/dump_*", "depth": "2", "min_age": "36", "min_age_unit": "hours", "conditions": ["all-processes-seen"],
    "leftover": "Written by the nightly comparison", "keeping": "Nothing reads it again", "offered": "on"}


def add(client: Client, **more: Any) -> Any:
    return client.post("/settings/kinds/new/", {**GOOD, **more})


def problems(response: Any) -> dict[str, str]:
    """Field: what stands beside it."""
    return {name: html.unescape(words) for name, words in
            re.findall(r'<span class="problem" id="([\w-]+)-problem">([^<]*)<', response.content.decode())}


def test_every_kind_is_listed_with_where_it_lies_when_it_is_safe_and_what_keeping_is_worth(member: Client) -> None:
    body = html.unescape(re.sub(r"<[^>]*>", "", member.get("/settings/kinds/").content.decode()))
    for kind in kinds.builtin():
        assert kind.title in body and kind.leftover.replace("`", "") in body and kind.keeping.replace("`", "") in body
        assert all(kinds.CONDITIONS[name] in body for name in kind.conditions)
        assert all(kind_forms.PLACE_WORDS[name] in body for name in kind.places)
    assert "core.<number>" in body and "[0-9]" not in body and "<uuid>" in body
    settings = member.get("/settings/").content.decode()
    assert f"{len(kinds.builtin())} kinds that Roundhouse knows" in settings
    assert "Add a kind" not in body + settings


def test_an_admin_adds_a_kind_and_the_next_scan_takes_it_along(visitor: Client, admin: User, story: Story) -> None:
    response = add(visitor)
    assert (response.status_code, response.url) == (302, "/settings/kinds/nightly/"), problems(response)
    record = ArtifactKind.objects.get().record
    assert kinds.own([record])[0].as_dict() == record
    assert (record["places"], record["patterns"], record["min_age_s"], record["depth"], record["offered"], record["any_owner"], record["own"]) == (
        ["/scratch/nightly", "/tmp/nightly"], ["run-*.bin", "runs/*/dump_*"], 129_600.0, 2, True, False, True)
    page = html.unescape(visitor.get(response.url).content.decode())
    assert 'artifact_roots = ["/scratch/nightly", "/tmp/nightly"]' in page and "made it" in page
    assert "Nightly files" in visitor.get("/settings/").content.decode()
    entry = AuditEntry.objects.get(action="kind.create")
    assert (entry.by, entry.subject) == (admin, "nightly") and entry.data["changed"]["min_age_s"] == {"before": None, "after": 129_600.0}
    assert dispatch.start_scan(node=story.the_node, user=admin, kinds=["nightly"]).envelope["snapshot"]["kinds"] == [record]


def test_saving_a_kind_as_it_is_changes_nothing_and_a_change_is_told_field_by_field(visitor: Client) -> None:
    add(visitor)
    stored = ArtifactKind.objects.get()
    sent: dict[str, Any] = {"min_age_unit": "hours"}
    for field in kind_forms.KindForm(stored=stored).shown():
        if not field.fixed and field.value is not False:
            sent[field.name] = "on" if field.value is True else field.value
    assert visitor.post("/settings/kinds/nightly/", sent).status_code == 302
    assert ArtifactKind.objects.get().record == stored.record and not AuditEntry.objects.filter(action="kind.edit").exists()
    assert visitor.post("/settings/kinds/nightly/", {**sent, "min_age": "3", "min_age_unit": "days", "name": "other"}).status_code == 302
    changed = ArtifactKind.objects.get()
    assert (changed.name, changed.record["name"], changed.record["min_age_s"]) == ("nightly", "nightly", 259_200.0)
    assert AuditEntry.objects.get(action="kind.edit").data["changed"] == {"min_age_s": {"before": 129_600.0, "after": 259_200.0}}


HARM: dict[str, list[str]] = {
    "name": ["No Spaces", "new", "debug-tensor", ""], "title": ["bell\x07"], "one": [""], "leftover": [""], "keeping": [""],
    "places": ["relative/folder", "/", "/home", "/usr/share/x", "/home/llm", "/root", "/dev/dri", "//etc/x", "/var/lib", "/scratch/../etc",
               "\n \n", "/a/b\x07", "\n".join(f"/a/{n}" for n in range(60))],
    "patterns": ["*", "../*.bin", "/abs/*.bin", "runs/**/x", "x" * 300], "depth": ["-1", "33", "many"], "conditions": ["not-bound"],
    "min_age": ["0.5", "nan", "inf", "99999999"]}


@pytest.mark.parametrize(("field", "wrong"), [pytest.param(field, wrong, id=f"{field}-{n}") for field, all_of in HARM.items()
                                              for n, wrong in enumerate(all_of)])
def test_what_could_do_harm_is_refused_beside_its_field(visitor: Client, field: str, wrong: str) -> None:
    response = add(visitor, **{field: wrong})
    assert response.status_code == 400 and set(problems(response)) == {field} and not ArtifactKind.objects.exists()
    assert GOOD["leftover" if field != "leftover" else "title"] in response.content.decode()  # what was typed stays


def test_every_wrong_field_is_told_at_once(visitor: Client) -> None:
    response = add(visitor, places="x", patterns="*", min_age="1", min_age_unit="hours", depth="x", keeping="")
    assert set(problems(response)) == {"places", "patterns", "depth", "keeping"}


def test_a_name_that_is_taken_is_refused(visitor: Client) -> None:
    add(visitor)
    assert "already" in problems(add(visitor))["name"] and ArtifactKind.objects.count() == 1


def test_all_own_kinds_together_fit_an_order(visitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    add(visitor)
    monkeypatch.setattr(kind_forms, "OWN_BYTES_MOST", 1024)
    response = add(visitor, name="another", places="\n".join(f"/scratch/{n:0>50}" for n in range(10)))
    assert response.status_code == 400 and "All kinds of your own together" in response.content.decode()
    assert ArtifactKind.objects.count() == 1


def test_removing_asks_first_and_says_what_the_last_scan_lists(visitor: Client, story: Story) -> None:
    ArtifactKind.objects.create(name="bench-scratch", record=cleanup_data.OWN_KIND)
    cleanup_data.scan_job(story)
    asked = html.unescape(visitor.get("/settings/kinds/bench-scratch/remove/").content.decode())
    assert "lists 2 files of it" in asked and ArtifactKind.objects.exists()
    assert visitor.post("/settings/kinds/bench-scratch/remove/").status_code == 302
    assert not ArtifactKind.objects.exists() and AuditEntry.objects.get(action="kind.remove").subject == "bench-scratch"
    assert ArtifactScan.objects.get().artifacts.filter(kind="bench-scratch").exists()


def test_a_kind_says_which_nodes_may_not_look_into_its_folders(visitor: Client, story: Story, tmp_path: Path) -> None:
    """In the very words of a scan of a node whose owner did not allow it."""
    folder = tmp_path / "bench"
    folder.mkdir()
    record = {**cleanup_data.OWN_KIND, "places": [str(folder)]}
    ArtifactKind.objects.create(name="bench-scratch", record=record)
    node = NodeConfig(name="gpu01", artifact_roots=["/nonexistent"], model_roots=["/nonexistent"])
    refused = places.of_node(node, None, [], kinds=kinds.own([record])).problems
    cleanup_data.scan_job(story, problems=[*refused, f"`{folder}-2` was not looked into"])
    page = html.unescape(re.sub(r"<[^>]*>", "", visitor.get("/settings/kinds/bench-scratch/").content.decode()))
    assert "was not looked into: This node does not allow to clean up in" in page and "bench-2" not in page


def test_only_admins_make_change_and_remove_kinds(member: Client) -> None:
    ArtifactKind.objects.create(name="bench-scratch", record=cleanup_data.OWN_KIND)
    for path in ("new/", "bench-scratch/", "bench-scratch/remove/"):
        assert member.get(f"/settings/kinds/{path}").status_code == member.post(f"/settings/kinds/{path}", GOOD).status_code == 403
    assert ArtifactKind.objects.get().record == cleanup_data.OWN_KIND
    assert "Benchmark scratch" in member.get("/settings/").content.decode()


def test_a_kind_that_this_version_refuses_is_shown_with_why_and_can_be_put_right(visitor: Client) -> None:
    ArtifactKind.objects.create(name="bad", record={**cleanup_data.OWN_KIND, "name": "bad", "patterns": ["*"]})
    ArtifactKind.objects.create(name="worse", record={"name": "worse", "places": 7, "min_age_s": "old", "conditions": "all"})
    body = visitor.get("/settings/kinds/").content.decode()
    assert body.count("It is not taken along any more") == 2
    for name in ("bad", "worse"):
        assert visitor.get(f"/settings/kinds/{name}/").status_code == 200
    assert visitor.post("/settings/kinds/worse/", GOOD).status_code == 302
    assert kinds.own([ArtifactKind.objects.get(name="worse").record])


# ---- Fleet and node ----


def back(client: Client, path: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html.unescape(client.get(path).content.decode())))


def test_fleet_and_node_say_what_can_be_given_back_and_less_after_a_purge(member: Client, story: Story) -> None:
    pages = ("/", "/nodes/practice/", "/fragments/disks/?node=practice", "/fragments/node-disks/?node=practice")
    assert all("Scan the disks" in back(member, path) or "Nobody has looked" in back(member, path) for path in pages)
    scan, found = cleanup_data.scan_job(story)
    before = ArtifactScan.objects.get(job=scan)
    for path in pages:
        assert f"{size(before.offered_bytes)} can be given back" in back(member, path) and "/cleanup/practice/" in member.get(path).content.decode()
    choice = Choice(kinds=["function-trace", "debug-tensor"])
    cleanup_data.purge_job(story, scan, found, choice=choice)
    gone = sum(row.size_bytes for row in found.chosen(choice))
    assert all(f"{size(before.offered_bytes - gone)} can be given back" in back(member, path) for path in pages)
    assert f"{size(gone)} freed since the scan" in back(member, "/nodes/practice/")


def size(value: int) -> str:
    from dashboard.templatetags.roundhouse import size as words

    return re.sub(r"\s", " ", words(value))


def test_a_scan_of_a_part_does_not_stand_for_the_node(story: Story) -> None:
    whole, _ = cleanup_data.scan_job(story, ago_s=900)
    part, _ = cleanup_data.scan_job(story, ago_s=60)
    type(part).objects.filter(pk=part.pk).update(params={"roots": ["/tmp/x"], "kinds": None})
    assert cleanup_rows.newest_scans([story.the_node])[story.the_node.pk].job == whole
    whole.delete()
    assert cleanup_rows.newest_scans([story.the_node])[story.the_node.pk].job == part


def test_a_disk_that_runs_out_of_inodes_is_told_everywhere_and_one_with_many_left_too(member: Client, story: Story) -> None:
    disk = {"path": "/data", "what": "disk", "total_bytes": 10**12, "used_bytes": 10**11, "free_bytes": 9 * 10**11, "inodes": 1000}
    for left, words in ((20, "98 % of its inodes"), (995, "0.5 % of its inodes")):
        Node.objects.filter(pk=story.the_node.pk).update(telemetry={**story.the_node.telemetry, "disks": [disk | {"inodes_free": left}]})
        assert all(words in member.get(path).content.decode() for path in ("/nodes/practice/", "/cleanup/", *(["/"] if left == 20 else [])))


def test_disks_are_shown_with_what_is_free_and_a_node_that_tells_nonsense_breaks_nothing(member: Client, story: Story) -> None:
    assert "21.4 GB free" in back(member, "/") and "of its inodes" in back(member, "/nodes/practice/")
    lies: list[Any] = [None, 7, "x", {}, [None, 3, {}, {"path": 3}], [{"path": "<b>/x</b>", "what": 3, "total_bytes": "1", "used_bytes": -5,
                                                                     "free_bytes": 10**40, "inodes": 0, "inodes_free": 5}] * 90,
                       [{"path": "/", "total_bytes": 0, "used_bytes": 10, "free_bytes": None}]]
    for lie in lies:
        kept = cleanup_rows.gauges(lie)
        assert len(kept) <= cleanup_rows.GAUGES_MOST
        for disks in (lie, kept):
            Node.objects.filter(pk=story.the_node.pk).update(telemetry={**story.the_node.telemetry, "disks": disks})
            for path in ("/", "/nodes/practice/"):
                page = member.get(path)
                assert page.status_code == 200 and b"<b>/x" not in page.content
