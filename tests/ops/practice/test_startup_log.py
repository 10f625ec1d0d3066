"""The log of a start: vLLM's milestones in vLLM's order, and the recorded fixture that other tests read is still what the server writes."""

from __future__ import annotations

import re

import pytest

from .conftest import Server, Start, end, recording

PRACTICE_LOG = "../practice/startup.log"
SHARED = ("version ", "non-default args: {", "Resolved architecture: ", "Using max model len ", "Initializing a V1 LLM engine (v", "world_size=",
          "Starting to load model ", "Loading safetensors checkpoint shards:   0% Completed | 0/", "Completed | 3/3", "Loading weights took ",
          "init engine (profile, create kv cache, warmup model) took ", "Supported tasks: [", "on http://127.0.0.1:", "Application startup complete.")
"""Milestones that a start on a CPU, recorded, and the practice server's have in common."""
OF_A_GPU = ("Starting to load model ", "Loading weights took ", "Model loading took 73.40 GiB memory and ", "Using cache directory: ",
            "Dynamo bytecode transform time: ", "Cache the graph of compile range (1, 8192)", "Compiling a graph for compile range (1, 8192) takes ",
            "torch.compile takes ", "Available KV cache memory: ", "GPU KV cache size: ", "Maximum concurrency for ", "Autotuning process starts",
            "Autotuning process ends", "Capturing CUDA graphs (decode, FULL)", "Graph capturing finished in ", "init engine (",
            "Starting vLLM API server 0 on http://")
"""Milestones of vLLM 0.16 on GPUs, from its source."""


def assert_in_order(milestones: tuple[str, ...], log: str) -> None:
    place = 0
    for milestone in milestones:
        found = log.find(milestone, place)
        assert found >= 0, f"`{milestone}` is missing after character {place}"
        place = found


@pytest.mark.parametrize("name", ["startup-recipe.log", PRACTICE_LOG])
def test_a_start_passes_the_same_milestones_in_both_logs(name: str) -> None:
    milestones = tuple(text.replace("3/3", "64/64") if name == PRACTICE_LOG else text for text in SHARED)
    assert_in_order(milestones, recording(name))


def test_a_start_on_simulated_gpus_passes_those_of_vllm_0_16(server: Server) -> None:
    assert_in_order(OF_A_GPU, server.log)
    assert_in_order(OF_A_GPU, recording(PRACTICE_LOG))


def test_a_second_start_finds_the_compiled_graph_and_other_flags_do_not(start: Start) -> None:
    first = start()
    end(first)
    root = {"PRACTICE_BOX": str(first.root)}
    assert "Cache the graph of compile range (1, 8192) for later use" in first.log
    assert "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took " in start(env=root).log
    assert "Compiling a graph for compile range (1, 4096) takes " in start(env=root, flags=["--max-num-batched-tokens", "4096"]).log
    assert "torch.compile" not in start(env=root, flags=["--enforce-eager"]).log


LINE = re.compile(r"\((APIServer|EngineCore_DP0|Worker_TP0) pid=\d+\) (INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[(\w+\.py:\d+)\]")


def forms(log: str) -> list[tuple[str, ...]]:
    """Process, level and place of each log record up to the end of the start, access log left out."""
    begin, _, _ = log.partition("Application startup complete.")
    return [match.groups() for match in LINE.finditer(begin)]


def test_the_fixture_is_what_the_server_writes_today(server: Server) -> None:
    assert sorted(forms(server.log)) == sorted(forms(recording(PRACTICE_LOG)))


def test_progress_bars_are_written_as_real_vllm_writes_them(server: Server) -> None:
    lines = server.log_path.read_bytes().split(b"\n")
    shards = [line for line in lines if b"safetensors checkpoint shards" in line]
    assert len(shards) == 65  # one write for each shard, led by a carriage return, and a first one
    form = rb"\(Worker_TP0 pid=\d+\) \rLoading safetensors checkpoint shards: +\d+% Completed \| \d+/64 \[\d\d:\d\d<[\d:?]+, +[\d.?]+(it/s|s/it)\]"
    assert all(re.fullmatch(form, line) for line in shards)
    capture = next(line for line in lines if b"Capturing CUDA graphs (decode, FULL)" in line)
    assert capture.count(b"\r") == 52  # an ordinary bar: it overwrites its line
