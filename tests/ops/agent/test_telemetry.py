from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import launch_settings, sealed
from ops.agent import telemetry
from ops.agent.config import NodeConfig
from ops.agent.telemetry import Telemetry
from ops.gpus import open_source
from ops.gpus.source import GpuReading, GpuSnapshot
from ops.jobs import redact
from ops.records import ServiceRecord
from ops.services import manager, state
from ops.services.status import ServiceStatus
from ops.services.systemd import SystemdManager
from tests.fakes.node import FakeNode, until
from tests.ops.agent.conftest import distribution

SNAPSHOT = GpuSnapshot(gpus=[GpuReading(index=0, uuid="GPU-0", name="Fake", total_bytes=1 << 30, used_bytes=1 << 20)], driver="1", cuda="2")


LOOPS = {"gpus", "services", "packages", "integrity", "environments", "models", "kernels", "changes", "memory", "failures", "disks"}


class Source:
    """GPUs that hang while `hangs` is set."""

    def __init__(self) -> None:
        self.hangs = threading.Event()

    def read(self) -> GpuSnapshot:
        until(lambda: not self.hangs.is_set(), 30)
        return SNAPSHOT


class Manager:
    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.now = ServiceStatus(state="healthy", pid=1)

    def status(self) -> ServiceStatus:
        until(lambda: not self.hangs.is_set(), 30)
        return self.now

    def pids(self) -> set[int]:
        return {1}


class Unit(Manager, SystemdManager):
    """Counts how often its unit is asked."""

    def __init__(self, asked: list[str]) -> None:
        Manager.__init__(self)
        self.asked = asked

    def facts(self) -> dict[str, Any]:
        self.asked.append(self.now.state)
        return {"name": "vllm.service", "state": self.now.state}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Manager]:
    source, services = Source(), Manager()
    monkeypatch.setattr(open_source, "open_source", lambda config: source)
    monkeypatch.setattr(manager, "manager_for", lambda record, **settings: services)
    monkeypatch.setattr(telemetry, "OLD_S", 1.5)
    monkeypatch.setattr(telemetry, "PACKAGES_EVERY_S", 0.2)
    return source, services


@pytest.fixture
def running(node: FakeNode, record: ServiceRecord, fakes: tuple[Source, Manager]) -> Iterator[Telemetry]:
    made = Telemetry(node.paths, NodeConfig(name="n1")).start()
    yield made
    for fake in fakes:
        fake.hangs.clear()
    made.stop()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in LOOPS], 15)


def test_a_sample_has_gpus_services_and_disk(running: Telemetry) -> None:
    until(lambda: running.sample()["services"]["a"]["state"] == "healthy" and running.sample()["gpus"]["gpus"], 10)
    said = running.sample()
    assert said["node"] == "n1"
    assert said["gpus"]["gpus"][0]["used_bytes"] == 1 << 20
    assert said["disk"]["free_bytes"] > 0
    until(lambda: running.sample()["disks"], 10)
    assert "Roundhouse" in running.sample()["disks"][0]["what"] and running.sample()["disks"][0]["total_bytes"] > 0
    json.dumps(said)


def test_a_source_that_hangs_grows_old_visibly_and_stops_nothing(running: Telemetry, fakes: tuple[Source, Manager]) -> None:
    until(lambda: running.sample()["services"]["a"]["state"] == "healthy" and running.sample()["gpus"]["gpus"], 10)
    for fake in fakes:
        fake.hangs.set()

    def old() -> dict[str, Any] | None:
        began = time.monotonic()
        said = running.sample()
        assert time.monotonic() - began < 0.5
        return said if said["services"]["a"]["state"] == "unknown" and not said["gpus"]["gpus"] else None

    said = until(old, 10)
    assert "last seconds" in said["gpus"]["problem"]
    for fake in fakes:
        fake.hangs.clear()
    until(lambda: running.sample()["services"]["a"]["state"] == "healthy" and running.sample()["gpus"]["gpus"], 10)


def test_an_announcement_has_versions_and_what_does_not_agree(running: Telemetry) -> None:
    until(running.is_ready, 10)
    said = running.announcement()
    packages = said["services"][0]["packages"]
    assert packages["versions"]["vllm"] == "0.16.0"
    assert packages["versions"]["torch"] is None
    assert [finding["level"] for finding in packages["coupling"]] == ["stop"]
    assert packages["release"] == "20260101-000000-0.16.0"
    assert said["facts"]["gpus"] == [{"index": 0, "name": "Fake", "total_bytes": 1 << 30}]
    json.dumps(said)


def test_an_announcement_has_the_whole_environment_the_releases_and_the_model_folder(running: Telemetry, record: ServiceRecord) -> None:
    told = until(lambda: (one := running.announcement()["services"][0])["environment"] and one["releases"] and one, 15)
    assert [(one["name"], one["version"]) for one in told["environment"]["distributions"]] == [
        ("flashinfer-cubin", "0.6.3"), ("flashinfer-python", "0.6.4"), ("vllm", "0.16.0")]
    assert told["environment"]["distributions"][0]["size_bytes"] > 0
    assert [release["name"] for release in told["releases"]] == ["20260101-000000-0.16.0"]
    assert told["changed"] is None and isinstance(told["model"], list)


def test_an_announcement_has_launch_settings_without_secrets_and_the_key_to_seal_others(node: FakeNode, running: Telemetry) -> None:
    path = node.paths.announced / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        "flags": ["--api-key", "s3cret-1"], "env": {"HF_TOKEN": "s3cret-2", "VLLM_USE_V1": "1"}, "env_files": ["-/etc/default/vllm"]}))
    said = until(lambda: (one := running.announcement())["services"][0]["launch"]["env_files"] and one, 10)
    launch = said["services"][0]["launch"]
    assert launch["env"] == {"HF_TOKEN": redact.HIDDEN, "VLLM_USE_V1": "1"} and launch["flags"] == ["--api-key", redact.HIDDEN]
    assert (launch["secret_names"], launch["pending"], launch["env_files"]) == (["HF_TOKEN"], None, ["-/etc/default/vllm"])
    assert launch["mark"] == launch_settings.mark(telemetry.records(node.paths)[0])
    assert sealed.unseal(node.paths, sealed.seal(said["facts"]["settings_key"], "x", service="s", name="A"), service="s", name="A") == "x"
    assert "s3cret" not in json.dumps(said)


def test_an_announcement_has_the_last_failures_and_warmups(running: Telemetry, record: ServiceRecord, fakes: tuple[Source, Manager],
                                                           tmp_path: Path) -> None:
    assert until(lambda: running.announcement()["services"][0]["warmups"] == [], 10)
    state.add_warmup(record, {"at": 1.0, "release": "r", "total_s": 5.0, "cache": "hit", "phases": {"load": 4.0}})
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\nValueError: no weights\n")
    fakes[1].now = ServiceStatus(state="failed", invocation="1f", exit_code=0, restarts=None, detail="It ended", log_where=str(log))
    told = until(lambda: (one := running.announcement()["services"][0])["failures"] and one["failures"][0]["diagnosis"] and one, 30)
    assert told["failures"][0]["diagnosis"]["text"] == "ValueError: no weights" and told["failures"][0]["exit_code"] == 0
    assert [one["total_s"] for one in told["warmups"]] == [5.0] and told["unit"] is None
    assert running.sample()["services"]["a"]["failure"] == f"{told['failures'][0]['at']:.3f}:1"


def test_facts_of_a_unit_are_asked_for_when_its_state_changes_and_not_at_each_look(
        node: FakeNode, running: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    unit = Unit(asked)
    path = node.paths.announced / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"manager": "systemd", "unit": "vllm.service"}))
    monkeypatch.setattr(manager, "manager_for", lambda record, **settings: unit)
    until(lambda: running.announcement()["services"][0].get("unit") == {"name": "vllm.service", "state": "healthy"}, 10)
    unit.now = ServiceStatus(state="stopped", invocation="1f", restarts=0)
    until(lambda: running.announcement()["services"][0]["unit"]["state"] == "stopped", 10)
    time.sleep(1.2)
    assert asked == ["healthy", "stopped"]


def test_packages_are_read_again_only_when_the_environment_changed(
        running: Telemetry, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    until(running.is_ready, 10)
    reads: list[str] = []
    real = telemetry.packages_of
    monkeypatch.setattr(telemetry, "packages_of", lambda record: reads.append(record.name) or real(record))
    time.sleep(0.8)
    assert reads == []
    distribution(record.current / "lib" / "python3.11" / "site-packages", "transformers", "5.0")
    until(lambda: running.announcement()["services"][0]["packages"]["versions"]["transformers"] == "5.0", 10)


@pytest.fixture
def edited(record: ServiceRecord) -> None:
    """An edit that was there before the agent started."""
    (record.current / "lib" / "python3.11" / "site-packages" / "patched.pth").write_text("")


def test_edited_files_are_announced(edited: None, running: Telemetry) -> None:
    found = until(lambda: (running.announcement()["services"][0]["packages"] or {}).get("patched"), 15)
    assert found["checked_at"] > 0
    assert [(file["path"].rpartition("/")[2], file["change"]) for file in found["files"]] == [("patched.pth", "extra")]


def test_a_service_without_a_release_is_announced_without_versions(node: FakeNode, running: Telemetry) -> None:
    other = ServiceRecord(name="b", root=str(node.paths.services / "b"), model_path="/m", served_model_name="m", base_url="http://127.0.0.1:9")
    (node.paths.announced / "b.json").write_text(json.dumps(other.as_dict()))
    found = until(lambda: next((one for one in running.announcement()["services"] if one["record"]["name"] == "b" and one["packages"]), None), 10)
    assert found["packages"]["release"] is None
    assert set(found["packages"]["versions"].values()) == {None}


def test_a_damaged_record_is_left_out(node: FakeNode, running: Telemetry) -> None:
    (node.paths.announced / "bad.json").write_text("{")
    assert [found.name for found in telemetry.records(node.paths)] == ["a"]


def test_an_environment_that_nobody_can_read_keeps_the_node_from_nothing(
        running: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, record: ServiceRecord) -> None:
    def breaks(record: ServiceRecord) -> None:
        raise ZeroDivisionError("nobody thought of it")

    until(running.is_ready, 10)
    monkeypatch.setattr(telemetry, "packages_of", breaks)
    distribution(record.current / "lib" / "python3.11" / "site-packages", "transformers", "5.0")
    told = until(lambda: running.announcement()["services"][0]["packages"].get("problem"), 10)
    assert told == "It could not be read: ZeroDivisionError: nobody thought of it"
    time.sleep(0.7)
    assert [line.getMessage() for line in caplog.records].count("the packages of service `a` cannot be read") == 1  # told once, not at each look
