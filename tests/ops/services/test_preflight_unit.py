"""What the preflight says of a systemd unit, against the double: nothing is started or stopped by looking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.records import ServiceRecord
from ops.services import launch, surroundings, systemctl, unit_files
from ops.services.preflight import machine, unit
from ops.services.preflight.looks import Looks
from ops.services.systemd import SystemdManager
from tests.ops.services.conftest import Job
from tests.ops.services.systemd_box import SystemdBox

GOES_ON = "exec sleep 1000"


@pytest.fixture
def box(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemdBox]:
    made = SystemdBox(short_path, monkeypatch)
    monkeypatch.setattr(unit_files, "search_path", lambda **_: [made.units])
    yield made
    made.close()


def told(job: Job, record: ServiceRecord, plan: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    looks = Looks(job.context, "host")
    looks.run([("unit", lambda: unit.look(looks, record, plan))])
    return {one["title"]: one for one in looks.found}


def with_launcher(box: SystemdBox, name: str, *settings: str) -> ServiceRecord:
    record = box.record(name)
    box.write(name, "", text="\n".join(["[Service]", f"ExecStart={launch.launch_path(record)}", *settings, ""]))
    return record


def test_a_good_unit_is_ok_and_is_not_touched(box: SystemdBox, job: Job) -> None:
    record = with_launcher(box, "rh-good", "Restart=always", "TimeoutStopSec=60")
    found = told(job, record, {})
    assert {one["level"] for one in found.values()} == {"ok"} and len(found) == 2
    assert systemctl.show(record.unit, ("ActiveState", "InvocationID"))["ActiveState"] == "inactive"


def test_a_unit_that_is_not_there_stops_the_job(box: SystemdBox, job: Job) -> None:
    [one] = told(job, box.record("rh-none")).values()
    assert one["level"] == "stop" and "There is no unit `rh-none.service`" in one["title"] and "list-unit-files" in one["fix"]


def test_a_masked_unit_stops_the_job(box: SystemdBox, job: Job) -> None:
    (box.units / "rh-masked.service").symlink_to("/dev/null")
    box.systemctl("daemon-reload")
    [one] = told(job, box.record("rh-masked")).values()
    assert one["level"] == "stop" and "masked" in one["title"] and "unmask" in one["fix"]


def test_another_release_needs_the_launcher_and_a_plain_restart_only_says_so(box: SystemdBox, job: Job) -> None:
    box.write("rh-own", GOES_ON)
    record = box.record("rh-own")
    [stop] = [one for one in told(job, record, {}).values() if one["level"] == "stop"]
    assert "does not start the launcher" in stop["title"]
    assert "python -m ops adopt --unit rh-own.service --name rh-own --apply --install" in stop["fix"]
    assert "/etc/systemd/system/rh-own.service.d/50-roundhouse.conf" in stop["why"] and f"ExecStart={launch.launch_path(record)}" in stop["why"]
    levels = [one["level"] for one in told(job, record).values() if "command of its own" in one["title"]]
    assert levels == ["warning"]


def test_settings_that_do_not_suit_vllm_are_told(box: SystemdBox, job: Job) -> None:
    record = with_launcher(box, "rh-odd", "Restart=on-failure", "KillMode=process", "Type=notify", "TimeoutStartSec=90")
    found = told(job, record)
    titles = " | ".join(found)
    assert "Restart=on-failure does not fire when vLLM's engine dies" in titles and "KillMode=process" in titles
    [stop] = [one for one in found.values() if one["level"] == "stop"]
    assert "Type=notify" in stop["title"] and "Type=exec" in stop["fix"] and "90 s" in stop["why"]
    assert unit.limits(record).start_s == 90


def test_a_user_who_may_not_control_it_is_told_before_anything_is_stopped(box: SystemdBox, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = with_launcher(box, "rh-closed")
    monkeypatch.setattr(SystemdManager, "permission", lambda self: "Interactive authentication required.")
    [stop] = [one for one in told(job, record).values() if one["level"] == "stop"]
    assert "may not start and stop `rh-closed.service`" in stop["title"] and "50-roundhouse.rules" in stop["fix"]


def test_what_the_units_own_sandbox_takes_away(box: SystemdBox, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = with_launcher(box, "rh-box")
    record.gpus, record.model_path = [0], "/home/llm/model"
    shown = {"PrivateDevices": "yes", "ProtectHome": "yes", "ProtectSystem": "strict", "ReadWritePaths": "/srv/cache -/var/lib/vllm",
             "CacheDirectory": "triton", "PrivateTmp": "yes"}
    monkeypatch.setattr(SystemdManager, "show", lambda self, properties: shown)

    def look(**variables: str) -> dict[str, dict[str, Any]]:
        looks = Looks(job.context, "host")
        found = surroundings.Surroundings(variables={"HOME": "/srv/llm", **variables}, user="llm", uid=1)
        looks.run([("sandbox", lambda: unit.sandbox(looks, record, found))])
        return {one["title"]: one for one in looks.found}

    titles = " | ".join(look(VLLM_CACHE_ROOT="/srv/cache/vllm", TRITON_CACHE_DIR="/var/cache/triton/x"))
    assert "PrivateDevices=yes hides the GPUs" in titles and "ProtectHome=yes hides the model (`/home/llm/model`)" in titles
    assert "(FLASHINFER_WORKSPACE_BASE)" in titles and "VLLM_CACHE_ROOT" not in titles and "TRITON_CACHE_DIR" not in titles
    shown |= {"PrivateDevices": "no", "ProtectHome": "no", "ProtectSystem": "full"}
    assert look() == {}
    shown |= {"ReadOnlyPaths": "/srv/llm"}
    assert len(look()) == 3


def test_what_a_unit_gives_its_process_is_what_the_looks_use(box: SystemdBox, job: Job, short_path: Path) -> None:
    (short_path / "extra.env").write_text("VLLM_CACHE_ROOT=/proc/closed\n")
    with_launcher(box, "rh-vars", "User=daemon", "Environment=PATH=/opt/tools CUDA_HOME=:/usr/local/cuda", f"EnvironmentFile={short_path}/extra.env",
                  "LimitNOFILE=2048")
    record = box.record("rh-vars", env={"HF_HOME": "/h"})
    found = surroundings.of(record)
    assert found.problem is None and found.user == "daemon" and found.uid not in (None, 0)
    assert {name: found.variables.get(name) for name in ("PATH", "CUDA_HOME", "VLLM_CACHE_ROOT", "HF_HOME")} == {
        "PATH": "/opt/tools", "CUDA_HOME": ":/usr/local/cuda", "VLLM_CACHE_ROOT": "/proc/closed", "HF_HOME": "/h"}
    looks = Looks(job.context, "host")
    looks.run([("caches", lambda: machine.caches(looks, found)), ("limits", lambda: machine.limits(looks, record, found))])
    stops = [one["title"] for one in looks.found if one["level"] == "stop"]
    assert any("`/proc/closed` (VLLM_CACHE_ROOT)" in title for title in stops)
    assert any("Only 2048 files" in one["title"] for one in looks.found) or found.open_files == 524288  # the double knows one limit


def test_no_systemd_at_all_is_one_clear_stop(box: SystemdBox, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = with_launcher(box, "rh-away")
    monkeypatch.setenv("PATH", "/nonexistent")
    [one] = told(job, record).values()
    assert one["level"] == "stop" and "no systemctl" in one["title"]
    assert surroundings.of(record).problem is not None
