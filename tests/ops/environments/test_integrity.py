from __future__ import annotations

import base64
import contextlib
import ensurepip
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from ops.environments import hashing, integrity, packages
from ops.interpreter import REPOSITORY
from ops.jobs.errors import BadInput, Cancelled
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import library

Install = Callable[..., Path]


def run_uv(*arguments: str | Path, cache: Path) -> None:
    subprocess.run([uv.find_uv_bin(), *arguments, "-q", "--no-config", "--offline", "--cache-dir", cache], check=True)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment by uv with console scripts, data files, a namespace package and a module at the root of site-packages."""
    root = tmp_path_factory.mktemp("pristine")
    wheels = root / "wheels"
    make_wheel(wheels, "serving", "1.0", files={"serving/__init__.py": "", "serving/hot/path.py": "def forward(x):\n    return x\n",
                                                "serving/hot/table.bin": bytes(range(256)) * 4000},
               entry_points="[console_scripts]\nserve = serving:main\n", data={"share/serving/readme": "x", "etc/serving.conf": "y"})
    make_wheel(wheels, "space-one", "1.0", files={"space/one/__init__.py": "one = 1\n"})
    make_wheel(wheels, "space-two", "1.0", files={"space/two/__init__.py": "two = 2\n"})
    make_wheel(wheels, "Root.Module", "1.0", files={"rootmodule.py": "x = 1\n"})
    run_uv("venv", "--python", sys.executable, root / "env", cache=root / "cache")
    run_uv("pip", "install", "--no-index", "--find-links", wheels, "--link-mode", "copy", "--python", root / "env",
           "serving", "space-one", "space-two", "root-module", cache=root / "cache")
    return root / "env"


@pytest.fixture
def env(pristine: Path, tmp_path: Path) -> Path:
    """A copy to edit (nothing in these tests runs its scripts)."""
    subprocess.run(["cp", "-a", pristine, tmp_path / "env"], check=True)
    return tmp_path / "env"


def paths(found: list[integrity.FileFinding]) -> list[str]:
    return [finding.path.split("site-packages/")[-1] for finding in found]


def test_a_clean_environment_has_no_finding(env: Path):
    report = integrity.check(env)
    assert report.clean and report.distributions == 4
    assert report.checked_files > 25 and report.checked_bytes > 1_000_000


def test_compiled_files_of_known_sources_are_no_finding(env: Path):
    subprocess.run([sys.executable, "-m", "compileall", "-q", library(env)], check=True)
    assert integrity.check(env).clean


def test_edited_missing_and_stray_files_are_found(env: Path):
    packages = library(env)
    (packages / "serving/hot/path.py").write_text("def forward(y):\n    return y\n")  # the same length
    (packages / "space/one/__init__.py").unlink()
    (packages / "serving/hot/zz_debug_dump.py").write_text("import torch\n")
    (packages / "stray.pth").write_text("import os\n")
    (packages / "sitecustomize.py").write_text("")
    report = integrity.check(env)
    assert paths(report.changed) == ["serving/hot/path.py"] and report.changed[0].package == "serving"
    assert paths(report.missing) == ["space/one/__init__.py"] and report.missing[0].package == "space-one"
    assert [(finding.package, finding.path.split("site-packages/")[-1]) for finding in report.extra] == [
        ("serving", "serving/hot/zz_debug_dump.py"), ("", "sitecustomize.py"), ("", "stray.pth")]
    assert "at every start" in report.extra[2].note
    assert not report.clean


def test_an_edited_console_script_and_data_file_are_found(env: Path):
    (env / "bin/serve").write_text("#!/bin/sh\n")
    (env / "etc/serving.conf").unlink()
    report = integrity.check(env)
    assert [finding.path for finding in report.changed] == ["bin/serve"]
    assert [finding.path for finding in report.missing] == ["etc/serving.conf"]


def test_a_script_that_nobody_installed_is_found(env: Path):
    (env / "bin/wrapper").write_text("#!/bin/sh\n")
    assert [finding.path for finding in integrity.check(env).extra] == ["bin/wrapper"]


def test_compiled_code_without_source_is_found(env: Path):
    cache = library(env) / "serving/hot/__pycache__"
    cache.mkdir()
    (cache / "gone.cpython-311.pyc").write_bytes(b"x")
    (cache / "path.cpython-311.pyc").write_bytes(b"x")
    report = integrity.check(env)
    assert paths(report.extra) == ["serving/hot/__pycache__/gone.cpython-311.pyc"]
    assert report.extra[0].note == "compiled code without its source"


def test_a_file_replaced_by_a_link_a_folder_or_a_pipe_is_found(env: Path, tmp_path: Path):
    packages = library(env)
    other = tmp_path / "other.py"
    other.write_text("x = 2\n")
    for name in ("rootmodule.py", "space/two/__init__.py", "serving/hot/path.py"):
        (packages / name).unlink()
    (packages / "rootmodule.py").symlink_to(other)
    (packages / "space/two/__init__.py").mkdir()
    os.mkfifo(packages / "serving/hot/path.py")
    report = integrity.check(env)
    assert paths(report.changed) == ["rootmodule.py", "serving/hot/path.py", "space/two/__init__.py"]
    assert report.missing == []


def test_a_link_to_a_folder_inside_packages_is_found_and_not_followed(env: Path, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "module.py").write_text("")
    (library(env) / "serving/plugins").symlink_to(tmp_path / "elsewhere")
    assert paths(integrity.check(env).extra) == ["serving/plugins"]


def test_random_edits_are_found_exactly(env: Path):
    random.seed(7)
    packages = library(env)
    files = sorted(path for path in packages.rglob("*") if path.is_file() and ".dist-info" not in str(path))
    chosen = sorted(random.sample(files, 4))
    for path in chosen:
        content = bytearray(path.read_bytes() or b" ")
        content[random.randrange(len(content))] ^= 1
        path.write_bytes(content)
    assert paths(integrity.check(env).changed) == [str(path.relative_to(packages)) for path in chosen]


def test_the_digest_follows_the_content(env: Path):
    clean = integrity.check(env).digest()
    target = library(env) / "rootmodule.py"
    target.write_text("x = 2\n")
    one = integrity.check(env).digest()
    target.write_text("x = 3\n")
    other = integrity.check(env).digest()
    target.write_text("x = 1\n")
    assert len({clean, one, other}) == 3 and integrity.check(env).digest() == clean


def test_only_looks_at_the_named_distributions(env: Path):
    (library(env) / "rootmodule.py").write_text("edited")
    (library(env) / "serving/extra.py").write_text("")
    (library(env) / "stray.py").write_text("")
    report = integrity.check(env, only=["Serving"])
    assert report.distributions == 1 and report.changed == [] and paths(report.extra) == ["serving/extra.py"]


def test_rows_out_of_the_tree_are_told_and_not_read(env: Path):
    record = library(env) / "serving-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "../../../../../../../etc/passwd,sha256=abc,1\n/etc/passwd,sha256=abc,1\n")
    report = integrity.check(env)
    assert len(report.problems) == 2 and "outside of the environment" in report.problems[0]
    assert report.changed == [] and not report.clean


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'"' + b"x" * 200_000])
def test_a_record_that_cannot_be_read_is_told(env: Path, content: bytes):
    (library(env) / "serving-1.0.dist-info/RECORD").write_bytes(content)
    report = integrity.check(env)
    assert "RECORD of `serving`" in report.problems[0]
    assert report.extra == []


def test_a_distribution_without_record_is_told_and_its_files_are_no_strays(env: Path):
    (library(env) / "serving-1.0.dist-info/RECORD").unlink()
    report = integrity.check(env)
    assert report.problems == ["`serving` 1.0 has no RECORD: its files cannot be checked"]
    assert [path for path in paths(report.extra) if path.startswith("serving/")] == []


def test_files_shared_by_two_distributions_need_to_fit_one_of_them(tmp_path: Path):
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "one", "1.0", files={"shared/__init__.py": "", "shared/one.py": ""})
    make_wheel(wheels, "two", "1.0", files={"shared/__init__.py": "# two\n", "shared/two.py": ""})
    env = tmp_path / "env"
    run_uv("venv", "--python", sys.executable, env, cache=tmp_path / "cache")
    for name in ("one", "two"):
        run_uv("pip", "install", "--no-index", "--find-links", wheels, "--link-mode", "copy", "--python", env, name, cache=tmp_path / "cache")
    assert integrity.check(env).clean
    (library(env) / "shared/__init__.py").write_text("# neither\n")
    assert paths(integrity.check(env).changed) == ["shared/__init__.py"]


def test_pip_installs_are_clean_and_an_edit_in_pip_is_found(tmp_path: Path):
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    make_wheel(tmp_path / "wheels", "serving", "1.0", entry_points="[console_scripts]\nserve = serving:main\n", data={"share/s/readme": "x"})
    env = tmp_path / "env"
    run_uv("venv", "--python", sys.executable, env, cache=tmp_path / "cache")
    run_uv("pip", "install", "--no-deps", "--link-mode", "copy", "--python", env, bundled, cache=tmp_path / "cache")
    subprocess.run([env / "bin/python", "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", "--find-links",
                    tmp_path / "wheels", "serving"], check=True, env={"PATH": os.environ["PATH"]})
    report = integrity.check(env)
    assert report.clean, report.as_dict()
    assert report.distributions == 2 and report.checked_files > 300
    with (library(env) / "pip/__main__.py").open("a") as file:
        file.write("# edited\n")
    assert paths(integrity.check(env).changed) == ["pip/__main__.py"]


def test_an_editable_install_is_clean(tmp_path: Path):
    """As setuptools does it: a .pth file and a finder, both listed."""
    make_wheel(tmp_path / "wheels", "editable", "1.0",
               files={"__editable__.editable-1.0.pth": "/src\n", "__editable___editable_1_0_finder.py": ""})
    env = tmp_path / "env"
    run_uv("venv", "--python", sys.executable, env, cache=tmp_path / "cache")
    run_uv("pip", "install", "--no-index", "--find-links", tmp_path / "wheels", "--python", env, "editable", cache=tmp_path / "cache")
    assert integrity.check(env).clean


def test_progress_ends_at_the_number_of_files(env: Path):
    seen: list[tuple[int, int]] = []
    report = integrity.check(env, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (report.checked_files, report.checked_files) and len(seen) <= 65


def test_a_cancelled_check_ends(env: Path):
    def cancel(done: int, total: int) -> None:
        raise Cancelled("integrity")

    with pytest.raises(Cancelled):
        integrity.check(env, progress=cancel)


def test_long_lists_are_cut_in_the_json_and_counted(env: Path):
    folder = library(env) / "serving/many"
    folder.mkdir()
    for number in range(250):
        (folder / f"f{number:03}.py").write_text("")
    report = integrity.check(env)
    told = report.as_dict()
    assert len(told["extra"]) == 200 and told["more"]["extra"] == 50 and len(report.extra) == 250


@pytest.mark.parametrize("make", ["nothing", "file", "empty", "half"])
def test_what_is_no_environment_says_so(tmp_path: Path, make: str):
    path = tmp_path / "x"
    if make == "file":
        path.write_text("")
    elif make == "empty":
        path.mkdir()
    elif make == "half":
        (path / "lib/python3.11/site-packages").mkdir(parents=True)
    with pytest.raises(BadInput, match="is no Python environment"):
        integrity.check(path)

def test_a_hash_of_what_an_installer_writes_counts_where_record_has_one(env: Path):
    """uv and pip list INSTALLER and REQUESTED with their hash."""
    metadata = library(env) / "serving-1.0.dist-info"
    (metadata / "INSTALLER").write_text("me")
    (metadata / "direct_url.json").write_text("{}")  # RECORD has none: an installer may have written it
    (metadata / "notes.txt").write_text("me")
    report = integrity.check(env)
    assert paths(report.changed) == ["serving-1.0.dist-info/INSTALLER"] and paths(report.extra) == ["serving-1.0.dist-info/notes.txt"]


def test_sourceless_code_and_half_written_files_beside_sources(env: Path):
    cache = library(env) / "serving/hot/__pycache__"
    cache.mkdir()
    for name in ("path.cpython-311.opt-2.pyc", "path.cpython-313t.pyc", "path.cpython-311-pytest-8.4.1.pyc", "path.forward-1.py311.nbi",
                 "path.cpython-311.pyc.140212"):
        (cache / name).write_bytes(b"x")
    assert integrity.check(env).clean
    strays = ["path.pyc", "path.py", "path.forward.cpython-311.pyc", "gone.forward-1.py311.nbi", "evil.pyc.so"]
    for name in strays:
        (cache / name).write_bytes(b"x")
    (library(env) / "serving/hot/legacy.pyc").write_bytes(b"x")
    report = integrity.check(env)
    assert sorted(path.rsplit("/", 1)[-1] for path in paths(report.extra)) == sorted([*strays, "legacy.pyc"])
    assert {finding.note for finding in report.extra if finding.path.endswith("legacy.pyc")} == {"compiled code without its source"}


def test_compiled_code_of_a_deleted_file_is_not_told_twice(env: Path):
    subprocess.run([sys.executable, "-m", "compileall", "-q", library(env) / "serving"], check=True)
    (library(env) / "serving/hot/path.py").unlink()
    report = integrity.check(env)
    assert paths(report.missing) == ["serving/hot/path.py"] and report.extra == []


def test_scripts_that_only_sound_like_pythons_own_are_found(env: Path):
    for name in ("python-debug", "activate_old", "python3.11-wrapper", "deactivate.py"):
        (env / "bin" / name).write_text("#!/bin/sh\n")
    for name in ("python3.14t", "𝜋thon", "activate.xsh", "pypy3"):
        (env / "bin" / name).write_text("")
    assert [finding.path for finding in integrity.check(env).extra] == [
        "bin/activate_old", "bin/deactivate.py", "bin/python-debug", "bin/python3.11-wrapper"]


def test_rows_by_way_of_lib64_are_the_files_of_lib(env: Path):
    (env / "lib64").symlink_to("lib") if not (env / "lib64").exists() else None
    inside = library(env).relative_to(env / "lib")
    record = library(env) / "serving-1.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("\nserving/hot/path.py,", f"\n../../../lib64/{inside}/serving/hot/path.py,")
                      .replace("serving/__init__.py,", "./serving//__init__.py,"))
    assert integrity.check(env).clean


def test_hashes_of_other_kinds_are_held_too(env: Path):
    content = (library(env) / "serving/hot/path.py").read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha512(content).digest()).decode()
    record = library(env) / "serving-1.0.dist-info/RECORD"
    rows = [f"serving/hot/path.py,SHA512={digest},{len(content)}" if row.startswith("serving/hot/path.py,") else row
            for row in record.read_text().splitlines()]
    record.write_text("\r\n".join([*rows, '"serving/hot/table.bin",,']) + "\r\n")
    assert integrity.check(env).clean
    (library(env) / "serving/hot/path.py").write_bytes(content[::-1])
    changed = integrity.check(env).changed
    assert paths(changed) == ["serving/hot/path.py"] and changed[0].sha256 == hashlib.sha256(content[::-1]).hexdigest()
    record.write_text(record.read_text().replace("SHA512", "crc32"))
    assert "unknown hash, `crc32`" in integrity.check(env).problems[0]


def test_a_file_without_a_hash_is_only_looked_for(env: Path):
    record = library(env) / "serving-1.0.dist-info/RECORD"
    record.write_text("".join(f"{line.split(',')[0]},,\n" for line in record.read_text().splitlines()))
    (library(env) / "serving/hot/path.py").write_text("edited")
    report = integrity.check(env)
    assert report.clean and report.unhashed > 5
    (library(env) / "serving/hot/path.py").unlink()
    assert paths(integrity.check(env).missing) == ["serving/hot/path.py"]


def test_what_changed_after_a_start_is_told_apart(env: Path):
    before, after = library(env) / "rootmodule.py", library(env) / "serving/extra.py"
    before.write_text("edited")
    os.utime(before, (1000, 1000))
    after.write_text("")
    os.utime(after, (3000, 3000))
    (library(env) / "serving/hot/path.py").unlink()
    report = integrity.check(env)
    assert {finding.path: finding.mtime for finding in report.findings} == {
        str(before.relative_to(env)): 1000.0, str(after.relative_to(env)): 3000.0, report.missing[0].path: None}
    assert integrity.newer_than(report, 2000) == {str(after.relative_to(env))} and report.as_dict()["changed"][0]["mtime"] == 1000.0


def test_the_plain_form_lists_every_path_relative_to_the_environment(env: Path):
    (library(env) / "rootmodule.py").write_text("edited")
    (library(env) / os.fsdecode(b"n\xffme.py")).write_text("")
    plain = integrity.check(env).as_plain()
    inside = library(env).relative_to(env)
    assert plain == {"distributions": 4, "files": plain["files"], "changed": [f"{inside}/rootmodule.py"], "missing": [],
                     "extra": [f"{inside}/n�me.py"], "problems": []}
    assert json.dumps(plain, ensure_ascii=False).encode()


# Bad input


@pytest.mark.parametrize("row", ["../../../../../../../etc/passwd", "/etc/passwd", "a\0b", "..", "../../..", "../../../../env-of-another/x", "."])
def test_a_row_out_of_the_tree_is_told_and_never_opened(env: Path, row: str):
    (env.parent / "env-of-another").mkdir()
    (env.parent / "env-of-another/x").write_text("x")
    record = library(env) / "serving-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}{row},sha256=abc,1\n")
    report = integrity.check(env)
    told = row.replace("\0", "\ufffd")
    if row in (".", ".."):  # folders of the tree, and no files
        assert [(finding.path, finding.note) for finding in report.changed] == [
            (str(library(env).relative_to(env) / row).removesuffix("/site-packages/.."), "is no regular file")]
    else:
        assert report.problems == [f"The RECORD of `serving` names a file outside of the environment: `{told}`"] and report.changed == []


def test_thousands_of_rows_out_of_the_tree_are_told_in_a_few_lines(env: Path):
    record = library(env) / "serving-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "".join(f"/outside/{number},sha256=abc,{'9' * 6000}\n" for number in range(3000)))
    problems = integrity.check(env).problems
    assert len(problems) == 6 and problems[-1] == "The RECORD of `serving` names 2,995 more files outside of the environment"


@pytest.mark.parametrize("kind", ["binary", "folder", "fifo", "sparse", "loop", "socket", "nothing"])
def test_a_record_that_is_none_is_told_and_nothing_waits_for_it(env: Path, kind: str):
    record = library(env) / "serving-1.0.dist-info/RECORD"
    put(record, kind)
    report = integrity.check(env)
    (problem,) = report.problems
    assert "RECORD" in problem and "`serving`" in problem and problem.endswith("its files cannot be checked")
    assert report.changed == report.missing == report.extra == []


@pytest.mark.parametrize("kind", ["binary", "folder", "fifo", "sparse", "loop", "nothing"])
@pytest.mark.parametrize("name", ["METADATA", "INSTALLER", "direct_url.json", "entry_points.txt"])
def test_odd_metadata_is_a_finding_and_nothing_waits_for_it(env: Path, name: str, kind: str):
    put(library(env) / "serving-1.0.dist-info" / name, kind)
    report = integrity.check(env)
    told = [*paths(report.findings), *report.problems]
    assert told == [] if (name, kind) == ("direct_url.json", "nothing") else any(name in text for text in told)
    assert packages.read(env).version("serving") == "1.0"


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop"])
def test_an_odd_pyvenv_cfg_is_an_error_and_nothing_waits_for_it(env: Path, kind: str):
    put(env / "pyvenv.cfg", kind)
    with pytest.raises(BadInput, match=r"pyvenv.cfg` cannot be read"):
        integrity.check(env)


def test_loops_of_links_are_found_and_not_followed(env: Path):
    (library(env) / "serving/self").symlink_to(".")
    (library(env) / "serving/loop").symlink_to("loop")
    (library(env) / "loop-1.0.dist-info").symlink_to("loop-1.0.dist-info")
    (library(env) / "rootmodule.py").unlink()
    (library(env) / "rootmodule.py").symlink_to("rootmodule.py")
    (library(env) / "space/two/__init__.py").unlink()
    (library(env) / "space/two/__init__.py").symlink_to("nowhere")
    report = integrity.check(env)
    assert paths(report.extra) == ["loop-1.0.dist-info", "serving/loop", "serving/self"]
    assert [finding.note for finding in report.extra] == ["Too many levels of symbolic links"] * 2 + ["a link to a folder"]
    assert [(path, finding.note) for path, finding in zip(paths(report.changed), report.changed, strict=True)] == [
        ("rootmodule.py", "Too many levels of symbolic links"), ("space/two/__init__.py", "a link to nothing")]


def test_a_folder_replaced_by_a_file_or_a_link_is_found(env: Path, tmp_path: Path):
    shutil.rmtree(library(env) / "serving/hot")
    (library(env) / "serving/hot").write_text("x")
    (library(env) / "space").rename(tmp_path / "space")
    (library(env) / "space").symlink_to(tmp_path / "space")
    report = integrity.check(env)
    assert paths(report.missing) == ["serving/hot/path.py", "serving/hot/table.bin"] and report.changed == []
    assert paths(report.extra) == ["serving/hot", "space"]


def test_folders_and_files_that_may_not_be_read_are_told(env: Path):
    packages_ = library(env)
    (packages_ / "space/two").chmod(0)
    (packages_ / "serving/hot/path.py").chmod(0)
    code = f"""
import ctypes, json, os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from ops.environments import integrity
libc = ctypes.CDLL(None)
if os.geteuid() == 0 and not sys.argv[1:]:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: with them nothing is unreadable
        assert libc.prctl(24, capability, 0, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, "-c", {"CODE"!r}, "again"])
print(json.dumps(integrity.check({str(env)!r}).as_plain()))
"""
    code = code.replace("'CODE'", "open('/proc/self/cmdline').read().split(chr(0))[2]")
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    finally:
        (packages_ / "space/two").chmod(0o755)
    plain = json.loads(done.stdout)
    inside = packages_.relative_to(env)
    assert plain["changed"] == plain["missing"] == plain["extra"] == []
    assert sorted(plain["problems"]) == sorted([
        f"The folder `{packages_}/space/two` cannot be read: Permission denied",
        f"`{inside}/serving/hot/path.py` of `serving` cannot be read: Permission denied",
        f"`{inside}/space/two/__init__.py` of `space-two` cannot be read: Permission denied"])


def test_a_python_that_is_gone_is_told_and_the_files_are_checked_even_so(env: Path):
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to("/opt/python-that-was-removed/bin/python3")
    (library(env) / "rootmodule.py").write_text("edited")
    report = integrity.check(env)
    assert paths(report.changed) == ["rootmodule.py"]
    assert report.problems == [f"The environment's Python no longer runs: `{env}/bin/python` points at "
                               "`/opt/python-that-was-removed/bin/python3`, which is gone"]


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "loop"])
def test_a_path_that_can_be_none_is_an_error(tmp_path: Path, path: str):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput):
        integrity.check(tmp_path / path)


def test_a_file_that_is_endless_is_found_without_reading_it(env: Path):
    for path in (library(env) / "rootmodule.py", library(env) / "serving/core.1234"):
        with path.open("wb") as file:
            file.truncate(8_000_000_000_000)
    report = integrity.check(env)
    assert [(finding.change, finding.sha256, finding.size_bytes) for finding in report.findings] == [
        ("changed", None, 8_000_000_000_000), ("extra", None, 8_000_000_000_000)]
    assert report.changed[0].note == "is too long to be what was installed, and was not hashed"


def put(path: Path, kind: str) -> None:
    """Something else in place of a file."""
    path.unlink(missing_ok=True)
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\0\x80" * 100)
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1_000_000_000)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
            server.bind(path.name)


# Processes


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """So many files that processes hash them."""
    folder = tmp_path / "env/lib/python3.11/site-packages"
    rows = ["many-1.0.dist-info/RECORD,,"]
    for number in range(5000):
        path = folder / f"many/p{number % 50}/m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = f"x = {number}\n".encode() * (1 + number % 7)
        path.write_bytes(content)
        rows.append(f"{path.relative_to(folder)},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')},{len(content)}")
    (folder / "many-1.0.dist-info").mkdir()
    (folder / "many-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: many\nVersion: 1.0\n")
    (folder / "many-1.0.dist-info/RECORD").write_text("\n".join([*rows, "many-1.0.dist-info/METADATA,,"]) + "\n")
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    return tmp_path / "env"


def children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_processes_give_what_one_loop_gives_and_end_with_it(large: Path, monkeypatch: pytest.MonkeyPatch):
    packages_ = large / "lib/python3.11/site-packages/many"
    (packages_ / "p1/m1.py").write_text("x = 2\n")
    (packages_ / "p2/m2.py").unlink()
    (packages_ / "p3/new.py").write_text("")
    before, seen, started = children(), [], []
    monkeypatch.setattr(hashing, "processes", lambda: 3)
    by_processes = integrity.check(large, progress=lambda done, total: (seen.append((done, total)), started.append(children() - before)))
    assert any(len(pids) == 3 for pids in started) and children() == before
    assert seen[-1] == (5002, 5002) and 10 < len(seen) < 80
    monkeypatch.setattr(hashing, "processes", lambda: 1)
    assert integrity.check(large) == by_processes
    assert [len(found) for found in (by_processes.changed, by_processes.missing, by_processes.extra)] == [1, 1, 1]


def test_a_hashing_process_that_is_killed_costs_nothing_but_time(large: Path, monkeypatch: pytest.MonkeyPatch):
    (large / "lib/python3.11/site-packages/many/p1/m1.py").write_text("x = 2\n")
    before = children()
    monkeypatch.setattr(hashing, "processes", lambda: 2)

    def kill(done: int, total: int) -> None:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)

    report = integrity.check(large, progress=kill)
    assert [finding.path for finding in report.changed] == ["lib/python3.11/site-packages/many/p1/m1.py"] and report.checked_files == 5002
    assert children() == before


def test_a_cancelled_check_leaves_no_process(large: Path, monkeypatch: pytest.MonkeyPatch):
    before = children()
    monkeypatch.setattr(hashing, "processes", lambda: 2)

    def cancel(done: int, total: int) -> None:
        raise Cancelled("integrity")

    with pytest.raises(Cancelled):
        integrity.check(large, progress=cancel)
    assert children() == before


def test_hashing_processes_carry_the_jobs_mark_and_no_other_variable(large: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ROUNDHOUSE_JOB", "job-1")
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setattr(hashing, "processes", lambda: 2)
    before, seen = children(), set()

    def look(done: int, total: int) -> None:
        for pid in children() - before:
            with contextlib.suppress(OSError):
                seen.add(Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0"))

    integrity.check(large, progress=look)
    assert seen - {b""} == {b"ROUNDHOUSE_JOB=job-1"}
