"""What would go wrong, found before anything is stopped: first on the host, then with the built release.

Each look gives findings (ok, note, warning, stop) with why and fix, and all looks run, so that one run shows all that is wrong. Only then
does a `stop` end the job. Each looks with the unit's own environment: PATH, HOME, user and limits of what starts, never with ours. Nothing here
changes anything, and nothing of the model folder is run.

A finding of a redeploy tells its part: "host" is looked at before the build, "release" after it. A start, a restart, a roll back and a switch look
at both at once (`everything`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.environments.packages import EnvironmentPackages
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import surroundings
from ops.services.preflight import built, gpus, hardware, machine, model, options, toolchain, unit
from ops.services.preflight.looks import Findings, Looks, conclude

__all__ = ["Findings", "everything", "host", "release"]


def host(context: Context, record: ServiceRecord, plan: Mapping[str, Any] | None) -> Findings:
    """Looks at this machine: environment, launcher, unit and its sandbox, variables, port, guards, model files, GPUs, disk, memory, limits, caches,
    kernel log.

    `plan` is the redeploy's plan ({} for a roll back), or None where the release that runs stays. `context.kept["leaving"]`: the record of a service
    that is stopped before this one starts, whose port and GPU memory are free by then. Emits a `finding` each. Raises OpsError if any is `stop`.
    """
    return conclude([_host(context, record, plan)])


def release(context: Context, record: ServiceRecord, release: Path, plan: Mapping[str, Any] | None) -> Findings:
    """Looks at the built release: coupled packages, CUDA against the driver, what it compiles with, and whether it knows the model, the service's
    flags and its parsers.

    Emits a `finding` each. Raises OpsError if any is `stop`. A plan that was confirmed without coupling only gets a warning for it.
    """
    return conclude([_release(context, record, release, plan)])


def everything(context: Context, record: ServiceRecord, release: Path | None, plan: Mapping[str, Any] | None = None) -> Findings:
    """Both parts as one list, before a release that is there is started; `release` None where there is none. Raises OpsError if any is `stop`."""
    return conclude([_host(context, record, plan), *([_release(context, record, release, plan)] if release is not None else [])])


def _host(context: Context, record: ServiceRecord, plan: Mapping[str, Any] | None) -> Looks:
    looks = Looks(context, "host")
    snapshot, found, folder = gpus.read(context), surroundings.of(record), model.Model(record)
    leaving: ServiceRecord | None = context.kept.get("leaving")
    limits = unit.limits(record)
    looks.run([
        ("environment", lambda: machine.environment(looks, record, plan)),
        ("launcher", lambda: machine.launcher(looks, record)),
        ("unit", lambda: unit.look(looks, record, plan)),
        ("sandbox", lambda: unit.sandbox(looks, record, found)),
        ("variables", lambda: machine.variables(looks, record, found)),
        ("port", lambda: machine.port(looks, record, leaving)),
        ("guards", lambda: machine.guards(looks, record) if plan is None else None),  # a plan has looked at them, and has said so
        ("model", lambda: model.folder(looks, record, folder)),
        ("hub", lambda: model.hub(looks, record, found)),
        ("gpus", lambda: gpus.count(looks, record, snapshot, found)),
        ("gpu-memory", lambda: gpus.memory(looks, record, snapshot, leaving)),
        ("weights", lambda: gpus.weights(looks, record, snapshot, folder.bytes, folder.config)),
        ("kernel-log", lambda: hardware.xid(looks, record, snapshot)),
        ("peer-to-peer", lambda: hardware.peer_to_peer(looks, record, snapshot, found)),
        ("disk", lambda: machine.disk(looks, record, plan, found)),
        ("shared-memory", lambda: machine.shared_memory(looks, record)),
        ("memory", lambda: machine.memory(looks, record, found, limits.memory_bytes, folder.bytes, cpu=not record.gpus and built.is_for_cpu(record))),
        ("limits", lambda: machine.limits(looks, record, found)),
        ("caches", lambda: machine.caches(looks, found)),
        ("patience", lambda: machine.patience(looks, record, found, limits.start_s)),
    ])
    return looks


def _release(context: Context, record: ServiceRecord, release: Path, plan: Mapping[str, Any] | None) -> Looks:
    from ops.environments import packages

    looks = Looks(context, "release")
    found, snapshot, folder = surroundings.of(record), gpus.read(context), model.Model(record)
    read: list[EnvironmentPackages] = []
    looks.run([("packages", lambda: read.append(packages.read(release)))])
    if not read:  # told: it is no environment, or cannot be read
        return looks
    [installed] = read
    looks.run([
        ("python", lambda: built.python(looks, release)),
        ("reachable", lambda: built.reachable(looks, record, release, found) if plan is not None or unit.starts_launcher(record) else None),
        ("coupling", lambda: built.coupling(looks, installed, plan, found)),
        ("cuda", lambda: built.cuda(looks, installed, snapshot)),
        ("kernels", lambda: built.kernels(looks, record, release, installed, snapshot)),
        ("model", lambda: built.model_known(looks, installed, folder)),
        ("toolchain", lambda: toolchain.look(looks, record, release, installed, snapshot, found)),
        ("flags", lambda: options.flags(looks, record, release, found)),
    ])
    return looks
