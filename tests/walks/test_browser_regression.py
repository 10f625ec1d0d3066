"""Regression watch in a real browser over the whole product: a baseline of three runs, the noise floor, one sweep that says little, and the button
after which there is a verdict."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.walks.browser_console import chromium, sign_in
from tests.walks.practice_stack import PracticeStack

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
SLOW = 120_000  # ms: a deadline to poll for, on two busy cores


def ask(page: Page, stack: PracticeStack, step: str, repeats: int) -> None:
    """One level of four at once, by the form; until its job has ended well."""
    page.goto(f"{stack.address}/services/practice/kimi-k25/sweep/")
    page.check("input[name=preset][value=quick]")
    for name, value in (("levels", "4"), ("requests", "40"), ("level_seconds", "10"), ("max_tokens", "64"), ("repeats", str(repeats))):
        page.fill(f"#{name}", value)
    page.click(f"button[value={step}]")
    succeeded(page)


def succeeded(page: Page) -> None:
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    expect(page.locator("h1").locator("xpath=..").locator("svg[aria-label='succeeded']")).to_be_visible(timeout=SLOW)


def test_a_person_pins_a_baseline_and_lets_three_runs_decide(stack: PracticeStack) -> None:
    said: list[str] = []
    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, said)
        expect(page.locator(".state", has_text="Healthy")).to_be_visible(timeout=SLOW)

        ask(page, stack, "start", 3)
        page.goto(f"{stack.address}/benchmarks/")
        page.locator("a[href*='/benchmarks/']", has_text="kimi-k25").first.click()
        page.get_by_role("button", name=re.compile("baseline", re.I)).click()

        ask(page, stack, "floor", 3)
        expect(page.get_by_role("heading", name="Noise floor", exact=True)).to_be_visible()

        ask(page, stack, "start", 1)
        panel = page.locator("section", has=page.get_by_role("heading", name="Against the baseline"))
        expect(panel).to_contain_text("3 runs then, 1 run now")
        expect(panel).to_contain_text(re.compile("within|outside"))
        expect(panel).not_to_contain_text(re.compile("better|worse|not decided"))

        panel.get_by_role("button", name="Decide: run 2 more").click()
        succeeded(page)
        expect(panel).to_contain_text("3 runs then, 3 runs now")
        expect(panel).to_contain_text(re.compile("better|worse|same|not decided"))
        expect(panel).to_contain_text("Not interleaved")
        panel.get_by_role("link", name="Compare").click()
        expect(page).to_have_url(re.compile(r"side=[0-9a-f-]{36}%2C|side=[0-9a-f-]{36},"))
    assert said == []
