"""Honest stops and leftovers of units: against the double, and (by test_systemd.py) against a real systemd."""

from __future__ import annotations

import os
import pwd

import pytest

from ops import redeploy
from ops.gpus import processes
from ops.gpus.source import MIB, GpuProcess
from ops.jobs.errors import OpsError, Refused
from ops.records import ServiceRecord
from ops.services import leftovers, ownership, starting, stopping
from ops.services.systemd import SystemdManager
from tests.ops.services.conftest import Job, job, wait_for
from tests.ops.services.systemd_box import SystemdBox, box
from tests.ops.services.test_stopping import Readings, gpu

__all__ = ["box", "job"]
WITH_WORKER = 'sh -c "trap : TERM; while :; do sleep 0.1; done" & trap "exit 0" TERM; while :; do sleep 0.1; done'


def started(box: SystemdBox, job: Job, name: str, command: str, *settings: str) -> ServiceRecord:
    record = box.record(box.write(name, command, *settings), gpus=[0])
    starting.start(job.context, record)
    return record


def test_a_unit_is_stopped_with_all_that_its_kill_mode_would_leave(box: SystemdBox, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "WORKERS_S", 0.3)
    record = started(box, job, "rh-workers", WITH_WORKER, "KillMode=process")
    manager = SystemdManager(record)
    wait_for(lambda: len(manager.pids()) >= 2)
    note = stopping.stop(job.context, record)
    assert "the main process ended, others stayed" in note
    assert manager.pids() == set() and manager.status().state == "stopped"
    assert stopping.stop(job.context, record) == "was not running"


def test_a_unit_in_a_restart_loop_is_stopped_between_two_tries_and_stays_down(box: SystemdBox, job: Job) -> None:
    record = box.record(box.write("rh-stay", "exit 4", "Restart=always", "RestartSec=60"))
    manager = SystemdManager(record)
    manager.start()
    box.until(manager, lambda status: status.restarting)
    assert "stays down" in stopping.stop(job.context, record)
    assert manager.status().state == "stopped" and not manager.pids()
    assert not manager.status().restarting


@pytest.mark.slow  # a real systemd does it in the fast run (test_systemd.py)
def test_workers_that_a_unit_left_behind_are_its_own_and_are_ended_alone(box: SystemdBox, job: Job) -> None:
    record = started(box, job, "rh-left", WITH_WORKER, "KillMode=process")
    manager = SystemdManager(record)
    wait_for(lambda: len(manager.pids()) >= 2)
    main = manager.status().pid
    ownership.remember(record, manager.status(), manager.pids())
    [worker] = [pid for pid in manager.pids() if (known := processes.look(pid)) is not None and known.parent == main
                and "while" in (processes.describe(pid)[1] or "")]
    with pytest.raises(Refused, match="as it runs now"):
        leftovers.end(job.context, record, [(worker, processes.start_ticks(worker) or 0)])
    box.systemctl("stop", "rh-left.service")
    wait_for(lambda: manager.status().state == "stopped")
    source = Readings([gpu(0, 300, GpuProcess(pid=worker, used_bytes=300 * MIB))])
    found = leftovers.look(record, source)
    assert worker in {one["pid"] for one in found.own} and not found.running
    if box.real:
        assert next(one["unit"] for one in found.own if one["pid"] == worker) == "rh-left.service"
        assert "unit rh-left.service" in found.gpus[0]["problem"]
    note = leftovers.end(job.context, record, [(one["pid"], one["start_ticks"]) for one in found.own], grace_s=0.3)
    assert "ended" in note
    wait_for(lambda: not manager.pids())  # a sleep of the worker's may still be there for a moment


def test_a_unit_that_runs_its_own_command_says_so_when_it_is_started(box: SystemdBox, job: Job) -> None:
    record = box.record(box.write("rh-own", "exec sleep 1000"))
    assert "`rh-own.service` runs its own command, not the launcher" in starting.start(job.context, record)


@pytest.mark.parametrize("told", [{"USER": pwd.getpwuid(os.geteuid()).pw_name}, {}, {"USER": "nobody-knows-this-user"}, None])
def test_what_a_unit_left_is_looked_for_as_its_user(box: SystemdBox, told: dict[str, str] | None) -> None:
    class Told(SystemdManager):
        def variables(self) -> dict[str, str]:
            if told is None:
                raise OpsError("There is no unit")
            return told

    record = box.record("rh-user")
    expected = pwd.getpwnam("root") if told == {} else pwd.getpwuid(os.geteuid())
    assert ownership.user_of(record, Told(record)) == (expected.pw_uid, expected.pw_name)


def test_an_undo_whose_start_crashes_at_each_try_leaves_no_restart_loop(box: SystemdBox, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = box.record(box.write("rh-undo", "echo RuntimeError: no weights; exit 4", "Restart=always", "RestartSec=1"), gpus=[])
    monkeypatch.setattr(redeploy, "answers", lambda context: None)
    job.context.service = record
    job.context.facts["state_before"] = "healthy"
    with pytest.raises(OpsError):
        redeploy.start_last_good(job.context)
    manager = SystemdManager(record)
    assert not manager.status().restarting and not manager.pids() and manager.facts()["state"] in ("inactive", "failed")
    assert any("It is not started again any more" in str(data.get("text")) for _, data in job.events)


def test_the_undo_of_a_restart_does_not_start_a_crash_loop_once_more(box: SystemdBox, job: Job) -> None:
    record = box.record(box.write("rh-again", "echo RuntimeError: no weights; exit 4", "Restart=always", "RestartSec=1"), gpus=[])
    job.context.service, manager = record, SystemdManager(record)
    job.context.facts["state_before"] = "healthy"
    manager.start()
    with pytest.raises(OpsError, match="This is a crash loop"):
        redeploy.watch_warmup(job.context)
    redeploy.stop_failed_start(job.context)
    ran = manager.status().invocation
    with pytest.raises(OpsError, match="is not started again"):
        redeploy.start_again(job.context)
    assert manager.status().invocation == ran and not manager.pids() and manager.facts()["state"] in ("inactive", "failed")
