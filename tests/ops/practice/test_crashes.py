"""How a start fails: the exit codes, the words and the places of the words that real vLLM was recorded with."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from .conftest import PracticeBox, Server, Start, exit_code, recording

MISMATCH = "RuntimeError: flashinfer-cubin version (0.6.3+practice) does not match flashinfer version (0.6.4+practice)."
WRAPPERS = (
    "WorkerProc failed to start.", "WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
    "EngineCore failed to start.", "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
)


@pytest.fixture(scope="module")
def mismatched(practice_box: PracticeBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The release that the plain reinstall would have made: dev344 with the old cubin."""
    env = tmp_path_factory.mktemp("mismatched") / "env"
    uv_bin, wheelhouse = uv.find_uv_bin(), practice_box.root / "wheelhouse"
    subprocess.run([uv_bin, "venv", "-q", "--no-config", "--no-project", "--python", sys.executable, env], check=True, timeout=60)
    subprocess.run([uv_bin, "pip", "install", "-q", "--python", env, "--offline", "--no-index", "--find-links", wheelhouse, "--link-mode", "copy",
                    "--no-build", "--no-config", "--no-cache", "vllm==0.16.0rc2.dev344", "flashinfer-cubin==0.6.3"], check=True, timeout=60)
    yield env


def test_a_flashinfer_mismatch_fails_in_the_workers_far_above_the_end(start: Start, mismatched: Path) -> None:
    server = start(healthy=False, release=mismatched, tensor_parallel=8)
    assert exit_code(server) == 1
    lines = server.log.splitlines()
    decisive = [number for number, line in enumerate(lines) if MISMATCH in line]
    assert re.match(r"\(Worker_TP\d pid=\d+\) ERROR \d\d-\d\d \d\d:\d\d:\d\d \[multiproc_executor.py:\d+\] RuntimeError: ", lines[decisive[0]])
    assert len(lines) - decisive[0] > 60  # some 130 where the machine is idle: how many workers still say it depends on when they are ended
    assert lines[-1].endswith(f"RuntimeError: {WRAPPERS[-1]}")
    for wrapper in WRAPPERS:
        assert wrapper in server.log


def test_the_mismatchs_traceback_nests_as_the_recorded_one(start: Start, mismatched: Path) -> None:
    server = start(healthy=False, release=mismatched)
    exit_code(server)
    # the files that both logs pass through on the way down, each process in its order; the real stack has more in between
    for name in ("vllm/v1/executor/multiproc_executor.py", "flashinfer/__init__.py", "flashinfer/jit/__init__.py", "flashinfer/jit/cubin_loader.py",
                 "flashinfer/jit/core.py", "flashinfer/jit/env.py", "vllm/v1/engine/core.py", "vllm/entrypoints/cli/serve.py",
                 "vllm/v1/engine/async_llm.py", "vllm/v1/engine/core_client.py"):
        assert name in recording("crash-flashinfer-mismatch-in-worker.log")
        assert name in server.log
    places = [server.log.index(words) for words in ("WorkerProc failed to start", "EngineCore failed to start", "Engine core initialization failed")]
    assert places == sorted(places)
    assert "Process EngineCore_DP0:" in server.log


def test_a_failed_start_holds_no_memory_and_no_process(start: Start, mismatched: Path) -> None:
    server = start(healthy=False, release=mismatched)
    exit_code(server)
    assert server.children() == {}
    assert list((server.root / "gpus").iterdir()) == []


@pytest.fixture
def model(practice_box: PracticeBox, tmp_path: Path) -> Path:
    """A model folder of the test's own."""
    return Path(shutil.copytree(practice_box.model, tmp_path / "model"))


def change_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("key", ["kv_cache_scheme", "kv_cache_quant_algo"])
def test_a_checkpoint_with_an_fp8_kv_cache_finds_no_attention_backend(start: Start, model: Path, key: str) -> None:
    change_config(model, quantization_config={"quant_method": "modelopt", key: "FP8"})
    server = start(healthy=False, model=model)
    assert exit_code(server) == 1
    assert ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, dtype=torch.bfloat16, "
            "kv_cache_dtype=fp8_e4m3, use_mla=True). Reasons: {FLASHMLA: [compute capability not supported]") in server.log
    assert "TRITON_MLA: [kv_cache_dtype not supported]}." in server.log


def last_line(server: Server) -> str:
    return re.sub(r"^\(\w+ pid=\d+\) ", "", server.log.splitlines()[-1])


def test_a_port_in_use_is_noticed_before_anything_is_loaded(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(healthy=False, port=taken.getsockname()[1])
        assert exit_code(server) == 1
    assert last_line(server) == recording("crash-port-in-use.log").splitlines()[-1].partition(" ")[2]
    assert "EngineCore" not in server.log


def test_an_unknown_flag_ends_with_2(start: Start) -> None:
    server = start(healthy=False, flags=["--gpu-memory-utilisation", "0.9"])
    assert exit_code(server) == 2
    assert server.log.splitlines()[-1] == recording("crash-unknown-flag.log").splitlines()[-1].partition(" ")[2]


def test_a_flag_that_a_nightly_dropped_ends_with_2(start: Start, practice_box: PracticeBox, mismatched: Path) -> None:
    server = start(healthy=False, release=mismatched, flags=["--disable-log-requests"])
    assert exit_code(server) == 2
    assert "unrecognized arguments: --disable-log-requests" in server.log


def test_a_missing_model_folder_is_told_in_the_recorded_words(start: Start) -> None:
    server = start(healthy=False, model=Path("/models/does-not-exist"))
    assert exit_code(server) == 1
    assert last_line(server) == recording("crash-model-missing.log").splitlines()[-1].partition(" ")[2]


def test_a_broken_config_is_told_in_the_recorded_words(start: Start, model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "kimi_k25",}')
    server = start(healthy=False, model=model)
    assert exit_code(server) == 1
    assert last_line(server) == f"OSError: It looks like the config file at '{model}/config.json' is not a valid JSON file."


def test_a_shard_that_was_cut_is_told_in_the_recorded_words(start: Start, model: Path) -> None:
    shard = model / "model-00007-of-00064.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    server = start(healthy=False, model=model)
    assert exit_code(server) == 1
    words = "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
    assert words in recording("crash-shard-truncated.log")
    assert words in server.log
    assert "7/64" not in server.log


@pytest.mark.parametrize(("flags", "words"), [
    (["--enable-auto-tool-choice", "--tool-call-parser", "kimi_k25"], "KeyError: 'invalid tool call parser: kimi_k25 (chose from { "),
    (["--reasoning-parser", "kimi_k25"], "KeyError: 'invalid reasoning parser: kimi_k25 (chose from { "),
    (["--max-model-len", "300000"], "User-specified max_model_len (300000) is greater than the derived max_model_len"),
    (["--max-model-len", "200000"], "larger than the available KV cache memory"),
    (["--gpu-memory-utilization", "0.7"], "ValueError: No available memory for the cache blocks."),
    (["--tensor-parallel-size", "7"], "Total number of attention heads (64) must be divisible by tensor parallel size (7)."),
])
def test_what_does_not_fit_is_told(start: Start, flags: list[str], words: str) -> None:
    server = start(healthy=False, flags=flags)
    assert exit_code(server) == 1
    assert words in server.log


@pytest.mark.parametrize("phase", ["config", "engine", "workers", "load", "compile", "kv", "autotune", "capture", "serve"])
def test_a_crash_can_be_asked_for_in_every_phase(start: Start, phase: str) -> None:
    server = start(healthy=False, faults={"crash_at": phase})
    assert exit_code(server) == 1
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of 94.97 GiB" in server.log
    assert f"(practice fault: crash_at {phase})" in server.log
    assert server.children() == {}


def test_a_fault_for_another_version_does_nothing(start: Start) -> None:
    assert start(faults={"crash_at": "load", "version": "dev344"}).chat().status_code == 200


def test_gibberish_comes_from_a_healthy_server(start: Start) -> None:
    message = start(faults={"gibberish": True}).chat().json()["choices"][0]["message"]
    assert message["content"] is None
    assert set(message["reasoning"]) == {"!"}
