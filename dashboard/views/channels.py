"""Channels in Settings: where wheels come from. Everybody may see them; only admins make, change and remove them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import audit, channel_forms, permissions
from dashboard.channel_forms import ChannelForm
from dashboard.models import AuditEntry, Channel, Job, Service
from dashboard.views import signed_in
from ops.jobs.errors import BadInput
from ops.jobs.events import FINAL_STATES

ICONS = {"stable": "lock", "nightly": "live", "commit": "target", "wheelhouse": "file", "recipe": "ok", "index": "link"}


def listed() -> list[dict[str, Any]]:
    """All channels as the Settings page shows them."""
    return [channel_forms.described(channel) for channel in Channel.objects.defer(None)]


@require_safe
def channel_new(request: HttpRequest) -> HttpResponse:
    """The first question: what the channel is made from."""
    permissions.require(request.user, "channel.manage")
    return render(request, "settings/channel_presets.html", {
        "presets": [{**preset, "icon": ICONS.get(preset["name"], "link")} for preset in channel_forms.presets()]})


@require_http_methods(["GET", "HEAD", "POST"])
def channel_new_from(request: HttpRequest, preset: str) -> HttpResponse:
    permissions.require(request.user, "channel.manage")
    made_from = channel_forms.preset(preset)
    if made_from is None:
        raise Http404(f"There is no preset {preset}")
    form = ChannelForm(made_from, *_posted(request))
    if request.method == "POST" and form.is_valid() and form.made is not None:
        try:
            with transaction.atomic():
                Channel.objects.create(name=form.made.name, record=form.made.as_dict(), practice=form.made.practice)
                audit.changed(user=signed_in(request).pk, action="channel.create", subject=form.made.name, before={}, after=form.made.as_dict())
        except IntegrityError:
            form.add_error("name", f"There is a channel called {form.made.name} already")
        else:
            messages.success(request, f"Channel {form.made.name} is there. A plan shows what a redeploy from it would change.", extra_tags="ok")
            return redirect("channel_edit", name=form.made.name)
    return _page(request, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
def channel_edit(request: HttpRequest, name: str) -> HttpResponse:
    """What a channel is, and a form to change it. The practice box's own can only be looked at."""
    permissions.require(request.user, "channel.manage")
    channel = get_object_or_404(Channel, name=name)
    made_from = channel_forms.preset_of(channel.record)
    if request.method == "POST":
        _refuse_announced(channel)
    if made_from is None or channel.announced:
        return _page(request, None, channel)
    form = ChannelForm(made_from, *_posted(request), channel=channel)
    if request.method == "POST" and form.is_valid() and form.made is not None:
        with transaction.atomic():
            before = Channel.objects.select_for_update().get(pk=channel.pk).record
            if (after := form.made.as_dict()) != before:
                Channel.objects.filter(pk=channel.pk).update(record=after, practice=form.made.practice)
                audit.changed(user=signed_in(request).pk, action="channel.edit", subject=name, before=before, after=after)
        messages.success(request, f"Channel {name} is saved. Plans made before keep what they were made from.", extra_tags="ok")
        return redirect("channel_edit", name=name)
    return _page(request, form, channel)


@require_http_methods(["GET", "HEAD", "POST"])
def channel_remove(request: HttpRequest, name: str) -> HttpResponse:
    """Asks, and removes. Jobs that were started keep the channel as it was."""
    permissions.require(request.user, "channel.manage")
    channel = get_object_or_404(Channel, name=name)
    _refuse_announced(channel)
    if request.method == "POST":
        with transaction.atomic():
            audit.changed(user=signed_in(request).pk, action="channel.remove", subject=name, before=channel.record, after={})
            channel.delete()
        messages.success(request, f"Channel {name} is removed.", extra_tags="ok")
        return redirect(reverse("settings") + "#channels")
    fragment = request.headers.get("X-Roundhouse-Fragment") == "dialog"
    return render(request, "settings/_channel_remove.html" if fragment else "settings/channel_remove.html", {
        "channel": channel, "said": channel_forms.described(channel),
        "only": not Channel.objects.filter(practice=channel.practice).exclude(pk=channel.pk).exists(),
        "open": list(Job.objects.filter(params__channel=name).exclude(state__in=FINAL_STATES).order_by("number")[:5])})


def _page(request: HttpRequest, form: ChannelForm | None, channel: Channel | None) -> HttpResponse:
    context: dict[str, Any] = {"form": form, "channel": channel, "preset": form.preset if form else None}
    if form is not None:
        fields = form.shown()
        context |= {"fields": fields, "problems": [str(error) for error in form.non_field_errors()],
                    "wrong": [field for field in fields if field.problem], "has_file": any(field.kind == "json" for field in fields)}
    if channel is not None:
        recipe = channel.record.get("recipe") or {}
        context |= {"said": channel_forms.described(channel), "needs": channel_forms.node_needs(channel.record),
                    "services": list(Service.objects.filter(practice=channel.practice).select_related("node")[:20]),
                    "recipe": {"hash": recipe.get("hash"), "label": recipe.get("label")} if isinstance(recipe, dict) and recipe else None,
                    "changes": list(AuditEntry.objects.filter(action__startswith="channel.", subject=channel.name).select_related("by")[:8])}
    return render(request, "settings/channel.html", context, status=400 if form is not None and form.is_bound and form.errors else 200)


def _posted(request: HttpRequest) -> tuple[Any, Any]:
    return (request.POST, request.FILES) if request.method == "POST" else (None, None)


def _refuse_announced(channel: Channel) -> None:
    if channel.announced:
        raise BadInput(f"Channel `{channel.name}` is the practice box's own", why="Its node announces it, and would bring it back",
                       hint="Make a channel of your own for real services")
