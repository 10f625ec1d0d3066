"""Does the service answer sensibly? Four questions after every change: a fact, a function, reasoning, a tool call.

A model's code is parsed, never run: to run what a model wrote, as the agent's user on the GPU node, would give that user to whoever made
the weights or the prompt. A service that was started without a reasoning or tool parser cannot pass those two; they are left out, and said
to be. Answers that are one character over and over (what broken kernels and NaN logits produce) fail whatever was asked.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from ops.benchmark import endpoint as endpoints
from ops.benchmark.chat_stream import error_text
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Reporter
from ops.records import Record, ServiceRecord
from ops.services import health

SHOWN = 300  # characters of an answer that a result quotes

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(kw_only=True)
class SmokeTest(Record):
    """One question. `kind`: "factual" (`expect` must stand in the answer), "code" (a Python function `function` must be in it), "reasoning"
    (a reasoning part and an answer), "tool" (a well-formed call of one of `tools`)."""

    name: str
    kind: str
    title: str
    prompt: str
    expect: str = ""
    function: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 1024
    timeout_s: float = 180.0

    def check(self) -> None:
        if self.kind not in CHECKS:
            raise BadInput(f"Unknown kind of smoke test `{self.kind}`", hint=f"Kinds: {', '.join(CHECKS)}")
        if self.kind == "factual" and not self.expect:
            raise BadInput(f"Smoke test `{self.name}` does not say what it expects", hint="Set `expect`")
        if self.kind == "tool" and not self.tools:
            raise BadInput(f"Smoke test `{self.name}` offers no tools")
        if not 1 <= self.max_tokens <= 32768 or not 0 < self.timeout_s <= 3600:
            raise BadInput(f"Smoke test `{self.name}` has a max_tokens or timeout_s out of range")


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """How one test went. `summary`: one line; `detail`: what came back."""

    name: str
    title: str
    outcome: str  # "passed" or "failed"
    summary: str
    took_s: float
    detail: str

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion's first choice; texts are "" where the server sent null."""

    content: str
    reasoning: str
    finish_reason: str
    tool_calls: list[dict[str, Any]]


def _factual(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    if test.expect.lower() not in answer.content.lower():
        raise Wrong(f"`{test.expect}` is not in the answer")
    return f"The answer has `{test.expect}`"


def _code(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    source = code_block(answer.content)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Wrong(f"The code does not parse: {error}") from error
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    found = functions.get(test.function) if test.function else next(iter(functions.values()), None)
    if found is None:
        raise Wrong(f"There is no function `{test.function}` in the code" if test.function else "There is no function in the code")
    if not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(found)):
        raise Wrong(f"The function `{found.name}` returns nothing")
    return f"The code parses and has `{found.name}({', '.join(arg.arg for arg in found.args.args)})`"


def _reasoning(test: SmokeTest, answer: Answer) -> str:
    if not answer.reasoning.strip():
        raise Wrong("The reasoning field is empty: is the reasoning parser on, and the right one?")
    if answer.finish_reason == "length":
        raise Wrong(f"The answer was cut at {test.max_tokens} tokens")
    _need_content(answer)
    if answer.finish_reason != "stop":
        raise Wrong(f"finish_reason is `{answer.finish_reason}`, not `stop`")
    return f"{len(answer.reasoning)} characters of reasoning, then an answer"


def _tool(test: SmokeTest, answer: Answer) -> str:
    if not answer.tool_calls:
        raise Wrong("No tool was called: is the tool-call parser on, and the right one?")
    known = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in test.tools}
    told = []
    for call in answer.tool_calls:
        function = call.get("function")
        if not isinstance(function, dict):
            raise Wrong("A tool call has no function")
        name, text = str(function.get("name")), function.get("arguments")
        if name not in known:
            raise Wrong(f"A tool `{name[:80]}` was called that was not offered")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError) as error:
            raise Wrong(f"The arguments of `{name}` are not JSON: {error}") from error
        if problem := schema_problem(arguments, known[name]):
            raise Wrong(f"The arguments of `{name}` do not fit its schema: {problem}")
        told.append(f"{name}({json.dumps(arguments, ensure_ascii=False)})")
    if answer.finish_reason != "tool_calls":
        raise Wrong(f"finish_reason is `{answer.finish_reason}`, not `tool_calls`")
    return f"Called {', '.join(told)[:200]}"


CHECKS: dict[str, Callable[[SmokeTest, Answer], str]] = {"factual": _factual, "code": _code, "reasoning": _reasoning, "tool": _tool}

SUITE: tuple[SmokeTest, ...] = (
    SmokeTest(name="factual", kind="factual", title="A factual question", prompt="What is the capital of Australia? Answer in one sentence.",
              expect="Canberra"),
    SmokeTest(name="code", kind="code", title="Code generation", prompt="Write a Python function that adds two numbers."),
    SmokeTest(name="reasoning", kind="reasoning", title="Reasoning is present",
              prompt="A train leaves at 9:40 and arrives at 11:15. How long does it take?", max_tokens=2048),
    SmokeTest(name="tool", kind="tool", title="A tool call is well formed", prompt="What is the weather in Paris?", tools=[WEATHER_TOOL]),
)


class Wrong(Exception):
    """The answer is not what the test wants; the text says why."""


def run(context: Context, record: ServiceRecord, suite: Sequence[SmokeTest | dict[str, Any]] | None = None) -> str:
    """Asks the service all questions of the suite (records or their JSON form; None: the four); emits each smoke.result.

    Returns a note for the step list. Raises OpsError naming the failed tests and what came back.
    """
    tests = [test if isinstance(test, SmokeTest) else SmokeTest.from_dict(test) for test in suite or SUITE]
    chosen, left_out = applicable(tests, record)
    key = health.api_key(record)
    server = endpoints.inspect(record.base_url, api_key=key)
    endpoints.require_model(server, record.served_model_name)
    endpoints.require_practice(server, record.practice)
    results = []
    for i, test in enumerate(chosen):
        context.check()
        context.progress(i, len(chosen), "tests", test.title)
        result = ask(server.base_url, record.served_model_name, test, api_key=key)
        context.emit(EventType.SMOKE_RESULT, result.as_dict())
        results.append(result)
    context.progress(len(chosen), len(chosen), "tests")
    require_passed(results)
    return f"{len(results)} of {len(results)} passed" + (f"; left out: {', '.join(left_out)}" if left_out else "")


def check_url(url: str, model: str | None = None, *, suite: Sequence[SmokeTest] = SUITE, api_key: str = "",
              emit: Reporter | None = None) -> list[SmokeResult]:
    """The same for any endpoint, from the command line. Failed tests are in the results; raises BadInput or OpsError if it cannot be asked."""
    server = endpoints.inspect(url, api_key=api_key)
    if model is None:
        model = endpoints.only_model(server)
    endpoints.require_model(server, model)
    results = []
    for test in suite:
        results.append(ask(server.base_url, model, test, api_key=api_key))
        if emit is not None:
            emit(EventType.SMOKE_RESULT, results[-1].as_dict())
    return results


def require_passed(results: Sequence[SmokeResult]) -> None:
    """Raises OpsError if one failed."""
    failed = [result for result in results if result.outcome == "failed"]
    if not failed:
        return
    raise OpsError(f"{len(failed)} of {len(results)} smoke tests failed: {', '.join(result.name for result in failed)}", kind="smoke_failed",
                   why="\n".join(f"{result.name}: {result.summary}. Came back: {result.detail}" for result in failed),
                   hint="Look at the answers; then at the model's files, its parsers and the service's log",
                   failed=[result.name for result in failed])


def applicable(suite: Sequence[SmokeTest], record: ServiceRecord) -> tuple[list[SmokeTest], list[str]]:
    """(tests to run, what was left out and why), by the service's flags. A service without flags gets all tests."""
    chosen, left_out = [], []
    for test in suite:
        flag = {"reasoning": "--reasoning-parser", "tool": "--tool-call-parser"}.get(test.kind)
        if flag and record.flags and not any(given == flag or given.startswith(f"{flag}=") for given in record.flags):
            left_out.append(f"{test.name} (started without {flag})")
        else:
            chosen.append(test)
    return chosen, left_out


def ask(base_url: str, model: str, test: SmokeTest, *, api_key: str = "") -> SmokeResult:
    """Puts one question and judges the answer. Never raises for what the server does: that is a failed test."""
    request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": test.prompt}], "max_tokens": test.max_tokens,
                               "temperature": 0.0}
    if test.tools:
        request |= {"tools": test.tools, "tool_choice": "auto"}
    began = time.monotonic()
    shown = ""
    try:
        with endpoints.client(api_key=api_key, timeout_s=test.timeout_s) as http:
            response = http.post(f"{base_url}/v1/chat/completions", json=request)
        shown = response.text[:SHOWN]
        answer = read_answer(response)
        shown = quote(answer)
        for part, text in (("answer", answer.content), ("reasoning", answer.reasoning)):
            if problem := garbage(text):
                raise Wrong(f"The {part} is garbage: {problem}")
        summary = CHECKS[test.kind](test, answer)
        outcome = "passed"
    except Wrong as error:
        outcome, summary = "failed", str(error)
    except httpx.TimeoutException:
        outcome, summary = "failed", f"No answer within {test.timeout_s:g} s"
    except httpx.HTTPError as error:
        outcome, summary = "failed", f"No answer: {error or type(error).__name__}"
    return SmokeResult(test.name, test.title, outcome, summary, time.monotonic() - began, shown)


def read_answer(response: httpx.Response) -> Answer:
    """The first choice. Raises Wrong for an error status or a body of another form."""
    try:
        document = response.json()
    except ValueError as error:
        raise Wrong(f"HTTP {response.status_code} with a body that is not JSON") from error
    if response.status_code != 200:
        raise Wrong(f"HTTP {response.status_code}: {error_text(document) or 'no text'}"[:SHOWN])
    try:
        choice = document["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        return Answer(message.get("content") or "", message.get("reasoning") or message.get("reasoning_content") or "",
                      choice.get("finish_reason") or "", [call for call in calls if isinstance(call, dict)])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Wrong("The answer is not a chat completion") from error


def quote(answer: Answer) -> str:
    """What came back, short: the answer, else the calls, else the reasoning."""
    if answer.content.strip():
        return answer.content.strip()[:SHOWN]
    if answer.tool_calls:
        return json.dumps([call.get("function") for call in answer.tool_calls], ensure_ascii=False)[:SHOWN]
    return f"(no answer; reasoning: {answer.reasoning.strip()[:SHOWN]})" if answer.reasoning.strip() else "(nothing)"


def code_block(text: str) -> str:
    """The first fenced block, or the whole text where there is none."""
    fenced = re.search(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)(?:\n```|\Z)", text, re.DOTALL)
    return fenced[1] if fenced else text.strip()


def garbage(text: str) -> str:
    """Why the text cannot be an answer, or "". Rules: one character makes up most of 40 or more; one short piece repeats to fill nearly all;
    a fifth are replacement characters."""
    solid = "".join(text.split())
    if len(solid) < 40:
        return ""
    top = max(set(solid), key=solid.count)
    if solid.count(top) > 0.8 * len(solid):
        return f"{top!r} makes up {100 * solid.count(top) // len(solid)} % of {len(solid)} characters"
    if solid.count("\ufffd") > 0.2 * len(solid):
        return "a fifth of it are replacement characters"
    for size in range(1, 13):
        piece = solid[-size:]
        repeats = len(solid) - len(solid.rstrip(piece)) if size == 1 else _tail_repeats(solid, piece) * size
        if repeats > 0.6 * len(solid) and repeats >= 40:
            return f"it repeats {piece!r} to its end"
    return ""


def _tail_repeats(text: str, piece: str) -> int:
    count, end = 0, len(text)
    while text.endswith(piece, 0, end):
        count += 1
        end -= len(piece)
    return count


def schema_problem(value: Any, schema: dict[str, Any]) -> str:
    """What of `value` does not fit a tool's JSON schema, or "". Knows type, properties, required, items, enum: what tools use."""
    kinds: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
                             "null": type(None)}
    wanted = schema.get("type")
    if isinstance(wanted, str) and wanted in kinds:
        fits = isinstance(value, kinds[wanted]) and not (isinstance(value, bool) and wanted in ("integer", "number"))
        if not fits:
            return f"{json.dumps(value)[:60]} is not of type {wanted}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{json.dumps(value)[:60]} is not one of {json.dumps(schema['enum'])[:120]}"
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                return f"`{name}` is missing"
        for name, part in schema.get("properties", {}).items():
            if name in value and (problem := schema_problem(value[name], part)):
                return f"`{name}`: {problem}"
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for entry in value:
            if problem := schema_problem(entry, schema["items"]):
                return problem
    return ""


def _need_content(answer: Answer) -> None:
    if answer.content.strip():
        return
    if answer.finish_reason == "length" and answer.reasoning.strip():
        raise Wrong("The answer was cut while the model was still reasoning")
    raise Wrong("The answer is empty")
