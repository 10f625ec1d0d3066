"""Signing in and out.

`accounts/sign_in.html` gets: `mode` ("password": a form with `username`, `password`, `next`; "link": one button that posts to the same
address), `next`, `username`, `error` (None or {what, why, hint}), `has_passwords` (false: nobody has a password yet, so only
links work: `manage.py sign_in_link` prints one).
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate, get_user_model, login, logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.hashers import UNUSABLE_PASSWORD_PREFIX
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render, resolve_url
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import accounts
from dashboard.models import AuditEntry

BACKEND = "django.contrib.auth.backends.ModelBackend"


def _next(request: HttpRequest) -> str:
    """Where to go afterwards: a path of this console itself."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    if wanted.startswith("/") and url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        return wanted
    return resolve_url(settings.LOGIN_REDIRECT_URL)


def _page(request: HttpRequest, *, status: int = 200, **context: Any) -> HttpResponse:
    has_passwords = get_user_model().objects.filter(is_active=True).exclude(password__startswith=UNUSABLE_PASSWORD_PREFIX).exists()
    shown = {"mode": "password", "error": None, "username": "", "next": _next(request), "has_passwords": has_passwords, **context}
    return render(request, "accounts/sign_in.html", shown, status=status)


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """By name and password, for those who have set one."""
    if request.method != "POST":
        return HttpResponseRedirect(_next(request)) if request.user.is_authenticated else _page(request)
    username = request.POST.get("username", "")[:150].replace("\0", "")  # PostgreSQL takes no NUL
    user = authenticate(request, username=username, password=request.POST.get("password", "")[:1000])
    if user is None:
        AuditEntry.objects.create(action="account.sign_in_refused", subject=username[:150])
        return _page(request, status=403, username=username, error={
            "what": "This name and password do not belong together", "why": "", "hint": "Try again, or ask for a sign-in link"})
    login(request, user)
    AuditEntry.objects.create(by_id=user.pk, action="account.signed_in", subject=user.get_username(), data={"with": "password"})
    return HttpResponseRedirect(_next(request))


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_by_link(request: HttpRequest, token: str) -> HttpResponse:
    """By a one-time link. Looking at it shows a button and uses nothing up: mail scanners and chat previews look at links too."""
    gone = {"what": "This sign-in link does not work any more", "why": f"A link works once, within {settings.SIGN_IN_LINK_MINUTES} minutes",
            "hint": "Make a new one on the console's host: `manage.py sign_in_link`"}
    if request.method != "POST":
        return _page(request, mode="link") if accounts.is_usable(token) else _page(request, status=410, error=gone)
    user = accounts.use_token(token)
    if user is None:
        return _page(request, status=410, error=gone)
    login(request, user, backend=BACKEND)
    AuditEntry.objects.create(by_id=user.pk, action="account.signed_in", subject=user.get_username(), data={"with": "link"})
    return HttpResponseRedirect(_next(request))


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Ends the session; its open live streams end within a minute."""
    AuditEntry.objects.create(by_id=request.user.pk, action="account.signed_out", subject=request.user.get_username())
    logout(request)
    return redirect(settings.LOGOUT_REDIRECT_URL)
