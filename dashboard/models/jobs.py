"""Jobs: who asked for what, the locks that they hold, their steps, and every event that they said."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q

from dashboard.models.lean import LeanManager
from ops.jobs.events import FINAL_STATES, JobState


class Job(models.Model):
    """One job. `number` is what people say ("#128"); `id` is what the node and Redis use."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.PositiveIntegerField(unique=True)
    type = models.CharField(max_length=30)  # a name of ops/jobs/kinds.py
    node = models.ForeignKey("dashboard.Node", on_delete=models.PROTECT, related_name="jobs")
    service = models.ForeignKey("dashboard.Service", on_delete=models.SET_NULL, null=True, related_name="jobs")
    state = models.CharField(max_length=12, default=JobState.QUEUED, choices=[(s.value, s.value) for s in JobState])
    reason = models.TextField(blank=True)
    reason_kind = models.CharField(max_length=10, blank=True)
    rollback = models.CharField(max_length=10, default="none")
    error = models.JSONField(null=True)
    params = models.JSONField(default=dict)
    envelope = models.JSONField(default=dict)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    idempotency_key = models.CharField(max_length=64, null=True, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    cancel_wanted_at = models.DateTimeField(null=True)
    last_seq = models.PositiveIntegerField(default=0)  # highest stored event, without a gap below it
    duration_s = models.FloatField(null=True)
    downtime_s = models.FloatField(null=True)
    downtime_since = models.DateTimeField(null=True)  # while the service does not answer
    practice = models.BooleanField(default=False)
    result = models.JSONField(default=dict)  # kept by the recorder: see dashboard/projection.py
    fingerprint = models.JSONField(null=True)  # the last one that the job said: ops/environments/fingerprint.py

    objects = LeanManager["Job"]()

    class Meta:
        ordering = ["-number"]
        indexes = [models.Index(fields=["state"]), models.Index(fields=["service", "-number"])]

    def __str__(self) -> str:
        return f"#{self.number} {self.type}"

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


class JobLock(models.Model):
    """A lock that a job holds in the console's eyes. The partial index lets one job per (node, lock) be open."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="locks")
    node = models.ForeignKey("dashboard.Node", on_delete=models.CASCADE)
    lock = models.CharField(max_length=200)  # "service:kimi-k25", "env:/path", "node:purge"
    fence = models.PositiveBigIntegerField()
    held = models.BooleanField(default=False)  # true while the job's state is one of LOCKING_STATES

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "lock"], condition=Q(held=True), name="one_open_job_per_lock")]


class LockFence(models.Model):
    """The last fence given out for a lock; it only rises."""

    node = models.ForeignKey("dashboard.Node", on_delete=models.CASCADE)
    lock = models.CharField(max_length=200)
    last = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "lock"], name="one_fence_per_lock")]


class JobStep(models.Model):
    """A step as the page shows it. `state`: todo, running, done, skipped, failed, cancelled, interrupted, undoing, undone."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="steps")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=40)
    title = models.CharField(max_length=80)
    downtime = models.BooleanField(default=False)
    state = models.CharField(max_length=12, default="todo")
    outcome = models.CharField(max_length=12, blank=True)  # how its own work ended, whatever an undo did afterwards
    note = models.TextField(blank=True)
    started_at = models.DateTimeField(null=True)
    duration_s = models.FloatField(null=True)
    progress = models.JSONField(null=True)  # the last step.progress
    undo_note = models.TextField(blank=True)
    undo_s = models.FloatField(null=True)

    class Meta:
        ordering = ["index"]
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="one_step_name_per_job")]


class JobEvent(models.Model):
    """An event as the node sent it: unique on (job, seq), so that storing it twice is harmless."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    at = models.FloatField()
    type = models.CharField(max_length=40)
    data = models.JSONField()

    class Meta:
        ordering = ["seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="one_event_per_seq")]
        indexes = [models.Index(fields=["job", "type", "seq"])]


