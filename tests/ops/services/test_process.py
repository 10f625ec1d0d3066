"""The plain-process manager with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest

from ops.gpus import processes
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord
from ops.services import launch
from ops.services.manager import manager_for
from ops.services.process import ProcessManager
from ops.services.systemd import SystemdManager
from tests.ops.services.conftest import wait_for

Make = Callable[..., ServiceRecord]


def started(record: ServiceRecord) -> ProcessManager:
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    return manager


def state(manager: ProcessManager, wanted: str) -> None:
    wait_for(lambda: manager.status().state == wanted)


def test_a_service_that_was_never_started_is_stopped(make_record: Make) -> None:
    status = ProcessManager(make_record()).status()
    assert (status.state, status.pid, status.exit_code) == ("stopped", None, None)


def test_a_pid_that_came_back_brings_its_session_along_and_that_is_not_the_services(make_record: Make) -> None:
    manager = started(make_record({"exit": 1}))
    state(manager, "failed")
    file = manager.record.folder / "process.json"
    with subprocess.Popen(["/bin/sleep", "120"], env={}, start_new_session=True) as stranger:  # its environment is as empty as that of a worker
        try:
            ticks = processes.start_ticks(stranger.pid)
            assert ticks is not None
            file.write_text(json.dumps({**json.loads(file.read_text()), "pid": stranger.pid, "start_ticks": ticks - 100}))
            assert manager.pids() == set() and manager.status().state == "failed"
        finally:
            stranger.kill()


def test_it_starts_then_is_healthy(make_record: Make) -> None:
    record = make_record({"log": [[0.5, "up\n"]], "serve": True})
    manager = started(record)
    assert manager.status().state == "starting"
    state(manager, "healthy")
    status = manager.status()
    assert status.release == record.current.resolve().name and status.log_path and status.pid
    assert processes.is_alive(status.pid, status.start_ticks or 0)
    assert manager.log_path() is not None and manager.log_path().read_text() == "up\n"  # type: ignore[union-attr]


def test_another_manager_finds_the_same_service_and_does_not_start_a_second(make_record: Make) -> None:
    record = make_record()
    first = started(record)
    state(first, "healthy")
    assert ProcessManager(record).start().pid == first.status().pid


def test_a_start_that_was_cut_off_before_the_pid_was_stored_is_adopted_by_its_mark(make_record: Make) -> None:
    record = make_record()
    manager = started(record)
    known = json.loads((record.folder / "process.json").read_text())
    (record.folder / "process.json").write_text(json.dumps({**known, "pid": None, "start_ticks": None}))
    wait_for(lambda: manager.status().pid == known["pid"])  # not in the moment of its exec: then it has no environment to be known by
    wait_for(lambda: manager.pids() >= {known["pid"]})


def test_its_environment_holds_no_variable_of_roundhouse(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_JOB", "x")
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "unix://x")
    manager = started(make_record())
    state(manager, "healthy")
    for pid in manager.pids():
        environment = processes.environment(pid)
        assert environment and not [name for name in environment if name.startswith("ROUNDHOUSE_")]


def test_an_end_that_nobody_asked_for_is_a_failure_whatever_the_code(make_record: Make) -> None:
    manager = started(make_record({"exit": 0}))
    state(manager, "failed")
    wait_for(lambda: manager.status().exit_code == 0)
    assert "without being asked" in manager.status().detail


def test_the_exit_code_of_a_crash_is_known(make_record: Make) -> None:
    manager = started(make_record({"log": [[0, "boom\n"]], "exit": 7}))
    wait_for(lambda: manager.status().exit_code == 7)
    assert manager.status().state == "failed"


def test_an_end_that_is_not_written_down_yet_is_waited_for(make_record: Make) -> None:
    manager = started(make_record({"serve": True}))
    pid = manager.status().pid or 0
    keeper = processes.look(pid).parent  # type: ignore[union-attr]
    os.kill(keeper, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes.look(pid).state == "Z")  # type: ignore[union-attr]
    assert manager.status().exit_code is None  # it waits for some time, not for ever
    later = threading.Timer(0.3, os.kill, (keeper, signal.SIGCONT))
    later.start()
    assert manager.status().exit_code == -9 and manager.status().ended_at is not None
    later.join()


def test_a_lost_keeper_leaves_the_exit_code_unknown(make_record: Make) -> None:
    manager = started(make_record())
    state(manager, "healthy")
    pid = manager.status().pid
    assert pid is not None
    keeper = processes.look(pid).parent  # type: ignore[union-attr]
    assert "spawner.py" in (processes.describe(keeper)[1] or "")
    os.kill(keeper, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    state(manager, "failed")
    assert manager.status().exit_code is None and "not known" in manager.status().detail


def test_stopped_by_us_is_stopped(make_record: Make) -> None:
    manager = started(make_record())
    state(manager, "healthy")
    manager.terminate()
    state(manager, "stopped")


def test_a_healthy_service_that_no_longer_answers_is_unknown(make_record: Make) -> None:
    record = make_record()
    manager = started(record)
    state(manager, "healthy")
    pid = manager.status().pid
    assert pid is not None
    record.base_url = "http://127.0.0.1:9"  # nobody there
    status = ProcessManager(record).status()
    assert status.state == "unknown" and "refuses connections" in status.detail


def test_all_its_processes_are_found_wherever_they_went(make_record: Make) -> None:
    manager = started(make_record({"children": ["plain", "setsid", "bare"], "serve": True}))
    state(manager, "healthy")
    assert len(manager.pids()) == 4
    main = manager.status().pid
    assert main is not None
    os.kill(main, signal.SIGKILL)
    state(manager, "failed")
    # The child without an environment stays in the service's session; the others carry the mark.
    assert len(manager.pids()) == 3
    with pytest.raises(OpsError, match="still there"):
        manager.start()
    manager.kill()
    wait_for(lambda: not manager.pids())
    assert manager.status().state == "failed", "ending what a crash left behind does not make it a stop"


def test_another_boot_means_stopped(make_record: Make) -> None:
    record = make_record()
    manager = started(record)
    state(manager, "healthy")
    known = json.loads((record.folder / "process.json").read_text())
    (record.folder / "process.json").write_text(json.dumps({**known, "boot_id": "another"}))
    assert manager.status().state == "stopped" and manager.pids() == set()
    (record.folder / "process.json").write_text(json.dumps(known))


def test_a_missing_launcher_or_release_is_said(make_record: Make) -> None:
    record = make_record()
    with pytest.raises(OpsError, match="no launcher"):
        ProcessManager(record).start()
    launch.write(record)
    record.current.unlink()
    with pytest.raises(OpsError, match="no release"):
        ProcessManager(record).start()


def test_a_process_file_that_nobody_can_read_makes_the_state_unknown(make_record: Make) -> None:
    record = make_record()
    for content, words in (("{", "cannot be read"), ("[]", "does not hold"), ("{\"pid\": 1}", "has no `boot_id`")):
        (record.folder / "process.json").write_text(content)
        status = ProcessManager(record).status()
        assert status.state == "unknown" and words in status.detail
    (record.folder / "process.json").unlink()


def test_each_record_has_its_manager_and_a_unit_that_is_none_is_refused(make_record: Make) -> None:
    assert isinstance(manager_for(make_record()), ProcessManager)
    assert isinstance(manager_for(make_record(manager="systemd", unit="vllm.service")), SystemdManager)
    for unit in ("", "-H.service", "../a.service", "a b", "vllm@.service"):
        with pytest.raises(BadInput):
            manager_for(make_record(manager="systemd", unit=unit))
