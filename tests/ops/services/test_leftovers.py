"""What a service leaves behind, and what of it may be ended: real processes, real sockets, real files."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.gpus import processes
from ops.gpus.source import MIB, GpuProcess
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import ServiceRecord
from ops.services import leftovers, ownership, starting, state
from ops.services.process import MARK, ProcessManager
from tests.ops.services.conftest import Job, wait_for
from tests.ops.services.test_stopping import Readings, gpu, running

Make = Callable[..., ServiceRecord]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with the service."""
    process = subprocess.Popen(["sleep", "120"])
    yield process
    process.kill()
    process.wait()


def crashed(job: Job, record: ServiceRecord) -> dict[int, int]:
    """Starts the service and kills its main process alone; gives the processes that are left, by pid, with their start times."""
    manager = running(job, record)
    status, pids = manager.status(), manager.pids()
    ownership.remember(record, status, pids)
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)
    wait_for(lambda: manager.status().state == "failed")
    return {pid: ticks for pid in pids - {status.pid} if (ticks := processes.start_ticks(pid)) is not None}


def test_workers_that_outlive_their_main_process_are_named_and_nobody_else_is_ended(make_record: Make, job: Job,
                                                                                     stranger: subprocess.Popen[bytes]) -> None:
    record = make_record({"children": ["plain", "bare", "lost", "stubborn"], "serve": True}, gpus=[0, 1])
    left = crashed(job, record)
    assert len(left) == 4
    source = Readings([gpu(0, 900, *(GpuProcess(pid=pid, used_bytes=200 * MIB) for pid in left), GpuProcess(pid=stranger.pid, used_bytes=100 * MIB)),
                       gpu(1, 10)])
    found = leftovers.look(record, source)
    assert {one["pid"] for one in found.own} == set(left)
    assert {one["start_ticks"] for one in found.own} == set(left.values())
    assert all(one["gpus"] == [{"index": 0, "used_bytes": 200 * MIB}] and one["user"] and one["started_at"] for one in found.own)
    other = found.processes[-1]
    assert (other["pid"], other["own"], other["why"]) == (stranger.pid, False, "nothing shows that it was the service's")
    assert not found.running and [one["index"] for one in found.gpus] == [0]
    assert "no unit" in found.gpus[0]["problem"] and "of this service" in found.gpus[0]["problem"] and "started 2" in found.gpus[0]["problem"]
    assert found.words().startswith("4 own processes, 1 of others, 1 GPU not free")
    json.dumps(found.as_dict())

    ticks = processes.start_ticks(stranger.pid)
    assert ticks is not None
    with pytest.raises(Refused, match="not proven") as caught:
        leftovers.end(job.context, record, [*left.items(), (stranger.pid, ticks)])
    assert caught.value.kind == "not_own" and all(processes.is_alive(*one) for one in left.items()), "one stranger, and nothing is ended"

    note = leftovers.end(job.context, record, [*left.items(), (2**22 - 1, 5)], grace_s=0.3)  # stubborn ignores SIGTERM
    assert note == "4 ended, 1 had ended by themselves"
    assert not any(processes.is_alive(*one) for one in left.items()) and stranger.poll() is None
    assert leftovers.look(record, source).own == []


def test_a_pid_that_came_back_is_another_process(make_record: Make, job: Job, stranger: subprocess.Popen[bytes]) -> None:
    record = make_record()
    manager = running(job, record)
    pid, ticks = stranger.pid, processes.start_ticks(stranger.pid)
    assert ticks is not None
    state.change(record, lambda known: known["runs"][-1]["pids"].append([pid, ticks - 1]))
    assert pid not in ownership.left_over(record, manager)
    state.change(record, lambda known: known["runs"][-1].update(boot_id="another", pids=[[pid, ticks]]))
    assert pid not in ownership.left_over(record, manager)


def test_the_run_that_runs_is_no_leftover(make_record: Make, job: Job) -> None:
    record = make_record({"children": ["plain"], "serve": True}, gpus=[0])
    manager = running(job, record)
    status = manager.status()
    assert status.pid is not None and status.start_ticks is not None
    found = leftovers.look(record, Readings([gpu(0, 900, GpuProcess(pid=status.pid, used_bytes=900 * MIB))]))
    assert found.running and found.processes == [] and found.gpus == [] and found.ports == []
    with pytest.raises(Refused, match="as it runs now"):
        leftovers.end(job.context, record, [(status.pid, status.start_ticks)])
    assert processes.is_alive(status.pid, status.start_ticks)


def test_a_process_of_an_earlier_run_is_known_while_a_later_one_runs(make_record: Make, job: Job) -> None:
    record = make_record({"children": ["lost"], "serve": True})
    [(pid, ticks)] = crashed(job, record).items()
    manager = running(job, record)  # what lost its mark, its session and its parent does not keep it from starting
    assert manager.pids() >= {manager.status().pid} and pid not in manager.pids()
    owned = ownership.left_over(record, manager)
    assert owned[pid].why == "it was seen among the service's processes"
    leftovers.end(job.context, record, [(pid, ticks)], grace_s=0.1)
    assert not processes.is_alive(pid, ticks) and manager.status().state == "healthy"


@pytest.mark.parametrize(("session", "start", "is_ours"), [(100, 1500, True), (100, 2500, False), (100, 900, False), (7, 1500, False)])
def test_a_session_proves_it_only_while_its_main_process_was_known_to_live(session: int, start: int, is_ours: bool) -> None:
    process = processes.Process(pid=5, state="S", parent=1, session=session, start_ticks=start, cpu_ticks=0)
    assert ownership._joined(process, {"main": [100, 1000], "seen": 2000}) is is_ours


def test_a_run_is_written_down_only_when_something_is_new(make_record: Make, job: Job) -> None:
    record = make_record()
    manager = running(job, record)
    before = state.path(record).stat().st_mtime_ns
    for _ in range(3):
        ownership.remember(record, manager.status(), manager.pids())
    assert state.path(record).stat().st_mtime_ns == before
    ownership.remember(record, manager.status(), manager.pids(), ending=True)
    assert state.path(record).stat().st_mtime_ns > before
    state.path(record).write_text("{")
    ownership.remember(record, manager.status(), manager.pids(), ending=True)  # a broken file keeps nothing from stopping


def test_memory_that_no_process_is_listed_for_is_told(make_record: Make) -> None:
    found = leftovers.look(make_record(gpus=[0]), Readings([gpu(0, 900)]))
    assert found.processes == [] and "no process is listed" in found.gpus[0]["problem"] and found.gpus[0]["allowed_bytes"] == 64 * MIB


def test_processes_of_another_service_are_its_own(make_record: Make, job: Job, stranger: subprocess.Popen[bytes],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    record = other = make_record(gpus=[0])
    ticks = processes.start_ticks(stranger.pid)
    assert ticks is not None
    state.change(record, lambda known: known.update(runs=[{
        "boot_id": processes.boot_id(), "invocation": "", "main": [stranger.pid, ticks], "seen": 0, "pids": [[stranger.pid, ticks]]}]))
    monkeypatch.setattr(leftovers, "_services_of", lambda others, problems: {stranger.pid: "other"})
    [found] = leftovers.look(record, Readings([gpu(0, 900, GpuProcess(pid=stranger.pid, used_bytes=MIB))]), others=[other]).processes
    assert (found["own"], found["service"], found["why"]) == (False, "other", "it is service `other`'s")
    with pytest.raises(Refused, match="not proven"):
        leftovers.end(job.context, record, [(stranger.pid, ticks)], others=[other])


def test_a_process_that_this_user_may_not_end_is_told_with_the_command_for_an_admin(make_record: Make, job: Job,
                                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"children": ["plain"], "serve": True})
    left = crashed(job, record)

    def forbidden(descriptor: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(leftovers.signal, "pidfd_send_signal", forbidden)
        with pytest.raises(OpsError, match="may not be ended") as caught:
            leftovers.end(job.context, record, list(left.items()))
    assert caught.value.kind == "not_permitted" and f"sudo kill {next(iter(left))}" in caught.value.hint


@pytest.mark.parametrize("raw", [None, [], {}, [5], [{"pid": 5}], [{"pid": True, "start_ticks": 1}], [{"pid": -5, "start_ticks": 1}],
                                 [{"pid": "5", "start_ticks": 1}], [{"pid": 5, "start_ticks": 1}] * 201])
def test_what_names_no_process_is_refused(raw: Any) -> None:
    with pytest.raises(BadInput):
        leftovers.chosen(raw)


def test_a_port_that_is_still_listened_on_is_told_with_who_does(make_record: Make) -> None:
    record = make_record(gpus=[0])
    port = int(record.base_url.rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        [found] = leftovers.look(record, Readings([gpu(0, 0)])).ports
    assert (found["port"], found["pid"], found["own"]) == (port, os.getpid(), False) and "python" in found["command"]
    assert leftovers.look(record, Readings([gpu(0, 0)])).ports == []


def test_shared_memory_is_listed_once_nobody_holds_it(make_record: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "SHM", tmp_path)
    monkeypatch.setattr(leftovers, "_ipc", lambda uid, folders, problems: [])
    record = make_record(gpus=[0])
    for name in ("psm_1a2b3c4d", "nccl-Xyz012", "sem.mp-q1", "notes.txt", "__KMP_REGISTERED_LIB_12_0"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    (tmp_path / "psm_folder").mkdir()
    (tmp_path / "psm_link").symlink_to(tmp_path / "notes.txt")
    hold = ("import ctypes, os, sys\nfile = os.open(sys.argv[1], os.O_RDONLY)\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
            "assert libc.mmap(None, 4096, 1, 1, file, 0) not in (None, 2**64 - 1)\nos.close(file)\nprint(flush=True)\ninput()")
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "psm_1a2b3c4d")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline(), "what is mapped is in use, also when its file is closed"
        with (tmp_path / "nccl-Xyz012").open("rb"):
            assert [one["path"] for one in leftovers.look(record, Readings([gpu(0, 0)])).shm] == [str(tmp_path / "sem.mp-q1")]
        holder.kill()
    found = leftovers.look(record, Readings([gpu(0, 0)]))
    assert {Path(one["path"]).name for one in found.shm} == {"psm_1a2b3c4d", "nccl-Xyz012", "sem.mp-q1"}
    assert all(one["size_bytes"] >= 8192 for one in found.shm) and found.words() == "3 files in shared memory"
    assert all(Path(one["path"]).is_file() for one in found.shm), "listed, never deleted"


def test_sockets_and_rendezvous_files_that_nobody_uses_are_listed(make_record: Make, short_path: Path) -> None:
    folder = short_path / "tmp"
    folder.mkdir()
    record = make_record(gpus=[0], env={"FAKE_VLLM": "{}", "TMPDIR": str(folder)})
    live, stale = (folder / str(uuid.uuid4()) for _ in range(2))
    rendezvous = folder / f"vllm_dist_{uuid.uuid4().hex}"
    rendezvous.write_text("")
    (folder / str(uuid.uuid4())).write_text("a file, no socket")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(stale))
        first.close()
        second.bind(str(live))
        found = [one for one in leftovers.look(record, Readings([gpu(0, 0)])).ipc if one["path"].startswith(str(folder))]
    assert {one["path"]: one["what"] for one in found} == {
        str(rendezvous): "rendezvous file of torch.distributed", str(stale): "socket between vLLM's processes, bound by nobody"}


@pytest.mark.parametrize(("path", "unit", "scope", "is_in"), [
    ("/system.slice/kimi.service", "kimi.service", "system", True),
    ("/system.slice/kimi.service/workers", "kimi.service", "system", True),
    ("/system.slice/kimi2.service", "kimi.service", "system", False),
    (f"/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice/kimi.service", "kimi.service", "system", False),
    (f"/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice/kimi.service", "kimi.service", "user", True),
    ("/user.slice/user-4711.slice/user@4711.service/app.slice/kimi.service", "kimi.service", "system", False),
    ("/user.slice/user-4711.slice/user@4711.service/app.slice/kimi.service", "kimi.service", "user", False),
    (f"/user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service/app.slice/other.service/kimi.service", "kimi.service", "user", False),
    ("/system.slice/docker-12ab.scope", "kimi.service", "system", False),
    ("/system.slice/docker-12ab.scope/system.slice/kimi.service", "kimi.service", "system", False),
    (None, "kimi.service", "system", False),
])
def test_a_control_group_proves_it_by_its_outermost_unit(make_record: Make, monkeypatch: pytest.MonkeyPatch, path: str | None, unit: str, scope: str,
                                                         is_in: bool) -> None:
    monkeypatch.setattr(processes, "control_group", lambda pid: path)
    assert ownership.in_unit(5, make_record(manager="systemd", unit=unit, unit_scope=scope)) is is_in


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user, and read its environment")
def test_a_mark_that_another_user_forged_proves_nothing(make_record: Make, job: Job) -> None:
    """A run's name stands on pages, and a unit's in the journal."""
    record = make_record()
    manager = running(job, record)
    run = state.read(record)["runs"][-1]["invocation"]
    forged = {"PATH": os.environ["PATH"], MARK: run, "INVOCATION_ID": run}
    with subprocess.Popen(["sleep", "120"], env=forged, user=65534, group=65534) as stranger:
        try:
            assert stranger.pid not in manager.pids()
            manager.kill()
            wait_for(lambda: not manager.pids())
            assert stranger.pid not in ownership.left_over(record, manager) and stranger.poll() is None
        finally:
            stranger.kill()


def test_a_job_never_ends_itself(make_record: Make, job: Job) -> None:
    """Whoever starts the agent from a shell of the service's own session, say."""
    record = make_record()
    starting.start(job.context, record)
    mine = [os.getpid(), processes.start_ticks(os.getpid())]
    state.change(record, lambda known: known["runs"][-1]["pids"].append(mine))
    assert os.getpid() not in ownership.left_over(record, ProcessManager(record))
