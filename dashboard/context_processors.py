"""What the shell shows around every page: navigation, nodes, running jobs, the time by which clocks tick."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from dashboard.job_story import OPEN_STATES, is_silent
from dashboard.models import Job, Node

NAVIGATION = (  # url name, title, icon, other url names of the same part
    ("fleet", "Fleet", "fleet", ()),
    ("services", "Services", "service", ("service", "plan", "service_run", "environment", "service_integrity", "integrity_result",
                                               "shelf", "shelf_patch", "launch_settings", "smoke_suite")),
    ("jobs", "Jobs", "jobs", ("job", "job_cancel")),
    ("benchmarks", "Benchmarks", "bench", ("benchmark_run", "compare")),
    ("diagnose", "Diagnose", "diagnose", ()),
    ("cleanup", "Cleanup", "clean", ("cleanup_node", "cleanup_scan", "cleanup_purge", "manifest")),
    ("settings", "Settings", "settings", ()),
)


@cache
def product_version() -> str:
    """From the installed package, else from pyproject.toml: a checkout is not installed."""
    try:
        return version("roundhouse")
    except PackageNotFoundError:
        import tomllib

        from ops.agent.config import REPOSITORY

        return str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def shell(request: HttpRequest) -> dict[str, Any]:
    """`shell` for base.html. Lazy: fragments and pages without the shell ask nothing of the database."""
    return {"shell": SimpleLazyObject(lambda: _shell(request))}


def _shell(request: HttpRequest) -> dict[str, Any]:
    match = request.resolver_match
    here = match.url_name if match else ""
    nodes = [{"name": node.name, "gpus": len(node.facts.get("gpus") or []), "online": not is_silent(node.seen_at)} for node in Node.objects.all()]
    return {
        "now": f"{timezone.now().timestamp():.3f}",
        "version": product_version(),
        "navigation": [{"name": name, "title": title, "icon": icon, "href": reverse(name), "current": here == name or here in others}
                       for name, title, icon, others in NAVIGATION],
        "nodes": nodes,
        "node": match.kwargs.get("name") if match and here == "node" else "",
        "online": sum(1 for node in nodes if node["online"]),
        "running": Job.objects.filter(state__in=OPEN_STATES).count(),
    }
