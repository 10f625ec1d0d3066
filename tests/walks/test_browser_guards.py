"""Guards set by a person in a real browser, over the whole product: a preset, one by hand that does not hold, one removed, and what `up` leaves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ops.agent.config import NodePaths
from ops.practice import box
from tests.walks.browser_console import chromium, served, sign_in
from tests.walks.practice_stack import PracticeStack, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
SLOW = 60_000  # ms: a deadline to poll for, on two busy cores


def job_ends_well(page: Page) -> None:
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    expect(page.locator(".page-head .state", has_text=re.compile("succeeded", re.I)).first).to_be_visible(timeout=SLOW)


def test_a_person_adds_guards_and_removes_one(stack: PracticeStack) -> None:
    said: list[str] = []
    service = f"{stack.address}/services/practice/kimi-k25/"
    stored = next(stack.state.rglob("services.d")) / "kimi-k25.json"
    record: dict[str, Any] = json.loads(stored.read_text())

    def guards() -> list[dict[str, Any]]:
        return list(json.loads(stored.read_text())["guards"])

    def shows(page: Page, words: str) -> None:
        wait_until(lambda: words in served(page, service) and page.goto(service) and page.locator("#guards").get_by_text(words).count(), 60,
                   f"the page shows {words}")

    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, said)
        shows(page, "2 of 2 hold")

        page.get_by_text("Add guards").click()
        page.get_by_role("link", name=re.compile("SM120")).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading", name=re.compile("^Add guards to kimi-k25"))).to_be_visible()
        dialog.get_by_role("button", name="Add these guards").click()
        job_ends_well(page)
        expect(page.get_by_role("heading", name="Guards", exact=True)).to_be_visible()
        added = [guard["file"] for guard in guards()[2:]]
        assert added == ["hf_quant_config.json"]  # the others of the preset are the box's own, or do not fit its model
        assert {**json.loads(stored.read_text()), "guards": None} == {**record, "guards": None}
        shows(page, "3 of 3 hold")

        page.get_by_text("Add guards").click()
        page.get_by_label("What must hold").select_option("file_present")
        page.get_by_label("File in the model folder").fill("no-such-file.json")
        page.get_by_role("button", name="Add this guard").click()
        expect(page.get_by_role("heading", name="Add a guard to kimi-k25?")).to_be_visible()
        page.get_by_role("button", name="Add this guard").click()
        job_ends_well(page)
        expect(page.get_by_text(re.compile("There is no.*no-such-file")).first).to_be_visible()
        shows(page, "3 of 4 hold")

        page.get_by_role("link", name=re.compile("^Remove this guard: no-such-file")).click()
        expect(dialog.get_by_role("heading", name="Remove a guard of kimi-k25?")).to_be_visible()
        dialog.get_by_role("button", name="Remove this guard").click()
        job_ends_well(page)
        shows(page, "3 of 3 hold")
    assert said == []
    stack.end()
    paths = NodePaths(stored.parent.parent)
    (root,) = {found.parent for found in stack.state.rglob("box.json")}
    assert len(box.set_up(paths, root, port=18996).guards) == 3, "the next `up` leaves them"
