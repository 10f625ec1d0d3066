"""A node for tests: a state folder of its own, orders with rising fences, the real agent, and an end that leaves no process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from ops.agent.config import NodePaths
from ops.gpus.processes import all_processes, is_alive
from ops.jobs import claim, marks, reconcile
from ops.jobs.envelope import Envelope
from ops.jobs.events import Event
from ops.jobs.journal import journal_path, read
from tests.fakes import job_kinds

NAME = "n1"


def until(holds: Callable[[], Any], seconds: float, what: str = "") -> Any:
    """Polls until `holds()` is true and gives its value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or holds}"
        time.sleep(0.05)
    return found


class FakeNode:
    """`root` must be short enough for unix sockets."""

    def __init__(self, root: Path) -> None:
        self.paths = NodePaths(root).make()
        self.paths.node_toml.write_text(f'name = "{NAME}"\n')
        self.jobs: list[str] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        self._fence = 0

    def order(self, type: str = "redeploy", *, now: float | None = None, **params: Any) -> Envelope:
        """An envelope for this node; a later one has a higher fence."""
        lock = f"service:{params.get('on', 'a')}"
        locks = [lock] if type in {"redeploy", "restart"} else []
        self._fence += 1
        made = Envelope.make(type=type, node=NAME, locks=locks, fence=dict.fromkeys(locks, self._fence), params=params, by="test",
                             now=now or time.time())
        self.jobs.append(made.job)
        return made

    def folder(self, job: str) -> Path:
        return self.paths.jobs / job

    def events(self, job: str) -> list[Event]:
        return read(journal_path(self.paths, job))

    def types(self, job: str) -> list[str]:
        return [event.type for event in self.events(job)]

    def runner(self, job: str, seconds: float = 20) -> reconcile.Runner:
        """The job's runner, once it has claimed it."""
        return until(lambda: reconcile.runner_of(journal_path(self.paths, job)), seconds, "claimed")

    def finished(self, job: str, seconds: float = 30) -> dict[str, Any]:
        """The data of `job.finished`, once it is there."""
        until(lambda: self.events(job) and self.events(job)[-1].type == "job.finished", seconds, f"job {job} finished")
        return self.events(job)[-1].data

    def in_step(self, job: str, step: str, seconds: float = 20) -> None:
        until(lambda: any(event.type == "step.started" and event.data["step"] == step for event in self.events(job)), seconds, f"step {step}")

    def busy(self, lock: str = "service:a") -> bool:
        """Whether nobody else could take the lock now."""
        try:
            claim.release(claim.lock_all(self.paths, [lock], patience_s=0))
        except claim.Busy:
            return True
        return False

    def start_agent(self, redis_url: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "ROUNDHOUSE_NODE_STATE": str(self.paths.root), "ROUNDHOUSE_REDIS_URL": redis_url}
        env.pop("DJANGO_SETTINGS_MODULE", None)
        agent = job_kinds.start_agent(NAME, self.paths.root / "agent.log", env)
        self._agents.append(agent)
        return agent

    def companion_of(self, agent: subprocess.Popen[bytes]) -> int | None:
        return next((process.pid for process in all_processes() if process.parent == agent.pid), None)

    def kill_agent(self, agent: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the agent's main process and its companion, and nothing else."""
        companion = self.companion_of(agent)
        agent.kill()
        if companion:
            with contextlib.suppress(ProcessLookupError):
                os.kill(companion, signal.SIGKILL)
        agent.wait(10)

    def log(self) -> str:
        return (self.paths.root / "agent.log").read_text() if (self.paths.root / "agent.log").exists() else ""

    def close(self) -> None:
        """Ends the agents, then all that their jobs left."""
        for agent in self._agents:
            if agent.poll() is None:
                agent.terminate()
                try:
                    agent.wait(15)
                except subprocess.TimeoutExpired:
                    self.kill_agent(agent)
        for job in self.jobs:
            marks.end_marked(job, grace_s=0)
        kept = self.paths.root / "service.pid"
        if kept.exists():
            pid, ticks = map(int, kept.read_text().split())
            if is_alive(pid, ticks):
                os.kill(pid, signal.SIGKILL)


class Recorder:
    """What the console's recorder says on Redis, without a database: which seq it has of each job, in order."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.seqs: dict[str, list[int]] = {}

    def take(self) -> None:
        """Reads the jobs' streams and says what is stored."""
        for key in self.client.scan_iter("job:*:events"):
            job = key.decode().split(":")[1]
            seqs = self.seqs.setdefault(job, [])
            for entry, _ in self.client.xrange(key, min=f"{(seqs[-1] if seqs else 0) + 1}-0"):
                seqs.append(int(entry.decode().split("-")[0]))
            if seqs:
                self.client.hset("stored", job, seqs[-1])
