"""Jobs whose runner died: ends what they left running, undoes what they began, and gives them a final state.

A job is over when its journal ends with `job.finished`. For one that does not: if its runner lives (boot id, pid and start time
all match) it is left alone. Else the job's processes are ended (TERM, 10 s, KILL), and when none is left, its steps are undone
under its own locks and `interrupted` is written, with step and cause. Repeatable: killed half way, the next pass does it again.

`python -m ops.jobs.reconcile JOB` does it for one job in a process of its own, detached as a runner is: an undo may take
minutes, and an agent that ends meanwhile must not cut it short.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.agent.config import REPOSITORY, NodeConfig, NodePaths
from ops.gpus.processes import boot_id, is_alive
from ops.jobs import claim, marks, pipeline, runner
from ops.jobs.envelope import Envelope, check_job_id
from ops.jobs.errors import Busy, OpsError, Refused
from ops.jobs.events import Event, EventType, JobState
from ops.jobs.journal import Journal, Nudge, Tail, final_event, journal_path

COMMAND = [sys.executable, "-m", "ops.jobs.reconcile"]
YOUNG_S = 20.0  # a folder without `job.claimed` may be a claim in this very moment


@dataclass(frozen=True, slots=True)
class Runner:
    """The process that `job.claimed` names."""

    boot_id: str
    pid: int
    start_time: int

    def lives(self) -> bool:
        return self.boot_id == boot_id() and is_alive(self.pid, self.start_time)


def runner_of(path: Path) -> Runner | None:
    """The runner that claimed the job, or None if the journal has no `job.claimed`."""
    first = Tail(path).read(limit=1)
    if not first or first[0].type != EventType.JOB_CLAIMED:
        return None
    data = first[0].data
    return Runner(str(data["boot_id"]), int(data["pid"]), int(data["start_time"]))


def open_jobs(paths: NodePaths) -> Iterator[str]:
    """Ids of jobs without a final line, oldest folder first."""
    try:
        folders = sorted((entry for entry in os.scandir(paths.jobs) if entry.is_dir(follow_symlinks=False)), key=lambda entry: entry.stat().st_mtime)
    except FileNotFoundError:
        return
    for entry in folders:
        if Path(entry.path, "settled").exists():
            continue
        try:
            check_job_id(entry.name)
        except Refused:
            continue  # not ours
        if final_event(journal_path(paths, entry.name)) is None:
            yield entry.name


def needs_reconciling(paths: NodePaths, job: str) -> bool:
    """Whether the job is open and its runner is gone."""
    path = journal_path(paths, job)
    if final_event(path) is not None:
        return False
    found = runner_of(path)
    if found is not None:
        return not found.lives()
    try:
        return time.time() - (paths.jobs / job).stat().st_mtime > YOUNG_S
    except FileNotFoundError:
        return False


def reconcile(paths: NodePaths) -> list[str]:
    """One pass over all jobs, in this process; gives the ids that it ended. Jobs that cannot be ended now stay open for the next pass."""
    ended = []
    for job in list(open_jobs(paths)):
        if needs_reconciling(paths, job):
            try:
                if one(paths, job):
                    ended.append(job)
            except (Busy, Refused):
                continue  # another process is at it, or still holds its lock
    return ended


def start(paths: NodePaths, job: str) -> subprocess.Popen[bytes]:
    """A process of its own that reconciles this job; the caller collects it, or dies before it without harm."""
    descriptor = os.open(paths.jobs / job / "reconcile.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen([*COMMAND, job], stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, cwd=REPOSITORY,
                                env=runner.environment(paths, job), start_new_session=True)
    finally:
        os.close(descriptor)


def one(paths: NodePaths, job: str) -> bool:
    """Ends one job whose runner is gone. False if there is nothing to do.

    Raises Refused while another process writes its journal, Busy while something still holds its locks (it says what).
    """
    folder, path = paths.jobs / job, journal_path(paths, job)
    if not needs_reconciling(paths, job):
        return False
    envelope = _envelope(folder)
    journal = Journal.open(job, folder, nudge=Nudge(paths.nudge_socket), secrets=_secrets(paths, envelope))
    try:
        if final_event(path) is not None:
            return False
        began = time.monotonic()
        if left := marks.end_marked(job):
            raise Busy(f"Job `{job}` cannot be ended", why=f"These ignore SIGKILL: {marks.tell(left)}", hint="A reboot may be needed")
        locks = envelope.locks if envelope else []
        descriptors = claim.lock_all(paths, locks)  # Busy: a child that hides its mark still has them
        try:
            outcome = _outcome(paths, folder, journal, envelope, descriptors)
        except BaseException:
            claim.release(descriptors)
            raise
        if envelope is None:
            journal.append_final({**asdict(outcome), "duration_s": None, "downtime_s": None})
            journal.tell()
        else:
            runner.finish(claim.Claim(envelope, folder, journal, descriptors), paths, outcome, duration_s=_ran_for(path, began),
                          downtime_s=_downtime(path))
        return True
    finally:
        journal.close()


def _secrets(paths: NodePaths, envelope: Envelope | None) -> list[str]:
    try:
        return runner.secrets_of(paths, envelope, runner.service_of(paths, envelope)) if envelope else []
    except Refused:
        return []  # its secrets are not known any more, so nothing will say them


def _envelope(folder: Path) -> Envelope | None:
    """The job's envelope; None if the claim died before it was written whole."""
    try:
        return Envelope.from_json((folder / "envelope.json").read_bytes())
    except FileNotFoundError:
        return None


def _outcome(paths: NodePaths, folder: Path, journal: Journal, envelope: Envelope | None, descriptors: tuple[int, ...]) -> pipeline.Outcome:
    """Tells where the job stood and undoes what it had begun."""
    events = list(_all(journal_path(paths, folder.name)))
    found = runner_of(journal_path(paths, folder.name))
    if found is None or envelope is None:
        return _interrupted("It stopped while it was being claimed: a crash, or a full disk", "none", envelope)
    cause = f"its runner (pid {found.pid}) was killed" if found.boot_id == boot_id() else "this machine was restarted"
    running = _running_step(events)
    reason = f"Interrupted in step `{running.data['step']}`: {cause}" if running else f"Interrupted between steps: {cause}"
    if running is not None:
        journal(EventType.STEP_FINISHED, {"step": running.data["step"], "outcome": "interrupted", "note": cause,
                                          "duration_s": max(0.0, (events[-1].at if events else running.at) - running.at)})
    facts = runner.read_facts(folder)
    rollback = "none"
    if facts.get("begun"):
        try:
            context = runner.context_for(paths, NodeConfig.load(paths.node_toml), envelope, journal, facts=facts)
            context.lock_fds = descriptors
            steps = {step.name: step for step in runner.steps_of(envelope, context)}
            if not facts.get("failure") and set(steps) <= set(facts.get("finished", [])):
                return pipeline.finished(context)  # only its last word is missing: nothing is undone that was done
            if not envelope.params.get("rollback", True):
                return _interrupted(reason, "none", envelope)
            rollback = pipeline.undo([steps[name] for name in facts["begun"] if name in steps], context)
            if rollback == "none" and any(event.type == EventType.STEP_UNDONE and event.data.get("note") for event in events):
                rollback = "done"  # by an earlier pass that was killed
        except OpsError as error:
            journal(EventType.STEP_LOG, {"step": facts["begun"][-1], "text": f"{error}\n", "dropped_bytes": 0})
            rollback = "failed"
        except Exception:  # noqa: BLE001  (a bug while the steps were made: told, and a person has to look)
            journal(EventType.STEP_LOG, {"step": facts["begun"][-1], "text": traceback.format_exc(), "dropped_bytes": 0})
            rollback = "failed"
    return _interrupted(reason, rollback, envelope)


def _interrupted(reason: str, rollback: str, envelope: Envelope | None) -> pipeline.Outcome:
    look = "See what it had done" if envelope is not None and envelope.service is None else "Look at the service"
    error = OpsError(reason, why="A job that changes things never runs again by itself", hint=f"{look}, then start the job again", kind="interrupted")
    return pipeline.Outcome(state=JobState.INTERRUPTED, reason=reason, reason_kind="expected", rollback=rollback, error=error.as_dict())


def _all(path: Path) -> Iterator[Event]:
    tail = Tail(path)
    while some := tail.read():
        yield from some


def _running_step(events: list[Event]) -> Event | None:
    """`step.started` of the step that has no end."""
    running: Event | None = None
    for event in events:
        if event.type == EventType.STEP_STARTED:
            running = event
        elif event.type == EventType.STEP_FINISHED:
            running = None
    return running


def _ran_for(path: Path, began: float) -> float | None:
    """Seconds from the claim to now. The job's two processes share no monotonic clock, so the wall clock must do; never below 0."""
    first = Tail(path).read(limit=1)
    return max(time.monotonic() - began, time.time() - first[0].at) if first else None


def _downtime(path: Path) -> float | None:
    """Seconds that the service was down in this job, as its processes said; None if it never was."""
    told = [event.data.get("seconds") for event in _all(path) if event.type == EventType.DOWNTIME_ENDED]
    known = [seconds for seconds in told if isinstance(seconds, (int, float))]
    return sum(known) if known else None


def shut_down(paths: NodePaths, job: str, *, grace_s: float = 10) -> None:
    """Ends an open job because everything here ends: its runner is asked (it cancels, and undoes), and killed after `grace_s`.

    What is killed half way, the next agent puts right. Only the runner gets SIGTERM: a step's program that is ended under it would look like a
    failure, and an undo's like a failed rollback.
    """
    found = runner_of(journal_path(paths, job))
    if found is not None and found.lives():
        marks.send(found.pid, signal.SIGTERM, lambda pid: found.lives())
        deadline = time.monotonic() + grace_s
        while found.lives() and time.monotonic() < deadline:
            time.sleep(0.05)
    marks.end_marked(job, grace_s=0)


def main(job: str) -> int:
    """Reconciles one job; 0 if it is ended now, 3 if it has to wait."""
    try:
        one(NodePaths.default(), check_job_id(job))
    except (Busy, Refused) as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ops.jobs.reconcile JOB")
    sys.exit(main(sys.argv[1]))
