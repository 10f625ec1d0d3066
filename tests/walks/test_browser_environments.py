"""From edited files to a roll back, in a real browser over the whole product: integrity with diffs, a plan with both ways, redeploy, shelf, back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.walks.browser_console import chromium, served, sign_in
from tests.walks.practice_stack import PracticeStack, practice_stack, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SLOW = 60_000  # ms: a deadline to poll for, on two busy cores
PATCHED = ["deepseek_v2.py", "gguf_loader.py", "weight_utils.py", "config.py"]


@pytest.fixture
def stack(short_path: Path) -> Iterator[PracticeStack]:
    with practice_stack(short_path, speed=20) as made:
        yield made


def reload_until(page: Page, text: str) -> None:
    """The pages of a service are complete when they are loaded; what a node says a moment later, the next load shows."""
    wait_until(lambda: text in served(page, page.url) and page.reload() and page.get_by_text(text).count(), 60, f"{page.url} shows {text}")


def job_ends_well(page: Page) -> None:
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    expect(page.locator(".page-head .state", has_text=re.compile("succeeded|done", re.I)).first).to_be_visible(timeout=SLOW)


def test_a_person_finds_edits_redeploys_and_rolls_back(stack: PracticeStack) -> None:
    said: list[str] = []
    service = f"{stack.address}/services/practice/kimi-k25/"
    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, said)
        page.goto(service)
        expect(page.locator(".title .state", has_text="Healthy")).to_be_visible(timeout=SLOW)

        # what was edited
        page.get_by_role("navigation", name="Pages of kimi-k25").get_by_role("link", name="Integrity").click()
        page.get_by_role("button", name="Check every file").click()
        job_ends_well(page)
        page.goto(f"{service}integrity/")
        reload_until(page, "4 files differ from what was installed")
        files = page.locator("details.file-block")
        assert sorted(name for name in PATCHED if files.filter(has_text=name).count() == 1) == sorted(PATCHED)
        deepseek = files.filter(has_text="deepseek_v2.py")
        expect(deepseek.get_by_text("debug code in a hot path")).to_be_visible()
        if deepseek.get_attribute("open") is None:
            deepseek.locator("summary").click()
        expect(deepseek.locator("li.add.hot", has_text="torch.save").first).to_be_visible()
        expect(files.filter(has_text="weight_utils.py").get_by_text("debug code in a hot path")).to_have_count(0)

        expect(page.get_by_text("not what is running")).to_have_count(0)  # they were typed long before it was started

        # both ways, and the plan of one of them
        expect(page.get_by_role("button", name="Plan to restore just the changed files")).to_be_visible()
        page.get_by_role("button", name="Plan a full clean redeploy").click()
        page.wait_for_url(re.compile(r"/plans/\d+/"))
        confirm = page.get_by_role("button", name=re.compile("^Redeploy"))
        expect(confirm).to_be_visible(timeout=SLOW)
        expect(page.get_by_role("heading", name="Two ways to put the edited files right")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("this plan"))).to_have_count(1)
        expect(page.get_by_text("coupled, added by Roundhouse")).to_be_visible()
        page.locator("input[name=sweep]").uncheck()
        page.locator("input[name=purge_kinds][value=debug-tensor]").uncheck()
        expect(page.get_by_text("Nothing will be deleted.")).to_be_visible()
        confirm.click()
        job_ends_well(page)

        # nothing that was typed is lost
        page.goto(f"{service}shelf/")
        reload_until(page, "deepseek_v2.py")
        for name in PATCHED:
            expect(page.get_by_role("link", name=re.compile(re.escape(name))).first).to_be_visible()
        page.get_by_role("row", name=re.compile("deepseek_v2.py")).get_by_role("link", name="View").click()
        expect(page.locator("li.add", has_text="torch.save").first).to_be_visible()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download .patch").click()
        assert "+            torch.save(" in Path(download.value.path()).read_text()

        # and the way back
        page.goto(service)
        reload_until(page, "Roll back")
        current = page.get_by_role("row").filter(has=page.locator(".tag", has_text="current"))
        expect(current).to_contain_text("dev344")
        page.get_by_role("row", name=re.compile("dev313")).get_by_role("link", name=re.compile("^Roll back")).click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading", name="Roll kimi-k25 back?")).to_be_visible()
        expect(dialog.get_by_text("Expected downtime")).to_be_visible()
        dialog.get_by_role("button", name=re.compile("^Roll back")).click()
        job_ends_well(page)
        page.goto(service)
        expect(page.locator(".title .state", has_text="Healthy")).to_be_visible(timeout=SLOW)
        wait_until(lambda: page.reload() and "dev313" in current.inner_text(), 60, "the earlier release is the current one")
    assert said == []
