"""Fixtures that every test may use: a real Redis, folders with short paths."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis

pytest_plugins = ["tests.leftovers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with few, long tests first: begun last, one of them would keep one worker busy while the others have nothing left to do."""
    root = Path(__file__).parent
    places = ("walks", "", "dashboard", "ops")
    items.sort(key=lambda item: places.index(item.path.relative_to(root).parts[0] if item.path.parent != root else ""))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A new folder whose path is short enough for unix sockets; gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rh-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """A real server for the whole session. Tests use `redis_url`, which empties it first."""
    folder = Path(tempfile.mkdtemp(prefix="rh-redis-"))
    server = EmbeddedRedis(folder).start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty Redis, also in ROUNDHOUSE_REDIS_URL."""
    client = redis.Redis.from_url(redis_server.url())
    client.flushall()
    client.close()
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", redis_server.url())
    yield redis_server.url()
