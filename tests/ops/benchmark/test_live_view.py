"""What a running level shows: counts and percentiles of streams in flight and of those that ended."""

from __future__ import annotations

import asyncio
import random
from array import array
from typing import Any

import pytest

from ops.benchmark.live_view import Flight, GapCounts, LiveView, StreamWatch
from ops.benchmark.request_record import CONTENT, ErrorKind, RequestRecord
from ops.benchmark.stamped_connection import RawResponse
from tests.fakes.scripted_server import STREAM_HEAD, chunk, event, good_stream

MS, S = 1_000_000, 1_000_000_000


def stream(tokens: int, *, start: int = 0, gap_ns: int = 20 * MS) -> tuple[list[bytes], array[int]]:
    """A stream in flight: its head, then a token a piece."""
    pieces = [STREAM_HEAD, *(chunk(event({"content": "x"})) for _ in range(tokens))]
    return pieces, array("q", [start + n * gap_ns for n in range(len(pieces))])


def look(view: LiveView, flights: list[Flight], now: int, **beside: Any) -> Any:
    return asyncio.run(view.look(flights, round(now / S), now, beside))


def ended(view: LiveView, *, ttft_ms: float, e2e_ms: float) -> None:
    record = RequestRecord(index=0, slot=0, t_sched=0)
    record.times, record.kinds, record.output_tokens = array("q", [int(ttft_ms * MS), int(e2e_ms * MS)]), CONTENT * 2, 2
    view.note(record, 2)


def test_percentiles_of_any_number_of_gaps_are_right_within_a_percent() -> None:
    draw, counts = random.Random(1), GapCounts()
    gaps = sorted(int(draw.lognormvariate(16, 1.5)) for _ in range(20_001))
    counts.add(gaps)
    for percent, place in ((0, 0), (50, 10_000), (90, 18_000), (99, 19_800), (100, 20_000)):
        assert counts.percentile(percent) == pytest.approx(gaps[place], rel=0.0101), percent
    assert GapCounts().percentile(50) is None
    counts.add([0, 10**15])  # below and beyond every bin
    assert counts.percentile(0) is not None and counts.percentile(100) is not None


def test_a_stream_that_goes_slower_than_a_second_still_has_its_gaps() -> None:
    view, watch = LiveView(), StreamWatch()
    view.start(0)
    pieces, stamps = stream(4, gap_ns=1500 * MS)
    for seen in range(2, 6):
        told = look(view, [Flight(0, pieces[:seen], stamps[:seen], watch)], seen * 1500 * MS)
    assert told.icl_p50_ms == pytest.approx(1500, rel=0.0101)


def test_counts_are_of_what_is_new_and_percentiles_of_the_level_so_far() -> None:
    view, watch = LiveView(), StreamWatch()
    view.start(0)
    pieces, stamps = stream(100)
    first = look(view, [Flight(0, pieces[:51], stamps[:51], watch)], S)
    assert (first.output_tok_s, first.in_flight, first.finished, first.errors) == (50.0, 1, 0, 0)
    assert first.ttft_p50_ms == 20.0 and first.icl_p50_ms == pytest.approx(20, rel=0.0101)
    assert first.e2e_p50_s is None and first.ttft_p90_ms is None and first.icl_p90_ms is not None and first.icl_p99_ms is None
    second = look(view, [Flight(0, pieces, stamps, watch)], 2 * S)
    assert (second.output_tok_s, second.throughput_so_far_tok_s) == (50.0, 50.0)


@pytest.mark.parametrize("cuts", [0, 1, 2])
def test_events_without_text_do_not_count(cuts: int) -> None:
    view, watch = LiveView(), StreamWatch()
    view.start(0)
    pieces, stamps = good_stream(5), array("q", range(20))
    told = look(view, [Flight(0, pieces[:cuts], stamps[:cuts], watch)], S)
    view.ended(watch, RawResponse(stamps=stamps, pieces=pieces))
    assert watch.events == 5 and told.output_tok_s + look(view, [], 2 * S).output_tok_s == 5


def test_a_role_in_every_event_hides_no_text() -> None:
    view, watch = LiveView(), StreamWatch()
    view.start(0)
    pieces = [STREAM_HEAD, *(chunk(event({"role": "assistant", "content": "x"})) for _ in range(7))]
    assert look(view, [Flight(0, pieces, array("q", range(8)), watch)], S).output_tok_s == 7


def test_gaps_are_taken_evenly_from_all_streams_where_there_are_many() -> None:
    view, watches = LiveView(), [StreamWatch() for _ in range(40)]
    view.start(0)
    streams = [stream(300, gap_ns=(1 + number) * MS) for number in range(40)]
    for second in (1, 2, 3):
        told = look(view, [Flight(0, pieces[:100 * second + 1], stamps[:100 * second + 1], watch)
                           for (pieces, stamps), watch in zip(streams, watches, strict=True)], second * S)
    assert told.icl_p50_ms == pytest.approx(20.5, abs=1) and told.icl_p99_ms == pytest.approx(40, rel=0.02)


def test_percentiles_wait_for_enough_requests_and_errors_are_none_of_them() -> None:
    view = LiveView()
    view.start(0)
    for n in range(1, 100):
        ended(view, ttft_ms=n, e2e_ms=10 * n)
    failed = RequestRecord(index=0, slot=0, t_sched=0)
    failed.fail(ErrorKind.HTTP, "HTTP 500")
    view.note(failed, 0)
    view.failed()
    told = look(view, [], S)
    assert (told.finished, told.errors, told.ttft_p50_ms, told.ttft_p99_ms) == (99, 2, 50.0, None)
    assert told.ttft_p90_ms == pytest.approx(89.2) and told.e2e_p90_s == pytest.approx(0.892) and told.e2e_mean_s == pytest.approx(0.5)
    ended(view, ttft_ms=100, e2e_ms=1000)
    assert look(view, [], 2 * S).e2e_p99_s == pytest.approx(0.9901)


def test_tokens_per_joule_are_of_the_level_so_far() -> None:
    view, watch = LiveView(), StreamWatch()
    view.start(0)
    pieces, stamps = stream(100)
    told = look(view, [Flight(0, pieces, stamps, watch)], S, power_w=900.0, power_so_far_w=500.0, gpus=[], server={"running": 1.0})
    assert (told.tokens_per_joule, told.power_w, told.server) == (0.2, 900.0, {"running": 1.0})
    assert look(view, [], 2 * S).tokens_per_joule is None
    assert list(told.as_dict()) == list(type(told).__slots__)
