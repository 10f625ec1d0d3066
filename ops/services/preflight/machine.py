"""Looks at the machine under the service: its launcher's files, port, disk, shared memory, limits, caches, memory, and time limits."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.gpus import processes
from ops.gpus.source import MIB
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import health, listeners, state, vllm_arguments
from ops.services.manager import manager_for
from ops.services.preflight.looks import GIB, Looks
from ops.services.surroundings import Surroundings, nearest

READY_TIMEOUT_S = 600.0  # VLLM_ENGINE_READY_TIMEOUT_S, where nothing is set
RANK_BYTES = 2 * GIB  # host memory of one process of vLLM, seen 0.6 to 1.7 GiB without a GPU
SHM_BYTES = 256 * MIB
SHM_LEAST = 33 * MIB  # NCCL's segment for one pair of ranks
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def environment(looks: Looks, record: ServiceRecord, plan: Mapping[str, Any] | None) -> None:
    """The release in use: it is what a start runs, or the way back."""
    if not record.current.exists():
        if plan is None:
            looks.add("stop", f"Service `{record.name}` has no release", why=f"`{record.current}` points nowhere", fix="Redeploy it")
        else:
            looks.add("note", "There is no release yet: this is the first one", why="There is nothing to go back to if it fails")
        return
    live = record.release_in_use() or record.current.resolve()
    missing = [name for name in ("bin/python", "bin/vllm") if not os.access(live / name, os.X_OK)]
    if not missing:
        looks.add("ok", f"Release {live.name} has its interpreter and vLLM")
    elif plan is None:
        looks.add("stop", f"Release {live.name} is not whole: {' and '.join(missing)} cannot be run", fix="Redeploy the service")
    else:
        looks.add("warning", f"The release in use, {live.name}, is not whole: {' and '.join(missing)} cannot be run",
                  why="If the new one fails, there is nothing to go back to")


def launcher(looks: Looks, record: ServiceRecord) -> None:
    folder = record.folder
    there = nearest(folder) or folder  # a record written by hand: the first release makes the folder
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        looks.add("stop", f"The service's folder `{folder}` cannot be {'written' if there == folder else 'made'}",
                  why="" if there == folder else f"`{there}` is no folder that this user may write to",
                  fix="Correct its owner: the agent's user writes the launcher's files there")
        return
    for name in ("launch.json", "flags.json", "env.json"):
        path = folder / name
        if path.exists():
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                looks.add("warning", f"`{path}` cannot be read: {error}", why="It was changed by hand, or not by this user",
                          fix="It is written anew from the service's record at the start")
    looks.add("ok", f"The launcher's files in `{folder}` can be written" if there == folder else f"The service's folder `{folder}` can be made")


def variables(looks: Looks, record: ServiceRecord, found: Surroundings) -> None:
    """The environment that the process would get: can it be made at all?"""
    if found.problem is not None:
        looks.add("warning", f"The service's own environment cannot be read: {found.problem.what}", why="What follows was looked at with a bare one",
                  fix=found.problem.hint)
    wrong = False
    for path, why in found.unreadable:
        name = path.removeprefix("-")
        if record.manager == "systemd" and why == "Permission denied":
            looks.add("note", f"The environment file `{name}` may not be read by this user",
                      why="systemd reads it as root; its variables are unknown here")
        else:
            wrong = True
            looks.add("stop", f"The environment file `{name}` cannot be read: {why}", why="The start would end at once",
                      fix="Restore the file, or take it out of the service's launch settings")
    if found.uid is None:
        looks.add("warning", f"There is no user `{found.user}` on this machine now", why="What it may write cannot be told",
                  fix="Correct User= of the unit, unless systemd makes this user itself")
    home = found.home
    if not home or nearest(Path(home)) != Path(home):
        looks.add("warning", f"The service's home `{home or '(none)'}` does not exist", why="Caches go below it unless variables say otherwise",
                  fix="Make it, or set HOME (or VLLM_CACHE_ROOT, TRITON_CACHE_DIR and HF_HOME) in the launch settings")
    elif not wrong:
        looks.add("ok", f"It runs as `{found.user}` with home `{home}`")


def port(looks: Looks, record: ServiceRecord, leaving: ServiceRecord | None) -> None:
    number = health.port_of(record.base_url)
    given = vllm_arguments.value(record.flags, "--port")
    if given is not None and given != str(number):
        looks.add("stop", f"The flags say port {given}, but the service's address is {record.base_url}",
                  fix="Make the two agree: a start would be watched at a port where nobody listens")
        return
    if not listeners.inodes(number):
        looks.add("ok", f"Port {number} is free")
        return
    holders = listeners.pids(number)
    if holders & manager_for(record).pids():
        looks.add("ok", f"Port {number} is held by this service")
        return
    if leaving is not None and holders & manager_for(leaving).pids():
        looks.add("ok", f"Port {number} is held by `{leaving.name}`, which is stopped first")
        return
    if not holders and record.manager == "systemd" and manager_for(record).pids():  # another user's sockets: their holder cannot be seen
        looks.add("note", f"Port {number} is held by a process of another user", why=f"Most likely by the unit `{record.unit}`, which runs")
        return
    named = ", ".join(f"pid {pid} ({processes.describe(pid)[1] or 'unknown'})" for pid in sorted(holders)) or "a process of another user"
    looks.add("stop", f"Port {number} is held by something else: {named[:300]}", why="The service could not open it",
              fix=f'ss -ltnp "sport = :{number}" names it: stop it, or give the service another port')


def guards(looks: Looks, record: ServiceRecord) -> None:
    from ops.environments import guards as known

    results = known.check(record)
    for result in results:
        if not result.holds:
            looks.add("stop", f"A guard does not hold: {result.explains}", why="The service would start with another model configuration",
                      fix=result.fix)
    if results and all(result.holds for result in results):
        looks.add("ok", {1: "The guard holds", 2: "Both guards hold"}.get(len(results), f"All {len(results)} guards hold"))


def disk(looks: Looks, record: ServiceRecord, plan: Mapping[str, Any] | None, found: Surroundings) -> None:
    place = nearest(record.releases) or record.folder
    space = os.statvfs(place)
    free, inodes = space.f_bavail * space.f_frsize, space.f_favail
    needed = ((plan or {}).get("disk") or {}).get("needed_bytes")
    if needed is not None and free < needed + GIB:
        looks.add("stop", f"There is not enough disk below `{place}`: {needed / GIB:.1f} GiB needed and 1 GiB to spare, {free / GIB:.1f} GiB free",
                  fix="Remove an old release, or free disk elsewhere")
    elif free < 2 * GIB:
        looks.add("warning", f"Only {free / GIB:.1f} GiB are free below `{place}`", why="Caches and logs grow while the service runs",
                  fix="Remove an old release, or free disk elsewhere")
    else:
        looks.add("ok", f"{free / GIB:,.0f} GiB are free below `{place}`")
    if space.f_files and inodes < 50_000:  # some file systems (Btrfs) count none
        looks.add("warning", f"Only {inodes:,} inodes are free below `{place}`", why="A release has some 30,000 files", fix="Remove an old release")
    seen = {os.stat(place).st_dev}  # noqa: PTH116
    for name, path in [*caches_of(found).items(), ("TMPDIR", found.variables.get("TMPDIR") or "/tmp")]:  # noqa: S108  (where programs go by default)
        there = nearest(Path(path))
        if there is None or there.stat().st_dev in seen:
            continue
        seen.add(there.stat().st_dev)
        space = os.statvfs(there)
        if (left := space.f_bavail * space.f_frsize) < GIB:
            looks.add("warning", f"Only {left / MIB:,.0f} MiB are free below `{there}` ({name})", why="Compiled kernels and temporary files go there",
                      fix=f"Free disk there, or set {name} to another place in the launch settings")
        if space.f_files and space.f_favail < 5_000:
            looks.add("warning", f"Only {space.f_favail:,} inodes are free below `{there}` ({name})", why="A compile cache has thousands of files",
                      fix="Remove old caches")


def shared_memory(looks: Looks, record: ServiceRecord, folder: Path = Path("/dev/shm")) -> None:  # noqa: S108  (what ranks talk through)
    if ranks(record) < 2:
        return
    try:
        space = os.statvfs(folder)
    except FileNotFoundError:
        looks.add("warning", f"There is no {folder}", why="Ranks exchange data there", fix="Mount it; give a container --ipc=host or --shm-size")
        return
    free = space.f_bavail * space.f_frsize
    fix = "With the service stopped, remove unowned psm_*, nccl-* and vllm_offload_* files; give a container more shared memory"
    if free < SHM_LEAST:
        looks.add("stop", f"Only {free / MIB:,.0f} MiB of shared memory ({folder}) are free",
                  why="NCCL needs 33 MB for each pair of ranks: it would end with no space left on device", fix=fix)
    elif free < SHM_BYTES:
        looks.add("warning", f"Only {free / MIB:,.0f} MiB of shared memory ({folder}) are free",
                  why="NCCL needs some 33 MB for each pair of ranks there", fix=fix)
    else:
        looks.add("ok", f"{free / GIB:,.1f} GiB of shared memory are free")


def limits(looks: Looks, record: ServiceRecord, found: Surroundings) -> None:
    if found.problem is not None:
        return  # told already: no limit is known
    hard = found.open_files
    fix = ("Raise LimitNOFILE= of the unit to 65536" if record.manager == "systemd"
           else "Raise the hard limit (`ulimit -Hn 65536`) of what starts the agent")
    if hard is not None and hard < 4096:
        looks.add("warning", f"Only {hard} files may be open at once (hard limit)",
                  why="Under load vLLM needs some for each connection: too many open files", fix=fix)
    else:
        looks.add("ok", "Any number of files may be open at once" if hard is None else f"{hard:,} files may be open at once")


def caches_of(found: Surroundings) -> dict[str, str]:
    """Variable that names it -> folder in which a start makes files, as vLLM, Triton, FlashInfer and torch choose it."""
    given, home = found.variables, found.home or "/nonexistent"
    below = given.get("XDG_CACHE_HOME") or f"{home}/.cache"
    places = {
        "VLLM_CACHE_ROOT": given.get("VLLM_CACHE_ROOT") or f"{below}/vllm",
        "TRITON_CACHE_DIR": given.get("TRITON_CACHE_DIR") or f"{given.get('TRITON_HOME') or home}/.triton/cache",
        "FLASHINFER_WORKSPACE_BASE": f"{given.get('FLASHINFER_WORKSPACE_BASE') or home}/.cache/flashinfer",
    }
    for name in ("TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "OUTLINES_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CONFIG_HOME"):
        if given.get(name):
            places[name] = given[name]
    return places


def caches(looks: Looks, found: Surroundings) -> None:
    bad, unknown = [], []
    for name, path in caches_of(found).items():
        allowed = found.may_write(Path(path))
        if allowed is None:
            unknown.append(path)
        elif not allowed:
            bad.append((name, path))
    for name, path in bad:
        looks.add("stop", f"The service may not write its cache `{path}` ({name})",
                  why=f"`{found.user}` writes compiled kernels there; the start would fail late",
                  fix=f"Correct the folder's owner (`chown -R {found.user} {nearest(Path(path)) or path}`), or set {name} in the launch settings")
    hub = Path(found.variables.get("HF_HOME") or f"{found.variables.get('XDG_CACHE_HOME') or f'{found.home}/.cache'}/huggingface")
    if found.variables.get("HF_HOME") and found.may_write(hub) is False:
        looks.add("warning", f"The service may not write `{hub}` (HF_HOME)", why="Nothing can be fetched into it",
                  fix="Correct the folder's owner, or set HF_HOME")
    if unknown:
        looks.add("note", f"Whether `{found.user}` may write `{unknown[0]}` cannot be told from here",
                  why="It belongs to another user, or has an access list")
    elif not bad:
        looks.add("ok", "Cache folders can be written")


def memory(looks: Looks, record: ServiceRecord, found: Surroundings, unit_limit: int | None, weights: int | None, *, cpu: bool) -> None:
    """Host memory: what a start takes for sure, against what is there once the service itself is down. `unit_limit`: bytes of MemoryMax=."""
    needed = ranks(record) * RANK_BYTES + _pinned_bytes(record)
    words = f"{ranks(record) + 2} processes of vLLM" + (" and what is kept in host memory" if _pinned_bytes(record) else "")
    if cpu:
        needed += (weights or 0) + int(as_number(found.variables.get("VLLM_CPU_KVCACHE_SPACE")) * GIB)
        words = "weights, KV cache and processes of a CPU build"
    available = _available(record)
    if unit_limit is not None and unit_limit < needed:
        looks.add("stop", f"The unit may use {unit_limit / GIB:,.1f} GiB of memory (MemoryMax=), and a start needs some {needed / GIB:,.1f} GiB",
                  why=f"For {words}: the kernel would end it without a word in its log", fix="Raise MemoryMax= of the unit, or take the limit away")
    if available is None:
        return
    if available < needed:
        less = ("; lower VLLM_CPU_KVCACHE_SPACE" if cpu
                else "; lower --cpu-offload-gb, --swap-space or the offloading size" if _pinned_bytes(record) else "")
        looks.add("stop" if cpu else "warning",
                  f"Only {available / GIB:,.1f} GiB of memory would be available, and a start needs some {needed / GIB:,.1f} GiB",
                  why=f"For {words}: the kernel may end it without a word in its log (killed, exit code -9)",
                  fix=f"End what else uses memory here{less}")
    elif weights is not None and not cpu and weights > available:
        looks.add("note", f"The weights ({weights / GIB:,.0f} GiB) do not fit into the memory that is available ({available / GIB:,.0f} GiB)",
                  why="They are read from disk at each start; a start takes as long as the disk needs")
    else:
        looks.add("ok", f"{available / GIB:,.0f} GiB of memory would be available")


def patience(looks: Looks, record: ServiceRecord, found: Surroundings, unit_limit_s: float | None) -> None:
    """Time limits against how long this service usually takes. `unit_limit_s`: TimeoutStartSec= where the unit's type makes systemd wait."""
    totals = [float(one["total_s"]) for one in state.warmups(record)[-5:] if isinstance(one.get("total_s"), int | float)]
    if not totals:
        return
    usual, longest = statistics.median(totals), max(totals)
    limit = as_number(found.variables.get("VLLM_ENGINE_READY_TIMEOUT_S")) or READY_TIMEOUT_S
    if longest > 0.8 * limit:
        several = any((vllm_arguments.number(record.flags, flag) or 1) > 1 for flag in ("--api-server-count", "--data-parallel-size"))
        looks.add("warning", f"A start takes up to {longest:,.0f} s here, and vLLM waits {limit:,.0f} s for its engine",
                  why="With several API servers or data parallel ranks it gives up then, although the engine only takes its time" if several
                  else "Some ways of starting give up then, although the engine only takes its time",
                  fix=f"Set VLLM_ENGINE_READY_TIMEOUT_S={max(3600, int(longest * 2))} in the launch settings")
    if unit_limit_s is not None and longest > 0.8 * unit_limit_s:
        looks.add("warning", f"A start takes up to {longest:,.0f} s here, and systemd waits {unit_limit_s:,.0f} s (TimeoutStartSec=)",
                  why="It would end the unit before it serves", fix="Set TimeoutStartSec=infinity, or Type=exec, in the unit")
    elif longest <= 0.8 * limit:
        looks.add("ok", f"A start usually takes {usual:,.0f} s, within its time limits")


# ---- what several looks need ----


def ranks(record: ServiceRecord) -> int:
    """Processes that hold a part of the model on this node."""
    return split(record) * (vllm_arguments.number(record.flags, "--data-parallel-size-local")
                            or vllm_arguments.number(record.flags, "--data-parallel-size") or 1)


def split(record: ServiceRecord) -> int:
    """Over how many GPUs one copy of the model is split: tensor parallel times pipeline parallel."""
    return ((vllm_arguments.number(record.flags, "--tensor-parallel-size") or 1)
            * (vllm_arguments.number(record.flags, "--pipeline-parallel-size") or 1))


def _pinned_bytes(record: ServiceRecord) -> int:
    """Host memory that flags ask for, which cannot be given back: offloaded weights and KV cache, swap space. All of it is per rank but the last."""
    each = as_number(vllm_arguments.value(record.flags, "--cpu-offload-gb")) + as_number(vllm_arguments.value(record.flags, "--swap-space"))
    return int((each * ranks(record) + as_number(vllm_arguments.value(record.flags, "--kv-offloading-size"))) * GIB)


def as_number(text: str | None) -> float:
    """A value of a flag or a variable as a number that is not negative; 0 for none, and for what is none."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0  # vLLM itself will say what is wrong with it


def _available(record: ServiceRecord) -> int | None:
    """Bytes of memory that would be there with the service down; None where the kernel does not say. A container's own limit counts."""
    found: int | None = None
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found = int(line.split()[1]) * 1024
    if found is None:
        return None
    try:
        own = manager_for(record).pids()
    except OpsError:
        own = set()
    found += sum(_private_bytes(pid) for pid in own)
    try:  # of a container: the root of what we see is limited
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return found
    return min(found, int(limit) - used) if limit.isdigit() else found


def _private_bytes(pid: int) -> int:
    """Resident memory that the process shares with nobody: it is free once the process is gone."""
    try:
        words = Path("/proc", str(pid), "statm").read_text().split()
    except OSError:
        return 0  # it has just ended
    return max(0, int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")
