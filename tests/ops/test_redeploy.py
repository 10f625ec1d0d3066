"""The way back of a redeploy, on a service whose server is a stand-in: what an undo finds, and what it leaves."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ops import redeploy
from ops.environments import pruning, releases
from ops.gpus import processes
from ops.jobs.errors import OpsError, Refused
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import launch, process, stopping, warmup
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


def test_a_restart_whose_start_crashed_in_a_loop_is_not_started_the_same_way_again(
        make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = given.context.service = make_record()
    given.context.facts["state_before"] = "healthy"

    def watch(context: Context, record: ServiceRecord) -> None:
        raise warmup.ServiceCrashed("no weights", tries=2, loop=True)

    [stop] = [step for step in KINDS["restart"].steps(given.context) if step.name == "stop"]
    assert stop.undo is redeploy.start_again
    with monkeypatch.context() as patch, pytest.raises(warmup.ServiceCrashed):
        patch.setattr(warmup, "watch", watch)
        redeploy.watch_warmup(given.context)
    with pytest.raises(OpsError, match="is not started again") as caught:
        redeploy.start_again(given.context)
    assert "2 starts of it were watched" in caught.value.why and not (record.folder / "process.json").exists()
    given.context.facts["state_before"] = "failed"
    assert "did not run before either" in redeploy.start_again(given.context)
    given.context.facts["state_before"] = "stopped"
    assert redeploy.start_again(given.context) == ""
    given.context.facts["state_before"] = "healthy"
    record.flags = [*record.flags, "--max-model-len", "512"]  # what would be started is another thing now
    assert "answers again" in redeploy.start_again(given.context)


def test_a_restart_that_failed_otherwise_is_tried_again(make_record: Make, given: Job) -> None:
    given.context.service = make_record()
    given.context.facts["state_before"] = "healthy"
    assert "answers again" in redeploy.start_again(given.context)


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
    redeploy.answers(given.context)
    assert 0 <= given.of("downtime.ended")[0]["seconds"] < 10


# ---- kinds ----


def test_an_environment_that_is_changed_in_place_is_locked_with_its_service() -> None:
    told = {"in_place": True, "environment": "/opt/env"}
    for kind in ("redeploy", "rollback", "restart"):
        assert KINDS[kind].locks("a", told) == ["service:a", "env:/opt/env"]
        assert KINDS[kind].locks("a", {}) == ["service:a"]
    for kind, locks in {"build": ["service:a"], "remove-release": ["service:a"], "guards-apply": ["service:a"], "guards-set": ["service:a"],
                        "shelf-forget": ["node:purge"], "recipe": [], "plan": [], "integrity": [], "adopt": []}.items():
        assert KINDS[kind].locks("a", told) == locks


@pytest.mark.parametrize(("in_place", "params", "words"), [
    (True, {}, "does not lock its environment"),
    (True, {"in_place": True, "environment": "/somewhere/else"}, "The order is about the environment"),
    (True, {"in_place": True, "environment": "/opt/../opt/env"}, "The order is about the environment"),
    (False, {"in_place": True, "environment": "/opt/env"}, "is not changed in place"),
])
@pytest.mark.parametrize("kind", ["redeploy", "rollback"])
def test_an_order_about_another_environment_is_refused_before_anything_is_claimed(make_record: Make, given: Job, kind: str, in_place: bool,
                                                                                 params: dict[str, Any], words: str) -> None:
    given.context.service = make_record(environment="/opt/env", in_place=in_place)
    given.context.params = params
    with pytest.raises(Refused, match=words):
        KINDS[kind].steps(given.context)


def test_nothing_is_built_beside_an_environment_that_may_not_move(make_record: Make, given: Job) -> None:
    given.context.service = make_record(environment="/opt/env", in_place=True)
    with pytest.raises(Refused, match="is changed in place"):
        KINDS["build"].steps(given.context)
    given.context.params = {"in_place": True, "environment": "/opt/env"}
    names = [step.name for step in KINDS["redeploy"].steps(given.context)]
    assert "build" not in names and names.index("backup") < names.index("stop") < names.index("install") < names.index("verify")


def test_every_kind_has_steps_with_a_deadline_and_those_while_it_is_down_are_marked(make_record: Make, given: Job) -> None:
    given.context.service = make_record(environment="/opt/env")
    given.context.params = {"to": "other"}
    for name, kind in KINDS.items():
        if name in ("sweep", "purge", "plan", "warmup", "smoke", "integrity", "practice-reset"):
            continue
        steps = kind.steps(given.context)
        assert steps and all(step.deadline_s for step in steps), name
        if "stop" in (names := [step.name for step in steps]):
            down, last = [step.name for step in steps if step.downtime], "gpus-free" if name == "stop" else "warmup"
            assert down == names[names.index("stop"):names.index(last) + 1], name


def test_a_release_that_cannot_be_removed_is_told_and_undoes_nothing(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*arguments: Any, **settings: Any) -> list[str]:
        raise OpsError("`/releases/old` cannot be removed", why="Read-only file system")

    monkeypatch.setattr(pruning, "prune", stuck)
    record = given.context.service = make_record()
    given.context.facts.update(release="20260101-000000-0.1", previous=None)
    assert redeploy.prune(given.context) == "an old release could not be removed"
    assert [finding["title"] for finding in given.of("finding")] == ["`/releases/old` cannot be removed"]
    assert given.context.facts["partial"] and releases.last_good(record) == "20260101-000000-0.1"


def test_a_fingerprint_that_cannot_be_taken_fails_nothing(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record()
    assert redeploy.tell_fingerprint(given.context, "before", record.releases / "no-such") is None
    assert [finding["level"] for finding in given.of("finding")] == ["note"]


def test_what_is_left_of_a_removal_goes_and_a_verified_release_of_a_failed_job_counts(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record(keep_releases=2)
    for day in ("02", "03", "04"):
        made = make_release(record.folder, f"202602{day}-000000-0.2")
        releases.mark_verified(made)
    (record.releases / ".removing-old-1").mkdir()
    given.context.facts.update(release=made.name, verified=True)
    assert redeploy.remove_unused_release(given.context) == "removed 20260202-000000-0.2, 20260203-000000-0.2"
    assert sorted(path.name for path in record.releases.iterdir()) == ["20260101-000000-0.1", "20260204-000000-0.2"]


def test_a_guard_that_fails_after_the_switch_fails_the_step(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record(guards=[{"kind": "file_present", "file": "chat_template.jinja"}])
    with pytest.raises(OpsError, match=r"chat_template\.jinja") as caught:
        redeploy.tell_guards(given.context, must_hold=True)
    assert caught.value.kind == "guard" and given.of("guards")[0]["results"][0]["holds"] is False
    (Path(record.model_path) / "chat_template.jinja").write_text("x")
    redeploy.tell_guards(given.context, must_hold=True)
