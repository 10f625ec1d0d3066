"""What stands between every request and its view: security headers, static files, sign-in, and expected errors made readable."""

from __future__ import annotations

import base64
import hashlib
import re
from asyncio import iscoroutinefunction, to_thread
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

from asgiref.sync import markcoroutinefunction, sync_to_async
from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import reverse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage

from dashboard.views.errors import error_response, wants_json, what_is_away
from ops.jobs.errors import BadInput, Busy, OpsError, Refused, Timeout
from ops.jobs.streams import RedisAway

TOO_BIG = "roundhouse.too_big"  # in an ASGI scope, the limit: `asgi.py` has thrown the body away
STATUS_OF_ERROR: tuple[tuple[type[OpsError], int], ...] = ((BadInput, 400), (Refused, 403), (Busy, 409), (Timeout, 504), (RedisAway, 503))


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Static files by hashed name, so that browsers keep them for ever; ES modules import each other by hashed name too."""

    support_js_module_import_aggregation = True


def inline_style_of_plotly(script: str) -> str:
    """The text that plotly.js puts into a `<style>` element when it loads. Raises BadInput if there is no single such text."""
    found = re.findall(r"""\.textContent=(?:'((?:[^'\\\n])*)'|"((?:[^"\\\n])*)")""", script)
    texts = [one or other for one, other in found if "{" in (one or other)]
    if len(texts) != 1:
        raise BadInput(f"plotly.min.js has {len(texts)} inline style texts, not 1", hint="Look at how this version of Plotly adds its styles")
    return texts[0]


@cache
def content_security_policy() -> str:
    """No inline script, no foreign source, no frame around us. Inline style only as plotly.js needs it: its own text and an
    empty element that it then fills by script (recomputed at each start from the installed plotly.min.js)."""
    script = Path(settings.PLOTLY_ASSETS, "plotly.min.js").read_text(encoding="utf-8")
    digests = [hashlib.sha256(text.encode()).digest() for text in ("", inline_style_of_plotly(script))]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'self'; img-src 'self' data: blob:; style-src 'self' {hashes}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


class _Middleware:
    """For both kinds of request handling: `after` sees every response, and is quick."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        return self.after(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return self.after(request, await self.get_response(request))

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        return response


class SecurityHeaders(_Middleware):
    """The content security policy on everything, static files and redirects too; pages of signed-in people stay out of shared and back-button
    caches."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self.policy = content_security_policy()

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Content-Security-Policy", self.policy)
        response.headers.setdefault("X-Frame-Options", settings.X_FRAME_OPTIONS)
        response.headers.setdefault("Permissions-Policy", "camera=(), microphone=(), geolocation=(), payment=()")
        if not request.path_info.startswith("/" + settings.STATIC_URL.lstrip("/")):
            response.headers.setdefault("Cache-Control", "no-store")
        return response


# What turns the direction of reading (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) or acts on a terminal (control characters but tab,
# newline and carriage return), in UTF-8
_ACTS = re.compile(rb"\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def visible(text: str) -> str:
    """A text as pages show it."""
    return _ACTS.sub("\ufffd".encode(), text.encode(errors="replace")).decode()


class VisibleText(_Middleware):
    """Pages show as a replacement character what would make a package's name, a path or a finding read otherwise than it is (S13)."""

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if isinstance(response, HttpResponse) and response.headers.get("Content-Type", "").startswith("text/html") and _ACTS.search(response.content):
            response.content = _ACTS.sub("\ufffd".encode(), response.content)
        return response


class StaticFiles(WhiteNoiseMiddleware):
    """WhiteNoise, also under ASGI: its own middleware would make every request behind it hop through a thread."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._acall(request) if self.is_async else super().__call__(request)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        static_file = self.find_file(request.path_info) if self.autorefresh else self.files.get(request.path_info)
        if static_file is None or request.method not in ("GET", "HEAD"):  # WhiteNoise' own refusal of a method is an empty page
            return await self.get_response(request)
        found = await to_thread(static_file.get_response, request.method, request.META)

        async def chunks() -> AsyncIterator[bytes]:
            try:
                while chunk := await to_thread(found.file.read, 1 << 16):
                    yield chunk
            finally:
                found.file.close()

        if found.file is None:
            response: HttpResponseBase = HttpResponse(status=int(found.status))
        else:
            response = StreamingHttpResponse(chunks(), status=int(found.status))
        del response.headers["Content-Type"]
        for name, value in found.headers:
            response.headers[name] = value
        return response


class SignInRequired(LoginRequiredMiddleware):
    """Every view asks for a signed-in user unless it says otherwise. Programs get 401, htmx the address to go to, browsers the sign-in page."""

    def handle_no_permission(self, request: HttpRequest, view_func: Any) -> HttpResponseBase:  # type: ignore[override]
        told = OpsError("You are not signed in", hint="Sign in, then try again", kind="not_signed_in")
        if request.headers.get("HX-Request") == "true":
            response = error_response(request, 401, told)
            response.headers["HX-Redirect"] = reverse("sign_in")
            return response
        if wants_json(request) or request.method not in {"GET", "HEAD"}:
            return error_response(request, 401, told)
        return super().handle_no_permission(request, view_func)


def status_of(error: OpsError) -> int:
    """The HTTP status that says what kind of failure this was."""
    return next((status for kind, status in STATUS_OF_ERROR if isinstance(error, kind)), 502)


def _too_big(request: HttpRequest) -> int | None:
    """The limit in bytes that the request's body was beyond; None where it was not."""
    limit: int | None = getattr(request, "scope", {}).get(TOO_BIG)
    return limit


def _has_nul(request: HttpRequest) -> bool:
    """PostgreSQL takes no NUL, in no parameter of a query."""
    return "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", "")


class ExpectedErrors(_Middleware):
    """An OpsError that a view lets through becomes a page (or JSON) with what, why and hint; so do a database or a Redis that is away, a method
    that an address does not take, and a request that `asgi.py` found too big."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        return self.before(request) or self.after(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        if (refusal := await sync_to_async(self.before)(request) if self._is_refused(request) else None) is not None:
            return refusal
        response: HttpResponseBase = await self.get_response(request)
        return await sync_to_async(self.after)(request, response) if response.status_code == 405 else response

    def _is_refused(self, request: HttpRequest) -> bool:
        return _too_big(request) is not None or _has_nul(request)

    def before(self, request: HttpRequest) -> HttpResponseBase | None:
        """The answer to what no view needs to see."""
        if (limit := _too_big(request)) is not None:
            return error_response(request, 413, BadInput(
                "This is too big for the console", why=f"A request may hold {limit:,} bytes", hint="Send less: of a log, the end is the better part"))
        if _has_nul(request):
            return error_response(request, 400, BadInput("This address cannot be understood", why="It holds a NUL character"))
        return None

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Django's own answer to a wrong method is an empty page."""
        if response.status_code != 405 or response.streaming or bool(getattr(response, "content", b"")):
            return response
        allowed = response.headers.get("Allow", "")
        told = error_response(request, 405, BadInput(f"This address does not take {request.method}", why=f"It takes {allowed}" if allowed else ""))
        told.headers["Allow"] = allowed
        return told

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        if isinstance(exception, OpsError):
            return error_response(request, status_of(exception), exception)
        if (away := what_is_away(exception)) is not None:
            return error_response(request, 503, away)
        return None
