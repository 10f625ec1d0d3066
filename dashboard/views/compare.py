"""Runs held against each other: the page, and the comparison as a file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import compared_sides, comparisons, practice_reference
from dashboard.compared_sides import Chosen
from dashboard.comparisons import Choice
from dashboard.models import BenchmarkRun
from ops.benchmark.comparing import exports
from ops.jobs.errors import BadInput

OFFERED = 30  # runs to choose from on the page itself
FORMATS = {"csv": (exports.to_csv, "text/csv"), "json": (exports.to_json, "application/json"), "md": (exports.to_markdown, "text/markdown")}


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """`?side=ID,ID&side=ID`: what is compared. `?run=ID&run=ID`: the same from a list's ticks, sent on to the address that holds the comparison."""
    choice = Choice.of(request.GET)
    try:
        ticked = [one for side in compared_sides.read_ids([",".join(request.GET.getlist("run"))]) for one in side]
        wanted = compared_sides.read_ids(request.GET.getlist("side"))
        if ticked:
            return _from_ticks(request, ticked, wanted, choice)
        sides, gone = compared_sides.find(wanted)
        if not sides:
            return _choose(request, gone=gone)
        if refused := compared_sides.mixed(sides):
            return _choose(request, refused, sides=sides)
        shown = comparisons.page(sides, comparisons.held_against(sides), choice)
    except BadInput as error:
        return _choose(request, error)
    return render(request, "benchmarks/compare.html", shown | {
        "gone": gone, "link": request.build_absolute_uri(compared_sides.address(sides, **choice.kept())),
        "exports": [{"title": title, "url": compared_sides.address(sides, name="compare_export", fmt=fmt)}
                    for fmt, title in (("csv", "CSV"), ("json", "JSON"), ("md", "Markdown"))],
        "more": _to_add(sides, choice), "several": len(sides) > 1,
    })


def _from_ticks(request: HttpRequest, ticked: Sequence[uuid.UUID], wanted: Sequence[Sequence[uuid.UUID]], choice: Choice) -> HttpResponse:
    """Ticked runs become sides, after those that the address names already."""
    there, _ = compared_sides.find(wanted)
    known = {run.pk for side in there for run in side.runs}
    added = compared_sides.grouped([one for one in ticked if one not in known])
    every = [*(side.runs for side in there), *added]
    if len(every) == 1 < len(every[0]):  # nothing to hold it against, and several runs were asked for
        every = compared_sides.apart(every[0])
        jobs = len({run.group or run.pk for runs in every for run in runs})
        messages.info(request, f"All {len(ticked)} runs are of one stack and one kind of sweep. " + (
            "They are one side: tick fewer to hold them against each other" if len(every) == 1
            else f"Each {'job' if jobs > 1 else 'run'} is a side of its own"))
    compared_sides.not_too_many(len(every), sum(map(len, every)))
    return redirect(compared_sides.address([Chosen(compared_sides.NAMES[n], runs) for n, runs in enumerate(every)], **choice.kept()))


def _choose(request: HttpRequest, error: BadInput | None = None, *, sides: Sequence[Chosen] = (), gone: int = 0) -> HttpResponse:
    """The page without a comparison: what it is for, runs to tick, and what was wrong with what was asked."""
    kinds = []
    if sides:  # practice beside real: each kind alone
        for practice, title in ((True, "practice"), (False, "real")):
            kept = [Chosen(side.name, runs) for side in sides if (runs := [run for run in side.runs if compared_sides.is_practice(run) == practice])]
            kinds.append({"title": title, "url": compared_sides.address(kept), "count": sum(len(side.runs) for side in kept)})
    runs = list(_measured().order_by("-started_at")[:OFFERED])
    return render(request, "benchmarks/compare_choose.html", {
        "error": error, "gone": gone, "kinds": kinds, "runs": runs, "pairs": _first_pairs(runs), "any": bool(runs),
    }, status=400 if error else 404 if gone else 200)


def _measured() -> Any:
    """Runs with numbers, without what a list does not show."""
    return BenchmarkRun.objects.filter(levels_measured__gt=0).defer("settings", "fingerprint", "warnings", "notes", "search").select_related("job")


def _first_pairs(runs: Sequence[BenchmarkRun]) -> list[dict[str, str]]:
    """Comparisons that are one click away: the newest practice run beside the published figures, the two newest runs of a service."""
    pairs = []
    reference = _measured().filter(origin=practice_reference.ORIGIN).first()
    practice = next((run for run in runs if run.practice and run.origin == "roundhouse"), None)
    if reference and practice:
        pairs.append({"title": f"The newest practice run of {practice.service_name or practice.model} beside the published figures",
                      "url": compared_sides.address([Chosen("A", [reference]), Chosen("B", [practice])])})
    seen: dict[tuple[str, str, str], BenchmarkRun] = {}
    for run in runs:
        key = (run.node_name, run.service_name, run.sweep_key)
        if not run.service_name or run.origin != "roundhouse":
            continue
        if (newer := seen.get(key)) and newer.stack != run.stack:
            pairs.append({"title": f"{run.service_name}: the newest run beside the last one on another stack",
                          "url": compared_sides.address([Chosen("A", [run]), Chosen("B", [newer])])})
            break
        seen.setdefault(key, run)
    return pairs


def _to_add(sides: Sequence[Chosen], choice: Choice) -> list[dict[str, Any]]:
    """Runs that may join, the newest first; none when there is no place left."""
    if len(sides) >= compared_sides.MAX_SIDES:
        return []
    taken = [run.pk for side in sides for run in side.runs]
    practice = any(side.practice for side in sides)
    runs = _measured().filter(practice=practice).exclude(pk__in=taken).order_by("-started_at")[:12]
    base = compared_sides.address(sides, **choice.kept())
    return [{"run": run, "url": f"{base}&run={run.pk}"} for run in runs]


@require_safe
def compare_export(request: HttpRequest, fmt: str) -> HttpResponse:
    """The comparison of the same address as a file: csv, json or md."""
    if fmt not in FORMATS:
        raise Http404("A comparison can be saved as csv, json or md")
    write, kind = FORMATS[fmt]
    sides, _ = compared_sides.find(compared_sides.read_ids(request.GET.getlist("side")))
    if refused := compared_sides.mixed(sides):
        raise refused
    comparison = comparisons.held_against(sides)
    if comparison is None:
        raise BadInput("There is nothing to compare at this address", hint=f"Choose two runs or more: {reverse('compare')}")
    return HttpResponse(write(comparison), content_type=f"{kind}; charset=utf-8",
                        headers={"Content-Disposition": f'attachment; filename="comparison.{fmt}"'})
