"""Edits that come back through uv's cache: found, cleaned away, and told."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from ops.environments import integrity, plan, releases
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Events, channel_of, library


def cached(record: ServiceRecord, path: str) -> Path:
    """The file in uv's cache, of dev344 where there are several."""
    found = [file for file in plan.default_uv(record).cache.glob(f"archive-v*/*/{path}") if "dev313" not in str(list(file.parents[1].glob("vllm-*")))]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def made(record: ServiceRecord, channel: Channel, job_context: Context) -> plan.Plan:
    """A plan whose wheels lie unpacked in the cache, by an earlier build."""
    made = plan.make(record, channel)
    releases.remove(record, releases.build(job_context, record, channel, made))
    return made


def edit_with_record(path: Path) -> None:
    """Edits a cached file and the RECORD beside it, so that only the wheel itself can tell."""
    path.write_text("DEBUG = True\n")
    listed = next(path.parents[1].glob("vllm-*.dist-info")) / "RECORD"
    edited = base64.urlsafe_b64encode(hashlib.sha256(b"DEBUG = True\n").digest()).rstrip(b"=").decode()
    listed.write_text("".join(f"vllm/config.py,sha256={edited},13\n" if line.startswith("vllm/config.py") else line
                              for line in listed.read_text().splitlines(keepends=True)))


def test_an_edit_in_uvs_cache_is_cleaned_away_and_told(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context,
                                                       events: Events):
    with cached(record, "vllm/model.py").open("a") as file:
        file.write("LEFTOVER = True\n")
    release = releases.build(job_context, record, channel, made)
    assert "LEFTOVER" in (library(release) / "vllm" / "model.py").read_text()
    result = releases.verify(job_context, record, release, made)
    assert result.leaks == ["The edit to `vllm/model.py` came back through uv's cache: `vllm` was dropped from it and installed anew"]
    assert [found["title"] for found in events.of("finding")] == result.leaks
    assert "LEFTOVER" not in (library(release) / "vllm" / "model.py").read_text()
    assert "LEFTOVER" not in cached(record, "vllm/model.py").read_text()
    assert integrity.check(release).clean


def test_only_the_packages_that_came_back_edited_are_installed_twice(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context,
                                                                     events: Events):
    torch = cached(record, "torch/__init__.py")
    before = torch.stat().st_ino
    cached(record, "vllm/model.py").write_text("")
    release = releases.build(job_context, record, channel, made)
    assert len(releases.verify(job_context, record, release, made).leaks) == 1
    assert torch.stat().st_ino == before
    assert events.text.count(" + torch==") == 2 and events.text.count(" + vllm==") == 3  # the first build, this one, and once more


def test_an_edit_whose_record_was_made_to_fit_is_found_by_the_wheel(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context):
    edit_with_record(cached(record, "vllm/config.py"))
    release = releases.build(job_context, record, channel, made)
    assert integrity.check(release).clean and "True" in (library(release) / "vllm" / "config.py").read_text()
    (told,) = releases.verify(job_context, record, release, made).leaks
    assert "came back through uv's cache" in told and "`vllm/config.py`" in told
    assert (library(release) / "vllm" / "config.py").read_text() == "DEBUG = False\n"


def test_strays_missing_files_and_a_pth_file_of_the_cache_go_too(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context):
    config = cached(record, "vllm/config.py")
    (config.parent / "debug_hook.py").write_text("print(1)\n")
    (config.parents[1] / "hook.pth").write_text("import vllm.debug_hook\n")
    config.unlink()
    release = releases.build(job_context, record, channel, made)
    found = integrity.check(release)
    assert len(found.extra) == 2 and len(found.missing) == 1
    (told,) = releases.verify(job_context, record, release, made).leaks
    assert told.startswith("The edits to 3 files (")
    assert integrity.check(release).clean


def test_a_cache_that_cannot_be_cleaned_does_not_pass(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context,
                                                      monkeypatch: pytest.MonkeyPatch):
    """As if uv gave the edit out again: the release is not used, and the error names the file."""
    from ops.environments.uv import Uv

    monkeypatch.setattr(Uv, "clean_cache", lambda self, names: None)
    cached(record, "vllm/model.py").write_text("edited = 1\n")
    release = releases.build(job_context, record, channel, made)
    with pytest.raises(OpsError) as caught:
        releases.verify(job_context, record, release, made)
    assert "model.py" in caught.value.why and caught.value.kind == "not_verified"


def test_packages_that_are_edited_now_are_dropped_from_the_cache_before(record: ServiceRecord, channel: Channel, live: Path, job_context: Context,
                                                                        events: Events):
    """The live release's vllm is edited, and its cached wheel as well (as where files are hard links): the new one is clean at once."""
    first = library(live) / "vllm" / "model.py"
    made = plan.make(record, channel, version="0.16.0rc2.dev313")
    releases.build(job_context, record, channel, made)
    (one,) = [path for path in plan.default_uv(record).cache.glob("archive-v*/*/vllm/model.py") if path.read_text() == first.read_text()]
    first.unlink()
    os.link(one, first)
    with first.open("a") as file:
        file.write("LEFTOVER = True\n")
    made = plan.make(record, channel, version="0.16.0rc2.dev313")
    assert made.edited == ["vllm"]
    release = releases.build(job_context, record, channel, made)
    assert "Dropped from uv's cache, because their files were edited: vllm" in events.text
    assert releases.verify(job_context, record, release, made).leaks == []
    assert "LEFTOVER" not in (library(release) / "vllm" / "model.py").read_text() and "LEFTOVER" in first.read_text()


def test_a_file_that_nobody_can_account_for_does_not_pass(record: ServiceRecord, channel: Channel, made: plan.Plan, job_context: Context):
    release = releases.build(job_context, record, channel, made)
    (library(release) / "stranger.pth").write_text("import os\n")
    with pytest.raises(OpsError, match=r"stranger\.pth"):
        releases.verify(job_context, record, release, made)


NO_DEVICE = """\
def main():
    raise RuntimeError("Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`")
"""


@pytest.mark.parametrize(("gpus", "passes"), [([], True), ([0, 1], False)])
def test_a_vllm_that_finds_no_gpu_is_told_as_that_and_stops_a_service_that_has_some(record: ServiceRecord, tmp_path: Path, job_context: Context,
                                                                                     events: Events, gpus: list[int], passes: bool):
    make_wheel(tmp_path / "wheels", "vllm", "0.25.1+practice", files={"vllm/__init__.py": NO_DEVICE},
               entry_points="[console_scripts]\nvllm = vllm:main\n")
    record.gpus = gpus
    channel = channel_of(tmp_path / "wheels")
    made = plan.make(record, channel)
    release = releases.build(job_context, record, channel, made)
    words = "vLLM finds no GPU on this machine, so `vllm --version` does not answer"
    if passes:
        assert releases.verify(job_context, record, release, made).vllm_version is None
        assert [(found["level"], found["title"]) for found in events.of("finding")] == [("warning", words)]
    else:
        with pytest.raises(OpsError, match=words) as caught:
            releases.verify(job_context, record, release, made)
        assert "nvidia-smi" in caught.value.why and "Failed to infer device type" in caught.value.why
