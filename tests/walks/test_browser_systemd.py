"""A unit of a real systemd, controlled from the pages: the product runs inside of a sandbox, a person's browser outside of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from tests.fakes.sandbox import REPOSITORY, Product, Sandbox, sandbox
from tests.ops.services.test_adoption import make_environment
from tests.walks.browser_console import chromium, served, sign_in
from tests.walks.practice_stack import free_port, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
UNIT = "vllm-tiny.service"
SLOW = 90_000  # ms: a deadline to poll for, on two busy cores
REAL_LOGS = REPOSITORY / "tests" / "fixtures" / "vllm"
SERVER = f"""\
import os, runpy, sys
os.environ["FAKE_VLLM"] = open(os.environ["PLAN"]).read()
sys.argv[0] = "vllm"
runpy.run_path({str(REPOSITORY / "tests" / "fakes" / "vllm_server.py")!r}, run_name="__main__")
"""


def lines(name: str) -> list[list[Any]]:
    """A log of a real vLLM, without the times that its recorder put in front."""
    text = (REAL_LOGS / f"{name}.log").read_bytes().decode()
    return [[0, re.sub(r"^\d\d:\d\d:\d\d\.\d{3} ", "", line) + "\n"] for line in text.split("\n") if line]


@dataclass
class Unit:
    """A server under systemd whose next run does what `plan` says."""

    box: Sandbox
    product: Product
    port: int

    def plan(self, **what: Any) -> None:
        (self.box.folder / "plan.json").write_text(json.dumps(what))

    def write(self, *settings: str, limit: str = "StartLimitIntervalSec=0") -> None:
        folder = self.box.folder
        self.box.write_unit(UNIT, f"[Unit]\nDescription=vLLM\n{limit}\n[Service]\nEnvironment=PLAN={folder}/plan.json\n"
                                  f"ExecStart={folder}/env/bin/vllm serve {folder}/models/tiny --served-model-name tiny --port {self.port}\n"
                                  + "".join(f"{line}\n" for line in settings))

    def main(self) -> int:
        return int(self.box.shows(UNIT, "MainPID")["MainPID"])


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    """Adopted by an admin with its drop-in, and healthy; the console is up."""
    folder = Path(tempfile.mkdtemp(prefix="rh-test-"))
    try:
        with sandbox(folder) as box:
            environment = make_environment(folder / "env", "0.32.0+cpu")
            (environment / "server.py").write_text(SERVER)
            (environment / "bin" / "vllm").write_text(f"#!/bin/sh\nexec {sys.executable} {environment}/server.py \"$@\"\n")
            model = folder / "models" / "tiny"
            shutil.copytree(REAL_LOGS / "tiny-model", model)
            made = Unit(box, Product(box, free_port()), free_port())
            made.plan(log=lines("startup-recipe"), serve=True)
            made.write("Restart=no")
            made.product.allow("box", model_roots=[model.parent], units=[UNIT])
            box.run("systemctl", "start", UNIT)
            told = json.loads(made.product.ops("adopt", "--unit", UNIT, "--apply", "--install", "--json"))
            record = Path(told["stored"])
            suite = {"smoke_without": ["factual", "code", "reasoning", "tool", "stream"],
                     "smoke_tests": [{"name": "ok", "kind": "contains", "title": "A word", "prompt": "Say OK.", "expect": "OK"}]}
            record.write_text(json.dumps({**json.loads(record.read_text()), **suite}))
            made.product.up()
            wait_until(made.product.is_up, 120, "the console is up")
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Person:
    page: Page
    service: str
    said: list[str]  # console messages and page errors: there should be none

    def opens(self, words: str = "") -> bool:
        """Whether the page of the service came, which has these words; it may read itself anew at that very moment."""
        try:
            return words in served(self.page, self.service) and self.page.goto(self.service) is not None
        except Error as error:
            if "ERR_ABORTED" not in error.message:
                raise
            return False

    def sees(self, state: str) -> None:
        wait_until(lambda: f'data-service-state="{state}"' in self.page.request.get(self.service).text() and self.opens()
                   and self.page.locator(f"[data-service-state={state}]").count(), 60, f"the page says {state}")

    def reads(self, words: str) -> None:
        wait_until(lambda: self.opens(words) and words in self.page.inner_text("main"), 60, f"the page says {words}")

    def does(self, button: str, then: str) -> None:
        self.page.get_by_role("group", name="Control vllm-tiny").get_by_role("link", name=button).click()
        self.page.get_by_role("dialog").get_by_role("button", name=then).click()
        self.page.wait_for_url(re.compile(r"/jobs/\d+/"))

    def waits(self, state: str = "Succeeded") -> None:
        expect(self.page.locator(".page-head .state", has_text=state).first).to_be_visible(timeout=SLOW)


@pytest.fixture(scope="module")
def person(unit: Unit) -> Iterator[Person]:
    """In a browser, signed in; whatever its console said makes the test fail."""
    with chromium() as browser:
        said: list[str] = []
        page = sign_in(browser, unit.product.sign_in_link, said)
        made = Person(page, f"{unit.product.address}/services/box/vllm-tiny/", said)
        wait_until(lambda: page.request.get(made.service).ok, 60, "the node has announced its service")
        yield made


def test_a_person_stops_starts_and_reads_a_unit_and_is_told_of_its_crashes(unit: Unit, person: Person) -> None:
    page = person.page
    main = page.locator("main")
    person.sees("healthy")
    expect(main).to_contain_text("vllm-tiny.service")
    expect(main).to_contain_text("active (running)")

    person.does("Stop…", "Stop vllm-tiny")
    person.waits()
    person.sees("stopped")
    expect(page.get_by_role("heading", name="vllm-tiny is stopped")).to_be_visible()
    assert unit.box.shows(UNIT, "ActiveState")["ActiveState"] == "inactive"

    person.does("Start…", "Start vllm-tiny")
    person.waits()
    page.get_by_role("navigation", name="Steps").get_by_text("Warmup").click()
    expect(page.get_by_text("Application startup complete.").first).to_be_attached(timeout=SLOW)  # followed from the journal
    person.sees("healthy")

    unit.box.run("kill", "-KILL", unit.main())
    person.sees("failed")
    wait_until(lambda: person.opens() and page.locator("#failure-1").count(), 60, "the end that nobody asked for is listed")
    expect(page.get_by_role("heading", name="vllm-tiny does not answer")).to_be_visible()
    expect(main).to_contain_text("SIGKILL")

    unit.plan(log=lines("crash-kv-cache-too-small"), exit=1)
    unit.write("Restart=always", "RestartSec=1")
    unit.box.run("systemctl", "start", UNIT)  # as a person would, by hand
    wait_until(lambda: int(unit.box.shows(UNIT, "NRestarts")["NRestarts"]) > 2, 60, "systemd starts it again and again")
    person.sees("failed")
    person.reads("crashes again and again")
    person.reads("To serve at least one request")
    person.does("Stop…", "Stop vllm-tiny")
    person.waits()
    person.sees("stopped")
    assert unit.box.shows(UNIT, "ActiveState")["ActiveState"] in ("inactive", "failed")
    assert not person.said, "\n".join(person.said)


@pytest.mark.slow
def test_a_start_that_crashes_twice_the_same_way_is_a_loop_and_the_unit_stays_down(unit: Unit, person: Person) -> None:
    page = person.page
    unit.box.run("systemctl", "stop", UNIT)
    unit.plan(log=lines("crash-config-malformed"), exit=1)
    unit.write("Restart=always", "RestartSec=1")
    person.sees("stopped")
    person.does("Start…", "Start vllm-tiny")
    person.waits("Failed")
    expect(page.locator("main")).to_contain_text("is not a valid JSON file")
    wait_until(lambda: unit.box.shows(UNIT, "ActiveState")["ActiveState"] in ("inactive", "failed"), 30, "the job stopped it")
    unit.write("Restart=always", "RestartSec=0.5", limit="StartLimitBurst=3\nStartLimitIntervalSec=600")
    unit.box.run("systemctl", "start", UNIT)
    wait_until(lambda: unit.box.shows(UNIT, "SubState")["SubState"] == "failed", 60, "systemd gives up")
    person.reads("and systemd starts it no more")
    person.does("Reset failed…", "Reset")
    person.waits()
    assert unit.box.shows(UNIT, "Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    assert not person.said, "\n".join(person.said)
