"""Where leftovers of this node can lie: the folders behind the names that kinds.toml uses, and the folders that are never entered.

Resolved for this node from node.toml and from what each service would be started with (its unit's user and HOME, its environment, its environment
files). A practice node's places all lie below its practice root.
"""
# ruff: noqa: PTH116, PTH117, PTH120

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts.kinds import Kind
from ops.jobs.errors import BadInput
from ops.records import ServiceRecord


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which the kinds that name it are looked for.

    `path`: absolute, no link on the way. `services`: all that could use it; `service`: the one that it belongs to, "" if several do, or none. `why`:
    what it is, in words.
    """

    name: str
    path: str
    service: str = ""
    why: str = ""
    services: tuple[str, ...] = ()


@dataclass(slots=True)
class Never:
    """Folders that are never entered, by what they are (device and inode) and by where they are (resolved path), with why."""

    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)

    def add(self, path: str | Path, why: str) -> None:
        """A folder that may not be there at the moment: then its path counts alone."""
        resolved = os.path.realpath(path)
        self.paths.setdefault(resolved, why)
        try:
            state = os.stat(resolved)
        except OSError:
            return
        self.identities.setdefault((state.st_dev, state.st_ino), why)

    def enters(self, state: os.stat_result, path: str) -> str | None:
        """Why the folder `path` (absolute, reached without links) with this `state` is not entered; None: it may be."""
        return self.identities.get((state.st_dev, state.st_ino)) or self.paths.get(path)

    def covers(self, path: str) -> str | None:
        """Why `path` itself, or a folder that it lies in, is never entered; None if none is."""
        while True:
            if (why := self.paths.get(path)) is not None:
                return why
            above = os.path.dirname(path)
            if above == path:
                return None
            path = above


@dataclass(slots=True)
class Places:
    """All that a scan of this node looks into. `problems`: sentences about what it cannot look into, and the line that would change that."""

    places: list[Place]
    never: Never
    problems: list[str] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Place]:
        """The places that a kind is looked for in."""
        return [place for place in self.places if place.name in kind.places or (kind.own and place.path in kind.places)]


def of_node(config: NodeConfig, paths: NodePaths, records: Sequence[ServiceRecord], *, kinds: Sequence[Kind],
            roots: Sequence[str] | None = None) -> Places:
    """The places of `kinds` on this node. `roots`: only what lies in one of these (checked, BadInput for one that cannot be)."""
    found = [Place(name="scratch", path=root, service=record.name, why="Where the service's debug code writes", services=(record.name,))
             for record in records for root in record.artifact_roots]
    return Places(found, Never())


def check_root(path: str, *, config: NodeConfig) -> None:
    """Raises BadInput or Refused for a folder that is no place for a purge."""
    if not os.path.isabs(path):
        raise BadInput(f"`{path}` is no absolute path")
