"""The numbers of a level, from its requests' records. Pure: records in, numbers out.

One definition for each, kept in docs/guides/measure-a-server.md: a chunk is an event with text; TTFT = first chunk - t_send (reasoning
included), TTFC = first content chunk - t_send, E2E = last chunk - t_send, ICL = gap between chunks of a request (all gaps pooled),
TPOT = (last - first chunk) / (output tokens - tokens in the first chunk). The steady window runs from the moment all slots are in flight
to the moment the first slot stays empty; of a rate, from one latency after the first arrival to the last one (`steady_window`).
Only requests that ended well enter; unknown is None.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ops.benchmark.request_record import CONTENT, REASONING, RequestRecord

MS, S = 1e6, 1e9

P99_NEEDS, P90_NEEDS = 100, 20
SHORT_WINDOW_S = 30.0
ERROR_RATE_LIMIT = 0.01
REASONING_ONLY_LIMIT = 0.10
CLIENT_LAG_LIMIT = 0.05
BUNCHED_LIMIT = 0.5
BUNCHED_NS = 50_000  # two chunks that are nearer than that did not leave an engine one after the other
WHOLE_ANSWER_CHUNKS = 4
OFFERED_LIMIT = 0.9
GAPS_EXACT = 2_000_000
MAX_REQUESTS = 20_000  # of one level
CLIENT_CPU_LIMIT = 0.80


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between closest ranks of sorted values (as numpy's default). None for no values."""
    if not ordered:
        return None
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution: `p90` is None below 20 samples and `p99` below 100, because fewer do not tell it."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        n = len(ordered)
        return cls(n, sum(ordered) / n if n else None, percentile(ordered, 50), percentile(ordered, 90) if n >= P90_NEEDS else None,
                   percentile(ordered, 99) if n >= P99_NEEDS else None)

    def named(self, name: str, unit: str, scale: float) -> dict[str, float | int | None]:
        """Flat keys with the unit in them: `ttft_p50_ms`; values divided by `scale`."""
        flat: dict[str, float | int | None] = {f"{name}_n": self.n}
        for part in ("mean", "p50", "p90", "p99"):
            value = getattr(self, part)
            flat[f"{name}_{part}_{unit}"] = None if value is None else value / scale
        return flat


@dataclass(frozen=True, slots=True)
class ClientCost:
    """The client's own error over a level: event-loop lag (None without samples) and CPU (1.0 = one core busy)."""

    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    lag_max_ms: float | None = None
    cpu_share: float | None = None
    connects_in_level: int = 0
    retries: int = 0
    stamps: str = "own"  # "kernel" where chunks were stamped when the kernel received them
    kernel_delay_p50_us: float | None = None  # user space less kernel receive time
    kernel_delay_p99_us: float | None = None
    kernel_delay_max_us: float | None = None
    clock_steps: int | None = None  # how often the wall clock, which the kernel stamps with, was set meanwhile; None where it does not stamp


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """All numbers of one level. Times here are in ns; `as_dict` gives them in ms or s, with the unit in the name.

    Throughputs are tokens (or requests) per second; `steady` ones are None where the window is empty. `marks`: words that say what the
    numbers are not good for (`short`, `client-bound`, `errors`, `counted by chunks`, `reasoning only`, `length not obeyed`, `cut`, `bunched`,
    `never full`: a closed loop that never had its concurrency in flight; `overloaded`: fewer than 90 % of an open loop's requests came back at the
    rate at which they went out).
    """

    load: str  # "closed" or "open"
    value: float  # concurrency, or requests a second
    requests: int  # planned
    sent: int
    finished: int
    errors: int
    unfinished: int
    errors_by_kind: dict[str, int]
    first_error: str
    whole_s: float | None
    steady_s: float | None
    whole_output_tok_s: float | None
    steady_output_tok_s: float | None
    whole_requests_s: float | None
    steady_requests_s: float | None
    gpu_count: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    prompt_tokens: int | None
    chunks: int
    counted_by: str  # "usage" or "chunks"
    ttft: Spread
    ttfc: Spread
    e2e: Spread
    icl: Spread
    tpot: Spread
    queue: Spread
    queue_max_ns: int | None
    length_before_content: int
    bunched_share: float | None  # of all gaps: those of (nearly) zero, chunks that came together
    whole_answers_share: float | None  # of requests with several chunks: those whose chunks all came together
    client: ClientCost
    from_schedule: Spread = field(default_factory=lambda: Spread.of(()))  # E2E + queue delay
    slos: dict[str, float] = field(default_factory=dict)
    goodput_s: float | None = None  # requests/s that met every SLO
    goodput_left_out: int | None = None  # requests that lack the measurement of one
    offered_s: float | None = None  # requests/s that arrived, of an open loop
    power_mean_w: float | None = None
    scaling_x: float | None = None
    marks: list[str] = field(default_factory=list)

    @property
    def concurrency(self) -> int | None:
        """Of a closed loop."""
        return int(self.value) if self.load == "closed" else None

    @property
    def output_tok_s(self) -> float | None:
        """The headline: steady where there is a steady window, else whole run."""
        return self.steady_output_tok_s if self.steady_output_tok_s is not None else self.whole_output_tok_s

    @property
    def achieved_s(self) -> float | None:
        """Requests a second that an open loop got answered, in the headline's window."""
        if self.load != "open":
            return None
        return self.steady_requests_s if self.steady_requests_s is not None else self.whole_requests_s

    @property
    def error_rate(self) -> float | None:
        """Errors of all requests that ended."""
        ended = self.finished + self.errors
        return self.errors / ended if ended else None

    def as_dict(self) -> dict[str, Any]:
        """Flat JSON form: what events, results and the database hold."""
        tok_s = self.output_tok_s
        reasoning = self.reasoning_tokens
        counted = self.output_tokens if self.counted_by == "usage" else None
        return {
            "load": self.load, "value": self.value, "concurrency": self.concurrency,
            "requests": self.requests, "sent": self.sent, "finished": self.finished, "errors": self.errors,
            "unfinished": self.unfinished, "error_rate": self.error_rate, "errors_by_kind": dict(self.errors_by_kind),
            "first_error": self.first_error,
            "output_tok_s": tok_s, "window": "steady" if self.steady_output_tok_s is not None else "whole",
            "steady_output_tok_s": self.steady_output_tok_s, "whole_output_tok_s": self.whole_output_tok_s,
            "steady_requests_s": self.steady_requests_s, "whole_requests_s": self.whole_requests_s,
            "steady_s": self.steady_s, "whole_s": self.whole_s,
            "output_tok_s_per_gpu": tok_s / self.gpu_count if tok_s is not None and self.gpu_count else None,
            "gpu_count": self.gpu_count,
            "output_tokens": self.output_tokens, "reasoning_tokens": reasoning,
            "content_tokens": self.output_tokens - reasoning if self.output_tokens is not None and reasoning is not None else None,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_mean": self.prompt_tokens / self.finished if self.prompt_tokens is not None and self.finished else None,
            "chunks": self.chunks, "counted_by": self.counted_by,
            "tokens_per_chunk": counted / self.chunks if counted is not None and self.chunks else None,
            **self.ttft.named("ttft", "ms", MS), **self.ttfc.named("ttfc", "ms", MS), **self.e2e.named("e2e", "s", S),
            **self.icl.named("icl", "ms", MS), **self.tpot.named("tpot", "ms", MS), **self.queue.named("queue", "ms", MS),
            **self.from_schedule.named("e2e_from_schedule", "s", S),
            "queue_max_ms": None if self.queue_max_ns is None else self.queue_max_ns / MS,
            "interactivity_tok_s_user": S / self.tpot.p50 if self.tpot.p50 else None,
            "spread_p99_p50": self.e2e.p99 / self.e2e.p50 if self.e2e.p99 is not None and self.e2e.p50 else None,
            "scaling_x": self.scaling_x,
            "scaling_efficiency": self.scaling_x / self.concurrency if self.scaling_x is not None and self.concurrency else None,
            "length_before_content": self.length_before_content, "bunched_share": self.bunched_share,
            "whole_answers_share": self.whole_answers_share,
            "slos": dict(self.slos), "goodput_s": self.goodput_s, "goodput_left_out": self.goodput_left_out,
            "offered_s": self.offered_s, "achieved_s": self.achieved_s,
            "server": None, "energy_j": None, "gpus": None,  # what is read beside the load: ops/benchmark/beside.py
            "power_mean_w": self.power_mean_w,
            "tokens_per_joule": tok_s / self.power_mean_w if tok_s is not None and self.power_mean_w else None,
            "client_lag_p50_ms": self.client.lag_p50_ms, "client_lag_p99_ms": self.client.lag_p99_ms, "client_lag_max_ms": self.client.lag_max_ms,
            "client_cpu_share": self.client.cpu_share, "connects_in_level": self.client.connects_in_level, "retries": self.client.retries,
            "stamps": self.client.stamps, "kernel_delay_p50_us": self.client.kernel_delay_p50_us,
            "kernel_delay_p99_us": self.client.kernel_delay_p99_us, "kernel_delay_max_us": self.client.kernel_delay_max_us,
            "client_clock_steps": self.client.clock_steps,
            "marks": list(self.marks),
        }


def tokens_of(record: RequestRecord) -> int:
    """Output tokens; where the server sent no usage, its chunks."""
    return record.output_tokens if record.output_tokens is not None else len(record.times)


def first_chunk_tokens(record: RequestRecord) -> int:
    """Tokens in chunk 1: one, unless usage in every event says otherwise."""
    return record.chunk_tokens[0] if record.chunk_tokens else 1


def tokens_between(record: RequestRecord, start: int, end: int) -> float:
    """Output tokens of the chunks with start <= t <= end; tokens of one chunk share its time.

    Without usage in every event the first chunk counts as one token and the others share the rest evenly.
    """
    times = record.times
    if record.chunk_tokens:
        return float(sum(count for at, count in zip(times, record.chunk_tokens, strict=True) if start <= at <= end))
    total, chunks = tokens_of(record), len(times)
    if total <= 0:  # a server that says so, in spite of its chunks
        return 0.0
    if chunks == 1:
        return float(total) if start <= times[0] <= end else 0.0
    first = 1.0 if start <= times[0] <= end else 0.0
    later = sum(1 for at in times[1:] if start <= at <= end)
    return first + later * (total - 1) / (chunks - 1)


def steady_window(records: Sequence[RequestRecord], load: str, value: float) -> tuple[int, int] | None:
    """The time in which the level is what it says; None if there is no such time.

    Closed loop: from the moment all slots are in flight to the moment that the first one stays empty. Open loop: from the 90th percentile of
    the latencies after the first request (by then as many are in flight as the rate keeps there) to the last arrival that was sent.
    """
    if load == "open":
        sent = [record for record in records if record.t_send >= record.t_sched and not (record.unfinished and record.t_send == record.t_end)]
        took = sorted(record.times[-1] - record.t_sched for record in sent if record.ok and record.times)
        ramp = percentile(took, 90)
        if ramp is None:
            return None
        begin, stop = min(record.t_sched for record in sent) + int(ramp), max(record.t_sched for record in sent)
        return (begin, stop) if stop > begin else None
    first_sent: dict[int, int] = {}
    last_end: dict[int, int] = {}
    for record in records:
        if record.t_end is None:
            continue
        first_sent[record.slot] = min(record.t_send, first_sent.get(record.slot, record.t_send))
        last_end[record.slot] = max(record.t_end, last_end.get(record.slot, record.t_end))
    if len(first_sent) < value:
        return None
    start, end = max(first_sent.values()), min(last_end.values())
    return (start, end) if end > start else None


def tpot(record: RequestRecord) -> float | None:
    """ns per output token after the first chunk; None where there is nothing after it."""
    after = tokens_of(record) - first_chunk_tokens(record)
    return (record.times[-1] - record.times[0]) / after if after > 0 and len(record.times) > 1 else None


def level_metrics(records: Sequence[RequestRecord], *, load: str = "closed", value: float, requests: int, client: ClientCost | None = None,
                  gpu_count: int | None = None, fixed_tokens: int | None = None, most_tokens: int | None = None, power_mean_w: float | None = None,
                  base_tok_s: float | None = None, slos: Mapping[str, float] | None = None) -> LevelMetrics:
    """The level's numbers.

    `requests`: how many were planned. `fixed_tokens`: the output length that was demanded, else None; `most_tokens`: the most
    that was asked for. `base_tok_s`: throughput of the
    level with concurrency 1, for the scaling. `slos`: limits of goodput (`ttft_ms`, `tpot_ms`, `e2e_s`).
    """
    client = client or ClientCost()
    good = [record for record in records if record.ok and record.times]
    failed = [record for record in records if record.error_kind]
    counted = all(record.output_tokens is not None for record in good)
    ended = [record.t_end for record in records if record.t_end is not None]
    whole = (min(r.t_send for r in records), max(ended)) if ended else None
    whole_s = (whole[1] - whole[0]) / S if whole and whole[1] > whole[0] else None
    window = steady_window(records, load, value)
    steady_s = (window[1] - window[0]) / S if window else None
    tokens = sum(tokens_of(r) for r in good)
    in_window = sum(tokens_between(r, *window) for r in good) if window and good else None
    done_in_window = sum(1 for r in good if r.t_end is not None and window[0] <= r.t_end <= window[1]) if window else None
    icl, bunched = _pooled_gaps(good)
    several = [r for r in good if len(r.times) >= WHOLE_ANSWER_CHUNKS]
    together = sum(1 for r in several if r.times[-1] - r.times[0] <= BUNCHED_NS * (len(r.times) - 1))
    fast, left_out = _goodput(good, slos, window) if slos else (0, None)
    goodput_window_s = steady_s if window else whole_s
    offered, behind = _offered(records, good, window, done_in_window) if load == "open" and whole else (None, False)
    with_content = [r for r in good if CONTENT in r.kinds]
    with_split = [r for r in good if r.reasoning_tokens is not None]
    queue = [r.t_send - r.t_sched for r in records if r.t_send >= r.t_sched]
    prompts = [r.prompt_tokens for r in good]
    made = LevelMetrics(
        load=load, value=value, requests=requests, sent=len(records), finished=len(good), errors=len(failed),
        unfinished=sum(1 for r in records if r.unfinished), errors_by_kind=dict(Counter(r.error_kind for r in failed)),
        first_error=failed[0].error if failed else "",
        whole_s=whole_s, steady_s=steady_s,
        whole_output_tok_s=tokens / whole_s if whole_s and good else None,
        steady_output_tok_s=in_window / steady_s if in_window and steady_s else None,
        whole_requests_s=len(good) / whole_s if whole_s and good else None,
        steady_requests_s=done_in_window / steady_s if done_in_window is not None and steady_s and good else None,
        gpu_count=gpu_count, output_tokens=tokens if good else None,
        reasoning_tokens=sum(r.reasoning_tokens or 0 for r in with_split) if good and len(with_split) == len(good) else None,
        prompt_tokens=sum(p for p in prompts if p is not None) if good and None not in prompts else None,
        chunks=sum(len(r.times) for r in good), counted_by="usage" if counted else "chunks",
        ttft=Spread.of(r.times[0] - r.t_send for r in good),
        ttfc=Spread.of(r.times[r.kinds.index(CONTENT)] - r.t_send for r in with_content),
        e2e=Spread.of(r.times[-1] - r.t_send for r in good),
        icl=icl, tpot=Spread.of(each for r in good if (each := tpot(r)) is not None),
        queue=Spread.of(queue), queue_max_ns=max(queue, default=None),
        length_before_content=sum(1 for r in good if r.finish_reason == "length" and CONTENT not in r.kinds and REASONING in r.kinds),
        bunched_share=bunched,
        whole_answers_share=together / len(several) if several else None,
        client=client, power_mean_w=power_mean_w,
        from_schedule=Spread.of(r.times[-1] - r.t_sched for r in good), slos=dict(slos or {}),
        goodput_s=fast / goodput_window_s if slos and goodput_window_s and good else None, goodput_left_out=left_out,
        offered_s=offered,
    )
    made.marks.extend([*_marks(made, good, fixed_tokens, most_tokens), *(["overloaded"] if behind else [])])
    if base_tok_s and made.output_tok_s is not None:
        return replace(made, scaling_x=made.output_tok_s / base_tok_s)
    return made


def _pooled_gaps(good: Sequence[RequestRecord]) -> tuple[Spread, float | None]:
    """All gaps between chunks, and the share of those that are (nearly) zero.

    Above `GAPS_EXACT` gaps they are counted to the microsecond instead of kept one by one: ten million of them would take half a gigabyte.
    """
    gaps = (after - before for r in good for before, after in pairwise(r.times))
    n = sum(len(r.times) - 1 for r in good)
    if n <= GAPS_EXACT:
        ordered = sorted(gaps)
        return Spread.of(ordered), bisect_right(ordered, BUNCHED_NS) / n if n else None
    counts = Counter(gap // 1000 for gap in gaps)
    values = sorted(counts)
    ends, total = [], 0
    for value in values:
        total += counts[value]
        ends.append(total)

    def at(percent: float) -> float:
        rank = (n - 1) * percent / 100
        low, high = (values[bisect_right(ends, place)] * 1000.0 for place in (math.floor(rank), math.ceil(rank)))
        return low + (high - low) * (rank - math.floor(rank))

    mean = sum(value * count for value, count in counts.items()) * 1000.0 / n
    near = sum(count for value, count in counts.items() if value * 1000 < BUNCHED_NS)
    return Spread(n, mean, at(50), at(90), at(99)), near / n


def _offered(records: Sequence[RequestRecord], good: Sequence[RequestRecord], window: tuple[int, int] | None,
             done: int | None) -> tuple[float | None, bool]:
    """Requests a second that an open loop wanted out in the window (or from first to last), and whether the server fell behind.

    It fell behind where fewer than `OFFERED_LIMIT` of them came back, by more than the luck of arrivals explains: in a steady state the number
    in flight differs between a window's two ends by about its own square root.
    """
    start, end = window or (min(record.t_sched for record in records), max(record.t_sched for record in records))
    arrived = sum(1 for record in records if start <= record.t_sched <= end)
    seconds = (end - start) / S
    if not seconds:
        return None, False
    if window is None or done is None or not good:  # latencies as long as all arrivals: more than the server's own time would explain waits
        inside = arrived / seconds * sum(record.times[-1] - record.t_send for record in good) / len(good) / S if good else math.inf
        left = sum(1 for record in records if record.t_end is None or record.t_end > end)
        return arrived / seconds, left - inside > 3 * math.sqrt(max(1.0, inside))
    in_flight = arrived / seconds * sum(record.times[-1] - record.t_sched for record in good) / len(good) / S
    return arrived / seconds, done < OFFERED_LIMIT * arrived and arrived - done > 3 * math.sqrt(max(1.0, in_flight))


def _goodput(good: Sequence[RequestRecord], slos: Mapping[str, float], window: tuple[int, int] | None) -> tuple[int, int]:
    """(requests that met every SLO, requests that lack the measurement of one), of those that ended in the window (or the whole run)."""
    met = lacking = 0
    for record in good:
        if window is not None and not (record.t_end is not None and window[0] <= record.t_end <= window[1]):
            continue
        each = tpot(record)
        measured = {"ttft_ms": (record.times[0] - record.t_send) / MS, "tpot_ms": None if each is None else each / MS,
                    "e2e_s": (record.times[-1] - record.t_send) / S}
        asked = [(measured.get(name), limit) for name, limit in slos.items()]
        if any(value is None for value, _ in asked):
            lacking += 1
        elif all(value is not None and value <= limit for value, limit in asked):
            met += 1
    return met, lacking


def requests_for_full(value: float, load: str = "closed") -> int:
    """Requests below which a level counts as short: 10 C up to C = 16, 5 C above; of a rate those of a minute, and at least 30.

    Never more than a level may have.
    """
    if load == "open":
        return min(MAX_REQUESTS, max(30, math.ceil(60 * value)))
    return math.ceil(value) * (10 if value <= 16 else 5)


def _marks(made: LevelMetrics, good: Sequence[RequestRecord], fixed: int | None, most: int | None) -> list[str]:
    marks = []
    if made.sent < requests_for_full(made.value, made.load) or made.steady_s is None or made.steady_s < SHORT_WINDOW_S:
        marks.append("short")
    if made.load == "closed" and made.steady_s is None and made.sent:
        marks.append("never full")
    if made.error_rate is not None and made.error_rate > ERROR_RATE_LIMIT:
        marks.append("errors")
    if good and made.counted_by == "chunks":
        marks.append("counted by chunks")
    if good and made.length_before_content > REASONING_ONLY_LIMIT * len(good):
        marks.append("reasoning only")
    disobeyed = sum(1 for r in good if r.output_tokens is not None
                    and ((fixed is not None and r.output_tokens != fixed) or (most is not None and r.output_tokens > most)))
    if disobeyed > ERROR_RATE_LIMIT * len(good):
        marks.append("length not obeyed")
    if made.unfinished:
        marks.append("cut")
    if made.bunched_share is not None and made.bunched_share > BUNCHED_LIMIT:
        marks.append("bunched")
    lag, gap, cpu = made.client.lag_p99_ms, made.icl.p50, made.client.cpu_share
    if (lag is not None and gap and lag > CLIENT_LAG_LIMIT * gap / MS) or (cpu is not None and cpu > CLIENT_CPU_LIMIT):
        marks.append("client-bound")
    return marks
