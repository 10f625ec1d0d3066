"""Regular expressions that say no quickly: a line without any of the words that a match must hold is refused before the expression is tried.

Looking for a word in a line takes a fraction of trying an expression on it, and almost no line of a log matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_SHORTEST = 3  # characters: shorter words are in every line
_DIGIT = re.compile("[0-9]")
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_SHAPES = 4096  # kept

# The parts of an expression, as far as it matters which words its matches hold.
_REPEAT = re.compile(r"(?:[*?]|(?P<more>\+)|\{(?:(?P<least>\d+)(?:,\d*)?|,\d*)\})[?+]?")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
_ONE_IN_CLASS = re.compile(r"\[(?:([^\]\\^])|\\(\W))\]")
_GROUP = re.compile(r"""\(
    (?:\?(?: (?P<look> <?[=!] ) | P=\w+ (?P<back> \) ) | P<\w+> | > | \#[^)]* (?P<comment> \) )
       | (?P<on> [aimsLu]* ) (?: -[ims]+ )? (?: (?P<whole> \) ) | : ) ) )?
    (?!\?)""", re.VERBOSE)
_KINDS_OF_CHARACTER = frozenset("dDwWsSnrtfva")
_PLACES = frozenset("bBAZ")

_Part = str | frozenset[str] | None  # a character; words of which it holds one; anything else
_Branches = list[list[_Part]]


class _Unknown(Exception):
    """Something in an expression that is not understood here: then its words are not known."""


@lru_cache(maxsize=1024)
def required_words(pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Words of which each match of the pattern holds at least one; () if there are none, or if that cannot be told."""
    if pattern.flags & (re.IGNORECASE | re.VERBOSE):
        return ()
    try:
        branches, end = _branches(pattern.pattern, 0)
    except _Unknown:
        return ()
    return tuple(sorted(_words(branches) or ())) if end == len(pattern.pattern) else ()


def _branches(text: str, at: int) -> tuple[_Branches, int]:
    """The alternatives from `at` up to the end of their group, and where that is."""
    found: _Branches = [[]]
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            found.append([])
            at += 1
            continue
        inner, at = _part(text, at)
        repeat = _REPEAT.match(text, at)
        if repeat is not None:
            at = repeat.end()
            found[-1].append(_words(inner) if repeat["more"] or int(repeat["least"] or 0) >= 1 else None)
        elif len(inner) == 1:
            found[-1] += inner[0]
        else:
            found[-1].append(_words(inner))
    return found, at


def _part(text: str, at: int) -> tuple[_Branches, int]:
    """One character, class, place or group at `at`, and where it ends. What takes no characters is an empty alternative."""
    first = text[at]
    if first == "\\":
        second = text[at + 1]
        if second in _PLACES:
            return [[]], at + 2
        if second.isalnum() and second not in _KINDS_OF_CHARACTER:
            raise _Unknown  # by number or by name
        return [[None if second.isalnum() else second]], at + 2
    if first == "[":
        end = _matched(_CLASS, text, at).end()
        one = _ONE_IN_CLASS.fullmatch(text, at, end)
        return [[(one[1] or one[2]) if one else None]], end
    if first == "(":
        group = _matched(_GROUP, text, at)
        if group["back"] or group["comment"] or group["whole"]:
            return [[None] if group["back"] else []], group.end()
        inner, end = _branches(text, group.end())
        return [[]] if group["look"] else [[None]] if "i" in (group["on"] or "") else inner, end + 1
    return [[]] if first in "^$" else [[None if first == "." else first]], at + 1


def _matched(expression: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = expression.match(text, at)
    if found is None:
        raise _Unknown
    return found


def _words(branches: _Branches) -> frozenset[str] | None:
    """Words of which each of the alternatives holds at least one."""
    each = [_words_of(branch) for branch in branches]
    if None in each:
        return None
    return frozenset().union(*(words for words in each if words is not None))


def _words_of(parts: list[_Part]) -> frozenset[str] | None:
    """The best words of parts that follow one another: those whose shortest one is the longest."""
    found: list[frozenset[str]] = []
    run = ""
    for part in [*parts, None]:
        if isinstance(part, str):
            run += part
            continue
        if len(run) >= _SHORTEST:
            found.append(frozenset({run}))
        run = ""
        if part is not None:
            found.append(part)
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
