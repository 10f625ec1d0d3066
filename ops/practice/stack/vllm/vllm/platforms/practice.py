"""The practice box as the server sees it: its speed, its faults, and the simulated GPUs' memory.

The box is the folder that `PRACTICE_BOX` names; without it the server runs at speed 1 and holds no simulated memory.
`box.json` there is read once, at process start:

    {"speed": 1.0, "port": 8000, "faults": {}}

Faults, for tests and demonstrations:

    crash_at: PHASE     the phase raises torch.OutOfMemoryError (phases: see v1/worker/gpu_worker.py PHASES)
    stall_at: PHASE     the phase never ends, without a log line
    leave_worker: true  one worker outlives the server and keeps its GPU's memory (until it is killed, 600 s at most)
    ignore_sigterm: true    the healthy server does not react to SIGTERM
    gibberish: true     healthy, but every answer is "!!!!"
    version: TEXT       the faults above hold only for versions that contain TEXT
"""

import json
import mmap
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm.utils.system_utils import start_ticks
from vllm.version import __version__

GPU_MIB = 97887
SEGMENT_BYTES = 256 * 1024
IDLE_POWER_W = 14.0
IDLE_TEMPERATURE_C = 30.0
_POWER_SPREAD_W = (0.0, 6.5, 11.0, 8.0, -3.0, 3.5, 10.0, 1.0)  # cards of one box differ a little
_WARM_POWER_W = 74.0  # memory filled, clocks up, nothing to do


@dataclass
class Box:
    """Folder and settings of the practice box; `root` is None where there is no box."""

    root: Path | None = None
    speed: float = 1.0
    faults: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Box":
        """Reads box.json. A file that is missing means the defaults; one that is broken is an error."""
        folder = os.environ.get("PRACTICE_BOX")
        if not folder:
            return cls()
        root = Path(folder)
        try:
            raw = json.loads((root / "box.json").read_text())
        except FileNotFoundError:
            raw = {}
        faults = dict(raw.get("faults") or {})
        if faults.pop("version", "") not in __version__:
            faults = {}
        return cls(root=root, speed=float(raw.get("speed", 1.0)), faults=faults)

    @property
    def cache(self) -> Path | None:
        """Where compiled graphs are kept, or None without a box."""
        return self.root / "cache" / "torch_compile_cache" if self.root else None

    @property
    def shm(self) -> Path | None:
        """What stands for /dev/shm, or None without a box."""
        return self.root / "shm" if self.root else None

    def sleep(self, seconds: float) -> None:
        """`seconds` of a server at speed 1."""
        time.sleep(seconds / self.speed)

    def reaches(self, phase: str) -> None:
        """Called as a phase of the start begins: crashes or stalls there if the box says so."""
        if self.faults.get("stall_at") == phase:
            while True:
                time.sleep(3600)
        if self.faults.get("crash_at") == phase:
            from torch import OutOfMemoryError

            raise OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of 94.97 GiB of which 412.31 MiB is free. "
                f"(practice fault: crash_at {phase})"
            )


class SharedSegment:
    """The ring buffer by which the engine talks to its workers: a file of shared memory, open and mapped as long as the server lives, then removed.

    As with the real one, a server that is killed leaves it behind; its processes have all inherited it.
    """

    def __init__(self, box: Box) -> None:
        self.path: Path | None = None
        if box.shm is None:
            return
        box.shm.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.path = box.shm / f"psm_{os.urandom(4).hex()}"
        self.file = self.path.open("xb+")
        self.file.write(bytes(SEGMENT_BYTES))
        self.file.flush()
        self.memory = mmap.mmap(self.file.fileno(), SEGMENT_BYTES)

    def close(self) -> None:
        """Unmaps and removes it."""
        if self.path is not None:
            self.memory.close()
            self.file.close()
            self.path.unlink(missing_ok=True)


class GpuHolder:
    """The memory that this server's workers hold, and the load that they put on their GPUs.

    One file for the server, `gpus/<pid>.json`, replaced whole. A worker's memory counts as long as that worker lives (pid and
    start time), as on a real GPU; so nothing needs to clean up after a SIGKILL.
    """

    def __init__(self, box: Box) -> None:
        self.box = box
        self.path = box.root / "gpus" / f"{os.getpid()}.json" if box.root else None
        self.workers: list[dict[str, Any]] = []
        self.mib = 0.0
        self.unwritten = False
        self.utilization = 0.0
        self.power_w = _WARM_POWER_W
        self._heat = IDLE_TEMPERATURE_C
        self._stamp = time.monotonic()
        self._written = 0.0
        if self.path:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._drop_dead()

    def _drop_dead(self) -> None:
        """Removes what earlier servers left whose workers have all ended."""
        for path in self.path.parent.glob("*.json"):
            try:
                workers = json.loads(path.read_text())["workers"]
            except (OSError, ValueError, KeyError):
                workers = []
            if not any(start_ticks(worker["pid"]) == worker["ticks"] for worker in workers):
                path.unlink(missing_ok=True)

    def set_workers(self, pids: list[int]) -> None:
        """The worker of rank i holds memory of GPU i."""
        now = time.time()
        self.workers = [{"gpu": rank, "pid": pid, "ticks": start_ticks(pid), "started_at": now, "command": f"VLLM::Worker_TP{rank}"}
                        for rank, pid in enumerate(pids)]

    def set_memory(self, mib: float) -> None:
        """MiB on each GPU. Written at most ten times a second; until then `unwritten` is true."""
        self.mib = mib
        self.unwritten = True
        if time.monotonic() - self._written > 0.1:
            self.write()

    def set_load(self, share: float) -> None:
        """`share` of the box's highest throughput, 0 to 1: utilization and power follow it, temperature follows power slowly."""
        self.utilization = 0.0 if share <= 0 else 82.0 + 13.0 * share**0.4
        self.power_w = _WARM_POWER_W if share <= 0 else 210.0 + 215.0 * share**0.6
        self.write()

    def write(self) -> None:
        """Replaces the holder file."""
        if not self.path:
            return
        self.unwritten = False
        now = time.monotonic()
        goal = IDLE_TEMPERATURE_C + (self.power_w - IDLE_POWER_W) * 0.082
        self._heat += (goal - self._heat) * min(1.0, (now - self._stamp) * self.box.speed / 25.0)
        self._stamp = self._written = now
        rows = []
        for worker in self.workers:
            gpu = worker["gpu"]
            rows.append({**worker, "mib": int(self.mib) + (17 * gpu) % 41 if self.mib else 0})
        state = {
            "pid": os.getpid(), "uid": os.getuid(), "workers": rows, "utilization": round(self.utilization, 1),
            "power_w": [round(self.power_w + _POWER_SPREAD_W[gpu % 8], 1) for gpu in range(len(rows))],
            "temperature_c": [round(self._heat + (5 * gpu) % 4, 1) for gpu in range(len(rows))],
        }
        half = self.path.with_suffix(".tmp")
        half.write_text(json.dumps(state, separators=(",", ":")))
        half.replace(self.path)

    def release(self) -> None:
        """Takes the file away, unless a worker was left behind that still holds memory."""
        if self.path and not any(start_ticks(worker["pid"]) == worker["ticks"] for worker in self.workers):
            self.path.unlink(missing_ok=True)
