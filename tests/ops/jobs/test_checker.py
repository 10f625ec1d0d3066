from __future__ import annotations

import uuid
from typing import Any

from ops.jobs import checker
from ops.jobs.events import Event
from tests.fakes.node import FakeNode


def write(node: FakeNode, *events: tuple[str, dict[str, Any]], at: float = 0.0) -> str:
    job = str(uuid.uuid4())
    folder = node.folder(job)
    folder.mkdir()
    lines = [Event(job=job, seq=seq, at=at + seq, type=type, data=data).to_json() for seq, (type, data) in enumerate(events, start=1)]
    (folder / "journal.jsonl").write_text("".join(line + "\n" for line in lines))
    return job


def claimed(fence: int) -> tuple[str, dict[str, Any]]:
    return "job.claimed", {"fence": {"service:a": fence}}


START = ("step.started", {"step": "s"})
END = ("step.finished", {"step": "s"})
FINAL = ("job.finished", {"state": "succeeded"})


def test_a_whole_history_is_right(node: FakeNode) -> None:
    write(node, claimed(1), START, END, FINAL)
    write(node, claimed(2), START, END, FINAL, at=10)
    write(node, ("job.finished", {"state": "failed"}), at=20)  # refused, never claimed
    assert checker.check(node.paths) == []
    assert checker.main([str(node.paths.root)]) == 0


def test_overlapping_jobs_on_one_lock_are_found(node: FakeNode) -> None:
    write(node, claimed(1), START, END, FINAL)
    write(node, claimed(2), START, END, FINAL, at=2)
    assert ["was claimed" in words for words in checker.check(node.paths)] == [True]
    assert checker.main([str(node.paths.root)]) == 1


def test_a_fence_that_falls_is_found(node: FakeNode) -> None:
    write(node, claimed(2), FINAL)
    write(node, claimed(2), FINAL, at=10)
    assert ["the fence went" in words for words in checker.check(node.paths)] == [True]


def test_a_second_claim_a_second_begin_and_a_missing_end_are_found(node: FakeNode) -> None:
    write(node, claimed(1), START, claimed(1), START, END)
    wrong = checker.check(node.paths)
    assert len(wrong) == 3
    assert [words.partition(": ")[2] for words in wrong] == ["it has no final state", "it was claimed 2 times", "step `s` began 2 times"]


def test_a_folder_without_a_journal_is_found(node: FakeNode) -> None:
    node.folder(str(uuid.uuid4())).mkdir()
    assert len(checker.check(node.paths)) == 1
