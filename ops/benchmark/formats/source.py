"""Files that people bring: bounded, never trusted, and every field that is missing or strange told in a word of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ops.jobs.errors import BadInput

MAX_BYTES = 64 << 20  # of one file, unpacked
MAX_DEPTH = 64  # of objects and lists in each other
MAX_LINES = 200_000
MAX_NOTES = 40
SMALLEST = 1e-15
LARGEST = 1e15  # no time, count or rate of a benchmark is beyond it
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class Notes:
    """What was not as it should be, each once, in the order in which it was seen. Beyond `MAX_NOTES` only their number is kept."""

    words: list[str] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)  # hashes of sentences

    def add(self, sentence: str) -> None:
        if sentence in self.words:
            return
        if len(self.words) >= MAX_NOTES:
            self.left_out.add(hash(sentence))
        else:
            self.words.append(sentence)

    def told(self) -> list[str]:
        more = [f"{len(self.left_out)} more notes of this kind"] if self.left_out else []
        return [*self.words, *more]


@dataclass(frozen=True, slots=True)
class Content:
    """A file as values: one for a JSON document, one a line for JSON lines (`bad_lines` of them were none, the first at `first_bad`)."""

    values: list[Any]
    lines: bool = False
    bad_lines: int = 0
    first_bad: int = 0

    @property
    def objects(self) -> list[dict[str, Any]]:
        """All objects in it, one level deep: a document that is a list of objects, or lines."""
        found: list[dict[str, Any]] = []
        for value in self.values:
            found += [one for one in value if isinstance(one, dict)] if isinstance(value, list) else [value] if isinstance(value, dict) else []
        return found

    def note(self, notes: Notes) -> None:
        """Says how many lines were left out."""
        if self.bad_lines:
            what = "1 line is" if self.bad_lines == 1 else f"{self.bad_lines} lines are"
            notes.add(f"{what} no JSON and left out (the first is line {self.first_bad})")


def content_of(name: str, raw: bytes) -> Content:
    """The file's values. Raises BadInput for one that is empty, too large, no text, no JSON, or nested too deep.

    NaN and Infinity are None: Python's JSON writes them, and they are no measurement. Numbers with too many digits become inf, which
    `number` refuses.
    """
    shown = shown_name(name)
    if not raw.strip():
        raise BadInput(f"`{shown}` is empty")
    if len(raw) > MAX_BYTES:
        raise BadInput(f"`{shown}` is larger than {MAX_BYTES >> 20} MiB", hint="Leave the texts of the responses out of it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"`{shown}` is no UTF-8 text", why=f"The first byte that is none is number {error.start + 1}",
                       hint="Results are JSON, or JSON lines") from error
    try:
        return Content([_value(text)])
    except BadInput as error:
        raise BadInput(f"`{shown}`: {error.what}", why=error.why) from error
    except ValueError as error:
        return _lines(shown, text, error)


def _lines(shown: str, text: str, error: ValueError) -> Content:
    values: list[Any] = []
    bad = first_bad = 0
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if at > MAX_LINES:
            raise BadInput(f"`{shown}` has more than {MAX_LINES:,} lines")
        try:
            value = _value(line)
        except BadInput as deep:
            raise BadInput(f"`{shown}`, line {at}: {deep.what}", why=deep.why) from deep
        except ValueError:
            value = None
        if isinstance(value, dict):  # a result a line is an object: a lone brace or number is part of a broken document
            values.append(value)
        else:
            bad, first_bad = bad + 1, first_bad or at
    if not values or bad > len(values):
        raise BadInput(f"`{shown}` is no JSON", why=str(error)[:200], hint="Results are JSON, or JSON lines with an object each")
    return Content(values, True, bad, first_bad)


def _value(text: str) -> Any:
    """Raises ValueError on what is no JSON, BadInput on what is nested too deep."""
    try:
        value = json.loads(text, parse_constant=lambda _: None, parse_int=_integer)
    except RecursionError:
        raise BadInput("Objects and lists are nested too deep") from None
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)
                 if isinstance(inner, dict | list)]
        if not level:
            return value
    raise BadInput(f"Objects and lists are nested more than {MAX_DEPTH} deep")


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= 25 else float(digits)


def shown_name(name: str) -> str:
    """A file's name for a sentence: its last part, cut, printable."""
    return clean(name.replace("\\", "/").rsplit("/", 1)[-1], 80) or "the file"


def clean(value: Any, most: int) -> str:
    """A text without control characters and marks that turn the direction of reading, cut to `most`; "" for what is no text."""
    return _UNPRINTABLE.sub(" ", value[:most]).strip() if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number of a possible size, or None. A bool is none. What is next to nothing is 0, so that nothing is divided by it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:  # also NaN, and an integer beyond every float
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def whole(value: Any) -> int | None:
    """A count: not negative, without a fraction (`8.0` is 8). None for anything else."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def nanoseconds(value: Any) -> float | None:
    """Seconds since the epoch, of a whole number of nanoseconds; None for anything else. Exact to a quarter of a microsecond."""
    return value / 1e9 if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**19 else None


def server_address(value: Any) -> str:
    """A server's address without a user, a password, a path or a query, any of which may hold a key; "" for what is none."""
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        return clean(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", 300) if parts and parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


class Fields:
    """An object of the file, read field by field: what is missing is None; what is there and cannot be what it should is None and noted."""

    def __init__(self, raw: Any, notes: Notes, where: str = "") -> None:
        self.raw: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
        self.notes, self.where = notes, where
        if raw is not None and not isinstance(raw, dict):
            notes.add(f"`{where}` is no object: nothing of it is imported")

    def __contains__(self, name: object) -> bool:
        return self.raw.get(name) is not None if isinstance(name, str) else False

    def _path(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def strange(self, name: str, should: str) -> None:
        self.notes.add(f"`{clean(self._path(name), 120)}` is {_shown(self.raw.get(name))}, not {should}: not imported")

    def number(self, name: str, *, scale: float = 1.0) -> float | None:
        """Not negative. Numbers that stand in quotes (`--metadata tp=8`) are numbers."""
        value = self.raw.get(name)
        if value is None:
            return None
        found = number(_unquoted(value))
        if found is None or found < 0:
            self.strange(name, "a number")
            return None
        return found * scale

    def measured(self, name: str, *, scale: float = 1.0) -> float | None:
        """As `number`; 0 is None, because no latency is exactly 0: the tools write it for "no sample"."""
        return self.number(name, scale=scale) or None

    def count(self, name: str) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        found = whole(_unquoted(value))
        if found is None:
            self.strange(name, "a count")
        return found

    def summary(self, keys: re.Pattern[str], name: str, *, scale: float = 1.0) -> dict[str, float | None]:
        """Mean, median (as `p50`), spread and percentiles of a metric that stand in keys of their own. `keys`: group 1 the part, group 2 the metric.

        A spread (`std`) may be 0, any other 0 means "no sample".
        """
        found: dict[str, float | None] = {}
        for key in self.raw:
            match = keys.match(key)
            if match and match[2] == name:
                value = self.number(key, scale=scale) if match[1] == "std" else self.measured(key, scale=scale)
                if value is not None:
                    found["p50" if match[1] == "median" else match[1]] = value
        return found

    def text(self, name: str, most: int = 200) -> str:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, str):
            self.strange(name, "a text")
        return clean(value, most)

    def inner(self, name: str) -> Fields:
        """The object in it; an empty one where there is none."""
        return Fields(self.raw.get(name), self.notes, self._path(name))

    def list(self, name: str) -> Sequence[Any] | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, list):
            self.strange(name, "a list")
            return None
        return value

    def objects(self, name: str) -> Iterator[Fields]:
        """Objects of a list; what is none is noted."""
        for at, one in enumerate(self.list(name) or []):
            yield Fields(one if one is not None else "null", self.notes, f"{self._path(name)}[{at}]")


def _unquoted(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"\s*\d{1,15}(?:\.\d{1,15})?\s*", value):
        return value
    return float(value)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f'`"{clean(value, 40)}"`'
    return f"`{json.dumps(value) if isinstance(value, bool) else str(value)[:40]}`"
