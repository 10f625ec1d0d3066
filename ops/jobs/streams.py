"""Events over Redis: the companion publishes, the recorder and the live views read. Redis is transport: it may be empty at any moment.

Each event goes in one MULTI to `job:<id>:events` (entry id `<seq>-0`, so Redis itself refuses a repetition) and to `events`, which
the recorder reads as a consumer group; field `e` is the event, `n` the node's name. The recorder says in the hash `stored` up to
which seq it has each job without a gap; from there the companion sends again after a lost connection or an emptied server. An
out-of-memory reply counts as Redis away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ExecAbortError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from ops.agent.config import state_folder
from ops.jobs.errors import OpsError

EVENTS = "events"
STORED = "stored"
BEATS = "beats"
ANNOUNCEMENTS = "announcements"
SETTLED_TTL_S = 3600  # how long a job's stream stays after the recorder has all of it
TELEMETRY_KEPT = 600
ANNOUNCEMENTS_KEPT = 100


class RedisAway(OpsError):
    """Redis does not answer, is loading, is full, or nobody knows its address: try again later."""

    kind = "redis_away"


# What to catch around any call, besides RedisAway. ExecAbortError: a command of a MULTI was refused, as when memory is full.
AWAY = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError, ExecAbortError, OSError)


def job_stream(job: str) -> str:
    return f"job:{job}:events"


def telemetry_stream(node: str) -> str:
    return f"telemetry:{node}"


def control_stream(node: str) -> str:
    return f"control:{node}"


def address() -> str:
    """ROUNDHOUSE_REDIS_URL, else the embedded server's, by `<state>/redis/redis.json`. Read at each connect. Raises RedisAway."""
    if url := os.environ.get("ROUNDHOUSE_REDIS_URL"):
        return url
    kept = state_folder() / "redis" / "redis.json"
    try:
        known = json.loads(kept.read_text())
        return f"unix://:{quote(known['password'])}@{known['socket']}?db=0"
    except (OSError, ValueError, KeyError) as error:
        raise RedisAway("The address of Redis is not known", why=f"`{kept}` cannot be read and ROUNDHOUSE_REDIS_URL is not set",
                        hint="Start the console with `make up` or `make demo`") from error


def celery_address(url: str) -> str:
    """The same server as Celery spells it: `unix://:PW@/path?db=0` becomes `redis+socket://:PW@/path?virtual_host=0`."""
    if not url.startswith("unix://"):
        return url
    head, _, query = url.removeprefix("unix://").partition("?")
    database = dict(part.partition("=")[::2] for part in query.split("&")).get("db", "0")
    return f"redis+socket://{head}?virtual_host={database}"


def connect(*, block_s: float = 0, timeout_s: float = 5, retries: int = 0) -> redis.Redis:
    """A client (answers are bytes) for calls that block at most `block_s`: its socket timeout stands above that by `timeout_s`.

    No hidden retries by default (redis-py's own are ten, each with its timeout): loops of ours know better what to do meanwhile.
    Raises RedisAway if no address is known; connects at the first call.
    """
    retry = Retry(ExponentialBackoff(cap=1, base=0.05), retries) if retries else Retry(NoBackoff(), 0)
    url = address()
    keepalive = {} if url.startswith("unix://") else {"socket_keepalive": True}  # a unix socket's class does not know the word
    return redis.Redis.from_url(url, socket_timeout=block_s + timeout_s, socket_connect_timeout=3, health_check_interval=10, retry=retry, **keepalive)


def redis_time(client: redis.Redis) -> float:
    """Seconds since the epoch by Redis' clock, the one clock that all nodes share."""
    seconds, micros = client.time()
    return float(seconds) + micros / 1e6


def is_full(error: ResponseError) -> bool:
    """Whether the server refused a write because its memory, or the disk under it, is full."""
    return isinstance(error, (OutOfMemoryError, ExecAbortError)) or str(error).startswith(("OOM", "MISCONF"))


class Publisher:
    """Publishes the events of many jobs, each exactly once into its stream as long as Redis keeps it.

    Raises RedisAway from every method when Redis cannot be used now; the same call later goes on where it stopped.
    """

    def __init__(self, client: redis.Redis, node: str) -> None:
        self.client, self.node = client, node
        self._sent: dict[str, int] = {}  # job -> highest seq that its stream has, as far as we know

    def forget(self) -> None:
        """The connection was lost, or the server emptied: ask again before the next send."""
        self._sent.clear()

    def drop(self, job: str) -> None:
        self._sent.pop(job, None)

    def stored(self, jobs: Sequence[str]) -> dict[str, int]:
        """The highest seq that the recorder has without a gap, of each job; 0 if it says nothing."""
        if not jobs:
            return {}
        found = self._do(lambda: self.client.hmget(STORED, list(jobs)))
        return {job: int(value or 0) for job, value in zip(jobs, found, strict=True)}

    def last_in_stream(self, job: str) -> int:
        """The highest seq that the job's stream ever had since it exists; 0 if there is no such stream."""
        return self._span(job)[1]

    def _span(self, job: str) -> tuple[int | None, int]:
        """(first seq that the job's stream has, None if it is empty; highest that it ever had, 0 if there is no such stream)."""
        try:
            found = self._do(lambda: self.client.xinfo_stream(job_stream(job)))
        except ResponseError as error:
            if "no such key" in str(error).lower():
                return None, 0
            raise
        first = found["first-entry"]
        return _seq(first[0]) if first else None, _seq(found["last-generated-id"])

    def resume_after(self, job: str) -> int:
        """The seq after which to send: what the stream has or the recorder has stored, whichever is more."""
        if job not in self._sent:
            self._sent[job] = max(self.last_in_stream(job), self.stored([job])[job])
        return self._sent[job]

    def send(self, job: str, lines: Sequence[tuple[int, str]]) -> int:
        """Adds events (seq, JSON) in ascending order, leaving out those that are there; gives the highest seq sent so far."""
        after = self.resume_after(job)
        new = [(seq, line) for seq, line in lines if seq > after]
        if not new:
            return after

        def add() -> None:
            with self.client.pipeline(transaction=True) as batch:
                for seq, line in new:
                    batch.xadd(job_stream(job), {"e": line, "n": self.node}, id=f"{seq}-0")
                    batch.xadd(EVENTS, {"e": line, "n": self.node})
                batch.execute()

        try:
            self._do(add)
        except ResponseError as error:
            self._sent.pop(job, None)
            if "equal or smaller" not in str(error):
                raise
            # Somebody was here before us (an earlier companion's batch whose answer was lost): look again, at the next call.
            raise RedisAway("A job's stream was written meanwhile", why=str(error)) from error
        self._sent[job] = new[-1][0]
        return new[-1][0]

    def check(self, jobs: Sequence[str]) -> None:
        """Notices a server that was emptied without a broken connection: what is gone is asked for anew at the next send.

        Where a later event was sent before this was noticed, the stream has a hole between what is stored and its first entry. No lower id can be
        added to it any more, so it is made anew; readers go on by id.
        """
        for job in jobs:
            if job not in self._sent:
                continue
            first, last = self._span(job)
            stored = self.stored([job])[job]  # after the stream was looked at: trimming goes up to what is stored
            if last and stored + 1 < (first if first is not None else last + 1):
                self._do(lambda job=job: self.client.delete(job_stream(job)))
                del self._sent[job]
            elif self._sent[job] > max(last, stored):
                del self._sent[job]

    def beat(self, jobs: Sequence[str]) -> None:
        """Says that these jobs live, in Redis' time: a node whose clock is wrong must not look silent, or alive for ever."""
        if jobs:
            now = self._do(lambda: redis_time(self.client))
            self._do(lambda: self.client.hset(BEATS, mapping=dict.fromkeys(jobs, str(now))))

    def settle(self, job: str) -> None:
        """The job is over and stored: its stream goes in an hour, its heartbeat now."""

        def end() -> None:
            with self.client.pipeline(transaction=True) as batch:
                batch.expire(job_stream(job), SETTLED_TTL_S)
                batch.hdel(BEATS, job)
                batch.execute()

        self._do(end)
        self._sent.pop(job, None)

    def telemetry(self, reading: Mapping[str, Any]) -> None:
        text = json.dumps(reading, separators=(",", ":"))
        self._do(lambda: self.client.xadd(telemetry_stream(self.node), {"t": text}, maxlen=TELEMETRY_KEPT, approximate=True))

    def announce(self, announcement: Mapping[str, Any]) -> None:
        text = json.dumps(announcement, separators=(",", ":"))
        self._do(lambda: self.client.xadd(ANNOUNCEMENTS, {"a": text}, maxlen=ANNOUNCEMENTS_KEPT, approximate=True))

    def _do(self, call: Any) -> Any:
        try:
            return call()
        except AWAY as error:
            self.forget()
            raise RedisAway("Redis is away", why=str(error)) from error
        except ResponseError as error:
            if is_full(error):
                self.forget()
                raise RedisAway("Redis is full", why=str(error)) from error
            raise


def _seq(entry: bytes | str) -> int:
    return int(_text(entry).split("-")[0])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
