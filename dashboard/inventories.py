"""What a node says that a service has (packages, releases, what changed, its model folder, its failures and warmups, its unit, its launch settings),
brought into a form that pages can rely on.

The node is not believed: texts are cut, lists have a most, and whatever is not of the form that `ops/agent/inventory.py` promises is left out.
"""

from __future__ import annotations

import json
from typing import Any

from dashboard.from_a_node import items, number, text

DISTRIBUTIONS_MAX = 2000
FINDINGS_MAX = 500
RELEASES_MAX = 200
TEXT_MAX = 2000
FINDING_BYTES = 16 * 1024
CHANGED_BYTES = 256 * 1024
FAILURES_MAX = WARMUPS_MAX = 20
DIAGNOSIS_BYTES = 16 * 1024
SETTINGS_MAX = 1000  # flags, and variables
SETTING_MAX = 32 * 1024  # characters of one value


def fields_of(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Service` that an announced service tells. What it does not tell (an older node; not read yet) is not in it."""
    told: dict[str, Any] = {}
    if isinstance(said.get("environment"), dict):
        told["environment"] = environment(said["environment"])
    if isinstance(said.get("releases"), list):
        told["releases"] = [release(one) for one in items(said["releases"], RELEASES_MAX) if text(one.get("name"), 200)]
    if "changed" in said:
        told["changed"] = changed(said["changed"])
    if isinstance(said.get("model"), list):
        told["model"] = findings(said["model"])
    if isinstance(said.get("failures"), list):
        told["failures"] = [failure(one) for one in _newest(said["failures"], FAILURES_MAX)]
    if isinstance(said.get("warmups"), list):
        told["warmups"] = [warmup(one) for one in _newest(said["warmups"], WARMUPS_MAX) if number(one.get("total_s")) is not None]
    if "unit" in said:
        told["unit"] = unit(said["unit"])
    if isinstance(said.get("launch"), dict):
        told["launch"] = launch(said["launch"])
    return told


def environment(raw: dict[str, Any]) -> dict[str, Any]:
    """Keys as in `ops.agent.inventory.environment_of`, and `kernels`."""
    return {
        "release": _text_or_none(raw.get("release")), "path": _text_or_none(raw.get("path")), "adopted": _text_or_none(raw.get("adopted")),
        "python": _text_or_none(raw.get("python")),
        "distributions": [distribution(one) for one in items(raw.get("distributions"), DISTRIBUTIONS_MAX) if text(one.get("name"), 1)],
        "duplicates": [distribution(one) for one in items(raw.get("duplicates"), FINDINGS_MAX) if text(one.get("name"), 1)],
        "problems": texts(raw.get("problems"), FINDINGS_MAX),
        "requirements": findings(raw.get("requirements")), "cuda": findings(raw.get("cuda")), "coupling": findings(raw.get("coupling")),
        "kernels": raw["kernels"] if isinstance(raw.get("kernels"), dict) and _small(raw["kernels"], FINDING_BYTES) else None,
        "at": number(raw.get("at")),
    }


def distribution(raw: dict[str, Any]) -> dict[str, Any]:
    """One installed package."""
    return {"name": text(raw.get("name"), 200), "version": text(raw.get("version"), 200), "installer": _text_or_none(raw.get("installer"), 80),
            "requested": raw.get("requested") is True, "size_bytes": _bytes(raw.get("size_bytes")), "source": text(raw.get("source"), 500)}


def release(raw: dict[str, Any]) -> dict[str, Any]:
    """One kept release; keys as in `ops.environments.releases.Release.as_dict`."""
    return {
        "name": text(raw.get("name"), 200), "path": text(raw.get("path"), TEXT_MAX), "kind": text(raw.get("kind"), 40) or "built",
        "version": _text_or_none(raw.get("version"), 120), "built_at": number(raw.get("built_at")), "size_bytes": _bytes(raw.get("size_bytes")),
        **{flag: raw.get(flag) is True for flag in ("verified", "is_current", "is_last_good", "unfinished")},
    }


def changed(raw: Any) -> dict[str, Any] | None:
    """`since`, `release`, `job`, `words` (empty: nothing changed) and (unless they are too many) `differences`; None: nothing to compare with."""
    if not isinstance(raw, dict) or not isinstance(raw.get("words"), list):
        return None
    differences = raw.get("differences")
    return {"since": number(raw.get("since")), "release": _text_or_none(raw.get("release"), 200), "job": _text_or_none(raw.get("job"), 40),
            "words": texts(raw["words"], FINDINGS_MAX), "differences": differences if _small(differences, CHANGED_BYTES) else None}


def failure(raw: dict[str, Any]) -> dict[str, Any]:
    """One end that nobody asked for; keys as in `ops.services.failures`. `diagnosis` is null while it is being made, and where it says nothing that
    a page could show; `kernel` also from an older node."""
    kernel = raw.get("kernel")
    return {"at": number(raw.get("at")), "ended_at": number(raw.get("ended_at")), "release": _text_or_none(raw.get("release"), 200),
            "invocation": text(raw.get("invocation"), 80), "exit_code": _whole(raw.get("exit_code")), "restarts": _whole(raw.get("restarts")),
            "detail": text(raw.get("detail"), TEXT_MAX), "where": text(raw.get("where"), TEXT_MAX),
            "problem": text(raw.get("problem"), TEXT_MAX), "diagnosis": diagnosis(raw.get("diagnosis")),
            "kernel": {"problem": text(kernel.get("problem"), TEXT_MAX)} if isinstance(kernel, dict) else None}


def diagnosis(raw: Any) -> dict[str, Any] | None:
    """Keys as in `ops.services.diagnosis.Diagnosis`; None for what is none."""
    if not isinstance(raw, dict) or not isinstance(raw.get("fault"), bool):
        return None
    told: dict[str, Any] = {"fault": raw["fault"], "line": _whole(raw.get("line")), "lines": _whole(raw.get("lines")),
                            "preflight": raw["preflight"] if isinstance(raw.get("preflight"), bool) else None}
    told |= {name: text(raw.get(name), TEXT_MAX) for name in ("text", "diagnosis", "fix", "action_hint")}
    told |= {name: text(raw.get(name), 80) for name in ("kind", "rule", "state", "family", "source", "action")}
    context = [{"number": _whole(one.get("number")), "text": text(one.get("text"), TEXT_MAX)} for one in items(raw.get("context"), 40)]
    told["context"] = context if _small(context, DIAGNOSIS_BYTES) else []
    return told


def warmup(raw: dict[str, Any]) -> dict[str, Any]:
    """One warmup that ended well; keys as in `ops.services.state`."""
    phases = raw["phases"] if isinstance(raw.get("phases"), dict) else {}
    return {"at": number(raw.get("at")), "release": _text_or_none(raw.get("release"), 200), "total_s": number(raw.get("total_s")),
            "cache": text(raw.get("cache"), 20) or "unknown",
            "phases": {text(name, 40): took for name, took in list(phases.items())[:40] if number(took) is not None}}


UNIT_FACTS = ("name", "scope", "state", "sub", "result", "restarts", "enabled", "needs_reload", "launcher_installed", "problem", "file", "user",
              "restart", "kill_mode", "stop_limit_s", "start_limit_s", "memory_max")


def unit(raw: Any) -> dict[str, Any] | None:
    """Facts of a systemd unit, each a text, a number, a truth or null, and `notes` (sentences); None for a service without one."""
    if not isinstance(raw, dict):
        return None
    return {**{name: _plain(raw.get(name)) for name in UNIT_FACTS}, "notes": [one[:TEXT_MAX] for one in _strings(raw.get("notes"))[:40]]}


def launch(raw: dict[str, Any]) -> dict[str, Any]:
    """What the launcher is given at the next start. `pending`: it was changed since the process started; null where none runs."""
    env = raw["env"] if isinstance(raw.get("env"), dict) else {}
    return {"mark": text(raw.get("mark"), 200), "flags": [one[:SETTING_MAX] for one in _strings(raw.get("flags"))],
            "env": {text(name, 200): text(value, SETTING_MAX) for name, value in list(env.items())[:SETTINGS_MAX] if isinstance(value, str)},
            "env_files": [one[:TEXT_MAX] for one in _strings(raw.get("env_files"))],
            "secret_names": [one[:200] for one in _strings(raw.get("secret_names"))],
            "pending": raw["pending"] if isinstance(raw.get("pending"), bool) else None}


def _strings(raw: Any) -> list[str]:
    return [one for one in raw if isinstance(one, str)][:SETTINGS_MAX] if isinstance(raw, list) else []


def findings(raw: Any) -> list[dict[str, Any]]:
    """Findings as the node formed them, each up to a size."""
    return [one for one in items(raw, FINDINGS_MAX) if _small(one, FINDING_BYTES)]


def texts(raw: Any, most: int) -> list[str]:
    return [text(one, TEXT_MAX) for one in raw if isinstance(one, str)][:most] if isinstance(raw, list) else []


def _small(value: Any, limit: int) -> bool:
    return len(json.dumps(value)) <= limit


def _newest(raw: list[Any], most: int) -> list[dict[str, Any]]:
    """The last objects of a list that holds the newest last."""
    return [one for one in raw if isinstance(one, dict)][-most:]


def _whole(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and -(2**63) <= found < 2**63 else None


def _plain(value: Any) -> str | float | bool | None:
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, bool):
        return value
    return _whole(value) if isinstance(value, int) else number(value)


def _bytes(value: Any) -> int | None:
    size = number(value)
    return int(size) if size is not None and 0 <= size < 2**63 else None


def _text_or_none(value: Any, length: int = TEXT_MAX) -> str | None:
    return text(value, length) or None
