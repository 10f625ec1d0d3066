"""The watch after a redeploy: what was just measured against the service's pinned baseline. A single sweep decides nothing, so it is only said
whether it lies within the noise floor; with three runs a side, interleaved or not, there is a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ops.benchmark.comparing import keys, readings, student
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.verdicts import (
    BETTER,
    LEVEL,
    METRICS,
    NOT_DECIDED,
    VERDICTS,
    WITHIN,
    WORSE,
    compare_errors,
    compare_values,
    doubts,
    in_brackets,
    percent,
)

NOT_REPORTED = "not reported"


def watch(document: Mapping[str, Any] | Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]],
          floors: Floors | Iterable[Any] | None = None, *, label: str = "") -> dict[str, Any]:
    """The data of REGRESSION: {baseline {run_ids, label, release, interleaved: false}, run_ids, levels [{load, value, label, comparable, why, metrics
    [{metric, title, ratio, low, high, floor, floor_from, word, holds, more_runs}], errors, doubts [mark]}], words [sentence], outside (how many
    metrics lie outside)}.

    `document`: the run, or several that are one side. `word`: "within the noise floor", "outside it (−6.2 %), not tested" or "not reported"; a
    verdict only where both sides have three runs; `holds`: whether it stands after Holm's correction for all of them, and is counted (None: what
    no correction is for). Of several runs the geometric mean counts. A level whose key differs from the baseline's is not held against it, nor is
    one of which more than 1 % of the requests failed (but for a verdict on the errors): `why` says so.
    """
    known = Floors.of(floors)
    news = readings.by_time([document] if isinstance(document, Mapping) else document)
    runs = readings.by_time(baseline)
    blocked = _blocked(news, runs)
    places = sorted({readings.place(level) for one in news for level in readings.levels(one) if readings.whole(level)})
    levels = [] if blocked else [_level(place, news, runs, known) for place in places]
    _with_holm(levels)
    releases = {text for run in runs if (text := readings.text(readings.mapping(run.get("fingerprint")).get("release")))}
    return {
        "baseline": {"run_ids": [readings.text(run.get("run_id")) for run in runs], "label": label, "release": releases.pop() if len(releases) == 1
                     else None, "interleaved": False},
        "run_ids": [readings.text(run.get("run_id")) for run in news], "levels": levels,
        "outside": sum(1 for level in levels for one in level["metrics"] if _outside(one)),
        "words": [f"Not held against the baseline: {blocked}"] if blocked else _words(levels),
    }


def _outside(one: Mapping[str, Any]) -> bool:
    return one["word"].startswith("outside") or _counted(one) in (WORSE, BETTER)


def _counted(one: Mapping[str, Any]) -> str:
    return NOT_DECIDED if one["holds"] is False else str(one["word"])


def _with_holm(levels: Sequence[dict[str, Any]]) -> None:
    """Says of each `better` and `worse` whether it stands among all that was tested; errors need no such test."""
    tested = [one for level in levels for one in level["metrics"] if one["p"] is not None]
    for one, p in zip(tested, student.holm([one["p"] for one in tested]), strict=True):
        one["holds"] = p <= 1 - LEVEL if one["word"] in (WORSE, BETTER) and not one["by_errors"] else None
    for level in levels:
        level["metrics"] = [{name: value for name, value in one.items() if name not in ("p", "by_errors")} for one in level["metrics"]]


def _blocked(news: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs or not news:
        return "it has no run" if not runs else "nothing was measured"
    every = [*news, *runs]
    if len({bool(run.get("practice")) for run in every}) > 1:
        return "practice is never held against real"
    if len({(readings.tool(run), readings.is_ours(run)) for run in every}) > 1:
        return "another tool measured it"
    return ""


def _found(place: tuple[str, float], runs: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(run, level) of those runs that have the level, measured to its end."""
    return [(run, level) for run in runs for level in readings.levels(run) if readings.place(level) == place and readings.whole(level)]


def _level(place: tuple[str, float], news: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], floors: Floors) -> dict[str, Any]:
    load, value = place
    made: dict[str, Any] = {"load": load, "value": value, "label": readings.place_words(load, value), "comparable": False, "why": "", "metrics": [],
                            "errors": "", "doubts": []}
    new, old = _found(place, news), _found(place, runs)
    if not old:
        return made | {"why": "the baseline has no such level"}
    key = keys.level_key(*new[0])
    for run, level in [*old, *new[1:]]:
        if found := keys.differences(keys.level_key(run, level), key):
            told = "; ".join(f"{keys.TITLES[name]} ({keys.shown(name, a)} then, {keys.shown(name, b)} now)" for name, a, b in found[:4])
            return made | {"why": f"not asked the same: {told}"}
    before, after = [level for _, level in old], [level for _, level in new]
    if any(readings.never_full(level) for level in (*before, *after)):
        whose = "it" if any(map(readings.never_full, after)) else "the baseline"
        return made | {"why": f"never full: {whose} did not have {value:g} requests in flight at any time"}
    made["doubts"] = list(doubts([*before, *after]))
    errors = compare_errors(before, after)
    rates = [readings.error_rate(one) or 0.0 for one in (*before, *after)]
    if max(rates) > readings.COMPARABLE_ERROR_RATE and errors.word not in VERDICTS:
        return made | {"why": "more than 1 % of the requests failed", "errors": errors.note}
    metrics = []
    for name, metric in METRICS.items():
        one = compare_values([level.get(name) for level in before], [level.get(name) for level in after], name, floors.lookup(load, value, name))
        word = NOT_REPORTED if one.ratio is None else errors.word if errors.word in VERDICTS else one.word if one.word in VERDICTS else one.note
        metrics.append({"metric": name, "title": metric.title, "ratio": one.ratio, "low": one.low, "high": one.high, "floor": one.floor,
                        "floor_from": one.floor_from, "word": word, "holds": None, "more_runs": one.more_runs,
                        "p": one.p, "by_errors": errors.word in VERDICTS})
    return made | {"comparable": True, "metrics": metrics, "errors": errors.note}


def _words(levels: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence a level."""
    told = []
    for level in levels:
        if not level["comparable"]:
            sentence = f"{level['label']}: not held against the baseline, {level['why']}"
        else:
            sentence = f"{level['label']}{in_brackets(level['doubts'])}: {_sentence(level['metrics'])}"
        told.append(f"{sentence}; {level['errors']}" if level["errors"] else sentence)
    return told


def _sentence(metrics: Sequence[Mapping[str, Any]]) -> str:
    by_word: dict[str, list[Mapping[str, Any]]] = {}
    for one in metrics:
        if one["ratio"] is not None:
            by_word.setdefault("outside" if one["word"].startswith("outside") else _counted(one), []).append(one)
    if not by_word:
        return "nothing to hold against the baseline"
    if "outside" in by_word:
        return f"outside the noise floor, not tested: {_named(by_word['outside'])}{'; the others within it' if WITHIN in by_word else ''}"
    if WITHIN in by_word:
        return f"{WITHIN} ({_named(by_word[WITHIN][:2])})"
    return "; ".join(f"{word}: {_named(by_word[word])}" for word in (WORSE, BETTER, NOT_DECIDED, "same") if word in by_word)


def _named(metrics: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['title']} {percent(one['ratio'])}" for one in metrics)
