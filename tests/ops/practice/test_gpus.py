"""Readings of the simulated GPUs from holder files written by hand; with servers they are in test_processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ops.gpus import processes
from ops.gpus.source import MIB, GpuSnapshot
from ops.practice.gpus import PracticeSource


def holder(root: Path, name: str, workers: list[dict[str, Any]]) -> None:
    (root / "gpus").mkdir(exist_ok=True)
    count = len(workers)
    state = {"pid": 1, "uid": os.getuid(), "workers": workers, "utilization": 90.0, "power_w": [400.0] * count, "temperature_c": [60.0] * count}
    (root / "gpus" / f"{name}.json").write_text(json.dumps(state))


def worker(gpu: int, mib: int, *, pid: int | None = None, ticks: int | None = None) -> dict[str, Any]:
    pid = pid or os.getpid()
    return {"gpu": gpu, "pid": pid, "ticks": processes.start_ticks(pid) if ticks is None else ticks, "mib": mib, "started_at": 1.0, "command": "W"}


def read(root: Path) -> GpuSnapshot:
    return PracticeSource(root).read()


def test_a_box_without_servers_has_eight_idle_gpus(tmp_path: Path) -> None:
    snapshot = read(tmp_path)
    assert (snapshot.source, snapshot.cuda, snapshot.problem) == ("practice", "13.0", None)
    assert len(snapshot.gpus) == 8
    gpu = snapshot.gpus[0]
    assert (gpu.name, gpu.total_bytes) == ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887 * MIB)
    assert (gpu.used_bytes, gpu.utilization, gpu.processes) == (0, 0.0, [])
    assert (gpu.compute_capability, gpu.pcie_gen, gpu.pcie_width, gpu.power_limit_w) == ("12.0", 5, 16, 600.0)


def test_a_workers_memory_stands_with_its_process(tmp_path: Path) -> None:
    holder(tmp_path, "1", [worker(0, 1000), worker(5, 3000)])
    gpus = read(tmp_path).gpus
    assert [gpu.used_bytes for gpu in gpus] == [1000 * MIB, 0, 0, 0, 0, 3000 * MIB, 0, 0]
    assert (gpus[5].processes[0].pid, gpus[5].processes[0].command) == (os.getpid(), "W")
    assert (gpus[5].utilization, gpus[5].power_w) == (90.0, 400.0)


def test_two_servers_on_one_gpu_add_up(tmp_path: Path) -> None:
    holder(tmp_path, "1", [worker(0, 1000)])
    holder(tmp_path, "2", [worker(0, 500)])
    assert read(tmp_path).gpus[0].used_bytes == 1500 * MIB


def test_memory_is_free_once_the_process_has_ended(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    holder(tmp_path, "1", [worker(0, 1000, pid=child.pid)])
    assert read(tmp_path).gpus[0].used_bytes == 1000 * MIB
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet collected: a zombie
    assert read(tmp_path).gpus[0].used_bytes == 0
    child.wait()
    assert read(tmp_path).gpus[0].used_bytes == 0


def test_another_process_with_the_same_pid_holds_nothing(tmp_path: Path) -> None:
    holder(tmp_path, "1", [worker(0, 1000, ticks=12345)])
    assert read(tmp_path).gpus[0].used_bytes == 0


def test_half_written_files_are_not_looked_at(tmp_path: Path) -> None:
    holder(tmp_path, "1", [worker(0, 1000)])
    (tmp_path / "gpus" / "2.tmp").write_text('{"pid": 3, "wor')
    assert read(tmp_path).gpus[0].used_bytes == 1000 * MIB


def test_a_reading_is_cheap(tmp_path: Path) -> None:
    holder(tmp_path, "1", [worker(gpu, 1000) for gpu in range(8)])
    source = PracticeSource(tmp_path)
    source.read()
    began = time.process_time()
    for _ in range(100):
        source.read()
    assert (time.process_time() - began) / 100 == pytest.approx(0, abs=0.001)  # 0.2 ms on an idle machine
