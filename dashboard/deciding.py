"""How many more runs of a side a button measures: one answer for the job's page and the compare page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ops.benchmark.comparing.verdicts import MIN_RUNS, NOT_DECIDED

MORE_AT_ONCE = 12  # runs of one job, so of one press of a button
SIDE_MOST = 32  # runs of one side: two such sides fit one comparison


@dataclass(frozen=True, slots=True)
class MoreRuns:
    """`now`: runs of the side that one button measures (0: none). `needed`: those that would decide if the spread stays what it is, which may be
    more than one job measures."""

    now: int = 0
    needed: int = 0


def more_runs(have: int, verdicts: Iterable[Mapping[str, Any]]) -> MoreRuns:
    """For a side of `have` runs: what it lacks of the three that a verdict takes, else the most that any undecided one of its `verdicts`
    (Verdict.as_dict()) asks for."""
    needed = MIN_RUNS - have
    if needed <= 0:
        needed = max((one["more_runs"] for one in verdicts if one.get("word") == NOT_DECIDED and one.get("more_runs")), default=0)
    return MoreRuns(max(0, min(needed, MORE_AT_ONCE, SIDE_MOST - have)), needed)
