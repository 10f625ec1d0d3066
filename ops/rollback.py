"""Back to a kept release: nothing is fetched and nothing is built, so the service is down for one stop and one start.

preflight -> keep patches -> stop -> GPUs free -> switch -> start -> warmup -> smoke tests -> report. A release that lies in a copy of an
environment that may not move comes back by exchanging the two folders (ops/environments/in_place.py). A failure goes back again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ops import control, redeploy, redeploy_in_place, report
from ops.environments import in_place, releases
from ops.jobs.errors import BadInput, OpsError, Timeout
from ops.jobs.pipeline import Context, Step
from ops.services import preflight
from ops.services.manager import manager_for


def steps(context: Context) -> list[Step]:
    """Params: `release` (its name), `smoke` (default true)."""
    return [
        Step(name="preflight", title="Preflight", do=check, deadline_s=600),
        Step(name="shelf", title="Keep patches", do=keep_patches, deadline_s=600),
        Step(name="stop", title="Stop", do=redeploy.stop, undo=redeploy.start_last_good, downtime=True, deadline_s=control.STOP_DEADLINE_S),
        Step(name="gpus-free", title="GPUs free", do=redeploy.gpus_free, downtime=True, deadline_s=300),
        Step(name="switch", title="Switch", do=switch, undo=switch_back, downtime=True, deadline_s=120),
        *redeploy.start_steps(),
        *redeploy.smoke_steps(context),
        Step(name="report", title="Report", do=redeploy.write_report, always=True, deadline_s=60),
    ]


def check(context: Context) -> str:
    """The release can be used, the host is as it must be, and every guard holds: all before the service is touched."""
    report.collect(context)
    record = context.the_service
    live = releases.current(record)
    target = releases.inside(record, str(context.params.get("release") or ""))
    if live is not None and target.name == live.name:
        raise BadInput(f"The release `{target.name}` is in use already", hint="Restart the service if it does not answer")
    release = releases.check_usable(record, target)
    context.facts["previous"], context.facts["release"] = live.name if live else None, release.name
    backup = releases.kind_of(record, release) == "backup"  # its programs name the environment's own place: they cannot be tried where they lie
    # {} and not None: a release in use that is broken is a reason to go, not to stay
    findings = preflight.everything(context, record, None if backup else release, {})
    redeploy.tell_guards(context, must_hold=True)
    if backup:
        in_place.check_allowed(context, record, as_it_is=True)
    findings += _look_at_files(context, release)
    warnings = sum(1 for found in findings if found["level"] == "warning")
    return f"{len(findings)} checked" + (f", {warnings} warnings" if warnings else "")


def _look_at_files(context: Context, release: Path) -> list[dict[str, Any]]:
    """Whether the release is still what was verified. One that has lost files is refused while another one serves: it would take that down, most
    likely for nothing. Where nothing serves it is told, for it may be all that is left. Raises OpsError."""
    record = context.the_service
    report = redeploy.look_at_files(context, release)
    known = releases.manifest(release) or {}
    if report.clean or not known.get("verified"):  # an environment that was here before us is as people left it
        return []
    files = ", ".join(f"`{found.path}`" for found in report.findings[:3]) + (" and more" if len(report.findings) > 3 else "")
    title = f"Not all of `{release.name}` is as it was when it was verified: {_files(len(report.findings))}"
    if report.missing and manager_for(record).status().state == "healthy":
        raise OpsError(f"The release `{release.name}` has lost {_files(len(report.missing))}", why=files, kind="not_whole",
                       hint="Nothing was stopped. Redeploy, or choose another release")
    fix = "They are used as they are; a redeploy builds a clean release"
    context.finding("preflight", "warning", title, why=files, fix=fix, part="release", look="files")
    return [{"subject": "preflight", "level": "warning", "title": title, "why": files, "fix": fix, "part": "release", "look": "files"}]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def keep_patches(context: Context) -> str:
    """Nothing is written over by a roll back, so what cannot be saved is no reason to stay with a release that may not serve."""
    try:
        return redeploy.keep_patches(context)
    except OpsError as error:
        if isinstance(error, Timeout):
            raise
        context.finding("shelf", "warning", f"Edits of the release in use are not on the shelf: {error.what}", why=error.why,
                        fix="They stay in that release for as long as it is kept")
        return "not saved"


def switch(context: Context) -> str:
    record = context.the_service
    release = releases.inside(record, context.facts["release"])
    if releases.kind_of(record, release) == "backup":
        in_place.exchange(record, redeploy_in_place.keep(context, in_place.begin_exchange(record, release)))
    else:
        releases.switch(record, release)
    redeploy.tell_guards(context, must_hold=True)
    return release.name


def switch_back(context: Context) -> str:
    """Undo of *switch*."""
    change = redeploy_in_place.change_of(context)
    if change is None:
        return redeploy.switch_back(context)
    return in_place.put_back(context.the_service, change, keep=True)
