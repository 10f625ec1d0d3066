"""A test run leaves no process and no file behind: this pytest plugin holds it to that.

Every run gets one folder (`TMPDIR`), which all temporary files go into and which is removed at the end. A process that still has that
folder in its environment, command line or working folder when the tests are over belongs to the run: it fails the run, and is ended.
With `--leftovers` (as `make test` has it) new files in the repository fail the run too; without it, so that one may edit meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_OURS = {".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "var"}
PATIENCE_S = 5  # how long a process that was told to end may take


def processes_of(folder: Path) -> dict[int, str]:
    """Processes, other than this one and its ancestors, that have `folder` in their environment, command line or working folder."""
    needle, found = str(folder).encode(), {}
    waited = False
    ours = {os.getpid()}
    pid = os.getppid()
    while pid > 1:
        ours.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            if not command and not environment:  # a kernel thread, or a process that is just becoming another program
                time.sleep(0.02 if not waited else 0)
                waited = True
                command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            marks = environment + command + os.fsencode((entry / "cwd").readlink())
        except OSError:  # gone, or another user's
            continue
        if needle in marks:
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def repository_files() -> set[Path]:
    found = set()
    for folder, names, files in os.walk(REPOSITORY):
        names[:] = [name for name in names if name not in NOT_OURS]
        found.update(Path(folder) / name for name in files)
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leftovers", action="store_true", help="fail if the run leaves new files in the repository")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: inherits TMPDIR
        return
    folder = Path(tempfile.mkdtemp(prefix="rht-")).resolve()
    os.environ["TMPDIR"] = str(folder)
    os.environ.pop("XDG_RUNTIME_DIR", None)  # sockets belong in that folder too
    tempfile.tempdir = None
    if config.option.basetemp is None:
        config.option.basetemp = str(folder / "t")
    config.stash[FOLDER] = folder
    config.stash[FILES] = repository_files() if config.option.leftovers else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = session.config.stash.get(FOLDER, None)
    if folder is None:
        return
    deadline = time.monotonic() + PATIENCE_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = [f"process {pid}: {command}" for pid, command in left.items()]
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    before = session.config.stash[FILES]
    if before is not None:
        found += [f"file {path}" for path in sorted(repository_files() - before)]
    if found:
        name = "tests/leftovers.py::the run leaves nothing behind"
        report = pytest.TestReport(nodeid=name, location=("tests/leftovers.py", None, name), keywords={}, outcome="failed",
                                   longrepr="Left behind by this run:\n" + "\n".join(found), when="teardown")
        session.config.pluginmanager.get_plugin("terminalreporter").stats.setdefault("error", []).append(report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)


FOLDER: pytest.StashKey[Path] = pytest.StashKey()
FILES: pytest.StashKey[set[Path] | None] = pytest.StashKey()
