"""How long will a warmup take? From this service's own earlier warmups, as `state.json` keeps them: `{"at", "release", "total_s", "cache", "phases":
{phase: seconds}, "bars": {phase: progress bars}}`, oldest first.

Only warmups with the same state of the compile cache tell anything of this one: a cold cache costs minutes. Before there is one, there is no
estimate (None), and no guess from other services or other machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ops.services.milestones import PHASES, POSITION, Parser, Phase

PACE_LEAST, PACE_MOST = 0.8, 1.25  # a disk that was cold makes loading much slower, and compiling not at all
PACE_SHARE = 0.25  # of the difference goes on: measured, it is good where each phase varies by itself and where all do alike
CONSIDERED = 7  # so many of the newest: what changed long ago (a disk, a driver, a model) is forgotten


def estimate_s(parser: Parser, elapsed_s: float, history: Sequence[dict[str, Any]], release: str | None = None) -> float | None:
    """Seconds from process start to the first answer, or None ("no estimate yet").

    What passed, plus what is left of the phase that runs, plus the medians of the phases after it, at a part of the difference in pace that the
    phases before have shown: whether a slow start goes on being slow is not known. As long as the log does not say whether the cache hits, the
    state is taken that is likely for this `release`.
    """
    cache = parser.cache if parser.cache != "unknown" else expected_cache(history, release)
    known = same_state(history, cache)
    if not known:
        return None
    here = parser.current
    later = [name for name, _ in PHASES[POSITION[here.phase] + 1 :]]
    pace = _pace(parser, known)
    return elapsed_s + _left_s(here, elapsed_s, known, pace) + pace * sum(_usual_s(known, name) for name in later)


def _pace(parser: Parser, known: Sequence[dict[str, Any]]) -> float:
    """By what the usual times are to be multiplied: the fourth root of how much longer than usual the phases took that are over."""
    usual = sum(_usual_s(known, phase.phase) for phase in parser.phases[:-1])
    return min(max(parser.current.began_s / usual, PACE_LEAST), PACE_MOST) ** PACE_SHARE if usual > 0 else 1.0


def _left_s(here: Phase, elapsed_s: float, known: Sequence[dict[str, Any]], pace: float) -> float:
    """Of the phase that runs. Where it tells its progress, this run's own speed counts the more the further it is; else the usual time counts."""
    usual = pace * _usual_s(known, here.phase)
    in_phase = max(0.0, elapsed_s - here.began_s)
    share = _share(here, known)
    if share is None:
        return max(0.0, usual - in_phase)
    by_now = max(0.0, here.moved_s - here.began_s)  # when that share was reached
    whole = by_now + (1 - share) * usual  # this run's own by_now / share, weighed by the share, and the usual time, weighed by the rest
    return max(0.0, whole * (1 - share) - max(0.0, in_phase - by_now))


def _share(here: Phase, known: Sequence[dict[str, Any]]) -> float | None:
    """How much of the phase is done, 0 to 1; None where it does not tell. A phase may draw several progress bars, as many as in earlier warmups."""
    if here.done is None or not here.total:
        return None
    counts = [count for one in known if (count := (one.get("bars") or {}).get(here.phase))]
    if not counts and here.phase != "load":
        return None
    bars = max(median(counts) if counts else 1, here.bars)
    return min(1.0, (here.bars - 1 + here.done / here.total) / bars)


def expected_cache(history: Sequence[dict[str, Any]], release: str | None = None) -> str:
    """The state of the compile cache that a start is likely to find: of a release that never started here, as the newest first start of another
    release found it; else as the last warmup found it."""
    if not history:
        return "unknown"
    if release is not None and all(one.get("release") != release for one in history):
        seen, first = {history[0].get("release")}, None  # how the oldest one found it is not told by its own release
        for one in history[1:]:
            if one.get("release") not in seen:
                seen.add(one.get("release"))
                first = one
        if first is not None:
            return str(first.get("cache", "unknown"))
    return str(history[-1].get("cache", "unknown"))


def same_state(history: Sequence[dict[str, Any]], cache: str) -> list[dict[str, Any]]:
    """The newest earlier warmups with this state of the cache, oldest first."""
    return [one for one in history if one.get("cache", "unknown") == cache and one.get("phases")][-CONSIDERED:]


def _usual_s(known: Sequence[dict[str, Any]], phase: str) -> float:
    return median(float(one["phases"].get(phase, 0.0)) for one in known)


def usual_phases(history: Sequence[dict[str, Any]], cache: str) -> dict[str, float]:
    """Median seconds of each phase that earlier warmups with this state of the cache had; empty without any."""
    known = same_state(history, cache)
    names = {name for one in known for name in one["phases"]}
    return {name: median(one["phases"][name] for one in known if name in one["phases"]) for name in names}


def compared(history: Sequence[dict[str, Any]], cache: str) -> dict[str, Any] | None:
    """{count, median_s, last_s} of earlier warmups with this state of the cache; None if there is none."""
    totals = [float(one["total_s"]) for one in same_state(history, cache) if one.get("total_s") is not None]
    return {"count": len(totals), "median_s": round(median(totals), 3), "last_s": round(totals[-1], 3)} if totals else None
