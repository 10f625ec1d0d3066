from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.gpus.processes import environment
from ops.jobs import claim, commands, marks
from ops.jobs.errors import Cancelled, CommandFailed, OpsError, Timeout
from ops.jobs.pipeline import Context
from tests.fakes.node import FakeNode, until

PYTHON = sys.executable


@pytest.fixture
def job(node: FakeNode) -> Iterator[Context]:
    order = node.order()
    folder = node.paths.jobs / order.job
    folder.mkdir()
    fds = claim.lock_all(node.paths, ["service:a"])
    yield Context(job=order.job, params={}, paths=NodePaths(node.paths.root), config=NodeConfig(name="n1"), folder=folder,
                  emit=lambda type, data: None, lock_fds=fds)
    claim.release(fds)


def python(code: str) -> list[str]:
    return [PYTHON, "-c", code]


def test_lines_come_out_of_both_streams_cut_at_returns_too() -> None:
    lines: list[str] = []
    done = commands.run(python(r"import sys; sys.stdout.write('a\r10%\r20%\r\nb\n\nlast'); sys.stderr.write('err\n')"), on_line=lines.append)
    assert [line for line in lines if line != "err"] == ["a", "10%", "20%", "b", "", "last"]
    assert "err" in lines
    assert (done.stdout, done.stderr, done.code) == ("a\n10%\n20%\nb\n\nlast\n", "err\n", 0)


def test_lines_come_while_the_program_runs() -> None:
    came: list[float] = []
    began = time.monotonic()
    commands.run(python("import time; print('now', flush=True); time.sleep(2)"), on_line=lambda line: came.append(time.monotonic() - began))
    assert came[0] < 1.8


def test_a_failing_program_raises_with_its_last_lines() -> None:
    with pytest.raises(CommandFailed) as caught:
        commands.run(python("import sys; print('the reason'); sys.exit(3)"))
    assert caught.value.facts["code"] == 3
    assert "the reason" in caught.value.facts["tail"]
    assert commands.run(["/bin/false"], check=False).code == 1


def test_a_missing_program_and_a_nul_are_told_apart_from_a_bug() -> None:
    for argv in (["/nowhere/at/all"], ["/bin/echo", "a\0b"]):
        with pytest.raises(OpsError):
            commands.run(argv)


def test_nothing_of_our_environment_reaches_a_program(monkeypatch: pytest.MonkeyPatch, job: Context) -> None:
    for name in ("UV_INDEX_URL", "PIP_INDEX_URL", "PYTHONPATH", "ROUNDHOUSE_REDIS_URL", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "leak")
    done = commands.run(["/usr/bin/env"], context=job, env={"MINE": "1"})
    assert "leak" not in done.stdout
    assert f"ROUNDHOUSE_JOB={job.job}\n" in done.stdout
    assert "MINE=1\n" in done.stdout


def test_a_program_has_no_stdin_no_shell_and_its_own_session() -> None:
    done = commands.run([*python("import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), sys.argv[1])"), "$(id) ; *"])
    assert done.stdout == "'' True $(id) ; *\n"


def test_a_program_keeps_the_jobs_lock(node: FakeNode, job: Context) -> None:
    inherited = commands.run(python("import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2"
                                    " and os.path.exists(f'/proc/self/fd/{n}')])"), context=job)
    assert str(claim.lock_file(node.paths, "service:a")) in inherited.stdout


def test_the_output_files_are_gone_afterwards(job: Context) -> None:
    commands.run(["/bin/echo", "x"], context=job)
    assert list(job.folder.iterdir()) == []


def test_a_deadline_ends_the_program_and_its_children() -> None:
    began = time.monotonic()
    with pytest.raises(Timeout):
        commands.run(["/bin/sh", "-c", "sleep 61 & sleep 62"], timeout_s=0.5)
    assert time.monotonic() - began < 8


def stubborn(file: Path) -> list[str]:
    """A child that left its session and ignores TERM, and its parent that waits."""
    child = ("import os, signal, time; os.setsid(); signal.signal(15, signal.SIG_IGN);"
             f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(90)")
    return python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()")


def test_cancel_ends_also_what_left_the_session_and_ignores_term(job: Context, tmp_path: Path) -> None:
    cancelled = threading.Event()
    job = replace(job, cancel_wanted=cancelled.is_set)
    threading.Timer(0.1, lambda: (until((tmp_path / "pid").exists, 20), cancelled.set())).start()
    began: list[float] = []

    def wait() -> None:
        cancelled.wait(30)
        began.append(time.monotonic())

    watcher = threading.Thread(target=wait)
    watcher.start()
    with pytest.raises(Cancelled):
        commands.run(stubborn(tmp_path / "pid"), context=job)
    watcher.join()
    assert time.monotonic() - began[0] < 15
    assert marks.ended(int((tmp_path / "pid").read_text()))
    assert marks.marked(job.job) == set()


def test_an_error_in_on_line_ends_the_program(job: Context) -> None:
    def crash(line: str) -> None:
        raise OpsError("decisive line")

    with pytest.raises(OpsError, match="decisive"):
        commands.run(python("import time; print('x', flush=True); time.sleep(60)"), context=job, on_line=crash)
    assert marks.marked(job.job) == set()


def test_one_endless_line_is_cut_and_does_not_fill_the_memory() -> None:
    longest: list[int] = [0]

    def take(line: str) -> None:
        longest[0] = max(longest[0], len(line))

    done = commands.run(python("import sys\nfor _ in range(400): sys.stdout.write('x' * 100_000)"), on_line=take)
    assert longest[0] == commands.LONGEST_LINE
    assert len(done.stdout) <= commands.KEPT


def test_a_word_cut_between_two_reads_stays_whole() -> None:
    slowly = "import sys, time; o = sys.stdout.buffer\nfor b in 'äöü€\\r\\n'.encode(): o.write(bytes([b])); o.flush(); time.sleep(0.03)"
    done = commands.run(python(slowly))
    assert done.stdout == "äöü€\n"


def test_a_mark_is_seen_whoever_the_parent_is(job: Context) -> None:
    done = commands.run(["/bin/sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"], context=job)
    left: Any = marks.marked(job.job)
    assert left
    assert environment(min(left)) is not None
    assert done.code == 0
    assert marks.end_marked(job.job) == set()
