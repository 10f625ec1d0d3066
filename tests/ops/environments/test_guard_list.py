"""The list of guards in a service's own record: what may come into it, and that nothing else of the record changes. With the job that sets it."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.agent import telemetry
from ops.agent.config import NodePaths
from ops.environments import guard_list
from ops.jobs import claim, redact, runner
from ops.jobs.envelope import Envelope
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType, JobState
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Outcome
from ops.records import ServiceRecord
from ops.services import launch

SCHEME = {"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_scheme"}  # as a person writes it: without a value
PRESENT = {"kind": "file_present", "file": "config.json", "key": "", "value": None}
SECRET = "hf_canary0123456789abcdef"


@dataclass
class Node:
    paths: NodePaths
    model: Path
    path: Path

    @property
    def raw(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text()))

    @property
    def guards(self) -> list[Any]:
        return list(self.raw["guards"])

    def store(self, wanted: Any, seen: Any = None) -> list[Any]:
        guard_list.store(self.paths, "kimi", wanted, seen=seen)
        return self.guards

    def run(self, type: str = "guards-set", **params: Any) -> tuple[Outcome, list[tuple[str, dict[str, Any]]]]:
        """Runs a job here, ordered with the record as the node has announced it."""
        said: list[tuple[str, dict[str, Any]]] = []
        order = redact.hide_in_record(ServiceRecord.from_dict(self.raw).as_dict())
        locks = sorted(KINDS[type].locks("kimi", params))
        envelope = Envelope.make(type=type, node="n1", service=order, params=params, locks=locks, fence=claim.next_fences(self.paths, locks),
                                 by="olga", now=time.time())
        return runner.run_here(self.paths, envelope, on_event=lambda type, data: said.append((type, data))), said


@pytest.fixture
def node(short_path: Path) -> Node:
    paths = NodePaths(short_path / "node").make()
    model = short_path / "models" / "kimi"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"quantization_config": {"quant_algo": "NVFP4"}}')
    paths.node_toml.write_text(f'name = "n1"\nservice_roots = ["{paths.services}"]\nmodel_roots = ["{model.parent}"]\n')
    path = paths.announced / "kimi.json"
    path.write_text(json.dumps({"name": "kimi", "root": str(paths.services / "kimi"), "model_path": str(model), "served_model_name": "kimi",
                                "base_url": "http://127.0.0.1:1", "env": {"HF_TOKEN": SECRET, "A": "ä"}, "guards": [SCHEME]}, ensure_ascii=False))
    path.chmod(0o640)
    return Node(paths, model, path)


def test_nothing_but_the_guards_changes(node: Node) -> None:
    before = node.raw
    assert node.store([SCHEME, PRESENT]) == [SCHEME, PRESENT]
    assert {**node.raw, "guards": None} == {**before, "guards": None} and node.raw["env"]["HF_TOKEN"] == SECRET
    assert list(node.raw) == list(before) and stat.S_IMODE(node.path.stat().st_mode) == 0o640
    assert [entry.name for entry in node.paths.announced.iterdir()] == ["kimi.json"]


def test_the_same_list_writes_nothing(node: Node) -> None:
    before = node.path.stat().st_mtime_ns
    assert node.store([SCHEME]) == [SCHEME] and node.path.stat().st_mtime_ns == before
    assert node.store([SCHEME, {**SCHEME, "value": None}]) == [SCHEME], "one guard, however it is written"


def test_a_preset_becomes_the_guards_that_fit_the_model(node: Node) -> None:
    made = node.store([{"preset": "sm120"}, SCHEME])
    assert {guard["file"] for guard in made} == {"config.json", "hf_quant_config.json"} and all(guard["kind"] == "key_absent" for guard in made)
    assert "text_config.quantization_config.kv_cache_scheme" not in {guard["key"] for guard in made}
    (node.model / "config.json").write_text('{"text_config": {"quantization_config": {}}}')
    assert "text_config.quantization_config.kv_cache_scheme" in {guard["key"] for guard in node.store([{"preset": "sm120"}])}


def test_a_list_may_become_empty(node: Node) -> None:
    assert node.store([]) == []


@pytest.mark.parametrize("wanted", [
    None, "sm120", {}, [None], [[]], ["sm120"], [{"preset": "nothing"}], [{"preset": None}], [{"preset": "sm120", "kind": "key_absent"}],
    [{"kind": "key_absent", "file": "config.json"}], [{**PRESENT, "file": "../../etc/passwd"}], [{**PRESENT, "file": "/etc/passwd"}],
    [{**PRESENT, "file": "a\0b"}], [{**PRESENT, "file": "a\nb"}], [{**PRESENT, "file": "\u202eb"}], [{**PRESENT, "file": "x" * 1001}],
    [{**PRESENT, "kind": "run"}], [{**PRESENT, "more": 1}], [{"kind": "file_hash", "file": "a", "value": "no hash"}],
    [{**SCHEME, "kind": "key_equals", "value": "y" * 5000}], [{**SCHEME, "kind": "key_equals", "value": float("nan")}],
    [{**SCHEME, "kind": "key_equals", "value": redact.HIDDEN}], [{**PRESENT, "file": f"{n}.json"} for n in range(101)]])
def test_what_is_no_list_of_guards_is_refused_and_nothing_changes(node: Node, wanted: Any) -> None:
    before = node.path.read_text()
    with pytest.raises(BadInput):
        node.store(wanted)
    assert node.path.read_text() == before


def test_a_hundred_is_the_limit_with_presets_counted_as_what_they_hold(node: Node) -> None:
    many = [{**PRESENT, "file": f"{n}.json"} for n in range(99)]
    assert len(node.store([*many, SCHEME])) == 100
    with pytest.raises(BadInput, match=r"would be 10\d guards"):
        node.store([*many, {"preset": "sm120"}])
    assert len(node.guards) == 100


def test_a_list_that_changed_meanwhile_is_not_written_over(node: Node) -> None:
    assert node.store([SCHEME, PRESENT], [SCHEME]) == [SCHEME, PRESENT]
    with pytest.raises(OpsError, match="changed meanwhile") as caught:
        node.store([], [SCHEME])
    assert caught.value.kind == "changed" and node.guards == [SCHEME, PRESENT]


def test_what_is_hidden_in_an_announcement_stays_what_it_is(node: Node) -> None:
    """A guard that looks like a secret leaves the node hidden; told back like that, it is the node's own."""
    odd = {**SCHEME, "kind": "key_equals", "value": "hf_abcdefghij0123456789"}
    assert node.store([odd, PRESENT])[0]["value"] == odd["value"]
    shown = guard_list.announced(guard_list.own_record(node.paths, "kimi"))
    assert "hf_abcdefghij" not in json.dumps(shown)
    assert node.store([shown[0]], shown) == [odd]


@pytest.mark.parametrize(("content", "words"), [("", "cannot be read"), ("[1]", "no JSON object"), ('{"name": "kimi"}', "incomplete")])
def test_a_record_that_cannot_be_read_is_left_alone(node: Node, content: str, words: str) -> None:
    node.path.write_text(content)
    with pytest.raises(OpsError) as caught:
        guard_list.store(node.paths, "kimi", [])
    assert words in str(caught.value) and node.path.read_text() == content
    for name in ("other", "../kimi", ""):
        with pytest.raises(OpsError):
            guard_list.store(node.paths, name, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_record_that_cannot_be_written_is_told(node: Node) -> None:
    node.paths.announced.chmod(0o500)
    try:
        with pytest.raises(OpsError, match="cannot be written"):
            node.store([])
    finally:
        node.paths.announced.chmod(0o700)
    assert node.guards == [SCHEME]


# ---- the job ----


def test_the_job_stores_the_list_tells_whether_it_holds_and_touches_no_other_file(node: Node) -> None:
    launch.write(ServiceRecord.from_dict(node.raw))
    files = {path: path.read_bytes() for path in [*(node.paths.services).rglob("*"), *node.model.iterdir()] if path.is_file()}
    outcome, said = node.run(guards=[SCHEME, {"preset": "complete"}], before=[SCHEME])
    assert outcome.state == JobState.SUCCEEDED, outcome
    (told,) = (data for type, data in said if type == EventType.GUARDS)
    assert [result["guard"]["kind"] for result in told["results"]] == [guard["kind"] for guard in node.guards]
    assert told["applied"] == [] and all(result["holds"] for result in told["results"])
    assert {path: path.read_bytes() for path in files} == files and "canary" not in json.dumps(said)
    assert [data["note"] for type, data in said if type == EventType.STEP_FINISHED] == ["3 guards (1 before), all hold"]


def test_a_guard_that_does_not_hold_is_set_and_told(node: Node) -> None:
    outcome, said = node.run(guards=[{**PRESENT, "file": "tokenizer.json"}], before=None)
    assert outcome.state == JobState.SUCCEEDED and len(node.guards) == 1
    (finding,) = (data for type, data in said if type == EventType.FINDING)
    assert finding["level"] == "warning" and "1 of 1 guards do not hold" in finding["title"]


def test_the_job_fails_where_somebody_was_faster_and_where_the_model_is_not_allowed(node: Node) -> None:
    outcome, _ = node.run(guards=[], before=[PRESENT])
    assert (outcome.state, outcome.reason_kind, outcome.error["kind"]) == (JobState.FAILED, "expected", "changed")
    raw = node.raw
    ordered = redact.hide_in_record(ServiceRecord.from_dict(raw).as_dict())
    node.path.write_text(json.dumps({**raw, "env": {}, "model_path": "/etc"}))
    envelope = Envelope.make(type="guards-set", node="n1", service={**ordered, "env": {}}, params={"guards": [{"preset": "sm120"}]},
                             locks=["service:kimi"], fence=claim.next_fences(node.paths, ["service:kimi"]), by="olga", now=time.time())
    outcome = runner.run_here(node.paths, envelope)
    assert outcome.state == JobState.FAILED and "does not allow the model folder" in outcome.reason and node.guards == [SCHEME]


def test_a_new_list_is_looked_at_and_announced_although_no_file_changed(node: Node) -> None:
    def stamp() -> Any:
        (record,) = telemetry.records(node.paths)
        return telemetry.environment_stamp(record)

    before = stamp()
    assert before == stamp()
    node.store([{**SCHEME, "key": "another"}])
    assert stamp() != before
