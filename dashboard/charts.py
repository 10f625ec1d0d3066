"""Rows to chart data: what charts.js draws, as plain JSON. Pure: rows in, data out. Unknown stays None and leaves a gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

SECONDS_SHOWN = 900


def level_key(load: str, value: float) -> str:
    """How a level is called in addresses, events on pages and axes: "128" (concurrency) or "2.5/s" (rate)."""
    return f"{value:g}/s" if load == "open" else f"{value:.0f}"


def level_name(load: str, value: float) -> str:
    """How a level is called in text: "C = 128", "2.5 requests/s"."""
    return f"{value:g} requests/s" if load == "open" else f"C = {value:.0f}"


def told_level(data: dict[str, Any]) -> tuple[str, float] | None:
    """(load, value) of a `sweep.level_*` event's data; None where it names no level. Events from before there were rates say `concurrency` alone."""
    value = number(data.get("value") if data.get("value") is not None else data.get("concurrency"))
    return None if value is None else ("open" if data.get("load") == "open" else "closed", value)


def number(value: Any) -> float | None:
    """A finite number, or None: events come from nodes, and a page must not fail over one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:  # an integer may be beyond every float
        return None
    return value


def scaling(told: Any, tput: float | None, base: float | None) -> float | None:
    """Throughput as a multiple of that of concurrency 1: as the level tells it, else (another tool's, or C = 1 came after it) out of the two."""
    found = number(told)
    return found if found is not None else tput / base if tput is not None and base else None


def point(level: Any) -> dict[str, Any]:
    """One measured level of a run, with everything that its hover shows. Latencies in seconds, TTFT in milliseconds; `x` is where it stands."""
    metrics = level.metrics or {}
    return {
        "x": level.value, "key": level_key(level.load, level.value), "name": level_name(level.load, level.value), "c": level.concurrency,
        "state": level.state, "requests": level.requests, "finished": level.finished, "errors": level.errors,
        "tput": level.output_tok_s, "mean": level.e2e_mean_s, "p50": level.e2e_p50_s, "p99": level.e2e_p99_s,
        "p90": metrics.get("e2e_p90_s"), "ttft_p50_ms": level.ttft_p50_ms,
    }


def curves(run: Any, levels: Sequence[Any], *, before: Any = None, before_levels: Sequence[Any] = ()) -> dict[str, Any]:
    """Throughput and latency over concurrency, or over rate, for one run, with the run before it (or None) to hold it against."""
    load = load_of(run, levels)
    earlier = [level for level in before_levels if level.load == load and level.output_tok_s is not None]
    return {
        "run": str(run.pk), "practice": run.practice, "name": run.release or run.vllm_version or "this run", "load": load,
        "levels": sorted({*wanted(run, load), *(level.value for level in levels if level.load == load)}),
        "points": [point(level) for level in levels if level.load == load and level.output_tok_s is not None],
        "before": None if before is None or not earlier else {"name": before.release or "the run before", "points": [point(one) for one in earlier]},
    }


def load_of(run: Any, levels: Sequence[Any] = ()) -> str:
    """ "closed" or "open": what the run asked for, else what its levels are."""
    asked = run.settings or {}
    if asked.get("load") in ("closed", "open"):
        return str(asked["load"])
    return levels[0].load if levels else "closed"


def wanted(run: Any, load: str) -> list[float]:
    """The levels that a run asked for, in its order."""
    listed = (run.settings or {}).get("rates" if load == "open" else "concurrencies")
    return [value for one in listed if (value := number(one)) is not None] if isinstance(listed, list) else []


def level_seconds(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The seconds of one level, from `sweep.level_second` data, column by column: `x` in seconds, `y` in tok/s, and what stands beside them.

    `errors` is of each second. Columns of what was never told are None.
    """
    rows = sorted((data for data in events if number(data.get("second")) is not None), key=lambda data: data["second"])[-SECONDS_SHOWN:]
    latest = rows[-1] if rows else None
    level = told_level(latest) if latest else None
    errors = [int(number(row.get("errors")) or 0) for row in rows]
    server = [row["server"] if isinstance(row.get("server"), dict) else {} for row in rows]

    def column(values: Iterable[Any]) -> list[float | None] | None:
        told = [number(value) for value in values]
        return told if any(value is not None for value in told) else None

    return {
        "c": int(level[1]) if level and level[0] == "closed" else None, "key": level_key(*level) if level else None,
        "name": level_name(*level) if level else "",
        "x": [row["second"] for row in rows], "y": [number(row.get("output_tok_s")) for row in rows],
        "in_flight": [number(row.get("in_flight")) for row in rows],
        "errors": [after - before for before, after in pairwise([errors[0] if rows and rows[0]["second"] > 1 else 0, *errors])] if rows else [],
        "running": column(one.get("running") for one in server), "waiting": column(one.get("waiting") for one in server),
        "latest": latest,
    }


def throughput_history(runs: Iterable[tuple[Any, Sequence[Any]]], *, target: Sequence[float] = ()) -> dict[str, Any]:
    """A service's runs over time, one series a concurrency that was measured at least twice or is 1."""
    rows: dict[int, list[dict[str, Any]]] = {}
    practice = False
    for run, levels in runs:
        practice = practice or run.practice
        for level in levels:
            if level.output_tok_s is not None and level.concurrency is not None:
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
