from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.gpus import processes
from ops.gpus.source import GpuProcess, GpuReading, GpuSnapshot


def test_a_process_is_known_by_pid_and_start_time() -> None:
    child = subprocess.Popen(["sleep", "60"])
    ticks = processes.start_ticks(child.pid)
    assert ticks is not None and processes.is_alive(child.pid, ticks)
    assert not processes.is_alive(child.pid, ticks + 1)
    child.kill()
    while (found := processes.look(child.pid)) is not None and found.state != "Z":
        time.sleep(0.01)
    assert not processes.is_alive(child.pid, ticks), "a zombie has ended"
    child.wait()
    assert processes.start_ticks(child.pid) is None


def test_start_time_agrees_with_the_clock() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        began = processes.describe(child.pid)[2]
        assert began is not None and abs(began - time.time()) < 5
    finally:
        child.kill()
        child.wait()


def test_a_process_is_described_by_user_and_command() -> None:
    user, command, _ = processes.describe(os.getpid())
    assert user and command and "python" in command
    assert processes.describe(2**22 + 5) == (None, None, None)


def test_marked_processes_are_found_across_sessions() -> None:
    code = "import os, time\nif os.fork() == 0: os.setsid()\nprint(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TEST_MARK": "abc-1"}, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.readline()
    try:
        pids = processes.marked_with("TEST_MARK", "abc-1")
        assert len(pids) == 2 and child.pid in pids
        assert processes.marked_with("TEST_MARK", "abc") == []
    finally:
        for pid in processes.marked_with("TEST_MARK", "abc-1"):
            os.kill(pid, 9)
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize(("text", "path", "unit"), [
    ("0::/system.slice/kimi.service\n", "/system.slice/kimi.service", "kimi.service"),
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/kimi.service/w\n",
     "/user.slice/user-1000.slice/user@1000.service/app.slice/kimi.service/w", "kimi.service"),
    ("12:cpu,cpuacct:/\n1:name=systemd:/system.slice/docker-1a.scope\n0::/\n", "/system.slice/docker-1a.scope", "docker-1a.scope"),
    ("9:name=systemd:/\n8:pids:/\n0::/system.slice/kimi.service\n", "/system.slice/kimi.service", "kimi.service"),
    ("0::/\n", "/", None),
    ("4:memory:/x.service\n", None, None),
    ("0::/init.scope\n", "/init.scope", "init.scope"),
])
def test_the_unit_of_a_process_is_the_innermost_of_its_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, path: str | None,
                                                                     unit: str | None) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_text(text)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert (processes.control_group(5), processes.unit_of(5)) == (path, unit)
    assert (processes.control_group(6), processes.unit_of(6)) == (None, None)


def test_claim_names_the_service_and_leaves_the_rest_unclaimed() -> None:
    gpu = GpuReading(index=0, uuid="u", name="n", processes=[GpuProcess(pid=10, used_bytes=1), GpuProcess(pid=11, used_bytes=None)])
    claimed = processes.claim(GpuSnapshot(gpus=[gpu]), {"kimi": {10}})
    assert [process.service for process in claimed.gpus[0].processes] == ["kimi", None]


def test_the_boot_has_a_name() -> None:
    assert len(processes.boot_id()) == 36


def test_a_command_line_is_shown_without_its_secrets_as_plain_bounded_text() -> None:
    words = ["--api-key", "CANARY1", "CANARY2", "--hf-token=CANARY3", "http://u:CANARY4@h", "\x1b[31mred\u202e", "--port", "8000", "x" * 100_000]
    child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # a process in the middle of its exec has no command line yet
        command = processes.describe(child.pid)[1] or ""
    finally:
        child.kill()
        child.communicate()
    assert "CANARY" not in command and "--port 8000" in command
    assert "\x1b" not in command and "\u202e" not in command and len(command) <= 4000
