"""The console's connections to Redis: where it is, and clients whose timeouts fit how they are used."""

from __future__ import annotations

import json
import os
from urllib.parse import quote

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.agent.config import state_folder
from ops.jobs.errors import OpsError

RECORDER_ALIVE = "recorder:alive"  # set by the recorder every few seconds, with a time to live; /health/ looks at it


def address() -> str:
    """ROUNDHOUSE_REDIS_URL, else the embedded server's. Read at each connect: the server may have been started anew. Raises OpsError."""
    if url := os.environ.get("ROUNDHOUSE_REDIS_URL"):
        return url
    kept = state_folder() / "redis" / "redis.json"
    try:
        known = json.loads(kept.read_text())
        return f"unix://:{quote(known['password'])}@{known['socket']}?db=0"
    except (OSError, ValueError, KeyError) as error:
        raise OpsError("The address of Redis is not known", why=f"`{kept}` cannot be read and ROUNDHOUSE_REDIS_URL is not set",
                       hint="Start the console with `make up` or `make demo`", kind="unavailable") from error


def connect(*, timeout_s: float = 5) -> redis.Redis:
    """A client that says soon when Redis is away: no hidden retries (redis-py's own are ten, each with its timeout)."""
    return redis.Redis.from_url(address(), socket_timeout=timeout_s, socket_connect_timeout=min(timeout_s, 3), retry=Retry(NoBackoff(), 0))


def connect_async(*, timeout_s: float = 30, connections: int = 50) -> redis.asyncio.Redis:
    """For the web process's readers: `timeout_s` stands above their BLOCK time."""
    return redis.asyncio.Redis.from_url(address(), socket_timeout=timeout_s, socket_connect_timeout=3, max_connections=connections,
                                        retry=redis.asyncio.retry.Retry(NoBackoff(), 0))


def broker_address() -> str:
    """The same server in Celery's spelling. Raises OpsError."""
    url = address()
    if not url.startswith("unix://"):
        return url
    # unix://:PW@/path?db=0 -> redis+socket://:PW@/path?virtual_host=0
    head, _, query = url.removeprefix("unix://").partition("?")
    db = dict(part.partition("=")[::2] for part in query.split("&")).get("db", "0")
    return f"redis+socket://{head}?virtual_host={db}"
