"""Sides of runs held against the first of them: which levels pair, what each side measured, the verdicts, the headline, and what else differed.

Curves of any runs may be drawn; where the comparability key differs, or another tool measured, or practice meets real, the difference is listed and
only the verdict is withheld. `Comparison.as_dict()` is the one form that page, command line and exports show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ops.benchmark.comparing import facts, keys, readings, student
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.verdicts import (
    BETTER,
    BY_ITSELF,
    LEVEL,
    METRICS,
    NO_VERDICT,
    NOT_DECIDED,
    NOT_TESTED,
    SAME,
    VERDICTS,
    WORSE,
    ErrorVerdict,
    Verdict,
    compare_errors,
    compare_values,
    doubts,
    in_brackets,
    percent,
)
from ops.jobs.errors import BadInput

SCHEMA = "roundhouse.comparison/1"
MIN_SIDES, MAX_SIDES = 2, 8
MAX_RUNS = 100  # of one side
HEADLINE = "output_tok_s"
Place = tuple[str, float]


@dataclass(frozen=True)
class Side:
    """Runs that are one and the same thing measured again: `runs` are run documents (`SweepResult.as_dict()`)."""

    name: str
    runs: list[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found, as data."""

    content: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """{schema, sides, metrics, levels, unpaired, key_differences, headlines, fingerprints, notes, practice}. See docs/concepts/comparing.md."""
        return self.content


def compare(sides: Sequence[Side], *, floors: Floors | None = None) -> Comparison:
    """The first side is the baseline. Raises BadInput for fewer than two sides, more than eight, or a side without a run that has levels."""
    if not MIN_SIDES <= len(sides) <= MAX_SIDES:
        raise BadInput(f"{len(sides)} {'side' if len(sides) == 1 else 'sides'} cannot be compared", hint=f"Choose {MIN_SIDES} to {MAX_SIDES}")
    for side in sides:
        if not side.runs:
            raise BadInput(f"Side {side.name} has no run", hint="Choose at least one run a side")
        if len(side.runs) > MAX_RUNS:
            raise BadInput(f"Side {side.name} has {len(side.runs)} runs; at most {MAX_RUNS} are compared")
    prepared = [_Prepared(side) for side in sides]
    if not any(one.places for one in prepared):
        raise BadInput("None of these runs has a level that was measured", hint="Choose runs that have results")
    return Comparison(_Comparing(prepared, floors or Floors()).content())


class _Prepared:
    """A side, its runs in order of time, its levels by place."""

    def __init__(self, side: Side) -> None:
        self.name = side.name
        self.runs = readings.by_time(side.runs)
        self.levels: list[dict[Place, Mapping[str, Any]]] = [{readings.place(level): level for level in readings.levels(run)} for run in self.runs]
        self.places = sorted({place for levels in self.levels for place in levels})
        self.keys = {place: [keys.level_key(run, levels[place]) for run, levels in zip(self.runs, self.levels, strict=True) if place in levels]
                     for place in self.places}

    def at(self, place: Place) -> list[Mapping[str, Any]]:
        """The level of each run that has it, whatever its state."""
        return [levels[place] for levels in self.levels if place in levels]

    def whole_at(self, place: Place) -> list[Mapping[str, Any]]:
        return [level for level in self.at(place) if readings.whole(level)]

    def values(self, place: Place, metric: str) -> list[float]:
        return [value for level in self.whole_at(place) if (value := readings.positive(level.get(metric))) is not None]

    def own_differences(self, place: Place) -> list[tuple[str, Any, Any]]:
        """What differs in the key among the side's own runs."""
        first, *others = self.keys[place]
        found: dict[str, tuple[str, Any, Any]] = {}
        for other in others:
            for one in keys.differences(first, other):
                found.setdefault(one[0], one)
        return list(found.values())

    def marked(self, mark: str) -> list[str]:
        """Where some run has that mark."""
        return [readings.place_words(*place) for place in self.places if any(mark in readings.words(level.get("marks")) for level in self.at(place))]

    def every(self, read: Any) -> list[Any]:
        return list(dict.fromkeys(read(run) for run in self.runs))

    @property
    def practice(self) -> bool | None:
        """None: some of its runs are, some are not."""
        found = {bool(run.get("practice")) for run in self.runs}
        return found.pop() if len(found) == 1 else None

    @property
    def tools(self) -> list[str]:
        return sorted({readings.tool(run) for run in self.runs})

    @property
    def origins(self) -> list[str]:
        return sorted({readings.text(run.get("origin")) or readings.OURS for run in self.runs})


class _Comparing:
    def __init__(self, sides: list[_Prepared], floors: Floors) -> None:
        self.sides, self.floors, self.base = sides, floors, sides[0]
        self.places = sorted({place for side in sides for place in side.places})
        self.blocked = ["", *(self._blocked(side) for side in sides[1:])]

    def content(self) -> dict[str, Any]:
        verdicts = [{}, *({place: self._verdicts(i, place) for place in self.places} for i in range(1, len(self.sides)))]
        verdicts = [_with_holm(side) for side in verdicts]
        errors = [{}, *({place: self._errors(i, place) for place in self.places} for i in range(1, len(self.sides)))]
        return {
            "schema": SCHEMA, "practice": any(side.practice is not False for side in self.sides),
            "mixes_practice": len({side.practice for side in self.sides}) > 1 or self.base.practice is None,
            "sides": [self._side(i) for i in range(len(self.sides))],
            "metrics": [{"name": name, "title": metric.title, "unit": metric.unit, "higher_is_better": metric.higher_is_better, "floor": metric.floor,
                         "minimum_effect": metric.minimum_effect} for name, metric in METRICS.items()],
            "levels": [self._level(place, verdicts, errors) for place in self.places],
            "unpaired": [{"side": side.name, "load": place[0], "value": place[1], "label": readings.place_words(*place),
                          "where": "baseline only" if side is self.base else "not in the baseline"}
                         for side in self.sides for place in side.places
                         if not (any(place in other.places for other in self.sides[1:]) if side is self.base else place in self.base.places)],
            "key_differences": self._key_differences(),
            "headlines": [None, *(self._headline(i, verdicts[i], errors[i]) for i in range(1, len(self.sides)))],
            "fingerprints": facts.table([side.runs[0] for side in self.sides]),
            "floors": {"measured": len(self.floors), "label": self.floors.label},
            "notes": self._notes(),
        }

    # What keeps a whole side from a verdict

    def _blocked(self, side: _Prepared) -> str:
        if side.practice is None or self.base.practice is None or side.practice != self.base.practice:
            return "practice is never held against real"
        if len(side.tools) > 1 or len(self.base.tools) > 1:
            return "one side mixes runs of several tools"
        if side.tools != self.base.tools:
            return f"measured by {side.tools[0]}, the baseline by {self.base.tools[0]}: no verdict across tools"
        if side.origins != self.base.origins:
            return "imported runs get no verdict against measured ones"
        return ""

    def _withheld(self, index: int, place: Place) -> str:
        side = self.sides[index]
        if place not in side.places or place not in self.base.places:
            return "no such level on both sides"
        if self.blocked[index]:
            return self.blocked[index]
        for one in (self.base, side):
            if any(readings.never_full(level) for level in one.whole_at(place)):
                return f"never full: {one.name} did not have {place[1]:g} requests in flight at any time"
        for one in (self.base, side):
            if own := one.own_differences(place):
                return f"the runs of {one.name} differ among themselves: {_named(own)}"
        if differing := self._differences(index, place):
            return f"not comparable: {_named(differing)}"
        return ""

    def _failing(self, index: int, place: Place) -> str:
        """Where so many requests failed that what the others measured is not comparable."""
        for one in (self.base, self.sides[index]):
            if any((readings.error_rate(level) or 0.0) > readings.COMPARABLE_ERROR_RATE for level in one.at(place)):
                return f"more than 1 % of the requests failed in {one.name}"
        return ""

    def _differences(self, index: int, place: Place) -> list[tuple[str, Any, Any]]:
        side = self.sides[index]
        if index == 0 or place not in side.places or place not in self.base.places:
            return []
        return keys.differences(self.base.keys[place][0], side.keys[place][0])

    # Verdicts

    def _verdicts(self, index: int, place: Place) -> dict[str, Verdict]:
        side, withheld = self.sides[index], self._withheld(index, place)
        if withheld == "no such level on both sides":
            return {}
        withheld = withheld or self._failing(index, place)
        beside = doubts([*self.base.whole_at(place), *side.whole_at(place)])
        found = {metric: replace(compare_values(self.base.values(place, metric), side.values(place, metric), metric,
                                                self.floors.lookup(*place, metric), withheld=withheld), doubts=beside) for metric in METRICS}
        failed = self._errors(index, place)
        if failed is None or failed.word not in VERDICTS:
            return found
        return {metric: replace(one, word=failed.word, note=failed.note, more_runs=None, by_errors=True) for metric, one in found.items()}

    def _errors(self, index: int, place: Place) -> ErrorVerdict | None:
        side, withheld = self.sides[index], self._withheld(index, place)
        if withheld == "no such level on both sides":
            return None
        return compare_errors(self.base.at(place), side.at(place), withheld=bool(withheld))

    # The parts

    def _side(self, index: int) -> dict[str, Any]:
        side = self.sides[index]
        tok_s = {place: student.geometric(values)[0] for place in side.places if (values := side.values(place, HEADLINE))}
        best = max(tok_s, key=lambda place: tok_s[place], default=None)
        single = tok_s.get(("closed", 1.0))
        first = side.runs[0]
        told = readings.mapping(first.get("fingerprint"))
        return {
            "name": side.name, "baseline": index == 0, "models": side.every(lambda run: readings.text(run.get("model"))),
            "releases": side.every(lambda run: readings.text(readings.mapping(run.get("fingerprint")).get("release"))),
            "vllm": readings.text(readings.mapping(told.get("packages")).get("vllm")) or readings.text(
                readings.mapping(first.get("endpoint")).get("version")) or None,
            "tools": side.tools, "tool_version": readings.text(first.get("tool_version")), "origins": side.origins, "practice": side.practice,
            "stacks": side.every(lambda run: readings.text(readings.mapping(run.get("fingerprint")).get("hash"))),
            "count": len(side.runs),
            "runs": [{"run_id": readings.text(run.get("run_id")), "label": readings.text(run.get("label")),
                      "started_at": readings.started_at(run), "state": readings.text(run.get("state")), "short": bool(run.get("short")),
                      "preset": readings.text(run.get("preset")), "group": run.get("group") if isinstance(run.get("group"), str) else None}
                     for run in side.runs],
            "single_tok_s": single, "peak_tok_s": None if best is None else tok_s[best],
            "peak_at": None if best is None else readings.place_words(*best),
            "errors": readings.total([level for levels in side.levels for level in levels.values()], "errors"),
            "blocked": self.blocked[index],
        }

    def _level(self, place: Place, verdicts: list[dict[Place, dict[str, Verdict]]], errors: list[dict[Place, ErrorVerdict | None]]) -> dict[str, Any]:
        load, value = place
        return {
            "load": load, "value": value, "label": readings.place_words(load, value),
            "floors": {metric: dict(zip(("half_width", "from"), self.floors.lookup(load, value, metric), strict=True)) for metric in METRICS},
            "sides": [self._level_side(i, place) for i in range(len(self.sides))],
            "verdicts": [None if i == 0 else {name: one.as_dict() for name, one in verdicts[i].get(place, {}).items()} or None
                         for i in range(len(self.sides))],
            "errors": [None if i == 0 or (found := errors[i].get(place)) is None else found.as_dict() for i in range(len(self.sides))],
        }

    def _level_side(self, index: int, place: Place) -> dict[str, Any] | None:
        """What one side has of a level; None where it has none."""
        side = self.sides[index]
        if place not in side.places:
            return None
        all_of, whole = side.at(place), side.whole_at(place)
        ended = sum(readings.ended(level) for level in all_of)
        failed = readings.total(all_of, "errors")
        return {
            "runs": len(whole), "left_out": len(all_of) - len(whole), "requests": readings.total(all_of, "finished"),
            "errors": failed, "error_rate": failed / ended if failed is not None and ended else None,
            "marks": sorted({mark[:60] for level in all_of for mark in readings.words(level.get("marks"))}),
            "values": {metric: _summary(side.values(place, metric)) for metric in METRICS},
            "differences": [{"name": name, "title": keys.TITLES[name], "a": keys.shown(name, a), "b": keys.shown(name, b)}
                            for name, a, b in self._differences(index, place)],
            "withheld": "" if index == 0 else self._withheld(index, place),
        }

    def _key_differences(self) -> list[dict[str, Any]]:
        """Of the paired levels, over all of them: {name, title, values [text a side], levels [label]}."""
        found: dict[str, dict[str, Any]] = {}
        for place in self.places:
            for index in range(1, len(self.sides)):
                for name, _, _ in self._differences(index, place):
                    row = found.setdefault(name, {"name": name, "title": keys.TITLES[name], "values": self._of_key(name), "levels": []})
                    if readings.place_words(*place) not in row["levels"]:
                        row["levels"].append(readings.place_words(*place))
        return list(found.values())

    def _of_key(self, name: str) -> list[str]:
        return [", ".join(dict.fromkeys(keys.shown(name, key[name]) for own in side.keys.values() for key in own)) for side in self.sides]

    def _headline(self, index: int, verdicts: dict[Place, dict[str, Verdict]], errors: dict[Place, ErrorVerdict | None]) -> dict[str, Any]:
        """Geometric mean of the throughput's ratios over the paired levels, one value a pair of runs, Student's interval over these.

        Levels of which too many requests failed count by their errors, and not in the mean."""
        side = self.sides[index]
        places = [place for place in self.places if place in verdicts and verdicts[place] and not self._withheld(index, place)]
        sound = [place for place in places if not self._failing(index, place)]
        both = list(zip(_values_by_place(self.base, sound), _values_by_place(side, sound), strict=False))
        sound = [place for place in sound if both and all(place in one for pair in both for one in pair)]
        pairs = [student.mean([math.log(b[place] / a[place]) for place in sound]) for a, b in both] if sound else []
        low, high = student.interval(pairs) if len(pairs) >= 2 else (None, None)
        counts = {name: _counted(places, verdicts, name) for name in METRICS}
        worse_errors = [place for place, one in errors.items() if one is not None and one.word == WORSE]
        made: dict[str, Any] = {
            "ratio": math.exp(student.mean(pairs)) if pairs else None, "low": None if low is None else math.exp(low),
            "high": None if high is None else math.exp(high), "levels": len(sound), "pairs": len(pairs), "counts": counts,
            "errors_worse": [readings.place_words(*place) for place in worse_errors],
            "errors": _failed(errors),
            "tested": any(count[word] for count in counts.values() for word in VERDICTS), "blocked": self.blocked[index],
            "more_runs": max((one.more_runs for found in verdicts.values() for one in found.values() if one.more_runs is not None), default=None),
        }
        return made | {"words": _headline_words(side.name, self.base.name, made, places, sound, verdicts)}

    def _notes(self) -> list[str]:
        notes = []
        for index, side in enumerate(self.sides):
            if len(side.every(_stack)) > 1:
                notes.append(f"The runs of {side.name} were not all made on the same stack: their fingerprints differ")
            places = [readings.place_words(*place) for place in side.places if side.own_differences(place)]
            if places:
                notes.append(f"The runs of {side.name} were not all asked the same at {_listed(places)}")
            left_out = [readings.place_words(*place) for place in side.places if len(side.at(place)) > len(side.whole_at(place))]
            if left_out:
                notes.append(f"{side.name}: a level that did not run to its end is not counted at {_listed(left_out)}")
            if self.blocked[index]:
                notes.append(f"{side.name} gets no verdict: {self.blocked[index]}")
            elif index and (order := _order(self.base, side)):
                notes.append(order)
            if index and len({_warm_up(one) for one in (self.base, side)} - {None}) > 1:
                notes.append(f"{side.name} was warmed up with another number of requests than {self.base.name}")
            orders = {_settings(one, "order") for one in (self.base, side)} - {None}
            if index and len(orders) > 1:
                notes.append(f"The levels of {side.name} ran in another order than those of {self.base.name}")
        for mark, words in _MARKS.items():
            if marked := [f"{side.name} at {_listed(places)}" for side in self.sides if (places := side.marked(mark))]:
                notes.append(f"{words}: {'; '.join(marked)}")
        return notes


_MARKS = {
    "never full": "Fewer requests were in flight at once than the level says, so it gets no verdict",
    "client-bound": "The client was at its limit, so these numbers tell of the client", "reasoning only": "Many requests ended before any answer",
    "bunched": "Chunks came in bunches, so times between tokens say little", "length not obeyed": "The server did not keep to the length asked for",
    "short": "Few requests, or a short window",
    "cut": "Requests in flight were ended at a time limit, and their tokens are not counted",
    "overloaded": "The server did not keep up with the rate, so its latencies tell of how long that went on",
}


def _with_holm(verdicts: dict[Place, dict[str, Verdict]]) -> dict[Place, dict[str, Verdict]]:
    """Holm's correction over all levels and metrics of a side, as far as they were tested. A word that falls to it stands, and says so: what is
    counted over several levels leaves it out."""
    tested = [(place, name) for place, found in verdicts.items() for name, one in found.items() if one.p is not None]
    adjusted = student.holm([verdicts[place][name].p or 0.0 for place, name in tested])
    made = {place: dict(found) for place, found in verdicts.items()}
    for (place, name), p in zip(tested, adjusted, strict=True):
        one = made[place][name]
        holds = p <= 1 - LEVEL if one.word in (BETTER, WORSE) and not one.by_errors else None
        made[place][name] = replace(one, p_holm=p, holds=holds, note=BY_ITSELF if holds is False else one.note)
    return made


def _summary(values: list[float]) -> dict[str, Any]:
    """{"values" (a run each, in order of time), "mean" (geometric), "low", "high" (95 % over runs; None below two)}."""
    if not values:
        return {"values": [], "mean": None, "low": None, "high": None}
    return {"values": values} | dict(zip(("mean", "low", "high"), student.geometric(values), strict=True))


def _values_by_place(side: _Prepared, places: list[Place]) -> list[dict[Place, float]]:
    """The headline's metric of each run that has any, by level."""
    found = [{place: value for place in places if (level := levels.get(place)) is not None and readings.whole(level)
              and (value := readings.positive(level.get(HEADLINE))) is not None} for levels in side.levels]
    return [one for one in found if one]


def _counted(places: list[Place], verdicts: dict[Place, dict[str, Verdict]], name: str) -> dict[str, int]:
    """Levels by verdict; a `better` or `worse` that Holm's correction does not leave standing counts as not decided."""
    counts = dict.fromkeys((*VERDICTS, NOT_TESTED, NO_VERDICT), 0)
    for place in places:
        one = verdicts[place][name]
        counts[NOT_DECIDED if one.holds is False else one.word] += 1
    return counts


def _headline_words(name: str, baseline: str, made: Mapping[str, Any], places: list[Place], sound: list[Place],
                    verdicts: dict[Place, dict[str, Verdict]]) -> str:
    """"B to A: +3.9 % (+2.7 % to +5.1 %), geometric mean over 8 levels. better: throughput at 2 of 8 levels"."""
    if made["blocked"]:
        return f"{name} is drawn beside {baseline} without a verdict: {made['blocked']}"
    if made["ratio"] is None:
        return f"{name} and {baseline} have no comparable level with a throughput in every run"
    between = f" ({percent(made['low'])} to {percent(made['high'])})" if made["low"] is not None else ""
    of = f"geometric mean over {made['levels']} levels" if made["levels"] != 1 else f"at {readings.place_words(*sound[0])}"
    sentences = [f"{name} to {baseline}: throughput {percent(made['ratio'])}{between}, {of}, {made['pairs']} "
                 f"{'pair' if made['pairs'] == 1 else 'pairs'} of runs"]
    for word in (BETTER, WORSE):
        told = [f"{METRICS[metric].title} at {_listed(at)}" for metric in METRICS
                if (at := [readings.place_words(*place) + in_brackets(verdicts[place][metric].doubts) for place in places
                           if verdicts[place][metric].word == word and verdicts[place][metric].holds])]
        if told:
            sentences.append(f"{word}: {', '.join(told)}")
    if made["errors_worse"]:
        sentences.append(f"{WORSE}: errors at {_listed(made['errors_worse'])}")
    if not made["tested"]:
        sentences.append("difference, not tested: a verdict needs three runs a side")
    elif len(sentences) == 1:
        same, every = made["counts"][HEADLINE][SAME], len(places)
        sentences.append(f"throughput {SAME} at {same} of {every} levels, nothing better or worse")
    return ". ".join(sentences)


def _listed(words: Sequence[str], most: int = 6) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _named(differences: Sequence[tuple[str, Any, Any]]) -> str:
    return "; ".join(f"{keys.TITLES[name]} ({keys.shown(name, a)} against {keys.shown(name, b)})" for name, a, b in differences[:4])


def _stack(run: Mapping[str, Any]) -> str:
    return readings.text(readings.mapping(run.get("fingerprint")).get("hash"))


def _failed(errors: Mapping[Place, ErrorVerdict | None]) -> int | None:
    """Failed requests of both sides. None where there is none among those that are reported, and some are not."""
    told = [count for one in errors.values() if one is not None for count in (one.errors_a, one.errors_b)]
    found = sum(count for count in told if count is not None)
    return None if None in told and not found else found


def _settings(side: _Prepared, name: str) -> str | None:
    value = readings.mapping(side.runs[0].get("settings")).get(name)
    return value if isinstance(value, str) else None


def _warm_up(side: _Prepared) -> tuple[float | None, float | None] | None:
    """What its settings say of it; None where they say nothing."""
    told = readings.mapping(side.runs[0].get("settings"))
    found = readings.finite(told.get("warmup_per_slot")), readings.finite(told.get("warmup_slots"))
    return None if None in found else found


def _order(base: _Prepared, side: _Prepared) -> str:
    """Said where all runs of one side came before all of the other: what changed with time is then in the difference too."""
    times = [[readings.started_at(run) for run in one.runs] for one in (base, side)]
    known = [[time for time in one if time is not None] for one in times]
    if not known[0] or not known[1] or len(base.runs) + len(side.runs) <= 2:
        return ""
    if max(known[0]) <= min(known[1]):
        return f"{base.name} and {side.name} were not interleaved: all runs of {base.name} came first"
    if max(known[1]) <= min(known[0]):
        return f"{base.name} and {side.name} were not interleaved: all runs of {side.name} came first"
    return ""
