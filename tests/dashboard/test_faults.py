"""Web, recorder and database are away for a while, and Redis is emptied: afterwards no event is missing, and none is there twice."""

from __future__ import annotations

import itertools
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from ops.jobs import streams
from tests.dashboard.conftest import Speaker
from tests.dashboard.real_console import Listener, RealConsole, wait_until

AWAY_S = 3  # `make test-full` has the sixty seconds


class TalkingNode(threading.Thread):
    """A node that says something twenty times a second, keeps all of it (its journal), and sends again what Redis does not have (its companion)."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self.speaker, self.enough = Speaker(job), threading.Event()
        self.speaker.claimed()

    def run(self) -> None:
        with streams.connect() as client:
            publisher = streams.Publisher(client, "practice")
            for number in itertools.count():
                ending = self.enough.is_set()
                if ending:
                    self.speaker.finished()
                else:
                    self.speaker.log(f"line {number}\n")
                try:
                    publisher.check([self.speaker.job])
                    publisher.send(self.speaker.job, [(event.seq, event.to_json()) for event in self.speaker.said])
                except streams.RedisAway:
                    pass
                if ending:
                    return
                time.sleep(0.05)


@pytest.fixture
def console(redis_server: EmbeddedRedis, redis_client: redis.Redis) -> Iterator[RealConsole]:
    folder = Path(tempfile.mkdtemp(prefix="rh-fault-"))
    console = RealConsole(folder, redis_server.url(), users=1)
    yield console
    console.stop()
    shutil.rmtree(folder)


def away(console: RealConsole, client: redis.Redis, seconds: float) -> None:
    """Kills web and recorder, holds the database, and starts them again while it is still held."""
    console.kill("web")
    console.kill("recorder")
    held = sqlite3.connect(console.database, isolation_level=None, timeout=20)
    held.execute("PRAGMA locking_mode=EXCLUSIVE")
    held.execute("BEGIN EXCLUSIVE")
    held.execute("UPDATE dashboard_job SET reason = ''")
    time.sleep(seconds / 2)
    console.start_recorder_soon()
    time.sleep(seconds / 2)
    held.execute("COMMIT")
    held.close()
    console.start_web()


def run_through(console: RealConsole, client: redis.Redis, seconds: float) -> None:
    console.start_web()
    console.start_recorder()
    node = TalkingNode(console.jobs[0])
    page = Listener(console.port, console.sessions[0], node.speaker.job)
    done = threading.Event()
    watching = threading.Thread(target=page.run, args=(done.is_set,))
    watching.start()
    node.start()
    try:
        wait_until(lambda: len(page.seqs) > 10)
        away(console, client, seconds)
        before = len(page.seqs)
        wait_until(lambda: len(page.seqs) > before + 10, 60)
        client.flushall()  # and Redis loses all that it had, while everything runs
        time.sleep(1)
        node.enough.set()
        node.join()
        last = node.speaker.seq
        wait_until(lambda: page.seqs and page.seqs[-1] == last, 60)

        def rows() -> list[int]:
            with sqlite3.connect(console.database, timeout=20) as database:
                found = [seq for seq, in database.execute("SELECT seq FROM dashboard_jobevent WHERE job_id = ? ORDER BY id",
                                                          (node.speaker.job.replace("-", ""),))]
            database.close()
            return found if found and found[-1] == last else []

        stored = wait_until(rows, 60)
    finally:
        node.enough.set()
        node.join()
        done.set()
        watching.join()
    assert stored == list(range(1, last + 1))
    assert page.seqs == list(range(1, last + 1))
    assert page.connects > 1
    states = {data["job"]["state"] for name, data in page.events if name == "jobs" and data["job"]}
    assert "succeeded" in states
    console.kill("recorder", signal.SIGTERM)
    assert "Traceback" not in console.log("recorder")


def test_web_recorder_and_database_away_leave_no_gap_and_no_repeat(console: RealConsole, redis_client: redis.Redis) -> None:
    run_through(console, redis_client, AWAY_S)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_for_sixty_seconds(console: RealConsole, redis_client: redis.Redis) -> None:
    run_through(console, redis_client, 60)


def test_a_second_recorder_is_refused_in_one_sentence(console: RealConsole) -> None:
    console.start_recorder()
    console._start("second", [*console.processes["recorder"].args])
    assert console.processes.pop("second").wait(30) == 1
    assert console.log("second").startswith("Another recorder runs with this state folder")
