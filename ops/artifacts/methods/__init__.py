"""Leftovers that do not go file by file: a release as Roundhouse removes one, uv's cache by uv's own command.

Each method finds its artifacts by itself (`number` 0: who lists them numbers them) and looks at each again when it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ops.artifacts.conditions import Conditions
from ops.artifacts.found import Artifact, Entry
from ops.artifacts.kinds import Kind
from ops.artifacts.places import Place
from ops.jobs.errors import BadInput

Log = Callable[[str], None]


def find(kind: Kind, place: Place, *, conditions: Conditions, check: Callable[[], None] | None = None,
         problem: Callable[[str], None] | None = None) -> Iterator[Artifact]:
    """The artifacts of a kind whose method is not "files", in one of its places. `check` is called now and then (raises Cancelled); what cannot be
    looked at is told to `problem`, and the rest goes on."""
    yield from _method(kind).find(kind, place, conditions=conditions, check=check or (lambda: None), problem=problem or (lambda text: None))


def purge(artifact: Artifact, kind: Kind, *, conditions: Conditions, log: Log | None = None, check: Callable[[], None] | None = None) -> Entry:
    """Deletes one of them, if it is still what was listed and safe, and tells what became of it; what is in the way is the entry's `why`."""
    done: Entry = _method(kind).purge(artifact, kind, conditions=conditions, log=log or (lambda text: None), check=check or (lambda: None))
    return done


def _method(kind: Kind) -> Any:
    if kind.method == "release":
        from ops.artifacts.methods import release

        return release
    if kind.method == "uv-cache":
        from ops.artifacts.methods import uv_cache

        return uv_cache
    raise BadInput(f"The kind `{kind.name}` goes file by file")
