"""Findings on real folders, sockets and a release that is a folder with metadata and a `vllm` that prints a help text."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.gpus.source import MIB, GpuProcess, GpuReading, GpuSnapshot
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import launch, listeners, preflight, starting, state
from ops.services.process import ProcessManager
from tests.ops.services.conftest import Job, wait_for

Make = Callable[..., ServiceRecord]
GPUS = GpuSnapshot(gpus=[GpuReading(index=index, uuid=f"u{index}", name="GPU", used_bytes=0) for index in range(2)], driver="580.95.05", cuda="13.0")
HELP = """usage: vllm serve [model_tag] [options]
  --host HOST
  --port PORT
  --served-model-name NAME
  --tensor-parallel-size, -tp N
  --max-model-len N
  --gpu-memory-utilization F
  --trust-remote-code, --no-trust-remote-code
  --enable-auto-tool-choice, --no-enable-auto-tool-choice
  --tool-call-parser {deepseek_v3,hermes,kimi_k2} or name registered in --tool-parser-plugin
  --reasoning-parser {deepseek_r1,kimi_k2}
  --compilation-config, -O CONFIG
"""


def shard(path: Path, *, cut: int = 0) -> None:
    """A shard of one tensor, which the index of `model` places in it."""
    header = json.dumps({f"w{path.stem.rpartition('-')[2]}": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8)
    path.write_bytes(content[: len(content) - cut])


def model(folder: Path, config: dict[str, Any] | None = None, shards: int = 2) -> None:
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": 8, **(config or {})}))
    names = [f"model-{number}.safetensors" for number in range(shards)]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {f"w{n}": name for n, name in enumerate(names)}}))
    for name in names:
        shard(folder / name)


@pytest.fixture
def whole(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A service with nothing wrong, as far as `fields` leave it so."""

    def make(**fields: Any) -> ServiceRecord:
        gpus: GpuSnapshot = fields.pop("snapshot", GPUS)
        monkeypatch.setattr(preflight.gpus, "read", lambda context: gpus)
        record = make_record(**{"gpus": [0, 1], **fields})
        record.flags += ["--tensor-parallel-size", "2"]
        model(Path(record.model_path))
        launch.write(record)
        return record

    return make


def stops(job: Job, record: ServiceRecord, plan: dict[str, Any] | None = None) -> list[str]:
    """The titles of all stops; empty if preflight passes."""
    try:
        preflight.host(job.context, record, plan)
    except OpsError:
        return [one["title"] for one in job.of("finding") if one["level"] == "stop"]
    return []


def test_a_good_host_passes_and_tells_what_it_looked_at(whole: Make, job: Job) -> None:
    found = preflight.host(job.context, whole(), None)
    assert found == job.of("finding") and len(found) >= 7
    assert {one["level"] for one in found} <= {"ok", "note"}
    titles = " | ".join(one["title"] for one in found)
    for words in ("has its interpreter and vLLM", "is free", "All 2 weight files", "All 2 GPUs", "Cache folders"):
        assert words in titles


def test_one_run_shows_all_that_is_wrong(whole: Make, job: Job) -> None:
    record = whole(guards=[{"kind": "key_absent", "file": "config.json", "key": "num_attention_heads"}])
    (Path(record.model_path) / "model-1.safetensors").unlink()
    with pytest.raises(OpsError, match=r"Preflight: .*\(1 more: ") as caught:
        preflight.host(job.context, record, None)
    assert len([one for one in caught.value.facts["findings"] if one["level"] == "stop"]) == 2


def test_a_port_of_something_else_is_a_stop_with_its_owner(whole: Make, job: Job) -> None:
    record = whole()
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(record.base_url.rsplit(":", 1)[1])))
        other.listen()
        [title] = stops(job, record)
    assert "is held by something else" in title and f"pid {os.getpid()}" in title


def test_a_port_of_the_service_itself_is_fine(whole: Make, job: Job) -> None:
    record = whole()
    starting.start(job.context, record)
    wait_for(lambda: ProcessManager(record).status().state == "healthy")
    assert stops(job, record) == []
    assert any("is held by this service" in one["title"] for one in job.of("finding"))


def test_flags_and_address_must_name_one_port(whole: Make, job: Job) -> None:
    record = whole(flags=["--port=1234"])
    assert "The flags say port 1234" in stops(job, record)[0]


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda folder: (folder / "config.json").unlink(), "has no `"),
    (lambda folder: (folder / "config.json").write_text("{"), "is not valid JSON"),
    (lambda folder: (folder / "model-0.safetensors").unlink(), "`model-0.safetensors` is missing"),
    (lambda folder: shard(folder / "model-1.safetensors", cut=3), "`model-1.safetensors` is cut off"),
    (lambda folder: (folder / "model-1.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
     "is only a Git LFS pointer"),
    (lambda folder: [path.unlink() for path in folder.glob("model*")], "holds no weights"),
    (lambda folder: model(folder, {"num_attention_heads": 7}), "7 attention heads cannot be split over 2 GPUs"),
    (lambda folder: model(folder, {"text_config": {"num_attention_heads": 9}}), "9 attention heads"),
])
def test_model_folders_that_are_not_whole(whole: Make, job: Job, spoil: Callable[[Path], None], words: str) -> None:
    record = whole()
    spoil(Path(record.model_path))
    assert any(words in title for title in stops(job, record))


def test_a_missing_model_folder(whole: Make, job: Job) -> None:
    record = whole()
    record.model_path = "/nonexistent/model"
    assert stops(job, record) == ["The model folder `/nonexistent/model` does not exist"]


@pytest.mark.parametrize(("snapshot", "words"), [
    (GpuSnapshot(gpus=[], problem="No NVIDIA driver is installed"), "cannot be read: No NVIDIA driver"),
    (GpuSnapshot(gpus=list(GPUS.gpus[:1])), "GPU 1 is not there: 1 GPUs answer"),
    (GpuSnapshot(gpus=[GPUS.gpus[0], GpuReading(index=1, uuid="u", name="n", error="GPU is lost")]), "GPU 1 does not answer: GPU is lost"),
])
def test_gpus_that_are_not_there(whole: Make, job: Job, snapshot: GpuSnapshot, words: str) -> None:
    assert any(words in title for title in stops(job, whole(snapshot=snapshot)))


def test_more_ranks_than_gpus(whole: Make, job: Job) -> None:
    assert "The flags ask for 2 GPUs, and the service has 1" in stops(job, whole(gpus=[0]))


def test_what_others_hold_on_its_gpus_stops_the_job_unless_it_was_so_with_the_service_down(whole: Make, job: Job) -> None:
    other = GpuProcess(pid=4711, used_bytes=500 * MIB, user="bob", command="python train.py")
    snapshot = GpuSnapshot(gpus=[GPUS.gpus[0], GpuReading(index=1, uuid="u", name="n", used_bytes=500 * MIB, processes=[other])])
    record = whole(snapshot=snapshot)
    [title] = stops(job, record)
    assert "GPU 1 is also used by pid 4711 (user bob" in title and "500 MiB" in title
    state.change(record, lambda known: known.update(baseline={"1": 480 * MIB}))
    assert stops(job, record) == []


def test_a_service_without_a_release_can_be_deployed_but_not_restarted(whole: Make, job: Job) -> None:
    record = whole()
    record.current.unlink()
    assert stops(job, record, {}) == []
    assert stops(job, record) == ["Service `svc` has no release"]


def test_a_service_folder_that_the_first_release_makes_is_no_stop_and_one_that_cannot_be_made_is(whole: Make, job: Job, tmp_path: Path) -> None:
    record = whole()
    record.root = str(tmp_path / "new" / "services" / record.name)
    assert stops(job, record, {"packages": [], "disk": {}}) == []
    (tmp_path / "new").write_text("a file")
    assert f"The service's folder `{record.root}` cannot be made" in stops(job, record, {"packages": [], "disk": {}})
    (tmp_path / "new").unlink()


def test_too_little_disk_for_the_plan(whole: Make, job: Job) -> None:
    assert "There is not enough disk" in stops(job, whole(), {"disk": {"needed_bytes": 1 << 60}})[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written(whole: Make, job: Job) -> None:
    assert "may not write its cache" in stops(job, whole(env={"HOME": "/proc/nothing"}))[0]


def test_a_broken_flags_file_is_a_warning(whole: Make, job: Job) -> None:
    record = whole()
    (record.folder / "flags.json").write_text("[")
    assert stops(job, record) == []
    assert any("flags.json` cannot be read" in one["title"] for one in job.of("finding"))


# ---- the built release ----


def built(record: ServiceRecord, packages: dict[str, str], help_text: str = HELP, *, old: bool = False, fails: bool = False) -> Path:
    release = record.releases / "new"
    library = release / "lib" / "python3.11" / "site-packages"
    library.mkdir(parents=True)
    (release / "bin").mkdir()
    base = release / "base"
    (base / "include" / "python3.11").mkdir(parents=True)
    (base / "include" / "python3.11" / "Python.h").touch()
    (release / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.11.0\n")
    (base / "bin").mkdir()
    (base / "bin" / "python").write_text("#!/bin/sh\n")
    (base / "bin" / "python").chmod(0o755)
    (release / "bin" / "python").symlink_to(base / "bin" / "python")
    for name, said in (("gcc", ""), ("ninja", ""), ("nvcc", "Cuda compilation tools, release 13.0, V13.0.88")):
        (release / "bin" / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (release / "bin" / name).chmod(0o755)
    for name, version in packages.items():
        info = library / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (release / "help").write_text(help_text)
    refuse = "[ \"$2\" = --help=all ] && { echo 'ignored explicit argument' >&2; exit 2; }\n" if old else ""
    fail = "echo 'ImportError: no module' >&2; exit 1\n" if fails else ""
    (release / "bin" / "vllm").write_text(f"#!/bin/sh\n{refuse}{fail}cat '{release}/help'\n")
    (release / "bin" / "vllm").chmod(0o755)
    return release


GOOD = {"vllm": "0.16.0", "flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.4", "torch": "2.9.1"}


def test_a_good_release_passes(whole: Make, job: Job) -> None:
    record = whole(flags=["--port", "8000", "--tool-call-parser", "kimi_k2", "--trust_remote_code", "-O3", "--compilation-config.mode=3"])
    found = preflight.release(job.context, record, built(record, GOOD), {})
    assert {one["level"] for one in found} <= {"ok", "note", "warning"}
    assert any(one["title"] == "The release knows all flags of the service" for one in found)
    assert any(one["title"] == "Coupled packages agree" for one in found)


def test_an_older_release_lists_its_options_for_plain_help(whole: Make, job: Job) -> None:
    record = whole()
    found = preflight.release(job.context, record, built(record, GOOD, old=True), {})
    assert any(one["title"] == "The release knows all flags of the service" for one in found)


def test_flags_and_parsers_that_the_release_does_not_know_are_stops(whole: Make, job: Job) -> None:
    record = whole(flags=["--gpu-memory-utilisation", "0.9", "--enable-reasoning", "--tool-call-parser", "kimi_k25"])
    with pytest.raises(OpsError):
        preflight.release(job.context, record, built(record, GOOD), {})
    told = {one["title"]: one["fix"] for one in job.of("finding") if one["level"] == "stop"}
    assert "`--gpu-memory-utilization`" in told["The release does not know the flag `--gpu-memory-utilisation`"]
    assert "The release does not know the flag `--enable-reasoning`" in told
    assert "Did you mean `kimi_k2`?" in told["The release has no parser `kimi_k25` for --tool-call-parser"]


def test_coupled_packages_that_differ_stop_unless_that_was_chosen(whole: Make, job: Job) -> None:
    record = whole()
    release = built(record, {**GOOD, "flashinfer-cubin": "0.6.3"})
    with pytest.raises(OpsError, match="flashinfer-cubin"):
        preflight.release(job.context, record, release, {"coupling": True})
    found = preflight.release(job.context, record, release, {"coupling": False})
    assert any(one["level"] == "warning" and "switched off" in one["why"] for one in found)


def test_a_build_for_a_newer_cuda_than_the_driver_is_a_stop(whole: Make, job: Job) -> None:
    record = whole(snapshot=GpuSnapshot(gpus=list(GPUS.gpus), driver="570.1", cuda="12.8"))
    with pytest.raises(OpsError, match=r"Built for a newer CUDA than the driver has: `torch`"):
        preflight.release(job.context, record, built(record, {**GOOD, "torch": "2.11.0+cu130"}), {})


def test_a_help_that_fails_is_a_warning_with_its_words(whole: Make, job: Job) -> None:
    record = whole()
    found = preflight.release(job.context, record, built(record, GOOD, fails=True), {})
    assert any(one["level"] == "warning" and "ImportError: no module" in one["why"] for one in found)


def test_listeners_are_found_by_port() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        assert listeners.pids(port) == set()
        one.listen()
        assert listeners.pids(port) == {os.getpid()}
    assert listeners.inodes(port) == set()
