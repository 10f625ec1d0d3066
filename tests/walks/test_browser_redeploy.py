"""The main walk, in a real browser over the whole product: sign in, Redeploy, confirm the plan, watch, reload half way, end on the report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.walks.browser_console import POINTS, chromium
from tests.walks.practice_stack import PracticeStack, practice_stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SLOW = 60_000  # ms: a deadline to poll for, on two busy cores


@pytest.fixture
def stack(short_path: Path) -> Iterator[PracticeStack]:
    with practice_stack(short_path, speed=4) as made:
        yield made


def step_states(page: Page) -> dict[str, str]:
    """What the step list says now: step name -> the label of its icon ("done", "running", "to come", ...)."""
    pairs = page.evaluate("[...document.querySelectorAll('.steps [data-step]')].map("
                          "e => [e.dataset.step, e.querySelector('svg')?.getAttribute('aria-label') ?? ''])")
    return dict(pairs)


def eventually(page: Page, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Polls from here: the pages' content security policy forbids what Playwright's own wait_for_function does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        page.wait_for_timeout(50)


def points_drawn(page: Page) -> int:
    """Levels that show in the throughput chart."""
    return int(page.evaluate(POINTS))


def test_a_person_redeploys_and_watches_it_to_the_report(stack: PracticeStack) -> None:
    said: list[str] = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce").new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))

        page.goto(stack.sign_in_link)
        page.get_by_role("button", name=re.compile("sign in", re.I)).click()
        expect(page.get_by_role("heading", name="Fleet", level=1)).to_be_visible()
        expect(page.get_by_text("PRACTICE").first).to_be_visible()
        expect(page.locator(".state", has_text="Healthy")).to_be_visible(timeout=SLOW)

        page.get_by_role("button", name="Redeploy").first.click()
        confirm = page.get_by_role("button", name=re.compile("^Redeploy kimi-k25"))
        expect(confirm).to_be_visible(timeout=SLOW)
        expect(page.get_by_text("coupled, added by Roundhouse")).to_be_visible()
        confirm.click()
        page.wait_for_url(re.compile(r"/jobs/\d+/"))

        eventually(page, lambda: list(step_states(page).values()).count("done") >= 3, "three steps are done")
        early = step_states(page)
        page.reload()
        eventually(page, lambda: step_states(page).get("warmup") == "done", "the warmup is done")
        later = step_states(page)
        assert early["report"] == later["report"] == "to come"
        assert sum(state == "done" for state in later.values()) > sum(state == "done" for state in early.values())

        eventually(page, lambda: points_drawn(page) >= 1, "the chart has a point")
        first = points_drawn(page)
        page.reload()
        eventually(page, lambda: points_drawn(page) > first, "the chart grows after a reload")

        expect(page.get_by_role("heading", name="Benchmark")).to_be_visible(timeout=SLOW)
        assert set(step_states(page).values()) == {"done"}
        for part in ("Reinstall", "Cleanup", "Service verified", "Benchmark"):
            expect(page.get_by_role("heading", name=part)).to_be_visible()
        expect(page.locator(".report-part", has_text="Cleanup").get_by_text("35 debug tensors")).to_be_visible()
        eventually(page, lambda: points_drawn(page) == 4, "the report's chart has all four levels")
        expect(page.get_by_role("button", name="Copy as Markdown")).to_be_visible()
    assert said == []
