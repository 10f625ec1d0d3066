"""What people add to runs and services by hand: a label, notes, tags, and the single-stream speed that a service should have. Each leaves a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence

from django.contrib.auth.models import User
from django.db import transaction

from dashboard import permissions, run_summaries
from dashboard.models import AuditEntry, BenchmarkRun, Service
from ops.benchmark.comparing.readings import finite
from ops.jobs.errors import BadInput

LABEL_LENGTH, NOTES_LENGTH, TAG_LENGTH, TAGS_MOST = 120, 4000, 40, 20
TARGET_MOST = 1_000_000.0  # tok/s


def edit(run: BenchmarkRun, user: User, *, label: str, notes: str, tags: Sequence[str]) -> None:
    """Writes them, and the words that a search finds the run by. Raises BadInput for what is too long or not printable."""
    permissions.require(user, "benchmark.edit")
    label, notes = label.strip(), notes.strip()
    kept = list(dict.fromkeys(word for tag in tags if (word := " ".join(tag.split()).lower())))
    if len(label) > LABEL_LENGTH or not label.isprintable():
        raise BadInput("This is no label", hint=f"At most {LABEL_LENGTH} printable characters")
    if len(notes) > NOTES_LENGTH:
        raise BadInput(f"The notes have {len(notes):,} characters", hint=f"At most {NOTES_LENGTH:,}")
    if len(kept) > TAGS_MOST or any(len(tag) > TAG_LENGTH or not tag.isprintable() or "," in tag for tag in kept):
        raise BadInput("These tags cannot be", hint=f"At most {TAGS_MOST}, each of at most {TAG_LENGTH} printable characters without a comma")
    changed = [name for name, value in (("label", label), ("notes", notes), ("tags", kept)) if getattr(run, name) != value]
    if not changed:
        return
    run.label, run.notes, run.tags = label, notes, kept
    with transaction.atomic():
        run.save(update_fields=["label", "notes", "tags"])
        run_summaries.summarise(run)
        AuditEntry.objects.create(by_id=user.pk, action="benchmark.edit", subject=label or str(run.pk), data={"run": str(run.pk), "changed": changed})


def set_target(service: Service, user: User, target: tuple[float, float] | None) -> None:
    """(low, high) of a single stream in tok/s; None: as the service's record says. Raises BadInput for numbers that are no range."""
    permissions.require(user, "service.target")
    if target is not None:
        low, high = target
        if not (math.isfinite(low) and math.isfinite(high) and 0 < low <= high <= TARGET_MOST):
            raise BadInput("This is no target", hint="Two numbers of tok/s, the lower one first, as in 40 and 50")
    value = list(target) if target else None
    if service.target_tok_s == value:
        return
    service.target_tok_s = value
    with transaction.atomic():
        Service.objects.filter(pk=service.pk).update(target_tok_s=value)
        AuditEntry.objects.create(by_id=user.pk, action="service.target", subject=str(service), data={"target_tok_s": value})


def target(service: Service) -> list[float]:
    """[low, high] as set here, else as the service's record says; [] where nobody has said one."""
    told = service.target_tok_s if isinstance(service.target_tok_s, list) and service.target_tok_s else (service.record or {}).get("target_tok_s")
    numbers = [found for one in told if (found := finite(one)) is not None] if isinstance(told, list) else []
    return numbers if len(numbers) == 2 else []
