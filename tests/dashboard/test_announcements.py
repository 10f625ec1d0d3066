from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from dashboard import announcements
from dashboard.announcements import Reader, apply_announcement
from dashboard.models import Channel, Node, Service
from ops.jobs import streams
from ops.jobs.errors import BadInput
from tests.dashboard.conftest import CHANNEL, SERVICE

pytestmark = pytest.mark.django_db(transaction=True)


def said(**more: Any) -> dict[str, Any]:
    packages = {"versions": {"vllm": "0.16"}, "release": "20260101-dev313"}
    return {"node": "practice", "at": 1.0, "practice": True, "facts": {"driver": "580.1"}, "services": [{"record": SERVICE, "packages": packages}],
            "channels": [CHANNEL], **more}


def test_a_practice_node_brings_its_services_and_channels(redis_client: redis.Redis) -> None:
    redis_client.xadd("announcements", {"a": json.dumps(said())})
    Reader().read(redis_client)
    service = Service.objects.get()
    assert (service.node.name, service.practice, service.packages["versions"]["vllm"]) == ("practice", True, "0.16")
    assert service.record["served_model_name"] == "kimi-k2.5"
    assert Channel.objects.get().practice
    assert json.loads(redis_client.xrange("changes")[0][1][b"c"]) == {"node": "practice"}


def test_announcing_again_changes_rows_and_makes_none(redis_client: redis.Redis) -> None:
    apply_announcement(said())
    apply_announcement(said(facts={"driver": "590.0"}))
    assert (Node.objects.get().facts["driver"], Service.objects.count(), Channel.objects.count()) == ("590.0", 1, 1)


def test_a_real_node_brings_no_channel(redis_client: redis.Redis) -> None:
    apply_announcement(said(practice=False))
    assert not Channel.objects.exists() and not Service.objects.get().practice


def test_a_practice_node_cannot_replace_a_real_channel(redis_client: redis.Redis) -> None:
    Channel.objects.create(name="practice", record={"real": True}, practice=False)
    apply_announcement(said())
    assert Channel.objects.get().record == {"real": True}


def test_a_practice_node_cannot_replace_a_practice_channel_that_an_admin_made(redis_client: redis.Redis) -> None:
    Channel.objects.create(name="practice", record={"mine": True}, practice=True)
    apply_announcement(said())
    assert (Channel.objects.get().record, Channel.objects.get().announced) == ({"mine": True}, False)


def test_a_node_s_own_channel_follows_its_announcements(redis_client: redis.Redis) -> None:
    apply_announcement(said())
    apply_announcement(said(channels=[{**CHANNEL, "wheelhouse": "/srv/other"}]))
    assert (Channel.objects.get().record["wheelhouse"], Channel.objects.get().announced) == ("/srv/other", True)


@pytest.mark.parametrize("wrong", [{"node": "../x"}, {"services": [{"record": {"name": "x"}}]},
                                   {"services": [{"record": {**SERVICE, "name": "A B"}}]}, {"channels": [{"name": "x", "kind": "ftp"}]}])
def test_what_cannot_be_right_is_refused_as_a_whole(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        apply_announcement(said(**wrong))
    assert not Node.objects.exists() and not Service.objects.exists()


def test_nonsense_stops_no_other_announcement(redis_client: redis.Redis) -> None:
    for text in ("{", "[]", json.dumps({"node": 7, "services": 3}), json.dumps(said(node="../x")), json.dumps(said())):
        redis_client.xadd("announcements", {"a": text})
    Reader().read(redis_client)
    assert Node.objects.filter(name="practice").exists()


def test_telemetry_is_kept_with_the_node_and_its_services(service: Service, redis_client: redis.Redis) -> None:
    status = {"state": "healthy", "pid": 7}
    streams.Publisher(redis_client, "practice").telemetry({"node": "practice", "at": 1.0, "gpus": {}, "services": {"kimi-k25": status}})
    announcements.keep_telemetry(redis_client)
    service.refresh_from_db()
    assert (service.state, service.status) == ("healthy", status)
    assert Node.objects.get().telemetry["at"] == 1.0 and service.changed_at is not None


def test_a_node_that_falls_silent_leaves_its_services_unknown(service: Service, redis_client: redis.Redis) -> None:
    Service.objects.update(state="healthy")
    Node.objects.update(seen_at=timezone.now() - timedelta(seconds=90))
    announcements.keep_telemetry(redis_client)
    assert Service.objects.get().state == "unknown"


def test_telemetry_that_stands_still_is_not_seen_again(service: Service, redis_client: redis.Redis) -> None:
    streams.Publisher(redis_client, "practice").telemetry({"node": "practice", "at": 1.0, "services": {}})
    announcements.keep_telemetry(redis_client)
    Node.objects.update(seen_at=timezone.now() - timedelta(seconds=90))
    announcements.keep_telemetry(redis_client)
    assert timezone.now() - Node.objects.get().seen_at > timedelta(seconds=80)
