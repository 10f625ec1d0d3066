from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ops.agent import celery, orders
from ops.jobs import claim
from tests.fakes.node import FakeNode


@pytest.fixture(autouse=True)
def _redis(redis_url: str) -> None:
    """Orders are as old as Redis says."""


def test_an_order_is_claimed_and_a_second_one_attached(node: FakeNode) -> None:
    order = node.order().as_dict()
    assert [orders.take(node.paths, order), orders.take(node.paths, order)] == ["claimed", "attached"]
    assert node.finished(order["job"])["state"] == "succeeded"


def test_a_busy_order_changes_nothing_and_may_come_again(node: FakeNode) -> None:
    order = node.order()
    fds = claim.lock_all(node.paths, order.locks)
    assert orders.take(node.paths, order.as_dict()) == "busy"
    assert not node.folder(order.job).exists()
    claim.release(fds)
    assert orders.take(node.paths, order.as_dict()) == "claimed"
    node.finished(order.job)


def test_an_order_that_this_node_can_never_carry_out_ends_with_its_reason(node: FakeNode) -> None:
    order = node.order("format-disk")
    assert orders.take(node.paths, order.as_dict()) == "refused"
    said = node.finished(order.job, 1)
    assert (said["state"], said["reason_kind"]) == ("failed", "expected")
    assert "`format-disk`" in said["reason"]


def test_a_bug_before_the_claim_fails_the_job_at_once(node: FakeNode) -> None:
    order = node.order(broken=True)
    assert orders.take(node.paths, order.as_dict()) == "refused"
    said = node.finished(order.job, 1)
    assert (said["state"], said["reason_kind"]) == ("failed", "bug")
    assert "ZeroDivisionError" in said["reason"]


@pytest.mark.parametrize("change", [
    {"node": "n2"}, {"sig": "forged"}, {"iat": 1.0, "exp": 2.0}, {"job": "../../x"}, {"extra": 1},
])
def test_a_message_that_may_be_forged_or_is_too_old_ends_no_job(node: FakeNode, change: dict[str, Any]) -> None:
    order = node.order().as_dict()
    assert orders.take(node.paths, {**order, **change}) == "refused"
    assert list(node.paths.jobs.iterdir()) == []


def test_without_redis_no_order_is_believed(node: FakeNode, monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", f"unix://:x@{short_path}/none.sock?db=0")
    assert orders.take(node.paths, node.order().as_dict()) == "busy"
    assert list(node.paths.jobs.iterdir()) == []


def test_the_nodes_clock_plays_no_part(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    order = node.order()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 90 * 24 * 3600)
    assert orders.take(node.paths, order.as_dict()) == "claimed"
    monkeypatch.undo()


def test_the_settings_are_those_that_reliability_asks_for(node: FakeNode) -> None:
    made = celery.settings()
    asked = {
        "task_acks_late": False, "task_reject_on_worker_lost": False, "worker_disable_prefetch": True, "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False, "task_ignore_result": True, "worker_enable_remote_control": False,
        "accept_content": ["json"], "broker_connection_retry_on_startup": True,
    }
    assert {name: made[name] for name in asked} == asked
    transport = made["broker_transport_options"]
    assert (transport["visibility_timeout"], transport["health_check_interval"], transport["socket_keepalive"]) == (86400, 10, True)
    assert {transport[f"unacked_{name}"] for name in ("key", "index_key", "mutex_key")} == {"unacked.n1", "unacked_index.n1", "unacked_mutex.n1"}
