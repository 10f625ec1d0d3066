"""A practice box for all tests of this folder, and servers started from its release, each with settings of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.agent.config import NodePaths
from ops.gpus import processes
from ops.practice import box
from ops.records import ServiceRecord

PATIENCE_S = 30.0


@dataclass(frozen=True)
class PracticeBox:
    """A box that was set up; tests do not change it."""

    paths: NodePaths
    root: Path
    record: ServiceRecord

    @property
    def release(self) -> Path:
        return self.record.current.resolve()

    @property
    def model(self) -> Path:
        return Path(self.record.model_path)


@dataclass
class Server:
    """A running practice server. `root` holds its box.json and the memory that it simulates."""

    process: subprocess.Popen[bytes]
    root: Path
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def chat(self, prompt: str = "What is the capital of France?", **fields: Any) -> httpx.Response:
        body = {"model": box.model_folder.NAME, "messages": [{"role": "user", "content": prompt}], **fields}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=60)

    def children(self) -> dict[str, int]:
        """Title and pid of every process below the server."""
        found = {}
        tree = [process for process in processes.all_processes() if process.session == self.process.pid and process.pid != self.process.pid]
        for process in tree:
            with contextlib.suppress(OSError):
                found[Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0").decode()] = process.pid
        return found

    def wait_healthy(self) -> None:
        wait_for(self.healthy, "the server to be healthy", lambda: self.log[-3000:])

    def healthy(self) -> bool:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log[-3000:]}"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        return False


def wait_for(condition: Callable[[], object], what: str, told: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:g} s for {what}. {told()}")
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def practice_box() -> Iterator[PracticeBox]:
    folder = Path(tempfile.mkdtemp(prefix="rh-practice-"))
    paths = NodePaths(folder / "node")
    record = box.set_up(paths, folder / "box", speed=1.0, port=18999)
    yield PracticeBox(paths, folder / "box", record)
    shutil.rmtree(folder)


Start = Callable[..., Server]


def start_server(practice_box: PracticeBox, folder: Path, *, speed: float = 100.0, faults: dict[str, Any] | None = None, release: Path | None = None,
                 model: Path | None = None, flags: list[str] | None = None, port: int | None = None, tensor_parallel: int = 2,
                 env: dict[str, str] | None = None) -> Server:
    """Starts `vllm serve` in a session of its own, as the service manager does; does not wait."""
    root = Path(tempfile.mkdtemp(dir=folder))
    box.write_settings(root, speed=speed, faults=faults or {})
    port = port or free_port()
    program = (release or practice_box.release) / "bin" / "vllm"
    standard = ["--served-model-name", box.model_folder.NAME, "--host", "127.0.0.1", "--port", str(port),
                "--tensor-parallel-size", str(tensor_parallel), "--max-model-len", "8192"]
    parsers = ["--reasoning-parser", "kimi_k2", "--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2"]
    log_path = root / "log.txt"
    with log_path.open("wb") as log:
        process = subprocess.Popen([str(program), "serve", str(model or practice_box.model), *standard, *(parsers if flags is None else flags)],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=root,
                                   env={"PATH": os.environ["PATH"], "HOME": str(root), "PRACTICE_BOX": str(root), "TMPDIR": tempfile.gettempdir(),
                                        **(env or {})})
    return Server(process, root, port, log_path)


def end(server: Server) -> None:
    """Ends what is left of the server's session, worker by worker."""
    for process in list(processes.all_processes()):
        if process.session == server.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    server.process.wait(10)


@pytest.fixture
def start(practice_box: PracticeBox, tmp_path: Path) -> Iterator[Start]:
    """Starts servers that end with the test."""
    servers: list[Server] = []

    def starter(*, healthy: bool = True, **settings: Any) -> Server:
        server = start_server(practice_box, tmp_path, **settings)
        servers.append(server)
        if healthy:
            server.wait_healthy()
        return server

    yield starter
    for server in servers:
        end(server)


@pytest.fixture(scope="session")
def server(practice_box: PracticeBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A healthy server with both parsers that all tests may ask."""
    running = start_server(practice_box, tmp_path_factory.mktemp("server"), tensor_parallel=8)
    try:
        running.wait_healthy()
        yield running
    finally:
        end(running)


def exit_code(server: Server) -> int:
    return server.process.wait(PATIENCE_S)


def recording(name: str) -> str:
    return (Path(__file__).resolve().parents[2] / "fixtures" / "vllm" / name).read_text()


def events_of(stream: str) -> list[Any]:
    """The JSON of every `data:` line of an SSE body, [DONE] as text."""
    found: list[Any] = []
    for line in stream.splitlines():
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            found.append(text if text == "[DONE]" else json.loads(text))
    return found
