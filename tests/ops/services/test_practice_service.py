"""The practice service under the process manager, as a redeploy uses it: preflight, start, warmup, stop, GPUs free; and its faults."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.gpus import processes
from ops.gpus.open_source import open_source
from ops.gpus.source import MIB
from ops.jobs.errors import OpsError
from ops.practice import box
from ops.records import ServiceRecord
from ops.services import diagnosis, preflight, starting, state, stopping, warmup
from ops.services.milestones import PHASES
from ops.services.process import ProcessManager
from tests.ops.services.conftest import Job, free_port, wait_for
from tests.ops.services.test_milestones import phases, read

ALL = [name for name, _ in PHASES]


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Path, ServiceRecord]]:
    folder = Path(tempfile.mkdtemp(prefix="rh-practice-"))
    record = box.set_up(NodePaths(folder / "node"), folder / "box", speed=50.0, port=free_port())
    yield folder / "box", record
    shutil.rmtree(folder)


@pytest.fixture
def root(made: tuple[Path, ServiceRecord]) -> Iterator[Path]:
    root, record = made
    yield root
    box.write_settings(root, faults={})
    manager = ProcessManager(record)
    manager.kill()
    wait_for(lambda: not manager.pids())


@pytest.fixture
def service(made: tuple[Path, ServiceRecord], job: Job, root: Path) -> ServiceRecord:
    """The practice service, stopped, with the job's context on its node."""
    job.context.config = NodeConfig(name="practice", practice=True, gpu_source="practice", practice_root=str(root))
    return made[1]


def test_a_whole_circle(service: ServiceRecord, job: Job) -> None:
    context, source = job.context, open_source(job.context.config)
    preflight.host(context, service, None)
    preflight.release(context, service, service.current.resolve(), {})
    assert {one["level"] for one in job.of("finding")} <= {"ok", "note"}

    starting.start(context, service)
    result = warmup.watch(context, service)
    assert [one["phase"] for one in result.phases] == ALL and result.cache == "miss"
    manager = ProcessManager(service)
    assert manager.status().state == "healthy"
    own = manager.pids()
    held = processes.claim(source.read(), {service.name: own})
    assert all(gpu.used_bytes and gpu.used_bytes > 80_000 * MIB for gpu in held.gpus)
    assert all(process.service == service.name for gpu in held.gpus for process in gpu.processes)
    for pid in own:
        environment = processes.environment(pid)
        assert environment and not [name for name in environment if name.startswith("ROUNDHOUSE_")]
    log = manager.log_path()
    assert log is not None and not diagnosis.diagnose_file(log).fault

    stopping.stop(context, service)
    note = stopping.wait_gpus_free(context, service, source)
    assert note.startswith("8 GPUs free")
    stopping.record_baseline(service, source.read())
    assert state.baseline(service) == dict.fromkeys(range(8), 0)
    assert manager.status().state == "stopped" and not manager.pids()
    assert not [pid for pid in own if processes.start_ticks(pid) is not None]

    # What the practice server logs and what real vLLM was recorded with has the same phases in the same order.
    practice = warmup.Parser()
    for line in log.read_text().splitlines():
        practice.feed(line)
    real = phases(read("vllm/startup-cold-compile.log"))
    assert [phase for phase in phases(practice) if phase in real] == real
    assert phases(practice) == phases(read("logs/cases/90-healthy-slow-start.log"))


def test_a_second_start_hits_the_compile_cache_and_has_an_estimate(service: ServiceRecord, job: Job) -> None:
    for _ in range(2):
        starting.start(job.context, service)
        result = warmup.watch(job.context, service)
        stopping.stop(job.context, service)
    assert result.cache == "hit"
    assert any(one["estimate_s"] is not None for one in job.of("warmup.phase"))


def test_the_storys_mismatch_is_diagnosed_from_a_real_start(service: ServiceRecord, job: Job) -> None:
    module = next(service.current.resolve().glob("lib/python3*/site-packages/flashinfer_cubin/__init__.py"))
    pristine, known = module.read_text(), module.stat()
    module.write_text(pristine.replace("0.6.3", "0.6.2"))
    try:
        starting.start(job.context, service)
        with pytest.raises(warmup.ServiceCrashed, match=r"flashinfer-cubin version \(0\.6\.2") as caught:
            warmup.watch(job.context, service)
    finally:
        module.write_text(pristine)
        # Python takes a cached .pyc for good by the source's size and whole second: both are equal here if the crash was quick
        os.utime(module, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert "flashinfer-cubin==0.6.3+practice" in caught.value.hint and str(service.current.resolve()) in caught.value.hint
    [told] = job.of("diagnosis")
    assert (told["kind"], told["exit_code"]) == ("flashinfer-cubin-mismatch", 1) and told["lines"] - told["line"] > 60


def test_running_out_of_memory_while_capturing_is_diagnosed(service: ServiceRecord, job: Job, root: Path) -> None:
    box.write_settings(root, faults={"crash_at": "capture"})
    starting.start(job.context, service)
    with pytest.raises(warmup.ServiceCrashed, match="CUDA out of memory") as caught:
        warmup.watch(job.context, service)
    assert caught.value.facts["diagnosis"]["kind"] == "oom-graph-capture" and "--gpu-memory-utilization" in caught.value.hint


def test_a_start_that_hangs_is_a_stall(service: ServiceRecord, job: Job, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box.write_settings(root, faults={"stall_at": "compile"})
    starting.start(job.context, service)
    monkeypatch.setattr(warmup._Watch, "STALL_LOOK_S", 0.2)
    with pytest.raises(OpsError, match="hangs in phase") as caught:
        warmup.watch(job.context, service, stall_s=3.0)
    assert caught.value.kind == "stalled"


def test_a_worker_that_outlives_the_server_is_found_and_ended(service: ServiceRecord, job: Job, root: Path) -> None:
    box.write_settings(root, faults={"leave_worker": True})
    starting.start(job.context, service)
    warmup.watch(job.context, service)
    note = stopping.stop(job.context, service, timeout_s=1.5)
    assert "the main process ended, others stayed (1 processes)" in note
    assert stopping.wait_gpus_free(job.context, service, open_source(job.context.config)).startswith("8 GPUs free")


def test_a_left_worker_keeps_the_gpus_from_being_free(service: ServiceRecord, job: Job, root: Path) -> None:
    box.write_settings(root, faults={"leave_worker": True})
    starting.start(job.context, service)
    warmup.watch(job.context, service)
    manager = ProcessManager(service)
    main = manager.status().pid
    manager.terminate()
    wait_for(lambda: manager.status().state == "stopped")
    [left] = manager.pids()
    with pytest.raises(OpsError, match=f"pid {left}") as caught:
        stopping.wait_gpus_free(job.context, service, open_source(job.context.config), limit_s=0.5)
    assert "of this service" in str(caught.value) and left != main


def test_a_server_that_ignores_sigterm_is_killed(service: ServiceRecord, job: Job, root: Path) -> None:
    box.write_settings(root, faults={"ignore_sigterm": True})
    starting.start(job.context, service)
    warmup.watch(job.context, service)
    assert "did not react to SIGTERM" in stopping.stop(job.context, service, timeout_s=0.5)
    assert stopping.wait_gpus_free(job.context, service, open_source(job.context.config)).startswith("8 GPUs free")
    assert ProcessManager(service).pids() == set()
