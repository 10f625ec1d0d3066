"""Makes this machine a node: the practice box, or a `node.toml` for real use; and what to say of its GPUs and services."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from dashboard.launcher.terminal import Terminal
from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord

PRACTICE_PORTS = range(18000, 19000)  # below the kernel's range for outgoing connections, which starts at 32768


def check_kind(paths: NodePaths, *, practice: bool) -> None:
    """Raises BadInput if the state folder's node is of the other kind: practice and real nodes never share one."""
    if not paths.node_toml.exists():
        return
    if NodeConfig.load(paths.node_toml).practice != practice:
        kind, other = ("a practice", "make demo") if not practice else ("a real", "make up")
        raise BadInput(f"The state folder of this node, `{paths.root}`, belongs to {kind} node", why="Practice never mixes with real nodes",
                       hint=f"Use `{other}` with it, or another folder by ROUNDHOUSE_STATE")


def set_up_practice(paths: NodePaths, root: Path, terminal: Terminal) -> ServiceRecord:
    """The practice box, made at the first start (half a minute) and left as it is at later ones."""
    from ops.practice import box

    known = _settings(root)
    speed = _number("ROUNDHOUSE_PRACTICE_SPEED", known.get("speed", 1.0))
    port = int(_number("ROUNDHOUSE_PRACTICE_PORT", known.get("port") or free_port(root)))
    record = box.set_up(paths, root, speed=speed, port=port)
    told = f"8 simulated GPUs, {record.name}"
    terminal.fact("box", told + (f", speed {speed:g}" if speed != 1 else "") + f"  ({root})")
    return record


def _settings(root: Path) -> dict[str, float]:
    from ops.practice import box

    try:
        return dict(box.settings(root))
    except (FileNotFoundError, OpsError):  # the first start
        return {}


def free_port(root: Path) -> int:
    """A port of PRACTICE_PORTS that nobody listens on now. Raises OpsError if there is none.

    The search begins at a place of the box's own: the service listens only when it is warm, so two boxes that are set up at the same time
    would both find the first port free, and vLLM's servers share a port without a word (SO_REUSEPORT).
    """
    begin = zlib.crc32(str(root).encode()) % len(PRACTICE_PORTS)
    for number in range(len(PRACTICE_PORTS)):
        port = PRACTICE_PORTS[(begin + number) % len(PRACTICE_PORTS)]
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OpsError(f"No port from {PRACTICE_PORTS.start} to {PRACTICE_PORTS.stop - 1} is free for the practice service",
                   hint="Choose one with ROUNDHOUSE_PRACTICE_PORT")


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else float(default)
    except ValueError:
        number = 0
    if number <= 0:
        raise BadInput(f"`{name}` must be a number above 0, not `{text}`")
    return number


def set_up_real(paths: NodePaths, terminal: Terminal) -> NodeConfig:
    """`node.toml` for this host, made at the first start: its services may live in the state folder, leftovers be deleted where they are made (the
    folders for temporary files, this user's compile caches); everything else its owner adds."""
    from ops.artifacts import places

    paths.make()
    if not paths.node_toml.exists():
        name = re.sub(r"[^a-z0-9._-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-._") or "node"
        made = paths.root / ".node.toml.new"
        made.write_text(
            "# What may be asked of this node. docs/guides/nodes.md describes every key.\n"
            + tomli_w.dumps({"name": name, "gpu_source": "nvml", "service_roots": [str(paths.services)], "model_roots": [], "wheelhouse_roots": [],
                             "artifact_roots": places.default_roots(), "environment_roots": [], "index_urls": [], "units": []}))
        made.replace(paths.node_toml)
    config = NodeConfig.load(paths.node_toml)
    terminal.fact("node", f"{config.name}  ({paths.node_toml})")
    terminal.fact("gpus", gpus_told(config))
    return config


def gpus_told(config: NodeConfig) -> str:
    """`8 GPUs, NVIDIA RTX PRO 6000, driver 580.95`, or why there are none (the console works all the same)."""
    from ops.gpus.open_source import open_source

    found = open_source(config).read()
    if not found.gpus:
        return f"none. {found.problem or 'No GPU was found'}. The console works all the same"
    names = ", ".join(sorted({gpu.name for gpu in found.gpus}))
    return f"{len(found.gpus)} GPU{'s' if len(found.gpus) > 1 else ''}, {names}" + (f", driver {found.driver}" if found.driver else "")


def practice_services(paths: NodePaths) -> Iterator[ServiceRecord]:
    """Records of this node's practice services. A file that cannot be read is told by the agent, which announces them."""
    import json

    for path in sorted(paths.announced.glob("*.json")):
        try:
            record = ServiceRecord.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, BadInput):
            continue
        if record.practice:
            yield record
