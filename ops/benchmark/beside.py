"""What is read beside the load, once a second, in a thread of its own: the service's GPUs, and the server's own `/metrics`.

Energy is the integral of power over a level's window, so that tokens per joule and tokens per second tell of the same seconds.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from ops.benchmark import server_metrics
from ops.benchmark.server_metrics import ServerMetrics, Snapshot
from ops.jobs.errors import OpsError

S = 1e9
LONGEST_GAP_S = 10.0  # with fewer looks than that, a window's energy is not known
LOOK_WAITS_S = 0.3
LOOK_MOST_S = 5.0  # a server that is only slow to begin has timed out before
FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU of the service at one moment. `power_w` in watts, `utilization` in percent of time, `used_bytes` of memory, `clock_mhz` of its
    multiprocessors; None: not reported."""

    index: int
    power_w: float | None = None
    utilization: float | None = None
    used_bytes: int | None = None
    clock_mhz: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"index": self.index, "power_w": self.power_w, "utilization": self.utilization, "used_bytes": self.used_bytes}


Gpus = Callable[[], Sequence[GpuSample]]


@dataclass(slots=True)
class BesideLevel:
    """All looks of one level, in order: `gpus` as (perf_counter_ns, samples), `server` as snapshots. `problem`: why GPUs could not be read, or ""."""

    gpus: list[tuple[int, tuple[GpuSample, ...]]] = field(default_factory=list)
    server: list[Snapshot] = field(default_factory=list)
    problem: str = ""

    @property
    def power_w(self) -> float | None:
        """All GPUs together at the newest look; None where one of them does not say."""
        return total_power(self.gpus[-1][1]) if self.gpus else None

    def latest_gpus(self) -> list[dict[str, Any]] | None:
        """The `gpus` part of a live second."""
        return [sample.as_dict() for sample in self.gpus[-1][1]] if self.gpus else None

    def latest_server(self) -> dict[str, Any] | None:
        """The `server` part of a live second: gauges of the newest look, shares since the level's start."""
        return server_metrics.live(self.server[-1], self.server[0]) if self.server else None

    def energy_j(self, start: int, end: int) -> float | None:
        """Joules of all GPUs from `start` to `end` (perf_counter_ns); None where that is not known."""
        return energy_j([(at, total_power(samples)) for at, samples in self.gpus], start, end)

    def of_window(self, start: int, end: int) -> dict[str, Any]:
        """What a level's numbers get of it: `energy_j`, `power_mean_w` and `gpus` over its steady window, `server` over all of the level."""
        energy = self.energy_j(start, end)
        return {"energy_j": energy, "power_mean_w": energy / ((end - start) / S) if energy is not None and end > start else None,
                "gpus": self._gpus_of(start, end), "server": server_metrics.of_level(self.server)}

    def _gpus_of(self, start: int, end: int) -> list[dict[str, Any]] | None:
        """Each GPU's mean power, utilization and clock, and the most memory, over the looks of a window (or the one nearest to it)."""
        rows = within(self.gpus, start, end)
        if not rows:
            return None
        by_gpu: dict[int, list[tuple[int, GpuSample]]] = {}
        for at, samples in rows:
            for sample in samples:
                by_gpu.setdefault(sample.index, []).append((at, sample))
        told = []
        for index, looks in sorted(by_gpu.items()):
            energy = energy_j([(at, one.power_w) for at, one in looks], start, end)
            used = [one.used_bytes for _, one in looks if one.used_bytes is not None]
            clocks = [one.clock_mhz for _, one in looks if one.clock_mhz is not None]
            busy = [one.utilization for _, one in looks if one.utilization is not None]
            told.append({"index": index, "power_mean_w": energy / ((end - start) / S) if energy is not None and end > start else None,
                         "utilization_mean": sum(busy) / len(busy) if busy else None, "used_bytes_max": max(used, default=None),
                         "clock_mean_mhz": sum(clocks) / len(clocks) if clocks else None})
        return told


def total_power(samples: Sequence[GpuSample]) -> float | None:
    """Watts of all; None where one does not say: a part of them would be taken for the whole."""
    watts = [sample.power_w for sample in samples]
    known = [value for value in watts if value is not None]
    return sum(known) if known and len(known) == len(watts) else None


def within(rows: Sequence[tuple[int, Any]], start: int, end: int) -> list[tuple[int, Any]]:
    """The rows with start <= at <= end, with the last before and the first after them where there are any: the edges lie between two looks."""
    stamps = [at for at, _ in rows]
    low, high = bisect_left(stamps, start), bisect_right(stamps, end)
    return list(rows[max(0, low - 1):high + 1])


def energy_j(rows: Sequence[tuple[int, float | None]], start: int, end: int) -> float | None:
    """The integral of watts over [start, end] in perf_counter_ns: straight lines between looks, the nearest look's value beyond them.

    None without looks, with an unknown one among them, or where looks are more than LONGEST_GAP_S apart.
    """
    rows = within(rows, start, end)
    if end <= start or not rows:
        return None
    known = [(at, watts) for at, watts in rows if watts is not None]
    if len(known) < len(rows):
        return None
    gap = LONGEST_GAP_S * S
    if known[0][0] - start > gap or end - known[-1][0] > gap or any(after[0] - before[0] > gap for before, after in pairwise(known)):
        return None
    points = [(start, _at(known, start)), *((at, watts) for at, watts in known if start < at < end), (end, _at(known, end))]
    return sum((b[0] - a[0]) / S * (a[1] + b[1]) / 2 for a, b in pairwise(points))


def _at(known: Sequence[tuple[int, float]], moment: int) -> float:
    """Watts at a moment: between two looks on the line between them."""
    if moment <= known[0][0]:
        return known[0][1]
    for (before, low), (after, high) in pairwise(known):
        if before <= moment <= after:
            return low + (high - low) * (moment - before) / (after - before) if after > before else high
    return known[-1][1]


class GpusAndServer:
    """The `Beside` of a sweep (ops/benchmark/live_view.py): its service's GPUs, where `gpus` reads them, and its server's `/metrics`.

    Looks are made in a thread of its own, so that GPUs or a server that do not answer hold up no second of the level. `close` it at the end.
    """

    def __init__(self, gpus: Gpus | None = None, server: ServerMetrics | None = None, *, waits_s: float = LOOK_WAITS_S) -> None:
        self.level = BesideLevel()
        self._gpus, self._server, self._waits_s = gpus, server, waits_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="beside")
        self._look_under_way: Future[None] | None = None
        self._looks_since = 0

    def start(self, t0: int) -> None:
        """A level begins. Looks made since the last one's end are its first, so that its edges are known."""
        last = self.level
        self.level = BesideLevel(gpus=[row for row in last.gpus if t0 - row[0] < FRESH_S * S][-1:],
                                 server=[one for one in last.server if t0 - one.at < FRESH_S * S][-1:])

    def read(self) -> dict[str, Any]:
        """A look, waited for shortly (call it in a thread), and the newest values: fields of a live second, with the mean power so far."""
        if self._look_under_way is None or self._look_under_way.done():
            self._look_under_way, self._looks_since = self._thread.submit(self._look), perf_counter_ns()
        elif self._server is not None and perf_counter_ns() - self._looks_since > LOOK_MOST_S * S:
            self._server.end()  # it must not keep the GPUs' looks
        with contextlib.suppress(TimeoutError):
            self._look_under_way.result(self._waits_s)
        level = self.level
        stamps = [at for at, _ in level.gpus]
        energy = level.energy_j(stamps[0], stamps[-1]) if stamps else None
        return {"gpus": level.latest_gpus(), "server": level.latest_server(), "power_w": level.power_w,
                "power_so_far_w": energy / ((stamps[-1] - stamps[0]) / S) if energy is not None else level.power_w}

    def _look(self) -> None:
        level = self.level
        if self._gpus is not None:
            try:
                samples = tuple(self._gpus())
            except (OpsError, OSError) as error:
                level.problem = str(error) or type(error).__name__
            else:
                if samples:
                    level.gpus.append((perf_counter_ns(), samples))
        if self._server is not None and (snapshot := self._server.read()) is not None:
            level.server.append(snapshot)

    def summary(self, start: int, end: int) -> dict[str, Any]:
        """The level's `energy_j`, `power_mean_w`, `gpus` and `server` (BesideLevel.of_window)."""
        return self.level.of_window(start, end)

    def close(self) -> None:
        """Ends the thread and the connection; a look that is under way is ended, and waited for."""
        if self._server is not None:
            self._server.end()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._server is not None:
            self._server.close()
