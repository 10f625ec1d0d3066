"""Jobs that start, stop, switch and look at a service: through their steps, on services whose server is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ops import control
from ops.agent.config import NodePaths
from ops.gpus.source import MIB, GpuProcess
from ops.jobs import claim, pipeline
from ops.jobs.errors import BadInput, Busy, OpsError, Refused
from ops.jobs.events import JobState
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Outcome
from ops.records import ServiceRecord
from ops.services import preflight, smoke, starting, state, stopping
from ops.services.process import ProcessManager
from tests.ops.services.conftest import Job, free_port, job, make_record, make_release, wait_for
from tests.ops.services.test_stopping import Readings, gpu, running

__all__ = ["job", "make_record"]


def dying(words: str, **more: Any) -> dict[str, Any]:
    """What a server writes that ends with this exception."""
    text = f'Traceback (most recent call last):\n  File "/x/vllm/entry.py", line 9, in main\n    run()\n{words}\n'
    return {"log": [[0, text]], "exit": 1, **more}

Make = Callable[..., ServiceRecord]


@pytest.fixture
def given(job: Job, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job on a node whose GPUs are free, with a preflight that finds nothing: that has tests of its own."""
    job.context.paths = NodePaths(short_path / "node").make()
    job.context.config = replace(job.context.config, service_roots=[str(short_path)], model_roots=[str(short_path)])
    monkeypatch.setattr(preflight, "everything", lambda *arguments: [])
    monkeypatch.setattr(stopping, "stop", partial(stopping.stop, timeout_s=1.0))
    gpus_are(monkeypatch, Readings([gpu(0, 0), gpu(1, 0)]))
    return job


def gpus_are(monkeypatch: pytest.MonkeyPatch, readings: Readings) -> None:
    for name in ("ops.control.open_source", "ops.redeploy.open_source", "ops.gpus.open_source.open_source"):
        monkeypatch.setattr(name, lambda config: readings)
    monkeypatch.setattr("ops.redeploy.GPUS_FREE_S", 0.5)


@pytest.fixture
def other(given: Job, short_path: Path, make_record: Make) -> Iterator[Callable[..., ServiceRecord]]:
    """Makes the service `other`, known to the node; ends it afterwards."""
    made: list[ServiceRecord] = []

    def make(plan: dict[str, Any] | None = None) -> ServiceRecord:
        root, port = short_path / "other", free_port()
        (root / "current").parent.mkdir()
        (root / "current").symlink_to(make_release(root))
        record = ServiceRecord(name="other", root=str(root), model_path=str(short_path / "model"), served_model_name="tiny", gpus=[0],
                               base_url=f"http://127.0.0.1:{port}", flags=["--port", str(port)],
                               env={"FAKE_VLLM": json.dumps(plan or {"serve": True}), "HF_TOKEN": "hf_canarycanary"})
        (given.context.paths.announced / "other.json").write_text(json.dumps(record.as_dict()))
        made.append(record)
        return record

    yield make
    for record in made:
        ProcessManager(record).kill()
        wait_for(partial(_is_gone, record))


def _is_gone(record: ServiceRecord) -> bool:
    return not ProcessManager(record).pids()


def run(given: Job, kind: str, **params: Any) -> Outcome:
    given.context.params, given.context.facts = params, {}
    return pipeline.run(KINDS[kind].steps(given.context), given.context)


def notes(given: Job) -> dict[str, str]:
    return {data["step"]: data["note"] for data in given.of("step.finished")}


# ---- start and stop ----


def test_a_service_is_started_watched_and_stopped(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record(gpus=[0])
    manager = ProcessManager(record)
    assert run(given, "start", smoke=False).state == JobState.SUCCEEDED
    assert manager.status().state == "healthy" and given.of("warmup.done")
    assert not given.of("downtime.started"), "it was down before the job"
    assert state.read(record)["runs"][-1]["main"][0] == manager.status().pid

    pid = manager.status().pid
    assert run(given, "start", smoke=False).state == JobState.SUCCEEDED
    assert manager.status().pid == pid and given.of("step.finished")[-2]["outcome"] == "skipped"

    assert run(given, "stop").state == JobState.SUCCEEDED
    assert not manager.pids() and notes(given)["gpus-free"].startswith("1 GPUs free")
    assert given.of("leftovers")[-1]["processes"] == []
    assert run(given, "stop").state == JobState.SUCCEEDED and notes(given)["stop"] == "was not running"


def test_a_start_that_crashes_ends_all_of_it_and_says_why(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record(dying("ValueError: no such model", children=["stubborn"]))
    outcome = run(given, "start")
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done") and "no such model" in outcome.reason
    assert not ProcessManager(record).pids()


def test_a_failure_after_a_service_that_ran_already_ends_nothing(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> str:
        raise OpsError("A smoke test failed")

    monkeypatch.setattr(smoke, "run", failing)
    record = given.context.service = make_record()
    manager = running(given, record)
    outcome = run(given, "start")
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "none") and manager.status().state == "healthy"


def test_a_start_that_is_cancelled_is_killed_soon_although_vllm_ignores_sigterm(make_record: Make, given: Job,
                                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STARTING_TIMEOUT_S", 0.3)
    record = given.context.service = make_record({"ignore_term": True, "children": ["stubborn"], "log": [[0, "x\n"]], "hang": True})
    given.context.cancel_wanted = lambda: bool(given.of("step.started")[2:])  # the warmup has begun
    outcome = run(given, "start")
    assert (outcome.state, outcome.rollback) == (JobState.CANCELLED, "done") and not ProcessManager(record).pids()
    assert [data for data in given.of("step.log") if "vLLM ignores SIGTERM then" in data["text"]]


def test_a_stop_after_which_a_gpu_is_held_is_partial_and_names_who_holds_it(make_record: Make, given: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = given.context.service = make_record({"children": ["lost"], "serve": True}, gpus=[0])
    manager = running(given, record)
    status, pids = manager.status(), manager.pids()
    [worker] = pids - {status.pid}
    gpus_are(monkeypatch, Readings([gpu(0, 500, GpuProcess(pid=worker, used_bytes=500 * MIB, user="llm", command="VLLM::Worker_TP0"))]))
    starting.ownership.remember(record, status, pids)
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)
    wait_for(lambda: manager.status().state == "failed")

    outcome = run(given, "start")
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "none") and "of an earlier run" in outcome.reason
    assert starting.ownership.left_over(record, manager), "a start ends nothing that it has not started"

    outcome = run(given, "stop")
    assert outcome.state == JobState.PARTIAL and f"pid {worker}" in outcome.reason and "1 processes of it can be ended" in outcome.reason
    [told] = given.of("leftovers")[-1]["processes"]
    assert (told["pid"], told["own"], told["gpus"]) == (worker, True, [{"index": 0, "used_bytes": 500 * MIB}])

    gpus_are(monkeypatch, Readings([gpu(0, 0)]))
    outcome = run(given, "end-leftovers", processes=[{"pid": worker, "start_ticks": told["start_ticks"]}])
    assert outcome.state == JobState.SUCCEEDED and notes(given)["end"].startswith("1 ended; 1 GPUs free")
    assert given.of("leftovers")[-1]["processes"] == []


def test_gpus_of_a_service_that_was_down_are_not_waited_for_and_who_holds_them_is_told(make_record: Make, given: Job,
                                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that this job ended will free them."""
    monkeypatch.setattr(stopping, "NOTHING_ENDED_S", 0.05)
    record = given.context.service = make_record({"serve": True}, gpus=[0, 1])
    holder = GpuProcess(pid=4711, used_bytes=500 * MIB, user="bob", command="python train.py")
    gpus_are(monkeypatch, Readings([gpu(0, 500, holder), gpu(1, 500, holder)]))
    monkeypatch.setattr("ops.redeploy.GPUS_FREE_S", 0.4)
    outcome = run(given, "stop")
    assert outcome.state == JobState.PARTIAL and "was down already" in outcome.reason and "not free after 0.05 s" in outcome.reason
    assert "pid 4711, user bob" in given.of("finding")[-1]["why"]
    assert "not free after 0.05 s" in run(given, "restart").reason

    running(given, record)
    assert "is stopped, but" in (reason := run(given, "stop").reason) and "not free after 0.4 s" in reason
    assert "was down already" in run(given, "stop").reason
    assert stopping.time_to_free_s(given.context, record, 600.0) == 600.0, "it ended within that time: its memory may be on its way"


def test_leftovers_are_looked_for_without_a_lock_and_what_is_not_chosen_well_is_refused(make_record: Make, given: Job) -> None:
    given.context.service = make_record(gpus=[0])
    assert run(given, "leftovers").state == JobState.SUCCEEDED and given.of("leftovers")[-1]["service"] == "svc"
    assert KINDS["leftovers"].locks("svc", {}) == KINDS["diagnose"].locks("svc", {}) == []
    outcome = run(given, "end-leftovers", processes=[])
    assert outcome.state == JobState.FAILED and "Nothing was chosen" in outcome.reason


def test_a_stop_that_is_cancelled_says_that_it_cannot_be_taken_back(make_record: Make, given: Job) -> None:
    given.context.service = make_record({"ignore_term": True, "serve": True})
    running(given, given.context.service)
    given.context.cancel_wanted = lambda: any("SIGTERM" in data["text"] for data in given.of("step.log"))
    outcome = run(given, "stop")
    assert (outcome.state, outcome.rollback) == (JobState.CANCELLED, "none")
    assert "cannot be taken back" in given.of("finding")[-1]["title"]


def test_nothing_is_started_while_its_environment_is_changed(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record()
    changed = os.path.realpath(record.current)
    descriptors = claim.lock_all(given.context.paths, [f"env:{changed}"])
    try:
        with pytest.raises(Busy):
            control.start(given.context)
    finally:
        claim.release(descriptors)
    assert "pid" in control.start(given.context)


def test_a_failed_state_is_nothing_that_a_process_has(make_record: Make, given: Job) -> None:
    given.context.service = make_record()
    assert run(given, "reset-failed").state == JobState.SUCCEEDED and "no failed state" in notes(given)["reset-failed"]


# ---- switch ----


def test_a_switch_stops_one_service_and_starts_the_other(make_record: Make, given: Job, other: Make) -> None:
    record = given.context.service = make_record(gpus=[0])
    to = other()
    running(given, record)
    outcome = run(given, "switch", to="other", smoke=False)
    assert outcome.state == JobState.SUCCEEDED, outcome
    assert ProcessManager(record).status().state == "stopped" and ProcessManager(to).status().state == "healthy"
    [ended] = given.of("downtime.ended")
    assert ended["service"] == "other" and given.of("downtime.started")[0]["service"] == "svc"
    assert given.of("warmup.done")[-1]["service"] == "other" and state.read(to)["warmups"]
    assert notes(given)["report"] == "other answers in place of svc"
    assert "hf_canarycanary" not in json.dumps(given.events)


def test_a_switch_to_a_service_that_does_not_start_brings_the_first_one_back(make_record: Make, given: Job, other: Make) -> None:
    record = given.context.service = make_record()
    to = other(dying("ValueError: wrong", children=["stubborn"]))
    old = running(given, record).status().pid
    outcome = run(given, "switch", to="other")
    assert (outcome.state, outcome.rollback) == (JobState.FAILED, "done") and "wrong" in outcome.reason
    assert not ProcessManager(to).pids()
    status = ProcessManager(record).status()
    assert status.state == "healthy" and status.pid != old
    assert [data["service"] for data in given.of("downtime.ended")] == ["svc"]
    assert [data["step"] for data in given.of("step.undone") if data["note"]] == ["start", "stop"]


def test_a_switch_whose_smoke_tests_fail_goes_back_in_another_process(make_record: Make, given: Job, other: Make,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a killed runner: the undo gets a new context, with the facts that were stored."""
    record = given.context.service = make_record()
    to = other()
    running(given, record)
    stored: list[str] = []
    given.context.save_facts = lambda facts: stored.append(json.dumps(facts))
    given.context.params["rollback"] = False

    def failing(*arguments: Any) -> str:
        raise OpsError("A smoke test failed")

    monkeypatch.setattr(smoke, "run", failing)
    assert run(given, "switch", to="other", rollback=False).rollback == "none"
    assert ProcessManager(to).status().state == "healthy"
    fresh = replace(given.context, facts=json.loads(stored[-1]), kept={})
    steps = {step.name: step for step in KINDS["switch"].steps(fresh)}
    assert pipeline.undo([steps[name] for name in fresh.facts["begun"]], fresh) == "done"
    assert not ProcessManager(to).pids() and ProcessManager(record).status().state == "healthy"
    assert [data["service"] for data in given.of("downtime.ended")] == ["other", "svc"], "down twice: the way back counts as well"
    assert len(given.of("downtime.started")) == 2


@pytest.mark.parametrize("to", ["", "svc", "../svc", "-x"])
def test_a_switch_needs_another_service(make_record: Make, given: Job, to: str) -> None:
    given.context.service = make_record()
    with pytest.raises(Refused, match="no other service"):
        run(given, "switch", to=to)


def test_a_switch_touches_nothing_before_all_is_known_about_the_other(make_record: Make, given: Job, other: Make) -> None:
    record = given.context.service = make_record()
    pid = running(given, record).status().pid

    def crash() -> None:
        os.kill(ProcessManager(to).status().pid or 0, signal.SIGKILL)
        wait_for(lambda: ProcessManager(to).status().state == "failed")

    assert "has no service `other`" in run(given, "switch", to="other").reason
    to = other()
    file = given.context.paths.announced / "other.json"
    file.write_text(json.dumps({**to.as_dict(), "practice": True}))
    outcome = run(given, "switch", to="other")
    assert outcome.state == JobState.FAILED and outcome.error and "Practice never mixes" in outcome.error["why"]
    shutil.rmtree(to.root)
    to = other({"serve": True, "children": ["plain"]})
    for prepare, words in ((lambda: running(given, to), "runs already"), (crash, "of an earlier run of service `other` are still there"),
                           (forbid(given), "does not allow the service folder")):
        prepare()
        outcome = run(given, "switch", to="other")
        assert (outcome.state, outcome.rollback) == (JobState.FAILED, "none") and words in outcome.reason
    assert ProcessManager(record).status().pid == pid
    assert KINDS["switch"].locks("b", {"to": "a"}) == ["service:a", "service:b"]


def forbid(given: Job) -> Callable[[], None]:
    """The node's owner allows no service folder any more."""
    def narrow() -> None:
        given.context.config = replace(given.context.config, service_roots=[])

    return narrow


# ---- locks that are kept after a failed rollback ----


def test_what_a_person_needs_on_the_way_to_a_repair_may_take_a_kept_lock_but_only_a_repair_frees_it() -> None:
    assert claim.ON_KEPT > claim.REPAIRS >= {"restart", "rollback", "start"}
    assert claim.REPAIRS | {"stop", "end-leftovers", "reset-failed", "settings-set"} == claim.ON_KEPT
    assert not {"redeploy", "switch", "build"} & claim.ON_KEPT


# ---- diagnosis ----


def test_the_log_of_the_last_run_is_diagnosed_without_secrets(make_record: Make, given: Job) -> None:
    plan = dying("ValueError: token sk_live_canary_12 is not welcome")
    record = given.context.service = make_record(plan, env={"FAKE_VLLM": json.dumps(plan), "MY_TOKEN": "sk_live_canary_12"})
    starting.start(given.context, record)
    wait_for(lambda: ProcessManager(record).status().state == "failed")
    assert run(given, "diagnose").state == JobState.SUCCEEDED
    [told] = given.of("diagnosis")
    assert told["fault"] and told["line"] == 4 and "is not welcome" in told["text"] and told["service"] == "svc" and told["exit_code"] == 1
    assert "sk_live_canary_12" not in json.dumps(given.events) and "line 4" in notes(given)["diagnose"]


def test_a_run_that_was_killed_is_no_healthy_one_although_its_log_says_nothing(make_record: Make, given: Job) -> None:
    record = given.context.service = make_record({"log": [[0, "INFO:     Application startup complete.\n"]], "serve": True})
    os.kill(running(given, record).status().pid or 0, signal.SIGKILL)
    wait_for(lambda: ProcessManager(record).status().exit_code == -9)
    assert run(given, "diagnose").state == JobState.SUCCEEDED and "by SIGKILL" in notes(given)["diagnose"]
    assert given.of("diagnosis")[0]["exit_code"] == -9
    assert given.of("diagnosis")[0]["fault"] or "its log names no cause" in given.of("finding")[0]["title"]


def test_a_service_that_never_ran_has_no_log(make_record: Make, given: Job) -> None:
    given.context.service = make_record()
    assert run(given, "diagnose").state == JobState.SUCCEEDED
    assert notes(given)["diagnose"] == "it has no log: it never ran here" and not given.of("diagnosis")[0]["fault"]


def test_a_bad_choice_is_bad_input(make_record: Make, given: Job) -> None:
    given.context.service, given.context.params = make_record(), {"processes": "all"}
    with pytest.raises(BadInput):
        control.end_listed(given.context)
