"""What is installed in a service's environment, whether it is as it was installed, and the ways to put it right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_safe

from dashboard import environment_story, job_story
from dashboard.forms import channels_for
from dashboard.models import Job, Service
from dashboard.views import HtmxRequest, list_response
from dashboard.views.fleet import service_card

PAGE = 500  # packages; the largest serving environments seen have some 250
SHOWN_OPEN = 6  # differences that are unfolded when the page opens


def find_service(node: str, name: str) -> Service:
    return get_object_or_404(Service.objects.select_related("node"), node__name=node, name=name)


@require_safe
def environment(request: HtmxRequest, node: str, name: str) -> HttpResponse:
    """Packages of the live release: findings on top, then the table with its filters."""
    found = find_service(node, name)
    known = environment_story.packages(found)
    asked = {key: request.GET.get(key, "")[:80] for key in ("q", "show")}
    if asked["show"] not in environment_story.VIEWS:
        asked["show"] = ""
    rows = environment_story.chosen(known["rows"], view=asked["show"], words=asked["q"].split()[:8])
    page = Paginator(rows, PAGE).get_page(request.GET.get("page"))
    return list_response(request, "environments/environment.html", "environments/_packages.html", {
        "service": found, "card": service_card(found), "known": known, "page": page, "rows": list(page.object_list), "chosen": asked,
        "views": [(view, words, known["counts"][view]) for view, words in environment_story.VIEWS.items()], "things": "package,packages",
        "lock": "\n".join(environment_story.lock_lines(found, known["rows"])) + "\n" if known["known"] else "",
        "reading": tab_counts(found), "tab": "environment"})


def tab_counts(found: Service) -> dict[str, int]:
    """Numbers of the tabs: what is on the shelf, how many files differ."""
    return {"shelf": found.shelf.filter(forgotten_at=None).count(),
            "patched": len(environment_story.listed(environment_story.told(environment_story.told(found.packages).get("patched")).get("files")))}


@require_safe
def environment_lock(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """The packages as a requirements file to download."""
    found = find_service(node, name)
    known = environment_story.packages(found)
    if not known["known"]:
        raise Http404("What is installed there is not known yet")
    release = known["release"] or "environment"
    text = (f"# {found.node.name}/{found.name}, {release}" + (f", Python {known['python']}" if known["python"] else "") + "\n"
            + "\n".join(environment_story.lock_lines(found, known["rows"])) + "\n")
    return HttpResponse(text, content_type="text/plain; charset=utf-8",
                        headers={"Content-Disposition": f'attachment; filename="{found.name}-lock.txt"'})


@require_safe
def service_integrity(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """The last finished check of the release in use; before there is one, what the node's agent found, or what a check would tell."""
    found = find_service(node, name)
    checks = environment_story.integrity_jobs(found)
    look = environment_story.agent_look(found)
    for job in checks:
        report = environment_story.integrity_report(job)
        if report and not (look and environment_story.of_another_release(found, report)):
            return render(request, "environments/integrity.html", integrity_context(job))
    return render(request, "environments/integrity.html", {
        "service": found, "card": service_card(found), "job": None, "running": next((job for job in checks if not job.is_final), None),
        "look": look, "ways": environment_story.ways(found) if look and look["files"] else [], "channels": channels_for(found),
        "came_back": environment_story.came_back(found), "earlier": _listed(checks), "reading": tab_counts(found), "tab": "integrity"})


def _listed(checks: Sequence[Job], but: Job | None = None) -> list[dict[str, Any]]:
    """Finished checks for the table of them, each with its line and the release it looked at."""
    return [{"job": other, "line": job_story.result_line(other), "release": (environment_story.integrity_report(other) or {}).get("release")}
            for other in checks if other.is_final and (but is None or other.pk != but.pk)][:6]


@require_safe
def integrity_result(request: HttpRequest, number: int) -> HttpResponse:
    """What one integrity check found, with differences."""
    job = get_object_or_404(Job.objects.select_related("service", "service__node", "node", "by").prefetch_related("steps"), number=number)
    if job.type != "integrity" or job.service is None:
        raise Http404(f"Job #{number} is no integrity check of a service")
    if environment_story.integrity_report(job) is None:
        return redirect("job", number=number)
    return render(request, "environments/integrity.html", integrity_context(job))


def integrity_context(job: Job) -> dict[str, Any]:
    report = environment_story.integrity_report(job) or {}
    service = job.service
    if service is None:
        raise Http404(f"Job #{job.number} is no integrity check of a service")
    files = environment_story.edited_files(job, report)
    for n, file in enumerate(files):
        file["open"] = n < SHOWN_OPEN and bool(file["shown"])
    counts = {change: sum(1 for file in files if file["change"] == change) for change in ("changed", "missing", "extra")}
    more = environment_story.told(report.get("more"))
    left_out = sum(environment_story.whole(more.get(change)) or 0 for change in counts)
    latest = Job.objects.filter(service=service, type="integrity", state__in=job_story.DONE_STATES).first()
    elsewhere = environment_story.of_another_release(service, report)
    look = environment_story.agent_look(service)
    return {"service": service, "card": service_card(service), "job": job, "report": report, "files": files, "counts": counts, "left_out": left_out,
            "clean": not files and not report.get("problems"), "problems": [str(p) for p in report.get("problems") or []][:50],
            "newer": sum(1 for file in files if file["newer"]), "hot": sum(1 for file in files if file["debris"]),
            "came_back": environment_story.came_back(service, number=job.number), "latest": latest,
            "is_latest": latest is None or latest.pk == job.pk,
            "ways": environment_story.ways(service) if any(counts.values()) and not elsewhere else [], "elsewhere": elsewhere,
            "since": look if look and not elsewhere and _differs_since(job, files, left_out, look) else None,
            "channels": channels_for(service), "earlier": _listed(environment_story.integrity_jobs(service), but=job),
            "reading": tab_counts(service), "tab": "integrity", "distributions": report.get("distributions"), "checked": report.get("files")}


def _differs_since(job: Job, files: Sequence[dict[str, Any]], left_out: int, look: dict[str, Any]) -> bool:
    """Whether the agent has looked again after this check, and found other files."""
    if look["at"] is None or job.finished_at is None or look["at"] <= job.finished_at:
        return False
    paths = [{file["path"] for file in rows} for rows in (look["files"], files)]
    return bool(look["count"] != len(files) + left_out or (not left_out and paths[0] != paths[1]))


@require_safe
def recipe_download(request: HttpRequest, number: int) -> HttpResponse:
    """The recipe that a job saved, as the file that a channel elsewhere takes."""
    job = get_object_or_404(Job.objects.select_related("service"), number=number)
    made = environment_story.told(environment_story.told(job.result).get("recipe"))
    recipe = made.get("recipe")
    if job.type != "recipe" or not isinstance(recipe, dict):
        raise Http404(f"Job #{number} saved no recipe")
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in str(made.get("name") or f"recipe-{number}.json"))[:120].strip(".-") or "recipe"
    return JsonResponse(recipe, json_dumps_params={"indent": 1, "ensure_ascii": False},
                        headers={"Content-Disposition": f'attachment; filename="{name if name.endswith(".json") else f"{name}.json"}"'})
