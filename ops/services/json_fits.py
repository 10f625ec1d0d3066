"""Does a value fit a JSON schema? As much of JSON Schema as tools and structured answers use; what is not known here refuses nothing."""

from __future__ import annotations

import json
from typing import Any

_DEPTH = 50
_KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


def problem(value: Any, schema: Any, depth: int = 0) -> str:
    """What of `value` does not fit, or "". Knows type (also several), enum, const, anyOf, oneOf, allOf, properties, required, additionalProperties,
    items, minItems, maxItems, minLength, maxLength, minimum, maximum."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return ""
    if told := _kind(value, schema) or _values(value, schema):
        return told
    for name in ("anyOf", "oneOf"):
        choices = schema.get(name)
        if isinstance(choices, list) and choices and all(problem(value, one, depth + 1) for one in choices):
            return problem(value, choices[0], depth + 1)
    for one in schema.get("allOf") or []:
        if told := problem(value, one, depth + 1):
            return told
    if isinstance(value, dict):
        return _object(value, schema, depth)
    if isinstance(value, list):
        for number, entry in enumerate(value):
            if told := problem(entry, schema.get("items"), depth + 1):
                return f"entry {number + 1}: {told}"
    return ""


def _kind(value: Any, schema: dict[str, Any]) -> str:
    wanted = schema.get("type")
    kinds = [one for one in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(one, str) and one in _KINDS]
    if not kinds or any(_is(value, kind) for kind in kinds):
        return ""
    return f"{_short(value)} is not of type {' or '.join(kinds)}"


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind])


def _values(value: Any, schema: dict[str, Any]) -> str:
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{_short(value)} is not one of {json.dumps(schema['enum'], ensure_ascii=False)[:120]}"
    if "const" in schema and value != schema["const"]:
        return f"{_short(value)} is not {_short(schema['const'])}"
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    size = len(value) if isinstance(value, str | list) else None
    least, most = ("minItems", "maxItems") if isinstance(value, list) else ("minLength", "maxLength")
    for got, low, high in ((number, "minimum", "maximum"), (size, least, most)):
        if got is None:
            continue
        if isinstance(schema.get(low), int | float) and got < schema[low]:
            return f"{_short(value)} is below {low} {schema[low]}"
        if isinstance(schema.get(high), int | float) and got > schema[high]:
            return f"{_short(value)} is above {high} {schema[high]}"
    return ""


def _object(value: dict[str, Any], schema: dict[str, Any], depth: int) -> str:
    for name in schema.get("required") or []:
        if name not in value:
            return f"`{name}` is missing"
    parts = schema.get("properties")
    parts = parts if isinstance(parts, dict) else {}
    for name, part in parts.items():
        if name in value and (told := problem(value[name], part, depth + 1)):
            return f"`{name}`: {told}"
    more = schema.get("additionalProperties")
    for name in value.keys() - parts.keys():
        if more is False:
            return f"`{str(name)[:60]}` is not known"
        if isinstance(more, dict) and (told := problem(value[name], more, depth + 1)):
            return f"`{str(name)[:60]}`: {told}"
    return ""


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:60]
