from __future__ import annotations

import json
import shutil
import signal
import socket
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


@pytest.fixture(scope="module")
def console_of_module(redis_server: EmbeddedRedis) -> Iterator[RealConsole]:
    folder = Path(tempfile.mkdtemp(prefix="rh-live-"))
    console = RealConsole(folder, redis_server.url(), ROUNDHOUSE_STREAMS_PER_USER="3")
    console.start_web()
    yield console
    console.stop()
    shutil.rmtree(folder)


@pytest.fixture
def console(console_of_module: RealConsole, redis_client: redis.Redis) -> RealConsole:
    """The module's console over an emptied Redis and with jobs that have said nothing."""
    with sqlite3.connect(console_of_module.database) as database:
        database.execute("DELETE FROM dashboard_jobevent")
        database.execute("UPDATE dashboard_job SET last_seq = 0, state = 'queued'")
    database.close()
    if "web" not in console_of_module.processes:
        console_of_module.start_web()
    return console_of_module


@pytest.fixture
def listening(console: RealConsole) -> Iterator[object]:
    """Starts listeners in threads; they end with the test."""
    enough = threading.Event()
    threads: list[threading.Thread] = []

    def listen(job: str | None = None, *, user: int = 0, after: list[int] | None = None) -> Listener:
        listener = Listener(console.port, console.sessions[user], job, seqs=list(after or []))
        threads.append(threading.Thread(target=listener.run, args=(enough.is_set,)))
        threads[-1].start()
        wait_until(lambda: any(name == "jobs" for name, _ in listener.events) or listener.status not in (0, 200))
        return listener

    yield listen
    enough.set()
    for thread in threads:
        thread.join()
    wait_until(lambda: count_streams(console) == 0)


def count_streams(console: RealConsole) -> int:
    """Established connections to the web process, seen from its side."""
    wanted, found = f"0100007F:{console.port:04X}", 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        found += parts[1] == wanted and parts[3] == "01"
    return found


def store(console: RealConsole, node: Speaker, first: int, last: int) -> None:
    """Rows as the recorder makes them."""
    with sqlite3.connect(console.database, timeout=20) as database:
        for event in node.said[first - 1:last]:
            database.execute("INSERT INTO dashboard_jobevent (job_id, seq, at, type, data) VALUES (?, ?, ?, ?, ?)",
                             (node.job.replace("-", ""), event.seq, event.at, event.type, json.dumps(event.data)))
    database.close()


def says(console: RealConsole, count: int) -> Speaker:
    node = Speaker(console.jobs[0])
    node.claimed()
    for number in range(count - 1):
        node.log(f"line {number}\n")
    return node


def test_a_page_gets_rows_first_and_then_the_stream(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 10)
    store(console, node, 1, 7)
    node.publish(redis_client, *node.said[4:9])
    page = listening(node.job)
    wait_until(lambda: len(page.seqs) == 9)
    node.publish(redis_client, node.said[9])
    wait_until(lambda: len(page.seqs) == 10)
    assert page.seqs == list(range(1, 11))
    assert page.events[0][0] == "hello"
    assert next(data for name, data in page.events if name == "job")["type"] == "job.claimed"


def test_a_page_that_comes_back_gets_what_it_missed(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 9)
    store(console, node, 1, 6)
    node.publish(redis_client, *node.said[5:9])
    page = listening(node.job, after=[4])
    wait_until(lambda: len(page.seqs) == 6)
    assert page.seqs == [4, 5, 6, 7, 8, 9]


def test_a_stretch_that_the_stream_lost_comes_from_the_database(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 12)
    node.publish(redis_client, *node.said[:4])
    page = listening(node.job)
    wait_until(lambda: len(page.seqs) == 4)
    redis_client.flushall()
    store(console, node, 1, 8)
    redis_client.hset("stored", node.job, 8)
    node.publish(redis_client, *node.said[8:])
    wait_until(lambda: len(page.seqs) == 12)
    assert page.seqs == list(range(1, 13))


def test_a_page_waits_for_an_event_that_is_nowhere_yet(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 6)
    node.publish(redis_client, *node.said[:2])
    page = listening(node.job)
    node.publish(redis_client, *node.said[3:])  # 3 is lost
    time.sleep(0.5)
    assert page.seqs == [1, 2]
    store(console, node, 1, 3)
    wait_until(lambda: len(page.seqs) == 6)
    assert page.seqs == [1, 2, 3, 4, 5, 6]


def test_a_long_log_comes_whole(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 3000)
    store(console, node, 1, 2600)
    node.publish(redis_client, *node.said[2400:])
    page = listening(node.job)
    wait_until(lambda: len(page.seqs) == 3000)
    assert page.seqs == list(range(1, 3001))


def test_telemetry_and_changes_reach_every_page(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    publisher = streams.Publisher(redis_client, "practice")
    publisher.telemetry({"node": "practice", "at": 1.0})
    one, other = listening(), listening(console.jobs[0], user=1)
    wait_until(lambda: all(any(name == "telemetry" for name, _ in page.events) for page in (one, other)))
    publisher.telemetry({"node": "practice", "at": 2.0})
    job = {"id": console.jobs[0], "number": 1, "type": "redeploy", "state": "running"}
    redis_client.xadd("changes", {"c": json.dumps({**job, "job": job["id"]})})
    told = {"running": 3, "job": job}
    for page in (one, other):
        wait_until(lambda page=page: ("telemetry", {"node": "practice", "at": 2.0}) in page.events and ("jobs", told) in page.events)
    assert ("jobs", {"running": 3, "job": None}) in one.events


def test_a_new_nodes_telemetry_comes_without_a_reload(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    page = listening()
    redis_client.xadd("changes", {"c": json.dumps({"node": "gpu02"})})
    time.sleep(0.3)
    streams.Publisher(redis_client, "gpu02").telemetry({"node": "gpu02", "at": 1.0})
    wait_until(lambda: ("telemetry", {"node": "gpu02", "at": 1.0}) in page.events)


def test_beyond_the_limit_a_clear_503_and_pages_go_on(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    for _ in range(3):
        assert listening().status == 200
    refused = Listener(console.port, console.sessions[0])
    with refused.get(more="Connection: close\r\n") as opened:
        answer = opened.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 503") and "retry-after" in answer.lower()
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["kind"] == "too_many_streams"
    assert listening(user=1).status == 200
    with socket.create_connection(("127.0.0.1", console.port)) as opened:
        opened.sendall(b"GET /health/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"database: ok" in opened.makefile("rb").read()


def test_a_place_is_free_again_when_a_page_goes(console: RealConsole, redis_client: redis.Redis) -> None:
    for _ in range(10):
        with Listener(console.port, console.sessions[0]).get() as opened:
            assert opened.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: count_streams(console) == 0)
        time.sleep(0.1)


@pytest.mark.parametrize(("request_line", "more", "status"), [
    ("/live/?job=nonsense", "", 400), ("/live/?after=-1", "", 400), ("/live/?job=8a4a0f9e-2a5c-4a05-9a3a-000000000000", "", 404),
    ("/live/", "Origin: https://evil.example\r\n", 403), ("/live/", "Origin: http://[\r\n", 403)])
def test_what_cannot_be_streamed_is_refused(console: RealConsole, redis_client: redis.Redis, request_line: str, more: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", console.port)) as opened:
        opened.sendall(f"GET {request_line} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{more}"
                       f"Cookie: roundhouse_session={console.sessions[0]}\r\n\r\n".encode())
        answer = opened.makefile("rb").read().decode()
    assert answer.startswith(f"HTTP/1.1 {status}")
    assert set(json.loads(answer.partition("\r\n\r\n")[2])["error"]) == {"kind", "what", "why", "hint", "facts"}


def test_a_stopping_server_ends_its_streams_at_once(console: RealConsole, redis_client: redis.Redis) -> None:
    """Without the signal's help uvicorn would wait for its graceful limit, 20 s here."""
    with Listener(console.port, console.sessions[0]).get() as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        console.kill("web", signal.SIGTERM)
        assert time.monotonic() - began < 5
    assert "Traceback" not in console.log("web")


def test_a_page_that_does_not_read_is_closed_within_thirty_seconds(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    node = says(console, 1)
    for _ in range(400):
        node.log("x" * 60_000)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", console.port))
        deaf.sendall(f"GET /live/?job={node.job} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: roundhouse_session={console.sessions[0]}\r\n\r\n".encode())
        assert deaf.recv(12) == b"HTTP/1.1 200"
        node.publish(redis_client)
        wait_until(lambda: count_streams(console) == 0, 30)
    assert [listening().status for _ in range(3)] == [200, 200, 200]  # its place is free again
    assert "Traceback" not in console.log("web")


def test_streams_hold_no_two_threads_each(console: RealConsole, redis_client: redis.Redis, listening) -> None:
    def threads() -> int:
        return int(Path(f"/proc/{console.processes['web'].pid}/status").read_text().split("Threads:")[1].split()[0])

    listening(user=0)
    before = threads()
    for user in (0, 0, 0, 0, 1, 1, 1, 1, 1):
        listening(user=user)
    assert threads() - before < 12, "at most one for a stream, beside the pool for short work, which may have grown meanwhile"


async def test_a_stream_ends_when_its_session_does(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard import live

    async def nobody() -> list[str]:
        return []

    async def none_open() -> int:
        return 0

    async def invalid() -> bool:
        return False

    monkeypatch.setattr(live, "_node_names", nobody)
    monkeypatch.setattr(live, "count_open", none_open)
    monkeypatch.setattr(live, "PING_S", 0.05)
    monkeypatch.setattr(live, "RECHECK_S", 0.1)
    hub = live.Hub.current()
    hub.reserve(1)
    got = [data async for data in live.stream(1, job_id=None, after=0, still_valid=invalid)]
    assert got[-1] == b'event: bye\ndata: {"reason":"signed out"}\n\n' and got.count(b": ping\n\n") >= 1
    assert not hub.open and not hub.per_user
    await hub.aclose()


async def test_a_page_that_is_too_slow_is_ended(redis_url: str) -> None:
    from dashboard import live

    slow = live.Subscription()
    for _ in range(live.QUEUE_LIMIT + 10):
        slow.put(live.Batch(data=b"x"))
    assert slow.ending and slow.queue.qsize() == live.QUEUE_LIMIT + 1
