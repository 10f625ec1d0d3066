"""What makes two levels comparable: the comparability key. Model, quantisation and release are what is compared, so they are never part of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ops.benchmark.comparing import readings

TITLES = {
    "endpoint_kind": "endpoint", "input": "input", "prompt_tokens_mean": "input tokens a request (measured)", "output_mode": "output length mode",
    "max_tokens": "output tokens asked for", "output_tokens_mean": "output tokens a request (measured)", "load": "load",
    "value": "concurrency or rate", "start": "start of the slots", "max_in_flight": "cap of requests in flight", "reasoning": "reasoning",
    "temperature": "temperature", "sampling": "further request settings", "streaming": "streaming", "counted_by": "tokens counted by",
    "gpu_count": "GPUs",
}
_TOLERANCE = 0.05  # of what was only measured, where nobody says what was asked for
# What of a sweep's settings makes it the same kind of sweep, whatever its levels are
_OF_SWEEP = ("endpoint_kind", "prompt_source", "prompt_words", "prompt_tokens", "prompt_sha256", "output_mode", "max_tokens", "load", "burst",
             "max_in_flight", "reasoning", "temperature", "extra_body", "gpu_count")
_DEFAULTS = {"endpoint_kind": "chat", "prompt_source": "synthetic", "load": "closed", "reasoning": "", "extra_body": {}, "burst": False}


def sweep_key(settings: Mapping[str, Any]) -> str:
    """SHA-256 over all that must be equal but the load's values: equal for sweeps of the same kind. Not in it: model, address, levels, seed,
    limits of time, how often it is repeated."""
    kept = {name: settings[name] if settings.get(name) is not None else _DEFAULTS.get(name) for name in _OF_SWEEP if name in settings
            or name in _DEFAULTS}
    if kept.get("prompt_source") == "file":
        unused = ("prompt_words", "prompt_tokens")
    else:
        unused = ("prompt_sha256", "prompt_words" if kept.get("prompt_tokens") else "prompt_tokens")  # so many tokens: whatever words make them
    for name in unused:
        kept.pop(name, None)
    kept = {name: value for name, value in kept.items() if value is not None}
    return hashlib.sha256(_canonical(kept).encode()).hexdigest()


def level_key(document: Mapping[str, Any], level: Mapping[str, Any]) -> dict[str, Any]:
    """The key of one level: names as in `TITLES`, None where nobody says it. What a level says of itself counts; its sweep's settings fill the
    rest."""
    settings = readings.mapping(document.get("settings"))
    ours = readings.tool(document) == readings.OURS  # also where its file came from elsewhere

    def known(name: str, *others: str) -> Any:
        for source in (level, settings):
            for one in (name, *others):
                if source.get(one) is not None and source.get(one) != "":
                    return source[one]
        return _DEFAULTS.get(name) if ours else None

    load, value = readings.place(level)
    given = _input(known, settings)
    most = known("max_tokens")
    extra = readings.mapping(settings.get("extra_body"))
    burst = settings.get("burst")
    return {
        "endpoint_kind": known("endpoint_kind"), "input": given,
        "prompt_tokens_mean": None if given is not None else _mean(level, "prompt_tokens_mean", "prompt_tokens"),
        "output_mode": known("output_mode"), "max_tokens": most,
        "output_tokens_mean": None if most is not None else _mean(level, "output_tokens_mean", "output_tokens"),
        "load": load, "value": value, "start": None if load != "closed" or burst is None else "burst" if burst is True else "staggered",
        "max_in_flight": known("max_in_flight") if load == "open" else None,
        "reasoning": known("reasoning") or ("as the server has it" if ours else None), "temperature": readings.finite(known("temperature")),
        "sampling": _canonical(extra)[:2000] if extra else ("" if ours else None),
        "streaming": known("streaming") if known("streaming") is not None else (True if ours else None),
        "counted_by": known("counted_by"), "gpu_count": known("gpu_count"),
    }


def _input(known: Any, settings: Mapping[str, Any]) -> str | None:
    """"512 tokens", "48 words", "file 1a2b3c4d": what was asked for."""
    if known("prompt_source") == "file":
        return f"file {readings.text(settings.get('prompt_sha256'))[:12] or 'unknown'}"
    tokens, words = readings.finite(known("prompt_tokens_asked") or settings.get("prompt_tokens")), readings.finite(known("prompt_words"))
    return f"{tokens:g} tokens" if tokens else f"{words:g} words" if words else None


def _mean(level: Mapping[str, Any], mean: str, total: str) -> float | None:
    """Per finished request, as the tool says it, or out of its sums."""
    told, summed, finished = readings.positive(level.get(mean)), readings.positive(level.get(total)), readings.count(level.get("finished"))
    return told if told is not None else summed / finished if summed is not None and finished else None


def differences(key_a: Mapping[str, Any], key_b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """[(name, a, b)] of what differs. What one side does not say is not known to be equal, so it is listed too."""
    found = []
    for name in TITLES:
        a, b = key_a.get(name), key_b.get(name)
        if name.endswith("_mean"):
            numbers = readings.positive(a), readings.positive(b)
            if numbers[0] is not None and numbers[1] is not None and abs(numbers[1] / numbers[0] - 1) <= _TOLERANCE:
                continue
        if a != b:
            found.append((name, a, b))
    return found


def shown(name: str, value: Any) -> str:
    """A key's value for people."""
    if value is None:
        return "not reported"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_mean"):
        return f"{value:.0f}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)[:200] or "none"


def _canonical(value: Any) -> str:
    """JSON with one form for each content; 1 and 1.0 are the same."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > 20:  # of a file from elsewhere: no request's setting is nested so deep
        return str(type(value).__name__)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    if isinstance(value, float):
        number = readings.finite(value)
        return None if number is None else int(number) if number.is_integer() and abs(number) < 2**53 else number
    return value
