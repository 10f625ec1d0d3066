"""Load on a chat endpoint. Closed loop: C slots, each sending its next request the moment that its last one ended. Open loop: Poisson arrivals.

In a closed loop the next request leaves in the very callback that received the last byte of the one before; its bytes were made before the
level. Reading what the streams said is put off: a background task does it in slices of a fraction of a millisecond, so that no stream's stamp
waits for another stream's JSON. The garbage collector rests while a level runs, because a full collection stops everything for tens of
milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import random
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from ops.benchmark.chat_client import MAX_RESPONSE, ChatClient
from ops.benchmark.chat_stream import settle
from ops.benchmark.client_cost import CostMeter
from ops.benchmark.live_view import Beside, Flight, LiveSecond, LiveView, StreamWatch
from ops.benchmark.metrics import ClientCost, S
from ops.benchmark.presets import LevelPlan, SweepSettings
from ops.benchmark.prompts import Prompts, SyntheticPrompts, as_text
from ops.benchmark.request_record import ErrorKind, RequestRecord
from ops.benchmark.socket_loop import SocketLoop
from ops.benchmark.stamped_connection import RawResponse, StampedConnection
from ops.jobs.errors import BadInput, OpsError

POLL_S = 0.1  # cancel, time limits
STOP_NEEDS = 5  # requests that ended before an error rate means anything
FILES_BESIDE = 64  # descriptors that we need for other things
MAX_IN_FLIGHT = 2048  # of an open loop without a cap of its own: descriptors end somewhere
SPARE_CONNECTIONS = 8  # opened before an open loop's level, above what it should need
TIMER_NS = 1_500_000  # what is left to the loop's turns: most loops' timers are good to a millisecond
SLICE_NS = 150_000  # of reading before the loop has its turn
FINE_TIMER_NS = 150_000  # as much of our own loop
MADE_AHEAD = 128 * 1024 * 1024  # bytes of requests that wait to be sent: 20,000 long prompts would take gigabytes
KEPT_OF_ENDLESS = 100  # segments
LONGEST_READ = 256 * 1024  # bytes of any transport
GROWN_KIB = 256 * 1024  # of our own memory from one look to the next: somebody sends without end


@dataclass(slots=True)
class LevelOutcome:
    """What a level left: records of every request that was wanted, its anchor on the wall clock, what it cost the client, why it ended.

    `stopped`: "" (all requests were sent), "time" (the limit), "errors", "cancelled".
    """

    plan: LevelPlan
    records: list[RequestRecord]
    t0: int  # perf_counter_ns at the start
    started_at: float  # time.time() at the same moment
    client: ClientCost
    stopped: str = ""
    waited: int = 0  # arrivals of an open loop that found as many requests in flight as may be

    @property
    def ended(self) -> int:
        """perf_counter_ns of its last request's end."""
        return max((record.t_end for record in self.records if record.t_end is not None), default=self.t0)


@dataclass(slots=True)
class _Slot:
    """A connection and the request on it. A closed loop has one for each of its C; an open loop takes a free one for each arrival."""

    index: int
    connection: StampedConnection | None
    record: RequestRecord | None = None
    request: bytes = b""
    watch: StreamWatch = field(default_factory=StreamWatch)
    open: bool = True


def allow_files(connections: int, *, wish: int = 0) -> None:
    """Raises the soft limit of open files where needed; BadInput if the hard limit is too low for so many connections.

    `wish`: how many there may come to be (an open loop cannot tell before): as many of those as the hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + FILES_BESIDE
    if wish > connections:
        needed = max(needed, wish + FILES_BESIDE if hard == resource.RLIM_INFINITY else min(wish + FILES_BESIDE, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(f"{connections} connections need {needed} open files; this process may have {hard}",
                       hint=f"Raise the limit (`ulimit -n {needed}`, or LimitNOFILE= in the agent's unit)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def body(settings: SweepSettings, prompts: Prompts, level: str, index: int) -> dict[str, Any]:
    """One request's JSON. `level` (LevelPlan.key) and `index` make its prompt unique; warm-up requests have negative indexes."""
    fixed = {"min_tokens": settings.max_tokens, "ignore_eos": True} if settings.output_mode == "fixed" else {}
    messages = prompts.messages(level, index)
    asked: dict[str, Any] = {"prompt": as_text(messages)} if settings.endpoint_kind == "completions" else {"messages": messages}
    if settings.reasoning:  # templates differ in the switch's name
        on = settings.reasoning == "on"
        asked["chat_template_kwargs"] = {"enable_thinking": on, "thinking": on}
    return {"model": settings.model, **asked, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": settings.max_tokens,
            "temperature": settings.temperature, **fixed, **settings.extra_body}


def arrivals(seed: int, rate: float, count: int) -> list[int]:
    """When the requests of an open loop are wanted, in ns from the level's start: a Poisson process, not rescaled to hit its rate."""
    draw = random.Random(f"{seed}/arrivals/{rate:g}")  # noqa: S311  # reproducible load, not a secret
    at, times = 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        times.append(int(at * S))
    return times


class Level:
    """One run of a level. `live` is called once a second and once at the end; `beside` is read at the same time, in a thread.

    `plan.load` "closed": `plan.value` slots, each sending its next request when its last one ended. "open": arrivals at `plan.value` a second;
    each takes a free connection, or waits where `settings.max_in_flight` says so (its wait is its queue delay).
    """

    def __init__(self, client: ChatClient, settings: SweepSettings, plan: LevelPlan, *, prompts: Prompts | None = None, seed_key: str = "",
                 first_index: int = 0,
                 step: int = 1, typical_ns: float | None = None, live: Callable[[LiveSecond], None] | None = None,
                 cancel: Callable[[], bool] = lambda: False,
                 beside: Beside | None = None, time_limit_s: float | None = None) -> None:
        self.client, self.settings, self.plan, self.requests = client, settings, plan, plan.requests
        self.live, self.cancel, self.beside = live, cancel, beside
        limit = time_limit_s if time_limit_s is not None else settings.level_seconds
        self._limit_ns, self._drain_ns = int(limit * S), int(settings.drain_seconds * S)
        self._timeout_ns = int(settings.request_timeout_s * S)
        self._typical_ns = typical_ns
        source = prompts or SyntheticPrompts(settings.seed, settings.prompt_words)
        self._make = lambda i: client.request_bytes(body(settings, source, seed_key or plan.key, first_index + step * i))
        self._made: dict[int, bytes] = {}  # requests not yet sent
        self._next_to_make = self._made_bytes = 0
        self._arrivals = deque(arrivals(settings.seed, plan.value, self.requests)) if plan.load == "open" else deque()
        self._cap = (settings.max_in_flight or MAX_IN_FLIGHT) if plan.load == "open" else int(plan.value)
        self._records: list[RequestRecord] = []
        self._slots: list[_Slot] = []
        self._free: list[_Slot] = []  # of an open loop
        self._waiting: deque[RequestRecord] = deque()  # of an open loop at its cap
        self._unread: deque[tuple[RequestRecord, RawResponse, StreamWatch]] = deque()
        self._view = LiveView()
        self._work = asyncio.Event()
        self._over = asyncio.Event()
        self._open_slots = 0
        self._stopped = ""
        self._t0 = 0
        self._connects = self._retries = self._waited = 0
        self._good = self._bad = 0  # read so far
        self._peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
        self._tasks: set[asyncio.Task[Any]] = set()
        self._enforce_at = 0  # perf_counter_ns: no request can run into its time limit before
        while self._room_to_make():
            self._make_one()

    async def run(self) -> LevelOutcome:
        """Runs to the end, the time limit, too many errors, or cancel. Raises OpsError if the connections cannot be opened."""
        loop = asyncio.get_running_loop()
        count = self._connections_wanted()
        allow_files(count, wish=min(self._cap, self.requests))
        connections = await self.client.open(count)
        self._slots = [_Slot(i, connection) for i, connection in enumerate(connections)]
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.on_lost = self._reopen(slot)
        if self.beside is not None:
            await loop.run_in_executor(None, self.beside.read)  # the level's edge, before anything of it is sent
        reader = asyncio.create_task(self._read_streams())
        meter = CostMeter()
        gc.collect()
        gc.disable()
        meter.start(loop)
        started_at, self._t0 = time.time(), perf_counter_ns()
        self._view.start(self._t0)
        if self.beside is not None:
            self.beside.start(self._t0)
        try:
            if self.plan.load == "open":
                self._free = list(reversed(self._slots))
                self._arrive()
            else:
                self._fill(loop)
            await self._watch()
        finally:
            gc.enable()
            cost = meter.stop([slot.connection for slot in self._slots if slot.connection is not None], connects=self._connects,
                              retries=self._retries)
            for slot in self._slots:
                slot.open = False
                if slot.connection is not None:
                    slot.connection.close()
            for task in list(self._tasks):
                task.cancel()
            self._over.set()
            self._work.set()
        await reader
        return LevelOutcome(self.plan, self._records, self._t0, started_at, cost, self._stopped, self._waited)

    def _connections_wanted(self) -> int:
        """How many are opened before the level. A rate needs as many as it keeps in flight (Little's law), and some for its luck."""
        if self.plan.load == "closed":
            return min(self._cap, self.requests)
        expected = self.plan.value * (self._typical_ns or S) / S
        return min(self._cap, self.requests, math.ceil(1.5 * expected + 4 * math.sqrt(expected)) + SPARE_CONNECTIONS)

    # -- sending: everything here runs in the loop's callbacks, with no task in between --------------------------------------

    def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        """A closed loop's first requests: at once, or staggered over the time of one request."""
        slots = self._open_slots = len(self._slots)
        ramp_ns = 0.0 if self.settings.burst or slots == 1 else (self._typical_ns or 0.0)
        for slot in self._slots:
            wanted = self._t0 + int(ramp_ns * slot.index / slots)
            if ramp_ns:
                loop.call_later(max(0.0, (wanted - perf_counter_ns()) / S), self._begin, slot, wanted)
            else:
                self._begin(slot, wanted)

    def _begin(self, slot: _Slot, wanted: int) -> None:
        """Sends the slot's next request, or closes the slot when there is none to send."""
        if not slot.open:
            return
        if self._stopped or len(self._records) >= self.requests or not self._fits(wanted):
            self._close(slot)
            return
        self._put_on(slot, self._wanted(wanted))

    def _wanted(self, at: int) -> RequestRecord:
        record = RequestRecord(index=len(self._records), slot=-1, t_sched=at)
        self._records.append(record)
        return record

    def _put_on(self, slot: _Slot, record: RequestRecord) -> None:
        record.slot = slot.index
        slot.record, slot.request, slot.watch = record, self._take(record.index), StreamWatch()
        self._send(slot, record)

    def _take(self, index: int) -> bytes:
        """A request's bytes; made on the spot only where requests went out faster than they could be made."""
        made = self._made.pop(index, None)
        if made is None:
            return self._make(index)
        self._made_bytes -= len(made)
        return made

    def _room_to_make(self) -> bool:
        return self._next_to_make < self.requests and self._made_bytes < MADE_AHEAD

    def _make_one(self) -> None:
        index = self._next_to_make = max(self._next_to_make, len(self._records))
        if index < self.requests:
            self._made[index] = self._make(index)
            self._made_bytes += len(self._made[index])
            self._next_to_make += 1

    def _fits(self, now: int) -> bool:
        """Whether a request sent now should end within the level's time, as far as requests so far tell. The first of a slot always goes."""
        left = self._t0 + self._limit_ns - now
        if len(self._records) < len(self._slots):
            return left > 0
        if left < (self._typical_ns or 0):
            self._stopped = "time"
            return False
        return True

    def _arrive(self) -> None:
        """An open loop's arrivals: sends what is due, and comes again for the next."""
        loop = asyncio.get_running_loop()
        turns = FINE_TIMER_NS if isinstance(loop, SocketLoop) else TIMER_NS
        while self._arrivals and not self._stopped:
            wanted = self._t0 + self._arrivals[0]
            if wanted > self._t0 + self._limit_ns:
                self._stopped = "time"
                break
            early = wanted - perf_counter_ns()
            if early > turns:
                loop.call_later((early - turns) / S, self._arrive)
                return
            if early > 0:  # timers are only so good: the rest goes by in the loop's turns
                loop.call_soon(self._arrive)
                return
            self._arrivals.popleft()
            record = self._wanted(wanted)
            if (slot := self._free_slot()) is not None:
                self._put_on(slot, record)
            else:
                self._waiting.append(record)
                self._waited += 1
        self._end_if_done()

    def _free_slot(self) -> _Slot | None:
        if self._free:
            return self._free.pop()
        if len(self._slots) >= self._cap:
            return None
        self._slots.append(_Slot(len(self._slots), None))
        return self._slots[-1]

    def _end_if_done(self) -> None:
        """Of an open loop: over when nothing is to come, waits or is in flight."""
        if (self._stopped or not self._arrivals) and not self._waiting and all(slot.record is None for slot in self._slots):
            self._over.set()

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
            self._view.failed()
            self._next(slot, record.t_end)
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
        self._unread.append((record, raw, slot.watch))
        if self.live is not None:
            self._view.ended(slot.watch, raw)
        self._next(slot, raw.ended_at)
        self._work.set()

    def _next(self, slot: _Slot, at: int) -> None:
        """The slot is free since `at`, whenever we got round to it: what that took is the next request's queue delay."""
        slot.record = None
        if self.plan.load == "closed":
            self._begin(slot, at)
        elif self._waiting and not self._stopped:
            self._put_on(slot, self._waiting.popleft())
        else:
            self._free.append(slot)
            self._end_if_done()

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
        over = asyncio.create_task(self._over.wait())
        self._tasks.add(over)
        second = 0
        while True:
            await asyncio.wait([over], timeout=POLL_S)
            now = perf_counter_ns()
            self._enforce(now)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if peak - self._peak_kib > GROWN_KIB:
                self._end_the_endless(now_counted=True)
            self._peak_kib = peak
            ended = self._over.is_set()
            if ended or now - self._t0 >= (second + 1) * S:
                if ended:
                    await self._let_read(now)
                second = max(second + 1, int((now - self._t0) / S))
                beside = await asyncio.get_running_loop().run_in_executor(None, self.beside.read) if self.beside is not None else {}
                told = await self._view.look(self._flights(), second, now, beside)
                self._end_the_endless()
                if self.live is not None:
                    self.live(told)
            if ended:
                return

    def _end_the_endless(self, *, now_counted: bool = False) -> None:
        """Fails answers that no request asked for; of their bytes only the first are kept. Else as the view counted them, once a second."""
        for slot in list(self._slots):
            connection = slot.connection
            if slot.record is None or connection is None or len(connection.pieces) * LONGEST_READ <= MAX_RESPONSE:
                continue
            if (sum(map(len, connection.pieces)) if now_counted else slot.watch.received) > MAX_RESPONSE:
                del connection.pieces[KEPT_OF_ENDLESS:], connection.stamps[KEPT_OF_ENDLESS:]
                connection.fail(ErrorKind.PROTOCOL, f"The answer is longer than {MAX_RESPONSE // 1024**2} MiB")

    def _flights(self) -> Iterator[Flight]:
        """The streams in flight. Slots may change while the view looks: each is taken as it is when its turn comes."""
        for slot in list(self._slots):
            if slot.record is not None and slot.connection is not None and slot.record.t_send:
                yield Flight(slot.record.t_send, slot.connection.pieces, slot.connection.stamps, slot.watch)

    async def _let_read(self, now: int) -> None:
        """Before the level's last live second: the streams that have ended are read first, for at most a second."""
        while self._unread and perf_counter_ns() - now < S:
            await asyncio.sleep(0.005)

    def _enforce(self, now: int) -> None:
        """Cancel, error rate, time limits."""
        if not self._stopped:
            sent = len(self._records) - len(self._waiting)  # in flight counts as good: failures are quick, so the first to end tell of nothing else
            if self.cancel():
                self._stopped = "cancelled"
            elif self._good + self._bad >= min(STOP_NEEDS, self.requests) and self._bad > self.settings.stop_error_rate * sent:
                self._stopped = "errors"
        past = now > self._t0 + self._limit_ns
        hard = self._stopped in ("cancelled", "errors") or now > self._t0 + self._limit_ns + self._drain_ns
        if hard or past or now > self._enforce_at:
            self._enforce_each(now, hard=hard, past=past)
        if past and not self._stopped:
            self._stopped = "time"
        if self._stopped and self.plan.load == "open":
            while self._waiting:  # wanted, and never sent: their queue delay is at least this
                record = self._waiting.popleft()
                record.unfinished, record.t_send, record.t_end = True, now, now
            self._end_if_done()

    def _enforce_each(self, now: int, *, hard: bool, past: bool) -> None:
        """Ends what is to be ended, and notes when the next could be."""
        first = now
        for slot in list(self._slots):
            record = slot.record
            if record is None:
                if slot.open and self.plan.load == "closed" and (hard or past):
                    self._close(slot)  # waiting for its staggered start
                continue
            if hard:
                self._abandon(slot, record, now)
            elif record.t_send and slot.connection is not None:
                if now - record.t_send > self._timeout_ns:
                    slot.connection.fail(ErrorKind.TIMEOUT, f"No end within {self.settings.request_timeout_s:g} s")
                elif record.t_send < first:
                    first = record.t_send
        self._enforce_at = first + self._timeout_ns

    def _abandon(self, slot: _Slot, record: RequestRecord, now: int) -> None:
        """Ends a request that is in flight: unfinished, neither an error nor a measurement."""
        record.unfinished = True
        record.t_send = record.t_send or now
        if slot.connection is not None and not slot.connection.closed:
            slot.connection.fail(ErrorKind.CUT, "ended by us")  # ends in _ended, which closes the slot
        if record.t_end is None:
            record.t_end = now
            if self.plan.load == "closed":
                self._close(slot)
            else:
                slot.record = None

    # -- reading -------------------------------------------------------------------------------------------------------------

    async def _read_streams(self) -> None:
        """Reads the streams that have ended, a slice at a time."""
        while True:
            since = perf_counter_ns()
            while self._unread:
                record, raw, watch = self._unread.popleft()
                for _ in settle(record, raw):
                    await asyncio.sleep(0)
                    since = perf_counter_ns()
                self._note(record, raw, watch.events)
                if perf_counter_ns() - since > SLICE_NS:
                    await asyncio.sleep(0)
                    since = perf_counter_ns()
            while self._room_to_make() and not self._over.is_set() and not self._unread:
                self._make_one()
                await asyncio.sleep(0)
            if self._over.is_set():
                return
            self._work.clear()
            await self._work.wait()

    def _note(self, record: RequestRecord, raw: RawResponse, events: int) -> None:
        """A stream has been read; `events` as its watch counted them. For those who need the bytes too (benchmarks), `raw` is here."""
        if record.unfinished:
            record.error_kind = record.error = ""
            return
        if record.error_kind:
            self._bad += 1
            self._view.note(record, events)
            return
        self._good += 1
        self._view.note(record, events)
