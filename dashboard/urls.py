"""The console's addresses. Pages are in `urls_pages.py`; here stands what they all need: sign-in, live stream, health, errors."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from dashboard.views import accounts, health, live

urlpatterns: list[URLPattern | URLResolver] = [
    path("sign-in/", accounts.sign_in, name="sign_in"),
    path("sign-in/<str:token>/", accounts.sign_in_by_link, name="sign_in_by_link"),
    path("sign-out/", accounts.sign_out, name="sign_out"),
    path("live/", live.live, name="live"),
    path("health/", health.health, name="health"),
    path("", include("dashboard.urls_pages")),
]
handler400 = "dashboard.views.errors.bad_request"
handler403 = "dashboard.views.errors.permission_denied"
handler404 = "dashboard.views.errors.not_found"
handler500 = "dashboard.views.errors.server_error"
