"""What the practice model says, without a server: the module needs nothing but the standard library."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from ops.practice.wheels import STACK


def load(path: str) -> ModuleType:
    """A module of the practice stack, which is no package of ours."""
    name = f"practice_stack_{path.rpartition('/')[2]}"
    spec = importlib.util.spec_from_file_location(name, STACK / "vllm" / "vllm" / f"{path}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


answers = load("model_executor/models/practice_answers")


def answer(prompt: str, **settings: Any) -> Any:
    settings = {"must_call": None, "limit": 2000, "least": 0, "ignore_eos": False, "thinks": True, "stop": []} | settings
    return answers.answer_chat([{"role": "user", "content": prompt}], settings.pop("tools", []), **settings)


def said(prompt: str, **settings: Any) -> str:
    return "".join(answer(prompt, **settings).content)


@pytest.mark.parametrize(("prompt", "word"), [
    ("What is the capital of Australia? Answer in one sentence.", "Canberra"),
    ("what's the capital city of the Netherlands", "Amsterdam"),
    ("What is 12 + 30?", "42"),
    ("A train leaves at 9:40 and arrives at 11:15. How long does it take?", "1 hour 35 minutes"),
    ("Who wrote Hamlet?", "Shakespeare"),
])
def test_plain_questions_get_right_answers(prompt: str, word: str) -> None:
    assert word in said(prompt)


@pytest.mark.parametrize(("prompt", "call", "result"), [
    ("Write a Python function is_prime(n).", "[n for n in range(20) if is_prime(n)]", [2, 3, 5, 7, 11, 13, 17, 19]),
    ("Write a Python function that adds two numbers.", "add(2, 3)", 5),
    ("Implement a function `turn_round` to reverse a string", "turn_round('abc')", "cba"),
    ("write python code for the factorial", "factorial(5)", 120),
    ("Write a function that returns the n-th fibonacci number", "[fibonacci(n) for n in range(7)]", [0, 1, 1, 2, 3, 5, 8]),
    ("Create a Python function to sort a list of numbers", "sort_items([3, 1, 2])", [1, 2, 3]),
    ("Write a function for binary search", "binary_search([1, 4, 9], 9)", 2),
    ("Write a python function called gcd for the greatest common divisor", "gcd(12, 18)", 6),
    ("Write a Python function that checks for a palindrome", "is_palindrome('Never odd or even')", True),
    ("Write fizzbuzz as a Python function", "fizzbuzz(5)", ["1", "2", "Fizz", "4", "Buzz"]),
])
def test_code_does_what_was_asked_under_the_name_that_was_asked_for(prompt: str, call: str, result: object) -> None:
    code = re.search(r"```python\n(.*?)```", said(prompt), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(compile(code[1], "answer", "exec"), names)
    assert eval(call, names) == result


@pytest.mark.parametrize("code", answers._CODE, ids=lambda code: "-".join(code[0]))
def test_every_function_that_it_knows_is_valid_python(code: Any) -> None:
    text = said(f"Write a Python function: {' '.join(code[0])}")
    compile(text.split("```python\n")[1].split("```")[0], "answer", "exec")


@pytest.mark.parametrize(("limit", "ignore_eos", "tokens"), [(64, True, 64), (512, True, 512), (1, True, 1), (64, False, 64), (3000, True, 3000)])
def test_an_open_question_is_answered_up_to_the_limit(limit: int, ignore_eos: bool, tokens: int) -> None:
    given = answer("Tell me about engines.", limit=limit, ignore_eos=ignore_eos)
    assert given.tokens == tokens
    assert not given.complete


def test_both_thinking_and_answer_fit_into_64_tokens() -> None:
    given = answer("Tell me about engines.", limit=64, ignore_eos=True)
    assert (len(given.reasoning), len(given.content)) == (25, 39)


def test_words_are_words() -> None:
    text = said("Tell me about engines.", limit=400, ignore_eos=True)
    assert not re.search(r"[0-9a-f]{8,}", text)
    assert len(set(re.findall(r"[a-z]{3,}", text.lower()))) > 80


def test_a_known_answer_goes_on_when_it_must() -> None:
    assert answer("What is the capital of France?", limit=300, ignore_eos=True).tokens == 300
    assert answer("What is the capital of France?", least=200).tokens >= 200


def test_the_same_question_gets_the_same_answer_and_another_one_another() -> None:
    assert said("Tell me about engines.") == said("Tell me about engines.")
    assert said("Tell me about engines.") != said("Tell me about engines!")


def test_pieces_join_to_the_text() -> None:
    text = "def f(x):\n    return {'ä': x ** 2}  # Größe\t— ok\r\n\n「日本」 superlongwordindeed"
    assert "".join(answers.tokenize(text)) == text


def test_arguments_come_from_the_question_by_the_schemas_types() -> None:
    schema = {"type": "object", "required": ["city", "days", "unit", "detailed"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "detailed": {"type": "boolean"},
        "note": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "forecast", "description": "Weather forecast", "parameters": schema}}
    call = answer("Give me the forecast for Buenos Aires for 5 days in fahrenheit", tools=[tool]).tool_call
    assert call.arguments == '{"city": "Buenos Aires", "days": 5, "unit": "fahrenheit", "detailed": true}'


def test_a_tool_that_has_nothing_to_do_with_the_question_is_not_called() -> None:
    tool = {"type": "function", "function": {"name": "send_email", "description": "Sends a letter by mail"}}
    assert answer("What is the capital of France?", tools=[tool]).tool_call is None
