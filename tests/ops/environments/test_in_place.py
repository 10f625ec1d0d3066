"""An environment that may not move: copied, changed, named, and exchanged back, from whatever moment."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.environments import in_place, integrity, packages, plan, pruning, releases
from ops.environments.in_place import Change
from ops.environments.uv import Uv
from ops.jobs import claim
from ops.jobs.errors import BadInput, Busy, OpsError, Refused
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.ops.environments.conftest import library

OLD, NEW = "0.16.0rc2.dev313+practice", "0.16.0rc2.dev344+practice"


@pytest.fixture
def environment(tmp_path: Path, wheels: Path) -> Path:
    """dev313 with flashinfer 0.6.3, as somebody made it, with an edit and a stray file."""
    folder = tmp_path / "envs" / "vllm"
    uv = Uv(cache=tmp_path / "somebodys-cache")
    uv.venv(folder, python=sys.executable)
    uv._run(["pip", "install", "--python", str(folder / "bin" / "python"), "--no-index", "--find-links", str(wheels), "--no-build", "--prerelease",
             "allow", "vllm==0.16.0rc2.dev313", "flashinfer-cubin==0.6.3"], 60)
    (library(folder) / "vllm" / "config.py").write_text("DEBUG = True\n")
    (library(folder) / "vllm" / "debug_hook.py").write_text("print(1)\n")
    return folder


@pytest.fixture
def adopted(record: ServiceRecord, environment: Path, job_context: Context) -> ServiceRecord:
    made = dataclasses.replace(record, environment=str(environment), in_place=True)
    job_context.service = made
    job_context.config.environment_roots.append(str(environment.parent))
    releases.adopt(made)
    return made


@pytest.fixture
def begun(adopted: ServiceRecord, channel: Channel, job_context: Context) -> Callable[[], tuple[plan.Plan, Change]]:
    """A change whose copy is made and whose wheels are at hand, as before the service is stopped."""

    def go() -> tuple[plan.Plan, Change]:
        made = plan.make(adopted, channel)
        in_place.fetch(job_context, adopted, channel, made)
        change = in_place.copy_beforehand(job_context, adopted, in_place.begin(adopted, made))
        return made, dataclasses.replace(change, begun=True)

    return go


def version(folder: Path) -> str | None:
    return packages.read(folder).version("vllm")


def runs(folder: Path) -> str:
    """What its own `vllm` says: scripts name the place where the environment lies."""
    return subprocess.run([folder / "bin" / "vllm"], capture_output=True, text=True, check=True).stdout.strip()


def install(context: Context, record: ServiceRecord, channel: Channel, made: plan.Plan, change: Change) -> Path:
    extra = [found.path for found in integrity.check(change.environment).extra]
    return in_place.install(context, record, channel, made, change, extra)


def test_adopting_makes_links_and_writes_nothing_into_the_environment(record: ServiceRecord, environment: Path):
    adopted = dataclasses.replace(record, environment=str(environment))
    before = {path: path.lstat().st_mtime_ns for path in (environment, *environment.rglob("*"))}
    release = releases.adopt(adopted)
    assert releases.adopt(adopted) == release == releases.current(adopted)
    (found,) = releases.listing(adopted)
    assert (found.name, found.kind, found.target, found.version, found.is_current) == ("adopted", "adopted", str(environment), OLD, True)
    known = releases.manifest(release)
    assert known is not None and known["version"] == OLD and known["channel"] is None and (known["size_bytes"] or 0) > 10_000
    assert {path: path.lstat().st_mtime_ns for path in (environment, *environment.rglob("*"))} == before


def test_what_is_no_environment_cannot_be_adopted(record: ServiceRecord, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for path in ("", str(tmp_path / "empty"), str(tmp_path / "nothing"), "/etc/passwd"):
        with pytest.raises(BadInput):
            releases.adopt(dataclasses.replace(record, environment=path))
    assert not record.current.exists() and releases.listing(record) == []


def test_a_redeploy_beside_leaves_an_adopted_environment_as_it_is_and_the_way_back_is_a_switch(record: ServiceRecord, environment: Path,
                                                                                            channel: Channel, job_context: Context):
    adopted = dataclasses.replace(record, environment=str(environment))
    job_context.service = adopted
    releases.adopt(adopted)
    made = plan.make(adopted, channel)
    release = releases.build(job_context, adopted, channel, made)
    releases.verify(job_context, adopted, release, made)
    releases.switch(adopted, release)
    assert version(adopted.current) == NEW and version(environment) == OLD
    releases.switch(adopted, adopted.releases / releases.ADOPTED)
    assert version(adopted.current) == OLD and releases.current(adopted) == adopted.releases / "adopted"
    releases.switch(adopted, release)
    releases.remove(adopted, adopted.releases / "adopted")
    assert version(environment) == OLD and [found.name for found in releases.listing(adopted)] == [release.name]


def test_install_verify_and_take_over(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                      begun: Callable[[], tuple[plan.Plan, Change]]):
    made, change = begun()
    assert made.in_place and made.rollback["possible"] and change.backup == made.rollback["backup"]
    assert version(Path(str(change.backup))) == OLD and (library(Path(str(change.backup))) / "vllm" / "debug_hook.py").exists()
    identity = environment.stat().st_ino
    release = install(job_context, adopted, channel, made, change)
    assert releases.verify(job_context, adopted, release, made).vllm_version == "0.16.0rc2.dev344+practice"
    in_place.take_over(adopted, change)
    assert environment.stat().st_ino == identity and releases.current(adopted) == release and release.is_symlink()
    assert runs(environment) == NEW and integrity.check(environment).clean
    assert not list(environment.glob("roundhouse-*"))  # what is known of it lies beside the link
    told = {found.name: (found.kind, found.version, found.target) for found in releases.listing(adopted)}
    assert told == {release.name: ("in-place", NEW, str(environment)), "adopted": ("backup", OLD, change.backup)}


def test_a_roll_back_exchanges_the_folders_and_forth_again(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                         begun: Callable[[], tuple[plan.Plan, Change]]):
    made, change = begun()
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    in_place.take_over(adopted, change)
    for name, wanted in (("adopted", OLD), (release.name, NEW), ("adopted", OLD)):
        back = in_place.begin_exchange(adopted, adopted.releases / name)
        for _ in range(2):  # repeatable
            in_place.exchange(adopted, back)
        assert runs(environment) == version(adopted.current) == wanted
        live = releases.current(adopted)
        assert live is not None and live.name == name
    assert integrity.check(environment).extra[0].path.endswith("debug_hook.py")  # the edits came back with it
    assert sorted(found.kind for found in releases.listing(adopted)) == ["adopted", "backup"]


MOMENTS = ("copied", "installed", "linked", "switched", "owner moved")


@pytest.mark.parametrize("moment", [pytest.param(moment, marks=() if moment == "switched" else pytest.mark.slow) for moment in MOMENTS])
def test_from_every_moment_the_environment_comes_back_as_it_was(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                              begun: Callable[[], tuple[plan.Plan, Change]], moment: str):
    _, change = begun()
    at = MOMENTS.index(moment)
    if at >= 1:
        shutil.rmtree(library(environment) / "vllm")  # as an install that was killed leaves it
    if at >= 2:
        releases.point(adopted.releases / change.release, environment)
        releases.write_manifest(adopted, adopted.releases / change.release, kind="in-place")
    if at >= 3:
        releases.point(adopted.current, Path("releases", change.release))
    if at >= 4:
        releases.point(adopted.releases / change.owner, Path(str(change.backup)))
    for _ in range(2):
        in_place.put_back(adopted, change)
    assert runs(environment) == version(adopted.current) == OLD
    assert (library(environment) / "vllm" / "debug_hook.py").exists()
    for _ in range(2):
        in_place.discard(adopted, change)
    assert [found.name for found in releases.listing(adopted)] == ["adopted"]
    assert sorted(path.name for path in environment.parent.iterdir()) == ["vllm"]
    assert not list(adopted.releases.glob(f".{change.release}*"))


def test_an_exchange_without_the_kernels_help_survives_a_crash_between_any_two_renames(adopted: ServiceRecord, environment: Path,
                                                                                    begun: Callable[[], tuple[plan.Plan, Change]],
                                                                                    monkeypatch: pytest.MonkeyPatch):
    def unsupported(*arguments: Any) -> int:
        import ctypes

        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(in_place._libc, "renameat2", unsupported, raising=False)
    _, change = begun()
    shutil.rmtree(library(environment) / "vllm")
    real = Path.rename
    for crash_after in (1, 2, 3):
        left = [crash_after]

        def rename(self: Path, target: Path, left: list[int] = left) -> Path:
            if self.name.startswith((environment.name, ".removing")) and not left[0]:
                raise KeyboardInterrupt  # the process is gone
            left[0] -= 1
            return real(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", rename)
            try:
                in_place._hold(change, change.there)
            except KeyboardInterrupt:
                pass
        in_place._hold(change, change.there)
        assert runs(environment) == OLD and not (library(Path(str(change.backup))) / "vllm").exists()
        in_place._hold(change, change.here)
        assert not (library(environment) / "vllm").exists()


def test_no_room_for_the_copy_is_found_before_anything_is_changed(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                                monkeypatch: pytest.MonkeyPatch):
    made = plan.make(adopted, channel)
    change = in_place.begin(adopted, made)
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    with pytest.raises(OpsError, match="There is no room for a copy") as caught:
        in_place.copy_beforehand(job_context, adopted, change)
    assert caught.value.kind == "disk_full"
    assert [path.name for path in environment.parent.iterdir()] == ["vllm"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system of its own")
def test_a_disk_that_fills_up_during_the_copy_leaves_nothing_of_it(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                                 tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        (library(environment) / "weights.bin").write_bytes(os.urandom(10 * 1024 * 1024))
        shutil.copytree(environment, small / "vllm", symlinks=True)
        moved = dataclasses.replace(adopted, environment=str(small / "vllm"))
        job_context.config.environment_roots.append(str(small))
        releases.point(moved.releases / "adopted", small / "vllm")
        change = dataclasses.replace(in_place.begin(moved, plan.make(moved, channel)), backup=f"{small}/vllm.roundhouse-x")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
        with pytest.raises(OpsError, match="The disk is full"):
            in_place.copy_beforehand(job_context, moved, change)
        assert [path.name for path in small.iterdir()] == ["vllm"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_without_a_copy_there_is_no_way_back_and_it_is_said(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context):
    made = dataclasses.replace(plan.make(adopted, channel), rollback={"possible": False, "why": "no room", "backup": None, "backup_bytes": 1})
    in_place.fetch(job_context, adopted, channel, made)
    change = in_place.copy_beforehand(job_context, adopted, in_place.begin(adopted, made))
    assert change.backup is None and in_place.put_back(adopted, change) == ""
    change = dataclasses.replace(change, begun=True)
    with pytest.raises(OpsError, match="there is no copy to go back to"):
        in_place.put_back(adopted, change)
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    in_place.take_over(adopted, change)
    assert [(found.name, found.kind) for found in releases.listing(adopted)] == [(release.name, "in-place")]


def test_restoring_in_place_touches_only_the_edited_packages(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context):
    cubin = library(environment) / "flashinfer_cubin" / "__init__.py"
    before = cubin.stat().st_ino
    made = plan.make(adopted, channel, mode="restore")
    assert made.restore == ["vllm"]
    in_place.fetch(job_context, adopted, channel, made)
    change = dataclasses.replace(in_place.copy_beforehand(job_context, adopted, in_place.begin(adopted, made)), begun=True)
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    assert integrity.check(environment).clean and version(environment) == OLD and cubin.stat().st_ino == before


def test_the_nodes_owner_says_which_environments_may_be_changed(adopted: ServiceRecord, job_context: Context):
    assert in_place.check_allowed(job_context, adopted) == releases.environment(adopted)
    job_context.config.environment_roots.clear()
    with pytest.raises(Refused, match="does not allow the environment"):
        in_place.check_allowed(job_context, adopted)


def test_backups_are_limited_and_removed_with_their_folder(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                         begun: Callable[[], tuple[plan.Plan, Change]]):
    made, change = begun()
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    in_place.take_over(adopted, change)
    assert pruning.prune(None, adopted) == []
    releases.remove(adopted, adopted.releases / "adopted")
    assert [path.name for path in environment.parent.iterdir()] == ["vllm"]
    assert [found.name for found in releases.listing(adopted)] == [release.name]


def test_an_environment_that_is_gone_comes_back_from_its_copy(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                            begun: Callable[[], tuple[plan.Plan, Change]]):
    made, change = begun()
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    in_place.take_over(adopted, change)
    shutil.rmtree(environment)
    with pytest.raises(BadInput, match="no Python environment"):
        in_place.check_allowed(job_context, adopted)
    assert in_place.check_allowed(job_context, adopted, as_it_is=True) == environment
    back = in_place.begin_exchange(adopted, adopted.releases / "adopted")
    for _ in range(2):
        in_place.exchange(adopted, back)
    assert runs(environment) == OLD and releases.current(adopted) == adopted.releases / "adopted"
    assert [(found.name, found.kind) for found in releases.listing(adopted)] == [("adopted", "adopted")]  # of the other one nothing is left
    for _ in range(2):
        in_place.put_back(adopted, back, keep=True)
    assert not environment.exists() and [path.name for path in environment.parent.iterdir()] == [Path(str(change.backup)).name]
    in_place.exchange(adopted, in_place.begin_exchange(adopted, adopted.releases / "adopted"))
    assert runs(environment) == OLD


def test_a_copy_that_cannot_be_exchanged_has_a_name_to_roll_back_to(adopted: ServiceRecord, environment: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  begun: Callable[[], tuple[plan.Plan, Change]]):
    def refused(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    _, change = begun()
    shutil.rmtree(library(environment) / "vllm")
    with monkeypatch.context() as patch:
        patch.setattr(in_place, "_swap", refused)
        for _ in range(2):
            with pytest.raises(OpsError, match="cannot be exchanged"):
                in_place.put_back(adopted, change)
    told = {found.name: (found.kind, found.verified, found.is_current) for found in releases.listing(adopted)}
    assert told == {change.release: ("in-place", False, True), "adopted": ("backup", False, False)}
    in_place.exchange(adopted, in_place.begin_exchange(adopted, releases.check_usable(adopted, adopted.releases / "adopted")))
    assert runs(environment) == OLD and releases.current(adopted) == adopted.releases / "adopted"


@pytest.mark.parametrize("moment", ["set aside", "link gone"])
def test_a_removal_of_a_copy_that_was_cut_off_is_carried_out(adopted: ServiceRecord, environment: Path, channel: Channel, job_context: Context,
                                                           begun: Callable[[], tuple[plan.Plan, Change]], moment: str,
                                                           monkeypatch: pytest.MonkeyPatch):
    made, change = begun()
    release = install(job_context, adopted, channel, made, change)
    releases.verify(job_context, adopted, release, made)
    in_place.take_over(adopted, change)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(releases, "_unlink" if moment == "set aside" else "_delete", killed)
        with pytest.raises(KeyboardInterrupt):
            releases.remove(adopted, adopted.releases / "adopted")
    assert not Path(str(change.backup)).exists()
    releases.finish_removals(adopted)
    assert [path.name for path in environment.parent.iterdir()] == ["vllm"] and version(environment) == NEW
    assert [found.name for found in releases.listing(adopted)] == [release.name]
    assert not (adopted.releases / ".adopted.json").exists()


def test_nobody_starts_from_an_environment_that_another_job_changes(adopted: ServiceRecord, environment: Path, job_context: Context):
    other = dataclasses.replace(adopted, name="other", root=str(job_context.paths.services / "other"), in_place=False)
    releases.adopt(other)
    in_place.nobody_changes(job_context, other)
    job_context.paths.locks.mkdir()
    held = claim.lock_all(job_context.paths, [f"env:{environment}"])
    with pytest.raises(Busy):
        in_place.nobody_changes(job_context, other)
    in_place.nobody_changes(job_context, adopted)  # its own job has it
    claim.release(held)
    in_place.nobody_changes(job_context, other)
