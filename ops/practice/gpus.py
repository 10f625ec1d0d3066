"""The practice box's eight GPUs: which memory do its servers hold right now?

Each practice server writes one holder file, `<root>/gpus/<pid>.json`, replaced whole: its workers (one for each GPU) with their
memory, and the load. A worker's memory counts as long as that very worker (pid and start time) lives, as on a real GPU, so a
SIGKILL frees it and a worker left behind does not. A read costs one small file and eight looks into /proc, some 0.15 ms.
"""

from __future__ import annotations

import json
import os
import pwd
from functools import lru_cache
from pathlib import Path
from typing import Any

from ops.gpus.source import MIB, GpuProcess, GpuReading, GpuSnapshot

COUNT = 8
NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
TOTAL_MIB = 97887
DRIVER = "580.95.05"
CUDA = "13.0"
POWER_LIMIT_W = 600.0
CLOCK_MAX_MHZ, CLOCK_BUSY_MHZ, CLOCK_IDLE_MHZ = 2430, 2280, 180
COMPUTE_CAPABILITY = "12.0"
_IDLE_POWER_W = (13.8, 14.6, 15.1, 14.2, 13.5, 14.0, 14.9, 13.9)
_IDLE_TEMPERATURE_C = (29.0, 31.0, 32.0, 30.0, 29.0, 30.0, 32.0, 30.0)


class PracticeSource:
    """Reads the simulated GPUs of the practice box in `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(root) / "gpus"

    def read(self) -> GpuSnapshot:
        """All eight GPUs now. A box without servers has eight idle ones."""
        processes: list[list[GpuProcess]] = [[] for _ in range(COUNT)]
        load: list[tuple[float, float, float] | None] = [None] * COUNT
        for holder in self._holders():
            user = _user(holder["uid"])
            for place, worker in enumerate(holder["workers"]):
                gpu = worker["gpu"]
                if gpu >= COUNT or not _lives(worker["pid"], worker["ticks"]):
                    continue
                load[gpu] = (holder["utilization"], holder["power_w"][place], holder["temperature_c"][place])
                if worker["mib"]:
                    processes[gpu].append(GpuProcess(pid=worker["pid"], used_bytes=worker["mib"] * MIB, user=user, command=worker["command"],
                                                     started_at=worker["started_at"]))
        readings = [_reading(index, processes[index], load[index]) for index in range(COUNT)]
        return GpuSnapshot(gpus=readings, driver=DRIVER, cuda=CUDA, source="practice")

    def _holders(self) -> list[dict[str, Any]]:
        found = []
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208  (read once a second and more: names are all that is needed)
        except FileNotFoundError:
            return []
        for name in names:
            if not name.endswith(".json"):
                continue
            try:
                found.append(json.loads((self.folder / name).read_bytes()))
            except FileNotFoundError:  # its server ended just now
                continue
        return found


def _reading(index: int, processes: list[GpuProcess], load: tuple[float, float, float] | None) -> GpuReading:
    utilization, power_w, temperature_c = load or (0.0, _IDLE_POWER_W[index], _IDLE_TEMPERATURE_C[index])
    return GpuReading(
        index=index, uuid=f"GPU-practice-{index}", name=NAME, total_bytes=TOTAL_MIB * MIB,
        used_bytes=sum(process.used_bytes or 0 for process in processes), utilization=utilization, temperature_c=temperature_c, power_w=power_w,
        power_limit_w=POWER_LIMIT_W, clock_mhz=CLOCK_BUSY_MHZ if utilization else CLOCK_IDLE_MHZ, clock_max_mhz=CLOCK_MAX_MHZ,
        pcie_gen=5, pcie_width=16, pcie_max_width=16, compute_capability=COMPUTE_CAPABILITY, processes=processes,
    )


def _lives(pid: int, ticks: int) -> bool:
    """Whether that very process lives: same start time, and not a zombie. Cheaper than the general look, which this is called 8 times a read for."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return False
    try:
        fields = os.read(descriptor, 1024).rpartition(b")")[2].split()
    except ProcessLookupError:  # it ended between open and read
        return False
    finally:
        os.close(descriptor)
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == ticks


@lru_cache(maxsize=16)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
