"""A service's own smoke questions, stored in its record on the node."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from ops import smoke_set
from ops.agent.config import NodeConfig, NodePaths
from ops.environments import guard_list
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.kinds import KINDS
from ops.jobs.pipeline import Context
from ops.jobs.redact import HIDDEN
from ops.records import ServiceRecord

PARIS = {"name": "paris", "kind": "contains", "title": "Paris", "prompt": "Capital of France?", "expect": "Paris"}
SECRET = {**PARIS, "name": "token", "prompt": "Repeat hf_CANARYabcdefghijklmnopqr"}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    paths = NodePaths(tmp_path).make()
    record = ServiceRecord(name="s", root=str(tmp_path / "s"), model_path="/m", served_model_name="m", base_url="http://127.0.0.1:1",
                           env={"HF_TOKEN": "hf_CANARYabcdefghijklmnopqr"}, smoke_tests=[SECRET])
    path = paths.announced / "s.json"
    path.write_text(json.dumps({**record.as_dict()}))
    path.chmod(0o600)
    return Context(job=str(uuid.uuid4()), params={}, paths=paths, config=NodeConfig(name="n"), folder=tmp_path, service=record, step="suite",
                   emit=lambda type, data: None)


def set_to(context: Context, tests: Any, without: Any = (), before: Any = None) -> str:
    context.params = {"tests": tests, "without": list(without), "before": before}
    [step] = KINDS["smoke-set"].steps(context)
    return step.do(context) or ""


def stored(context: Context) -> ServiceRecord:
    return guard_list.own_record(context.paths, "s")


def test_questions_are_stored_whole_and_nothing_else_changes(context: Context) -> None:
    before = stored(context)
    assert set_to(context, [PARIS], ["stream", "code"]) == "1 own question (1 before); 4 are asked in all"
    after = stored(context)
    assert (after.smoke_tests, after.smoke_without) == ([PARIS], ["code", "stream"])
    assert {**after.as_dict(), "smoke_tests": [], "smoke_without": []} == {**before.as_dict(), "smoke_tests": [], "smoke_without": []}
    assert (context.paths.announced / "s.json").stat().st_mode & 0o777 == 0o600


def test_what_was_hidden_of_a_question_stays_as_it_is(context: Context) -> None:
    [shown] = smoke_set.announced(stored(context))["tests"]
    assert "CANARY" not in json.dumps(shown)
    set_to(context, [shown, PARIS])
    assert stored(context).smoke_tests == [SECRET, PARIS]
    with pytest.raises(BadInput, match="holds `"):
        set_to(context, [{**shown, "title": f"New {HIDDEN}"}])


def test_a_suite_that_somebody_else_changed_is_left_alone(context: Context) -> None:
    seen = smoke_set.announced(stored(context))
    set_to(context, [PARIS], before=seen)
    with pytest.raises(OpsError, match="changed meanwhile") as caught:
        set_to(context, [], before=seen)
    assert caught.value.kind == "changed" and stored(context).smoke_tests == [PARIS]


@pytest.mark.parametrize(("tests", "without", "word"), [
    ({}, [], "list"), ([PARIS, PARIS], [], "Two smoke questions"), ([{**PARIS, "kind": "odd"}], [], "Unknown kind"),
    ([PARIS], ["nothing"], "no built-in"), ([PARIS], "code", "list of names"), ([{**PARIS, "name": f"n{n}"} for n in range(51)], [], "at most 50"),
    ([{**PARIS, "name": f"n{n}", "prompt": "x" * 8000} for n in range(40)], [], "bytes long"), ([{**PARIS, "name": "../x"}], [], "not a name"),
    ([7], [], "JSON object"),
])
def test_what_is_no_suite_is_refused(context: Context, tests: Any, without: Any, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        smoke_set.store(context.paths, stored(context), tests, without)
    assert stored(context).smoke_tests == [SECRET]
