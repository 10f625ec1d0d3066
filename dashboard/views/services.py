"""Services: the list, one service, and the questions before something is done to it."""

from __future__ import annotations

import json
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import adoption_forms, charts, dispatch, environment_story, guard_forms, permissions, run_edits, service_story
from dashboard.estimates import usual
from dashboard.forms import ACTIONS, FORGET_AT_ONCE, ActionForm, PlanForm, channels_for, others, preset_choices
from dashboard.guard_forms import GuardsForm
from dashboard.job_story import OPEN_STATES
from dashboard.models import BenchmarkRun, Job, Node, Service, ShelvedPatch
from dashboard.views import problems, signed_in
from dashboard.views.environments import tab_counts
from dashboard.views.fleet import STARTING_JOBS, job_rows, service_card
from dashboard.views.jobs import READERS
from ops.jobs.errors import BadInput
from ops.jobs.events import JobState

RUNS, WARMUPS, JOBS = 40, 20, 10
CONTROLS = (*dispatch.CONTROL_KINDS, "switch", "end-leftovers")


def _service(node: str, name: str) -> Service:
    return get_object_or_404(Service.objects.select_related("node"), node__name=node, name=name)


@require_safe
def services(request: HttpRequest) -> HttpResponse:
    listed = list(Service.objects.select_related("node"))
    order = {"failed": 0, "stopped": 1, "unknown": 2, "starting": 3, "healthy": 4}
    cards = [service_card(s) for s in sorted(listed, key=lambda s: (order.get(s.state, 2), s.node.name, s.name))]
    for card in cards:
        card["failure"], card["now"] = service_story.newest_failure(card["service"]), service_story.now(card["service"])
        run = BenchmarkRun.objects.filter(service=card["service"], state="done").prefetch_related("levels").first()
        levels = [lv for lv in run.levels.all() if lv.output_tok_s is not None] if run else []
        card["single"] = next((lv.output_tok_s for lv in levels if lv.concurrency == 1), None)
        card["peak"] = max((lv.output_tok_s for lv in levels if lv.output_tok_s is not None), default=None)
    return render(request, "services/list.html", {"cards": cards, "adopt": adoption_forms.empty(),
                                                  "real_nodes": [] if cards else list(Node.objects.filter(practice=False)[:8])})


@require_safe
def service(request: HttpRequest, node: str, name: str) -> HttpResponse:
    found = _service(node, name)
    card = service_card(found)
    runs = list(BenchmarkRun.objects.filter(service=found, state="done").select_related("job").prefetch_related("levels")[:RUNS])
    jobs = list(Job.objects.filter(service=found).select_related("service", "node", "by").prefetch_related("steps")[:JOBS])
    history = charts.throughput_history([(run, list(run.levels.all())) for run in runs], target=run_edits.target(found))
    failures = service_story.failures(found)
    running = next((row for row in job_rows(jobs) if row["job"].state in OPEN_STATES and row["job"].type not in READERS), None)
    seen_to = running is not None and running["job"].type in STARTING_JOBS  # whoever is starting it is told on that job's page what goes wrong
    return render(request, "services/service.html", {
        "service": found, "card": card, "rows": job_rows(jobs), "channels": channels_for(found), "known": environment_story.start_estimate(found),
        "runs": runs, "now": service_story.now(found), "failures": failures, "running": running,
        "trouble": None if seen_to else service_story.trouble(found, failures),
        "unit": service_story.unit(found), "launch": service_story.launch(found), "others": others(found), "usual": service_story.usual_warmup(found),
        "history": history, "warmups": _warmups(found),
        "last_good": _last_good(found), "changed": _changed(found, card), "words": environment_story.changed_words(found),
        "releases": environment_story.releases(found), "integrity": _integrity(found), "reading": tab_counts(found), "tab": "service",
        "shelf": environment_story.saves(found)[:1], "model": environment_story.model_findings(found),
        "guards": _guards(found, card),
        "can_apply": [g for g in card["guards"] if not g.get("holds") and can_apply(g)],
    })


def _warmups(found: Service) -> dict[str, Any]:
    """The last warmups as a chart: those that the node remembers; of an older node, those of this console's jobs."""
    known = service_story.warmups(found)[-WARMUPS:]
    if known:
        return charts.warmup_history([{**one, "at": one["at"].isoformat() if one["at"] else None, "job": None} for one in known],
                                     practice=found.practice)
    jobs = [job for job in Job.objects.filter(service=found, type__in=(*environment_story.STARTS, "warmup"))[:WARMUPS * 3]
            if (job.result or {}).get("warmup", {}).get("total_s") is not None][:WARMUPS][::-1]
    return charts.warmup_history([charts.job_warmup(job, job.result["warmup"]) for job in jobs], practice=found.practice)


def _last_good(found: Service) -> Job | None:
    started = Job.objects.filter(service=found, type__in=environment_story.STARTS)
    return started.filter(state__in=(JobState.SUCCEEDED, JobState.PARTIAL)).first()


def _changed(found: Service, card: dict[str, Any]) -> list[dict[str, Any]]:
    """What the service's release holds now that its last good redeploy did not put there."""
    # The newest of both: after a reset nobody has told what the release should hold
    good = Job.objects.filter(service=found, type__in=("redeploy", "practice-reset"), state__in=(JobState.SUCCEEDED, JobState.PARTIAL)).first()
    planned = {p["name"]: p.get("new") for p in ((good.result or {}).get("plan") or {}).get("packages", [])} if good else {}
    coupled = {name for pair in card["pairs"] for name, _ in pair["packages"]}
    rows: list[dict[str, Any]] = []
    for name, version in ((found.packages or {}).get("versions") or {}).items():
        then = planned.get(name)
        if (planned and then != version) or name in coupled:
            rows.append({"kind": "package", "name": name, "then": then, "now": version, "warn": name in coupled})
    rows += [{"kind": "file", "name": f.get("path", ""), "then": "as shipped", "now": f.get("change", "changed")} for f in card["patched_files"]]
    return rows


def _integrity(found: Service) -> dict[str, Any] | None:
    job = Job.objects.filter(service=found, type="integrity", state=JobState.SUCCEEDED).first()
    if job is None:
        return None
    report = environment_story.integrity_report(job)
    if report is None or environment_story.of_another_release(found, report):
        return None  # it says nothing of the release in use
    return {"job": job, "report": report}


def can_apply(guard: dict[str, Any]) -> bool:
    """Whether an edit can make the guard hold: a key can be set or taken out, a file or a shard cannot be made up."""
    said = guard.get("can_apply")
    return said if isinstance(said, bool) else (guard.get("guard") or {}).get("kind") in ("key_absent", "key_equals")


@require_POST
def plan_start(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """Redeploy…: makes the plan, which changes nothing, and goes to it."""
    found = _service(node, name)
    form = PlanForm(request.POST, service=found)
    if not form.is_valid():
        raise BadInput("This plan cannot be made as asked", why=problems(form), hint="Go back and correct it" if form.channels else
                       "An admin says in Settings where wheels come from. Restart, sweep, roll back and the integrity check need no channel")
    job = dispatch.start_plan(service=found, channel=form.chosen_channel(), user=signed_in(request), version=form.cleaned_data.get("version") or None,
                              coupling=form.coupled(), mode=form.chosen_mode(), options=form.options(), idempotency_key=form.key())
    return redirect("plan", number=job.number)


@require_http_methods(["GET", "HEAD", "POST"])
def service_run(request: HttpRequest, node: str, name: str, action: str) -> HttpResponse:
    """GET says what the job would do and asks; POST starts it."""
    found = _service(node, name)
    if action not in ACTIONS or (action == "practice-reset" and not found.practice):
        raise Http404("There is no such action for this service")
    if request.method == "POST":
        form = ActionForm(request.POST, action=action, service=found)
        if not form.is_valid():
            raise BadInput(f"{ACTIONS[action]} cannot be started as asked", why=problems(form), hint="Go back and correct it")
        return redirect("job", number=form.start(found, signed_in(request)).number)
    permissions.require(request.user, f"job.{action}")
    earlier = Job.objects.filter(service=found, state__in=(JobState.SUCCEEDED, JobState.PARTIAL), type__in=(action, "redeploy", "restart", "start"))
    known = usual(earlier.prefetch_related("steps")[:16],
                  downtime_of=(action,) if action == "practice-reset" else ("redeploy", "restart", "rollback"))
    card = service_card(found)
    context = {"service": found, "card": card, "action": action, "title": ACTIONS[action], "known": known,
               "presets": preset_choices() if action == "sweep" else [], "post_to": reverse("service_run", args=[node, name, action]),
               "back": reverse("service", args=[node, name]), **_asked(request, found, card, action)}
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "services/_confirm.html" if fragment else "services/confirm.html", context)


def _asked(request: HttpRequest, found: Service, card: dict[str, Any], action: str) -> dict[str, Any]:
    """What the question of one action names: the release, the guards, the patches, the processes. Raises Http404 for what is not there."""
    if action in CONTROLS:
        return _control(request, found, card, action)
    if action in ("rollback", "remove-release"):
        release = environment_story.find_release(found, request.GET.get("release", ""))
        if release is None:
            raise Http404("The service keeps no such release")
        return {"release": release, "in_place": card["record"].get("in_place") is True,
                "differs": environment_story.what_differs(found, release["name"]) if action == "rollback" else None,
                "edited": environment_story.edited_in(found, release["name"]) if action == "rollback" else []}
    if action == "guards-apply":
        failing = [{**guard, "number": n, "can": can_apply(guard)} for n, guard in enumerate(_guards_in_order(card)) if not guard.get("holds")]
        return {"failing": failing, "applicable": [guard for guard in failing if guard["can"]], "back": reverse("service", args=[
            found.node.name, found.name])}
    if action == "shelf-forget":
        numbers = [int(value) for value in request.GET.getlist("patch") if value.isascii() and value.isdigit() and len(value) < 16]
        patches = list(ShelvedPatch.objects.filter(service=found, forgotten_at=None, pk__in=numbers[:FORGET_AT_ONCE]))
        if folder := request.GET.get("folder", "")[:200]:
            patches = list(ShelvedPatch.objects.filter(service=found, forgotten_at=None, folder=folder)[:FORGET_AT_ONCE])
        if not patches:
            raise Http404("This is not on the shelf of the service any more")
        return {"patches": patches, "back": reverse("shelf", args=[found.node.name, found.name])}
    return {}


def _control(request: HttpRequest, found: Service, card: dict[str, Any], action: str) -> dict[str, Any]:
    """The words of a question about starting, stopping, switching and what is left over."""
    down = found.state in ("stopped", "failed") and not service_story.now(found)["loops"]  # in a loop something of it is there again and again
    unit, name = service_story.unit(found), found.name
    asked: dict[str, Any] = {"control": True, "unit": unit, "launch": service_story.launch(found), "usual": service_story.usual_warmup(found),
                             "starting": found.state == "starting", "down": down}
    question, press = {
        "start": (f"Start {name}?", f"Start {name}"), "stop": (f"Stop {name}?", f"Stop {name}"),
        "restart": (f"{'Start' if down else 'Restart'} {name}?", f"{'Start' if down else 'Restart'} {name}"),
        "switch": (f"Switch from {name} to another model?", "Switch"), "leftovers": (f"Look for what {name} left behind?", "Check leftovers"),
        "end-leftovers": (f"End what {name} left behind?", "End these processes"),
        "reset-failed": (f"Reset the failed state of {name}?", "Reset the failed state"), "diagnose": (f"Diagnose the log of {name}?", "Diagnose"),
    }[action]
    if action == "switch":
        asked["choices"] = service_story.switch_choices(found)
        if not asked["choices"]:
            raise Http404("There is no other service on this node to switch to")
    if action == "reset-failed" and unit is None:
        raise Http404("Only a service under systemd has a failed state to reset")
    if action == "end-leftovers":
        number = request.GET.get("job", "")
        job = Job.objects.filter(node=found.node, number=int(number)).first() if number.isascii() and number.isdigit() and len(number) < 10 else None
        asked["processes"] = service_story.own_processes(job, found) if job else []
        if not asked["processes"] or job is None:
            raise Http404("This job found no process that belonged to the service")
        asked |= {"job": job, "back": reverse("job", args=[job.number])}
    return {"question": question, "press": press, "danger": action in ("stop", "end-leftovers"), **asked}


def _guards_in_order(card: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of the guards in the order of the record, whose numbers a form sends back; one that was not looked at yet says nothing."""
    results = _results(card)
    return [results.get(_which(guard), {"guard": guard, "holds": True}) for guard in card["record"].get("guards") or []]


def _which(guard: Any) -> str:
    told = guard if isinstance(guard, dict) else {}
    return json.dumps([told.get("kind"), told.get("file"), told.get("key") or "", told.get("value")])


def _results(card: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {_which(result.get("guard")): result for result in card["guards"]}


def _guards(found: Service, card: dict[str, Any]) -> dict[str, Any]:
    """The guards of the record, each with what the node last found (None: it has not looked yet), and what a page needs to change them."""
    results, own = _results(card), guard_forms.own(found)
    rows = [{"number": number, "words": guard_forms.words(guard), "result": results.pop(_which(guard), None)} for number, guard in enumerate(own)]
    if not own:  # told, but not of the record that is known: there is nothing to remove
        rows = [{"number": None, "words": "", "result": result} for result in results.values()]
    return {"rows": rows, "mark": guard_forms.mark(own), "presets": guard_forms.presets(), "kinds": guard_forms.KINDS.items(),
            "fields": GuardsForm(service=found).shown()}
