"""The order of steps, of undo, and what a job ends as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs import pipeline
from ops.jobs.errors import Cancelled, OpsError, Timeout
from ops.jobs.events import EventType, JobState
from ops.jobs.pipeline import Context, Step


class Told:
    """A reporter that keeps all it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, type: str, data: dict[str, Any]) -> None:
        self.events.append((type, data))

    def of(self, type: EventType) -> list[dict[str, Any]]:
        return [data for told, data in self.events if told == type]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def context(tmp_path: Path, told: Told) -> Context:
    return Context(job="j", params={}, paths=NodePaths(tmp_path), config=NodeConfig(name="n"), folder=tmp_path, emit=told)


def step(name: str, calls: list[str], *, fails: BaseException | None = None, undo: str | None = "put back", **more: Any) -> Step:
    def do(context: Context) -> str:
        calls.append(name)
        if fails:
            raise fails
        return f"{name} note"

    def back(context: Context) -> str:
        calls.append(f"undo {name}")
        return undo or ""

    return Step(name=name, title=name.title(), do=do, undo=back if undo is not None else None, **more)


def test_steps_run_in_order_and_tell_their_notes(context: Context, told: Told) -> None:
    calls: list[str] = []
    outcome = pipeline.run([step("one", calls), step("two", calls)], context)
    assert outcome.state == JobState.SUCCEEDED
    assert calls == ["one", "two"]
    finished = [(f["step"], f["outcome"], f["note"]) for f in told.of(EventType.STEP_FINISHED)]
    assert finished == [("one", "done", "one note"), ("two", "done", "two note")]


def test_a_failure_undoes_in_reverse_and_later_steps_do_not_run(context: Context) -> None:
    calls: list[str] = []
    outcome = pipeline.run([step("one", calls), step("two", calls, fails=OpsError("no", why="because", hint="do")), step("three", calls)], context)
    assert calls == ["one", "two", "undo two", "undo one"]
    assert (outcome.state, outcome.reason_kind, outcome.rollback) == (JobState.FAILED, "expected", "done")
    assert outcome.error == {"kind": "failed", "what": "no", "why": "because", "hint": "do", "facts": {}}


def test_a_step_marked_always_runs_after_the_rollback(context: Context) -> None:
    calls: list[str] = []
    pipeline.run([step("one", calls, fails=OpsError("no")), step("report", calls, undo=None, always=True)], context)
    assert calls == ["one", "undo one", "report"]


def test_an_undo_that_found_nothing_to_put_back_is_no_rollback(context: Context) -> None:
    calls: list[str] = []
    assert pipeline.run([step("one", calls, undo=""), step("two", calls, fails=OpsError("no"), undo=None)], context).rollback == "none"


def test_a_failed_undo_stops_the_rollback_and_says_so(context: Context, told: Told) -> None:
    calls: list[str] = []

    def broken(context: Context) -> str:
        raise OpsError("cannot put back")

    steps = [step("one", calls), Step(name="two", title="Two", do=lambda c: None, undo=broken), step("three", calls, fails=OpsError("no"), undo=None)]
    assert pipeline.run(steps, context).rollback == "failed"
    assert calls == ["one", "three"]
    assert told.of(EventType.STEP_UNDONE)[0]["outcome"] == "failed"


def test_rollback_false_leaves_things_as_they_are(context: Context) -> None:
    calls: list[str] = []
    context.params["rollback"] = False
    assert pipeline.run([step("one", calls), step("two", calls, fails=OpsError("no"))], context).rollback == "none"
    assert calls == ["one", "two"]


def test_a_bug_is_told_as_a_bug_with_its_traceback_in_the_log(context: Context, told: Told) -> None:
    outcome = pipeline.run([step("one", [], fails=ZeroDivisionError("oops"))], context)
    assert (outcome.state, outcome.reason_kind) == (JobState.FAILED, "bug")
    assert "ZeroDivisionError" in told.of(EventType.STEP_LOG)[0]["text"]


def test_a_full_disk_is_no_bug_of_ours(context: Context) -> None:
    def write(context: Context) -> None:
        Path("/dev/full").write_text("a")

    ended = pipeline.run([Step(name="one", title="One", do=write)], context)
    assert (ended.state, ended.reason_kind, ended.error and ended.error["kind"]) == ("failed", "expected", "disk")
    assert "No space left on device" in ended.reason


def test_a_full_disk_does_not_end_an_undo(context: Context) -> None:
    def refuse(*arguments: Any) -> None:
        raise OpsError("the journal cannot be written", kind="disk")

    def back(context: Context) -> str:
        context.log("stopping")
        context.save_facts(context.facts)
        calls.append("put back")
        return "put back"

    calls: list[str] = []
    context.emit = context.save_facts = refuse
    assert pipeline.undo([Step(name="one", title="One", do=lambda c: None, undo=back)], context) == "done"
    assert calls == ["put back"]
    assert context.emit is refuse and not context.undoing


def test_cancel_inside_a_step_undoes_and_ends_cancelled(context: Context) -> None:
    calls: list[str] = []
    outcome = pipeline.run([step("one", calls), step("two", calls, fails=Cancelled())], context)
    assert (outcome.state, outcome.rollback) == (JobState.CANCELLED, "done")
    assert calls == ["one", "two", "undo two", "undo one"]


def test_cancel_between_steps_undoes_what_was_done(context: Context) -> None:
    calls: list[str] = []
    context.cancel_wanted = lambda: "one" in calls
    outcome = pipeline.run([step("one", calls), step("two", calls)], context)
    assert outcome.state == JobState.CANCELLED
    assert calls == ["one", "undo one"]


def test_a_step_whose_check_holds_is_skipped_and_never_undone(context: Context, told: Told) -> None:
    calls: list[str] = []
    pipeline.run([step("one", calls, check=lambda c: True), step("two", calls, fails=OpsError("no"))], context)
    assert calls == ["two", "undo two"]
    assert told.of(EventType.STEP_FINISHED)[0]["outcome"] == "skipped"


def test_a_deadline_is_an_expected_failure(context: Context) -> None:
    outcome = pipeline.run([Step(name="slow", title="Slow", do=lambda c: c.sleep(5) or "", deadline_s=0.01)], context)
    assert outcome.error is not None
    assert outcome.error["kind"] == Timeout.kind


def test_facts_are_saved_before_a_step_acts_so_that_another_process_can_undo_it(context: Context) -> None:
    saved: list[list[str]] = []
    context.save_facts = lambda facts: saved.append(list(facts["begun"]))
    seen: list[list[str]] = []
    pipeline.run([Step(name="one", title="One", do=lambda c: seen.extend(saved) or "")], context)
    assert seen == [["one"]]
