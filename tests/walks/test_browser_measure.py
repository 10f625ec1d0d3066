"""Measuring in a real browser over the whole product: a sweep on the practice box, its chart as it grows, the comparison with the published figures,
and all of it as files."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.walks.browser_console import chromium, sign_in, wait
from tests.walks.practice_stack import PracticeStack, practice_stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SLOW = 90_000  # ms: a deadline to poll for, on two busy cores
POINTS = "document.querySelectorAll('#throughput .scatterlayer .point').length"
PICTURES = os.environ.get("ROUNDHOUSE_PICTURES")  # a folder: a picture of the comparison is left there to be looked at
CHARTS = ("throughput", "latency", "ttft", "tpot", "pareto", "ratio", "ecdf-ttft", "ecdf-icl")


@pytest.fixture
def stack(short_path: Path) -> Iterator[PracticeStack]:
    with practice_stack(short_path, speed=10) as made:
        yield made


def eventually(page: Page, condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        page.wait_for_timeout(50)


def saved(page: Page, click: Callable[[], None]) -> tuple[str, bytes]:
    """Name and content of the file that a click brings."""
    with page.expect_download(timeout=SLOW) as coming:
        click()
    return coming.value.suggested_filename, Path(coming.value.path()).read_bytes()


def test_a_person_measures_compares_with_the_published_figures_and_takes_the_numbers_along(stack: PracticeStack) -> None:
    said: list[str] = []
    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, said)
        expect(page.locator(".state", has_text="Healthy")).to_be_visible(timeout=SLOW)

        page.goto(f"{stack.address}/services/practice/kimi-k25/sweep/")
        page.check("input[name=preset][value=quick]")
        page.fill("#levels", "1, 8, 32")
        page.fill("#level_seconds", "5")
        page.fill("#max_tokens", "64")
        page.click("button[value=start]")
        page.wait_for_url(re.compile(r"/jobs/\d+/"))

        eventually(page, lambda: page.evaluate(POINTS) >= 1, "the chart has a point")
        first = page.evaluate(POINTS)
        eventually(page, lambda: page.evaluate(POINTS) > first, "the chart grows while the page stays")
        expect(page.locator("h1").locator("xpath=..").locator("svg[aria-label='succeeded']")).to_be_visible(timeout=SLOW)

        page.goto(f"{stack.address}/benchmarks/")
        page.check("input[name=run][aria-label*='kimi-k25']")
        page.check("input[name=run][aria-label*='Published figures']")
        page.click("[data-chosen-go]")
        page.wait_for_url(re.compile(r"/benchmarks/compare/\?side=[0-9a-f-]{36}&side=[0-9a-f-]{36}$"))
        for chart in CHARTS:
            wait(page, f"document.querySelector('#{chart} .main-svg')")
        table = page.locator("#sides")
        expect(table.get_by_text("Published figures")).to_be_visible()
        expect(table.get_by_text("no verdict")).to_be_visible()
        expect(page.get_by_text("the baseline by published figures: no verdict across tools")).to_be_visible()
        wait(page, f"{POINTS} === 6")  # three levels of each side
        address = page.url
        page.reload()
        wait(page, f"{POINTS} === 6")
        assert page.url == address
        if PICTURES:
            page.screenshot(path=str(Path(PICTURES) / "compare-with-the-reference.png"), full_page=True)

        page.click("#export > summary")
        name, content = saved(page, lambda: page.get_by_role("link", name="CSV").click())
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        assert name == "comparison.csv"
        assert {row["side"] for row in rows} == {"A", "B"}
        assert {row["verdict"] for row in rows if row["verdict"]} == {"not tested"}
        name, content = saved(page, lambda: page.get_by_role("link", name="JSON").click())
        told = json.loads(content)
        reference = next(n for n, side in enumerate(told["sides"]) if side["tools"] == ["published figures"])
        figures = {level["value"]: one["values"]["output_tok_s"]["mean"] for level in told["levels"] if (one := level["sides"][reference])}
        assert figures == pytest.approx({1: 61, 8: 277, 128: 1239})
        name, content = saved(page, lambda: page.get_by_role("link", name="Markdown").click())
        assert "published figures" in content.decode()
        name, content = saved(page, lambda: page.click("[data-png=throughput]"))
        assert name.endswith(".png")
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    assert said == []

