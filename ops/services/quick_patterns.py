"""Regular expressions that say no quickly: a line without any of the words that a match must hold is refused before the expression is tried.

Looking for a word in a line takes a fraction of trying an expression on it, and almost no line of a log matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_PARSER: Any = re._parser  # type: ignore[attr-defined]  # the standard library's own reader of expressions
_SHORTEST = 3  # characters: shorter words are in every line
_DIGIT = re.compile("[0-9]")
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_SHAPES = 4096  # kept


@lru_cache(maxsize=1024)
def required_words(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Words of which each match of the pattern holds at least one; () if there are none."""
    if pattern.flags & re.IGNORECASE:
        return ()
    return tuple(sorted(_required(_PARSER.parse(pattern.pattern, pattern.flags & ~re.UNICODE)) or ()))


def _required(parts: Any) -> frozenset[str] | None:
    found: list[frozenset[str]] = []
    run = ""
    for operation, value in [*parts, (None, None)]:
        if operation is _PARSER.LITERAL:
            run += chr(value)
            continue
        if len(run) >= _SHORTEST:
            found.append(frozenset({run}))
        run = ""
        inner: frozenset[str] | None = None
        if operation is _PARSER.SUBPATTERN and not value[1] & re.IGNORECASE:
            inner = _required(value[3])
        elif operation is _PARSER.MAX_REPEAT and value[0] >= 1:
            inner = _required(value[2])
        elif operation is _PARSER.BRANCH:
            each = [_required(branch) for branch in value[1]]
            if None not in each:
                inner = frozenset().union(*(one for one in each if one is not None))
        if inner:
            found.append(inner)
    return max(found, key=lambda words: min(len(word) for word in words), default=None)


class Quick:
    """One expression. `search` as re's."""

    def __init__(self, expression: str) -> None:
        self.pattern = expression
        self._compiled = re.compile(expression)
        self._words = required_words(self._compiled)

    def search(self, text: str) -> re.Match[str] | None:
        for word in self._words:
            if word in text:
                return self._compiled.search(text)
        return None if self._words else self._compiled.search(text)

    def may_match(self, text: str) -> bool:
        for word in self._words:
            if word in text:
                return True
        return not self._words


class Finder:
    """Many expressions: which of them are worth trying on a text."""

    def __init__(self, patterns: Sequence[re.Pattern[str]]) -> None:
        self._always: list[int] = []
        places: dict[str, list[int]] = {}
        for index, pattern in enumerate(patterns):
            words = required_words(pattern)
            if not words:
                self._always.append(index)
            for word in words:
                places.setdefault(word, []).append(index)
        self._places = [(word, indices) for word, indices in places.items() if not _DIGIT.search(word)]
        self._with_digits = [(word, indices) for word, indices in places.items() if _DIGIT.search(word)]
        self._known: dict[str, list[int]] = {}

    def worth(self, text: str) -> list[int]:
        """Their numbers, in order."""
        # Lines of a log differ by their numbers mostly. A word without digits is also in the text without digits.
        shape = text.translate(_NO_DIGITS)
        found = self._known.get(shape)
        if found is None:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            found = self._known[shape] = sorted({*self._always, *(index for word, indices in self._places if word in shape for index in indices)})
        more = [index for word, indices in self._with_digits if word in text for index in indices]
        return sorted({*found, *more}) if more else found
