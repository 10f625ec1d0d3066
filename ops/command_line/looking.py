"""`gpus`, `diagnose`: what this machine has, and why a server crashed."""

from __future__ import annotations

import argparse

from ops.command_line.output import print_json, read_end, table
from ops.jobs.errors import BadInput


def gpus(arguments: argparse.Namespace) -> int:
    from ops.agent.config import NodeConfig, NodePaths
    from ops.gpus.open_source import open_source

    node = NodePaths.default().node_toml
    config = NodeConfig.load(node) if node.exists() else NodeConfig(name="this-machine")
    snapshot = open_source(config).read()
    if arguments.json:
        return print_json(snapshot.as_dict())
    if snapshot.source == "practice":
        print("PRACTICE: simulated GPUs")
    if snapshot.problem:
        print(f"No GPUs: {snapshot.problem}")
        return 0
    print(f"driver {snapshot.driver or 'unknown'}, CUDA {snapshot.cuda or 'unknown'}")
    table(["GPU", "name", "used GiB", "total GiB", "load", "temp", "power", "limit", "PCIe", "processes"], [[
        str(gpu.index), gpu.name, _gib(gpu.used_bytes), _gib(gpu.total_bytes), _unit(gpu.utilization, "%"), _unit(gpu.temperature_c, "°C"),
        _unit(gpu.power_w, "W"), _unit(gpu.power_limit_w, "W"),
        "unknown" if gpu.pcie_gen is None or gpu.pcie_width is None else f"gen{gpu.pcie_gen} x{gpu.pcie_width}",
        gpu.error or ", ".join(f"{p.pid} {p.service or p.command or ''}".strip()[:60] for p in gpu.processes) or "-",
    ] for gpu in snapshot.gpus], left={1, 9})
    return 0


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1024**3:.1f}"


def _unit(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


def diagnose(arguments: argparse.Namespace) -> int:
    from ops.services import diagnosis

    raw = read_end(arguments.file)
    if b"\0" in raw[:8192]:
        raise BadInput(f"`{arguments.file}` is no log", why="It holds NUL bytes, so it is no text", hint="If it is compressed, unpack it first")
    text = raw.decode("utf-8", "replace")
    found = diagnosis.diagnose(text).as_dict()
    if arguments.json:
        return print_json(found)
    if not found["text"]:
        print(found["diagnosis"] or "No failure found in this log")
        return 0
    print(f"line {found['line']} of {found['lines']}: {found['text'].strip()}")
    print(f"  {found['diagnosis']}")
    if found["fix"]:
        print(f"  fix: {found['fix']}")
    return 0
