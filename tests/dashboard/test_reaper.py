from __future__ import annotations

from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from dashboard import reaper
from dashboard.models import Job, Service
from dashboard.reaper import Reaper
from ops.jobs import streams
from ops.jobs.events import JobState
from tests.dashboard.conftest import new_job

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    def __init__(self) -> None:
        self.now = 10_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The reaper's own clock; rows have no sign of life of their own here."""
    made = Clock()
    monkeypatch.setattr(reaper, "time", made)
    return made


def beat(client: redis.Redis, job: Job) -> None:
    streams.Publisher(client, "practice").beat([str(job.pk)])


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def envelope(exp: float = 4e9) -> dict[str, object]:
    return {"job": "x", "exp": exp}


def test_a_job_that_nobody_took_is_sent_again(service: Service, redis_client: redis.Redis) -> None:
    job = new_job(service, envelope=envelope(), sent_at=timezone.now() - timedelta(seconds=31))
    Reaper().look(redis_client)
    Reaper().look(redis_client)
    assert redis_client.llen("node.practice") == 1
    assert timezone.now() - Job.objects.get(pk=job.pk).sent_at < timedelta(seconds=5)


def test_a_job_that_was_sent_just_now_is_given_time(service: Service, redis_client: redis.Redis) -> None:
    new_job(service, envelope=envelope(), sent_at=timezone.now() - timedelta(seconds=20))
    Reaper().look(redis_client)
    assert redis_client.llen("node.practice") == 0


def test_an_emptied_redis_has_queued_jobs_sent_at_once(service: Service, redis_client: redis.Redis) -> None:
    new_job(service, envelope=envelope(), sent_at=timezone.now())
    one = Reaper()
    one.resend_soon()
    one.look(redis_client)
    assert redis_client.llen("node.practice") == 1


def test_a_job_that_no_node_took_in_time_ends_with_a_reason(service: Service, redis_client: redis.Redis) -> None:
    job = new_job(service, envelope=envelope(exp=1.0))
    Reaper().look(redis_client)
    job.refresh_from_db()
    assert (job.state, redis_client.llen("node.practice")) == (JobState.INTERRUPTED, 0)
    assert "practice" in job.reason and job.finished_at is not None


def test_sixty_seconds_without_a_heartbeat_are_lost(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    job = new_job(service, state=JobState.RUNNING)
    one = Reaper()
    for after, expected in ((0, "running"), (50, "running"), (61, "lost")):
        clock.now = 10_000 + after
        one.look(redis_client)
        assert state(job) == expected, after


def test_a_heartbeat_keeps_a_job(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    job = new_job(service, state=JobState.RUNNING)
    one = Reaper()
    for _ in range(6):
        beat(redis_client, job)
        one.look(redis_client)
        clock.now += 40
    assert state(job) == "running"


def test_an_old_heartbeat_that_never_changes_keeps_nothing(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    """A node's clock may be two hours ahead: its number says nothing, that it changes does."""
    job = new_job(service, state=JobState.RUNNING)
    redis_client.hset("beats", str(job.pk), "99999999999")
    one = Reaper()
    one.look(redis_client)
    clock.now += 61
    one.look(redis_client)
    assert state(job) == "lost"


def test_a_lost_job_is_found_again_by_its_heartbeat(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    job = new_job(service, state=JobState.LOST)
    job.steps.create(index=0, name="plan", title="Plan", state="running")
    one = Reaper()
    one.look(redis_client)
    beat(redis_client, job)
    one.look(redis_client)
    assert state(job) == "running"


def test_while_redis_was_away_nobody_was_silent(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    job = new_job(service, state=JobState.RUNNING)
    one = Reaper()
    one.look(redis_client)
    clock.now += 300
    one.away()
    one.look(redis_client)
    assert state(job) == "running"


def test_a_wish_to_cancel_is_repeated_until_the_job_ends(service: Service, redis_client: redis.Redis, clock: Clock) -> None:
    new_job(service, state=JobState.CANCELLING, cancel_wanted_at=timezone.now())
    one = Reaper()
    for _ in range(4):
        one.look(redis_client)
        clock.now += 10
    assert redis_client.xlen("control:practice") == 2
