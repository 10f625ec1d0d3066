"""A real console for browsers: uvicorn with collected static files, a state folder of its own, and worlds from the pages' factory."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from dashboard.embedded_redis import EmbeddedRedis
from tests.dashboard.real_console import REPOSITORY, fill_state, wait_until

# levels that show in the chart of throughput: one that may grow holds a point more that does not show, to become the level that runs
POINTS = "[...document.querySelectorAll('#throughput .scatterlayer .point')].filter(e => e.getClientRects().length).length"
ARGS = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]
SEED = """
import json, os, sys, django
django.setup()
from django.core.management import call_command
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from dashboard.models import BenchmarkRun, Job, ShelvedPatch
from tests.dashboard.pages import factory

PASSWORD = make_password("correct horse battery")  # once: it takes a quarter of a second, as it should

def seed(world):
    call_command("flush", verbosity=0, interactive=False)
    user = User.objects.create_superuser("admin")
    User.objects.filter(pk=user.pk).update(password=PASSWORD)
    user.refresh_from_db()
    if world != "empty":
        getattr(factory, world)()
    session = SessionStore()
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    print(json.dumps({"session": session.session_key, "jobs": [[j.number, j.type, j.state, str(j.pk), j.last_seq] for j in Job.objects.all()],
                      "runs": [str(r.pk) for r in BenchmarkRun.objects.all()],
                      "shelf": [p.pk for p in ShelvedPatch.objects.filter(forgotten_at=None)]}), flush=True)

for line in sys.stdin:  # each world in a process of its own, that finds everything imported
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
    else:
        seed(line.strip())
        sys.exit()
"""


class BrowserConsole:
    """`seed` fills the database with a world and signs in; `stop` ends all processes."""

    def __init__(self, state: Path, redis_url: str) -> None:
        cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
        self.state = state
        self.environment = {**cleaned, "ROUNDHOUSE_STATE": str(state), "ROUNDHOUSE_REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1",
                            "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
        fill_state(state)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.seeder: subprocess.Popen[str] | None = None
        self.seeded: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seed(self, world: str) -> dict[str, Any]:
        """`world`: "empty", or a function of tests/dashboard/pages/factory.py. Gives the session and what there is to look at."""
        if self.seeder is None:
            with (self.state / "seeds.log").open("ab") as log:
                self.seeder = subprocess.Popen([sys.executable, "-c", SEED], cwd=REPOSITORY, env=self.environment, stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.seeder.stdin and self.seeder.stdout
        self.seeder.stdin.write(f"{world}\n")
        self.seeder.stdin.flush()
        said = self.seeder.stdout.readline()
        assert said, self.log("seeds")
        self.seeded = json.loads(said)
        return self.seeded

    def start_web(self) -> None:
        self._start("web", [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1", "--port", str(self.port),
                            "--log-level", "warning",
                            "--no-access-log", "--timeout-graceful-shutdown", "3"])

        def answers() -> bool:
            assert self.processes["web"].poll() is None, self.log("web")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(answers)

    def start_recorder(self) -> None:
        self._start("recorder", [sys.executable, "manage.py", "record_events"])
        wait_until(lambda: b"ready" in (self.state / "recorder.log").read_bytes())

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(argv, cwd=REPOSITORY, env=self.environment, stdout=log, stderr=subprocess.STDOUT,
                                                    stdin=subprocess.DEVNULL)

    def log(self, name: str) -> str:
        return (self.state / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM if name == "recorder" else signal.SIGKILL)
        process.wait(30)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        if self.seeder is not None:
            self.seeder.communicate(timeout=30)  # ends with its input
            self.seeder = None


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", chromium_sandbox=False, args=ARGS)
        yield browser
        browser.close()


def sign_in(browser: Browser, sign_in_link: str, said: list[str]) -> Page:
    """A page on which somebody has come in by the one-time link; every console message and page error of it goes into `said`. Nothing turns on it
    while a job runs: drawing sixty times a second takes a third of a processor here."""
    page = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce").new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text} ({message.location.get('url', '')})"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.goto(sign_in_link)
    page.get_by_role("button", name=re.compile("sign in", re.I)).click()
    return page


@contextmanager
def visit(browser: Browser, console: BrowserConsole, *, width: int = 1440, theme: str = "light",
          signed_in: bool = True) -> Iterator[tuple[Page, list[str]]]:
    """A page of a browser that is signed in, and the list of every console message and page error that it says."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    if signed_in:
        context.add_cookies([{"name": "roundhouse_session", "value": console.seeded["session"], "url": console.address}])
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text} ({message.location.get('url', '')})"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("requestfailed", lambda request: said.append(f"failed: {request.url} {request.failure}") if request.failure != "net::ERR_ABORTED"
            else None)
    yield page, said
    context.close()


def served(page: Page, address: str) -> str:
    """The words that an address has for who is signed in, without its tags: asked again and again, it costs a fraction of a page that is drawn."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page.request.get(address).text())))


def wait(page: Page, expression: str, seconds: float = 30) -> None:
    """Polls until the JavaScript expression is true. (Playwright's own wait_for_function needs eval, which our content security policy forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < end, f"not within {seconds} s: {expression}"
        page.wait_for_timeout(50)


@contextmanager
def running_console() -> Iterator[BrowserConsole]:
    """A console with a Redis of its own, whose web process runs; all of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="rh-pages-"))
    server = EmbeddedRedis(folder / "redis").start()
    made = BrowserConsole(folder, server.url())
    try:
        made.start_web()
        yield made
    finally:
        made.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
