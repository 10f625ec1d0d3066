"""Jobs: the list, and one job as a page like that of a CI run. Each part is a fragment that the live page fetches again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import Q, Sum
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import (
    adoption_story,
    charts,
    diffs,
    dispatch,
    environment_story,
    job_story,
    permissions,
    purge_story,
    regression_story,
    service_story,
    sweep_forms,
    sweep_words,
)
from dashboard.diagnoses import diagnosis_card
from dashboard.forms import AbandonForm
from dashboard.models import BenchmarkRun, Job, JobEvent, JobLock, JobStep, Service
from dashboard.views import HtmxRequest, list_response, problems, signed_in
from dashboard.views.fleet import job_rows, node_card, service_card
from ops.jobs.errors import BadInput
from ops.jobs.events import EventType, JobState

PAGE = 50
TAIL_LINES = 200  # lines of the log that the page itself carries; the script fetches the rest
TAIL_EVENTS = 400
FILTERS = {
    "open": job_story.OPEN_STATES, "succeeded": (JobState.SUCCEEDED, JobState.PARTIAL), "failed": (JobState.FAILED, JobState.INTERRUPTED),
    "cancelled": (JobState.CANCELLED,),
}
ABOUT = {"stop": ("stop",), "gpus-free": ("gpus", "leftovers"), "leftovers": ("leftovers",), "end": ("gpus", "leftovers"), "report": ("switch",)}
BACK = ("redeploy", "rollback", "restart", "start")  # failed, they may want the last good release
READERS = ("plan", "integrity", "artifact-scan", "purge", "recipe", "shelf-forget", "leftovers", "diagnose", "settings-set",
           "smoke-set")  # they leave the service as it is
SWEEPS = ("sweep", "noise-floor")
FRAGMENTS = ("head", "notice", "facts", "steps", "panels")


@require_safe
def jobs(request: HtmxRequest) -> HttpResponse:
    rows = Job.objects.select_related("service", "node", "by").prefetch_related("steps")
    chosen = {key: request.GET.get(key, "") for key in ("q", "state", "type", "service")}
    if chosen["state"] in FILTERS:
        rows = rows.filter(state__in=FILTERS[chosen["state"]])
    if chosen["type"] in job_story.TYPE_WORDS:
        rows = rows.filter(type=chosen["type"])
    if chosen["service"]:
        node, _, name = chosen["service"].partition("/")
        rows = rows.filter(service__node__name=node, service__name=name)
    if words := chosen["q"].split():
        rows = rows.filter(*(_holds(word) for word in words[:8]))
    page = Paginator(rows, PAGE).get_page(request.GET.get("page"))
    return list_response(request, "jobs/list.html", "jobs/_list.html", {
        "page": page, "rows": job_rows(list(page.object_list)), "chosen": chosen, "types": job_story.TYPE_WORDS, "things": "job,jobs",
        "services": [f"{s.node.name}/{s.name}" for s in Service.objects.select_related("node")], "any": Job.objects.exists()})


def _holds(word: str) -> Q:
    """What a typed word is looked for in: the job's number, kind, service, node, person, reason."""
    found = (Q(type__icontains=word) | Q(service__name__icontains=word) | Q(node__name__icontains=word) | Q(by__username__icontains=word)
             | Q(reason__icontains=word))
    number = word.removeprefix("#")
    return found | Q(number=int(number)) if number.isascii() and number.isdigit() and len(number) < 10 else found


def _job(number: int) -> Job:
    return get_object_or_404(Job.objects.select_related("service", "service__node", "node", "by").prefetch_related("steps"), number=number)


@require_safe
def job(request: HttpRequest, number: int) -> HttpResponse:
    found = _job(number)
    if found.type == "plan" and "step" not in request.GET:
        return redirect("plan", number=number)
    return render(request, "jobs/job.html", job_context(found, request.GET.get("step", "")))


@require_safe
def fragment(request: HttpRequest, number: int, name: str) -> HttpResponse:
    """One part of the job's page. The header X-Job-Seq says up to which event it knows."""
    found = _job(number)
    if name == "plan" and found.type == "plan":
        from dashboard.views.plans import plan_context

        response = render(request, "plans/_plan.html", plan_context(found))
    elif name in FRAGMENTS:
        response = render(request, f"jobs/_{name}.html", job_context(found, request.GET.get("step", "")))
    else:
        raise Http404("A job has no such part")
    response.headers["X-Job-Seq"] = str(found.last_seq)
    return response


def job_context(found: Job, wanted: str = "") -> dict[str, Any]:
    """Everything that the page and its fragments show of a job."""
    known = job_story.earlier(found)
    if found.type == "switch" and (other := Service.objects.filter(node=found.node, name=str(found.params.get("to"))[:63]).first()):
        usual = environment_story.start_estimate(other)  # it is the other one that warms up
        known = replace(known, phases=usual.phases, warmup_s=usual.warmup_s, warmups=usual.warmups)
    step = job_story.chosen_step(found, wanted)
    run = found.runs.select_related("service").prefetch_related("levels").order_by("-started_at").first()
    begun = running_level(found, run) if run is not None else None
    live = live_second(found, begun.seq) if begun else None
    before, after = job_story.release_words(found)
    link = reverse("job", args=[found.number])
    return {
        "job": found, "title": job_story.title(found), "known": known, "step": step, "explicit": bool(wanted), "run": run,
        "release_before": before, "release_after": after, "facts": job_story.facts(found, known, run, live),
        "groups": job_story.step_groups(found, known, selected=step.name if step else "", link=link),
        "down": _down(found), "service_card": service_card(found.service) if found.service else None, "link": link,
        "panels": panels(found, step, known, run), "started": found.claimed_at or found.created_at, "seq": found.last_seq,
        "report": (found.result or {}).get("report"), "keeps_lock": keeps_lock(found),
        "holds_locks": JobLock.objects.filter(job=found).exists(), "way_back": way_back(found), "fingerprint": fingerprint_card(found),
        "conflict": conflict_lines(found.error), "touches": found.type not in READERS and not (found.type == "stop" and _is_down(found)),
        "again": f"?{urlencode(sweep_forms.again(found.service, found.params))}" if found.service and found.type in SWEEPS else "",
        "unit_asked": adoption_story.asked(found) if found.type in ("adopt", "adopt-apply") and not found.node.practice else [],
    }


def way_back(found: Job) -> dict[str, Any] | None:
    """The release that a failed job's service could go back to with one click: the last good one, where another one is live."""
    if found.service is None or found.state not in (JobState.FAILED, JobState.INTERRUPTED) or found.type not in BACK:
        return None
    return next((row for row in environment_story.releases(found.service) if row["last_good"] and row["can_switch"]), None)


def fingerprint_card(found: Job) -> dict[str, Any] | None:
    """The job's fingerprint in a few lines, with the words of what changed since the last good start; None where it said none."""
    told = environment_story.told(found.fingerprint) if found.is_final else {}
    if not told.get("hash"):
        return None
    changed = environment_story.told((found.result or {}).get("changed"))
    words = [str(word) for word in changed.get("words") or []] if isinstance(changed.get("words"), list) else None
    packages = told.get("packages")
    gpus = told.get("gpus")
    rows = [("Release", told.get("release")), ("Python", told.get("python")), ("Packages", len(packages) if isinstance(packages, dict) else None),
            ("Driver", environment_story.told(gpus).get("driver") if isinstance(gpus, dict) else None),
            ("Flags", " ".join(map(str, told["flags"])) if isinstance(told.get("flags"), list) else None)]
    return {"hash": str(told["hash"]), "words": words, "since": changed.get("since"), "rows": [(term, value) for term, value in rows if value]}


def conflict_lines(error: Any) -> list[dict[str, Any]]:
    """What conflicts with what, of a resolver that found no solution: a sentence each, conclusions marked `so`."""
    told = environment_story.told(error)
    if told.get("kind") != "no_solution":
        return []
    listed = environment_story.told(told.get("facts")).get("conflicts")
    if isinstance(listed, list) and listed:
        return [{"text": str(line), "so": False} for line in listed[:40]]
    lines = []
    for sentence in re.split(r"\.\s+", " ".join(str(told.get("why") or "").split())):
        reasons, _, conclusion = sentence.partition(", we can conclude that ")
        for reason in re.split(r",? and (?:because )?|^(?:And )?[Bb]ecause ", reasons):
            if reason.strip():
                lines.append({"text": reason.strip(" .,"), "so": False})
        if conclusion:
            lines.append({"text": conclusion.strip(" ."), "so": True})
    return lines[:40]


def keeps_lock(found: Job) -> bool:
    """Whether its failed rollback keeps the service from everybody until a person has started it again."""
    return found.is_final and found.rollback == "failed" and JobLock.objects.filter(job=found, held=True).exists()


def _is_down(found: Job) -> bool:
    return found.service is not None and found.service.state in ("stopped", "failed")


def _down(found: Job) -> dict[str, Any]:
    return {"since": found.downtime_since, "seconds": found.downtime_s}


def panels(found: Job, step: JobStep | None, known: Any, run: BenchmarkRun | None) -> dict[str, Any]:
    """The content of the chosen step, by what the step is. A failed job shows its diagnosis with the step that failed."""
    if step is None:
        return {}
    shown: dict[str, Any] = {"name": step.name, "progress": _progress(step), "findings": []}
    result = found.result or {}
    failed_here = step.state in ("failed", "interrupted", "cancelled")
    if step.name.startswith("preflight") or step.name in ("plan", "verify", "build"):
        subjects = {"plan": ("plan",), "verify": ("verify", "release"), "build": ("build",)}.get(step.name, ("preflight", "host", "guards"))
        every = job_story.findings(found)
        if step.name == "verify" and any(f.get("subject") == "preflight" and f.get("part") == "release" for f in every):
            subjects = (*subjects, "preflight")  # the built release was looked at here: one list with what was seen on the host before
        shown["findings"] = [f for f in every if f.get("subject") in subjects]
        shown["counted"] = job_story.counted(shown["findings"])
        shown["parts"] = job_story.by_part(shown["findings"])
    if step.name == "plan":
        shown["plan"] = result.get("plan")
    if step.name == "warmup" or (step.name == "stop" and (step.state in ("undoing", "undone") or step.undo_s is not None)):
        shown["warmup"] = warmup_panel(found, known, step)
        if not found.is_final and found.service is not None:
            shown["gpus"] = node_card(found.node, history=False)
    if step.name == "smoke" or (found.type == "smoke" and result.get("smoke")):
        shown["smoke"] = result.get("smoke") or [e.data for e in job_story.events(found, EventType.SMOKE_RESULT)]
    if step.name == "sweep" and run is not None:
        shown["sweep"] = sweep_panel(found, run)
    if step.name in ("sweep", "report"):
        shown["regression"] = regression_story.panel(found, run)
    if found.type == "noise-floor":
        shown["noise_floor"] = regression_story.noise_panel(found)
    if step.name == "purge":
        shown["purge"] = purge_story.purge_panel(found)
    if found.type == "artifact-scan":
        shown["scan"] = purge_story.scan_panel(found)
    if step.name == "integrity":
        shown["integrity"] = environment_story.integrity_report(found)
    if step.name == "shelf" or found.type == "shelf-forget":
        shown["shelved"] = environment_story.saved_by(found)
    about_guards = found.type in ("guards-apply", "guards-set") or step.name in ("guards", "preflight")
    if about_guards and (told := environment_story.told(result.get("guards"))):
        shown["guards"] = guards_panel(told)
    if (told := environment_story.told(result.get("recipe"))) and told.get("recipe"):
        shown["recipe"] = recipe_panel(told)
    if told := environment_story.told(result.get("adoption")):
        shown["adoption"] = adoption_story.panel(found, told)
    if step.name == "report" and result.get("report"):
        shown["report"] = report_panel(found, run)
    about_leftovers = found.type in ("leftovers", "end-leftovers", "stop") or step.name in ("gpus-free", "leftovers")
    if about_leftovers and (left := service_story.leftovers(found))["told"]:
        shown["leftovers"] = left
    if step.name in ABOUT:
        told_of_left = "leftovers" in shown  # its problems are told with it
        shown["findings"] = [f for f in job_story.findings(found) if f.get("subject") in ABOUT[step.name]
                             and not (told_of_left and f.get("subject") == "leftovers")]
        shown["counted"], shown["parts"] = job_story.counted(shown["findings"]), job_story.by_part(shown["findings"])
    if found.type == "settings-set":
        shown["settings"] = service_story.settings_changed(found)
    if found.type == "diagnose" and not failed_here and (read := environment_story.told(result.get("diagnosis"))):
        shown["read"] = diagnosis_card(read, found)
    if failed_here:
        shown["diagnosis"] = diagnosis_card(result["diagnosis"], found) if result.get("diagnosis") else None
        shown["error"] = found.error
        timeline = job_story.timeline(found)
        shown["timeline"] = timeline if found.rollback != "none" or len(timeline) > 2 else []
    shown["dedicated"] = any(shown.get(key) for key in ("warmup", "smoke", "sweep", "purge", "integrity", "findings", "diagnosis", "error",
                                                        "timeline", "shelved", "scan", "guards", "recipe", "adoption", "leftovers", "settings",
                                                        "read", "regression", "noise_floor"))
    shown["shows_progress"] = step.name not in ("warmup", "sweep")  # those have bars of their own
    shown["log"] = log_tail(found, step)
    shown["shows_log"] = not shown["dedicated"] or not found.is_final or shown["log"]["any"]
    return shown


def warmup_panel(found: Job, known: Any, step: JobStep) -> dict[str, Any] | None:
    """The phases of a warmup, its troubles each with its diagnosis, and what its node says of the time that is left."""
    shown = job_story.warmup_phases(found, known, of=step.name)
    if shown is None:
        return None
    for trouble in shown["troubles"]:
        told = environment_story.told(trouble.get("diagnosis"))
        trouble["card"] = diagnosis_card(told, found) if told.get("fault") is True else None
    progress = environment_story.told(step.progress) if step.state in ("running", "undoing") else {}
    shown["text"] = environment_story.text(progress.get("text"))
    if progress.get("unit") == "s" and progress.get("estimate") is True and service_story.number(progress.get("total")) is not None:
        shown["estimate_s"] = progress["total"]
    return shown


def guards_panel(told: dict[str, Any]) -> dict[str, Any]:
    """Guards as they were checked, and the files that were edited so that they hold, each with its difference."""
    results = environment_story.listed(told.get("results"))
    applied = []
    for one in environment_story.listed(told.get("applied")):
        file = str(one.get("file") or "")
        applied.append({"file": file, "backup": str(one.get("backup") or ""), "shown": diffs.rows(one.get("diff"), file)})
    return {"results": results, "holding": sum(1 for result in results if result.get("holds")), "applied": applied}


def recipe_panel(told: dict[str, Any]) -> dict[str, Any]:
    """A saved recipe in a few lines. What it has in which form is ops/environments/recipe.py's; a part that is not there is left out."""
    made = environment_story.told(told.get("recipe"))
    versions = {str(p.get("name")): str(p.get("version") or "") for p in environment_story.listed(made.get("packages"))}
    guards, flags = made.get("guards"), made.get("flags")
    return {"name": str(told.get("name") or "recipe.json"), "label": str(made.get("label") or ""), "hash": str(made.get("hash") or ""),
            "count": len(versions) or None, "stack": [(name, versions[name]) for name in job_story.SERVING_STACK if versions.get(name)],
            "to_set": [str(name) for key in ("flags_to_set", "env_to_set") for name in made.get(key) or [] if isinstance(made.get(key), list)],
            "flags": len(flags) if isinstance(flags, list) else None, "guards": len(guards) if isinstance(guards, list) else None,
            "release": str(environment_story.told(made.get("from")).get("release") or "")}


def _progress(step: JobStep) -> dict[str, Any] | None:
    told = step.progress
    if not told or step.state not in ("running", "undoing", "failed"):
        return None
    done, total = told.get("done"), told.get("total")
    share = min(1.0, done / total) if total and done is not None else None
    return {**told, "share": share, "percent": round(share * 100) if share is not None else None,
            "parts": [{"kind": "b-now" if step.state != "failed" else "b-fail", "share": share or 0}]}


def sweep_panel(found: Job | None, run: BenchmarkRun) -> dict[str, Any]:
    """Charts' data and the levels table of a run; with the seconds of the level that runs now."""
    levels = list(run.levels.all())
    before = job_story.newest_run_before(run)
    rows = job_story.level_rows(run)
    data = charts.curves(run, levels, before=before, before_levels=list(before.levels.all()) if before else [])
    seconds, running = charts.level_seconds([]), None
    if found is not None:
        begun = running_level(found, run)
        level = charts.told_level(begun.data) if begun is not None else None
        if begun is not None and level is not None:
            told = JobEvent.objects.filter(job=found, type=EventType.LEVEL_SECOND, seq__gt=begun.seq).order_by("seq")
            seconds = charts.level_seconds(event.data for event in told)
            seconds |= {"key": charts.level_key(*level), "name": charts.level_name(*level), "c": int(level[1]) if level[0] == "closed" else None}
            running = next((row for row in rows if row["key"] == seconds["key"]), None)
            if running is not None and seconds["latest"]:
                running.update(job_story.live_level(running, seconds["latest"]))
    data["seconds"] = seconds
    data["seq"] = found.last_seq if found is not None else 0
    measured = [row for row in rows if row["tput"] is not None and row["state"] == "done"]
    asked = run.settings or {}
    return {"run": run, "rows": rows, "data": data, "bar": job_story.sweep_bar(rows), "before": before if data["before"] else None,
            "few": any(row["few"] for row in rows),
            "running": run.state == "running", "highlights": _highlights(measured), "errors": run.levels.aggregate(n=Sum("errors"))["n"] or 0,
            "done_percent": round(100 * sum(1 for r in rows if r["state"] == "done") / len(rows)) if rows else 0,
            "max_tokens": asked.get("max_tokens"), "open": data["load"] == "open", "repeats": charts.number(asked.get("repeats")) or 1,
            "kind": "completions" if asked.get("endpoint_kind") == "completions" else "chat completions",
            "live": sweep_words.live_words(seconds["latest"] or {}, running["requests"] if running else None),
            "gpus": sweep_words.gpu_rows(seconds["latest"] or {}),
            "beside": sweep_words.beside_table(rows)}


def running_level(found: Job, run: BenchmarkRun) -> JobEvent | None:
    """The beginning of the level that a run is in, or was in last; None before its first and after its end. A job may have several runs."""
    if run.state != "running":
        return None
    begun = JobEvent.objects.filter(job=found, type=EventType.LEVEL_STARTED).order_by("-seq").first()
    return begun if begun is not None and begun.data.get("run_id") in (str(run.pk), None) else None


def live_second(found: Job, after: int) -> dict[str, Any] | None:
    """The newest `sweep.level_second` above an event."""
    event = JobEvent.objects.filter(job=found, type=EventType.LEVEL_SECOND, seq__gt=after).order_by("-seq").first()
    return event.data if event else None


def _highlights(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The story's three numbers: the lowest level, 8 or the middle, the highest."""
    if len(rows) <= 3:
        return rows
    middle = next((row for row in rows[1:-1] if row["c"] == 8), rows[len(rows) // 2])
    return [rows[0], middle, rows[-1]]


def report_panel(found: Job, run: BenchmarkRun | None) -> dict[str, Any]:
    """The four parts, as `ops/report.py` wrote them, with the run's charts beside."""
    report = (found.result or {})["report"]
    verified = report.get("service_verified") or {}
    warmup = verified.get("warmup") or {}
    reinstall = report.get("reinstall") or {}
    return {**report, "parts": job_story.warmup_parts(warmup) if warmup else [], "sweep": sweep_panel(found, run) if run is not None else None,
            "purged": purge_story.report_part(found),
            "guards_hold": sum(1 for g in verified.get("guards") or [] if g.get("holds")), "shown_packages": sorted(reinstall.get("changed") or [],
                                                                                                                    key=job_story.importance)[:12]}


# ---- log ----


def log_tail(found: Job, step: JobStep) -> dict[str, Any]:
    """The last lines of a step's log, for the page before its script runs, and where the script gets all of it."""
    events = list(JobEvent.objects.filter(job=found, type=EventType.STEP_LOG, data__step=step.name).order_by("-seq")[:TAIL_EVENTS])[::-1]
    total = JobEvent.objects.filter(job=found, type=EventType.STEP_LOG, data__step=step.name).count()
    lines = [line for text in _texts(events) for line in text.split("\n")[:-1] or [text]]
    whole = total <= TAIL_EVENTS and len(lines) <= TAIL_LINES
    first = 1 if whole else None
    tail = lines[-TAIL_LINES:]
    return {"lines": [{"number": first + n if first else None, "text": line} for n, line in enumerate(tail)], "whole": whole, "any": bool(lines),
            "count": len(lines) if total <= TAIL_EVENTS else None, "url": f"{reverse('job_log', args=[found.number])}?step={step.name}",
            "step": step.name}


def _texts(events: Any) -> Iterator[str]:
    """Log text of events, with a line where the node had to leave something out."""
    for event in events:
        text = str(event.data.get("text") or "")
        yield text if text.endswith("\n") or not text else f"{text}\n"
        if event.data.get("dropped_bytes"):
            yield f"Roundhouse: {event.data['dropped_bytes']:,} bytes were left out here; the node keeps the whole log\n"


@require_safe
def job_log(request: HttpRequest, number: int) -> HttpResponse | StreamingHttpResponse:
    """A step's log (or, without `step`, the job's) as text to download; `?format=json` for the page: {"step", "seq", "text"}.

    `seq` is the job's last event when the text was read: the live page goes on from there.
    """
    found = _job(number)
    step = request.GET.get("step", "")
    rows = JobEvent.objects.filter(job=found, type=EventType.STEP_LOG).order_by("seq")
    if step:
        rows = rows.filter(data__step=step)
    if request.GET.get("format") == "json":
        return JsonResponse({"step": step, "seq": found.last_seq, "text": "".join(_texts(rows.filter(seq__lte=found.last_seq).iterator(500)))})
    name = f"job-{found.number}{f'-{step}' if step.isidentifier() or step.replace('-', '').isalnum() else ''}.log"
    response = HttpResponse("".join(_texts(rows.iterator(500))), content_type="text/plain; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_safe
def job_report(request: HttpRequest, number: int) -> HttpResponse:
    """The report as Markdown, to download or to copy."""
    found = _job(number)
    text = ((found.result or {}).get("report") or {}).get("markdown")
    if not text:
        raise Http404("This job has written no report")
    return HttpResponse(text, content_type="text/markdown; charset=utf-8", headers={"Content-Disposition": f'inline; filename="job-{number}.md"'})


@require_http_methods(["GET", "HEAD", "POST"])
def job_cancel(request: HttpRequest, number: int) -> HttpResponse:
    """GET says what cancelling will do and asks; POST does it."""
    found = _job(number)
    if request.method == "POST":
        dispatch.cancel(found, signed_in(request))
        return redirect("plan" if found.type == "plan" else "job", number=number)
    context = {"job": found, "title": job_story.title(found), "will": cancel_words(found), "back": reverse("job", args=[number])}
    return render(request, "jobs/_cancel.html" if request.headers.get("X-Roundhouse-Fragment") == "dialog" else "jobs/cancel.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def job_abandon(request: HttpRequest, number: int) -> HttpResponse:
    """GET says what giving up a lost job does and asks for its service's name; POST does it. For admins."""
    found = _job(number)
    permissions.require(request.user, "job.abandon")
    name = found.service.name if found.service else found.node.name
    if request.method == "POST":
        form = AbandonForm(request.POST)
        if not form.is_valid():
            raise BadInput(f"Job #{number} was not abandoned", why=problems(form), hint=f"Type `{name}` and press the button again")
        dispatch.abandon(found, signed_in(request), typed=form.cleaned_data["name"])
        return redirect("job", number=number)
    context = {"job": found, "title": job_story.title(found), "name": name, "will": abandon_words(found), "back": reverse("job", args=[number])}
    return render(request, "jobs/_abandon.html" if request.headers.get("X-Roundhouse-Fragment") == "dialog" else "jobs/abandon.html", context)


def abandon_words(found: Job) -> list[str]:
    """What abandoning this lost job does, and what it cannot do, in plain sentences."""
    what = found.service.name if found.service else found.node.name
    locked = JobLock.objects.filter(job=found).exists()
    return [
        "This console calls the job interrupted" + (f" and lets other jobs change {what} again." if locked else "; it holds no lock."),
        f"Nothing is sent to {found.node.name}: what the job started there may still run."
        + (f" While it does, the node itself refuses any other job that changes {what}." if locked else ""),
        f"Once {found.node.name} answers again it says how the job really ended, and this page then tells it.",
        "It is written to the audit log, with your name.",
    ]


def cancel_words(found: Job) -> list[str]:
    """What cancelling this job now will do, in plain sentences."""
    if found.state == JobState.QUEUED:
        return ["The node has not taken it yet, so nothing has been changed. It ends at once."]
    down = found.downtime_since is not None
    begun = [s.name for s in found.steps.all() if s.state not in ("todo",)]
    changed = any(name in begun for name in ("stop", "switch", "start"))
    words = ["Programs that this job started are ended, politely first; that takes up to 15 s."]
    name = found.service.name if found.service else "the service"
    if found.type == "rollback" and changed:
        words.append(f"{name} " + ("does not answer now. It is started again on the release that it came from" if down
                                   else "goes back to the release that it came from") + ", which takes one more warmup.")
    elif found.type in ("redeploy", "restart") and changed and found.params.get("rollback", True):
        back = "does not answer now. It is started again on the last good release" if down else "goes back to the last good release"
        words.append(f"{name} {back}, which takes one more warmup.")
    elif found.type in ("redeploy", "restart") and changed:
        words.append(f"Rollback was turned off for this job: {name} stays as it is now" + (", not answering." if down else "."))
    elif found.type in ("redeploy", "build"):
        words.append(f"{name} has not been touched and goes on serving. The unfinished release is removed.")
    elif found.type == "rollback":
        words.append(f"{name} has not been touched and goes on serving.")
    elif found.type == "switch" and changed:
        other = str(found.params.get("to") or "The other service")[:63]
        words.append(f"{other} is ended if it was started, and {name} is started again, which takes one more warmup.")
    elif found.type == "switch":
        words.append("Neither service has been touched.")
    elif found.type == "start" and "start" in begun:
        words.append(f"What was started of {name} is ended, by force if it does not end soon: vLLM does not listen to being asked while it starts.")
    elif found.type == "start":
        words.append(f"Nothing of {name} has been started.")
    elif found.type == "stop" and changed:
        words.append(f"{name} was asked to end already, and that cannot be taken back: it may end at any moment.")
    elif found.type == "stop":
        words.append(f"{name} has not been asked to end, and goes on serving.")
    elif found.type == "end-leftovers":
        words.append("What was ended stays ended; the rest is left alone.")
    elif found.type == "reset-failed":
        words.append("systemd forgets the failed state in one step: it is done, or it is not. Nothing is started or stopped.")
    elif found.type in ("settings-set", "smoke-set"):
        words.append("It is stored in one step: it is as it was, or as it was asked for. What runs goes on as it is.")
    elif found.type == "remove-release":
        words.append("What is deleted already stays deleted, and what is left of the release goes with the next one. The live release stays.")
    elif found.type == "guards-apply":
        words.append("Files that were edited already stay so, each with its backup beside; the others are left alone.")
    elif found.type == "guards-set":
        words.append("The list of guards is stored in one step: it is as it was, or as it was asked for. No file of the model folder is changed.")
    elif found.type == "adopt-apply":
        words.append("The service's record is stored last: if it is not there yet, there is none. The unit and its environment are not touched.")
    elif found.type == "shelf-forget":
        words.append("What is forgotten already stays so; the rest stays on the shelf.")
    elif found.type == "sweep":
        words.append(f"Finished levels are kept and marked as a cancelled run. {name} goes on serving.")
    elif found.type == "purge":
        words.append("What is deleted already stays deleted; the rest is left alone. Its manifest says which is which.")
    elif found.type in ("plan", "integrity", "smoke", "warmup", "recipe", "adopt", "leftovers", "diagnose", "artifact-scan"):
        words.append("It only reads, so there is nothing to put back.")
    return words

