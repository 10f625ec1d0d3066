"""Benchmark runs and their levels: summaries only. Every request's record stays on the node in a column file."""

from __future__ import annotations

import uuid

from django.conf import settings
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
    origin = models.CharField(max_length=40, default="roundhouse")  # roundhouse, imported, practice-reference
    tool = models.CharField(max_length=40, default="roundhouse")  # what measured it: ops/benchmark/formats names others
    tool_version = models.CharField(max_length=80, blank=True)
    imported = models.ForeignKey("dashboard.ImportedFile", on_delete=models.PROTECT, null=True, related_name="runs")
    practice = models.BooleanField(default=False)
    short = models.BooleanField(default=False)
    state = models.CharField(max_length=12, default="running")  # running, done, failed, cancelled
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    settings = models.JSONField(default=dict)  # all that was asked for: SweepSettings.as_dict()
    fingerprint = models.JSONField(default=dict)
    warnings = models.JSONField(default=list)
    label = models.CharField(max_length=120, blank=True)
    notes = models.TextField(blank=True)
    tags = models.JSONField(default=list)  # words
    group = models.UUIDField(null=True, db_index=True)  # repeats that were measured together, by one job
    group_index = models.PositiveIntegerField(default=0)  # its place in the order in which they ran
    stack = models.CharField(max_length=64, blank=True)  # the fingerprint's hash: equal where nothing that could explain a number differs
    sweep_key = models.CharField(max_length=64, blank=True)  # ops.benchmark.comparing.keys.sweep_key: equal where the levels may be held together
    # of its levels, so that a list of 10,000 runs reads no level
    single_tok_s = models.FloatField(null=True)
    peak_tok_s = models.FloatField(null=True)
    peak_at = models.CharField(max_length=24, blank=True)  # "128" (concurrency) or "2.5/s" (rate)
    peak_p99_s = models.FloatField(null=True)
    errors = models.PositiveIntegerField(default=0, null=True)  # None: another tool measured it, and does not say
    levels_measured = models.PositiveIntegerField(default=0)
    search = models.TextField(blank=True)  # lower-case words of everything that a search looks at

    objects = LeanManager["BenchmarkRun"]()

    class Meta:
        ordering = ["-started_at"]
        # `list_of_runs` has every column that dashboard/run_list.py chooses and orders by: no row is read to find a page of them. No index of one of
        # these columns alone stands beside it: the database would take that one, and then read 20 KB of row for each of the other columns.
        indexes = [models.Index(fields=["-started_at"]), models.Index(fields=["service", "-started_at"]),
                   models.Index(name="list_of_runs", fields=["-started_at", "id", "node_name", "service_name", "model", "release", "preset", "tool",
                                                             "practice", "state", "single_tok_s", "peak_tok_s", "peak_p99_s", "errors", "tags",
                                                             "search"])]

    @property
    def dated(self) -> bool:
        """Whether it is known when it was measured; else `started_at` is when it came here."""
        return self.origin == "roundhouse" or self.finished_at is not None


class BenchmarkLevel(models.Model):
    """One level of a run: a concurrency (closed loop) or a rate (open loop).

    `metrics` is ops.benchmark.metrics.LevelMetrics as JSON without its `detail` (ECDFs, seconds, a timeline of requests), which stands beside
    it because only a run's own page and a comparison read it; the columns are for lists and charts.
    """

    run = models.ForeignKey(BenchmarkRun, on_delete=models.CASCADE, related_name="levels")
    load = models.CharField(max_length=8, default="closed")  # closed, open
    value = models.FloatField(default=0)  # concurrency, or requests a second
    concurrency = models.PositiveIntegerField(null=True)  # of a closed loop
    state = models.CharField(max_length=12, default="todo")  # todo, running, done, failed
    requests = models.PositiveIntegerField(default=0)
    finished = models.PositiveIntegerField(default=0)
    errors = models.PositiveIntegerField(default=0)
    output_tok_s = models.FloatField(null=True)
    e2e_mean_s = models.FloatField(null=True)
    e2e_p50_s = models.FloatField(null=True)
    e2e_p99_s = models.FloatField(null=True)
    ttft_p50_ms = models.FloatField(null=True)
    tpot_p50_ms = models.FloatField(null=True)
    metrics = models.JSONField(default=dict)
    detail = models.JSONField(default=dict)

    objects = LeanManager["BenchmarkLevel"]()  # without `detail`: ask for it with defer(None)

    class Meta:
        ordering = ["load", "value"]
        constraints = [models.UniqueConstraint(fields=["run", "load", "value"], name="one_level_per_load")]


class ImportedFile(models.Model):
    """A file in another tool's schema, kept whole: `content` is it, gzip-compressed; `sha256` is of the file as it came."""

    name = models.CharField(max_length=200)
    tool = models.CharField(max_length=40)
    size_bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64, unique=True)
    content = models.BinaryField()
    imported_at = models.DateTimeField()
    imported_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")


class NoiseFloor(models.Model):
    """How much a metric of a level differs from itself on a node when nothing changed (A/A): half of the 95 % interval of the ratio, as a share.

    One row for each service, kind of sweep, level and metric: measuring it anew takes the old one's place. `stack` is the fingerprint's hash
    at that time: with another stack the floor still stands, but is said to be of another one.
    """

    node = models.ForeignKey("dashboard.Node", on_delete=models.CASCADE, related_name="noise_floors")
    service = models.ForeignKey("dashboard.Service", on_delete=models.CASCADE, related_name="noise_floors")
    job = models.ForeignKey("dashboard.Job", on_delete=models.SET_NULL, null=True, related_name="+")
    sweep_key = models.CharField(max_length=64)
    stack = models.CharField(max_length=64, blank=True)
    load = models.CharField(max_length=8)
    value = models.FloatField()
    metric = models.CharField(max_length=40)  # a name of ops.benchmark.comparing.verdicts.METRICS
    half_width = models.FloatField()
    runs = models.PositiveIntegerField()
    measured_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["service", "sweep_key", "load", "value", "metric"], name="one_floor_per_metric")]
