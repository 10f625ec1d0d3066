"""Levels of invented sweeps with every number that a real one has: of concurrencies and of rates, with ECDFs, seconds and a timeline."""

from __future__ import annotations

import math
import random
from typing import Any

ASKED = {1: 30, 8: 100, 32: 160, 128: 640}


def ecdf(median: float, spread: float) -> list[float]:
    """101 values at 0, 1, ... 100 percent of something with this median, the slow tail longer."""
    return [round(median * math.exp(spread * 2 * ((percent / 100) ** 3 - (1 - percent / 100) ** 3 * 0.4)), 4) for percent in range(101)]


def detail(*, tok_s: float, seconds: int, requests: int, concurrency: int, ttft_ms: float, e2e_s: float, tpot_ms: float,
           errors: int = 0) -> dict[str, Any]:
    """As LevelMetrics.as_dict() has it in `detail`."""
    drawn = random.Random(int(tok_s))
    rise = max(2, seconds // 10)
    per_second = [round(tok_s * min(1.0, (second + 1) / rise, (seconds - second) / rise) * drawn.uniform(0.96, 1.04), 1) for second in range(seconds)]
    timeline = []
    for number in range(min(requests, 200)):
        at = number * e2e_s * 1000 / max(1, concurrency)
        failed = number < errors
        timeline.append({"q": round(at, 1), "s": round(at + 0.2, 1), "f": None if failed else round(at + ttft_ms, 1),
                         "c": None if failed else round(at + ttft_ms + e2e_s * 300, 1),
                         "e": round(at + (50 if failed else e2e_s * 1000 * drawn.uniform(0.97, 1.03)), 1), "err": "http_500" if failed else ""})
    return {"ecdf": {"ttft_ms": ecdf(ttft_ms, 0.4), "icl_ms": ecdf(tpot_ms, 0.2), "e2e_s": ecdf(e2e_s, 0.05), "tpot_ms": ecdf(tpot_ms, 0.1)},
            "seconds": {"tok_s": per_second, "from_s": float(rise), "to_s": float(seconds - rise)}, "timeline": timeline}


def metrics(value: float, *, load: str = "closed", tok_s: float, mean_s: float, ttft_ms: float, scale: float = 1.0, requests: int | None = None,
            errors: int = 0, gpu_count: int | None = 8, base: float | None = 61.0, slos: dict[str, float] | None = None, max_tokens: int = 512,
            marks: list[str] | None = None, with_detail: bool = True) -> dict[str, Any]:
    """One level's numbers; `scale` 0.9: ten percent slower than it was."""
    concurrency = int(value) if load == "closed" else None
    in_flight = concurrency or max(1, round(value * mean_s))
    asked = requests or ASKED.get(int(value), 100)
    finished, tok, mean, ttft = asked - errors, tok_s * scale, mean_s / scale, ttft_ms / scale
    tpot = (mean * 1000 - ttft) / (max_tokens - 1)
    seconds = max(8, min(120, round(asked * mean / in_flight)))
    p99 = mean * 1.04 if finished >= 100 else None
    p90 = mean * 1.02 if finished >= 20 else None
    return {
        "load": load, "value": value, "concurrency": concurrency, "state": "done", "requests": asked, "sent": asked, "finished": finished,
        "errors": errors, "unfinished": 0, "error_rate": errors / asked, "errors_by_kind": {"http_500": errors} if errors else {},
        "first_error": "HTTP 500" if errors else "", "window": "steady", "output_tok_s": tok, "steady_output_tok_s": tok,
        "whole_output_tok_s": tok * 0.93, "steady_requests_s": tok / max_tokens, "whole_requests_s": tok * 0.93 / max_tokens,
        "steady_s": seconds * 0.8, "whole_s": float(seconds), "output_tok_s_per_gpu": tok / gpu_count if gpu_count else None,
        "gpu_count": gpu_count, "output_tokens": finished * max_tokens, "reasoning_tokens": finished * max_tokens // 2,
        "content_tokens": finished * max_tokens - finished * max_tokens // 2, "prompt_tokens": finished * 70, "prompt_tokens_mean": 70.0,
        "chunks": finished * max_tokens, "counted_by": "usage", "tokens_per_chunk": 1.0,
        "ttft_n": finished, "ttft_p50_ms": ttft, "ttft_p90_ms": ttft * 1.3 if finished >= 20 else None,
        "ttft_p99_ms": ttft * 1.9 if finished >= 100 else None, "ttft_mean_ms": ttft * 1.05,
        "ttfc_n": finished, "ttfc_p50_ms": ttft + 300.0 * mean, "tpot_n": finished, "tpot_p50_ms": tpot,
        "tpot_p90_ms": tpot * 1.05, "tpot_p99_ms": tpot * 1.1 if finished >= 100 else None, "tpot_mean_ms": tpot,
        "icl_n": finished * (max_tokens - 1), "icl_p50_ms": tpot, "icl_p90_ms": tpot * 1.15, "icl_p99_ms": tpot * 1.6, "icl_mean_ms": tpot,
        "e2e_n": finished, "e2e_mean_s": mean, "e2e_p50_s": mean * 0.998, "e2e_p90_s": p90, "e2e_p99_s": p99,
        "spread_p99_p50": p99 / (mean * 0.998) if p99 else None, "interactivity_tok_s_user": 1000 / tpot,
        "scaling_x": tok / (base * scale) if load == "closed" and base else None,
        "queue_p50_ms": 0.0, "queue_p99_ms": 0.2, "queue_max_ms": 0.4, "e2e_from_schedule_p50_s": mean * 0.998,
        "offered_s": value if load == "open" else None, "achieved_s": tok / max_tokens if load == "open" else None,
        "slos": slos or {}, "goodput_s": tok / max_tokens * 0.97 if slos else None, "goodput_left_out": 0,
        "server": {"prefix_hit_rate": 0.001, "spec_acceptance": None, "kv_use_max": 0.31, "running_max": in_flight, "waiting_max": 0,
                   "preemptions": 0},
        "power_mean_w": 3420.0, "energy_j": 3420.0 * seconds * 0.8, "tokens_per_joule": tok / 3420.0,
        "gpus": [{"index": n, "power_mean_w": 427.5, "utilization_mean": 91.0, "used_bytes_max": 88 * 2**30} for n in range(gpu_count or 0)],
        "stamps": "kernel", "kernel_delay_p50_us": 41.0, "kernel_delay_p99_us": 190.0, "kernel_delay_max_us": 900.0,
        "client_cpu_share": 0.21, "client_lag_p50_ms": 0.1, "client_lag_p99_ms": 0.4, "client_lag_max_ms": 1.2,
        "endpoint_kind": "chat", "output_mode": "fixed", "max_tokens": max_tokens, "prompt_words": 48, "prompt_tokens_asked": None,
        "reasoning": "", "streaming": True, "temperature": 0.0, "length_before_content": 0, "marks": marks or [],
        **({"detail": detail(tok_s=tok, seconds=seconds, requests=asked, concurrency=in_flight, ttft_ms=ttft, e2e_s=mean, tpot_ms=tpot,
                             errors=errors)} if with_detail else {}),
    }


def settings(**more: Any) -> dict[str, Any]:
    """As SweepSettings.as_dict() has them."""
    return {"preset": "story", "base_url": "http://127.0.0.1:8000", "model": "kimi-k2.5", "concurrencies": list(ASKED),
            "requests": list(ASKED.values()), "max_tokens": 512, "output_mode": "fixed", "temperature": 0.0,
            "prompt_words": 48, "seed": 1, "burst": False, "order": "ascending",
            "level_seconds": 420.0, "drain_seconds": 120.0, "request_timeout_s": 600.0, "warmup_per_slot": 2.0, "warmup_slots": 32,
            "stop_error_rate": 0.5, "practice": True, "gpu_count": 8, "extra_body": {}, "endpoint_kind": "chat", "load": "closed", "rates": [],
            "max_in_flight": None, "prompt_source": "synthetic", "prompt_tokens": None, "prompt_file": "", "prompt_sha256": "", "slos": {},
            "repeats": 1, "reasoning": "", **more}
