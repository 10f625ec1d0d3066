"""Looks at the service's GPUs: are they there, is their memory free, and do the weights fit into it?"""

from __future__ import annotations

import re
from typing import Any

from ops.gpus.source import MIB, GpuSnapshot
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import vllm_arguments
from ops.services.manager import manager_for
from ops.services.preflight.looks import GIB, Looks
from ops.services.preflight.machine import as_number, ranks, split
from ops.services.surroundings import Surroundings

USUAL_UTILIZATION = (0.9, 0.92)  # --gpu-memory-utilization, where nothing is set: until some release, and since (0.92 in 0.32)
_INDEXES = re.compile(r"\s*\d+\s*(,\s*\d+\s*)*\Z")


def read(context: Context) -> GpuSnapshot:
    """All GPUs of this node now."""
    from ops.gpus.open_source import open_source

    return open_source(context.config).read()


def count(looks: Looks, record: ServiceRecord, snapshot: GpuSnapshot, found: Surroundings) -> None:
    needed = ranks(record)
    if not record.gpus:
        looks.add("note", "No GPU is listed for this service", why=snapshot.problem or "Its record names none: its memory cannot be watched")
        return
    if snapshot.problem and not snapshot.gpus:
        looks.add("stop", f"The service's GPUs cannot be read: {snapshot.problem}", fix="Run nvidia-smi; after a driver upgrade restart the machine")
        return
    present = {gpu.index: gpu for gpu in snapshot.gpus}
    if absent := [index for index in record.gpus if index not in present]:
        looks.add("stop", f"GPU {', '.join(map(str, absent))} is not there: {len(present)} GPUs answer",
                  fix="Look at the kernel log for Xid 79 (fallen off the bus), or correct the service's list of GPUs")
    lost = [gpu for index in record.gpus if (gpu := present.get(index)) is not None and gpu.error]
    for gpu in lost:
        looks.add("stop", f"GPU {gpu.index} does not answer: {gpu.error}", fix="Drain the node and restart it; a new start cannot help")
    if needed > len(record.gpus):
        elsewhere = (vllm_arguments.number(record.flags, "--nnodes") or 1) > 1 or vllm_arguments.value(
            record.flags, "--distributed-executor-backend") == "ray" or vllm_arguments.value(record.flags, "--data-parallel-backend") == "ray"
        looks.add("note" if elsewhere else "stop", f"The flags ask for {needed} GPUs, and the service has {len(record.gpus)}",
                  why="The others are on other machines, as the flags say" if elsewhere else "",
                  fix="" if elsewhere else "Lower --tensor-parallel-size (or pipeline, or data parallel), or give the service more GPUs")
    elif not absent and not lost:
        idle = "" if needed == len(record.gpus) else f"; the flags use {needed} of them"
        looks.add("ok", f"All {len(record.gpus)} GPUs of the service answer{idle}")
    _visible(looks, record, needed, found.variables.get("CUDA_VISIBLE_DEVICES"))


def _visible(looks: Looks, record: ServiceRecord, needed: int, given: str | None) -> None:
    """CUDA_VISIBLE_DEVICES of the service against its list of GPUs."""
    if given is None:
        return
    names = [one.strip() for one in given.split(",") if one.strip() and one.strip() != "-1"]
    if needed > len(names) and len(record.gpus) >= needed:
        looks.add("stop", f"CUDA_VISIBLE_DEVICES shows the service {len(names)} GPUs, and its flags ask for {needed}",
                  fix="Correct CUDA_VISIBLE_DEVICES in the launch settings")
    elif _INDEXES.match(given) and not {int(name) for name in names} <= set(record.gpus):
        looks.add("warning", f"CUDA_VISIBLE_DEVICES is {given[:100]}, and the service's list of GPUs is {', '.join(map(str, record.gpus))}",
                  why="Roundhouse would watch other GPUs than the service uses", fix="Make the two agree")


def memory(looks: Looks, record: ServiceRecord, snapshot: GpuSnapshot, leaving: ServiceRecord | None) -> None:
    """What others hold on the service's GPUs. More than *GPUs free* will allow means downtime for nothing, so it stops the job here."""
    from ops.services import state, stopping

    own, known = manager_for(record).pids(), state.baseline(record) or {}
    if leaving is not None:
        own = own | manager_for(leaving).pids()
    share = utilization(record, min(USUAL_UTILIZATION))
    for gpu in snapshot.gpus:
        if gpu.index not in record.gpus:
            continue
        others = [process for process in gpu.processes if process.pid not in own and process.used_bytes]
        held = sum(process.used_bytes or 0 for process in others)
        too_much = held > known.get(gpu.index, 0) + stopping.TOLERANCE_BYTES
        for process in others:
            if too_much or (process.used_bytes or 0) > stopping.TOLERANCE_BYTES:
                looks.add(
                    "stop" if too_much else "note",
                    f"GPU {gpu.index} is also used by pid {process.pid} (user {process.user or 'unknown'}, "
                    f"`{(process.command or 'unknown')[:100]}`): {(process.used_bytes or 0) / MIB:,.0f} MiB",
                    why="The GPU would not be free after the stop" if too_much else "As when it was last looked at with the service down",
                    fix="End that process first, if it may be ended" if too_much else "",
                )
        if gpu.total_bytes is not None and not too_much and held > gpu.total_bytes * (1 - share) + stopping.TOLERANCE_BYTES:
            looks.add("stop", f"vLLM asks for {share:.0%} of GPU {gpu.index} ({share * gpu.total_bytes / GIB:,.1f} GiB), and others hold "
                      f"{held / GIB:,.1f} of its {gpu.total_bytes / GIB:,.1f} GiB",
                      why="It would end with: free memory on device is less than desired GPU memory utilization",
                      fix=f"End the other process, or set --gpu-memory-utilization to at most {max(0.0, 1 - held / gpu.total_bytes - 0.01):.2f}")


def weights(looks: Looks, record: ServiceRecord, snapshot: GpuSnapshot, total: int | None, config: dict[str, Any]) -> None:
    """Do the weights (`total`: bytes on disk, None if not known) fit, split as the flags say? Only what cannot be otherwise is a stop."""
    sizes = [gpu.total_bytes for gpu in snapshot.gpus if gpu.index in record.gpus and gpu.total_bytes]
    if not total or not sizes or ranks(record) > len(record.gpus):
        return
    parts = split(record)
    if any(vllm_arguments.name_of(flag) in ("--enable-expert-parallel", "-ep") for flag in record.flags):
        parts = ranks(record)  # experts, which are most of it, lie on all of them
    shrinks = _shrinks(record, config)
    each = int(total * (0.25 if shrinks == "quantized" else 0.5 if shrinks else 1.0) / parts) - int(
        as_number(vllm_arguments.value(record.flags, "--cpu-offload-gb")) * GIB)
    smallest = min(sizes)
    room = int(smallest * utilization(record, max(USUAL_UTILIZATION)))
    words = f"{each / GIB:,.1f} GiB of weights on each of {parts} GPUs" if parts > 1 else f"{each / GIB:,.1f} GiB of weights on one GPU"
    if each >= room:
        looks.add("stop", f"The weights do not fit: {words}, of which vLLM may use {room / GIB:,.1f} of {smallest / GIB:,.1f} GiB",
                  why=f"{total / GIB:,.1f} GiB lie on disk" + (" and become smaller when they are loaded" if shrinks else ""),
                  fix="Use more GPUs (--tensor-parallel-size), a smaller or quantized model" + (
                      ", or a higher --gpu-memory-utilization" if each < 0.97 * smallest else ""))
    elif each > 0.92 * room:
        looks.add("warning", f"The weights leave little: {words}, of which vLLM may use {room / GIB:,.1f} GiB",
                  why="The KV cache and activations need the rest: it may end with no available memory for the cache blocks",
                  fix="Use more GPUs, a lower --max-model-len, or a higher --gpu-memory-utilization")
    else:
        looks.add("ok", f"{words} fit into {room / GIB:,.1f} GiB")


def _shrinks(record: ServiceRecord, config: dict[str, Any]) -> str:
    """Why the weights are smaller in memory than on disk: "quantized" while they are loaded, "converted" from 32 bits, or "" if they are not."""
    inner = config.get("text_config")
    parts = [config, *([inner] if isinstance(inner, dict) else [])]
    if vllm_arguments.value(record.flags, "--quantization") and not any(part.get("quantization_config") for part in parts):
        return "quantized"
    if vllm_arguments.value(record.flags, "--load-format") in ("bitsandbytes", "dummy"):
        return "quantized"
    wide = any(part.get("torch_dtype", part.get("dtype")) in ("float32", "torch.float32") for part in parts)
    return "converted" if wide and vllm_arguments.value(record.flags, "--dtype") not in ("float32", "float") else ""


def utilization(record: ServiceRecord, usual: float) -> float:
    """The share of a GPU's memory that vLLM takes; `usual` where the flags do not say it, or say something that cannot be."""
    try:
        given = float(vllm_arguments.value(record.flags, "--gpu-memory-utilization")
                      or vllm_arguments.value(record.flags, "--device-memory-utilization") or usual)
    except ValueError:
        return usual  # vLLM itself will say what is wrong with it
    return given if 0 < given <= 1 else usual
