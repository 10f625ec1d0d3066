"""Starting a measurement: which service, what to ask of it, and more runs of a side that is to be decided."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import dispatch, noise_floors, permissions, sweep_forms
from dashboard.models import BenchmarkRun, Service
from dashboard.sweep_forms import SweepForm
from dashboard.views import problems, signed_in
from dashboard.views.environments import find_service
from dashboard.views.fleet import service_card
from ops.benchmark.presets import PRESETS
from ops.jobs.errors import BadInput


@require_safe
def sweep_new(request: HttpRequest) -> HttpResponse:
    """Which service to measure; where there is only one, its form."""
    permissions.require(request.user, "job.sweep")
    services = list(Service.objects.select_related("node"))
    if len(services) == 1:
        return redirect("sweep_form", node=services[0].node.name, name=services[0].name)
    return render(request, "services/sweep_new.html", {"cards": [service_card(one) for one in services]})


@require_http_methods(["GET", "HEAD", "POST"])
def sweep_form(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """GET: the form, filled with what the address says. POST by its `step`: "start", "floor" for the noise floor, "size" (the same form again). The
    fragment `size` is what the sweep would take."""
    permissions.require(request.user, "job.sweep")
    found = find_service(node, name)
    given = request.POST if request.method == "POST" else request.GET if "preset" in request.GET else None
    form = SweepForm(given, service=found)
    valid = form.is_bound and form.is_valid()
    step = request.POST.get("step", "start") if request.method == "POST" else ""
    if step in ("start", "floor") and valid:
        start = form.start_noise_floor if step == "floor" else form.start
        return redirect("job", number=start(signed_in(request)).number)
    context = _size_context(found, form, valid)
    if request.headers.get("X-Roundhouse-Fragment") == "size":
        return render(request, "services/_sweep_size.html", context)
    defaults = {preset: sweep_forms.defaults(found, preset) for preset in PRESETS}
    context |= {"cards": sweep_forms.cards(found), "chosen": form.chosen_preset, "defaults": defaults, "shown": defaults[form.chosen_preset],
                "given": {name: form.data.get(name, "") for name in form.fields} if form.is_bound else {}, "choices": {
                    name: field.choices for name, field in form.fields.items() if hasattr(field, "choices")},
                "card": service_card(found), "proposed": sweep_forms.proposed_tokens(found, 0), "reasons": sweep_forms.reasons(found)}
    return render(request, "services/sweep.html", context, status=400 if step and not valid else 200)


def _size_context(found: Service, form: SweepForm, valid: bool) -> dict[str, Any]:
    settings = form.settings if valid else None if form.is_bound else sweep_forms.made_for(found, form.chosen_preset)
    told = sweep_forms.size(settings, sweep_forms.history(found)) if settings else None
    tokens = settings.max_tokens if settings else None
    return {"service": found, "form": form, "size": told, "settings": settings, "problem": problems(form) if form.is_bound and not valid else "",
            "warnings": sweep_forms.warnings(form), "more_tokens": sweep_forms.proposed_tokens(found, tokens) if tokens else None,
            "floor": noise_floors.summary(found), "floor_runs": dispatch.NOISE_RUNS}


@require_POST
def run_decide(request: HttpRequest, id: Any) -> HttpResponse:
    """Measures a run `more` times again, so that all of them can be held against the baseline."""
    run = get_object_or_404(BenchmarkRun.objects.select_related("service", "service__node"), pk=id)
    more, key = request.POST.get("more", ""), request.POST.get("idempotency_key", "")
    if not (more.isascii() and more.isdigit() and len(more) < 4 and 1 <= int(more) <= dispatch.REPEATS_MOST):
        raise BadInput("So many runs cannot be asked for", hint=f"From 1 to {dispatch.REPEATS_MOST}")
    return redirect("job", number=dispatch.start_decide(run=run, more=int(more), user=signed_in(request), idempotency_key=key[:32] or None).number)
