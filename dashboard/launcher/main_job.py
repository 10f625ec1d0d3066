"""The practice box's main job, run and followed from the terminal: plan and redeploy, through the same door as the page's button."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dashboard.launcher.terminal import JobLines, Terminal
from ops.jobs.errors import OpsError
from ops.jobs.events import FINAL_STATES, Event, JobState
from ops.records import ServiceRecord

ANNOUNCED_S = 90.0
UNTAKEN_S = 20.0  # a node takes a job within a second or two
POLL_S = 0.1
Tick = Callable[[], None]  # called often: keeps the launcher's children running


def main_job(record: ServiceRecord, terminal: Terminal, tick: Tick, *, always: bool, reset: str, ensure_service: Callable[[], None]) -> bool | None:
    """Redeploys the practice service and follows it. True if every step succeeded, None if there was nothing to do.

    A job that an earlier start left running is followed to its end first; if that is a redeploy that succeeds, it was the main job. Where
    an earlier start was ended in the middle of one, the agent has undone it: then `ensure_service` sees to it that the service runs, and the
    main job begins anew. If the service has been redeployed already, `always` resets the practice box first; without it, it is
    said how to (`reset`: the command).
    """
    from dashboard import accounts, dispatch
    from dashboard.models import Channel, Job, Service

    service, channel = _announced(record, tick)
    user = accounts.first_admin()
    running = Job.objects.filter(service=service).exclude(state__in=FINAL_STATES).exclude(type="warmup").order_by("number").first()
    if running is not None:
        terminal.line(f"\nJob #{running.number} ({running.type}) goes on where it is:")
        succeeded = follow(running, terminal, tick)
        if running.type == "redeploy" and succeeded:
            return True
        if running.rollback == "failed":  # the service is a person's to look at now
            return False
        ensure_service()
    if is_redeployed(record):
        if not always:
            terminal.line(f"\n{record.name} has been redeployed already. To do it again: the button `Reset practice box` on its page, or\n{reset}")
            return None
        terminal.line("\nReset the practice box, to begin anew:")
        if not follow(dispatch.start(type="practice-reset", node=service.node, service=service, user=user), terminal, tick):
            return False
        service = Service.objects.get(pk=service.pk)
    terminal.line(f"\nPlan a redeploy of {record.name} from channel {channel.name}:")
    plan = dispatch.start_plan(service=service, channel=Channel.objects.get(pk=channel.pk), user=user)
    if not follow(plan, terminal, tick):
        return False
    terminal.line(f"\nRedeploy {record.name}, as planned:")
    return follow(dispatch.start_redeploy(plan_job=plan, user=user, options={}), terminal, tick)


def is_redeployed(record: ServiceRecord) -> bool:
    """Whether the release in use already has the newest vllm of the practice wheelhouse."""
    from packaging.version import Version

    from ops.environments import packages, releases
    from ops.practice import wheels

    current = releases.current(record)
    if current is None:
        return False
    newest = max(Version(wheel.version) for wheel in wheels.catalogue() if wheel.name == "vllm")
    found = packages.read(current).version("vllm")
    return found is not None and Version(found) == newest


def follow(job: Any, terminal: Terminal, tick: Tick) -> bool:
    """Writes the job's events as lines until it has ended; gives whether it, and each of its steps, succeeded. Prints its report."""
    lines, seq, began, told = JobLines(terminal), 0, time.monotonic(), False
    while True:
        job.refresh_from_db()  # before the events: what was stored with the final state is then among them
        for row in job.events.filter(seq__gt=seq).order_by("seq"):
            lines.show(Event(str(job.pk), row.seq, row.at, row.type, row.data))
            seq = row.seq
        if job.state in FINAL_STATES:
            break
        if job.state == JobState.QUEUED and not told and time.monotonic() - began > UNTAKEN_S:
            told = True
            terminal.line(terminal.colour(f"  The node has not taken job #{job.number} yet. Look into logs/agent.log in the state folder.", "amber"))
        lines.tick()
        tick()
        time.sleep(POLL_S)
    terminal.status("")
    if lines.report:
        terminal.line("\n" + lines.report.strip() + "\n")
    succeeded = job.state == JobState.SUCCEEDED and not job.steps.exclude(state__in=["done", "skipped"]).exists()
    if not succeeded:
        terminal.line(terminal.colour(f"  Job #{job.number} ended: {job.state}. {job.reason}".rstrip(), "red"))
        for part in ("why", "hint"):
            if job.error and job.error.get(part):
                terminal.line(f"  {part}: {job.error[part]}")
        if job.rollback != "none":
            terminal.line(f"  rollback: {job.rollback}")
    return succeeded


def _announced(record: ServiceRecord, tick: Tick) -> tuple[Any, Any]:
    """The service's and the practice channel's rows, once the agent has announced them and the recorder has stored that."""
    from dashboard.models import Channel, Service

    deadline = time.monotonic() + ANNOUNCED_S
    while time.monotonic() < deadline:
        service = Service.objects.filter(name=record.name, practice=True).select_related("node").first()
        channel = Channel.objects.filter(practice=True).first()
        if service is not None and channel is not None:
            return service, channel
        tick()
        time.sleep(POLL_S)
    raise OpsError(f"The agent has not announced `{record.name}` within {ANNOUNCED_S:.0f} s", hint="Look into logs/agent.log and logs/recorder.log")
