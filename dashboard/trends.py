"""One number of one level of a service over time, and what changed between its runs. Rows in, plain data out.

Runs of one kind of sweep (`sweep_key`) and one level are held beside each other. Those that follow each other on the same stack are one stretch,
drawn at its median: a point is not judged by its distance to the one before alone. Where the stack, the model or the release becomes another, a
change stands, with the differences of the two fingerprints in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from dashboard.charts import level_key
from dashboard.models import BenchmarkLevel, BenchmarkRun, Service
from dashboard.run_charts import asked_of, key, rounded, told
from dashboard.templatetags.roundhouse import short_release
from ops.benchmark.comparing.readings import finite as number
from ops.benchmark.comparing.verdicts import METRICS
from ops.environments import fingerprint

RUNS = 400  # the newest
WORDS = 12  # of one change
LEAN = ("id", "job", "model", "release", "vllm_version", "preset", "short", "started_at", "label", "group", "group_index", "stack", "sweep_key",
        "practice")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sweep of a service: how many runs there are of it, and what it is in a few words."""

    key: str
    words: str
    runs: int


def kinds(runs: Sequence[BenchmarkRun]) -> list[Kind]:
    """The kinds among runs (newest first), that of the newest run first. One query for each kind's settings."""
    counted: dict[str, list[BenchmarkRun]] = {}
    for run in runs:
        counted.setdefault(run.sweep_key, []).append(run)
    settings = dict(BenchmarkRun.objects.filter(pk__in=[found[0].pk for found in counted.values()]).values_list("pk", "settings"))
    return [Kind(kind, in_words(settings.get(found[0].pk), [run.preset for run in found]), len(found)) for kind, found in counted.items()]


def in_words(settings: Any, presets: Sequence[str]) -> str:
    """A kind of sweep: "512 tokens, fixed length, story"."""
    found = asked_of(settings)
    length = {"fixed": "fixed length", "natural": "natural end"}.get(str(found.get("output_mode")), "")
    parts = [f"{tokens:.0f} tokens" if (tokens := number(found.get("max_tokens"))) else "", length, "rates" if found.get("load") == "open" else "",
             "completions" if found.get("endpoint_kind") == "completions" else "", " and ".join(sorted({preset for preset in presets if preset})[:3])]
    return ", ".join(part for part in parts if part) or "not known"


def runs_of(service: Service) -> list[BenchmarkRun]:
    """The newest runs of a service that were measured here to their end, newest first, without what is large."""
    return list(BenchmarkRun.objects.filter(service=service, state="done", origin="roundhouse").only(*LEAN).select_related("job")[:RUNS])


def trend(service: Service, *, kind: str = "", level: str = "", metric: str = "") -> dict[str, Any]:
    """All that the page shows. What was asked for and is not there gives way to the first that is."""
    runs = runs_of(service)
    known = kinds(runs)
    chosen = next((one for one in known if one.key == kind), max(known, key=lambda one: one.runs, default=None))
    mine = [run for run in runs if chosen is not None and run.sweep_key == chosen.key][::-1]
    levels = list(BenchmarkLevel.objects.filter(run__in=[run.pk for run in mine], state="done").only(
        "run_id", "load", "value", "output_tok_s", "metrics", "finished", "errors"))
    names = {key(one): level_key(one.load, one.value) for one in sorted(levels, key=lambda one: (one.load, one.value))}
    shown = level if level in names else "closed:1" if "closed:1" in names else next(iter(names), "")
    wanted = metric if metric in METRICS else "output_tok_s"
    by_run = {one.run_id: one for one in levels if key(one) == shown}
    points = [found for run in mine if run.pk in by_run and (found := _point(run, by_run[run.pk], wanted)) is not None]
    changes = _changes(points)
    title, unit, higher = METRICS[wanted][:3]
    return {"kinds": known, "kind": chosen, "levels": list(names.items()), "level": shown, "level_name": names.get(shown, ""), "metric": wanted,
            "title": title, "unit": unit, "higher": higher, "metrics": [(name, METRICS[name][0]) for name in METRICS], "points": points,
            "changes": changes, "stretches": _stretches(points), "runs": len(runs), "practice": service.practice}


def _point(run: BenchmarkRun, level: BenchmarkLevel, metric: str) -> dict[str, Any] | None:
    metrics = told(level.metrics)
    value = rounded(metrics.get(metric, level.output_tok_s if metric == "output_tok_s" else None))
    if value is None:
        return None
    marks = metrics.get("marks")
    return {"run": run, "at": run.started_at, "value": value, "n": level.finished, "errors": level.errors, "change": None,
            "marks": [mark for mark in marks if isinstance(mark, str)][:12] if isinstance(marks, list) else []}


def _changes(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where a run's stack, model or release differs from the one's before: number, at, words, before, after; the later point gets the number."""
    found: list[dict[str, Any]] = []
    for before, after in pairwise(points):
        a, b = before["run"], after["run"]
        if (a.stack, a.model, a.release) != (b.stack, b.model, b.release):
            after["change"] = len(found) + 1
            found.append({"number": len(found) + 1, "at": b.started_at, "before": a, "after": b})
    ends = {run.pk for one in found for run in (one["before"], one["after"])}
    stacks = dict(BenchmarkRun.objects.filter(pk__in=ends).values_list("pk", "fingerprint"))
    for one in found:
        one["words"], one["more"] = words(one["before"], one["after"], stacks)
    return found


def words(before: BenchmarkRun, after: BenchmarkRun, stacks: Mapping[Any, Any]) -> tuple[list[str], int]:
    """What differs between two runs, the most telling first, and how much more there is."""
    said = [f"model `{before.model}` → `{after.model}`"] if before.model != after.model else []
    differences = fingerprint.differences(told(stacks.get(before.pk)), told(stacks.get(after.pk)))
    said += fingerprint.words([one for one in differences if one["key"] != "release"])
    if not said and before.release != after.release and short_release(before.release) == short_release(after.release):
        said = ["built anew, the same packages"]
    elif not said:
        said = [f"release `{before.release or 'not known'}` → `{after.release or 'not known'}`"] if before.release != after.release else [
            "something that the fingerprints do not name"]
    return said[:WORDS], max(0, len(said) - WORDS)


def _stretches(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points that follow each other without a change: first, last, median, how many."""
    groups: list[list[dict[str, Any]]] = []
    for one in points:
        if not groups or one["change"] is not None:
            groups.append([])
        groups[-1].append(one)
    return [{"first": group[0]["at"], "last": group[-1]["at"], "median": median(one["value"] for one in group), "runs": len(group)}
            for group in groups]


def chart(found: Mapping[str, Any], *, target: Sequence[float], baseline: Any) -> dict[str, Any]:
    """The JSON that static/js/trend_page.js draws."""
    return {
        "practice": found["practice"], "unit": found["unit"], "title": found["title"],
        "target": list(target) if found["metric"] == "output_tok_s" and found["level"] == "closed:1" else [],
        "points": [{"at": one["at"].isoformat(), "value": one["value"], "n": one["n"], "errors": one["errors"], "marks": one["marks"],
                    "short": one["run"].short, "change": one["change"], "release": one["run"].release, "label": one["run"].label,
                    "job": one["run"].job.number if one["run"].job else None, "run": str(one["run"].pk), "baseline": one["run"].pk == baseline}
                   for one in found["points"]],
        "stretches": [{**one, "first": one["first"].isoformat(), "last": one["last"].isoformat(), "median": rounded(one["median"])}
                      for one in found["stretches"]],
        "changes": [{"number": one["number"], "at": one["at"].isoformat(), "words": one["words"][:4]} for one in found["changes"]],
    }
