"""The guards of a service: the question that says what the list will be, and the job that stores it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard import guard_forms, permissions
from dashboard.guard_forms import GuardsForm
from dashboard.views import problems, signed_in
from dashboard.views.environments import find_service
from ops.jobs.errors import BadInput


@require_http_methods(["GET", "HEAD", "POST"])
def guards_set(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """GET with what is to change says what the list will be and asks (without: how to change it); POST starts the job."""
    permissions.require(request.user, "job.guards-set")
    found = find_service(node, name)
    if request.method == "POST":
        form = GuardsForm(request.POST, service=found, answers=True)
        if not form.is_valid():
            raise BadInput("The guards cannot be set as asked", why=problems(form), hint="Go back, reload the page, and look at them as they are now")
        return redirect("job", number=form.start(signed_in(request)).number)
    form = GuardsForm(request.GET or None, service=found)
    valid = form.is_valid()
    dialog = request.headers.get("X-Roundhouse-Fragment") == "dialog" and valid
    kept = [guard for guard in form.known if guard is not form.removed]
    context = {"service": found, "form": form, "valid": valid, "fields": form.shown(), "kinds": guard_forms.KINDS.items(),
               "presets": form.known_presets, "asked": form.asked() if valid else [], "problems": [str(one) for one in form.non_field_errors()] +
               [str(one) for field in ("base", "preset", "remove", "kind") for one in form.errors.get(field, [])] if form.is_bound else [],
               "kept": [guard_forms.words(guard) for guard in kept], "added": [guard_forms.words(guard) for guard in form.added],
               "removed": guard_forms.words(form.removed) if form.removed else "", "preset": form.whole_preset}
    return render(request, "services/_guards_set.html" if dialog else "services/guards_set.html", context,
                  status=200 if valid or not form.is_bound else 400)
