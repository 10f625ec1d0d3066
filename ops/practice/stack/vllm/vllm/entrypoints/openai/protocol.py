"""Checks requests as vLLM does: the same statuses, the same keys, the same words."""

import json
import math
from typing import Any


class ApiError(Exception):
    """An answer with an error body. `body` is JSON-ready."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def invalid(parameter: str, value: Any, message: str) -> ApiError:
    """A value that the model or the engine cannot take."""
    return ApiError(400, f"{message} (parameter={parameter}, value={value})", param=parameter)


def parse(body: bytes, content_type: str, required: tuple[str, ...]) -> dict[str, Any]:
    """The JSON object of a request with its fields in the right types. Raises ApiError with status 400."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _validation(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    try:
        raw = json.loads(body)
    except json.JSONDecodeError as error:
        raise _validation([{"type": "json_invalid", "loc": f"body.{error.pos}", "msg": "JSON decode error", "input": "<dict of 0 items>",
                            "ctx": {"error": error.msg}}], f"body.{error.pos}") from None
    except UnicodeDecodeError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    if not isinstance(raw, dict):
        raise _validation([{"type": "dict_type", "loc": "body", "msg": "Input should be a valid dictionary", "input": f"<{type(raw).__name__}>"}], "body")
    found: list[dict[str, Any]] = []
    for name in required:
        if name not in raw:
            found.append({"type": "missing", "loc": f"body.{name}", "msg": "Field required", "input": f"<dict of {len(raw)} items>"})
    fields = {}
    for name, value in raw.items():
        kind = _FIELDS.get(name)
        if kind is None or value is None:
            fields[name] = value
            continue
        fields[name], problem = _CHECKS[kind](value)
        if problem:
            shown = value if isinstance(value, (str, int, float, bool)) else f"<{type(value).__name__} of {len(value)} items>"
            found.append({"type": problem[0], "loc": f"body.{name}", "msg": problem[1], "input": shown})
    if found:
        raise _validation(found, found[0]["loc"])
    return fields


def _validation(found: list[Any], param: str | None) -> ApiError:
    lines = "\n".join(f"  {problem}" for problem in found)
    return ApiError(400, f"{len(found)} validation error{'s' if len(found) > 1 else ''}:\n{lines}", "Bad Request", param)


_Checked = tuple[Any, tuple[str, str] | None]


def _whole(value: Any) -> _Checked:
    if isinstance(value, str):
        try:
            return int(value), None
        except ValueError:
            return value, ("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
    if isinstance(value, (int, float)) and math.isfinite(value) and value == int(value):
        return int(value), None
    return value, ("int_type", "Input should be a valid integer")


def _number(value: Any) -> _Checked:
    if isinstance(value, str):
        try:
            return float(value), None
        except ValueError:
            return value, ("float_parsing", "Input should be a valid number, unable to parse string as a number")
    return (float(value), None) if isinstance(value, (int, float)) else (value, ("float_type", "Input should be a valid number"))


def _truth(value: Any) -> _Checked:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value), None
    if isinstance(value, str) and value.lower() in {"true", "false", "yes", "no", "on", "off", "1", "0"}:
        return value.lower() in {"true", "yes", "on", "1"}, None
    return value, ("bool_parsing", "Input should be a valid boolean, unable to interpret input")


def _of(kind: type, name: str, word: str) -> Any:
    def check(value: Any) -> _Checked:
        return (value, None) if isinstance(value, kind) else (value, (name, f"Input should be a valid {word}"))

    return check


_CHECKS = {"whole": _whole, "number": _number, "truth": _truth, "text": _of(str, "string_type", "string"), "list": _of(list, "list_type", "list"),
           "object": _of(dict, "dict_type", "dictionary")}
_FIELDS = {
    "model": "text", "messages": "list", "max_tokens": "whole", "max_completion_tokens": "whole", "min_tokens": "whole", "n": "whole", "seed": "whole",
    "temperature": "number", "top_p": "number", "top_k": "whole", "presence_penalty": "number", "frequency_penalty": "number",
    "repetition_penalty": "number", "stream": "truth", "ignore_eos": "truth", "stream_options": "object", "tools": "list", "logprobs": "truth",
    "top_logprobs": "whole", "include_reasoning": "truth", "chat_template_kwargs": "object", "user": "text", "parallel_tool_calls": "truth",
}


def check_sampling(fields: dict[str, Any]) -> None:
    """Raises ApiError for values out of range."""
    if (temperature := fields.get("temperature")) is not None and temperature < 0:
        raise invalid("temperature", temperature, f"temperature must be non-negative, got {temperature}.")
    if (top_p := fields.get("top_p")) is not None and not 0 < top_p <= 1:
        raise invalid("top_p", top_p, f"top_p must be in (0, 1], got {top_p}.")
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if "max_tokens" in fields and fields["max_tokens"] is not None and fields["max_tokens"] < 1:
        raise invalid("max_tokens", fields["max_tokens"], f"max_tokens must be at least 1, got {fields['max_tokens']}.")
    least = fields.get("min_tokens") or 0
    if least < 0:
        raise invalid("min_tokens", least, f"min_tokens must be greater than or equal to 0, got {least}.")
    if limit is not None and least > limit:
        raise invalid("min_tokens", least, f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")
    if fields.get("n") not in (None, 1):
        raise invalid("n", fields["n"], "The practice server gives one answer per request: n must be 1.")
    if fields.get("stream_options") and not fields.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.")


def check_lengths(fields: dict[str, Any], prompt_tokens: int, max_model_len: int) -> int:
    """The highest number of tokens that the answer may have. Raises ApiError where prompt and answer do not fit."""
    name = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    limit = fields.get(name)
    if limit is not None and limit > max_model_len:
        raise invalid("max_tokens", limit, f"max_tokens={limit} cannot be greater than max_model_len={max_model_len}. Please request fewer output tokens.")
    if prompt_tokens >= max_model_len:
        raise invalid("input_tokens", max_model_len + 1,
                      f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least {max_model_len + 1} input "
                      "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.")
    room = max_model_len - prompt_tokens
    if limit is not None and limit > room:
        raise invalid(name, limit, f"'max_tokens' or 'max_completion_tokens' is too large: {limit}. This model's maximum context length is "
                                   f"{max_model_len} tokens and your request has {prompt_tokens} input tokens ({limit} > {max_model_len} - "
                                   f"{prompt_tokens}).")
    return min(limit, room) if limit is not None else room
