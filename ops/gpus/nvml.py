"""GPU readings of a real node, by NVML (nvidia-ml-py). Every field is read on its own: what a board, or an older driver's library,
does not have is None, and a GPU that has fallen off the bus takes none of the others with it.

PCIe throughput is not read here: one call waits 20 ms, two a GPU, so 8 GPUs would take 0.3 s of every second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pynvml

from ops.gpus import processes
from ops.gpus.source import GpuProcess, GpuReading, GpuSnapshot

_NOT_HAVE = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
             pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_NO_DATA)
_NO_VALUE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE, for a process's memory

# Reasons of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that slow a GPU down; "idle" and "applications clocks" do not count.
THROTTLE = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000010: "sync boost",
    0x0000000000000020: "thermal (software)",
    0x0000000000000040: "thermal (hardware)",
    0x0000000000000080: "power brake",
}

_PROBLEMS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No NVIDIA driver is installed: its library libnvidia-ml.so.1 was not found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is installed, but its kernel module is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        "The NVIDIA driver was upgraded while its old kernel module is still loaded (driver/library version mismatch): restart the machine",
    pynvml.NVML_ERROR_NO_PERMISSION: "This user may not use the NVIDIA devices (/dev/nvidia*)",
}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class _Lost(Exception):
    """The GPU itself does not answer; carries NVML's words."""


class NvmlSource:
    """Implements GpuSource. Opens NVML at the first reading, and again after it failed: a driver may be loaded later.

    Not more than one reading at a time (NVML allows it; our handles are renewed in between).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False
        self._handles: dict[int, Any] = {}
        self._names: dict[int, tuple[str, str, str | None, int | None, int | None]] = {}  # per handle: what never changes

    def read(self) -> GpuSnapshot:
        """All GPUs now. Never raises for a missing library, driver or GPU: `problem` and `error` say it in words."""
        with self._lock:
            try:
                if not self._open:
                    pynvml.nvmlInit()
                    self._open = True
                count = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError as error:
                self._close()
                return GpuSnapshot(gpus=[], problem=_PROBLEMS.get(error.value, f"NVML cannot be used: {error}"))
            gpus = [self._gpu(index) for index in range(count)]
            driver = self._field(lambda: _text(pynvml.nvmlSystemGetDriverVersion()))
            cuda = self._field(lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion()))
            problem = None if count else "The NVIDIA driver answers, but it sees no GPU"
            return GpuSnapshot(gpus=gpus, driver=driver, cuda=cuda, problem=problem)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._handles.clear()
        self._names.clear()
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                pass  # it was on its way out anyway: the next reading opens it anew

    def _gpu(self, index: int) -> GpuReading:
        try:
            if index not in self._handles:
                self._handles[index] = self._call(pynvml.nvmlDeviceGetHandleByIndex, index)
            handle = self._handles[index]
            if index not in self._names:
                self._names[index] = (
                    _text(self._value(pynvml.nvmlDeviceGetUUID, handle) or ""), _text(self._value(pynvml.nvmlDeviceGetName, handle) or ""),
                    _capability(self._value(pynvml.nvmlDeviceGetCudaComputeCapability, handle)),
                    self._value(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
                    self._value(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
                )
            uuid, name, capability, max_width, max_clock = self._names[index]
            memory = self._value(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2)
            rates = self._value(pynvml.nvmlDeviceGetUtilizationRates, handle)
            power = self._value(pynvml.nvmlDeviceGetPowerUsage, handle)
            limit = self._value(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            clock = self._value(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
            temperature = self._value(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
            return GpuReading(
                index=index, uuid=uuid, name=name,
                # Without version 2 `used` would hold the driver's reserved part: then it is better unknown than wrong.
                total_bytes=memory.total if memory is not None else None, used_bytes=memory.used if memory is not None else None,
                utilization=float(rates.gpu) if rates is not None else None,
                temperature_c=float(temperature) if temperature is not None else None,
                power_w=power / 1000 if power is not None else None, power_limit_w=limit / 1000 if limit is not None else None,
                clock_mhz=clock, clock_max_mhz=max_clock,
                pcie_gen=self._value(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                pcie_width=self._value(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
                pcie_max_width=max_width, compute_capability=capability, throttle=self._throttle(handle), processes=self._processes(handle),
            )
        except _Lost as lost:
            uuid, name, capability, max_width, max_clock = self._names.get(index, ("", "", None, None, None))
            self._handles.pop(index, None)  # a GPU that comes back gets a new handle
            return GpuReading(index=index, uuid=uuid, name=name, pcie_max_width=max_width, compute_capability=capability, clock_max_mhz=max_clock,
                              error=str(lost))

    def _call(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except pynvml.NVMLError as error:
            if error.value in _NOT_HAVE:
                raise
            raise _Lost(str(error)) from error

    def _value(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """None where this board or this driver's library does not have it. Raises _Lost where the GPU does not answer."""
        try:
            return self._call(call, *arguments, **named)
        except pynvml.NVMLError:
            return None

    @staticmethod
    def _field(read: Callable[[], str]) -> str | None:
        try:
            return read()
        except pynvml.NVMLError:
            return None

    def _throttle(self, handle: Any) -> list[str]:
        call = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
        mask = self._value(call, handle)
        if mask is None:
            mask = self._value(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)  # the older name, for an older library
        return [text for bit, text in THROTTLE.items() if mask is not None and mask & bit]

    def _processes(self, handle: Any) -> list[GpuProcess]:
        used: dict[int, int | None] = {}
        for call in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            for item in self._value(call, handle) or []:
                amount = item.usedGpuMemory
                used.setdefault(item.pid, None if amount is None or amount == _NO_VALUE else int(amount))
        return [processes.described(pid, amount) for pid, amount in sorted(used.items())]


def _cuda(version: int) -> str:
    """13000 -> "13.0"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _capability(pair: tuple[int, int] | None) -> str | None:
    return f"{pair[0]}.{pair[1]}" if pair is not None else None
