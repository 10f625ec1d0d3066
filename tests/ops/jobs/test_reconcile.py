from __future__ import annotations

import json
import os
import signal
import time

import pytest

from ops.jobs import checker, claim, marks, reconcile, runner
from ops.jobs.errors import Busy
from ops.jobs.journal import journal_path
from tests.fakes.node import FakeNode, until


def killed(node: FakeNode, step: str = "talk", **params: object) -> str:
    """A job whose runner was killed in `step`, once the program of the step (`argv`) runs."""
    order = node.order(**{"seconds": 30, **params})
    runner.start(node.paths, order)
    node.in_step(order.job, step)
    found = node.runner(order.job)
    if "argv" in params:  # a step begins before its program does
        until(lambda: marks.marked(order.job, leave={found.pid}), 20, "the step's program runs")
    os.kill(found.pid, signal.SIGKILL)
    until(lambda: not found.lives(), 5)
    return order.job


def test_a_job_with_a_living_runner_is_left_alone(node: FakeNode) -> None:
    order = node.order(seconds=1)
    runner.start(node.paths, order)
    assert reconcile.reconcile(node.paths) == []
    assert node.finished(order.job)["state"] == "succeeded"


def test_a_dead_runners_job_is_undone_and_interrupted_with_step_and_cause(node: FakeNode) -> None:
    job = killed(node)
    assert reconcile.reconcile(node.paths) == [job]
    said = node.finished(job, 1)
    assert (said["state"], said["rollback"]) == ("interrupted", "done")
    assert "step `talk`" in said["reason"]
    assert "was killed" in said["reason"]
    assert [event.data["outcome"] for event in node.events(job) if event.type == "step.finished"][-1] == "interrupted"
    assert (node.paths.root / f"undone-{job}").read_text() == "was here"
    assert not node.busy()
    assert checker.check(node.paths) == []
    assert reconcile.reconcile(node.paths) == []


def test_an_orphan_is_ended_before_anything_is_undone(node: FakeNode) -> None:
    job = killed(node, "child", argv=["/bin/sh", "-c", "setsid sleep 90 & sleep 91"])
    until(lambda: marks.marked(job), 10)
    assert node.busy()
    assert reconcile.reconcile(node.paths) == [job]
    assert marks.marked(job) == set()
    assert not node.busy()


def test_another_boot_is_the_cause_and_its_pids_mean_nothing(node: FakeNode) -> None:
    job = killed(node)
    path = journal_path(node.paths, job)
    first, *rest = path.read_text().splitlines(keepends=True)
    raw = json.loads(first)
    raw["data"].update(boot_id="another", pid=os.getpid(), start_time=claim.start_ticks(os.getpid()))
    path.write_text(json.dumps(raw) + "\n" + "".join(rest))
    assert reconcile.reconcile(node.paths) == [job]
    assert "restarted" in node.finished(job, 1)["reason"]


def test_a_pid_that_came_back_is_not_the_runner() -> None:
    assert not reconcile.Runner(claim.boot_id(), os.getpid(), 1).lives()
    assert reconcile.Runner(claim.boot_id(), os.getpid(), claim.start_ticks(os.getpid()) or 0).lives()


def test_a_folder_without_a_journal_is_interrupted_once_it_is_no_claim_in_the_making(node: FakeNode) -> None:
    order = node.order()
    node.folder(order.job).mkdir()
    assert reconcile.reconcile(node.paths) == []
    old = time.time() - reconcile.YOUNG_S - 1
    os.utime(node.folder(order.job), (old, old))
    assert reconcile.reconcile(node.paths) == [order.job]
    assert node.finished(order.job, 1)["state"] == "interrupted"


def test_a_torn_journal_is_taken_up_at_its_last_whole_line(node: FakeNode) -> None:
    job = killed(node)
    with journal_path(node.paths, job).open("a") as file:
        file.write('{"job":"torn')
    assert reconcile.reconcile(node.paths) == [job]
    assert [event.seq for event in node.events(job)] == list(range(1, len(node.events(job)) + 1))


def test_a_failed_undo_keeps_the_lock_for_a_person(node: FakeNode) -> None:
    job = killed(node, undo_fails=True)
    assert reconcile.reconcile(node.paths) == [job]
    assert node.finished(job, 1)["rollback"] == "failed"
    kept = claim.held(node.paths, "service:a")
    assert kept is not None
    assert kept["job"] == job
    with pytest.raises(Busy):
        claim.claim(node.paths, node.order())


def test_a_bug_while_the_undo_is_made_keeps_the_lock_and_is_told(node: FakeNode) -> None:
    job = killed(node, breaks_undo=True)
    assert reconcile.reconcile(node.paths) == [job]
    assert node.finished(job, 1)["rollback"] == "failed"
    assert claim.held(node.paths, "service:a") is not None
    assert "ZeroDivisionError" in "".join(event.data["text"] for event in node.events(job) if event.type == "step.log")


def test_a_job_that_asked_for_no_rollback_is_not_undone(node: FakeNode) -> None:
    job = killed(node, rollback=False)
    assert reconcile.reconcile(node.paths) == [job]
    assert node.finished(job, 1)["rollback"] == "none"
    assert not (node.paths.root / f"undone-{job}").exists()


def test_a_job_waits_while_something_unknown_holds_its_lock(node: FakeNode) -> None:
    """A child that wrote over its environment cannot be found by its mark; its descriptor still keeps the service safe."""
    job = killed(node)
    fds = claim.lock_all(node.paths, ["service:a"])
    assert reconcile.reconcile(node.paths) == []
    assert "job.finished" not in node.types(job)
    claim.release(fds)
    assert reconcile.reconcile(node.paths) == [job]


def test_no_other_job_begins_between_a_death_and_its_undo(node: FakeNode) -> None:
    job = killed(node)
    until(lambda: not node.busy(), 5)
    with pytest.raises(Busy, match="in use"):
        runner.start(node.paths, node.order())
    reconcile.reconcile(node.paths)
    after = node.order()
    assert runner.start(node.paths, after) == "claimed"
    node.finished(after.job)
    assert [event.data["state"] for event in node.events(job)[-1:]] == ["interrupted"]


def test_two_reconcilers_do_not_both_undo(node: FakeNode) -> None:
    job = killed(node)
    processes = [reconcile.start(node.paths, job) for _ in range(3)]
    codes = [process.wait(30) for process in processes]
    assert 0 in codes
    assert node.types(job).count("job.finished") == 1
    assert node.types(job).count("step.undoing") == 1


@pytest.mark.parametrize("phase", ["before", "after", "recorded"])
@pytest.mark.parametrize("step", ["first", "child", "talk"])
def test_a_crash_at_any_line_ends_interrupted_and_undone_unless_all_was_done(
        node: FakeNode, monkeypatch: pytest.MonkeyPatch, step: str, phase: str) -> None:
    monkeypatch.setenv("CRASH_AT", f"{step}:{phase}")
    order = node.order(seconds=0.1)
    runner.start(node.paths, order)
    found = node.runner(order.job)
    until(lambda: not found.lives(), 10)
    monkeypatch.delenv("CRASH_AT")
    assert reconcile.reconcile(node.paths) == [order.job]
    began = json.loads((node.folder(order.job) / "facts.json").read_text())["begun"] if (node.folder(order.job) / "facts.json").exists() else []
    complete = (step, phase) == ("talk", "recorded")  # only the job's last word was missing
    said = node.finished(order.job, 1)
    assert (said["state"], said["rollback"]) == ("succeeded" if complete else "interrupted", "done" if began and not complete else "none")
    assert checker.check(node.paths) == []
