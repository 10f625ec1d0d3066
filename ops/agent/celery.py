"""The agent's Celery app: takes `run_job` messages from the node's queue. Celery carries orders; it never knows how a job stands.

    celery -A ops.agent.celery worker -Q node.NAME --pool threads --concurrency 4 --without-gossip --without-mingle

Threads, because a task only verifies an envelope and waits for a runner's answer (a second): no pool processes to fork, to lose or
to outlive the agent, one interpreter's memory, and a slow claim holds up one of four slots, not the queue.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import worker_init, worker_shutdown

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs import streams

TASK = "run_job"


def queue_name(node: str) -> str:
    return f"node.{node}"


def settings() -> dict[str, Any]:
    """RELIABILITY's settings for this node. Raises BadInput without a node.toml, RedisAway without an address of Redis."""
    node = NodeConfig.load(NodePaths.default().node_toml).name
    return {
        "broker_url": streams.celery_address(streams.address()),
        "imports": ["ops.agent.tasks"],
        "task_default_queue": queue_name(node),
        "task_serializer": "json",
        "accept_content": ["json"],
        # A message is gone once it is taken: the console sends again what nobody claimed, and the claim removes duplicates.
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "worker_disable_prefetch": True,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_ignore_result": True,
        "worker_enable_remote_control": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # for ever: an agent that gives up would need a person
        "broker_transport_options": {
            "visibility_timeout": 86400, "health_check_interval": 10, "socket_keepalive": True,
            # One node's worker must never hand out again what another one's holds.
            "unacked_key": f"unacked.{node}", "unacked_index_key": f"unacked_index.{node}", "unacked_mutex_key": f"unacked_mutex.{node}",
        },
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
    }


app = Celery("roundhouse")
app.add_defaults(settings)  # evaluated at first use: importing this module needs neither node.toml nor Redis


@worker_init.connect
def start_companion(**said: Any) -> None:
    """Before the worker's first connection: jobs are followed and reconciled also while Redis is away."""
    from ops.agent.supervisor import Supervisor

    app.companion = Supervisor()
    app.companion.start()


@worker_shutdown.connect
def stop_companion(**said: Any) -> None:
    if (companion := getattr(app, "companion", None)) is not None:
        companion.stop()
