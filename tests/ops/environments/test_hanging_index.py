"""An index that stops in the middle of an answer and keeps the line open: a job that waits for it can be cancelled at once, and leaves nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops import redeploy
from ops.environments import plan, releases, wheelhouse
from ops.jobs import marks
from ops.jobs.errors import Cancelled, CommandFailed
from ops.jobs.pipeline import Context
from ops.records import Channel, ServiceRecord
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import Events, make_context


class Hanging:
    """One package; `hangs`: "" or what is answered to half only, "listing" or "wheel"."""

    def __init__(self, wheel: Path) -> None:
        self.wheel, self.hangs, self.url = wheel, "", ""
        self.waiting, self.over = threading.Event(), threading.Event()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Hanging]:
    big = {f"vllm/part_{number}.py": f"DATA = {os.urandom(60_000).hex()!r}\n" for number in range(20)}  # too large for uv to have it in one read
    known = Hanging(make_wheel(tmp_path, "vllm", "0.16.0", files={"vllm/__init__.py": "def main():\n    print('0.16.0')\n", **big},
                               entry_points="[console_scripts]\nvllm = vllm:main\n"))

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            what, path = self.rfile.readline().decode().split()[:2]
            while self.rfile.readline().strip():
                pass
            if path.startswith("/simple/"):
                kind, hash = "listing", wheelhouse.sha256(known.wheel)
                body = f'<html><body><a href="/files/{known.wheel.name}#sha256={hash}">{known.wheel.name}</a></body></html>'.encode()
            else:
                kind, body = "wheel", known.wheel.read_bytes()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {'text/html' if kind == 'listing' else 'application/zip'}\r\nContent-Length: {len(body)}\r\n"
            half = kind == known.hangs and what == "GET"
            try:
                self.wfile.write(f"{head}Connection: close\r\n\r\n".encode() + (b"" if what == "HEAD" else body[:len(body) // 2] if half else body))
                self.wfile.flush()
            except OSError:  # uv has gone
                return
            if half:
                known.waiting.set()
                known.over.wait(60)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, allow_reuse_address = True, True

    with Server(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield known
        finally:
            known.over.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def cancel() -> threading.Event:
    return threading.Event()


@pytest.fixture
def waiting(index: Hanging, record: ServiceRecord, tmp_path: Path, events: Events, cancel: threading.Event) -> Context:
    """Of a job whose channel is that index; cancelled as soon as the index hangs."""
    context = make_context(tmp_path, dataclasses.replace(record, practice=False), events, cancel=cancel)
    context.config = dataclasses.replace(context.config, practice=False, index_urls=[index.url])
    context.snapshot["channel"] = Channel(name="hanging", kind="index", index_url=index.url, requirements=["vllm"]).as_dict()
    threading.Thread(target=lambda: (index.waiting.wait(60), cancel.set()), daemon=True).start()
    return context


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hangs", ["listing", "wheel"])
def test_a_plan_that_waits_for_an_index_can_be_cancelled(index: Hanging, waiting: Context, hangs: str) -> None:
    index.hangs = hangs  # a wheel: its metadata is nowhere else
    with pytest.raises(Cancelled):  # else uv would give up by itself after its tries, and say that
        redeploy.make_plan(waiting)
    assert list(marks.marked(waiting.job)) == []


@pytest.mark.timeout(60)
def test_a_build_that_waits_for_a_wheel_can_be_cancelled_and_leaves_nothing(index: Hanging, waiting: Context) -> None:
    record, channel = waiting.the_service, redeploy.channel_of(waiting)
    made = plan.make(record, channel)
    plan.default_uv(record).clean_cache(["vllm"])
    index.hangs = "wheel"
    with pytest.raises(Cancelled):
        releases.build(waiting, record, channel, made)
    assert releases.listing(record) == [] and list(record.releases.iterdir()) == []
    assert list(marks.marked(waiting.job)) == []


@pytest.mark.timeout(60)
def test_a_uv_that_is_killed_meanwhile_fails_the_build_with_that_and_leaves_nothing(index: Hanging, waiting: Context) -> None:
    record, channel = waiting.the_service, redeploy.channel_of(waiting)
    made = plan.make(record, channel)
    plan.default_uv(record).clean_cache(["vllm"])
    index.hangs, waiting.cancel_wanted = "wheel", lambda: False

    def kill() -> None:
        index.waiting.wait(60)
        for pid in marks.marked(waiting.job):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(CommandFailed, match="uv was killed") as caught:
        releases.build(waiting, record, channel, made)
    killer.join()
    assert "memory" in caught.value.hint
    assert list(record.releases.iterdir()) == []
    index.hangs = ""
    assert releases.build(waiting, record, channel, made).is_dir()  # what lay half in the cache is no obstacle
