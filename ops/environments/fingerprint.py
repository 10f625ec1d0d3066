"""All that could explain a number or a crash, in one JSON record: two of them can be held side by side.

What cannot be read is None. Values of environment variables are hidden unless they are known to hold no secret.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from ops.environments import coupling as coupling_rules
from ops.environments import guards, integrity, packages, releases
from ops.gpus.source import GpuSnapshot
from ops.jobs.errors import OpsError
from ops.jobs.redact import redact
from ops.records import ServiceRecord

# Families of settings, whose values matter for numbers; a name in them that speaks of a secret stays hidden all the same.
SHOWN = re.compile(r"(VLLM|NCCL|CUDA|TORCH|TORCHINDUCTOR|TRITON|FLASHINFER|OMP|PYTORCH|GLOO|UCX|RAY|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)"
                   r"(_[A-Z0-9_]+)?\Z")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|DSN|URL", re.IGNORECASE)
HIDDEN = "hidden"
_SECRET_FLAG = re.compile(r"--?(api[-_]key|hf[-_]token|.*(token|secret|password|credential)s?)(=|\Z)", re.IGNORECASE)
_NO_SECRET_FLAG = re.compile(r"--?(max|min|num)[-_].*|--?(skip[-_])?tokenizer.*|.*-tokens(=|\Z)")


def fingerprint(record: ServiceRecord, *, release: Path | None, gpus: GpuSnapshot | None,
                report: integrity.IntegrityReport | None = None) -> dict[str, Any]:
    """The record, with `hash` over all that is expected to be the same in two equal runs (so without `at`).

    `report`: an integrity check of the release made before, so that it is not made again; without one the files are hashed here.
    """
    installed = _installed(release)
    if report is None and installed is not None and release is not None:
        report = integrity.check(release)
    found: dict[str, Any] = {
        "service": record.name, "practice": record.practice, "release": release.name if release else None,
        "python": installed.python_version if installed else None,
        "packages": installed.versions() if installed else None,
        "versions": releases.interesting(installed) if installed else {},
        "coupling": [finding.as_dict() for finding in coupling_rules.findings(installed, env=record.env)] if installed else [],
        "patched": {"digest": report.digest() if report.findings else None, "files": len(report.findings)} if report else None,
        "flags": hide_flags(record.flags), "env": hide_env(record.env), "model": _model(record), "gpus": _gpus(record, gpus), "host": _host(),
    }
    found["hash"] = hashlib.sha256(json.dumps(found, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return {**found, "at": time.time()}


def _installed(release: Path | None) -> packages.EnvironmentPackages | None:
    return packages.read(release) if release is not None else None


def hide_env(env: dict[str, str]) -> dict[str, str]:
    """Names with values; "hidden" where a value could be a secret."""
    return {name: value if SHOWN.match(name) and not SECRET.search(name) else HIDDEN for name, value in sorted(env.items())}


def hide_flags(flags: list[str]) -> list[str]:
    """The flags, with the values of those that could be secrets hidden, in both spellings (`--api-key X`, `--api-key=X`)."""
    shown: list[str] = []
    hide_next = False
    for flag in flags:
        if hide_next and not flag.startswith("--"):
            shown.append(HIDDEN)
            continue  # --api-key takes several values
        secret = bool(_SECRET_FLAG.match(flag)) and not _NO_SECRET_FLAG.match(flag)
        hide_next = secret and "=" not in flag
        shown.append(f"{flag.partition('=')[0]}={HIDDEN}" if secret and "=" in flag else redact(flag))
    return shown


def _model(record: ServiceRecord) -> dict[str, Any]:
    """The model's configuration; `problem` says why it could not be read."""
    told: dict[str, Any] = {"name": record.served_model_name, "path": record.model_path, "config_sha256": None, "architecture": None,
                            "model_type": None, "quantization": None, "dtype": None, "trust_remote_code": "--trust-remote-code" in record.flags,
                            "auto_map": None, "problem": None}
    path = Path(record.model_path, "config.json")
    try:
        content = guards.read_limited(path)
        told["config_sha256"] = hashlib.sha256(content).hexdigest()
        config = json.loads(content)
    except FileNotFoundError:
        told["problem"] = f"There is no `{path}`"
        return told
    except (OpsError, ValueError, RecursionError) as error:
        told["problem"] = error.what if isinstance(error, OpsError) else f"`{path}` is not JSON"
        return told
    if not isinstance(config, dict):
        told["problem"] = f"`{path}` holds no JSON object"
        return told
    architectures = config.get("architectures")
    told["architecture"] = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    told["model_type"] = str(config["model_type"]) if config.get("model_type") else None
    told["dtype"] = str(config.get("torch_dtype") or config.get("dtype")) if config.get("torch_dtype") or config.get("dtype") else None
    told["auto_map"] = "auto_map" in config
    told["quantization"] = _quantization(config)
    return told


def _quantization(config: dict[str, Any]) -> dict[str, Any] | None:
    """Method and formats as config.json names them (compressed-tensors, ModelOpt and others each in their way); None: not quantized."""
    raw = config.get("quantization_config")
    if not isinstance(raw, dict) and isinstance(config.get("text_config"), dict):
        raw = config["text_config"].get("quantization_config")
    if not isinstance(raw, dict):
        return None
    names = ("quant_method", "quant_algo", "format", "bits", "group_size", "kv_cache_scheme", "kv_cache_quant_algo")
    kept = {name: raw[name] if isinstance(raw[name], (str, int)) else guards.shorten(raw[name]) for name in names if raw.get(name) is not None}
    return {**kept, "sha256": hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()}


def _gpus(record: ServiceRecord, snapshot: GpuSnapshot | None) -> dict[str, Any] | None:
    if snapshot is None:
        return None
    used = [gpu for gpu in snapshot.gpus if not record.gpus or gpu.index in record.gpus]
    return {
        "source": snapshot.source, "driver": snapshot.driver, "cuda": snapshot.cuda, "count": len(used), "problem": snapshot.problem,
        "names": sorted({gpu.name for gpu in used}), "indexes": [gpu.index for gpu in used],
        "total_bytes": [gpu.total_bytes for gpu in used], "power_limit_w": [gpu.power_limit_w for gpu in used],
        "compute_capability": sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}),
        "pcie_width": [gpu.pcie_width for gpu in used],
    }


def _host() -> dict[str, Any]:
    try:
        with Path("/proc/meminfo").open() as file:
            memory = next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:")), None)
    except OSError:
        memory = None
    return {"name": platform.node() or None, "kernel": platform.release() or None, "machine": platform.machine() or None,
            "cpus": os.cpu_count(), "memory_bytes": memory}


def differences(one: dict[str, Any], other: dict[str, Any], path: str = "") -> list[dict[str, Any]]:
    """What differs between two fingerprints: [{key (dotted), old, new}], in order of the keys."""
    found = []
    for key in sorted(one.keys() | other.keys()):
        if not path and key in ("at", "hash"):
            continue
        old, new, name = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{name}.")
        elif old != new:
            found.append({"key": name, "old": old, "new": new})
    return found
