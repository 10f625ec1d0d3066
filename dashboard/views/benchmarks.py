"""Benchmark runs: the list and one run."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from dashboard.models import BenchmarkRun, Service
from dashboard.templatetags.roundhouse import size
from dashboard.views import HtmxRequest, list_response
from dashboard.views.jobs import sweep_panel

PAGE = 50
FINGERPRINT_TWICE = frozenset({"at", "versions", "hash"})  # the run's own time; a part of packages; for programs


@require_safe
def benchmarks(request: HtmxRequest) -> HttpResponse:
    runs = BenchmarkRun.objects.select_related("service", "service__node", "job").prefetch_related("levels")
    chosen = {key: request.GET.get(key, "") for key in ("q", "service", "model", "kind")}
    if chosen["service"]:
        node, _, name = chosen["service"].partition("/")
        runs = runs.filter(node_name=node, service_name=name)
    if chosen["model"]:
        runs = runs.filter(model=chosen["model"])
    if chosen["kind"] in ("practice", "real"):
        runs = runs.filter(practice=chosen["kind"] == "practice")
    for word in chosen["q"].split()[:8]:
        runs = runs.filter(Q(label__icontains=word) | Q(service_name__icontains=word) | Q(model__icontains=word) | Q(release__icontains=word)
                           | Q(vllm_version__icontains=word) | Q(preset__icontains=word) | Q(endpoint__icontains=word))
    page = Paginator(runs, PAGE).get_page(request.GET.get("page"))
    return list_response(request, "benchmarks/list.html", "benchmarks/_list.html", {
        "page": page, "rows": [run_row(run) for run in page.object_list], "chosen": chosen, "any": BenchmarkRun.objects.exists(),
        "things": "run,runs",
        "services": [f"{s.node.name}/{s.name}" for s in Service.objects.select_related("node")],
        "models": sorted(set(BenchmarkRun.objects.values_list("model", flat=True))),
    })


def run_row(run: BenchmarkRun) -> dict[str, Any]:
    levels = list(run.levels.all())
    measured = [lv for lv in levels if lv.output_tok_s is not None and lv.state == "done"]
    single = next((lv for lv in measured if lv.concurrency == 1), None)
    peak = max(measured, key=lambda lv: lv.output_tok_s or 0, default=None)
    return {"run": run, "single": single.output_tok_s if single else None, "peak": peak, "p99": peak.e2e_p99_s if peak else None,
            "levels": len(levels), "errors": sum(lv.errors for lv in levels)}


@require_safe
def benchmark_run(request: HttpRequest, id: Any) -> HttpResponse:
    run = get_object_or_404(BenchmarkRun.objects.select_related("service", "service__node", "job").prefetch_related("levels"), pk=id)
    return render(request, "benchmarks/run.html", {
        "run": run, "row": run_row(run), "sweep": sweep_panel(run.job if run.state == "running" else None, run),
        "fingerprint": fingerprint_groups(run.fingerprint or {}), "asked": asked_settings(run),
    })


def asked_settings(run: BenchmarkRun) -> list[tuple[str, str]]:
    """What was asked for, by name. While a run goes on its settings stand one level deeper, beside what the sweep said at its start."""
    told = (run.settings or {}).get("settings") or run.settings or {}
    return [(name.replace("_", " "), _shown(value)) for name, value in sorted(told.items()) if name not in ("fingerprint", "run_id")]


def fingerprint_groups(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The fingerprint as groups of name and value, nested values flattened to dotted names; long lists are cut with a count."""
    groups: list[dict[str, Any]] = []
    plain: list[tuple[str, str]] = []
    for key, value in found.items():
        if key in FINGERPRINT_TWICE:
            continue
        if isinstance(value, dict) and value:
            groups.append({"title": key.replace("_", " "), "rows": list(_flat("", value, names=key in ("packages", "env")))})
        else:
            plain.append((key.replace("_", " "), _shown(value)))
    if plain:
        groups.insert(0, {"title": "this run", "rows": plain})
    return groups


def _flat(prefix: str, value: dict[str, Any], *, names: bool = False) -> Any:
    """Rows of name and value. `names`: the keys are names of things and stay as they are; else they are words."""
    for key, inner in value.items():
        name = f"{prefix}{key if names else key.replace('_', ' ')}"
        if isinstance(inner, dict) and inner:
            yield from _flat(f"{name} ", inner, names=names)
        elif key.endswith("_bytes") and isinstance(inner, int):
            yield name.removesuffix(" bytes"), size(inner)
        else:
            yield name, _shown(inner)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, list):
        texts = [_shown(v) if not isinstance(v, dict) else ", ".join(f"{k} {_shown(x)}" for k, x in v.items()) for v in value]
        if len(set(texts)) == 1 and len(texts) > 1:
            return f"{len(texts)} × {texts[0]}"
        return " ".join(texts) if all(" " not in t for t in texts) else "; ".join(texts)
    return str(value)
