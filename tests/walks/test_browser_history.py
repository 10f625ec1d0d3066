"""The pages of runs in a real Chromium: ticks that last, orders, charts with their pictures, a level chosen, a trend."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.walks.browser_console import BrowserConsole, chromium, running_console, visit, wait

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def console() -> Iterator[BrowserConsole]:
    with running_console() as made:
        made.seed("measuring")
        yield made


def drawn(page: Page, chart: str) -> None:
    wait(page, f"document.querySelector('#{chart} .scatterlayer .trace, #{chart} .barlayer .trace')")


def hover_points(page: Page, *charts: str) -> None:
    """Rests on a point of each: what Plotly says of it must break no rule of the page's."""
    for chart in charts:
        drawn(page, chart)
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        box = page.locator(f"#{chart} .scatterlayer .point").last.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        wait(page, f"document.querySelector('#{chart} .hoverlayer .hovertext')")
        page.mouse.move(2, 2)


def test_ticks_last_over_orders_and_filters_and_become_a_comparison(console: BrowserConsole, browser: Browser) -> None:
    with visit(browser, console) as (page, said):
        page.goto(f"{console.address}/benchmarks/")
        boxes = page.locator("tr", has_text="PRACTICE").locator('input[name="run"]:not([disabled])')  # never beside real ones
        first, second = boxes.nth(1).get_attribute("value"), boxes.nth(2).get_attribute("value")
        boxes.nth(1).check()
        assert page.locator("[data-chosen-go]").is_disabled()
        boxes.nth(2).check()
        page.get_by_role("link", name=re.compile("Peak")).click()
        wait(page, "location.search.includes('sort=-peak')")
        wait(page, "document.querySelector('th[aria-sort=descending]')?.textContent.includes('Peak')")
        assert page.locator(f'input[value="{first}"]').is_checked()
        page.locator("#q").fill("nothing-like-it")
        wait(page, "document.querySelector('#list .empty')")
        assert "sort=-peak" in page.url  # a filter keeps the order
        assert "2 runs ticked" in page.locator("[data-chosen-count]").inner_text()
        page.locator("[data-chosen-go]").click()
        wait(page, "location.pathname.includes('/compare/')")
        assert str(first) in page.url and str(second) in page.url
        hover_points(page, "throughput", "pareto", "ratio")
        assert [line for line in said if line.startswith("error")] == []


def test_every_chart_of_a_run_is_drawn_and_saved_as_a_picture(console: BrowserConsole, browser: Browser) -> None:
    with visit(browser, console) as (page, said):
        page.goto(f"{console.address}/benchmarks/?q=kimi-k25&state=done")
        page.locator(".run-cell a.plain", has_text="kimi-k25").nth(1).click()
        wait(page, "location.pathname.match(/benchmarks\\/[0-9a-f-]{36}\\//)")
        for chart in ("throughput", "latency", "ttft", "tpot", "pareto", "ecdf-ttft", "ecdf-icl", "level-seconds", "level-requests"):
            drawn(page, chart)
        hover_points(page, "throughput", "latency", "ttft", "tpot", "pareto")
        for chart in ("throughput", "level-requests"):
            with page.expect_download() as download:
                page.locator(f'[data-png="{chart}"]').click()
            assert download.value.suggested_filename.endswith(".png")
            assert download.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        page.locator("#level-chosen").select_option("closed:8")
        page.locator("#t-requests > summary").click()
        wait(page, "document.querySelectorAll('#requests-table tbody tr').length === 100")
        assert [line for line in said if line.startswith("error")] == []


def test_a_trend_shows_another_level_at_once(console: BrowserConsole, browser: Browser) -> None:
    with visit(browser, console, width=390, theme="dark") as (page, said):
        page.goto(f"{console.address}/services/practice/kimi-k25/trend/")
        drawn(page, "trend")
        with page.expect_navigation():
            page.locator("#level").select_option("closed:128")
        wait(page, "location.search.includes('level=closed%3A128') && document.querySelector('#trend .scatterlayer .trace')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert [line for line in said if line.startswith("error")] == []
