"""What the agent does with an order: verify it, and have a runner claim it. Every answer is safe to get twice."""

from __future__ import annotations

import logging
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs import runner, streams
from ops.jobs.envelope import Envelope, verify
from ops.jobs.errors import Busy, OpsError, Refused

log = logging.getLogger("roundhouse.agent")

# The console must be able to trust that nobody else's message ends a job: these refusals change nothing. An expired order is renewed by the
# console when it sends it again, or ended there.
NOT_OURS_TO_END = frozenset({"bad_signature", "another_node", "expired", "attached"})


def take(paths: NodePaths, raw: Any) -> str:
    """Carries an order out as far as a running (or ended) job: "claimed", "attached", "busy" or "refused".

    Busy changes nothing: the console sends the order again. A refusal for good ends the job with its reason.
    """
    envelope: Envelope | None = None
    try:
        envelope = Envelope.from_dict(raw)
        if (paths.jobs / envelope.job).exists():
            return "attached"  # before anything costly: orders come more than once
        if cancelled(paths, envelope.job):
            raise Refused("Cancelled before the node took it", kind="cancelled")
        verify(envelope, NodeConfig.load(paths.node_toml), now=_redis_now(), types=_types())
        answer = runner.start(paths, envelope)
        log.info("job %s (%s): %s", envelope.job, envelope.type, answer)
        return answer
    except Busy as error:
        log.info("job %s waits: %s", envelope.job if envelope else "?", error.what)
        return "busy"
    except Refused as error:
        log.warning("refused: %s", error)
        if envelope is not None and error.kind not in NOT_OURS_TO_END:
            runner.refuse(paths, envelope, error)
        return "refused"
    except OpsError as error:
        if envelope is not None and error.kind == "bug":
            log.error("job %s cannot begin: %s", envelope.job, error)
            runner.refuse(paths, envelope, error)
            return "refused"
        log.error("the order could not be carried out, it will come again: %s", error)
        return "busy"


def cancelled(paths: NodePaths, job: str) -> bool:
    """Whether somebody cancelled the job before it came here (the companion keeps such cancels in a folder)."""
    return (paths.root / "cancelled" / job).exists()


def _redis_now() -> float:
    try:
        with streams.connect() as client:
            return streams.redis_time(client)
    except streams.AWAY as error:
        raise streams.RedisAway("Redis is away", why=str(error)) from error


def _types() -> set[str]:
    from ops.jobs.kinds import KINDS

    return set(KINDS)
