"""Pages. What several of them need stands here."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.request import QueryDict
from django.shortcuts import render
from django_htmx.http import push_url
from django_htmx.middleware import HtmxDetails


def signed_in(request: HttpRequest) -> User:
    """Who asks. The middleware lets nobody else through; should it ever, this raises PermissionDenied."""
    if not isinstance(request.user, User):
        raise PermissionDenied("You are not signed in")
    return request.user


def problems(form: Any) -> str:
    """What is wrong with a form, in one line."""
    told = {field: " ".join(str(error) for error in errors) for field, errors in form.errors.items()}
    return "; ".join(words if field == "__all__" else f"{field}: {words}" for field, words in told.items())


class HtmxRequest(HttpRequest):
    """A request as `HtmxMiddleware` hands it on."""

    htmx: HtmxDetails


def list_response(request: HtmxRequest, whole: str, part: str, context: dict[str, Any]) -> HttpResponse:
    """A list: the page, or the list alone for htmx (filters, paging) and for the live refresh of list_page.js.

    `context["chosen"]`: the filters. The form sends empty fields too; the address that htmx shows has only those that were chosen.
    """
    chosen = QueryDict(mutable=True)
    chosen.update({name: value for name, value in context["chosen"].items() if value})
    query = chosen.urlencode()
    shown = context | {"query": query, "filtered": bool(query)}
    htmx = request.htmx and not request.htmx.history_restore_request
    if not htmx:
        return render(request, part if request.headers.get("X-Roundhouse-Fragment") == "part" else whole, shown)
    response = render(request, "parts/_list_swap.html", shown | {"part": part})
    if request.htmx.trigger == "filters":
        push_url(response, f"{request.path}?{query}" if query else request.path)
    return response
