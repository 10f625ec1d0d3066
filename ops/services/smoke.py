"""Does the service answer sensibly? A suite of questions after every change: a fact, a function, reasoning, a tool call, the same answer streamed;
and whatever a service's own questions are.

A model's code is parsed, never run: to run what a model wrote, as the agent's user on the GPU node, would give that user to whoever made
the weights or the prompt. A service that was started without a reasoning or tool parser cannot pass those two; they are left out, and said
to be. Answers that cannot be any (garbage.py) fail whatever was asked. An answer that was cut by its limit of tokens is asked for once more with
a larger one, so that it can be said whether that would do.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from ops.benchmark import chat_stream
from ops.benchmark import endpoint as endpoints
from ops.benchmark.stamped_connection import RawResponse
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context, Reporter
from ops.jobs.redact import log_text, plain_text
from ops.records import NAME, NEVER_IN_TEXT, Record, ServiceRecord
from ops.services import health, launch, safe_match
from ops.services.garbage import garbage
from ops.services.smoke_checks import CHECKS, Answer, NoAnswer, Wrong, code_block, difference, judge

__all__ = ["CHECKS", "SUITE", "Answer", "SmokeResult", "SmokeTest", "Wrong", "ask", "check_url", "code_block", "garbage", "require_passed", "run",
           "suite_of"]

SHOWN = 300  # characters of an answer that a summary quotes
KEPT = 4000  # characters of a prompt, an answer and a reasoning that a result keeps
ANSWER_BYTES = 8 << 20
MORE_TOKENS_LEAST, MORE_TOKENS_MOST = 2048, 32768
PROMPT_LENGTH, EXPECT_LENGTH, TITLE_LENGTH = 8000, 2000, 200

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(kw_only=True)
class SmokeTest(Record):
    """One question. `kind`: "factual" (`expect` must stand in the answer, in whatever case), "contains" (each line of `expect` must, as it is
    written), "matches" (the regular expression `expect` must), "json" (the answer is JSON, and fits `schema`), "code" (a Python function, or the
    function `function`), "reasoning" (a reasoning part and an answer, apart), "tool" (a well-formed call of one of `tools`), "stream" (streamed it
    is the same answer)."""

    name: str
    kind: str
    title: str
    prompt: str
    expect: str = ""
    function: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    max_tokens: int = 1024
    timeout_s: float = 180.0
    system: str = ""  # the system prompt; "": none
    schema: dict[str, Any] = field(default_factory=dict)  # kind "json": a JSON schema

    def check(self) -> None:
        if self.kind not in CHECKS:
            raise BadInput(f"Unknown kind of smoke test `{self.kind[:60]}`", hint=f"Kinds: {', '.join(CHECKS)}")
        if not NAME.match(self.name):
            raise BadInput(f"`{self.name[:80]}` is not a name of a smoke test", hint="Lower-case letters, digits, dot, dash, underscore")
        if not self.prompt.strip():
            raise BadInput(f"Smoke test `{self.name}` asks nothing", hint="Set `prompt`")
        for text, limit in ((self.prompt, PROMPT_LENGTH), (self.system, PROMPT_LENGTH), (self.expect, EXPECT_LENGTH), (self.title, TITLE_LENGTH),
                            (self.function, TITLE_LENGTH)):
            if len(text) > limit:
                raise BadInput(f"A text of smoke test `{self.name}` is longer than {limit:,} characters")
        if self.kind in ("factual", "contains", "matches") and not self.expect.strip():
            raise BadInput(f"Smoke test `{self.name}` does not say what it expects", hint="Set `expect`")
        if self.kind == "matches":
            safe_match.check(self.expect)
        if self.kind == "tool":
            _check_tools(self.name, self.tools)
        if not 1 <= self.max_tokens <= MORE_TOKENS_MOST or not 0 < self.timeout_s <= 3600:
            raise BadInput(f"Smoke test `{self.name}` has a max_tokens or timeout_s out of range")


def _check_tools(name: str, tools: Sequence[Any]) -> None:
    if not tools:
        raise BadInput(f"Smoke test `{name}` offers no tools")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not isinstance(function.get("parameters", {}), dict):
            raise BadInput(f"A tool of smoke test `{name}` is none",
                           hint='Write it as OpenAI has it: {"type": "function", "function": {"name", "parameters"}}')


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """How one test went. `summary`: one line; `detail`: what came back, short. `answer` and `reasoning` are what the model said, `cut` whether one
    of them, or the prompt, was longer than what is kept."""

    name: str
    title: str
    outcome: str  # "passed", "failed" or "left out"
    summary: str
    took_s: float
    detail: str
    kind: str = ""
    prompt: str = ""
    answer: str = ""
    reasoning: str = ""
    cut: bool = False
    finish_reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


SUITE: tuple[SmokeTest, ...] = (
    SmokeTest(name="factual", kind="factual", title="A factual question", prompt="What is the capital of Australia? Answer in one sentence.",
              expect="Canberra"),
    SmokeTest(name="code", kind="code", title="Code generation", prompt="Write a Python function that adds two numbers."),
    SmokeTest(name="reasoning", kind="reasoning", title="Reasoning is present",
              prompt="A train leaves at 9:40 and arrives at 11:15. How long does it take?", max_tokens=2048),
    SmokeTest(name="tool", kind="tool", title="A tool call is well formed", prompt="What is the weather in Paris?", tools=[WEATHER_TOOL]),
    SmokeTest(name="stream", kind="stream", title="Streamed it is the same answer", prompt="Name the days of the week in order, on one line.",
              max_tokens=512),
)


def run(context: Context, record: ServiceRecord, suite: Sequence[SmokeTest | dict[str, Any]] | None = None) -> str:
    """Asks the service all questions of the suite (records or their JSON form; None: the service's own suite); emits each smoke.result.

    Returns a note for the step list. Raises OpsError naming the failed tests and what came back.
    """
    if suite is None:
        tests, broken = suite_of(record)
    else:
        tests, broken = [test if isinstance(test, SmokeTest) else SmokeTest.from_dict(test) for test in suite], []
    chosen, without = applicable(tests, record)
    left_out = [*broken, *without]
    key = health.api_key(record)
    server = endpoints.inspect(record.base_url, api_key=key)
    endpoints.require_model(server, record.served_model_name)
    endpoints.require_practice(server, record.practice)
    asked = _Asked(server.base_url, record.served_model_name, key, server.max_model_len.get(record.served_model_name),
                   tuple(launch.secrets(record)))
    results = []
    for i, test in enumerate(chosen):
        context.check()
        context.progress(i, len(chosen), "tests", test.title)
        result = asked.ask(test)
        context.emit(EventType.SMOKE_RESULT, result.as_dict())
        results.append(result)
    for one in left_out:
        context.emit(EventType.SMOKE_RESULT, one.as_dict())
    context.progress(len(chosen), len(chosen), "tests")
    require_passed(results)
    told = "; ".join(f"{one.name} ({one.summary})" for one in left_out)
    return f"{len(results)} of {len(results)} passed" + (f"; left out: {told}" if told else "")


def suite_of(record: ServiceRecord) -> tuple[list[SmokeTest], list[SmokeResult]]:
    """The questions for this service: the built-in ones that it is not spared, then its own, one of which may take a built-in one's place by its
    name. Second: what of its own is no test, left out (a mistake in a file must not take a healthy service down), and what it is spared."""
    own: dict[str, SmokeTest] = {}
    left_out = []
    for number, raw in enumerate(record.smoke_tests, start=1):
        try:
            test = SmokeTest.from_dict(raw)
        except BadInput as error:
            name = str(raw.get("name") or f"number {number}")[:60] if isinstance(raw, dict) else f"number {number}"
            left_out.append(_left_out(name, str(raw.get("title") or name)[:TITLE_LENGTH] if isinstance(raw, dict) else name,
                                      f"it is no smoke test: {error.what}"))
            continue
        own[test.name] = test
    tests = []
    for test in SUITE:
        if test.name in own:
            continue
        if test.name in record.smoke_without:
            left_out.append(_left_out(test.name, test.title, "switched off for this service", test))
        else:
            tests.append(test)
    return [*tests, *own.values()], left_out


def _left_out(name: str, title: str, why: str, test: SmokeTest | None = None) -> SmokeResult:
    return SmokeResult(name, title, "left out", why, 0.0, "", kind=test.kind if test else "", prompt=test.prompt[:KEPT] if test else "")


def check_url(url: str, model: str | None = None, *, suite: Sequence[SmokeTest] = SUITE, api_key: str = "",
              emit: Reporter | None = None) -> list[SmokeResult]:
    """The same for any endpoint, from the command line. Failed tests are in the results; raises BadInput or OpsError if it cannot be asked."""
    server = endpoints.inspect(url, api_key=api_key)
    if model is None:
        model = endpoints.only_model(server)
    endpoints.require_model(server, model)
    asked = _Asked(server.base_url, model, api_key, server.max_model_len.get(model), (api_key,) if api_key else ())
    results = []
    for test in suite:
        results.append(asked.ask(test))
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


def applicable(suite: Sequence[SmokeTest], record: ServiceRecord) -> tuple[list[SmokeTest], list[SmokeResult]]:
    """(tests to run, what was left out and why), by the service's flags. A service without flags gets all tests."""
    chosen, left_out = [], []
    for test in suite:
        flag = {"reasoning": "--reasoning-parser", "tool": "--tool-call-parser"}.get(test.kind)
        given = [one.partition("=")[0].replace("_", "-") for one in record.flags]
        if flag and record.flags and flag not in given:
            left_out.append(_left_out(test.name, test.title, f"started without {flag}", test))
        else:
            chosen.append(test)
    return chosen, left_out


def ask(base_url: str, model: str, test: SmokeTest, *, api_key: str = "", context_tokens: int | None = None) -> SmokeResult:
    """Puts one question and judges the answer. Never raises for what the server does: that is a failed test. `context_tokens`: the longest that
    prompt and answer may be together, where the server says so."""
    return _Asked(base_url, model, api_key, context_tokens, (api_key,) if api_key else ()).ask(test)


class _Failed(Exception):
    """No answer; carries what came back instead."""

    def __init__(self, why: str, shown: str = "") -> None:
        super().__init__(why)
        self.shown = shown


@dataclass(frozen=True, slots=True)
class _Asked:
    """A server and the model that is asked there."""

    base_url: str
    model: str
    api_key: str
    context_tokens: int | None
    secrets: tuple[str, ...]

    def ask(self, test: SmokeTest) -> SmokeResult:
        began = time.monotonic()
        answer: Answer | None = None
        shown = ""
        try:
            answer = self._once(test, test.max_tokens)
            try:
                summary = judge(test, answer)
            except Wrong as error:
                if answer.finish_reason != "length" or isinstance(error, NoAnswer):
                    raise
                answer, summary = self._with_more_tokens(test, answer, str(error))
            if test.kind == "stream":
                summary = self._streamed(test, answer)
            outcome = "passed"
        except _Cut as error:
            outcome, summary, answer = "failed", str(error), error.answer
        except Wrong as error:
            outcome, summary = "failed", str(error)
        except _Failed as error:
            outcome, summary, shown = "failed", str(error), error.shown
        return self._result(test, outcome, summary, time.monotonic() - began, answer, shown)

    def _result(self, test: SmokeTest, outcome: str, summary: str, took_s: float, answer: Answer | None, shown: str) -> SmokeResult:
        said, thought = (plain_text(answer.content), plain_text(answer.reasoning)) if answer else ("", "")
        if answer and answer.tool_calls and not said.strip():
            said = plain_text(json.dumps([call.get("function") for call in answer.tool_calls], ensure_ascii=False))
        return SmokeResult(
            test.name, test.title, outcome, log_text(summary, self.secrets), took_s, plain_text(quote(answer)) if answer else shown, test.kind,
            test.prompt[:KEPT], said[:KEPT], thought[:KEPT], len(said) > KEPT or len(thought) > KEPT or len(test.prompt) > KEPT,
            plain_text(answer.finish_reason)[:40] if answer else "")

    def _with_more_tokens(self, test: SmokeTest, answer: Answer, problem: str) -> tuple[Answer, str]:
        """Asks once more, as the answer was cut. Gives the longer answer, and the sentence that says what it took. Raises _Cut."""
        more = min(max(4 * test.max_tokens, MORE_TOKENS_LEAST), MORE_TOKENS_MOST)
        if self.context_tokens is not None:
            more = min(more, self.context_tokens - (answer.prompt_tokens or len(test.prompt)) - 16)
        cut = f"{problem} (cut at max_tokens {test.max_tokens:,})"
        if more <= test.max_tokens:
            raise _Cut(f"{cut}; the model's context of {self.context_tokens:,} tokens allows no more", answer)
        try:
            longer = self._once(test, more)
            summary = judge(test, longer)
        except _Failed as error:
            raise _Cut(f"{cut}; with max_tokens {more:,} there was no answer: {error}", answer) from error
        except Wrong as error:
            if longer.finish_reason == "length":
                raise _Cut(f"{cut}; with max_tokens {more:,} it is cut as well: it needs more than that, or comes to no end", longer) from error
            raise _Cut(f"{cut}; with max_tokens {more:,} it is whole, but wrong: {error}", longer) from error
        used = f" (it used {longer.output_tokens:,})" if longer.output_tokens is not None else ""
        words = "before any content" if answer.cut_before_content else "before it was whole"
        begins = f"{summary}, but" if summary else "The answer is whole, but"
        return longer, f"{begins} only with max_tokens {more:,}{used}: with {test.max_tokens:,} it ended by length, {words}"

    def _streamed(self, test: SmokeTest, plain: Answer) -> str:
        """Holds the streamed answer against the plain one. Of a server that gives two plain answers to one question, just that is said."""
        limit = max(test.max_tokens, plain.output_tokens or 0)
        streamed = self._once(test, limit, stream=True)
        if not (differs := difference(plain, streamed)):
            return f"{len(plain.content) + len(plain.reasoning):,} characters, the same both ways"
        if not_same := difference(plain, self._once(test, limit)):
            return ("The stream is well formed. Its text cannot be compared, as the server is not deterministic: "
                    f"of two plain answers, {not_same}")[:SHOWN]
        if not difference(plain, self._once(test, limit, stream=True)):
            return "The same both ways at the second try: the server is not quite deterministic"
        raise Wrong(f"Streamed it is another answer, twice, while plain ones are the same: {differs}")

    def _once(self, test: SmokeTest, max_tokens: int, *, stream: bool = False) -> Answer:
        """One request. Raises _Failed where no answer comes, Wrong where it is none."""
        messages = [*([{"role": "system", "content": test.system}] if test.system else []), {"role": "user", "content": test.prompt}]
        request: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0.0}
        if test.tools:
            request |= {"tools": test.tools, "tool_choice": "auto"}
        if stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        end = time.monotonic() + test.timeout_s
        body = bytearray()
        try:
            with (endpoints.client(api_key=self.api_key, timeout_s=test.timeout_s) as http,
                  http.stream("POST", f"{self.base_url}/v1/chat/completions", json=request) as response):
                for part in response.iter_bytes():  # a server that dribbles keeps each wait short, and the whole long
                    body += part
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("")
                    if len(body) > ANSWER_BYTES:
                        raise _Failed(f"The answer is longer than {ANSWER_BYTES >> 20} MB", self._text(bytes(body)))
        except httpx.TimeoutException as error:
            raise _Failed(f"No answer within {test.timeout_s:g} s", self._text(bytes(body))) from error
        except httpx.HTTPError as error:
            raise _Failed(f"No answer: {error or type(error).__name__}", self._text(bytes(body))) from error
        is_stream = response.headers.get("content-type", "").split(";")[0].strip().lower() == "text/event-stream"
        try:
            if stream and response.status_code == 200:
                if not is_stream:
                    raise Wrong("The answer is no stream, though one was asked for")
                return read_stream(bytes(body))
            return read_answer(response.status_code, bytes(body))
        except Wrong as error:
            raise _Failed(str(error), self._text(bytes(body))) from error

    def _text(self, body: bytes) -> str:
        return log_text(body[:4 * SHOWN].decode(errors="replace"), self.secrets)[:SHOWN]


class _Cut(Wrong):
    """The answer was cut, and a larger limit did not help; carries the last answer."""

    def __init__(self, why: str, answer: Answer) -> None:
        super().__init__(why)
        self.answer = answer


def read_answer(status: int, body: bytes) -> Answer:
    """The first choice. Raises Wrong for an error status or a body of another form."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"HTTP {status} with a body that is not JSON") from error
    if status != 200:
        raise Wrong(f"HTTP {status}: {chat_stream.error_text(document) or 'no text'}"[:SHOWN])
    try:
        choice = document["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        usage = document.get("usage")
        return Answer(_string(message.get("content")), _string(message.get("reasoning")) or _string(message.get("reasoning_content")),
                      _string(choice.get("finish_reason")), [call for call in calls if isinstance(call, dict)],
                      _count(usage, "completion_tokens"), _count(usage, "prompt_tokens"))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Wrong("The answer is not a chat completion") from error


def read_stream(body: bytes) -> Answer:
    """A whole streamed answer, put together. Raises Wrong for one that holds an error, something else than events, or no end."""
    raw = RawResponse(stamps=array("q", [0]), pieces=[body], status=200, framing="close", complete=True)
    steps = chat_stream.read_in_steps(raw, keep_text=True)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            told: chat_stream.ChatStream = ended.value
            break
    if told.error:
        raise Wrong(f"The stream holds an error: {told.error}"[:SHOWN])
    if told.broken_event:
        raise Wrong(f"The stream holds an event that is not JSON: {told.broken_event}"[:SHOWN])
    if not told.done:
        raise Wrong("The stream ended without `[DONE]`")
    if told.finish_reason is None:
        raise Wrong("The stream has no finish_reason")
    calls = [{"id": "", "function": call} for _, call in sorted(told.tool_calls.items())]
    return Answer(told.content, told.reasoning, told.finish_reason, calls, told.output_tokens, told.prompt_tokens)


def _string(value: Any) -> str:
    """Text, or "" for null; halves of characters, which JSON can hold and UTF-8 cannot, are replaced. Raises TypeError for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("a text was expected")
    return NEVER_IN_TEXT.sub("\ufffd", value)


def _count(usage: Any, name: str) -> int | None:
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) else None


def quote(answer: Answer) -> str:
    """What came back, short: the answer, else the calls, else the reasoning."""
    if answer.content.strip():
        return answer.content.strip()[:SHOWN]
    if answer.tool_calls:
        return json.dumps([call.get("function") for call in answer.tool_calls], ensure_ascii=False)[:SHOWN]
    return f"(no answer; reasoning: {answer.reasoning.strip()[:SHOWN]})" if answer.reasoning.strip() else "(nothing)"
