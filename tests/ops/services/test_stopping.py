from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence

import pytest

from ops.gpus.source import MIB, GpuProcess, GpuReading, GpuSnapshot
from ops.jobs.errors import Cancelled, OpsError
from ops.records import ServiceRecord
from ops.services import starting, state, stopping
from ops.services.process import ProcessManager
from ops.services.status import ServiceStatus
from tests.ops.services.conftest import Job, wait_for

Make = Callable[..., ServiceRecord]


class Readings:
    """A GPU source that gives these snapshots one after the other, the last one for ever."""

    def __init__(self, *snapshots: Sequence[GpuReading] | GpuSnapshot) -> None:
        self.left = [item if isinstance(item, GpuSnapshot) else GpuSnapshot(gpus=list(item)) for item in snapshots]
        self.count = 0

    def read(self) -> GpuSnapshot:
        self.count += 1
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def gpu(index: int, used_mib: float | None, *holders: GpuProcess, error: str | None = None) -> GpuReading:
    return GpuReading(index=index, uuid=f"u{index}", name="GPU", used_bytes=None if used_mib is None else int(used_mib * MIB),
                      processes=list(holders), error=error)


def running(job: Job, record: ServiceRecord) -> ProcessManager:
    starting.start(job.context, record)
    manager = ProcessManager(record)
    wait_for(lambda: manager.status().state == "healthy")
    return manager


def test_a_stop_ends_everything_and_says_how(make_record: Make, job: Job) -> None:
    record = make_record({"children": ["plain"], "serve": True})
    manager = running(job, record)
    note = stopping.stop(job.context, record, timeout_s=0.5)
    assert "SIGKILL" in note and "others stayed" in note  # the child has no reason to end with its parent
    assert manager.pids() == set() and manager.status().state == "stopped"


def test_a_service_that_ends_by_itself_needs_no_kill(make_record: Make, job: Job) -> None:
    record = make_record()
    running(job, record)
    assert "after SIGTERM" in stopping.stop(job.context, record)


def test_one_that_ignores_sigterm_and_its_children_are_killed(make_record: Make, job: Job) -> None:
    record = make_record({"ignore_term": True, "children": ["stubborn", "setsid"], "serve": True})
    manager = running(job, record)
    note = stopping.stop(job.context, record, timeout_s=0.5)
    assert "did not react to SIGTERM" in note and "(3 processes)" in note
    assert manager.pids() == set()


def test_a_server_that_is_still_starting_gets_less_time(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STARTING_TIMEOUT_S", 0.3)
    record = make_record({"ignore_term": True, "log": [[0, "x\n"]], "hang": True})
    starting.start(job.context, record)
    assert "ended by SIGKILL after 0." in stopping.stop(job.context, record)


def test_stopping_what_does_not_run_is_fine(make_record: Make, job: Job) -> None:
    assert stopping.stop(job.context, make_record()) == "was not running"


def test_a_cancel_ends_the_wait(make_record: Make, job: Job) -> None:
    record = make_record({"ignore_term": True, "serve": True})
    running(job, record)
    job.cancel = True
    with pytest.raises(Cancelled):
        stopping.stop(job.context, record)


def test_gpus_are_free_after_two_readings_in_a_row(make_record: Make, job: Job) -> None:
    record = make_record(gpus=[0, 1])
    state.change(record, lambda known: known.update(baseline={"0": 10 * MIB, "1": 0}))
    busy, free = [gpu(0, 90_000), gpu(1, 0)], [gpu(0, 74), gpu(1, 64)]
    source = Readings(busy, free, busy, free, free)
    note = stopping.wait_gpus_free(job.context, record, source, poll_s=0.01)
    assert source.count == 5 and note.startswith("2 GPUs free") and "baseline" not in note


def test_without_a_baseline_zero_is_asked_for_and_said(make_record: Make, job: Job) -> None:
    assert "no baseline was recorded" in stopping.wait_gpus_free(job.context, make_record(gpus=[0]), Readings([gpu(0, 0)]), poll_s=0.01)


def test_what_holds_memory_is_named(make_record: Make, job: Job) -> None:
    record = make_record(gpus=[0, 3])
    holder = GpuProcess(pid=4711, used_bytes=73 * 1024 * MIB, user="bob", command="python train.py", started_at=1767225600.0)
    source = Readings([gpu(0, 0), gpu(3, 75_000, holder)])
    with pytest.raises(OpsError) as caught:
        stopping.wait_gpus_free(job.context, record, source, limit_s=0.1, poll_s=0.02)
    text = str(caught.value)
    for part in ("GPU 3", "75,000 MiB", "pid 4711", "user bob", "no unit", "python train.py", "started 2026-01-01 00:00:00 UTC", "74,752 MiB"):
        assert part in text
    assert "GPU 0" not in text and caught.value.kind == "gpus_not_free"


def test_memory_of_other_gpus_does_not_matter(make_record: Make, job: Job) -> None:
    source = Readings([gpu(0, 0), gpu(7, 90_000)])
    assert stopping.wait_gpus_free(job.context, make_record(gpus=[0]), source, poll_s=0.01).startswith("1 GPUs free")


def test_a_living_process_of_the_service_keeps_its_gpu_held_even_with_little_memory(make_record: Make, job: Job) -> None:
    record = make_record(gpus=[0])
    manager = running(job, record)
    pid = manager.status().pid
    assert pid is not None
    with pytest.raises(OpsError, match="of this service") as caught:
        stopping.wait_gpus_free(job.context, record, Readings([gpu(0, 10, GpuProcess(pid=pid, used_bytes=10 * MIB))]), limit_s=0.1, poll_s=0.02)
    assert str(pid) in str(caught.value)


@pytest.mark.parametrize(("reading", "words"), [
    ([gpu(0, None)], "cannot be read"),
    ([gpu(0, None, error="GPU is lost")], "does not answer: GPU is lost"),
    (GpuSnapshot(gpus=[], problem="no driver"), "(?s)No GPU of this machine can be read.*no driver.*`nvidia-smi` must list them"),
])
def test_what_cannot_be_seen_does_not_count_as_free(make_record: Make, job: Job, reading: Sequence[GpuReading], words: str) -> None:
    with pytest.raises(OpsError, match=words):
        stopping.wait_gpus_free(job.context, make_record(gpus=[0]), Readings(reading), limit_s=0.05, poll_s=0.01)


def test_a_machine_without_gpus_has_nothing_to_wait_for(make_record: Make, job: Job) -> None:
    note = stopping.wait_gpus_free(job.context, make_record(), Readings(GpuSnapshot(gpus=[], problem="no driver")))
    assert note == "no GPU to wait for: no driver"


def test_a_baseline_never_creeps_up(make_record: Make) -> None:
    record = make_record(gpus=[0, 1])
    stopping.record_baseline(record, GpuSnapshot(gpus=[gpu(0, 10), gpu(1, 0), gpu(2, 99)]))
    stopping.record_baseline(record, GpuSnapshot(gpus=[gpu(0, 60), gpu(1, None)]))
    assert state.baseline(record) == {0: 10 * MIB, 1: 0}
    stopping.record_baseline(record, GpuSnapshot(gpus=[gpu(0, 4), gpu(1, 0)]))
    assert state.baseline(record) == {0: 4 * MIB, 1: 0}


def test_state_of_two_writers_is_kept_whole(make_record: Make) -> None:
    record = make_record()
    record.folder.mkdir(parents=True, exist_ok=True)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            for turn in range(5):
                state.change(record, lambda known, n=number, t=turn: known.update({f"{n}-{t}": True}))
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert len(state.read(record)) == 20
    assert subprocess.run(["ls", "-A", str(record.folder)], capture_output=True, text=True, check=True).stdout.count("state.json") == 1


# ---- what a stop waits for ----


def test_a_worker_that_goes_on_after_the_main_process_is_told(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "EXPLAIN_AFTER_S", 0.0)
    record = make_record({"children": ["plain"], "serve": True})
    running(job, record)
    assert "others stayed" in stopping.stop(job.context, record, timeout_s=1.5)
    assert [text for data in job.of("step.log") if "The main process has ended, 1 of its workers go on" in (text := data["text"])]
    assert len([data for data in job.of("step.log") if "go on for now" in data["text"]]) == 1, "told once"


def test_workers_get_little_time_once_the_main_process_is_gone(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "WORKERS_S", 0.3)
    record = make_record({"children": ["plain"], "serve": True})
    running(job, record)
    assert "the main process ended, others stayed" in stopping.stop(job.context, record, timeout_s=600)


def test_workers_whose_main_process_is_gone_already_are_asked_themselves(make_record: Make, job: Job) -> None:
    record = make_record({"children": ["plain"], "serve": True})
    manager = running(job, record)
    os.kill(manager.status().pid or 0, signal.SIGKILL)
    wait_for(lambda: manager.status().state == "failed")
    assert len(manager.pids()) == 1 and "after SIGTERM" in stopping.stop(job.context, record, timeout_s=600)


def test_clients_that_hold_a_stream_are_counted_when_only_the_main_process_is_left(make_record: Make) -> None:
    record = make_record()
    port = int(record.base_url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        assert "waits for 1 open connection: a client" in stopping._why_still(record, 10, {10, 11, 12}, {10})
        assert stopping._why_still(record, 10, {10, 11, 12}, {10, 11}) == "", "its engine still works"
        accepted.close()
        client.close()
    assert stopping._why_still(record, 10, {10, 11, 12}, {10}) == "" and stopping._why_still(record, None, {10}, {10}) == ""


class Unit:
    """A manager of a unit in this state that has no process."""

    def __init__(self, state: str) -> None:
        self.state, self.told = state, 0

    def status(self) -> ServiceStatus:
        return ServiceStatus(state=self.state)

    def pids(self) -> set[int]:
        return set()

    def terminate(self) -> None:
        self.told += 1

    def stop_limit_s(self) -> float:
        return 1.0


@pytest.mark.parametrize(("state", "told", "words"), [
    ("failed", 1, "it was failed, and stays down"), ("starting", 1, "it was starting, and stays down"), ("stopped", 0, "was not running")])
def test_a_unit_between_two_tries_is_told_to_stay_down(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch, state: str, told: int,
                                                       words: str) -> None:
    unit = Unit(state)
    monkeypatch.setattr(stopping, "manager_for", lambda record: unit)
    assert words in stopping.stop(job.context, make_record(manager="systemd", unit="kimi.service"))
    assert unit.told == told
