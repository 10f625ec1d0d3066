"""The smoke suite of a service: which questions it is asked after every change, and what it last answered."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.smoke_forms import SuiteForm
from dashboard.views import signed_in
from dashboard.views.environments import find_service


@require_http_methods(["GET", "HEAD", "POST"])
def smoke_suite(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """GET: the suite as a form. POST by its `step`: "save" starts the job that stores it, "more" brings empty questions."""
    permissions.require(request.user, "job.smoke-set")
    found = find_service(node, name)
    form = SuiteForm(request.POST if request.method == "POST" else None, service=found)
    more = request.method == "POST" and request.POST.get("step") == "more"
    wrong = False
    if form.is_bound and not more:
        if form.is_valid():
            return redirect("job", number=form.start(signed_in(request)).number)
        wrong = True
    problems = [str(error) for errors in form.errors.values() for error in errors] if wrong else []
    return render(request, "services/smoke_suite.html", {
        "service": found, "fields": form.shown(more=more), "wrong": wrong, "problems": problems,
        "rows_wrong": [question for question in form.questions if question.problems]}, status=400 if wrong else 200)
