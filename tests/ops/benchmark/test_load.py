"""Parts of the load engine that a sweep does not show by itself."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
import time
from array import array
from inspect import getsource
from textwrap import dedent

import pytest

from ops.benchmark import socket_loop
from ops.benchmark.client_cost import LagProbe, TimerProbe
from ops.benchmark.live_view import first_text
from ops.benchmark.load import allow_files
from ops.jobs.errors import BadInput
from tests.fakes.scripted_server import STREAM_HEAD, chunk, event


@pytest.mark.parametrize("kind", ["knocks", "timer"])
def test_the_lag_probe_sees_a_blocked_loop(kind: str) -> None:
    async def block() -> list[float]:
        loop = asyncio.get_running_loop()
        if isinstance(loop, socket_loop.SocketLoop):
            probe: LagProbe | TimerProbe = TimerProbe(every_s=0.01)
            probe.start(loop)  # type: ignore[arg-type]
        else:
            probe = LagProbe(every_s=0.01)
            probe.start(loop)
        await asyncio.sleep(0.1)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        return probe.stop()

    with asyncio.Runner(loop_factory=socket_loop.new_event_loop if kind == "timer" else None) as runner:
        lags = runner.run(block())
    assert len(lags) >= 5 and lags[-1] > 100e6 and lags[0] >= 0
    if kind == "timer":  # it goes on running out meanwhile, and each time has its lag
        assert sum(lag > 50e6 for lag in lags) >= 10


def test_the_timer_sees_a_process_that_got_no_processor() -> None:
    async def stopped() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, socket_loop.SocketLoop)
        probe = TimerProbe(every_s=0.01)
        probe.start(loop)
        await asyncio.sleep(0.05)
        print("now", flush=True)
        await asyncio.sleep(0.3)
        return probe.stop()

    program = "\n".join(["import asyncio", "from ops.benchmark import socket_loop", "from ops.benchmark.client_cost import TimerProbe",
                         dedent(getsource(stopped)), "with asyncio.Runner(loop_factory=socket_loop.new_event_loop) as runner:",
                         "    print(runner.run(stopped())[-1])"])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        process.send_signal(signal.SIGCONT)
        assert float(process.stdout.readline()) > 150e6
    assert process.returncode == 0


def test_too_few_open_files_are_told_before_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 512))
    with pytest.raises(BadInput, match="need 1064 open files; this process may have 512"):
        allow_files(1000)


def test_the_soft_limit_is_raised_where_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    allow_files(1000)
    allow_files(8, wish=20_000)  # an open loop: as many as may be
    assert asked == [(1064, 4096), (4096, 4096)]


def test_the_first_text_of_a_stream_in_flight_is_found() -> None:
    pieces = [STREAM_HEAD, chunk(event({"role": "assistant", "content": ""})), chunk(event({"content": ""})), chunk(event({"reasoning": "x"}))]
    assert first_text(pieces[:3], array("q", [1, 2, 3])) is None
    assert first_text(pieces, array("q", [1, 2, 3, 4])) == 4
