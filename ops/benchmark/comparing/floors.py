"""The noise floor: by how much the same configuration differs from itself (A/A), per metric and level, measured or by default."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ops.benchmark.comparing import readings, student
from ops.benchmark.comparing.verdicts import METRICS, MIN_RUNS

MEASURED, DEFAULT = "measured", "default"
_T = student.quantile(0.95, 4)  # of two sides of three runs with equal spread
ROWS_MAX = 2000


def floor_from_runs(values: Iterable[Any]) -> float | None:
    """Half of the 95 % interval of the ratio of two sides of three runs each of the same configuration, as a share: t(.975, 4) * s * sqrt(2/3), with
    s the standard deviation of the logs of these run values. None below three values: that is no spread."""
    logs = [math.log(value) for value in values if readings.positive(value) is not None]
    return _T * math.sqrt(student.variance(logs)) * math.sqrt(2 / 3) if len(logs) >= MIN_RUNS else None


def floor_rows(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """[{load, value, metric, half_width, runs}] of runs of one configuration (of one kind of sweep, on one stack): the data of NOISE_FLOOR.

    Levels that did not run to their end, were never full, or of which more than 1 % of the requests failed, are left out."""
    found: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for document in documents:
        for level in readings.levels(document):
            sound = readings.whole(level) and not readings.never_full(level)
            if sound and (readings.error_rate(level) or 0.0) <= readings.COMPARABLE_ERROR_RATE:
                found.setdefault(readings.place(level), []).append(level)
    rows = []
    for (load, value), levels in sorted(found.items()):
        for metric in METRICS:
            values = [number for level in levels if (number := readings.positive(level.get(metric))) is not None]
            half_width = floor_from_runs(values)
            if half_width is not None:
                rows.append({"load": load, "value": value, "metric": metric, "half_width": half_width, "runs": len(values)})
    return rows


class Floors:
    """Half-widths by level and metric. `rows` as `floor_rows` gives them, or as they come out of the database or a file: what is no row, or no
    number between 0 and 10, is left out. `label` says of what they are ("gpu01, 30 Nov")."""

    def __init__(self, rows: Iterable[Any] = (), *, label: str = "") -> None:
        self.label = label
        self._known: dict[tuple[str, float, str], float] = {}
        for row, _ in zip(rows, range(ROWS_MAX), strict=False):
            if not isinstance(row, Mapping) or not isinstance(row.get("load"), str) or row.get("metric") not in METRICS:
                continue
            value, half_width = readings.finite(row.get("value")), readings.finite(row.get("half_width"))
            if value is not None and half_width is not None and 0 <= half_width <= 10:
                self._known[row["load"], value, row["metric"]] = half_width

    @classmethod
    def of(cls, given: Floors | Iterable[Any] | None) -> Floors:
        return given if isinstance(given, Floors) else cls(given or ())

    def lookup(self, load: str, value: float, metric: str) -> tuple[float, str]:
        """(half-width as a share, "measured" | "default")."""
        measured = self._known.get((load, float(value), metric))
        return (measured, MEASURED) if measured is not None else (METRICS[metric].floor, DEFAULT)

    def __len__(self) -> int:
        return len(self._known)

    def rows(self) -> list[dict[str, Any]]:
        return [{"load": load, "value": value, "metric": metric, "half_width": half} for (load, value, metric), half in sorted(self._known.items())]
