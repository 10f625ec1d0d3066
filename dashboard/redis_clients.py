"""The console's connections to Redis: clients whose timeouts fit how they are used. Where it is, `ops/jobs/streams.py` knows."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff

from ops.jobs import streams

RECORDER_ALIVE = "recorder:alive"  # set by the recorder every second, with a time to live


def connect(*, timeout_s: float = 5) -> redis.Redis:
    """A client that says soon when Redis is away. `timeout_s` stands above the BLOCK time that is used with it. Raises RedisAway without address."""
    return streams.connect(timeout_s=timeout_s)


def connect_async(*, timeout_s: float = 30, connections: int = 2000) -> redis.asyncio.Redis:
    """For the web process' readers. No hidden retries; a reader of ours that fails looks up the address again."""
    url = streams.address()
    keepalive = {} if url.startswith("unix://") else {"socket_keepalive": True}
    return redis.asyncio.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=3, max_connections=connections,
                                        retry=AsyncRetry(NoBackoff(), 0), **keepalive)
