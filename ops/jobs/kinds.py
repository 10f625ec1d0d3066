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


def _purge_lock(service: str | None, params: dict[str, Any]) -> list[str]:
    return ["node:purge"]


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

    return redeploy.steps(context)


def _restart(context: Context) -> list[Step]:
    from ops import redeploy

    chosen = [
        Step(name="preflight", title="Preflight", do=redeploy.check_host, deadline_s=300),
        *redeploy.restart_steps(undo_stop=redeploy.start_last_good),
    ]
    if context.params.get("smoke", True):
        chosen.append(Step(name="smoke", title="Smoke tests", do=redeploy.smoke_tests, deadline_s=900))
    return chosen


def _warmup(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="warmup", title="Warmup", do=redeploy.watch_warmup, deadline_s=2 * 3600)]


def _sweep(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="sweep", title="Sweep", do=redeploy.run_sweep, deadline_s=6 * 3600)]


def _purge(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="purge", title="Purge", do=redeploy.purge_listed, deadline_s=900)]


def _smoke(context: Context) -> list[Step]:
    from ops import redeploy

    return [Step(name="smoke", title="Smoke tests", do=redeploy.smoke_tests, deadline_s=900)]


def _integrity(context: Context) -> list[Step]:
    return [Step(name="integrity", title="Integrity", do=_check_integrity, deadline_s=3600)]


def _check_integrity(context: Context) -> str:
    from ops.environments import integrity, releases
    from ops.jobs.errors import OpsError

    current = releases.current(context.the_service)
    if current is None:
        raise OpsError(f"Service `{context.the_service.name}` has no release", hint="Redeploy it first")
    found = integrity.check(current, progress=lambda done, total: context.progress(done, total, "files"))
    context.emit(EventType.INTEGRITY, found.as_dict())
    if found.clean:
        return f"{found.checked_files:,} files match RECORD"
    return f"{len(found.changed)} changed, {len(found.missing)} missing, {len(found.extra)} extra of {found.checked_files:,} files"


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
    from ops.practice import box

    if not context.config.practice or not context.the_service.practice:
        raise Refused(f"Node `{context.config.name}` is no practice node", hint="Only the practice box can be reset")
    box.reset(context.paths, Path(context.config.practice_root))
    return "as on the first day: dev313, four patched files, 35 debug tensors"


KINDS: dict[str, Kind] = {kind.name: kind for kind in (
    Kind(name="plan", title="Plan", locks=_no_lock, steps=_plan, mutates=False),
    Kind(name="redeploy", title="Redeploy", locks=_service_lock, steps=_redeploy),
    Kind(name="restart", title="Restart", locks=_service_lock, steps=_restart),
    Kind(name="warmup", title="Watch warmup of", locks=_no_lock, steps=_warmup, mutates=False),
    Kind(name="sweep", title="Sweep", locks=_service_lock, steps=_sweep),
    Kind(name="purge", title="Purge", locks=_purge_lock, steps=_purge),
    Kind(name="smoke", title="Smoke tests", locks=_service_lock, steps=_smoke),
    Kind(name="integrity", title="Integrity of", locks=_no_lock, steps=_integrity, mutates=False),
    Kind(name="practice-reset", title="Reset practice box", locks=_service_lock, steps=_practice_reset),
)}
