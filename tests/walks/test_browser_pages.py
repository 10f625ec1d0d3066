"""Every page in a real Chromium: both widths, both themes, empty, full and failing.

Nothing in the console, nothing wider than the window, no weak contrast, a name on everything that can be pressed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.pages import environment_data as said
from tests.walks.browser_console import BrowserConsole, chromium, running_console, visit, wait

pytestmark = pytest.mark.browser
CONTRAST = (Path(__file__).parents[1] / "dashboard" / "pages" / "contrast.js").read_text()
PICTURES = os.environ.get("ROUNDHOUSE_PICTURES")  # a folder: pictures of all pages are left there to be looked at


DRAWN = "[...document.querySelectorAll('.chart')].filter(e => e.getClientRects().length).every(e => e.querySelector('.main-svg'))"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"  # charts have heard of another theme, and are drawn anew
UNNAMED = """[...document.querySelectorAll('button, a[href], input:not([type=hidden]), select, textarea')]
  .filter(e => e.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true }) && !e.closest('details:not([open]) > :not(summary)'))
  .filter(e => !(e.innerText || e.getAttribute('aria-label') || e.title || e.labels?.length || '').toString().trim())
  .map(e => e.outerHTML.slice(0, 90))"""


@pytest.fixture(scope="module")
def console() -> Iterator[BrowserConsole]:
    with running_console() as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


# pages of a world that another world shows in the same state: looked at again only in the long run
AGAIN = {
    "empty": re.compile("channel-.*"),
    "failing": re.compile("benchmarks|compare|guards-.*|confirm-.*|job-redeploy-failed-(build|stop|smoke|purge)"),
    "warming": re.compile("benchmarks|compare|run|environment-.*|guards-.*|job-redeploy-succeeded.*|job-redeploy-running-(build|stop|smoke|purge)"),
    "environments": re.compile("benchmarks|compare|run|guards-by-hand|job-redeploy-succeeded.*"),
}


def addresses(world: str, seeded: dict[str, Any]) -> dict[str, str]:
    """Name of the picture: path."""
    found = {"fleet": "/", "services": "/services/", "jobs": "/jobs/", "benchmarks": "/benchmarks/", "diagnose": "/diagnose/", "cleanup": "/cleanup/",
             "settings": "/settings/", "compare": "/benchmarks/compare/", "channel-presets": "/settings/channels/new/",
             "channel-nightly": "/settings/channels/new/nightly/", "channel-recipe": "/settings/channels/new/recipe/"}
    if world == "empty":
        return found
    if world != "full":  # the same in every world
        for name in ("settings", "channel-presets", "channel-nightly", "channel-recipe", "diagnose", "cleanup"):
            del found[name]
    if world in ("adopting", "empty_node"):
        found = {"services": "/services/", "node-real": "/nodes/gpu01/", "adopt": "/nodes/gpu01/adopt/"}
        if world == "adopting":
            found |= {"adopt-practice": "/nodes/practice/adopt/", "jobs": "/jobs/"}
            found |= {f"job-{kind}-{number}": f"/jobs/{number}/" for number, kind, *_ in seeded["jobs"]}
        return found
    if world == "measuring":
        service = "/services/practice/kimi-k25/"
        found = {"runs": "/benchmarks/", "runs-filtered": "/benchmarks/?state=done&sort=-peak", "runs-none": "/benchmarks/?q=nothing-like-it",
                 "import": "/benchmarks/import/", "trend": f"{service}trend/", "trend-ttft": f"{service}trend/?level=closed:128&metric=ttft_p99_ms",
                 "target": f"{service}target/", "run-edit": f"/benchmarks/{seeded['runs'][0]}/edit/", "service": service}
        return found | {f"run-{number}": f"/benchmarks/{run}/" for number, run in enumerate(seeded["runs"])}
    if world == "services":
        service = "/services/practice/kimi-k25/"
        found = {"fleet": "/", "services": "/services/", "service": service, "service-plain": "/services/practice/glm-5/"}
        found |= {"launch": f"{service}launch/", "launch-plain": "/services/practice/glm-5/launch/", "suite": f"{service}smoke/",
                  "diagnose": "/diagnose/"}
        found |= {f"confirm-{action}": f"{service}run/{action}/" for action in ("start", "stop", "switch", "reset-failed")}
        found |= {f"job-{kind}-{number}": f"/jobs/{number}/" for number, kind, *_ in seeded["jobs"] if kind != "redeploy"}
        left = max(number for number, kind, *_ in seeded["jobs"] if kind == "leftovers")
        return found | {"confirm-end-leftovers": f"{service}run/end-leftovers/?job={left}"}
    found |= {"service": "/services/practice/kimi-k25/", "node": "/nodes/practice/", "confirm-restart": "/services/practice/kimi-k25/run/restart/",
              "confirm-sweep": "/services/practice/kimi-k25/run/sweep/", "confirm-reset": "/services/practice/kimi-k25/run/practice-reset/",
              "not-found": "/jobs/99999/", "channel": "/settings/channels/practice/"}
    service, old = "/services/practice/kimi-k25", said.OLD if world != "failing" else said.BUILT
    if world != "full":
        del found["not-found"], found["channel"], found["confirm-restart"], found["confirm-sweep"], found["confirm-reset"]
    found |= {"environment": f"{service}/environment/", "environment-problems": f"{service}/environment/?show=problems",
              "integrity": f"{service}/integrity/", "shelf": f"{service}/shelf/", "guards": f"{service}/guards/",
              "guards-preset": f"{service}/guards/?preset=sm120", "guards-remove": f"{service}/guards/?remove=0",
              "guards-by-hand": f"{service}/guards/?kind=key_equals&file=config.json&at=num_hidden_layers&value=61"}
    if world in ("full", "environments", "failing"):
        removed = said.NEW if world == "environments" else said.BUILT
        found |= {"confirm-rollback": f"{service}/run/rollback/?release={old if world == 'full' else said.BUILT}",
                  "confirm-remove": f"{service}/run/remove-release/?release={removed}",
                  "confirm-guards": f"{service}/run/guards-apply/", "confirm-recipe": f"{service}/run/recipe/"}
    if seeded["shelf"]:
        found |= {"shelf-patch": f"{service}/shelf/{seeded['shelf'][0]}/", "shelf-patch-plain": f"{service}/shelf/{seeded['shelf'][-1]}/",
                  "confirm-forget": f"{service}/run/shelf-forget/?" + "&".join(f"patch={one}" for one in seeded["shelf"])}
    for number, kind, state, *_ in seeded["jobs"]:
        if kind == "plan" and world == "environments":
            found[f"plan-{number}"] = f"/plans/{number}/"
        if kind == "integrity" and state == "succeeded":
            found.setdefault("integrity-result", f"/jobs/{number}/integrity/")
        if kind in ("artifact-scan", "purge"):
            found |= {"cleanup-node": "/cleanup/practice/"} if kind == "artifact-scan" else {f"manifest-{state}": f"/cleanup/manifests/{number}/"}
        if kind in ("build", "rollback"):
            found.setdefault(f"job-{kind}-shelf", f"/jobs/{number}/?step=shelf")
        found.setdefault(f"job-{kind}-{state}", f"/plans/{number}/" if kind == "plan" else f"/jobs/{number}/")
        if kind == "redeploy":
            for step in ("build", "warmup", "sweep", "smoke", "purge", "stop"):
                found.setdefault(f"job-redeploy-{state}-{step}", f"/jobs/{number}/?step={step}")
        if state == "running":
            found.setdefault("cancel", f"/jobs/{number}/cancel/")
    if seeded["runs"]:
        found["run"] = f"/benchmarks/{seeded['runs'][-1]}/"
    return found


def look(page: Any, name: str) -> list[str]:
    """What is wrong with the page as it is drawn now."""
    wrong = []
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if wide > window:
        wrong.append(f"{name}: {wide} px wide in a window of {window} px")
    contrast = page.evaluate(CONTRAST)
    wrong += [f"{name}: weak contrast {bad}" for bad in (contrast["bad"] + contrast["icons"])[:5]]
    if page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, n, all) => all.indexOf(id) !== n).length"):
        wrong.append(f"{name}: an id stands twice")
    unnamed = page.evaluate(UNNAMED)
    wrong += [f"{name}: no name on {element}" for element in unnamed[:3]]
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)
    return wrong


LOOKS = {"light-wide-dark-narrow": (("light", 1440), ("dark", 390)), "dark-wide-light-narrow": (("dark", 1440), ("light", 390))}
IN_TURN = "in turn"  # each page in one of these looks: the next page in the next one
WORLDS = ("empty", "empty_node", "full", "failing", "warming", "environments", "adopting", "services", "measuring")
IN_EVERY_RUN = [(world, IN_TURN) for world in WORLDS if world != "measuring"]
IN_THE_LONG_RUN = [(world, looks) for world in WORLDS for looks in LOOKS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("world", "looks"), IN_EVERY_RUN + [pytest.param(*case, marks=pytest.mark.slow) for case in IN_THE_LONG_RUN])
def test_every_page_looks_right(console: BrowserConsole, browser: Browser, world: str, looks: str) -> None:
    found = addresses(world, console.seed(world))
    if looks == IN_TURN and (again := AGAIN.get(world)):
        found = {name: path for name, path in found.items() if not again.fullmatch(name)}
    in_turn = cycle(LOOKS["light-wide-dark-narrow"])
    wrong: list[str] = []
    with visit(browser, console) as (page, said):
        for name, path in found.items():
            page.goto(console.address + path, wait_until="load")
            for theme, width in [next(in_turn)] if looks == IN_TURN else LOOKS[looks]:
                page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(50)
                page.evaluate(FRAMES)
                if page.locator(".chart").count():
                    wait(page, DRAWN)
                    page.wait_for_timeout(150)  # Plotly resizes a moment after the window
                wrong += look(page, f"{world}-{name}-{width}-{theme}")
            wrong += [f"{name}: {line}" for line in said if not (name == "not-found" and "404" in line)]
            said.clear()
            page.set_viewport_size({"width": 1440, "height": 900})
    assert not wrong, "\n".join(wrong)


def test_signing_in_looks_right(console: BrowserConsole, browser: Browser) -> None:
    console.seed("empty")
    wrong = []
    for width, theme in ((1440, "light"), (390, "dark")):
        with visit(browser, console, width=width, theme=theme, signed_in=False) as (page, said):
            page.goto(console.address + "/jobs/")
            assert "/sign-in/" in page.url
            wrong += look(page, f"sign-in-{width}-{theme}")
            page.fill("#username", "admin")
            page.fill("#password", "wrong")
            page.press("#password", "Enter")
            page.wait_for_selector("[role=alert]")
            wrong += look(page, f"sign-in-refused-{width}-{theme}")
            said.clear()  # Chromium tells of the 403 itself
            page.goto(console.address + "/sign-in/no-such-token/")
            wrong += look(page, f"sign-in-expired-{width}-{theme}")
            said.clear()  # and of the 410
            page.goto(console.address + "/sign-in/?next=/jobs/")
            page.fill("#username", "admin")
            page.fill("#password", "correct horse battery")
            page.press("#password", "Enter")
            page.wait_for_url(re.compile("/jobs/"))
            page.click("[aria-label^='Account']")
            wrong += look(page, f"menu-{width}-{theme}")
            page.click("text=Sign out")
            page.wait_for_url(re.compile("/sign-in/"))
            wrong += [line for line in said if "favicon" not in line]
    assert not wrong, "\n".join(wrong)


SHOWN = "[...document.querySelectorAll('#list tbody tr')].map(r => r.textContent)"


def test_lists_are_filtered_in_place(console: BrowserConsole, browser: Browser) -> None:
    console.seed("failing")
    with visit(browser, console) as (page, said):
        page.goto(console.address + "/jobs/")
        page.evaluate("document.body.dataset.same = '1'")
        page.select_option("#state", "failed")
        wait(page, "location.search === '?state=failed'")
        wait(page, f"{SHOWN}.length && {SHOWN}.every(t => /Failed|Interrupted/.test(t))")
        page.locator("#q").press_sequentially("redeploy", delay=20)
        wait(page, "location.search === '?q=redeploy&state=failed'")
        wait(page, f"{SHOWN}.every(t => t.includes('Redeploy'))")
        assert page.evaluate("document.activeElement.id") == "q"
        assert page.is_visible("#clear")
        assert "found" in page.inner_text("#found")
        assert page.evaluate("document.body.dataset.same") == "1"
        assert page.evaluate("[...document.querySelectorAll('#list time')].every(t => t.textContent)")
        with page.expect_event("load"):  # htmx keeps no copies of pages: going back loads
            page.evaluate("setTimeout(() => history.back())")
        wait(page, "location.search === '?state=failed' && document.readyState === 'complete' && document.querySelector('#q').value === ''")
        page.click("#clear")
        wait(page, f"location.search === '' && {SHOWN}.length > 3")
        assert not said


def test_a_search_in_benchmarks_that_finds_nothing_says_so(console: BrowserConsole, browser: Browser) -> None:
    console.seed("full")
    with visit(browser, console) as (page, said):
        page.goto(console.address + "/benchmarks/")
        page.fill("#q", "no such run")
        wait(page, "document.querySelector('#list').textContent.includes('No run is like that')")
        assert not said


def test_lists_are_filtered_without_javascript(console: BrowserConsole, browser: Browser) -> None:
    console.seed("failing")
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies([{"name": "roundhouse_session", "value": console.seeded["session"], "url": console.address}])
    page = context.new_page()
    page.goto(console.address + "/jobs/")
    page.select_option("#state", "failed")
    page.click("text=Filter")
    assert "state=failed" in page.url
    assert page.locator("#list tbody tr").count()
    context.close()


def test_a_log_is_chosen_as_a_file_and_one_too_large_is_told_before_it_is_sent(console: BrowserConsole, browser: Browser, tmp_path: Path) -> None:
    console.seed("empty")
    large, log = tmp_path / "large.log", tmp_path / "vllm.log"
    with large.open("wb") as file:
        file.truncate(70 << 20)
    log.write_text("vllm: error: unrecognized arguments: --max-modle-len\n" * 40_000)  # more than other requests may hold
    with visit(browser, console) as (page, said):
        page.goto(f"{console.address}/diagnose/")
        page.set_input_files("#file", large)
        wait(page, "document.getElementById('file-large').textContent.startsWith('This file has 73 MB')")
        page.set_input_files("#file", log)
        wait(page, "!document.getElementById('file-large').textContent")
        page.get_by_role("button", name="Find the decisive line").click()
        page.locator(".card-fail h2").wait_for()
        assert "40,000 lines" in page.inner_text("main") and not said


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
def test_a_plan_says_exactly_what_its_ticks_will_delete(console: BrowserConsole, browser: Browser, scripts: bool) -> None:
    number = next(number for number, kind, *_ in console.seed("full")["jobs"] if kind == "plan")
    context = browser.new_context(java_script_enabled=scripts)
    context.add_cookies([{"name": "roundhouse_session", "value": console.seeded["session"], "url": console.address}])
    page = context.new_page()
    page.goto(f"{console.address}/plans/{number}/")
    sentence, changed = page.locator("[data-purge-sentence]"), page.locator(".purge-changed")
    expect(sentence).to_have_text("35 debug tensors, 65.2\u202fMB, will be deleted for good.")
    expect(page.locator("input[value=compile-cache]")).to_be_hidden()  # what nobody chose keeps the way to the button short
    page.locator("#purge-further > summary").click()
    page.check("input[value=compile-cache]")
    if scripts:
        expect(sentence).to_have_text("35 debug tensors and 3 stale compile caches, 4.3\u202fGB, will be deleted for good.")
        page.uncheck("input[value=compile-cache]")
        page.uncheck("input[value=debug-tensor]")
        expect(sentence).to_have_text("Nothing will be deleted.")
    else:  # no sum that is not true any more
        expect(sentence).to_be_hidden()
        expect(changed).to_have_text("What is ticked will be deleted for good.")
        page.uncheck("input[value=compile-cache]")
        expect(sentence).to_be_visible()
        expect(changed).to_be_hidden()
    context.close()
