"""One job, in a process of its own: `python -m ops.jobs.runner JOB`, with the envelope on stdin.

It detaches (double fork, own session), claims the job (ops/jobs/claim.py), says so in one line on stdout, and runs its steps.
So nobody's death ends a job but its own, and nobody's but its own frees its locks. It knows neither Celery nor Redis: what it
says goes into the journal on disk.

The line on stdout is a JSON object: `{"answer": "claimed" | "attached"}` or `{"answer": "refused", "error": OpsError.as_dict()}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ops.agent.config import REPOSITORY, NodeConfig, NodePaths
from ops.jobs import claim, commands, marks, pipeline, redact, reserve
from ops.jobs.envelope import Envelope, check_limits
from ops.jobs.errors import BadInput, Busy, OpsError, Refused
from ops.jobs.events import EventType, JobState
from ops.jobs.journal import Journal, Nudge, final_event, journal_path, write_json
from ops.jobs.pipeline import Context, Outcome, Step
from ops.records import ServiceRecord

COMMAND = [sys.executable, "-m", "ops.jobs.runner"]  # how the agent starts a runner
ANSWER_S = 60  # a starting interpreter on a busy machine; a claim itself takes milliseconds
CANCEL_LOOK_S = 1.0

_POLITE_END_S = 10.0
# Fields of a service record that jobs change on its node: settings, guards, smoke tests, and what follows from them
_NODES_OWN = frozenset({"flags", "env", "base_url", "served_model_name", "guards", "smoke_tests", "smoke_without"})


def crash_at(step: str, phase: str) -> None:
    """The fault hook of the tests: `CRASH_AT=step:phase` in the environment kills this process there, as a power cut would."""
    if os.environ.get("CRASH_AT") == f"{step}:{phase}":
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class CancelFlag:
    """Whether somebody wants the job to stop: the file `cancel` in its folder (`{"by"}`), or a signal to this process."""

    folder: Path
    said: Callable[[str], None]  # called once, with who asked
    by_signal: str | None = None
    by: str | None = None
    _looked: float = field(default=-1e9)

    def __call__(self) -> bool:
        if self.by is not None:
            return True
        asked = self.by_signal
        now = time.monotonic()
        if asked is None and now - self._looked >= CANCEL_LOOK_S:
            self._looked = now
            asked = read_cancel(self.folder)
        if asked is None:
            return False
        self.by = asked
        self.said(asked)
        return True


def read_cancel(folder: Path) -> str | None:
    """Who asked to stop the job, or None. An unreadable flag is a flag."""
    try:
        return str(json.loads((folder / "cancel").read_text()).get("by") or "")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError):
        return ""


def write_cancel(folder: Path, by: str) -> None:
    """Asks the job in `folder` to stop."""
    write_json(folder / "cancel", {"by": by, "at": time.time()})


def service_of(paths: NodePaths, envelope: Envelope) -> ServiceRecord | None:
    """The job's service. Nodes announce records without their secrets, so the node puts its own, whole record in for what it had announced; also
    where its settings, guards or smoke tests were changed since.

    Raises Refused if the order lacks a secret and the rest of the node's record has become another one.
    """
    ordered = envelope.service_record()
    if ordered is None:
        return None
    try:
        raw = json.loads((paths.announced / f"{ordered.name}.json").read_text())
        own = ServiceRecord.from_dict(raw)
    except (OSError, ValueError, RecursionError, BadInput):
        own = None  # never announced by this node: the order must be complete in itself
    if own is not None and _told(own) == _told(ordered):
        return own
    if any(redact.HIDDEN in text for text in (*ordered.env.values(), *ordered.flags, ordered.base_url)):
        raise Refused(f"The order's record of service `{ordered.name}` is not the node's any more", why="It was changed since the node announced it",
                      hint="Start the job again in a minute")
    return ordered


def _told(record: ServiceRecord) -> dict[str, Any]:
    """The record as it is announced, without what only its node sets: an order that waited must not bring back the settings that it was made with."""
    return {name: value for name, value in redact.hide_in_record(record.as_dict()).items() if name not in _NODES_OWN}


def context_for(paths: NodePaths, config: NodeConfig, envelope: Envelope, emit: pipeline.Reporter, *, facts: dict[str, Any] | None = None) -> Context:
    """The context of a job's steps; `facts` those that an earlier process left."""
    folder = paths.jobs / envelope.job
    return Context(
        job=envelope.job, params=envelope.params, paths=paths, config=config, folder=folder, emit=emit, service=service_of(paths, envelope),
        snapshot=envelope.snapshot, save_facts=lambda facts: write_json(folder / "facts.json", facts), facts=facts or {})


def read_facts(folder: Path) -> dict[str, Any]:
    """What the job's steps left for later ones; {} if they left nothing."""
    try:
        return dict(json.loads((folder / "facts.json").read_text()))
    except FileNotFoundError:
        return {}


def steps_of(envelope: Envelope, context: Context) -> list[Step]:
    """The job's steps. Raises Refused if this node does not know its type, or if it declares other locks than its kind."""
    from ops.jobs import kinds  # here, not above: the parts of all kinds are a second of imports that an attach need not pay

    kind = kinds.KINDS.get(envelope.type)
    if kind is None:
        raise Refused(f"This node knows no job type `{envelope.type}`", hint="Bring console and node to the same version")
    if kind.needs_service and envelope.service is None:
        raise Refused(f"A {envelope.type} job needs a service", why="The envelope has none")
    if (needed := sorted(kind.locks(envelope.service_name, envelope.params))) != envelope.locks:
        raise Refused(f"The envelope declares the locks {envelope.locks}", why=f"A {envelope.type} job takes {needed}")
    return kind.steps(context)


@dataclass
class Running:
    """A claimed job with all that is needed to run it."""

    claimed: claim.Claim
    context: Context
    steps: list[Step]
    cancel: CancelFlag
    downtime_s: float | None = None

    @property
    def journal(self) -> Journal:
        return self.claimed.journal


def take(paths: NodePaths, envelope: Envelope) -> Running:
    """Claims the job for this process. Raises Attached, Busy, Refused, OpsError; nothing has been changed then."""
    if (paths.jobs / envelope.job).exists():
        raise claim.Attached(envelope.job)
    config = NodeConfig.load(paths.node_toml)
    if envelope.node != config.name:
        raise Refused(f"The envelope is for node `{envelope.node}`, this is `{config.name}`", kind="another_node")
    check_limits(envelope, config)
    context = context_for(paths, config, envelope, _silent)
    steps = steps_of(envelope, context)
    if envelope.type in reserve.JOBS:
        reserve.let_go_if_full(paths.root)
    claimed = claim.claim(paths, envelope, steps=[step.describe() for step in steps], nudge=Nudge(paths.nudge_socket),
                          secrets=secrets_of(paths, envelope, context.service))
    cancel = CancelFlag(claimed.folder, said=lambda by: claimed.journal(EventType.JOB_CANCELLING, {"by": by}))
    running = Running(claimed, context, steps, cancel)

    def emit(type: str, data: dict[str, Any]) -> None:
        if type == EventType.DOWNTIME_ENDED and isinstance(seconds := data.get("seconds"), (int, float)):
            running.downtime_s = (running.downtime_s or 0) + seconds
        claimed.journal(type, data)

    context.emit, context.cancel_wanted, context.lock_fds = emit, cancel, claimed.lock_fds
    return running


def secrets_of(paths: NodePaths, envelope: Envelope, record: ServiceRecord | None) -> list[str]:
    """What no line of the job may hold: the secrets of its service, and of every other one that it locks (a switch reads both their logs)."""
    from ops.environments import guard_list
    from ops.services import launch

    found = launch.secrets(record) if record is not None else []
    for lock in envelope.locks:
        kind, _, name = lock.partition(":")
        if kind == "service" and (record is None or name != record.name):
            with contextlib.suppress(OpsError):  # one that is not there yet, or cannot be read: then the job does not get to it either
                found += launch.secrets(guard_list.own_record(paths, name))
    return found


def carry_out(running: Running) -> Outcome:
    """Runs the steps to the end and says `job.finished`; lets the locks go when none of the job's processes is left."""
    began = time.monotonic()
    context, journal = running.context, running.journal
    journal(EventType.JOB_STARTED, {"pid": os.getpid(), "start_time": claim.start_ticks(os.getpid())})
    try:
        outcome = pipeline.run(running.steps, context, fault=crash_at)
    except OpsError as error:
        # The journal itself could not be written (a full disk): the pipeline could not go on, so what it began is undone from here.
        outcome = Outcome(state=JobState.FAILED, reason=error.what, reason_kind="expected", rollback=_undo_begun(running), error=error.as_dict())
    except Exception as error:  # noqa: BLE001  (a bug outside of a step: told as one, and what was begun is undone)
        told = OpsError(f"{type(error).__name__} in the job's runner: {error}", kind="bug", why=traceback.format_exc(limit=5))
        outcome = Outcome(state=JobState.FAILED, reason=told.what, reason_kind="bug", rollback=_undo_begun(running), error=told.as_dict())
    finish(running.claimed, context.paths, outcome, duration_s=time.monotonic() - began, downtime_s=running.downtime_s)
    if running.claimed.envelope.type in reserve.JOBS:
        reserve.keep(context.paths.root)
    return outcome


def finish(claimed: claim.Claim, paths: NodePaths, outcome: Outcome, *, duration_s: float | None, downtime_s: float | None) -> None:
    """Ends what the job left running, says `job.finished`, then lets the locks go: never before, and never with a process left.

    A failed rollback, or a process that even SIGKILL does not end, keeps the locks for a person.
    """
    locks, job = claimed.envelope.locks, claimed.envelope.job
    if left := marks.end_marked(job, grace_s=_POLITE_END_S):
        # The console keeps the lock, as this node does, for a job whose rollback failed: and things are not as they were.
        outcome = replace(outcome, rollback="failed", reason=f"{outcome.reason}. Processes could not be ended: {marks.tell(left)}".removeprefix(". "))
    if outcome.rollback == "failed":
        claim.hold(paths, locks, job, f"The rollback failed: {outcome.reason}")
    elif outcome.state == JobState.SUCCEEDED and claimed.envelope.type in claim.REPAIRS:
        for lock in locks:
            claim.let_go(paths, lock)
    said = {**asdict(outcome), "duration_s": duration_s, "downtime_s": downtime_s}
    deadline = time.monotonic() + 60
    while True:
        try:
            claimed.journal.append_final(said)
            break
        except OpsError:
            if time.monotonic() > deadline:
                raise  # the disk stays full: without its last line the job counts as interrupted, and the reconciler says it later
            time.sleep(1)
    claimed.release()
    claimed.journal.tell()
    claimed.journal.close()


def _undo_begun(running: Running) -> str:
    context = running.context
    begun = set(context.facts.get("begun", []))
    if not context.params.get("rollback", True):
        return "none"
    return pipeline.undo([step for step in running.steps if step.name in begun], context)


def refuse(paths: NodePaths, envelope: Envelope, error: OpsError) -> None:
    """Ends a job that this node will never take, so that it does not wait for ever: a journal of one line. Nothing if the job is here."""
    folder = paths.jobs / envelope.job
    try:
        folder.mkdir(mode=0o700)
        journal = Journal.create(envelope.job, folder, nudge=Nudge(paths.nudge_socket))
    except (FileExistsError, Refused):
        return
    state = JobState.CANCELLED if error.kind == "cancelled" else JobState.FAILED
    outcome = Outcome(state=state, reason=error.what, reason_kind="bug" if error.kind == "bug" else "expected", error=error.as_dict())
    journal.append_final({**asdict(outcome), "duration_s": None, "downtime_s": None})
    journal.tell()
    journal.close()


def run_here(paths: NodePaths, envelope: Envelope, *, on_event: Callable[[str, dict[str, Any]], None] | None = None) -> Outcome:
    """Claims and runs the job in this very process: for the command line. Ctrl-C and SIGTERM cancel it.

    Raises Attached, Busy, Refused. Same locks, same journal as a job that the console started.
    """
    running = take(paths, envelope)
    if on_event is not None:
        write, tell = running.context.emit, on_event

        def both(type: str, data: dict[str, Any]) -> None:
            write(type, data)
            tell(type, data)

        running.context.emit = both
    _cancel_on_signals(running.cancel)
    return carry_out(running)


def start(paths: NodePaths, envelope: Envelope) -> str:
    """Starts a detached runner and waits for its answer: "claimed" or "attached". Raises Busy, Refused, OpsError.

    The caller may die at any moment: the runner goes on.
    """
    if (paths.jobs / envelope.job).exists():
        return "attached"
    process = subprocess.Popen([*COMMAND, envelope.job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               cwd=REPOSITORY, env=environment(paths, envelope.job), start_new_session=True)
    try:
        said, _ = process.communicate(envelope.to_json().encode(), timeout=ANSWER_S)
    except subprocess.TimeoutExpired as error:
        process.kill()  # the starter, if it still hangs before its fork; a forked runner is not touched
        process.communicate()
        raise OpsError(f"The runner of job `{envelope.job}` did not answer within {ANSWER_S} s", hint="It may still claim the job") from error
    try:
        return read_answer(envelope.job, said.decode(errors="replace"))
    except OpsError as error:
        if error.kind == "no_answer" and (paths.jobs / envelope.job).exists():
            return "attached"  # a duplicate, ended together with the job that it found
        raise


def read_answer(job: str, said: str) -> str:
    """"claimed" or "attached" from a runner's words; raises what it said otherwise."""
    for line in reversed(said.splitlines()):
        try:
            answer = json.loads(line)
            if answer["answer"] in ("claimed", "attached"):
                return str(answer["answer"])
            raw = answer["error"]
        except (ValueError, KeyError, TypeError):
            continue
        kinds: dict[str, type[OpsError]] = {"Busy": Busy, "Refused": Refused}
        raise kinds.get(answer["class"], OpsError)(raw["what"], why=raw["why"], hint=raw["hint"], kind=raw["kind"], **raw["facts"])
    raise OpsError(f"The runner of job `{job}` ended without an answer", why=said[-2000:], kind="no_answer")


def environment(paths: NodePaths, job: str) -> dict[str, str]:
    """A runner's environment: clean, with the job's mark and where the node's state lies."""
    made = {**commands.clean_environment(job=job), "ROUNDHOUSE_NODE_STATE": str(paths.root)}
    for name in ("ROUNDHOUSE_STATE", "CRASH_AT"):
        if name in os.environ:
            made[name] = os.environ[name]
    return made


def main(job: str) -> int:
    """A detached runner, from the envelope on stdin to the end of the job. The starting process returns at once, the runner does not."""
    text = sys.stdin.buffer.read()
    if os.fork():
        os._exit(0)
    os.setsid()  # a session of its own, so that no terminal and no parent's group reaches it
    _replace_descriptor(0, Path("/dev/null"), os.O_RDONLY)
    try:
        envelope = Envelope.from_json(text)
        if envelope.job != job:
            raise Refused(f"The envelope is for job `{envelope.job}`, not `{job}`")
        running = take(NodePaths.default().make(), envelope)
    except claim.Attached:
        return _answer({"answer": "attached"})
    except OpsError as error:
        family = "Busy" if isinstance(error, Busy) else "Refused" if isinstance(error, Refused) else ""
        return _answer({"answer": "refused", "class": family, "error": error.as_dict()})
    except Exception as error:  # noqa: BLE001  (a bug before the claim: the job shall fail with it at once, not wait until its order is too old)
        told = OpsError(f"{type(error).__name__} before the job began: {error}", kind="bug", why=traceback.format_exc(limit=8),
                        hint="This is a fault in Roundhouse, not in your service")
        return _answer({"answer": "refused", "class": "", "error": told.as_dict()})
    _cancel_on_signals(running.cancel)
    out = running.claimed.folder / "runner.out"
    _answer({"answer": "claimed"})
    for descriptor in (1, 2):  # the starter waits for the end of its pipe
        _replace_descriptor(descriptor, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    carry_out(running)
    return 0


def _answer(said: dict[str, Any]) -> int:
    try:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the starter has died; the job goes on without it
    return 0


def _replace_descriptor(descriptor: int, path: Path, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def _cancel_on_signals(cancel: CancelFlag) -> None:
    def asked(number: int, frame: FrameType | None) -> None:
        cancel.by_signal = "shutdown"

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)


def _silent(type: str, data: dict[str, Any]) -> None:
    raise RuntimeError("a job's steps may say nothing before it is claimed")


def is_final(paths: NodePaths, job: str) -> bool:
    """Whether the job has ended on this node."""
    return final_event(journal_path(paths, job)) is not None


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ops.jobs.runner JOB < envelope.json")
    sys.exit(main(sys.argv[1]))
