"""A node with a service, people, and jobs that say things: what most tests of the console begin with."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.utils import timezone

from dashboard.models import Channel, Job, Node, Service
from ops.jobs import streams
from ops.jobs.events import Event, EventType
from tests.dashboard.pages.factory import Story

SERVICE = {
    "name": "kimi-k25", "root": "/srv/kimi-k25", "model_path": "/models/kimi", "served_model_name": "kimi-k2.5", "base_url": "http://127.0.0.1:8000",
    "practice": True,
}
CHANNEL = {"name": "practice", "kind": "wheelhouse", "wheelhouse": "/srv/wheels", "practice": True}


@pytest.fixture
def node(db: None) -> Node:
    return Node.objects.create(name="practice", practice=True, seen_at=timezone.now())


@pytest.fixture
def service(node: Node) -> Service:
    from ops.records import ServiceRecord

    return Service.objects.create(node=node, name="kimi-k25", record=ServiceRecord.from_dict(SERVICE).as_dict(), practice=True)


@pytest.fixture
def channel(db: None) -> Channel:
    from ops import records

    return Channel.objects.create(name="practice", record=records.Channel.from_dict(CHANNEL).as_dict(), practice=True, announced=True)


@pytest.fixture
def admin(db: None) -> User:
    return User.objects.create_superuser("admin", password="correct horse battery")


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_user("olga", password="correct horse battery")


@pytest.fixture
def story(db: None, admin: User) -> Story:
    """What a node with a service has said, for pages and what they are made of; a test lets it say more."""
    made = Story()
    made.node()
    made.service()
    return made


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    with streams.connect() as client:
        yield client


def new_job(service: Service, **more: Any) -> Job:
    """A queued row, as dispatch makes it, without sending anything."""
    last = Job.objects.order_by("-number").first()
    values = {"type": "redeploy", "node": service.node, "service": service, "number": (last.number if last else 0) + 1, "practice": True, **more}
    return Job.objects.create(**values)


class Speaker:
    """Stands in for a node: numbers the events of one job and publishes them as the companion does."""

    def __init__(self, job: Job | str | None = None) -> None:
        self.job = str(job.pk if isinstance(job, Job) else job or uuid.uuid4())
        self.seq = 0
        self.said: list[Event] = []

    def event(self, type: str, /, **data: Any) -> Event:
        self.seq += 1
        event = Event(job=self.job, seq=self.seq, at=time.time(), type=type, data=data)
        self.said.append(event)
        return event

    def claimed(self, **more: Any) -> Event:
        steps = [{"name": "plan", "title": "Plan", "downtime": False}, {"name": "stop", "title": "Stop", "downtime": True}]
        data = {"type": "redeploy", "service": "kimi-k25", "params": {}, "locks": ["service:kimi-k25"], "fence": {"service:kimi-k25": 7},
                "by": "olga", "boot_id": "b", "pid": 1, "start_time": 1, "steps": steps, **more}
        return self.event(EventType.JOB_CLAIMED, **data)

    def log(self, text: str = "line\n", step: str = "plan") -> Event:
        return self.event(EventType.STEP_LOG, step=step, text=text, dropped_bytes=0)

    def finished(self, state: str = "succeeded", **more: Any) -> Event:
        data = {"state": state, "reason": "", "reason_kind": "", "rollback": "none", "error": None, "duration_s": 1.5, "downtime_s": None}
        return self.event(EventType.JOB_FINISHED, **{**data, **more})

    def publish(self, client: redis.Redis, *events: Event) -> None:
        """All that was said so far, or just `events`."""
        streams.Publisher(client, "practice").send(self.job, [(event.seq, event.to_json()) for event in (events or self.said)])


@pytest.fixture
def told(service: Service) -> tuple[Job, Speaker]:
    """A job, and the node that speaks of it."""
    job = new_job(service)
    return job, Speaker(job)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)
