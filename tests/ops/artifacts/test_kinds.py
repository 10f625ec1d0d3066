from __future__ import annotations

from typing import Any

import pytest

from ops.artifacts import kinds
from ops.artifacts.kinds import Kind
from ops.jobs.errors import BadInput

HEX64 = "0123456789abcdef" * 4
BOOT = "b1946ac92492d2347c6235b4d2611184"


def first(place: str, relative: str, *, unit: str = "file", file_type: str = "regular") -> str | None:
    """The kind that a scan would take it for."""
    return next((kind.name for kind in kinds.builtin() if place in kind.places and (kind.unit, kind.file_type) == (unit, file_type)
                 and kind.method == "files" and kind.fits(relative)), None)


@pytest.mark.parametrize(("place", "relative", "unit", "kind"), [
    ("scratch", "kimi_dbg_layer00_in_call01000.pt", "file", "debug-tensor"),
    ("scratch", "a/b/c/d/dump.npy", "file", "debug-tensor"),
    ("scratch", "a/b/c/d/e/dump.npy", "file", None),
    ("tmp", "somebody/checkpoint.pt", "file", "tmp-tensor"),
    ("tmp", "a/b/checkpoint.pt", "file", None),
    ("service-folder", "flashinfer_dumps/20260101_101112_123_pid4711_BatchDecode.run_call0001", "folder", "flashinfer-dump"),
    ("flashinfer-dump", "20260101_101112_123_pid4711_gemm_call0001", "folder", "flashinfer-dump"),
    ("flashinfer-dump", "session.jsonl", "file", None),
    ("vllm-dump", "rank_0_dp_0", "folder", "graph-dump"),
    ("vllm-dump", "rank_a_dp_0", "folder", None),
    ("tmp", "root/vllm/vllm-instance-1f/VLLM_TRACE_FUNCTION_for_process_1_thread_2_at_2026.log", "file", "function-trace"),
    ("tmp", "root/vllm/notes.log", "file", None),
    ("cores", "core", "file", "core-dump"),
    ("cores", "core.4194304", "file", "core-dump"),
    ("cores", "core.41943040", "file", None),
    ("tmp", "core.2024-backup.tgz", "file", None),
    ("cores", f"core.VLLM\\x3a\\x3aEngine.1000.{BOOT}.4711.1764490000000000.zst", "file", "core-dump"),
    ("cores", "core._usr_bin_python3_12.1000.c2c91690-dade-4dba-ad0e-c9d72f5fa11a.4711.50429709", "file", "core-dump"),
    ("tmp", "corel.txt", "file", None),
    ("gpu-cores", "core_1764490000_host_4711.nvcudmp", "file", "gpu-core-dump"),
    ("tmp", "cuda_coredump_host.4711.1764490000", "file", "gpu-core-dump"),
    ("torch-cache", "comm_lib_trace_rank_7", "file", "collective-trace"),
    ("torch-cache", "hub/comm_lib_trace_rank_7", "file", None),
    ("vllm-cache", "torch_compile_cache/0123456789", "folder", "compile-cache"),
    ("vllm-cache", "torch_compile_cache/torch_aot_compile", "folder", None),
    ("vllm-cache", f"torch_compile_cache/torch_aot_compile/{HEX64}", "folder", "compile-cache"),
    ("vllm-cache", "assets/0123456789", "folder", None),
    ("vllm-cache", f"flashinfer_autotune_cache/0.7.4/120f/{HEX64}", "folder", "autotune-cache"),
    ("flashinfer-cache", "0.6.2", "folder", "flashinfer-jit"),
    ("flashinfer-cache", "0.2.7.post1", "folder", "flashinfer-jit"),
    ("flashinfer-cache", "cubins", "folder", "flashinfer-cubin"),
    ("flashinfer-cache", "autotune/v2", "folder", "autotune-cache"),
    ("triton-cache", "A2" * 26, "folder", "triton-cache"),
    ("triton-cache", "a2" * 26, "folder", None),
    ("tmp", "torchinductor_root", "folder", "inductor-temp"),
    ("tmp", "root/flash_attention_cute_dsl_cache", "folder", "cute-cache"),
    ("nv-cache", "ComputeCache", "folder", "cuda-cache"),
    ("shm", "psm_1f0c9a3e", "file", "shared-memory"),
    ("shm", "psm_notes", "file", None),
    ("shm", "nccl-Xk3fQz", "file", "shared-memory"),
    ("shm", "vllm_offload_engine-1.mmap", "file", "shared-memory"),
    ("shm", "VLLM_OBJECT_STORAGE_SHM_BUFFER_" + "0f" * 16, "file", "shared-memory"),
    ("shm", "PostgreSQL.123456", "file", None),
    ("shm", "a/psm_1f0c9a3e", "file", None),
    ("tmp", "vllm_dist_" + "0f" * 16, "file", "rendezvous"),
], ids=lambda value: value if isinstance(value, str) else "none")
def test_a_kind_is_known_by_the_names_that_its_program_gives(place: str, relative: str, unit: str, kind: str | None) -> None:
    assert first(place, relative, unit=unit) == kind


def test_a_pip_cache_is_known_and_never_offered() -> None:
    kind = next(kind for kind in kinds.builtin() if kind.name == "pip-cache")
    assert not kind.offered and kind.fits("http-v2") and kind.fits("wheels") and not kind.fits("selfcheck") and not kind.fits("x/wheels")


def test_only_sockets_are_ipc_sockets() -> None:
    name = "0b8f6c1e-5d0a-4c39-9c55-6b1f1f1a7d02"
    assert first("tmp", name) is None
    assert first("tmp", name, file_type="socket") == "ipc-socket"
    assert first("tmp", name.replace("-4c39-", "-1c39-"), file_type="socket") is None  # no random UUID
    assert first("tmp", "app.sock", file_type="socket") is None


def test_what_is_worth_keeping_is_never_offered_by_itself() -> None:
    by_name = {kind.name: kind for kind in kinds.builtin()}
    worth = ("autotune-cache", "flashinfer-cubin", "triton-cache", "cuda-cache", "deepgemm-cache", "cute-cache", "inductor-temp", "old-release",
             "uv-cache", "collective-trace", "tmp-tensor")
    assert not any(by_name[name].offered or by_name[name].with_redeploy for name in worth)


def test_built_in_kinds_say_when_and_why_in_one_sentence_each_and_take_nobody_elses_files() -> None:
    for kind in kinds.builtin():
        for sentence in (kind.leftover, kind.keeping):
            assert sentence[0].isupper() or sentence.startswith("uv")
            assert not sentence.endswith(".")
            assert len(sentence) < 130
        assert not kind.own
        assert not kind.any_owner
        assert "{" not in "".join(kind.patterns)
        if kind.unit == "folder" and kind.method == "files":
            assert kind.min_age_s >= 3600, kind.name


@pytest.mark.parametrize(("pattern", "name"), [
    ("core", None), ("core.%p", "core.[0-9]*"), ("|/usr/lib/systemd/systemd-coredump %P %u", None), ("", None),
    ("/var/crash/%e.%p.core", "*.[0-9]*.core"), ("/cores/core-%e-%p-%t", "core-*-[0-9]*-[0-9]*"), ("%e", None), ("/tmp/%e.%p", None),
    ("core.100%%", "core.100%"), ("core[%p]", "core[[][0-9]*]"),
])
def test_names_of_core_dumps_are_those_that_the_kernel_gives(pattern: str, name: str | None) -> None:
    made = kinds.core_names(pattern, uses_pid=False)
    assert made == (None if name == "core.[0-9]*" else name)  # that one is a kind's already


def test_the_pid_is_added_where_the_kernel_adds_it() -> None:
    assert kinds.core_names("core-%e", uses_pid=True) == "core-*.[0-9]*"


OWN: dict[str, Any] = {"name": "team-dumps", "title": "Team dumps", "one": "team dump", "leftover": "Ours", "keeping": "Nothing",
                       "places": ["/data/scratch"], "patterns": ["dump_*.bin"], "min_age_s": 86400, "own": True}


def test_an_admins_kind_comes_after_the_built_in_ones() -> None:
    made = kinds.all_kinds([OWN | {"any_owner": True, "conditions": ["not-newest"]}])
    assert made[:-1] == kinds.builtin()
    assert made[-1].own
    assert made[-1].fits("a/dump_1.bin")


@pytest.mark.parametrize("change", [
    {"name": "debug-tensor"}, {"name": "../x"}, {"places": ["tmp"]}, {"places": ["/data/../etc"]}, {"places": ["/data//x"]}, {"places": []},
    {"patterns": ["*"]}, {"patterns": ["**"]}, {"patterns": ["a/*"]}, {"patterns": ["[a-z]*"]}, {"patterns": ["[!]]*"]}, {"patterns": ["*[]]*"]},
    {"patterns": ["*.*"]}, {"patterns": ["*e*"]}, {"patterns": ["*.[!a]*"]}, {"patterns": ["../x*"]}, {"patterns": ["/x*"]},
    {"patterns": []}, {"min_age_s": 60}, {"min_age_s": 1e12}, {"unit": "folder"}, {"method": "release"}, {"file_type": "socket"},
    {"conditions": ["version-not-installed"]}, {"conditions": ["none-such"]}, {"with_redeploy": True}, {"depth": 100}, {"title": ""},
    {"surprise": 1}, {"places": ["/data/\0"]},
], ids=lambda change: ",".join(f"{key}={value}" for key, value in change.items())[:60].replace("\0", "NUL"))
def test_an_own_kind_that_could_do_harm_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        kinds.own([OWN | change])


def test_two_own_kinds_with_one_name_are_refused() -> None:
    with pytest.raises(BadInput, match="already"):
        kinds.own([OWN, OWN])


def test_records_of_kinds_come_back_as_they_were() -> None:
    assert tuple(Kind.from_dict(kind.as_dict()) for kind in kinds.builtin()) == kinds.builtin()
