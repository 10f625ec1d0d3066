from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from ops.agent import companion
from ops.agent.companion import Companion
from ops.agent.config import NodeConfig
from ops.jobs import runner, streams
from ops.jobs.errors import BadInput
from ops.jobs.journal import Journal, Nudge
from tests.fakes.node import FakeNode, Recorder, until


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with streams.connect() as made:
        yield made


@pytest.fixture
def running(node: FakeNode, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Companion]:
    monkeypatch.setattr(companion, "BEAT_S", 0.5)
    monkeypatch.setattr(companion, "CONTROL_BLOCK_S", 0.3)
    made = Companion(node.paths, NodeConfig.load(node.paths.node_toml))
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stopping.set()
    thread.join(10)
    until(lambda: not [one for one in threading.enumerate() if one.name in {"control", "gpus", "services", "packages", "integrity"}], 20)


@pytest.fixture
def journal(node: FakeNode) -> Iterator[Journal]:
    """A job whose runner is this process."""
    from ops.jobs import claim

    claimed = claim.claim(node.paths, node.order(), nudge=Nudge(node.paths.nudge_socket))
    yield claimed.journal
    claimed.journal.close()
    claimed.release()


FINAL = {"state": "succeeded", "reason": "", "reason_kind": "", "rollback": "none", "error": None, "duration_s": 1, "downtime_s": None}


def published(client: redis.Redis, job: str) -> list[int]:
    return [json.loads(fields[b"e"])["seq"] for _, fields in client.xrange(streams.job_stream(job))]


def test_an_event_is_published_soon_after_it_is_on_disk(running: Companion, journal: Journal, client: redis.Redis) -> None:
    until(lambda: published(client, journal.job), 10)
    took = []
    for number in range(20):
        began = time.monotonic()
        journal("finding", {"title": str(number)})
        until(lambda seq=journal.seq: client.xlen(streams.job_stream(journal.job)) == seq, 5)
        took.append(time.monotonic() - began)
    assert sorted(took)[10] < 0.5  # far below the look once a second: the nudge works


def test_a_job_is_let_go_only_when_the_recorder_has_all_of_it(running: Companion, journal: Journal, node: FakeNode, client: redis.Redis) -> None:
    journal.append_final(FINAL)
    journal.tell()
    until(lambda: published(client, journal.job) == [1, 2], 10)
    client.hset("stored", journal.job, 1)
    time.sleep(1.2)
    assert not (node.folder(journal.job) / "settled").exists()
    client.hset("stored", journal.job, 2)
    until(lambda: (node.folder(journal.job) / "settled").exists(), 10)
    until(lambda: journal.job not in running.followed, 10)


@pytest.mark.parametrize("how", ["then an event", "then what is stored"])
def test_an_emptied_server_is_filled_again_from_what_is_stored(running: Companion, journal: Journal, client: redis.Redis, how: str) -> None:
    for _ in range(9):
        journal("finding", {})
    until(lambda: published(client, journal.job) == list(range(1, 11)), 10)
    with client.pipeline(transaction=True) as batch:
        batch.flushall()
        batch.hset("stored", journal.job, 4)
        if how == "then an event":  # sent before anybody noticed
            batch.xadd(streams.job_stream(journal.job), {"e": '{"seq": 10}'}, id="10-0")
        batch.execute()
    journal("finding", {})
    until(lambda: published(client, journal.job) == list(range(5, 12)), 10)


def test_a_server_emptied_with_what_was_stored_gets_everything(running: Companion, journal: Journal, client: redis.Redis) -> None:
    journal("finding", {})
    until(lambda: published(client, journal.job) == [1, 2], 10)
    client.flushall()
    until(lambda: published(client, journal.job) == [1, 2], 10)


def test_a_long_journal_is_published_whole_and_in_order(running: Companion, journal: Journal, client: redis.Redis) -> None:
    for second in range(3000):
        journal("sweep.level_second", {"second": second})
    until(lambda: client.xlen(streams.job_stream(journal.job)) == 3001, 20)
    recorder = Recorder(client)
    recorder.take()
    assert recorder.seqs[journal.job] == list(range(1, 3002))


def test_a_full_server_is_waited_for(running: Companion, journal: Journal, client: redis.Redis) -> None:
    until(lambda: published(client, journal.job), 10)
    limit = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", "1")
    try:
        journal("finding", {})
        time.sleep(1.5)
    finally:
        client.config_set("maxmemory", limit)
    until(lambda: published(client, journal.job) == [1, 2], 10)


def test_a_living_runner_has_heartbeats_and_an_ended_job_has_none(running: Companion, journal: Journal, client: redis.Redis) -> None:
    first = until(lambda: client.hget("beats", journal.job), 10)
    until(lambda: client.hget("beats", journal.job) != first, 10)
    journal.append_final(FINAL)
    journal.tell()
    client.hset("stored", journal.job, 2)
    until(lambda: client.hget("beats", journal.job) is None, 10)


def test_a_cancel_message_becomes_a_flag(running: Companion, journal: Journal, node: FakeNode, client: redis.Redis) -> None:
    for wrong in ("{", '{"do": "reboot"}', '{"do": "cancel", "job": "../../etc"}', '{"do": "cancel"}'):
        client.xadd("control:n1", {"c": wrong})
    client.xadd("control:n1", {"c": json.dumps({"do": "cancel", "job": journal.job, "by": "eva"})})
    until(lambda: runner.read_cancel(node.folder(journal.job)) == "eva", 10)


def test_telemetry_comes_every_second_and_the_announcement_at_once(running: Companion, client: redis.Redis) -> None:
    until(lambda: client.xlen("telemetry:n1") >= 3, 15)
    times = [json.loads(fields[b"t"])["at"] for _, fields in client.xrange("telemetry:n1")]
    assert 0.5 < (times[-1] - times[0]) / (len(times) - 1) < 2
    assert json.loads(client.xrange("announcements")[0][1][b"a"])["node"] == "n1"


def test_one_companion_works_on_a_node(node: FakeNode) -> None:
    import os

    lock = companion.alone(node.paths)
    with pytest.raises(BadInput, match="Another agent"):
        companion.alone(node.paths, wait_s=0.3)
    os.close(lock)
    os.close(companion.alone(node.paths))
