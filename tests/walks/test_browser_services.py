"""A service controlled by a person in a real browser, over the whole product: stopped, looked at for leftovers, started, crashed and diagnosed."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tests.walks.browser_console import chromium, sign_in
from tests.walks.practice_stack import PracticeStack, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]
SLOW = 90_000  # ms: a deadline to poll for, on two busy cores


def ends(page: Page, state: str = "succeeded") -> None:
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    expect(page.locator(".page-head .state", has_text=re.compile(state, re.I)).first).to_be_visible(timeout=SLOW)


def confirmed(page: Page, button: str, *, then: str) -> None:
    """Presses a button that asks, and its answer."""
    page.get_by_role("group", name="Control kimi-k25").get_by_role("link", name=button).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name=then).click()


def sets_without_scripts(browser: Browser, page: Page, service: str) -> None:
    """Launch settings and the smoke suite, changed by forms alone. (A page without scripts does not go on by itself: it is opened again.)"""
    plain = browser.new_context(java_script_enabled=False, storage_state=page.context.storage_state()).new_page()

    def ends_well() -> None:
        plain.wait_for_url(re.compile(r"/jobs/\d+/"))
        wait_until(lambda: plain.reload() and plain.locator(".page-head .state", has_text=re.compile("succeeded", re.I)).count(), 60, "the job ends")

    plain.goto(f"{service}launch/")
    plain.get_by_label("Name of a new variable").first.fill("WALK_TOKEN")
    plain.get_by_label("Its value").first.fill("canary-of-the-walk")
    plain.get_by_role("button", name="Preview the difference").click()
    expect(plain.get_by_role("row", name="WALK_TOKEN")).to_contain_text("secret")
    assert "canary-of-the-walk" not in plain.content()
    plain.get_by_role("button", name="Save these settings").click()
    ends_well()
    plain.goto(f"{service}smoke/")
    plain.get_by_role("checkbox", name="Code generation").uncheck()
    plain.get_by_role("button", name="Save the suite").click()
    ends_well()
    plain.context.close()


def test_a_person_stops_starts_and_is_told_why_it_crashed(stack: PracticeStack) -> None:
    said: list[str] = []
    service = f"{stack.address}/services/practice/kimi-k25/"

    def has(selector: str) -> bool:
        try:
            page.goto(service)
        except Error as error:  # the page loads itself anew when a failure or its cause arrives
            if "interrupted by another navigation" not in error.message:
                raise
            return False
        return page.locator(selector).count() > 0

    def shows(state: str) -> None:
        wait_until(lambda: has(f"[data-service-state={state}]"), 60, f"the page says {state}")

    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, said)
        shows("healthy")

        confirmed(page, "Stop…", then="Stop kimi-k25")
        ends(page)
        shows("stopped")
        expect(page.get_by_role("heading", name="kimi-k25 is stopped")).to_be_visible()

        page.get_by_role("button", name="Check leftovers").click()
        ends(page)
        expect(page.locator("#left")).to_be_visible()  # files of the same user may lie about on this machine; processes of the service must not
        assert "It belonged to kimi-k25" not in page.inner_text("main")

        page.goto(service)
        confirmed(page, "Start…", then="Start kimi-k25")
        page.wait_for_url(re.compile(r"/jobs/\d+/"))
        expect(page.get_by_role("heading", name="Warmup", exact=True)).to_be_visible(timeout=SLOW)
        ends(page)
        page.get_by_role("navigation", name="Steps").get_by_text("Smoke tests").click()
        expect(page.get_by_text("What is the capital of").first).to_be_attached(timeout=SLOW)
        shows("healthy")
        expect(page.locator("#warmups .main-svg").first).to_be_visible()
        sets_without_scripts(browser, page, service)
        page.goto(service)
        expect(page.locator("#launch")).to_contain_text("Changed since its process started", timeout=SLOW)

        os.kill(json.loads(next(stack.state.rglob("services/kimi-k25/process.json")).read_text())["pid"], signal.SIGKILL)
        shows("failed")
        wait_until(lambda: has("#failure-1"), 60, "the end that nobody asked for is listed")
        expect(page.get_by_role("heading", name="kimi-k25 does not answer")).to_be_visible()
        page.locator("#failure-1 summary").click()
        expect(page.locator("#failure-1")).to_contain_text(re.compile("SIGKILL|exit code|not seen"))
        assert not said, "\n".join(said)
