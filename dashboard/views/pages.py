"""The page of a node, and the pages that say what will be here and which command does it today."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from dashboard import adoption_forms, environment_story, kind_forms
from dashboard.models import Job, Node, Service
from dashboard.views import channels
from dashboard.views.fleet import job_rows, node_card


@require_safe
def settings(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/settings.html", {
        "channels": channels.listed(), "nodes": list(Node.objects.all()), "own_kinds": kind_forms.own(), "builtin_count": len(kind_forms.builtin())})


@require_safe
def node(request: HttpRequest, name: str) -> HttpResponse:
    found = get_object_or_404(Node.objects.prefetch_related("services"), name=name)
    jobs = list(Job.objects.filter(node=found).select_related("service", "node", "by").prefetch_related("steps")[:8])
    card = node_card(found)
    processes = [{**process, "gpu": gpu["index"]} for gpu in card["readings"] for process in gpu["processes"]]
    return render(request, "nodes/node.html", {"node": found, "card": card, "rows": job_rows(jobs), "processes": processes,
                                               "adopt": adoption_forms.empty(),
                                               "environments": [_environment(service) for service in found.services.select_related("node")]})


def _environment(service: Service) -> dict[str, Any]:
    known = environment_story.packages(service)
    patched = sum(environment_story.patched_by_package(service).values())
    return {"service": service, "known": known["known"], "count": len(known["rows"]), "path": known["path"], "python": known["python"],
            "stops": known["stops"], "findings": known["stops"] + known["warnings"], "patched": patched}
