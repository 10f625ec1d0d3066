"""uv's cache when it cannot be used: nothing of it may decide what is planned, and nobody has to mend it by hand."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.environments import plan, releases, wheelhouse
from ops.environments.uv import Uv
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.ops.environments.conftest import Events

NEW = "0.16.0rc2.dev344+practice"


def archive(cache: Path, name: str) -> Path:
    """Where the cache has the newest wheel of a package unpacked."""
    return max(path.parents[1] for path in cache.glob(f"archive-v*/*/{name}-*.dist-info/RECORD"))


def no_record(cache: Path) -> None:
    next(archive(cache, "torch").glob("*.dist-info/RECORD")).unlink()


def no_metadata(cache: Path) -> None:
    for folder in cache.glob("archive-v*/*/vllm-*.dist-info"):
        shutil.rmtree(folder)


def no_folder(cache: Path) -> None:
    for folder in cache.glob("archive-v*/*/flashinfer_python-*.dist-info"):
        shutil.rmtree(folder.parent)


def pointers_cut(cache: Path) -> None:
    cut = [path for path in cache.glob("wheels-v*/**/vllm/*.rev") if path.write_bytes(path.read_bytes()[:10])]
    assert cut


@pytest.mark.parametrize("damage", [no_record, no_metadata, no_folder, pointers_cut])
def test_what_is_damaged_is_dropped_and_the_plan_is_as_if_nothing_was(record: ServiceRecord, channel: Channel, job_context: Context, events: Events,
                                                                     damage: Callable[[Path], None]) -> None:
    first = plan.make(record, channel)
    shutil.rmtree(releases.build(job_context, record, channel, first))
    damage(plan.default_uv(record).cache)
    told: list[str] = []
    again = plan.make(record, channel, log=told.append)
    assert again.version == NEW and plan.same_build(first, again)
    assert any("uv's cache is damaged: dropped" in line for line in told)
    release = releases.build(job_context, record, channel, again)
    assert releases.verify(job_context, record, release, again).leaks == []


def test_what_is_damaged_after_the_plan_is_dropped_by_the_build(record: ServiceRecord, channel: Channel, job_context: Context,
                                                                events: Events) -> None:
    made = plan.make(record, channel)
    shutil.rmtree(releases.build(job_context, record, channel, made))
    no_record(plan.default_uv(record).cache)
    release = releases.build(job_context, record, channel, made)
    assert "uv's cache is damaged: dropped torch from it" in events.text
    assert releases.verify(job_context, record, release, made).checked_files > 0


@pytest.mark.parametrize("parent", [False, True])
def test_a_cache_that_is_no_folder_is_an_expected_failure(record: ServiceRecord, channel: Channel, tmp_path: Path, parent: bool) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpsError, match=r"uv's cache .* cannot be made") as caught:
        plan.make(record, channel, uv=Uv(cache=tmp_path / "file" / "cache" if parent else tmp_path / "file"))
    assert "agent's user" in caught.value.hint


def test_folders_of_fetches_that_were_killed_go_and_those_of_running_ones_stay(wheels: Path, channel: Channel, tmp_path: Path) -> None:
    uv, lock = Uv(cache=tmp_path / "cache"), tmp_path / "lock.txt"
    left = uv.cache / "fetch-killed"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    wheel = next(wheels.glob("flashinfer_cubin-0.6.3*"))
    lock.write_text(f"flashinfer-cubin==0.6.3+practice --hash=sha256:{wheelhouse.sha256(wheel)}\n")
    with uv._folder_in_cache() as running:
        uv.fetch(lock, channel, os.path.realpath(sys.executable))
        assert running.is_dir() and not left.exists()
    assert not list(uv.cache.glob("fetch-*"))
