"""`manage.py up` as a real process: what it starts, what it says, what it leaves (nothing), and what it finds after it was killed."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from dashboard.launcher import node
from dashboard.launcher.children import Children
from dashboard.launcher.earlier import START_MARK, Start
from dashboard.launcher.terminal import JobLines, Terminal
from ops.agent.config import NodePaths
from ops.gpus.processes import marked_with, start_ticks
from ops.jobs.errors import Busy
from ops.jobs.events import Event

REPOSITORY = Path(__file__).resolve().parents[1]
START_S = 60


def wait_for(condition: Callable[[], object], seconds: float = START_S, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Up:
    """A launcher in a process of its own, with what it printed."""

    def __init__(self, state: Path, *arguments: str, **environment: str) -> None:
        self.state, self.said = state, state.parent / f"said-{time.monotonic_ns()}.txt"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
        with self.said.open("wb") as said:
            self.process = subprocess.Popen([sys.executable, "manage.py", "up", *arguments], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=said,
                                            stderr=subprocess.STDOUT, start_new_session=True,
                                            env={**clean, "ROUNDHOUSE_STATE": str(state), **environment})

    def text(self) -> str:
        return self.said.read_text()

    def wait_until_up(self) -> None:
        try:
            wait_for(lambda: "Ctrl-C ends it" in self.text() or self.process.poll() is not None, what="the launcher stays")
        except AssertionError as error:
            logs = "".join(f"\n== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.state.glob("logs/*.log")))
            raise AssertionError(f"{error}\n{self.text()}{logs}") from None
        assert self.process.poll() is None, self.text()

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)

    def left(self) -> list[int]:
        return marked_with(START_MARK, str(self.state))

    def pid_of(self, name: str) -> int:
        return int(re.findall(rf"^  {name} .*pid (\d+)", self.text(), re.M)[-1])


@pytest.fixture
def up(short_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, **environment: str) -> Up:
        started.append(Up(short_path / "state", *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


def test_everything_runs_is_said_comes_back_when_it_dies_and_is_gone_after_ctrl_c(up: Callable[..., Up]) -> None:
    port = free_port()
    one = up("--port", str(port))
    one.wait_until_up()
    wait_for(lambda: len(one.left()) >= 5, 20, "redis, web, recorder, agent and its companion run")
    assert f"http://127.0.0.1:{port}/sign-in/" in one.text()
    assert "gpus" in one.text() and "The console works all the same" in one.text()
    second = up("--port", str(free_port()))
    assert second.process.wait(30) == 1
    assert second.text().splitlines() == [
        f"Roundhouse already runs with the state folder `{one.state}` (pid {one.process.pid}, http://127.0.0.1:{port})",
        "hint: End it with Ctrl-C, or choose another folder with ROUNDHOUSE_STATE"]

    os.kill(one.pid_of("recorder"), signal.SIGKILL)
    os.kill(one.pid_of("redis"), signal.SIGKILL)
    wait_for(lambda: len(re.findall(r"^  (recorder|redis) +started again", one.text(), re.M)) == 2, what="both started again")
    assert "was ended by SIGKILL; again in 1 s" in one.text()
    one.end(signal.SIGKILL)
    two = up("--port", str(port))  # at once: it ends what is still ending
    two.wait_until_up()
    assert two.end() == 0
    assert two.left() == [] and two.text().endswith("\nEnded; no process is left.\n")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_ctrl_c_before_anything_has_started_is_no_traceback(short_path: Path) -> None:
    interrupted = ("import os, signal, manage, django.core.management as management\n"
                   "management.execute_from_command_line = lambda argv: os.kill(os.getpid(), signal.SIGINT)\n"
                   "manage.main()")
    done = subprocess.run([sys.executable, "-c", interrupted], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "ROUNDHOUSE_STATE": str(short_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_port_in_use_is_one_sentence_and_nothing_is_started(up: Callable[..., Up]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        one = up("--port", str(taken.getsockname()[1]))
        assert one.process.wait(30) == 1
    assert re.fullmatch(r"Port \d+ cannot be used: Address already in use\nhint: Choose another one: `make demo PORT=8471`\n", one.text())
    assert not (one.state / "db.sqlite3").exists()
    assert not (one.state / "redis").exists()


def test_a_state_folder_of_the_other_kind_is_refused(up: Callable[..., Up], short_path: Path) -> None:
    node = short_path / "state" / "node"
    node.mkdir(parents=True)
    (node / "node.toml").write_text('name = "practice"\npractice = true\n')
    one = up("--port", str(free_port()))
    assert one.process.wait(30) == 1
    assert one.text().startswith(f"The state folder of this node, `{node}`, belongs to a practice node\n")


def test_a_redis_that_does_not_answer_is_said(up: Callable[..., Up]) -> None:
    one = up("--port", str(free_port()), ROUNDHOUSE_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert one.process.wait(30) == 1
    assert "The Redis of ROUNDHOUSE_REDIS_URL does not answer" in one.text()
    assert "Traceback" not in one.text()


def test_a_running_redis_is_used_and_not_ended(up: Callable[..., Up], redis_url: str) -> None:
    one = up("--port", str(free_port()), ROUNDHOUSE_REDIS_URL=redis_url)
    one.wait_until_up()
    assert "redis      a running one (ROUNDHOUSE_REDIS_URL)" in one.text()
    assert not (one.state / "redis").exists()
    assert one.end(signal.SIGTERM) == 0 and one.left() == []
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_state_folder_of_another_user_is_refused(up: Callable[..., Up], short_path: Path) -> None:
    state = short_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    one = up("--port", str(free_port()))
    assert one.process.wait(30) == 1
    assert one.text().startswith(f"The state folder `{state}` belongs to another user\n")


def test_leftovers_of_an_earlier_start_are_ended_but_those_of_jobs_go_on(tmp_path: Path) -> None:
    def sleeper(**marks: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env={**os.environ, START_MARK: str(tmp_path), **marks}, start_new_session=True)

    left, job = sleeper(), sleeper(ROUNDHOUSE_JOB="some-job")
    try:
        assert Start(tmp_path).end_leftovers() == 1
        assert left.wait(5) == -signal.SIGTERM
        assert job.poll() is None
    finally:
        for process in (left, job):
            process.kill()
            process.wait()


def test_a_start_that_is_over_does_not_keep_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_MARK, "")
    one, two = Start(tmp_path), Start(tmp_path)
    one.take()
    one.write(address="http://127.0.0.1:1")
    with pytest.raises(Busy, match=rf"pid {os.getpid()}, http://127.0.0.1:1"):
        two.take()
    one.release()
    two.take()
    two.release()


def test_a_child_that_keeps_ending_waits_longer_each_time(tmp_path: Path) -> None:
    now, said = [0.0], io.StringIO()
    children = Children(tmp_path / "logs", Terminal(said), clock=lambda: now[0])
    child = children.start("web", [sys.executable, "-c", "print('no such port'); raise SystemExit(3)"])
    waits = []
    for _ in range(3):
        assert child.process is not None
        child.process.wait()
        children.watch()
        waits.append(child.again_at - now[0])  # type: ignore[operator]
        now[0] += waits[-1]
        children.watch()
    children.stop()
    assert waits == [1, 2, 5]
    assert "web        ended with exit code 3; again in 1 s  no such port" in said.getvalue()


def test_a_stopped_child_takes_its_session_with_it(tmp_path: Path) -> None:
    """A worker that does not react to SIGTERM is killed together with its pool."""
    program = ("import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); pid = os.fork(); "
               "print(pid, flush=True) if pid else None; time.sleep(60)")
    children = Children(tmp_path / "logs", Terminal(io.StringIO()))
    children.start("agent", [sys.executable, "-c", program])
    wait_for(lambda: children.log("agent").read_text().strip(), what="its pid")
    pid = int(children.log("agent").read_text())
    ticks = start_ticks(pid)
    children.stop(hurry=lambda: True)
    wait_for(lambda: start_ticks(pid) != ticks or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", 5, "the pool's process is gone")


def test_redis_is_started_again_with_its_data(short_path: Path) -> None:
    said = io.StringIO()
    children = Children(short_path / "logs", Terminal(said))
    server = EmbeddedRedis(short_path / "redis")
    child = children.start_redis(server)
    with redis.Redis.from_url(server.url()) as client:
        client.set("kept", "yes")
    os.kill(child.process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    wait_for(lambda: (children.watch(), "started again" in said.getvalue())[1], 10, "started again")
    with redis.Redis.from_url(server.url()) as client:
        assert client.get("kept") == b"yes"
    children.stop()


def test_practice_boxes_look_for_a_port_at_different_places_and_pass_over_what_is_taken(tmp_path: Path) -> None:
    one, two = node.free_port(tmp_path / "one"), node.free_port(tmp_path / "two")
    assert one != two
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", one))
        taken.listen()
        assert node.free_port(tmp_path / "one") in {one + 1, one + 2, node.PRACTICE_PORTS.start}


def lines_of(*events: tuple[str, dict[str, object]]) -> list[str]:
    out = io.StringIO()
    shown = JobLines(Terminal(out))
    for seq, (type_, data) in enumerate(events, 1):
        shown.show(Event("job", seq, 0.0, type_, dict(data)))
    return out.getvalue().splitlines()


def test_a_new_real_node_may_clean_up_temporary_files_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    paths, out = NodePaths(tmp_path / "node"), io.StringIO()
    assert {"/tmp", "/dev/shm"} <= set(node.set_up_real(paths, Terminal(out)).artifact_roots)
    kept = 'name = "mine"\n'
    paths.node_toml.write_text(kept)
    assert node.set_up_real(paths, Terminal(out)).artifact_roots == []
    assert paths.node_toml.read_text() == kept


def test_a_jobs_events_become_lines_that_a_person_can_read() -> None:
    assert lines_of(
        ("job.claimed", {"steps": [{"name": "build", "title": "Build"}, {"name": "warmup", "title": "Warmup"}]}),
        ("step.started", {"step": "build", "title": "Build", "index": 0}),
        ("step.finished", {"step": "build", "outcome": "done", "duration_s": 12.34, "note": "20260301-dev344"}),
        ("warmup.phase", {"phase": "weights", "title": "Loading weights", "state": "done", "took_s": 83.0}),
        ("downtime.ended", {"service": "kimi", "seconds": 95.04, "release": "r"}),
        ("sweep.level_finished", {"run_id": "r", "metrics": {"concurrency": 8, "output_tok_s": 277.04, "e2e_mean_s": 1.84, "errors": 0}}),
        ("sweep.level_finished", {"run_id": "r", "metrics": {"concurrency": 128, "output_tok_s": None, "e2e_mean_s": None, "errors": 128}}),
        ("step.finished", {"step": "warmup", "outcome": "failed", "duration_s": 3.0, "note": "crashed"}),
        ("finding", {"subject": "plan", "level": "warning", "title": "flashinfer-cubin is completed"}),
        ("finding", {"subject": "plan", "level": "ok", "title": "not shown"}),
    ) == [
        "  ✓ Build                     12.3 s  20260301-dev344",
        "      Loading weights                   1:23 min",
        "      service was down for 1:35 min",
        "         8 at once      277.0 tok/s  mean 1.8 s",
        "       128 at once  no throughput  128 errors",
        "  ✗ Warmup                     3.0 s  failed  crashed",
        "      ! flashinfer-cubin is completed",
    ]
