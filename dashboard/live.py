"""Live streams: one reader per Redis stream and process, whose entries are encoded once and handed to every page that looks.

A page's stream never has a gap and never repeats an event of its job: it sends rows above the last number from the database, then
the job's own Redis stream, in `seq` order. Whatever is missing there (Redis was emptied, the page was away for long) comes from the
database again; what is in neither yet, the node sends again, and the page's stream waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from redis.exceptions import RedisError

from dashboard import dispatch, redis_clients, sse
from dashboard.models import Job, JobEvent, Node
from ops.jobs import streams
from ops.jobs.errors import OpsError
from ops.jobs.events import FINAL_STATES, Event, EventType

logger = logging.getLogger(__name__)

BLOCK_MS = 4000
READ_COUNT = 200
ROWS = 500  # read from the database at once
QUEUE_LIMIT = 256  # batches that a page may be behind; then its stream ends, and the browser comes back with Last-Event-ID
PING_S = 15
BEHIND_S = 1  # how often a stream that waits for a missing event looks again
RECHECK_S = 30  # how often the session behind a stream is looked at
RESERVED_S = 30
_LAST_WORD = f'"type":"{EventType.JOB_FINISHED}"'.encode()

# Django's own way of calling the database from async code keeps a thread, and a connection, for every open request. Streams stay open for hours.
_database = ThreadPoolExecutor(max_workers=4, thread_name_prefix="live-database")


async def in_database(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` in one of a few threads; its connection is given back afterwards."""

    def call() -> Any:
        try:
            return function(*arguments)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_database, call)


class TooManyStreams(OpsError):
    """This user, or all together, have as many streams open as one web process serves (S17)."""

    kind = "too_many_streams"


@dataclass(eq=False)
class Subscription:
    """One page's stream: batches wait here. `None` in the queue: it ends."""

    queue: asyncio.Queue[Batch | None] = field(default_factory=asyncio.Queue)
    ending: bool = False
    behind: bool = False  # something lies beyond a gap that nobody can fill yet
    tick_at: float = 0.0

    def put(self, batch: Batch) -> None:
        if self.ending:
            return
        if self.queue.qsize() >= QUEUE_LIMIT:
            self.end()
        else:
            self.queue.put_nowait(batch)

    def end(self) -> None:
        if not self.ending:
            self.ending = True
            self.queue.put_nowait(None)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read of a Redis stream gave, encoded. `parts` has the numbers of a job's events; `new_node`: a node to listen to as well."""

    data: bytes
    parts: tuple[tuple[int, bytes], ...] = ()
    new_node: str = ""
    tick: bool = False


TICK = Batch(data=sse.PING, tick=True)


class Feed(ABC):
    """Reads one Redis stream for all of this process' pages."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name = hub, name
        self.subscribers: set[Subscription] = set()
        self.ready = asyncio.Event()  # it knows from where it reads (or Redis is away)
        self.latest = b""  # telemetry: what a page that comes now sees at once
        self.last: bytes | None = None
        self.task = asyncio.create_task(self._run(), name=f"live feed {name}")

    async def _run(self) -> None:
        try:
            while True:
                try:
                    if not await self._read():
                        return
                except (RedisError, OpsError, OSError) as error:
                    logger.info("feed %s waits: %s", self.name, error)
                    self.ready.set()
                    if self.last is None:
                        self.last = b"0-0"  # all that comes later is new; pages drop what they have
                    if not self.subscribers:
                        return
                    await asyncio.sleep(0.5)
                    self.hub.reconnect()
        finally:
            self.ready.set()
            if self.hub.feeds.get(self.name) is self:
                del self.hub.feeds[self.name]

    async def _read(self) -> bool:
        """One read; false when nobody listens any more."""
        client = self.hub.client()
        if self.last is None:
            newest: Any = await client.xrevrange(self.name, count=1)
            self.last = newest[0][0] if newest else b"0-0"
            if newest:
                self.latest = (await self._encode(newest, first=True)).data
            self.ready.set()
        reply: Any = await client.xread({self.name: self.last}, block=BLOCK_MS, count=READ_COUNT)
        if not reply:
            newest = await client.xrevrange(self.name, count=1)
            if _position(newest[0][0] if newest else b"0-0") < _position(self.last):
                self.last = b"0-0"  # Redis was emptied, and numbers begin below again; pages drop what they have
            return bool(self.subscribers)
        entries = reply[0][1]
        self.last = entries[-1][0]
        batch = await self._encode(entries)
        self.latest = batch.data
        for subscriber in list(self.subscribers):
            subscriber.put(batch)
        return True

    @abstractmethod
    async def _encode(self, entries: Any, *, first: bool = False) -> Batch:
        """What subscribers get for these entries, encoded once."""


class JobFeed(Feed):
    """One job's events."""

    async def _encode(self, entries: Any, *, first: bool = False) -> Batch:
        parts = encode_job_entries(entries)
        return Batch(data=b"".join(part for _, part in parts), parts=parts)


class TelemetryFeed(Feed):
    """One node, once a second. Of a batch only the newest is worth sending."""

    async def _encode(self, entries: Any, *, first: bool = False) -> Batch:
        return Batch(data=sse.event("telemetry", entries[-1][1][b"t"]))


class ChangesFeed(Feed):
    """What happened to jobs, and how many are open."""

    async def _encode(self, entries: Any, *, first: bool = False) -> Batch:
        if first:
            return Batch(data=b"")  # old news: a page that comes now is told the count of now
        said, node = [], ""
        for _, fields in entries:
            try:
                change = json.loads(fields[b"c"])
            except (ValueError, KeyError, RecursionError):
                continue
            node = str(change.get("node") or "") or node
            if change.get("id"):
                said.append({name: change.get(name) for name in ("id", "number", "type", "state")})
        running = await count_open()
        newest = {job["id"]: job for job in said}  # a job that changed twice meanwhile is told once
        data = b"".join(sse.event("jobs", {"running": running, "job": job}) for job in newest.values()) or sse.event(
            "jobs", {"running": running, "job": None})
        return Batch(data=data, new_node=node)


def _position(entry_id: bytes) -> tuple[int, int]:
    """Stream ids compare as two integers, not as text."""
    first, _, second = entry_id.partition(b"-")
    return int(first), int(second or 0)


def encode_job_entries(entries: Any) -> tuple[tuple[int, bytes], ...]:
    """(seq, encoded event) of each entry of a job's stream; the entry's id has the number."""
    return tuple((seq := int(entry_id.partition(b"-")[0]), sse.event("job", fields[b"e"], id=seq)) for entry_id, fields in entries)


async def count_open() -> int | None:
    """How many jobs are not over; None if the database does not answer."""
    try:
        return await in_database(Job.objects.exclude(state__in=FINAL_STATES).count)
    except DatabaseError as error:
        logger.warning("open jobs could not be counted: %s", error)
        return None


def rows_after(job_id: str, seq: int) -> list[tuple[int, bytes]]:
    """Up to ROWS encoded events of the job above `seq`, in order."""
    rows = JobEvent.objects.filter(job_id=job_id, seq__gt=seq).order_by("seq").values_list("seq", "at", "type", "data")[:ROWS]
    return [(seq, sse.event("job", Event(job=job_id, seq=seq, at=at, type=type, data=data).to_json(), id=seq)) for seq, at, type, data in rows]


class Hub:
    """All feeds and open streams of one event loop (one web process)."""

    _hubs: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.feeds: dict[str, Feed] = {}
        self.open: set[Subscription] = set()
        self.per_user: Counter[int] = Counter()
        self.reserved: list[tuple[int, float]] = []
        self.closing = False
        self._client: redis.asyncio.Redis | None = None
        self._address = ""
        self._ticker: asyncio.Task[None] | None = None

    @classmethod
    def current(cls) -> Hub:
        loop = asyncio.get_running_loop()
        hub = cls._hubs.get(loop)
        if hub is None:
            hub = cls._hubs[loop] = cls()
        return hub

    def client(self) -> redis.asyncio.Redis:
        if self._client is None:
            self._client, self._address = redis_clients.connect_async(), streams.address()
        return self._client

    def reconnect(self) -> None:
        """After an error: another client, if Redis is at another address now."""
        try:
            if self._client is not None and streams.address() != self._address:
                self._client = None
        except OpsError:
            return

    def feed(self, name: str) -> Feed:
        kind = JobFeed if name.startswith("job:") else ChangesFeed if name == dispatch.CHANGES else TelemetryFeed
        feed = self.feeds.get(name)
        if feed is None or feed.task.done():
            feed = self.feeds[name] = kind(self, name)
        return feed

    def reserve(self, user_id: int) -> None:
        """A place for one more stream of this user, to be taken by `enter` soon. Raises TooManyStreams."""
        now = time.monotonic()
        self.reserved = [(user, since) for user, since in self.reserved if now - since < RESERVED_S]
        waiting = Counter(user for user, _ in self.reserved)
        hint = "Close other tabs of this console; this page goes on without live updates"
        if self.closing:
            raise TooManyStreams("The console is being restarted", hint="The page comes back by itself", kind="unavailable")
        if self.per_user[user_id] + waiting[user_id] >= settings.STREAMS_PER_USER:
            raise TooManyStreams(f"You have {settings.STREAMS_PER_USER} live streams open already", hint=hint)
        if len(self.open) + len(self.reserved) >= settings.STREAMS_PER_PROCESS:
            raise TooManyStreams(f"{settings.STREAMS_PER_PROCESS} live streams are open already", hint=hint)
        self.reserved.append((user_id, now))

    def enter(self, user_id: int) -> Subscription:
        for index, (user, _) in enumerate(self.reserved):
            if user == user_id:
                del self.reserved[index]
                break
        subscription = Subscription(tick_at=time.monotonic() + PING_S * random.random())  # noqa: S311 (so that not all tick at once)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(), name="live ticker")
        self.open.add(subscription)
        self.per_user[user_id] += 1
        if self.closing:
            subscription.end()
        return subscription

    async def _tick(self) -> None:
        """Wakes streams that have a ping to send or a gap to look at. One timer for all: one for each would cost more than sending an event does."""
        while self.open and not self.closing:
            await asyncio.sleep(min(BEHIND_S, PING_S))
            now = time.monotonic()
            for subscription in self.open:
                if subscription.behind or now >= subscription.tick_at:
                    subscription.tick_at = now + PING_S
                    subscription.put(TICK)

    def leave(self, user_id: int, subscription: Subscription) -> None:
        self.open.discard(subscription)
        self.per_user[user_id] -= 1
        if self.per_user[user_id] <= 0:
            del self.per_user[user_id]
        for feed in self.feeds.values():
            feed.subscribers.discard(subscription)

    def close(self) -> None:
        """Ends every stream: browsers come back to the process that follows."""
        self.closing = True
        for subscription in list(self.open):
            subscription.end()
        for feed in list(self.feeds.values()):
            feed.task.cancel()
        if self._ticker is not None:
            self._ticker.cancel()

    async def aclose(self) -> None:
        self.close()
        await asyncio.gather(*(feed.task for feed in list(self.feeds.values())), return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
            self._client = None


async def stream(user_id: int, *, job_id: str | None, after: int, still_valid: Callable[[], Any],
                 begun: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[bytes]:
    """All that one page gets, until it goes, is too slow, its session ends, or the console stops. Take a place with `Hub.reserve` first.

    `still_valid` is awaited every RECHECK_S seconds: false ends the stream. `begun` is awaited once the answer has begun.
    """
    hub = Hub.current()
    subscription = hub.enter(user_id)
    page = _Page(hub, subscription, job_id, after)
    try:
        yield sse.retry(1000) + sse.event("hello", {"job": job_id, "after": after})
        if begun is not None:
            await begun()
        feeds = [hub.feed(dispatch.CHANGES), *(hub.feed(streams.telemetry_stream(name)) for name in await _node_names())]
        if job_id:
            feeds.append(hub.feed(streams.job_stream(job_id)))
        for feed in feeds:
            feed.subscribers.add(subscription)  # before the look back: nothing falls between
        for feed in feeds:
            await feed.ready.wait()
        yield sse.event("jobs", {"running": await count_open(), "job": None})
        if latest := b"".join(feed.latest for feed in feeds if isinstance(feed, TelemetryFeed)):
            yield latest
        if job_id:
            async for data in page.catch_up():
                yield data
        checked = time.monotonic()
        while True:
            batch = await subscription.queue.get()
            if batch is None:
                return
            if data := page.take(batch):
                yield data
            if page.wants_more:
                async for data in page.catch_up():
                    yield data
            if batch.tick and time.monotonic() - checked > RECHECK_S:
                checked = time.monotonic()
                if not await still_valid():
                    yield sse.event("bye", {"reason": "signed out"})
                    return
    finally:  # also on CancelledError, which the server raises when the browser goes
        hub.leave(user_id, subscription)


class _Page:
    """How far one page is in its job."""

    def __init__(self, hub: Hub, subscription: Subscription, job_id: str | None, after: int) -> None:
        self.hub, self.subscription, self.job_id, self.sent = hub, subscription, job_id, after
        self.over = False  # the job has said its last word
        self.wants_more = False
        self.heard = time.monotonic()

    def take(self, batch: Batch) -> bytes:
        """What of a batch follows on what this page has had. `wants_more` afterwards: something is missing, call `catch_up`."""
        self.wants_more = False
        parts = batch.parts
        if not parts:
            if batch.tick:
                # Beside the way out of a gap a safety net, for a page whose job has been silent: a gap at the very end shows in no later event
                quiet = time.monotonic() - self.heard > PING_S
                self.wants_more = self.job_id is not None and not self.over and (self.subscription.behind or quiet)
            elif batch.new_node:
                self.hub.feed(streams.telemetry_stream(batch.new_node)).subscribers.add(self.subscription)
            return batch.data
        self.heard = time.monotonic()
        if parts[0][0] == self.sent + 1 and parts[-1][0] == self.sent + len(parts):
            self._went(parts[-1])
            return batch.data  # the common case: the very bytes that all pages get
        data = self._next(parts)
        self.wants_more = parts[-1][0] > self.sent
        return data

    def _next(self, parts: Any) -> bytes:
        """Those of `parts` that follow on the last one sent, without a gap."""
        chosen = []
        for part in parts:
            if part[0] == self.sent + 1:
                chosen.append(part[1])
                self._went(part)
            elif part[0] > self.sent:
                self.subscription.behind = True
                break
        return b"".join(chosen)

    def _went(self, part: tuple[int, bytes]) -> None:
        self.sent = part[0]
        self.over = _LAST_WORD in part[1]

    async def catch_up(self) -> AsyncIterator[bytes]:
        """From the database, then from the job's stream, until both have nothing more that follows."""
        if self.job_id is None:
            return
        self.subscription.behind, self.heard = False, time.monotonic()
        while True:
            before = self.sent
            try:
                while rows := await in_database(rows_after, self.job_id, self.sent):
                    if data := self._next(rows):
                        yield data
                    if len(rows) < ROWS or self.subscription.behind:
                        break
                entries: Any = await self.hub.client().xrange(streams.job_stream(self.job_id), min=f"{self.sent + 1}-0", count=READ_COUNT)
            except (DatabaseError, RedisError, OpsError, OSError) as error:
                logger.info("live stream of job %s waits: %s", self.job_id, error)
                self.subscription.behind = True
                return
            self.subscription.behind = False
            if data := self._next(encode_job_entries(entries)):
                yield data
            if self.sent == before:
                return


def node_names() -> list[str]:
    return list(Node.objects.values_list("name", flat=True))


async def _node_names() -> list[str]:
    try:
        return await in_database(node_names)
    except DatabaseError as error:
        logger.warning("nodes could not be listed: %s", error)
        return []


def end_streams_on_signals() -> None:
    """Makes SIGTERM and SIGINT end the streams too: a server waits for open answers before it tells the application that it stops."""
    loop = asyncio.get_running_loop()
    hub = Hub.current()

    def chain(number: int) -> None:
        previous = signal.getsignal(number)

        def handler(received: int, frame: Any) -> None:
            loop.call_soon_threadsafe(hub.close)
            if callable(previous):
                previous(received, frame)

        signal.signal(number, handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        chain(number)
