"""What a comparison reads out of a run document, whoever wrote it: numbers that are numbers, levels that are levels, and their places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

OURS = "roundhouse"
LEVELS_MAX = 200
COUNT_MOST = 1e12
COMPARABLE_ERROR_RATE = 0.01  # above it a level is marked not comparable


def finite(value: Any) -> float | None:
    """A number that is one; None for anything else (also NaN, an infinity, a truth value, an integer beyond a float)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive(value: Any) -> float | None:
    """As `finite`, and above 0: what a ratio can be taken of."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def count(value: Any) -> int:
    """How many; 0 for what is no number. No more than anybody could have sent, so that sums stay numbers."""
    number = finite(value)
    return int(min(max(0.0, number), COUNT_MOST)) if number is not None else 0


def total(levels: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """How many over all of them; None where none of them says: not reported is not 0."""
    known = [level.get(name) for level in levels if finite(level.get(name)) is not None]
    return sum(map(count, known)) if known else None


def text(value: Any, most: int = 200) -> str:
    return value[:most] if isinstance(value, str) else ""


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def words(value: Any) -> list[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, Sequence) and not isinstance(value, str) else []


def levels(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The levels that have a place (a concurrency or a rate), each place once: the last one counts."""
    found = document.get("levels")
    by_place: dict[tuple[str, float], Mapping[str, Any]] = {}
    for level in (found[:LEVELS_MAX] if isinstance(found, list) else []):
        if isinstance(level, Mapping) and finite(level.get("value", level.get("concurrency"))) is not None:
            by_place[place(level)] = level
    return list(by_place.values())


def place(level: Mapping[str, Any]) -> tuple[str, float]:
    """(load, value): ("closed", concurrency) or ("open", requests a second). Levels from before there were rates have a concurrency only."""
    value = level.get("value")
    return text(level.get("load")) or "closed", finite(value if value is not None else level.get("concurrency")) or 0.0


def place_words(load: str, value: float) -> str:
    """"C=8" or "2.5 requests/s"."""
    return f"C={value:g}" if load == "closed" else f"{value:g} requests/s"


def whole(level: Mapping[str, Any]) -> bool:
    """It ran to its end: one that was cancelled or broken off says nothing about the others."""
    return level.get("state", "done") in ("done", None, "")


NEVER_FULL = "never full"


def never_full(level: Mapping[str, Any]) -> bool:
    """A closed loop that never had its concurrency in flight: it is marked so, or had fewer requests than slots (what a tool does not report is no
    reason)."""
    load, value = place(level)
    sent = finite(level.get("sent"))
    return load == "closed" and (NEVER_FULL in words(level.get("marks")) or (sent is not None and 0 < sent < value))


def ended(level: Mapping[str, Any]) -> int:
    return count(level.get("finished")) + count(level.get("errors"))


def error_rate(level: Mapping[str, Any]) -> float | None:
    """Errors of all requests that ended; None where none did."""
    total = ended(level)
    return count(level.get("errors")) / total if total else None


def by_time(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In the order in which they were measured; those whose time nobody knows keep their place at the end."""
    return sorted(documents, key=lambda one: started_at(one) or math.inf)


def started_at(document: Mapping[str, Any]) -> float | None:
    """Seconds since the epoch; None where nobody knows (of an import a 0 stands for that)."""
    return positive(document.get("started_at"))


def tool(document: Mapping[str, Any]) -> str:
    return text(document.get("tool")) or OURS


def is_ours(document: Mapping[str, Any]) -> bool:
    return (text(document.get("origin")) or OURS) == OURS
