"""Redeploys on a practice box, run on the node itself without the console: what they change, and how they come back from a failure."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.environments import guards, integrity, packages, releases
from ops.jobs import claim, runner
from ops.jobs.envelope import Envelope
from ops.jobs.events import EventType, JobState
from ops.jobs.pipeline import Outcome
from ops.practice import box
from ops.records import ServiceRecord
from ops.services.manager import manager_for
from tests.walks.practice_stack import free_port, wait_until

pytestmark = pytest.mark.timeout(240)


@dataclass
class PracticeNode:
    paths: NodePaths
    root: Path
    record: ServiceRecord

    def run(self, type: str, *, suite: list[dict[str, Any]] | None = None, **params: Any) -> tuple[Outcome, list[tuple[str, dict[str, Any]]]]:
        """Runs a job in this process; gives how it ended and all that it said."""
        from ops.jobs.kinds import KINDS

        said: list[tuple[str, dict[str, Any]]] = []
        locks = sorted(KINDS[type].locks(self.record.name, params))
        snapshot = {"channel": box.channel(self.root).as_dict(), "suite": suite}
        envelope = Envelope.make(type=type, node="practice", service=self.record.as_dict(), params=params, locks=locks,
                                 fence=claim.next_fences(self.paths, locks), snapshot=snapshot, by="test", now=time.time())
        outcome = runner.run_here(self.paths, envelope, on_event=lambda type, data: said.append((type, json.loads(json.dumps(data)))))
        return outcome, said

    @property
    def state(self) -> str:
        return str(manager_for(self.record).status().state)


@pytest.fixture
def node(short_path: Path) -> Iterator[PracticeNode]:
    paths = NodePaths(short_path / "node").make()
    root = short_path / "box"
    made = PracticeNode(paths, root, box.set_up(paths, root, speed=25, port=free_port()))
    manager = manager_for(made.record)
    manager.start()
    try:
        wait_until(lambda: made.state == "healthy", 60, "the practice service answers")
        yield made
    finally:
        manager.terminate()
        wait_until(lambda: not manager.pids(), 20, "the practice service ends")


def of(said: list[tuple[str, dict[str, Any]]], type: EventType) -> list[dict[str, Any]]:
    return [data for told, data in said if told == type]


def test_a_redeploy_leaves_a_clean_new_release_and_nothing_of_the_patches(node: PracticeNode) -> None:
    before = releases.current(node.record)
    pid = manager_for(node.record).status().pid
    config = (Path(node.record.model_path) / "config.json").read_bytes()
    outcome, said = node.run("redeploy")
    assert outcome.state == JobState.SUCCEEDED, outcome
    after = releases.current(node.record)
    assert before is not None and after is not None and after != before
    installed = packages.read(after)
    assert installed.version("vllm") == "0.16.0rc2.dev344+practice"
    assert installed.version("flashinfer-python") == installed.version("flashinfer-cubin") == "0.6.4+practice"
    assert integrity.check(after).clean
    assert [result.holds for result in guards.check(node.record)] == [True, True]
    assert (Path(node.record.model_path) / "config.json").read_bytes() == config
    assert [path for artifact_root in node.record.artifact_roots for path in Path(artifact_root).rglob("*.pt")] == []
    assert manager_for(node.record).status().pid != pid
    report = of(said, EventType.REPORT)[0]
    assert report["cleanup"]["deleted_count"] == 35
    assert len(report["reinstall"]["patched"]) == 4
    assert len(list(Path(report["reinstall"]["shelf"]).rglob("*.py"))) == 4
    assert [level["concurrency"] for level in report["benchmark"]["levels"]] == [1, 8, 32, 128]
    assert "PRACTICE" in report["markdown"]
    assert releases.last_good(node.record) == after.name


def test_coupling_off_crashes_as_in_the_story_and_rolls_back_by_itself(node: PracticeNode) -> None:
    before = releases.current(node.record)
    outcome, said = node.run("redeploy", coupling=False)
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.FAILED, "expected", "done")
    found = of(said, EventType.DIAGNOSIS)[0]
    assert found["fault"] is True
    assert "flashinfer-cubin version (0.6.3" in found["text"]
    assert "0.6.4" in found["fix"] and "flashinfer-cubin" in found["fix"]
    assert found["lines"] - found["line"] > 50  # far above the journal's last line, as it was that night
    assert releases.current(node.record) == before
    assert node.state == "healthy"
    undone = [data["step"] for data in of(said, EventType.STEP_UNDONE) if data["note"]]
    assert undone[-2:] == ["switch", "stop"]
    report = of(said, EventType.REPORT)[0]
    assert report["failure"]["step"] == "warmup"
    assert "Decisive line" in report["markdown"]
    assert report["downtime_s"] > 0


def test_a_failing_smoke_test_rolls_back_too(node: PracticeNode) -> None:
    before = releases.current(node.record)
    impossible = {"name": "factual", "kind": "factual", "title": "A factual question", "prompt": "What is the capital of France?",
                  "expect": "Canberra"}
    outcome, said = node.run("redeploy", suite=[impossible], sweep=False, purge=False)
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done")
    assert "factual" in outcome.reason
    assert releases.current(node.record) == before
    assert node.state == "healthy"
    assert len(of(said, EventType.DOWNTIME_ENDED)) == 2  # once for the new release, once for the way back


def test_a_guard_that_does_not_hold_stops_before_the_service_is_touched(node: PracticeNode) -> None:
    path = Path(node.record.model_path) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"type": "float", "num_bits": 8}
    path.write_text(json.dumps(config))
    pid = manager_for(node.record).status().pid
    outcome, said = node.run("redeploy")
    assert outcome.state == JobState.FAILED
    assert outcome.rollback == "none"
    assert manager_for(node.record).status().pid == pid
    assert not of(said, EventType.DOWNTIME_STARTED)
    assert [finding["level"] for finding in of(said, EventType.FINDING) if "kv_cache_scheme" in str(finding)].count("stop") >= 1


def test_restart_and_reset_bring_the_service_back(node: PracticeNode) -> None:
    pid = manager_for(node.record).status().pid
    outcome, _ = node.run("restart")
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert manager_for(node.record).status().pid != pid
    assert node.run("redeploy", sweep=False)[0].state == JobState.SUCCEEDED
    outcome, _ = node.run("practice-reset")
    assert outcome.state == JobState.SUCCEEDED, outcome
    current = releases.current(node.record)
    assert current is not None
    assert packages.read(current).version("vllm") == "0.16.0rc2.dev313+practice"
    assert len(integrity.check(current).changed) == 4
    outcome, said = node.run("integrity")
    assert len(of(said, EventType.INTEGRITY)[0]["changed"]) == 4
