"""The patch shelf of a service: what was edited by hand and saved before something overwrote it."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from dashboard import diffs, environment_story
from dashboard.models import ShelvedPatch
from dashboard.views.environments import find_service, tab_counts
from dashboard.views.fleet import service_card


def _patch(node: str, name: str, id: int) -> ShelvedPatch:
    service = find_service(node, name)
    return get_object_or_404(ShelvedPatch.objects.select_related("job", "service", "service__node"), service=service, pk=id)


@require_safe
def shelf(request: HttpRequest, node: str, name: str) -> HttpResponse:
    """All saves, newest first."""
    found = find_service(node, name)
    groups = environment_story.saves(found)
    return render(request, "shelf/shelf.html", {
        "service": found, "card": service_card(found), "groups": groups, "count": sum(len(group["files"]) for group in groups),
        "forgotten": ShelvedPatch.objects.filter(service=found).exclude(forgotten_at=None).count(), "reading": tab_counts(found), "tab": "shelf"})


@require_safe
def shelf_patch(request: HttpRequest, node: str, name: str, id: int) -> HttpResponse:
    """One saved file with its difference."""
    patch = _patch(node, name, id)
    others = ShelvedPatch.objects.filter(service=patch.service, path=patch.path, forgotten_at=None).exclude(pk=patch.pk)[:8]
    return render(request, "shelf/patch.html", {
        "service": patch.service, "card": service_card(patch.service), "patch": patch, "others": others, "debris": diffs.debris_words(patch.debris),
        "shown": diffs.rows(patch.diff, patch.path, patch.debris) if patch.diff else None})


@require_safe
def shelf_download(request: HttpRequest, node: str, name: str, id: int) -> HttpResponse:
    """One file's difference, for `git apply` and `patch -p1`."""
    patch = _patch(node, name, id)
    if not patch.diff:
        raise Http404("There is no difference of this file; the node keeps the whole copy")
    return _attachment([patch], f"{patch.path.rsplit('/', 1)[-1]}-{patch.folder}")


@require_safe
def shelf_save_download(request: HttpRequest, node: str, name: str, folder: str) -> HttpResponse:
    """All differences of one save as one file."""
    found = find_service(node, name)
    patches = list(ShelvedPatch.objects.filter(service=found, folder=folder, forgotten_at=None).order_by("path"))
    if not any(patch.diff for patch in patches):
        raise Http404("There is no difference in this save; the node keeps the whole copies")
    return _attachment(patches, folder)


def _attachment(patches: list[ShelvedPatch], name: str) -> HttpResponse:
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)[:150]
    return HttpResponse(diffs.whole_patch(patches), content_type="text/x-diff; charset=utf-8",
                        headers={"Content-Disposition": f'attachment; filename="{safe}.patch"'})
