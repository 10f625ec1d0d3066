"""The pinned run of a service: what every later sweep of it is held against, and the copy of it that a job takes along.

The baseline is a side: the pinned run, with those that were measured together with it. The node computes the regression watch from the copy, because
it has no database (`ops/benchmark/comparing/regression.py`).
"""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from dashboard import noise_floors, permissions, run_documents
from dashboard.deciding import SIDE_MOST
from dashboard.models import AuditEntry, BenchmarkRun, Service
from dashboard.templatetags.roundhouse import short_release
from ops.benchmark.comparing import readings
from ops.benchmark.comparing.keys import TITLES
from ops.benchmark.comparing.verdicts import METRICS
from ops.jobs.errors import BadInput

SNAPSHOT_BYTES = 120 * 1024  # of a job's params, which hold at most 256 KiB
# Of a level: what a ratio is taken of, what makes levels comparable, and what stands in the way
_LEVEL = frozenset(METRICS) | frozenset(TITLES) | {
    "load", "value", "concurrency", "state", "requests", "sent", "finished", "errors", "error_rate", "errors_by_kind", "marks", "prompt_words",
    "prompt_tokens_asked", "prompt_tokens", "output_tokens", "window"}
_RUN = ("schema", "run_id", "state", "preset", "model", "practice", "short", "started_at", "finished_at", "origin", "tool", "tool_version",
        "sweep_key", "group", "group_index", "label", "settings")
_FINGERPRINT = ("release", "hash", "practice", "service")


def pin(run: BenchmarkRun, user: User) -> Service:
    """Makes the run its service's baseline. Raises BadInput for one that nothing can be held against: not ended
    well, of another tool, of no service."""
    permissions.require(user, "benchmark.pin")
    service = run.service
    if service is None:
        raise BadInput("This run is of no service, so it is nobody's baseline", why="Its service is not known to this console any more, or never was")
    if run.origin != readings.OURS:
        raise BadInput("A run of another tool cannot be a baseline", why="Each tool counts in its own way: no verdict is given between two",
                       hint="Sweep the service here, and pin that run")
    if run.state != "done":
        raise BadInput(f"This run is {run.state}: it is no baseline", hint="Pin one that was measured to its end")
    if run.practice != service.practice:
        raise BadInput("Practice never mixes with real services")
    with transaction.atomic():
        Service.objects.filter(pk=service.pk).update(baseline=run)
        AuditEntry.objects.create(by_id=user.pk, action="benchmark.pin", subject=str(service), data={"run": str(run.pk)})
    service.baseline = run
    return service


def unpin(service: Service, user: User) -> None:
    """Afterwards the service has no baseline, and a sweep is held against nothing."""
    permissions.require(user, "benchmark.pin")
    with transaction.atomic():
        if Service.objects.filter(pk=service.pk).exclude(baseline=None).update(baseline=None):
            AuditEntry.objects.create(by_id=user.pk, action="benchmark.unpin", subject=str(service), data={"run": str(service.baseline_id)})
    service.baseline = None


def side_of(run: BenchmarkRun) -> list[BenchmarkRun]:
    """The run, and those that belong to the same group and are equal in kind, model and stack; in the order in which they were measured.
    Of more than one side may have, the first ones and the run itself."""
    if run.group is None:
        return [run]
    runs = BenchmarkRun.objects.filter(group=run.group, service=run.service, model=run.model, stack=run.stack, sweep_key=run.sweep_key,
                                       tool=run.tool, state="done").order_by("group_index", "started_at")
    kept = list(runs[:SIDE_MOST])
    return kept if run in kept else [*kept[:SIDE_MOST - 1], run]


def label(run: BenchmarkRun) -> str:
    """The side in a few words."""
    return run.label or f"{short_release(run.release) or run.model}, {run.started_at:%d %b %Y}"


def snapshot(service: Service) -> dict[str, Any] | None:
    """{"documents", "floors", "label"}: the pinned side without what no comparison reads, and what is known of the noise floor. None without a
    baseline. Where it would be too big for a job, the side has fewer runs, the pinned one always among them."""
    run = service.baseline
    if run is None or run.state != "done":
        return None
    runs = sorted(side_of(run), key=lambda one: one.pk != run.pk)  # the pinned one first: it stays
    documents = [document(one) for one in runs]
    told: dict[str, Any] = {"documents": documents, "floors": noise_floors.rows(service, run.sweep_key), "label": label(run)}
    while len(json.dumps(told)) > SNAPSHOT_BYTES and len(documents) > 1:
        documents.pop()
    documents.sort(key=lambda one: one["group_index"])
    return told if len(json.dumps(told)) <= SNAPSHOT_BYTES else None


def document(run: BenchmarkRun) -> dict[str, Any]:
    """The run's document (`dashboard/run_documents.py`) with what a comparison reads, and nothing else: it is copied into jobs."""
    whole = run_documents.document(run, detail=False)
    found = readings.mapping(whole["fingerprint"])
    slim = {**{name: found[name] for name in _FINGERPRINT if name in found}, "packages": {"vllm": run.vllm_version or None}}
    return {**{name: whole[name] for name in _RUN}, "fingerprint": slim, "levels": [
        {name: value for name, value in level.items() if name in _LEVEL and value is not None} for level in whole["levels"]]}
