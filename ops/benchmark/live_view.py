"""What a running level shows, once a second: events counted as they arrive, first chunks, gaps. Nothing here enters the level's final numbers.

The engine (ops/benchmark/load.py) tells a `LiveView` when a stream ended and when it was read, and lets it look at the streams in flight once a
second; the view reads only the bytes that are new, a few streams at a time, so that no stream's stamp waits for it.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from ops.benchmark.chat_stream import events
from ops.benchmark.metrics import MS, P90_NEEDS, P99_NEEDS, S, percentile, tokens_of
from ops.benchmark.request_record import RequestRecord
from ops.benchmark.stamped_connection import RawResponse

GAPS_OF_A_SECOND = 5000  # more would tell no more


@dataclass(frozen=True, slots=True)
class LiveSecond:
    """One second of a running level. Rates count events as they arrive; the level's final numbers come from the whole streams.

    Percentiles are of the level so far: TTFT of every stream that has begun to answer, ICL of gaps between reads (within 1 %, at most
    GAPS_OF_A_SECOND of each second), E2E of requests that ended well; None below 20 (P90) and 100 (P99) samples. `server`, `gpus`, `power_w`:
    as the newest look beside the load found them (ops/benchmark/beside.py); `tokens_per_joule`: of the level so far.
    """

    second: int
    output_tok_s: float
    in_flight: int
    finished: int
    errors: int
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    ttft_p99_ms: float | None
    icl_p50_ms: float | None
    icl_p90_ms: float | None
    icl_p99_ms: float | None
    e2e_p50_s: float | None
    e2e_p90_s: float | None
    e2e_p99_s: float | None
    e2e_mean_s: float | None
    throughput_so_far_tok_s: float
    server: dict[str, Any] | None = None
    gpus: list[dict[str, Any]] | None = None
    power_w: float | None = None
    tokens_per_joule: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields of a `sweep.level_second` event."""
        return {name: getattr(self, name) for name in self.__slots__}


class GapCounts:
    """Percentiles of any number of gaps in little space: counts in bins that grow by 2 %, from 1 us to 1,000 s. Right within 1 %."""

    _EDGES = tuple(1e3 * 1.02 ** i for i in range(1048))  # ns

    def __init__(self) -> None:
        self._counts = [0] * (len(self._EDGES) + 1)
        self.n = 0

    def add(self, gaps: Iterable[int]) -> None:
        """Gaps in ns."""
        counts, edges = self._counts, self._EDGES
        for gap in gaps:
            counts[bisect_left(edges, gap)] += 1
            self.n += 1

    def percentile(self, percent: float) -> float | None:
        """In ns: the middle of the bin that holds it. None for no gaps."""
        if not self.n:
            return None
        left = (self.n - 1) * percent / 100
        for place, count in enumerate(self._counts):
            left -= count
            if left < 0:
                return self._EDGES[min(place, len(self._EDGES) - 1)] / 1.01
        return self._EDGES[-1]


class Beside(Protocol):
    """What is read beside the load: a server's own metrics, its GPUs (ops/benchmark/beside.py).

    `start` is called with the level's first instant (perf_counter_ns) and must not wait; `read` just before that, once a second, and at the end,
    in a thread: the newest values as fields of `LiveSecond`; `summary` after the level, with its steady window (or the whole run), for fields of
    the level's metrics.
    """

    def start(self, t0: int) -> None: ...

    def read(self) -> dict[str, Any]: ...

    def summary(self, start: int, end: int) -> dict[str, Any]: ...


@dataclass(slots=True)
class StreamWatch:
    """How far the view has looked into one stream: pieces, bytes, and its first chunk where it is known."""

    looked_at: int = 0
    received: int = 0
    first_chunk_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """A stream in flight as the view sees it. `stamps[i]` is when `pieces[i]` was in; both grow."""

    sent: int
    pieces: list[bytes]
    stamps: array[int]
    watch: StreamWatch


class LiveView:
    """Counts for one level. All of it runs in the engine's loop."""

    def __init__(self) -> None:
        self._t0 = self._last = 0
        self._finished = self._errors = 0
        self._ended_events = 0
        self._gaps = GapCounts()
        self._gaps_of_second = 0
        self._per_event = 1.0  # output tokens for an event, learned from streams that have ended
        self._token_total = self._event_total = 0
        self._ttfts: list[int] = []  # sorted, as the next
        self._e2es: list[int] = []
        self._e2e_total = 0
        self._so_far = 0.0  # tokens

    def start(self, t0: int) -> None:
        self._t0 = self._last = t0

    def ended(self, watch: StreamWatch, raw: RawResponse) -> None:
        """A stream has ended: its last bytes are counted. Called in the callback that got them: cheap."""
        self._ended_events += self._count_new(watch, raw.pieces, raw.stamps)

    def note(self, record: RequestRecord, raw: RawResponse) -> None:
        """An ended stream has been read: its record is whole."""
        if record.error_kind:
            self._errors += 1
            return
        self._finished += 1
        took = record.times[-1] - record.t_send
        insort(self._ttfts, record.times[0] - record.t_send)
        insort(self._e2es, took)
        self._e2e_total += took
        self._token_total += tokens_of(record)
        self._event_total += text_events(b"".join(raw.pieces))
        self._per_event = self._token_total / self._event_total if self._event_total else 1.0

    def failed(self) -> None:
        """A request failed without a stream."""
        self._errors += 1

    async def look(self, flights: Iterable[Flight], second: int, now: int, beside: dict[str, Any]) -> LiveSecond:
        """The second that ends now: looks at what is new in the streams in flight, a few at a time. `beside`: what `Beside.read` gave."""
        total, self._ended_events = self._ended_events, 0
        in_flight, first = 0, []
        for i, flight in enumerate(flights):
            in_flight += 1
            total += self._count_new(flight.watch, flight.pieces, flight.stamps)
            if flight.watch.first_chunk_ns is None and len(flight.pieces) > 1:
                flight.watch.first_chunk_ns = first_text(flight.pieces[:8], flight.stamps[:8])
            if flight.watch.first_chunk_ns is not None:
                first.append(flight.watch.first_chunk_ns - flight.sent)
            if i % 8 == 7:
                await asyncio.sleep(0)
        tokens, seconds = total * self._per_event, (now - self._last) / S
        self._so_far += tokens
        self._last = now
        ttfts, gaps, e2es = sorted(self._ttfts + first), self._gaps, self._e2es
        self._gaps_of_second = 0
        so_far = self._so_far / ((now - self._t0) / S) if now > self._t0 else 0.0
        power = beside.get("power_so_far_w")
        return LiveSecond(
            second=second, output_tok_s=tokens / seconds if seconds else 0.0, in_flight=in_flight, finished=self._finished, errors=self._errors,
            ttft_p50_ms=_in(MS, percentile(ttfts, 50)), ttft_p90_ms=_in(MS, percentile(ttfts, 90), len(ttfts) >= P90_NEEDS),
            ttft_p99_ms=_in(MS, percentile(ttfts, 99), len(ttfts) >= P99_NEEDS),
            icl_p50_ms=_in(MS, gaps.percentile(50)), icl_p90_ms=_in(MS, gaps.percentile(90), gaps.n >= P90_NEEDS),
            icl_p99_ms=_in(MS, gaps.percentile(99), gaps.n >= P99_NEEDS),
            e2e_p50_s=_in(S, percentile(e2es, 50)), e2e_p90_s=_in(S, percentile(e2es, 90), len(e2es) >= P90_NEEDS),
            e2e_p99_s=_in(S, percentile(e2es, 99), len(e2es) >= P99_NEEDS),
            e2e_mean_s=self._e2e_total / self._finished / S if self._finished else None,
            throughput_so_far_tok_s=so_far, server=beside.get("server"), gpus=beside.get("gpus"), power_w=beside.get("power_w"),
            tokens_per_joule=so_far / power if power else None)

    def _count_new(self, watch: StreamWatch, pieces: list[bytes], stamps: array[int]) -> int:
        """Events with text in the pieces that were not looked at yet."""
        fresh = pieces[watch.looked_at:]
        if not fresh:
            return 0
        if self._gaps_of_second < GAPS_OF_A_SECOND:
            since = stamps[max(watch.looked_at - 1, 1):len(pieces)]  # from the last one that was seen; the first holds the head
            self._gaps.add(after - before for before, after in pairwise(since))
            self._gaps_of_second += max(0, len(since) - 1)
        watch.looked_at = len(pieces)
        text = b"".join(fresh)
        watch.received += len(text)
        return text_events(text)


def _in(unit: float, value: float | None, enough: bool = True) -> float | None:
    return value / unit if value is not None and enough else None


def text_events(text: bytes) -> int:
    """About how many events with text there are: all but the role-only and the usage-only ones. No parsing; quotes inside texts are escaped."""
    return text.count(b"data: {") - text.count(b'"role":') - text.count(b'"choices":[]')


def first_text(pieces: list[bytes], stamps: array[int]) -> int | None:
    """The stamp of the first text in a stream's first pieces, or None."""
    head = b"".join(pieces)
    start = head.find(b"\r\n\r\n")
    if start < 0:
        return None
    framing = "chunked" if b"chunked" in head[:start].lower() else "close"
    raw = RawResponse(stamps=stamps, pieces=pieces, framing=framing, body_start=start + 4)
    marks = (b'"content":', b'"reasoning":', b'"reasoning_content":', b'"arguments":', b'"text":')
    for stamp, data in events(raw):
        if any(mark in data and (mark + b'""') not in data for mark in marks):
            return stamp
    return None
