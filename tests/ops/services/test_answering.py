"""A service whose health endpoint answers with nonsense, hangs, or dribbles: what is said of it is said soon, and it can be stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ops.records import ServiceRecord
from ops.services import answering, health, launch, stopping
from ops.services.manager import Manager, manager_for
from ops.services.process import ProcessManager
from tests.ops.services.conftest import FAKE, Job, free_port, wait_for
from tests.ops.services.systemd_box import SystemdBox, box

__all__ = ["box"]
Make = Callable[..., ServiceRecord]
NONSENSE = [({"body": "<html>Welcome</html>"}, "/health answers 200, but says nothing that a server says of its health: `<html>Welcome</html>`"),
            ({"body": "\0\x1b[31m\u202e{"}, "says nothing that a server says"), ({"slow": 60}, "no answer within 0.3 s"),
            ({"dribble": "head"}, "no answer within 0.3 s"), ({"dribble": "continue"}, "no answer within 0.3 s"),
            ({"dribble": "body"}, "the answer did not end within 0.3 s")]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "HEALTH_TIMEOUT_S", 0.3)


def is_told_and_can_be_stopped(manager: Manager, record: ServiceRecord, job: Job, words: str) -> None:
    status = wait_for(lambda: found if words in (found := manager.status()).detail else None)
    assert status.state == "starting" and not answering.healthy_file(record).exists()
    assert "\x1b" not in status.detail and "\u202e" not in status.detail
    assert stopping.stop(job.context, record, timeout_s=5).startswith("ended ")
    assert not manager.pids() and manager.status().state == "stopped"


@pytest.mark.parametrize(("plan", "words"), NONSENSE)
def test_nonsense_is_no_health_and_keeps_nobody_waiting(make_record: Make, job: Job, plan: dict[str, Any], words: str) -> None:
    record = make_record({"serve": True, **plan})
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    is_told_and_can_be_stopped(manager, record, job, words)


def test_under_systemd_too(box: SystemdBox, job: Job) -> None:
    port, script = free_port(), box.folder / "serve.sh"
    script.write_text(f"export FAKE_VLLM='{json.dumps({'serve': True, 'dribble': 'head'})}'\nexec {sys.executable} {FAKE} serve m --port {port}\n")
    box.write("vllm", f"exec sh {script}")
    manager = box.manager("vllm", base_url=f"http://127.0.0.1:{port}")
    manager.start()
    is_told_and_can_be_stopped(manager_for(manager.record), manager.record, job, "no answer within 0.3 s")


def test_one_that_served_and_answers_nonsense_now_is_not_known(make_record: Make) -> None:
    record = make_record({"serve": True})
    launch.write(record)
    manager = ProcessManager(record)
    manager.start()
    wait_for(lambda: manager.status().state == "healthy")
    record.base_url = f"{record.base_url}/v1/models/none/"  # a path that it answers with 404
    status = manager.status()
    assert status.state == "unknown" and "It was healthy, but does not answer now: /health answers 404" in status.detail


def test_a_request_that_is_answered_in_time_is_not_cut(make_record: Make) -> None:
    record = make_record({"serve": True, "slow": 0.1, "body": json.dumps({"status": "x" * 3000})})
    launch.write(record)
    ProcessManager(record).start()
    answer = wait_for(lambda: found if (found := health.health(record.base_url)).status else None)
    assert answer.sensible and len(answer.body) > 3000


def test_a_healthy_process_is_asked_now_and_then_and_its_death_is_seen_at_once(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    record, asked = make_record({"serve": True}), []
    launch.write(record)

    def ask(base_url: str, **settings: Any) -> health.Answer:
        asked.append(base_url)
        return health.ask(base_url, "/health", **settings)

    monkeypatch.setattr(health, "health", ask)
    manager = manager_for(record, health_every_s=3600)
    manager.start()
    wait_for(lambda: manager.status().state == "healthy")
    asked.clear()
    assert [manager.status().state for _ in range(5)] == ["healthy"] * 5 and not asked
    assert ProcessManager(record).status().state == "healthy" and len(asked) == 1  # jobs keep their own pace
    manager.kill()
    wait_for(lambda: manager.status().state == "stopped")
    manager.start()  # another process: what the one before it answered counts no more
    assert manager.status().state == "starting" or len(asked) > 1
    wait_for(lambda: manager.status().state == "healthy")
    monkeypatch.setattr(answering.time, "monotonic", lambda now=answering.time.monotonic: now() + 7200)
    asked.clear()
    assert manager.status().state == "healthy" and len(asked) == 1
