"""What a GPU reading is, and where readings come from: NVML on a real node, the practice box on a practice node."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU. Fields that cannot be read are None, never 0."""

    pid: int
    used_bytes: int | None
    user: str | None = None
    command: str | None = None
    service: str | None = None  # name of the service that it belongs to; None: unclaimed
    started_at: float | None = None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. A reading that cannot be had is None, never 0.

    `used_bytes` is NVML's memory version 2, which leaves the driver's reserved part out, so an idle GPU reads 0.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    utilization: float | None = None  # percent of time, 0 to 100
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None  # of the streaming multiprocessors, now
    clock_max_mhz: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    compute_capability: str | None = None  # "12.0"
    throttle: list[str] = field(default_factory=list)
    error: str | None = None  # e.g. "GPU is lost"
    processes: list[GpuProcess] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """All GPUs of a node at one moment; `problem` says why there are none (no driver, say), else None."""

    gpus: list[GpuReading]
    driver: str | None = None
    cuda: str | None = None
    source: str = "nvml"  # or "practice"
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class GpuSource(Protocol):
    """Something that can be read once a second."""

    def read(self) -> GpuSnapshot: ...
