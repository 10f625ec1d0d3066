"""The watch after a redeploy: one new sweep against the service's pinned baseline. A single sweep decides nothing, so it is only said whether it lies
within the noise floor; three runs a side, interleaved or not, then decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ops.benchmark.comparing import keys, readings, student
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.verdicts import METRICS, NOT_TESTED, WITHIN, compare_errors, floor_words, percent

NOT_REPORTED = "not reported"


def watch(document: Mapping[str, Any], baseline: Sequence[Mapping[str, Any]], floors: Floors | Iterable[Any] | None = None, *,
          label: str = "") -> dict[str, Any]:
    """The data of REGRESSION: {baseline {run_ids, label, release, interleaved: false}, levels [{load, value, label, comparable, why, metrics
    [{metric, title, ratio, floor, floor_from, word}], errors}], words [sentence], outside (how many metrics lie outside)}.

    `word`: "within the noise floor", "outside it (−6.2 %), not tested", or "not reported". Of several baseline runs the geometric mean counts. A
    level whose key differs from the baseline's is not held against it: `why` says what differs.
    """
    known = Floors.of(floors)
    runs = readings.by_time(baseline)
    blocked = _blocked(document, runs)
    levels = [] if blocked else [_level(document, level, runs, known) for level in readings.levels(document) if readings.whole(level)]
    levels.sort(key=lambda level: (level["load"], level["value"]))
    releases = {text for run in runs if (text := readings.text(readings.mapping(run.get("fingerprint")).get("release")))}
    return {
        "baseline": {"run_ids": [readings.text(run.get("run_id")) for run in runs], "label": label, "release": releases.pop() if len(releases) == 1
                     else None, "interleaved": False},
        "levels": levels, "outside": sum(1 for level in levels for one in level["metrics"] if one["word"].startswith("outside")),
        "words": [f"Not held against the baseline: {blocked}"] if blocked else _words(levels),
    }


def _blocked(document: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return "it has no run"
    if any(bool(run.get("practice")) != bool(document.get("practice")) for run in runs):
        return "practice is never held against real"
    if any(readings.tool(run) != readings.tool(document) or readings.is_ours(run) != readings.is_ours(document) for run in runs):
        return "another tool measured it"
    return ""


def _level(document: Mapping[str, Any], level: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], floors: Floors) -> dict[str, Any]:
    load, value = readings.place(level)
    made: dict[str, Any] = {"load": load, "value": value, "label": readings.place_words(load, value), "comparable": False, "why": "", "metrics": [],
                            "errors": ""}
    pairs = [(run, one) for run in runs for one in readings.levels(run) if readings.place(one) == (load, value) and readings.whole(one)]
    if not pairs:
        return made | {"why": "the baseline has no such level"}
    key = keys.level_key(document, level)
    for run, one in pairs:
        if found := keys.differences(keys.level_key(run, one), key):
            told = "; ".join(f"{keys.TITLES[name]} ({keys.shown(name, a)} then, {keys.shown(name, b)} now)" for name, a, b in found[:4])
            return made | {"why": f"not asked the same: {told}"}
    olds = [one for _, one in pairs]
    errors = compare_errors(olds, [level])
    metrics = []
    for name, metric in METRICS.items():
        half_width, source = floors.lookup(load, value, name)
        old = [number for one in olds if (number := readings.positive(one.get(name))) is not None]
        new = readings.positive(level.get(name))
        ratio = new / math.exp(student.mean([math.log(number) for number in old])) if new is not None and old else None
        metrics.append({"metric": name, "title": metric.title, "ratio": ratio, "floor": half_width, "floor_from": source,
                        "word": NOT_REPORTED if ratio is None else floor_words(ratio, half_width)})
    return made | {"comparable": True, "metrics": metrics, "errors": errors.note if errors.word == NOT_TESTED else ""}


def _words(levels: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence a level."""
    told = []
    for level in levels:
        if not level["comparable"]:
            told.append(f"{level['label']}: not held against the baseline, {level['why']}")
            continue
        outside = [one for one in level["metrics"] if one["ratio"] is not None and one["word"] != WITHIN]
        within = [one for one in level["metrics"] if one["word"] == WITHIN]
        if outside:
            names = ", ".join(f"{one['title']} ({percent(one['ratio'])})" for one in outside)
            rest = "; the others within it" if within else ""
            sentence = f"{level['label']}: outside the noise floor, not tested: {names}{rest}"
        elif within:
            names = ", ".join(f"{one['title']} {percent(one['ratio'])}" for one in within[:2])
            sentence = f"{level['label']}: {WITHIN} ({names})"
        else:
            sentence = f"{level['label']}: nothing to hold against the baseline"
        told.append(f"{sentence}; {level['errors']}" if level["errors"] else sentence)
    return told
