"""A plan: what a redeploy would do, looked at and confirmed. Confirming starts a job with this plan's hash."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from dashboard import diffs, dispatch, environment_story, job_story, purge_story
from dashboard.diagnoses import DOWN
from dashboard.forms import MODES, RedeployForm, channels_for, preset_choices
from dashboard.models import Job
from dashboard.views import problems, signed_in
from dashboard.views.fleet import service_card
from dashboard.views.jobs import job_context
from ops.jobs.errors import BadInput
from ops.jobs.events import JobState

SHARES = 12  # columns that stand for the whole: share-1 to share-12 of base.css


def _plan_job(number: int) -> Job:
    found = get_object_or_404(Job.objects.select_related("service", "service__node", "node", "by").prefetch_related("steps"), number=number)
    if found.type != "plan":
        raise Http404(f"Job #{number} is not a plan")
    return found


@require_safe
def plan(request: HttpRequest, number: int) -> HttpResponse:
    return render(request, "plans/plan.html", plan_context(_plan_job(number)))


def plan_context(found: Job) -> dict[str, Any]:
    """What the page and its fragment show: the running plan job, or the finished plan with its confirmation."""
    context = job_context(found)
    made = (found.result or {}).get("plan")
    choices = {"channels": channels_for(found.service) if found.service else [], "coupling_off": found.params.get("coupling") is False,
               "mode": found.params.get("mode") or "full", "modes": MODES}
    if not found.is_final or made is None:
        return context | choices | {"made": None}
    packages = made.get("packages") or []
    changed = [p for p in packages if p.get("change") != "same"]
    about_patches = {f.get("title") for f in made.get("findings") or [] if f.get("about") == "patched_files"}
    in_place = made.get("in_place") is True
    no_way_back = dispatch.why_no_rollback(made)
    findings = [f for f in job_story.findings(found)  # what the page's first card says anyway is left out
                if not (in_place and f.get("about") == "rollback" and f.get("level") == "note")]
    estimate = job_story.downtime_estimate(found)
    started = environment_story.start_estimate(found.service).downtime_s if found.service else None
    used = Job.objects.filter(type__in=environment_story.BUILDS, params__plan_job=str(found.pk)).first()
    return context | choices | {
        "made": made, "changed": sorted(changed, key=job_story.importance), "same": [p for p in packages if p.get("change") == "same"],
        "findings": findings, "parts": job_story.by_part([f for f in findings if f.get("title") not in about_patches]),
        "counted": job_story.counted(findings), "purge": purge_story.planned(made), "estimate": estimate,
        "phases": _phases(estimate, in_place=in_place, way_back=not no_way_back, is_down=found.service is not None and found.service.state in DOWN),
        "used": used,
        "presets": preset_choices(),
        "blocked": any(f.get("level") == "stop" for f in findings) or found.state != JobState.SUCCEEDED, "card": service_card(found.service)
        if found.service else None,
        "in_place": in_place, "start_s": started, "no_way_back": no_way_back,
        "rollback": environment_story.told(made.get("rollback")),
        "ways": _ways(found, made), "restored": [str(name) for name in made.get("restore") or []] if isinstance(made.get("restore"), list) else [],
        "download": _download(made, changed),
        "patched": sorted((_patched(f) for f in made.get("patched_files") or []), key=lambda file: not file["debris"]),
        "guards": made.get("guards") or [],
        "guards_hold": sum(1 for g in made.get("guards") or [] if g.get("holds")),
        "same_versions": not changed, "stale": made_long_ago(found),
        "copy_list": "\n".join(f"{p['name']} {p.get('old') or 'absent'} -> {p.get('new') or 'removed'}" for p in changed),
        "post_to": reverse("plan_redeploy", args=[found.number]),
        "waiting": Job.objects.filter(service=found.service, state__in=job_story.OPEN_STATES).exclude(type__in=("plan", "integrity",
                                                                                                                "warmup")).first(),
    }


def _download(made: dict[str, Any], changed: list[dict[str, Any]]) -> dict[str, Any]:
    """What must be fetched: `{"bytes", "known"}`. Wheels at hand count nothing; an index that does not tell a size makes all of it unknown."""
    if "download_bytes" in made:
        size = environment_story.whole(made["download_bytes"])
        return {"bytes": size, "known": size is not None}
    sizes = [p.get("size_bytes") for p in changed if p.get("size_bytes")]  # a node of an older version: what it told of the wheels
    return {"bytes": sum(sizes) if sizes else None, "known": bool(sizes)}


def _ways(found: Job, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Both ways out of a patched environment, with what this plan knows of their cost, and which of them this plan is."""
    if found.service is None or not (made.get("patched_files") and environment_story.listed(made.get("ways"))):
        return []
    rows = environment_story.ways(found.service, planned=environment_story.listed(made.get("ways")))
    return [{**row, "this": row["mode"] == (found.params.get("mode") or "full"), "channel": found.params.get("channel")} for row in rows]


def _patched(file: dict[str, Any]) -> dict[str, Any]:
    """A patched file with the rows of its difference, what in it is known debug code, and how many lines are not shown."""
    diff = str(file.get("diff") or "")
    debris = file.get("debris") or environment_story.look_for_debris(diff)
    shown = diffs.rows(diff, str(file.get("path") or ""), debris) if diff else None
    cut = max(0, (file.get("diff_lines") or 0) - len(diff.splitlines())) if diff else 0
    return {**file, "shown": shown, "debris": diffs.debris_words(debris), "more": cut + (shown["more"] if shown else 0)}


def made_long_ago(found: Job) -> bool:
    return found.finished_at is not None and (timezone.now() - found.finished_at).total_seconds() > 3600


def _phases(estimate: dict[str, Any] | None, *, in_place: bool = False, way_back: bool = True, is_down: bool = False) -> list[dict[str, Any]]:
    """The three parts of a redeploy: before, while the service is down, after; to scale where earlier jobs give lengths.

    In place the install itself belongs to the downtime. `is_down`: nothing answers before it either.
    """
    known = estimate["usual"] if estimate else None
    steps = known.steps if known else {}

    def took(*names: str) -> float | None:
        values = [steps[n] for n in names if n in steps]
        return sum(values) if values else None

    before, after = took("plan", "preflight", "build", "verify", "shelf"), took("smoke", "sweep", "purge", "report")
    down = estimate["seconds"] if estimate else None
    lengths = [before, down, after]
    if all(v is not None for v in lengths):
        roots = [max(v or 0, 0.1) ** 0.5 for v in lengths]  # square roots: a short part stays readable beside a long one
        shares = [max(2, round(SHARES * root / sum(roots))) for root in roots]
    else:
        shares = [4, 4, 4]
    low, high = (estimate or {}).get("low"), (estimate or {}).get("high")
    return [
        {"share": shares[0], "kind": "b-down" if is_down else "b-done", "seconds": before,
         "title": "Build and verify beside" if not in_place else "Fetch wheels, copy the folder" if way_back else "Fetch wheels",
         "words": "it does not answer as it is" if is_down else "the live release serves on"},
        {"share": shares[1], "kind": "b-down", "title": "Stop, install, verify, start, warm up" if in_place else "Stop, switch, start, warm up",
         "seconds": down, "low": low, "high": high,
         "words": f"requests are refused; {estimate['from']}" if estimate else "requests are refused"},
        {"share": shares[2], "kind": "b-done", "title": "Smoke tests, sweep, purge, report", "seconds": after,
         "words": "serves, but the sweep takes the GPUs"},
    ]


@require_POST
def plan_redeploy(request: HttpRequest, number: int) -> HttpResponse:
    """Confirms: the job builds exactly what was looked at."""
    found = _plan_job(number)
    made = (found.result or {}).get("plan") or {}
    form = RedeployForm(request.POST, plan=made)
    if not form.is_valid():
        raise BadInput("The redeploy cannot be started as asked", why=problems(form), hint="Reload the plan and confirm it again")
    if form.cleaned_data["plan_hash"] != made.get("hash"):
        raise BadInput("This is not the plan that you looked at", why="The plan's hash is another one", hint="Reload the plan and look at it again")
    if form.cleaned_data["only_build"]:
        job = dispatch.start_build(plan_job=found, user=signed_in(request), idempotency_key=form.key())
    else:
        job = dispatch.start_redeploy(plan_job=found, user=signed_in(request), options=form.options(), idempotency_key=form.key())
    return redirect("job", number=job.number)
