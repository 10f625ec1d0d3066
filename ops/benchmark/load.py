"""Closed-loop load on a chat endpoint: C slots, each sending its next request the moment that its last one ended.

The next request leaves in the very callback that received the last byte of the one before; its bytes were made before the level. Reading
what the streams said is put off: a background task does it in slices of a fraction of a millisecond, so that no stream's stamp waits for
another stream's JSON. The garbage collector rests while a level runs, because a full collection stops everything for tens of milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from ops.benchmark.chat_client import ChatClient
from ops.benchmark.chat_stream import events, settle
from ops.benchmark.metrics import MS, ClientCost, S, percentile, tokens_of
from ops.benchmark.presets import SweepSettings
from ops.benchmark.prompts import synthetic
from ops.benchmark.request_record import ErrorKind, RequestRecord
from ops.benchmark.stamped_connection import RawResponse, StampedConnection
from ops.jobs.errors import BadInput, OpsError

POLL_S = 0.1  # cancel, time limits
STOP_NEEDS = 5  # requests that ended before an error rate means anything
FILES_BESIDE = 64  # descriptors that we need for other things
MAX_RESPONSE = 64 * 1024 * 1024  # bytes; 32,768 chunks of 500 bytes are 16 MB


@dataclass(frozen=True, slots=True)
class LiveSecond:
    """One second of a running level. Rates count events as they arrive; the level's final numbers come from the whole streams."""

    second: int
    output_tok_s: float
    in_flight: int
    finished: int
    errors: int
    ttft_p50_ms: float | None
    icl_p50_ms: float | None  # gaps between reads within this second
    e2e_mean_s: float | None
    throughput_so_far_tok_s: float
    power_w: float | None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class LevelOutcome:
    """What a level left: records of every request that was sent, its anchor on the wall clock, what it cost the client, why it ended.

    `stopped`: "" (all requests were sent), "time" (the limit), "errors", "cancelled".
    """

    concurrency: int
    requests: int
    records: list[RequestRecord]
    t0: int  # perf_counter_ns at the start
    started_at: float  # time.time() at the same moment
    client: ClientCost
    stopped: str = ""
    power_mean_w: float | None = None


@dataclass(slots=True)
class _Slot:
    index: int
    connection: StampedConnection | None
    record: RequestRecord | None = None
    request: bytes = b""
    looked_at: int = 0  # pieces that the live view has counted
    received: int = 0  # bytes in those
    first_chunk_ns: int | None = None
    open: bool = True


class LagProbe:
    """How late the event loop serves what is ready: a thread stamps a wake-up, the loop stamps its arrival.

    A timer would not do: uvloop's timers have a resolution of 1 ms, as much as what is measured.
    """

    def __init__(self, every_s: float = 0.025) -> None:
        self.lags: array[int] = array("q")
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        def knock() -> None:
            while not self._stop.wait(self._every_s):
                try:
                    loop.call_soon_threadsafe(self._heard, perf_counter_ns())
                except RuntimeError:  # the loop has been closed
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


def allow_files(concurrency: int) -> None:
    """Raises the soft limit of open files where needed; BadInput if the hard limit is too low for so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = concurrency + FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(f"Concurrency {concurrency} needs {needed} open files; this process may have {hard}",
                       hint=f"Raise the limit (`ulimit -n {needed}`, or LimitNOFILE= in the agent's unit)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def body(settings: SweepSettings, level: int, index: int) -> dict[str, Any]:
    """One request's JSON. `level` and `index` make its prompt unique; warm-up requests have negative indexes."""
    fixed = {"min_tokens": settings.max_tokens, "ignore_eos": True} if settings.output_mode == "fixed" else {}
    return {
        "model": settings.model, "messages": [{"role": "user", "content": synthetic(settings.seed, level, index, settings.prompt_words)}],
        "stream": True, "stream_options": {"include_usage": True}, "max_tokens": settings.max_tokens, "temperature": settings.temperature,
        **fixed, **settings.extra_body,
    }


class Level:
    """One run of a closed loop. `live` is called once a second and once at the end; `power` may block, it is read in a thread."""

    def __init__(self, client: ChatClient, settings: SweepSettings, concurrency: int, requests: int, *, first_index: int = 0, step: int = 1,
                 typical_ns: float | None = None, live: Callable[[LiveSecond], None] | None = None, cancel: Callable[[], bool] = lambda: False,
                 power: Callable[[], float | None] | None = None, time_limit_s: float | None = None) -> None:
        self.client, self.settings = client, settings
        self.concurrency, self.requests = concurrency, requests
        self.live, self.cancel, self.power = live, cancel, power
        limit = time_limit_s if time_limit_s is not None else settings.level_seconds
        self._limit_ns, self._drain_ns = int(limit * S), int(settings.drain_seconds * S)
        self._timeout_ns = int(settings.request_timeout_s * S)
        self._typical_ns = typical_ns
        self._bytes = [client.request_bytes(body(settings, concurrency, first_index + step * i)) for i in range(requests)]
        self._records: list[RequestRecord] = []
        self._slots: list[_Slot] = []
        self._unread: deque[tuple[RequestRecord, RawResponse]] = deque()
        self._work = asyncio.Event()
        self._over = asyncio.Event()
        self._open_slots = 0
        self._stopped = ""
        self._t0 = 0
        self._connects = self._retries = 0
        self._good = self._bad = 0  # read so far
        self._ended_events = 0
        self._second_gaps: list[int] = []
        self._per_event = 1.0  # output tokens for an event, learned from streams that have ended
        self._token_total = self._event_total = 0
        self._ttfts: list[int] = []
        self._e2e_total = 0
        self._watts: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> LevelOutcome:
        """Runs to the end, the time limit, too many errors, or cancel. Raises OpsError if the connections cannot be opened."""
        loop = asyncio.get_running_loop()
        slots = min(self.concurrency, self.requests)
        allow_files(slots)
        connections = await self.client.open(slots)
        self._slots = [_Slot(i, connection) for i, connection in enumerate(connections)]
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.on_lost = self._reopen(slot)
        self._open_slots = slots
        reader = asyncio.create_task(self._read_streams())
        probe = LagProbe()
        probe.start(loop)
        gc.collect()
        gc.disable()
        cpu, started_at, self._t0 = time.process_time_ns(), time.time(), perf_counter_ns()
        try:
            ramp_ns = 0.0 if self.settings.burst or slots == 1 else (self._typical_ns or 0.0)
            for slot in self._slots:
                wanted = self._t0 + int(ramp_ns * slot.index / slots)
                if ramp_ns:
                    loop.call_later(max(0.0, (wanted - perf_counter_ns()) / S), self._begin, slot, wanted)
                else:
                    self._begin(slot, wanted)
            await self._watch()
        finally:
            wall, cpu = perf_counter_ns() - self._t0, time.process_time_ns() - cpu
            gc.enable()
            lags = probe.stop()
            for slot in self._slots:
                slot.open = False
                if slot.connection is not None:
                    slot.connection.close()
            for task in list(self._tasks):
                task.cancel()
            self._over.set()
            self._work.set()
        await reader
        lag50, lag99, most = percentile(lags, 50), percentile(lags, 99), lags[-1] if lags else None
        cost = ClientCost(
            lag_p50_ms=None if lag50 is None else lag50 / MS, lag_p99_ms=None if lag99 is None else lag99 / MS,
            lag_max_ms=None if most is None else most / MS, cpu_share=cpu / wall if wall else None,
            connects_in_level=self._connects, retries=self._retries)
        return LevelOutcome(self.concurrency, self.requests, self._records, self._t0, started_at, cost, self._stopped,
                            sum(self._watts) / len(self._watts) if self._watts else None)

    # -- sending: everything here runs in the loop's callbacks, with no task in between --------------------------------------

    def _begin(self, slot: _Slot, wanted: int) -> None:
        """Sends the slot's next request, or closes the slot when there is none to send."""
        if not slot.open:
            return
        if self._stopped or len(self._records) >= self.requests or not self._fits(wanted):
            self._close(slot)
            return
        record = RequestRecord(index=len(self._records), slot=slot.index, t_sched=wanted)
        self._records.append(record)
        slot.record, slot.request = record, self._bytes[record.index]
        slot.looked_at, slot.received, slot.first_chunk_ns = 0, 0, None
        self._send(slot, record)

    def _fits(self, now: int) -> bool:
        """Whether a request sent now should end within the level's time, as far as requests so far tell. The first of a slot always goes."""
        left = self._t0 + self._limit_ns - now
        if len(self._records) < len(self._slots):
            return left > 0
        if left < (self._typical_ns or 0):
            self._stopped = "time"
            return False
        return True

    def _send(self, slot: _Slot, record: RequestRecord) -> None:
        connection = slot.connection
        if connection is None or connection.closed:
            self._spawn(self._connect_and_send(slot, record))
            return
        reused = connection.used
        record.t_send = connection.send(slot.request, lambda raw: self._ended(slot, record, raw, reused))

    async def _connect_and_send(self, slot: _Slot, record: RequestRecord) -> None:
        record.connected = True
        self._connects += 1
        try:
            slot.connection = await self.client.connect()
        except OpsError as error:
            record.t_send = record.t_end = perf_counter_ns()
            record.fail(ErrorKind.CONNECT, error.why or error.what)
            self._bad += 1
            self._next(slot)
            return
        if not slot.open or record.t_end is not None:
            slot.connection.close()
            return
        slot.connection.on_lost = self._reopen(slot)
        self._send(slot, record)

    def _reopen(self, slot: _Slot) -> Callable[[], None]:
        """Opens an idle slot's connection again when the server has closed it, so that the next request finds one."""

        async def again() -> None:
            self._connects += 1
            with contextlib.suppress(OpsError):  # the slot's next request tries again and tells
                connection = await self.client.connect()
                if slot.open and slot.record is None and (slot.connection is None or slot.connection.closed):
                    connection.on_lost = lost
                    slot.connection = connection
                else:
                    connection.close()

        def lost() -> None:
            if slot.open and slot.record is None and not self._stopped:
                self._spawn(again())

        return lost

    def _ended(self, slot: _Slot, record: RequestRecord, raw: RawResponse, reused: bool) -> None:
        if raw.failure and raw.failure[0] == ErrorKind.CUT and not raw.pieces and reused and slot.open and not (record.retried or record.unfinished):
            record.retried = True  # the server closed the idle connection while this request was on its way
            self._retries += 1
            slot.record = record
            self._spawn(self._connect_and_send(slot, record))
            return
        record.t_end = raw.ended_at
        if raw.complete and raw.status == 200:
            self._typical_ns = float(raw.ended_at - record.t_send)  # the latest: load changes it, and the next request is decided on it now
        self._unread.append((record, raw))
        self._count_tail(slot, raw)
        self._next(slot)
        self._work.set()

    def _next(self, slot: _Slot) -> None:
        slot.record = None
        self._begin(slot, perf_counter_ns())

    def _close(self, slot: _Slot) -> None:
        slot.open = False
        slot.record = None
        self._open_slots -= 1
        if self._open_slots == 0:
            self._over.set()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- watching ------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until every slot is closed: a look every POLL_S, a live second every second."""
        second, so_far = 0, 0.0
        last = self._t0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), POLL_S)
            now = perf_counter_ns()
            self._enforce(now)
            ended = self._over.is_set()
            if ended or now - self._t0 >= (second + 1) * S:
                if ended:
                    await self._let_read(now)
                tokens = await self._count_events() * self._per_event
                so_far += tokens
                seconds = (now - last) / S
                last, second = now, max(second + 1, int((now - self._t0) / S))
                if self.live is not None:
                    watts = await asyncio.get_running_loop().run_in_executor(None, self.power) if self.power is not None else None
                    if watts is not None:
                        self._watts.append(watts)
                    ttfts = await self._first_chunks()
                    self.live(self._second(second, ttfts, tokens / seconds if seconds else 0.0, so_far / ((now - self._t0) / S), watts))
            if ended:
                return

    async def _let_read(self, now: int) -> None:
        """Before the level's last live second: the streams that have ended are read first, for at most a second."""
        while self._unread and perf_counter_ns() - now < S:
            await asyncio.sleep(0.005)

    def _enforce(self, now: int) -> None:
        """Cancel, error rate, time limits."""
        if not self._stopped:
            ended = self._good + self._bad
            if self.cancel():
                self._stopped = "cancelled"
            elif ended >= min(STOP_NEEDS, self.requests) and self._bad > self.settings.stop_error_rate * ended:
                self._stopped = "errors"
        hard = self._stopped in ("cancelled", "errors") or now > self._t0 + self._limit_ns + self._drain_ns
        for slot in self._slots:
            record = slot.record
            if record is None:
                if slot.open and (hard or now > self._t0 + self._limit_ns):
                    self._close(slot)  # waiting for its staggered start
                continue
            if hard:
                self._abandon(slot, record, now)
            elif record.t_send and now - record.t_send > self._timeout_ns and slot.connection is not None:
                slot.connection.fail(ErrorKind.TIMEOUT, f"No end within {self.settings.request_timeout_s:g} s")
        if now > self._t0 + self._limit_ns and not self._stopped:
            self._stopped = "time"

    def _abandon(self, slot: _Slot, record: RequestRecord, now: int) -> None:
        """Ends a request that is in flight: unfinished, neither an error nor a measurement."""
        record.unfinished = True
        record.t_send = record.t_send or now
        if slot.connection is not None and not slot.connection.closed:
            slot.connection.fail(ErrorKind.CUT, "ended by us")  # ends in _ended, which closes the slot
        if record.t_end is None:
            record.t_end = now
            self._close(slot)

    async def _count_events(self) -> int:
        """Text events that arrived since the last look, by their markers; a few streams at a time, so that no stamp waits for it."""
        total, self._ended_events = self._ended_events, 0
        for i, slot in enumerate(self._slots):
            if slot.record is not None and slot.connection is not None:
                total += self._count_new(slot, slot.connection.pieces, slot.connection.stamps)
                if slot.received > MAX_RESPONSE:
                    slot.connection.fail(ErrorKind.PROTOCOL, f"The answer is longer than {MAX_RESPONSE // 1024**2} MiB")
            if i % 8 == 7:
                await asyncio.sleep(0)
        return total

    def _count_new(self, slot: _Slot, pieces: list[bytes], stamps: array[int]) -> int:
        fresh = pieces[slot.looked_at:]
        if not fresh:
            return 0
        if len(self._second_gaps) < 5000:
            since = stamps[max(slot.looked_at, 1):]
            self._second_gaps += [after - before for before, after in pairwise(since)]
        slot.looked_at = len(pieces)
        text = b"".join(fresh)
        slot.received += len(text)
        return text_events(text)

    def _count_tail(self, slot: _Slot, raw: RawResponse) -> None:
        if self.live is not None:
            self._ended_events += self._count_new(slot, raw.pieces, raw.stamps)

    async def _first_chunks(self) -> list[int]:
        """TTFTs of streams in flight: only their first pieces are read."""
        found = []
        for i, slot in enumerate(self._slots):
            if i % 8 == 7:
                await asyncio.sleep(0)
            if slot.record is None or slot.connection is None or not slot.record.t_send:
                continue
            pieces = slot.connection.pieces
            if slot.first_chunk_ns is None and len(pieces) > 1:
                slot.first_chunk_ns = _first_text(pieces[:8], slot.connection.stamps[:8])
            if slot.first_chunk_ns is not None:
                found.append(slot.first_chunk_ns - slot.record.t_send)
        return found

    def _second(self, second: int, in_flight_ttfts: list[int], rate: float, so_far: float, watts: float | None) -> LiveSecond:
        ttfts, gaps = sorted(self._ttfts + in_flight_ttfts), sorted(self._second_gaps)
        self._second_gaps = []
        ttft, gap = percentile(ttfts, 50), percentile(gaps, 50)
        return LiveSecond(
            second=second, output_tok_s=rate, in_flight=sum(1 for slot in self._slots if slot.record is not None),
            finished=self._good, errors=self._bad,
            ttft_p50_ms=None if ttft is None else ttft / MS, icl_p50_ms=None if gap is None else gap / MS,
            e2e_mean_s=self._e2e_total / self._good / S if self._good else None, throughput_so_far_tok_s=so_far, power_w=watts)

    # -- reading -------------------------------------------------------------------------------------------------------------

    async def _read_streams(self) -> None:
        """Reads the streams that have ended, a slice at a time."""
        while True:
            while self._unread:
                record, raw = self._unread.popleft()
                for _ in settle(record, raw):
                    await asyncio.sleep(0)
                self._note(record, raw)
                await asyncio.sleep(0)
            if self._over.is_set():
                return
            self._work.clear()
            await self._work.wait()

    def _note(self, record: RequestRecord, raw: RawResponse) -> None:
        if record.unfinished:
            record.error_kind = record.error = ""
            return
        if record.error_kind:
            self._bad += 1
            return
        self._good += 1
        self._ttfts.append(record.times[0] - record.t_send)
        e2e = record.times[-1] - record.t_send
        self._e2e_total += e2e
        self._token_total += tokens_of(record)
        self._event_total += text_events(b"".join(raw.pieces))
        self._per_event = self._token_total / self._event_total if self._event_total else 1.0


def text_events(text: bytes) -> int:
    """About how many events with text there are: all but the role-only and the usage-only ones. No parsing; quotes inside texts are escaped."""
    return text.count(b"data: {") - text.count(b'"role":') - text.count(b'"choices":[]')


def _first_text(pieces: list[bytes], stamps: array[int]) -> int | None:
    """The stamp of the first text in a stream's first pieces, or None."""
    head = b"".join(pieces)
    start = head.find(b"\r\n\r\n")
    if start < 0:
        return None
    framing = "chunked" if b"chunked" in head[:start].lower() else "close"
    raw = RawResponse(stamps=stamps, pieces=pieces, framing=framing, body_start=start + 4)
    for stamp, data in events(raw):
        if any(mark in data and (mark + b'""') not in data for mark in (b'"content":', b'"reasoning":', b'"reasoning_content":', b'"arguments":')):
            return stamp
    return None


@dataclass(slots=True)
class WarmUp:
    """What a warm-up showed: mean time of a request in ns (None if none ended well), errors."""

    typical_ns: float | None
    sent: int
    records: list[RequestRecord] = field(default_factory=list)


async def warm_up(client: ChatClient, settings: SweepSettings, concurrency: int, *, cancel: Callable[[], bool]) -> WarmUp:
    """Sends the level's warm-up requests, with prompts of their own; they are thrown away. Raises OpsError if every one failed."""
    count = settings.warmup_requests(concurrency)
    if not count:
        return WarmUp(None, 0)
    level = Level(client, settings, min(concurrency, settings.warmup_slots), count, first_index=-1, step=-1, cancel=cancel)
    outcome = await level.run()
    good = [record for record in outcome.records if record.ok]
    failed = [record for record in outcome.records if record.error_kind]
    if failed and not good:
        raise every_request_failed(settings, failed, f"in the warm-up of concurrency {concurrency}")
    return WarmUp(sum(r.times[-1] - r.t_send for r in good) / len(good) if good else None, len(outcome.records), outcome.records)


def every_request_failed(settings: SweepSettings, failed: list[RequestRecord], when: str) -> OpsError:
    """The error for a server that answers nothing rightly: the first failure tells why."""
    first = failed[0]
    hint = ""
    if first.error_kind == ErrorKind.HTTP and first.status in (400, 422) and settings.output_mode == "fixed":
        hint = "If the server does not know `ignore_eos` and `min_tokens`, measure with natural output length (--natural)"
    elif first.error_kind == ErrorKind.NOT_A_STREAM:
        hint = "Does something between here and the server turn streams into plain answers?"
    elif first.error_kind in (ErrorKind.STREAM_ERROR, ErrorKind.CUT):
        hint = "Look at the server's log: it failed while it was answering"
    return OpsError(f"All {len(failed)} requests to {settings.base_url} failed ({when}): {first.error_kind}", why=first.error, hint=hint,
                    kind=f"request_{first.error_kind}", status=first.status)
