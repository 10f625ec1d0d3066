"""Jobs whose node is silent: sent again if no node took them, ended if none ever did, `lost` if the heartbeat stopped.

A node's clock is not trusted: a heartbeat counts as new when its value changes, by this process's own clock.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import redis
from django.db import transaction
from django.utils import timezone

from dashboard import dispatch
from dashboard.models import Job, JobLock
from ops.jobs import streams
from ops.jobs.events import FINAL_STATES, JobState

logger = logging.getLogger(__name__)

RESEND_AFTER_S = 30
LOST_AFTER_S = 60
CANCEL_AGAIN_S = 15
WATCHED = (JobState.CLAIMED, JobState.RUNNING, JobState.CANCELLING, JobState.LOST)


class Reaper:
    """Remembers between two looks what heartbeats said. One in the recorder's process."""

    def __init__(self) -> None:
        self.beats: dict[str, bytes] = {}
        self.heard: dict[str, float] = {}  # job -> monotonic time of its last sign of life
        self.cancels: dict[str, float] = {}
        self.looked = False
        self.since = time.monotonic()  # silence counts from here on at the earliest

    def away(self) -> None:
        """Redis or the database was away: nobody could be heard, so nobody was silent."""
        self.since = time.monotonic()

    def resend_soon(self) -> None:
        """Redis was emptied, and its queues with it: what is queued goes out at the next look."""
        self.since = time.monotonic()
        Job.objects.filter(state=JobState.QUEUED).update(sent_at=None)

    def look(self, client: redis.Redis) -> None:
        """One round over all open jobs."""
        self._queued(client)
        self._watch(client)

    def _queued(self, client: redis.Redis) -> None:
        seconds, _ = client.time()
        overdue = timezone.now() - timedelta(seconds=RESEND_AFTER_S)
        for job in Job.objects.filter(state=JobState.QUEUED).select_related("node"):
            if seconds > float(job.envelope.get("exp") or 0):
                ended = Job.objects.filter(pk=job.pk, state=JobState.QUEUED).update(
                    state=JobState.INTERRUPTED, finished_at=timezone.now(), reason_kind="expected",
                    reason=f"Node `{job.node.name}` did not take this job in time. Is its agent running?")
                if ended:
                    job.refresh_from_db()
                    dispatch.announce_change(job)
            elif job.sent_at is None or job.sent_at < overdue:
                if job.sent_at is not None:
                    logger.info("job #%s was not taken in %d s: sent again", job.number, RESEND_AFTER_S)
                dispatch.send(job)

    def _watch(self, client: redis.Redis) -> None:
        beats: Any = client.hgetall(streams.BEATS)
        now = time.monotonic()
        open_ids: set[str] = set()
        for job in Job.objects.filter(state__in=WATCHED).select_related("node"):
            job_id = str(job.pk)
            open_ids.add(job_id)
            beat = beats.get(job_id.encode())
            if beat is not None and beat != self.beats.get(job_id):
                if self.looked:  # what the very first look finds may be old
                    self.heard[job_id] = now
                self.beats[job_id] = beat
            if job.heartbeat_at:  # an event is a sign of life too; set by the recorder with this host's clock
                age = (timezone.now() - job.heartbeat_at).total_seconds()
                self.heard[job_id] = max(self.heard.get(job_id, 0.0), now - max(age, 0.0))
            silent_s = now - max(self.heard.get(job_id, 0.0), self.since)
            if job.state != JobState.LOST and silent_s > LOST_AFTER_S:
                self._change(job, JobState.LOST)
            elif job.state == JobState.LOST and now - self.heard.get(job_id, 0.0) < LOST_AFTER_S / 2:
                self._change(job, self._open_state(job))
            if job.cancel_wanted_at and now - self.cancels.get(job_id, 0.0) > CANCEL_AGAIN_S:
                self.cancels[job_id] = now
                dispatch.send_cancel(job)
        self.looked = True
        for known in (self.beats, self.heard, self.cancels):
            for job_id in set(known) - open_ids:
                known.pop(job_id)

    @staticmethod
    def _open_state(job: Job) -> JobState:
        if job.cancel_wanted_at:
            return JobState.CANCELLING
        return JobState.RUNNING if job.steps.exclude(state="todo").exists() else JobState.CLAIMED

    @staticmethod
    def _change(job: Job, state: JobState) -> None:
        with transaction.atomic():
            if not Job.objects.filter(pk=job.pk, state=job.state).exclude(state__in=FINAL_STATES).update(state=state):
                return
        logger.warning("job #%s: %s -> %s", job.number, job.state, state)
        job.state = state
        dispatch.announce_change(job)


def release_left_locks() -> int:
    """Locks that stand as held for jobs that have ended well (a database put back from a backup, say); gives how many."""
    return JobLock.objects.filter(held=True, job__state__in=FINAL_STATES).exclude(job__rollback="failed").update(held=False)
