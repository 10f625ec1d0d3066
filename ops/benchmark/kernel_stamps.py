"""When the kernel had received a segment: the option SO_TIMESTAMPNS of plain TCP sockets on Linux, on the clock of `perf_counter_ns`.

The kernel stamps with CLOCK_REALTIME, we measure with CLOCK_MONOTONIC. Slewing (NTP) moves both alike; their distance changes only when
somebody sets the wall clock. So the distance is measured once, and again when a stamp cannot be right or is strangely old.
TLS has no such stamps: a record is not a segment, and its reader is not us.
"""

from __future__ import annotations

import socket
import struct
import sys
from time import perf_counter_ns, time_ns

# struct timespec of two 64-bit numbers: the newer option (Linux 5.1) has it everywhere, the older one where `long` has 64 bits
_OPTIONS = (64, 35) if sys.maxsize > 2**32 else (64,)
TIMESPEC = struct.Struct("qq")
ANCILLARY = socket.CMSG_SPACE(TIMESPEC.size)

LONGEST_NS = 1_000_000  # a segment that seems to have waited longer for us is looked at twice: has the wall clock been set?
STEP_NS = 1_000_000  # the clocks' distance is known to microseconds; more than this is a step
LOOK_NS = 10_000_000
STRANGE_NS = 100_000_000  # no segment waits so long, but when the wall clock was set back: looked at each time


def ask_for_stamps(to: socket.socket) -> bool:
    """Asks the kernel to stamp what this socket receives; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    for option in _OPTIONS:
        try:
            to.setsockopt(socket.SOL_SOCKET, option, 1)
        except OSError:
            continue
        return True
    return False


class KernelClock:
    """Turns the kernel's times into `perf_counter_ns()`. `steps`: how often the wall clock was set meanwhile."""

    __slots__ = ("_looked_at", "offset", "steps")

    def __init__(self) -> None:
        self.offset = self._distance()
        self.steps = 0
        self._looked_at = perf_counter_ns()

    def corrected(self, kernel_ns: int, now: int) -> int:
        """The stamp for a kernel time that, with the distance known so far, lies after `now` or LONGEST_NS before it."""
        waited = now - (kernel_ns - self.offset)
        if waited < 0 or waited > STRANGE_NS or now - self._looked_at > LOOK_NS:
            self._look()
        return min(kernel_ns - self.offset, now)

    def _look(self) -> None:
        distance = self._distance()
        if abs(distance - self.offset) > STEP_NS:
            self.steps += 1
        self.offset = distance
        self._looked_at = perf_counter_ns()

    @staticmethod
    def _distance() -> int:
        """CLOCK_REALTIME - CLOCK_MONOTONIC in ns, of the reading of five with the least time around it."""
        narrowest, distance = 1 << 62, 0
        for _ in range(5):
            before, wall, after = perf_counter_ns(), time_ns(), perf_counter_ns()
            if after - before < narrowest:
                narrowest, distance = after - before, wall - (before + after) // 2
        return distance
