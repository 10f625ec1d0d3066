"""A comparison in words: what `ops.benchmark.comparing.sides.Comparison.as_dict()` says, as short as a page has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.charts import level_name
from dashboard.compared_sides import Chosen
from dashboard.templatetags.roundhouse import MINUS, version
from ops.benchmark.comparing import readings
from ops.benchmark.comparing.keys import level_key
from ops.benchmark.comparing.verdicts import METRICS, NO_VERDICT, NOT_TESTED, OUTSIDE, WITHIN, in_brackets

MOST = 1e12  # of a number that is written out
NOT_REPORTED = "not reported"
VERDICTS = {"better": ("up", "better"), "worse": ("fall", "worse"), "same": ("same", ""), "not decided": ("ask", ""), "not tested": ("skip", ""),
            "no verdict": ("skip", "")}

Verdicts = dict[tuple[int, str, float, str], dict[str, Any]]  # (side, load, value, metric) to Verdict.as_dict()

_ALIKE = (re.compile(r"(?P<name>[A-H]) gets no verdict: (?P<rest>.*)", re.DOTALL),
          re.compile(r"A and (?P<name>[A-H]) were not interleaved: (?P<rest>all runs of A came first)"))


def shown(value: Any, unit: str = "") -> str:
    """A number with as many digits as its size deserves; "n/a" where there is none."""
    if value is None:
        return "n/a"
    number = float(value)
    size = abs(number)
    if size >= MOST:
        return f"{number:.3g}"
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    told = f"{number:,.{digits}f}"
    return f"{told}\u202f{unit}" if unit else told


def signed(percent: float) -> str:
    """+6.5, −2.1, 0.0"""
    told = f"{abs(percent):,.1f}" if abs(percent) < MOST else f"{abs(percent):.3g}"
    return told if float(told.replace(",", "")) == 0 else f"{MINUS if percent < 0 else '+'}{told}"


def listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def verdicts_of(told: Mapping[str, Any]) -> Verdicts:
    """The verdicts of a comparison by side, level and metric."""
    return {(n, level["load"], level["value"], metric): one for level in told.get("levels") or []
            for n, metrics in enumerate(level["verdicts"]) for metric, one in (metrics or {}).items()}


def counted(verdict: Mapping[str, Any]) -> str:
    """The word by which a verdict counts where several levels are told of at once: one that holds by itself only is not decided among many."""
    return "not decided" if verdict.get("holds") is False else str(verdict.get("word"))


def mark(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """Icon and tone of a verdict, the same on every page: colour is for what stands after Holm's correction too."""
    return VERDICTS.get(counted(verdict), ("skip", ""))


def beside(verdict: Mapping[str, Any]) -> str:
    """What stands in small letters right beside the word: the marks of its level, and of too few runs what may be said of them all the same."""
    note = str(verdict.get("note") or "")
    floor = [one for one in (WITHIN, OUTSIDE) if verdict.get("word") == NOT_TESTED and note.startswith(one)]
    return ", ".join([*(verdict.get("doubts") or ()), *floor])


def summary(n: int, verdicts: Verdicts, load: str, told: str) -> list[dict[str, str]]:
    """What is said of one side, in a few words: what is better or worse and where; else why nothing is. `told`: what keeps the whole side from it."""
    mine = {key: one for key, one in verdicts.items() if key[0] == n and key[1] == load}
    found: dict[tuple[str, str], list[str]] = {}
    doubts: dict[tuple[str, str], dict[str, None]] = {}
    for metric, known in METRICS.items():
        for word in ("better", "worse"):
            those = {value: one for (_, _, value, name), one in mine.items() if name == metric and counted(one) == word}
            where = list(those)
            tested = sum(1 for (_, _, _, name) in mine if name == metric)
            if where:
                places = level_name(load, where[0]) if len(where) == 1 else f"{len(where)} of {tested}"
                found.setdefault((word, places), []).append(known.title.replace("Output throughput", "throughput").replace("Latency", "latency"))
                doubts.setdefault((word, places), {}).update(dict.fromkeys(mark for one in those.values() for mark in one.get("doubts") or ()))
    if found:
        return [{"word": word, "icon": VERDICTS[word][0], "tone": word, "text": f"{', '.join(names)} at {places}{in_brackets(doubts[word, places])}"}
                for (word, places), names in sorted(found.items())]
    words = [counted(one) for one in mine.values()]
    if "same" in words or "not decided" in words:
        word = "not decided" if "not decided" in words else "same"
        many = words.count(word)
        return [{"word": word, "icon": VERDICTS[word][0], "tone": "", "text": f"{many} of {len(mine)} metrics and levels"}]
    if told:
        return [{"word": "no verdict", "icon": "skip", "tone": "", "text": told.partition(",")[0]}]
    more = max((one["more_runs"] for one in mine.values() if one.get("more_runs")), default=0)
    if more:
        return [{"word": NOT_TESTED, "icon": "skip", "tone": "", "text": f"{more} more {'run' if more == 1 else 'runs'} would decide"}]
    notes = [str(one.get("note") or "") for one in mine.values() if one.get("ratio") is not None]
    word = NOT_TESTED if NOT_TESTED in words else NO_VERDICT
    return [{"word": word, "icon": "skip", "tone": "", "text": max(notes, key=notes.count) if notes else "no level in common"}]


def in_common(sides: Sequence[Chosen], load: str) -> list[str]:
    """What all levels have in common, for the page's head: the parts of the comparability key that nobody says otherwise."""
    keys = [level_key(told, level) for side in sides for told in side.documents for level in readings.levels(told)
            if readings.place(level)[0] == load]

    def the(name: str) -> Any:
        known = {str(key.get(name)): key.get(name) for key in keys}  # of a side that does not say it nobody knows
        return next(iter(known.values())) if len(known) == 1 else None

    most, mode, gpus = the("max_tokens"), the("output_mode"), the("gpu_count")
    length = {"fixed": "fixed length", "natural": "natural end"}.get(str(mode), "")
    told = [{"chat": "chat completions", "completions": "completions"}.get(str(the("endpoint_kind")), ""),
            ", ".join(filter(None, (f"{most:,} output tokens" if isinstance(most, int) else "", length))),
            f"{the('input')} of input" if the("input") else "", "closed loop" if load == "closed" else "open loop",
            f"{gpus} GPU{'' if gpus == 1 else 's'}" if isinstance(gpus, int) else ""]
    return [one for one in told if one]


def unpaired(told: Mapping[str, Any]) -> list[str]:
    """Levels without a counterpart, in words: they are drawn, and nothing is said of them."""
    places: dict[tuple[str, str], list[str]] = {}
    for one in told.get("unpaired") or []:
        places.setdefault((one["side"], one["where"]), []).append(one["label"])
    found: dict[tuple[str, str, int], list[str]] = {}
    for (side, where), labels in places.items():
        found.setdefault((", ".join(labels), where, len(labels)), []).append(side)
    return [f"{listed(names)}: {labels} {'is' if many == 1 else 'are'} {'in no other side' if where == 'baseline only' else where}"
            for (labels, where, many), names in found.items()]


def notes(told: Mapping[str, Any]) -> list[str]:
    """What is to be known before the numbers are read; what holds of several sides is said once."""
    said: dict[tuple[int, str], list[str]] = {}
    for note in told.get("notes") or []:
        kind, match = next(((n, match) for n, pattern in enumerate(_ALIKE) if (match := pattern.fullmatch(note))), (-1, None))
        said.setdefault((kind, match["rest"] if match else note), []).append(match["name"] if match else "")
    texts = {0: lambda names, rest: f"{listed(names)} {'gets' if len(names) == 1 else 'get'} no verdict: {rest}",
             1: lambda names, rest: f"{listed(['A', *names])} were not interleaved: {rest}"}
    return [texts[kind](names, rest) if kind in texts else rest for (kind, rest), names in said.items()]


def asked_otherwise(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parts of the comparability key that two sides say differently: title, a text a side, and at which levels."""
    shared = sum(1 for level in told.get("levels") or [] if sum(1 for side in level["sides"] if side) > 1)
    return [{"title": row["title"], "values": row["values"], "at": "every shared level" if len(row["levels"]) >= shared else ", ".join(row["levels"])}
            for row in told.get("key_differences") or [] if len({value for value in row["values"] if value != NOT_REPORTED}) > 1]


def silent(told: Mapping[str, Any]) -> list[str]:
    """What sides do not say of how they were measured, so that nobody knows whether it was the same."""
    found: dict[str, list[str]] = {}
    for row in told.get("key_differences") or []:
        for side, value in zip(told["sides"], row["values"], strict=True):
            if value == NOT_REPORTED:
                found.setdefault(side["name"], []).append(row["title"])
    return [f"{side} does not report {', '.join(titles)}" for side, titles in found.items()]


def headlines(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A side to A: the geometric mean of the throughput's ratios over the levels that may be compared."""
    made = []
    for side, one in zip(told.get("sides") or [], told.get("headlines") or [], strict=True):
        if not one or one["ratio"] is None:
            continue
        half = "" if one["low"] is None else f"{50 * (one['high'] - one['low']):,.1f}"
        made.append({"name": side["name"], "ratio": signed(100 * (one["ratio"] - 1)), "half": half, "levels": one["levels"], "errors": one["errors"],
                     "tested": one["tested"], "pairs": one["pairs"], "words": one["words"]})
    return made


def facts(told: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
    """What differed between the sides' fingerprints, in groups; with `everything` also what did not."""
    table = told.get("fingerprints") or {"rows": [], "count": 0, "equal": 0}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in table["rows"]:
        if row["differs"] or everything:
            mono = row["group"] in ("Packages",) or row["name"].startswith("-") or row["name"].isupper()
            groups.setdefault(row["group"], []).append({
                "name": row["name"], "mono": mono, "cells": [
                    {"text": "not known" if value is None else str(version(value)), "faint": value is None, "changed": changed}
                    for value, changed in zip(row["values"], row["changed"], strict=True)]})
    equal = sum(1 for row in table["rows"] if not row["differs"] and None not in row["values"])
    differing = sum(1 for row in table["rows"] if row["differs"])
    return {"groups": [{"title": title, "rows": rows} for title, rows in groups.items()], "differing": differing, "count": table["count"],
            "equal": equal, "half_known": table["count"] - differing - equal}
