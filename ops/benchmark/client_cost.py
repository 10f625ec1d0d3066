"""What the client itself costs while a level runs, and how late it was: the meter beside the load engine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from time import perf_counter_ns

from ops.benchmark.kernel_stamps import KernelClock
from ops.benchmark.metrics import MS, ClientCost, percentile
from ops.benchmark.socket_loop import SocketLoop
from ops.benchmark.stamped_connection import StampedConnection

SWITCH_S = 0.0005  # another thread of ours (server's metrics, GPUs) may keep the interpreter so long; Python's default is 5 ms
US = 1000
DELAYS_EXACT = 2_000_000  # of more, an even share: as numbers of their own ten million would take half a gigabyte
PROBE_S = 0.025
TIMER_PROBE_S = 0.05  # where every segment tells how long it waited, a few more are enough
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1


class LagProbe:
    """How late the event loop serves what is ready: a thread stamps a wake-up, the loop stamps its arrival. On any loop.

    A timer of the loop would not do: such are good to a millisecond, as much as what is measured.
    """

    def __init__(self, every_s: float = PROBE_S) -> None:
        self.lags: array[int] = array("q")
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        def knock() -> None:
            while True:
                try:
                    loop.call_soon_threadsafe(self._heard, perf_counter_ns())
                except RuntimeError:  # the loop has been closed
                    return
                if self._stop.wait(self._every_s):
                    return

        self._thread = threading.Thread(target=knock, name="lag-probe", daemon=True)
        self._thread.start()

    def _heard(self, knocked: int) -> None:
        self.lags.append(perf_counter_ns() - knocked)

    def stop(self) -> list[float]:
        """Ends the thread; all lags in ns, sorted."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return sorted(self.lags)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: interval, first expiry; seconds and nanoseconds each."""

    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "first_s", "first_ns")]


class TimerProbe:
    """As LagProbe, by a timer of the kernel (timerfd) among the sockets of a SocketLoop: no thread wakes, so it costs little more than a chunk.

    It goes on running out while the whole process waits for a processor, which knocks of its own thread do not see. The kernel says how often it
    did since the last look: each time has its lag.
    """

    def __init__(self, every_s: float = TIMER_PROBE_S) -> None:
        """Raises OSError where the system has no such timers."""
        self.lags: array[int] = array("q")
        self._every = int(every_s * 1e9)
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("no timerfd")
        self._timer: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due = perf_counter_ns() + self._every  # the same clock (CLOCK_MONOTONIC)
        spec = _TimerSpec(*divmod(self._every, 1_000_000_000), *divmod(self._due, 1_000_000_000))
        if libc.timerfd_settime(self._timer, _ABSOLUTE, ctypes.byref(spec), None):
            os.close(self._timer)
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def start(self, loop: SocketLoop) -> None:
        self._selector = loop.direct
        self._selector.add(self._timer, self._serve)

    def _serve(self, events: int) -> bool:
        now = perf_counter_ns()
        for _ in range(int.from_bytes(os.read(self._timer, 8), sys.byteorder)):
            self.lags.append(now - self._due)
            self._due += self._every
        return False

    def stop(self) -> list[float]:
        """Ends the timer; all lags in ns, sorted."""
        self._selector.remove(self._timer)
        os.close(self._timer)
        return sorted(self.lags)


def probe_of(loop: asyncio.AbstractEventLoop) -> LagProbe | TimerProbe:
    """A probe of the loop's lag, running."""
    if isinstance(loop, SocketLoop):
        with contextlib.suppress(OSError):
            timer = TimerProbe()
            timer.start(loop)
            return timer
    probe = LagProbe()
    probe.start(loop)
    return probe


class CostMeter:
    """From `start` to `stop`, once: the loop's lag, the process's CPU, and how long segments had waited for us where the kernel stamps them.

    While it runs, threads hand the interpreter over more often: a stream without kernel stamps must not wait for another thread's parsing.
    """

    def __init__(self) -> None:
        self._probe: LagProbe | TimerProbe | None = None
        self._delays: array[int] | None = None
        self._clock: KernelClock | None = None
        self._cpu = self._wall = self._steps = 0
        self._switch_s = sys.getswitchinterval()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if isinstance(loop, SocketLoop):
            self._delays, self._clock = loop.direct.delays, loop.direct.clock
            self._steps = self._clock.steps
            del self._delays[:]
        sys.setswitchinterval(SWITCH_S)
        self._probe = probe_of(loop)
        self._cpu, self._wall = time.process_time_ns(), perf_counter_ns()

    def stop(self, connections: Sequence[StampedConnection], *, connects: int, retries: int) -> ClientCost:
        """What it was. Stamps count as the kernel's if every one of the connections had them."""
        wall, cpu = perf_counter_ns() - self._wall, time.process_time_ns() - self._cpu
        sys.setswitchinterval(self._switch_s)
        lags = self._probe.stop() if self._probe is not None else []
        every = max(1, math.ceil(len(self._delays or ()) / DELAYS_EXACT))
        delays = sorted(self._delays[::every]) if self._delays else []
        kernel = bool(delays) and all(connection.kernel_stamps for connection in connections)
        return ClientCost(
            lag_p50_ms=_in(MS, percentile(lags, 50)), lag_p99_ms=_in(MS, percentile(lags, 99)), lag_max_ms=_in(MS, lags[-1] if lags else None),
            cpu_share=cpu / wall if wall else None, connects_in_level=connects, retries=retries, stamps="kernel" if kernel else "own",
            kernel_delay_p50_us=_in(US, percentile(delays, 50)), kernel_delay_p99_us=_in(US, percentile(delays, 99)),
            kernel_delay_max_us=_in(US, max(self._delays) if self._delays else None),
            clock_steps=self._clock.steps - self._steps if self._clock is not None and kernel else None)


def _in(unit: float, value: float | None) -> float | None:
    return None if value is None else value / unit
