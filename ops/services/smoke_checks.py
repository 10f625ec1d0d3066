"""How an answer of a chat server is judged: one function for each kind of smoke test. Each gives a sentence for an answer that is right and raises
`Wrong` for one that is not. Nothing that a model wrote is ever run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ops.jobs.errors import OpsError
from ops.services import json_fits, safe_match
from ops.services.garbage import garbage, wrong_script

if TYPE_CHECKING:
    from ops.services.smoke import SmokeTest

# What a reasoning parser takes out of the content. One that is left there means that the parser is off, or another model's.
_THINKING = re.compile(r"</?think(?:ing)?>|\[/?THINK\]|◁/?think▷|<\|channel\|>|<\|(?:im_start|im_end|eot_id|start_header_id)\|>")


class Wrong(Exception):
    """The answer is not what the test wants; the text says why."""


class NoAnswer(Wrong):
    """The text cannot be an answer to anything, nor to this: a longer one would be no better."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion's first choice; texts are "" where the server sent null. Token counts None where it told none."""

    content: str
    reasoning: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    output_tokens: int | None = None
    prompt_tokens: int | None = None

    @property
    def cut_before_content(self) -> bool:
        """It ended by length before it said anything."""
        return self.finish_reason == "length" and not self.content.strip() and not self.tool_calls


def judge(test: SmokeTest, answer: Answer) -> str:
    """The sentence for a right answer. Raises Wrong."""
    for part, text in (("answer", answer.content), ("reasoning", answer.reasoning)):
        if problem := garbage(text):
            raise NoAnswer(f"The {part} is garbage: {problem}")
    if problem := wrong_script(answer.content, test.prompt, test.system, test.expect, json.dumps(test.tools, ensure_ascii=False)):
        raise NoAnswer(f"The answer is in the wrong script: {problem}")
    return CHECKS[test.kind](test, answer)


def _need_content(answer: Answer) -> None:
    if answer.content.strip():
        return
    if answer.finish_reason == "length":
        raise Wrong("The answer ended by length before any content" + (": the model was still reasoning" if answer.reasoning.strip() else ""))
    if answer.reasoning.strip():
        raise Wrong("The answer is empty: all of it is in the reasoning field. Is the reasoning parser the right one for this model?")
    raise Wrong("The answer is empty")


def _factual(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    if test.expect.casefold() not in answer.content.casefold():
        raise Wrong(f"`{test.expect}` is not in the answer")
    return f"The answer has `{test.expect}`"


def _contains(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    wanted = [line.strip() for line in test.expect.splitlines() if line.strip()]
    if missing := next((text for text in wanted if text not in answer.content), None):
        raise Wrong(f"`{missing}` is not in the answer")
    return f"The answer has {', '.join(f'`{text}`' for text in wanted)}"[:300]


def _matches(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    try:
        found = safe_match.search(test.expect, answer.content)
    except OpsError as error:
        raise Wrong(error.what) from error
    if found is None:
        raise Wrong(f"The answer does not match `{test.expect}`")
    return f"The answer matches: `{' '.join(found.split())}`"


def _json(test: SmokeTest, answer: Answer) -> str:
    _need_content(answer)
    try:
        value = json.loads(code_block(answer.content))
    except (ValueError, RecursionError) as error:
        raise Wrong(f"The answer is not JSON: {error}") from error
    if problem := json_fits.problem(value, test.schema):
        raise Wrong(f"The answer does not fit its schema: {problem}")
    return "The answer is JSON" + (" and fits its schema" if test.schema else "")


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
    if mark := _THINKING.search(answer.content):
        raise Wrong(f"The reasoning is not apart from the answer: `{mark[0]}` stands in it. Is the reasoning parser on, and the right one?")
    if not answer.reasoning.strip():
        _need_content(answer)
        raise Wrong("The reasoning field is empty: is the reasoning parser on, and the right one?")
    _need_content(answer)
    if answer.finish_reason == "length":
        raise Wrong(f"The answer was cut at {test.max_tokens:,} tokens")
    if len(answer.content.strip()) > 40 and answer.content.strip() in answer.reasoning:
        raise Wrong("The reasoning field holds the answer as well: they are not apart")
    if answer.finish_reason != "stop":
        raise Wrong(f"finish_reason is `{answer.finish_reason}`, not `stop`")
    return f"{len(answer.reasoning):,} characters of reasoning, then an answer"


def _tool(test: SmokeTest, answer: Answer) -> str:
    if not answer.tool_calls:
        if answer.finish_reason == "length":
            raise Wrong("The answer ended by length before a tool was called")
        raise Wrong("No tool was called: is the tool-call parser on, and the right one?")
    known = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in test.tools}
    told = []
    for call in answer.tool_calls:
        function = call.get("function")
        if not isinstance(function, dict):
            raise Wrong("A tool call has no function")
        if not call.get("id"):
            raise Wrong("A tool call has no id, without which its result cannot be given back")
        name, text = str(function.get("name")), function.get("arguments")
        if name not in known:
            raise Wrong(f"A tool `{name[:80]}` was called that was not offered")
        try:
            arguments = json.loads(text) if isinstance(text, str) else text
        except (ValueError, RecursionError) as error:
            raise Wrong(f"The arguments of `{name}` are not JSON: {error}") from error
        if problem := json_fits.problem(arguments, known[name]):
            raise Wrong(f"The arguments of `{name}` do not fit its schema: {problem}")
        told.append(f"{name}({json.dumps(arguments, ensure_ascii=False)})")
    if answer.finish_reason != "tool_calls":
        raise Wrong(f"finish_reason is `{answer.finish_reason}`, not `tool_calls`")
    return f"Called {', '.join(told)[:200]}"


def _stream(test: SmokeTest, answer: Answer) -> str:
    """Of the plain answer, which the streamed one is then held against (smoke.py)."""
    if not answer.content.strip() and not answer.reasoning.strip() and not answer.tool_calls:
        raise Wrong("The answer is empty")
    return ""


CHECKS: dict[str, Callable[[SmokeTest, Answer], str]] = {
    "factual": _factual, "code": _code, "reasoning": _reasoning, "tool": _tool, "stream": _stream, "contains": _contains, "matches": _matches,
    "json": _json,
}


def difference(plain: Answer, streamed: Answer) -> str:
    """How a streamed answer differs from a plain one, or ""."""
    for part in ("reasoning", "content"):
        one, other = getattr(plain, part), getattr(streamed, part)
        if one.strip() != other.strip():
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
            words = "answers differ" if part == "content" else "reasoning differs"
            return f"the {words} from character {at + 1} on: {_from(one, at)} against {_from(other, at)}"
    if [_call(one) for one in plain.tool_calls] != [_call(one) for one in streamed.tool_calls]:
        return "the tool calls differ"
    if plain.finish_reason != streamed.finish_reason:
        return f"finish_reason is `{plain.finish_reason}` against `{streamed.finish_reason}`"
    return ""


def _from(text: str, at: int) -> str:
    return f"`{' '.join(text[at:at + 40].split())}`" if text[at:].strip() else "nothing"


def _call(call: dict[str, Any]) -> tuple[Any, Any]:
    function = call.get("function") or {}
    text = function.get("arguments")
    try:
        return function.get("name"), json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return function.get("name"), text


def code_block(text: str) -> str:
    """The first fenced block, or the whole text where there is none."""
    fenced = re.search(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)(?:\n```|\Z)", text, re.DOTALL)
    return fenced[1] if fenced else text.strip()
