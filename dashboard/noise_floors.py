"""How much a service's numbers differ from themselves when nothing changed (A/A): as its node last measured it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dashboard import trends
from dashboard.models import Job, NoiseFloor, Service
from ops.benchmark.comparing import readings
from ops.benchmark.comparing.floors import ROWS_MAX, Floors
from ops.benchmark.comparing.verdicts import METRICS

LARGEST = 10.0  # a share: more is no half-width of anything
RUNS_MOST = 1000


def store(job: Job, data: dict[str, Any], at: datetime) -> int:
    """The rows of a NOISE_FLOOR event in the place of those that were there; gives how many. Rows of an unknown metric, or without a number, are left
    out. Raises ValueError where it is of no service or names no kind of sweep."""
    key, told = data.get("sweep_key"), data.get("floors")
    if job.service is None or not isinstance(key, str) or not 0 < len(key) <= 64:
        raise ValueError("a noise floor of no service, or of no kind of sweep")
    stack, stored = readings.text(data.get("stack"), 64), 0
    for row in told[:ROWS_MAX] if isinstance(told, list) else []:
        row = readings.mapping(row)
        load, metric, runs = row.get("load"), row.get("metric"), readings.count(row.get("runs"))
        value, half_width = readings.positive(row.get("value")), readings.finite(row.get("half_width"))
        if load not in ("closed", "open") or metric not in METRICS or value is None or half_width is None or not 0 <= half_width <= LARGEST:
            continue
        NoiseFloor.objects.update_or_create(
            service=job.service, sweep_key=key, load=load, value=value, metric=metric,
            defaults={"node": job.node, "job": job, "stack": stack, "half_width": half_width, "runs": min(runs, RUNS_MOST), "measured_at": at})
        stored += 1
    return stored


def rows(service: Service, sweep_key: str) -> list[dict[str, Any]]:
    """[{load, value, metric, half_width, runs, stack}] of one kind of sweep: what `Floors` takes."""
    known = NoiseFloor.objects.filter(service=service, sweep_key=sweep_key).order_by("load", "value", "metric")
    return [{"load": row.load, "value": row.value, "metric": row.metric, "half_width": row.half_width, "runs": row.runs, "stack": row.stack}
            for row in known[:ROWS_MAX]]


def floors(service: Service | None, sweep_key: str) -> Floors:
    """The service's floors for sweeps of this kind; without measured ones the defaults hold."""
    if service is None or not sweep_key:
        return Floors()
    known = NoiseFloor.objects.filter(service=service, sweep_key=sweep_key).order_by("-measured_at").first()
    return Floors(rows(service, sweep_key), label=f"{service.node.name}, {known.measured_at:%d %b %Y}" if known else "")


def summary(service: Service, sweep_key: str = "") -> dict[str, Any] | None:
    """Of the newest measurement (of this kind of sweep, if one is named): when, by which job, of how many runs and levels, which kind of sweep that
    was, the widest throughput floor, and whether the stack is another one since (None: not known). None: never measured."""
    known = NoiseFloor.objects.filter(service=service)
    known = known.filter(sweep_key=sweep_key) if sweep_key else known
    newest = known.select_related("job").order_by("-measured_at").first()
    if newest is None:
        return None
    same = list(known.filter(sweep_key=newest.sweep_key, measured_at=newest.measured_at))
    throughput = [row.half_width for row in same if row.metric == "output_tok_s"]
    now = service.runs.filter(state="done", origin="roundhouse").exclude(stack="").values_list("stack", flat=True).first()
    asked = service.runs.filter(sweep_key=newest.sweep_key).values_list("settings", "preset").first() or ({}, "")
    return {"at": newest.measured_at, "job": newest.job, "kind": trends.in_words(asked[0], [asked[1]]), "runs": max(row.runs for row in same),
            "levels": len({(row.load, row.value) for row in same}), "throughput": max(throughput, default=None),
            "sweep_key": newest.sweep_key, "other_stack": None if not newest.stack or not now else newest.stack != now}
