"""The four questions, judged on answers as vLLM gives them and on answers that are wrong in each way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.errors import BadInput, Cancelled, OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import smoke
from tests.fakes.scripted_server import response, scripted

RECORDINGS = Path(__file__).resolve().parents[2] / "fixtures" / "vllm"
TESTS = {test.name: test for test in smoke.SUITE}


def answer(content: str | None = None, *, reasoning: str | None = None, finish: str = "stop", calls: list[Any] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": calls or []}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def call(arguments: Any, name: str = "get_weather") -> list[dict[str, Any]]:
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}]


GOOD = {
    "factual": answer("Canberra is the capital of Australia."),
    "code": answer("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds."),
    "reasoning": answer("1 hour 35 minutes", reasoning="From 9:40 to 11:15."),
    "tool": answer(None, finish="tool_calls", calls=call('{"city": "Paris"}')),
}


def reply(body: dict[str, Any], answers: dict[str, dict[str, Any]]) -> list[bytes]:
    prompt = body["messages"][0]["content"]
    return [response(200, next(answers[name] for name, test in TESTS.items() if test.prompt == prompt))]


def asked(name: str, given: dict[str, Any] | bytes) -> smoke.SmokeResult:
    with scripted(lambda n, body: [given if isinstance(given, bytes) else response(200, given)]) as server:
        return smoke.ask(server.url, "m", TESTS[name])


@pytest.mark.parametrize("name", GOOD)
def test_a_right_answer_passes(name: str) -> None:
    assert asked(name, GOOD[name]).outcome == "passed"


@pytest.mark.parametrize(("name", "given", "word"), [
    ("factual", answer("It is Sydney."), "Canberra"),
    ("factual", answer(None, reasoning="hm", finish="length"), "still reasoning"),
    ("factual", answer(""), "empty"),
    ("factual", answer("!" * 300), "garbage"),
    ("code", answer("```python\ndef add(a, b)\n    return a + b\n```"), "does not parse"),
    ("code", answer("x = 1"), "no function"),
    ("code", answer("def add(a, b):\n    print(a + b)"), "returns nothing"),
    ("reasoning", answer("1 hour 35"), "reasoning field is empty"),
    ("reasoning", answer(None, reasoning="hm", finish="length"), "cut at"),
    ("reasoning", answer("x", reasoning="hm", finish="abort"), "finish_reason"),
    ("tool", answer("It is sunny."), "No tool was called"),
    ("tool", answer(None, finish="tool_calls", calls=call("{city: Paris")), "not JSON"),
    ("tool", answer(None, finish="tool_calls", calls=call("{}")), "`city` is missing"),
    ("tool", answer(None, finish="tool_calls", calls=call('{"city": 7}')), "not of type string"),
    ("tool", answer(None, finish="tool_calls", calls=call("{}", "rm")), "not offered"),
    ("tool", answer(None, finish="stop", calls=call('{"city": "Paris"}')), "finish_reason"),
    ("tool", answer(None, finish="tool_calls", calls=[{"id": "1"}]), "no function"),
    ("factual", response(500, {"error": {"message": "EngineCore died", "code": 500}}), "EngineCore died"),
    ("factual", response(200, b"<html>", content_type="text/html"), "not JSON"),
    ("factual", response(200, {"choices": []}), "not a chat completion"),
    ("factual", response(200, [1]), "not a chat completion"),
    ("factual", b"garbage\r\n\r\n", "No answer"),
])
def test_a_wrong_answer_fails_and_says_why(name: str, given: Any, word: str) -> None:
    result = asked(name, given)
    assert result.outcome == "failed" and word in result.summary


def test_recorded_answers_of_vllm_are_read() -> None:
    assert asked("tool", json.loads((RECORDINGS / "chat-tools.json").read_text())).outcome == "passed"
    assert asked("reasoning", json.loads((RECORDINGS / "chat-reasoning.json").read_text())).outcome == "passed"
    assert "cut at" in asked("reasoning", json.loads((RECORDINGS / "chat-cut-in-reasoning.json").read_text())).summary


def test_the_older_name_of_the_reasoning_field_is_read() -> None:
    given = answer("x")
    given["choices"][0]["message"]["reasoning_content"] = "hm"
    assert asked("reasoning", given).outcome == "passed"


def test_code_is_parsed_and_never_run(tmp_path: Path) -> None:
    bait = tmp_path / "ran"
    text = f"```python\nopen({str(bait)!r}, 'w').close()\ndef add(a, b):\n    return a + b\n```"
    assert asked("code", answer(text)).outcome == "passed" and not bait.exists()


@pytest.mark.parametrize("text", ["!" * 60, "ab" * 40, "the the the " * 20, "\ufffd" * 15 + "abcdefghij klmnop qrstuv wxyz 0123456789", "0 " * 50])
def test_garbage_is_seen(text: str) -> None:
    assert smoke.garbage(text)


@pytest.mark.parametrize("text", [
    "", "Canberra.", "A table:\n| a | b |\n| --- | --- |\n" + "| 1 | 2 |\n| 30 | 40 |\n",
    "def add(a, b):\n    # " + "-" * 30 + "\n    return a + b  # adds two numbers",
    "Canberra is the capital of Australia. It lies between Sydney and Melbourne, and was chosen as a compromise.",
])
def test_ordinary_text_is_no_garbage(text: str) -> None:
    assert not smoke.garbage(text)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., tuple[Context, list[Any], ServiceRecord]]:
    def make(url: str, **values: Any) -> tuple[Context, list[Any], ServiceRecord]:
        events: list[Any] = []
        record = ServiceRecord(name="s", root=str(tmp_path), model_path="/m", served_model_name="m", base_url=url, **values)
        context = Context(job="j", params={}, paths=NodePaths(tmp_path), config=NodeConfig(name="n"), folder=tmp_path, service=record,
                          step="smoke", emit=lambda type, data: events.append((str(type), data)))
        return context, events, record

    return make


def test_a_job_tells_each_result_and_returns_a_note(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, events, record = job(server.url)
        note = smoke.run(context, record)
    results = [data for type, data in events if type == "smoke.result"]
    assert note == "4 of 4 passed" and [r["name"] for r in results] == ["factual", "code", "reasoning", "tool"]
    assert set(results[0]) == {"name", "title", "outcome", "summary", "took_s", "detail"}


def test_a_job_fails_naming_the_test_and_what_came_back(job: Any) -> None:
    with scripted(lambda n, body: reply(body, {**GOOD, "factual": answer("It is Sydney.")})) as server:
        context, events, record = job(server.url)
        with pytest.raises(OpsError) as told:
            smoke.run(context, record)
    assert told.value.facts["failed"] == ["factual"] and "It is Sydney." in told.value.why
    assert len([1 for type, _ in events if type == "smoke.result"]) == 4


def test_what_the_service_was_started_without_is_left_out_and_said(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, _, record = job(server.url, flags=["--tool-call-parser=hermes", "--enable-auto-tool-choice"])
        assert smoke.run(context, record) == "3 of 3 passed; left out: reasoning (started without --reasoning-parser)"


@pytest.mark.parametrize(("settings", "key"), [
    ({"flags": ["--api-key", "one", "two", "--port", "1"]}, "one"), ({"flags": ["--api_key=one"]}, "one"), ({"env": {"VLLM_API_KEY": "one"}}, "one"),
    ({"flags": ["--api-key"]}, ""), ({}, ""),
])
def test_a_service_that_asks_for_a_key_is_given_its_own(job: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], key: str) -> None:
    given: list[str] = []
    client = smoke.endpoints.client
    monkeypatch.setattr(smoke.endpoints, "client", lambda *, api_key="", **more: given.append(api_key) or client(api_key=api_key, **more))
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, _, record = job(server.url, **settings)
        smoke.run(context, record)
    assert len(given) >= 3 and set(given) == {key}


def test_a_suite_of_its_own_takes_the_place_of_the_four(job: Any) -> None:
    with scripted(lambda n, body: [response(200, answer("The capital of France is Paris."))]) as server:
        context, _, record = job(server.url)
        suite = [{"name": "paris", "kind": "factual", "title": "Paris", "prompt": "What is the capital of France?", "expect": "Paris"}]
        assert smoke.run(context, record, suite) == "1 of 1 passed"


def test_cancel_ends_the_tests(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, _, record = job(server.url)
        context.cancel_wanted = lambda: True
        with pytest.raises(Cancelled):
            smoke.run(context, record)


def test_a_wrong_model_or_practice_behind_a_real_record_is_told_before_asking(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD), models=("other",)) as server:
        context, _, record = job(server.url)
        with pytest.raises(BadInput, match="does not serve"):
            smoke.run(context, record)
    with scripted(lambda n, body: reply(body, GOOD), version="1+practice") as server:
        context, _, record = job(server.url)
        with pytest.raises(OpsError, match="practice server"):
            smoke.run(context, record)


@pytest.mark.parametrize("raw", [{"name": "x", "kind": "odd", "title": "", "prompt": ""}, {"name": "x", "kind": "factual", "title": "", "prompt": ""},
                                 {"name": "x"}, {"name": "x", "kind": "tool", "title": "", "prompt": ""}])
def test_a_suite_that_cannot_be_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        smoke.SmokeTest.from_dict(raw)
