"""Events to rows: reads what nodes say from Redis, stores it in order, says how far it has stored. Safe to repeat, safe to kill.

The stream `events` only tells that a job said something; a job's own stream (`job:<id>:events`) and, behind it, the journal on the node are what
gaps are filled from. So an entry of `events` is acknowledged as soon as what could be stored is committed: what came too early is read again from the
job's stream once the missing part is there, and the companion, which sees the last stored number in `stored`, sends what Redis has lost.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import redis
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.db.models import Max, Q
from django.utils import timezone
from redis.exceptions import RedisError, ResponseError

from dashboard import announcements, dispatch, from_a_node, reaper, redis_clients
from dashboard.from_a_node import when
from dashboard.models import Job, JobEvent, Node, Service
from dashboard.projection import JobProjection
from ops.jobs import streams
from ops.jobs.envelope import check_job_id
from ops.jobs.errors import OpsError
from ops.jobs.events import FINAL_STATES, Event, EventType

logger = logging.getLogger(__name__)

GROUP = CONSUMER = "recorder"
KEPT_BELOW_STORED = 200  # entries of a job's stream kept below the stored seq, for live views that are about to read them
EPOCH = "recorder:epoch"  # gone: Redis was emptied, or is new
BATCH = 200  # entries in one transaction: at most 64 KB of log text each
PORTION_BYTES = 1024 * 1024  # of events in one transaction: others want to write, too, and a thousand lines of a manifest (200 KB) take 0.1 s
BLOCK_MS = 500
EVENT_MAX_BYTES = 4 * 1024 * 1024
RECENT_S = 24 * 3600
FREQUENT = frozenset({EventType.STEP_LOG, EventType.STEP_PROGRESS, EventType.LEVEL_SECOND, EventType.WARMUP_PHASE})


@dataclass
class Recorded:
    """What one call of `record` did."""

    stored: dict[str, int] = field(default_factory=dict)  # job -> highest seq without a gap, for every job that was spoken of
    gaps: set[str] = field(default_factory=set)  # jobs of which something lies beyond a gap
    unknown: set[str] = field(default_factory=set)  # jobs that are not known and whose first event is not here
    changed: list[Job] = field(default_factory=list)  # jobs whose state changed
    ended: list[Job] = field(default_factory=list)


def parse(text: str | bytes) -> Event:
    """An event as it goes into the database: no NUL, no lone surrogate, no NaN (no database takes them), no secret of known form (S12: nodes
    redact at the source; this is the second line). Raises ValueError on anything that is not an event."""
    if len(text) > EVENT_MAX_BYTES:
        raise ValueError(f"an event of {len(text)} bytes")
    raw = from_a_node.read(text)
    if not isinstance(raw, dict):
        raise ValueError("not an event")
    event = Event.from_json(json.dumps(raw))
    try:
        check_job_id(event.job)
    except OpsError as error:
        raise ValueError(error.what) from error
    if not 1 <= event.seq < 2**31 or not math.isfinite(event.at):
        raise ValueError(f"not an event: seq {event.seq}, at {event.at}")
    return event


def record(events: Iterable[Event], *, node_of: dict[str, str] | None = None) -> Recorded:
    """Stores what can be stored without a gap, in one transaction: event rows, and what they mean for jobs, steps and runs. Repeating it changes
    nothing. `node_of`: job -> node name, for jobs that the console does not know (the command line started them)."""
    by_job: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_job[event.job].append(event)
    done = Recorded()
    with transaction.atomic():
        known = {str(job.pk): job for job in Job.objects.select_for_update(of=_locked()).select_related("node", "service").filter(pk__in=by_job)}
        for job_id in sorted(by_job):
            said = sorted(by_job[job_id], key=lambda event: event.seq)
            job = known.get(job_id) or _adopt(said[0], (node_of or {}).get(job_id))
            if job is None:
                done.unknown.add(job_id)
                continue
            _record_job(job, said, done)
    return done


def _locked() -> tuple[str, ...]:
    return ("self",) if connection.features.has_select_for_update_of else ()


def _record_job(job: Job, said: Sequence[Event], done: Recorded) -> None:
    state, fresh, expected = job.state, [], job.last_seq + 1
    for event in said:
        if event.seq == expected:
            fresh.append(event)
            expected += 1
        elif event.seq > expected:
            done.gaps.add(str(job.pk))
            break
    done.stored[str(job.pk)] = expected - 1
    if not fresh:
        return
    JobEvent.objects.bulk_create(
        [JobEvent(job=job, seq=event.seq, at=event.at, type=event.type[:40], data=event.data) for event in fresh], ignore_conflicts=True)
    projection = JobProjection(job)
    for event in fresh:
        try:
            if event.type in FREQUENT:
                projection.apply(event)
            else:
                with transaction.atomic():
                    projection.apply(event)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, ObjectDoesNotExist, DatabaseError) as error:
            if isinstance(error, DatabaseError) and not connection.is_usable():
                raise
            # The event itself is stored; one that a newer or a broken node formed otherwise must not hold up all others
            logger.exception("job #%s: event %s (%s) could not be understood", job.number, event.seq, event.type)
    job.heartbeat_at = timezone.now()
    projection.save()
    if job.state != state:
        done.changed.append(job)
    if job.state in FINAL_STATES:
        done.ended.append(job)


def _adopt(first: Event, node_name: str | None) -> Job | None:
    """The row of a job that the node's command line started; None until its first event and its node are known."""
    if first.seq != 1 or first.type != EventType.JOB_CLAIMED:
        return None
    service_name = first.data.get("service")
    if node_name:
        node = Node.objects.filter(name=node_name).first()
    else:
        nodes = list(Node.objects.filter(Q(services__name=service_name) if service_name else Q()).distinct()[:2])
        node = nodes[0] if len(nodes) == 1 else None
    if node is None:
        return None
    service = Service.objects.filter(node=node, name=service_name).first() if isinstance(service_name, str) else None
    job = Job.objects.create(
        id=uuid.UUID(first.job), number=(Job.objects.aggregate(last=Max("number"))["last"] or 0) + 1, type=str(first.data.get("type") or "")[:30],
        node=node, service=service, params=first.data.get("params") or {}, by=None, sent_at=when(first.at),
        practice=service.practice if service else node.practice)
    job.created_at = when(first.at)  # not when its journal came here: the node may have been without a console for days
    job.save(update_fields=["created_at"])
    return job


def _portions(said: Iterable[tuple[Event, int]]) -> list[list[Event]]:
    """Events, each with its size, in their order and in parts of PORTION_BYTES; always at least one part."""
    parts: list[list[Event]] = [[]]
    filled = 0
    for event, size in said:
        if parts[-1] and filled + size > PORTION_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(event)
        filled += size
    return parts


def ensure_group(client: redis.Redis) -> None:
    """Makes the recorder's group if it is not there, from the beginning of the stream."""
    try:
        client.xgroup_create(streams.EVENTS, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


class Recorder:
    """The loop around `record`: Redis in, rows out, until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.gaps: set[str] = set()  # jobs to be read again from their own streams
        self.unknown: dict[str, float] = {}  # job -> first seen (monotonic)
        self.trimmed: dict[str, int] = {}
        self.announcements = announcements.Reader()
        self.reaper = reaper.Reaper()
        self._due: dict[str, float] = {}

    def run(self) -> None:
        """Returns when `stop` is set. A Redis or a database that is away is waited for; nothing is acknowledged before it is stored."""
        told = ""
        while not self.stop.is_set():
            try:
                with redis_clients.connect(timeout_s=10) as client:
                    self.begin(client)
                    told = ""
                    while not self.stop.is_set():
                        self.turn(client)
            except (RedisError, DatabaseError, OpsError) as error:
                if isinstance(error, DatabaseError):
                    connection.close()
                if (words := f"{type(error).__name__}: {error}") != told:  # once, not every second
                    logger.warning("waiting: %s", words)
                    told = words
                self.reaper.away()
                self.stop.wait(1)
            finally:
                close_old_connections()

    def begin(self, client: redis.Redis) -> None:
        """After a (re)connect: the group, what an earlier run read and did not store, and all jobs that may have gone on meanwhile."""
        ensure_group(client)
        reaper.release_left_locks()
        position = "0"
        while True:
            reply: Any = client.xreadgroup(GROUP, CONSUMER, {streams.EVENTS: position}, count=BATCH)
            entries = reply[0][1] if reply else []
            if not entries:
                break
            self.store(client, entries)
            position = entries[-1][0]
        self._look_at_open_jobs()
        self._fill(client)
        dispatch.announce_change(None, refresh=True)  # what the run before this one stored, and may not have told

    def turn(self, client: redis.Redis) -> None:
        """One round: new events, then whatever is due."""
        try:
            reply: Any = client.xreadgroup(GROUP, CONSUMER, {streams.EVENTS: ">"}, count=BATCH, block=BLOCK_MS)
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            self._emptied(client)
            return
        if reply:
            self.store(client, reply[0][1])
        if self._is_due("tick", 1):
            client.set(redis_clients.RECORDER_ALIVE, 1, ex=15)
            if not client.exists(EPOCH):
                self._emptied(client)
            self.announcements.read(client)
            if self._is_due("open jobs", 30):  # should `events` ever have lost something that a job's own stream has
                self._look_at_open_jobs()
            self._fill(client)
        if self._is_due("telemetry", 3):
            announcements.keep_telemetry(client)
        if self._is_due("reaper", 2):
            self.reaper.look(client)

    def store(self, client: redis.Redis, entries: Sequence[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Stores a batch, then says so: first the database, then Redis."""
        said: list[tuple[Event, int]] = []
        node_of = {}
        for entry_id, fields in entries:
            if not fields:  # deleted since it was read the first time
                continue
            try:
                event = parse(fields[b"e"])
            except (ValueError, KeyError, RecursionError) as error:
                logger.error("entry %s is no event and is left out: %s", entry_id.decode(), error)
                continue
            said.append((event, len(fields[b"e"])))
            if b"n" in fields:
                node_of[event.job] = fields[b"n"].decode("utf-8", "replace")
        *first, last = _portions(said)
        for portion in first:
            self._say(client, record(portion, node_of=node_of))
        self._say(client, record(last, node_of=node_of), [entry_id for entry_id, _ in entries])

    def _say(self, client: redis.Redis, done: Recorded, entry_ids: Sequence[bytes] = ()) -> None:
        self.gaps |= done.gaps
        for job_id in done.unknown:
            self.unknown.setdefault(job_id, time.monotonic())
        pipe = client.pipeline(transaction=True)
        if done.stored:
            pipe.hset(streams.STORED, items=[part for pair in done.stored.items() for part in pair])
        for job_id, seq in done.stored.items():
            if seq - self.trimmed.get(job_id, 0) > KEPT_BELOW_STORED:
                pipe.xtrim(streams.job_stream(job_id), minid=f"{seq - KEPT_BELOW_STORED}-0", approximate=True)
                self.trimmed[job_id] = seq
        for job in done.ended:
            pipe.expire(streams.job_stream(str(job.pk)), streams.SETTLED_TTL_S)
            self.trimmed.pop(str(job.pk), None)
        if entry_ids:
            pipe.xack(streams.EVENTS, GROUP, *entry_ids)
            pipe.xdel(streams.EVENTS, *entry_ids)
        for job in done.changed:
            said = {**dispatch.job_summary(job), "job": str(job.pk)}
            pipe.xadd(dispatch.CHANGES, {"c": json.dumps(said)}, maxlen=dispatch.CHANGES_KEPT, approximate=True)
        pipe.execute()

    def _look_at_open_jobs(self) -> None:
        self.gaps |= {str(pk) for pk in Job.objects.exclude(state__in=FINAL_STATES).values_list("pk", flat=True)}

    def _fill(self, client: redis.Redis) -> None:
        """Reads jobs with a gap, and jobs that nobody knows yet, from their own streams. What is not there either, the companion sends again: it
        looks at `stored`."""
        for job_id in sorted(self.gaps | set(self.unknown)):
            while True:
                last = Job.objects.filter(pk=job_id).values_list("last_seq", flat=True).first()
                entries: Any = client.xrange(streams.job_stream(job_id), min=f"{(last or 0) + 1}-0", max="+", count=BATCH)
                said: list[tuple[Event, int]] = []
                node_of = {}
                for _, fields in entries:
                    try:
                        event = parse(fields[b"e"])
                    except (ValueError, KeyError, RecursionError):
                        continue  # told when it came by `events`
                    if event.job == job_id:
                        said.append((event, len(fields[b"e"])))
                    if b"n" in fields:
                        node_of[event.job] = fields[b"n"].decode("utf-8", "replace")
                *first, rest = _portions(said)
                for portion in first:
                    self._say(client, record(portion, node_of=node_of))
                done = record(rest, node_of=node_of)
                self.gaps.discard(job_id)
                if done.stored:
                    self.unknown.pop(job_id, None)
                elif last is not None:
                    done.stored[job_id] = last
                self._say(client, done)
                if done.gaps or len(entries) < BATCH or done.stored.get(job_id, 0) <= (last or 0):
                    break
            if time.monotonic() - self.unknown.get(job_id, math.inf) > 600:
                logger.error("job %s said something, but never who it is: left out", job_id)
                self.unknown.pop(job_id)

    def _emptied(self, client: redis.Redis) -> None:
        """Redis is new or was emptied: says again what is stored, so that nodes send the rest; queued jobs are sent again soon."""
        ensure_group(client)
        recent = timezone.now() - timedelta(seconds=RECENT_S)
        jobs = Job.objects.filter(~Q(state__in=FINAL_STATES) | Q(finished_at__gt=recent), last_seq__gt=0).values_list("pk", "last_seq")
        if stored := {str(pk): last for pk, last in jobs}:
            client.hset(streams.STORED, items=[part for pair in stored.items() for part in pair])
        client.set(EPOCH, uuid.uuid4().hex)
        self.trimmed.clear()
        self.announcements.restart()
        self.reaper.resend_soon()
        logger.info("Redis was empty: told it what is stored for %d jobs", len(stored))

    def _is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0):
            return False
        self._due[what] = now + every_s
        return True
