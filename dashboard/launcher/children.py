"""The launcher's children: started so that they die with it, watched, started again when they end, ended in order."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.embedded_redis import EmbeddedRedis, die_with_parent
from dashboard.launcher.terminal import Terminal
from ops.agent.config import REPOSITORY
from ops.jobs.errors import OpsError

LOG_MAX_BYTES = 10_000_000  # at a start, a longer log becomes NAME.log.1
WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # before the 1st, 2nd, ... start again
STABLE_S = 60.0  # one that ran this long begins with the first wait again
END_S = 15.0  # from TERM to KILL: uvicorn closes live streams within 3 s, a Celery worker lets a task end


@dataclass
class Child:
    """One process that must run. `redis` stands for the embedded server, which is started in its own way."""

    name: str
    argv: list[str] = field(default_factory=list)
    without: tuple[str, ...] = ()  # environment variables that it does not get
    redis: EmbeddedRedis | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    again_at: float | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None


class Children:
    """All of them, in the order in which they were started."""

    def __init__(self, logs: Path, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self.logs, self.terminal, self.clock = logs, terminal, clock
        self.all: list[Child] = []
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def start(self, name: str, argv: list[str], *, without: tuple[str, ...] = ()) -> Child:
        """Starts a program in the repository's folder; its output goes to `logs/NAME.log`. Raises OpsError if it cannot be started."""
        child = Child(name, argv, without)
        _turn_over(self.log(name))
        self._run(child)
        self.all.append(child)
        return child

    def start_redis(self, server: EmbeddedRedis) -> Child:
        child = Child("redis", redis=server)
        self._run(child)
        self.all.append(child)
        return child

    def _run(self, child: Child) -> None:
        child.started, child.again_at = self.clock(), None
        if child.redis is not None:
            child.process = child.redis.start().process
            return
        environment = {name: value for name, value in os.environ.items() if name not in child.without}
        try:
            with self.log(child.name).open("ab") as log:
                child.process = subprocess.Popen(
                    child.argv, env=environment, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches the launcher alone, which ends the others in order
                    preexec_fn=die_with_parent())
        except OSError as error:
            raise OpsError(f"`{child.name}` could not be started", why=f"{child.argv[0]}: {error.strerror}") from error

    def watch(self) -> None:
        """Starts again what ended, after a wait that grows, and says so. Call it often."""
        for child in self.all:
            if child.process is None or child.process.poll() is None:
                continue
            if child.again_at is None:
                child.failures = 1 if self.clock() - child.started > STABLE_S else child.failures + 1
                wait = WAITS_S[min(child.failures, len(WAITS_S)) - 1]
                child.again_at = self.clock() + wait
                log = child.redis.folder / "server.log" if child.redis else self.log(child.name)
                self.terminal.fact(child.name, self.terminal.colour(f"{how_it_ended(child.process.returncode)}; again in {wait:.0f} s", "amber")
                                   + f"  {last_line(log)}  ({log})")
            elif self.clock() >= child.again_at:
                try:
                    self._run(child)
                except OpsError as error:
                    child.again_at = None  # counts as one more failure
                    self.terminal.fact(child.name, self.terminal.colour(error.what, "red"))
                else:
                    self.terminal.fact(child.name, f"started again, pid {child.pid}")

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ends all, the last started first. `hurry` true: KILL at once."""
        for child in reversed(self.all):
            if child.process is None or child.process.poll() is not None:
                continue
            child.process.terminate()
            deadline = time.monotonic() + END_S
            while child.process.poll() is None and time.monotonic() < deadline and not hurry():
                time.sleep(0.02)
            if child.process.poll() is None:
                try:  # its session's processes too: a worker has a pool
                    os.killpg(child.process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                child.process.wait()
        for child in self.all:
            if child.redis is not None:
                child.redis.stop()
        self.all.clear()


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, cut to 160 characters; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:160] if lines else ""


def _turn_over(log: Path) -> None:
    try:
        if log.stat().st_size > LOG_MAX_BYTES:
            log.replace(log.with_suffix(".log.1"))
    except FileNotFoundError:
        pass
