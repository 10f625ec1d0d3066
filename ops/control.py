"""Jobs that control a service without changing what it is: start, stop, switch to another one, look for leftovers and end them, diagnose.

Restart is made of the same steps as a redeploy (ops/redeploy.py). A stop is never undone: it was wanted, and what keeps a GPU from being free is
told, not answered with a start. A start that fails or is cancelled ends what it had started. A switch that fails brings the first service back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ops.environments import guard_list, in_place, releases
from ops.gpus.open_source import open_source
from ops.jobs import claim, marks
from ops.jobs.envelope import check_record
from ops.jobs.errors import BadInput, Cancelled, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Step
from ops.records import NAME, ServiceRecord
from ops.services import failures, launch, leftovers, ownership, preflight, starting, stopping
from ops.services.leftovers import Leftovers
from ops.services.manager import manager_for
from ops.services.status import ServiceState

STOP_DEADLINE_S = 3900.0  # a unit may allow itself an hour; mostly its own limit ends the wait much earlier
KERNEL_S = 3600.0  # of the kernel's log, where nobody saw when the run began
_LINES_A_LOOK = 20_000  # of a log, between two looks whether the job is cancelled


# ---- start ----


def start_service(context: Context) -> list[Step]:
    """Params: `smoke` (default true)."""
    from ops import redeploy

    manager_for(context.the_service)
    return [
        Step(name="preflight", title="Preflight", do=look_before_start, deadline_s=600),
        Step(name="start", title="Start", do=start, check=runs_already, undo=end_failed_start, deadline_s=120),
        Step(name="warmup", title="Warmup", do=redeploy.watch_warmup, deadline_s=2 * 3600),
        *redeploy.smoke_steps(context),
    ]


def look_before_start(context: Context) -> str:
    from ops import redeploy

    record = context.the_service
    if runs_already(context):
        return f"{record.name} runs already: it is watched, and tested"
    in_the_way = _left_of_earlier_runs(context)
    note = redeploy.look_before_restart(context)
    _refuse_leftovers(in_the_way)
    return note


def _left_of_earlier_runs(context: Context) -> str:
    """What is left of earlier runs of the service and keeps it from starting, in a sentence; "" if nothing is. A restart would stop it first."""
    record = context.the_service
    left = leftovers.look(record, open_source(context.config), others=_others(context, record))
    blocking = manager_for(record).pids() | {one["pid"] for one in left.own if one["gpus"]}
    if not blocking:
        return ""
    context.emit(EventType.LEFTOVERS, left.as_dict())
    title = f"Processes of an earlier run of service `{record.name}` are still there: {marks.tell(sorted(blocking)[:10])}"
    context.finding("preflight", "stop", title, why="They hold memory, or its port", fix="End them: the job `end-leftovers`", part="host",
                    look="leftovers")
    return title


def _refuse_leftovers(told: str) -> None:
    if told:
        raise OpsError(told, why="They hold memory, or its port, and would have to end first", kind="leftovers",
                       hint="End them (the job `end-leftovers`), or restart the service: that stops them first")


def runs_already(context: Context) -> bool:
    """Then nothing is started, and a failure later on ends nothing."""
    return manager_for(context.the_service).status().runs


def start(context: Context) -> str:
    record = context.the_service
    _nobody_changes(context, record)
    return starting.start(context, record)


def end_failed_start(context: Context) -> str:
    """Undo of *start*: whatever runs of it is ended, so that its memory is free. vLLM ignores SIGTERM while it starts: SIGKILL soon follows."""
    record = context.the_service
    manager = manager_for(record)
    if not manager.pids() and manager.status().state in {ServiceState.STOPPED, ServiceState.FAILED} and record.manager == "process":
        return ""
    return stopping.stop(context, record)


def _nobody_changes(context: Context, record: ServiceRecord) -> None:
    """Raises Busy while a job changes the environment that would be started: half of it may be installed."""
    in_place.nobody_changes(context, record)
    environment = releases.environment(record) if record.in_place else None
    if environment is not None and claim.lock_file(context.paths, lock := f"env:{environment}").exists():
        claim.release(claim.lock_all(context.paths, [lock], give_up=context.check))


# ---- stop ----


def stop_service(context: Context) -> list[Step]:
    """No params."""
    manager_for(context.the_service)
    return [
        Step(name="stop", title="Stop", do=stop, downtime=True, deadline_s=STOP_DEADLINE_S),
        Step(name="gpus-free", title="GPUs free", do=free_after_stop, downtime=True, deadline_s=600),
    ]


def stop(context: Context) -> str:
    record = context.the_service
    try:
        return stopping.stop(context, record)
    except Cancelled:
        if left := manager_for(record).pids():
            context.finding("stop", "warning", f"Service `{record.name}` was told to end, and that cannot be taken back",
                            why=f"{len(left)} of its processes are still there, and may end at any moment", fix="Stop it again, or restart it")
        raise


def free_after_stop(context: Context) -> str:
    """The service is down whatever comes out here: a GPU that is not free makes the job partial, and is told with all that is left."""
    record, source = context.the_service, open_source(context.config)
    from ops import redeploy

    try:
        note = stopping.wait_gpus_free(context, record, source, limit_s=stopping.time_to_free_s(context, record, redeploy.GPUS_FREE_S))
    except OpsError as error:
        if error.kind != "gpus_not_free":
            raise
        left = tell_leftovers(context, record)
        own = f"; {len(left.own)} processes of it can be ended by the job `end-leftovers`" if left is not None and left.own else ""
        context.finding("gpus", "warning", error.what, why=error.why, fix=error.hint)
        how = "was down already, and" if stopping.nothing_to_end(context) else "is stopped, but"
        context.facts["partial"] = f"Service `{record.name}` {how} not all of its GPUs are free: {error.what}{own}"
        return error.what
    stopping.record_baseline(record, source.read())
    left = tell_leftovers(context, record)
    return f"{note}; left: {left.words()}" if left is not None and left.matters else note


# ---- leftovers ----


def look_for_leftovers(context: Context) -> list[Step]:
    """No params; changes nothing."""
    return [Step(name="leftovers", title="Look for leftovers", do=look, deadline_s=300)]


def end_leftovers(context: Context) -> list[Step]:
    """Params: `processes`, [{pid, start_ticks}] as an earlier look listed them."""
    return [
        Step(name="end", title="End leftovers", do=end_listed, deadline_s=300),
        Step(name="leftovers", title="Look again", do=look, deadline_s=300, always=True),
    ]


def look(context: Context) -> str:
    left = leftovers.look(context.the_service, open_source(context.config), others=_others(context, context.the_service))
    context.emit(EventType.LEFTOVERS, left.as_dict())
    for problem in left.problems:
        context.finding("leftovers", "note", problem)
    return left.words()


def end_listed(context: Context) -> str:
    record, wanted = context.the_service, leftovers.chosen(context.params.get("processes"))
    note = leftovers.end(context, record, wanted, others=_others(context, record))
    if manager_for(record).status().runs:
        return note
    try:
        return f"{note}; {stopping.wait_gpus_free(context, record, open_source(context.config), limit_s=20)}"
    except OpsError as error:
        if error.kind != "gpus_not_free":
            raise
        context.facts["partial"] = f"They were ended, but not all GPUs are free: {error.what}"
        context.finding("gpus", "warning", error.what, why=error.why, fix=error.hint)
        return f"{note}; {error.what}"


def tell_leftovers(context: Context, record: ServiceRecord, *, only_what_matters: bool = False) -> Leftovers | None:
    """Says what a stop left behind. It is told beside the stop, and decides nothing: what cannot be looked at is a note. None if it cannot at all."""
    try:
        left = leftovers.look(record, open_source(context.config), others=_others(context, record))
    except (OpsError, OSError) as error:
        context.finding("leftovers", "note", "What was left behind cannot be told", why=error.what if isinstance(error, OpsError) else str(error))
        return None
    for problem in left.problems:
        context.finding("leftovers", "note", problem)
    if left.matters or not only_what_matters:
        context.emit(EventType.LEFTOVERS, left.as_dict())
    return left


def _others(context: Context, record: ServiceRecord) -> list[ServiceRecord]:
    """The node's other services, as far as their records can be read."""
    found = []
    for path in sorted(context.paths.announced.glob("*.json")):
        if path.stem != record.name:
            try:
                found.append(guard_list.own_record(context.paths, path.stem))
            except OpsError as error:
                context.log(f"The record of service `{path.stem}` cannot be read: {error.what}")
    return found


# ---- a failed unit ----


def reset_failed(context: Context) -> list[Step]:
    """No params."""
    manager_for(context.the_service)
    return [Step(name="reset-failed", title="Reset the failed state", do=forget_failure, deadline_s=60)]


def forget_failure(context: Context) -> str:
    record = context.the_service
    manager = manager_for(record)
    before = manager.status()
    manager.reset_failed()
    if record.manager != "systemd":
        return "a process has no failed state that would keep it from starting"
    return f"it was {before.state}, and is {manager.status().state}"


# ---- switch ----


def switch_service(context: Context) -> list[Step]:
    """Params: `to`, the name of another service of this node; `smoke` (default true). Locks both."""
    from ops import redeploy

    to = str(context.params.get("to") or "")
    if not NAME.match(to) or to == context.the_service.name:
        raise Refused(f"`{to[:80]}` is no other service to switch to", hint="Name another service of this node")
    manager_for(context.the_service)
    smoke = [Step(name="smoke", title="Smoke tests", do=smoke_other, deadline_s=900)] if context.params.get("smoke", True) else []
    return [
        Step(name="preflight", title="Preflight", do=look_before_switch, deadline_s=600),
        Step(name="stop", title="Stop", do=redeploy.stop, undo=redeploy.start_last_good, downtime=True, deadline_s=STOP_DEADLINE_S),
        Step(name="gpus-free", title="GPUs free", do=free_for_other, downtime=True, deadline_s=600),
        Step(name="start", title="Start the other", do=start_other, undo=end_other, downtime=True, deadline_s=120),
        Step(name="warmup", title="Warmup of the other", do=watch_other, downtime=True, deadline_s=2 * 3600),
        *smoke,
        Step(name="report", title="Report", do=tell_switch, deadline_s=60),
    ]


def other(context: Context) -> Context:
    """The same job, about the service that it switches to: its own record from this node's services.d, its own facts, and its name in each event."""
    record = guard_list.own_record(context.paths, str(context.params["to"]))
    check_record(record, context.config)
    if record.practice != context.the_service.practice:
        raise Refused(f"`{record.name}` cannot take the place of `{context.the_service.name}`", why="Practice never mixes with real services")

    def emit(type: str, data: dict[str, Any]) -> None:
        context.emit(type, {**data, "service": record.name})

    def save(facts: dict[str, Any]) -> None:
        context.save_facts(context.facts)

    return replace(context, service=record, emit=emit, facts=context.facts.setdefault("to", {}), kept=context.kept.setdefault("to", {}),
                   save_facts=save)


def look_before_switch(context: Context) -> str:
    """Everything about the other service that can be known before the first one is touched."""
    from ops import redeploy

    record = context.the_service
    there = other(context)
    to = there.the_service
    if manager_for(to).status().runs:
        raise BadInput(f"Service `{to.name}` runs already", why="Nothing has to be switched", hint=f"Stop `{record.name}` if it is not needed")
    _nobody_changes(context, to)
    in_the_way = _left_of_earlier_runs(there)
    there.kept["leaving"] = record  # its port, its GPUs and their memory are free by then
    found = preflight.everything(there, to, releases.current(to))
    redeploy.tell_guards(there, must_hold=True)
    _refuse_leftovers(in_the_way)
    warnings = sum(1 for one in found if one["level"] == "warning")
    return f"{len(found)} checked for {to.name}" + (f", {warnings} warnings" if warnings else "")


def free_for_other(context: Context) -> str:
    """The GPUs of the first service, and those of the other one where it has more."""
    from ops import redeploy

    note = redeploy.gpus_free(context)
    there = other(context)
    if set(there.the_service.gpus) <= set(context.the_service.gpus):
        return note
    more = stopping.wait_gpus_free(there, there.the_service, open_source(context.config), limit_s=redeploy.GPUS_FREE_S)
    return f"{note}; for {there.the_service.name}: {more}"


def start_other(context: Context) -> str:
    there = other(context)
    _nobody_changes(there, there.the_service)
    return f"{there.the_service.name}: {starting.start(there, there.the_service)}"


def end_other(context: Context) -> str:
    """Undo of its start: the first service needs its memory. Where the other one had answered already, the downtime goes on here."""
    from ops import redeploy

    there = other(context)
    if manager_for(there.the_service).pids():
        redeploy.down(context)
    note = end_failed_start(there)
    return f"{there.the_service.name}: {note}" if note else ""


def watch_other(context: Context) -> str:
    from ops import redeploy

    there = other(context)
    note = redeploy.watch_warmup(there)
    redeploy.answers(context, by=there.the_service)
    return f"{there.the_service.name}: {note}"


def smoke_other(context: Context) -> str:
    from ops import redeploy

    return redeploy.smoke_tests(other(context))


def tell_switch(context: Context) -> str:
    """What answers now, and what would start with the machine: a switch changes what runs, not what its node starts at boot."""
    record, to = context.the_service, other(context).the_service
    orders = [*([f"systemctl disable {record.unit}"] if _starts_at_boot(record) else []),
              *([f"systemctl enable {to.unit}"] if _starts_at_boot(to) is False else [])]
    if orders:
        context.finding("switch", "note", f"After a restart of this machine `{to.name}` would not run as it does now",
                        why="A switch stops and starts; which units start at boot is for the machine's owner to say", fix="; ".join(orders))
    return f"{to.name} answers in place of {record.name}"


def _starts_at_boot(record: ServiceRecord) -> bool | None:
    """None where its manager starts nothing at boot, or does not say."""
    facts = getattr(manager_for(record), "facts", None)
    return None if facts is None else facts().get("enabled")


# ---- diagnosis ----


def diagnose(context: Context) -> list[Step]:
    """No params; changes nothing."""
    manager_for(context.the_service)
    return [Step(name="diagnose", title="Diagnose", do=diagnose_log, deadline_s=1800)]


def diagnose_log(context: Context) -> str:
    """Reads the log of the service's current (else last) run on its node, however long it is, and the kernel's log of that time beside it; says
    what is wrong with the run."""
    from ops.services import diagnosis, kernel_log

    record = context.the_service
    manager = manager_for(record)
    status = manager.status()
    ended, until = status.state == ServiceState.FAILED, status.ended_at or time.time()
    since = status.started_at or ownership.began_at(record, status.invocation) or until - KERNEL_S
    kernel = kernel_log.read(since, until)
    found = diagnosis.diagnose_lines(_counted(context, manager.log_lines()), kernel=kernel.lines, ended=ended)
    said = failures.told(found, launch.secrets(record))
    where = status.log_where or status.log_path or ""
    context.emit(EventType.DIAGNOSIS, said | {"service": record.name, "exit_code": status.exit_code, "log": where})
    if found.fault:
        line = f"line {found.line:,}: " if found.line else ""
        if "kernel log" in found.fix and found.source != "kernel":
            context.finding("diagnosis", "note", failures.kernel_words(kernel.problem))
        return f"{found.lines:,} lines; {line}{(said['text'] or said['diagnosis'])[:200]}"
    if ended:
        engine = "vLLM ends with code 0 when its engine dies." if status.exit_code == 0 else ""
        means = failures.meaning(status.exit_code) or "A killed process writes nothing: the kernel or a person may have ended it."
        context.finding("diagnosis", "warning", f"{status.detail}; its log names no cause", why=f"{engine} {means}".strip(),
                        fix=failures.kernel_words(kernel.problem))
        return f"{found.lines:,} lines that name no cause; {status.detail}"
    return f"{found.lines:,} lines, no fault ({found.state})" if found.lines else "it has no log: it never ran here"


def _counted(context: Context, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if number % _LINES_A_LOOK == 0:
            context.counted(number, None, "lines")
        yield line
