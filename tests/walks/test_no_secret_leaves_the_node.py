"""Secrets of flags, variables, environment files and sealed settings, said aloud by the server: in no database, Redis, journal, page or output."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from ops.agent.config import NodePaths
from ops.records import ServiceRecord
from ops.services import launch
from ops.services.process import ProcessManager
from tests.dashboard.real_console import REPOSITORY, RealConsole, wait_until
from tests.ops.services.conftest import free_port, make_release

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Words that no pattern knows: they are only hidden where the node knows that they are secret
FLAG, SECOND_FLAG, VARIABLE, PROXY, OF_FILE, OF_FILE_URL, SEALED, SEALED_URL = CANARIES = [
    f"Canary{n}-plain-word-{n}" for n in ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")]

DRIVER = """
import json, sys, django
django.setup()
from django.contrib.auth.models import User
from dashboard import dispatch
from dashboard.models import Service
user = User.objects.get(username="user0")
user.is_superuser = user.is_staff = True
user.save()
for line in sys.stdin:
    how, kind, more = json.loads(line)
    service = Service.objects.get(name="svc")
    if how == "settings":
        job = dispatch.start_settings_set(service=service, user=user, before=service.launch["mark"], **more)
    elif how == "switch":
        job = dispatch.start_switch(service=service, to=Service.objects.get(name="other"), user=user, smoke=False)
    else:
        job = dispatch.start_control(service=service, kind=kind, user=user, **more)
    print(json.dumps([str(job.pk), job.number]), flush=True)
"""


HELP = """usage: vllm serve [model_tag] [options]

options:
  -h, --help            show this help message and exit
  --port PORT           Port number.
  --api-key API_KEY [API_KEY ...]
  --hf-token HF_TOKEN
"""


def whole_release(root: Path) -> Path:
    """The stand-in for vLLM in what preflight takes for an environment."""
    release = make_release(root)
    library = release / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "vllm-0.16.0.dist-info"
    library.mkdir(parents=True)
    (library / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.16.0\n")
    (release / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = {sys.version.split()[0]}\n")
    (release / "help").write_text(HELP)
    (release / "bin" / "vllm").rename(release / "bin" / "serve")
    (release / "bin" / "vllm").write_text(f'#!/bin/sh\n[ "$2" = --help=all ] && exec cat "{release}/help"\nexec "{release}/bin/serve" "$@"\n')
    (release / "bin" / "vllm").chmod(0o755)
    return release


class World:
    """A console with its processes, an agent, and a node with two services; and all that went through Redis."""

    def __init__(self, folder: Path, url: str) -> None:
        self.console, self.url = RealConsole(folder, url, users=1), url
        self.paths = NodePaths(folder / "node").make()
        self.paths.node_toml.write_text(f'name = "walk"\nservice_roots = ["{folder}"]\nmodel_roots = ["{folder}"]\n')
        spoken = "".join(f"INFO {name} is {value} here\n" for name, value in zip("abcdef", CANARIES, strict=False))
        served = {"log": [[0, f"non-default args: {{'api_key': ['{FLAG}'], 'hf_token': '{SECOND_FLAG}'}}\n{spoken}"]], "serve": True}
        crash = (f"{spoken}INFO g is {SEALED} and {SEALED_URL}\nTraceback (most recent call last):\n  File \"/x/vllm/entry.py\", line 9, in main\n"
                 f"    login()\nRuntimeError: login with {SEALED} and {VARIABLE} and {SEALED_URL} and {OF_FILE} failed\n")
        self.records = {name: self._service(folder, name, plan) for name, plan in {
            "svc": {"runs": [served, {"log": [[0, crash]], "exit": 1}, served]}, "other": served}.items()}
        self.console.environment["ROUNDHOUSE_NODE_STATE"] = str(self.paths.root)
        self.passed: list[str] = []
        self._reading = threading.Event()
        self._monitor = threading.Thread(target=self._listen)
        self._driver: subprocess.Popen[str] | None = None
        self.numbers: list[int] = []

    def _service(self, folder: Path, name: str, plan: dict[str, Any]) -> ServiceRecord:
        root, port = self.paths.services / name, free_port()
        (root / "logs").mkdir(parents=True)
        (root / "current").symlink_to(whole_release(root))
        env_file, spoken = folder / f"{name}.env", json.dumps(plan).replace("'", "\\u0027")
        env_file.write_text(f"WANDB_API_KEY={OF_FILE}\nMLFLOW_URI=https://anna:{OF_FILE_URL}@mlflow.example/\nFAKE_VLLM='{spoken}'\n")
        env_file.chmod(0o600)
        record = ServiceRecord(
            name=name, root=str(root), model_path=str(folder / "model"), served_model_name="tiny", base_url=f"http://127.0.0.1:{port}",
            flags=["--port", str(port), "--api-key", FLAG, f"--hf-token={SECOND_FLAG}"], env_files=[str(env_file)],
            env={"VLLM_API_KEY": VARIABLE, "HTTPS_PROXY": f"http://anna:{PROXY}@proxy.example:3128/"})
        launch.write(record)
        (self.paths.announced / f"{name}.json").write_text(json.dumps(record.as_dict()))
        return record

    def start(self) -> None:
        subprocess.run([sys.executable, "manage.py", "collectstatic", "--noinput", "-v0"], cwd=REPOSITORY, env=self.console.environment, check=True,
                       timeout=120)
        self._monitor.start()
        self.console.start_web()
        self.console.start_recorder()
        self.console._start("agent", [sys.executable, "-m", "celery", "-A", "ops.agent.celery", "worker", "-Q", "node.walk", "--pool", "threads",
                                      "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"])
        self._driver = subprocess.Popen([sys.executable, "-c", DRIVER], cwd=REPOSITORY, env=self.console.environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _listen(self) -> None:
        """Every command that Redis is given, until `_reading` is set; a last one wakes it."""
        with redis.Redis.from_url(self.url, socket_timeout=None) as client, client.monitor() as monitor:
            for command in monitor.listen():
                if self._reading.is_set():
                    return
                self.passed.append(str(command["command"]))

    def rows(self, query: str) -> list[tuple]:
        import sqlite3

        database = sqlite3.connect(self.console.database, timeout=20)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def job(self, how: str, kind: str = "", **more: Any) -> tuple[str, str]:
        """Runs a job to its end as a person would start it; its state and reason."""
        assert self._driver and self._driver.stdin and self._driver.stdout
        self._driver.stdin.write(json.dumps([how, kind, more]) + "\n")
        self._driver.stdin.flush()
        pk, number = json.loads(self._driver.stdout.readline())
        self.numbers.append(number)
        found = f"SELECT state, reason FROM dashboard_job WHERE id = '{pk.replace('-', '')}'"
        wait_until(lambda: self.rows(found)[0][0] in ("succeeded", "failed", "partial", "cancelled", "lost"), 90)
        return self.rows(found)[0]

    def page(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.console.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Cookie": f"roundhouse_session={self.console.sessions[0]}"})
            answer = connection.getresponse()
            body = answer.read().decode()
            assert answer.status == 200, (path, answer.status)
            return body
        finally:
            connection.close()

    def command(self, *words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "ops", *words], cwd=REPOSITORY, env=self.console.environment, capture_output=True, text=True,
                              timeout=60, check=False)
        return done.stdout + done.stderr

    def in_redis(self) -> str:
        """All that it holds."""
        read = {"string": "get", "hash": "hgetall", "set": "smembers", "list": lambda client, key: client.lrange(key, 0, -1),
                "zset": lambda client, key: client.zrange(key, 0, -1), "stream": lambda client, key: client.xrange(key)}
        with redis.Redis.from_url(self.url) as client:
            return "".join(str(how(client, key) if callable(how := read[client.type(key).decode()]) else getattr(client, how)(key))
                           for key in client.scan_iter())

    def end(self) -> None:
        for record in self.records.values():
            manager = ProcessManager(record)
            manager.kill()
            wait_until(lambda manager=manager: not manager.pids())
        if self._driver is not None:
            self._driver.communicate(timeout=30)
        if "agent" in self.console.processes:
            self.console.kill("agent", signal.SIGTERM)
        self.console.stop()
        self._reading.set()
        with redis.Redis.from_url(self.url) as client:
            client.ping()
        self._monitor.join(30)


@pytest.fixture
def world(redis_server: EmbeddedRedis, redis_url: str) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="rh-canary-"))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"architectures": ["TinyForCausalLM"]}\n')
    (folder / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    made = World(folder, redis_server.url())
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(folder)


def hits(text: str) -> list[str]:
    return [canary for canary in CANARIES if canary in text]


def test_no_secret_of_a_service_is_found_anywhere_but_in_its_own_files(world: World) -> None:
    wait_until(lambda: world.rows("SELECT 1 FROM dashboard_service WHERE name = 'svc' AND launch LIKE '%mark%'"), 60)
    said = [world.job("control", "start", smoke=False)]
    said.append(world.job("control", "diagnose"))
    said.append(world.job("settings", env={"VLLM_API_KEY": SEALED, "DATABASE": f"postgres://anna:{SEALED_URL}@db.example/x", "HTTPS_PROXY": None}))
    printed = [world.command("log", "--service", "svc", "--json"), world.command("diagnose", "--service", "svc", "--json")]
    said.append(world.job("control", "diagnose"))  # of a run that was given what the record no longer has
    said.append(world.job("control", "leftovers"))
    said.append(world.job("control", "restart", smoke=False))  # crashes
    said.append(world.job("control", "diagnose"))
    said.append(world.job("switch"))
    printed += [world.command(*words) for words in (
        ("status", "--json"), ("log", "--service", "svc"), ("log", "--service", "other", "--json"), ("diagnose", "--service", "svc", "--json"))]
    pages = {path: world.page(path) for path in [
        "/", "/services/", "/jobs/", "/nodes/walk/", "/diagnose/", *(f"/services/walk/{name}/{more}" for name in ("svc", "other")
                                                                     for more in ("", "launch/", "smoke/", "environment/")),
        *(f"/jobs/{number}/{more}" for number in world.numbers for more in ("", "log/"))]}
    files = {str(path.relative_to(world.console.state)): path.read_bytes().decode(errors="replace") for path in world.console.state.rglob("*")
             if path.is_file() and not {"services", "services.d"} & set(path.relative_to(world.console.state).parts) and path.suffix != ".env"}
    states = {path.name: path.read_text() for record in world.records.values() for path in record.folder.glob("*state.json")}
    assert {name: found for name, text in {**files, **pages, **states, "redis": world.in_redis(), "passed": "".join(world.passed),
                                           **{f"printed {n}": text for n, text in enumerate(printed)}}.items() if (found := hits(text))} == {}

    # All of that happened, and was looked at
    assert [state for state, _ in said] == ["succeeded"] * 5 + ["failed", "succeeded", "succeeded"], said
    assert any("jobs/" in name and name.endswith(".jsonl") for name in files) and "db.sqlite3" in files and "agent.log" in files, list(files)
    assert "c is [redacted] here" in printed[0] and "login with" in "".join(pages[f"/jobs/{number}/"] for number in world.numbers)
    assert "settings-set" in "".join(world.passed)
