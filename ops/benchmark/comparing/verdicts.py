"""One metric of one level, one value a run: by what ratio do two sides differ, and is that more than luck?

Welch's t on the logs of the run values, because requests inside one run share its luck and a run is the unit. A verdict needs three runs a side;
`better` and `worse` need an interval that excludes no difference *and* an effect above the noise floor and the least that counts; `same` needs the
whole interval within the least that counts. Everything else is `not decided`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ops.benchmark.comparing import readings, student

BETTER, WORSE, SAME, NOT_DECIDED, NOT_TESTED = "better", "worse", "same", "not decided", "not tested"
NO_VERDICT = "no verdict"
VERDICTS = (BETTER, WORSE, SAME, NOT_DECIDED)
MIN_RUNS = 3
LEVEL = 0.95
ERRORS_AT = 0.01
MORE_RUNS_MOST = 40
KINDS_SHOWN = 8


class Metric(NamedTuple):
    """`floor` and `minimum_effect` are shares: 0.03 is 3 %."""

    title: str
    unit: str
    higher_is_better: bool
    floor: float
    minimum_effect: float


METRICS: dict[str, Metric] = {
    "output_tok_s": Metric("Output throughput", "tok/s", True, 0.03, 0.05),
    "tpot_p50_ms": Metric("TPOT P50", "ms", False, 0.03, 0.05),
    "ttft_p50_ms": Metric("TTFT P50", "ms", False, 0.10, 0.10),
    "ttft_p99_ms": Metric("TTFT P99", "ms", False, 0.20, 0.10),
    "e2e_p50_s": Metric("Latency P50", "s", False, 0.03, 0.05),  # mostly the sum of its tokens' times: as TPOT
    "e2e_p99_s": Metric("Latency P99", "s", False, 0.20, 0.05),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """B against A. `ratio`, `low`, `high`: B to A, 95 % (the bounds from two runs a side); None where there is no value on a side.

    `word`: one of the four verdicts; "not tested" of too few runs; "no verdict" where it is withheld, `note` saying why. `p`: of no difference;
    `p_holm`: the same after Holm's correction over all levels and metrics of the comparison, `holds`: a `better` or `worse` that stands after it too
    (where it does not, `note` says so). `more_runs`: so many more a side would decide, if the spread stays what it is; None where it is decided, or
    where more runs would not. `floor`: a share, `floor_from` "measured" or "default". `by_errors`: the word is of the level's failed requests, which
    beat what the values say. `doubts`: marks of either side's level that stand right beside the word, because it may tell of something else.
    """

    metric: str
    ratio: float | None
    low: float | None
    high: float | None
    word: str
    note: str
    p: float | None
    more_runs: int | None
    n_a: int
    n_b: int
    floor: float
    floor_from: str
    minimum_effect: float
    p_holm: float | None = None
    holds: bool | None = None
    by_errors: bool = False
    doubts: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"doubts": list(self.doubts)}


DOUBTS = ("client-bound", "short")  # marks that are said beside each verdict on their level


def doubts(levels: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those of DOUBTS that some of these levels has."""
    marks = {mark for level in levels for mark in readings.words(level.get("marks"))}
    return tuple(mark for mark in DOUBTS if mark in marks)


def in_brackets(marks: Iterable[str]) -> str:
    """" (client-bound, short)"; nothing without any."""
    told = ", ".join(marks)
    return f" ({told})" if told else ""


def said(verdict: Mapping[str, Any]) -> str:
    """A verdict in the fewest words, the same on every page and in every file: one that falls to Holm's correction is said to be by itself."""
    word = str(verdict.get("word"))
    return f"{word}, by itself" if verdict.get("holds") is False else word


def in_words(verdict: Mapping[str, Any]) -> str:
    """The same with what stands beside it: "better (client-bound, short)", "not tested: outside it (−6.2 %)", "no verdict: another tool"."""
    told = said(verdict) + in_brackets(verdict.get("doubts") or ())
    note = str(verdict.get("note") or "").removesuffix(", not tested").removeprefix("by itself, ")
    return f"{told}: {note}" if note else told


def percent(ratio: float) -> str:
    """"+3.4 %", "−6.2 %": what a ratio is more or less than 1; never "−0.0 %"."""
    shown = f"{100 * (ratio - 1):+.1f}"
    return f"{'0.0' if float(shown) == 0 else shown.replace('-', '−')} %"


def compare_values(a: Iterable[Any], b: Iterable[Any], metric: str, floor: float | tuple[float, str] | None = None, *,
                   withheld: str = "") -> Verdict:
    """The verdict on one value a run of each side. `floor`: half-width (share), or (half-width, where it comes from); None: the default.

    What is no positive number is no value. `withheld`: why there may be no verdict whatever the values are: the ratio is given all the same.
    """
    known = METRICS[metric]
    half_width, source = floor if isinstance(floor, tuple) else (known.floor, "default") if floor is None else (floor, "measured")
    side_a = [value for one in a if (value := readings.positive(one)) is not None]
    side_b = [value for one in b if (value := readings.positive(one)) is not None]
    made = _Making(known, metric, half_width, source, len(side_a), len(side_b))
    if not side_a or not side_b:
        return made.verdict(None, NO_VERDICT, withheld or "not reported on both sides")
    logs_a, logs_b = [math.log(value) for value in side_a], [math.log(value) for value in side_b]
    if min(len(logs_a), len(logs_b)) < 2:
        ratio = math.exp(student.mean(logs_b) - student.mean(logs_a))
        if withheld:
            return made.verdict(ratio, NO_VERDICT, withheld)
        return made.verdict(ratio, NOT_TESTED, made.against_floor(ratio), more_runs=made.missing)
    found = student.welch(logs_a, logs_b, LEVEL)
    ratio, low, high = math.exp(found.effect), _exp(found.low), _exp(found.high)
    if withheld:
        return made.verdict(ratio, NO_VERDICT, withheld, low, high)
    if made.missing:
        return made.verdict(ratio, NOT_TESTED, made.against_floor(ratio), low, high, more_runs=made.missing)
    word = decide(ratio, low, high, known, half_width)
    more_runs, note = (None, "") if word != NOT_DECIDED else _more_runs(logs_a, logs_b, known, half_width)
    return made.verdict(ratio, word, note, low, high, found.p, more_runs)


def decide(ratio: float, low: float, high: float, metric: Metric, floor: float) -> str:
    """The rule itself. Its limits are ratios, 1.05 one way and 1 / 1.05 the other, so that swapped sides get the mirrored word."""
    if (low > 1 or high < 1) and beyond(ratio, max(floor, metric.minimum_effect)):
        return BETTER if (ratio > 1) == metric.higher_is_better else WORSE
    if not beyond(low, metric.minimum_effect) and not beyond(high, metric.minimum_effect):
        return SAME
    return NOT_DECIDED


def beyond(ratio: float, share: float) -> bool:
    """Whether a ratio is further from 1 than 1 + share, or than 1 / (1 + share)."""
    return abs(math.log(ratio)) > math.log1p(share)


def _exp(value: float) -> float:
    """An interval of two wild runs may be wider than any float: then it is as wide as one."""
    return math.exp(max(-700.0, min(700.0, value)))


@dataclass(frozen=True, slots=True)
class _Making:
    known: Metric
    metric: str
    floor: float
    floor_from: str
    n_a: int
    n_b: int

    @property
    def missing(self) -> int | None:
        """Runs that the side with fewer lacks for a verdict."""
        return MIN_RUNS - min(self.n_a, self.n_b) if min(self.n_a, self.n_b) < MIN_RUNS else None

    def against_floor(self, ratio: float) -> str:
        return floor_words(ratio, self.floor)

    def verdict(self, ratio: float | None, word: str, note: str, low: float | None = None, high: float | None = None, p: float | None = None,
                more_runs: int | None = None) -> Verdict:
        return Verdict(self.metric, ratio, low, high, word, note, p, more_runs, self.n_a, self.n_b, self.floor, self.floor_from,
                       self.known.minimum_effect)


WITHIN, OUTSIDE = "within the noise floor", "outside it"
BY_ITSELF = "by itself, not after Holm's correction for all levels and metrics"  # of a better or worse among many


def floor_words(ratio: float, floor: float) -> str:
    """What may be said of too few runs."""
    return WITHIN if not beyond(ratio, floor) else f"{OUTSIDE} ({percent(ratio)}), not tested"


def _more_runs(logs_a: Sequence[float], logs_b: Sequence[float], metric: Metric, floor: float) -> tuple[int | None, str]:
    """How many more runs a side would decide if means and spread stay what they are now, and what to say where they would not."""
    effect = student.mean(logs_b) - student.mean(logs_a)
    var_a, var_b = student.variance(logs_a), student.variance(logs_b)
    ratio = math.exp(effect)
    if beyond(ratio, metric.minimum_effect) and not beyond(ratio, floor):
        return None, "within the noise floor, but more than counts as same: more runs would not decide"
    spread = (var_a + var_b) ** 2 / (var_a**2 + var_b**2) if var_a + var_b > 0 else 2.0
    for more in range(1, MORE_RUNS_MOST + 1):
        n_a, n_b = len(logs_a) + more, len(logs_b) + more
        df = math.floor(max(1.0, (min(n_a, n_b) - 1) * spread))  # whole, so that quantiles are remembered; a little too careful
        half = student.quantile(LEVEL, float(df)) * math.sqrt(var_a / n_a + var_b / n_b)
        if decide(ratio, _exp(effect - half), _exp(effect + half), metric, floor) != NOT_DECIDED:
            return more, f"{more} more {'run' if more == 1 else 'runs'} a side would decide"
    return None, f"more than {MORE_RUNS_MOST} more runs a side would be needed"


# Errors


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """Failed requests of a level, all runs of a side together; None where its tool does not report them. `word`: "worse" (a class of error that A has
    not, or a higher rate), "better" (a lower rate), None (nothing beats the other verdicts), or "not tested" with too few runs; `note` says it. `p`:
    Fisher's exact test, two-sided."""

    errors_a: int | None
    ended_a: int
    errors_b: int | None
    ended_b: int
    new_kinds: list[str]
    p: float
    word: str | None
    note: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_errors(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], *, withheld: bool = False) -> ErrorVerdict:
    """`a`, `b`: the level as each run of the side has it."""
    errors_a, errors_b = (readings.total(side, "errors") for side in (a, b))
    ended_a, ended_b = (sum(readings.ended(level) for level in side) for side in (a, b))
    if errors_a is None or errors_b is None:
        return ErrorVerdict(errors_a, ended_a, errors_b, ended_b, [], 1.0, None, "")
    new = sorted(_kinds(b) - _kinds(a))
    p = student.fisher(errors_a, ended_a, errors_b, ended_b)
    differs = p < ERRORS_AT and ended_a > 0 and ended_b > 0
    more = differs and errors_b * ended_a > errors_a * ended_b
    told = f"{errors_b} of {ended_b} requests failed, {errors_a} of {ended_a} in the baseline"
    word, note = None, ""
    if new:
        word, note = WORSE, f"errors that the baseline has not: {', '.join(new[:KINDS_SHOWN])}{' and more' if len(new) > KINDS_SHOWN else ''}; {told}"
    elif differs:
        word, note = (WORSE if more else BETTER), told
    if word is not None and (withheld or min(len(a), len(b)) < MIN_RUNS):
        word = NOT_TESTED
    return ErrorVerdict(errors_a, ended_a, errors_b, ended_b, new[:KINDS_SHOWN], p, word, note)


def _kinds(levels: Sequence[Mapping[str, Any]]) -> set[str]:
    return {kind[:80] for level in levels for kind, count in readings.mapping(level.get("errors_by_kind")).items()
            if isinstance(kind, str) and readings.count(count)}
