from __future__ import annotations

import pytest
import redis
from django.test import Client

from dashboard.redis_clients import RECORDER_ALIVE

pytestmark = pytest.mark.django_db


def test_all_is_well(client: Client, redis_client: redis.Redis) -> None:
    redis_client.set(RECORDER_ALIVE, 1)
    answer = client.get("/health/")
    assert (answer.status_code, answer.content.decode()) == (200, "ok\ndatabase: ok\nredis: ok\nrecorder: ok\n")


def test_a_recorder_that_is_away_is_told(client: Client, redis_client: redis.Redis) -> None:
    answer = client.get("/health/", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()) == (503, {"ok": False, "database": "ok", "redis": "ok", "recorder": "away"})


def test_a_redis_that_is_away_is_told_without_its_address(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "redis://:hidden-password@127.0.0.1:1/0")
    answer = client.get("/health/")
    assert answer.status_code == 503 and "redis: away" in answer.content.decode()
    assert "hidden" not in answer.content.decode() and "127.0.0.1" not in answer.content.decode()
