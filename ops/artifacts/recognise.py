"""Which kind is this file or folder of? The same answer as `Kind.fits` for each kind in turn, quick enough to be asked a million times.

Going down, it is known which patterns can still come true in a folder: those without a slash down to their depth, those with slashes whose first
parts were the folders on the way. Folders in which the same ones can come true share one `Picker`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from typing import NamedTuple

from ops.artifacts.kinds import Kind
from ops.artifacts.places import Place

_WILD = re.compile(r"[*?\[]")


class Match(NamedTuple):
    """A kind that is looked for in a place."""

    order: int  # of the kind: where two fit, the first is taken; and of its places the innermost
    kind: Kind
    place: Place


@dataclass(eq=False, slots=True)  # told apart by identity: one is made for each pattern, kind and place
class _Pattern:
    match: Match
    parts: tuple[str, ...]  # one for a pattern without a slash


class Picker:
    """What the entries of one folder can be."""

    __slots__ = ("_by_name", "_depth", "_steps", "files", "folders", "sockets")

    def __init__(self, states: frozenset[tuple[_Pattern, int]]) -> None:
        """`states`: patterns, each with the number of folders below its place that this folder lies."""
        last = [(pattern.match, pattern.parts[-1]) for pattern, depth in states if len(pattern.parts) == 1 or depth == len(pattern.parts) - 1]
        self.folders = Names((match, name) for match, name in last if match.kind.unit == "folder")
        files = [(match, name) for match, name in last if match.kind.unit == "file"]
        self.files = Names((match, name) for match, name in files if match.kind.file_type == "regular")
        self.sockets = Names((match, name) for match, name in files if match.kind.file_type == "socket")
        self._by_name = frozenset((pattern, depth + 1) for pattern, depth in states
                                  if len(pattern.parts) == 1 and depth < pattern.match.kind.depth)
        self._steps = [(pattern, depth) for pattern, depth in states if depth < len(pattern.parts) - 1]

    def below(self, name: str) -> frozenset[tuple[_Pattern, int]]:
        """What can come true in the folder `name` of this one."""
        if not self._steps:
            return self._by_name
        return self._by_name.union((pattern, depth + 1) for pattern, depth in self._steps if fnmatchcase(name, pattern.parts[depth]))


class Names:
    """The first kind whose pattern fits a name."""

    __slots__ = ("_endings", "_exact", "_only", "_ordered", "_others", "_starts")

    def __init__(self, patterns: Iterable[tuple[Match, str]]) -> None:
        ordered = sorted(patterns, key=lambda one: (one[0].order, -len(one[0].place.path), one[1]))
        self._ordered = [(re.compile(translate(pattern)).match, match) for match, pattern in ordered]
        self._only = ordered[0][0] if len(ordered) == 1 else None  # then the quick look says it all
        names = [pattern for _, pattern in ordered]
        self._exact = frozenset(name for name in names if not _WILD.search(name))
        self._endings = tuple(name[1:] for name in names if name[:1] == "*" and not _WILD.search(name[1:]))
        self._starts = tuple(name[:-1] for name in names if name[-1:] == "*" and not _WILD.search(name[:-1]))
        rest = [name for name in names if name not in self._exact and not (name[0] == "*" and not _WILD.search(name[1:]))
                and not (name[-1] == "*" and not _WILD.search(name[:-1]))]
        self._others = re.compile("|".join(f"(?:{translate(name)})" for name in rest)).match if rest else None

    def first(self, name: str) -> Match | None:
        if not (name in self._exact or name.endswith(self._endings) or name.startswith(self._starts) or (self._others and self._others(name))):
            return None
        if self._only is not None:
            return self._only
        for fits, match in self._ordered:
            if fits(name):
                return match
        return None


class Pickers:
    """All pickers of one scan."""

    def __init__(self) -> None:
        self._made: dict[frozenset[tuple[_Pattern, int]], Picker] = {}
        self._patterns: dict[Place, list[_Pattern]] = {}

    def look_for(self, kinds: Sequence[Kind], kind: Kind, place: Place) -> None:
        match = Match(kinds.index(kind), kind, place)
        self._patterns.setdefault(place, []).extend(_Pattern(match, tuple(pattern.split("/"))) for pattern in kind.patterns)

    def begin(self, place: Place) -> frozenset[tuple[_Pattern, int]]:
        """What can come true directly in a place."""
        return frozenset((pattern, 0) for pattern in self._patterns.get(place, ()))

    def of(self, states: frozenset[tuple[_Pattern, int]]) -> Picker:
        if (made := self._made.get(states)) is None:
            made = self._made[states] = Picker(states)
        return made
