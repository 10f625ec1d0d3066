from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.utils import timezone

from dashboard.models import Job, JobEvent, Service
from dashboard.recorder import record
from ops.jobs.events import EventType
from tests.dashboard.conftest import Speaker, new_job

pytestmark = pytest.mark.django_db


def told(service: Service) -> Job:
    node = Speaker(new_job(service))
    record([node.claimed(), node.log(), node.event(EventType.PLAN_MADE, hash="x"), node.finished()])
    return Job.objects.get(pk=node.job)


def test_old_logs_go_and_what_pages_need_stays(service: Service) -> None:
    old, new = told(service), told(service)
    Job.objects.filter(pk=old.pk).update(finished_at=timezone.now() - timedelta(days=91))
    out = StringIO()
    call_command("prune_events", stdout=out)
    assert list(JobEvent.objects.filter(job=old).values_list("type", flat=True)) == ["job.claimed", "plan.made", "job.finished"]
    assert JobEvent.objects.filter(job=new).count() == 4
    assert out.getvalue().startswith("Removed 1 events")


def test_a_job_that_has_not_ended_keeps_everything(service: Service) -> None:
    job = told(service)
    Job.objects.filter(pk=job.pk).update(state="running", finished_at=timezone.now() - timedelta(days=400))
    call_command("prune_events", stdout=StringIO())
    assert JobEvent.objects.filter(job=job).count() == 4
