"""Changes single keys in the text of a JSON file and leaves every other character as it is: order, indentation, number formats, line ends.

Where a name stands twice in one object, readers take the last one; so does this.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any

from ops.jobs.errors import BadInput

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class _Member:
    """One entry of an object or a list: where its key (in a list: its value) begins, and where its value does and ends."""

    key: str | int
    start: int
    value: int
    end: int


def remove(text: str, key: str) -> str:
    """The text without what stands at the dotted `key`, wherever a name stands twice; unchanged if nothing does. Raises BadInput if the text is no
    JSON, or if the key names an entry of a list: others would move up."""
    while (found := _find(text, key.split("."))) is not None:
        parent, members, index = found
        if isinstance(members[index].key, int):
            raise BadInput(f"`{key}` is an entry of a list, and cannot be taken out of it")
        if len(members) == 1:
            text = f"{text[:parent + 1]}{text[_skip(text, members[0].end):]}"
        elif index + 1 < len(members):
            text = text[: members[index].start] + text[members[index + 1].start:]
        else:
            text = text[: members[index - 1].end] + text[members[index].end:]
    return text


def put(text: str, key: str, value: Any) -> str:
    """The text with `value` at the dotted `key`: what stands there is replaced, what is not there is added at the end of its object. Raises BadInput
    if the text is no JSON, or if something on the way is neither an object nor in the list."""
    parts = key.split(".")
    if (found := _find(text, parts)) is not None:
        _, members, index = found
        member = members[index]
        depth = _depth(text, member.start)
        return text[: member.value] + _written(text, value, depth) + text[member.end:]
    for known in range(len(parts) - 1, -1, -1):  # the innermost object that is there takes the rest
        start = _skip(text, 0) if known == 0 else _value_of(text, parts[:known])
        if start is None:
            continue
        if text[start:start + 1] != "{":
            raise BadInput(f"`{key}` cannot be set: `{'.'.join(parts[:known]) or 'the whole'}` is no object")
        for part in reversed(parts[known + 1:]):
            value = {part: value}
        return _add(text, start, parts[known], value)
    raise BadInput(f"`{key}` cannot be set")


def _value_of(text: str, parts: list[str]) -> int | None:
    found = _find(text, parts)
    return None if found is None else found[1][found[2]].value


def _find(text: str, parts: list[str]) -> tuple[int, list[_Member], int] | None:
    """Where the innermost object begins, its members, and which of them the key names; None: it is not there."""
    start = _skip(text, 0)
    for number, part in enumerate(parts):
        if text[start:start + 1] not in ("{", "["):
            return None
        members = _members(text, start)
        wanted: str | int | None = part if text[start] == "{" else int(part) if part.isdecimal() else None
        index = next((index for index in range(len(members) - 1, -1, -1) if members[index].key == wanted), None)
        if index is None:
            return None
        if number + 1 == len(parts):
            return start, members, index
        start = members[index].value
    return None


def _members(text: str, start: int) -> list[_Member]:
    """The entries of the object or list that begins at `start`. Raises BadInput if it is cut off or malformed."""
    in_object, closing = text[start] == "{", "}" if text[start] == "{" else "]"
    found: list[_Member] = []
    at = _skip(text, start + 1)
    try:
        while text[at] != closing:
            begin, key = at, len(found)
            name: str | int = key
            if in_object:
                name, at = _DECODER.raw_decode(text, at)
                at = _skip(text, at)
                if text[at] != ":":
                    raise JSONDecodeError("a colon is missing", text, at)
                at = _skip(text, at + 1)
            value = at
            _, end = _DECODER.raw_decode(text, at)
            found.append(_Member(name, begin, value, end))
            at = _skip(text, end)
            if text[at] == ",":
                at = _skip(text, at + 1)
            elif text[at] != closing:
                raise JSONDecodeError("a comma is missing", text, at)
    except (ValueError, IndexError, RecursionError) as error:
        raise BadInput("This is no JSON", why=str(error) or type(error).__name__) from error
    return found


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _add(text: str, start: int, name: str, value: Any) -> str:
    members = _members(text, start)
    if members:
        last, first = members[-1], members[0]
        between = text[start + 1: first.start]  # line break and indentation, as the other members have it
        colon = text[first.start: first.value].partition(json.dumps(first.key, ensure_ascii=False))[2] or ": "
        entry = f"{json.dumps(name, ensure_ascii=False)}{colon}{_written(text, value, _depth(text, first.start))}"
        gap = between if "\n" in between else text[members[-2].end + 1: last.start] if len(members) > 1 else " "
        return f"{text[:last.end]},{gap}{entry}{text[last.end:]}"
    outer = _depth(text, start)
    unit, newline = _indent(text), _newline(text)
    entry = f"{json.dumps(name, ensure_ascii=False)}: {_written(text, value, outer + unit if unit else '')}"
    inside = f"{newline}{outer}{unit}{entry}{newline}{outer}" if unit else entry
    return f"{text[:start + 1]}{inside}{text[_skip(text, start + 1):]}"


def _written(text: str, value: Any, depth: str) -> str:
    """The value as this file writes values, its inner lines indented from `depth` on."""
    unit = _indent(text)
    if not unit:
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=unit).replace("\n", f"{_newline(text)}{depth}")


def _indent(text: str) -> str:
    """What one level is indented by: that of the first indented line; "" for a file on one line."""
    found = re.search(r"\n([ \t]+)\S", text)
    return found.group(1) if found else ""


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _depth(text: str, at: int) -> str:
    """The blanks that the line begins with in which the character `at` stands."""
    line = text[text.rfind("\n", 0, at) + 1: at]
    return line[: len(line) - len(line.lstrip(" \t"))]
