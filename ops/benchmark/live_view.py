"""What a running level shows, once a second: events counted as they arrive, first chunks, gaps. Nothing here enters the level's final numbers.

The engine (ops/benchmark/load.py) tells a `LiveView` when a stream ended and when it was read, and lets it look at the streams in flight once a
second; the view reads only the bytes that are new, a few streams at a time, so that no stream's stamp waits for it.
"""

from __future__ import annotations

import asyncio
import re
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import sub
from typing import Any, NamedTuple, Protocol

from ops.benchmark.metrics import MS, P90_NEEDS, P99_NEEDS, S, percentile, tokens_of
from ops.benchmark.request_record import RequestRecord
from ops.benchmark.stamped_connection import RawResponse

GAPS_OF_A_SECOND = 2000  # more would tell no more
FLIGHTS_A_TURN = 16  # some 50 us of work
TAIL = 4096  # bytes at a stream's end that hold its usage

# The first text in a stream, as nearly all servers write it: a field of text that does not begin with its closing quote.
_FIRST_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|arguments|text)":\s?"[^"]')
_NO_CHOICES = re.compile(rb'"choices":\s?\[\]')
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True, slots=True)
class LiveSecond:
    """One second of a running level. Rates count events as they arrive; the level's final numbers come from the whole streams.

    Percentiles are of the level so far: TTFT of every stream that has begun to answer, ICL of gaps between reads (within 1 %, about
    GAPS_OF_A_SECOND of each second, evenly from all streams), E2E of requests that ended well; None below 20 (P90) and 100 (P99) samples.
    `server`, `gpus`, `power_w`: as the newest look beside the load found them (ops/benchmark/beside.py); `tokens_per_joule`: of the level so far.
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

    _EDGES = tuple(round(1e3 * 1.02 ** i) for i in range(1048))  # ns

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.n = 0

    def add(self, gaps: Iterable[int]) -> None:
        """Gaps in ns."""
        self._counts.update(map(bisect_left, repeat(self._EDGES), gaps))
        self.n = self._counts.total()

    def percentile(self, percent: float) -> float | None:
        """In ns: the middle of the bin that holds it. None for no gaps."""
        if not self.n:
            return None
        left = (self.n - 1) * percent / 100
        for place in sorted(self._counts):
            left -= self._counts[place]
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
    """How far the view has looked into one stream: pieces, bytes, events, and its first chunk where it is known."""

    looked_at: int = 0
    received: int = 0
    events: int = 0  # with text
    begun: bool = False  # an event was seen
    first_chunk_ns: int | None = None


class Flight(NamedTuple):
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
        self._new_gaps: list[int] = []  # of this second, every `_every`th
        self._gaps_of_second = self._skip = 0
        self._every = 1
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
        before = watch.events
        self._look_into(watch, raw.pieces, raw.stamps)
        watch.events -= text_free_end(raw.pieces)
        self._ended_events += watch.events - before

    def note(self, record: RequestRecord, events: int) -> None:
        """An ended stream has been read: its record is whole. `events` as its watch counted them."""
        if record.error_kind:
            self._errors += 1
            return
        self._finished += 1
        took = record.times[-1] - record.t_send
        insort(self._ttfts, record.times[0] - record.t_send)
        insort(self._e2es, took)
        self._e2e_total += took
        self._token_total += tokens_of(record)
        self._event_total += events
        self._per_event = self._token_total / self._event_total if self._event_total > 0 else 1.0

    def failed(self) -> None:
        """A request failed without a stream."""
        self._errors += 1

    async def look(self, flights: Iterable[Flight], second: int, now: int, beside: dict[str, Any]) -> LiveSecond:
        """The second that ends now: looks at what is new in the streams in flight, a few at a time. `beside`: what `Beside.read` gave."""
        total, self._ended_events = self._ended_events, 0
        in_flight, first = 0, []
        for i, flight in enumerate(flights):
            in_flight += 1
            watch = flight.watch
            before = watch.events
            self._look_into(watch, flight.pieces, flight.stamps)
            total += watch.events - before
            if watch.first_chunk_ns is None and len(flight.pieces) > 1:
                watch.first_chunk_ns = first_text(flight.pieces[:8], flight.stamps[:8])
            if watch.first_chunk_ns is not None:
                first.append(watch.first_chunk_ns - flight.sent)
            if i % FLIGHTS_A_TURN == FLIGHTS_A_TURN - 1:
                await asyncio.sleep(0)
        tokens, seconds = total * self._per_event, (now - self._last) / S
        self._so_far += tokens
        self._last = now
        gaps, e2es = self._gaps, self._e2es
        gaps.add(self._new_gaps)
        self._new_gaps.clear()
        self._every, self._gaps_of_second = -(-self._gaps_of_second // GAPS_OF_A_SECOND) or 1, 0
        ttfts = sorted(self._ttfts + first)
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

    def _look_into(self, watch: StreamWatch, pieces: list[bytes], stamps: array[int]) -> None:
        """The pieces that were not looked at yet: their events with text, and some of the gaps between them."""
        seen, now = watch.looked_at, len(pieces)
        if seen == now:
            return
        since = max(seen - 1, 1)  # from the last one that was seen; the first piece holds the head
        if (gaps := now - 1 - since) > 0:
            self._pool(stamps, since, gaps)
        watch.looked_at = now
        text = b"".join(pieces[seen:] if seen else pieces)
        watch.received += len(text)
        events = text.count(b"data: {")
        if events and not watch.begun:
            watch.begun = True
            events -= text_free_start(text)
        watch.events += events

    def _pool(self, stamps: array[int], since: int, gaps: int) -> None:
        """Every `_every`th gap of all that come by; `gaps` of them follow stamp `since`."""
        self._gaps_of_second += gaps
        every, start = self._every, since + self._skip
        self._skip = (self._skip - gaps) % every
        if len(self._new_gaps) < 2 * GAPS_OF_A_SECOND:
            self._new_gaps.extend(map(sub, stamps[start + 1:since + gaps + 1:every], stamps[start:since + gaps:every]))


def _in(unit: float, value: float | None, enough: bool = True) -> float | None:
    return value / unit if value is not None and enough else None


def text_free_start(text: bytes) -> int:
    """1 where a stream's first event, which is in `text`, brings no text (the role alone; filters' results), else 0. No parsing."""
    start = text.find(b"data: {")
    blank = _BLANK_LINE.search(text, start)
    first = text[start:blank.start() if blank is not None else start + TAIL]
    if _FIRST_TEXT.search(first) is not None:
        return 0
    return 1 if b'"role":' in first or _NO_CHOICES.search(first) is not None else 0


def text_free_end(pieces: list[bytes]) -> int:
    """1 where a stream's last event brings usage and no text, else 0. A quote inside a text is escaped, so no text can look like it."""
    return 1 if _NO_CHOICES.search(b"".join(pieces[-3:])[-TAIL:]) is not None else 0


def first_text(pieces: list[bytes], stamps: array[int]) -> int | None:
    """The stamp of the piece with the end of the first event with text, in a stream's first pieces, or None."""
    text = b"".join(pieces)
    found = _FIRST_TEXT.search(text)
    blank = _BLANK_LINE.search(text, found.end()) if found is not None else None
    if blank is None:
        return None
    return stamps[bisect_left(list(accumulate(map(len, pieces))), blank.end())]
