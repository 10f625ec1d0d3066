"""Parts of the load engine that a sweep does not show by itself."""

from __future__ import annotations

import asyncio
import resource
import time
from array import array

import pytest

from ops.benchmark.client_cost import LagProbe
from ops.benchmark.live_view import first_text
from ops.benchmark.load import allow_files
from ops.jobs.errors import BadInput
from tests.fakes.scripted_server import STREAM_HEAD, chunk, event


def test_the_lag_probe_sees_a_blocked_loop() -> None:
    async def block() -> list[float]:
        probe = LagProbe(every_s=0.01)
        probe.start(asyncio.get_running_loop())
        await asyncio.sleep(0.1)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        return probe.stop()

    lags = asyncio.run(block())
    assert len(lags) >= 5 and lags[-1] > 100e6


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
