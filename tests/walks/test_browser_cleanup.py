"""Cleanup in a real browser over the whole product: a scan of the practice box, a choice, a purge, its manifest. And the preview of a scan that lists
more than fits, as it is filtered, ordered and chosen from. Whatever the console says fails it."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.walks.browser_console import chromium, running_console, sign_in, visit, wait
from tests.walks.practice_stack import PracticeStack
from tests.walks.test_browser_pages import look

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SLOW = 90_000  # ms: a deadline to poll for, on two busy cores
PICTURES = os.environ.get("ROUNDHOUSE_PICTURES")  # a folder: pictures of the walk are left there to be looked at


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


def tensors(stack: PracticeStack) -> dict[str, int]:
    """The practice box's debug tensors that are still there: name and bytes on the disk."""
    return {file.name: file.stat().st_blocks * 512 for file in stack.state.rglob("kimi_dbg_layer*.pt")}


def megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:.1f} MB"


def said(page: Page) -> str:
    return page.inner_text("[data-bar-of-choice] [data-said]").replace("\u202f", " ")


def test_a_person_scans_chooses_purges_and_reads_the_manifest(stack: PracticeStack) -> None:
    heard: list[str] = []
    with chromium() as browser:
        page = sign_in(browser, stack.sign_in_link, heard)
        expect(page.locator(".state", has_text="Healthy")).to_be_visible(timeout=SLOW)
        there = tensors(stack)
        assert len(there) == 35

        page.goto(f"{stack.address}/cleanup/practice/")
        page.click("text=Scan practice")
        page.wait_for_selector("tbody[data-kind=debug-tensor]", timeout=SLOW)  # the page shows the preview by itself when the scan has ended
        picture(page, "walk-preview")
        page.click("[data-choose=none] >> nth=0")
        assert said(page) == "Nothing is chosen."
        page.check("input[name=kinds][value=debug-tensor]")
        assert said(page).startswith(f"35 debug tensors, {megabytes(there.values())} on practice")
        kept = page.locator("tbody[data-kind=debug-tensor] tr[data-n]").first
        name = Path(kept.locator(".path").inner_text()).name
        kept.locator("input").uncheck()
        gives = megabytes(bytes_ for one, bytes_ in there.items() if one != name)
        assert said(page).startswith(f"34 debug tensors, {gives} on practice")
        page.reload()
        wait(page, "document.querySelector('[data-bar-of-choice] [data-said]').textContent.startsWith('34 debug tensors')")

        page.click("[data-review]")
        page.wait_for_selector("dialog[open]")
        assert f"Delete 34 items, {gives}, on practice?" in page.inner_text("dialog").replace("\u202f", " ")
        assert len(tensors(stack)) == 35
        picture(page, "walk-question")
        page.click("dialog >> text=Delete 34 items for good")
        page.wait_for_url(re.compile(r"/jobs/\d+/"))
        expect(page.locator("h1").locator("xpath=..").locator("svg[aria-label='succeeded']")).to_be_visible(timeout=SLOW)
        assert list(tensors(stack)) == [name]
        number = re.search(r"/jobs/(\d+)/", page.url)
        assert number

        page.goto(f"{stack.address}/cleanup/manifests/{number[1]}/")
        expect(page.get_by_text("34 lines", exact=True)).to_be_visible()
        picture(page, "walk-manifest")
        page.select_option("#result", "kept")
        expect(page.get_by_text("No line is like that.")).to_be_visible()
        with page.expect_download(timeout=SLOW) as coming:
            page.get_by_role("link", name="CSV").click()
        rows = list(csv.DictReader(io.StringIO(Path(coming.value.path()).read_text())))
        assert {row["result"] for row in rows} == {"deleted"}
        assert len(rows) == 34

        page.goto(f"{stack.address}/cleanup/practice/")
        expect(page.get_by_text("34 items deleted")).to_be_visible()
        assert page.locator("tbody[data-kind=debug-tensor] tr[data-n] input").count() <= 1
        page.click("text=Scan again")
        page.wait_for_selector(".page-meta >> text=nothing of it has been deleted yet", timeout=SLOW)
        expect(page.locator("tbody[data-kind=debug-tensor]")).to_contain_text("1 file")
    assert heard == []


@pytest.mark.slow
def test_a_preview_is_filtered_ordered_and_chosen_from_in_place() -> None:
    wrong: list[str] = []
    with running_console() as console, chromium() as browser:
        console.seed("previewing")
        with visit(browser, console) as (page, heard):
            for name, path in (("cleanup", "/cleanup/"), ("cleanup-node", "/cleanup/practice/"), ("cleanup-scan", "/cleanup/practice/scan/")):
                for theme, width in (("light", 1440), ("dark", 390), ("dark", 1440), ("light", 390)):
                    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                    page.set_viewport_size({"width": width, "height": 900})
                    page.goto(f"{console.address}{path}", wait_until="load")
                    page.wait_for_timeout(150)
                    wrong += look(page, f"{name}-{width}-{theme}")
            page.set_viewport_size({"width": 1440, "height": 900})
            page.goto(f"{console.address}/cleanup/practice/")
            first = said(page)
            assert first.startswith("3,196 items of 7 kinds, 10.2 GB")

            traces = page.locator("tbody[data-kind=function-trace]")
            traces.locator("[data-fold]").click()
            expect(traces.locator("tr[data-n]")).to_have_count(50)
            traces.locator("[data-more]").click()
            expect(traces.locator("tr[data-n]")).to_have_count(60)
            expect(traces).to_contain_text("and 3,080 more that are not listed")
            expect(traces).to_contain_text("chosen with the whole kind")
            page.click("[data-choose=clear]")
            assert said(page) == "Nothing is chosen."
            expect(traces).to_contain_text("they go only with the whole kind")
            traces.locator("input[name=kinds]").check()
            traces.locator("tr[data-n] input").nth(3).uncheck()
            assert said(page).startswith("3,139 function traces, ")
            assert page.evaluate("document.querySelector('input[value=function-trace]').indeterminate")

            page.fill("#q", "dbg_layer1")
            expect(page.locator("tbody[data-kind]")).to_have_count(1)
            assert page.url.endswith("?q=dbg_layer1")
            page.click("[data-choose=all]")
            assert said(page).startswith("11 debug tensors and 3,139 function traces, ")
            page.click("button.sort[value=path]")
            expect(page.locator("th[aria-sort=ascending]")).to_contain_text("path")
            assert page.locator("tr[data-n] .path").first.inner_text().endswith("dbg_layer10_000.pt")
            page.click("#clear")
            expect(page.locator("tbody[data-kind]")).to_have_count(12)
            assert said(page).startswith("11 debug tensors and 3,139 function traces, ")
            page.keyboard.press("Escape")
            page.click("[data-review]")
            page.wait_for_selector("dialog[open]")
            assert "Delete 3,150 items" in page.inner_text("dialog")
            wrong += look(page, "cleanup-question")
            page.keyboard.press("Escape")
            page.click("[data-choose=offered]")
            assert said(page) == first
            free = page.inner_text("[data-free-after]").replace("\u202f", " ")
            assert free == "31.6 GB"
            wrong += heard
    assert not wrong, "\n".join(wrong)
