"""Measuring in a real browser over the whole product: a sweep on the practice box, its chart as it grows, the comparison with the published figures,
and all of it as files. And comparisons of every kind as they are drawn."""

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

from tests.walks.browser_console import POINTS, BrowserConsole, chromium, running_console, sign_in, visit, wait
from tests.walks.practice_stack import PracticeStack
from tests.walks.test_browser_pages import look

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SLOW = 90_000  # ms: a deadline to poll for, on two busy cores
PICTURES = os.environ.get("ROUNDHOUSE_PICTURES")  # a folder: a picture of the comparison is left there to be looked at
CHARTS = ("throughput", "latency", "ttft", "tpot", "pareto", "ratio", "ecdf-ttft", "ecdf-icl")


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
        page.fill("#levels", "1, 8")
        page.fill("#requests", "2000")  # more than fit: each level takes its time
        page.fill("#level_seconds", "2")
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
        wait(page, f"{POINTS} === 5")  # two levels of ours, three of the published figures
        address = page.url
        page.reload()
        wait(page, f"{POINTS} === 5")
        assert page.url == address
        if PICTURES:
            page.screenshot(path=str(Path(PICTURES) / "compare-with-the-reference.png"), full_page=True)

        page.click("#export > summary")
        name, content = saved(page, lambda: page.get_by_role("link", name="CSV").click())
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        assert name == "comparison.csv"
        assert {row["side"] for row in rows} == {"A", "B"}
        assert {row["verdict"] for row in rows if row["verdict"]} == {"no verdict"}
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


@pytest.fixture
def console() -> Iterator[BrowserConsole]:
    with running_console() as made:
        yield made


DRAWN = "[...document.querySelectorAll('.chart')].every(e => e.querySelector('.main-svg'))"
COLOURS = """Object.fromEntries([...document.querySelectorAll('.chart')].map(e => [e.id, Object.fromEntries(
  e.data.filter(t => /^[A-H]$/.test(t.name ?? '')).map(t => [t.name, t.error_x?.color ?? t.line.color]))]))"""


@pytest.mark.slow
def test_comparisons_look_right_and_answer_in_place(console: BrowserConsole) -> None:
    seeded = console.seed("comparing")
    runs = seeded["runs"]  # the newest first: the published figures, another tool's, another model's, three of each release
    old, new = ",".join(runs[6:9]), ",".join(runs[3:6])
    wrong: list[str] = []
    with chromium() as browser, visit(browser, console) as (page, said):
        for name, query in (("two", f"?side={old}&side={new}"), ("five", "?" + "&".join(f"run={run}" for run in runs)),
                            ("eight", "?" + "&".join(f"side={run}" for run in runs[:8])), ("choose", "")):
            for theme, width in (("light", 1440), ("dark", 390), ("dark", 1440), ("light", 390)):
                page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"{console.address}/benchmarks/compare/{query}", wait_until="load")
                wait(page, DRAWN)
                page.wait_for_timeout(150)
                wrong += look(page, f"compare-{name}-{width}-{theme}")
                if name != "choose" and (theme, width) == ("light", 1440):
                    for side in {side for one in page.evaluate(COLOURS).values() for side in one}:
                        # the line on the Pareto chart is paler, its markers are not
                        found = {one[side] for chart, one in page.evaluate(COLOURS).items() if side in one and chart != "pareto"}
                        wrong += [f"{name}: {side} has {sorted(found)}"] if len(found) > 1 else []
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{console.address}/benchmarks/compare/?side={old}&side={new}")
        page.select_option("#metric", "ttft_p50_ms")
        page.wait_for_url(re.compile(r"&metric=ttft_p50_ms"))
        expect(page.get_by_role("heading", name="TTFT P50 against A")).to_be_visible()
        page.get_by_role("button", name="Decided").click()
        expect(page.get_by_text("Nothing is decided yet")).to_be_visible()
        page.get_by_role("button", name="All", exact=True).click()
        assert page.locator("[data-differences] tbody tr:visible").count() == 8
        page.locator("#throughput").locator("xpath=..").get_by_text("Show the numbers").click()
        expect(page.locator("#throughput").locator("xpath=..").get_by_role("cell", name="1,239")).to_be_visible()
    assert not wrong + said, "\n".join(wrong + said)
