"""Wheels whose RECORD is wrong when they are published: no edit, wherever they come from; and an edit of such a file is one even so."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from ops.environments import faulty_wheels, integrity, plan, releases
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Deploy, Events, channel_of, library, make_wheelhouse

NATIVE = "native/_native.so"
STRIPPED, WRITTEN_DOWN = b"\x7fELF stripped", b"\x7fELF with symbols"


def recorded(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def faulty_wheel(folder: Path) -> Path:
    """A wheel with one file that was changed after RECORD was written, and one that RECORD lists although it was taken out again
    (installers leave it out of the RECORD that they write)."""
    made = make_wheel(folder, "native", "1.0", files={"native/__init__.py": "LEVEL = 1\n", NATIVE: WRITTEN_DOWN, "native/gone.py": "x = 1\n"})
    with zipfile.ZipFile(made) as archive:
        body = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in body.items():
            if path != "native/gone.py":
                entry = zipfile.ZipInfo(path, date_time=(2026, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, STRIPPED if path == NATIVE else content)
    return made


@pytest.fixture
def channel(tmp_path: Path) -> Channel:
    """Of a wheelhouse in which the newest vllm comes with a wheel whose RECORD is wrong."""
    wheels = make_wheelhouse(tmp_path / "wheelhouse")
    faulty_wheel(wheels)
    made = channel_of(wheels)
    made.requirements = ["vllm", "native"]
    return made


@pytest.fixture
def known_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty_wheels, "table", dict)


@pytest.mark.usefixtures("known_nowhere")
def test_a_wheel_whose_record_is_wrong_is_told_as_that_and_can_be_used(record: ServiceRecord, channel: Channel, job_context: Context, events: Events):
    made = plan.make(record, channel)
    release = releases.build(job_context, record, channel, made)
    assert [found.path.rsplit("/", 1)[1] for found in integrity.check(release).findings] == ["_native.so"]
    assert releases.verify(job_context, record, release, made).leaks == []
    (told,) = events.of("finding")
    assert (told["level"], told["title"]) == ("note", f"The wheel of `native` has a wrong RECORD: `{NATIVE}` is not as it says")
    report = integrity.check(release)
    assert report.clean and len(report.as_in_wheel) == 1
    releases.switch(record, release)
    assert plan.make(record, channel).edited == []


@pytest.mark.usefixtures("known_nowhere")
def test_what_one_release_learned_of_a_wheel_the_next_one_knows(record: ServiceRecord, channel: Channel, deploy: Deploy, events: Events):
    first = deploy()
    events.clear()
    assert deploy() != first
    assert events.of("finding") == [] and "dropped" not in events.text.lower()


@pytest.mark.usefixtures("known_nowhere")
def test_another_content_of_such_a_file_is_an_edit(record: ServiceRecord, channel: Channel, deploy: Deploy):
    release = deploy()
    (library(release) / NATIVE).write_bytes(b"\x7fELF with a debug hook")
    report = integrity.check(release)
    assert [Path(found.path).name for found in report.changed] == ["_native.so"] and report.as_in_wheel == []
    assert plan.make(record, channel).edited == ["native"]


@pytest.mark.usefixtures("known_nowhere")
def test_an_edit_that_came_back_through_the_cache_is_told_beside_a_wrong_record(record: ServiceRecord, channel: Channel, job_context: Context):
    made = plan.make(record, channel)
    releases.remove(record, releases.build(job_context, record, channel, made))
    (cached,) = plan.default_uv(record).cache.glob("archive-v*/*/native/__init__.py")
    cached.write_text("LEVEL = 2\n")
    release = releases.build(job_context, record, channel, made)
    assert releases.verify(job_context, record, release, made).leaks == [
        "The edit to `native/__init__.py` came back through uv's cache: `native` was dropped from it and installed anew"]
    assert (library(release) / "native" / "__init__.py").read_text() == "LEVEL = 1\n"


@pytest.mark.usefixtures("known_nowhere")
def test_restoring_another_package_takes_such_a_file_over_as_it_is(record: ServiceRecord, channel: Channel, deploy: Deploy, job_context: Context):
    (library(deploy()) / "vllm" / "model.py").write_text("edited = 1\n")
    made = plan.make(record, channel, mode="restore")
    assert made.restore == ["vllm"]
    release = releases.build(job_context, record, channel, made)
    releases.verify(job_context, record, release, made)
    assert (library(release) / NATIVE).read_bytes() == STRIPPED and integrity.check(release).clean


def test_a_known_wheel_is_no_edit_in_anybodys_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(faulty_wheels, "table", lambda: {(NATIVE, recorded(WRITTEN_DOWN)): recorded(STRIPPED)})
    env = tmp_path / "env"
    for words in (["venv", "--python", sys.executable, env], ["pip", "install", "--python", env, "--no-index", faulty_wheel(tmp_path / "wheels")]):
        subprocess.run([uv.find_uv_bin(), *words, "-q", "--cache-dir", tmp_path / "cache"], check=True)
    report = integrity.check(env)
    assert report.clean and [Path(found.path).name for found in report.as_in_wheel] == ["_native.so"]
    (library(env) / NATIVE).write_bytes(WRITTEN_DOWN + b" and more")
    assert [Path(found.path).name for found in integrity.check(env).changed] == ["_native.so"]


def test_a_spoiled_manifest_hides_nothing_and_stops_nothing(tmp_path: Path):
    env = tmp_path / "env"
    for words in (["venv", "--python", sys.executable, env], ["pip", "install", "--python", env, "--no-index", faulty_wheel(tmp_path / "wheels")]):
        subprocess.run([uv.find_uv_bin(), *words, "-q", "--cache-dir", tmp_path / "cache"], check=True)
    for content, problems in (("{", 1), ('{"unlike_record": 7}', 0), (json.dumps({"unlike_record": [["a"], [1, 2, 3], None]}), 0)):
        (env / "roundhouse-release.json").write_text(content)
        report = integrity.check(env)
        assert len(report.findings) == 1 and len(report.problems) == problems


def test_the_table_holds_one_hash_for_each_file():
    assert len(faulty_wheels.table()) >= 18
    for (path, said), actual in faulty_wheels.table().items():
        assert re.fullmatch(r"[\w./+-]+", path) and not path.startswith("/")
        assert re.fullmatch(r"sha256=[\w-]{43}", said) and re.fullmatch(r"sha256=[\w-]{43}", actual) and said != actual


@pytest.mark.slow
@pytest.mark.parametrize("install", ["uv", "pip"])
def test_the_real_one_that_vllm_needs_is_clean(install: str, tmp_path: Path, run_installer: Callable[[str, Path, str], str | None]):
    """43 MB. Every vLLM since 0.25 has it."""
    if (refused := run_installer(install, tmp_path / "env", "pynvvideocodec==2.0.4")) is not None:
        pytest.skip(f"No wheel of it here: {refused}")
    report = integrity.check(tmp_path / "env")
    assert report.clean, report.as_plain()
    assert len(report.as_in_wheel) == 2


@pytest.fixture
def run_installer(tmp_path: Path) -> Callable[[str, Path, str], str | None]:
    """Makes an environment with one distribution, without what it needs; the last line of the installer where it has no such wheel, else None."""

    def install(name: str, env: Path, wanted: str) -> str | None:
        subprocess.run([uv.find_uv_bin(), "venv", "-q", "--seed", "--python", sys.executable, env], check=True)
        options = ["--only-binary", ":all:", "--no-deps", wanted]
        argv = ([uv.find_uv_bin(), "pip", "install", "--cache-dir", tmp_path / "cache", "--python", env, *options] if name == "uv"
                else [env / "bin" / "python", "-m", "pip", "install", "--no-cache-dir", *options])
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stderr.strip().splitlines()[-1] if done.returncode else None

    return install
