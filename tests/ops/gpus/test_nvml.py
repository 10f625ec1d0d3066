"""The real nvidia-ml-py against the fake library of tests/fakes/nvml, in a process of its own: the loader reads LD_LIBRARY_PATH once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the fake libnvidia-ml.so.1."""
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(folder / "libnvidia-ml.so.1"),
         str(REPOSITORY / "tests/fakes/nvml/fake_nvml.c")],
        check=True,
    )
    return folder


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The pid of a process that may hold memory."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def read(nvml_library: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs `code` with `source` and `write(state)` at hand and gives what it printed as JSON."""

    def run(state: str, code: str = "show(source.read().as_dict())", library: Path | None = nvml_library) -> Any:
        script = """
            import json, os, sys, time
            from ops.gpus.nvml import NvmlSource
            def write(text):
                open(os.environ["FAKE_NVML_STATE"] + ".new", "w").write(text)
                os.replace(os.environ["FAKE_NVML_STATE"] + ".new", os.environ["FAKE_NVML_STATE"])
            def show(value): print(json.dumps(value))
            source = NvmlSource()
            """
        (tmp_path / "nvml.state").write_text(state)
        env = {**os.environ, "FAKE_NVML_STATE": str(tmp_path / "nvml.state"), "LD_LIBRARY_PATH": str(library) if library else ""}
        argv = [sys.executable, "-c", textwrap.dedent(script) + code]
        done = subprocess.run(argv, env=env, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_every_gpu_is_read_with_its_fields(read: Callable[..., Any]) -> None:
    snapshot = read("gpu * util 37\ngpu * temp 61\ngpu * power_mw 412000\ngpu * clock_sm 2280\ndriver 580.95.05\ncuda 13000\n")
    assert len(snapshot["gpus"]) == 8 and snapshot["problem"] is None
    assert (snapshot["driver"], snapshot["cuda"], snapshot["source"]) == ("580.95.05", "13.0", "nvml")
    gpu = snapshot["gpus"][3]
    assert gpu["name"] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert (gpu["utilization"], gpu["temperature_c"], gpu["power_w"], gpu["compute_capability"]) == (37.0, 61.0, 412.0, "12.0")
    assert gpu["total_bytes"] == 97887 * 1024 * 1024 and (gpu["clock_mhz"], gpu["clock_max_mhz"]) == (2280, 2430)


def test_an_idle_gpu_reads_zero_because_memory_version_2_leaves_the_reserved_part_out(read: Callable[..., Any]) -> None:
    assert [gpu["used_bytes"] for gpu in read("gpu * reserved_mib 600\n")["gpus"]] == [0] * 8


def test_processes_come_with_memory_user_and_command(read: Callable[..., Any], sleeper: int) -> None:
    gpu = read(f"gpu 2 pids {sleeper}:93120\n")["gpus"][2]
    assert gpu["used_bytes"] == 93120 * 1024 * 1024
    [process] = gpu["processes"]
    assert (process["pid"], process["used_bytes"], process["command"], process["service"]) == (sleeper, 93120 * 1024 * 1024, "sleep 60", None)
    assert process["user"] and process["started_at"] > 1_600_000_000


def test_memory_falls_when_the_holder_ends(read: Callable[..., Any]) -> None:
    used = read("", """
import subprocess
holder = subprocess.Popen(["sleep", "60"])
write(f"gpu 0 pids {holder.pid}:5000\\n")
before = source.read().gpus[0].used_bytes
holder.kill(); holder.wait()
show([before, source.read().gpus[0].used_bytes])
""")
    assert used == [5000 * 1024 * 1024, 0]


def test_a_lost_gpu_has_an_error_and_takes_no_other_with_it(read: Callable[..., Any]) -> None:
    before, lost, back = read("", """
first = source.read().as_dict()
write("gpu 5 error 15\\n"); second = source.read().as_dict()
write("gpu 5 util 9\\n"); show([first, second, source.read().as_dict()])
""")
    assert before["gpus"][5]["error"] is None
    assert "lost" in lost["gpus"][5]["error"].lower() and lost["gpus"][5]["used_bytes"] is None
    assert lost["gpus"][5]["uuid"] == before["gpus"][5]["uuid"]
    assert [gpu["error"] for gpu in lost["gpus"]].count(None) == 7 and lost["problem"] is None
    assert back["gpus"][5]["error"] is None and back["gpus"][5]["utilization"] == 9.0


def test_what_slows_a_gpu_down_is_said_in_words(read: Callable[..., Any]) -> None:
    gpus = read("gpu 0 throttle 0x44\ngpu 1 throttle 0x1\n")["gpus"]
    assert gpus[0]["throttle"] == ["power cap", "thermal (hardware)"]
    assert gpus[1]["throttle"] == []


@pytest.mark.parametrize(("code", "words"), [(9, "kernel module is not loaded"), (18, "restart the machine")])
def test_a_driver_that_does_not_answer_is_a_problem_in_words(read: Callable[..., Any], code: int, words: str) -> None:
    snapshot = read(f"init_error {code}\n")
    assert snapshot["gpus"] == [] and words in snapshot["problem"]


def test_no_library_is_another_problem(read: Callable[..., Any]) -> None:
    assert "libnvidia-ml.so.1 was not found" in read("", library=None)["problem"]


def test_nvml_is_tried_again_after_it_failed(read: Callable[..., Any]) -> None:
    assert read("init_error 9\n", """
first = len(source.read().gpus)
write("gpus 2\\n")
show([first, len(source.read().gpus)])
""") == [0, 2]


def test_a_field_that_the_library_lacks_is_none_and_the_rest_stays(read: Callable[..., Any]) -> None:
    gpu = read("", """
import pynvml
def lacking(*a): raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
pynvml.nvmlDeviceGetPowerUsage = lacking
show(source.read().gpus[0].as_dict())
""")
    assert gpu["power_w"] is None and gpu["error"] is None and gpu["used_bytes"] == 0


def test_one_reading_is_quick_because_pcie_throughput_is_left_out(read: Callable[..., Any]) -> None:
    seconds = read("", """
source.read()
began = time.perf_counter()
for _ in range(5): source.read()
show((time.perf_counter() - began) / 5)
""")
    assert seconds < 0.1  # with PCIe throughput it would be 0.32
