"""The launch settings of a service: changed in a form, looked at as a difference, and then set by a job."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard import permissions, service_story
from dashboard.launch_forms import LaunchForm
from dashboard.views import signed_in
from dashboard.views.environments import find_service
from dashboard.views.fleet import service_card


@require_http_methods(["GET", "HEAD", "POST"])
def launch_settings(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """GET: the form. POST by its `step`: "preview" shows the difference, "save" starts the job, "more" and "edit" lead back to the form."""
    permissions.require(request.user, "job.settings-set")
    found = find_service(node, name)
    form = LaunchForm(request.POST if request.method == "POST" else None, service=found)
    step = request.POST.get("step", "preview") if request.method == "POST" else ""
    valid = form.is_bound and form.is_valid()
    if valid and step == "save":
        return redirect("job", number=form.start(signed_in(request)).number)
    quiet = step in ("more", "edit")
    wrong = form.is_bound and not valid and not quiet
    context: dict[str, Any] = {
        "service": found, "card": service_card(found), "tab": "service", "form": form, "fields": form.shown(), "wrong": wrong,
        "launch": service_story.launch(found), "unit": service_story.unit(found), "down": service_story.now(found)["down"],
        "rows_wrong": [row for row in form.rows if row.problem] if wrong else []}
    if valid and not quiet:
        return render(request, "services/launch_preview.html", context | {"difference": form.differences()})
    return render(request, "services/launch_settings.html", context, status=400 if wrong else 200)
