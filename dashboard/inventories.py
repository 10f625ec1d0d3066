"""What a node says that a service has (packages, releases, what changed, its model folder), brought into a form that pages can rely on.

The node is not believed: texts are cut, lists have a most, and whatever is not of the form that `ops/agent/inventory.py` promises is left out.
"""

from __future__ import annotations

import json
from typing import Any

from dashboard.projection import items, number, text

DISTRIBUTIONS_MAX = 2000
FINDINGS_MAX = 500
RELEASES_MAX = 200
TEXT_MAX = 2000
FINDING_BYTES = 16 * 1024
CHANGED_BYTES = 256 * 1024


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


def findings(raw: Any) -> list[dict[str, Any]]:
    """Findings as the node formed them, each up to a size."""
    return [one for one in items(raw, FINDINGS_MAX) if _small(one, FINDING_BYTES)]


def texts(raw: Any, most: int) -> list[str]:
    return [text(one, TEXT_MAX) for one in raw if isinstance(one, str)][:most] if isinstance(raw, list) else []


def _small(value: Any, limit: int) -> bool:
    return len(json.dumps(value)) <= limit


def _bytes(value: Any) -> int | None:
    size = number(value)
    return int(size) if size is not None and 0 <= size < 2**63 else None


def _text_or_none(value: Any, length: int = TEXT_MAX) -> str | None:
    return text(value, length) or None
