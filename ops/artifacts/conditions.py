"""Whether a leftover is safe to delete at this moment: the conditions that kinds name, looked at by a scan, and again right before a deletion."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts.kinds import Kind
from ops.artifacts.places import Places
from ops.records import ServiceRecord


class HoldersLike(Protocol):
    """What is needed of ops/artifacts/holders.py."""

    complete: bool


class Conditions:
    """Built once a scan or purge. What can change in the meantime (a service that is started, a socket that is bound) is looked at again, at most
    once a second."""

    def __init__(self, config: NodeConfig | None, paths: NodePaths | None, records: Sequence[ServiceRecord], holders: HoldersLike | None = None, *,
                 places: Places | None = None, now: Callable[[], int] | None = None) -> None:
        """`config`, `paths`: None on a machine without a node state. `places`: of the same scan. `now`: nanoseconds since the epoch."""
        import time

        self.config, self.paths, self.records, self.holders, self.places = config, paths, list(records), holders, places
        self.now = now or time.time_ns

    def verdict(self, kind: Kind, artifact_path: str, *, stat: os.stat_result, service: str = "", folder_newest_ns: int | None = None) -> str | None:
        """Why the artifact is not safe to delete now, as a sentence; None if it is.

        `service`: that of its place, if it is one. `folder_newest_ns`: mtime of the newest file in a folder artifact.
        """
        newest = max(stat.st_mtime_ns, folder_newest_ns or 0)
        if self.now() - newest < kind.min_age_s * 1e9:
            return "Too young"
        return None
