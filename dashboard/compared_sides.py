"""Which runs are held against each other: sides, as an address names them or as ticks in a list make them.

`side=ID,ID&side=ID`: the first is the baseline. Several runs of one side are repeats of the same thing. A side has one colour and one marker.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard import practice_reference
from dashboard.models import BenchmarkRun
from ops.benchmark.comparing.readings import OURS
from ops.jobs.errors import BadInput

MAX_SIDES = 8
MAX_RUNS = 64
NAMES = "ABCDEFGH"
COLOURS = ("series-base", "series-1", "series-2", "series-3", "series-4", "series-5", "series-6", "series-7")
MARKERS = ("square", "circle", "diamond", "triangle-up", "x", "star", "cross", "triangle-down")


@dataclass
class Chosen:
    """One side of a comparison."""

    name: str  # A is the baseline
    runs: list[BenchmarkRun]
    documents: list[dict[str, Any]] = field(default_factory=list)

    @property
    def at(self) -> int:
        return NAMES.index(self.name)

    @property
    def imported(self) -> bool:
        return self.runs[0].origin != OURS

    @property
    def practice(self) -> bool:
        return any(is_practice(run) for run in self.runs)

    @property
    def ids(self) -> str:
        return ",".join(str(run.pk) for run in self.runs)


def is_practice(run: BenchmarkRun) -> bool:
    """Its numbers are the practice box's, or the published figures that only these may be held against."""
    return run.practice or run.origin == practice_reference.ORIGIN


def read_ids(values: Iterable[str]) -> list[list[uuid.UUID]]:
    """Ids of runs, a list a side; a run stands where it was named first. Raises BadInput."""
    sides: list[list[uuid.UUID]] = []
    seen: set[uuid.UUID] = set()
    for value in values:
        side = []
        for text in filter(None, value.split(",")):
            try:
                found = uuid.UUID(text.strip())
            except ValueError as error:
                raise BadInput(f"`{text[:60]}` is not the id of a run", hint="Choose runs in the list of benchmarks") from error
            if found not in seen:
                seen.add(found)
                side.append(found)
        if side:
            sides.append(side)
    not_too_many(len(sides), len(seen))
    return sides


def not_too_many(sides: int, runs: int) -> None:
    """Raises BadInput where there are more sides than colours, or more runs than one page should read."""
    if sides > MAX_SIDES:
        raise BadInput(f"{sides} sides are too many to be told apart; at most {MAX_SIDES} can be compared",
                       why="Each side has a colour and a marker of its own", hint="Choose fewer runs, or compare them in two parts")
    if runs > MAX_RUNS:
        raise BadInput(f"{runs} runs are more than one comparison can hold; at most {MAX_RUNS} can", hint="Choose fewer runs")


def find(sides: Sequence[Sequence[uuid.UUID]]) -> tuple[list[Chosen], int]:
    """The sides with their runs and levels (without `detail`), and how many runs are not here any more."""
    wanted = [one for side in sides for one in side]
    known = BenchmarkRun.objects.select_related("service", "service__node", "job").prefetch_related("levels").in_bulk(wanted)
    kept = [runs for side in sides if (runs := [known[one] for one in side if one in known])]
    return [Chosen(NAMES[n], runs) for n, runs in enumerate(kept)], len(wanted) - len(known)


def grouped(ids: Sequence[uuid.UUID]) -> list[list[BenchmarkRun]]:
    """Runs as sides: equal service, model, stack, kind of sweep and tool are one side. In order of time, the oldest first.

    Runs of which the stack or the kind is not known are sides of their own, unless one job or one file made them.
    """
    sides: dict[tuple[Any, ...], list[BenchmarkRun]] = {}
    for run in BenchmarkRun.objects.filter(pk__in=ids).order_by("started_at", "group_index"):
        same = (run.stack, run.sweep_key) if run.stack and run.sweep_key else (run.group or run.pk,)
        service = run.service_id or (run.node_name, run.service_name) if run.service_name else run.endpoint
        sides.setdefault((service, run.model, run.practice, run.origin, run.tool, *same), []).append(run)
    not_too_many(len(sides), len(ids))
    return list(sides.values())


def apart(runs: Sequence[BenchmarkRun]) -> list[list[BenchmarkRun]]:
    """Runs that are all of one side, held against each other: each job (or file) a side, else each run; one side where that would be too many."""
    jobs: dict[Any, list[BenchmarkRun]] = {}
    for run in runs:
        jobs.setdefault(run.group or run.pk, []).append(run)
    made = list(jobs.values()) if len(jobs) > 1 else [[run] for run in runs]
    return made if len(made) <= MAX_SIDES else [list(runs)]


def mixed(sides: Sequence[Chosen]) -> BadInput | None:
    """Why these cannot stand in one comparison: practice numbers beside real ones. None where they can."""
    kinds = {is_practice(run) for side in sides for run in side.runs}
    if len(kinds) < 2:
        return None
    return BadInput("Practice runs are never compared with real ones", why="The practice box makes its numbers up: it paces its tokens so that the "
                    "story's table comes out", hint="Keep either the practice runs or the real ones")


def address(sides: Sequence[Chosen], *, name: str = "compare", fmt: str = "", **more: str) -> str:
    """The page (or the export) that shows this comparison."""
    path = reverse(name, args=[fmt] if fmt else [])
    query = [*(("side", side.ids) for side in sides), *((key, value) for key, value in more.items() if value)]
    return f"{path}?{urlencode(query, safe=',:')}" if query else path
