"""From a person's click through Celery, agent, runner, journal, companion, Redis and recorder to the row and the page: all real, no stand-in."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from ops.agent.config import NodePaths
from ops.records import ServiceRecord
from tests.dashboard.real_console import REPOSITORY, Listener, RealConsole, wait_until

START = """
import django
django.setup()
from django.contrib.auth.models import User
from dashboard import dispatch
print(dispatch.start(type="integrity", node="walk", service="walker", user=User.objects.get(username="user0")).pk)
"""


@pytest.fixture
def walk(redis_server: EmbeddedRedis, redis_client_of_walk: redis.Redis) -> Iterator[RealConsole]:
    folder = Path(tempfile.mkdtemp(prefix="rh-walk-"))
    console = RealConsole(folder, redis_server.url(), users=1)
    paths = NodePaths(folder / "node").make()
    paths.node_toml.write_text(f'name = "walk"\nservice_roots = ["{folder}"]\nmodel_roots = ["{folder}"]\n')
    record = ServiceRecord(name="walker", root=str(paths.services / "walker"), model_path=str(folder), served_model_name="m",
                           base_url="http://127.0.0.1:9")
    record.folder.mkdir()
    (paths.announced / "walker.json").write_text(json.dumps(record.as_dict()))
    console.environment["ROUNDHOUSE_NODE_STATE"] = str(paths.root)
    console.start_web()
    console.start_recorder()
    console._start("agent", [sys.executable, "-m", "celery", "-A", "ops.agent.celery", "worker", "-Q", "node.walk", "--pool", "threads",
                             "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "WARNING"])
    yield console
    console.kill("agent", signal.SIGTERM)
    console.stop()
    shutil.rmtree(folder)


@pytest.fixture
def redis_client_of_walk(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def rows(console: RealConsole, query: str, *values: str) -> list[tuple]:
    with sqlite3.connect(console.database, timeout=20) as database:
        found = database.execute(query, values).fetchall()
    database.close()
    return found


def test_a_job_goes_the_whole_way(walk: RealConsole) -> None:
    """An integrity check of a service without a release: it ends as failed, with the reason that the node gave."""
    wait_until(lambda: rows(walk, "SELECT 1 FROM dashboard_service WHERE name = 'walker'"), 60)
    done = subprocess.run([sys.executable, "-c", START], cwd=REPOSITORY, env=walk.environment, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    job, enough = done.stdout.strip(), threading.Event()
    page = Listener(walk.port, walk.sessions[0], job)
    watching = threading.Thread(target=page.run, args=(enough.is_set,))
    watching.start()
    try:
        wait_until(lambda: any(name == "job" and data["type"] == "job.finished" for name, data in page.events), 60)
        wait_until(lambda: rows(walk, "SELECT 1 FROM dashboard_job WHERE id = ? AND state = 'failed'", job.replace("-", "")), 30)
    finally:
        enough.set()
        watching.join()
    assert page.seqs == list(range(1, len(page.seqs) + 1))
    (reason, kind), = rows(walk, "SELECT reason, reason_kind FROM dashboard_job WHERE id = ?", job.replace("-", ""))
    assert (reason, kind) == ("Service `walker` has no release", "expected")
    assert "Traceback" not in walk.log("recorder") + walk.log("web")
