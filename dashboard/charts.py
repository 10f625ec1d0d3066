"""Rows to chart data: what charts.js draws, as plain JSON. Pure: rows in, data out. Unknown stays None and leaves a gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def point(level: Any) -> dict[str, Any]:
    """One measured level of a run, with everything that its hover shows. Latencies in seconds, TTFT in milliseconds."""
    metrics = level.metrics or {}
    return {
        "c": level.concurrency, "state": level.state, "requests": level.requests, "finished": level.finished, "errors": level.errors,
        "tput": level.output_tok_s, "mean": level.e2e_mean_s, "p50": level.e2e_p50_s, "p99": level.e2e_p99_s,
        "p90": metrics.get("e2e_p90_s"), "ttft_p50_ms": level.ttft_p50_ms,
    }


def curves(run: Any, levels: Sequence[Any], *, before: Any = None, before_levels: Sequence[Any] = ()) -> dict[str, Any]:
    """Throughput and latency over concurrency for one run, with the run before it (or None) to hold it against."""
    wanted = (run.settings or {}).get("concurrencies") or [level.concurrency for level in levels]
    return {
        "run": str(run.pk), "practice": run.practice, "name": run.release or run.vllm_version or "this run",
        "levels": sorted({*map(int, wanted), *(level.concurrency for level in levels)}),
        "points": [point(level) for level in levels if level.output_tok_s is not None],
        "before": None if before is None else {
            "name": before.release or "the run before", "points": [point(level) for level in before_levels if level.output_tok_s is not None],
        },
    }


def level_seconds(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The seconds of one level, from `sweep.level_second` data: concurrency, x in seconds, y in tok/s."""
    rows = sorted(events, key=lambda data: data["second"])
    return {
        "c": rows[-1]["concurrency"] if rows else None,
        "x": [row["second"] for row in rows], "y": [row["output_tok_s"] for row in rows], "latest": rows[-1] if rows else None,
    }


def throughput_history(runs: Iterable[tuple[Any, Sequence[Any]]], *, target: Sequence[float] = ()) -> dict[str, Any]:
    """A service's runs over time, one series a concurrency that was measured at least twice or is 1."""
    rows: dict[int, list[dict[str, Any]]] = {}
    practice = False
    for run, levels in runs:
        practice = practice or run.practice
        for level in levels:
            if level.output_tok_s is not None:
                rows.setdefault(level.concurrency, []).append({
                    "at": run.started_at.isoformat(), "tput": level.output_tok_s, "release": run.release, "run": str(run.pk),
                    "job": run.job.number if run.job_id else None, "short": run.short,
                })
    series = {str(c): sorted(points, key=lambda p: p["at"]) for c, points in sorted(rows.items())}
    return {"practice": practice, "target": list(target), "series": series}


def job_warmup(job: Any, warmup: dict[str, Any]) -> dict[str, Any]:
    """A warmup that a job told, in the form in which nodes remember theirs."""
    return {"job": job.number, "at": (job.finished_at or job.created_at).isoformat(), "total_s": warmup.get("total_s"),
            "release": warmup.get("release") or "", "cache": warmup.get("cache") or "unknown",
            "phases": {p["phase"]: p["took_s"] for p in warmup.get("phases") or [] if p.get("took_s") is not None}}


def warmup_history(warmups: Iterable[dict[str, Any]], *, practice: bool) -> dict[str, Any]:
    """Warmups of a service, oldest first, to stacked bars, one part a phase: job (its number, or None), at, release, cache, total_s, phases."""
    from ops.services.milestones import TITLES

    bars = [{name: one[name] for name in ("job", "at", "release", "cache", "total_s", "phases")} for one in warmups]
    there = {phase for bar in bars for phase, took in bar["phases"].items() if took}
    known = [phase for phase in TITLES if phase in there]
    return {"practice": practice, "bars": bars,
            "phases": [{"phase": phase, "title": TITLES.get(phase, phase.replace("_", " "))} for phase in (*known, *sorted(there - set(known)))]}
