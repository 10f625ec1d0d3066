"""Error pages: what happened, why, what to do. Programs (`Accept: application/json`) get the same as JSON.

Templates: `errors/<status>.html`, else `errors/error.html`, with the context `status`, `title`, `what`, `why`, `hint`, `kind`, `facts`.
JSON: `{"error": {"kind", "what", "why", "hint", "facts"}}` (OpsError.as_dict).
"""

from __future__ import annotations

import logging
import sys
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import select_template
from django.utils.html import format_html
from redis.exceptions import RedisError

from ops.jobs.errors import BadInput, OpsError

logger = logging.getLogger(__name__)


def wants_json(request: HttpRequest) -> bool:
    """True for programs and event streams: they get JSON where a browser gets a page."""
    accept = request.headers.get("Accept", "")
    return "text/html" not in accept and ("application/json" in accept or "text/event-stream" in accept)


def error_response(request: HttpRequest, status: int, error: OpsError) -> HttpResponse:
    """The one way to answer with an error. Falls back to plain HTML where the page's template itself cannot be shown."""
    if wants_json(request):
        return JsonResponse({"error": error.as_dict()}, status=status)
    title = HTTPStatus(status).phrase
    context = {"status": status, "title": title, **error.as_dict()}
    try:
        text = select_template([f"errors/{status}.html", "errors/error.html"]).render(context, request)
    except Exception as failure:  # what failed may be what the page's frame needs: database, static files, the template itself
        if not isinstance(failure, TemplateDoesNotExist | DatabaseError):
            logger.exception("the error page could not be shown")
        text = format_html(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title} · Roundhouse</title><h1>{what}</h1><p>{why}</p><p>{hint}</p>'
            '<p><a href="/">Back to the fleet</a></p></html>', title=title, what=error.what, why=error.why, hint=error.hint)
    return HttpResponse(text, status=status)


def what_is_away(error: BaseException | None) -> OpsError | None:
    """The sentence for a database or a Redis that does not answer; None for any other failure."""
    hint = "Nothing is lost; try again in a moment. Jobs that run go on"
    if isinstance(error, RedisError):
        return OpsError("Redis does not answer", why=type(error).__name__, hint=hint, kind="unavailable")
    if isinstance(error, OperationalError):
        return OpsError("The database does not answer", why=str(error), hint=hint, kind="unavailable")
    return None


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if isinstance(exception, RequestDataTooBig):
        return error_response(request, 413, BadInput(
            "This form holds too much text", why=f"At most {settings.MAX_BODY_BYTES:,} bytes are taken as text",
            hint="Send less of it; a long log can be chosen as a file"))
    return error_response(request, 400, OpsError(
        "This request cannot be understood", why=type(exception).__name__, hint="Go back and try again", kind="bad_input"))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    return error_response(request, 403, OpsError(
        str(exception) or "You may not do this", hint="Ask an admin of this console", kind="refused"))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    return error_response(request, 403, OpsError(
        "This form is out of date, or it came from another site", why=reason, hint="Reload the page and try again", kind="refused"))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    told: Any = exception.args[0] if exception.args else ""
    return error_response(request, 404, OpsError(
        told if isinstance(told, str) and told else "There is nothing at this address",
        hint="It may have been removed; look in the lists", kind="not_found"))


def server_error(request: HttpRequest) -> HttpResponseBase:
    """A bug, or what failed before any view was reached: the session, say, which lives in the database."""
    if (away := what_is_away(sys.exc_info()[1])) is not None:
        return error_response(request, 503, away)
    return error_response(request, 500, OpsError(
        "Roundhouse made a mistake", why="This is a fault in the console, not in your service; its log has the traceback",
        hint="Try again; jobs that run are not touched by this", kind="bug"))
