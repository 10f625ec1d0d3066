from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.jobs import journal as journals
from ops.jobs.errors import OpsError, Refused
from ops.jobs.journal import Journal, Nudge, Tail, final_event, read
from tests.fakes.node import until

JOB = "f4db51e2-0000-4000-8000-000000000000"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal.create(JOB, tmp_path, secrets=["s3cret-value"])
    yield made
    made.close()


def texts(folder: Path) -> list[tuple[str, int]]:
    return [(event.data["text"], event.data["dropped_bytes"]) for event in read(folder / "journal.jsonl") if event.type == "step.log"]


def log(journal: Journal, text: str, step: str = "s") -> None:
    journal("step.log", {"step": step, "text": text, "dropped_bytes": 0})


def test_events_are_numbered_from_one_without_a_gap(journal: Journal, tmp_path: Path) -> None:
    for _ in range(5):
        journal("finding", {"title": "x"})
    assert [event.seq for event in read(tmp_path / "journal.jsonl")] == [1, 2, 3, 4, 5]


def test_threads_share_one_numbering(journal: Journal, tmp_path: Path) -> None:
    threads = [threading.Thread(target=lambda: [journal("finding", {}) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in read(tmp_path / "journal.jsonl")] == list(range(1, 201))


def test_a_step_boundary_is_forced_to_disk_and_a_log_is_not(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = []
    monkeypatch.setattr(journals.os, "fsync", forced.append)
    journal("sweep.level_second", {"second": 1})
    log(journal, "x\n")
    journal.flush()
    assert forced == []
    journal("step.finished", {"step": "s"})
    assert len(forced) == 1


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(journal: Journal, tmp_path: Path) -> None:
    journal("finding", {"title": "whole"})
    journal.close()
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"job":"f4db51e2","seq":2,"at"')
    assert [event.seq for event in read(tmp_path / "journal.jsonl")] == [1]
    again = Journal.open(JOB, tmp_path)
    again("finding", {"title": "next"})
    again.close()
    assert [event.data["title"] for event in read(tmp_path / "journal.jsonl")] == ["whole", "next"]


def test_a_reader_stops_at_a_damaged_line(journal: Journal, tmp_path: Path) -> None:
    journal("finding", {})
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write("\0\0\0\n")
    tail = Tail(tmp_path / "journal.jsonl")
    assert [len(tail.read()), tail.read(), tail.damaged] == [1, [], True]


def test_two_processes_cannot_write_one_journal(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(Refused):
        Journal.open(JOB, tmp_path)
    with pytest.raises(Refused):
        Journal.create(JOB, tmp_path)


def test_a_tail_goes_on_where_it_stopped(journal: Journal, tmp_path: Path) -> None:
    tail = Tail(tmp_path / "journal.jsonl")
    journal("finding", {})
    assert [event.seq for event in tail.read()] == [1]
    assert tail.read() == []
    journal("finding", {})
    assert [event.seq for event in Tail(tail.path, offset=tail.offset, after=1).read()] == [2]


def test_the_final_event_is_found_behind_long_lines(journal: Journal, tmp_path: Path) -> None:
    journal("report", {"markdown": "x" * 300_000})
    assert final_event(tmp_path / "journal.jsonl") is None
    journal.append_final({"state": "succeeded", "error": "y" * 200_000})
    assert final_event(tmp_path / "journal.jsonl") is not None


def test_log_lines_within_a_moment_are_one_event_and_come_before_what_follows(journal: Journal, tmp_path: Path) -> None:
    for number in range(100):
        log(journal, f"{number}\n")
    journal("step.finished", {"step": "s"})
    assert [event.type for event in read(tmp_path / "journal.jsonl")] == ["step.log", "step.finished"]
    assert texts(tmp_path)[0][0].splitlines() == [str(number) for number in range(100)]


def test_a_lonely_log_line_is_written_without_another_event(journal: Journal, tmp_path: Path) -> None:
    log(journal, "x\n")
    until(lambda: texts(tmp_path) == [("x\n", 0)], 5)


def test_progress_is_told_at_most_every_quarter_second_and_the_last_one_always(journal: Journal, tmp_path: Path) -> None:
    for done in range(1000):
        journal("step.progress", {"step": "s", "done": done})
    journal("step.finished", {"step": "s"})
    told = [event.data["done"] for event in read(tmp_path / "journal.jsonl") if event.type == "step.progress"]
    assert told[0] == 0
    assert told[-1] == 999
    assert len(told) < 20


def test_no_event_holds_more_than_64_kb_of_log(journal: Journal, tmp_path: Path) -> None:
    log(journal, "".join(f"{number:09d}\n" for number in range(30_000)))
    journal.flush()
    assert max(len(text.encode()) for text, _ in texts(tmp_path)) <= 64 * 1024
    assert all(text.endswith("\n") for text, _ in texts(tmp_path))
    assert "".join(text for text, _ in texts(tmp_path)).count("\n") == 30_000


def test_a_flood_is_cut_visibly_and_kept_in_the_log_file(journal: Journal, tmp_path: Path) -> None:
    line = "x" * 1023 + "\n"
    for _ in range(20_000):  # 20 MB
        log(journal, line)
    journal.close()
    kept, dropped = sum(len(text) for text, _ in texts(tmp_path)), sum(number for _, number in texts(tmp_path))
    assert kept + dropped == 20_000 * 1024
    assert kept < 8 * 1024 * 1024
    assert (tmp_path / "log.txt").stat().st_size == 20_000 * 1024


def test_the_log_file_ends_at_its_cap_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "LOG_FILE_CAP", 1024 * 1024)
    made = Journal.create(JOB, tmp_path)
    for _ in range(3000):
        log(made, "x" * 1023 + "\n")
    made.close()
    kept = (tmp_path / "log.txt").read_text()
    assert len(kept) < 1024 * 1024 + 100
    assert kept.endswith("[this log ends here: it reached 1 MB]\n")


def test_secrets_reach_neither_journal_nor_log(journal: Journal, tmp_path: Path) -> None:
    token = "hf_" + "a" * 30
    log(journal, f"token {token} and s3cret-value\n")
    journal("finding", {"title": f"Bearer {token}", "facts": [{"env": "s3cret-value"}]})
    journal.close()
    said = (tmp_path / "journal.jsonl").read_text() + (tmp_path / "log.txt").read_text()
    assert token not in said
    assert "s3cret-value" not in said


def test_a_refusing_disk_costs_no_number_and_leaves_no_half_line(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal("finding", {"title": "before"})
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        real(descriptor, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals.os, "write", full)
    with pytest.raises(OpsError) as caught:
        journal("finding", {"title": "lost"})
    monkeypatch.setattr(journals.os, "write", real)
    assert caught.value.kind == "disk"
    journal("finding", {"title": "after"})
    assert [(event.seq, event.data["title"]) for event in read(tmp_path / "journal.jsonl")] == [(1, "before"), (2, "after")]


def test_the_companion_is_nudged_also_in_a_deep_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as companion:
        with journals.short_address(deep / "nudge.sock") as address:
            companion.bind(address)
        companion.settimeout(5)
        Nudge(deep / "nudge.sock")(JOB)
        assert companion.recv(100).decode() == JOB


def test_no_companion_is_no_problem(tmp_path: Path) -> None:
    Nudge(tmp_path / "nowhere" / "nudge.sock")(JOB)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    journals.write_json(tmp_path / "facts.json", {"a": 1})
    journals.write_json(tmp_path / "facts.json", {"a": 2})
    assert json.loads((tmp_path / "facts.json").read_text()) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


def test_writing_is_quick_enough_for_a_chatty_step(journal: Journal) -> None:
    began = time.monotonic()
    for _ in range(2000):
        log(journal, "Downloading a wheel (12.3 MiB)\n")
    assert time.monotonic() - began < 5
