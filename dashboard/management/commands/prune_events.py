"""`manage.py prune_events [--days N]`: removes old events of jobs that have ended. Jobs, steps, results, reports and benchmark runs stay; so does
the full log on the node. Also removes sessions and sign-in links that have run out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from dashboard.models import Job, JobEvent, SignInToken
from ops.jobs.errors import BadInput
from ops.jobs.events import FINAL_STATES, EventType

KEPT_TYPES = (EventType.PLAN_MADE, EventType.LEVEL_SECOND, EventType.REPORT, EventType.JOB_CLAIMED, EventType.JOB_FINISHED)
ROWS_AT_ONCE = 2000  # short transactions: the recorder writes meanwhile


class Command(BaseCommand):
    help = "Removes log and progress events of jobs that ended long ago."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--days", type=int, default=90, help="keep events of jobs that ended within so many days (default: 90)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["days"] < 1:
            raise BadInput("--days must be at least 1")
        now = timezone.now()
        ended = Job.objects.filter(state__in=FINAL_STATES, finished_at__lt=now - timedelta(days=options["days"]))
        removed = 0
        for job in ended.iterator():
            rows = JobEvent.objects.filter(job=job).exclude(type__in=KEPT_TYPES)
            while ids := list(rows.values_list("pk", flat=True)[:ROWS_AT_ONCE]):
                removed += JobEvent.objects.filter(pk__in=ids).delete()[0]
        sessions = Session.objects.filter(expire_date__lt=now).delete()[0]
        links = SignInToken.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()[0]
        self.stdout.write(f"Removed {removed} events, {sessions} sessions, {links} sign-in links")
