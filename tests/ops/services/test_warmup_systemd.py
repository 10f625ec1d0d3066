"""Warmups of units, whose manager starts a crashed server again by itself: against the double, and (by test_systemd.py) against a real systemd."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.gpus.source import GpuReading, GpuSnapshot
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state, warmup
from ops.services.systemd import SystemdManager
from tests.ops.services.conftest import FAKE, Job, free_port, job
from tests.ops.services.systemd_box import SystemdBox
from tests.ops.services.test_warmup import CRASH, OTHER, START

__all__ = ["job"]
LOOP = ("Restart=always", "RestartSec=0.4")


class Busy:
    def read(self) -> GpuSnapshot:
        return GpuSnapshot(gpus=[GpuReading(index=0, uuid="u", name="GPU", utilization=50.0)])


@pytest.fixture
def box(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemdBox]:
    monkeypatch.setattr(warmup, "_LAST_WORDS_S", 0.2)
    made = SystemdBox(short_path, monkeypatch)
    yield made
    made.close()


def started(box: SystemdBox, name: str, *runs: dict[str, Any], settings: tuple[str, ...] = LOOP) -> ServiceRecord:
    """A unit that behaves as `runs` say, one for each start."""
    port = free_port()
    record = box.record(name, base_url=f"http://127.0.0.1:{port}", served_model_name="tiny")
    script = box.folder / f"{name}.sh"
    plan = shlex.quote(json.dumps({"runs": [{**run, "after": str(box.folder / "go")} for run in runs]}))
    script.write_text(f"#!/bin/sh\ncd {record.root}\nexport FAKE_VLLM={plan}\nexec {sys.executable} -IS {FAKE} --port {port}\n")
    script.chmod(0o755)
    box.write(name, f"exec {script}", *settings)
    SystemdManager(record).start()
    return record


def watched(box: SystemdBox, job: Job, record: ServiceRecord) -> warmup.WarmupResult:
    """Watches it; it does what it does once it is watched."""

    def emit(type: str, data: dict[str, Any]) -> None:
        (box.folder / "go").touch()
        job.emit(type, data)

    job.context.emit = emit
    return warmup.watch(job.context, record, source=Busy())


def test_a_unit_that_crashes_once_is_watched_until_it_answers(box: SystemdBox, job: Job) -> None:
    record = started(box, "rh-again", {"log": CRASH, "exit": 1}, {"log": START, "serve": True})
    result = watched(box, job, record)
    assert result.tries == 2 and [one["phase"] for one in result.phases][:2] == ["start", "load"]
    [trouble] = job.of("warmup.trouble")
    assert (trouble["kind"], trouble["try"], trouble["diagnosis"]["rule"]) == ("crash", 1, "flashinfer-cubin")
    [known] = state.warmups(record)
    assert known["total_s"] == pytest.approx(result.total_s, abs=0.01)
    text = "".join(one["text"] for one in job.of("step.log"))
    assert "Starting to load model" in text and "try 2" in text and "gpu1" not in text
    assert SystemdManager(record).status().state == "healthy"


def test_a_unit_in_a_crash_loop_ends_the_watch(box: SystemdBox, job: Job) -> None:
    record = started(box, "rh-loop", {"log": CRASH, "exit": 1})
    with pytest.raises(warmup.ServiceCrashed, match="flashinfer-cubin version") as caught:
        watched(box, job, record)
    assert "crash loop" in caught.value.why and caught.value.facts["loop"] and caught.value.facts["tries"] == 2
    assert [one["rule"] for one in job.of("diagnosis")] == ["flashinfer-cubin"]


@pytest.mark.slow
def test_a_unit_that_is_not_started_again_crashes_at_once(box: SystemdBox, job: Job) -> None:
    record = started(box, "rh-once", {"log": OTHER, "exit": 1}, settings=("Restart=no",))
    with pytest.raises(warmup.ServiceCrashed, match="Address already in use") as caught:
        watched(box, job, record)
    assert caught.value.facts["tries"] == 1 and "exit code 1" in caught.value.why and job.of("warmup.trouble") == []


@pytest.mark.slow  # a real systemd does it in the fast run (test_systemd.py)
def test_a_unit_that_ends_with_code_0_while_it_starts_has_crashed(box: SystemdBox, job: Job) -> None:
    record = started(box, "rh-zero", {"log": [[0.1, "hello\n"]], "exit": 0}, settings=("Restart=on-failure",))
    with pytest.raises(warmup.ServiceCrashed, match="with exit code 0"):
        watched(box, job, record)


@pytest.mark.slow
def test_a_unit_that_somebody_stops_was_stopped(box: SystemdBox, job: Job) -> None:
    record = started(box, "rh-halt", {"log": START[:2], "hang": True})
    threading.Timer(1.0, box.systemctl, ("stop", "rh-halt.service")).start()
    with pytest.raises(OpsError, match="was stopped"):
        watched(box, job, record)
    assert job.of("diagnosis") == []
