"""Counts what the server does, and writes it in Prometheus' text form."""

import gc
import os
import platform
import resource
import time
from bisect import bisect_left
from typing import Any

from vllm.v1.metrics.families import FAMILIES, Family

_FIXED = {"engine": "0"}


class Histogram:
    """Counts by bucket, with sum and number."""

    __slots__ = ("bounds", "counts", "number", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.number = 0

    def observe(self, value: float, times: int = 1) -> None:
        """`value`, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.number += times


class Summary:
    """A sum and a number."""

    __slots__ = ("number", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.number = 0

    def observe(self, value: float) -> None:
        self.total += value
        self.number += 1


def length_buckets(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `longest`."""
    bounds: list[float] = []
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > longest:
                return tuple(bounds)
            bounds.append(step * power)
        power *= 10


class Registry:
    """All series of this server, by family and by the values of its own labels."""

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.model_name = model_name
        self.started = time.time()
        self.families = {family.name: family for family in FAMILIES}
        self._lengths = length_buckets(max_model_len)
        self._series: dict[str, dict[tuple[str, ...], Any]] = {}
        self._created: dict[tuple[str, tuple[str, ...]], float] = {}
        self.info: dict[str, str] = {}
        for family in FAMILIES:
            self._series[family.name] = {}
            own = [name for name in family.labels if name not in {"engine", "model_name"}]
            for values in family.series or (((),) if not own else ()):
                self._make(family, values)

    def _make(self, family: Family, values: tuple[str, ...]) -> Any:
        bounds = self._lengths if family.buckets == "lengths" else family.buckets
        made: Any = Histogram(bounds) if family.kind == "histogram" else Summary() if family.kind == "summary" else 0.0
        self._series[family.name][values] = made
        self._created[family.name, values] = time.time()
        return made

    def add(self, name: str, amount: float = 1.0, values: tuple[str, ...] = ()) -> None:
        """Adds to a counter."""
        series = self._series[name]
        if values not in series:
            self._make(self.families[name], values)
        series[values] += amount

    def set(self, name: str, value: float, values: tuple[str, ...] = ()) -> None:
        """Sets a gauge."""
        self._series[name][values] = value

    def observe(self, name: str, value: float, values: tuple[str, ...] = ()) -> None:
        """One observation of a histogram or summary."""
        self.get(name, values).observe(value)

    def get(self, name: str, values: tuple[str, ...] = ()) -> Any:
        """The histogram or summary itself, made if it is new; for a counter or gauge, its number."""
        series = self._series[name]
        return series[values] if values in series else self._make(self.families[name], values)

    def render(self) -> str:
        """All of /metrics."""
        lines = _process_lines(self.started)
        for family in FAMILIES:
            if family.name == "http_requests_total":
                lines += self._info_lines()
            if not self._series[family.name]:
                continue
            self._render_family(family, lines)
        return "\n".join(lines) + "\n"

    def _render_family(self, family: Family, lines: list[str]) -> None:
        name = family.name
        base = name.removesuffix("_total") if family.kind == "counter" else name
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
        for values, series in self._series[name].items():
            labels = self._labels(family, values)
            if isinstance(series, Histogram):
                running = 0
                for bound, count in zip((*series.bounds, None), series.counts, strict=True):
                    running += count
                    edge = "+Inf" if bound is None else str(float(bound))
                    lines.append(f"{name}_bucket{_braces({**labels, 'le': edge})} {float(running)}")
            if isinstance(series, (Histogram, Summary)):
                lines += [f"{name}_count{_braces(labels)} {float(series.number)}", f"{name}_sum{_braces(labels)} {series.total}"]
            else:
                lines.append(f"{name}{_braces(labels)} {float(series)}")
        if family.kind != "gauge":
            lines += [f"# HELP {base}_created {family.help}", f"# TYPE {base}_created gauge"]
            lines += [f"{base}_created{_braces(self._labels(family, values))} {self._created[name, values]}" for values in self._series[name]]

    def _labels(self, family: Family, values: tuple[str, ...]) -> dict[str, str]:
        own = iter(values)
        return {label: _FIXED.get(label) or (self.model_name if label == "model_name" else next(own)) for label in family.labels}

    def _info_lines(self) -> list[str]:
        name = "vllm:cache_config_info"
        return [f"# HELP {name} Information of the LLMEngine CacheConfig", f"# TYPE {name} gauge", f"{name}{_braces(self.info)} 1.0"]


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
    return f"{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _process_lines(started: float) -> list[str]:
    """What prometheus_client tells of any Python process."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str, series: list[tuple[dict[str, str], float]]) -> None:
        lines.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        lines.extend(f"{name}{_braces(labels)} {float(value)}" for labels, value in series)

    stats = [({"generation": str(number)}, generation) for number, generation in enumerate(gc.get_stats())]
    family("python_gc_objects_collected_total", "counter", "Objects collected during gc", [(labels, g["collected"]) for labels, g in stats])
    family("python_gc_objects_uncollectable_total", "counter", "Uncollectable objects found during GC",
           [(labels, g["uncollectable"]) for labels, g in stats])
    family("python_gc_collections_total", "counter", "Number of times this generation was collected",
           [(labels, g["collections"]) for labels, g in stats])
    major, minor, patch = platform.python_version_tuple()
    family("python_info", "gauge", "Python platform information",
           [({"implementation": platform.python_implementation(), "major": major, "minor": minor, "patchlevel": patch,
              "version": platform.python_version()}, 1)])
    with open("/proc/self/statm", "rb") as file:
        pages = [int(number) for number in file.read().split()]
    page = resource.getpagesize()
    family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", [({}, pages[0] * page)])
    family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", [({}, pages[1] * page)])
    family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", [({}, started)])
    family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", [({}, time.process_time())])
    family("process_open_fds", "gauge", "Number of open file descriptors.", [({}, len(os.listdir("/proc/self/fd")))])
    family("process_max_fds", "gauge", "Maximum number of open file descriptors.", [({}, resource.getrlimit(resource.RLIMIT_NOFILE)[0])])
    return lines
