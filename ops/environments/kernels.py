"""Does this environment's torch have kernels for these GPUs? Only torch knows, so the environment's own Python is asked.

The one thing here that runs code of the environment: a subprocess, isolated, with a time limit, no GPU to be seen and nothing of
our environment variables. Ask it for environments of registered services only. The answer is torch's list (`torch._C.
_cuda_getArchFlags()`: `torch.cuda.get_arch_list()` is empty where no device is visible); extensions such as vLLM's own kernels are
compiled apart and may have fewer.

What the words of the list run on (NVIDIA's "CUDA C++ Programming Guide", compute capabilities, binary and PTX compatibility):
`sm_86` on capability 8.6 and later ones of major 8; `sm_90a` on exactly 9.0; `sm_100f` on 10.0 and later ones of its family (major
10); `compute_90` is PTX, which the driver compiles for 9.0 and everything later; `compute_90a` and `compute_100f` as the binaries.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.environments import packages
from ops.jobs import commands
from ops.jobs.errors import OpsError, Timeout

TIMEOUT_S = 120.0  # seconds; importing torch took 2 s, with a cold disk 15 s
_ANSWER = "ROUNDHOUSE-KERNELS "  # before the answer: torch, or a .pth file, may print
_ASK = f"""\
import json
import torch
flags = getattr(getattr(torch, "_C", None), "_cuda_getArchFlags", None)
try:
    flags = flags() if flags is not None else None
except RuntimeError:
    flags = None
version = getattr(torch, "version", None)
print("\\n{_ANSWER}" + json.dumps({{"torch": str(getattr(torch, "__version__", "")) or None, "flags": flags,
                                    "cuda": getattr(version, "cuda", None), "hip": getattr(version, "hip", None)}}))
"""
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)\Z")

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What torch was built for, against capabilities such as "12.0".

    `covered`: capability -> "binary" (kernels for it), "ptx" (compiled by the driver at the first start, which takes minutes), or
    "missing". `problem`: why nothing is known, or None. `cuda`: torch's CUDA release, None for a build without one.
    """

    torch: str | None
    cuda: str | None
    architectures: list[str] = field(default_factory=list)
    covered: dict[str, str] = field(default_factory=dict)
    problem: str | None = None

    @property
    def missing(self) -> list[str]:
        """Capabilities that it cannot run on."""
        return [capability for capability, how in self.covered.items() if how == "missing"]

    @property
    def findings(self) -> list[dict[str, str]]:
        """[{level, title, why, fix}] of what does not suit; empty: it suits, or (see `problem`) nobody knows."""
        found = []
        for capability, how in self.covered.items():
            listed = ", ".join(self.architectures) or "no GPU at all"
            if how == "missing":
                found.append({"level": "stop", "title": f"torch {self.torch} has no kernels for compute capability {capability}",
                              "why": f"It was built for {listed}. The first kernel would end with: no kernel image is available for execution",
                              "fix": f"Install a build that lists {_name(capability)}"})
            elif how == "ptx":
                found.append({"level": "warning", "title": f"torch {self.torch} has only PTX for compute capability {capability}, no kernels",
                              "why": f"It was built for {listed}. The driver compiles the rest at the first start, and may be too old to",
                              "fix": f"Install a build that lists {_name(capability)}"})
        return found

    def as_dict(self) -> dict[str, Any]:
        return {"torch": self.torch, "cuda": self.cuda, "architectures": self.architectures, "covered": self.covered, "missing": self.missing,
                "findings": self.findings, "problem": self.problem}


def check(env: Path | str, capabilities: Iterable[str], *, timeout_s: float = TIMEOUT_S) -> KernelReport:
    """Asks the environment's torch. Raises BadInput if `env` is no environment, OpsError if its Python or torch fails, Timeout if it hangs."""
    installed = packages.read(env)
    wanted = sorted({capability for capability in capabilities if _capability(capability)}, key=lambda text: _capability(text) or (0, 0))
    version = installed.version("torch")
    if version is None:
        return KernelReport(None, None, problem="torch is not installed")
    raw = _asked(installed.python, timeout_s)
    told, cuda, flags = raw.get("torch"), raw.get("cuda"), raw.get("flags")
    torch, cuda = told if isinstance(told, str) else version, cuda if isinstance(cuda, str) else None
    if isinstance(raw.get("hip"), str):
        return KernelReport(torch, None, problem=f"torch {torch} is built for ROCm")
    if not isinstance(flags, str):
        if cuda is None:
            why = f"torch {torch} is built without CUDA" if told else "torch does not tell what it was built for"
            return KernelReport(torch, None, covered=dict.fromkeys(wanted, "missing") if told and _is_cpu(version) else {}, problem=why)
        return KernelReport(torch, cuda, problem=f"torch {torch} does not tell what it was built for")
    architectures = flags.split()
    return KernelReport(torch, cuda, architectures, {capability: covers(architectures, capability) for capability in wanted})


def covers(architectures: Iterable[str], capability: str) -> str:
    """"binary", "ptx" or "missing": how a build for `architectures` (`sm_120`, `compute_90`) runs on a GPU of this capability ("12.0")."""
    gpu = _capability(capability)
    best = "missing"
    for name in architectures:
        match = _ARCH.match(name)
        if match is None or gpu is None:
            continue
        built: Capability = (int(match[2]), int(match[3]))
        if match[4] == "a":
            fits = gpu == built
        elif match[4] == "f" or match[1] == "sm":
            fits = gpu[0] == built[0] and gpu[1] >= built[1]
        else:
            fits = gpu >= built
        if fits and match[1] == "sm":
            return "binary"
        if fits:
            best = "ptx"
    return best


def _capability(text: str) -> Capability | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _name(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"


def _is_cpu(version: str) -> bool:
    return version.partition("+")[2].startswith("cpu")


def _asked(python: Path, timeout_s: float) -> dict[str, Any]:
    # an empty folder to stand in: `-I` keeps it off the path, and torch may write a core there
    with tempfile.TemporaryDirectory(prefix="roundhouse-kernels-") as folder:
        try:
            done = commands.run([python, "-I", "-B", "-c", _ASK], env={"CUDA_VISIBLE_DEVICES": ""}, cwd=folder, timeout_s=timeout_s,
                                check=False)
        except Timeout as error:
            raise Timeout(f"torch did not tell its architectures within {timeout_s:.0f} s", why=shlex.join([str(python), "-I", "-c", "import torch"])
                          ) from error
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    try:
        raw = json.loads(answers[-1].removeprefix(_ANSWER)) if answers else None
    except ValueError:
        raw = None
    if done.code != 0 or not isinstance(raw, dict):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise OpsError("`import torch` fails in the environment", why=lines[-1][:500] if lines else f"It ended with {done.code}",
                       hint="Look at what differs from its wheels, and at unmet requirements")
    return raw
