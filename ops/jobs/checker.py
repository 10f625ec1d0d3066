"""Replays all journals of a node and says where the protocol was broken: `python -m ops.jobs.checker [NODE FOLDER ...]`.

Jobs that hold the same lock may not overlap; a job is claimed once and its steps begin once; numbers have no gap; fences rise in
the order of the claims; every job has a final state. Times are the node's wall clock, so a clock that was set back shows as a
broken rule, too.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ops.agent.config import NodePaths
from ops.jobs.envelope import check_job_id
from ops.jobs.errors import Refused
from ops.jobs.events import FINAL_STATES, Event, EventType
from ops.jobs.journal import Tail, journal_path


@dataclass(frozen=True, slots=True)
class Held:
    """One job's time on one lock, from its claim to its end."""

    job: str
    fence: int
    since: float
    until: float


def check(paths: NodePaths) -> list[str]:
    """What is wrong with the node's journals, one sentence each; [] if all is well."""
    wrong: list[str] = []
    held: dict[str, list[Held]] = defaultdict(list)
    for folder in sorted(paths.jobs.iterdir()) if paths.jobs.exists() else []:
        try:
            job = check_job_id(folder.name)
        except Refused:
            continue
        events, told = _read(journal_path(paths, job))
        wrong += [f"job {job}: {words}" for words in [*told, *_check_job(job, events)]]
        claimed = [event for event in events if event.type == EventType.JOB_CLAIMED]
        if claimed:
            for lock, fence in claimed[0].data["fence"].items():
                held[lock].append(Held(job, fence, claimed[0].at, events[-1].at))
    for lock, holders in held.items():
        wrong += _check_lock(lock, sorted(holders, key=lambda one: one.since))
    return wrong


def _read(path: Path) -> tuple[list[Event], list[str]]:
    tail, events = Tail(path), []
    while some := tail.read():
        events += some
    return events, ["a line of its journal is no event, or has the wrong number"] if tail.damaged else []


def _check_job(job: str, events: list[Event]) -> list[str]:
    wrong = []
    kinds = Counter(event.type for event in events)
    if not events or events[-1].type != EventType.JOB_FINISHED or events[-1].data.get("state") not in FINAL_STATES:
        wrong.append("it has no final state")
    if kinds[EventType.JOB_FINISHED] > 1:
        wrong.append(f"it ended {kinds[EventType.JOB_FINISHED]} times")
    if kinds[EventType.JOB_CLAIMED] > 1:
        wrong.append(f"it was claimed {kinds[EventType.JOB_CLAIMED]} times")
    if [event.job for event in events if event.job != job]:
        wrong.append("its journal has another job's events")
    begun = Counter(event.data["step"] for event in events if event.type == EventType.STEP_STARTED)
    wrong += [f"step `{step}` began {times} times" for step, times in begun.items() if times > 1]
    ended = Counter(event.data["step"] for event in events if event.type == EventType.STEP_FINISHED)
    wrong += [f"step `{step}` ended {times} times" for step, times in ended.items() if times > 1]
    return wrong


def _check_lock(lock: str, holders: list[Held]) -> list[str]:
    wrong = []
    for earlier, later in pairwise(holders):
        if later.since < earlier.until:
            wrong.append(f"lock {lock}: job {later.job} was claimed {earlier.until - later.since:.3f} s before job {earlier.job} ended")
        if later.fence <= earlier.fence:
            wrong.append(f"lock {lock}: the fence went from {earlier.fence} (job {earlier.job}) to {later.fence} (job {later.job})")
    return wrong


def main(arguments: list[str]) -> int:
    """Prints what is wrong; 0 if nothing is."""
    wrong = [words for root in ([Path(name) for name in arguments] or [NodePaths.default().root]) for words in check(NodePaths(root))]
    for words in wrong:
        sys.stdout.write(words + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
