"""Scans and purges as jobs of a node: what they tell, how they end, and what is left when their runner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops import cleaning, redeploy
from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts.found import Choice
from ops.jobs import claim, reconcile, runner
from ops.jobs.envelope import Envelope
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.events import EventType, JobState
from ops.jobs.journal import journal_path, read
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Context, Outcome
from ops.records import ServiceRecord
from tests.fakes.node import until

REPOSITORY = Path(__file__).resolve().parents[2]
OLD = time.time() - 9 * 86400


@dataclass
class Node:
    """A practice node, so that all places of leftovers lie below its folder."""

    paths: NodePaths
    root: Path

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def tensors(self, count: int, *, name: str = "layer{}.pt", bytes_each: int = 10) -> list[Path]:
        made = [self.tmp / name.format(number) for number in range(count)]
        for path in made:
            path.write_bytes(b"x" * bytes_each)
            os.utime(path, (OLD, OLD))
        return made

    def envelope(self, type: str, params: dict[str, Any], snapshot: dict[str, Any] | None = None) -> Envelope:
        locks = sorted(KINDS[type].locks(None, params))
        return Envelope.make(type=type, node="practice", params=params, locks=locks, fence=claim.next_fences(self.paths, locks), snapshot=snapshot,
                             by="test", now=time.time())

    def run(self, type: str, params: dict[str, Any], **snapshot: Any) -> tuple[Outcome, list[tuple[str, dict[str, Any]]], str]:
        said: list[tuple[str, dict[str, Any]]] = []
        envelope = self.envelope(type, params, snapshot)
        outcome = runner.run_here(self.paths, envelope, on_event=lambda type, data: said.append((type, json.loads(json.dumps(data)))))
        return outcome, said, envelope.job

    def scan(self, *kinds: str) -> dict[str, Any]:
        """The summary of a scan for these kinds; all that it told besides is looked at elsewhere."""
        outcome, said, _ = self.run("artifact-scan", {"roots": None, "kinds": list(kinds) or ["debug-tensor"]})
        assert outcome.state == JobState.SUCCEEDED, outcome
        [told] = of(said, EventType.ARTIFACTS_SCANNED)
        return told

    def order(self, scanned: dict[str, Any], *, services: tuple[str, ...] = ("svc",), **choice: Any) -> dict[str, Any]:
        """Params of a purge of all debug tensors, or of what `choice` says."""
        return {"scan": scanned["scan"], "digest": scanned["preview"]["digest"], "services": list(services),
                "choice": Choice(**(choice or {"kinds": ["debug-tensor"]})).as_dict()}


def of(said: list[tuple[str, dict[str, Any]]], type: EventType) -> list[dict[str, Any]]:
    return [data for told, data in said if told == type]


def read_type(folder: Path) -> str:
    return str(read(folder / "journal.jsonl")[0].data["type"])


@pytest.fixture
def node(short_path: Path) -> Node:
    paths, root = NodePaths(short_path / "node").make(), short_path / "box"
    for name in ("tmp", "shm", "cache", "cores", "models/tiny"):
        (root / name).mkdir(parents=True)
    record = ServiceRecord(name="svc", root=str(paths.services / "svc"), model_path=str(root / "models/tiny"), served_model_name="tiny",
                           base_url="http://127.0.0.1:9", artifact_roots=[str(root / "tmp")], practice=True, env={"PRACTICE_BOX": str(root)})
    (paths.announced / "svc.json").write_text(json.dumps(record.as_dict()))
    lines = {"name": "practice", "practice": True, "gpu_source": "practice", "practice_root": str(root), "service_roots": [str(paths.services)],
             "model_roots": [str(root / "models")], "artifact_roots": [str(root / name) for name in ("tmp", "shm", "cache", "cores")]}
    paths.node_toml.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
    return Node(paths, root)


def test_what_a_scan_found_is_told_with_its_preview_and_a_purge_deletes_exactly_that(node: Node) -> None:
    tensors, other = node.tensors(5), node.tmp / "notes.txt"
    other.write_text("mine")
    outcome, said, job = node.run("artifact-scan", {"roots": None, "kinds": ["debug-tensor"]})
    assert outcome.state == JobState.SUCCEEDED, outcome
    [scanned] = of(said, EventType.ARTIFACTS_SCANNED)
    [found] = of(said, EventType.ARTIFACTS_FOUND)
    assert sorted(artifact["path"] for artifact in found["artifacts"]) == sorted(str(path) for path in tensors)
    assert scanned["scan"] == found["scan"] == job and scanned["preview"]["path"] == str(node.paths.previews / f"{job}.jsonl")
    [kind] = [kind for kind in scanned["kinds"] if kind["offered"]["count"]]
    assert (kind["kind"], kind["offered"]["count"], scanned["offered_bytes"]) == ("debug-tensor", 5, kind["offered"]["size_bytes"])

    outcome, said, purge = node.run("purge", node.order(scanned))
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert [path.name for path in node.tmp.iterdir()] == ["notes.txt"]
    [result] = of(said, EventType.PURGE_RESULT)
    assert (result["scan"], result["deleted"]["count"], result["kept"]["count"], result["cancelled"]) == (job, 5, 0, False)
    assert result["freed_bytes"] == scanned["offered_bytes"] and result["gauges"]
    lines = [line for data in of(said, EventType.PURGE_ENTRIES) for line in data["entries"]]
    assert result["manifest"] == {"path": str(node.paths.manifests / f"{purge}.jsonl"), "entries": 5, "told": 5} and len(lines) == 5
    assert {line["result"] for line in lines} == {"deleted"} and Path(result["manifest"]["path"]).stat().st_mode & 0o777 == 0o600


def test_what_is_open_by_then_is_kept_and_the_purge_ends_partial(node: Node) -> None:
    tensors = node.tensors(3)
    scanned = node.scan()
    with tensors[1].open("rb"):
        outcome, said, _ = node.run("purge", node.order(scanned))
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.PARTIAL, "", "none"), outcome
    assert outcome.reason.startswith("1 of 3 ") and [path for path in tensors if path.exists()] == [tensors[1]]
    [result] = of(said, EventType.PURGE_RESULT)
    assert result["kept"]["count"] == 1 and result["why_kept"][0]["example"] == str(tensors[1])
    assert any(f"kept {tensors[1]}" in data["text"] for data in of(said, EventType.STEP_LOG))


def test_roots_that_can_be_none_are_skipped_and_the_scan_ends_partial(node: Node) -> None:
    node.tensors(2)
    (node.tmp / "link").symlink_to(node.tmp)
    for roots, found in (([str(node.tmp), str(node.tmp / "link"), str(node.tmp / "gone")], 2), ([str(node.tmp / "gone")], 0)):
        outcome, said, _ = node.run("artifact-scan", {"roots": roots, "kinds": ["debug-tensor"]})
        assert outcome.state == JobState.PARTIAL and "so that it was not looked into" in outcome.reason, outcome
        [told] = of(said, EventType.ARTIFACTS_SCANNED)
        assert told["kinds"][0]["offered"]["count"] == found and any("There is no folder" in problem for problem in told["problems"])


def test_what_lay_in_a_root_that_is_a_link_now_stays_and_in_one_that_has_gone_is_gone(node: Node) -> None:
    roots = [node.tmp / name for name in ("whole", "swapped", "gone")]
    for root in roots:
        root.mkdir()
        (root / "a.pt").write_bytes(b"x")
        os.utime(root / "a.pt", (OLD, OLD))
    _, said, _ = node.run("artifact-scan", {"roots": [str(root) for root in roots], "kinds": ["debug-tensor"]})
    [scanned] = of(said, EventType.ARTIFACTS_SCANNED)
    roots[1].rename(node.tmp / "precious")
    roots[1].symlink_to(node.tmp / "precious")
    (roots[2] / "a.pt").unlink()
    roots[2].rmdir()
    outcome, said, _ = node.run("purge", node.order(scanned))
    assert outcome.state == JobState.PARTIAL and (node.tmp / "precious" / "a.pt").exists() and not (roots[0] / "a.pt").exists()
    lines = {Path(line["path"]).parent.name: line for data in of(said, EventType.PURGE_ENTRIES) for line in data["entries"]}
    assert {name: line["result"] for name, line in lines.items()} == {"whole": "deleted", "swapped": "kept", "gone": "gone"}
    assert "is a link" in lines["swapped"]["why"]


def test_a_place_that_cannot_be_read_makes_a_scan_partial_and_hides_nothing_else(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.artifacts import walk

    node.tensors(2)
    (node.tmp / "private").mkdir()
    real = os.scandir

    def refused(path: Any) -> Any:
        if isinstance(path, int) and Path(f"/proc/self/fd/{path}").readlink().name == "private":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(walk.os, "scandir", refused)
    outcome, said, _ = node.run("artifact-scan", {"roots": None, "kinds": ["debug-tensor"]})
    assert outcome.state == JobState.PARTIAL and "Permission denied" in outcome.reason
    [told] = of(said, EventType.ARTIFACTS_SCANNED)
    assert told["offered_bytes"] > 0 and any("private" in problem for problem in told["problems"])


def test_a_purge_of_many_says_little_and_each_event_is_small(node: Node) -> None:
    node.tensors(700, name="{:04}" + "é" * 120 + ".pt", bytes_each=1)
    scanned = node.scan()
    outcome, said, job = node.run("purge", node.order(scanned))
    assert outcome.state == JobState.SUCCEEDED and not list(node.tmp.glob("*.pt"))
    assert sum(len(data["entries"]) for data in of(said, EventType.PURGE_ENTRIES)) == 700
    assert sum(data["text"].count("\n") for data in of(said, EventType.STEP_LOG)) <= cleaning.LOGGED_MOST + 20
    events = read(journal_path(node.paths, job))
    assert len(events) < 200 and max(len(event.to_json().encode()) for event in events) < 1_000_000


def test_a_cancelled_purge_tells_what_went_and_leaves_the_rest(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.artifacts import purge

    tensors, unlink, went_before = node.tensors(40), os.unlink, []
    order = node.order(node.scan())
    monkeypatch.setattr(runner, "CANCEL_LOOK_S", 0.0)
    monkeypatch.setattr(purge, "CHECKED_EVERY_S", 0.0)

    def cancels(name: str, **where: Any) -> None:
        unlink(name, **where)
        went_before.append(name)
        if len(went_before) == 10:
            [job] = [folder for folder in node.paths.jobs.iterdir() if not (folder / "settled").exists() and "purge" in read_type(folder)]
            runner.write_cancel(job, "somebody")

    monkeypatch.setattr(purge.os, "unlink", cancels)
    outcome, said, _ = node.run("purge", order)
    monkeypatch.undo()
    assert (outcome.state, outcome.rollback) == (JobState.CANCELLED, "none"), outcome
    [result] = of(said, EventType.PURGE_RESULT)
    went = sum(not path.exists() for path in tensors)
    assert result["cancelled"] is True and result["deleted"]["count"] == went and 10 <= went < 40
    lines = [line for data in of(said, EventType.PURGE_ENTRIES) for line in data["entries"]]
    assert sum(line["result"] == "deleted" for line in lines) == went


KILLED = """
import os, signal, sys
from ops.agent.config import NodePaths
from ops.jobs import runner
from ops.jobs.envelope import Envelope
unlink, went = os.unlink, []
def dies(name, **where):
    unlink(name, **where)
    went.append(name)
    if len(went) == 30:
        os.kill(os.getpid(), signal.SIGKILL)
os.unlink = dies
runner.run_here(NodePaths.default(), Envelope.from_json(sys.stdin.read()))
"""


def test_a_purge_whose_runner_was_killed_is_told_from_its_manifest_and_nothing_is_undone(node: Node) -> None:
    tensors = node.tensors(50)
    envelope = node.envelope("purge", node.order(node.scan()))
    child = subprocess.run([sys.executable, "-c", KILLED], input=envelope.to_json().encode(), cwd=REPOSITORY, check=False, capture_output=True,
                           env={**os.environ, "ROUNDHOUSE_NODE_STATE": str(node.paths.root)})
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert sum(not path.exists() for path in tensors) == 30
    reconcile.one(node.paths, envelope.job)
    events = read(journal_path(node.paths, envelope.job))
    assert (events[-1].data["state"], events[-1].data["rollback"]) == ("interrupted", "none")
    lines = [line for event in events if event.type == EventType.PURGE_ENTRIES for line in event.data["entries"]]
    assert [line["result"] for line in lines] == ["deleted"] * 29 + ["partly"] and "interrupted" in lines[-1]["why"]  # that one may have gone
    [result] = [event.data for event in events if event.type == EventType.PURGE_RESULT]
    assert (result["chosen"]["count"], result["deleted"]["count"], result["kept"]["count"], result["cancelled"]) == (50, 29, 1, True)
    assert result["kinds"][0]["title"] == "Debug tensors" and result["freed_bytes"] == 29 * 4096
    again, _, _ = node.run("purge", node.order(node.scan()))
    assert again.state == JobState.SUCCEEDED and not any(path.exists() for path in tensors)


@pytest.mark.parametrize(("type", "params", "words"), [
    ("artifact-scan", {"kinds": ["no-such"]}, "no kind of leftover called `no-such`"),
    ("artifact-scan", {"kinds": []}, "must be a list of names"),
    ("artifact-scan", {"kinds": "debug-tensor"}, "must be a list of names"),
    ("artifact-scan", {"roots": ["relative"]}, "does not allow the folder to be cleaned up `relative`"),
    ("artifact-scan", {"roots": ["/"]}, "does not allow the folder to be cleaned up `/`"),
    ("artifact-scan", {"roots": [7]}, "`7` is no absolute path"),
    ("artifact-scan", {"roots": []}, "must be a list"),
    ("purge", {"scan": "../../etc"}, "is not a job id"),
    ("purge", {"digest": "0"}, "must name the digest"),
    ("purge", {"services": None}, "which services are locked"),
    ("purge", {"services": ["../x"]}, "is not a lock's name"),
    ("purge", {"choice": {"kinds": [], "numbers": [], "without": []}}, "Nothing was chosen"),
    ("purge", {"choice": {"numbers": ["1"]}}, "wrong form"),
    ("purge", {"choice": None}, "must be a JSON object"),
], ids=str)
def test_an_order_that_is_none_is_refused_before_anything_is_claimed(node: Node, type: str, params: dict[str, Any], words: str) -> None:
    whole = {"scan": str(uuid.uuid4()), "digest": "0" * 64, "services": [], "choice": {"kinds": ["debug-tensor"]}} if type == "purge" else {}
    with pytest.raises((BadInput, Refused)) as caught:
        node.run(type, {**whole, **params})
    assert words in str(caught.value) and not list(node.paths.jobs.iterdir())


def test_a_purge_without_its_preview_or_of_another_one_deletes_nothing(node: Node) -> None:
    tensors = node.tensors(2)
    scanned = node.scan()
    for order, words in ((node.order(scanned) | {"scan": str(uuid.uuid4())}, "not here any more"),
                         (node.order(scanned) | {"digest": "0" * 64}, "is not the one that was chosen from")):
        outcome, _, _ = node.run("purge", order)
        assert (outcome.state, outcome.reason_kind) == (JobState.FAILED, "expected") and words in outcome.reason
    path = Path(scanned["preview"]["path"])
    path.write_bytes(path.read_bytes().replace(b"layer0", b"layer9"))
    assert node.run("purge", node.order(scanned))[0].state == JobState.FAILED
    assert all(path.exists() for path in tensors)


def test_a_purge_locks_the_node_and_the_services_that_it_names() -> None:
    assert KINDS["purge"].locks(None, {"services": ["b", "a", "b"]}) == ["node:purge", "service:a", "service:b"]
    assert KINDS["purge"].locks(None, {}) == KINDS["shelf-forget"].locks("a", {"services": ["b"]}) == ["node:purge"]
    assert KINDS["artifact-scan"].locks(None, {}) == [] and not KINDS["artifact-scan"].mutates


def test_the_newest_previews_stay_and_small_ones_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(cleaning, "SMALL_BYTES", 100)
    for number in range(4):
        for name, length in (("large", 200), ("plan", 10)):
            path = tmp_path / f"{name}{number}.jsonl"
            path.write_bytes(b"x" * length)
            os.utime(path, (OLD + number, OLD + number))
    (tmp_path / ".cut.jsonl.1.part").write_text("half")
    os.utime(tmp_path / ".cut.jsonl.1.part", (OLD, OLD))
    cleaning.prune_previews(tmp_path, keep=2)
    assert names() == ["large2.jsonl", "large3.jsonl", "plan0.jsonl", "plan1.jsonl", "plan2.jsonl", "plan3.jsonl"]
    monkeypatch.setattr(cleaning, "PREVIEWS_BYTES", 230)
    cleaning.prune_previews(tmp_path, keep=2)
    assert names() == ["large3.jsonl", "plan1.jsonl", "plan2.jsonl", "plan3.jsonl"]
    monkeypatch.setattr(cleaning, "SMALL_KEPT", 1)
    cleaning.prune_previews(tmp_path, keep=0)
    assert names() == ["plan3.jsonl"]


def test_long_rows_are_told_in_parts_that_stay_small() -> None:
    rows = [{"path": "é" * 4096, "n": number} for number in range(120)]
    made = list(cleaning.parts(rows, 50, 100_000))
    assert [row for part in made for row in part] == rows
    assert max(map(cleaning.weight, made)) < 110_000 and list(cleaning.parts([], 50)) == []
    assert [len(part) for part in cleaning.parts([{"n": 1}] * 120, 50)] == [50, 50, 20]


# ---- with a redeploy ----


def planned(node: Node, **params: Any) -> Context:
    """A redeploy whose plan has looked for leftovers."""
    said: list[tuple[str, dict[str, Any]]] = []
    record = ServiceRecord.from_dict(json.loads((node.paths.announced / "svc.json").read_text()))
    context = Context(job=str(uuid.uuid4()), params=params, paths=node.paths, config=NodeConfig.load(node.paths.node_toml), folder=node.root,
                      emit=lambda type, data: said.append((str(type), data)), service=record, step="purge")
    context.facts["plan"] = {"cleanup": cleaning.for_plan(context)}
    context.kept["said"] = said
    return context


def test_a_plan_lists_the_services_leftovers_and_its_redeploy_deletes_what_is_offered_with_one(node: Node) -> None:
    tensors = node.tensors(3)
    core = node.root / "cores" / "core.17"
    for path in (core, node.root / "cores" / "core.18"):
        path.write_bytes(b"x" * 5000)
        os.utime(path, (OLD, OLD + int(path.suffix[1:])))
    context = planned(node)
    found = context.facts["plan"]["cleanup"]
    assert {kind["kind"]: kind["offered"]["count"] for kind in found["kinds"]} == {"debug-tensor": 3, "core-dump": 1}
    assert [artifact["kind"] for artifact in found["listed"]] == ["debug-tensor"] * 3 + ["core-dump"] * 2
    assert cleaning.choice_of_plan(context) == Choice(kinds=["debug-tensor"])
    assert cleaning.purge_planned(context).startswith("3 ")
    assert not any(path.exists() for path in tensors) and core.exists() and "partial" not in context.facts
    context = planned(node, purge_kinds=["core-dump"])
    assert cleaning.purge_planned(context).startswith("1 ")
    assert sorted(path.name for path in core.parent.iterdir()) == ["core.18"]  # the newest one stays
    assert cleaning.purge_planned(planned(node)) == cleaning.purge_planned(planned(node, purge_kinds=[])) == "nothing was chosen"


def test_a_redeploys_kinds_must_be_those_of_its_plan(node: Node) -> None:
    node.tensors(1)
    context = planned(node, purge_kinds=["core-dump"])
    with pytest.raises(BadInput, match="found no leftovers of a kind `core-dump`"):
        cleaning.choice_of_plan(context)
    for wrong in ("debug-tensor", [1], {"a": 1}):
        context.params = {"purge_kinds": wrong}
        with pytest.raises(BadInput, match="must be a list of names"):
            redeploy.steps(context)


def test_a_plan_that_does_not_say_what_it_found_is_refused_before_the_service_is_touched(node: Node) -> None:
    node.tensors(1)
    context = planned(node)
    whole = context.facts["plan"]["cleanup"]
    wrong: list[Any] = ["x", {**whole, "kinds": ["debug-tensor"]}, {**whole, "kinds": [{"kind": "debug-tensor"}]}, {**whole, "scan": "../../x"},
                        {**whole, "digest": None}, {key: value for key, value in whole.items() if key != "scan"}, {**whole, "kinds": 7}]
    for one in wrong:
        context.facts["plan"]["cleanup"] = one
        with pytest.raises(BadInput, match=r"wrong form|must name the digest"):
            cleaning.choice_of_plan(context)


def test_a_disk_that_fails_costs_a_redeploy_nothing_but_the_purge(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    [tensor], context = node.tensors(1), planned(node)

    def full(*arguments: Any, **options: Any) -> int:
        raise OSError(28, "No space left on device", str(node.paths.locks))

    monkeypatch.setattr(cleaning.os, "open", full)
    assert cleaning.purge_planned(context) == "not all of it was deleted"
    monkeypatch.undo()
    assert tensor.exists() and context.facts["partial"] == "Leftovers were not deleted: No space left on device"


def test_a_preview_that_is_gone_costs_a_redeploy_nothing_but_the_purge(node: Node) -> None:
    [tensor] = node.tensors(1)
    context = planned(node)
    (node.paths.previews / f"{context.job}.jsonl").unlink()
    assert cleaning.purge_planned(context) == "not all of it was deleted"
    assert tensor.exists() and "The preview is not here any more" in context.facts["partial"]
    assert [data["level"] for told, data in context.kept["said"] if told == EventType.FINDING] == ["warning"]


def test_a_redeploy_and_a_purge_never_delete_at_the_same_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = node.tensors(3)
    context, purge = planned(node), planned(node)
    with cleaning.one_at_a_time(purge):
        deletes = threading.Thread(target=cleaning.purge_planned, args=(context,))
        deletes.start()
        until(lambda: any("this one waits" in str(data) for _, data in context.kept["said"]), 20)
        assert all(path.exists() for path in tensors)
    deletes.join()
    assert not any(path.exists() for path in tensors) and "partial" not in context.facts
    node.tensors(1)
    context = planned(node)
    monkeypatch.setattr(cleaning, "WAITS_MOST_S", 0.0)
    with cleaning.one_at_a_time(purge):
        assert cleaning.purge_planned(context) == "not all of it was deleted"
    assert "Another job of this node deletes leftovers" in context.facts["partial"]


def test_a_scan_that_fails_half_way_leaves_no_preview(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise OpsError("The disk is full", kind="disk")

    monkeypatch.setattr("ops.artifacts.scan.scan", fails)
    assert node.run("artifact-scan", {"roots": None, "kinds": ["debug-tensor"]})[0].state == JobState.FAILED
    assert list(node.paths.previews.iterdir()) == []
