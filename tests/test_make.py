"""`make` on a bare checkout: finds a Python, makes the environment, says in one sentence why it cannot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
BARE = ("Makefile", ".ci", "requirements.txt", "requirements-dev.txt")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What making the environment needs of a checkout."""
    folder = tmp_path / "roundhouse"
    folder.mkdir()
    for name in BARE:
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
    blocks = re.split(r"\n(?=[a-z])", (REPOSITORY / "requirements.txt").read_text())
    chosen = [block for block in blocks if block.startswith(("uv==", "amqp==", "vine=="))]  # enough to see that it works, in little time
    (folder / "requirements.txt").write_text("\n".join(chosen) + "\n")
    return folder


def make(folder: Path, *arguments: str, user: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "VIRTUAL_ENV", "MAKE", "MFLAGS"))}
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=folder, env={**clean, **environment}, user=user, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=170, check=False)


def fake_python(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def tools(folder: Path, *names: str) -> Path:
    """A folder for PATH with these programs only."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def test_too_old_a_python_is_one_sentence_before_anything_is_made(checkout: Path, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", "make", "sh")
    fake_python(path, "python3", "echo '3.9 0'")
    done = make(checkout, "environment", PATH=str(path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "Roundhouse needs Python 3.11 or newer; found here: python3 (3.9). Name another one with `make ... PYTHON=/path/to/python3`.")
    assert sorted(entry.name for entry in checkout.iterdir()) == sorted(BARE)


def test_no_python_at_all_is_said(checkout: Path, tmp_path: Path) -> None:
    done = make(checkout, "environment", PATH=str(tools(tmp_path / "bin", "make", "sh")))
    assert done.returncode == 2
    assert "found here: none." in done.stderr


def test_a_shim_that_refuses_to_run_is_passed_over(tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", "sh")
    fake_python(path, "python3", "echo 'pyenv: python3: command not found' >&2; exit 127")
    (path / "python3.12").symlink_to(sys.executable)  # a good one under a later name
    done = subprocess.run([REPOSITORY / ".ci/find-python"], env={"PATH": str(path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()


def test_a_python_without_venv_is_named_as_such(tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", "sh")
    fake_python(path, "python3", 'case "$2" in *ensurepip*) exit 1;; *) echo "3.11 1";; esac')
    done = subprocess.run([REPOSITORY / ".ci/find-python"], env={"PATH": str(path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python3 (3.11, without its venv module: on Debian install python3-venv)" in done.stderr


def test_a_read_only_folder_is_one_sentence_before_anything_is_made(checkout: Path) -> None:
    """As a user who may read the checkout and not write to it."""
    user = None
    if os.geteuid() == 0:  # root may write anywhere: be somebody else
        user = 65534
        for folder in checkout.parents:  # who may not enter what is below the run's own folder, which is private
            if folder.is_relative_to(tempfile.gettempdir()):
                folder.chmod(0o711)
    else:
        checkout.chmod(0o555)
    done = make(checkout, "environment", user=user, HOME=str(checkout))
    checkout.chmod(0o755)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"`{checkout}` cannot be written to (Permission denied); copy Roundhouse to a folder of yours, or choose a place with VENV=.")
    assert sorted(entry.name for entry in checkout.iterdir()) == sorted(BARE)


@pytest.mark.slow
def test_the_environment_is_made_once_then_found_and_made_again_when_half_made(checkout: Path) -> None:
    (checkout / ".venv/bin").mkdir(parents=True)  # an earlier start was killed here
    (checkout / ".venv/pyvenv.cfg").write_text("home = /nowhere\n")
    first = make(checkout, "environment")
    assert first.returncode == 0, first.stderr
    assert "Installing requirements.txt (pinned, with hashes)" in first.stderr
    subprocess.run([checkout / ".venv/bin/python", "-c", "import amqp, vine"], check=True)

    began = time.monotonic()
    again = make(checkout, "environment")
    assert (again.returncode, again.stderr) == (0, "")
    assert time.monotonic() - began < 10

    (checkout / ".venv/installed-requirements.txt").unlink()  # killed while it installed
    (checkout / ".venv/bin/uv").unlink()
    third = make(checkout, "environment")
    assert third.returncode == 0, third.stderr
    assert "Making" in third.stderr


def test_a_folder_that_is_no_environment_is_not_removed(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/thesis.txt").write_text("years of work")
    done = make(checkout, "environment")
    assert done.returncode == 2
    assert "is there but is no virtual environment; move it away" in done.stderr
    assert (checkout / ".venv/thesis.txt").read_text() == "years of work"


def test_a_wrong_hash_stops_the_installation(checkout: Path) -> None:
    text = (checkout / "requirements.txt").read_text()
    amqp = text[text.index("amqp=="):text.index("uv==")]
    (checkout / "requirements.txt").write_text(text.replace(amqp, re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, amqp)))
    done = make(checkout, "environment")
    assert done.returncode == 2
    assert "Hash mismatch" in done.stderr and "Installing requirements.txt failed" in done.stderr
    assert not (checkout / ".venv/installed-requirements.txt").exists()


def test_ci_runs_lint_types_and_tests_and_stops_at_the_first_failure() -> None:
    text = (REPOSITORY / ".ci/run").read_text()
    assert "set -euo pipefail" in text
    assert [line for line in text.splitlines() if line.startswith("make ")] == ["make lint", "make test"]
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)
    lint = subprocess.run(["make", "-n", "lint"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "ruff check ." in lint and "mypy ops dashboard" in lint
