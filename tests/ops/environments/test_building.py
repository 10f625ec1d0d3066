"""What a build does beside installing: the copies of a restoring plan, its progress, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.environments import building, integrity, packages, plan, releases
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Events, channel_of, library


@pytest.fixture
def patched(live: Path) -> Path:
    """The release in use with an edit, a stray file and a file that is gone."""
    (library(live) / "vllm" / "model.py").write_text("edited = 1\n")
    (library(live) / "vllm" / "debug_hook.py").write_text("print(1)\n")
    (library(live) / "vllm" / "config.py").unlink()
    return live


def test_a_restored_release_has_the_same_versions_and_none_of_the_edits(record: ServiceRecord, channel: Channel, patched: Path, job_context: Context,
                                                                       events: Events):
    made = plan.make(record, channel, mode="restore")
    assert made.restore == ["vllm"]
    release = releases.build(job_context, record, channel, made)
    assert releases.verify(job_context, record, release, made).vllm_version == "0.16.0rc2.dev313+practice"
    assert packages.read(release).versions() == packages.read(patched).versions()
    assert integrity.check(release).clean and len(integrity.check(patched).findings) == 3
    assert events.text.split("Dropped from uv's cache")[1].count(" + ") == 1  # vllm alone was installed
    told = releases.manifest(release)
    assert told is not None and told["mode"] == "restore" and all(package["sha256"] for package in told["packages"])
    assert (release / releases.LOCK_FILE).read_text().count("--hash=sha256:") == len(told["packages"])


def test_the_environment_of_a_record_that_nobody_adopted_is_restored_like_a_release(record: ServiceRecord, channel: Channel, patched: Path,
                                                                                  job_context: Context):
    record.environment, record.root = str(patched), f"{record.root}-by-hand"
    made = plan.make(record, channel, mode="restore")
    assert made.current == "adopted" and made.restore == ["vllm"]
    release = releases.build(job_context, record, channel, made)
    releases.verify(job_context, record, release, made)
    assert packages.read(release).versions() == packages.read(patched).versions()


def test_an_edit_made_after_the_plan_is_not_copied(record: ServiceRecord, channel: Channel, patched: Path, job_context: Context):
    made = plan.make(record, channel, mode="restore")
    with (library(patched) / "torch" / "__init__.py").open("a") as file:
        file.write("#\n")
    with pytest.raises(OpsError, match=r"torch/__init__\.py` of `torch` cannot be copied"):
        releases.build(job_context, record, channel, made)
    assert list(record.releases.iterdir()) == [patched]


def test_a_release_that_came_into_use_after_the_plan_is_not_what_is_restored(record: ServiceRecord, channel: Channel, patched: Path,
                                                                            job_context: Context):
    made = plan.make(record, channel, mode="restore")
    full = plan.make(record, channel)
    release = releases.build(job_context, record, channel, full)
    releases.verify(job_context, record, release, full)
    releases.switch(record, release)
    with pytest.raises(OpsError, match="not the one that the plan restores"):
        releases.build(job_context, record, channel, made)
    assert {found.name for found in releases.listing(record)} == {release.name, patched.name}


def test_progress_is_an_estimate_until_it_is_a_count(record: ServiceRecord, job_context: Context, events: Events, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "PROGRESS_S", 0.001)
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "vllm", "0.17.0+practice", files={f"vllm/{number}.bin": os.urandom(1000) for number in range(3000)})
    channel = channel_of(wheels)
    releases.build(job_context, record, channel, plan.make(record, channel))
    *guesses, last = events.of("step.progress")
    assert guesses and {told["estimate"] for told in guesses} == {True} and {told["unit"] for told in guesses} == {"files"}
    assert all(told["done"] <= told["total"] for told in guesses) and [told["done"] for told in guesses] == sorted(told["done"] for told in guesses)
    assert last["estimate"] is False and last["done"] == last["total"] > 3000


def test_what_is_fetched_is_told_by_the_announced_sizes(record: ServiceRecord, channel: Channel, job_context: Context, events: Events, live: Path):
    rows = [{"name": "big-one", "file": None, "size_bytes": 800}, {"name": "other", "file": None, "size_bytes": 200}]
    with building.progress(job_context, live, Channel(name="i", kind="index", index_url="public"), rows) as arrived:
        for line in ("Downloading big_one (800B)", " Downloaded big_one", " Downloaded other", "Prepared 2 packages in 1ms"):
            arrived(line)
    told = [(event["done"], event["total"], event["unit"], event["estimate"]) for event in events.of("step.progress") if "fetched" in event["text"]]
    assert told == [(800, 1000, "bytes", True), (1000, 1000, "bytes", True)]
