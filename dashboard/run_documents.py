"""A run's rows as a run document (ops.benchmark.results.SweepResult.as_dict()): the one form that comparisons and exports know, whoever measured."""

from __future__ import annotations

from typing import Any

from dashboard.models import BenchmarkLevel, BenchmarkRun
from ops.benchmark.formats.levels import blank
from ops.benchmark.results import SCHEMA

# Numbers of a level that lists and charts read without its metrics
LEVEL_COLUMNS = ("output_tok_s", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "ttft_p50_ms", "tpot_p50_ms")


def document(run: BenchmarkRun, *, detail: bool = True) -> dict[str, Any]:
    """The run with its levels in order. `detail` False leaves curves and timelines out, and reads no row of them.

    Levels that have not been measured are not in it. What a level does not tell is None. Beside the fields of `SweepResult` it has `release`,
    `vllm_version`, `node_name` and `service_name`.
    """
    asked = run.settings if isinstance(run.settings, dict) else {}
    inner = asked.get("settings")  # while a run goes on, its settings stand one level deeper, beside what its start said
    rows = run.levels.defer(None) if detail else run.levels.all()
    levels = [_level(one, detail) for one in rows if one.metrics or any(getattr(one, name) is not None for name in LEVEL_COLUMNS)]
    return {
        "schema": SCHEMA, "run_id": str(run.pk), "state": run.state, "reason": "", "preset": run.preset, "model": run.model,
        "base_url": run.endpoint, "practice": run.practice, "short": run.short, "started_at": run.started_at.timestamp() if run.dated else None,
        "finished_at": run.finished_at.timestamp() if run.finished_at else None,
        "duration_s": (run.finished_at - run.started_at).total_seconds() if run.finished_at else None, "levels": levels,
        "settings": inner if isinstance(inner, dict) else asked, "endpoint": {}, "fingerprint": run.fingerprint or {},
        "warnings": list(run.warnings or []), "origin": run.origin, "tool": run.tool, "tool_version": run.tool_version,
        "sweep_key": run.sweep_key, "group": str(run.group) if run.group else None, "group_index": run.group_index,
        "repeats": asked.get("repeats") or 1, "label": run.label, "notes": run.notes, "tags": list(run.tags or []),
        "release": run.release, "vllm_version": run.vllm_version, "node_name": run.node_name, "service_name": run.service_name,
    }


def _level(row: BenchmarkLevel, detail: bool) -> dict[str, Any]:
    """Every field of a level; where a run is older than a field, None."""
    value = float(row.value)
    level = blank(row.load, value) | {name: getattr(row, name) for name in LEVEL_COLUMNS}
    if row.metrics:
        level |= row.metrics
    level |= {"load": row.load, "value": value, "concurrency": row.concurrency, "state": row.state}
    level["detail"] = (row.detail or {}) if detail else {}
    return level
