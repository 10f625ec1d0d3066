"""The questions, judged on answers as vLLM gives them and on answers that are wrong in each way."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.errors import BadInput, Cancelled, OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import garbage, smoke
from tests.fakes.scripted_server import DONE, STREAM_END, STREAM_HEAD, chunk, event, response, scripted, usage

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
    "stream": answer("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.", reasoning="Seven of them."),
}


def reply(body: dict[str, Any], answers: dict[str, dict[str, Any]]) -> list[bytes]:
    prompt = body["messages"][0]["content"]
    given = next(answers[name] for name, test in TESTS.items() if test.prompt == prompt)
    return streamed(given) if body.get("stream") else [response(200, given)]


def streamed(given: dict[str, Any], *, end: bytes = DONE) -> list[bytes]:
    """The same answer as events of a few characters each."""
    choice = given["choices"][0]
    parts = [event({name: choice["message"][name][i:i + 7]}) for name in ("reasoning", "content") if choice["message"][name]
             for i in range(0, len(choice["message"][name]), 7)]
    return [STREAM_HEAD, *map(chunk, [*parts, event({}, finish=choice["finish_reason"]), usage(9), end]), STREAM_END]


def asked(name: str, given: dict[str, Any] | bytes) -> smoke.SmokeResult:
    def script(n: int, body: dict[str, Any]) -> list[bytes]:
        return [given] if isinstance(given, bytes) else streamed(given) if body.get("stream") else [response(200, given)]

    with scripted(script) as server:
        return smoke.ask(server.url, "m", TESTS[name])


@pytest.mark.parametrize("name", GOOD)
def test_a_right_answer_passes(name: str) -> None:
    assert asked(name, GOOD[name]).outcome == "passed"


@pytest.mark.parametrize(("name", "given", "word"), [
    ("factual", answer("It is Sydney."), "Canberra"),
    ("factual", answer(None, reasoning="hm", finish="length"), "by length before any content: the model was still reasoning"),
    ("factual", answer(None, finish="length"), "by length before any content (cut at max_tokens 1,024); with max_tokens 4,096 it is cut as well"),
    ("factual", answer("", reasoning="The capital is Canberra."), "all of it is in the reasoning field"),
    ("factual", answer("Столица Австралии — это город Канберра, он лежит между Сиднеем и Мельбурном."), "Cyrillic, and nothing asked for them"),
    ("reasoning", answer("<think>From 9:40</think> 1 hour 35 minutes"), "not apart"),
    ("reasoning", answer("From 9:40 to 11:15 it takes 1 hour and 35 minutes.", reasoning="So: From 9:40 to 11:15 it takes 1 hour and 35 minutes."),
     "not apart"),
    ("code", answer("```python\ndef add(a, b):\n    return (a +", finish="length"), "cut at max_tokens 1,024"),
    ("stream", answer(""), "empty"),
    ("tool", answer(None, finish="length"), "before a tool was called"),
    ("tool", answer(None, finish="tool_calls", calls=[{"type": "function", "function": call('{"city": "Paris"}')[0]["function"]}]), "has no id"),
    ("factual", answer(""), "empty"),
    ("factual", answer("!" * 300), "garbage"),
    ("code", answer("```python\ndef add(a, b)\n    return a + b\n```"), "does not parse"),
    ("code", answer("x = 1"), "no function"),
    ("code", answer("def add(a, b):\n    print(a + b)"), "returns nothing"),
    ("reasoning", answer("1 hour 35"), "reasoning field is empty"),
    ("reasoning", answer(None, reasoning="hm", finish="length"), "ended by length before any content"),
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
    assert "still reasoning" in asked("reasoning", json.loads((RECORDINGS / "chat-cut-in-reasoning.json").read_text())).summary
    for name in ("reasoning", "tools"):
        body = (RECORDINGS / f"chat-stream-{name}.txt").read_bytes().replace(b"\r\n", b"\n").split(b"\n\n", 1)[1]
        told = smoke.read_stream(body)
        assert told.reasoning if name == "reasoning" else told.tool_calls[0]["function"]["name"]
    died = (RECORDINGS.parent / "vllm" / "chat-engine-died.txt").read_bytes()
    with pytest.raises(smoke.Wrong, match="EngineCore"):
        smoke.read_answer(500, died[died.index(b"{"):])


def test_the_older_name_of_the_reasoning_field_is_read() -> None:
    given = answer("x")
    given["choices"][0]["message"]["reasoning_content"] = "hm"
    assert asked("reasoning", given).outcome == "passed"


def test_code_is_parsed_and_never_run(tmp_path: Path) -> None:
    bait = tmp_path / "ran"
    text = f"```python\nopen({str(bait)!r}, 'w').close()\ndef add(a, b):\n    return a + b\n```"
    assert asked("code", answer(text)).outcome == "passed" and not bait.exists()


MIXED = "".join(map("".join, zip("закономерность", "encyclopaedias", "国家机关工作人员制度发展", "ελευθερίαςδημοκρατία", strict=False)))


@pytest.mark.parametrize("text", [
    "!" * 60, "ab" * 40, "the the the " * 20, "\ufffd" * 15 + "abcdefghij klmnop qrstuv wxyz 0123456789", "0 " * 50, "ok\x00\x01\x02 fine", "\x07",
    "It is this. " + "So the answer must be the one that we have found above. " * 6 + "So the answer must be the one", MIXED,
    " ".join(("yes no maybe " if i % 2 else "maybe no yes ") for i in range(60)),
])
def test_garbage_is_seen(text: str) -> None:
    assert smoke.garbage(text)


@pytest.mark.parametrize("text", [
    "", "Canberra.", "A table:\n| a | b |\n| --- | --- |\n" + "| 1 | 2 |\n| 30 | 40 |\n",
    "def add(a, b):\n    # " + "-" * 30 + "\n    return a + b  # adds two numbers", "Done \U0001f642 \U0001fae8 \U0001fae9 \U0001fabf",
    "Canberra is the capital of Australia. It lies between Sydney and Melbourne, and was chosen as a compromise.",
    "Hello in Russian is привет, in Greek γεια σου, in Chinese 你好, in Korean 안녕하세요, in Hebrew שלום, in Arabic مرحبا.",
    "\n".join(f"{n}. Step {n}: add {n} and {n + 1}, which gives {2 * n + 1}." for n in range(1, 60)),
    "\n".join(f"    {{\"id\": {n}, \"name\": \"item {n}\", \"value\": null}}," for n in range(40)),
])
def test_ordinary_text_is_no_garbage(text: str) -> None:
    assert not smoke.garbage(text)


@pytest.mark.parametrize(("prompt", "text", "wrong"), [
    ("What is the capital of Australia?", "首都是堪培拉，" * 8, True),
    ("Translate into Chinese: good morning", "早上好，" * 20, False),
    ("澳大利亚的首都是哪里？", "澳大利亚的首都是堪培拉，位于悉尼和墨尔本之间。" * 3, False),
    ("澳大利亚的首都是哪里？", "Canberra is the capital of Australia, which is a country of its own.", False),
])
def test_a_script_that_nothing_asked_for_is_wrong(prompt: str, text: str, wrong: bool) -> None:
    assert bool(garbage.wrong_script(text, prompt)) == wrong


# ---- answers that were cut, and answers that are streamed ----


@pytest.mark.parametrize(("longer", "outcome", "words"), [
    (answer("Canberra."), "passed",
     "The answer has `Canberra`, but only with max_tokens 4,096 (it used 2,310): with 1,024 it ended by length, before any content"),
    (answer("Sydney."), "failed", "with max_tokens 4,096 it is whole, but wrong: `Canberra` is not in the answer"),
])
def test_an_answer_that_was_cut_is_asked_for_once_more_with_more_tokens(longer: dict[str, Any], outcome: str, words: str) -> None:
    asked_for: list[int] = []

    def script(n: int, body: dict[str, Any]) -> list[bytes]:
        asked_for.append(body["max_tokens"])
        enough = body["max_tokens"] > 1024
        return [response(200, {**(longer if enough else answer(None, reasoning="hm", finish="length")), "usage": {"completion_tokens": 2310}})]

    with scripted(script) as server:
        result = smoke.ask(server.url, "m", TESTS["factual"])
    assert (result.outcome, asked_for) == (outcome, [1024, 4096]) and words in result.summary


def test_a_context_that_allows_no_more_tokens_is_said() -> None:
    with scripted(lambda n, body: [response(200, answer(None, finish="length"))]) as server:
        result = smoke.ask(server.url, "m", TESTS["factual"], context_tokens=1050)
    assert "context of 1,050 tokens allows no more" in result.summary and len(server.requests) == 1


def days(text: str) -> dict[str, Any]:
    return answer(text, reasoning="Seven of them.")


@pytest.mark.parametrize(("plain", "streams", "outcome", "words"), [
    (["a b c"], ["a b c"], "passed", "the same both ways"),
    (["a b c"], ["a b X"], "failed", "from character 5 on: `c` against `X`"),
    (["a b c", "a b d"], ["a b X"], "passed", "not deterministic"),
    (["a b c"], ["a b X", "a b c"], "passed", "at the second try"),
])
def test_streamed_it_must_be_the_same_answer(plain: list[str], streams: list[str], outcome: str, words: str) -> None:
    left = {True: list(streams), False: list(plain)}

    def script(n: int, body: dict[str, Any]) -> list[bytes]:
        texts = left[bool(body.get("stream"))]
        given = days(texts.pop(0) if len(texts) > 1 else texts[0])
        return streamed(given) if body.get("stream") else [response(200, given)]

    with scripted(script) as server:
        result = smoke.ask(server.url, "m", TESTS["stream"])
    assert result.outcome == outcome and words in result.summary


@pytest.mark.parametrize(("end", "word"), [
    (b": nothing\n\n", "without `[DONE]`"), (b'data: {"error": {"message": "EngineCore died"}}\n\n' + DONE, "EngineCore died"),
    (b"data: {oops\n\n" + DONE, "not JSON"),
])
def test_a_stream_that_is_none_fails(end: bytes, word: str) -> None:
    def script(n: int, body: dict[str, Any]) -> list[bytes]:
        return streamed(days("a"), end=end) if body.get("stream") else [response(200, days("a"))]

    with scripted(script) as server:
        result = smoke.ask(server.url, "m", TESTS["stream"])
    assert result.outcome == "failed" and word in result.summary


def test_a_server_that_dribbles_is_given_up() -> None:
    def script(n: int, body: dict[str, Any]) -> list[Any]:
        return [b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n", *[b" ", 0.1] * 100]

    with scripted(script) as server:
        result = smoke.ask(server.url, "m", replace(TESTS["factual"], timeout_s=0.5))
    assert (result.outcome, result.summary) == ("failed", "No answer within 0.5 s") and result.took_s < 5


# ---- a service's own questions ----


def own(kind: str, expect: str = "", **more: Any) -> dict[str, Any]:
    return {"name": "mine", "kind": kind, "title": "Mine", "prompt": "Say it.", "expect": expect, **more}


POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0}}, "required": ["x"], "additionalProperties": False}


@pytest.mark.parametrize(("test", "said", "outcome", "word"), [
    (own("contains", "red\nblue"), "red, green, blue", "passed", "`red`, `blue`"), (own("contains", "red\nBlue"), "red, blue", "failed", "`Blue`"),
    (own("matches", r"\b\d{4}-\d\d\b"), "It was 2026-11.", "passed", "2026-11"), (own("matches", r"^\d+$"), "seven", "failed", "does not match"),
    (own("matches", r"^(\w+\s?)*$"), "The engine of the night train was turned and led to a free stall!", "failed", "was not done within"),
    (own("json"), '```json\n{"x": 1}\n```', "passed", "is JSON"), (own("json"), "x = 1", "failed", "not JSON"),
    (own("json", schema=POINT), '{"x": 3}', "passed", "fits its schema"), (own("json", schema=POINT), '{"x": -3}', "failed", "below minimum 0"),
    (own("json", schema=POINT), '{"x": 3, "y": 4}', "failed", "`y` is not known"),
    (own("json", schema={"anyOf": [{"type": "null"}, {"type": "array", "items": {"enum": ["a"]}}]}), '["b"]', "failed", "not of type null"),
])
def test_own_questions_are_judged_by_what_they_expect(test: dict[str, Any], said: str, outcome: str, word: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke.safe_match, "LIMIT_S", 1.0)
    with scripted(lambda n, body: [response(200, answer(said))]) as server:
        result = smoke.ask(server.url, "m", smoke.SmokeTest.from_dict(test))
    assert (result.outcome, word in result.summary) == (outcome, True), result.summary


def test_own_questions_follow_the_built_in_ones_and_may_take_their_place(job: Any) -> None:
    mine = [own("contains", "Paris"), {**own("contains", "Paris"), "name": "factual"}, {"name": "broken", "kind": "odd"}, 7]
    _, _, record = job("http://127.0.0.1:1", smoke_without=["stream"])
    record.smoke_tests = mine
    tests, left_out = smoke.suite_of(record)
    assert [test.name for test in tests] == ["code", "reasoning", "tool", "mine", "factual"]
    assert [(one.name, one.outcome) for one in left_out] == [("broken", "left out"), ("number 4", "left out"), ("stream", "left out")]
    assert "it is no smoke test" in left_out[0].summary


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., tuple[Context, list[Any], ServiceRecord]]:
    def make(url: str, **values: Any) -> tuple[Context, list[Any], ServiceRecord]:
        events: list[Any] = []
        record = ServiceRecord(name="s", root=str(tmp_path), model_path="/m", served_model_name="m", base_url=url, **values)
        context = Context(job=str(uuid.uuid4()), params={}, paths=NodePaths(tmp_path), config=NodeConfig(name="n"), folder=tmp_path, service=record,
                          step="smoke", emit=lambda type, data: events.append((str(type), data)))
        return context, events, record

    return make


def test_a_job_tells_each_result_and_returns_a_note(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, events, record = job(server.url)
        note = smoke.run(context, record)
    results = [data for type, data in events if type == "smoke.result"]
    assert note == "5 of 5 passed" and [r["name"] for r in results] == ["factual", "code", "reasoning", "tool", "stream"]
    assert results[0] == {"name": "factual", "title": "A factual question", "outcome": "passed", "summary": "The answer has `Canberra`",
                          "took_s": results[0]["took_s"], "detail": "Canberra is the capital of Australia.", "kind": "factual",
                          "prompt": TESTS["factual"].prompt, "answer": "Canberra is the capital of Australia.", "reasoning": "", "cut": False,
                          "finish_reason": "stop"}


def test_a_job_fails_naming_the_test_and_what_came_back(job: Any) -> None:
    with scripted(lambda n, body: reply(body, {**GOOD, "factual": answer("It is Sydney.")})) as server:
        context, events, record = job(server.url)
        with pytest.raises(OpsError) as told:
            smoke.run(context, record)
    assert told.value.facts["failed"] == ["factual"] and "It is Sydney." in told.value.why
    assert len([1 for type, _ in events if type == "smoke.result"]) == 5


def test_what_the_service_was_started_without_is_left_out_and_said(job: Any) -> None:
    with scripted(lambda n, body: reply(body, GOOD)) as server:
        context, events, record = job(server.url, flags=["--tool_call_parser=hermes", "--enable-auto-tool-choice"], smoke_without=["code"])
        assert smoke.run(context, record) == (
            "3 of 3 passed; left out: code (switched off for this service); reasoning (started without --reasoning-parser)")
    assert [data["name"] for _, data in events if data.get("outcome") == "left out"] == ["code", "reasoning"]


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


def test_a_given_suite_takes_the_place_of_the_built_in_one(job: Any) -> None:
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


@pytest.mark.parametrize("raw", [own("matches", "(("), own("matches", "a" * 501), {**own("factual", "x"), "name": "A b"}, own("contains", " \n "),
                                 own("factual", "x", prompt=" "), own("factual", "x", prompt="x" * 8001), own("tool", tools=[{"function": 7}]),
                                 {"name": "x", "kind": "odd", "title": "", "prompt": ""}, {"name": "x", "kind": "factual", "title": "", "prompt": ""},
                                 {"name": "x"}, {"name": "x", "kind": "tool", "title": "", "prompt": ""}])
def test_a_suite_that_cannot_be_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        smoke.SmokeTest.from_dict(raw)
