"""`gpus`, `diagnose`: what this machine has, and why a server crashed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ops.command_line.output import print_json, table
from ops.jobs.errors import BadInput

if TYPE_CHECKING:
    from ops.services.diagnosis import Diagnosis
    from ops.services.kernel_log import KernelLog


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
    """The log of a file (or stdin), of a service of this node, or of a unit. Of the latter two the kernel's log of that time is read beside it."""
    try:
        if arguments.service:
            found, kernel = _of_service(arguments.service)
        elif arguments.unit:
            found, kernel = _of_unit(arguments.unit, arguments.user)
        else:
            found, kernel = _of_file(arguments.file), None
    except OSError as error:
        raise BadInput(f"The log `{arguments.file}` cannot be read to its end", why=error.strerror or str(error)) from error
    told = found.as_dict()
    if kernel is not None:
        told["kernel"] = {"lines": len(kernel.lines), "problem": kernel.problem}
    if arguments.json:
        return print_json(told)
    if not found.fault:
        print(f"No failure found in this log: {found.lines} lines, {_STATES.get(found.state, found.state)}")
    else:
        where = "the kernel's log" if found.source == "kernel" else f"line {found.line} of {found.lines}"
        print(f"{where}: {found.text.strip()}")
        print(f"  {found.diagnosis}")
        if found.fix:
            print(f"  fix: {found.fix}")
    if kernel is not None and kernel.problem:
        print(f"  The kernel's log could not be read beside it: {kernel.problem}")
    return 0


_STATES = {"serving": "the server serves", "starting": "the server starts", "stopped": "the server was stopped", "empty": "nothing of a vLLM server"}


def _of_file(name: str) -> Diagnosis:
    from ops.services import diagnosis, log_files

    if name == "-":
        _check("-", cast(BufferedReader, sys.stdin.buffer).peek(log_files.HEAD_BYTES))
        return diagnosis.diagnose_stream(sys.stdin.buffer)
    try:
        with Path(name).open("rb") as file:
            _check(name, file.read(log_files.HEAD_BYTES))
            if not file.seekable():
                raise BadInput(f"`{name}` is no file", hint="Give the path of a log, or - to read one from stdin")
        return diagnosis.diagnose_file(Path(name))
    except FileNotFoundError as error:
        raise BadInput(f"There is no file `{name}`", why="" if Path(name).is_absolute() else f"Looked for in {Path.cwd()}",
                       hint="Give the path of a log, or - to read one from stdin") from error
    except OSError as error:
        raise BadInput(f"`{name}` cannot be read", why=error.strerror or str(error)) from error


def _check(name: str, head: bytes) -> None:
    from ops.services import log_files

    if problem := log_files.problem(head):
        raise BadInput(f"`{name}` is no log", why=problem, hint="If it is compressed, unpack it first (gzip is read as it is)")


def _of_service(name: str) -> tuple[Diagnosis, KernelLog]:
    from ops.agent.config import NodePaths
    from ops.command_line import targets
    from ops.services import diagnosis, kernel_log
    from ops.services.manager import manager_for
    from ops.services.status import ServiceState

    targets.own_node(NodePaths.default())  # what a look at the service notes must be the agent's to read
    manager = manager_for(targets.service(name))
    status = manager.status()
    now = time.time()
    began = status.started_at or status.since
    kernel = kernel_log.KernelLog(problem="when the run began is not known") if began is None else kernel_log.read(began, status.ended_at or now)
    ended = status.state == ServiceState.FAILED
    return diagnosis.diagnose_lines(manager.log_lines(), kernel=kernel.lines, ended=ended), kernel


def _of_unit(unit: str, user: bool) -> tuple[Diagnosis, KernelLog]:
    from ops.services import diagnosis, journal, kernel_log, unit_files
    from ops.services.log_lines import journal_time

    name = unit_files.unit_name(unit)
    span: list[float] = []

    def timed() -> Iterator[str]:
        """The lines, and from when to when they reach."""
        for line in journal.lines(name, user=user, invocation=journal.last_invocation(name, user=user)):
            if (at := journal_time(line)) is not None:
                span[:] = [span[0] if span else at, at]
            yield line

    # The kernel's lines are asked for after the last line of the log was read: then the span is known.
    kernel = kernel_log.KernelLog()

    def beside() -> Iterator[str]:
        nonlocal kernel
        kernel = kernel_log.read(*span) if span else kernel_log.KernelLog(problem="the unit has said nothing")
        yield from kernel.lines

    found = diagnosis.diagnose_lines(timed(), kernel=beside())
    if not found.lines:
        raise BadInput(f"The journal holds nothing of the unit `{name}`", why="It never ran since the journal was begun, or no unit has this name",
                       hint="systemctl list-units --all names the units; a unit of your own manager needs --user")
    if not found.fault:
        list(beside())
    return found, kernel
