"""How full the node's disks are: bytes and inodes of each file system that Roundhouse, its services and their leftovers lie on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts.found import shown
from ops.records import ServiceRecord

SHARED_MEMORY = "/dev/shm"  # noqa: S108  (looked at, never written)
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
WHAT_SHOWN = 3  # what lies on a file system: so many are named


def of_node(config: NodeConfig, paths: NodePaths, records: Sequence[ServiceRecord] = ()) -> list[dict[str, Any]]:
    """The gauges of this node: its state, services, models, the places of leftovers, temporary folders and shared memory."""
    looked: list[tuple[str, str]] = [(str(paths.root), "Roundhouse"), *((root, "services") for root in config.service_roots)]
    looked += [(record.root, "services") for record in records]
    looked += [*((root, "models") for root in config.model_roots), *((record.model_path, "models") for record in records)]
    looked += [*((root, "leftovers") for root in config.artifact_roots), *((folder, "temporary files") for folder in TEMPORARY)]
    return read([*looked, (SHARED_MEMORY, "shared memory")])


def read(paths: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """One gauge a file system: {path, what, total_bytes, used_bytes, free_bytes, inodes, inodes_free}, in the order given.

    `paths`: (absolute path, what lies there) each; what is not there is left out. `path` is where the file system is mounted; `what` names what of
    `paths` lies on it. `free_bytes` is what a user other than root can still take, so used and free may be less than the total. Inodes are None
    where the file system has no table of them (Btrfs), everything is None where it cannot be asked. A file system whose server does not answer
    holds the call up: call it where that hurts nobody.
    """
    found: dict[int, dict[str, Any]] = {}
    whats: dict[int, list[str]] = {}
    for path, what in paths:
        try:
            device = Path(path).stat().st_dev
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            found.setdefault(-len(found) - 1, _gauge(path, what))
            continue
        named = whats.setdefault(device, [])
        if what not in named:
            named.append(what)
        if device not in found:
            found[device] = _read_one(path, device)
    for device, named in whats.items():
        found[device]["what"] = ", ".join(named[:WHAT_SHOWN])
    return list(found.values())


def _read_one(path: str, device: int) -> dict[str, Any]:
    mounted = _mount_point(path, device)
    try:
        state = os.statvfs(path)
    except OSError:
        return _gauge(mounted, "")
    unit = state.f_frsize
    return _gauge(mounted, "", total_bytes=state.f_blocks * unit, used_bytes=(state.f_blocks - state.f_bfree) * unit,
                  free_bytes=state.f_bavail * unit, inodes=state.f_files or None, inodes_free=state.f_favail if state.f_files else None)


def _gauge(path: str, what: str, *, total_bytes: int | None = None, used_bytes: int | None = None, free_bytes: int | None = None,
           inodes: int | None = None, inodes_free: int | None = None) -> dict[str, Any]:
    return {"path": shown(path), "what": what, "total_bytes": total_bytes, "used_bytes": used_bytes, "free_bytes": free_bytes, "inodes": inodes,
            "inodes_free": inodes_free}


def _mount_point(path: str, device: int) -> str:
    """The highest folder on the way to `path` that is still on its file system."""
    real = Path(path).resolve()
    for above in real.parents:
        try:
            if above.stat().st_dev != device:
                break
        except OSError:
            break
        real = above
    return str(real)
