"""A node that lies, in a real browser: no page of a console full of its canaries runs a script, loads anything, or says a word on the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.walks.browser_console import BrowserConsole, chromium, running_console, visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SERVICE = "/services/practice/kimi-k25/"


@pytest.fixture
def console() -> Iterator[BrowserConsole]:
    with running_console() as made:
        yield made


def test_no_canary_sings(console: BrowserConsole) -> None:
    seeded = console.seed("hostile")
    paths = ["/", "/nodes/practice/", "/services/", "/jobs/", "/settings/", "/cleanup/", "/cleanup/practice/", "/benchmarks/", SERVICE,
             *(f"{SERVICE}{part}/" for part in ("environment", "integrity", "shelf", "run/guards-apply", "run/recipe"))]
    paths += [f"{SERVICE}shelf/{pk}/" for pk in seeded["shelf"][:3]]
    kinds: dict[str, int] = {kind: number for number, kind, *_ in seeded["jobs"]}
    paths += [f"/plans/{number}/" if kind == "plan" else f"/jobs/{number}/" for kind, number in kinds.items()]
    seen = 0
    with chromium() as browser, visit(browser, console) as (page, said):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        for path in paths:
            answer = page.goto(f"{console.address}{path}")
            assert answer is not None and answer.status in (200, 400), (path, answer and answer.status)
            seen += "window.canary=1" in page.inner_text("body")
            assert not page.evaluate("'canary' in window"), path
            assert page.evaluate("document.querySelectorAll('a[href^=\"javascript\"], img[src=x], [onerror]').length") == 0, path
            expected = [] if answer.status == 200 else [one for one in said if "400" in one]
            assert said == expected, (path, said)
            said.clear()
        assert all(url.startswith((console.address, "data:", "blob:")) for url in asked)
    assert seen > 10
