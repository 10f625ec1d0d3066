"""What ends a redeploy half way on the practice box, and what must hold afterwards: the service serves, its release is whole, the next job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.environments import releases
from ops.jobs import checker, claim, journal, reconcile, runner
from ops.jobs.envelope import Envelope
from ops.practice import box
from ops.records import ServiceRecord
from ops.services.manager import manager_for
from tests.walks.practice_stack import free_port, wait_until

pytestmark = pytest.mark.timeout(240)

STEPS = ("plan", "preflight", "build", "verify", "shelf", "stop", "gpus-free", "switch", "start", "warmup", "smoke", "sweep", "purge", "report")
PHASES = ("before", "after", "recorded")
QUICK = {"stop:after", "switch:recorded"}  # in every run; all pairs take three minutes


class Node:
    """A practice box whose jobs run in runners of their own, as the agent starts them."""

    def __init__(self, folder: Path) -> None:
        self.paths, self.root = NodePaths(folder / "node").make(), folder / "box"
        self.record: ServiceRecord = box.set_up(self.paths, self.root, speed=25, port=free_port())
        self.manager = manager_for(self.record)
        self.manager.start()
        wait_until(lambda: self.state == "healthy", 60, "the practice service answers")

    @property
    def state(self) -> str:
        return str(self.manager.status().state)

    def start(self, **params: Any) -> str:
        locks = [f"service:{self.record.name}"]
        envelope = Envelope.make(
            type="redeploy", node="practice", service=self.record.as_dict(), locks=locks, fence=claim.next_fences(self.paths, locks),
            params={"sweep_settings": {"concurrencies": [1], "max_tokens": 16}, **params},
            snapshot={"channel": box.channel(self.root).as_dict()}, by="test", now=time.time())
        assert runner.start(self.paths, envelope) == "claimed"
        return envelope.job

    def end(self, job: str) -> dict[str, Any]:
        """How the job ended; one whose runner died is reconciled, as the companion does it."""
        path = journal.journal_path(self.paths, job)

        def ended() -> dict[str, Any] | None:
            if (final := journal.final_event(path)) is not None:
                return final.data
            if reconcile.needs_reconciling(self.paths, job):
                reconcile.start(self.paths, job).wait(120)
            return None

        return dict(wait_until(ended, 120, "the job ends"))

    def until(self, job: str, step: str) -> None:
        path = journal.journal_path(self.paths, job)
        wait_until(lambda: any(event.type == "step.started" and event.data["step"] == step for event in journal.read(path)), 60, step)

    def hold(self) -> None:
        """What must hold after every job, however it ended."""
        current = releases.current(self.record)
        assert current is not None
        subprocess.run([current / "bin" / "python", "-I", "-c", "import vllm"], env={"PRACTICE_BOX": str(self.root)}, check=True)
        status = self.manager.status()
        assert (status.state, status.release) == ("healthy", current.name), status
        assert claim.held(self.paths, f"service:{self.record.name}") is None
        claim.release(claim.lock_all(self.paths, [f"service:{self.record.name}"]))  # Busy: somebody still has it
        assert [found.name for found in releases.listing(self.record) if found.unfinished or not found.verified] == []
        assert checker.check(self.paths) == []

    def close(self) -> None:
        self.manager.terminate()
        deadline = time.monotonic() + 10
        while self.manager.pids() and time.monotonic() < deadline:
            time.sleep(0.1)
        self.manager.kill()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("n"))
    yield made
    made.close()


@pytest.mark.parametrize("place", [
    pytest.param(place, marks=() if place in QUICK else pytest.mark.slow) for place in (f"{step}:{phase}" for step in STEPS for phase in PHASES)])
def test_a_crash_at_any_line_leaves_a_service_that_serves(node: Node, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("CRASH_AT", place)
    job = node.start()
    monkeypatch.delenv("CRASH_AT")
    before = node.record.current.readlink()
    said = node.end(job)
    complete = place == "report:recorded"  # only its last word was missing
    assert said["state"] == ("succeeded" if complete else "interrupted")
    assert said["rollback"] in ("none", "done")
    node.hold()
    if not complete:
        assert node.record.current.readlink() == before
    kinds = [event.type for event in journal.read(journal.journal_path(node.paths, job))]
    assert ("downtime.ended" in kinds) == ("downtime.started" in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["build", "stop", "gpus-free", "switch", "start", "warmup", "smoke", "sweep"])
def test_a_cancel_in_any_step_leaves_a_service_that_serves(node: Node, step: str) -> None:
    job = node.start()
    node.until(job, step)
    found = reconcile.runner_of(journal.journal_path(node.paths, job))
    assert found is not None
    os.kill(found.pid, signal.SIGTERM)
    assert node.end(job)["state"] == "cancelled"
    node.hold()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["main", "worker"])
@pytest.mark.parametrize("step", ["build", "warmup", "smoke", "sweep"])
def test_a_service_that_dies_meanwhile_serves_afterwards(node: Node, step: str, victim: str) -> None:
    job = node.start()
    node.until(job, step)
    main = wait_until(lambda: node.manager.status().pid, 20, "it runs")
    workers = node.manager.pids() - {main}
    os.kill(main if victim == "main" or not workers else max(workers), signal.SIGKILL)
    assert node.end(job)["state"] in ("succeeded", "failed")
    node.hold()


def full(place: Path) -> Callable[[], None]:
    """Fills the disk that `place` lies on; the answer gives the room back."""
    fill = place / "fill"
    room = os.statvfs(place)
    with fill.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, max(room.f_bavail * room.f_frsize - (2 << 20), 1))
    with fill.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            pass
    return fill.unlink


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system of its own")
@pytest.mark.parametrize("step", ["build", "verify", "stop", "start", "warmup", "smoke"])
@pytest.mark.parametrize("where", ["the service's folder", "the jobs' folder"])
def test_a_full_disk_ends_the_job_with_its_reason_and_the_service_serves(tmp_path: Path, where: str, step: str) -> None:
    node = Node(tmp_path)
    place, size = (node.record.folder, "2500m") if "service" in where else (node.paths.jobs, "16m")
    node.close()
    kept = tmp_path / "kept"
    place.rename(kept)
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        subprocess.run(["cp", "-a", f"{kept}/.", str(place)], check=True)
        node.manager.start()
        wait_until(lambda: node.state == "healthy", 60, "the practice service answers")
        job = node.start()
        node.until(job, step)
        found = reconcile.runner_of(journal.journal_path(node.paths, job))
        assert found is not None
        os.kill(found.pid, signal.SIGSTOP)
        room_again = full(place)
        os.kill(found.pid, signal.SIGCONT)
        if "jobs" in where:  # its last word waits for room for a minute
            wait_until(lambda: not found.lives() or node.state == "healthy", 60, "undone")
            time.sleep(3)
        else:
            node.end(job)
        room_again()
        said = node.end(job)
        if said["state"] != "succeeded":  # done with writing when the disk filled up
            assert (said["state"], said["reason_kind"]) == ("failed", "expected")
            assert "cannot be" in said["reason"] or "disk" in said["reason"].lower() or "wrote nothing" in said["reason"]
        assert said["rollback"] != "failed"
        node.hold()
    finally:
        node.close()
        subprocess.run(["umount", "-l", str(place)], check=True)
