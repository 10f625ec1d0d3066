"""The server's processes: their names, how they live and end, and what each kind of end leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from ops.artifacts.holders import Holders
from ops.gpus import processes
from ops.practice.gpus import PracticeSource
from ops.practice.model_folder import NAME

from .conftest import Server, Start, events_of, exit_code, recording, wait_for
from .test_recordings import shape

FAMILY = {"VLLM::EngineCore", *(f"VLLM::Worker_TP{rank}" for rank in range(8))}


def held(server: Server) -> list[int]:
    """MiB on each simulated GPU."""
    return [(gpu.used_bytes or 0) // 2**20 for gpu in PracticeSource(server.root).read().gpus]


def gone(pid: int) -> bool:
    found = processes.look(pid)
    return found is None or found.state in "ZX"


def test_the_tree_is_that_of_real_vllm(start: Start) -> None:
    server = start(tensor_parallel=8)
    children = server.children()
    assert children.keys() == FAMILY
    engine = processes.look(children["VLLM::EngineCore"])
    assert engine is not None and engine.parent == server.process.pid
    for rank in range(8):
        worker = processes.look(children[f"VLLM::Worker_TP{rank}"])
        assert worker is not None and worker.parent == engine.pid


def test_a_segment_of_shared_memory_is_held_as_long_as_the_server_lives(start: Start) -> None:
    server = start()
    [segment] = (server.root / "shm").glob("psm_*")
    assert segment.stat().st_blocks * 512 >= 256 * 1024
    pids = {server.process.pid, *server.children().values()}
    assert {pid for pid in pids if str(segment) in Path(f"/proc/{pid}/maps").read_text()} == pids
    assert set(Holders().pids(segment.stat(), str(segment))) == pids
    server.process.terminate()
    assert exit_code(server) == 0
    assert not segment.exists()
    killed = start(env={"PRACTICE_BOX": str(server.root)})
    [segment] = (server.root / "shm").glob("psm_*")
    killed.process.kill()
    exit_code(killed)
    assert segment.exists()  # nobody holds it any more: a leftover as people know it


def test_a_renamed_process_keeps_its_environment(start: Start) -> None:
    server = start()
    assert set(processes.marked_with("PRACTICE_BOX", str(server.root))) == {server.process.pid, *server.children().values()}


def test_sigterm_ends_a_healthy_server_within_two_seconds_with_code_0(start: Start) -> None:
    server = start(tensor_parallel=8)
    children = server.children()
    began = time.monotonic()
    server.process.terminate()
    assert exit_code(server) == 0
    assert time.monotonic() - began < 2
    assert all(gone(pid) for pid in children.values())
    assert held(server) == [0] * 8
    assert list((server.root / "gpus").iterdir()) == []
    assert "Application shutdown complete." in server.log


def test_sigterm_during_the_start_has_no_effect_as_recorded(start: Start) -> None:
    server = start(healthy=False, speed=20.0)
    wait_for(lambda: "Starting to load model" in server.log, "the load to begin")
    server.process.terminate()
    server.wait_healthy()


def test_sigterm_to_all_processes_during_the_start_ends_it(start: Start) -> None:
    server = start(healthy=False, faults={"stall_at": "compile"})
    wait_for(lambda: "Model loading took" in server.log, "the model to be loaded")
    os.killpg(server.process.pid, signal.SIGTERM)
    assert exit_code(server) == 1
    wait_for(lambda: held(server) == [0] * 8, "the workers to end")


def test_a_stalled_start_says_nothing_and_stays(start: Start) -> None:
    server = start(healthy=False, faults={"stall_at": "compile"})
    wait_for(lambda: "Model loading took" in server.log, "the model to be loaded")
    size = server.log_path.stat().st_size
    time.sleep(0.5)
    assert server.log_path.stat().st_size == size
    assert server.process.poll() is None
    assert held(server)[0] > 75_000


@pytest.mark.parametrize("healthy", [True, False])
def test_sigkill_of_the_server_takes_engine_workers_and_memory_with_it(start: Start, healthy: bool) -> None:
    server = start(healthy=healthy, speed=100.0 if healthy else 10.0, tensor_parallel=8)
    wait_for(lambda: len(server.children()) == 9 and held(server)[0] > 0, "the workers to hold memory")
    children = server.children()
    server.process.kill()
    assert exit_code(server) == -signal.SIGKILL
    wait_for(lambda: all(gone(pid) for pid in children.values()), "the workers to end")
    assert held(server) == [0] * 8
    assert (server.root / "gpus" / f"{server.process.pid}.json").exists()  # it counts no more, and the next server clears it away


def test_the_next_server_clears_away_what_a_killed_one_left(start: Start) -> None:
    first = start()
    first.process.kill()
    exit_code(first)
    second = start(env={"PRACTICE_BOX": str(first.root)})
    assert [path.name for path in (first.root / "gpus").glob("*.json")] == [f"{second.process.pid}.json"]


def test_a_worker_left_behind_holds_its_gpus_memory_with_the_port_free(start: Start) -> None:
    server = start(faults={"leave_worker": True}, tensor_parallel=8)
    left = server.children()["VLLM::Worker_TP3"]
    server.process.terminate()
    assert exit_code(server) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    memory = held(server)
    assert memory[3] > 85_000
    assert memory[:3] + memory[4:] == [0] * 7
    os.kill(left, signal.SIGTERM)  # has no effect
    assert not gone(left)
    os.kill(left, signal.SIGKILL)
    wait_for(lambda: held(server) == [0] * 8, "the memory to be free")


def test_a_server_may_ignore_sigterm(start: Start) -> None:
    server = start(faults={"ignore_sigterm": True})
    server.process.terminate()
    time.sleep(0.3)
    assert server.chat().status_code == 200


def test_killing_the_engine_breaks_open_streams_as_recorded_and_ends_the_server_with_code_0(start: Start) -> None:
    server = start(speed=20.0)
    body = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 8000, "ignore_eos": True}
    seen: list[str] = []
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        seen.append(next(lines))
        os.kill(server.children()["VLLM::EngineCore"], signal.SIGKILL)
        seen += lines
    ours, real = events_of("\n".join(seen))[-2:], events_of(recording("chat-stream-engine-died.txt"))[-2:]
    assert (shape(ours[0]), ours[1]) == (shape(real[0]), real[1])
    assert exit_code(server) == 0
    assert "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause." in server.log


def test_a_dead_worker_takes_the_engine_down(start: Start) -> None:
    server = start()
    os.kill(server.children()["VLLM::Worker_TP1"], signal.SIGKILL)
    assert exit_code(server) == 0
    assert "Worker proc VllmWorker-1 died unexpectedly" in server.log


def test_a_client_that_hangs_up_frees_its_place(start: Start) -> None:
    server = start(speed=20.0)
    body = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 8000, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert 'vllm:num_requests_running{engine="0",model_name="Kimi-K2.5-NVFP4"} 1.0' in httpx.get(f"{server.url}/metrics").text
    wait_for(lambda: 'vllm:num_requests_running{engine="0",model_name="Kimi-K2.5-NVFP4"} 0.0' in httpx.get(f"{server.url}/metrics").text, "the place")
    assert 'finished_reason="abort",model_name="Kimi-K2.5-NVFP4"} 1.0' in httpx.get(f"{server.url}/metrics").text


def test_memory_grows_with_the_phases(start: Start) -> None:
    server = start(healthy=False, speed=12.0)
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError):
                seen.append(held(server)[0])
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    server.wait_healthy()
    stop.set()
    watcher.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
    assert seen[0] == 0
    # weights 73.4 GiB and the KV cache up to 90 % of 97,887 MiB, which is the default
    assert held(server)[0] == pytest.approx(0.9 * 97887, abs=20)


def test_load_shows_while_tokens_are_made(start: Start) -> None:
    server = start(speed=20.0)
    idle = PracticeSource(server.root).read().gpus[0]
    assert (idle.utilization, idle.error) == (0.0, None)
    caller = threading.Thread(target=lambda: server.chat("Tell me a story", max_tokens=3000, ignore_eos=True))
    caller.start()
    wait_for(lambda: (PracticeSource(server.root).read().gpus[0].utilization or 0) > 80, "the load to show")
    assert (PracticeSource(server.root).read().gpus[0].power_w or 0) > 200
    caller.join()
    wait_for(lambda: PracticeSource(server.root).read().gpus[0].utilization == 0, "the load to end")
