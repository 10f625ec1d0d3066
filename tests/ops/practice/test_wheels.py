"""The wheelhouse: real wheels, made without network, the same bytes each time, and installed by real uv."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv
from packaging.utils import parse_wheel_filename

from ops.jobs.errors import BadInput
from ops.practice import wheels

from .conftest import PracticeBox


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> wheels.Wheelhouse:
    return wheels.build(tmp_path_factory.mktemp("wheelhouse"))


def test_every_wheel_says_practice(wheelhouse: wheels.Wheelhouse) -> None:
    versions = {path.name: parse_wheel_filename(path.name)[1] for path in wheelhouse.files}
    assert len(versions) >= 16
    assert {version.local for version in versions.values()} == {"practice"}


def test_the_storys_versions_are_there(wheelhouse: wheels.Wheelhouse) -> None:
    found = {(str(name), str(version)) for name, version, _, _ in (parse_wheel_filename(path.name) for path in wheelhouse.files)}
    for name, version in [("vllm", "0.16.0rc2.dev313"), ("vllm", "0.16.0rc2.dev344"), ("flashinfer-python", "0.6.3"), ("flashinfer-python", "0.6.4"),
                          ("flashinfer-cubin", "0.6.3"), ("flashinfer-cubin", "0.6.4")]:
        assert (name, f"{version}+practice") in found


def test_record_names_every_file_with_its_hash_and_size(wheelhouse: wheels.Wheelhouse) -> None:
    for path in wheelhouse.files:
        with zipfile.ZipFile(path) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
            assert rows.keys() == set(archive.namelist())
            for name, (digest, size) in rows.items():
                if name != record:
                    content = archive.read(name)
                    assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    assert int(size) == len(content)


def test_building_again_touches_nothing(wheelhouse: wheels.Wheelhouse) -> None:
    before = {path: path.stat().st_mtime_ns for path in wheelhouse.files}
    again = wheels.build(wheelhouse.folder)
    assert {path: path.stat().st_mtime_ns for path in again.files} == before


def test_two_wheelhouses_have_the_same_bytes(wheelhouse: wheels.Wheelhouse, tmp_path: Path) -> None:
    other = wheels.build(tmp_path)
    assert [path.read_bytes() for path in other.files] == [path.read_bytes() for path in wheelhouse.files]


def test_a_damaged_wheel_is_made_anew_and_an_old_one_goes(tmp_path: Path) -> None:
    made = wheels.build(tmp_path)
    whole = made.files[0].read_bytes()
    made.files[0].write_bytes(whole[:100])
    old = tmp_path / "vllm-0.15.0+practice-py3-none-any.whl"
    old.write_bytes(b"")
    other = tmp_path / "mine-1.0-py3-none-any.whl"
    other.write_bytes(b"")
    wheels.build(tmp_path)
    assert made.files[0].read_bytes() == whole
    assert (old.exists(), other.exists()) == (False, True)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        wheels.build(tmp_path / "file")


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=60, check=False)


def install(env: Path, wheelhouse: wheels.Wheelhouse, *requirements: str) -> None:
    done = run(uv.find_uv_bin(), "pip", "install", "--python", env, "--offline", "--no-index", "--find-links", wheelhouse.folder,
               "--link-mode", "copy", "--no-build", "--no-config", "--no-cache", *requirements)
    assert done.returncode == 0, done.stderr


def test_the_plain_reinstall_of_the_story_breaks_the_pair(wheelhouse: wheels.Wheelhouse, tmp_path: Path) -> None:
    env = tmp_path / "env"
    assert run(uv.find_uv_bin(), "venv", "--no-config", "--no-project", "--python", sys.executable, env).returncode == 0
    install(env, wheelhouse, "vllm==0.16.0rc2.dev313", "flashinfer-cubin==0.6.3")  # pins without the local suffix meet the practice wheels
    python = env / "bin" / "python"
    assert run(python, "-c", "import vllm, flashinfer; print(vllm.__version__, flashinfer.__version__)").stdout.split() == [
        "0.16.0rc2.dev313+practice", "0.6.3+practice"]
    install(env, wheelhouse, "--prerelease", "allow", "--upgrade", "vllm")
    failed = run(python, "-c", "import flashinfer")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "RuntimeError: flashinfer-cubin version (0.6.3+practice) does not match flashinfer version (0.6.4+practice). "
        "Please install the same version of both packages. Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass this check.")
    assert 'flashinfer/jit/env.py"' in failed.stderr
    assert run(python, "-c", "import os; os.environ['FLASHINFER_DISABLE_VERSION_CHECK'] = '1'; import flashinfer").returncode == 0


def test_all_packages_of_the_release_can_be_imported(practice_box: PracticeBox) -> None:
    modules = "torch transformers compressed_tensors xgrammar mistral_common cutlass tvm_ffi fastapi flashinfer_cubin flashinfer vllm"
    done = run(practice_box.release / "bin" / "python", "-c", f"import importlib\nfor name in '{modules}'.split(): importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


def test_version_and_help_are_told_at_once(practice_box: PracticeBox) -> None:
    program = practice_box.release / "bin" / "vllm"
    assert run(program, "--version").stdout == "0.16.0rc2.dev313+practice\n"
    told = run(program, "serve", "--help").stdout
    for word in ("--tensor-parallel-size", "--reasoning-parser", "kimi_k2", "hermes", "--disable-log-requests"):
        assert word in told
