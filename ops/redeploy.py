"""The story: what a redeploy does, step by step, in reading order.

plan -> preflight -> build beside the live release -> verify -> keep patches -> stop -> GPUs free -> switch -> start -> warmup
-> smoke tests -> sweep -> purge -> old releases -> report. Nothing before *stop* touches the service. A failure from *stop* on is undone
in reverse order: the new process stopped, `current` put back, the old release started and watched until it answers.

An environment that may not move goes another way between *preflight* and *start*: ops/redeploy_in_place.py. The way back to a kept
release is ops/rollback.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops import cleaning, control, launch_settings, measuring, report
from ops.environments import building, fingerprint, guards, in_place, integrity, patches, plan, pruning, releases
from ops.environments.integrity import IntegrityReport
from ops.environments.pristine import Fetch
from ops.environments.uv import Uv
from ops.gpus import processes
from ops.gpus.open_source import open_source
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Step
from ops.records import Channel, ServiceRecord
from ops.services import preflight, smoke, starting, state, stopping, warmup
from ops.services.manager import manager_for
from ops.services.status import ServiceState

GPUS_FREE_S = 60.0
ROOM_BYTES = 64 * 1024 * 1024  # a start needs some small files and a log
UNDO_GPUS_S = 20.0  # a driver needs seconds to free memory; more would only lengthen the downtime


def steps(context: Context) -> list[Step]:
    """All steps of a redeploy. Options in params: `smoke`, `sweep`, `purge` (default true), `purge_kinds` (names; null: what the plan offers),
    `preset`, `rollback`, `mode`, `options`, `accept_no_rollback`; for an environment that is changed in place also `in_place` (true) and
    `environment` (its real path)."""
    from ops import redeploy_in_place

    wanted = context.params
    before = [
        Step(name="plan", title="Plan", do=plan_again, deadline_s=600),
        Step(name="preflight", title="Preflight", do=check_host, deadline_s=300),
    ]
    if context.the_service.in_place:
        chosen = [*before, *redeploy_in_place.steps(context)]
    else:
        chosen = [
            *before,
            Step(name="build", title="Build", do=build, undo=remove_unused_release, deadline_s=3600),
            Step(name="verify", title="Verify", do=verify, deadline_s=1800),
            Step(name="shelf", title="Keep patches", do=keep_patches, deadline_s=600),
            *restart_steps(undo_stop=start_last_good, switch=True),
        ]
    chosen += smoke_steps(context)
    if wanted.get("sweep", True):
        chosen.append(Step(name="sweep", title="Sweep", do=measuring.run_sweep, deadline_s=measuring.deadline_s(context)))
    if wanted.get("purge", True):
        cleaning.wanted_with_redeploy(wanted)
        chosen.append(Step(name="purge", title="Purge", do=cleaning.purge_planned, undo=cleaning.tell_what_went, deadline_s=3600))
    chosen.append(Step(name="prune", title="Old releases", do=prune, deadline_s=900))
    chosen.append(Step(name="report", title="Report", do=write_report, always=True, deadline_s=60))
    return chosen


def build_steps(context: Context) -> list[Step]:
    """Of a build job: a release is built and verified, and nothing is stopped. It can be rolled to like any other."""
    if context.the_service.in_place:
        raise Refused(f"The environment of service `{context.the_service.name}` is changed in place", why="Nothing can be built beside it",
                      hint="Redeploy it, or take `in_place` out of its record")
    return [
        Step(name="plan", title="Plan", do=plan_build_again, deadline_s=600),
        Step(name="preflight", title="Preflight", do=check_host, deadline_s=300),
        Step(name="build", title="Build", do=build, undo=remove_unused_release, deadline_s=3600),
        Step(name="verify", title="Verify", do=verify, deadline_s=1800),
        Step(name="prune", title="Old releases", do=prune_built, deadline_s=900),
    ]


def smoke_steps(context: Context) -> list[Step]:
    """Smoke tests, unless the job's params leave them out."""
    return [Step(name="smoke", title="Smoke tests", do=smoke_tests, deadline_s=900)] if context.params.get("smoke", True) else []


def restart_steps(*, undo_stop: Any, switch: bool = False) -> list[Step]:
    """From *stop* to the first healthy answer: what redeploy, restart and reset share."""
    return [
        Step(name="stop", title="Stop", do=stop, undo=undo_stop, downtime=True, deadline_s=control.STOP_DEADLINE_S),
        Step(name="gpus-free", title="GPUs free", do=gpus_free, downtime=True, deadline_s=300),
        *([Step(name="switch", title="Switch", do=switch_release, undo=switch_back, downtime=True, deadline_s=60)] if switch else []),
        *start_steps(),
    ]


def start_steps() -> list[Step]:
    """Start, and the watch until the first healthy answer."""
    return [
        Step(name="start", title="Start", do=start, undo=stop_failed_start, downtime=True, deadline_s=120),
        Step(name="warmup", title="Warmup", do=watch_warmup, downtime=True, deadline_s=2 * 3600),
    ]


# ---- before the service is touched ----


def make_plan(context: Context) -> str:
    """The step of a plan job: what would happen, and whether it may."""
    made = _plan(context, leftovers=lambda: cleaning.for_plan(context))
    told = context.facts["plan"] = made.as_dict() | {"estimate": _estimate(context)}
    return _tell(context, told)


def plan_again(context: Context) -> str:
    """Plans once more and holds it against the plan that was confirmed: the job builds that plan or fails. The same for what it purges."""
    return _plan_again(context, purges=bool(context.params.get("purge", True)))


def plan_build_again(context: Context) -> str:
    """As *plan_again*, for a job that purges nothing."""
    return _plan_again(context, purges=False)


def _plan_again(context: Context, *, purges: bool) -> str:
    report.collect(context)
    confirmed = context.snapshot.get("plan") or {}
    made = _plan(context, leftovers=(lambda: cleaning.for_plan(context)) if purges and not confirmed else None)
    if confirmed and not plan.same_build(wanted := plan.from_dict(confirmed), made):
        raise OpsError("The plan is not what was confirmed any more", why="; ".join(plan.differences(wanted, made)),
                       hint="Nothing was changed. Make a new plan and confirm it")
    context.facts["previous"] = _name(releases.current(context.the_service))
    told = made.as_dict() | {"estimate": confirmed.get("estimate") or _estimate(context)}
    if confirmed:
        told["cleanup"] = wanted.cleanup  # what was looked at and confirmed, not what lies there now
    context.facts["plan"] = told
    if purges:
        cleaning.choice_of_plan(context)  # a kind that the plan does not know is refused now, not when the service has been down
    note = _tell(context, told)
    if blocking := [finding for finding in told["findings"] if finding["level"] == "stop"]:
        raise OpsError(blocking[0]["title"], why=blocking[0].get("why", ""), hint=blocking[0].get("fix", ""))
    way_back = told.get("rollback") or {}
    if way_back.get("possible") is False and not context.params.get("accept_no_rollback"):
        raise Refused("There would be no way back", why=str(way_back.get("why") or "The environment cannot be copied beforehand"),
                      hint="Nothing was changed. Confirm a second time that this is accepted, or make room for the copy", kind="no_rollback")
    return note


def check_host(context: Context) -> str:
    findings = preflight.host(context, context.the_service, context.facts.get("plan"))
    tell_guards(context)
    return _counted(findings)


def tell_guards(context: Context, *, must_hold: bool = False) -> None:
    """Says which guards hold. `must_hold`: raises OpsError for one that does not."""
    results = guards.check(context.the_service)
    context.facts["guards"] = [result.as_dict() for result in results]
    if results:
        context.emit(EventType.GUARDS, {"results": context.facts["guards"], "applied": []})
    if must_hold and (failing := [result for result in results if not result.holds]):
        raise OpsError(f"A guard does not hold: {failing[0].explains}", why="The service would start with another model configuration",
                       hint=failing[0].fix, kind="guard")


def build(context: Context) -> str:
    release = releases.build(context, context.the_service, channel_of(context), plan.from_dict(context.facts["plan"]))
    context.facts["release"] = release.name
    return release.name


def remove_unused_release(context: Context) -> str:
    """Undo of *build*: a release that never passed its verification goes; one that did is kept for a look, within the limits."""
    record, name = context.the_service, context.facts.get("release")
    kept = name if context.facts.get("verified") else None
    removed = releases.remove_unfinished(record, keep=kept)
    if kept is not None:
        removed += pruning.prune(context, record, keep=(kept,))
    return f"removed {', '.join(removed)}" if removed else ""


def verify(context: Context) -> str:
    record, confirmed = context.the_service, plan.from_dict(context.facts["plan"])
    release = record.releases / context.facts["release"]
    result = releases.verify(context, record, release, confirmed)
    context.facts["files_checked"], context.facts["cache_leaks"] = result.checked_files, result.leaks
    preflight.release(context, record, release, context.facts["plan"])
    context.facts["verified"] = True
    return f"{result.checked_files:,} files match RECORD" + ("; an edit had come back through uv's cache" if result.leaks else "")


def keep_patches(context: Context) -> str:
    """What somebody typed into the old release is saved before the new one takes its place."""
    record = context.the_service
    current = releases.current(record)
    if record.in_place and (name := releases.in_environment(record)) is not None:
        current = releases.inside(record, name)  # what is about to be changed, whatever is in use
    if current is None:
        return "there is no release yet"
    try:
        found = look_at_files(context, current)
    except BadInput as error:  # it is no environment any more: nothing will be written there, and it is no reason to stay with it
        if record.in_place and "plan" in context.facts:
            raise
        context.finding("shelf", "warning", f"Edits of the release in use cannot be kept: {error.what}", why=error.why)
        return "the old release cannot be read"
    tell_fingerprint(context, "before", current, found)
    context.facts["extra"] = [finding.path for finding in found.extra]
    if not found.findings:
        return "the old release has no patches" if found.clean else "what could be checked has no patches"
    saved = patches.save_to_shelf(record, current, found, job=context.job, emit=context.emit, fetch=_fetcher(context))
    shelf = record.folder / "shelf"
    context.facts["shelf"] = str(shelf / saved[0].relative_to(shelf).parts[0]) if saved else None
    return f"{len(saved)} file{'' if len(saved) == 1 else 's'} saved"


def _fetcher(context: Context) -> Fetch | None:
    """Brings wheels of the old release into uv's cache, so that the shelf can say what was edited; None where the job has no channel."""
    if "plan" not in context.facts:
        return None
    confirmed, channel = plan.from_dict(context.facts["plan"]), channel_of(context)

    def fetch(wanted: list[tuple[str, str, str | None]]) -> None:
        uv, python = building.uv_for(context, context.the_service), confirmed.python["path"]
        same = {(package["name"], package["new"]): package.get("sha256") for package in confirmed.locked}
        lines = []
        for name, version, known in wanted:
            if sha256 := known or same.get((name, version)):
                lines.append(releases.lock_line({"name": name, "new": version, "sha256": sha256}))
            else:  # of an environment that was here before us nobody wrote the hashes down; RECORD tells whether a file is the one of old
                lines += _offered(context, uv, channel, python, name, version)
        if lines:
            lock = context.folder / "pristine-lock.txt"
            state.write_file(lock, "".join(lines))
            uv.fetch(lock, channel, python)

    return fetch


def _offered(context: Context, uv: Uv, channel: Channel, python: str, name: str, version: str) -> list[str]:
    """The lock line of a package as the channel has it, with the hashes of all its wheels; empty where it has none of that version."""
    try:
        found = uv.lock([f"{name}=={version}"], channel, python=python, no_deps=True)
    except BadInput as error:
        context.log(f"No lines of what was edited in `{name}` {version}: {error.what}")
        return []
    hashes = sorted({wheel.sha256 for package in found for wheel in package.wheels if wheel.sha256})
    return [f"{name}=={version}{''.join(f' --hash=sha256:{sha256}' for sha256 in hashes)}\n"] if hashes else []


def look_at_files(context: Context, release: Path) -> IntegrityReport:
    """The release's files against RECORD; looked at once in a job, unless something has changed it since."""
    reports: dict[str, IntegrityReport] = context.kept.setdefault("integrity", {})
    if release.name not in reports:
        reports[release.name] = integrity.check(release, progress=lambda done, total: context.counted(done, total, "files"))
    return reports[release.name]


def tell_fingerprint(context: Context, moment: str, release: Path | None, found: IntegrityReport | None = None) -> dict[str, Any] | None:
    """Says all that could explain a number or a crash, and what of it changed since the last good start. It explains and decides nothing: what
    cannot be read is a note, and the job goes on."""
    record = context.the_service
    try:
        if release is not None and found is None:
            found = look_at_files(context, release)
        told = fingerprint.fingerprint(record, release=release, gpus=open_source(context.config).read(), report=found)
        changed = fingerprint.changed_since_good(record, told)
    except OpsError as error:
        context.finding("fingerprint", "note", f"The fingerprint cannot be taken: {error.what}", why=error.why)
        return None
    context.facts["changed"] = changed["words"] if changed else []
    context.emit(EventType.FINGERPRINT, {"moment": moment, "fingerprint": told, "changed": context.facts["changed"],
                                         "since": changed["since"] if changed else None})
    return told


def look_before_restart(context: Context) -> str:
    """Preflight of a start and a restart: the host and the release in use, and the fingerprint of what is about to be started again."""
    live = releases.current(context.the_service)
    findings = preflight.everything(context, context.the_service, live, context.facts.get("plan"))
    tell_guards(context)
    tell_fingerprint(context, "before", live)
    return _counted(findings)


# ---- while the service is down ----


def stop(context: Context) -> str:
    record = context.the_service
    in_place.nobody_changes(context, record)
    before = context.facts["state_before"] = str(manager_for(record).status().state)
    if before == "healthy" and (free := shutil.disk_usage(record.folder).free) < ROOM_BYTES:
        del context.facts["state_before"]  # it is not touched
        raise OpsError(f"The disk below `{record.folder}` is full: {free / 1e6:,.0f} MB free", why="Once stopped, nothing could be started there",
                       kind="disk_full", hint="Make room; the service was not stopped")
    down(context)  # saves the facts: whoever has to undo this step knows how the service was
    return stopping.stop(context, record)


def gpus_free(context: Context) -> str:
    """Waits for it, and says what the stop left behind; all of that too where the GPUs do not come free."""
    record, source = context.the_service, open_source(context.config)
    try:
        note = stopping.wait_gpus_free(context, record, source, limit_s=stopping.time_to_free_s(context, record, GPUS_FREE_S))
    except OpsError as error:
        if error.kind == "gpus_not_free":
            control.tell_leftovers(context, record)
        raise
    stopping.record_baseline(record, source.read())
    left = control.tell_leftovers(context, record, only_what_matters=True)
    return f"{note}; left: {left.words()}" if left is not None and left.matters else note


def switch_release(context: Context) -> str:
    record = context.the_service
    releases.switch(record, record.releases / context.facts["release"])
    tell_guards(context, must_hold=True)
    return context.facts["release"]


def switch_back(context: Context) -> str:
    record, previous = context.the_service, context.facts.get("previous")
    if previous is None or _name(releases.current(record)) == previous:
        return ""
    releases.switch(record, record.releases / previous)
    return f"current is {previous} again"


def start(context: Context) -> str:
    return starting.start(context, context.the_service)


def stop_failed_start(context: Context) -> str:
    """Undo of *start*: whatever still runs of the new release is ended, so that its memory is free."""
    record, manager = context.the_service, manager_for(context.the_service)
    if not manager.pids():
        status = manager.status()
        if not status.restarting and not status.ending:  # between two tries of a restart loop there is no process, and yet something to stop
            return ""
    down(context)
    return stopping.stop(context, record)


def watch_warmup(context: Context) -> str:
    record = context.the_service
    try:
        result = warmup.watch(context, record)
    except warmup.ServiceCrashed as error:
        if error.facts.get("loop"):
            context.facts["crash_loop"] = {"what": _what_starts(record), "tries": error.facts["tries"]}
        raise
    answers(context)
    remember_good_start(context)
    return f"healthy after {report.duration(result.total_s)}"


def remember_good_start(context: Context) -> None:
    """What it was that started well: later differences are told against it."""
    record, release = context.the_service, releases.current(context.the_service)
    told = tell_fingerprint(context, "good-start", release)
    if told is not None and release is not None:
        fingerprint.remember_good_start(record, told, release=release.name, job=context.job)


def start_last_good(context: Context) -> str:
    """Undo of *stop*: the release that `current` points at is started and watched until it answers.

    A service that somebody had stopped before the job stays stopped. One that had ended by itself is tried, and no more than that.
    """
    record, manager, before = context.the_service, manager_for(context.the_service), context.facts.get("state_before")
    if before is None:
        return ""  # nobody asked it to stop yet
    if manager.status().state == "healthy":
        if context.facts.get("down_since") is None:
            return ""
        answers(context)  # an undo that was killed itself had started it
        return f"{record.name} answers on {_name(releases.current(record))}"
    if manager.pids():  # a stop that was cut off: who was asked to end may do so at any later moment, so it is ended now
        stopping.stop(context, record)
    if before == "stopped":
        return ""
    _free_or_told(context)
    _make_room(context)
    try:
        starting.start(context, record)
        warmup.watch(context, record)
    except OpsError as error:
        if before != "failed":
            _end_loop(context, record)
            raise
        stopping.stop(context, record)
        return f"{record.name} did not run before, and does not start: {error.what}"
    answers(context)
    return f"{record.name} answers again on {_name(releases.current(record))}"


def start_again(context: Context) -> str:
    """Undo of *stop* in a restart: as *start_last_good*, but what has just crashed in a loop is not started once more where it would be the very
    same again. A service that ran before is then down, and the undo has failed: raises OpsError."""
    record, loop, before = context.the_service, context.facts.get("crash_loop"), context.facts.get("state_before")
    if loop is None or before in (None, "stopped") or loop["what"] != _what_starts(record) or manager_for(record).status().runs:
        return start_last_good(context)
    stop_failed_start(context)
    told = f"{record.name} is not started again: it would be the same release with the same settings, and would crash again"
    if before == "failed":
        return f"{told}. It did not run before either"
    raise OpsError(told, why=f"{loop['tries']} starts of it were watched, and the last two crashed for the same reason", kind="crash_loop",
                   hint="Put right what its log names, or roll back; then start it")


def _what_starts(record: ServiceRecord) -> list[str | None]:
    """What a start would start, as far as it can be told at once: its release, and its launch settings."""
    return [_name(releases.current(record)), launch_settings.mark(record)]


def _end_loop(context: Context, record: ServiceRecord) -> None:
    """A service that crashes at each start, and that its manager starts again and again, stays down: nobody watches it from here on."""
    status = manager_for(record).status()
    if not status.restarting and not (status.restarts and status.state in (ServiceState.FAILED, ServiceState.STARTING)):
        return
    try:
        context.log(f"It is not started again any more: {stopping.stop(context, record)}")
    except OpsError as error:  # what kept it from starting is what the job tells first
        context.log(f"It could not be stopped: {error.what}")


def _make_room(context: Context) -> None:
    """On a full disk nothing can be started. What filled it may be the release that was just built, or the copy of an environment that is in its
    place again: it goes, so that the old one can serve."""
    from ops import redeploy_in_place

    record, name = context.the_service, context.facts.get("release")
    if "build" not in context.facts.get("begun", []) and (change := redeploy_in_place.change_of(context)) is not None and change.begun:
        if "install" in context.facts.get("begun", []) and shutil.disk_usage(Path(change.environment).parent).free < ROOM_BYTES:
            context.log(f"The disk is full: {in_place.discard(record, change) or 'nothing could be removed'}")
        return
    if name is None or shutil.disk_usage(record.folder).free >= ROOM_BYTES:
        return
    built = record.releases / name
    if built.is_dir() and not built.is_symlink() and name not in (_name(releases.current(record)), releases.last_good(record)):
        releases.remove(record, built)
        context.log(f"The disk is full: removed release {name} to make room")


def _free_or_told(context: Context) -> None:
    """Waits for the GPUs on the way back. What still holds memory then is not the service's own, and no reason to leave the service down:
    it is told, and the start shows whether there is room beside it."""
    try:
        stopping.wait_gpus_free(context, context.the_service, open_source(context.config), limit_s=UNDO_GPUS_S)
    except OpsError as error:
        if error.kind != "gpus_not_free":
            raise
        context.finding("gpus", "warning", error.what, why=error.why, fix=error.hint)


# ---- the service answers ----


def smoke_tests(context: Context) -> str:
    return smoke.run(context, context.the_service, context.snapshot.get("suite"))


def prune(context: Context) -> str:
    """The release that passed everything is the last good one from now on; of the older ones those go that are over the limits."""
    mark_good(context)
    return _prune(context, context.facts.get("previous"))


def prune_built(context: Context) -> str:
    return _prune(context, context.facts.get("release"))


def _prune(context: Context, keep: str | None) -> str:
    try:
        removed = pruning.prune(context, context.the_service, keep=(keep, context.facts.get("release")))
    except (OpsError, OSError) as error:  # what serves is not put at risk for disk space
        what = error.what if isinstance(error, OpsError) else f"An old release cannot be removed: {error.strerror or error}"
        context.finding("releases", "warning", what, why=error.why if isinstance(error, OpsError) else str(error.filename or ""),
                        fix="Remove it by hand")
        context.facts["partial"] = what
        return "an old release could not be removed"
    context.facts["pruned"] = removed
    return f"removed {', '.join(removed)}" if removed else "nothing is over the limits"


def mark_good(context: Context) -> None:
    """Remembers the job's release as the last good one, if nothing has failed."""
    if not context.facts.get("failure") and context.facts.get("release"):
        releases.mark_good(context.the_service, context.facts["release"])


def write_report(context: Context) -> str:
    mark_good(context)
    context.facts["guards"] = [g.as_dict() for g in guards.check(context.the_service)]
    context.emit(EventType.REPORT, report.make(context))
    return ""


# ---- what several steps need ----


def _plan(context: Context, *, leftovers: Callable[[], dict[str, Any]] | None) -> plan.Plan:
    params = context.params
    return plan.make(context.the_service, channel_of(context), version=params.get("version"), coupling=params.get("coupling", True),
                     mode=params.get("mode") or "full", options=params.get("options"), uv=building.uv_for(context, context.the_service),
                     log=context.log, config=context.config, progress=lambda done, total: context.counted(done, total, "files"),
                     leftovers=leftovers)


def _tell(context: Context, told: dict[str, Any]) -> str:
    """Says the plan and each of its findings; gives the step's note."""
    context.emit(EventType.PLAN_MADE, told)
    for finding in told["findings"]:
        context.finding("plan", finding["level"], finding["title"], why=finding.get("why", ""), fix=finding.get("fix", ""))
    changed = sum(1 for package in told["packages"] if package["change"] != "same")
    return f"{changed} of {len(told['packages'])} packages change"


def channel_of(context: Context) -> Channel:
    return Channel.from_dict(context.snapshot.get("channel"))


def _estimate(context: Context) -> dict[str, Any]:
    """Expected downtime from this service's own warmups; None before there is one."""
    known = [w["total_s"] for w in state.read(context.the_service).get("warmups", []) if w.get("total_s")]
    return {"warmup_s": sorted(known)[len(known) // 2] if known else None, "warmups": len(known)}


def down(context: Context) -> None:
    """Starts the downtime clock, once, and saves it: CLOCK_MONOTONIC is the same in all processes until a reboot, so an undo can go on with it."""
    if context.facts.get("down_since") is None:
        context.facts["down_since"] = {"monotonic": time.monotonic(), "wall": time.time(), "boot_id": processes.boot_id()}
        context.emit(EventType.DOWNTIME_STARTED, {"service": context.the_service.name})
    context.save_facts(context.facts)


def answers(context: Context, *, by: ServiceRecord | None = None) -> None:
    """Stops the downtime clock, if it runs: the service answers, or `by` does in its place."""
    since = context.facts.get("down_since")
    if since is None:
        return
    context.facts["down_since"] = None
    same_boot = since["boot_id"] == processes.boot_id()
    took = time.monotonic() - since["monotonic"] if same_boot else max(0.0, time.time() - since["wall"])
    context.facts["downtime_s"] = context.facts.get("downtime_s", 0.0) + took
    record = by or context.the_service
    context.emit(EventType.DOWNTIME_ENDED, {"service": record.name, "seconds": took, "release": _name(releases.current(record))})
    context.save_facts(context.facts)  # told once, also if this process dies now


def _name(release: Any) -> str | None:
    return None if release is None else release.name


def _counted(findings: list[dict[str, Any]]) -> str:
    warnings = sum(1 for f in findings if f["level"] == "warning")
    return f"{len(findings)} checked" + (f", {warnings} warnings" if warnings else "")
