"""Ends that nobody asked for: noticed however short they can be seen, told once, with what the log of that run says."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import failures, launch, pending, starting, state
from ops.services.failures import Watch
from ops.services.manager import Manager
from ops.services.process import ProcessManager
from ops.services.status import ServiceStatus
from tests.ops.services.conftest import Job, wait_for

Make = Callable[..., ServiceRecord]

SECRET = "hf_abcdefghijklmnopqrstuvwx"
TRACEBACK = [[0, "Traceback (most recent call last):\n"], [0, '  File "/opt/model.py", line 7, in load\n'],
             [0, f"ValueError: no weights at https://user:{SECRET}@models.example/w\n"]]
CRASH = {"log": TRACEBACK, "exit": 3}


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch(settle_s=0.05).start()
    yield made
    made.stop()
    wait_for(lambda: made._thread is not None and not made._thread.is_alive())


def started(record: ServiceRecord) -> ProcessManager:
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    return manager


def look(watch: Watch, record: ServiceRecord) -> list[dict[str, Any]]:
    """One look at a real service; its failures afterwards."""
    manager = ProcessManager(record)
    watch.look(record, manager.status(), manager)
    return failures.kept(state.read(record))


def all_read(watch: Watch, record: ServiceRecord) -> list[dict[str, Any]]:
    wait_for(watch.idle, 60)
    return failures.kept(state.read(record))


def test_a_crash_is_told_once_with_what_its_log_says_and_without_secrets(make_record: Make, watch: Watch) -> None:
    record = make_record(CRASH)
    began = time.time()
    manager = started(record)
    assert look(watch, record) == [] or manager.status().state == "failed"
    wait_for(lambda: look(watch, record), 30)
    found, = all_read(watch, record)
    assert (found["exit_code"], found["release"], found["restarts"], found["problem"]) == (3, record.current.resolve().name, None, "")
    assert began - 2 < found["ended_at"] <= found["at"] and found["where"] == str(manager.log_path())
    assert found["diagnosis"]["fault"] and found["diagnosis"]["text"].startswith("ValueError: no weights at")
    assert SECRET not in json.dumps(found)
    for _ in range(3):
        assert look(watch, record) == [found]
    another = Watch(settle_s=0.05).start()  # an agent that was started anew
    assert look(another, record) == [found] and another.idle()
    another.stop()


def test_an_end_with_code_0_is_a_failure_and_a_stop_is_none(make_record: Make, watch: Watch) -> None:
    record = make_record({"log": [[0, "INFO engine died\n"]], "exit": 0})
    started(record)
    wait_for(lambda: look(watch, record), 30)
    assert failures.kept(state.read(record))[0]["exit_code"] == 0
    record = replace(record, env={"FAKE_VLLM": json.dumps({"serve": True})})
    manager = started(record)
    wait_for(lambda: manager.status().state == "healthy")
    look(watch, record)
    manager.terminate()
    wait_for(lambda: manager.status().state == "stopped")
    assert len(look(watch, record)) == 1


def test_a_crash_that_a_new_start_hides_is_told_with_its_own_log(make_record: Make, watch: Watch) -> None:
    record = make_record(CRASH)
    crashed = started(record)
    wait_for(lambda: crashed.status().exit_code == 3)
    where = str(crashed.log_path())
    record = replace(record, env={"FAKE_VLLM": json.dumps({"serve": True})})
    manager = started(record)  # a job brought the service back before anybody looked
    wait_for(lambda: manager.status().state == "healthy")
    found, = look(watch, record)
    assert (found["exit_code"], found["where"]) == (3, where) and "started again since" in found["detail"]
    assert all_read(watch, record)[0]["diagnosis"]["text"].startswith("ValueError")
    manager.terminate()
    wait_for(lambda: manager.status().state == "stopped")
    started(record)
    assert len(look(watch, record)) == 1  # the run between was asked to end


def test_a_process_that_was_killed_is_a_failure_by_that_signal(make_record: Make, watch: Watch) -> None:
    record = make_record()
    manager = started(record)
    wait_for(lambda: manager.status().state == "healthy")
    look(watch, record)
    os.kill(manager.status().pid or 0, signal.SIGKILL)
    wait_for(lambda: look(watch, record), 30)
    found, = all_read(watch, record)
    assert (found["exit_code"], found["diagnosis"]["fault"]) == (-9, False) and "SIGKILL" in found["detail"]
    assert set(found["kernel"]) == {"problem"} and failures.kernel_words(found["kernel"]["problem"])


@pytest.mark.parametrize(("code", "said"), [(-9, "from the kernel when memory has run out"), (137, "from a manager whose time for a stop is over"),
                                            (-11, "SIGSEGV is a crash in native code"), (-15, "SIGTERM was sent from outside")])
def test_an_end_by_a_signal_says_what_that_usually_means(code: int, said: str) -> None:
    assert said in failures.meaning(code)


@pytest.mark.parametrize("code", [None, 0, 1, 3, 127, 255, -200])
def test_any_other_end_has_no_meaning_of_its_own(code: int | None) -> None:
    assert failures.meaning(code) == ""


def test_a_process_that_the_kernel_killed_is_explained_by_the_kernels_log(make_record: Make, watch: Watch, tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record()
    manager = started(record)
    wait_for(lambda: manager.status().state == "healthy")
    look(watch, record)
    said = "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB"
    entry = json.dumps({"MESSAGE": said, "__REALTIME_TIMESTAMP": str(int(time.time() * 1e6))})
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\ncase \"$*\" in *_TRANSPORT=kernel*) echo '{entry}';; esac\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    os.kill(manager.status().pid or 0, signal.SIGKILL)
    wait_for(lambda: look(watch, record), 30)
    found, = all_read(watch, record)
    assert (found["diagnosis"]["source"], found["diagnosis"]["line"]) == ("kernel", None)
    assert found["kernel"] == {"problem": ""}
    assert "Killed process 4711" in found["diagnosis"]["text"] and found["diagnosis"]["fix"]


def test_a_log_that_was_not_read_to_its_end_is_read_by_the_next_agent(make_record: Make, watch: Watch) -> None:
    record = make_record()
    (record.folder / "logs").mkdir(parents=True)
    path = record.folder / "logs" / "a.log"
    path.write_text("".join(text for _, text in TRACEBACK))
    one = failures._failure(invocation="a", release="r", exit_code=1, ended_at=1.0, restarts=None, where=str(path), detail="d")
    gone = failures._failure(invocation="b", release="r", exit_code=1, ended_at=1.0, restarts=None, where=f"{path}.gone", detail="d")
    state.change(record, lambda known: known.update(failures=[one, gone]))
    look(watch, record)
    first, second = all_read(watch, record)
    assert first["diagnosis"]["text"].startswith("ValueError") and first["problem"] == ""
    assert second["diagnosis"] is None and "cannot be read" in second["problem"]


def test_the_last_20_are_kept_and_a_full_disk_loses_none(make_record: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record()
    monkeypatch.setattr(Watch, "_read", lambda self, record, failure: {"problem": "not read"})
    monkeypatch.setattr(failures, "AGAIN_S", 0.0)
    statuses = [ServiceStatus(state="failed", invocation=f"{number:032x}", exit_code=1, detail="d", restarts=0) for number in range(30)]
    for status in statuses[:25]:
        watch.look(record, status, Unit())
        wait_for(watch.idle)
    kept = all_read(watch, record)
    assert [one["invocation"] for one in kept] == [status.invocation for status in statuses[5:25]]
    assert {one["problem"] for one in kept} == {"not read"}
    with monkeypatch.context() as full:
        def change(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(state, "change", change)
        for status in statuses[25:]:
            watch.look(record, status, Unit())
        wait_for(watch.idle)
        told = failures.merged(failures.kept(state.read(record)), watch.unsaved(record.name))
        assert [one["invocation"] for one in told] == [status.invocation for status in statuses[10:]]
    watch.look(record, statuses[-1], Unit())
    assert failures.kept(state.read(record)) == told and watch.unsaved(record.name) == []


# ---- a manager that starts it again by itself ----


class Unit(Manager):
    """Stands for a unit: the statuses are given."""

    def __init__(self) -> None:
        pass


def run(number: int, state: str, restarts: int | None, **more: Any) -> ServiceStatus:
    return ServiceStatus(state=state, invocation=f"{number:032x}", restarts=restarts, **more)


@pytest.mark.parametrize(("seen", "expected"), [
    ([run(1, "healthy", 0), run(2, "starting", 1), run(2, "healthy", 1)], [(1, 0, "restart 1")]),
    ([run(1, "healthy", 0), run(4, "starting", 3)], [(1, 0, "restart 3); 2 further ends came")]),
    ([run(1, "starting", 0), run(1, "failed", 0, exit_code=1), run(2, "starting", 1), run(2, "failed", 1, exit_code=1)], [(1, 0, ""), (2, 1, "")]),
    ([run(1, "failed", 0, exit_code=1), run(3, "starting", 2)], [(1, 0, ""), (0, 1, "restart 2")]),  # the run between was never seen
    ([run(1, "healthy", 2), run(2, "starting", 0), run(2, "healthy", 0)], []),  # somebody restarted it
    ([run(1, "stopped", 0), run(2, "healthy", 0)], []),
    ([run(1, "stopped", 0), run(3, "healthy", 1)], [(0, 0, "restart 1")]),  # started, and crashed at once
    ([run(1, "healthy", 0), ServiceStatus(state="unknown", detail="no bus"), run(1, "healthy", 0)], []),
    ([ServiceStatus(state="stopped"), run(1, "failed", 0, exit_code=0)], [(1, 0, "")]),
])
def test_each_end_in_a_restart_loop_is_told_once(make_record: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch, seen: list[ServiceStatus],
                                                 expected: list[tuple[int, int, str]]) -> None:
    monkeypatch.setattr(Watch, "_read", lambda self, record, failure: {"problem": "not read"})
    record = make_record()
    for status in seen:
        for _ in range(2):
            watch.look(record, status, Unit())
    found = failures.kept(state.read(record))
    assert [(int(one["invocation"] or "0", 16), one["restarts"]) for one in found] == [(number, restarts) for number, restarts, _ in expected]
    assert all(words in one["detail"] for one, (_, _, words) in zip(found, expected, strict=True))


def test_a_restart_that_came_while_no_agent_ran_is_noticed(make_record: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_read", lambda self, record, failure: {"problem": "not read"})
    record = make_record()
    Watch().look(record, run(1, "healthy", 0, release="r1", log_where="journalctl x"), Unit())
    watch.look(record, run(2, "healthy", 1), Unit())
    found, = failures.kept(state.read(record))
    assert (found["invocation"], found["release"], found["where"]) == (f"{1:032x}", "r1", "journalctl x")


def test_of_a_unit_the_journal_tells_how_the_run_ended(make_record: Make, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record(manager="systemd", unit="vllm.service")
    entries = [{"MESSAGE": text.rstrip("\n"), "_PID": "9", "SYSLOG_IDENTIFIER": "vllm", "__REALTIME_TIMESTAMP": "1700000000000000"}
               for _, text in TRACEBACK]
    entries.append({"MESSAGE": "vllm.service: Main process exited, code=dumped, status=11/SEGV", "_PID": "1", "SYSLOG_IDENTIFIER": "systemd",
                    "EXIT_CODE": "dumped", "EXIT_STATUS": "11", "__REALTIME_TIMESTAMP": "1700000001500000"})
    (tmp_path / "said").write_text("".join(json.dumps({**entry, "__CURSOR": f"c{number}", "_SYSTEMD_INVOCATION_ID": f"{1:032x}"}) + "\n"
                                           for number, entry in enumerate(entries)))
    (tmp_path / "journalctl").write_text(f'#!/bin/sh\nexec cat {tmp_path}/said\n')
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch.look(record, run(1, "healthy", 0), Unit())
    watch.look(record, run(2, "starting", 1), Unit())
    found, = all_read(watch, record)
    assert (found["exit_code"], found["ended_at"]) == (-11, 1700000001.5)
    assert found["diagnosis"]["fault"] and "ValueError" in found["diagnosis"]["text"] and SECRET not in json.dumps(found)


# ---- launch settings that wait for the next start ----


def test_settings_that_are_changed_while_it_runs_are_pending_until_it_is_started_again(make_record: Make, watch: Watch) -> None:
    record = make_record()
    assert watch.is_pending(record) is None
    manager = started(record)
    wait_for(lambda: manager.status().state == "healthy")
    look(watch, record)
    assert watch.is_pending(record) is False
    changed = replace(record, env={**record.env, "VLLM_USE_V1": "1"})
    launch.write(changed)
    look(watch, changed)
    assert watch.is_pending(changed) is True and watch.is_pending(record) is False  # changed back is as if nothing was
    another = Watch()  # an agent that is started now sees the same
    look(another, changed)
    assert another.is_pending(changed) is True
    manager.terminate()
    wait_for(lambda: manager.status().state == "stopped")
    look(watch, changed)
    assert watch.is_pending(changed) is None


def test_what_an_agent_sees_first_when_settings_were_changed_after_the_start_is_pending(make_record: Make, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("A=1\n")
    record = make_record(env_files=[str(file), "-/nowhere"])
    assert pending.started_with(record, 1.0) == pending.digest(record)  # never started by Roundhouse
    launch.write(record)
    now = time.time()
    assert pending.started_with(record, now) == pending.started_with(record, None) == pending.digest(record)
    os.utime(file, (now + 60, now + 60))
    assert pending.started_with(record, now) is None
    assert pending.started_with(replace(record, flags=["--other"]), now) is None


def test_a_clock_that_was_set_back_since_a_start_makes_nothing_pending(make_record: Make, job: Job, tmp_path: Path) -> None:
    """Its start looks earlier than the writing of its settings then."""
    file = tmp_path / "env"
    file.write_text("A=1\n")
    record = make_record(env_files=[str(file)])
    starting.start(job.context, record)
    status = ProcessManager(record).status()
    hour_ago = time.time() - 3600
    assert pending.started_with(record, hour_ago, status.invocation) == pending.digest(record)
    assert pending.started_with(record, hour_ago, "another run") is None
    watch = Watch()  # of an agent that sees it for the first time
    watch.look(record, replace(status, started_at=hour_ago), ProcessManager(record))
    assert watch.is_pending(record) is False
    file.write_text("A=2 \n")
    assert watch.is_pending(record) is True and pending.started_with(record, hour_ago, status.invocation) is None


def test_a_state_that_cannot_be_read_stops_no_look(make_record: Make, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_read", lambda self, record, failure: {"problem": "not read"})
    record = make_record()
    state.path(record).write_text("{ damaged")
    watch.look(record, run(1, "failed", 0, exit_code=1), Unit())
    assert [one["invocation"] for one in watch.unsaved(record.name)] == [f"{1:032x}"]
    with pytest.raises(OpsError):
        state.read(record)


def test_of_ends_that_come_faster_than_logs_are_read_the_newest_is_read(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    record, read = make_record(), list[str]()
    began, go_on = threading.Event(), threading.Event()

    def slow(watch: Watch, record: ServiceRecord, failure: dict[str, Any]) -> dict[str, Any]:
        read.append(failure["invocation"])
        began.set()
        go_on.wait(30)
        return {"diagnosis": {"fault": False}}

    monkeypatch.setattr(Watch, "_read", slow)
    watch = Watch(settle_s=0).start()
    ends = [failures._failure(invocation=f"run-{number}", release=None, exit_code=1, ended_at=float(number), restarts=number, where="",
                              detail="It ended") for number in range(9)]
    watch._note(record, ends[0])
    began.wait(30)
    for one in ends[1:]:
        watch._note(record, one)
    assert not watch.idle()
    go_on.set()
    kept = all_read(watch, record)
    watch.stop()
    assert read == ["run-0", "run-8", "run-7", "run-6", "run-5", "run-4"]
    assert [one["invocation"] for one in kept if "faster than logs can be read" in one["problem"]] == ["run-1", "run-2", "run-3"]
    assert [bool(one["diagnosis"]) for one in kept] == [True, False, False, False, True, True, True, True, True]
