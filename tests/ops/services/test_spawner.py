"""Real processes; each test ends what it started, by pid."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.gpus import processes
from ops.jobs.errors import BadInput, OpsError
from ops.services import spawner
from tests.ops.services.conftest import wait_for


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., tuple[int, int]]]:
    """Runs Python code detached; ends it afterwards."""
    begun: list[tuple[int, int]] = []

    def run(code: str, env: dict[str, str] | None = None, **named: Any) -> tuple[int, int]:
        started = spawner.spawn([sys.executable, "-c", code], env=env or {}, cwd=tmp_path, log_path=tmp_path / "log", **named)
        begun.append(started)
        return started

    yield run
    for pid, ticks in begun:
        if processes.is_alive(pid, ticks):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid, ticks=ticks: not processes.is_alive(pid, ticks))


TELL = """
import json, os, sys, time
print(json.dumps({"env": dict(os.environ), "fds": sorted(os.listdir("/proc/self/fd")), "sid": os.getsid(0), "pid": os.getpid(),
                  "stdin": sys.stdin.read(), "cwd": os.getcwd()}), flush=True)
time.sleep(60)
"""


def told(tmp_path: Path) -> dict[str, Any]:
    wait_for(lambda: (tmp_path / "log").read_text().endswith("\n"))
    return json.loads((tmp_path / "log").read_text())


def test_the_program_gets_only_what_it_is_given(spawn: Callable[..., tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_JOB", "x")
    monkeypatch.setenv("SOMETHING_ELSE", "y")
    spawn(TELL, {"GIVEN": "a b=c\n'\""})
    env = told(tmp_path)["env"]
    assert env["GIVEN"] == "a b=c\n'\"" and env["HOME"] == os.environ["HOME"]
    assert set(env) <= {"PATH", "HOME", "LANG", "GIVEN", "LC_CTYPE"}  # LC_CTYPE is Python's own, set at its start


def test_no_descriptor_but_the_standard_ones_is_inherited(spawn: Callable[..., tuple[int, int]], tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    try:
        pid, _ = spawn(TELL)
        answer = told(tmp_path)
        assert len(answer["fds"]) == 4, "0, 1, 2, and the listing itself"
        assert answer["stdin"] == "" and answer["cwd"] == str(tmp_path)
        assert all(link.resolve() != tmp_path / "lock" for link in Path(f"/proc/{pid}/fd").iterdir())
    finally:
        os.close(lock)


def test_it_has_a_session_of_its_own_and_is_not_our_child(spawn: Callable[..., tuple[int, int]], tmp_path: Path) -> None:
    pid, ticks = spawn(TELL)
    answer = told(tmp_path)
    assert answer["pid"] == answer["sid"] == pid
    assert processes.start_ticks(pid) == ticks
    ancestor = processes.look(pid)
    while ancestor is not None and ancestor.parent:
        assert ancestor.parent != os.getpid()
        ancestor = processes.look(ancestor.parent)


def test_without_an_exit_file_nothing_stays_beside_it(spawn: Callable[..., tuple[int, int]]) -> None:
    pid, _ = spawn("import time; time.sleep(60)")

    def parent_is_init() -> bool:
        found = processes.look(pid)
        assert found is not None
        parent = processes.describe(found.parent)[1] or ""
        return "spawner.py" not in parent

    wait_for(parent_is_init)


@pytest.mark.parametrize(("code", "wanted"), [("raise SystemExit(3)", 3), ("pass", 0), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_how_it_ended_is_written(spawn: Callable[..., tuple[int, int]], tmp_path: Path, code: str, wanted: int) -> None:
    pid, ticks = spawn(code, exit_path=tmp_path / "exit.json")
    wait_for(lambda: (tmp_path / "exit.json").exists())
    ended = json.loads((tmp_path / "exit.json").read_text())
    assert (ended["pid"], ended["start_ticks"], ended["code"]) == (pid, ticks, wanted)
    assert abs(ended["at"] - time.time()) < 30


def test_the_keeper_ends_with_the_program_and_outlives_a_hangup(spawn: Callable[..., tuple[int, int]], tmp_path: Path) -> None:
    pid, _ = spawn("import time; time.sleep(60)", exit_path=tmp_path / "exit.json")
    found = processes.look(pid)
    assert found is not None
    keeper = processes.look(found.parent)
    assert keeper is not None and keeper.session == keeper.pid != found.session
    os.kill(keeper.pid, signal.SIGHUP)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not processes.is_alive(keeper.pid, keeper.start_ticks))
    assert json.loads((tmp_path / "exit.json").read_text())["code"] == -signal.SIGTERM


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="could not be started") as caught:
        spawner.spawn([str(tmp_path / "nothing")], env={}, cwd=tmp_path, log_path=tmp_path / "log", exit_path=tmp_path / "exit")
    assert "No such file" in caught.value.why and str(tmp_path / "nothing") in caught.value.why
    assert not (tmp_path / "exit").exists()


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OpsError, match="could not be started") as caught:
        spawner.spawn(["/bin/true"], env={}, cwd=tmp_path, log_path=tmp_path / "no" / "log")
    assert "cannot be opened" in caught.value.why


@pytest.mark.parametrize("name", ["ROUNDHOUSE_REDIS_URL", "A=B", "", "A\0"])
def test_variables_that_a_service_may_not_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput):
        spawner.spawn(["/bin/true"], env={name: "x"}, cwd=tmp_path, log_path=tmp_path / "log")
