"""Nodes, their services, and the channels that wheels come from."""

from __future__ import annotations

from django.db import models

from dashboard.models.lean import LeanManager
from ops.services import failures


class Node(models.Model):
    """One GPU server, as its agent last announced it."""

    name = models.CharField(max_length=63, unique=True)
    practice = models.BooleanField(default=False)
    facts = models.JSONField(default=dict)  # driver, cuda, gpus [{index, name, total_bytes}], kernel, roundhouse, problem
    telemetry = models.JSONField(default=dict)  # last telemetry: see ops/agent/telemetry.py
    announced_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Service(models.Model):
    """One vLLM server on a node. `record` is ops.records.ServiceRecord as JSON; `packages` what its release holds."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="services")
    name = models.CharField(max_length=63)
    record = models.JSONField()
    state = models.CharField(max_length=20, default="unknown")  # healthy, starting, stopped, failed, unknown
    status = models.JSONField(default=dict)  # pid, since, release, detail: ops/services ServiceStatus.as_dict()
    packages = models.JSONField(default=dict)  # versions of interest, coupling findings, patched files: ops/agent/telemetry.py
    environment = models.JSONField(default=dict)  # all that is installed in its live release, with findings: ops/agent/inventory.py
    releases = models.JSONField(default=list)  # kept releases, newest first: ops/environments/releases.py Release.as_dict()
    changed = models.JSONField(null=True)  # against the last good start: since, words, differences; null: nothing to compare with
    model = models.JSONField(default=list)  # findings about the model folder: ops/environments/model_folder.py
    failures = models.JSONField(default=list)  # the last ends that nobody asked for, newest last: ops/services/failures.py
    warmups = models.JSONField(default=list)  # the last that ended well, newest last: at, release, total_s, cache, phases {phase: seconds}
    unit = models.JSONField(null=True)  # facts of its systemd unit: `inventories.UNIT_FACTS`; null where it has none
    launch = models.JSONField(default=dict)  # mark, flags, env (secrets hidden), env_files, secret_names, pending: changed since its process started
    baseline = models.ForeignKey("dashboard.BenchmarkRun", on_delete=models.SET_NULL, null=True, related_name="baseline_of")  # the pinned one
    target_tok_s = models.JSONField(null=True)  # [low, high] of a single stream, set here; null: as its record says
    practice = models.BooleanField(default=False)
    changed_at = models.DateTimeField(null=True)

    objects = LeanManager["Service"]()

    class Meta:
        ordering = ["node__name", "name"]
        constraints = [models.UniqueConstraint(fields=["node", "name"], name="one_service_name_per_node")]

    def __str__(self) -> str:
        return f"{self.node.name}/{self.name}"

    @property
    def failure_key(self) -> str:
        """As the node's telemetry has it (`failure` of a service): another one says that `failures` will be others in a moment."""
        return failures.key(self.failures)


class Channel(models.Model):
    """Where wheels come from; set by an admin only. `record` is ops.records.Channel as JSON."""

    name = models.CharField(max_length=63, unique=True)
    record = models.JSONField()
    practice = models.BooleanField(default=False)
    announced = models.BooleanField(default=False)  # a practice node's own: it comes back with the next announcement, so nobody may change it

    objects = LeanManager["Channel"]()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
