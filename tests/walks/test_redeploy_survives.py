"""What ends a job half way on the practice box, and what must hold afterwards: the service serves, its release is whole, the next job runs.

Beside the live release and in place: redeploys, roll backs, builds, and the small jobs on what a service keeps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.environments import guards, integrity, packages, patches, releases
from ops.jobs import checker, claim, journal, reconcile, runner
from ops.jobs.envelope import Envelope
from ops.jobs.kinds import KINDS
from ops.practice import box
from ops.records import ServiceRecord
from ops.services.manager import manager_for
from tests.walks.practice_stack import free_port, wait_until

pytestmark = pytest.mark.timeout(240)

STEPS = ("plan", "preflight", "build", "verify", "shelf", "stop", "gpus-free", "switch", "start", "warmup", "smoke", "sweep", "purge", "prune",
         "report")
IN_PLACE = ("plan", "preflight", "fetch", "shelf", "backup", "stop", "gpus-free", "install", "verify", "switch", "start", "warmup", "smoke", "prune",
            "report")
BACK = ("preflight", "shelf", "stop", "gpus-free", "switch", "start", "warmup", "smoke", "report")
PHASES = ("before", "after", "recorded")
QUICK = {"stop:after", "switch:recorded"}  # in every run; all pairs take three minutes
QUICK_IN_PLACE = {"install:after"}
QUICK_BACK = {"switch:after"}
LAST = {"build": "prune:recorded", "guards-apply": "guards:recorded", "shelf-forget": "forget:recorded", "recipe": "recipe:recorded"}


def places(steps: tuple[str, ...], quick: Collection[str] = ()) -> list[Any]:
    """Every line at which a job of these steps can be killed; most of them only in the long run."""
    pairs = [f"{step}:{phase}" for step in steps for phase in PHASES]
    return [pytest.param(place, marks=() if place in quick else pytest.mark.slow) for place in pairs]


class Node:
    """A practice box whose jobs run in runners of their own, as the agent starts them."""

    def __init__(self, folder: Path, *, in_place: bool = False) -> None:
        self.paths, self.root = NodePaths(folder / "node").make(), folder / "box"
        self.record: ServiceRecord = box.set_up(self.paths, self.root, speed=25, port=free_port(), in_place=in_place)
        self.manager = manager_for(self.record)
        self.manager.start()
        wait_until(lambda: self.state == "healthy", 60, "the practice service answers")

    @property
    def state(self) -> str:
        return str(self.manager.status().state)

    @property
    def current(self) -> Path:
        found = releases.current(self.record)
        assert found is not None
        return found

    def start(self, type: str = "redeploy", **params: Any) -> str:
        if self.record.in_place and type in ("redeploy", "rollback", "restart"):
            params |= {"in_place": True, "environment": str(releases.environment(self.record))}
        locks = sorted(KINDS[type].locks(self.record.name, params))
        envelope = Envelope.make(
            type=type, node="practice", service=self.record.as_dict(), locks=locks, fence=claim.next_fences(self.paths, locks),
            params={"sweep_settings": {"concurrencies": [1], "max_tokens": 16}, **params},
            snapshot={"channel": box.channel(self.root).as_dict()}, by="test", now=time.time())
        assert runner.start(self.paths, envelope) == "claimed"
        return envelope.job

    def crashed(self, monkeypatch: pytest.MonkeyPatch, place: str, type: str, **params: Any) -> dict[str, Any]:
        """Runs a job that is killed at `place`; gives how it ended, once it was put right."""
        monkeypatch.setenv("CRASH_AT", place)
        job = self.start(type, **params)
        monkeypatch.delenv("CRASH_AT")
        said = self.end(job)
        complete = place == LAST.get(type, "report:recorded")  # only its last word was missing
        assert said["state"] == ("succeeded" if complete else "interrupted")
        assert said["rollback"] in ("none", "done")
        kinds = [event.type for event in journal.read(journal.journal_path(self.paths, job))]
        assert ("downtime.ended" in kinds) == ("downtime.started" in kinds)
        self.hold()
        return said

    def two_releases(self) -> str:
        """Makes sure that there is a release to go back to; gives its name."""
        if len(self.usable()) < 2:
            assert self.end(self.start(sweep=False, smoke=False, purge=False))["state"] == "succeeded"
        return next(name for name in self.usable() if name != self.current.name)

    def usable(self) -> list[str]:
        return [found.name for found in releases.listing(self.record) if found.verified or found.kind != "built"]

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
        current = self.current
        subprocess.run([current / "bin" / "python", "-I", "-c", "import vllm"], env={"PRACTICE_BOX": str(self.root)}, check=True)
        assert packages.read(current).version("vllm") == (releases.manifest(current) or {})["version"]
        status = self.manager.status()
        assert (status.state, status.release) == ("healthy", current.name), status
        locks = [f"service:{self.record.name}", *([f"env:{releases.environment(self.record)}"] if self.record.in_place else [])]
        assert [claim.held(self.paths, lock) for lock in locks] == [None] * len(locks)
        claim.release(claim.lock_all(self.paths, locks))  # Busy: somebody still has it
        listed = releases.listing(self.record)
        assert [found.name for found in listed if found.unfinished or (not found.verified and found.kind == "built")] == []
        assert [path.name for path in self.record.releases.glob(".removing-*")] == []
        copies = {str(path) for path in self.root.glob("environment.*")} | {str(path) for path in self.root.glob(".removing*")}
        assert copies == {found.target for found in listed if found.kind == "backup"}
        if self.record.in_place:
            assert Path(os.path.realpath(self.record.current)) == releases.environment(self.record)
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


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A box whose environment may not move."""
    made = Node(tmp_path_factory.mktemp("p"), in_place=True)
    yield made
    made.close()


@pytest.mark.parametrize("place", places(STEPS, QUICK))
def test_a_crash_at_any_line_leaves_a_service_that_serves(node: Node, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    before = node.current
    node.crashed(monkeypatch, place, "redeploy")
    if place != "report:recorded":  # only its last word was missing
        assert node.current == before


@pytest.mark.parametrize("place", places(IN_PLACE, QUICK_IN_PLACE))
def test_a_crash_at_any_line_of_a_redeploy_in_place_leaves_it_as_it_was(fixed: Node, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    before = fixed.current
    content = integrity.check(before).digest()
    fixed.crashed(monkeypatch, place, "redeploy", sweep=False, purge=False)
    if place != "report:recorded":
        assert (fixed.current, integrity.check(fixed.current).digest()) == (before, content)


@pytest.mark.parametrize("place", places(BACK, QUICK_BACK))
@pytest.mark.parametrize("which", ["node", pytest.param("fixed", marks=pytest.mark.slow)])
def test_a_crash_at_any_line_of_a_roll_back_leaves_one_whole_release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, which: str,
                                                                   place: str) -> None:
    box_node: Node = request.getfixturevalue(which)
    target = box_node.two_releases()
    before = box_node.current.name
    box_node.crashed(monkeypatch, place, "rollback", release=target)
    assert box_node.current.name == (target if place == "report:recorded" else before)


@pytest.mark.slow
@pytest.mark.parametrize("place", places(("plan", "preflight", "build", "verify", "prune")))
def test_a_crash_at_any_line_of_a_build_touches_no_service(node: Node, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    before, pid = node.current, node.manager.status().pid
    node.crashed(monkeypatch, place, "build")
    assert (node.current, node.manager.status().pid) == (before, pid)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_removal_that_is_killed_leaves_a_whole_release_or_none(node: Node, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    assert node.end(node.start("build"))["state"] == "succeeded"
    built = next(found.name for found in releases.listing(node.record) if not found.is_current and not found.is_last_good)
    monkeypatch.setenv("CRASH_AT", f"remove:{phase}")
    job = node.start("remove-release", release=built)
    monkeypatch.delenv("CRASH_AT")
    assert node.end(job)["state"] == ("succeeded" if phase == "recorded" else "interrupted")
    assert (built in node.usable()) == (phase == "before")
    node.hold()


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("type", ["guards-apply", "shelf-forget", "recipe"])
def test_a_small_job_that_is_killed_leaves_all_or_nothing_and_runs_again(node: Node, monkeypatch: pytest.MonkeyPatch, type: str, phase: str) -> None:
    config = Path(node.record.model_path) / "config.json"
    before = json.loads(config.read_text())
    if type == "guards-apply":
        config.write_text(json.dumps({**before, "quantization_config": {**before["quantization_config"], "kv_cache_scheme": {"type": "float"}}}))
    if (type == "shelf-forget" and len(patches.shelf(node.record)) < 2) or node.current.name != releases.last_good(node.record):
        for name in ("version.py", "logger.py"):
            with (packages.site_packages(node.current)[0] / "vllm" / name).open("a") as edited:
                edited.write(f"# {time.time()}\n")
        assert node.end(node.start(sweep=False, smoke=False, purge=False))["state"] == "succeeded"
    entries = [{"folder": entry["folder"], "path": entry["path"]} for entry in patches.shelf(node.record)][:2]
    params: dict[str, Any] = {"guards-apply": {"guards": None}, "shelf-forget": {"entries": entries}, "recipe": {"label": "x"}}[type]
    step = {"guards-apply": "guards", "shelf-forget": "forget", "recipe": "recipe"}[type]
    recipes = len(list((node.record.folder / "recipes").glob("*.json")))
    node.crashed(monkeypatch, f"{step}:{phase}", type, **params)
    done = phase != "before"
    if type == "guards-apply":
        assert all(result.holds for result in guards.check(node.record)) == done
    elif type == "shelf-forget":
        assert (entries[0] in [{"folder": entry["folder"], "path": entry["path"]} for entry in patches.shelf(node.record)]) != done
    else:
        assert len(list((node.record.folder / "recipes").glob("*.json"))) == recipes + done
    assert node.end(node.start(type, **params))["state"] == "succeeded"
    assert json.loads(config.read_text()) == before
    assert not [path.name for path in config.parent.iterdir() if ".roundhouse-" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["node", "fixed"])
@pytest.mark.parametrize("step", ["build", "backup", "install", "verify", "switch"])
def test_a_kill_in_the_middle_of_a_step_leaves_a_service_that_serves(request: pytest.FixtureRequest, which: str, step: str) -> None:
    """Not only between its lines: wherever it happens to be."""
    box_node: Node = request.getfixturevalue(which)
    if step not in (IN_PLACE if which == "fixed" else STEPS):
        pytest.skip("this way has no such step")
    before = box_node.current
    for delay in (0.02, 0.1, 0.3):
        job = box_node.start(sweep=False, purge=False)
        box_node.until(job, step)
        time.sleep(delay)
        found = reconcile.runner_of(journal.journal_path(box_node.paths, job))
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        assert box_node.end(job)["state"] == "interrupted"
        box_node.hold()
        assert box_node.current == before


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


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system of its own")
@pytest.mark.parametrize("where", ["the environment's disk", "the service's folder"])
@pytest.mark.parametrize(("type", "step"), [("redeploy", "fetch"), ("redeploy", "backup"), ("redeploy", "stop"), ("redeploy", "install"),
                                            ("redeploy", "verify"), ("redeploy", "start"), ("rollback", "shelf"), ("rollback", "stop"),
                                            ("rollback", "start")])
def test_a_full_disk_leaves_an_environment_in_place_as_it_was_or_as_it_was_to_be(tmp_path: Path, where: str, type: str, step: str) -> None:
    place = tmp_path / "box" if "environment" in where else NodePaths(tmp_path / "node").services
    place.mkdir(parents=True)
    (tmp_path / "node").mkdir(exist_ok=True)
    (tmp_path / "node").chmod(0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    node = None
    try:
        node = Node(tmp_path, in_place=True)
        target = node.two_releases() if type == "rollback" else ""
        environment = releases.environment(node.record)
        assert environment is not None
        before, content = node.current.name, integrity.check(environment).digest()
        job = node.start(type, sweep=False, purge=False, smoke=False, **({"release": target} if target else {}))
        node.until(job, step)
        found = reconcile.runner_of(journal.journal_path(node.paths, job))
        assert found is not None
        os.kill(found.pid, signal.SIGSTOP)
        room_again = full(place)
        os.kill(found.pid, signal.SIGCONT)
        said = node.end(job)
        room_again()
        if said["rollback"] == "failed":  # nothing of ours was there to make room with
            assert type == "rollback" if "environment" in where else step not in ("fetch", "backup", "shelf"), said
            assert node.end(node.start("restart", smoke=False))["state"] == "succeeded"
        if said["state"] not in ("succeeded", "partial"):
            assert (said["state"], said["reason_kind"]) == ("failed", "expected"), said
            assert (node.current.name, integrity.check(environment).digest()) == (before, content)
        node.hold()
    finally:
        if node is not None:
            node.close()
        subprocess.run(["umount", "-l", str(place)], check=True)
