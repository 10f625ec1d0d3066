"""A sweep against its service's baseline, as its job's page shows it: what one run can say, the button that measures more, and then the verdicts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.urls import reverse

from dashboard import baselines, comparisons, deciding
from dashboard import comparison_words as words
from dashboard.compared_sides import Chosen
from dashboard.models import BenchmarkRun, Job, NoiseFloor
from dashboard.templatetags.roundhouse import short_release
from ops.benchmark.comparing import readings
from ops.benchmark.comparing.verdicts import DOUBTS, METRICS, MIN_RUNS, VERDICTS, in_words, percent, said
from ops.jobs.errors import BadInput

SHOWN = ("output_tok_s", "tpot_p50_ms", "ttft_p50_ms", "e2e_p99_s")
LEVELS_MOST, WORDS_MOST, RUNS_MOST = 32, 64, deciding.SIDE_MOST
OUTSIDE = "outside"  # how the words of a value beyond the floor begin


def panel(job: Job, run: BenchmarkRun | None) -> dict[str, Any] | None:
    """What the job's sweep was found to be against the baseline; None where it was held against none.

    `rows`: a level each, a cell for each of SHOWN. `have`, `base_have`: runs a side; `more`: how many more this side needs, or would decide what
    three did not (dashboard/deciding.py); `held`: levels that could be held against it; `why_not`: why more cannot be measured now, or "".
    `verdicts`: the headline, once both sides have three runs.
    """
    told = readings.mapping((job.result or {}).get("regression"))
    if not told:
        return None
    named = readings.mapping(told.get("baseline"))
    base = _runs(named.get("run_ids"))
    mine = baselines.side_of(run) if run is not None else []
    later = baselines.side_of(base[0]) if base else []
    if later and (run is None or run not in later):  # measured since the job took its copy; a run of the baseline's own side is held against the copy
        base = later
    label, release = readings.text(named.get("label")) or (baselines.label(base[0]) if base else ""), readings.text(named.get("release"))
    made: dict[str, Any] = {
        "label": label, "release": "" if short_release(release) in label else release,
        "base": base, "run": run, "have": len(mine), "base_have": len(base), "more": deciding.more_runs(len(mine), ()), "need": MIN_RUNS,
        "titles": [METRICS[name].title for name in SHOWN], "words": readings.words(told.get("words"))[:WORDS_MOST],
        "compare": f"{reverse('compare')}?{urlencode([('side', _ids(base)), ('side', _ids(mine))])}" if base and mine else "",
        "verdicts": None, "outside": 0, "held": 0}
    if min(len(mine), len(base)) >= MIN_RUNS and run is not None and run.state == "done":
        made |= _decided(base, mine, run)
    if made["verdicts"] is None:
        made |= {"rows": [_row(level) for level in _levels(told)]}
        made["held"] = sum(1 for row in made["rows"] if row["comparable"])
        made["outside"] = sum(1 for row in made["rows"] for cell in row["cells"] if cell["outside"])
    made["why_not"] = _why_not(run, base)
    made["base_run"] = base[0] if 0 < len(base) < MIN_RUNS and run not in base and not _gone(base[0]) else None
    made["base_more"] = MIN_RUNS - len(base)
    return made


def _gone(run: BenchmarkRun) -> str:
    """Why this run's side cannot be measured any further, or ""."""
    if run.service is None:
        return "Its service is not known any more."
    now = (run.service.status or {}).get("release")
    return "The service runs another release now." if now and run.release and now != run.release else ""


def _why_not(run: BenchmarkRun | None, base: list[BenchmarkRun]) -> str:
    """Why more runs cannot be measured from here, or would decide nothing."""
    if run is None or run.state != "done":
        return "This sweep did not run to its end."
    if len(base) < MIN_RUNS:
        few = f"The baseline has {len(base)} {'run' if len(base) == 1 else 'runs'}, and a verdict needs {MIN_RUNS} a side"
        if base and not _gone(base[0]):
            return f"{few}: measure its release {MIN_RUNS - len(base)} more times; the runs come to its side."
        return (f"{few}. Its release is not the one in use, so no more can be measured: pin a run of this release "
                "for later sweeps.")
    return _gone(run)


def _levels(told: Any) -> list[Any]:
    found = told.get("levels")
    return [level for level in found if isinstance(level, dict)][:LEVELS_MOST] if isinstance(found, list) else []


def _row(level: dict[str, Any]) -> dict[str, Any]:
    """One level as the node has said it: a single run is only said to be within the noise floor, or outside it."""
    known = {one.get("metric"): one for one in level.get("metrics") or [] if isinstance(one, dict)}
    doubts = ", ".join(mark for mark in DOUBTS if mark in readings.words(level.get("doubts")))
    cells = []
    for name in SHOWN:
        one = readings.mapping(known.get(name))
        ratio, word = readings.positive(one.get("ratio")), readings.text(one.get("word"))
        floor = readings.finite(one.get("floor"))
        cells.append({"percent": percent(ratio) if ratio is not None else None, "outside": ratio is not None and word.startswith(OUTSIDE),
                      "word": word, "floor": floor, "measured": one.get("floor_from") == "measured",
                      "mark": words.VERDICTS[word] if word in VERDICTS else None, "more": "", "beside": doubts if ratio is not None else ""})
    return {"label": readings.text(level.get("label")) or readings.place_words(*readings.place(level)), "why": readings.text(level.get("why"), 400),
            "errors": readings.text(level.get("errors")), "cells": cells, "comparable": level.get("comparable") is not False}


def _decided(base: list[BenchmarkRun], mine: list[BenchmarkRun], run: BenchmarkRun) -> dict[str, Any]:
    """The verdicts that the compare page gives of the same runs; `verdicts` None where they cannot be held against each other."""
    try:
        comparison = comparisons.held_against([Chosen("the baseline", base), Chosen("Now", mine)])
    except BadInput as error:
        return {"verdicts": None, "words": [error.what]}
    found = comparison.as_dict() if comparison else {}
    rows = []
    for level in found["levels"]:
        verdicts = level["verdicts"][1]
        if not verdicts:
            continue
        cells = []
        for name in SHOWN:
            one = verdicts[name]
            low, high = one["low"], one["high"]
            between = f"{percent(low)} to {percent(high)}" if low is not None and high is not None else ""
            cells.append({"percent": percent(one["ratio"]) if one["ratio"] is not None else None, "outside": False, "mark": words.mark(one),
                          "word": said(one), "more": "; ".join(filter(None, (between, in_words(one)))),
                          "beside": words.beside(one) if one["ratio"] is not None else ""})
        failed = level["errors"][1]
        rows.append({"label": level["label"], "why": (level["sides"][1] or {}).get("withheld", ""), "cells": cells, "comparable": True,
                     "errors": failed["note"] if failed and failed["word"] in ("worse", "better") else ""})
    more = deciding.more_runs(len(mine), (one for level in found["levels"] for one in (level["verdicts"][1] or {}).values()))
    return {"verdicts": found["headlines"][1]["words"], "rows": rows, "more": more}


def noise_panel(job: Job) -> dict[str, Any] | None:
    """The floors that a job has measured, a level each; None where it measured none. Rows that a later job took the place of are told by that one."""
    if not readings.mapping((job.result or {}).get("noise_floor")):
        return None
    rows: dict[tuple[str, float], dict[str, float]] = {}
    for floor in NoiseFloor.objects.filter(job=job).order_by("load", "value"):
        rows.setdefault((floor.load, floor.value), {})[floor.metric] = floor.half_width
    return {"rows": [{"label": readings.place_words(*place), "cells": [found.get(name) for name in METRICS]} for place, found in rows.items()],
            "titles": [metric.title for metric in METRICS.values()],
            "defaults": [metric.floor if any(name not in found for found in rows.values()) else None for name, metric in METRICS.items()],
            "lacking": any(name not in found for found in rows.values() for name in METRICS),
            "runs": len(readings.words(job.result["noise_floor"].get("run_ids")))}


def _runs(ids: Any) -> list[BenchmarkRun]:
    """The baseline's runs that are still here, in the order in which they were measured."""
    wanted = []
    for text in readings.words(ids)[:RUNS_MOST]:
        try:
            wanted.append(UUID(text))
        except ValueError:
            continue  # a node's word: what is no id names no run
    return list(BenchmarkRun.objects.filter(pk__in=wanted).select_related("service").order_by("started_at", "group_index"))


def _ids(runs: list[BenchmarkRun]) -> str:
    return ",".join(str(run.pk) for run in runs)
