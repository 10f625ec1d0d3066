from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from ops.gpus.processes import boot_id, start_ticks
from ops.jobs import claim
from ops.jobs.errors import Busy, Refused
from ops.jobs.journal import Journal
from tests.fakes.node import FakeNode


def end(claimed: claim.Claim, state: str = "succeeded") -> None:
    claimed.journal.append_final({"state": state, "reason": "", "reason_kind": "", "rollback": "none", "error": None, "duration_s": 0,
                                  "downtime_s": None})
    claimed.journal.close()
    claimed.release()


def test_a_claim_says_who_claimed(node: FakeNode) -> None:
    order = node.order()
    end(claim.claim(node.paths, order))
    data = node.events(order.job)[0].data
    assert (data["pid"], data["start_time"], data["boot_id"]) == (os.getpid(), start_ticks(os.getpid()), boot_id())
    assert data["fence"] == {"service:a": 1}


def test_a_sealed_value_is_in_the_order_alone(node: FakeNode) -> None:
    """Every page may follow the journal: whoever had the sealed text could let the node open it as a variable that is shown."""
    order = node.order(env={"A": {"sealed": "c2VhbGVk"}, "B": None, "C": {"keep": True}}, list=[{"sealed": "c2VhbGVk"}])
    end(claim.claim(node.paths, order))
    assert "c2VhbGVk" not in (node.folder(order.job) / "journal.jsonl").read_text()
    params = node.events(order.job)[0].data["params"]
    assert (params["env"]["B"], params["env"]["C"]) == (None, {"keep": True})
    assert "c2VhbGVk" in (node.folder(order.job) / "envelope.json").read_text()


def test_the_same_order_again_attaches(node: FakeNode) -> None:
    order = node.order()
    claimed = claim.claim(node.paths, order)
    with pytest.raises(claim.Attached):
        claim.claim(node.paths, order)
    end(claimed)
    with pytest.raises(claim.Attached):
        claim.claim(node.paths, order)


def test_another_job_on_the_lock_is_busy_and_leaves_nothing(node: FakeNode) -> None:
    claimed = claim.claim(node.paths, node.order())
    second = node.order()
    with pytest.raises(Busy) as caught:
        claim.claim(node.paths, second)
    assert caught.value.facts["job"] == claimed.envelope.job
    assert not node.folder(second.job).exists()
    end(claimed)
    end(claim.claim(node.paths, second))


def test_jobs_on_other_locks_and_jobs_without_do_not_wait(node: FakeNode) -> None:
    claims = [claim.claim(node.paths, order) for order in (node.order(), node.order(on="b"), node.order("plan"))]
    for claimed in claims:
        end(claimed)


def test_a_replay_after_pruning_is_refused_by_its_fence(node: FakeNode) -> None:
    first, second = node.order(), node.order()
    for order in (first, second):
        end(claim.claim(node.paths, order))
    shutil.rmtree(node.folder(first.job))
    with pytest.raises(Refused) as caught:
        claim.claim(node.paths, first)
    assert caught.value.kind == "stale_fence"


def test_a_half_done_job_keeps_its_lock_although_its_process_is_gone(node: FakeNode) -> None:
    claimed = claim.claim(node.paths, node.order())
    claimed.release()
    with pytest.raises(Busy, match="in use"):
        claim.claim(node.paths, node.order())
    end(claimed)
    end(claim.claim(node.paths, node.order()))


def test_what_one_failed_job_kept_is_let_go_together(node: FakeNode) -> None:
    """A restart takes the service's lock only; the environment's was kept by the same failed job in place."""
    claim.hold(node.paths, ["service:a", "env:/opt/env"], "some job", "The rollback failed")
    claim.hold(node.paths, ["service:b"], "another job", "The rollback failed")
    claim.let_go(node.paths, "service:a")
    assert [claim.held(node.paths, lock) is None for lock in ("service:a", "env:/opt/env", "service:b")] == [True, True, False]


def test_a_lock_kept_for_a_person_is_open_for_repairs_only(node: FakeNode) -> None:
    claim.hold(node.paths, ["service:a"], "some job", "The rollback failed: no disk")
    with pytest.raises(Busy) as caught:
        claim.claim(node.paths, node.order())
    assert "no disk" in caught.value.why
    end(claim.claim(node.paths, node.order("restart")))
    assert {"restart", "rollback"} <= claim.REPAIRS
    claim.let_go(node.paths, "service:a")
    end(claim.claim(node.paths, node.order()))


def test_a_child_with_the_descriptor_keeps_the_lock(node: FakeNode) -> None:
    claimed = claim.claim(node.paths, node.order())
    child = subprocess.Popen(["/bin/sleep", "30"], pass_fds=claimed.lock_fds)
    end(claimed)
    assert node.busy()
    child.kill()
    child.wait()
    assert not node.busy()


def test_forty_claims_of_one_order_at_once_give_one_job(node: FakeNode) -> None:
    order, answers = node.order(), []
    start = threading.Barrier(40)

    def attempt() -> None:
        start.wait()
        try:
            answers.append(claim.claim(node.paths, order))
        except claim.Attached:
            answers.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [answer for answer in answers if answer is not None]
    assert len(answers) == 40
    assert len(won) == 1
    end(won[0])
    assert node.types(order.job).count("job.claimed") == 1


def test_a_claim_that_dies_before_its_journal_cannot_be_taken_up_again(node: FakeNode) -> None:
    order = node.order()
    node.folder(order.job).mkdir()
    with pytest.raises(claim.Attached):
        claim.claim(node.paths, order)


def test_a_paused_claim_gives_up_when_the_reconciler_was_there(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder was made, the process paused, the reconciler closed the job; the process goes on."""
    order, real = node.order(), claim.write_atomically

    def pause(path: Path, text: str) -> None:
        real(path, text)
        if path.name == "envelope.json":
            Journal.open(order.job, node.folder(order.job)).close()

    monkeypatch.setattr(claim, "write_atomically", pause)
    with pytest.raises(Refused):
        claim.claim(node.paths, order)
    assert not node.busy()


def test_locks_are_taken_in_sorted_order(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    real = fcntl.flock

    def spy(descriptor: int, how: int) -> Any:
        taken.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        return real(descriptor, how)

    monkeypatch.setattr(claim.fcntl, "flock", spy)
    claim.release(claim.lock_all(node.paths, ["service:b", "env:/x", "service:a"]))
    assert taken == [str(claim.lock_file(node.paths, lock)) for lock in ("env:/x", "service:a", "service:b")]


def test_fences_of_the_command_line_follow_the_stored_ones(node: FakeNode) -> None:
    assert claim.next_fences(node.paths, ["service:a"]) == {"service:a": 1}
    end(claim.claim(node.paths, node.order()))
    assert claim.next_fences(node.paths, ["service:a"]) == {"service:a": 2}
    assert json.loads(claim.fence_file(node.paths, "service:a").read_text())["fence"] == 1


def test_lock_files_of_different_locks_differ_and_stay_in_their_folder(node: FakeNode) -> None:
    names = [claim.lock_file(node.paths, lock) for lock in ("env:/a/b", "env:/a-b", "env:/" + "x" * 900)]
    assert len(set(names)) == 3
    assert all(path.parent == node.paths.locks and len(path.name) < 100 for path in names)
