"""Packages taken over from another environment: as an installer would have put them there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.environments import copying, integrity, packages
from ops.environments.uv import Uv
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import library

SCRIPTS = "[console_scripts]\ntool = tool:main\n"
TOOL = "import sys\n\ndef main():\n    print(sys.prefix)\n"
EXACT = ["--no-deps", "--no-index", "--no-build", "--link-mode", "copy"]


def environment(folder: Path, *wheels: Path, uv: Uv) -> Path:
    uv.venv(folder, python=sys.executable)
    if wheels:
        uv._run(["pip", "install", "--python", str(folder / "bin" / "python"), *EXACT, *map(str, wheels)], 60)
    return folder


@pytest.fixture
def uv(tmp_path: Path) -> Uv:
    return Uv(cache=tmp_path / "cache")


@pytest.fixture
def old(tmp_path: Path, uv: Uv) -> Path:
    """An environment with a script, a data file, a script with another interpreter, and a namespace that two packages share."""
    wheels = tmp_path / "wheels"
    tool = make_wheel(wheels, "tool", "1.0", files={"tool/__init__.py": TOOL, "space/one.py": "", "shared/__init__.py": ""},
                      entry_points=SCRIPTS, data={"share/tool/README": "read me\n", "bin/shell.sh": "#!/bin/sh\necho hi\n"})
    other = make_wheel(wheels, "other", "2.0", files={"space/two.py": "", "shared/__init__.py": "", "other/big.bin": os.urandom(3_000_000)})
    return environment(tmp_path / "old", tool, other, uv=uv)


def taken_over(old: Path, new: Path, context: Context, *names: str, uv: Uv) -> Path:
    environment(new, uv=uv)
    copying.copy(context, old, new, names)
    return new


def test_a_copy_is_as_an_installer_would_have_made_it(old: Path, tmp_path: Path, job_context: Context, uv: Uv):
    new = taken_over(old, tmp_path / "new", job_context, "tool", "other", uv=uv)
    assert packages.read(new).versions() == packages.read(old).versions() == {"other": "2.0", "tool": "1.0"}
    assert integrity.check(new).clean
    by_uv = environment(tmp_path / "by-uv", *sorted((tmp_path / "wheels").iterdir()), uv=uv)

    def rows(env: Path) -> set[str]:
        """What an installer itself notes (uv: when a local wheel was built) left out."""
        text = (library(env) / "tool-1.0.dist-info" / "RECORD").read_text().replace(str(env), "ENV")
        return {line for line in text.splitlines() if "bin/tool" not in line and "uv_cache.json" not in line}

    assert rows(new) == rows(by_uv)
    assert (new / "bin" / "tool").read_text() == (by_uv / "bin" / "tool").read_text().replace(str(by_uv), str(new))
    assert subprocess.run([new / "bin" / "tool"], capture_output=True, text=True, check=True).stdout.strip() == str(new)
    assert (new / "share" / "tool" / "README").read_text() == "read me\n"
    assert (new / "bin" / "shell.sh").read_bytes() == (old / "bin" / "shell.sh").read_bytes()
    assert os.access(new / "bin" / "tool", os.X_OK)


def test_a_copy_shares_no_file_with_the_original(old: Path, tmp_path: Path, job_context: Context, uv: Uv):
    new = taken_over(old, tmp_path / "new", job_context, "tool", "other", uv=uv)
    (library(new) / "tool" / "__init__.py").write_text("edited\n")
    assert (library(old) / "tool" / "__init__.py").read_text() == TOOL
    assert {path.stat().st_nlink for path in library(new).rglob("*") if path.is_file()} == {1}


def test_a_path_that_no_kernel_takes_as_a_first_line_gets_a_script_for_sh(old: Path, tmp_path: Path, job_context: Context, uv: Uv):
    for name in ("with space", "l" * 120):
        new = taken_over(old, tmp_path / name, job_context, "tool", uv=uv)
        assert (new / "bin" / "tool").read_text().startswith("#!/bin/sh\n'''exec' ")
        assert subprocess.run([new / "bin" / "tool"], capture_output=True, text=True, check=True).stdout.strip() == str(new)
        assert integrity.check(new).clean
        back = taken_over(new, tmp_path / f"back-{len(name)}", job_context, "tool", uv=uv)
        assert (back / "bin" / "tool").read_text().startswith(f"#!{back}/bin/python")


def test_an_environment_is_known_by_any_of_its_names(old: Path, tmp_path: Path, job_context: Context, uv: Uv):
    """Scripts of an adopted environment name its real path, and it is reached through a link."""
    (tmp_path / "link").symlink_to(old)
    new = taken_over(tmp_path / "link", tmp_path / "new", job_context, "tool", "other", uv=uv)
    assert (new / "bin" / "tool").read_text().startswith(f"#!{new}/bin/python")


def test_editable_installs_keep_their_source(tmp_path: Path, job_context: Context, uv: Uv):
    """One outside of the environment stays where it is; one inside goes along."""
    old = environment(tmp_path / "old", uv=uv)
    for name, source in (("outside", tmp_path / "src"), ("inside", old / "src" / "inside")):
        source.mkdir(parents=True)
        (source / f"{name}.py").write_text(f"WHERE = '{name}'\n")
        wheel = make_wheel(tmp_path / "wheels", name, "1.0", files={f"__editable__.{name}-1.0.pth": f"{source}\n"})
        uv._run(["pip", "install", "--python", str(old / "bin" / "python"), *EXACT, str(wheel)], 60)
        told = library(old) / f"{name}-1.0.dist-info" / "direct_url.json"
        told.write_text(f'{{"url": "file://{source}", "dir_info": {{"editable": true}}}}')
        record = told.with_name("RECORD")  # as an installer would have listed it
        digest = copying.text(hashlib.sha256(told.read_bytes()).digest())
        record.write_text("".join(f"{name}-1.0.dist-info/direct_url.json,sha256={digest},{told.stat().st_size}\n" if "direct_url" in line else line
                                  for line in record.read_text().splitlines(keepends=True)))
    new = taken_over(old, tmp_path / "new", job_context, "outside", "inside", uv=uv)
    found = subprocess.run([new / "bin" / "python", "-I", "-c", "import inside, outside; print(inside.__file__); print(outside.__file__)"],
                           capture_output=True, text=True, check=True).stdout.split()
    assert found == [f"{new}/src/inside/inside.py", f"{tmp_path}/src/outside.py"]
    assert f"file://{new}/src/inside" in (library(new) / "inside-1.0.dist-info" / "direct_url.json").read_text()
    assert integrity.check(new).clean


@pytest.mark.slow  # venv and pip take their time
def test_compiled_code_stays_behind(tmp_path: Path, job_context: Context, uv: Uv):
    """pip lists it in RECORD; it names the old path, and could hold what the source does not say."""
    old = tmp_path / "old"
    subprocess.run([sys.executable, "-m", "venv", str(old)], check=True)
    wheel = make_wheel(tmp_path / "wheels", "tool", "1.0", files={"tool/__init__.py": TOOL}, entry_points=SCRIPTS)
    subprocess.run([old / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", str(wheel)], check=True)
    assert list(library(old).glob("tool/__pycache__/*.pyc"))
    new = taken_over(old, tmp_path / "new", job_context, "tool", uv=uv)
    assert not list(library(new).rglob("*.pyc")) and "__pycache__" not in (library(new) / "tool-1.0.dist-info" / "RECORD").read_text()
    assert integrity.check(new).clean
    assert subprocess.run([new / "bin" / "tool"], capture_output=True, text=True, check=True).stdout.strip() == str(new)


@pytest.mark.parametrize("harm", ["edit", "missing", "folder"])
def test_nothing_that_was_edited_is_taken_over(old: Path, tmp_path: Path, job_context: Context, uv: Uv, harm: str):
    path = library(old) / "other" / "big.bin"
    if harm == "edit":
        content = bytearray(path.read_bytes())
        content[1_500_000] ^= 1  # the same length
        path.write_bytes(content)
    else:
        path.unlink()
        if harm == "folder":
            path.mkdir()
    with pytest.raises(OpsError, match=r"other/big\.bin` of `other` cannot be copied") as caught:
        taken_over(old, tmp_path / "new", job_context, "tool", "other", uv=uv)
    assert "make a new plan" in caught.value.hint


def test_a_record_that_cannot_be_used_is_a_clear_error(old: Path, tmp_path: Path, job_context: Context, uv: Uv):
    record = library(old) / "tool-1.0.dist-info" / "RECORD"
    whole = record.read_text()
    for content, words in ((whole + "../../../../../etc/passwd,,\n", "outside of the environment"), ("\0\udcff", "cannot be read")):
        record.write_text(content, errors="surrogateescape")
        with pytest.raises(OpsError, match=words):
            taken_over(old, tmp_path / "new", job_context, "tool", uv=uv)
    record.unlink()
    with pytest.raises(OpsError, match="cannot be read"):
        taken_over(old, tmp_path / "new", job_context, "tool", uv=uv)
    with pytest.raises(OpsError, match="not in the release in use"):
        taken_over(old, tmp_path / "new", job_context, "gone", uv=uv)


def test_uninstall_leaves_what_others_own_and_strays(old: Path):
    (library(old) / "tool" / "notes.txt").write_text("mine\n")
    installed = packages.read(old)
    assert copying.uninstall(installed, "tool") > 5
    assert "tool" not in packages.read(old).versions()
    assert (library(old) / "space" / "two.py").exists() and not (library(old) / "space" / "one.py").exists()
    assert (library(old) / "shared" / "__init__.py").exists() and (library(old) / "tool" / "notes.txt").exists()
    assert not (old / "bin" / "tool").exists() and not (old / "share" / "tool").exists()
    assert copying.uninstall(packages.read(old), "tool") == 0


def test_quotes_in_a_path_are_written_as_sh_reads_them():
    assert copying.shebang("/short/bin/python") == "#!/short/bin/python\n"
    assert copying.shebang("/it's here/bin/python") == "#!/bin/sh\n'''exec' '/it'\"'\"'s here/bin/python' \"$0\" \"$@\"\n' '''\n"
