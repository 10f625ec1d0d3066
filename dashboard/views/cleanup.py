"""Cleanup: what each node can give back, a scan as a preview to choose from, the question before a purge, and manifests of what went.

The page of a scan is one form that works without scripts: every button of it (a filter, an order, more rows, all or none) sends the choice along and
gets the page back with it; the last one goes to the question. cleanup_page.js does the same in place, and counts while somebody chooses.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.request import QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import cleanup_choice, cleanup_exports, cleanup_rows, dispatch, job_story, permissions, purge_story
from dashboard import cleanup_story as story
from dashboard.models import ArtifactKind, ArtifactScan, Job, Node, PurgedArtifact
from dashboard.views import HtmxRequest, list_response, signed_in
from ops.artifacts import kinds as known
from ops.artifacts.found import Choice
from ops.jobs.errors import BadInput

HISTORY, LINES = 12, 100


@require_safe
def cleanup(request: HttpRequest) -> HttpResponse:
    """All nodes: how full they are, what can be given back, and what was purged."""
    nodes = list(Node.objects.all())
    newest = cleanup_rows.newest_scans(nodes)
    part = request.GET.get("part") == "cards"
    context: dict[str, Any] = {"cards": [_card(node, newest.get(node.pk)) for node in nodes]}
    if not part:
        context["purges"] = story.purges(HISTORY)
    return render(request, "cleanup/_cards.html" if part else "cleanup/list.html", context)


def _card(node: Node, scan: ArtifactScan | None) -> dict[str, Any]:
    open_job = story.open_job(node)
    left = cleanup_rows.left(scan) if scan is not None else {}
    return {"node": node, "scan": scan, "address": story.address(node, scan), "silent": job_story.is_silent(node.seen_at),
            "disks": story.with_freed(story.disks(node, scan), {}),
            "running": story.running(open_job) if open_job else None, "failed": story.failed_scan(node, scan),
            "offered_bytes": left.get("offered_bytes"), "choosable_bytes": left.get("choosable_bytes")}


@require_http_methods(["GET", "HEAD", "POST"])
def cleanup_node(request: HttpRequest, node: str) -> HttpResponse:
    """A scan as a preview: the newest, or the one of the job `scan`. A POST is one of the form's buttons, without scripts: it changes nothing, and
    brings the page back with what was chosen."""
    found = get_object_or_404(Node, name=node)
    asked: QueryDict = request.POST if request.method == "POST" else request.GET
    if request.GET.get("part") == "running":
        return _running(request, found)
    scan = _scan(found, asked.get("scan", ""))
    context: dict[str, Any] = {"node": found, "scan": scan, "silent": job_story.is_silent(found.seen_at), **_jobs(found, scan)}
    if scan is not None:
        context |= _preview(scan, asked, posted=request.method == "POST")
    else:
        context |= {"disks": story.with_freed(story.disks(found), {}), "purges": story.purges(HISTORY, found)}
    return render(request, "cleanup/node.html", context)


def _jobs(node: Node, scan: ArtifactScan | None) -> dict[str, Any]:
    job = story.open_job(node)
    return {"running": story.running(job) if job else None, "running_job": job, "failed": story.failed_scan(node, scan)}


def _running(request: HttpRequest, node: Node) -> HttpResponse:
    """The scan or purge that runs; nothing once none does. The header X-Job-Seq says up to which event it knows."""
    job = story.open_job(node)
    response = render(request, "cleanup/_running.html", {"node": node, "running": story.running(job) if job else None})
    if job is not None:
        response.headers["X-Job-Seq"] = str(job.last_seq)
    return response


def _preview(scan: ArtifactScan, asked: QueryDict, *, posted: bool) -> dict[str, Any]:
    shown, now = story.Shown.of(asked), timezone.now()
    shown.fit_a_form()
    choice = story.first_choice(scan)
    if posted:
        choice = story.chosen(asked)
        if press := asked.get("choose", ""):
            choice = story.pressed(scan, choice, press, shown)
    found = story.disks(scan.node, scan)
    groups = story.groups(scan, shown, now=now, disks=found)
    totals = story.totals(scan, choice)
    disks = story.with_freed(found, story.freed_on(scan, choice, found))
    main = story.main_disk(scan, found)
    data = story.told(scan, groups, choice, found)
    offered = story.told(scan, groups, cleanup_choice.all_offered(scan), found)["kinds"]
    data["offered"] = {name: {part: kind[part] for part in ("whole", "minus", "plus")} for name, kind in offered.items()}
    purges = story.purges(HISTORY, scan.node)
    return {
        "groups": _ticked(groups, choice), "shown": shown, "headings": story.headings(shown), "choice": choice, "totals": totals, "data": data,
        "disks": disks, "main": disks[main] if main is not None else None, "main_index": main, "facts": story.found_facts(scan),
        "largest": story.largest(scan), "trouble": story.problems(scan), "roots": story.roots_words(scan), "purges": purges,
        "of_this": [one for one in purges if one["job"].params.get("scan") == str(scan.job_id) and one["job"].is_final],
        "newer": _newer(scan), "whole": cleanup_rows.is_whole(scan), "of_all": _of_all(scan),
        "choices": _choices(scan), "carried": _carried(groups, choice), "seconds": scan.took_s,
    }


def _ticked(groups: list[dict[str, Any]], choice: Choice) -> list[dict[str, Any]]:
    """Each kind and row with whether its box is ticked; `mixed`: some of a kind, not all."""
    numbers, without = set(choice.numbers), set(choice.without)
    for group in groups:
        whole = group["kind"] in choice.kinds
        group["ticked"] = whole and group["choosable"]["count"] > 0
        for row in group["rows"]:
            number = row["artifact"].number
            row["ticked"] = row["can"] and ((whole and number not in without) or (not whole and number in numbers))
        group["shown"] = ",".join(str(row["artifact"].number) for row in group["rows"] if row["can"])
    return groups


def _carried(groups: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    """What of a choice has no box on the page: it goes along in hidden fields."""
    here = {row["artifact"].number for group in groups for row in group["rows"] if row["can"]}
    kinds = {group["kind"] for group in groups}
    return {"numbers": ",".join(str(one) for one in choice.numbers if one not in here),
            "without": ",".join(str(one) for one in choice.without if one not in here), "kinds": [one for one in choice.kinds if one not in kinds]}


def _choices(scan: ArtifactScan) -> dict[str, Any]:
    """What the filters offer."""
    services = scan.artifacts.exclude(service="").order_by("service").values_list("service", flat=True).distinct()
    return {"kinds": [(name, kind["title"]) for name, kind in story.kinds_of(scan).items() if kind["count"]], "services": list(services[:200]),
            "states": story.STATES, "larger": story.LARGER, "older": story.OLDER,
            "orders": [(order, f"{title}, {words}") for name, (_, title) in story.ORDERS.items()
                       for order, words in ((f"-{name}", "falling"), (name, "rising"))]}


def _newer(scan: ArtifactScan) -> ArtifactScan | None:
    newest = story.newest_scan(scan.node)
    return newest if newest is not None and newest.pk != scan.pk and newest.at > scan.at else None


def _of_all(scan: ArtifactScan) -> ArtifactScan | None:
    """Beside a scan of a part the newest one that looked at everything: what the fleet says can be given back is its number."""
    found = cleanup_rows.newest_scans([scan.node]).get(scan.node_id)
    return found if found is not None and found != scan and cleanup_rows.is_whole(found) else None


def _scan(node: Node, number: str) -> ArtifactScan | None:
    """The scan that a page is about. Raises Http404 for the number of a job that is no finished scan of this node."""
    if not number:
        return story.newest_scan(node)
    found = ArtifactScan.objects.filter(node=node, finished=True, job__number=_digits(number)).select_related("job", "node").first()
    if found is None:
        raise Http404("This node has no such scan any more")
    return found


def _digits(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


@require_safe
def cleanup_rows_part(request: HttpRequest, node: str) -> HttpResponse:
    """For the page's script: the groups as the filter has them; with `of` (a kind) and `start` its next rows; with `numbers` all that is found."""
    found = get_object_or_404(Node, name=node)
    scan = _scan(found, request.GET.get("scan", ""))
    if scan is None:
        raise Http404("This node has no scan")
    shown, disks = story.Shown.of(request.GET), story.disks(found, scan)
    if "numbers" in request.GET:
        return JsonResponse({"kinds": story.numbers(scan, shown, disks)})
    if kind := request.GET.get("of", ""):
        shown.open = {kind: max(story.MORE, 1)}
        start = max(0, _digits(request.GET.get("start", "0")))
        group = next((one for one in story.groups(scan, shown, disks=disks) if one["kind"] == kind), None)
        if group is None:
            raise Http404("The scan found nothing of this kind")
        group["rows"] = story.rows(scan, group, shown, start=start, disks=disks)
        group["more"] = max(0, group["hits"] - start - len(group["rows"]))
        group["next"] = start + len(group["rows"]) + story.MORE
        group["more_bytes"] = None
        return render(request, "cleanup/_rows.html", {"group": _ticked([group], Choice())[0], "scan": scan})
    groups = story.groups(scan, shown, disks=disks)
    context = {"groups": _ticked(groups, Choice()), "headings": story.headings(shown), "shown": shown, "scan": scan}
    return render(request, "cleanup/_groups.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def cleanup_scan(request: HttpRequest, node: str) -> HttpResponse:
    """GET asks for folders and kinds; POST starts the scan: of everything, if nothing is named."""
    found = get_object_or_404(Node, name=node)
    permissions.require(request.user, "job.artifact-scan")
    if request.method == "POST":
        roots = [line.strip() for line in request.POST.get("roots", "").splitlines() if line.strip()]
        kinds = request.POST.getlist("kind")
        every = request.POST.get("every", "")
        all_kinds = not kinds or (every.isdigit() and len(kinds) == int(every))
        dispatch.start_scan(node=found, user=signed_in(request), roots=roots or None, kinds=None if all_kinds else kinds,
                            idempotency_key=request.POST.get("idempotency_key", "")[:64] or None)
        return redirect("cleanup_node", node=found.name)
    kinds_known = known.all_kinds([kind.record for kind in ArtifactKind.objects.all()])
    last = story.newest_scan(found)
    params = last.job.params if last is not None and isinstance(last.job.params, dict) else {}
    asked = params.get("kinds")
    context = {"node": found, "kinds": [{"kind": kind, "ticked": not isinstance(asked, list) or kind.name in asked} for kind in kinds_known],
               "roots": "\n".join(str(root) for root in params.get("roots") or [] if isinstance(root, str)), "every": len(kinds_known),
               "back": reverse("cleanup_node", args=[found.name]), "places": story.roots(last) if last is not None else []}
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "cleanup/_scan.html" if fragment else "cleanup/scan.html", context)


@require_POST
def cleanup_purge(request: HttpRequest, node: str) -> HttpResponse:
    """The question before a purge, with exactly what it takes; with `step` "start" the purge itself."""
    found = get_object_or_404(Node, name=node)
    permissions.require(request.user, "job.purge")
    scan = _scan(found, request.POST.get("scan", ""))
    if scan is None:
        raise BadInput(f"`{found.name}` was never scanned", hint="Scan it first: only what was previewed is deleted")
    choice = story.chosen(request.POST)
    if request.POST.get("step") == "start":
        key = request.POST.get("idempotency_key", "")[:64] or None
        job = dispatch.start_purge(scan=scan, choice=choice, user=signed_in(request), idempotency_key=key)
        return redirect("job", number=job.number)
    totals = story.totals(scan, choice)
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    if not totals["count"]:
        if not fragment:
            messages.warning(request, "Nothing is chosen yet: tick what is to be deleted.")
        return redirect(f"{reverse('cleanup_node', args=[found.name])}?scan={scan.job.number}")
    disks = story.disks(found, scan)
    freed = [one for one in story.with_freed(disks, story.freed_on(scan, choice, disks)) if one["gives"]]
    context = {
        "node": found, "scan": scan, "choice": choice, "totals": totals, "services": cleanup_choice.services(scan, choice), "disks": freed,
        "numbers": ",".join(map(str, choice.numbers)), "without": ",".join(map(str, choice.without)),
        "old": (timezone.now() - scan.at).total_seconds() > 3600, "newer": _newer(scan), "optional": [
            kind for kind in totals["kinds"] if not kind["offered_by_default"]],
    }
    return render(request, "cleanup/_purge.html" if fragment else "cleanup/purge.html", context)


@require_safe
def manifest(request: HtmxRequest, number: int) -> HttpResponse:
    """What one purge did, line by line: everything that was chosen, and what became of it."""
    job = get_object_or_404(Job.objects.select_related("service", "node", "by"), number=number)
    told = purge_story.purged(job)
    if told is None and job.type not in story.PURGE_JOBS:
        raise Http404("This job has purged nothing")
    titles = {kind["kind"]: kind["title"] for kind in told["kinds"]} if told else {}
    shown = story.Lines.of(request.GET)
    page = Paginator(story.lines(job, shown), LINES).get_page(request.GET.get("page"))
    usual = story.usual_reasons(job, titles)
    rows = [{"line": line, **dict(zip(("folder", "name"), story.parted(line.path), strict=True)),
             "result": story.RESULTS.get(line.result, ("unknown", line.result)),
             "reason": line.reason if line.reason != usual.get(line.kind) else "",
             "age": story.age_words((job.created_at - line.newest).total_seconds())} for line in page.object_list]
    from_scan = _uuid(job.params.get("scan"))
    return list_response(request, "cleanup/manifest.html", "cleanup/_lines.html", {
        "page": page, "rows": rows, "chosen": shown.as_dict(), "things": "line,lines", "job": job, "told": told, "title": job_story.title(job),
        "kinds": list(titles.items()), "results": story.RESULTS, "titles": titles, "usual": usual, "there": bool(told and told["lines"]),
        "exports": [(fmt, title) for fmt, (_, title) in cleanup_exports.FORMATS.items()],
        "scan": ArtifactScan.objects.filter(job_id=from_scan).select_related("job").first() if from_scan else None})


@require_safe
def manifest_export(request: HttpRequest, number: int, fmt: str) -> HttpResponse:
    """A manifest as a file: `fmt` "csv", "json" or "md"."""
    if fmt not in cleanup_exports.FORMATS:
        raise Http404("There is no such export")
    job = get_object_or_404(Job.objects.select_related("service", "node", "by"), number=number)
    if not PurgedArtifact.objects.filter(job=job).exists():
        raise Http404("This job has no manifest")
    answer = HttpResponse("".join(cleanup_exports.text(job, fmt)), content_type=cleanup_exports.FORMATS[fmt][0])
    answer.headers["Content-Disposition"] = f'attachment; filename="manifest-{job.number}.{fmt}"'
    return answer


def _uuid(value: Any) -> str | None:
    try:
        return str(uuid.UUID(str(value)))
    except ValueError:
        return None
