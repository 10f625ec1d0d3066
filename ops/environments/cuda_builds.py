"""Are the wheels built for one CUDA, and can this driver run it?

Read from what is on disk: local suffixes (`2.9.0+cu129`), names (`nvidia-cublas-cu12`, `cupy-cuda12x`), versions of the packages
that CUDA 13 brought without a number in their name (`nvidia-cuda-runtime` 13.0.48), and torch's own `version.py`, which is parsed,
not imported. A wheel without any of these says nothing, and nothing is said of it.

Sources: NVIDIA's "CUDA Compatibility" (a driver runs every toolkit of its own major release, later minors without the features that
need a newer driver; PTX of a newer toolkit is one of these); vllm-project/vllm issues 31700, 42338 and 13608.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.environments import packages
from ops.environments.packages import Distribution, EnvironmentPackages

_SUFFIX = re.compile(r"\+(?:.*[._-])?cu(\d{2})(\d)(?![0-9])")  # +cu129, +8.cu130
_NAMED = re.compile(r"-(?:cu|cuda)(\d{2})x?\Z")  # nvidia-cublas-cu12, cupy-cuda12x
_VERSIONED = re.compile(r"nvidia-(?:cuda-[a-z]+|nvjitlink|nvtx)|cuda-(?:toolkit|bindings|runtime)")  # their version is the toolkit's
_TORCH = re.compile(r"^cuda(?:\s*:[^=\n]*)?\s*=\s*(?:'(\d+)\.(\d+)[^']*'|\"(\d+)\.(\d+)[^\"]*\")", re.MULTILINE)
_FATAL = {"vllm", "torchvision", "torchaudio"}  # their import fails beside a torch for another major release

Release = tuple[int, int | None]  # CUDA major and minor; minor None: the name tells the major only


@dataclass(frozen=True, slots=True)
class CudaFinding:
    """Builds that do not fit. `level`: "stop" (it cannot run) or "warning". `packages`: name to version of those it is about.

    `kind`: "mixed" (wheels for different CUDAs), "library" (an NVIDIA library of another major), "driver" (newer than the driver).
    """

    kind: str
    level: str
    title: str
    why: str
    fix: str
    packages: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "level": self.level, "title": self.title, "why": self.why, "fix": self.fix, "packages": self.packages}


def findings(installed: EnvironmentPackages, driver_cuda: str | None = None) -> list[CudaFinding]:
    """What is built for another CUDA than the rest, or for a newer one than the driver has ("12.8", as NVML tells; None: not known)."""
    builds = builds_of(installed)
    base_name, base = _base(builds)
    if base is None:
        return []
    found = _mixed(installed, builds, base_name, base)
    driver = _release(driver_cuda)
    if driver is not None:
        found += _against_driver(installed, builds, base_name, base, driver)
    return found


def builds_of(installed: EnvironmentPackages) -> dict[str, Release]:
    """Name to the CUDA release that the distribution was built for, of those that tell it."""
    found = {}
    for name, distribution in sorted(installed.distributions.items()):
        release = _suffix(distribution.version) or _torch(installed, distribution) or _by_name(distribution)
        if release is not None:
            found[name] = release
    return found


def _suffix(version: str) -> Release | None:
    match = _SUFFIX.search(version)
    return (int(match[1]), int(match[2])) if match else None


def _by_name(distribution: Distribution) -> Release | None:
    if match := _NAMED.search(distribution.name):
        return int(match[1]), None
    if _VERSIONED.fullmatch(distribution.name) and (match := re.match(r"(\d{2})\.(\d+)", distribution.version)):
        return int(match[1]), int(match[2])
    return None


def _torch(installed: EnvironmentPackages, distribution: Distribution) -> Release | None:
    """torch from the public index has no suffix, but a `version.py` with `cuda = '13.0'`."""
    if distribution.name != "torch":
        return None
    try:
        text = packages.content(distribution.location.parent / "torch" / "version.py", packages.SMALL).decode(errors="replace")
    except OSError:  # a stand-in, or damaged: integrity tells that
        return None
    match = _TORCH.search(text)
    return _release(".".join(part for part in match.groups() if part)) if match else None


def _release(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _base(builds: Mapping[str, Release]) -> tuple[str, Release | None]:
    """What the others are held against: torch, else vLLM, else the first one that tells its release to the minor."""
    for name in ("torch", "vllm", *sorted(builds)):
        release = builds.get(name)
        if release is not None and release[1] is not None:
            return name, release
    return "", None


def _mixed(installed: EnvironmentPackages, builds: Mapping[str, Release], base_name: str, base: Release) -> list[CudaFinding]:
    others = {name: release for name, release in builds.items() if name != base_name and release[0] != base[0]}
    libraries = {name: release for name, release in others.items() if _is_library(name)}
    compiled = {name: release for name, release in others.items() if name not in libraries}
    has = f"`{base_name}` {installed.distributions[base_name].version} is built for CUDA {_words(base)}"
    found = []
    if compiled:
        found.append(CudaFinding(
            "mixed", "stop" if _FATAL & compiled.keys() else "warning", f"Wheels for different CUDAs: {has}, {_list(installed, compiled)}",
            f"They load the CUDA {_majors(compiled)} runtime, which is another library than the one of CUDA {base[0]}: "
            f"libcudart.so.{min(release[0] for release in compiled.values())} is not found, or two runtimes share one process",
            f"Install all of them from one index, for CUDA {base[0]}", _versions(installed, [base_name, *compiled])))
    if libraries and not _has_twins(builds, libraries, base):
        found.append(CudaFinding(
            "library", "warning", f"NVIDIA libraries of another CUDA: {has}, {_list(installed, libraries)}",
            f"Nothing built for CUDA {base[0]} loads them: they are left over, or what needs them was replaced",
            f"Install the ones for CUDA {base[0]}", _versions(installed, [base_name, *libraries])))
    elif libraries:
        found.append(CudaFinding(
            "library", "warning", f"NVIDIA libraries of two CUDAs: {has}, {_list(installed, libraries)}",
            f"Those for CUDA {base[0]} are there as well; the others are left over, or another package still loads them",
            "Remove them if no installed package requires them", _versions(installed, [base_name, *libraries])))
    minors = {name: release for name, release in builds.items()
              if name != base_name and release[0] == base[0] and release[1] not in (None, base[1]) and not _is_library(name)}
    if minors:
        found.append(CudaFinding(
            "mixed", "warning", f"Wheels for different CUDA releases: {has}, {_list(installed, minors)}",
            f"They share the CUDA {base[0]} runtime and usually run together; kernels compiled at start need the newer toolkit and driver",
            "Install all of them from one index", _versions(installed, [base_name, *minors])))
    return found


def _has_twins(builds: Mapping[str, Release], libraries: Mapping[str, Release], base: Release) -> bool:
    stems = {_stem(name) for name, release in builds.items() if _is_library(name) and release[0] == base[0]}
    return all(_stem(name) in stems for name in libraries)


def _stem(name: str) -> str:
    return _NAMED.sub("", name)


def _is_library(name: str) -> bool:
    return name.startswith(("nvidia-", "cuda-"))


def _against_driver(installed: EnvironmentPackages, builds: Mapping[str, Release], base_name: str, base: Release,
                    driver: tuple[int, int]) -> list[CudaFinding]:
    has = f"the driver supports CUDA {driver[0]}.{driver[1]}"
    newer = {name: release for name, release in builds.items() if release[0] > driver[0] and not _is_library(name)}
    found = []
    if newer:
        found.append(CudaFinding(
            "driver", "stop", f"Built for a newer CUDA than the driver has: {_list(installed, newer)}; {has}",
            "The start ends with: the NVIDIA driver on your system is too old",
            f"Upgrade the driver, or install builds for CUDA {driver[0]}", _versions(installed, newer)))
    later = {name: release for name, release in builds.items()
             if release[0] == driver[0] and release[1] is not None and release[1] > driver[1] and not _is_library(name)}
    if later:
        found.append(CudaFinding(
            "driver", "warning", f"Built for a later CUDA release than the driver has: {_list(installed, later)}; {has}",
            "It runs, but kernels that are compiled at start may fail: the provided PTX was compiled with an unsupported toolchain",
            f"Upgrade the driver, or install builds for CUDA {driver[0]}.{driver[1]} or earlier", _versions(installed, later)))
    return found


def _list(installed: EnvironmentPackages, chosen: Mapping[str, Release], most: int = 4) -> str:
    names = sorted(chosen)
    words = [f"`{name}` {installed.distributions[name].version} for {_words(chosen[name])}" for name in names[:most]]
    return ", ".join(words) + (f" and {len(names) - most} more" if len(names) > most else "")


def _versions(installed: EnvironmentPackages, names: list[str] | Mapping[str, Release]) -> dict[str, str]:
    return {name: installed.distributions[name].version for name in names}


def _words(release: Release) -> str:
    return str(release[0]) if release[1] is None else f"{release[0]}.{release[1]}"


def _majors(chosen: Mapping[str, Release]) -> str:
    return " and ".join(str(major) for major in sorted({release[0] for release in chosen.values()}))

