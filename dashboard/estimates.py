"""How long something should take, learned from earlier jobs of the same service. None while there is nothing to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ops.jobs.events import JobState

EARLIER = 8  # jobs looked back: what a service took months ago says little


@dataclass(frozen=True, kw_only=True)
class Usual:
    """Medians of earlier jobs, in seconds, each with the number of jobs that it comes from."""

    steps: dict[str, float] = field(default_factory=dict)  # step name: seconds
    phases: dict[str, float] = field(default_factory=dict)  # warmup phase: seconds
    warmup_s: float | None = None
    warmups: int = 0
    downtime_s: float | None = None
    downtime_range: tuple[float, float] | None = None
    downtimes: int = 0


def usual(jobs: Iterable[Any], *, downtime_of: Sequence[str] = ("redeploy",)) -> Usual:
    """From succeeded jobs (newest first, steps prefetched): what their steps, warmup phases and downtime took."""
    steps: dict[str, list[float]] = {}
    phases: dict[str, list[float]] = {}
    warmups: list[float] = []
    downtimes: list[float] = []
    for job in jobs:
        if job.state not in (JobState.SUCCEEDED, JobState.PARTIAL):
            continue
        for step in job.steps.all():
            if step.state == "done" and step.duration_s is not None:
                steps.setdefault(step.name, []).append(step.duration_s)
        warmup = (job.result or {}).get("warmup") or {}
        if warmup.get("total_s") is not None:
            warmups.append(warmup["total_s"])
            for phase in warmup.get("phases") or []:
                if phase.get("took_s") is not None:
                    phases.setdefault(phase["phase"], []).append(phase["took_s"])
        if job.downtime_s is not None and job.type in downtime_of:
            downtimes.append(job.downtime_s)
    return Usual(
        steps={name: median(values[:EARLIER]) for name, values in steps.items()},
        phases={name: median(values[:EARLIER]) for name, values in phases.items()},
        warmup_s=median(warmups[:EARLIER]) if warmups else None, warmups=len(warmups[:EARLIER]),
        downtime_s=median(downtimes[:EARLIER]) if downtimes else None, downtimes=len(downtimes[:EARLIER]),
        downtime_range=(min(downtimes[:EARLIER]), max(downtimes[:EARLIER])) if len(downtimes) > 1 else None,
    )
