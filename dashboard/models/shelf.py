"""The patch shelf: local edits that a job saved before something overwrote them. The files lie on the node; here is what pages show of them."""

from __future__ import annotations

from django.db import models

from dashboard.models.lean import LeanManager


class ShelvedPatch(models.Model):
    """One edited file as it was saved: its difference from the pristine file, and where the whole copy lies on the node."""

    service = models.ForeignKey("dashboard.Service", on_delete=models.CASCADE, related_name="shelf")
    job = models.ForeignKey("dashboard.Job", on_delete=models.SET_NULL, null=True, related_name="shelved")
    folder = models.CharField(max_length=200)  # below services/<name>/shelf/
    path = models.CharField(max_length=1000)  # relative to the environment
    package = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=120, blank=True)
    release = models.CharField(max_length=200, blank=True)  # in which it was found
    change = models.CharField(max_length=12)  # changed, extra, missing
    size_bytes = models.PositiveBigIntegerField(null=True)
    sha256 = models.CharField(max_length=64, blank=True)
    pristine_sha256 = models.CharField(max_length=64, blank=True)
    diff = models.TextField(null=True)  # unified; None: there is no pristine file at hand, or the file is no text
    diff_cut = models.BooleanField(default=False)
    debris = models.JSONField(default=list)  # [{line, text, what}]: ops/environments/debris.py
    note = models.TextField(blank=True)
    where = models.CharField(max_length=2000, blank=True)  # absolute path of the copy on the node
    saved_at = models.DateTimeField()
    forgotten_at = models.DateTimeField(null=True)  # the copy is gone from the node

    objects = LeanManager["ShelvedPatch"]()

    class Meta:
        ordering = ["-saved_at", "path"]
        constraints = [models.UniqueConstraint(fields=["service", "folder", "path"], name="one_shelved_file_per_folder")]
        indexes = [models.Index(fields=["service", "-saved_at"])]

    def __str__(self) -> str:
        return f"{self.folder}/{self.path}"
