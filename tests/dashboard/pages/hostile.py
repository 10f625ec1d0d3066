"""What a node could say to act on those who read it: every text of a full console with a canary at its end."""

from __future__ import annotations

import re
from typing import Any

from dashboard.models import (
    ArtifactKind,
    ArtifactScan,
    BenchmarkRun,
    Channel,
    Job,
    JobEvent,
    JobStep,
    Node,
    PurgedArtifact,
    ScannedArtifact,
    Service,
    ShelvedPatch,
)

CANARY = ("</script></textarea></title>\"'><script>window.canary=1</script><img src=x onerror=window.canary=1><a href=javascript:canary>"
          "\u202e\x1b[31m{{7*7}}")
_WORD = re.compile(r"[a-z0-9_.-]{0,24}\Z|[0-9a-f]{32,64}\Z|[0-9a-f-]{36}\Z")  # what code compares with: kinds, levels, states, hashes
FIELDS: list[tuple[Any, list[str]]] = [
    (Node, ["facts", "telemetry"]), (Service, ["record", "packages", "environment", "releases", "changed", "model", "status", "failures", "warmups",
                                                           "unit", "launch"]),
    (Job, ["params", "result", "fingerprint", "error"]), (JobStep, ["summary", "note", "error"]), (JobEvent, ["data"]),
    (BenchmarkRun, ["fingerprint", "settings", "report"]), (Channel, ["record"]),
    (ArtifactScan, ["summary"]), (ScannedArtifact, ["path", "owner", "why", "open_by"]), (PurgedArtifact, ["path", "owner", "reason", "why"]),
    (ArtifactKind, ["record"]),
    (ShelvedPatch, ["path", "package", "version", "release", "diff", "debris", "note", "where"])]


def spoiled(value: Any) -> Any:
    """The same with the canary at the end of each text that is none of a closed set."""
    if isinstance(value, str):
        return value if _WORD.match(value) else value + CANARY
    if isinstance(value, dict):
        return {name: spoiled(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner) for inner in value]
    return value


def spoil() -> None:
    """Every row that holds what a node said."""
    for model, names in FIELDS:
        there = {field.name for field in model._meta.get_fields()}
        for row in model.objects.defer(None) if hasattr(model.objects, "defer") else model.objects.all():
            changed = {name: spoiled(getattr(row, name)) for name in names if name in there}
            model.objects.filter(pk=row.pk).update(**changed)
