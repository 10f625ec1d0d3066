"""Benchmark runs: the list, one run with all of its charts, what people say of it, and the results of other tools."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import (
    baselines,
    compared_sides,
    job_story,
    permissions,
    practice_reference,
    run_charts,
    run_documents,
    run_edits,
    run_forms,
    run_imports,
    run_list,
)
from dashboard.models import BenchmarkLevel, BenchmarkRun, Service
from dashboard.run_forms import ImportForm, RunForm
from dashboard.run_list import Chosen
from dashboard.templatetags.roundhouse import size
from dashboard.views import HtmxRequest, list_response, signed_in
from ops.benchmark.comparing.readings import OURS
from ops.benchmark.formats import exports
from ops.jobs.errors import BadInput

FINGERPRINT_TWICE = frozenset({"at", "versions", "hash"})  # the run's own time; a part of packages; for programs
# Charts, and the numbers without which they are empty
HAS = {"throughput": ("tput",), "latency": ("e2e_p50", "mean"), "ttft": ("ttft_p50",), "tpot": ("tpot_p50",), "pareto": ("user",)}


@require_safe
def benchmarks(request: HtmxRequest) -> HttpResponse:
    chosen = Chosen.of(request.GET.dict())
    page, rows = run_list.page(chosen, request.GET.get("page"))
    return list_response(request, "benchmarks/list.html", "benchmarks/_list.html", {
        "page": page, "rows": rows, "chosen": chosen.as_dict(), "more": chosen.more, "problems": chosen.problems, "things": "run,runs",
        "headings": run_list.headings(chosen), "choices": run_list.choices, "ours": OURS,  # `choices` is asked for by the whole page only
        "any": BenchmarkRun.objects.exists, "services_there": Service.objects.exists,
    })


@require_safe
def benchmark_run(request: HttpRequest, id: Any) -> HttpResponse:
    run = _run(id)
    levels = list(run.levels.defer(None))
    target = run_edits.target(run.service) if run.service else []
    data = run_charts.run_data(run, levels, target=target)
    rows = run_charts.rows(levels)
    marks = sorted({mark for row in rows for mark in row["marks"]})
    baseline = run.service.baseline if run.service else None
    asked, not_asked = asked_settings(run)
    beside = [run_charts.beside(level) for level in levels]
    return render(request, "benchmarks/run.html", {
        "run": run, "data": data, "twins": run_charts.twins(data), "rows": rows, "target": target, "ours": OURS,
        "beside": [row for row in beside if any(value is not None for name, value in row.items() if name != "label")],
        "marks": [(mark, run_charts.MARKS.get(mark, "")) for mark in marks], "detailed": [row for row in rows if row["key"] in data["detailed"]],
        "chosen_level": _told_level(rows, data["detailed"]), "few": any(row["e2e_p99"] is None and row["finished"] for row in rows),
        "several_tokens": any((row["tokens_per_chunk"] or 1) > 1.02 for row in rows), "fingerprint": fingerprint_groups(run.fingerprint or {}),
        "asked": asked, "not_asked": not_asked, "baseline": baseline, "is_baseline": baseline is not None and baseline.pk == run.pk,
        "can_pin": run.service is not None and run.origin == OURS and run.state == "done",
        "against": _against(run, baseline), "repeats": _repeats(run),
        "has": {name: any(row[of] is not None for row in data["points"] for of in numbers) for name, numbers in HAS.items()},
        "queued": any(max(row["queue_p50"] or 0, row["queue_p99"] or 0) > 1 for row in rows), **_notes(data),
    })


def _notes(data: dict[str, Any]) -> dict[str, str]:
    """What stands beside the titles of charts, where it depends on what was measured."""
    slos = data["slos"]
    words = [text for name, text in (("ttft_ms", "TTFT {:g} ms"), ("tpot_ms", "TPOT {:g} ms"), ("e2e_s", "E2E {:g} s")) if name in slos
             for text in [text.format(slos[name])]]
    points = data["points"]
    return {"throughput_note": "steady window; dashed: whole run" if any(one["steady"] is not None for one in points) else "whole run",
            "pareto_title": f"Throughput{' per GPU' if any(one['per_gpu'] is not None for one in points) else ''} against speed per user",
            "tpot_note": "P50, band to P99" + (f"; dashed: SLO {slos['tpot_ms']:g} ms" if "tpot_ms" in slos else ""),
            "goodput_note": f"requests that meet {', '.join(words)}" if words else "requests that meet every SLO"}


def _run(id: Any) -> BenchmarkRun:
    return get_object_or_404(BenchmarkRun.objects.select_related("service", "service__node", "service__baseline", "job", "imported"), pk=id)


def _told_level(rows: list[dict[str, Any]], detailed: list[str]) -> str:
    """The level whose seconds are shown first: the one with the most throughput."""
    there = [row for row in rows if row["key"] in detailed]
    return str(max(there, key=lambda row: row["tput"] or 0)["key"]) if there else ""


def _against(run: BenchmarkRun, baseline: BenchmarkRun | None) -> dict[str, Any] | None:
    """What a run is best held against: the pinned baseline, else the run of its service before it, on the practice box the published figures.

    Each with all runs of its group, as sides of their own even where their stacks are equal: ticked in the list they would be one side.
    """
    if run.levels_measured == 0:
        return None
    if baseline is not None and baseline.pk != run.pk:
        other, words = baseline, "the baseline"
    elif (before := job_story.newest_run_before(run)) is not None:
        other, words = before, "the run before"
    elif run.practice and (reference := BenchmarkRun.objects.filter(origin=practice_reference.ORIGIN).exclude(pk=run.pk).first()) is not None:
        other, words = reference, "the published figures"
    else:
        return None
    together = run.group is not None and run.group == other.group
    sides = [[one] if together else [r for r in _repeats(one) if r.state == "done"] or [one] for one in (other, run)]
    return {"words": words, "url": compared_sides.address([compared_sides.Chosen(name, runs) for name, runs in zip("AB", sides, strict=True)])}


def _repeats(run: BenchmarkRun) -> list[BenchmarkRun]:
    """The runs that were measured together with it, in their order; none where it is alone."""
    if run.group is None:
        return []
    found = list(BenchmarkRun.objects.filter(group=run.group).only("id", "group_index", "state").order_by("group_index", "started_at")[:30])
    return found if len(found) > 1 else []


@require_safe
def run_level(request: HttpRequest, id: Any, key: str) -> HttpResponse:
    """The seconds and requests of one level ("closed:8"), for the page's script."""
    load, _, value = key.partition(":")
    try:
        wanted = float(value)
    except ValueError:
        raise Http404("There is no such level") from None
    return JsonResponse(run_charts.level_detail(get_object_or_404(BenchmarkLevel.objects.defer(None), run_id=id, load=load, value=wanted)))


@require_http_methods(["GET", "HEAD", "POST"])
def run_edit(request: HttpRequest, id: Any) -> HttpResponse:
    """Label, notes and tags."""
    permissions.require(request.user, "benchmark.edit")
    run = _run(id)
    form = RunForm(request.POST if request.method == "POST" else {"label": run.label, "notes": run.notes, "tags": ", ".join(_tags(run))})
    wrong: dict[str, str] = {}
    if request.method == "POST":
        if form.is_valid():
            try:
                run_edits.edit(run, signed_in(request), **form.cleaned_data)
            except BadInput as error:
                wrong["all"] = f"{error.what}. {error.hint}"
            else:
                return redirect("benchmark_run", id=run.pk)
        else:
            wrong = run_forms.told(form)
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "benchmarks/_edit.html" if fragment else "benchmarks/edit.html", {
        "run": run, "values": {name: form.data.get(name, "") for name in form.fields}, "wrong": wrong,
        "back": reverse("benchmark_run", args=[run.pk]), "known_tags": run_list.tags()}, status=400 if wrong else 200)


def _tags(run: BenchmarkRun) -> list[str]:
    return [tag for tag in run.tags if isinstance(tag, str)] if isinstance(run.tags, list) else []


@require_POST
def run_baseline(request: HttpRequest, id: Any) -> HttpResponse:
    """Pins the run as its service's baseline; `pin` "no" unpins it."""
    run = _run(id)
    if request.POST.get("pin") != "no":
        service = baselines.pin(run, signed_in(request))
        messages.success(request, f"This run is the baseline of {service.name} now: every later sweep is held against it.", extra_tags="ok")
    elif run.service is not None and run.service.baseline_id == run.pk:
        baselines.unpin(run.service, signed_in(request))
        messages.success(request, f"{run.service.name} has no baseline now.", extra_tags="ok")
    return redirect("benchmark_run", id=run.pk)


WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {"csv": exports.to_csv, "json": exports.to_json, "md": exports.to_markdown}
EXPORTS = {"csv": ("text/csv; charset=utf-8", "csv"), "json": ("application/json", "json"), "md": ("text/markdown; charset=utf-8", "md"),
           "vllm": ("application/json", "vllm.json")}


@require_safe
def run_export(request: HttpRequest, id: Any, fmt: str) -> HttpResponse:
    """A run as a file. `vllm` is one level (`level`: "closed:8") in the schema of `vllm bench serve`."""
    if fmt not in EXPORTS:
        raise Http404("There is no such export")
    run = _run(id)
    found = run_documents.document(run)
    kind, ending = EXPORTS[fmt]
    name = f"{run.service_name or run.model or 'run'}-{run.started_at:%Y%m%d-%H%M}"
    if fmt == "vllm":
        asked = request.GET.get("level", "")
        told = next((level for level in found["levels"] if f"{level['load']}:{level['value']:g}" == asked), None)
        if told is None:
            raise Http404("The level was not measured")
        content = json.dumps(exports.to_vllm_bench(found, told, None), indent=1, allow_nan=False)
        name = f"{name}-{asked.replace(':', '-')}"
    else:
        content = WRITERS[fmt](found)
    answer = HttpResponse(content, content_type=kind)
    answer.headers["Content-Disposition"] = f'attachment; filename="{_file_name(name)}.{ending}"'
    return answer


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:100] or "run"


@require_safe
def run_original(request: HttpRequest, id: Any) -> HttpResponse:
    """The file of another tool, byte for byte as it came. Never shown in the browser: nobody looked at what is in it."""
    run = _run(id)
    if run.imported is None:
        raise Http404("This run was not imported")
    answer = HttpResponse(gzip.decompress(bytes(run.imported.content)), content_type="application/octet-stream")
    answer.headers["Content-Disposition"] = f'attachment; filename="{_file_name(run.imported.name)}"'
    return answer


@require_http_methods(["GET", "HEAD", "POST"])
def benchmark_import(request: HttpRequest) -> HttpResponse:
    """Brings the results of other tools: a form, and what came of the files, which are read together (a summary and what stands beside it)."""
    permissions.require(request.user, "benchmark.import")
    form = ImportForm(request.POST, request.FILES) if request.method == "POST" else None
    context: dict[str, Any] = {"limit": min(run_imports.FILE_BYTES, settings.DIAGNOSE_MAX_BYTES)}
    if form is not None and form.is_valid():
        files = form.cleaned_data["files"]
        try:
            stored = _store(files, request)
        except BadInput as error:
            context["wrong"] = ". ".join(part.rstrip(".") for part in (error.what, error.why, error.hint) if part)
        else:
            if len(stored) == 1:
                messages.success(request, f"{stored.words}.", extra_tags="ok")
                return redirect("benchmark_run", id=stored[0].pk)
            context |= {"runs": list(stored), "words": stored.words}
        context["names"] = [str(file.name) for file in files]
    elif form is not None:
        context["wrong"] = " ".join(run_forms.told(form).values())
    return render(request, "benchmarks/import.html", context, status=400 if "wrong" in context else 200)


def _store(files: list[UploadedFile], request: HttpRequest) -> run_imports.Stored:
    if sum(file.size or 0 for file in files) > run_imports.FILE_BYTES:
        raise BadInput(f"This is larger than {run_imports.FILE_BYTES >> 20} MiB",
                       hint="Leave the texts of the responses out of it, or pack it with gzip")
    contents = {str(file.name or f"file {n}"): file.read() for n, file in enumerate(files)}
    first, *others = contents
    return run_imports.store(first, contents[first], signed_in(request), beside={name: contents[name] for name in others})


def asked_settings(run: BenchmarkRun) -> tuple[list[tuple[str, str]], list[str]]:
    """What was asked for, by name, and the names of what was left as it is."""
    rows = [(name.replace("_", " "), _shown(value)) for name, value in sorted(run_charts.asked(run).items()) if name not in ("fingerprint", "run_id")]
    return [(name, text) for name, text in rows if text], [name for name, text in rows if not text]


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
    if isinstance(value, dict):
        return ", ".join(f"{str(name).replace('_', ' ')} {_shown(inner)}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
