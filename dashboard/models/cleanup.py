"""What scans found on a node, what purges did with it, and the kinds of leftovers that admins added."""

from __future__ import annotations

from django.db import models

from dashboard.models.lean import LeanManager


class ArtifactScan(models.Model):
    """One scan of a node: totals that pages show, and the artifacts that the node listed (of each kind its largest)."""

    job = models.OneToOneField("dashboard.Job", on_delete=models.CASCADE, related_name="scan")
    node = models.ForeignKey("dashboard.Node", on_delete=models.CASCADE, related_name="scans")
    at = models.DateTimeField()
    finished = models.BooleanField(default=False)  # its `artifacts.scanned` was told: totals are exact
    took_s = models.FloatField(null=True)
    digest = models.CharField(max_length=64, blank=True)  # of the preview on the node: a purge names it
    summary = models.JSONField(default=dict)  # data of artifacts.scanned
    offered_bytes = models.BigIntegerField(default=0)  # what a purge of all that is offered would free
    choosable_bytes = models.BigIntegerField(default=0)
    freed_bytes = models.BigIntegerField(default=0)  # what purges of this very scan have freed since
    purged_count = models.PositiveIntegerField(default=0)
    practice = models.BooleanField(default=False)

    objects = LeanManager["ArtifactScan"]()

    class Meta:
        ordering = ["-at"]
        indexes = [models.Index(fields=["node", "finished", "-at"])]

    def __str__(self) -> str:
        return f"scan of {self.node.name} at {self.at:%Y-%m-%d %H:%M}"


class ScannedArtifact(models.Model):
    """One artifact of a scan: ops/artifacts/found.py Artifact. `result`: what a purge said of it since, "" if none did."""

    scan = models.ForeignKey(ArtifactScan, on_delete=models.CASCADE, related_name="artifacts")
    number = models.PositiveIntegerField()
    kind = models.CharField(max_length=40)
    unit = models.CharField(max_length=10)
    path = models.TextField()
    size_bytes = models.BigIntegerField()
    files = models.PositiveIntegerField()
    newest = models.DateTimeField()  # last change of the file, or of the newest file in the folder
    owner = models.CharField(max_length=64)
    state = models.CharField(max_length=10)  # offered, optional, kept
    why = models.TextField(blank=True)
    open_by = models.JSONField(default=list)
    service = models.CharField(max_length=63, blank=True)
    result = models.CharField(max_length=10, blank=True)

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["scan", "number"], name="one_number_per_scan")]
        indexes = [models.Index(fields=["scan", "kind", "-size_bytes"])]


class PurgedArtifact(models.Model):
    """A line of a purge's manifest: ops/artifacts/found.py Entry. Kept for good: it says what went, and why."""

    job = models.ForeignKey("dashboard.Job", on_delete=models.CASCADE, related_name="purged")
    number = models.PositiveIntegerField()
    path = models.TextField()
    kind = models.CharField(max_length=40)
    size_bytes = models.BigIntegerField()
    files = models.PositiveIntegerField()
    newest = models.DateTimeField()
    owner = models.CharField(max_length=64)
    reason = models.TextField(blank=True)
    result = models.CharField(max_length=10)  # deleted, partly, kept, gone
    why = models.TextField(blank=True)
    freed_bytes = models.BigIntegerField(default=0)
    deleted_files = models.PositiveIntegerField(default=0)
    service = models.CharField(max_length=63, blank=True)

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="one_manifest_line_per_number")]
        indexes = [models.Index(fields=["job", "result"])]


class ArtifactKind(models.Model):
    """A kind of leftover that an admin added. `record` is ops/artifacts/kinds.py Kind as JSON, with `own` true."""

    name = models.CharField(max_length=40, unique=True)
    record = models.JSONField()
    changed_at = models.DateTimeField(auto_now=True)

    objects = LeanManager["ArtifactKind"]()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
