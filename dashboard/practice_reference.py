"""The published figures that the practice box is paced after, as a run of their own beside practice runs: so the first comparison is one click away.

Only what was published is in it. All else is None, and shown as not reported: no latency at 8, no percentiles, no counts, no stack.
"""

from __future__ import annotations

import uuid

from django.utils import timezone

from dashboard import run_summaries
from dashboard.models import BenchmarkLevel, BenchmarkRun

ORIGIN = "practice-reference"
TOOL = "published figures"
ID = uuid.UUID("6b1f5c7e-3b0a-5f7e-9d55-0e3c1f2a6128")  # one for all practice services of a console
MODEL = "kimi-k2.5"
MAX_TOKENS = 512
FIGURES = {1: (61.0, 8.4), 8: (277.0, None), 128: (1239.0, 52.8)}  # concurrency: output tok/s, mean latency in s
NOTES = ("Published for Kimi-K2.5 on eight GPUs: chat completions of 512 tokens, no errors. The practice box paces its tokens so that they come out. "
         "Only these five numbers were published; everything else was not reported.")


def seed() -> BenchmarkRun | None:
    """Stores the reference, unless it is there; what people have added to it (label, notes, tags) stays. None: it was there."""
    now = timezone.now()  # when it came here: the day of publication is not known
    run, new = BenchmarkRun.objects.get_or_create(id=ID, defaults={
        "model": MODEL, "endpoint": "", "preset": "", "origin": ORIGIN, "tool": TOOL, "practice": True, "state": "done", "started_at": now,
        "label": "Published figures", "notes": NOTES,
        "settings": {"model": MODEL, "endpoint_kind": "chat", "load": "closed", "concurrencies": list(FIGURES), "max_tokens": MAX_TOKENS}})
    if not new:
        return None
    for concurrency, (tok_s, mean_s) in FIGURES.items():
        BenchmarkLevel.objects.create(
            run=run, load="closed", value=concurrency, concurrency=concurrency, state="done", output_tok_s=tok_s, e2e_mean_s=mean_s,
            metrics={"load": "closed", "value": concurrency, "concurrency": concurrency, "state": "done", "output_tok_s": tok_s, "e2e_mean_s": mean_s,
                     "endpoint_kind": "chat", "max_tokens": MAX_TOKENS, "requests": None, "finished": None, "errors": 0, "marks": []})
    run_summaries.summarise(run)
    return run
