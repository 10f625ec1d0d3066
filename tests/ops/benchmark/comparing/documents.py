"""Run documents made up for tests: as a sweep writes them, with few or many levels."""

from __future__ import annotations

import random
import uuid
from typing import Any

SETTINGS: dict[str, Any] = {"preset": "custom", "base_url": "http://127.0.0.1:1", "model": "m", "concurrencies": [1, 8], "requests": [50, 80],
                            "max_tokens": 128, "output_mode": "fixed", "temperature": 0.0, "prompt_words": 48, "order": "ascending", "gpu_count": 8,
                            "extra_body": {}}


def level(concurrency: int = 8, tok_s: float | None = 277.0, **more: Any) -> dict[str, Any]:
    """One level whose latencies follow from its throughput."""
    slow = concurrency / tok_s if tok_s else None
    made: dict[str, Any] = {
        "load": "closed", "value": concurrency, "concurrency": concurrency, "state": "done", "finished": 100, "errors": 0, "errors_by_kind": {},
        "output_tok_s": tok_s, "tpot_p50_ms": slow and 1000 * slow, "ttft_p50_ms": slow and 5000 * slow, "ttft_p99_ms": slow and 6000 * slow,
        "e2e_p50_s": slow and 133 * slow, "e2e_p99_s": slow and 140 * slow, "counted_by": "usage", "gpu_count": 8, "marks": []}
    return made | more


def run(*levels: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run of ours; `settings` are added to, not replaced."""
    settings = SETTINGS | more.pop("settings", {})
    return {"schema": "roundhouse.sweep/2", "run_id": str(uuid.UUID(int=random.Random(repr(more)).getrandbits(128))), "state": "done",
            "model": "m", "practice": False, "short": False, "started_at": 1.0, "origin": "roundhouse", "tool": "roundhouse", "tool_version": "",
            "levels": list(levels), "settings": settings, "endpoint": {}, "fingerprint": {}, "label": ""} | more


def side(tok_s: list[float], concurrency: int = 8, start: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """A run for each value, a minute apart."""
    return [run(level(concurrency, value), started_at=start + 60 * i, **more) for i, value in enumerate(tok_s)]
