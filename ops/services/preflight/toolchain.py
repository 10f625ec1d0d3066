"""Looks at what a start compiles with: nvcc, ninja, a C compiler, Python's headers, seen with the service's own PATH and variables.

What needs what (seen in the sources of Triton, FlashInfer and torch): Triton builds a small C module for its launcher, with gcc or clang (or CC)
and the headers of the release's Python; torch.compile on a CPU needs g++; FlashInfer builds kernels that no wheel brought with ninja and nvcc, which
it takes from FLASHINFER_NVCC, else CUDA_HOME (or CUDA_PATH), else PATH, else /usr/local/cuda.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ops.environments import coupling, cuda_builds
from ops.environments.packages import EnvironmentPackages
from ops.gpus.source import GpuSnapshot
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state, vllm_arguments
from ops.services.manager import manager_for
from ops.services.preflight.looks import GIB, Looks
from ops.services.preflight.machine import MEMINFO, caches_of
from ops.services.status import ServiceState
from ops.services.surroundings import Surroundings, nearest

NVCC_BYTES = 3 * GIB  # of memory that one nvcc may take
NVCC_LIMIT_S = 20.0
DEFAULT_CUDA = Path("/usr/local/cuda")
# From which release on nvcc compiles for a capability (NVIDIA's release notes of CUDA); FlashInfer wants 12.9 for 12.x
_SINCE = {(9, 0): (11, 8), (10, 0): (12, 8), (10, 3): (12, 9), (11, 0): (13, 0), (12, 0): (12, 9), (12, 1): (12, 9)}


def look(looks: Looks, record: ServiceRecord, release: Path, installed: EnvironmentPackages, snapshot: GpuSnapshot, found: Surroundings) -> None:
    """A release that serves, or has served in this place before, has its kernels: then the same finding is a warning, for caches may be emptied."""
    if record.practice:
        return
    torch = cuda_builds.builds_of(installed).get("torch")
    on_gpus = torch is not None or installed.version("flashinfer-python") is not None
    status = manager_for(record).status()
    proven = state.last_good(record) == release.name or (status.state == ServiceState.HEALTHY and status.release == release.name)
    stop = "warning" if proven else "stop"
    why_not = "It served before with what it has compiled; another model, or an emptied cache, needs it. " if proven else ""
    wrong = len(looks.found)
    if on_gpus or not any(vllm_arguments.name_of(flag) == "--enforce-eager" for flag in record.flags):
        _compiler(looks, release, found, stop if on_gpus else "warning", why_not, on_gpus=on_gpus)
    if on_gpus:
        _headers(looks, installed, stop, why_not)
        _flashinfer(looks, record, release, installed, torch, snapshot, found, stop, why_not)
    if len(looks.found) == wrong:
        looks.add("ok", "What a start compiles with is on the service's PATH")


def _compiler(looks: Looks, release: Path, found: Surroundings, level: str, why_not: str, *, on_gpus: bool) -> None:
    given = found.variables.get("CC" if on_gpus else "CXX", "").split()
    names = given[:1] or (["gcc", "clang", "cc"] if on_gpus else ["g++", "clang++"])
    if not any(found.which(name, release) for name in names):
        looks.add(level, f"There is no C{'' if on_gpus else '++'} compiler on the service's PATH ({' or '.join(names)})",
                  why=f"{why_not}{'Triton builds its launcher' if on_gpus else 'torch.compile builds its kernels'} at the start",
                  fix="Install gcc (`apt install build-essential`), or set PATH in the launch settings; an operator's shell has another PATH")


def _headers(looks: Looks, installed: EnvironmentPackages, level: str, why_not: str) -> None:
    """Python.h of the interpreter that the release was made from."""
    version = ".".join((installed.python_version or "").split(".")[:2])
    if not re.fullmatch(r"3\.\d+", version):
        return
    home = installed.settings.get("home")
    bases = {Path(home).parent, Path(os.path.realpath(installed.python)).parent.parent} if home else {installed.path}
    places = [base / "include" / f"python{version}{threads}" / "Python.h" for base in bases for threads in ("", "t")]
    if not any(place.exists() for place in places):
        looks.add(level, f"The headers of Python {version} are missing (`{places[0]}`)",
                  why=f"{why_not}Triton's launcher includes Python.h: gcc would fail",
                  fix=f"Install python{version}-dev (`apt install python{version}-dev`), or redeploy with a Python that brings them")


def _flashinfer(looks: Looks, record: ServiceRecord, release: Path, installed: EnvironmentPackages, torch: cuda_builds.Release | None,
                snapshot: GpuSnapshot, found: Surroundings, level: str, why_not: str) -> None:
    version = installed.version("flashinfer-python")
    if version is None:
        return
    ready = installed.version("flashinfer-jit-cache")
    if (ready is not None and coupling.public(ready) == coupling.public(version)) or _compiled(found, version):
        level, why_not = "note", "Its kernels are there; others, for another model, would have to be compiled. "
    if found.which("ninja", release) is None:
        looks.add(level, "ninja is not on the service's PATH",
                  why=f"{why_not}FlashInfer compiles kernels at the start: No such file or directory: 'ninja'",
                  fix="Install it (`apt install ninja-build`), or set PATH in the launch settings")
    _home(looks, found, level)
    nvcc = _nvcc(found, release)
    if nvcc is None:
        looks.add(level, "nvcc is not where the service looks for it (CUDA_HOME, PATH, /usr/local/cuda)",
                  why=f"{why_not}FlashInfer compiles kernels at the start: could not find nvcc",
                  fix="Install the CUDA toolkit and set CUDA_HOME in the launch settings; or add flashinfer-jit-cache of the same version to the "
                      "channel; or set VLLM_USE_FLASHINFER_SAMPLER=0")
        return
    _against(looks, nvcc, torch, snapshot, record, level)
    toolkit = nvcc.parent.parent
    if not any((place / "curand_kernel.h").exists() for place in (toolkit / "include", *toolkit.glob("targets/*/include"), Path("/usr/include"))):
        looks.add("warning" if level == "stop" else level, f"The CUDA toolkit `{toolkit}` has no curand_kernel.h",
                  why="FlashInfer's sampling kernels include it", fix="Install libcurand-dev of the same CUDA release")
    jobs = found.variables.get("MAX_JOBS", "")
    several = int(jobs) if jobs.isdigit() and int(jobs) else os.cpu_count() or 1
    memory = _available()
    if level != "note" and memory is not None and several * NVCC_BYTES > memory:
        looks.add("warning", f"{several} compilers at once may take {several * NVCC_BYTES / GIB:,.0f} GiB, and {memory / GIB:,.0f} GiB of memory are "
                  "available",
                  why="The kernel ends one of them then, and ninja says only that it failed",
                  fix=f"Set MAX_JOBS={max(1, int(memory / NVCC_BYTES))} in the launch settings")


def _home(looks: Looks, found: Surroundings, level: str) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        given = found.variables.get(name)
        if given is None:
            continue
        if ":" in given:
            right = next((part for part in given.split(":") if part), "/usr/local/cuda")
            looks.add(level, f"{name} is `{given[:200]}`: it holds a colon, and is taken for one path",
                      why=f"The compiler would be looked for in `{given[:200]}/bin`", fix=f"Set {name}={right} in the launch settings")
        elif given and not Path(given).is_dir():
            looks.add(level, f"{name} is `{given[:200]}`, which is not there", why="The compiler and its headers are looked for there",
                      fix=f"Correct {name} in the launch settings")
        return  # the first one that is set counts


def _nvcc(found: Surroundings, release: Path) -> Path | None:
    """The nvcc that FlashInfer would call."""
    named = found.variables.get("FLASHINFER_NVCC")
    home = found.variables.get("CUDA_HOME") or found.variables.get("CUDA_PATH")
    if named or home:
        path = Path(named or f"{home}/bin/nvcc")
        return path if os.access(path, os.X_OK) else None
    if on_path := found.which("nvcc", release):
        return Path(on_path)
    return DEFAULT_CUDA / "bin" / "nvcc" if os.access(DEFAULT_CUDA / "bin" / "nvcc", os.X_OK) else None


def _against(looks: Looks, nvcc: Path, torch: cuda_builds.Release | None, snapshot: GpuSnapshot, record: ServiceRecord, level: str) -> None:
    """The compiler's release against torch's CUDA, and against the GPUs."""
    has = _release_of(nvcc, looks)
    if has is None:
        return
    words = f"{has[0]}.{has[1]}"
    capabilities = {gpu.compute_capability for gpu in snapshot.gpus if gpu.index in record.gpus and gpu.compute_capability}
    for capability in sorted(capabilities):
        numbers = tuple(int(part) for part in re.findall(r"\d+", capability)[:2])
        needed = _SINCE.get((numbers[0], numbers[1])) if len(numbers) == 2 else None
        if needed is not None and has < needed:
            looks.add(level, f"nvcc {words} (`{nvcc}`) is too old for compute capability {capability}: that needs {needed[0]}.{needed[1]}",
                      why="It would end with: unsupported gpu architecture", fix=f"Install CUDA {needed[0]}.{needed[1]} or later and set CUDA_HOME")
            return
    if torch is not None and torch[0] != has[0]:
        looks.add("warning", f"nvcc is of CUDA {words}, and torch is built for CUDA {torch[0]}{'' if torch[1] is None else f'.{torch[1]}'}",
                  why="Extensions compiled at the start may be refused, or load another CUDA runtime beside torch's",
                  fix=f"Set CUDA_HOME to a toolkit of CUDA {torch[0]}")


def _release_of(nvcc: Path, looks: Looks) -> tuple[int, int] | None:
    """From the toolkit's version.json, else from `nvcc --version`; None where neither tells."""
    from ops.jobs import commands

    text = ""
    try:
        raw = json.loads((Path(os.path.realpath(nvcc)).parent.parent / "version.json").read_text(encoding="utf-8"))
        part = raw.get("cuda_nvcc") or raw.get("cuda") if isinstance(raw, Mapping) else None
        text = str(part["version"]) if isinstance(part, Mapping) and "version" in part else ""
    except (OSError, ValueError, RecursionError):
        pass  # a distribution's own package has none
    if not text:
        try:
            done = commands.run([nvcc, "--version"], context=looks.context, timeout_s=NVCC_LIMIT_S)
        except OpsError as error:
            looks.add("warning", f"`{nvcc}` does not say its version", why=error.what, fix="Repair the CUDA toolkit")
            return None
        told = re.search(r"release (\d+\.\d+)", done.stdout)
        text = told[1] if told else ""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def _compiled(found: Surroundings, version: str) -> bool:
    """Whether FlashInfer of this version has compiled something for this service before."""
    folder = Path(caches_of(found)["FLASHINFER_WORKSPACE_BASE"], coupling.public(version))
    if nearest(folder) != folder:
        return False
    try:
        return any(folder.glob("*/cached_ops/*/*.so"))
    except OSError:
        return False  # another user's: then nothing is known


def _available() -> int | None:
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
