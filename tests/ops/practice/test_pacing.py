"""Do the story's numbers come out? The throughput curve itself, then a real server under a closed loop of streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ops.practice.model_folder import NAME

from .conftest import PracticeBox, Server, Start, end, start_server
from .test_answers import load

scheduler = load("v1/core/scheduler")


@pytest.mark.parametrize(("running", "rate"), [(1, 61.0), (8, 277.0), (64, 945.0), (128, 1239.0)])
def test_the_curve_goes_through_the_measured_points(running: int, rate: float) -> None:
    assert scheduler.throughput(running) == pytest.approx(rate)


def test_the_curve_is_straight_on_log_axes_between_points() -> None:
    # 4 and 8 requests give 178 and 277; 2 ** 2.5 lies half way between them on a log axis, so its rate is the geometric mean, 222.05
    assert scheduler.throughput(2**2.5) == pytest.approx(222.05, abs=0.01)


def test_more_requests_never_give_less() -> None:
    rates = [scheduler.throughput(running) for running in range(1, 257)]
    assert rates == sorted(rates)
    assert rates[255] == pytest.approx(1624.5, abs=0.5)  # the last slope goes on: 1239 * 1239 / 945


@dataclass
class Level:
    """What a closed loop saw."""

    latencies: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


async def closed_loop(port: int, *, slots: int, requests: int, tokens: int) -> Level:
    """`slots` keep-alive connections, each sending its next request when its last one has ended."""
    level, left = Level(), requests

    async def slot(number: int) -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            body = json.dumps({"model": NAME, "stream": True, "ignore_eos": True, "max_tokens": tokens,
                               "messages": [{"role": "user", "content": f"{number}-{left}: tell me about engines"}]}).encode()
            began = time.perf_counter()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                         b"content-length: %d\r\n\r\n%b" % (len(body), body))
            await reader.readuntil(b"\r\n\r\n")
            while size := int(await reader.readline(), 16):
                chunk = await reader.readexactly(size + 2)
                level.tokens += chunk.count(b'"delta":{"reasoning":') + chunk.count(b'"delta":{"content":')
            await reader.readexactly(2)
            level.latencies.append(time.perf_counter() - began)
        writer.close()
        await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*(slot(number) for number in range(slots)))
    level.seconds = time.perf_counter() - began
    return level


def measure(server: Server, *, slots: int, requests: int, tokens: int) -> Level:
    return asyncio.run(closed_loop(server.port, slots=slots, requests=requests, tokens=tokens))


SPEED = 6.0


@pytest.fixture(scope="module")
def fast_server(practice_box: PracticeBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start_server(practice_box, tmp_path_factory.mktemp("pacing"), speed=SPEED)
    try:
        running.wait_healthy()
        yield running
    finally:
        end(running)


@pytest.mark.parametrize(("slots", "rate"), [(1, 61.0), (8, 277.0), (128, 1239.0)])
def test_throughput_is_the_storys_times_the_speed(fast_server: Server, slots: int, rate: float) -> None:
    expected = pytest.approx(64 * slots / rate / SPEED, rel=0.12)
    for last in (False, False, True):  # a busy machine fills the house late, then the first requests are fast, or reads late
        level = measure(fast_server, slots=slots, requests=2 * slots + 4, tokens=64)
        assert level.tokens == (2 * slots + 4) * 64
        # Every request of a full house takes as long as a token at that rate, 64 times.
        if last or min(level.latencies[:slots]) == expected:
            assert min(level.latencies[:slots]) == expected
            return


def test_a_late_reader_gets_all_tokens_and_on_time_in_the_mean(start: Start) -> None:
    server = start(speed=50.0)  # 62,000 tokens a second: more than this server can write one by one
    level = measure(server, slots=128, requests=256, tokens=64)
    assert level.tokens == 256 * 64
    assert len(level.latencies) == 256


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("slots", "rate", "latency_s"), [(1, 61.0, 8.4), (8, 277.0, 14.8), (128, 1239.0, 52.8)])
def test_the_storys_table_comes_out_at_speed_1(start: Start, slots: int, rate: float, latency_s: float) -> None:
    level = measure(start(speed=1.0), slots=slots, requests=2 * slots, tokens=512)
    assert level.tokens / level.seconds == pytest.approx(rate, rel=0.03)
    assert sum(level.latencies) / len(level.latencies) == pytest.approx(latency_s, rel=0.03)
