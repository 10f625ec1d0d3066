"""What nodes say about themselves: which services they have (announcements), and how they are right now (telemetry)."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import redis
from django.db import transaction
from django.utils import timezone

from dashboard import cleanup_rows, dispatch, from_a_node, inventories, practice_reference
from dashboard.models import Channel, Node, Service
from ops import records
from ops.jobs import streams
from ops.jobs.errors import BadInput

logger = logging.getLogger(__name__)

SILENT_S = 60  # no telemetry for so long: what the services do is not known any more


class Reader:
    """Reads the stream of announcements from where it was; the newest of each node counts."""

    def __init__(self) -> None:
        self.position: bytes | str = "0"

    def restart(self) -> None:
        self.position = "0"

    def read(self, client: redis.Redis) -> None:
        newest: dict[str, dict[str, Any]] = {}
        while True:
            reply: Any = client.xread({streams.ANNOUNCEMENTS: self.position}, count=50)
            if not reply:
                break
            for entry_id, fields in reply[0][1]:
                self.position = entry_id
                try:
                    said = from_a_node.read(fields[b"a"])
                    newest[str(said["node"])] = said
                except (ValueError, KeyError, TypeError) as error:
                    logger.error("an announcement cannot be read: %r", error)
        for said in newest.values():
            try:
                apply_announcement(said)
            except (BadInput, KeyError, TypeError, AttributeError) as error:
                logger.error("the announcement of node %.63r is refused: %s", said.get("node"), error)


def apply_announcement(said: dict[str, Any]) -> Node:
    """Node, services and (of practice nodes only) channels as rows. Raises BadInput on a name or a record that cannot be right."""
    name = str(said["node"])
    if not records.NAME.match(name):
        raise BadInput(f"`{name[:63]}` is not a node's name")
    practice = bool(said.get("practice"))
    told = [(records.ServiceRecord.from_dict(one["record"]), one.get("packages") or {}, inventories.fields_of(one))
            for one in said.get("services") or []]
    channels = [records.Channel.from_dict(one) for one in said.get("channels") or []] if practice else []
    with transaction.atomic():
        node, new = Node.objects.select_for_update().get_or_create(name=name, defaults={"practice": practice})
        node.practice, node.facts, node.announced_at = practice, said.get("facts") or {}, timezone.now()
        node.save(update_fields=["practice", "facts", "announced_at"])
        for record, packages, inventory in told:
            service, _ = Service.objects.update_or_create(node=node, name=record.name, defaults={
                "record": record.as_dict(), "packages": packages, "practice": practice and record.practice})
            _keep_inventory(service, inventory)
            if service.practice:
                practice_reference.seed()
        for channel in channels:  # the others are set by an admin; a practice node may not touch them
            if channel.practice and not Channel.objects.filter(name=channel.name, announced=False).exists():
                Channel.objects.update_or_create(name=channel.name, defaults={"record": channel.as_dict(), "practice": True, "announced": True})
    if new:
        logger.info("node %s has announced itself", name)
        dispatch.announce_change(None, node=name)
    return node


def _keep_inventory(service: Service, told: dict[str, Any]) -> None:
    """Writes what is new: the same is announced every half minute, and it is large."""
    if fresh := {name: value for name, value in told.items() if getattr(service, name) != value}:
        for name, value in fresh.items():
            setattr(service, name, value)
        service.save(update_fields=list(fresh))


def keep_telemetry(client: redis.Redis) -> None:
    """The newest telemetry of each node into its row, and its services' states. Every few seconds: the live stream has every second."""
    now = timezone.now()
    for node in Node.objects.prefetch_related("services"):
        newest: Any = client.xrevrange(streams.telemetry_stream(node.name), count=1)
        try:
            said = from_a_node.read(newest[0][1][b"t"]) if newest else None
        except (ValueError, KeyError) as error:
            logger.error("the telemetry of node %s cannot be read: %r", node.name, error)
            continue
        if isinstance(said, dict) and "disks" in said:
            said["disks"] = cleanup_rows.gauges(said["disks"])
        if isinstance(said, dict) and said != node.telemetry:
            Node.objects.filter(pk=node.pk).update(telemetry=said, seen_at=now)
            services = said.get("services")
            _keep_states(node, services if isinstance(services, dict) else {}, now)
        elif node.seen_at and now - node.seen_at > timedelta(seconds=SILENT_S):
            _keep_states(node, {}, now)


def _keep_states(node: Node, services: dict[str, Any], now: datetime) -> None:
    for service in node.services.all():
        status = services.get(service.name)
        status = status if isinstance(status, dict) else {}
        state = str(status.get("state") or "unknown")[:20]
        if state != service.state:
            Service.objects.filter(pk=service.pk).update(state=state, status=status or service.status, changed_at=now)
        elif status and status != service.status:
            Service.objects.filter(pk=service.pk).update(status=status)
