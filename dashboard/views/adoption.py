"""A systemd unit becomes a service: the form that has it read, and the button that adopts what was read. For admins."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import adoption_forms, dispatch, permissions
from dashboard.adoption_forms import AdoptApplyForm, AdoptForm
from dashboard.models import Job, Node
from dashboard.views import problems, signed_in
from ops.jobs.errors import BadInput


@require_http_methods(["GET", "HEAD", "POST"])
def adopt(request: HttpRequest, name: str) -> HttpResponse:
    """GET asks which unit; POST has the node read it, which changes nothing, and goes to what it found."""
    permissions.require(request.user, "job.adopt")
    node = get_object_or_404(Node, name=name)
    context = {"node": node, "adopt": adoption_forms.empty()}
    if request.method != "POST":
        return render(request, "nodes/adopt.html", context)
    form = AdoptForm(request.POST)
    if form.is_valid():
        return redirect("job", number=form.start(node, signed_in(request)).number)
    fields = form.shown()
    context["adopt"] = {**adoption_forms.empty(), "fields": fields, "problem": form.errors.get("idempotency_key", ""),
                        "more": any(fields[one]["value"] or fields[one]["problem"] for one in ("name", "environment", "in_place", "manager"))}
    return render(request, "nodes/adopt.html", context, status=400)


@require_POST
def adopt_apply(request: HttpRequest, number: int) -> HttpResponse:
    """Adopts what a job has read, if the node finds exactly that again."""
    permissions.require(request.user, "job.adopt-apply")
    read = get_object_or_404(Job.objects.select_related("node"), number=number)
    form = AdoptApplyForm(request.POST)
    if not form.is_valid():
        raise BadInput("This unit cannot be adopted as asked", why=problems(form), hint="Reload the job's page and press the button again")
    job = dispatch.start_adopt_apply(read_job=read, seen=form.cleaned_data["hash"], user=signed_in(request), idempotency_key=form.key())
    return redirect("job", number=job.number)
