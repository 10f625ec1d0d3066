"""The way back of a redeploy, on a service whose server is a stand-in: what an undo finds, and what it leaves."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ops import redeploy
from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import launch, process, stopping
from ops.services.process import ProcessManager
from tests.ops.services.conftest import Job, job, make_record, make_release, wait_for

__all__ = ["job", "make_record"]

Make = Callable[..., ServiceRecord]


@pytest.fixture
def given(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(stopping, "stop", partial(stopping.stop, timeout_s=0.5))
    return job


def healthy(record: ServiceRecord) -> ProcessManager:
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    wait_for(lambda: manager.status().state == "healthy")
    return manager


def test_a_stop_that_was_cut_off_is_ended_before_the_service_is_started_again(make_record: Make, given: Job) -> None:
    """It still answers, but was told to end: it may do so at any moment after the undo."""
    record = given.context.service = make_record({"serve": True, "ignore_term": True})
    manager = healthy(record)
    given.context.facts["state_before"] = "healthy"
    old = manager.status().pid
    manager.terminate()
    assert (manager.status().state, manager.status().detail) == ("unknown", "It is being stopped, and still answers")
    assert "answers again" in redeploy.start_last_good(given.context)
    assert manager.status().state == "healthy"
    assert manager.status().pid != old


def test_a_service_that_nobody_asked_to_stop_is_left_alone(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record({"serve": True, "health": 503})  # it is busy, or only starts: no reason to touch it
    launch.write(record)
    manager = ProcessManager(record)
    pid = manager.start().pid
    assert redeploy.start_last_good(given.context) == ""
    assert manager.status().pid == pid


def test_an_undo_that_was_killed_after_its_start_is_ended_by_the_next(make_record: Make, given: Job) -> None:
    given.context.service = make_record()
    healthy(given.context.service)
    given.context.facts.update(state_before="healthy", down_since={"monotonic": time.monotonic() - 5, "wall": 0, "boot_id": processes.boot_id()})
    assert redeploy.start_last_good(given.context) == "svc answers on 20260101-000000-0.1"
    assert 5 <= given.of("downtime.ended")[0]["seconds"] < 30
    assert redeploy.start_last_good(given.context) == ""


def test_a_service_that_was_stopped_before_stays_stopped(make_record: Make, given: Job) -> None:
    given.context.service = make_record()
    given.context.facts["state_before"] = "stopped"
    assert redeploy.start_last_good(given.context) == ""
    assert ProcessManager(given.context.service).pids() == set()


def test_a_service_that_had_ended_by_itself_is_tried_once(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record({"log": [[0, "RuntimeError: no\n"]], "exit": 1})
    given.context.facts["state_before"] = "failed"
    assert "did not run before, and does not start" in redeploy.start_last_good(given.context)
    assert ProcessManager(record).pids() == set()
    given.context.facts["state_before"] = "healthy"
    with pytest.raises(OpsError):
        redeploy.start_last_good(given.context)


def test_what_others_hold_on_its_gpus_is_told_and_does_not_keep_it_down(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*arguments: Any, **settings: Any) -> str:
        raise OpsError("GPU 3 holds 500 MiB", kind="gpus_not_free")

    monkeypatch.setattr(stopping, "wait_gpus_free", held)
    given.context.service = make_record()
    given.context.facts["state_before"] = "healthy"
    assert "answers again" in redeploy.start_last_good(given.context)
    assert [finding["title"] for finding in given.of("finding")] == ["GPU 3 holds 500 MiB"]


def test_on_a_full_disk_the_new_release_makes_room_for_the_old_one(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = given.context.service = make_record()
    built = make_release(record.folder, "20260202-000000-0.2")
    given.context.facts.update(state_before="healthy", release=built.name)
    monkeypatch.setattr(redeploy, "ROOM_BYTES", 1 << 62)
    assert "answers again" in redeploy.start_last_good(given.context)
    assert [found.name for found in record.releases.iterdir()] == ["20260101-000000-0.1"]


def test_a_full_disk_does_not_keep_a_service_running(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    record = given.context.service = make_record()
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    monkeypatch.setattr(process, "write_file", full)
    wait_for(lambda: manager.status().state == "healthy")
    given.context.undoing = True
    assert "after SIGTERM" in redeploy.stop_failed_start(given.context)
    assert manager.pids() == set()


def test_downtime_is_saved_when_it_begins_and_never_negative_after_a_reboot(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    given.context.service = make_record()
    saved: list[dict[str, Any]] = []
    given.context.save_facts = lambda facts: saved.append(dict(facts))
    assert redeploy.stop(given.context) == "was not running"
    assert saved[0]["state_before"] == "stopped" and saved[0]["down_since"]
    monkeypatch.setattr(processes, "boot_id", lambda: "another")
    given.context.facts["down_since"]["monotonic"] += 10_000
    redeploy._answers(given.context)
    assert 0 <= given.of("downtime.ended")[0]["seconds"] < 10
