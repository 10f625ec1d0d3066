"""Benchmark runs and their levels: summaries only. Every request's record stays on the node in a column file."""

from __future__ import annotations

import uuid

from django.db import models

from dashboard.models.lean import LeanManager


class BenchmarkRun(models.Model):
    """One sweep with everything that could explain its numbers."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    job = models.ForeignKey("dashboard.Job", on_delete=models.SET_NULL, null=True, related_name="runs")
    service = models.ForeignKey("dashboard.Service", on_delete=models.SET_NULL, null=True, related_name="runs")
    node_name = models.CharField(max_length=63, blank=True)
    service_name = models.CharField(max_length=63, blank=True)
    model = models.CharField(max_length=300)
    endpoint = models.CharField(max_length=300)
    preset = models.CharField(max_length=40)
    release = models.CharField(max_length=120, blank=True)
    vllm_version = models.CharField(max_length=80, blank=True)
    origin = models.CharField(max_length=40, default="roundhouse")
    practice = models.BooleanField(default=False)
    short = models.BooleanField(default=False)
    state = models.CharField(max_length=12, default="running")  # running, done, failed, cancelled
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    settings = models.JSONField(default=dict)  # all that was asked for: SweepSettings.as_dict()
    fingerprint = models.JSONField(default=dict)
    warnings = models.JSONField(default=list)
    label = models.CharField(max_length=120, blank=True)

    objects = LeanManager["BenchmarkRun"]()

    class Meta:
        ordering = ["-started_at"]
        indexes = [models.Index(fields=["-started_at"]), models.Index(fields=["service", "-started_at"])]


class BenchmarkLevel(models.Model):
    """One concurrency of a run. `metrics` is ops.benchmark.metrics.LevelMetrics as JSON; the columns are for lists and charts."""

    run = models.ForeignKey(BenchmarkRun, on_delete=models.CASCADE, related_name="levels")
    concurrency = models.PositiveIntegerField()
    state = models.CharField(max_length=12, default="todo")  # todo, running, done, failed
    requests = models.PositiveIntegerField(default=0)
    finished = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0)
    output_tok_s = models.FloatField(null=True)
    e2e_mean_s = models.FloatField(null=True)
    e2e_p50_s = models.FloatField(null=True)
    e2e_p99_s = models.FloatField(null=True)
    ttft_p50_ms = models.FloatField(null=True)
    metrics = models.JSONField(default=dict)

    class Meta:
        ordering = ["concurrency"]
        constraints = [models.UniqueConstraint(fields=["run", "concurrency"], name="one_level_per_concurrency")]
