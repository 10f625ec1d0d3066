"""What differed between sides: their fingerprints as rows of facts, a column a side, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.benchmark.comparing import readings
from ops.environments.fingerprint import parsed_flags

GROUPS = ("Service", "Packages", "Patches", "Model", "Launch", "GPUs", "Host", "Software")
ABSENT = {"Packages": "absent", "Launch": "not set"}
FACTS_MAX = 3000
TEXT_MAX = 300
_MODEL = {"path": "model folder", "architecture": "architecture", "model_type": "type", "dtype": "dtype", "trust_remote_code": "trust_remote_code",
          "auto_map": "own code (auto_map)", "config_sha256": "config.json"}
_GPUS = {"names": "cards", "count": "number", "driver": "driver", "cuda": "driver's CUDA version", "power_limit_w": "power limit, W",
         "clock_max_mhz": "highest clock, MHz",
         "total_bytes": "memory, bytes", "uuids": "UUIDs", "compute_capability": "compute capability", "pcie_width": "PCIe lanes",
         "pcie_max_width": "PCIe lanes of the slot", "indexes": "indexes", "source": "source of readings"}
_HOST = {"name": "host", "kernel": "kernel", "machine": "machine type", "cpus": "CPUs", "memory_bytes": "memory, bytes"}


def table(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{"count", "equal", "known" [bool a side: it has a fingerprint], "rows" [{"group", "name", "values" [text or None a side], "changed" [bool a
    side: other than the first side that is known], "differs"}]}. None: not known; a package or setting that a fingerprint lacks is "absent" or
    "not set".
    """
    sides = [dict(_facts(document)) for document in documents]
    known = [bool(readings.mapping(document.get("fingerprint"))) for document in documents]
    names = sorted({name for side in sides for name in side}, key=lambda name: (GROUPS.index(name[0]), not _first(name), name[1].lower()))
    rows = []
    for group, name in names[:FACTS_MAX]:
        values = [side.get((group, name), ABSENT.get(group) if has else None) for side, has in zip(sides, known, strict=True)]
        told = [value for value in values if value is not None]
        if name.startswith("wheel of ") and (len(set(told)) < 2 or any(
                side.get((group, name.removeprefix("wheel of "))) != sides[0].get((group, name.removeprefix("wheel of "))) for side in sides)):
            continue  # said by the version
        rows.append({"group": group, "name": name, "values": values, "differs": len(set(told)) > 1,
                     "changed": [value is not None and value != told[0] for value in values]})
    return {"count": len(rows), "equal": sum(1 for row in rows if not row["differs"]), "known": known, "rows": rows}


def _first(name: tuple[str, str]) -> bool:
    return name[1] in ("vllm", "torch", "model")


Fact = tuple[tuple[str, str], str]


def _facts(document: Mapping[str, Any]) -> Iterator[Fact]:
    told = readings.mapping(document.get("fingerprint"))
    if document.get("model"):
        yield ("Service", "model"), _text(document["model"])
    version = readings.mapping(document.get("endpoint")).get("version")
    if version:
        yield ("Service", "server's version"), _text(version)
    if told.get("service"):
        yield ("Service", "service"), _text(told["service"])
    yield ("Service", "measured by"), f"{readings.tool(document)} {readings.text(document.get('tool_version'))}".strip()
    for name, value in readings.mapping(told.get("packages")).items():
        yield ("Packages", str(name)[:120]), _text(value)
    for name, value in readings.mapping(told.get("wheels")).items():
        yield ("Packages", f"wheel of {str(name)[:120]}"), _digest(value)
    if isinstance(told.get("coupling"), list):
        titles = [readings.text(finding.get("title")) for finding in told["coupling"][:20] if isinstance(finding, Mapping)]
        yield ("Packages", "coupled packages"), "; ".join(titles)[:TEXT_MAX] or "nothing found"
    yield from _patches(told.get("patched"))
    yield from _model(readings.mapping(told.get("model")))
    flags = told.get("flags")
    for name, value in parsed_flags([str(flag) for flag in flags[:500]] if isinstance(flags, list) else []).items():
        yield ("Launch", name[:120] or "before the first flag"), "set" if value is None else _text(value)
    for name, value in readings.mapping(told.get("env")).items():
        yield ("Launch", str(name)[:120]), _text(value)
    for name, value in readings.mapping(told.get("env_files")).items():
        yield ("Launch", str(name)[:120]), "missing" if value is None else _text(value)
    for part, group, titles_of in (("gpus", "GPUs", _GPUS), ("host", "Host", _HOST)):
        for name, value in readings.mapping(told.get(part)).items():
            if name in titles_of and value is not None:
                yield (group, titles_of[name]), _text(value)
    if told.get("python"):
        yield ("Software", "Python"), _text(told["python"])
    for part in ("launcher", "tools"):
        for name, value in readings.mapping(told.get(part)).items():
            if value is not None:
                yield ("Software", "launcher's text" if name == "sha256" else str(name)[:120]), _digest(value) if name == "sha256" else _text(value)


def _patches(patched: Any) -> Iterator[Fact]:
    if not isinstance(patched, Mapping):
        return
    files = readings.count(patched.get("files"))
    owners = ", ".join(f"{str(name)[:60]} {readings.count(number)}" for name, number in readings.mapping(patched.get("packages")).items())
    yield ("Patches", "patched files"), f"{files}: {owners}"[:TEXT_MAX] if files else "none"
    if patched.get("digest"):
        yield ("Patches", "content of the patches"), _digest(patched["digest"])
    else:
        yield ("Patches", "content of the patches"), "none"


def _model(model: Mapping[str, Any]) -> Iterator[Fact]:
    for name, title in _MODEL.items():
        if model.get(name) is not None:
            yield ("Model", title), _digest(model[name]) if name == "config_sha256" else _text(model[name])
    if "quantization" in model:
        quantization = model["quantization"]
        if not isinstance(quantization, Mapping):
            yield ("Model", "quantization"), "none"
        else:
            named = quantization.get("quant_method") or quantization.get("quant_algo") or quantization.get("format")
            yield ("Model", "quantization"), _text(named) if named else "yes"
            for name, value in quantization.items():
                if name not in ("quant_method", "sha256") and value is not None:
                    yield ("Model", f"quantization: {str(name)[:60]}"), _text(value)
    for name, value in readings.mapping(model.get("files")).items():
        if value is not None and name != "config.json":
            yield ("Model", str(name)[:120]), _digest(value)
    weights = readings.mapping(model.get("weights"))
    if weights:
        yield ("Model", "weights"), f"{readings.count(weights.get('files'))} files, {readings.count(weights.get('bytes')):,} bytes"


def _digest(value: Any) -> str:
    return str(value)[:12]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        shown = [_text(one) for one in value[:64] if not isinstance(one, list | tuple | dict)]
        alike = len(shown) > 1 and len(set(shown)) == 1
        return (f"{len(shown)} × {shown[0]}" if alike else ", ".join(shown) or "none")[:TEXT_MAX]
    if isinstance(value, Mapping):
        pairs = [f"{str(name)[:60]} {_text(one)}" for name, one in list(value.items())[:20] if not isinstance(one, list | tuple | dict)]
        return ", ".join(pairs)[:TEXT_MAX]
    return str(value)[:TEXT_MAX]
