"""A redeploy of an environment that may not move: how the way from *preflight* to *start* differs from the story in redeploy.py.

wheels fetched -> keep patches -> the environment copied -> stop -> GPUs free -> install at the same place -> verify -> links -> start.
The service is down while uv installs and while the result is verified; what can be done before, is. A failure exchanges the folder for
its copy, offline, then starts the old release.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ops import control, redeploy
from ops.environments import in_place, plan
from ops.environments.in_place import Change
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context, Step


def steps(context: Context) -> list[Step]:
    """From *preflight* to the first healthy answer."""
    return [
        Step(name="fetch", title="Fetch wheels", do=fetch, deadline_s=3600),
        Step(name="shelf", title="Keep patches", do=redeploy.keep_patches, deadline_s=600),
        Step(name="backup", title="Copy the environment", do=copy_beforehand, undo=discard, deadline_s=3600),
        Step(name="stop", title="Stop", do=redeploy.stop, undo=start_again, downtime=True, deadline_s=control.STOP_DEADLINE_S),
        Step(name="gpus-free", title="GPUs free", do=redeploy.gpus_free, downtime=True, deadline_s=300),
        Step(name="install", title="Install in place", do=install, undo=put_back, downtime=True, deadline_s=3600),
        Step(name="verify", title="Verify", do=redeploy.verify, downtime=True, deadline_s=1800),
        Step(name="switch", title="Switch", do=take_over, undo=put_back, downtime=True, deadline_s=60),
        *redeploy.start_steps(),
    ]


def change_of(context: Context) -> Change | None:
    """The change that this job is about, as its facts have it; None before there is one."""
    raw = context.facts.get("change")
    return Change.from_dict(raw) if raw else None


def _the_change(context: Context) -> Change:
    return Change.from_dict(context.facts["change"])


def keep(context: Context, change: Change) -> Change:
    """Puts the change into the facts, on disk at once: whoever undoes it may be another process."""
    context.facts["change"] = change.as_dict()
    context.save_facts(context.facts)
    return change


def fetch(context: Context) -> str:
    in_place.check_allowed(context, context.the_service)
    return in_place.fetch(context, context.the_service, redeploy.channel_of(context), plan.from_dict(context.facts["plan"]))


def copy_beforehand(context: Context) -> str:
    change = keep(context, in_place.begin(context.the_service, plan.from_dict(context.facts["plan"])))
    change = keep(context, in_place.copy_beforehand(context, context.the_service, change))
    return f"copied to `{change.backup}`" if change.backup else "no copy: it was accepted that there is no way back"


def discard(context: Context) -> str:
    """Undo of *backup*."""
    change = change_of(context)
    return in_place.discard(context.the_service, change) if change else ""


def start_again(context: Context) -> str:
    """Undo of *stop*. Where the old release does not start, what was half installed goes all the same: no later undo would take it away."""
    try:
        return redeploy.start_last_good(context)
    except (OpsError, OSError):
        with suppress(OpsError, OSError):  # that it does not start is what is told
            discard(context)
        raise


def install(context: Context) -> str:
    in_place.check_allowed(context, context.the_service)  # once more: another service may have been started meanwhile
    change = keep(context, replace(_the_change(context), begun=True))
    release = in_place.install(context, context.the_service, redeploy.channel_of(context), plan.from_dict(context.facts["plan"]), change,
                               context.facts.get("extra", []))
    context.facts["release"] = release.name
    return release.name


def put_back(context: Context) -> str:
    """Undo of *install*, and of *switch*."""
    change = change_of(context)
    return in_place.put_back(context.the_service, change) if change else ""


def take_over(context: Context) -> str:
    change = _the_change(context)
    in_place.take_over(context.the_service, change)
    redeploy.tell_guards(context, must_hold=True)
    return change.release
