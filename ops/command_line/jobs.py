"""`plan`, `build`, `redeploy`, `rollback`, `recipe make`, ...: jobs of this node, run in this very process.

They take the same locks as jobs of the console and write the same journal, so a busy service is told with the job that holds it, and the
console shows a job that was run by hand like any other. Ctrl-C cancels: what was begun is undone.
"""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.command_line import targets
from ops.command_line.output import INTERRUPTED, StatusLine, WrongArguments, print_finding, print_json, size, table, tell
from ops.jobs.errors import BadInput, Busy, OpsError, Refused
from ops.jobs.events import EventType, JobState
from ops.records import Channel, ServiceRecord

KEPT = {EventType.PLAN_MADE: "plan", EventType.INTEGRITY: "integrity", EventType.GUARDS: "guards", EventType.FINGERPRINT: "fingerprint",
        EventType.RECIPE: "recipe", EventType.REPORT: "report", EventType.DIAGNOSIS: "diagnosis", EventType.WARMUP_DONE: "warmup",
        EventType.SWEEP_FINISHED: "sweep", EventType.PURGE_RESULT: "purge", EventType.LEFTOVERS: "leftovers", EventType.ARTIFACTS_SCANNED: "scan"}


@dataclass
class Told:
    """What a job said, as far as the command line shows it."""

    line: StatusLine
    quiet: bool
    verbose: bool = False
    steps: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    shelf: list[dict[str, Any]] = field(default_factory=list)
    smoke: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    _title: str = ""

    def __call__(self, type: str, data: dict[str, Any]) -> None:
        if type == EventType.STEP_STARTED:
            self._title = str(data["title"])
            self.line.show(f"{self._title} ...")
        elif type == EventType.STEP_PROGRESS:
            self.line.show(f"{self._title}: {_progress(data)}")
        elif type == EventType.WARMUP_PHASE and data.get("state") == "running":
            self.line.show(f"{self._title}: {data['title']} {data.get('detail') or ''}".rstrip())
        elif type == EventType.STEP_LOG and self.verbose:
            for text in str(data["text"]).splitlines():
                self.line.say(f"    {text}")
        elif type == EventType.STEP_FINISHED:
            self.steps.append({key: data.get(key) for key in ("step", "outcome", "duration_s", "note")})
            self._say(f"{self._title or data['step']}: {data['outcome']}{f', {note}' if (note := data.get('note')) else ''} ({_seconds(data)})")
        elif type == EventType.STEP_UNDOING:
            self._title = str(data.get("title") or data["step"])
            self._say(f"Undoing: {self._title}")
        elif type == EventType.STEP_UNDONE:
            self._say(f"Undone: {self._title}: {data['outcome']}{f', {note}' if (note := data.get('note')) else ''}")
        elif type == EventType.FINDING:
            self.findings.append(data)
            if data["level"] in ("stop", "warning"):
                self._say(f"  {data['level']}: {data['title']}")
        elif type == EventType.WARMUP_TROUBLE:
            self._say(f"  {data['kind']}: {data['text']}")
        elif type == EventType.SMOKE_RESULT:
            self.smoke.append(data)
            self._say(f"  {data['outcome']}: {data['title']}")
        elif type == EventType.SHELF_SAVED:
            self.shelf.append(data)
            self._say(f"  on the shelf: {data['path']}")
        if type in KEPT:
            self.last[KEPT[EventType(type)]] = data

    def _say(self, text: str) -> None:
        if self.quiet:
            self.line.clear()
        else:
            self.line.say(text)


def _progress(data: dict[str, Any]) -> str:
    done, total, unit = data.get("done"), data.get("total"), data.get("unit") or ""
    if done is None:
        return str(data.get("text") or "...")
    counted = f"{size(done)}{f' of {size(total)}' if total else ''}" if unit == "bytes" else f"{done:,}{f' of {total:,}' if total else ''} {unit}"
    return f"{counted}{' (estimate)' if data.get('estimate') else ''} {data.get('text') or ''}".rstrip()


def _seconds(data: dict[str, Any]) -> str:
    seconds = data.get("duration_s")
    return "unknown time" if seconds is None else f"{seconds:.1f} s"


def execute(arguments: argparse.Namespace, type: str, record: ServiceRecord | None, params: dict[str, Any],
            snapshot: dict[str, Any] | None = None) -> tuple[dict[str, Any], OpsError | None]:
    """Runs a job here; gives what it came to ({job, type, service, state, reason, steps, findings, ...}) and its error, if it had one. `record` is
    None for a job of the whole node.

    Raises Busy (naming the job that holds the lock), Refused, BadInput; nothing has been changed then.
    """
    from ops.jobs import claim, kinds, runner
    from ops.jobs.envelope import Envelope

    paths = NodePaths.default()
    config = NodeConfig.load(paths.node_toml)
    targets.own_node(paths)
    paths.make()
    params = {**params, **(_in_place(record) if record else {})}
    name = record.name if record else None
    locks = sorted(kinds.KINDS[type].locks(name, params))
    _put_right(paths, locks)
    envelope = Envelope.make(type=type, node=config.name, service=record.as_dict() if record else None, params=params, locks=locks,
                             fence=claim.next_fences(paths, locks), snapshot=snapshot, by=getpass.getuser(), now=time.time())
    told = Told(StatusLine(), quiet=arguments.json, verbose=getattr(arguments, "verbose", False))
    outcome = runner.run_here(paths, envelope, on_event=told)
    told.line.clear()
    result = {"job": envelope.job, "type": type, "service": name, "state": str(outcome.state), "reason": outcome.reason,
              "rollback": outcome.rollback, "steps": told.steps, "findings": told.findings, **({"shelf": told.shelf} if told.shelf else {}),
              **({"smoke": told.smoke} if told.smoke else {}), **told.last}
    return result, _error(type, name or config.name, outcome)


def _put_right(paths: NodePaths, locks: list[str]) -> None:
    """Ends the job that last had one of these locks and was killed half way. An agent does that by itself; without one nobody else would, and the
    service could not be worked on any more."""
    from ops.jobs import claim, reconcile

    for job in sorted({last for lock in locks if (last := claim.stored_fence(paths, lock)[1]) is not None}):
        if not (paths.jobs / job).exists() or not reconcile.needs_reconciling(paths, job):
            continue
        print(f"Job {job} was killed half way: what it had begun is undone first", file=sys.stderr)
        try:
            reconcile.one(paths, job)
        except (Busy, Refused):  # another process is at it, or still holds its lock: the claim tells
            continue


def _error(type: str, name: str, outcome: Any) -> OpsError | None:
    if outcome.state in (JobState.SUCCEEDED, JobState.CANCELLED):
        return None
    raw = outcome.error or {}
    what = str(raw.get("what") or outcome.reason or f"The {type} job of `{name}` ended as {outcome.state}")
    return OpsError(what, why=str(raw.get("why") or ""), hint=str(raw.get("hint") or ""), kind=str(raw.get("kind") or "failed"))


def _in_place(record: ServiceRecord) -> dict[str, Any]:
    """Params of a job on an environment that is changed where it is: they decide its lock."""
    from ops.environments import releases

    if not record.in_place:
        return {}
    return {"in_place": True, "environment": str(releases.environment(record))}


def run(arguments: argparse.Namespace, type: str, record: ServiceRecord, params: dict[str, Any], snapshot: dict[str, Any] | None = None) -> int:
    """Runs a job and prints what it came to; gives the exit code."""
    return conclude(arguments, *execute(arguments, type, record, params, snapshot))


def conclude(arguments: argparse.Namespace, result: dict[str, Any], error: OpsError | None) -> int:
    """Prints what *execute* gave; gives the exit code."""
    if arguments.json:
        print_json({**result, **({"error": error.as_dict()} if error else {})})
    if error is not None:
        tell(error, json_output=False)
        return 1
    if result["state"] == JobState.CANCELLED:
        print("Cancelled: what was begun is undone", file=sys.stderr)
        return INTERRUPTED
    if not arguments.json:
        _summary(result)
    return 0


def _summary(result: dict[str, Any]) -> None:
    notes = [step["note"] for step in result["steps"] if step["note"] and step["step"] == result["type"]] or [
        step["note"] for step in result["steps"] if step["note"]]
    report = result.get("report")
    if isinstance(report, dict) and report.get("markdown"):
        print(report["markdown"])
    else:
        print(f"{result['type']} of {result['service']}: {result['state']}{f', {notes[-1]}' if notes else ''}")


# ---- commands ----


def plan(arguments: argparse.Namespace) -> int:
    channel = targets.channel(arguments.channel)
    params = _params(arguments, channel)
    error = None
    if arguments.env:
        made = _plan_of_environment(arguments, channel)
    else:
        record = targets.service(arguments.service)
        result, error = execute(arguments, "plan", record, params, {"channel": channel.as_dict()})
        if result["state"] == JobState.CANCELLED:
            return INTERRUPTED
        if "plan" not in result:
            raise error or OpsError("The plan job made no plan", why=str(result["reason"]))
        made = result["plan"]
    if arguments.json:
        print_json({**made, **({"error": error.as_dict()} if error else {})})
    else:
        print_plan(made)
    if error is not None:
        tell(error, json_output=False)
    stops = [finding for finding in made["findings"] if finding["level"] == "stop"]
    return int(bool(stops or error))


def _plan_of_environment(arguments: argparse.Namespace, channel: Channel) -> dict[str, Any]:
    from ops.environments import packages
    from ops.environments import plan as planning

    packages.read(Path(arguments.env))  # what is no environment is told before anything is resolved
    line = StatusLine()
    made = planning.make(targets.by_hand(Path(arguments.env)), channel, version=arguments.version, coupling=not arguments.no_coupling,
                         mode="restore" if arguments.restore else "full", options=_options(arguments), config=targets.config_if_any(),
                         progress=lambda done, total: line.show(f"{done:,} of {total:,} files"))
    line.clear()
    return made.as_dict()


def print_plan(made: dict[str, Any]) -> None:
    """The plan as a table of what changes, then its findings."""
    changed = [package for package in made["packages"] if package["change"] != "same"]
    if changed:
        table(["package", "now", "then", "change", "size"], [
            [package["name"], package["old"] or "-", package["new"] or "-", package["change"], size(package["size_bytes"])] for package in changed],
            left={0, 1, 2, 3})
    print(f"{len(changed)} of {len(made['packages'])} packages change; vllm {made['version']} from {made['channel']}; to be downloaded: "
          f"{size(made.get('download_bytes'))}")
    if made.get("in_place"):
        back = made["rollback"]
        print("In place: the service is down while packages are installed; " + (
            "the folder is copied beforehand" if back["possible"] else f"NO ROLLBACK: {back['why']}"))
    for kind in (made.get("cleanup") or {}).get("kinds", []):
        if kind["with_redeploy"] and kind["offered_by_default"] and (found := kind["offered"])["count"]:
            print(f"Leftovers that go with it: {found['count']:,} of kind {kind['kind']}, {size(found['size_bytes'])}")
    for finding in made["findings"]:
        print_finding(finding)
    print(f"plan {made['hash']}")


def build(arguments: argparse.Namespace) -> int:
    record, channel = targets.service(arguments.service), targets.channel(arguments.channel)
    snapshot = {"channel": channel.as_dict(), **({"plan": targets.json_file(arguments.plan, "plan")} if arguments.plan else {})}
    return run(arguments, "build", record, _params(arguments, channel), snapshot)


def redeploy(arguments: argparse.Namespace) -> int:
    """Plans, asks (a person at a terminal; else --yes says it), then builds and switches to exactly that plan."""
    if not arguments.yes and not sys.stdin.isatty():
        raise WrongArguments("A redeploy takes the service down", hint="Say --yes if nobody is there to ask")
    record, channel = targets.service(arguments.service), targets.channel(arguments.channel)
    params, snapshot = _params(arguments, channel), {"channel": channel.as_dict()}
    if arguments.plan:
        made: dict[str, Any] = dict(targets.json_file(arguments.plan, "plan"))
    else:
        result, error = execute(arguments, "plan", record, params, snapshot)
        if result["state"] == JobState.CANCELLED:
            return INTERRUPTED
        if error is not None:
            raise error
        made = result["plan"]
    if stops := [finding for finding in made.get("findings", []) if finding.get("level") == "stop"]:
        raise OpsError(f"The plan does not allow it: {stops[0]['title']}", why=str(stops[0].get("why", "")), hint=str(stops[0].get("fix", "")),
                       kind="plan_stops", findings=stops)
    if not arguments.yes:
        print_plan(made)
        if input(f"Redeploy {record.name} like this? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing was changed", file=sys.stderr)
            return 1
    options = {name: not getattr(arguments, f"no_{name}") for name in ("smoke", "sweep", "purge", "rollback")}
    return run(arguments, "redeploy", record, {**params, **options, "preset": arguments.preset, "purge_kinds": arguments.purge_kind,
                                              "accept_no_rollback": arguments.accept_no_rollback}, {**snapshot, "plan": made})


def rollback(arguments: argparse.Namespace) -> int:
    from ops.environments import releases
    from ops.services import state

    record = targets.service(arguments.service)
    name = arguments.release
    if not name:
        live = releases.current(record)
        choices = [releases.last_good(record), state.read(record).get("previous")]
        there = {release.name for release in releases.listing(record)}
        name = next((choice for choice in choices if choice and choice in there and (live is None or choice != live.name)), None)
        if name is None:
            raise BadInput(f"Service `{record.name}` has no release to go back to", why="None is kept that was used before the one in use",
                           hint="Choose one with --release; `python -m ops releases --service NAME` lists them")
    return run(arguments, "rollback", record, {"release": name, "smoke": not arguments.no_smoke})


def _params(arguments: argparse.Namespace, channel: Channel) -> dict[str, Any]:
    return {"channel": channel.name, "version": arguments.version, "coupling": not arguments.no_coupling,
            "mode": "restore" if arguments.restore else "full", "options": _options(arguments)}


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"python": arguments.python} if arguments.python else {}
