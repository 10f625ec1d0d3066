"""A job is an ordered list of steps; this runs them, and undoes them when one fails.

Steps report through callables and know neither Celery nor Redis. What a later step, an undo or a resumed job needs is put
into `Context.facts`, which is written to disk at each step boundary, so that another process can run the undo.
"""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.errors import Cancelled, OpsError, Timeout
from ops.jobs.events import EventType, JobState
from ops.records import ServiceRecord


class Reporter(Protocol):
    """Takes an event's type and data; numbers it, stores it, sends it on."""

    def __call__(self, type: str, data: dict[str, Any]) -> None: ...


@dataclass(kw_only=True)
class Context:
    """All that a step may use."""

    job: str
    params: dict[str, Any]
    paths: NodePaths
    config: NodeConfig
    folder: Path  # jobs/<id>: the job's own files
    emit: Reporter
    service: ServiceRecord | None = None
    snapshot: dict[str, Any] = field(default_factory=dict)  # channel, suites, kinds: records from the envelope
    cancel_wanted: Callable[[], bool] = lambda: False
    save_facts: Callable[[dict[str, Any]], None] = lambda facts: None
    lock_fds: tuple[int, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # what a step leaves for a later one of the same process; never written down
    step: str = ""
    deadline: float | None = None  # time.monotonic() of the running step
    undoing: bool = False

    def check(self) -> None:
        """Call often in loops: raises Cancelled when a person asked to stop, Timeout when the step's deadline has passed."""
        if not self.undoing and self.cancel_wanted():
            raise Cancelled(self.step)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Timeout(f"Step `{self.step}` did not end before its deadline")

    def sleep(self, seconds: float) -> None:
        """Sleeps in slices, with `check` between them."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, 0.2))
        self.check()

    def log(self, text: str) -> None:
        """Complete lines for the step's log."""
        self.emit(EventType.STEP_LOG, {"step": self.step, "text": text if text.endswith("\n") else text + "\n", "dropped_bytes": 0})

    def progress(self, done: float | None, total: float | None, unit: str, text: str = "", *, estimate: bool = False) -> None:
        self.emit(EventType.STEP_PROGRESS, {"step": self.step, "done": done, "total": total, "unit": unit, "text": text, "estimate": estimate})

    def counted(self, done: float | None, total: float | None, unit: str) -> None:
        """Progress of a loop that may end here, as `check` has it."""
        self.progress(done, total, unit)
        self.check()

    def finding(self, subject: str, level: str, title: str, *, why: str = "", fix: str = "", part: str = "", look: str = "") -> None:
        """`part` and `look`: of preflight, which part of it and which look found this."""
        where = {"part": part, "look": look} if part else {}
        self.emit(EventType.FINDING, {"subject": subject, "level": level, "title": title, "why": why, "fix": fix, **where})

    @property
    def the_service(self) -> ServiceRecord:
        """The job's service; raises OpsError where the job has none."""
        if self.service is None:
            raise OpsError("This job has no service", hint="Its envelope must carry the service record")
        return self.service


StepFunction = Callable[[Context], str | None]  # gives the note for the step list, or None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One part of a job. `check` true: already done, skip. `undo` is run in reverse order when a later step fails.

    `downtime` marks the steps while which the service may not answer (only a mark for the page: the time itself is measured).
    """

    name: str
    title: str
    do: StepFunction
    check: Callable[[Context], bool] | None = None
    undo: StepFunction | None = None
    deadline_s: float | None = None
    downtime: bool = False
    always: bool = False  # runs even after a failure (a report, say)

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "downtime": self.downtime}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a pipeline ended."""

    state: JobState
    reason: str = ""
    reason_kind: str = ""  # "expected", "bug" or ""
    rollback: str = "none"  # "none", "done" or "failed"
    error: dict[str, Any] | None = None


def run(steps: Sequence[Step], context: Context, *, fault: Callable[[str, str], None] = lambda step, phase: None) -> Outcome:
    """Runs `steps` in order and gives how it ended; emits step events, never `job.finished` (the runner does).

    `fault(step, phase)` is called at "before", "after" (done, not yet recorded) and "recorded": tests crash the process there.
    After a failed or cancelled step, the undo of that step and of all earlier ones runs in reverse order, unless the job's
    params say `rollback: false`.
    """
    begun: list[Step] = []
    failure: tuple[Step, BaseException] | None = None
    rollback = "none"
    for index, step in enumerate(steps):
        if failure and not step.always:
            continue
        began = time.monotonic()
        context.step = step.name
        context.deadline = began + step.deadline_s if step.deadline_s else None
        try:
            if not failure:
                context.check()
        except Cancelled as error:
            failure = (step, error)
            context.facts["failure"] = {"step": step.name, "title": step.title, "outcome": "cancelled", "what": "cancelled"}
            rollback = context.facts["rollback"] = _roll_back(begun, context)
            if not step.always:
                continue
        context.emit(EventType.STEP_STARTED, {"step": step.name, "title": step.title, "index": index, "deadline_s": step.deadline_s})
        fault(step.name, "before")
        try:
            if step.check is not None and step.check(context):
                outcome, note = "skipped", "already done"
            else:
                begun.append(step)
                context.facts.setdefault("begun", []).append(step.name)
                context.save_facts(context.facts)
                note = step.do(context) or ""
                outcome = "done"
        except Cancelled as error:
            failure, outcome, note = failure or (step, error), "cancelled", "cancelled"
        except OpsError as error:
            failure, outcome, note = failure or (step, error), "failed", error.what
        except Exception as error:  # noqa: BLE001 a bug of ours, mostly: the traceback goes to the log, the job ends cleanly
            told = _disk(error)
            context.log(str(told) if told else traceback.format_exc())
            failure, outcome, note = failure or (step, told or error), "failed", told.what if told else f"{type(error).__name__}: {error}"
        context.deadline = None
        if outcome in ("done", "skipped"):
            context.facts.setdefault("finished", []).append(step.name)
        fault(step.name, "after")
        context.save_facts(context.facts)
        context.emit(EventType.STEP_FINISHED, {"step": step.name, "outcome": outcome, "duration_s": time.monotonic() - began, "note": note})
        fault(step.name, "recorded")
        if failure and failure[0] is step and outcome in ("failed", "cancelled"):
            context.facts["failure"] = {"step": step.name, "title": step.title, "outcome": outcome, "what": note}
            rollback = context.facts["rollback"] = _roll_back(begun, context)
    return finished(context) if failure is None else _outcome(*failure, rollback)


def finished(context: Context) -> Outcome:
    """How a job ended whose steps all ended well."""
    partial = context.facts.get("partial")
    return Outcome(state=JobState.PARTIAL if partial else JobState.SUCCEEDED, reason=str(partial or ""))


def _disk(error: Exception) -> OpsError | None:
    """The disk's refusal to write as the expected failure that it is; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return None
    place = f"`{error.filename}` cannot be written" if error.filename else "The disk refuses what the step writes"
    return OpsError(f"{place}: {error.strerror}", hint="Make room on this disk", kind="disk")


def _roll_back(begun: Sequence[Step], context: Context) -> str:
    return undo(begun, context) if context.params.get("rollback", True) else "none"


def undo(begun: Sequence[Step], context: Context) -> str:
    """Runs the undo of `begun` in reverse order: "none" (nothing to undo), "done" or "failed". Repeatable: each undo looks first.

    A full disk does not end it: an undo matters more than its story, so what cannot be written then is left out.
    """
    emit, save_facts = context.emit, context.save_facts
    context.undoing, context.deadline = True, None
    context.emit, context.save_facts = _if_it_can(emit), _if_it_can(save_facts)
    try:
        return _undo(begun, context)
    finally:
        context.emit, context.save_facts, context.undoing = emit, save_facts, False


def _if_it_can(write: Callable[..., None]) -> Callable[..., None]:
    def quiet(*arguments: Any) -> None:
        try:
            write(*arguments)
        except OpsError as error:
            if error.kind != "disk":
                raise

    return quiet


def _undo(begun: Sequence[Step], context: Context) -> str:
    result = "none"
    for step in reversed(begun):
        if step.undo is None:
            continue
        began = time.monotonic()
        context.step = step.name
        context.emit(EventType.STEP_UNDOING, {"step": step.name, "title": step.title})
        try:
            note, outcome = step.undo(context) or "", "done"
        except OpsError as error:
            note, outcome = str(error), "failed"
        except Exception as error:  # noqa: BLE001 as in run(): told, and the rollback counts as failed
            told = _disk(error)
            context.log(str(told) if told else traceback.format_exc())
            note, outcome = str(told or f"{type(error).__name__}: {error}"), "failed"
        context.emit(EventType.STEP_UNDONE, {"step": step.name, "outcome": outcome, "duration_s": time.monotonic() - began, "note": note})
        if outcome == "failed":
            result = "failed"
            break  # a later undo builds on this one: a person has to look
        if note:  # an undo that found nothing to put back says nothing
            result = "done"
    return result


def _outcome(step: Step, error: BaseException, rollback: str) -> Outcome:
    if isinstance(error, Cancelled):
        return Outcome(state=JobState.CANCELLED, reason=f"Cancelled at step `{step.name}`", reason_kind="expected", rollback=rollback)
    if isinstance(error, OpsError):
        return Outcome(state=JobState.FAILED, reason=error.what, reason_kind="expected", rollback=rollback, error=error.as_dict())
    told = OpsError(f"{type(error).__name__} in step `{step.name}`: {error}", kind="bug", why="This is a fault in Roundhouse, not in your service",
                    hint="The traceback is in the step's log")
    return Outcome(state=JobState.FAILED, reason=told.what, reason_kind="bug", rollback=rollback, error=told.as_dict())
