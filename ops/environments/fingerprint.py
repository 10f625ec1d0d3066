"""All that could explain a number or a crash, in one JSON record: two of them can be held side by side, and the difference said in words.

What cannot be read is None. Values of environment variables are hidden unless they are known to hold no secret; of a hidden value nothing is kept,
no digest either (a short secret could be found by trying). That a file with secrets changed shows in its size and time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ops.environments import coupling as coupling_rules
from ops.environments import guards, integrity, model_files, model_folder, packages, releases
from ops.gpus.source import GpuSnapshot
from ops.jobs.errors import OpsError
from ops.jobs.redact import redact
from ops.records import ServiceRecord
from ops.services import state

# Families of settings, whose values matter for numbers; a name in them that speaks of a secret stays hidden all the same.
SHOWN = re.compile(
    r"(VLLM|NCCL|CUDA|TORCH|TORCHINDUCTOR|TRITON|FLASHINFER|OMP|MKL|OPENBLAS|NUMEXPR|PYTORCH|GLOO|UCX|RAY|NVIDIA|MALLOC|PYTHON|LMCACHE|SAFETENSORS"
    r"|TILELANG|DG|CUTLASS|INDUCTOR|LD|LC|KMP)_[A-Z0-9_]+\Z"
    r"|(HF_HUB_OFFLINE|HF_HUB_ENABLE_HF_TRANSFER|HF_HOME|HF_HUB_CACHE|TRANSFORMERS_(OFFLINE|CACHE)|TOKENIZERS_PARALLELISM|MAX_JOBS|CC|CXX|NVCC|LANG"
    r"|TZ|PATH|HOME|TMPDIR|XDG_CACHE_HOME|XDG_CONFIG_HOME|VIRTUAL_ENV|GOMP_CPU_AFFINITY|PYTHONPATH|PYTHONHASHSEED|PYTHONUNBUFFERED|MALLOC|SPT_NOENV)\Z")
SECRET = re.compile(r"KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|DSN|URL", re.IGNORECASE)
HIDDEN = "hidden"
MODEL_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "hf_quant_config.json", "tokenizer.json", "chat_template.jinja",
               "preprocessor_config.json", "model.safetensors.index.json")  # those that decide what is loaded and how a prompt is made
NOT_COMPARED = ("at", "hash")
# That a build lies elsewhere explains nothing: it is told, but two of the same content have the same hash.
NOT_HASHED = frozenset({*NOT_COMPARED, "release"})
_SECRET_FLAG = re.compile(r"--?(api[-_]key|hf[-_]token|.*(token|secret|password|credential)s?)(=|\Z)", re.IGNORECASE)
_NO_SECRET_FLAG = re.compile(r"--?(max|min|num)[-_].*|--?(skip[-_])?tokenizer.*|.*-tokens(=|\Z)")


def fingerprint(record: ServiceRecord, *, release: Path | None, gpus: GpuSnapshot | None,
                report: integrity.IntegrityReport | None = None) -> dict[str, Any]:
    """The record, with `hash` over all that is expected to be the same in two equal runs (so without `at` and the release's name).

    `report`: an integrity check of the release made before, so that it is not made again; without one the files are hashed here.
    """
    installed = _installed(release)
    if report is None and installed is not None and release is not None:
        report = integrity.check(release)
    found: dict[str, Any] = {
        "service": record.name, "practice": record.practice, "release": release.name if release else None,
        "python": installed.python_version if installed else None,
        "packages": installed.versions() if installed else None,
        "wheels": _wheels(release, installed),
        "versions": releases.interesting(installed) if installed else {},
        "coupling": [finding.as_dict() for finding in coupling_rules.findings(installed, env=record.env)] if installed else [],
        "patched": _patched(report),
        "flags": hide_flags(record.flags), "env": hide_env(record.env), "env_files": _env_files(record.env_files),
        "model": _model(record), "gpus": _gpus(record, gpus), "host": _host(), "launcher": _launcher(record), "tools": _tools(),
    }
    found["hash"] = digest(found)
    return {**found, "at": time.time()}


def digest(found: Mapping[str, Any]) -> str:
    """SHA-256 of a fingerprint's content: the same in every process, and after any way through JSON."""
    return hashlib.sha256(canonical({key: value for key, value in found.items() if key not in NOT_HASHED}).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with one form for each content: sorted keys, no blanks, ASCII, whole floats as integers, NaN and infinities as null."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def _installed(release: Path | None) -> packages.EnvironmentPackages | None:
    return packages.read(release) if release is not None else None


def _wheels(release: Path | None, installed: packages.EnvironmentPackages | None) -> dict[str, str]:
    """SHA-256 of the wheel that each package was installed from, as far as the release's manifest knows; not of a version that is another now."""
    manifest = (releases.manifest(release) if release is not None else None) or {}
    versions = installed.versions() if installed else {}
    return {package["name"]: package["sha256"] for package in manifest.get("packages", [])
            if package.get("sha256") and versions.get(package.get("name")) == package.get("version")}


def _patched(report: integrity.IntegrityReport | None) -> dict[str, Any] | None:
    """What differs from RECORD: a digest, how many files, and of which package."""
    if report is None:
        return None
    owners: dict[str, int] = {}
    for finding in report.findings:
        owners[finding.package or "no package"] = owners.get(finding.package or "no package", 0) + 1
    return {"digest": report.digest() if report.findings else None, "files": len(report.findings), "packages": owners}


def hide_env(env: Mapping[str, str]) -> dict[str, str]:
    """Names with values; "hidden" where a value could be a secret."""
    return {name: redact(value) if SHOWN.match(name) and not SECRET.search(name) else HIDDEN for name, value in sorted(env.items())}


def hide_flags(flags: Sequence[str]) -> list[str]:
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


def _env_files(paths: Iterable[str]) -> dict[str, dict[str, int] | None]:
    """Path to size and time of change: enough to see that a file changed, and nothing of what is in it. None: it is not there."""
    told: dict[str, dict[str, int] | None] = {}
    for path in paths:
        path = path.removeprefix("-")
        try:
            found = Path(path).stat()
            told[path] = {"size_bytes": found.st_size, "mtime_ns": found.st_mtime_ns}
        except OSError:
            told[path] = None
    return told


def _model(record: ServiceRecord) -> dict[str, Any]:
    """The model's configuration; `problem` says why it could not be read."""
    folder = Path(record.model_path)
    told: dict[str, Any] = {"name": record.served_model_name, "path": record.model_path, "config_sha256": None, "architecture": None,
                            "model_type": None, "quantization": None, "dtype": None, "trust_remote_code": model_folder.trusts(record.flags),
                            "auto_map": None, "problem": None, "files": {name: _file_digest(folder / name) for name in MODEL_FILES},
                            "weights": _weights(folder)}
    path = folder / "config.json"
    try:
        content = model_files.read_limited(path)
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


def _file_digest(path: Path) -> str | None:
    """None: not there, or not to be read."""
    try:
        return hashlib.sha256(model_files.read_limited(path, model_files.INDEX_LIMIT)).hexdigest()
    except (OSError, OpsError):
        return None


def _weights(folder: Path) -> dict[str, int] | None:
    """Number and size of the weight files: another download of the same settings shows here. None: the folder cannot be read."""
    try:
        sizes = [(folder / name).stat().st_size for name in model_files.names(folder) if name.endswith((".safetensors", ".bin", ".gguf", ".pt"))]
    except OSError:
        return None
    return {"files": len(sizes), "bytes": sum(sizes)}


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
    """The service's own GPUs. The link's generation is not in it: a card lowers it while it idles."""
    if snapshot is None:
        return None
    used = [gpu for gpu in snapshot.gpus if not record.gpus or gpu.index in record.gpus]
    return {
        "source": snapshot.source, "driver": snapshot.driver, "cuda": snapshot.cuda, "count": len(used), "problem": snapshot.problem,
        "names": sorted({gpu.name for gpu in used}), "indexes": [gpu.index for gpu in used], "uuids": [gpu.uuid for gpu in used],
        "total_bytes": [gpu.total_bytes for gpu in used], "power_limit_w": [gpu.power_limit_w for gpu in used],
        "clock_max_mhz": [gpu.clock_max_mhz for gpu in used],
        "compute_capability": sorted({gpu.compute_capability for gpu in used if gpu.compute_capability}),
        "pcie_width": [gpu.pcie_width for gpu in used], "pcie_max_width": [gpu.pcie_max_width for gpu in used],
    }


def _launcher(record: ServiceRecord) -> dict[str, Any]:
    """What starts the service: the manager, the unit, and the launcher's own text."""
    total = hashlib.sha256()
    try:
        for name in ("launch", "launch.py"):
            total.update(model_files.read_limited(record.folder / name) + b"\0")
        text: str | None = total.hexdigest()
    except (OSError, OpsError):  # not written yet: the service was never started by us
        text = None
    return {"manager": record.manager, "unit": record.unit, "sha256": text}


def _tools() -> dict[str, str | None]:
    """Versions of what builds and starts the service."""
    from ops.agent import telemetry

    try:
        uv: str | None = metadata.version("uv")
    except metadata.PackageNotFoundError:
        uv = None
    return {"uv": uv, "roundhouse": telemetry.version()}


def _host() -> dict[str, Any]:
    try:
        with Path("/proc/meminfo").open() as file:
            memory = next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal:")), None)
    except OSError:
        memory = None
    return {"name": platform.node() or None, "kernel": platform.release() or None, "machine": platform.machine() or None,
            "cpus": os.cpu_count(), "memory_bytes": memory}


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[dict[str, Any]]:
    """What differs between two fingerprints: [{key (dotted), old, new}], in order of the keys."""
    found = []
    for key in sorted(one.keys() | other.keys()):
        if not path and key in NOT_COMPARED:
            continue
        old, new, name = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{name}.")
        elif _plain(old) != _plain(new):
            found.append({"key": name, "old": old, "new": new})
    return found


# In words


def words(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """One plain sentence for each thing that differs, the most telling first: packages, edited files, flags, variables, model, GPUs, the rest."""
    told: list[tuple[int, str]] = []
    versions = {str(one["key"]).removeprefix("packages.") for one in differences if str(one["key"]).startswith("packages.")}
    changes = {str(one["key"]): one for one in differences}
    for change in differences:
        key, old, new = str(change["key"]), change["old"], change["new"]
        rank, (area, rest) = _rank(key), _split(key)
        if area in ("versions", "practice") or key == "model.config_sha256" or key.startswith("model.quantization.sha256"):
            continue  # said by the packages, and by the file itself
        if area == "wheels" and rest in versions:
            continue
        if area == "wheels" and (old is None or new is None):
            continue  # that the hash of a wheel is known, or is not any more, explains nothing
        if key == "gpus.clock_max_mhz" and (old is None or new is None):
            continue  # a record from before it was kept
        if key == "patched.digest" and any(other.startswith("patched.packages.") for other in changes):
            continue
        if key == "patched.files" and any(other.startswith("patched.packages") or other == "patched.digest" for other in changes):
            continue
        if area == "env_files" and rest.endswith(".size_bytes") and f"{key.removesuffix('.size_bytes')}.mtime_ns" in changes:
            continue
        told += [(rank, sentence) for sentence in _sentences(key, area, rest, old, new)]
    return [sentence for _, sentence in sorted(told, key=lambda one: one[0])]


_ORDER = ("packages", "wheels", "coupling", "patched", "flags", "env", "env_files", "model", "gpus", "host", "python", "launcher", "tools", "release",
          "service")


def _rank(key: str) -> int:
    area = _split(key)[0]
    main = key in ("packages.vllm", "packages.torch")
    return -1 if main else _ORDER.index(area) if area in _ORDER else len(_ORDER)


def _split(key: str) -> tuple[str, str]:
    area, _, rest = key.partition(".")
    return area, rest


def _sentences(key: str, area: str, rest: str, old: Any, new: Any) -> Iterator[str]:
    if (isinstance(old, dict) and new is None) or (isinstance(new, dict) and old is None):
        yield from _all_of(key, area, old, new)
        return
    special: dict[str, Callable[[], Iterator[str]]] = {
        "packages": lambda: _added_or_changed(rest, old, new), "flags": lambda: _flags(old, new), "coupling": lambda: _coupling(old, new),
        "patched": lambda: _edited(rest, old, new), "model": lambda: _of_model(rest, old, new), "gpus": lambda: _of_gpus(rest, old, new),
    }
    if area in special:
        yield from special[area]()
    elif area == "wheels":
        yield f"{rest} is another build of the same version"
    elif area == "env":
        yield from _variable(rest, old, new)
    elif area == "env_files":
        yield f"the environment file {rest.removesuffix('.size_bytes').removesuffix('.mtime_ns')} was changed"
    elif area == "launcher" and rest == "sha256":
        yield "the launcher's own text is another one"
    else:
        yield _went(_NAMES.get(key, f"`{key}`"), old, new)


_NAMES = {"python": "Python", "host.kernel": "the kernel", "host.name": "the host", "host.cpus": "the number of CPUs",
          "host.machine": "the machine type", "host.memory_bytes": "the host's memory", "tools.uv": "uv", "tools.roundhouse": "Roundhouse",
          "launcher.manager": "the service manager", "launcher.unit": "the unit", "release": "the release", "service": "the service",
          "gpus.driver": "the driver", "gpus.cuda": "the driver's CUDA version", "gpus.count": "the number of GPUs",
          "gpus.source": "the source of GPU readings"}


def _went(name: str, old: Any, new: Any) -> str:
    if old is None:
        return f"{name} is {_text(new)} now (it was not known)"
    if new is None:
        return f"{name} is not known now (it was {_text(old)})"
    return f"{name} went from {_text(old)} to {_text(new)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value if len(value) <= 200 else f"{value[:199]}…"
    return str(guards.shorten(_plain(value)) or "nothing")


def _all_of(key: str, area: str, old: Any, new: Any) -> Iterator[str]:
    """A whole part that was not known on one of the two sides."""
    gone = new is None
    names = {"packages": "the installed packages", "patched": "the check of the installed files", "gpus": "the GPUs"}
    if area == "env_files":
        yield f"the environment file {_split(key)[1]} {'is gone' if gone else 'is new'}"
    elif area == "model" and key == "model.quantization":
        yield "the model is not quantized any more" if gone else f"the model is quantized now: {_text(new.get('quant_method') or new.get('format'))}"
    elif key in names:
        yield f"{names[key]} {'could not be read now' if gone else 'could not be read then'}"
    else:
        yield f"`{key}` {'is not known now' if gone else 'was not known then'}"


def _added_or_changed(name: str, old: Any, new: Any) -> Iterator[str]:
    if old is None:
        yield f"{name} {new} was added"
    elif new is None:
        yield f"{name} {old} was removed"
    else:
        yield f"{name} went from {old} to {new}"


def _edited(rest: str, old: Any, new: Any) -> Iterator[str]:
    area, package = _split(rest)
    if area == "packages":
        of = "of no package" if package == "no package" else f"of {package}"
        files = lambda count: f"{count} file{'s' if count != 1 else ''}"  # noqa: E731
        if not new:
            yield f"{files(old)} {of} {'are' if old != 1 else 'is'} not edited any more"
        elif not old:
            yield f"{files(new)} {of} {'were' if new != 1 else 'was'} edited"
        else:
            yield f"{files(new)} {of} {'are' if new != 1 else 'is'} edited now, {old} {'were' if old != 1 else 'was'} before"
    elif area == "digest":
        yield "the edits of installed files are other ones" if old and new else f"installed files are {'edited now' if new else 'as installed again'}"


def _variable(name: str, old: Any, new: Any) -> Iterator[str]:
    shown = "" if HIDDEN in (old, new) else None
    if old is None:
        yield f"the variable {name} was added" + (f": {_text(new)}" if shown is None else "")
    elif new is None:
        yield f"the variable {name} was removed" + (f" (it was {_text(old)})" if shown is None else "")
    else:
        yield f"the variable {name} went from {_text(old)} to {_text(new)}"


def parsed_flags(flags: Sequence[str]) -> dict[str, str | None]:
    """Flag to its value; None: it stands alone. Several values are one text; a flag that stands twice keeps both."""
    found: dict[str, str | None] = {}
    last = ""
    for flag in flags:
        if flag.startswith("--") or (flag.startswith("-") and len(flag) > 1 and not flag[1:2].isdigit()):
            name, equals, value = flag.partition("=")
            last = name
            if name in found and equals:
                found[name] = f"{found[name] or ''} {value}".strip()
            else:
                found.setdefault(name, value if equals else None)
        else:
            found[last] = f"{found[last]} {flag}" if found.get(last) else flag
    return found


def _flags(old: Any, new: Any) -> Iterator[str]:
    before, after = parsed_flags(old or []), parsed_flags(new or [])
    told = False
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        label = f"the flag {name}" if name else "what stands before the first flag"
        if name not in before:
            yield f"{label} was added" + (f": {_text(now)}" if now is not None else "")
        elif name not in after:
            yield f"{label} was removed" + (f" (it was {_text(was)})" if was is not None else "")
        elif was != now:
            yield f"{label} went from {_text(was) if was is not None else 'no value'} to {_text(now) if now is not None else 'no value'}"
        told = told or was != now or (name in before) != (name in after)
    if not told:
        yield "the flags stand in another order, or are written in another way"


def _coupling(old: Any, new: Any) -> Iterator[str]:
    titles = [{str(finding.get("title")) for finding in found or [] if isinstance(finding, dict)} for found in (old, new)]
    for title in sorted(titles[1] - titles[0]):
        yield f"new: {title[:1].lower()}{title[1:]}"
    for title in sorted(titles[0] - titles[1]):
        yield f"not any more: {title[:1].lower()}{title[1:]}"


def _of_model(rest: str, old: Any, new: Any) -> Iterator[str]:
    area, name = _split(rest)
    if area == "files":
        yield f"the model's {name} was {'added' if old is None else 'removed' if new is None else 'changed'}"
    elif area == "weights":
        if name == "files":
            yield f"the number of weight files went from {old} to {new}"
        else:
            yield f"the size of the weight files went from {old:,} to {new:,} bytes"
    elif area == "quantization":
        yield f"the model's {name} " + (f"was added: {_text(new)}" if old is None else f"was removed (it was {_text(old)})" if new is None else
                                        f"went from {_text(old)} to {_text(new)}")
    elif area == "problem":
        yield f"the model's settings {'can be read again' if new is None else f'cannot be read: {_text(new)}'}"
    else:
        labels = {"name": "the served model name", "path": "the model folder", "architecture": "the model's architecture",
                  "model_type": "the model's type", "dtype": "the model's dtype", "trust_remote_code": "trust_remote_code",
                  "auto_map": "the model's own code (auto_map)"}
        yield _went(labels.get(rest, f"`model.{rest}`"), old, new)


def _of_gpus(rest: str, old: Any, new: Any) -> Iterator[str]:
    units = {"power_limit_w": ("power limit", " W"), "clock_max_mhz": ("highest clock", " MHz"),
             "pcie_width": ("PCIe link", " lanes"), "pcie_max_width": ("PCIe slot", " lanes"),
             "total_bytes": ("memory", " bytes"), "uuids": ("card (its UUID)", "")}
    if rest in units and isinstance(old, list) and isinstance(new, list):
        label, unit = units[rest]
        if len(old) != len(new):
            return  # told by the number of GPUs
        changed = [(index, was, now) for index, (was, now) in enumerate(zip(old, new, strict=True)) if _plain(was) != _plain(now)]
        alike = {(_text(was), _text(now)) for _, was, now in changed}
        if len(changed) == len(old) > 1 and len(alike) == 1:
            ((was, now),) = alike
            yield f"the {label} of all {len(old)} GPUs went from {was}{unit} to {now}{unit}"
            return
        for index, was, now in changed:
            yield f"the {label} of GPU {index} of the service went from {_text(was)}{unit} to {_text(now)}{unit}"
    elif rest in ("names", "compute_capability", "indexes"):
        label = {"names": "the GPUs", "compute_capability": "the compute capability", "indexes": "the GPU indexes"}[rest]
        yield f"{label} went from {', '.join(map(str, old or [])) or 'none'} to {', '.join(map(str, new or [])) or 'none'}"
    elif rest == "problem":
        yield "the GPUs can be read again" if new is None else f"the GPUs cannot be read: {_text(new)}"
    else:
        yield _went(_NAMES.get(f"gpus.{rest}", f"`gpus.{rest}`"), old, new)


# The last good start


def remember_good_start(record: ServiceRecord, found: Mapping[str, Any], *, release: str | None, job: str | None) -> None:
    """Keeps the fingerprint of a start that went well: later ones are held against it. Raises OSError or OpsError where it cannot be written."""
    kept = {"fingerprint": dict(found), "at": time.time(), "release": release, "job": job}
    state.change(record, lambda known: known.update(good_start=kept))


def last_good_start(record: ServiceRecord) -> dict[str, Any] | None:
    """{"fingerprint", "at", "release", "job"} of the last start that went well; None before the first one."""
    kept = state.read(record).get("good_start")
    return kept if isinstance(kept, dict) and isinstance(kept.get("fingerprint"), dict) else None


def changed_since_good(record: ServiceRecord, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """{"since" (seconds since the epoch), "release", "job", "words", "differences"}; both lists are empty if nothing changed. None: there is
    nothing to hold it against."""
    kept = last_good_start(record)
    if kept is None:
        return None
    changed = differences(kept["fingerprint"], found)
    return {"since": kept.get("at"), "release": kept.get("release"), "job": kept.get("job"), "words": words(changed), "differences": changed}
