"""What a service has is read once, and again when it changed; what cannot be read is said, and holds up nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.agent import inventory, telemetry
from ops.agent.inventory import Inventory
from ops.environments import fingerprint, integrity, kernels, packages
from ops.gpus.source import GpuReading, GpuSnapshot
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from tests.fakes.node import FakeNode
from tests.ops.agent.conftest import distribution

GPUS = GpuSnapshot(gpus=[GpuReading(index=n, uuid=f"GPU-{n}", name="Fake", total_bytes=1 << 30, compute_capability="12.0") for n in range(2)],
                   driver="580.1", cuda="13.0")


@pytest.fixture
def looks(node: FakeNode, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """An inventory of the one service that never rests."""
    monkeypatch.setattr(inventory, "REST", 0.0)
    return Inventory(lambda: telemetry.records(node.paths), lambda: GPUS)


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, answer: Callable[..., Any] | None = None) -> list[Any]:
    """The calls of a function, which goes on working (or gives `answer`)."""
    calls: list[Any] = []
    real = getattr(where, name)

    def call(*args: Any, **more: Any) -> Any:
        calls.append(args)
        return (answer or real)(*args, **more)

    monkeypatch.setattr(where, name, call)
    return calls


def library(record: ServiceRecord) -> Path:
    return record.current / "lib" / "python3.11" / "site-packages"


def save(node: FakeNode, record: ServiceRecord, **more: Any) -> ServiceRecord:
    changed = ServiceRecord.from_dict({**record.as_dict(), **more})
    (node.paths.announced / f"{record.name}.json").write_text(json.dumps(changed.as_dict()))
    return changed


def test_nothing_is_told_before_it_was_read(looks: Inventory) -> None:
    assert looks.of("a") == {"environment": None, "releases": [], "changed": None, "model": [], "failures": None, "warmups": None}


def test_an_environment_is_told_with_all_its_packages_and_what_is_wrong(looks: Inventory, record: ServiceRecord) -> None:
    distribution(library(record), "torch", "2.9.1", requires="sympy>=1.13")
    looks.read_environments()
    told = looks.of("a")["environment"]
    assert (told["release"], told["path"], told["python"]) == ("20260101-000000-0.16.0", str(record.current.resolve()), "3.11.7")
    assert [one["name"] for one in told["distributions"]] == ["flashinfer-cubin", "flashinfer-python", "torch", "vllm"]
    assert set(told["distributions"][0]) == {"name", "version", "installer", "requested", "size_bytes", "source"}
    assert [finding["level"] for finding in told["coupling"]] == ["stop"]
    assert [(one["package"], one["kind"]) for one in told["requirements"]] == [("torch", "missing")]
    assert told["kernels"] is None and told["at"] > 0
    json.dumps(looks.of("a"), allow_nan=False)


def test_an_environment_is_read_once_and_again_when_it_changed(
        looks: Inventory, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = counted(monkeypatch, packages, "describe")
    for _ in range(3):
        looks.read_environments()
    assert len(reads) == 1
    distribution(library(record), "transformers", "5.0")
    looks.read_environments()
    assert len(reads) == 2 and any(one["name"] == "transformers" for one in looks.of("a")["environment"]["distributions"])


def test_an_environment_that_changes_all_the_time_is_not_read_all_the_time(
        looks: Inventory, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "REST", 1e9)
    reads = counted(monkeypatch, packages, "describe")
    looks.read_environments()
    distribution(library(record), "transformers", "5.0")
    looks.read_environments()
    assert len(reads) == 1


def test_a_broken_environment_is_said_and_holds_up_no_other(node: FakeNode, looks: Inventory, record: ServiceRecord) -> None:
    other = ServiceRecord(name="b", root=str(node.paths.services / "b"), model_path="/m", served_model_name="m", base_url="http://127.0.0.1:9")
    (node.paths.announced / "b.json").write_text(json.dumps(other.as_dict()))
    save(node, record)
    (record.current.resolve() / "lib").rename(record.current.resolve() / "gone")
    looks.read_environments()
    assert "no Python environment" in looks.of("a")["environment"]["problems"][0]
    assert looks.of("b")["environment"]["path"] is None


def test_one_part_that_fails_leaves_the_others(looks: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.environments import requirements_check

    def fails(*args: Any) -> Any:
        raise OpsError("Its Python does not run", why="it was upgraded")

    monkeypatch.setattr(requirements_check, "check", fails)
    looks.read_environments()
    told = looks.of("a")["environment"]
    assert "Its Python does not run: it was upgraded" in told["problems"]
    assert told["requirements"] == [] and told["coupling"] and len(told["distributions"]) == 3


def test_more_distributions_than_can_be_told_are_cut_with_a_note(looks: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "DISTRIBUTIONS_MAX", 2)
    looks.read_environments()
    told = looks.of("a")["environment"]
    assert len(told["distributions"]) == 2
    assert any("3 distributions are installed" in problem for problem in told["problems"])


def test_an_environment_that_is_to_be_adopted_is_told_by_its_real_path(node: FakeNode, looks: Inventory, record: ServiceRecord) -> None:
    real = record.current.resolve()
    link = record.folder / "vllm-env"
    link.symlink_to(real)
    record.current.unlink()
    save(node, record, environment=str(link))
    looks.read_environments()
    told = looks.of("a")["environment"]
    assert (told["release"], told["path"], told["adopted"], len(told["distributions"])) == (None, str(link), str(real), 3)


def test_releases_are_read_again_when_one_comes_or_is_switched_to(looks: Inventory, record: ServiceRecord) -> None:
    looks.read_environments()
    assert [(one["name"], one["is_current"]) for one in looks.of("a")["releases"]] == [("20260101-000000-0.16.0", True)]
    (record.releases / "20260202-000000-0.17.0").mkdir()
    looks.read_environments()
    assert [one["name"] for one in looks.of("a")["releases"]] == ["20260202-000000-0.17.0", "20260101-000000-0.16.0"]
    record.current.unlink()
    record.current.symlink_to(record.releases / "20260202-000000-0.17.0")
    looks.read_environments()
    assert [one["is_current"] for one in looks.of("a")["releases"]] == [True, False]


def test_the_model_folder_is_looked_at_again_when_a_file_comes(looks: Inventory, record: ServiceRecord) -> None:
    looks.read_models()
    before = looks.of("a")["model"]
    (record.folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling_evil.Evil"}}))
    (record.folder / "modeling_evil.py").write_text("raise SystemExit('never imported')\n")
    looks.read_models()
    after = looks.of("a")["model"]
    assert after != before and any(finding["kind"] == "code" for finding in after)


def test_kernels_are_asked_for_once_a_release(looks: Inventory, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch, kernels, "check", lambda env, capabilities, timeout_s: {"covered": dict.fromkeys(capabilities, "binary")})
    for _ in range(3):
        looks.read_environments()
        looks.read_kernels()
    assert len(asked) == 1 and asked[0][1] == ["12.0"]
    assert looks.of("a")["environment"]["kernels"] == {"covered": {"12.0": "binary"}}
    distribution(library(record), "transformers", "5.0")  # no matter for kernels
    looks.read_kernels()
    assert len(asked) == 1
    distribution(library(record), "torch", "2.9.1")
    looks.read_kernels()
    assert len(asked) == 2


def test_a_torch_that_cannot_be_asked_is_said_once(looks: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **more: Any) -> Any:
        raise OpsError("torch did not tell its architectures within 180 s")

    asked = counted(monkeypatch, kernels, "check", fails)
    looks.read_environments()
    for _ in range(3):
        looks.read_kernels()
    assert len(asked) == 1
    assert "within 180 s" in looks.of("a")["environment"]["kernels"]["problem"]


@pytest.mark.parametrize("snapshot", [None, GpuSnapshot(gpus=[], problem="no driver"), GpuSnapshot(gpus=[GpuReading(index=0, uuid="u", name="n")])])
def test_without_a_known_gpu_no_torch_is_run(
        node: FakeNode, record: ServiceRecord, snapshot: GpuSnapshot | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch, kernels, "check")
    looks = Inventory(lambda: telemetry.records(node.paths), lambda: snapshot)
    looks.read_environments()
    looks.read_kernels()
    assert asked == [] and looks.of("a")["environment"]["kernels"] is None


def test_a_service_that_is_gone_is_forgotten(node: FakeNode, looks: Inventory) -> None:
    looks.read_environments()
    (node.paths.announced / "a.json").unlink()
    looks.read_environments()
    assert looks.of("a") == {"environment": None, "releases": [], "changed": None, "model": [], "failures": None, "warmups": None}


def good_start(record: ServiceRecord, looks: Inventory) -> None:
    """The service as it is now has started well, and its files have been checked."""
    report = integrity.check(release := record.current.resolve())
    looks.checked("a", release, report)
    fingerprint.remember_good_start(record, fingerprint.fingerprint(record, release=release, gpus=GPUS, report=report), release=release.name, job="j")


def test_without_a_good_start_nothing_is_compared(looks: Inventory, record: ServiceRecord) -> None:
    looks.read_changes()
    assert looks.of("a")["changed"] is None


def test_what_changed_since_the_last_good_start_is_told_in_words(
        node: FakeNode, looks: Inventory, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    good_start(record, looks)
    looks.read_changes()
    assert looks.of("a")["changed"]["words"] == []
    save(node, record, flags=["--max-model-len", "8192"])
    looks.read_changes()
    told = looks.of("a")["changed"]
    assert told["since"] > 0 and any("max-model-len" in words for words in told["words"])
    taken = counted(monkeypatch, fingerprint, "fingerprint")
    looks.read_changes()
    assert taken == []


def test_without_a_check_of_the_files_no_fingerprint_is_taken(
        node: FakeNode, looks: Inventory, record: ServiceRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    good_start(record, looks)
    hashed = counted(monkeypatch, integrity, "check")
    fresh = Inventory(lambda: telemetry.records(node.paths), lambda: GPUS)
    fresh.read_changes()
    assert fresh.of("a")["changed"] is None and hashed == []


def test_without_a_reading_of_the_gpus_nothing_looks_changed(node: FakeNode, looks: Inventory, record: ServiceRecord) -> None:
    good_start(record, looks)
    blind = Inventory(lambda: telemetry.records(node.paths), lambda: None)
    blind.read_changes()
    assert blind.of("a")["changed"] is None


def test_too_many_differences_are_left_out_and_the_words_stay() -> None:
    cut = inventory._cut_changed({"since": 1.0, "words": ["x" * 900] * 900, "differences": ["y" * 300_000]})
    assert (len(cut["words"]), len(cut["words"][0]), cut["differences"]) == (500, 400, None)
