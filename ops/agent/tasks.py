"""The one task: carry out an envelope. Its meaning is inside the envelope, not in the task's name or headers."""

from __future__ import annotations

from typing import Any

from ops.agent import orders
from ops.agent.celery import TASK, app
from ops.agent.config import NodePaths


@app.task(name=TASK)
def run_job(envelope: dict[str, Any]) -> None:
    orders.take(NodePaths.default(), envelope)
