from __future__ import annotations

import base64
import json
from pathlib import Path
from threading import Barrier, Thread

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import connection

from dashboard import dispatch
from dashboard.embedded_redis import EmbeddedRedis
from dashboard.models import AuditEntry, Channel, Job, JobLock, Node, Service
from ops.agent.config import NodeConfig
from ops.jobs import envelope
from ops.jobs.errors import BadInput, Busy
from ops.jobs.events import JobState
from ops.jobs.kinds import KINDS
from tests.dashboard.conftest import new_job

pytestmark = pytest.mark.django_db(transaction=True)


def messages(client: redis.Redis, queue: str = "node.practice") -> list[dict]:
    """The `run_job` envelopes that wait in a node's queue."""
    found = []
    for raw in reversed(client.lrange(queue, 0, -1)):
        message = json.loads(raw)
        assert message["headers"]["task"] == "run_job"
        found.append(json.loads(base64.b64decode(message["body"]))[0][0])
    return found


def test_starting_a_job_makes_row_locks_audit_and_sends_the_envelope(service: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start(type="restart", node="practice", service="kimi-k25", params={"smoke": False}, user=operator)
    assert (job.number, job.state, job.practice) == (1, JobState.QUEUED, True)
    assert [(lock.lock, lock.held) for lock in job.locks.all()] == [("service:kimi-k25", False)]
    assert AuditEntry.objects.get(action="job.restart").by == operator
    assert [sent["job"] for sent in messages(redis_client)] == [str(job.pk)]
    job.refresh_from_db()
    assert job.sent_at is not None


def test_the_node_takes_the_envelope_as_it_is(service: Service, operator: User, redis_client: redis.Redis) -> None:
    dispatch.start(type="restart", node=service.node, service=service, user=operator)
    sent = envelope.Envelope.from_dict(messages(redis_client)[0])
    config = NodeConfig(name="practice", service_roots=["/srv"], model_roots=["/models"])
    envelope.verify(sent, config, now=sent.iat + 1, types=set(KINDS))
    assert sent.service_record().name == "kimi-k25"
    assert sent.locks == ["service:kimi-k25"] and sent.fence["service:kimi-k25"] >= 1


def test_the_fence_rises_with_every_job(service: Service, operator: User, redis_client: redis.Redis) -> None:
    first = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    Job.objects.update(state=JobState.SUCCEEDED)
    second = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    assert second.envelope["fence"]["service:kimi-k25"] > first.envelope["fence"]["service:kimi-k25"]


def test_a_second_click_on_a_busy_service_names_the_holder(service: Service, operator: User, redis_client: redis.Redis) -> None:
    first = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    with pytest.raises(Busy) as caught:
        dispatch.start(type="sweep", node=service.node, service=service, user=operator)
    assert f"#{first.number}" in caught.value.what and "cancel" in caught.value.hint
    assert caught.value.facts["number"] == first.number
    assert Job.objects.count() == 1


@pytest.mark.parametrize("state", ["claimed", "running", "cancelling", "lost"])
def test_an_open_job_keeps_its_service_busy(service: Service, operator: User, state: str, redis_client: redis.Redis) -> None:
    job = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    Job.objects.filter(pk=job.pk).update(state=state)
    with pytest.raises(Busy):
        dispatch.start(type="restart", node=service.node, service=service, user=operator)


def test_a_read_only_job_never_waits(service: Service, operator: User, redis_client: redis.Redis) -> None:
    dispatch.start(type="restart", node=service.node, service=service, user=operator)
    assert dispatch.start(type="integrity", node=service.node, service=service, user=operator).number == 2


def test_after_a_failed_rollback_only_a_repair_may_start(service: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start(type="sweep", node=service.node, service=service, user=operator)
    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, rollback="failed")
    JobLock.objects.update(held=True)
    with pytest.raises(Busy, match="sweep"):
        dispatch.start(type="sweep", node=service.node, service=service, user=operator)
    assert dispatch.start(type="restart", node=service.node, service=service, user=operator).number == 2


def test_a_double_click_is_one_job(service: Service, operator: User, admin: User, redis_client: redis.Redis) -> None:
    first = dispatch.start(type="restart", node=service.node, service=service, user=operator, idempotency_key="k")
    assert dispatch.start(type="restart", node=service.node, service=service, user=operator, idempotency_key="k").pk == first.pk
    assert len(messages(redis_client)) == 1
    with pytest.raises(Busy):  # another person's same key is another wish
        dispatch.start(type="restart", node=service.node, service=service, user=admin, idempotency_key="k")


def test_of_many_at_once_one_starts(service: Service, operator: User, redis_client: redis.Redis) -> None:
    together, ended = Barrier(4), []

    def click() -> None:
        together.wait()
        try:
            ended.append(dispatch.start(type="restart", node="practice", service="kimi-k25", user=operator).number)
        except Busy as error:
            ended.append(error)
        finally:
            connection.close()

    threads = [Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, int) for one in ended) == 1, ended
    assert len(messages(redis_client)) == 1


def test_without_redis_the_job_stays_queued(service: Service, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "redis://127.0.0.1:1/0")
    job = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    job.refresh_from_db()
    assert (job.state, job.sent_at) == (JobState.QUEUED, None)


def test_what_cannot_be_is_refused_before_a_row_is_made(service: Service, operator: User) -> None:
    for wrong in ({"type": "format-disk", "service": service}, {"type": "restart"}, {"type": "restart", "service": "nobody"},
                  {"type": "restart", "service": service, "node": "nowhere"}, {"type": "restart", "service": service, "params": {"x": "y" * 99**3}}):
        with pytest.raises(BadInput):
            dispatch.start(**{"node": service.node, "user": operator, **wrong})
    other = Node.objects.create(name="other")
    with pytest.raises(BadInput):
        dispatch.start(type="restart", node=other, service=service, user=operator)
    assert not Job.objects.exists()


def test_nobody_anonymous_starts_or_cancels(service: Service) -> None:
    with pytest.raises(PermissionDenied):
        dispatch.start(type="restart", node=service.node, service=service, user=AnonymousUser())
    with pytest.raises(PermissionDenied):
        dispatch.cancel(new_job(service), AnonymousUser())


def test_a_practice_service_takes_no_real_channel(service: Service, operator: User) -> None:
    real = Channel.objects.create(name="nightly", record={}, practice=False)
    with pytest.raises(BadInput, match="not for service"):
        dispatch.start_plan(service=service, channel=real, user=operator)


def planned(service: Service, channel: Channel, user: User, **plan: object) -> Job:
    job = dispatch.start_plan(service=service, channel=channel, user=user, coupling=True, options={"python": "3.12"})
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, result={"plan": {"hash": "abc", "findings": [], "packages": [], **plan}})
    job.refresh_from_db()
    return job


def test_a_redeploy_carries_the_plan_that_was_confirmed(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_redeploy(plan_job=planned(service, channel, operator), user=operator, options={"sweep": False, "preset": "quick"})
    sent = messages(redis_client)[-1]
    assert sent["snapshot"]["plan"]["hash"] == "abc" and sent["snapshot"]["channel"]["name"] == "practice"
    assert (job.params["sweep"], job.params["smoke"], job.params["plan_hash"], job.params["coupling"]) == (False, True, "abc", True)
    assert job.params["options"] == {"python": "3.12"}  # else the node would plan another release than the one that was looked at


def test_a_plan_that_says_stop_starts_nothing(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    job = planned(service, channel, operator, findings=[{"level": "stop", "title": "The disk is full", "why": "", "fix": "Free 2 GB"}])
    with pytest.raises(BadInput, match="disk is full"):
        dispatch.start_redeploy(plan_job=job, user=operator, options={})


def test_an_unfinished_plan_and_an_unknown_option_are_refused(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    unfinished = dispatch.start_plan(service=service, channel=channel, user=operator)
    with pytest.raises(BadInput, match="no finished plan"):
        dispatch.start_redeploy(plan_job=unfinished, user=operator, options={})
    with pytest.raises(BadInput, match="no option"):
        dispatch.start_redeploy(plan_job=planned(service, channel, operator), user=operator, options={"force": True})


def test_cancelling_a_queued_job_ends_it(service: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.cancel(dispatch.start(type="restart", node=service.node, service=service, user=operator), operator)
    assert job.state == JobState.CANCELLED
    assert dispatch.start(type="restart", node=service.node, service=service, user=operator).number == 2


def test_cancelling_a_running_job_asks_its_node(service: Service, operator: User, redis_client: redis.Redis) -> None:
    job = new_job(service, state=JobState.RUNNING)
    assert dispatch.cancel(job, operator).state == JobState.CANCELLING
    assert dispatch.cancel(job, operator).state == JobState.CANCELLING
    said = [json.loads(fields[b"c"]) for _, fields in redis_client.xrange("control:practice")]
    assert said[0] == {"do": "cancel", "job": str(job.pk)}
    assert AuditEntry.objects.filter(action="job.cancel").count() == 1


def test_cancelling_what_has_ended_changes_nothing(service: Service, operator: User, redis_client: redis.Redis) -> None:
    assert dispatch.cancel(new_job(service, state=JobState.SUCCEEDED), operator).state == JobState.SUCCEEDED


def test_a_lost_job_is_abandoned_by_an_admin_who_types_the_name(service: Service, admin: User, operator: User, redis_client: redis.Redis) -> None:
    job = new_job(service, state=JobState.LOST)
    JobLock.objects.create(job=job, node=service.node, lock="service:kimi-k25", fence=1, held=True)
    with pytest.raises(PermissionDenied):
        dispatch.abandon(job, operator, typed="kimi-k25")
    with pytest.raises(BadInput):
        dispatch.abandon(job, admin, typed="yes")
    assert dispatch.abandon(job, admin, typed="kimi-k25").state == JobState.INTERRUPTED
    assert not JobLock.objects.filter(held=True).exists()


def test_a_change_is_told_to_the_live_views(service: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start(type="restart", node=service.node, service=service, user=operator)
    told = [json.loads(fields[b"c"]) for _, fields in redis_client.xrange("changes")]
    assert told == [{"id": str(job.pk), "number": 1, "type": "restart", "state": "queued", "job": str(job.pk)}]


def test_after_redis_was_started_anew_the_next_click_is_sent_at_once(
        service: Service, operator: User, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedRedis(short_path).start()
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", server.url())
    try:
        dispatch.start(type="integrity", node=service.node, service=service, user=operator)
        server.process.kill()
        server.process.wait()
        server.start()
        job = dispatch.start(type="integrity", node=service.node, service=service, user=operator)
        job.refresh_from_db()
        assert job.sent_at is not None
    finally:
        server.stop()
