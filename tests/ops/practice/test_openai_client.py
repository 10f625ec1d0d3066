"""The practice server as the OpenAI Python client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from ops.practice.model_folder import NAME

from .conftest import Server
from .test_recordings import FACT, WEATHER, WEATHER_QUESTION


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, prompt: str, **more: Any) -> Any:
    return client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": prompt}], **more)


def test_an_answer(client: openai.OpenAI) -> None:
    answer = ask(client, FACT)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.reasoning
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    whole = ask(client, FACT)
    chunks = list(ask(client, FACT, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == whole.choices[0].message.reasoning
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_every_token_is_an_event_of_its_own(client: openai.OpenAI) -> None:
    chunks = list(ask(client, "Describe a roundhouse", stream=True, max_tokens=100, extra_body={"ignore_eos": True, "min_tokens": 100},
                      stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert len([delta for delta in deltas if delta.content or getattr(delta, "reasoning", None)]) == 100
    assert chunks[-1].usage.completion_tokens == 100
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 40


def test_usage_stands_in_every_chunk_when_asked_for(client: openai.OpenAI) -> None:
    chunks = list(ask(client, FACT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == chunks[-1].usage.completion_tokens > 0


def test_a_tool_call_streams_its_arguments_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(ask(client, WEATHER_QUESTION, tools=[WEATHER], stream=True))
    calls = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls]
    assert (calls[0].id.startswith("chatcmpl-tool-"), calls[0].function.name) == (True, "get_weather")
    assert len(calls) > 3
    assert "".join(call.function.arguments or "" for call in calls[1:]) == '{"city": "Paris"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_tools_answer_is_passed_on(client: openai.OpenAI) -> None:
    call = ask(client, WEATHER_QUESTION, tools=[WEATHER]).choices[0].message
    conversation: Any = [{"role": "user", "content": WEATHER_QUESTION}, call.model_dump(exclude_none=True),
                         {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "18 degrees and rain"}]
    answer: Any = client.chat.completions.create(model=NAME, messages=conversation)
    assert "18 degrees and rain" in answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_call_can_be_demanded(client: openai.OpenAI, choice: Any) -> None:
    assert ask(client, "Hello", tools=[WEATHER], tool_choice=choice).choices[0].finish_reason == "tool_calls"


def test_tool_choice_none_calls_nothing(client: openai.OpenAI) -> None:
    assert ask(client, WEATHER_QUESTION, tools=[WEATHER], tool_choice="none", max_tokens=30).choices[0].message.tool_calls is None


def test_a_stop_text_ends_the_content_before_it(client: openai.OpenAI) -> None:
    answer = ask(client, FACT, stop=[" Paris"])
    assert answer.choices[0].message.content == "The capital of France is"
    assert answer.choices[0].finish_reason == "stop"


def test_text_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="What is 17 * 23?", max_tokens=50)
    assert "391" in answer.choices[0].text
    streamed = client.completions.create(model=NAME, prompt="What is 17 * 23?", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == answer.choices[0].text


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "Hello"}])
