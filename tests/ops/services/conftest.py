"""A service whose release is a folder with an interpreter and tests/fakes/vllm_server.py as `vllm`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.gpus import processes
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services.process import MARK, ProcessManager

FAKE = Path(__file__).resolve().parents[2] / "fakes" / "vllm_server.py"


def wait_for(what: Callable[[], Any], seconds: float = 20) -> Any:
    """The first true value of `what`; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_release(root: Path, name: str = "20260101-000000-0.1") -> Path:
    release = root / "releases" / name
    (release / "bin").mkdir(parents=True)
    (release / "bin" / "python").symlink_to(sys.executable)
    (release / "bin" / "vllm").write_text(f"#!{release}/bin/python\n" + FAKE.read_text())
    (release / "bin" / "vllm").chmod(0o755)
    return release


@pytest.fixture
def make_record(short_path: Path) -> Iterator[Callable[..., ServiceRecord]]:
    """Makes a service that behaves as `plan` says; ends every process of it afterwards."""
    made: list[ServiceRecord] = []

    def make(plan: dict[str, Any] | None = None, **fields: Any) -> ServiceRecord:
        root, model = short_path / "svc", short_path / "model"
        port = free_port()
        model.mkdir(exist_ok=True)
        if not (root / "current").exists():
            release = make_release(root)
            (root / "current").symlink_to(release)
        record = ServiceRecord(
            name="svc", root=str(root), model_path=str(model), served_model_name="tiny", base_url=f"http://127.0.0.1:{port}",
            **{"flags": ["--port", str(port)], "env": {"FAKE_VLLM": json.dumps(plan or {"serve": True})}, **fields},
        )
        made.append(record)
        return record

    yield make
    for record in made:
        manager = ProcessManager(record)
        invocation = json.loads((record.folder / "process.json").read_text())["invocation"] if (record.folder / "process.json").exists() else None
        for pid in manager.pids():
            with suppress(ProcessLookupError):  # it ended in this moment
                os.kill(pid, signal.SIGKILL)
        if invocation:
            wait_for(lambda invocation=invocation: not processes.marked_with(MARK, invocation))


class Job:
    """A Context that keeps what was emitted."""

    def __init__(self, folder: Path) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.cancel = False
        self.context = Context(
            job=str(uuid.uuid4()), params={}, paths=NodePaths(folder), config=NodeConfig(name="node"), folder=folder, emit=self.emit, step="warmup",
            cancel_wanted=lambda: self.cancel,
        )

    def emit(self, type: str, data: dict[str, Any]) -> None:
        json.dumps(data)  # all that is said must be JSON
        self.events.append((str(type), data))

    def of(self, type: str) -> list[dict[str, Any]]:
        return [data for kind, data in self.events if kind == type]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
