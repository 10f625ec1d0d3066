from __future__ import annotations

import ensurepip
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from ops.environments import integrity
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
