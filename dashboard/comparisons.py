"""Runs held against each other, as the compare page and its charts show them: numbers a side and level, with the verdicts beside them.

What is better and what is worse is ops.benchmark.comparing's word. Which runs are a side: dashboard/compared_sides.py; a comparison in words:
dashboard/comparison_words.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from django.urls import reverse

from dashboard import comparison_words as words
from dashboard import deciding, noise_floors, practice_reference
from dashboard.charts import level_key as short_name
from dashboard.charts import level_name
from dashboard.compared_sides import COLOURS, MARKERS, Chosen, address
from dashboard.comparison_words import MOST, Verdicts, shown, signed
from dashboard.models import BenchmarkLevel
from dashboard.run_documents import document
from dashboard.templatetags.roundhouse import short_release, version
from ops.benchmark.comparing import readings, student
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.sides import Comparison, Side, compare
from ops.benchmark.comparing.verdicts import METRICS, in_words
from ops.benchmark.comparing.verdicts import said as in_few_words

LOADS = ("closed", "open")
POINT = {"output_tok_s": "tput", "tpot_p50_ms": "tpot", "ttft_p50_ms": "ttft", "ttft_p99_ms": "ttft99", "e2e_p50_s": "p50", "e2e_p99_s": "p99"}
PERCENTS = (10, 25, 50, 75, 90, 99)  # of the table beside an ECDF


def held_against(sides: Sequence[Chosen]) -> Comparison | None:
    """What ops.benchmark.comparing says of the sides, whose documents are filled in; None of a single side."""
    for side in sides:
        side.documents = [document(run, detail=False) for run in side.runs]
    if len(sides) < 2:
        return None
    return compare([Side(side.name, side.documents) for side in sides], floors=floors(sides))


def floors(sides: Sequence[Chosen]) -> Floors:
    """The noise floors that were measured for the baseline's service and kind of sweep; the defaults stand in for the rest."""
    run = sides[0].runs[0]
    return noise_floors.floors(run.service, run.sweep_key)


def centre(values: Iterable[Any]) -> float | None:
    """One number of a side's runs: their geometric mean, since ratios are what is compared. None where no run has it."""
    known = [number for value in values if (number := readings.finite(value)) is not None]
    if not known:
        return None
    mean = student.geometric(known)[0] if min(known) > 0 else fsum(known) / len(known)
    return float(f"{mean:.7g}")


def levels(side: Chosen, load: str) -> dict[float, list[Mapping[str, Any]]]:
    """Levels of a side that ran to their end: value (concurrency or rate) to one level a run."""
    found: dict[float, list[Mapping[str, Any]]] = {}
    for told in side.documents:
        for level in readings.levels(told):
            kind, value = readings.place(level)
            if kind == load and value > 0 and readings.whole(level):
                found.setdefault(value, []).append(level)
    return dict(sorted(found.items()))


def loads(sides: Sequence[Chosen]) -> list[str]:
    """Which kinds of load there are, closed loop first."""
    return [load for load in LOADS if any(levels(side, load) for side in sides)]


def point(load: str, value: float, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One level of a side for the charts: every number is the mean of its runs' numbers; None where no run has it. Latencies in s, TTFT and TPOT
    in ms."""
    def mean(name: str) -> float | None:
        return centre(level.get(name) for level in runs)

    tpot = mean("tpot_p50_ms")
    low, high = interval([level.get("output_tok_s") for level in runs])
    return {"v": value, "name": short_name(load, value), "tput": mean("output_tok_s"), "low": low, "high": high,
            "latency": mean("e2e_p50_s") or mean("e2e_mean_s"), "p50": mean("e2e_p50_s"), "mean": mean("e2e_mean_s"), "p99": mean("e2e_p99_s"),
            "ttft": mean("ttft_p50_ms"), "ttft99": mean("ttft_p99_ms"), "tpot": tpot, "tpot99": mean("tpot_p99_ms"),
            "gpu": mean("output_tok_s_per_gpu"), "user": mean("interactivity_tok_s_user") or (1000 / tpot if tpot else None),
            "runs": len(runs), "n": _sum(runs, "finished"), "errors": _sum(runs, "errors"),
            "marks": sorted({mark[:40] for level in runs for mark in readings.words(level.get("marks"))})}


def interval(values: Iterable[Any]) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean over runs; nothing of fewer than two."""
    known = [number for value in values if (number := readings.positive(value)) is not None]
    return student.geometric(known)[1:] if known else (None, None)


def _sum(runs: Iterable[Mapping[str, Any]], name: str) -> int | None:
    known = [number for level in runs if (number := readings.finite(level.get(name))) is not None and 0 <= number < MOST]
    return round(sum(known)) if known else None


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a comparison is looked at: a metric, a kind of load, the level whose distributions are drawn, all facts or those that differ."""

    metric: str = ""
    load: str = ""
    level: str = ""  # "closed:128"
    facts: str = ""

    @classmethod
    def of(cls, query: Mapping[str, Any]) -> Choice:
        """As an address says it; what it does not say, or what is none, is left to the page."""
        metric, load = str(query.get("metric", "")), str(query.get("load", ""))
        return cls(metric=metric if metric in METRICS else "", load=load if load in LOADS else "",
                   level=str(query.get("level", ""))[:40], facts="all" if query.get("facts") == "all" else "")

    def kept(self, **more: str) -> dict[str, str]:
        return {"metric": self.metric, "load": self.load, "level": self.level, "facts": self.facts} | more


def page(sides: Sequence[Chosen], comparison: Comparison | None, choice: Choice) -> dict[str, Any]:
    """All that the page shows of a comparison. `comparison` is `held_against(sides)`."""
    told = comparison.as_dict() if comparison else {}
    kinds = loads(sides)
    load = choice.load if choice.load in kinds else kinds[0] if kinds else "closed"
    metric = choice.metric or "output_tok_s"
    there = [levels(side, load) for side in sides]
    values = sorted({value for side in there for value in side})
    points = [[point(load, value, runs) for value, runs in side.items()] for side in there]
    verdicts = words.verdicts_of(told)
    practice = any(side.practice for side in sides)
    blocked = [one["blocked"] for one in told["sides"]] if told else [""] * len(sides)
    blocked[0] = blocked[1] if len(set(blocked[1:])) == 1 else ""  # more runs of the baseline decide nothing where nothing may be held against it
    ends = [values[0], values[-1]] if len(values) > 1 else values
    rows = differences(sides, points, values, verdicts, load, metric)
    ecdf = distributions(sides, load, values, choice.level)
    keys = [{"name": side.name, "color": COLOURS[side.at], "marker": MARKERS[side.at], "imported": side.imported} for side in sides]
    known = METRICS[metric]
    return {
        "practice": practice, "load": load, "loads": [{"name": "closed loop" if kind == "closed" else "open loop", "current": kind == load,
                                                       "url": address(sides, **choice.kept(load=kind, level=""))} for kind in kinds],
        "keys": keys, "sides": [described(
            side, sides, points[n], verdicts, load, choice, ends, blocked[n]) for n, side in enumerate(sides)],
        "metric": {"name": metric, "title": known.title, "unit": known.unit, "higher": known.higher_is_better, "minimum": 100 * known.minimum_effect},
        "metrics": [{"name": name, "title": one.title, "current": name == metric, "url": f"{address(sides, **choice.kept(metric=name))}#differences"}
                    for name, one in METRICS.items()],
        "rows": rows, "matrix": matrix(sides, values, verdicts, load, choice, told),
        "values": [{"value": v, "name": short_name(load, v)} for v in values],
        "tables": tables(sides, points, values, load), "ecdf": ecdf,
        "facts": words.facts(told, everything=choice.facts == "all"),
        "facts_url": f"{address(sides, **choice.kept(facts='' if choice.facts == 'all' else 'all'))}#facts", "everything": choice.facts == "all",
        "unpaired": words.unpaired(told), "key_differences": words.asked_otherwise(told), "silent": words.silent(told), "notes": words.notes(told),
        "headlines": words.headlines(told), "floors": told.get("floors") or {},
        "meta": words.in_common(sides, load), "load_head": "rate" if load == "open" else "C", "others": keys[1:], "columns": 2 + 3 * (len(sides) - 1),
        "ends": [level_name(load, value) for value in ends], "facts_columns": 1 + len(sides),
        "said": said(sides, points),
        "kept": _fields(sides, choice.kept(metric="")), "kept_level": _fields(sides, choice.kept(level="")),
        "data": {
            "practice": practice, "load": load, "sides": keys, "levels": values, "names": [short_name(load, value) for value in values],
            "points": points, "ratio": ratio_data(rows, metric),
            "ecdf": {"sides": [one and {"ttft_ms": one["ttft_ms"], "icl_ms": one["icl_ms"]} for one in ecdf["quantiles"]]} if ecdf else None,
        },
    }


def said(sides: Sequence[Chosen], points: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
    """What stands beside a chart's title: what is drawn, and of which sides it is not known."""
    upper = "P50; dotted: P99" if len(sides) <= 3 else "P50"
    means = [side.name for side, told in zip(sides, points, strict=True) if any(one["latency"] and not one["p50"] for one in told)]
    drawn = {"tput": "mean of runs, 95 % interval over them", "latency": f"{upper}{f'; of {words.listed(means)} the mean' if means else ''}",
             "ttft": upper, "tpot": upper, "gpu": "up and right is better"}
    found = {}
    for name, told in drawn.items():
        silent_sides = [side.name for side, own in zip(sides, points, strict=True) if own and not any(one[name] for one in own)]
        found[name] = f"{told}; {words.listed(silent_sides)}: not reported" if silent_sides else told
    return found


def _fields(sides: Sequence[Chosen], kept: Mapping[str, str]) -> list[tuple[str, str]]:
    """The comparison as hidden fields of a form that changes one choice."""
    return [*(("side", side.ids) for side in sides), *((name, value) for name, value in kept.items() if value)]


def differences(sides: Sequence[Chosen], points: Sequence[Sequence[Mapping[str, Any]]], values: Sequence[float], verdicts: Verdicts, load: str,
                metric: str) -> list[dict[str, Any]]:
    """Rows of the table of differences: a level, the baseline's value and of every other side its value, the ratio and the verdict."""
    name = POINT[metric]
    at = [{one["v"]: one[name] for one in side} for side in points]
    rows = []
    for value in values:
        cells = [_cell(at[n].get(value), verdicts.get((n, load, value, metric))) for n in range(1, len(sides))]
        rows.append({"value": value, "name": short_name(load, value), "baseline": shown(at[0].get(value)), "cells": cells,
                     "decided": any(cell["verdict"] and words.counted(cell["verdict"]) in ("better", "worse", "same") for cell in cells)})
    return rows


def _cell(value: float | None, verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    cell = {"value": shown(value), "there": value is not None, "ratio": "", "half": "", "word": "", "said": "", "beside": "", "note": "",
            "icon": "skip", "tone": "", "title": "", "verdict": verdict}
    if verdict is None:
        return cell
    ratio, low, high, word = (verdict.get(part) for part in ("ratio", "low", "high", "word"))
    shape, tone = words.mark(verdict)
    if ratio is not None:
        cell["ratio"] = signed(100 * (ratio - 1))
    if low is not None and high is not None:
        half = 50 * (high - low)
        cell["half"] = f"{half:,.1f}" if half < 999 else "over 999"
        cell["title"] = f"95 %: {signed(100 * (low - 1))} to {signed(100 * (high - 1))} %"
    return {**cell, "word": str(word), "said": in_few_words(verdict), "beside": words.beside(verdict), "note": in_words(verdict), "icon": shape,
            "tone": tone}


def ratio_data(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any] | None:
    """The chart of ratios, in percent; None where no level stands on both sides."""
    told = []
    for row in rows:
        items = [{"side": n + 1, "diff": _percent(one["ratio"]), "low": _percent(one.get("low")), "high": _percent(one.get("high")),
                  "word": cell["word"], "said": cell["said"], "note": cell["note"], "floor": 100 * one["floor"], "floor_from": one["floor_from"]}
                 for n, cell in enumerate(row["cells"]) if (one := cell["verdict"]) and _percent(one.get("ratio")) is not None]
        if items:
            told.append({"name": row["name"], "items": items, "floor": max(item["floor"] for item in items)})
    known = METRICS[metric]
    return {"title": known.title, "higher": known.higher_is_better, "minimum": 100 * known.minimum_effect, "rows": told} if told else None


def _percent(ratio: float | None) -> float | None:
    percent = None if ratio is None else readings.finite(100 * (ratio - 1))
    return None if percent is None else round(percent, 3)


def matrix(sides: Sequence[Chosen], values: Sequence[float], verdicts: Verdicts, load: str, choice: Choice,
           told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every verdict at one look: a row a side and metric, a cell a level. Sides that get none are left out."""
    rows = []
    for n, side in enumerate(sides):
        if n == 0 or told["sides"][n]["blocked"]:
            continue
        for metric, known in METRICS.items():
            cells = [_cell(None, verdicts.get((n, load, value, metric))) for value in values]
            if any(cell["ratio"] for cell in cells):
                rows.append({"side": n, "name": side.name, "metric": known.title, "cells": cells,
                             "url": f"{address(sides, **choice.kept(metric=metric))}#differences"})
    return rows


def _at(points: Sequence[Mapping[str, Any]], wanted: Sequence[float]) -> Mapping[str, Any] | None:
    return next((one for one in points if wanted and one["v"] == wanted[0]), None)


def described(side: Chosen, sides: Sequence[Chosen], points: Sequence[Mapping[str, Any]], verdicts: Verdicts, load: str, choice: Choice,
              ends: Sequence[float], blocked: str) -> dict[str, Any]:
    """A side's row in the table of what is compared. `ends`: the levels that stand in it; `blocked`: why no verdict is said of it, or nothing."""
    run, n = side.runs[0], side.at
    others = [one for one in sides if one is not side]
    return {
        "name": side.name, "key": {"color": COLOURS[n], "marker": MARKERS[n], "imported": side.imported}, "run": run, "runs": side.runs,
        "count": len(side.runs), "label": run.label or run.service_name or run.endpoint, "model": run.model,
        "release": short_release(run.release) or str(version(run.vllm_version)), "imported": side.imported,
        "reference": run.origin == practice_reference.ORIGIN, "tool": f"{run.tool} {run.tool_version}".strip(),
        "first": _at(points, ends[:1]), "last": _at(points, ends[1:]),
        "summary": words.summary(n, verdicts, load, blocked) if n else None, "baseline": n == 0,
        "without": address(others, **choice.kept()) if len(sides) > 2 else "", "as_baseline": address([side, *others], **choice.kept()) if n else "",
        "decide": None if blocked else more_runs(side, verdicts), "running": any(one.state == "running" for one in side.runs),
        "vllm": _as_vllm(side, load, points[-1]["v"]) if points else None,
    }


def _as_vllm(side: Chosen, load: str, value: float) -> dict[str, str]:
    """The highest level of a side's first run that has it, in the schema of `vllm bench serve`."""
    run = next(run for run, told in zip(side.runs, side.documents, strict=True) if (load, value) in map(readings.place, readings.levels(told)))
    return {"url": f"{reverse('run_export', args=[run.pk, 'vllm'])}?level={load}:{value:g}", "at": level_name(load, value)}


def more_runs(side: Chosen, verdicts: Verdicts) -> dict[str, Any] | None:
    """How many more runs of a side would decide, where it can still be measured: its service runs the release that it had. None: none would."""
    run = side.runs[-1]
    release = (run.service.status or {}).get("release") if run.service else None
    if side.imported or run.service is None or run.state != "done" or (release and run.release and release != run.release):
        return None
    if not any(one.get("ratio") is not None for key, one in verdicts.items() if side.at in (0, key[0])):
        return None  # no level in common
    more = deciding.more_runs(len(side.runs), (one for key, one in verdicts.items() if key[0] == side.at))
    return {"run": run.pk, "more": more.now, "needed": more.needed} if more.now else None


def tables(sides: Sequence[Chosen], points: Sequence[Sequence[Mapping[str, Any]]], values: Sequence[float], load: str) -> dict[str, Any]:
    """The numbers of each chart, for those who read instead of look: chart to headings a side and rows of cells."""
    at = [{one["v"]: one for one in side} for side in points]

    def of(*names: tuple[str, str]) -> dict[str, Any]:
        rows = [{"name": short_name(load, value), "cells": [shown(side[value][name]) if value in side else "n/a" for side in at for name, _ in names]}
                for value in values]
        return {"heads": [f"{side.name}{f' {title}' if title else ''}" for side in sides for _, title in names], "rows": rows}

    return {"throughput": of(("tput", "")), "latency": of(("p50", "P50"), ("mean", "mean"), ("p99", "P99")),
            "ttft": of(("ttft", "P50"), ("ttft99", "P99")), "tpot": of(("tpot", "P50"), ("tpot99", "P99")),
            "pareto": of(("user", "per user"), ("gpu", "per GPU"))}


def distributions(sides: Sequence[Chosen], load: str, values: Sequence[float], asked: str) -> dict[str, Any] | None:
    """Quantiles of TTFT and of gaps at one level, a side the mean of its runs' quantiles; None where no run kept any.

    The level is the asked one ("closed:128"), else the highest that most sides have.
    """
    runs = [run.pk for side in sides for run in side.runs]
    kept = BenchmarkLevel.objects.filter(run__in=runs, load=load, state="done").exclude(detail={})  # as `levels`: whole ones
    have: dict[float, set[Any]] = {}
    for place, run in kept.values_list("value", "run_id"):
        have.setdefault(place, set()).add(run)
    if not have:
        return None
    kind, _, number = asked.partition(":")
    value: float | None = next((one for one in have if kind == load and number == f"{one:g}"), None)
    if value is None:
        value = max(have, key=lambda one: (sum(1 for side in sides if any(run.pk in have[one] for run in side.runs)), one))
    details = dict(kept.filter(value=value).values_list("run_id", "detail"))
    quantiles = []
    for side in sides:
        found = [ecdf for run in side.runs if isinstance(ecdf := (details.get(run.pk) or {}).get("ecdf"), Mapping)]
        made = {name: _quantiles([one.get(name) for one in found]) for name in ("ttft_ms", "icl_ms")}
        quantiles.append(made if any(made.values()) else None)
    if not any(quantiles):
        return None
    return {"value": value, "name": level_name(load, value), "quantiles": quantiles,
            "levels": [{"value": f"{load}:{one:g}", "name": level_name(load, one), "current": one == value} for one in sorted(have)],
            **{short: {"heads": [f"{percent} %" for percent in PERCENTS], "rows": [
                {"name": side.name, "cells": [shown(one[name][percent], "ms") for percent in PERCENTS]}
                for side, one in zip(sides, quantiles, strict=True) if one and one[name]]}
               for short, name in (("ttft", "ttft_ms"), ("icl", "icl_ms"))}}


def _quantiles(runs: Iterable[Any]) -> list[float]:
    """The mean of runs' quantiles at 0, 1, ... 100 percent; nothing where no run has all of them."""
    whole = [values for values in runs
             if isinstance(values, list) and len(values) == 101 and all(readings.finite(value) is not None for value in values)]
    return [float(f"{fsum(column) / len(column):.5g}") for column in zip(*whole, strict=True)] if whole else []
