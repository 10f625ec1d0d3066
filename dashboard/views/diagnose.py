"""Diagnose: a log is pasted or uploaded, or a service's own is read where it lies, and the decisive line is told with what to do."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard import dispatch, log_uploads
from dashboard.diagnoses import diagnosis_card
from dashboard.forms import DIAGNOSE_MAX, DiagnoseForm
from dashboard.models import Service
from dashboard.views import signed_in
from ops.jobs.errors import BadInput

STATES = {
    "serving": "The server was answering where this log ends.",
    "starting": "The server was still starting where this log ends, and nothing had failed.",
    "stopped": "The server was stopped because somebody asked for it.",
    "empty": "These lines tell of no start and of no end of a vLLM: the failing part is not among them, or they are of another program.",
}


@require_http_methods(["GET", "HEAD", "POST"])
def diagnose(request: HttpRequest) -> HttpResponse:
    """GET: the form. POST with `own`: a job that reads that service's own log. Any other POST reads what was sent; nothing of it is kept."""
    services = list(Service.objects.select_related("node").order_by("node__name", "name"))
    form = DiagnoseForm(request.POST, request.FILES, services=services) if request.method == "POST" else DiagnoseForm(services=services)
    problems: dict[str, str] = {}
    read: log_uploads.Read | None = None
    if request.method == "POST":
        if form.is_valid():
            if (own := form.service("own")) is not None:
                job = dispatch.start_control(service=own, kind="diagnose", user=signed_in(request), idempotency_key=form.key())
                return redirect("job", number=job.number)
            field = "file" if form.cleaned_data["file"] else "text"
            try:
                read = log_uploads.read_upload(form.cleaned_data["file"], limit=settings.DIAGNOSE_MAX_BYTES) if field == "file" else \
                    log_uploads.read_text(form.cleaned_data["text"])
            except BadInput as error:
                problems[field] = ". ".join(part for part in (error.what, error.why, error.hint) if part)
        else:
            problems = {name: " ".join(str(error) for error in errors) for name, errors in form.errors.items()}
    context: dict[str, Any] = {
        "text": request.POST.get("text", "")[:DIAGNOSE_MAX], "problems": problems, "limit": DIAGNOSE_MAX,
        "file_limit": settings.DIAGNOSE_MAX_BYTES, "services": services, "chosen": form.cleaned_data.get("about", "") if form.is_bound else ""}
    if read is not None:
        context |= {"read": read.as_dict(), "found": diagnosis_card(read.found.as_dict(), service=form.service("about")),
                    "state_words": STATES.get(read.found.state, "")}
    return render(request, "pages/diagnose.html", context, status=400 if problems else 200)
