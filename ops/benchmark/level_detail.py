"""What a level's charts need and its summary has not: distributions, tokens in each second, and the first requests' course. A few kilobytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ops.benchmark.metrics import MS, S, percentile, tokens_of, tpot
from ops.benchmark.request_record import CONTENT, RequestRecord

SECONDS_MOST = 900
TIMELINE_MOST = 200
GAPS_MOST = 2_000_000  # sampled evenly above that: 101 points do not tell the difference


def level_detail(records: Sequence[RequestRecord], *, t0: int, window: tuple[int, int] | None) -> dict[str, Any]:
    """`ecdf`: 101 values of each distribution, at 0, 1, ... 100 percent (None where nothing was measured). `seconds`: output tokens a second from
    the level's start, in steps of `step_s` (1 unless the level is longer than 900 s), and the steady window (seconds, None without one).
    `timeline`: of the first 200 requests `q` wanted, `s` sent, `f` first chunk, `c` first content, `e` end, all in ms from the level's start or
    None, and `err`, the error's kind ("unfinished" for one that we ended).
    """
    good = [record for record in records if record.ok and record.times]
    return {
        "ecdf": {
            "ttft_ms": _ecdf((record.times[0] - record.t_send for record in good), MS),
            "icl_ms": _ecdf(_gaps(good), MS),
            "e2e_s": _ecdf((record.times[-1] - record.t_send for record in good), S),
            "tpot_ms": _ecdf((value for record in good if (value := tpot(record)) is not None), MS),
        },
        "seconds": _seconds(good, t0, window),
        "timeline": [_course(record, t0) for record in records[:TIMELINE_MOST]],
    }


def _gaps(good: Sequence[RequestRecord]) -> Iterable[int]:
    every = max(1, math.ceil(sum(len(record.times) for record in good) / GAPS_MOST))
    for number, (before, after) in enumerate(pair for record in good for pair in pairwise(record.times)):
        if number % every == 0:
            yield after - before


def _ecdf(values: Iterable[float], scale: float) -> list[float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return [_short((percentile(ordered, percent) or 0.0) / scale) for percent in range(101)]


def _short(value: float) -> float:
    """Six digits: charts show no more, and events stay small."""
    return float(f"{value:.6g}")


def _seconds(good: Sequence[RequestRecord], t0: int, window: tuple[int, int] | None) -> dict[str, Any]:
    last = max((record.times[-1] for record in good), default=t0)
    step = max(1, math.ceil((last - t0 + 1) / S / SECONDS_MOST))
    bins = [0.0] * (int((last - t0) / (step * S)) + 1 if good else 0)
    for record in good:
        if record.chunk_tokens:
            weights: Iterable[float] = record.chunk_tokens
        else:
            total, chunks = tokens_of(record), len(record.times)
            later = (total - 1) / (chunks - 1) if chunks > 1 else 0.0
            weights = [float(total) if chunks == 1 else 1.0, *([later] * (chunks - 1))]
        for at, tokens in zip(record.times, weights, strict=True):
            bins[int((at - t0) / (step * S))] += tokens
    return {"tok_s": [_short(tokens / step) for tokens in bins], "step_s": step,
            "from_s": None if window is None else _short((window[0] - t0) / S), "to_s": None if window is None else _short((window[1] - t0) / S)}


def _course(record: RequestRecord, t0: int) -> dict[str, Any]:
    def ms(at: int | None) -> float | None:
        return None if at is None else round((at - t0) / MS, 2)

    sent = record.t_send >= record.t_sched  # 0 until then
    return {"q": ms(record.t_sched), "s": ms(record.t_send if sent else None), "f": ms(record.times[0] if record.times else None),
            "c": ms(record.times[record.kinds.index(CONTENT)] if CONTENT in record.kinds else None), "e": ms(record.t_end),
            "err": record.error_kind or ("unfinished" if record.unfinished else "")}
