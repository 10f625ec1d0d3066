"""A real vLLM as a unit of a real systemd, from its adoption over a whole redeploy to the death of its engine. Takes minutes: `make test-full`.

What it prints (`pytest -s`) are the times of each part: docs/guides/real-vllm.md.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.fakes import real_vllm
from tests.fakes.sandbox import Product, sandbox
from tests.walks.browser_console import chromium
from tests.walks.practice_stack import free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(2400)]
UNIT = "vllm-tiny.service"
NEEDED_BYTES = 8 << 30


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def test_a_real_vllm_is_adopted_rebuilt_and_told_why_it_died(short_path: Path) -> None:
    python = real_vllm.python_or_skip()
    if shutil.disk_usage(short_path).free < NEEDED_BYTES:
        pytest.skip("two environments and their wheels take 8 GB of disk")
    with sandbox(short_path) as box:
        with timed("wheels downloaded"):
            wheels = real_vllm.download(short_path / "wheels", python)
        with timed("environment made"):
            environment = real_vllm.install(short_path / "env", wheels, python, short_path / "cache")
        model = short_path / "models" / "tiny"
        shutil.copytree(real_vllm.TINY_MODEL, model)
        port, product = free_port(), Product(box, free_port())
        service = product.node / "services" / "vllm-tiny"
        product.allow("box", model_roots=[model.parent], wheelhouse_roots=[wheels], units=[UNIT])

        def state() -> dict[str, Any]:
            return json.loads((service / "state.json").read_text())  # type: ignore[no-any-return]

        box.write_unit(UNIT, real_vllm.unit(environment, model, short_path / "home", port))
        box.run("systemctl", "start", UNIT)
        adopted = json.loads(product.ops("adopt", "--unit", UNIT, "--apply", "--install", "--json"))
        assert adopted["record"]["environment"] == str(environment) and adopted["record"]["flags"][:2] == ["--port", str(port)]
        assert any("Restart=on-failure does not fire" in found["title"] for found in adopted["findings"])
        record = product.node / "services.d" / "vllm-tiny.json"
        told = {**json.loads(record.read_text()), "smoke_tests": real_vllm.SMOKE_TESTS, "smoke_without": real_vllm.SMOKE_WITHOUT}
        record.write_text(json.dumps(told))
        channel = short_path / "channel.json"
        channel.write_text(json.dumps({"name": "cpu", "kind": "wheelhouse", "preset": "wheelhouse", "wheelhouse": str(wheels),
                                       "without": real_vllm.WITHOUT}))

        with timed("plan, redeploy, smoke tests, short sweep"):
            report = product.ops("redeploy", "--service", "vllm-tiny", "--channel", channel, "--yes", "--no-purge", timeout=1200)
        print(re.sub(r"^", "  ", report, flags=re.M))
        assert "148 stayed" in report and "files match RECORD" in report and "built beside `adopted`" in report
        assert report.count("| passed |") == 6 and "| failed |" not in report
        assert re.search(r"^\| 128 \| [\d,]+ \|", report, re.M), "the sweep reached its last level"
        [warmup] = state()["warmups"]
        assert {"start", "load", "kv_cache", "listening"} <= set(warmup["phases"]) and warmup["phases"]["start"] > 1
        print(f"warmup: {warmup['total_s']:.0f} s, of which {warmup['phases']['start']:.0f} s are imports")
        assert box.shows(UNIT, "NRestarts", "ActiveState") == {"NRestarts": "0", "ActiveState": "active"}

        product.up()
        wait_until(product.is_up, 120, "the console is up")
        wait_until(lambda: len(state()["runs"][-1]["pids"]) > 3, 60, "the agent knows engine and worker")
        engine = box.run("pgrep", "-f", "VLLM::EngineCore").stdout.split()[0]
        box.run("kill", "-KILL", engine)
        with timed("from the engine's death to its explanation"):
            wait_until(lambda: (state().get("failures") or [{}])[-1].get("diagnosis"), 120, "the agent says why")
        [failure] = state()["failures"]
        assert failure["diagnosis"]["kind"] == "engine-died" and failure["diagnosis"]["rule"] == "engine-disappeared"
        assert "engine core exited unexpectedly" in failure["diagnosis"]["text"] and "exit code 0" in failure["detail"]
        assert box.shows(UNIT, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}, "Restart=on-failure does not fire"

        with chromium() as browser:
            page = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce").new_page()
            page.goto(product.sign_in_link)
            page.get_by_role("button", name=re.compile("sign in", re.I)).click()
            page.goto(f"{product.address}/services/box/vllm-tiny/")
            expect(page.get_by_role("heading", name="vllm-tiny does not answer")).to_be_visible()
            expect(page.locator("main")).to_contain_text("engine core exited unexpectedly")
            page.get_by_role("link", name="Start vllm-tiny…").click()
            page.get_by_role("dialog").get_by_role("button", name="Start vllm-tiny").click()
            page.wait_for_url(re.compile(r"/jobs/\d+/"))
            with timed("started again from its page"):
                expect(page.locator(".page-head .state", has_text="Succeeded").first).to_be_visible(timeout=300_000)
        assert box.shows(UNIT, "ActiveState")["ActiveState"] == "active" and len(state()["warmups"]) == 2
