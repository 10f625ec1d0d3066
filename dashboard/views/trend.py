"""A service over time: one number of one level with what changed at each point, and the speed that a single stream of it should have."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import permissions, run_edits, run_forms, trends
from dashboard.models import Service
from dashboard.run_forms import TargetForm
from dashboard.views import signed_in
from ops.jobs.errors import BadInput


def _service(node: str, name: str) -> Service:
    return get_object_or_404(Service.objects.select_related("node", "baseline"), node__name=node, name=name)


@require_safe
def trend(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """`kind` (a sweep key), `level` ("closed:8") and `metric` say what is shown: the address holds it."""
    found = _service(node, name)
    shown = trends.trend(found, **{name: request.GET.get(name, "")[:80] for name in ("kind", "level", "metric")})
    target = run_edits.target(found)
    return render(request, "benchmarks/trend.html", shown | {
        "service": found, "target": target, "data": trends.chart(shown, target=target, baseline=found.baseline_id), "changed": shown["changes"][::-1],
        "rows": _rows(shown), "baseline_id": found.baseline_id})


def _rows(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """The table, newest first: each point with its stretch's median."""
    rows: list[dict[str, Any]] = []
    now = -1
    for one in shown["points"]:
        now += one["change"] is not None or now < 0
        stretch = shown["stretches"][now]
        rows.append({**one, "median": stretch["median"], "runs": stretch["runs"]})
    return rows[::-1]


@require_http_methods(["GET", "HEAD", "POST"])
def service_target(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """The target line of a service: two numbers of tok/s, or none, which leaves it to the service's record."""
    permissions.require(request.user, "service.target")
    found = _service(node, name)
    now = found.target_tok_s if isinstance(found.target_tok_s, list) and len(found.target_tok_s) == 2 else ["", ""]
    form = TargetForm(request.POST if request.method == "POST" else {"low": now[0], "high": now[1]})
    wrong: dict[str, str] = {}
    if request.method == "POST":
        if form.is_valid():
            try:
                run_edits.set_target(found, signed_in(request), form.target())
            except BadInput as error:
                wrong["all"] = f"{error.what}. {error.hint}"
            else:
                messages.success(request, f"The target of {found.name} is set." if form.target() else f"{found.name} has the target of its record.",
                                 extra_tags="ok")
                return redirect("service", node=node, name=name)
        else:
            wrong = {"all" if name == "__all__" else name: text for name, text in run_forms.told(form).items()}
    told = found.record.get("target_tok_s") if isinstance(found.record, dict) else None
    record = told if isinstance(told, list) and len(told) == 2 else None
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "services/_target.html" if fragment else "services/target.html", {
        "service": found, "values": {name: form.data.get(name, "") for name in form.fields}, "wrong": wrong,
        "back": reverse("service", args=[node, name]), "record": record}, status=400 if wrong else 200)
