from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ops.jobs import streams
from ops.jobs.streams import Publisher, RedisAway

JOB = "f4db51e2-0000-4000-8000-000000000000"


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with streams.connect() as made:
        yield made


@pytest.fixture
def publisher(client: redis.Redis) -> Publisher:
    return Publisher(client, "n1")


def lines(*seqs: int) -> list[tuple[int, str]]:
    return [(seq, f'{{"seq":{seq}}}') for seq in seqs]


def in_stream(client: redis.Redis, key: str = streams.job_stream(JOB)) -> list[int]:
    return [json.loads(fields[b"e"])["seq"] for _, fields in client.xrange(key)]


def test_an_event_goes_into_both_streams_with_its_node(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1, 2))
    assert in_stream(client) == in_stream(client, streams.EVENTS) == [1, 2]
    assert [entry for entry, _ in client.xrange(streams.job_stream(JOB))] == [b"1-0", b"2-0"]
    assert client.xrange(streams.EVENTS)[0][1][b"n"] == b"n1"


def test_what_the_stream_has_is_not_sent_again(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1, 2))
    Publisher(client, "n1").send(JOB, lines(1, 2, 3))  # another companion, after the first one's death
    assert in_stream(client, streams.EVENTS) == [1, 2, 3]


def test_a_new_server_gets_everything_above_what_is_stored(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1, 2, 3))
    client.flushall()
    client.hset(streams.STORED, JOB, 2)
    publisher.check([JOB])
    assert publisher.resume_after(JOB) == 2
    publisher.send(JOB, lines(1, 2, 3, 4))
    assert in_stream(client) == [3, 4]


def test_a_trimmed_stream_is_not_filled_again(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1, 2, 3))
    client.hset(streams.STORED, JOB, 3)
    client.xtrim(streams.job_stream(JOB), maxlen=0)
    publisher.check([JOB])
    publisher.send(JOB, lines(1, 2, 3, 4))
    assert in_stream(client) == [4]


def test_a_batch_that_somebody_else_sent_meanwhile_is_not_doubled(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1))
    Publisher(client, "n1").send(JOB, lines(1, 2))
    with pytest.raises(RedisAway):
        publisher.send(JOB, lines(2, 3))
    publisher.send(JOB, lines(2, 3))
    assert in_stream(client) == [1, 2, 3]
    # The recorder may get a number twice when a batch was cut in half: (job, seq) is unique there. Missing is what must not be.
    assert set(in_stream(client, streams.EVENTS)) == {1, 2, 3}


def test_a_full_server_counts_as_away(publisher: Publisher, client: redis.Redis) -> None:
    limit = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(RedisAway):
            publisher.send(JOB, lines(1))
    finally:
        client.config_set("maxmemory", limit)
    publisher.send(JOB, lines(1))
    assert in_stream(client) == in_stream(client, streams.EVENTS) == [1]


def test_a_server_that_does_not_answer_is_away(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", f"unix://:x@{short_path}/none.sock?db=0")
    with streams.connect() as client, pytest.raises(RedisAway):
        Publisher(client, "n1").send(JOB, lines(1))


def test_heartbeats_are_in_the_servers_time(publisher: Publisher, client: redis.Redis) -> None:
    before = streams.redis_time(client)
    publisher.beat([JOB])
    assert before <= float(client.hget(streams.BEATS, JOB) or 0) <= streams.redis_time(client)


def test_a_settled_job_leaves_redis_soon(publisher: Publisher, client: redis.Redis) -> None:
    publisher.send(JOB, lines(1))
    publisher.beat([JOB])
    publisher.settle(JOB)
    assert 0 < client.ttl(streams.job_stream(JOB)) <= streams.SETTLED_TTL_S
    assert client.hget(streams.BEATS, JOB) is None


def test_telemetry_and_announcements_are_bounded(publisher: Publisher, client: redis.Redis) -> None:
    for number in range(streams.TELEMETRY_KEPT + 300):
        publisher.telemetry({"node": "n1", "number": number})
        publisher.announce({"node": "n1"})
    assert client.xlen("telemetry:n1") < streams.TELEMETRY_KEPT + 150
    assert client.xlen("announcements") < streams.ANNOUNCEMENTS_KEPT + 150


def test_the_address_is_the_embedded_servers_or_the_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUNDHOUSE_REDIS_URL", raising=False)
    monkeypatch.setenv("ROUNDHOUSE_STATE", str(tmp_path))
    with pytest.raises(RedisAway):
        streams.address()
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "redis.json").write_text('{"password": "p w", "socket": "/run/x/redis.sock"}')
    assert streams.address() == "unix://:p%20w@/run/x/redis.sock?db=0"
    assert streams.celery_address(streams.address()) == "redis+socket://:p%20w@/run/x/redis.sock?virtual_host=0"
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "redis://10.0.0.1/2")
    assert streams.celery_address(streams.address()) == "redis://10.0.0.1/2"
