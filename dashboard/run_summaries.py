"""What lists of runs read: a few columns of each run, made from its levels and its words when these change, so that 10,000 runs read no level."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dashboard.charts import level_key
from dashboard.models import BenchmarkLevel, BenchmarkRun, Job
from ops.benchmark.comparing import keys
from ops.benchmark.comparing.readings import OURS
from ops.environments import fingerprint

COLUMNS = ("single_tok_s", "peak_tok_s", "peak_at", "peak_p99_s", "errors", "levels_measured", "search", "stack", "sweep_key")
LEVELS_READ = ("run_id", "load", "value", "state", "errors", "output_tok_s", "e2e_p99_s")  # neither metrics nor detail
SEARCH_LENGTH = 6000  # characters; notes are the only long part
STATES = frozenset({"running", "done", "failed", "cancelled"})


def summarise(run: BenchmarkRun) -> None:
    """Writes the run's COLUMNS anew, from its levels as they are stored and its words as `run` has them. Call it after either has changed."""
    values = columns(run, run.levels.only(*LEVELS_READ))
    if run.origin != OURS and not any(told is not None for told in run.levels.values_list("metrics__errors", flat=True)):
        values["errors"] = None  # the columns of its levels say 0 where another tool says nothing
    for name, value in values.items():
        setattr(run, name, value)
    run.save(update_fields=list(values))


def columns(run: Any, levels: Iterable[Any]) -> dict[str, Any]:
    """The values of COLUMNS. Of levels only those that were measured to their end count; unknown is None."""
    known = list(levels)
    measured = [level for level in known if level.output_tok_s is not None and level.state == "done"]
    single = next((level for level in measured if level.load == "closed" and level.value == 1), None)
    peak = max(measured, key=lambda level: level.output_tok_s, default=None)
    return {
        "single_tok_s": single.output_tok_s if single else None, "peak_tok_s": peak.output_tok_s if peak else None,
        "peak_at": level_key(peak.load, peak.value) if peak else "", "peak_p99_s": peak.e2e_p99_s if peak else None,
        "errors": sum(level.errors for level in known), "levels_measured": len(measured), "search": search_words(run),
        "stack": stack(run.fingerprint), "sweep_key": run.sweep_key or key_of(run.settings),
    }


def search_words(run: Any) -> str:
    """Everything that a search looks at, in lower case."""
    tags = run.tags if isinstance(run.tags, list) else []
    parts = [run.label, f"{run.node_name}/{run.service_name}" if run.service_name else "", run.model, run.release, run.vllm_version, run.preset,
             run.endpoint, run.origin, run.tool, run.tool_version, "practice" if run.practice else "", *map(str, tags), run.notes]
    return " ".join(part for part in parts if part).lower()[:SEARCH_LENGTH]


def stack(found: Any) -> str:
    """The hash of a fingerprint: equal where nothing that could explain a number differs; "" where there is none."""
    if not isinstance(found, dict) or not found:
        return ""
    told = found.get("hash")
    return told[:64] if isinstance(told, str) and told else fingerprint.digest(found)


def key_of(asked: Any) -> str:
    """ops.benchmark.comparing.keys.sweep_key of a run's settings, which stand one level deeper until it has ended; "" where there are none."""
    told = asked.get("settings") if isinstance(asked, dict) and isinstance(asked.get("settings"), dict) else asked
    return keys.sweep_key(told)[:64] if isinstance(told, dict) and told else ""


def close_runs(job: Job, state: str, at: datetime) -> None:
    """A job that has ended leaves no run "running": those that it did not end itself are now `state` ("failed", "cancelled")."""
    runs = list(BenchmarkRun.objects.filter(job=job, state="running"))
    BenchmarkLevel.objects.filter(run__in=runs, state="running").update(state="failed")
    for run in runs:
        run.state, run.finished_at = state, at
        run.save(update_fields=["state", "finished_at"])
        summarise(run)
