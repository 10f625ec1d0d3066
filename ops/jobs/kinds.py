"""Which kinds of job there are: the steps of each, made from the same parts, and the locks that each takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Step

Locks = Callable[[str | None, dict[str, Any]], list[str]]


def _service_lock(service: str | None, params: dict[str, Any]) -> list[str]:
    return [f"service:{service}"]


def _service_and_environment(service: str | None, params: dict[str, Any]) -> list[str]:
    """An environment that is changed where it lies is locked as well: another service may run from it."""
    environment = params.get("environment") if params.get("in_place") else None
    return [f"service:{service}", *([f"env:{environment}"] if environment else [])]


def _shelf_lock(service: str | None, params: dict[str, Any]) -> list[str]:
    return ["node:purge"]


def _purge_locks(service: str | None, params: dict[str, Any]) -> list[str]:
    from ops import cleaning

    return cleaning.locks(params)


def _named_service_lock(service: str | None, params: dict[str, Any]) -> list[str]:
    """Of a service that is not there yet."""
    return [f"service:{params.get('name')}"]


def _both_services(service: str | None, params: dict[str, Any]) -> list[str]:
    """Of a switch: the one that is stopped, and the one that is started. The steps refuse a `to` that is no other service."""
    return sorted({f"service:{service}", f"service:{params.get('to')}"})


def _no_lock(service: str | None, params: dict[str, Any]) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of job. `mutates`: it changes something on the node, so it needs its locks and never reruns by itself."""

    name: str
    title: str  # "Redeploy", before the service's name
    locks: Locks
    steps: Callable[[Context], list[Step]]
    needs_service: bool = True
    mutates: bool = True


def _plan(context: Context) -> list[Step]:
    from ops import redeploy

    return [
        Step(name="plan", title="Plan", do=redeploy.make_plan, deadline_s=600),
        Step(name="preflight", title="Preflight", do=redeploy.check_host, deadline_s=300),
    ]


def _redeploy(context: Context) -> list[Step]:
    from ops import redeploy

    _check_environment(context)
    _check_manager(context)
    return redeploy.steps(context)


def _build(context: Context) -> list[Step]:
    from ops import redeploy

    return redeploy.build_steps(context)


def _rollback(context: Context) -> list[Step]:
    from ops import rollback

    _check_environment(context)
    _check_manager(context)
    return rollback.steps(context)


def _check_environment(context: Context) -> None:
    """The lock that an order took must be on the environment that its job changes. Raises Refused, before anything is claimed."""
    from ops.environments import releases
    from ops.jobs.errors import Refused

    record, params = context.the_service, context.params
    own = str(releases.environment(record)) if record.in_place else None
    told = params.get("environment") if params.get("in_place") else None
    if told != own:
        raise Refused(f"The order is about the environment `{told}`, but service `{record.name}` is changed in `{own}`" if own and told
                      else f"Service `{record.name}` is changed in place, and the order does not lock its environment `{own}`" if own
                      else f"Service `{record.name}` is not changed in place", hint="Make a new plan and confirm it")


def _check_manager(context: Context) -> None:
    """Whoever is to stop and start the service must be able to: told before anything is claimed, not after a build. Raises OpsError."""
    from ops.services.manager import manager_for

    manager_for(context.the_service)


def _restart(context: Context) -> list[Step]:
    from ops import redeploy

    _check_environment(context)
    _check_manager(context)
    chosen = [
        Step(name="preflight", title="Preflight", do=redeploy.look_before_restart, deadline_s=600),
        *redeploy.restart_steps(undo_stop=redeploy.start_again),
    ]
    return chosen + redeploy.smoke_steps(context)


def _warmup(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="warmup", title="Warmup", do=redeploy.watch_warmup, deadline_s=2 * 3600)]


def _sweep(context: Context) -> list[Step]:
    from ops import measuring

    return [Step(name="sweep", title="Sweep", do=measuring.run_sweep, deadline_s=measuring.deadline_s(context))]


def _noise_floor(context: Context) -> list[Step]:
    """Its step is a sweep's, so that pages show it as one."""
    from ops import measuring

    return [Step(name="sweep", title="Noise floor", do=measuring.measure_noise_floor,
                 deadline_s=measuring.deadline_s(context, default_repeats=measuring.NOISE_RUNS))]


def _purge(context: Context) -> list[Step]:
    from ops import cleaning

    return cleaning.purge_steps(context)


def _artifact_scan(context: Context) -> list[Step]:
    from ops import cleaning

    return cleaning.scan_steps(context)


def _smoke(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="smoke", title="Smoke tests", do=redeploy.smoke_tests, deadline_s=900)]


def _integrity(context: Context) -> list[Step]:
    return [Step(name="integrity", title="Integrity", do=_check_integrity, deadline_s=3600)]


def _check_integrity(context: Context) -> str:
    from ops.environments import integrity, patches, releases
    from ops.jobs.errors import OpsError
    from ops.services.manager import manager_for

    current = releases.current(context.the_service)
    if current is None:
        raise OpsError(f"Service `{context.the_service.name}` has no release", hint="Redeploy it first")
    found = integrity.check(current, progress=lambda done, total: context.counted(done, total, "files"))
    status = manager_for(context.the_service).status() if context.the_service.manager == "process" else None
    newer = integrity.newer_than(found, status.started_at) if status is not None and status.started_at is not None else set()
    told = found.as_dict()
    try:
        shown = patches.shown_differences(current, [*found.changed, *found.extra], record=context.the_service)
    except OpsError as error:  # a wheel that cannot be read: the result stands, without lines
        context.log(f"What was edited cannot be shown: {error}")
        shown = {}
    told |= {kind: [{**file, **shown.get(file["path"], {})} for file in told[kind]] for kind in ("changed", "extra")}
    context.emit(EventType.INTEGRITY, told | {
        "release": current.name, "started_at": status.started_at if status else None, "newer": sorted(newer)[:integrity.LISTED]})
    if found.clean:
        return f"{found.checked_files:,} files match RECORD"
    return f"{len(found.changed)} changed, {len(found.missing)} missing, {len(found.extra)} extra of {found.checked_files:,} files"


def _upkeep(name: str, title: str, function: str, *, undo: str = "", deadline_s: float = 900) -> Callable[[Context], list[Step]]:
    """A kind of one step, which is a function of ops/upkeep.py."""

    def steps(context: Context) -> list[Step]:
        from ops import upkeep

        return [Step(name=name, title=title, do=getattr(upkeep, function), undo=getattr(upkeep, undo) if undo else None, deadline_s=deadline_s)]

    return steps


def _control(name: str) -> Callable[[Context], list[Step]]:
    """A kind whose steps are made by a function of ops/control.py."""

    def steps(context: Context) -> list[Step]:
        from ops import control

        return list(getattr(control, name)(context))

    return steps


def _settings_set(context: Context) -> list[Step]:
    from ops import launch_settings

    return [Step(name="settings", title="Launch settings", do=launch_settings.set_settings, deadline_s=300)]


def _smoke_set(context: Context) -> list[Step]:
    from ops import smoke_set

    return [Step(name="suite", title="Smoke suite", do=smoke_set.set_tests, deadline_s=300)]


def _adopt(context: Context) -> list[Step]:
    from ops import adopting

    return [Step(name="read", title="Read the unit", do=adopting.look, deadline_s=300)]


def _adopt_apply(context: Context) -> list[Step]:
    from ops import adopting

    return [Step(name="adopt", title="Adopt", do=adopting.make_service, deadline_s=300)]


def _practice_reset(context: Context) -> list[Step]:
    from ops import redeploy

    return [
        Step(name="stop", title="Stop", do=redeploy.stop, undo=redeploy.start_last_good, downtime=True, deadline_s=300),
        Step(name="gpus-free", title="GPUs free", do=redeploy.gpus_free, downtime=True, deadline_s=300),
        Step(name="reset", title="Reset the practice box", do=_reset_box, downtime=True, deadline_s=600),
        Step(name="start", title="Start", do=redeploy.start, undo=redeploy.stop_failed_start, downtime=True, deadline_s=120),
        Step(name="warmup", title="Warmup", do=redeploy.watch_warmup, downtime=True, deadline_s=1800),
    ]


def _reset_box(context: Context) -> str:
    from pathlib import Path

    from ops.jobs.errors import Refused
    from ops.practice import box, leftovers

    if not context.config.practice or not context.the_service.practice:
        raise Refused(f"Node `{context.config.name}` is no practice node", hint="Only the practice box can be reset")
    box.reset(context.paths, Path(context.config.practice_root))
    leftovers.settle(Path(context.config.practice_root))
    return "as on the first day: dev313, four patched files, 35 debug tensors"


KINDS: dict[str, Kind] = {kind.name: kind for kind in (
    Kind(name="plan", title="Plan", locks=_no_lock, steps=_plan, mutates=False),
    Kind(name="redeploy", title="Redeploy", locks=_service_and_environment, steps=_redeploy),
    Kind(name="build", title="Build a release of", locks=_service_lock, steps=_build),
    Kind(name="rollback", title="Roll back", locks=_service_and_environment, steps=_rollback),
    Kind(name="restart", title="Restart", locks=_service_and_environment, steps=_restart),
    Kind(name="start", title="Start", locks=_service_lock, steps=_control("start_service")),
    Kind(name="stop", title="Stop", locks=_service_lock, steps=_control("stop_service")),
    Kind(name="switch", title="Switch from", locks=_both_services, steps=_control("switch_service")),
    Kind(name="reset-failed", title="Reset the failed state of", locks=_service_lock, steps=_control("reset_failed")),
    Kind(name="leftovers", title="Look for leftovers of", locks=_no_lock, steps=_control("look_for_leftovers"), mutates=False),
    Kind(name="end-leftovers", title="End leftovers of", locks=_service_lock, steps=_control("end_leftovers")),
    Kind(name="diagnose", title="Diagnose", locks=_no_lock, steps=_control("diagnose"), mutates=False),
    Kind(name="settings-set", title="Set launch settings of", locks=_service_lock, steps=_settings_set),
    Kind(name="smoke-set", title="Set the smoke suite of", locks=_service_lock, steps=_smoke_set),
    Kind(name="warmup", title="Watch warmup of", locks=_no_lock, steps=_warmup, mutates=False),
    Kind(name="sweep", title="Sweep", locks=_service_lock, steps=_sweep),
    Kind(name="noise-floor", title="Measure the noise floor of", locks=_service_lock, steps=_noise_floor),
    Kind(name="artifact-scan", title="Scan for leftovers", locks=_no_lock, steps=_artifact_scan, needs_service=False, mutates=False),
    Kind(name="purge", title="Purge leftovers", locks=_purge_locks, steps=_purge, needs_service=False),
    Kind(name="smoke", title="Smoke tests", locks=_service_lock, steps=_smoke),
    Kind(name="integrity", title="Integrity of", locks=_no_lock, steps=_integrity, mutates=False),
    Kind(name="remove-release", title="Remove a release of", locks=_service_lock,
         steps=_upkeep("remove", "Remove the release", "remove_release", undo="finish_removal")),
    Kind(name="guards-apply", title="Apply guards of", locks=_service_lock, steps=_upkeep("guards", "Apply guards", "apply_guards")),
    Kind(name="guards-set", title="Set guards of", locks=_service_lock, steps=_upkeep("guards", "Set guards", "set_guards")),
    # no service lock: what lies on the shelf is done with, and nobody should wait for a sweep to tidy up
    Kind(name="shelf-forget", title="Forget patches of", locks=_shelf_lock, steps=_upkeep("forget", "Forget patches", "forget_patches")),
    Kind(name="recipe", title="Save a recipe of", locks=_no_lock, steps=_upkeep("recipe", "Save the recipe", "save_recipe"), mutates=False),
    Kind(name="adopt", title="Read a unit", locks=_no_lock, steps=_adopt, needs_service=False, mutates=False),
    Kind(name="adopt-apply", title="Adopt", locks=_named_service_lock, steps=_adopt_apply, needs_service=False),
    Kind(name="practice-reset", title="Reset practice box", locks=_service_lock, steps=_practice_reset),
)}
