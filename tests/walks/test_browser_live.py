"""A job's page while the job runs: what comes, comes once and in order, through reloads, a dead web process and a hundred thousand lines."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Page

from dashboard.embedded_redis import EmbeddedRedis
from ops.jobs.events import Event, EventType
from ops.jobs.streams import Publisher
from tests.walks.browser_console import BrowserConsole, chromium, visit, wait

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
LINES = "Number(document.querySelector('[data-log-count]')?.textContent.replace(/,/g, '').match(/^[0-9]+/)?.[0] ?? 0)"
SHOWN = "[...document.querySelectorAll('.log-lines li > span')].map(e => e.textContent)"


class Node:
    """Says a job's events, as the node's companion does."""

    def __init__(self, server: EmbeddedRedis, job: str, seq: int) -> None:
        self.client = redis.Redis.from_url(server.url())
        self.publisher, self.job, self.seq = Publisher(self.client, "practice"), job, seq

    def say(self, type: str, **data: Any) -> None:
        self.seq += 1
        self.publisher.send(self.job, [(self.seq, Event(job=self.job, seq=self.seq, at=time.time(), type=type, data=data).to_json())])

    def log(self, text: str, step: str = "build") -> None:
        self.say(EventType.STEP_LOG, step=step, text=text, dropped_bytes=0)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    folder = Path(tempfile.mkdtemp(prefix="rh-live-"))
    made = EmbeddedRedis(folder).start()
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def console(server: EmbeddedRedis) -> Iterator[BrowserConsole]:
    folder = Path(tempfile.mkdtemp(prefix="rh-pages-"))
    made = BrowserConsole(folder, server.url())
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def job(request: pytest.FixtureRequest, console: BrowserConsole, server: EmbeddedRedis) -> Iterator[tuple[str, Node]]:
    """(address of a running job's page, its node), in the world of the parameter; web and recorder run. One web process serves all tests."""
    with redis.Redis.from_url(server.url()) as client:
        client.flushall()
    number, _, _, job_id, seq = next(found for found in console.seed(getattr(request, "param", "building"))["jobs"] if found[2] == "running")
    if "web" not in console.processes:
        console.start_web()
    console.start_recorder()
    yield f"{console.address}/jobs/{number}/", Node(server, job_id, seq)
    console.kill("recorder")


def live(page: Page, address: str) -> None:
    page.goto(address)
    wait(page, "document.querySelector('[data-live-state]').textContent.includes('Live')")


def test_the_page_follows_the_job_without_a_reload(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        node.log("line 2\nline 3\n")
        wait(page, f"{LINES} === 3")
        node.say(EventType.STEP_PROGRESS, step="build", done=7, total=14, unit="packages", text="installing vllm", estimate=False)
        wait(page, "document.querySelector('[data-progress-count]').textContent === '7 of 14 packages'")
        assert "installing vllm" in page.inner_text("[data-fact=now]")
        node.say(EventType.STEP_FINISHED, step="build", outcome="done", duration_s=21.0, note="built")
        node.say(EventType.STEP_STARTED, step="verify", title="Verify", index=3, deadline_s=60)
        wait(page, "document.querySelector('[data-step=verify]').getAttribute('aria-current') === 'step'")
        assert page.locator("[data-step=build] [aria-label=done]").count() == 1
        node.log("checking\n", "verify")
        wait(page, "document.querySelector('.log-lines')?.textContent.includes('checking')")
        assert not said


def test_a_reload_in_the_middle_neither_loses_nor_repeats_a_line(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        for n in range(2, 41):
            node.log(f"line {n}\n")
            if n == 20:
                page.reload()
        wait(page, f"{LINES} === 40")
        page.wait_for_timeout(300)
        assert page.evaluate(LINES) == 40
        page.evaluate("document.querySelector('.log-view').scrollTop = 0")
        wait(page, "document.querySelector('.log-lines li > span').textContent === 'line 1'")
        shown = page.evaluate(SHOWN)
        assert shown == [f"line {n}" for n in range(1, len(shown) + 1)]
        assert not said


def test_a_line_that_was_said_before_its_log_was_opened_is_not_lost_when_the_recorder_is_late(
        console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        console.kill("recorder")
        node.log("checking\n", "verify")
        node.say(EventType.STEP_PROGRESS, step="build", done=9, total=14, unit="packages", text="installing torch", estimate=False)
        wait(page, "document.querySelector('[data-progress-count]').textContent === '9 of 14 packages'")  # so the line before it has come too
        page.click("a[data-step=verify]")
        wait(page, "document.querySelector('[data-log]')?.dataset.logStep === 'verify'")
        node.log("checked\n", "verify")
        console.start_recorder()
        wait(page, f"{LINES} === 2 && {SHOWN}.length === 2")
        assert page.evaluate(SHOWN) == ["checking", "checked"]
        assert not said


def test_the_log_stays_where_it_is_read_while_the_page_around_it_changes(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        node.log("".join(f"line {n}\n" for n in range(2, 201)))
        wait(page, f"{LINES} === 200 && {SHOWN}.includes('line 200')")
        page.wait_for_timeout(200)  # counted before drawn: following the end would take the scroll back
        page.evaluate("document.querySelector('.log-view').scrollTop = 1000")
        wait(page, "document.querySelector('[data-log-follow]').getAttribute('aria-pressed') === 'false'")
        node.say(EventType.FINDING, subject="build", level="note", title="A finding that changes the panel", why="", fix="")
        wait(page, "document.body.textContent.includes('A finding that changes the panel')")
        page.wait_for_timeout(200)
        assert page.evaluate("document.querySelector('.log-view').scrollTop") == 1000
        wait(page, f"{SHOWN}.includes('line 52')")
        assert not said


def test_a_web_process_that_dies_costs_no_line(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, _):  # Chromium itself tells of the refused connections
        live(page, address)
        node.log("line 2\n")
        wait(page, f"{LINES} === 2")
        console.kill("web")
        wait(page, "document.querySelector('[data-live-state]').textContent.includes('Reconnecting')")
        for n in range(3, 30):
            node.log(f"line {n}\n")
        console.start_web()
        wait(page, f"{LINES} === 29")
        wait(page, "document.querySelector('[data-live-state]').textContent.includes('Live')")
        wait(page, f"{SHOWN}.at(-1) === 'line 29'")  # lines are drawn with the next frame, after they were counted
        shown = page.evaluate(SHOWN)
        assert shown == [f"line {n}" for n in range(30 - len(shown), 30)]


def test_a_hundred_thousand_lines_do_not_lag(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        for start in range(2, 100_002, 1000):
            node.log("".join(f"(Worker_TP0 pid=1) INFO 03-02 10:26:44 [model.py:1] line {n} of many\n" for n in range(start, start + 1000)))
        wait(page, f"{LINES} === 100001", 120)
        assert page.locator(".log-lines li").count() < 100
        slowest = page.evaluate("""async () => {
          const view = document.querySelector('.log-view'); let worst = 0;
          for (let n = 0; n < 40; n += 1) {
            const at = performance.now(); view.scrollTop = (n * 7919 % 100) * 20000;
            await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame); worst = Math.max(worst, performance.now() - at); }
          return worst; }""")
        assert slowest < 500
        page.click("[data-log-find]")
        page.fill("[data-log-search] input", "line 77777 of")
        wait(page, "document.querySelector('.log-lines mark.current')?.closest('li').textContent.includes('line 77777 of many')")
        page.click("[data-log-wrap]")
        page.keyboard.press("Escape")
        page.reload()
        wait(page, f"{LINES} === 100001", 60)
        assert not said


def test_a_sweep_grows_on_the_page(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    run = "11111111-2222-4333-8444-555555555555"
    with visit(browser, console) as (page, said):
        live(page, address)
        node.say(EventType.STEP_FINISHED, step="build", outcome="done", duration_s=21.0, note="built")
        node.say(EventType.STEP_STARTED, step="sweep", title="Sweep", index=11, deadline_s=60)
        node.say(EventType.SWEEP_STARTED, run_id=run, preset="quick", concurrencies=[1, 8], requests=[4, 16], max_tokens=64, model="kimi-k2.5",
                 endpoint="http://127.0.0.1:8000", practice=True, short=True, started_at=time.time(), settings={}, fingerprint={})
        node.say(EventType.LEVEL_STARTED, run_id=run, concurrency=1, requests=4, started_at=time.time())
        wait(page, "document.querySelector('#throughput .main-svg')")
        for second in range(6):
            node.say(EventType.LEVEL_SECOND, run_id=run, concurrency=1, second=second, output_tok_s=60 + second, in_flight=1, finished=second,
                     errors=0,
                     ttft_p50_ms=210.0, icl_p50_ms=16.0, e2e_mean_s=1.1, throughput_so_far_tok_s=61.0, power_w=3000.0)
        wait(page, "document.getElementById('live').data[0].x.length === 6")
        wait(page, "document.querySelector('[data-level=\"1\"] [data-v=requests]').textContent === '5 of 4' || "
                   "document.querySelector('[data-level=\"1\"] [data-v=tput]').textContent === '61'")
        page.reload()
        wait(page, "document.getElementById('live')?.data?.[0].x.length === 6")
        node.say(EventType.LEVEL_FINISHED, run_id=run, metrics={
            "concurrency": 1, "requests": 4, "finished": 4, "errors": 0, "output_tok_s": 61.2, "e2e_mean_s": 1.05, "e2e_p50_s": 1.05,
            "e2e_p99_s": None,
            "ttft_p50_ms": 210.0})
        wait(page, "document.getElementById('throughput').data.some(t => t.name && t.x.length === 1 && t.y[0] === 61.2)")
        wait(page, "document.querySelector('[data-level=\"1\"]').textContent.includes('Done')")
        assert not said


@pytest.mark.parametrize("job", ["full"], indirect=True)
def test_a_second_of_a_sweep_changes_the_page_in_place(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job

    def second(n: int, **more: Any) -> None:
        node.say(EventType.LEVEL_SECOND, load="closed", value=32.0, concurrency=32, second=n, output_tok_s=680.0 + n % 7, in_flight=32, finished=n,
                 errors=0, ttft_p50_ms=700.0 + n, ttft_p90_ms=900.0, ttft_p99_ms=None, icl_p50_ms=46.0, icl_p90_ms=48.0, icl_p99_ms=60.0,
                 e2e_p50_s=23.6, e2e_p90_s=24.0, e2e_p99_s=None, e2e_mean_s=23.7, throughput_so_far_tok_s=640.0 + n / 10, power_w=3400.0 + n,
                 server={"running": 30.0 + n % 3, "waiting": 2.0, "kv_use": 0.1, "prefix_hit_rate": 0.0, "spec_acceptance": None},
                 gpus=[{"index": 0, "power_w": 400.0 + n, "utilization": 90.0, "used_bytes": 2**36}], tokens_per_joule=0.19, **more)

    words = "Object.fromEntries([...document.querySelectorAll('[data-sweep-live] [data-live]')].map(e => [e.dataset.live, e.textContent]))"
    with visit(browser, console) as (page, said):
        live(page, address)
        second(41)
        wait(page, "document.getElementById('server-live')?.data?.[0].x.at(-1) === 41")
        page.evaluate("""() => {
          scrollTo(0, 400); window.changed = [];
          window.kept = [...document.querySelectorAll('.chart svg *, [data-sweep-live] *')];
          const seen = new MutationObserver((list) => { for (const m of list) for (const n of [...m.addedNodes, ...m.removedNodes])
            if (n.nodeType === 1) window.changed.push(`${n.nodeName}.${n.getAttribute('class')}`); });
          const parts = document.querySelectorAll('.chart, [data-sweep-live], [data-levels-table]');
          for (const e of parts) seen.observe(e, { childList: true, subtree: true }); }""")
        at = page.evaluate("scrollY")
        for n in range(42, 48):
            second(n)
            wait(page, f"document.getElementById('live').data[0].x.at(-1) === {n} && "
                       f"document.querySelector('[data-live=ttft_p50]').textContent === '{700 + n}'")
        assert page.evaluate("document.getElementById('server-live').data[0].y.at(-1)") == 32.0
        assert page.evaluate("window.changed") == []
        assert page.evaluate("window.kept.length") == page.evaluate("window.kept.filter((e) => e.isConnected).length") > 300
        assert page.evaluate("scrollY") == at > 0
        told = page.evaluate(words)
        assert {name: told[name] for name in ("in_flight", "running", "kv", "accepted", "power", "ttft_p99", "finished")} == {
            "in_flight": "32", "running": "32", "kv": "10.0", "accepted": "not reported", "power": "3.45", "ttft_p99": "n/a", "finished": "47 of 160"}
        page.reload()
        wait(page, "document.getElementById('live')?.data?.[0].x.at(-1) === 47")
        assert page.evaluate(words) == told  # the server says the same words
        assert not said


@pytest.mark.parametrize("job", ["full"], indirect=True)
def test_errors_of_a_sweep_are_counted_each_second(console: BrowserConsole, browser: Browser, job: tuple[str, Node]) -> None:
    address, node = job
    with visit(browser, console) as (page, said):
        live(page, address)
        before = int(page.get_attribute("[data-fact=errors]", "data-ended") or "")
        concurrency = int(page.get_attribute("tr.selected[data-level]", "data-level") or "")
        for second in (91, 92):
            node.say(EventType.LEVEL_SECOND, concurrency=concurrency, second=second, output_tok_s=600.0, throughput_so_far_tok_s=610.0, finished=10,
                     errors=second - 90, in_flight=concurrency, e2e_mean_s=20.0, ttft_p50_ms=400.0, power_w=None)
            wait(page, f"document.querySelector('[data-fact=errors] [data-value]').textContent === '{second - 90}'")
            assert page.inner_text("[data-fact=errors] [data-small]") == f"of {before + 10 + second - 90:,} requests"
        assert "t-fail" in (page.get_attribute("[data-fact=errors] dd", "class") or "")
        assert not said
