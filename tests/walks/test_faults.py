"""The faults that every release must pass, on the real thing: a real Redis, the real Celery worker, real runners.

Seconds are deadlines to poll for. Only the kinds of job are the tests' own (tests/fakes/job_kinds.py).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from ops.agent.celery import TASK, queue_name
from ops.gpus.processes import environment, is_alive
from ops.jobs import checker, claim, marks, runner, streams
from ops.jobs.envelope import Envelope
from tests.fakes.job_kinds import enough
from tests.fakes.node import NAME, FakeNode, Recorder, until


@pytest.fixture
def server(short_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of this test's own: it may be killed."""
    made = EmbeddedRedis(short_path / "redis").start()
    yield made
    made.stop()


@pytest.fixture
def client(server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url()) as made:
        yield made


@pytest.fixture
def node(short_path: Path) -> Iterator[FakeNode]:
    made = FakeNode(short_path / "node")
    yield made
    made.close()


def send(server: EmbeddedRedis, *orders: Envelope) -> None:
    """As the console does: by the task's name, to the node's queue."""
    from celery import Celery

    producer = Celery("test-console", broker=streams.celery_address(server.url()), set_as_current=False)
    for order in orders:
        producer.send_task(TASK, args=[order.as_dict()], queue=queue_name(NAME), ignore_result=True)
    producer.close()


def beat(client: redis.Redis, job: str) -> float:
    return float(client.hget("beats", job) or 0)


def test_agent_dies_the_job_goes_on_and_is_attached_again(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    agent = node.start_agent(server.url())
    order = node.order(seconds=100)
    send(server, order)
    node.in_step(order.job, "talk", 30)
    until(lambda: beat(client, order.job), 15, "first heartbeat")
    node.kill_agent(agent)
    published = client.xlen(streams.job_stream(order.job))
    assert node.runner(order.job).lives()
    said = len(node.events(order.job))
    until(lambda: len(node.events(order.job)) > said, 5, "the job goes on")
    began = streams.redis_time(client)
    node.start_agent(server.url())
    until(lambda: beat(client, order.job) > began, 10, "attached again")
    until(lambda: client.xlen(streams.job_stream(order.job)) > published, 10, "published again")
    enough(node.folder(order.job)).touch()
    assert node.finished(order.job)["state"] == "succeeded"
    recorder = Recorder(client)
    until(lambda: recorder.take() or recorder.seqs[order.job] == [event.seq for event in node.events(order.job)], 10, "seq complete")
    until(lambda: (node.folder(order.job) / "settled").exists(), 15, "settled")
    assert checker.check(node.paths) == []


def test_runner_dies_the_service_stays_busy_while_its_child_lives_then_the_job_is_interrupted(
        node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    node.start_agent(server.url())
    child_code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    order = node.order(argv=[sys.executable, "-c", child_code])
    send(server, order)
    until(lambda: "step.log" in node.types(order.job), 30, "the child runs")
    found = node.runner(order.job)
    began = time.monotonic()
    os.kill(found.pid, signal.SIGKILL)
    until(lambda: not found.lives(), 5)
    child = marks.marked(order.job)
    while any(not marks.ended(pid) for pid in child):
        assert node.busy() or all(marks.ended(pid) for pid in child)
        assert time.monotonic() - began < 45
        time.sleep(0.2)
    said = node.finished(order.job, 45 - (time.monotonic() - began))
    assert (said["state"], said["rollback"]) == ("interrupted", "done")
    assert "`child`" in said["reason"]
    until(lambda: not node.busy(), 5)
    assert checker.check(node.paths) == []


def test_redis_dies_and_comes_back_empty_the_job_succeeds_and_no_event_is_missing(
        node: FakeNode, server: EmbeddedRedis, client: redis.Redis, short_path: Path) -> None:
    node.start_agent(server.url())
    order = node.order(seconds=100)
    send(server, order)
    node.in_step(order.job, "talk", 30)
    recorder = Recorder(client)
    until(lambda: recorder.take() or len(recorder.seqs.get(order.job, [])) > 3, 15, "events arrive")
    assert server.process is not None
    server.process.kill()
    server.process.wait()
    for path in (short_path / "redis").iterdir():
        if path.name.startswith("appendonly") or path.suffix in {".rdb", ".aof"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    time.sleep(1)
    server.start()
    time.sleep(1)
    enough(node.folder(order.job)).touch()
    client.hset("stored", order.job, recorder.seqs[order.job][-1])  # the recorder says again what its database has
    assert node.finished(order.job)["state"] == "succeeded"
    every = [event.seq for event in node.events(order.job)]
    until(lambda: recorder.take() or recorder.seqs[order.job] == every, 30, "every event, once, in order")
    after = node.order(seconds=0.1)
    send(server, after)  # the worker consumes again
    assert node.finished(after.job, 30)["state"] == "succeeded"
    assert checker.check(node.paths) == []


def test_one_order_forty_times_and_again_at_the_end_is_one_job(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    node.start_agent(server.url())
    order = node.order(seconds=1)
    send(server, *[order] * 40)
    assert node.finished(order.job, 60)["state"] == "succeeded"
    send(server, order)
    until(lambda: client.llen(queue_name(NAME)) == 0, 30, "all orders were taken")
    after = node.order(seconds=0.1)
    send(server, after)
    node.finished(after.job)
    assert node.types(order.job).count("job.claimed") == 1
    begun = [event.data["step"] for event in node.events(order.job) if event.type == "step.started"]
    assert begun == ["first", "child", "talk"]
    assert checker.check(node.paths) == []


STUBBORN = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 1:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("stubborn", os.getpid(), flush=True)
    time.sleep(120)
subprocess.Popen([sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2], "child"]).wait()
"""


def test_a_stubborn_child_is_gone_before_the_lock(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    node.start_agent(server.url())
    order = node.order(argv=[sys.executable, "-c", STUBBORN])
    send(server, order)
    until(lambda: "step.log" in node.types(order.job), 30, "the child runs")
    runner_pid = node.runner(order.job).pid
    asked = time.monotonic()
    client.xadd(streams.control_stream(NAME), {"c": f'{{"do": "cancel", "job": "{order.job}"}}'})
    while marks.marked(order.job) - {runner_pid}:
        assert node.busy()
        assert time.monotonic() - asked < 15
        time.sleep(0.1)
    said = node.finished(order.job, 5)
    assert (said["state"], said["rollback"]) == ("cancelled", "done")
    until(lambda: not node.busy(), 5)
    assert checker.check(node.paths) == []


def test_a_spawned_service_outlives_its_job_kill_and_reconcile(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    node.start_agent(server.url())
    order = node.order(spawn=True, seconds=60)
    send(server, order)
    node.in_step(order.job, "talk", 30)
    pid, ticks = map(int, (node.paths.root / "service.pid").read_text().split())
    os.kill(node.runner(order.job).pid, signal.SIGKILL)
    assert node.finished(order.job, 45)["state"] == "interrupted"
    until(lambda: not node.busy(), 5)
    assert is_alive(pid, ticks)
    assert [name for name in environment(pid) or {} if name.startswith("ROUNDHOUSE")] == []


def test_a_frozen_runner_keeps_its_lock_and_goes_on(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    node.start_agent(server.url())
    order, other = node.order(seconds=2), node.order()
    send(server, order)
    node.in_step(order.job, "talk", 30)
    pid = node.runner(order.job).pid
    os.kill(pid, signal.SIGSTOP)
    send(server, other)
    until(lambda: f"job {other.job} waits" in node.log(), 30, "the other job is refused as busy")
    began = streams.redis_time(client)
    until(lambda: beat(client, order.job) > began, 15, "a frozen runner is not dead")
    os.kill(pid, signal.SIGCONT)
    assert node.finished(order.job)["state"] == "succeeded"
    send(server, other)  # as the console does when nobody claimed it
    assert node.finished(other.job)["state"] == "succeeded"
    assert checker.check(node.paths) == []


def test_the_companion_is_started_again_and_ends_with_its_agent(node: FakeNode, server: EmbeddedRedis) -> None:
    agent = node.start_agent(server.url())
    first = until(lambda: node.companion_of(agent), 20, "a companion")
    until(lambda: (node.paths.nudge_socket).exists(), 20, "it listens")
    os.kill(first, signal.SIGKILL)
    second = until(lambda: (found := node.companion_of(agent)) and found != first and found, 20, "another companion")
    agent.kill()
    agent.wait()
    until(lambda: marks.ended(second), 10, "the companion ends with its agent")


def test_a_cancel_that_comes_before_its_order_wins(node: FakeNode, server: EmbeddedRedis, client: redis.Redis) -> None:
    order = node.order(seconds=30)
    client.xadd(streams.control_stream(NAME), {"c": f'{{"do": "cancel", "job": "{order.job}"}}'})
    node.start_agent(server.url())
    until(lambda: (node.paths.root / "cancelled" / order.job).exists(), 20, "the cancel is kept")
    send(server, order)
    said = node.finished(order.job, 30)
    assert said["state"] == "cancelled"
    assert claim.stored_fence(node.paths, "service:a") == (0, None)
    assert not runner.read_facts(node.folder(order.job))
