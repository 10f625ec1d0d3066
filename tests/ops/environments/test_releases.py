from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uv

from ops.environments import integrity, plan, releases
from ops.environments.uv import Uv
from ops.jobs.errors import BadInput, Cancelled, OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from ops.services import state
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Deploy, Events, channel_of, library, make_context, make_wheelhouse


def test_build_verify_switch(record: ServiceRecord, channel: Channel, job_context: Context, events: Events):
    made = plan.make(record, channel)
    assert releases.current(record) is None
    release = releases.build(job_context, record, channel, made)
    assert release == record.releases / made.release
    result = releases.verify(job_context, record, release, made)
    assert result.checked_files > 10 and result.vllm_version == "0.16.0rc2.dev344+practice" and result.imported == ["vllm", "flashinfer"]
    releases.switch(record, release)
    assert releases.current(record) == release
    assert record.current.readlink() == Path("releases", release.name)
    assert not (release / releases.MARKER).exists()
    assert [event["unit"] for event in events.of("step.progress")][:1] == ["files"]
    assert " + vllm==0.16.0rc2.dev344+practice" in events.text


def test_installed_files_are_copies_so_an_edit_cannot_reach_the_cache(record: ServiceRecord, channel: Channel, live: Path, deploy: Deploy):
    edited = library(live) / "vllm" / "model.py"
    assert edited.stat().st_nlink == 1
    with edited.open("a") as file:
        file.write("LEFTOVER = True\n")
    again = deploy("0.16.0rc2.dev313")
    assert "LEFTOVER" not in (library(again) / "vllm" / "model.py").read_text()
    assert integrity.check(again).clean


def test_a_build_from_another_plan_is_refused(record: ServiceRecord, channel: Channel, job_context: Context):
    made = plan.make(record, channel)
    with pytest.raises(BadInput):
        releases.build(job_context, record, dataclasses.replace(channel, name="other"), made)


def test_a_wheel_that_was_replaced_after_the_plan_is_not_installed(record: ServiceRecord, job_context: Context, tmp_path: Path):
    channel = channel_of(make_wheelhouse(tmp_path / "own"))
    made = plan.make(record, channel)
    make_wheel(tmp_path / "own", "torch", "2.10.0+practice", files={"torch/__init__.py": "evil = 1\n"})
    release = releases.build(job_context, record, channel, made)  # uv still has the planned wheel in its cache, by its hash
    assert "evil" not in (library(release) / "torch" / "__init__.py").read_text()
    shutil.rmtree(plan.default_uv(record).cache)
    with pytest.raises(OpsError, match="is not the one that was planned"):
        releases.build(job_context, record, channel, made)
    assert list(record.releases.iterdir()) == [release]  # nothing half built stays


def test_a_cancelled_build_leaves_nothing(record: ServiceRecord, channel: Channel, tmp_path: Path, events: Events):
    made = plan.make(record, channel)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        releases.build(make_context(tmp_path, record, events, cancel=cancel), record, channel, made)
    assert list(record.releases.iterdir()) == []


def test_a_build_that_is_cancelled_while_uv_runs_ends_uv_and_leaves_nothing(record: ServiceRecord, channel: Channel, live: Path, tmp_path: Path,
                                                                            events: Events, monkeypatch: pytest.MonkeyPatch):
    """uv is too quick for this, so a stand-in lets its install wait."""
    slow = tmp_path / "uv"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *"pip install"*) echo $$ > {tmp_path}/pid; exec sleep 60;; esac\nexec {uv.find_uv_bin()} "$@"\n')
    slow.chmod(0o755)
    made = plan.make(record, channel)
    monkeypatch.setattr(uv, "find_uv_bin", lambda: str(slow))
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        releases.build(make_context(tmp_path, record, events, cancel=cancel), record, channel, made)
    assert time.monotonic() - began < 15
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    assert list(record.releases.iterdir()) == [live] and releases.current(record) == live


@pytest.fixture
def small_disk(record: ServiceRecord) -> Iterator[None]:
    """The service's folder on a file system of 12 MB of its own."""
    record.folder.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", record.folder], capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root")
    yield
    subprocess.run(["umount", record.folder], check=True)


def test_a_full_disk_fails_the_build_with_the_reason(small_disk: None, record: ServiceRecord, live: Path, job_context: Context, tmp_path: Path):
    wheels = tmp_path / "big"
    make_wheel(wheels, "vllm", "0.17.0+practice", files={"vllm/__init__.py": "", "vllm/big.bin": os.urandom(16 * 1024 * 1024)})
    made = plan.make(record, channel_of(wheels))
    assert "There is not enough disk" in made.stops[0]["title"]
    with pytest.raises(OpsError, match="There is not enough disk") as caught:
        releases.build(job_context, record, channel_of(wheels), made)
    assert caught.value.kind == "disk_full" and "nothing was changed" in caught.value.hint
    unknown = dataclasses.replace(made, disk={**made.disk, "needed_bytes": None})  # as where an index tells no sizes: uv finds out in the middle
    with pytest.raises(OpsError) as caught:
        releases.build(job_context, record, channel_of(wheels), unknown)
    assert caught.value.what == "The disk is full" and "No space left" in caught.value.why
    assert list(record.releases.iterdir()) == [live]
    assert releases.current(record) == live and integrity.check(live).clean


KILLED = """
import json, os, signal, sys
from pathlib import Path
from ops.environments import plan, releases
from ops.environments.uv import Uv
from ops.records import Channel, ServiceRecord
from tests.ops.environments.conftest import Events, make_context
record, channel, made = (json.loads(text) for text in sys.argv[2:5])
record, channel, made = ServiceRecord.from_dict(record), Channel.from_dict(channel), plan.from_dict(made)
Uv.install = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
releases.build(make_context(Path(sys.argv[1]), record, Events()), record, channel, made)
"""


def test_a_build_that_was_killed_is_recognised_and_built_anew(record: ServiceRecord, channel: Channel, live: Path, job_context: Context,
                                                              tmp_path: Path):
    made = plan.make(record, channel)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), json.dumps(record.as_dict()), json.dumps(channel.as_dict()),
                            json.dumps(made.as_dict())], cwd=Path(__file__).parents[3])
    assert ended.returncode == -9
    half = record.releases / made.release
    assert (half / releases.MARKER).exists()
    assert [found.unfinished for found in releases.listing(record)] == [True, False]
    for refused in (lambda: releases.switch(record, half), lambda: releases.verify(job_context, record, half, made)):
        with pytest.raises(OpsError):
            refused()
    assert releases.build(job_context, record, channel, made) == half
    assert releases.verify(job_context, record, half, made).checked_files
    assert releases.current(record) == live


def test_unfinished_and_unverified_releases_are_removed(record: ServiceRecord, channel: Channel, live: Path, job_context: Context):
    failed = releases.build(job_context, record, channel, plan.make(record, channel))
    foreign = record.releases / "by-hand"
    (foreign / "bin").mkdir(parents=True)
    (record.releases / ".removing-old").mkdir()
    assert releases.remove_unfinished(record) == [failed.name]
    assert sorted(folder.name for folder in record.releases.iterdir()) == sorted([live.name, "by-hand"])


def test_verify_finds_an_edit_a_stray_file_and_another_version(record: ServiceRecord, channel: Channel, job_context: Context):
    made = plan.make(record, channel)
    release = releases.build(job_context, record, channel, made)
    with (library(release) / "vllm" / "config.py").open("a") as file:
        file.write("#\n")
    (library(release) / "debug.pth").write_text("import os\n")
    metadata = library(release) / "torch-2.10.0+practice.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.10.0", "2.9.0"))
    with pytest.raises(OpsError) as caught:
        releases.verify(job_context, record, release, made)
    assert "`torch` is 2.9.0+practice, planned was 2.10.0+practice" in caught.value.why
    assert "config.py" in caught.value.why and "debug.pth" in caught.value.why
    with pytest.raises(BadInput, match="never verified"):
        releases.switch(record, release)


def test_verify_tells_why_an_import_fails(record: ServiceRecord, job_context: Context, tmp_path: Path):
    wheels = make_wheelhouse(tmp_path / "own")
    make_wheel(wheels, "vllm", "0.16.0rc2.dev400+practice", files={"vllm/__init__.py": "import no_such_module\n"},
               entry_points="[console_scripts]\nvllm = vllm:main\n")
    made = plan.make(record, channel_of(wheels))
    release = releases.build(job_context, record, channel_of(wheels), made)
    with pytest.raises(OpsError) as caught:
        releases.verify(job_context, record, release, made)
    assert caught.value.what.endswith("`import vllm` fails: ModuleNotFoundError: No module named 'no_such_module'")


def test_with_coupling_off_the_release_passes_with_a_warning(record: ServiceRecord, channel: Channel, live: Path, job_context: Context,
                                                             events: Events):
    made = plan.make(record, channel, coupling=False)
    release = releases.build(job_context, record, channel, made)
    result = releases.verify(job_context, record, release, made)
    assert result.imported == ["vllm"]
    assert any("does not match flashinfer version" in warning for warning in result.warnings)
    assert {found["level"] for found in events.of("finding")} == {"warning"}


def test_a_mismatch_in_a_completed_plan_does_not_pass(record: ServiceRecord, channel: Channel, live: Path, job_context: Context):
    made = plan.make(record, channel, coupling=False)
    release = releases.build(job_context, record, channel, made)
    with pytest.raises(OpsError, match="Packages do not agree"):
        releases.verify(job_context, record, release, dataclasses.replace(made, coupling=True))


def test_readers_always_see_one_whole_release(record: ServiceRecord, channel: Channel, live: Path, deploy: Deploy):
    other = deploy()
    seen, wrong, stop = set(), [], threading.Event()

    def look() -> None:
        while not stop.is_set():
            try:
                seen.add(str(record.current.readlink()))
                if not (record.current / "bin" / "python").exists():
                    wrong.append("not whole")
            except OSError as error:
                wrong.append(repr(error))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(25):
        releases.switch(record, live)
        releases.switch(record, other)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and seen <= {f"releases/{live.name}", f"releases/{other.name}"}
    assert list(record.folder.glob(".current*")) == []


def test_switch_refuses_what_is_no_release_of_the_service(record: ServiceRecord, live: Path, tmp_path: Path):
    for path in (tmp_path, record.releases / "..", record.releases / "no-such", record.releases):
        with pytest.raises(BadInput):
            releases.switch(record, path)
    assert releases.current(record) == live


def test_the_release_before_can_always_be_gone_back_to(record: ServiceRecord, channel: Channel, live: Path, deploy: Deploy):
    deploy()
    (live / releases.MANIFEST).unlink()  # an environment that was there before us
    releases.switch(record, live)
    assert releases.current(record) == live


def test_neither_the_release_in_use_nor_the_last_good_one_can_be_removed(record: ServiceRecord, channel: Channel, live: Path, deploy: Deploy):
    releases.mark_good(record, live)
    second = deploy()
    for release in (live, second):
        with pytest.raises(BadInput):
            releases.remove(record, release)
    third = deploy("0.16.0rc2.dev313")
    releases.remove(record, second)
    assert [found.name for found in releases.listing(record)] == sorted([third.name, live.name], reverse=True)
    assert state.read(record)["last_good"] == releases.last_good(record) == live.name


def test_listing_tells_version_size_and_state(record: ServiceRecord, live: Path):
    (found,) = releases.listing(record)
    assert (found.version, found.verified, found.is_current, found.unfinished) == ("0.16.0rc2.dev313+practice", True, True, False)
    assert found.size_bytes is not None and found.size_bytes > 10_000 and found.built_at is not None and time.time() - found.built_at < 120


def test_a_link_that_points_nowhere_is_no_release(record: ServiceRecord, live: Path):
    record.current.unlink()
    record.current.symlink_to("releases/gone")
    assert releases.current(record) is None


def test_two_builds_of_one_plan_get_two_names(record: ServiceRecord, channel: Channel, job_context: Context):
    made = plan.make(record, channel)
    one = releases.build(job_context, record, channel, made)
    other = releases.build(job_context, record, channel, made)
    assert other.name == f"{one.name}-2"


def test_two_builds_at_once_do_not_touch_one_another(record: ServiceRecord, channel: Channel, live: Path, job_context: Context,
                                                     monkeypatch: pytest.MonkeyPatch):
    """The second one neither takes the first for a killed one, nor does tidying up."""
    made = plan.make(record, channel)
    begun, go_on = threading.Event(), threading.Event()
    real = Uv.install

    def slow(self: Uv, env: Path, *args: object, **kwargs: object) -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(60)
        real(self, env, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Uv, "install", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(releases.build, job_context, record, channel, made)
        assert begun.wait(60)
        second = releases.build(job_context, record, channel, made)
        assert releases.remove_unfinished(record, keep=second.name) == []
        half = record.releases / made.release
        assert releases.is_being_built(half) and half.is_dir()
        with pytest.raises(BadInput, match="is being built"):
            releases.remove(record, half)
        go_on.set()
        assert first.result(60) == half
    assert {half.name, second.name} == {made.release, f"{made.release}-2"}
    for release in (half, second):
        assert releases.verify(job_context, record, release, made).checked_files
    assert not list(record.releases.glob(".removing-*"))
