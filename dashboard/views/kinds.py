"""Kinds of leftovers in Settings: what a scan looks for. Everybody may see them; only admins make, change and remove their own."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import audit, kind_forms, permissions
from dashboard.from_a_node import texts
from dashboard.kind_forms import KindForm
from dashboard.models import ArtifactKind, AuditEntry
from dashboard.views import signed_in
from ops.jobs.errors import BadInput


@require_safe
def kinds(request: HttpRequest) -> HttpResponse:
    """All kinds: the own ones, and what Roundhouse knows by itself."""
    return render(request, "settings/kinds.html", {"own": kind_forms.own(), "builtin": kind_forms.builtin()})


@require_http_methods(["GET", "HEAD", "POST"])
def kind_new(request: HttpRequest) -> HttpResponse:
    permissions.require(request.user, "kind.manage")
    if kind_forms.is_too_many():
        raise BadInput(f"There are {kind_forms.OWN_MOST} kinds of your own already", why="Every scan takes all of them along",
                       hint="Remove one, or give one more patterns")
    form = KindForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid() and form.made is not None:
        name = form.made["name"]
        try:
            with transaction.atomic():
                ArtifactKind.objects.create(name=name, record=form.made)
                audit.changed(user=signed_in(request).pk, action="kind.create", subject=name, before={}, after=form.made)
        except IntegrityError:
            form.add_error("name", f"There is a kind called {name} already")
        else:
            messages.success(request, f"{form.made['title']}: the next scan looks for them.", extra_tags="ok")
            return redirect("kind_edit", name=name)
    return _page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def kind_edit(request: HttpRequest, name: str) -> HttpResponse:
    """What an own kind is, and a form to change it."""
    permissions.require(request.user, "kind.manage")
    stored = get_object_or_404(ArtifactKind, name=name)
    form = KindForm(request.POST if request.method == "POST" else None, stored=stored)
    if request.method == "POST" and form.is_valid() and form.made is not None:
        with transaction.atomic():
            row = ArtifactKind.objects.select_for_update().get(pk=stored.pk)
            before = row.record
            if form.made != before:
                row.record = form.made
                row.save(update_fields=["record", "changed_at"])
                audit.changed(user=signed_in(request).pk, action="kind.edit", subject=name, before=before, after=form.made)
        messages.success(request, f"{form.made['title']} are saved. Previews made before keep what they were made from.", extra_tags="ok")
        return redirect("kind_edit", name=name)
    return _page(request, form, stored)


@require_http_methods(["GET", "HEAD", "POST"])
def kind_remove(request: HttpRequest, name: str) -> HttpResponse:
    """Asks, and removes. Scans and manifests that were made keep their words."""
    permissions.require(request.user, "kind.manage")
    stored = get_object_or_404(ArtifactKind, name=name)
    if request.method == "POST":
        with transaction.atomic():
            audit.changed(user=signed_in(request).pk, action="kind.remove", subject=name, before=stored.record, after={})
            stored.delete()
        messages.success(request, f"The kind {name} is removed. No further scan looks for it.", extra_tags="ok")
        return redirect(reverse("settings") + "#kinds")
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "settings/_kind_remove.html" if fragment else "settings/kind_remove.html", {
        "stored": stored, "found": kind_forms.found_by_scans(name)})


def _page(request: HttpRequest, form: KindForm, stored: ArtifactKind | None) -> HttpResponse:
    fields = form.shown()
    context: dict[str, Any] = {"form": form, "stored": stored, "fields": fields, "wrong": [field for field in fields if field.problem],
                               "problems": [str(error) for error in form.non_field_errors()]}
    if stored is not None:
        places = texts(stored.record.get("places"), kind_forms.LINES_MOST)
        context |= {"line": kind_forms.node_line(places), "found": kind_forms.found_by_scans(stored.name, places),
                    "title": stored.record.get("title") or stored.name,
                    "changes": list(AuditEntry.objects.filter(action__startswith="kind.", subject=stored.name).select_related("by")[:8])}
    return render(request, "settings/kind.html", context, status=400 if form.is_bound and form.errors else 200)
