"""Turns requests into answers: /v1/chat/completions and /v1/completions, whole or streamed."""

import json
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from vllm.config.model import VllmConfig
from vllm.entrypoints.openai.http_server import Connection, Request
from vllm.entrypoints.openai.protocol import ApiError, check_lengths, check_sampling, parse
from vllm.model_executor.models.practice_answers import Answer, answer_chat, continue_text, count_tokens, gibberish, text_of
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.version import __version__

_TEMPLATE_TOKENS = 7  # what a chat template adds to each message
_ENGINE_DEAD = {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError",
                "param": None, "code": 500}


@lru_cache(maxsize=16384)
def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _new_id(kind: str) -> str:
    return f"{kind}-{os.urandom(8).hex()}"


class Serving:
    """What both endpoints share: the model's names, the engine, the answers under way."""

    def __init__(self, config: VllmConfig, engine: AsyncLLM, *, force_usage: bool) -> None:
        self.config, self.engine, self.force_usage = config, engine, force_usage
        self.fingerprint = f"vllm-{__version__}-{os.urandom(4).hex()}"
        self.broken = bool(engine.box.faults.get("gibberish"))
        self.open: dict[Connection, Callable[[], None]] = {}
        """Connections with an answer under way, and how to tell each that the engine has died."""

    def chat(self, request: Request, connection: Connection) -> None:
        """POST /v1/chat/completions. Raises ApiError."""
        fields = parse(request.body, request.headers.get("content-type", ""), ("messages",))
        name = self._model_name(fields)
        messages = fields["messages"]
        if not messages:
            raise ApiError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ApiError(400, "Each message must be an object with a `role`.", param="messages")
        check_sampling(fields)
        tools, must_call = self._tools(fields)
        prompt_tokens = sum(count_tokens(text_of(message.get("content"))) + _TEMPLATE_TOKENS for message in messages)
        if tools:
            prompt_tokens += count_tokens(json.dumps(tools))
        limit = check_lengths(fields, prompt_tokens, self.config.max_model_len)
        thinks = (fields.get("chat_template_kwargs") or {}).get("thinking", True) is not False
        answer = gibberish(limit) if self.broken else answer_chat(
            messages, tools, must_call=must_call, limit=limit, least=fields.get("min_tokens") or 0, ignore_eos=bool(fields.get("ignore_eos")),
            thinks=thinks, stop=_stops(fields))
        if not self.config.reasoning_parser and answer.reasoning:  # nobody takes the thinking out of the text
            answer.content = ["<think>", *answer.reasoning, "</think>", *answer.content][: max(limit, 1)]
            answer.reasoning = []
        ChatAnswer(self, connection, name, fields, answer, prompt_tokens, limit).start()

    def complete(self, request: Request, connection: Connection) -> None:
        """POST /v1/completions. Raises ApiError."""
        fields = parse(request.body, request.headers.get("content-type", ""), ("prompt",))
        name = self._model_name(fields)
        prompt = fields["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise ApiError(400, "The practice server takes one prompt, as text.", param="prompt")
        check_sampling(fields)
        if fields.get("max_tokens") is None:
            fields["max_tokens"] = 16
        prompt_tokens = max(1, count_tokens(prompt))
        limit = check_lengths(fields, prompt_tokens, self.config.max_model_len)
        answer = continue_text(prompt, limit=limit, least=fields.get("min_tokens") or 0, ignore_eos=bool(fields.get("ignore_eos")), stop=_stops(fields))
        if fields.get("echo"):
            answer.content = [prompt, *answer.content[1:]] if not answer.content else [prompt + answer.content[0], *answer.content[1:]]
        TextAnswer(self, connection, name, fields, answer, prompt_tokens, limit).start()

    def _model_name(self, fields: dict[str, Any]) -> str:
        names = self.config.served_names
        name = fields.get("model")
        if name is not None and name not in names:
            raise ApiError(404, f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}.", "NotFoundError", "model")
        return name or names[0]

    def _tools(self, fields: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """The tools that may be called, and the one that must be: its name, "" for any, None for none."""
        tools = fields.get("tools") or []
        choice = fields.get("tool_choice") or ("auto" if tools else "none")
        for tool in tools:
            if not isinstance(tool, dict) or not isinstance((tool.get("function") or {}).get("name"), str):
                raise ApiError(400, "Each tool must be an object with `function.name`.", param="tools")
        if choice == "none":
            return [], None
        if not tools:
            raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
        if choice == "auto":
            if not self.config.tool_call_parser:
                raise ApiError(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
            return tools, None
        if choice == "required":
            return tools, ""
        name = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
        if name not in [tool["function"]["name"] for tool in tools]:
            raise ApiError(400, f"The tool specified in `tool_choice` does not match any of the specified `tools`: {name}", param="tool_choice")
        return tools, name

    def engine_died(self) -> None:
        """Tells every client that waits."""
        for tell in list(self.open.values()):
            tell()


class _Answering:
    """One answer on its way to one client."""

    kind = ""
    chunk_object = ""

    def __init__(self, serving: Serving, connection: Connection, model: str, fields: dict[str, Any], answer: Answer, prompt_tokens: int,
                 limit: int) -> None:
        self.serving, self.connection, self.model, self.answer = serving, connection, model, answer
        self.prompt_tokens, self.limit = prompt_tokens, limit
        messages = fields.get("messages")
        self.prompt = "\n".join(f"{m['role']}\n{text_of(m.get('content'))}" for m in messages) if isinstance(messages, list) else str(fields["prompt"])
        self.id, self.created = _new_id(self.kind), int(time.time())
        self.streams = bool(fields.get("stream"))
        options = fields.get("stream_options") or {}
        self.wants_usage = serving.force_usage or bool(options.get("include_usage"))
        self.counts_all_along = self.wants_usage and bool(options.get("continuous_usage_stats"))
        self.events = self.chunks()
        self.given = 0

    def start(self) -> None:
        """Begins the stream, or waits for the last token."""
        self.connection.on_close = self._gone
        self.serving.open[self.connection] = self._engine_died
        if self.streams:
            self.connection.begin_stream("text/event-stream; charset=utf-8")
            if first := self.first_event():
                self.connection.send(first)
        self.sequence = self.serving.engine.generate(self.prompt_tokens, len(self.events), self._deliver, max_tokens=self.limit,
                                                     prompt=self.prompt)

    def _deliver(self, first: int, last: int) -> None:
        """The engine has made the tokens from `first` to `last`."""
        self.serving.engine.delivered(self.sequence, last - first)
        total = len(self.events)
        if last < total:
            if self.streams:
                self.connection.send(self.event_bytes(first, last))
            return
        self.connection.on_close = None
        self.serving.open.pop(self.connection, None)
        self.serving.engine.finished(self.sequence, "length" if self.finish_reason == "length" else "stop")
        self.count_tools()
        if self.streams:
            self.connection.end_stream(self.event_bytes(first, total) + self.last_events())
        else:
            self.connection.respond(200, _compact(self.whole()).encode())

    def _gone(self) -> None:
        self.serving.open.pop(self.connection, None)
        self.serving.engine.abort(self.sequence)

    def _engine_died(self) -> None:
        self.connection.on_close = None
        self.serving.open.pop(self.connection, None)
        self.serving.engine.abort(self.sequence)
        if self.streams:
            self.connection.end_stream(f"data: {json.dumps({'error': _ENGINE_DEAD})}\n\ndata: [DONE]\n\n".encode())
        else:
            self.connection.respond(500, _compact({"error": _ENGINE_DEAD}).encode())

    def usage(self, given: int) -> dict[str, Any]:
        """Token counts after `given` tokens, in the form of a stream's events."""
        usage: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + given, "completion_tokens": given}
        if self.serving.config.reasoning_parser and self.kind == "chatcmpl":
            usage["completion_tokens_details"] = {"reasoning_tokens": min(given, len(self.answer.reasoning))}
        return usage

    def last_events(self) -> bytes:
        """What follows the last token: the end by itself, the usage, [DONE]."""
        out = "" if self.finish_reason == "length" else self.end_event()
        if self.wants_usage:
            usage = {"id": self.id, "object": self.chunk_object, "created": self.created, "model": self.model, "choices": [],
                     "usage": self.usage(len(self.events)), "system_fingerprint": self.serving.fingerprint}
            out += f"data: {_compact(usage)}\n\n"
        return f"{out}data: [DONE]\n\n".encode()

    @property
    def finish_reason(self) -> str:
        if not self.answer.complete:
            return "length"
        return "tool_calls" if self.answer.tool_call else "stop"

    def _head(self) -> str:
        return f'data: {{"id":"{self.id}","object":"{self.chunk_object}","created":{self.created},"model":{_quoted(self.model)},"choices":[{{"index":0,'

    def _usage_text(self, given: int) -> str:
        return f',"usage":{_compact(self.usage(given))}' if self.counts_all_along else ""

    def chunks(self) -> list[str]:
        raise AssertionError("each kind of answer has its own chunks")

    def first_event(self) -> bytes:
        """What a stream begins with, before any token."""
        return b""

    def event_bytes(self, first: int, last: int) -> bytes:
        raise AssertionError("each kind of answer has its own events")

    def end_event(self) -> str:
        raise AssertionError("each kind of answer has its own end")

    def whole(self) -> dict[str, Any]:
        raise AssertionError("each kind of answer has its own form")

    def count_tools(self) -> None:
        """Counts what the tool parser found; plain completions have none."""


class ChatAnswer(_Answering):
    """An answer of /v1/chat/completions: a token is an event with a delta."""

    kind = "chatcmpl"
    chunk_object = "chat.completion.chunk"

    def chunks(self) -> list[str]:
        """The delta of each token, as JSON."""
        answer = self.answer
        deltas = [f'{{"reasoning":{_quoted(text)}}}' for text in answer.reasoning]
        deltas += [f'{{"content":{_quoted(text)}}}' for text in answer.content]
        self.call_id = _new_id("chatcmpl-tool")
        if answer.tool_call:
            head = {"id": self.call_id, "type": "function", "index": 0, "function": {"name": answer.tool_call.name}}
            deltas.append(f'{{"content":null,"tool_calls":[{_compact(head)}]}}')
            deltas += [f'{{"content":null,"tool_calls":[{{"index":0,"function":{{"arguments":{_quoted(text)}}}}}]}}' for text in answer.arguments]
        return deltas

    def first_event(self) -> bytes:
        return (f'{self._head()}"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]'
                f'{self._usage_text(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n').encode()

    def event_bytes(self, first: int, last: int) -> bytes:
        head, total = self._head(), len(self.events)
        out = []
        for index in range(first, last):
            end = '"finish_reason":"length","stop_reason":null' if index + 1 == total and self.finish_reason == "length" else '"finish_reason":null'
            out.append(f'{head}"delta":{self.events[index]},"logprobs":null,{end},"token_ids":null}}]{self._usage_text(index + 1)}}}\n\n')
        return "".join(out).encode()

    def end_event(self) -> str:
        return (f'{self._head()}"delta":{{}},"logprobs":null,"finish_reason":"{self.finish_reason}","stop_reason":'
                f'{json.dumps(self.answer.stop_reason)},"token_ids":null}}]{self._usage_text(len(self.events))}}}\n\n')

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        content = "".join(answer.content) or None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": None, "audio": None, "function_call": None}
        if answer.tool_call:
            message["tool_calls"] = [{"id": self.call_id, "type": "function",
                                      "function": {"name": answer.tool_call.name, "arguments": "".join(answer.arguments)}}]
        message["reasoning"] = "".join(answer.reasoning) or None
        usage = self.usage(len(self.events))
        details = usage.pop("completion_tokens_details", None)
        usage["prompt_tokens_details"] = None
        if details is not None:
            usage["completion_tokens_details"] = details
        return {
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason, "stop_reason": answer.stop_reason,
                         "token_ids": None, "routed_experts": None}],
            "service_tier": None, "system_fingerprint": self.serving.fingerprint, "usage": usage, "prompt_logprobs": None, "prompt_token_ids": None,
            "prompt_text": None, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        }

    def count_tools(self) -> None:
        if self.serving.config.tool_call_parser:
            outcome = "tool_call" if self.answer.tool_call else "no_tool_call"
            mode, times = ("streaming", len(self.events)) if self.streams else ("non_streaming", 1)
            self.serving.engine.metrics.add("vllm:tool_call_parser_invocations_total", times, (mode, outcome, "chat_completions"))


class TextAnswer(_Answering):
    """An answer of /v1/completions: a token is an event with text."""

    kind = "cmpl"
    chunk_object = "text_completion"

    def chunks(self) -> list[str]:
        return [_quoted(text) for text in self.answer.content]

    def event_bytes(self, first: int, last: int) -> bytes:
        head, total = self._head(), len(self.events)
        out = []
        for index in range(first, last):
            end = '"length"' if index + 1 == total and self.finish_reason == "length" else "null"
            out.append(f'{head}"text":{self.events[index]},"logprobs":null,"finish_reason":{end},"stop_reason":null}}]{self._usage_text(index + 1)}}}\n\n')
        return "".join(out).encode()

    def end_event(self) -> str:
        return (f'{self._head()}"text":"","logprobs":null,"finish_reason":"{self.finish_reason}","stop_reason":{json.dumps(self.answer.stop_reason)}}}]'
                f'{self._usage_text(len(self.events))}}}\n\n')

    def whole(self) -> dict[str, Any]:
        usage = self.usage(len(self.events)) | {"prompt_tokens_details": None}
        return {
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": [{"index": 0, "text": "".join(self.answer.content), "logprobs": None, "finish_reason": self.finish_reason,
                         "stop_reason": self.answer.stop_reason, "token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None}],
            "service_tier": None, "system_fingerprint": self.serving.fingerprint, "usage": usage, "kv_transfer_params": None,
        }


def _stops(fields: dict[str, Any]) -> list[str]:
    stop = fields.get("stop") or []
    return [stop] if isinstance(stop, str) else [text for text in stop if isinstance(text, str)]
