"""Environments that somebody made to do harm: nothing outside of them is read into a release, written, or deleted, and nothing waits forever."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ops.environments import copying, in_place, integrity, packages, patches, plan, releases, wheelhouse
from ops.environments.uv import Uv
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import library

EXACT = ["--no-deps", "--no-index", "--no-build", "--link-mode", "copy"]


@pytest.fixture(autouse=True)
def no_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-cache"))


@pytest.fixture
def uv(tmp_path: Path) -> Uv:
    return Uv(cache=tmp_path / "cache")


@pytest.fixture
def env(tmp_path: Path, uv: Uv) -> Path:
    """An environment with the package `tool`."""
    folder = tmp_path / "deep" / "below" / "old"
    wheel = make_wheel(tmp_path / "wheels", "tool", "1.0", files={"tool/__init__.py": "", "tool/model.py": "a = 1\n"})
    uv.venv(folder, python=sys.executable)
    uv._run(["pip", "install", "--python", str(folder / "bin" / "python"), *EXACT, str(wheel)], 60)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious.txt").write_text("canary-of-a-secret\n")
    (folder / "model.py").write_text("canary-of-a-secret\n")
    return folder


def record_of(env: Path) -> Path:
    return library(env) / "tool-1.0.dist-info" / "RECORD"


def add_rows(env: Path, *rows: str) -> None:
    with record_of(env).open("a") as file:
        file.write("".join(f"{row}\n" for row in rows))


def new_one(tmp_path: Path, uv: Uv) -> Path:
    folder = tmp_path / "new"
    uv.venv(folder, python=sys.executable)
    return folder


# ---- taking over ----


def test_a_copy_takes_no_file_from_behind_a_link_to_a_folder(env: Path, outside: Path, tmp_path: Path, job_context: Context, uv: Uv):
    (library(env) / "linked").symlink_to(outside)
    add_rows(env, "linked/precious.txt,,")
    new = new_one(tmp_path, uv)
    with pytest.raises(OpsError, match="outside"):
        copying.copy(job_context, env, new, ["tool"])
    assert not list(library(new).rglob("precious.txt"))


def test_a_copy_takes_no_file_that_is_a_link_to_the_outside(env: Path, outside: Path, tmp_path: Path, job_context: Context, uv: Uv):
    (library(env) / "precious.txt").symlink_to(outside / "precious.txt")
    add_rows(env, "precious.txt,,")
    new = new_one(tmp_path, uv)
    with pytest.raises(OpsError, match="outside"):
        copying.copy(job_context, env, new, ["tool"])
    assert not list(library(new).rglob("precious.txt"))


def test_links_in_an_editable_project_lead_no_copy_out_of_the_new_environment(env: Path, tmp_path: Path, job_context: Context, uv: Uv):
    project = env / "src" / "tool"
    project.mkdir(parents=True)
    (library(env) / "tool-1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": f"file://{project}", "dir_info": {"editable": True}}))
    # from the old place the link leads into the environment, from the new one, which lies two folders higher, elsewhere
    (project / "sub").symlink_to("../../../../../deep/below/old/src/real")
    (env / "src" / "real").mkdir()
    (env / "src" / "real" / "planted.py").write_text("planted\n")
    away = (tmp_path / "new" / "src" / "tool" / "sub").parent / "../../../../../deep/below/old/src/real"
    assert not away.exists()
    elsewhere = Path(os.path.normpath(away))
    if not os.access(tmp_path.parents[1], os.W_OK):
        pytest.skip("cannot make the place where the link would lead")
    elsewhere.mkdir(parents=True)
    add_rows(env, "../../../src/tool/sub/planted.py,,")
    new = new_one(tmp_path, uv)
    try:
        with pytest.raises(OpsError):
            copying.copy(job_context, env, new, ["tool"])
        assert not list(elsewhere.iterdir())
    finally:
            shutil.rmtree(elsewhere)


def test_an_editable_project_that_is_the_environments_bin_overwrites_no_interpreter(env: Path, tmp_path: Path, job_context: Context, uv: Uv):
    base = tmp_path / "base-python"
    base.write_text("the interpreter of everybody\n")
    (env / "bin" / "evil").write_text("evil\n")
    (library(env) / "tool-1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": f"file://{env}/bin", "dir_info": {"editable": True}}))
    new = new_one(tmp_path, uv)
    (new / "bin" / "evil").symlink_to(base)
    with pytest.raises(OpsError):
        copying.copy(job_context, env, new, ["tool"])
    assert base.read_text() == "the interpreter of everybody\n"


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e9", "\u0663"])
def test_a_size_that_is_none_stops_no_copy(env: Path, tmp_path: Path, job_context: Context, uv: Uv, size: str):
    (library(env) / "extra.py").write_text("")
    add_rows(env, f"extra.py,,{size}")
    copying.copy(job_context, env, new := new_one(tmp_path, uv), ["tool"])
    assert (library(new) / "extra.py").is_file()


def test_a_pipe_in_the_place_of_a_record_is_an_error_at_once(env: Path, tmp_path: Path, job_context: Context, uv: Uv):
    record_of(env).unlink()
    os.mkfifo(record_of(env))
    with pytest.raises(OpsError, match="RECORD"):
        copying.copy(job_context, env, new_one(tmp_path, uv), ["tool"])


# ---- taking out ----


def test_taking_a_package_out_deletes_nothing_behind_a_link_to_a_folder(env: Path, outside: Path):
    (library(env) / "linked").symlink_to(outside)
    (outside / "__pycache__").mkdir()
    (outside / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"")
    add_rows(env, "linked/precious.txt,,", "linked/model.py,,", f"../../../../../../{outside.name}/model.py,,", f"{outside}/model.py,,")
    copying.uninstall(packages.read(env), "tool")
    assert sorted(path.name for path in outside.rglob("*")) == ["__pycache__", "model.cpython-311.pyc", "model.py", "precious.txt"]


def test_a_change_in_place_deletes_and_writes_nothing_behind_a_listed_link(
        record: ServiceRecord, channel: Channel, job_context: Context, tmp_path: Path, wheels: Path, uv: Uv, outside: Path):
    """uv itself follows a link to a folder when it takes a package out, and when it puts one in."""
    env = tmp_path / "envs" / "vllm"
    uv.venv(env, python=sys.executable)
    uv._run(["pip", "install", "--python", str(env / "bin" / "python"), "--no-index", "--find-links", str(wheels), "--no-build", "--prerelease",
             "allow", "vllm==0.16.0rc2.dev313", "flashinfer-cubin==0.6.3"], 60)
    shutil.rmtree(outside)
    (library(env) / "vllm").rename(outside)  # as somebody does who works on a checkout
    (library(env) / "vllm").symlink_to(outside)
    with next(library(env).glob("vllm-*.dist-info")).joinpath("RECORD").open("a") as file:
        file.write("vllm,,\n")  # so it is no stray
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    adopted = dataclasses.replace(record, environment=str(env), in_place=True)
    job_context.service = adopted
    job_context.config.environment_roots.append(str(env.parent))
    releases.adopt(adopted)
    made = plan.make(adopted, channel)
    in_place.fetch(job_context, adopted, channel, made)
    change = dataclasses.replace(in_place.copy_beforehand(job_context, adopted, in_place.begin(adopted, made)), begun=True)
    in_place.install(job_context, adopted, channel, made, change, [found.path for found in integrity.check(env).extra])
    assert before and {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    assert not (library(env) / "vllm").is_symlink() and integrity.check(env).clean
    in_place.put_back(adopted, change)
    assert (library(env) / "vllm").readlink() == outside  # the way back has it still


def test_an_environment_whose_packages_lie_elsewhere_is_not_changed_in_place(record: ServiceRecord, job_context: Context, env: Path, tmp_path: Path):
    (env / "lib").rename(tmp_path / "lib-elsewhere")
    (env / "lib").symlink_to(tmp_path / "lib-elsewhere")
    job_context.config.environment_roots.append(str(env.parent))
    with pytest.raises(OpsError, match="lie elsewhere"):
        in_place.check_allowed(job_context, dataclasses.replace(record, environment=str(env), in_place=True))


# ---- the shelf ----


def test_the_shelf_takes_nothing_from_behind_a_link_to_a_folder(record: ServiceRecord, env: Path, outside: Path):
    shutil.rmtree(library(env) / "tool")
    (library(env) / "tool").symlink_to(outside)
    report = integrity.check(env)
    patches.save_to_shelf(record, env, report)
    shelf = next((record.folder / "shelf").iterdir())
    assert not [path for path in (shelf / "files").rglob("*") if path.is_file()]
    assert "canary" not in "".join(path.read_text() for path in shelf.rglob("*") if path.is_file())
    told = {Path(entry["path"]).name: entry for entry in json.loads((shelf / "manifest.json").read_text())["files"]}
    assert told["tool"]["link"] == str(outside) and "outside of the environment" in told["model.py"]["note"]
    assert "canary" not in json.dumps(patches.shown_differences(env, [*report.changed, *report.extra], record=record))


def test_a_saved_link_leads_no_later_copy_out_of_the_shelf(record: ServiceRecord, env: Path):
    (library(env) / "tool" / "sub").symlink_to("../real")  # inside of the environment; from the shelf it leads elsewhere
    (library(env) / "real").mkdir()
    (library(env) / "real" / "x.py").write_text("typed\n")
    add_rows(env, "tool/sub,sha256=AAAA,1", "tool/sub/x.py,sha256=AAAA,1")
    patches.save_to_shelf(record, env, integrity.check(env))
    shelf = next((record.folder / "shelf").iterdir())
    real = os.path.realpath(shelf / "files")
    written = [path for path in (shelf / "files").rglob("*") if path.name == "x.py"]
    assert all(os.path.realpath(path).startswith(real) for path in written)


@pytest.mark.parametrize("names", [["tool/" + "n" * 255], ["tool/a.py", "tool/a.py.diff/b.py"]])
def test_names_that_leave_no_room_for_a_diff_are_saved_without_one(record: ServiceRecord, env: Path, names: list[str]):
    for name in names:
        (library(env) / name).parent.mkdir(exist_ok=True)
        (library(env) / name).write_text("typed = True\n")
    saved = patches.save_to_shelf(record, env, integrity.check(env))
    assert {path.read_text() for path in saved} == {"typed = True\n"} and len(saved) == len(names)


def test_a_pipe_on_the_shelfs_way_is_waited_for_by_nobody(record: ServiceRecord, env: Path):
    (library(env) / "tool" / "model.py").unlink()
    os.mkfifo(library(env) / "tool" / "model.py")
    os.mkfifo(library(env) / "tool" / "stray.py")
    report = integrity.check(env)
    assert patches.save_to_shelf(record, env, report) == []
    assert patches.shown_differences(env, [*report.changed, *report.extra], record=record) == {}


@pytest.mark.parametrize("version", ["**", "../../x", "[", "1.0\x1b[31m", "x" * 100_000])
def test_a_version_that_is_none_stops_no_save(record: ServiceRecord, env: Path, tmp_path: Path, version: str):
    metadata = library(env) / "tool-1.0.dist-info" / "METADATA"
    metadata.write_text(f"Metadata-Version: 2.1\nName: tool\nVersion: {version}\n")
    report = integrity.check(env)
    assert patches.save_to_shelf(record, env, report, wheels=tmp_path / "wheels")


# ---- lists ----


def test_a_record_of_millions_of_rows_costs_bounded_memory(env: Path):
    record_of(env).write_bytes(b"a\n" * 20_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = integrity.check(env)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert any("RECORD" in problem for problem in report.problems)
    assert grown < 500


@pytest.mark.parametrize("name", ["evil\x1b[31mname", "a\u202eb", "<script>alert(1)</script>", "x" * 2_000_000])
def test_a_name_that_is_none_is_told_and_short(env: Path, name: str):
    metadata = library(env) / "tool-1.0.dist-info" / "METADATA"
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    found = packages.read(env)
    told = json.dumps(found.as_dict(), ensure_ascii=False)
    assert len(told) < 10_000 and "\x1b" not in told and "\u202e" not in told and found.problems


def test_a_folder_whose_name_is_no_text_can_be_told(env: Path):
    os.mkdir(os.fsencode(library(env)) + b"/\xff-1.0.dist-info")  # noqa: PTH102  # a name in bytes
    found = packages.read(env)
    json.dumps(found.as_dict(), ensure_ascii=False).encode()


# ---- wheels ----


@pytest.mark.parametrize("harm", ["garbage", "bomb"])
def test_a_damaged_wheel_is_one_error(tmp_path: Path, harm: str):
    wheel = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x-1.0.dist-info/RECORD", b"0" * 300_000_000 if harm == "bomb" else b"x.py,,\n" * 1000)
    if harm == "garbage":
        content = bytearray(wheel.read_bytes())
        content[60:75] = b"\xff" * 15
        wheel.write_bytes(content)
    with pytest.raises(OpsError):
        wheelhouse.record_rows(wheel)
    if harm == "garbage":
        with pytest.raises(OpsError):
            wheelhouse.pristine(wheel, "x-1.0.dist-info/RECORD")


# ---- the terminal ----


def test_a_terminal_gets_text_only_and_a_pipe_what_there_is(env: Path):
    (library(env) / "tool" / "\x1b[2Jx\u202ey.py").write_text("")
    command = [sys.executable, "-m", "ops", "integrity", "--env", str(env)]
    piped = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    ours, theirs = pty.openpty()
    try:
        subprocess.run(command, stdout=theirs, stderr=subprocess.DEVNULL, check=False)
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other side is closed
            while part := os.read(ours, 65536):
                shown += part
    finally:
        os.close(ours)
    assert "\x1b[2Jx\u202ey.py" in piped
    assert "xy.py" in shown.decode() and "\x1b" not in shown.decode() and "\u202e" not in shown.decode()
