"""What a level says of its own client, over our own loop and over others."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from time import perf_counter_ns

import pytest

from ops.benchmark import socket_loop
from ops.benchmark.chat_client import ChatClient
from ops.benchmark.client_cost import CostMeter
from ops.benchmark.load import Level, LevelOutcome
from ops.benchmark.presets import LevelPlan, SweepSettings
from ops.benchmark.stamped_connection import PlainConnection
from tests.fakes.paced_server import paced


def level(rig: Path, *, own_loop: bool, load: str = "closed", value: float = 4, requests: int = 8) -> LevelOutcome:
    async def run() -> LevelOutcome:
        settings = SweepSettings(preset="custom", base_url=url, model="paced", concurrencies=[4], requests=[requests], max_tokens=10, burst=True)
        return await Level(ChatClient(url, "paced"), settings, LevelPlan(load, value, requests), typical_ns=6e7).run()

    with paced(rig, rate=200, ttft_ms=5) as url, asyncio.Runner(loop_factory=socket_loop.new_event_loop if own_loop else None) as runner:
        return runner.run(run())


def test_a_level_on_our_own_loop_has_the_kernels_stamps_and_says_how_long_they_waited(rig: Path) -> None:
    outcome = level(rig, own_loop=True)
    cost = outcome.client
    assert all(record.ok for record in outcome.records) and cost.stamps == "kernel"
    assert cost.kernel_delay_p50_us is not None and cost.kernel_delay_p99_us is not None and cost.kernel_delay_max_us is not None
    assert 0 <= cost.kernel_delay_p50_us <= cost.kernel_delay_p99_us <= cost.kernel_delay_max_us
    assert cost.lag_p99_ms is not None and cost.cpu_share is not None and cost.clock_steps == 0


def test_a_level_on_another_loop_has_stamps_of_its_own(rig: Path) -> None:
    cost = level(rig, own_loop=False).client
    assert (cost.stamps, cost.kernel_delay_p50_us, cost.clock_steps) == ("own", None, None)


def test_an_open_loops_requests_leave_when_they_are_wanted(rig: Path) -> None:
    outcome = level(rig, own_loop=True, load="open", value=100, requests=40)
    late = sorted(record.t_send - record.t_sched for record in outcome.records)
    assert late[0] >= 0 and late[len(late) // 4] < 1_000_000  # the quicker quarter, so that a busy machine does not decide


def test_one_connection_without_stamps_makes_them_our_own() -> None:
    async def run() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, socket_loop.SocketLoop)
        connections = []
        with socket.create_server(("127.0.0.1", 0)) as listening:
            for stamped in (True, False):
                raw = socket.create_connection(listening.getsockname())
                raw.setblocking(False)
                connections.append(PlainConnection(raw, loop.direct, kernel_stamps=stamped))
            meter = CostMeter()
            meter.start(loop)
            loop.direct.delays.append(1000)
            cost = meter.stop(connections, connects=0, retries=0)
            for connection in connections:
                connection.close()
        return cost.stamps

    before = sys.getswitchinterval()
    with asyncio.Runner(loop_factory=socket_loop.new_event_loop) as runner:
        assert runner.run(run()) == "own"
    assert sys.getswitchinterval() == pytest.approx(before)


def test_the_clock_of_the_meter_is_the_one_of_the_records(rig: Path) -> None:
    before = perf_counter_ns()
    outcome = level(rig, own_loop=True)
    assert before < outcome.t0 < outcome.records[0].times[0] < perf_counter_ns()
