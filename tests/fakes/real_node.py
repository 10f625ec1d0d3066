"""A node that is not the practice box, in a folder: one service under the plain-process manager, real wheels, and jobs run in this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from ops.agent.config import NodePaths
from ops.environments import releases
from ops.gpus import processes
from ops.jobs import claim, runner
from ops.jobs.envelope import Envelope
from ops.jobs.events import EventType
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Outcome
from ops.records import Channel, ServiceRecord
from ops.services.manager import manager_for
from ops.services.process import MARK

SERVICE = "tiny"


@dataclass
class Told:
    """How a job ended, and all that it said."""

    outcome: Outcome
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def of(self, type: EventType) -> list[dict[str, Any]]:
        return [data for told, data in self.said if told == type]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return self.of(EventType.FINDING)

    @property
    def plan(self) -> dict[str, Any]:
        return self.of(EventType.PLAN_MADE)[-1]

    @property
    def log(self) -> str:
        return "".join(data["text"] for data in self.of(EventType.STEP_LOG))

    def took(self, step: str) -> float:
        """Seconds of a step."""
        return next(float(data["duration_s"]) for data in self.of(EventType.STEP_FINISHED) if data["step"] == step)

    @property
    def downtime_s(self) -> float:
        return sum(float(data["seconds"]) for data in self.of(EventType.DOWNTIME_ENDED))


class RealNode:
    """`root` must be short. The record changes between jobs by `change`."""

    def __init__(self, root: Path, *, index_urls: Sequence[str] = (), wheelhouse: Path | None = None, **fields: Any) -> None:
        self.root, self.paths = root, NodePaths(root / "node").make()
        model = root / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text('{"architectures": ["TinyForCausalLM"]}\n')
        (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        port = free_port()
        self.record = ServiceRecord(
            name=SERVICE, root=str(self.paths.services / SERVICE), model_path=str(model), served_model_name="tiny", base_url=f"http://127.0.0.1:{port}",
            flags=["--host", "127.0.0.1", "--port", str(port)], **fields)
        self.paths.node_toml.write_text(tomli_w.dumps({
            "name": "real", "service_roots": [str(self.paths.services)], "model_roots": [str(model)], "index_urls": list(index_urls),
            "wheelhouse_roots": [str(wheelhouse)] if wheelhouse else [], "environment_roots": [str(root)]}))
        self.change()

    @property
    def cache(self) -> Path:
        """The node's own uv cache, as `ops.environments.plan.default_uv` places it."""
        return self.paths.root / "uv-cache"

    def change(self, **fields: Any) -> None:
        """Changes fields of the record, and the file that announces it."""
        self.record = ServiceRecord.from_dict(self.record.as_dict() | fields)
        (self.paths.announced / f"{SERVICE}.json").write_text(json.dumps(self.record.as_dict(), indent=1) + "\n")

    def adopt(self, env: Path) -> None:
        """Makes an environment that is there the service's release in use."""
        self.change(environment=str(env))
        releases.adopt(self.record)

    def run(self, type: str, channel: Channel | None = None, *, plan: dict[str, Any] | None = None, **params: Any) -> Told:
        """Runs a job here, with its locks and its journal."""
        told = Told(outcome=None)  # type: ignore[arg-type]  # until it has ended
        if self.record.in_place and type in ("redeploy", "rollback", "restart"):
            params |= {"in_place": True, "environment": os.path.realpath(self.record.environment)}
        locks = sorted(KINDS[type].locks(self.record.name, params))
        envelope = Envelope.make(type=type, node="real", service=self.record.as_dict(), params=params, locks=locks,
                                 fence=claim.next_fences(self.paths, locks), by="test", now=time.time(),
                                 snapshot={"channel": channel.as_dict() if channel else None, "plan": plan})
        told.outcome = runner.run_here(self.paths, envelope,
                                       on_event=lambda type, data: told.said.append((type, json.loads(json.dumps(data)))))
        return told

    @property
    def current(self) -> Path:
        found = releases.current(self.record)
        assert found is not None
        return found

    @property
    def state(self) -> str:
        return str(manager_for(self.record).status().state)

    def start(self) -> None:
        """Starts the service by hand, as before any job."""
        from ops.services import launch

        launch.write(self.record)
        manager_for(self.record).start()
        until(lambda: self.state == "healthy", 60)

    def close(self) -> None:
        """Ends every process of the service."""
        manager = manager_for(self.record)
        known = self.record.folder / "process.json"
        if not known.exists():
            return
        invocation = json.loads(known.read_text())["invocation"]
        for pid in manager.pids():
            with suppress(ProcessLookupError):  # it ended in this moment
                os.kill(pid, signal.SIGKILL)
        until(lambda: not processes.marked_with(MARK, invocation), 20)


@contextmanager
def real_node(root: Path, **settings: Any) -> Iterator[RealNode]:
    node = RealNode(root, **settings)
    try:
        yield node
    finally:
        node.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
    return found
