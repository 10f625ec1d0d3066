"""`adopt`, and what an adopted service can do: real files, a real environment, a small server, jobs of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uv

from ops.agent.config import NodePaths
from ops.gpus import processes
from ops.records import ServiceRecord
from ops.services.process import MARK, ProcessManager
from tests.fakes.node import until
from tests.fakes.small_vllm import make_small_vllm
from tests.ops.command_line.run import error_of, ops
from tests.ops.services.conftest import free_port


@dataclass
class Server:
    """A host with one unit, which names an environment and a model folder."""

    root: Path
    paths: NodePaths

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ops(*arguments, ROUNDHOUSE_NODE_STATE=str(self.paths.root))

    def adopt(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run("adopt", "--unit", str(self.root / "units" / "tiny.service"), "--manager", "process", *more)

    @property
    def record(self) -> ServiceRecord:
        return ServiceRecord.from_dict(json.loads((self.paths.announced / "tiny.json").read_text()))


@pytest.fixture
def server(short_path: Path) -> Iterator[Server]:
    wheels, env, model = short_path / "wheels", short_path / "env", short_path / "models" / "tiny"
    make_small_vllm(wheels, "0.17.1")
    program = uv.find_uv_bin()
    for argv in (["venv", "-q", "--python", sys.executable, str(env)],
                 ["pip", "install", "-q", "--python", str(env), "--no-index", "--find-links", str(wheels), "--cache-dir",
                  str(short_path / "c"), "vllm"]):
        subprocess.run([program, *argv], check=True, timeout=60)
    make_small_vllm(wheels, "0.17.2")
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["TinyForCausalLM"]}\n')
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (short_path / "units").mkdir()
    (short_path / "secret.env").write_text("HF_TOKEN=hf_canary0123456789abcdef\n")
    (short_path / "units" / "tiny.service").write_text(
        f"[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=\nEnvironmentFile={short_path}/secret.env\n"
        f"ExecStart=/bin/sh -c '. {env}/bin/activate && exec vllm serve {model} --port {free_port()} --served-model-name tiny'\n")
    made = Server(short_path, NodePaths(short_path / "node").make())
    made.paths.node_toml.write_text(f'name = "gpu01"\nservice_roots = ["{made.paths.services}"]\nmodel_roots = ["{model.parent}"]\n'
                                    f'wheelhouse_roots = ["{wheels}"]\n')
    yield made
    if not (made.paths.announced / "tiny.json").exists():
        return
    manager, file = ProcessManager(made.record), made.record.folder / "process.json"
    manager.kill()
    if file.exists():
        mark = json.loads(file.read_text())["invocation"]
        until(lambda: not processes.marked_with(MARK, mark), 20, "the server's processes ended")


def test_adopt_prints_the_record_and_changes_nothing_until_told_to(server: Server) -> None:
    before = sorted(server.root.rglob("*"))
    plain = server.adopt()
    assert plain.returncode == 0 and sorted(server.root.rglob("*")) == before, plain.stderr
    record = json.loads(plain.stdout)
    assert (record["environment"], record["served_model_name"]) == (str(server.root / "env"), "tiny")
    assert "Nothing was changed. --apply makes it a service" in plain.stderr and "canary" not in plain.stdout + plain.stderr
    made = json.loads(server.adopt("--apply", "--json").stdout)
    assert made["applied"] and server.record.env_files == [str(server.root / "secret.env")]
    assert json.loads(server.run("releases", "--service", "tiny", "--json").stdout)["current"] == "adopted"
    assert server.run("integrity", "--service", "tiny").returncode == 0


def test_what_cannot_be_adopted_exits_1_and_stores_nothing(server: Server) -> None:
    unit = server.root / "units" / "tiny.service"
    unit.write_text(unit.read_text().replace("models/tiny", "models/none"))
    done = server.adopt("--apply", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and not told["applied"] and told["findings"][0]["level"] == "stop"
    assert list(server.paths.announced.iterdir()) == []
    unit.write_text("[Service]\nExecStart=/usr/bin/docker run vllm\n")
    assert "container" in error_of("adopt", "--unit", str(unit), ROUNDHOUSE_NODE_STATE=str(server.paths.root))["what"]
    assert "There is no unit" in error_of("adopt", "--unit", "no-such-unit", "--unit-path", str(server.root))["what"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_user_than_the_nodes_writes_nothing_there(server: Server) -> None:
    os.chown(server.paths.root, 65534, 65534)
    done = server.adopt("--apply")
    assert done.returncode == 1 and "belongs to the user `nobody`" in done.stderr and list(server.paths.announced.iterdir()) == []
    assert server.adopt().returncode == 0, "looking is free"


@pytest.mark.slow
def test_an_adopted_service_is_redeployed_and_goes_back_to_what_it_was(server: Server) -> None:
    assert server.adopt("--apply").returncode == 0
    environment = {path: path.read_bytes() for path in (server.root / "env").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    channel = ["--service", "tiny", "--channel", f"wheelhouse:{server.root}/wheels"]
    done = server.run("redeploy", *channel, "--yes", "--no-sweep", "--no-smoke", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    status = ProcessManager(server.record).status()
    assert (status.state, server.record.current.resolve().parent) == ("healthy", server.record.releases.resolve())
    assert processes.environment(status.pid or 0)["HF_TOKEN"] == "hf_canary0123456789abcdef"  # type: ignore[index]
    assert "canary" not in "".join(path.read_text(errors="replace") for path in server.paths.jobs.rglob("*") if path.is_file())

    back = server.run("rollback", "--service", "tiny", "--release", "adopted", "--no-smoke")
    assert back.returncode == 0, back.stderr
    assert server.record.current.resolve() == (server.root / "env").resolve()
    assert ProcessManager(server.record).status().state == "healthy"
    assert {path: path.read_bytes() for path in environment} == environment, "the adopted environment was never written to"
