from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory

from dashboard.middleware import StaticFiles

STYLE = "body { color: red }\n" * 100


@pytest.fixture
def middleware(tmp_path: Path, settings: Any) -> StaticFiles:
    (tmp_path / "app.css").write_text(STYLE)
    (tmp_path / "app.css.gz").write_bytes(gzip.compress(STYLE.encode()))
    settings.STATIC_ROOT, settings.WHITENOISE_USE_FINDERS, settings.WHITENOISE_AUTOREFRESH = tmp_path, False, False

    async def behind(request: HttpRequest) -> HttpResponse:
        return HttpResponse("a page")

    return StaticFiles(behind)


async def answered(middleware: StaticFiles, path: str, **headers: str) -> tuple[Any, bytes]:
    response = await middleware(AsyncRequestFactory().get(path, headers=headers))
    body = b"".join([part async for part in response]) if response.streaming else response.content
    return response, body


async def test_a_file_is_served_without_a_hop_to_the_views(middleware: StaticFiles) -> None:
    response, body = await answered(middleware, "/static/app.css")
    assert (response.status_code, body) == (200, STYLE.encode())
    assert response.headers["Content-Type"].startswith("text/css") and "Access-Control-Allow-Origin" not in response.headers


async def test_a_browser_that_can_gets_it_compressed(middleware: StaticFiles) -> None:
    response, body = await answered(middleware, "/static/app.css", **{"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip" and gzip.decompress(body) == STYLE.encode()


async def test_a_file_that_has_not_changed_is_not_sent_again(middleware: StaticFiles) -> None:
    first, _ = await answered(middleware, "/static/app.css")
    response, body = await answered(middleware, "/static/app.css", **{"If-None-Match": first.headers["ETag"]})
    assert (response.status_code, body) == (304, b"")


async def test_everything_else_goes_on(middleware: StaticFiles) -> None:
    assert (await answered(middleware, "/static/../secret_key"))[1] == b"a page"
