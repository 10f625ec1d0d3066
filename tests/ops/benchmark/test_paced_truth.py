"""Every number of a level against the truth: the paced server writes into each token when it left, into each id when the request had come, and into
its log when each request was over.

The numbers are worked out here again, in a few lines that share nothing with the code that is tested, and twice: out of what the client stored
(they must be the same to the last digit), and out of the server's own times (they may differ by what the client's stamps differ, no more).
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ops.benchmark import load, presets, sweep
from ops.benchmark.beside import GpuSample
from ops.benchmark.results import read_level
from tests.fakes.paced_server import paced

MS, S = 1e6, 1e9
CHUNK = re.compile(rb'"(content|reasoning|reasoning_content)":"((?: [0-9a-f]{16})+)"')
ID = re.compile(rb"chatcmpl-([0-9a-f]{16})")
WATTS = [310.0, 290.0]


@dataclass
class Request:
    """One request as somebody saw it. Times in ns of the one clock that both sides read; `tokens` of each chunk; `end` after the last byte."""

    slot: int
    wanted: float
    sent: float
    times: list[float]
    kinds: str
    tokens: list[float]
    reasoning: int
    end: float
    error: str = ""


@dataclass
class Seen:
    """Both views of a level: `client` from its stored requests, `server` from its tokens and its log, in the same order."""

    level: dict[str, Any]
    client: list[Request]
    server: list[Request]


def look(rig: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, own_stamps: bool, options: dict[str, Any], **asked: Any) -> Seen:
    """Measures one level and returns what both sides saw."""
    told: dict[float, bytes] = {}  # t_send: the answer's bytes
    began: list[int] = []
    settle = load.settle

    def keep(record: Any, raw: Any) -> Any:
        told[record.t_send] = b"".join(raw.pieces)
        return settle(record, raw)

    monkeypatch.setattr(load, "settle", keep)
    if own_stamps:
        monkeypatch.setattr(sweep, "_loop_factory", lambda base_url: asyncio.SelectorEventLoop)
    log = folder / "truth"
    with paced(rig, log=str(log), **options) as url:
        settings = presets.settings("custom", base_url=url, model="paced", seed=7, gpu_count=2, **asked)
        result = sweep.run(settings, runs_folder=folder, gpus=lambda: [GpuSample(i, power_w=watts) for i, watts in enumerate(WATTS)],
                           emit=lambda type, data: began.append(time.perf_counter_ns()) if str(type) == "sweep.level_started" else None)
        urllib.request.urlopen(f"{url}/stats").close()  # it writes its log out for this
    level = result.levels[0]
    _, records = read_level(folder / result.run_id / f"{'r' if level['load'] == 'open' else 'c'}{level['value']:g}.npz")
    # what is stored counts from the level's start; the one with the first request's bytes says when that was
    sent = sorted(at for at in told if at >= began[0])
    t0 = sent[0] - min(record.t_send for record in records)
    over = {int(read): int(last) for read, _, last, _ in (line.split() for line in log.read_text().splitlines())}
    client, server = [], []
    for record in records:
        assert record.t_end is not None
        answer = told[record.t_send + t0]
        times = [float(at + t0) for at in record.times]
        client.append(Request(record.slot, record.t_sched + t0, record.t_send + t0, times, record.kinds, _lawful(record.output_tokens, len(times)),
                              record.reasoning_tokens or 0, record.t_end + t0, record.error_kind))
        texts = [(field, text.split()) for field, text in CHUNK.findall(answer)]
        found = ID.search(answer)
        read = int(found[1], 16) if found else int(record.t_send + t0)  # refused: nothing says when it came
        server.append(Request(record.slot, client[-1].wanted, read, [float(int(words[0], 16)) for _, words in texts],
                              "".join("c" if field == b"content" else "r" for field, _ in texts), [len(words) for _, words in texts],
                              sum(len(words) for field, words in texts if field != b"content"),
                              over.get(read, client[-1].end), "" if read in over else "cut" if found else "http"))
    return Seen(level, client, server)


def _lawful(total: int | None, chunks: int) -> list[float]:
    """Tokens of each chunk where only their sum is told: one in the first, the others share the rest."""
    return [] if not chunks or total is None else [1.0] + [(total - 1) / (chunks - 1)] * (chunks - 1) if chunks > 1 else [float(total)]


def window(requests: Sequence[Request], level: dict[str, Any]) -> tuple[float, float]:
    """Closed: from C in flight to fewer. Open: from a latency (P90) after the first arrival to the last one."""
    if level["load"] == "open":
        took = [one.times[-1] - one.wanted for one in requests if not one.error]
        return min(one.wanted for one in requests) + int(percentile(took, 90)), max(one.wanted for one in requests)
    slots = [[one for one in requests if one.slot == slot] for slot in range(level["value"])]
    return max(min(one.sent for one in slot) for slot in slots), min(max(one.end for one in slot) for slot in slots)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def shown(values: Sequence[float], percent: int) -> float | None:
    """As it may be told: no P90 of fewer than 20, no P99 of fewer than 100."""
    return None if len(values) < {50: 2, 90: 20, 99: 100}[percent] else percentile(values, percent)


def numbers(requests: Sequence[Request], level: dict[str, Any], slos: dict[str, float], within: tuple[float, float]) -> dict[str, Any]:
    """Everything that a level tells, by its definition."""
    good = [one for one in requests if not one.error]
    start, end = within
    seconds, whole = (end - start) / S, (max(one.end for one in requests) - min(one.sent for one in requests)) / S
    tpots = [(one.times[-1] - one.times[0]) / (sum(one.tokens) - 1) for one in good]
    done = [(one, tpot) for one, tpot in zip(good, tpots, strict=True) if start <= one.end <= end]
    met = [one for one, tpot in done if (one.times[0] - one.sent) / MS <= slos["ttft_ms"] and tpot / MS <= slos["tpot_ms"]
           and (one.times[-1] - one.sent) / S <= slos["e2e_s"]]
    tokens = sum(sum(one.tokens) for one in good)
    thought = sum(one.reasoning for one in good)
    steady = sum(n for one in good for at, n in zip(one.times, one.tokens, strict=True) if start <= at <= end) / seconds
    made: dict[str, Any] = {
        "finished": len(good), "errors": len(requests) - len(good), "errors_by_kind": dict(Counter(one.error for one in requests if one.error)),
        "error_rate": 1 - len(good) / len(requests), "output_tokens": tokens, "reasoning_tokens": thought, "content_tokens": tokens - thought,
        "chunks": sum(len(one.times) for one in good), "tokens_per_chunk": tokens / sum(len(one.times) for one in good),
        "steady_s": seconds, "whole_s": whole, "steady_output_tok_s": steady, "whole_output_tok_s": tokens / whole,
        "output_tok_s": steady, "output_tok_s_per_gpu": steady / 2, "steady_requests_s": len(done) / seconds, "whole_requests_s": len(good) / whole,
        "goodput_s": len(met) / seconds, "goodput_left_out": 0, "interactivity_tok_s_user": S / percentile(tpots, 50),
        "power_mean_w": sum(WATTS), "energy_j": sum(WATTS) * seconds, "tokens_per_joule": steady / sum(WATTS),
        "offered_s": sum(1 for one in requests if start <= one.wanted <= end) / seconds if level["load"] == "open" else None,
        "achieved_s": len(done) / seconds if level["load"] == "open" else None,
        "queue_max_ms": max(one.sent - one.wanted for one in requests) / MS,
    }
    took = [one.times[-1] - one.sent for one in good]
    made["spread_p99_p50"] = None if shown(took, 99) is None else percentile(took, 99) / percentile(took, 50)
    for name, unit, scale, values in (
            ("ttft", "ms", MS, [one.times[0] - one.sent for one in good]),
            ("ttfc", "ms", MS, [one.times[one.kinds.index("c")] - one.sent for one in good]),
            ("e2e", "s", S, took),
            ("icl", "ms", MS, [b - a for one in good for a, b in pairwise(one.times)]),
            ("tpot", "ms", MS, tpots),
            ("queue", "ms", MS, [one.sent - one.wanted for one in requests]),
            ("e2e_from_schedule", "s", S, [one.times[-1] - one.wanted for one in good])):
        made |= {f"{name}_n": len(values), f"{name}_mean_{unit}": statistics.fmean(values) / scale}
        made |= {f"{name}_p{p}_{unit}": None if (value := shown(values, p)) is None else value / scale for p in (50, 90, 99)}
    return made


def hold(seen: Seen, slos: dict[str, float], *, per_chunk: int = 1) -> None:
    """Same numbers from the same stamps; from the server's within the difference of the stamps."""
    level, client, server = seen.level, seen.client, seen.server
    from_client = numbers(client, level, slos, window(client, level))
    for name, value in from_client.items():
        assert level[name] == (pytest.approx(value, rel=1e-8, abs=1e-9) if isinstance(value, float) else value), name
    assert [one.error for one in client] == [one.error for one in server]  # whom the server let down, and how
    if level["load"] == "closed":  # a slot's next request was wanted at the very moment when the one before was over
        assert len({one.wanted for one in client} - {one.end for one in client}) == level["value"]
        start, end = window(client, level)
        within = [start, *(one.wanted for one in client if start <= one.wanted < end)]
        assert {sum(one.wanted <= at < one.end for one in client) for at in within} == {level["value"]}
        assert sum(one.wanted <= end < one.end for one in client) == level["value"] - 1
    good = [(ours, theirs) for ours, theirs in zip(client, server, strict=True) if not ours.error]
    delays = [at - left for ours, theirs in good for at, left in zip(ours.times, theirs.times, strict=True)]
    assert all(ours.kinds == theirs.kinds for ours, theirs in good) and min(delays) >= -20_000  # the kernel's clock is known to microseconds
    assert all(ours.sent <= theirs.sent for ours, theirs in good)
    assert statistics.median(delays) < (1 * MS if level["stamps"] == "kernel" else 4 * MS)
    error = max(map(abs, (*delays, *(theirs.sent - ours.sent for ours, theirs in good), *(theirs.end - ours.end for ours, theirs in good))))
    truth = numbers(server, level, slos, window(server, level))
    for name, value in truth.items():
        if name.startswith("queue") or name.endswith("_n") or isinstance(value, int | dict) or value is None:
            assert level[name] == value or name.startswith("queue"), name
        elif name.split("_")[0] in ("ttft", "ttfc", "e2e", "icl", "tpot"):
            assert abs(level[name] - value) * (MS if name.endswith("_ms") else S) <= 2 * error + 1, name
        elif name in ("steady_s", "whole_s"):
            assert abs(level[name] - value) * S <= 2 * error + 1, name
    # what falls on a window's edge may fall on the other side of it
    edges = [at for one in server if not one.error for at in (*one.times, one.end)]
    near = sum(1 for at in edges for edge in window(server, level) if abs(at - edge) <= 2 * error) * per_chunk + 2 * level["value"] * (per_chunk - 1)
    for name, of in (("steady_output_tok_s", "steady_s"), ("steady_requests_s", "steady_s"), ("whole_output_tok_s", "whole_s"),
                     ("whole_requests_s", "whole_s")):
        slack = 0.0 if name.startswith("whole") else near
        assert abs(level[name] * level[of] - truth[name] * truth[of]) <= slack + 1e-6, name
    assert level["output_tok_s_per_gpu"] == pytest.approx(level["steady_output_tok_s"] / 2)


Look = Callable[..., Seen]
SLOS = {"ttft_ms": 2000.0, "tpot_ms": 200.0, "e2e_s": 0.4}


@pytest.fixture
def seen(rig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    def once(*, own_stamps: bool = False, options: dict[str, Any], **asked: Any) -> Seen:
        return look(rig, tmp_path, monkeypatch, own_stamps=own_stamps, options={"rate": 200, "ttft_ms": 15, **options},
                    **{"slos": SLOS, "max_tokens": 12, **asked})

    return once


def test_a_closed_loop_of_reasoning_streams_with_several_tokens_a_chunk(seen: Look) -> None:
    found = seen(options={"reasoning": 2, "per_chunk": 3}, concurrencies=[8], requests=110)
    assert (found.level["stamps"], found.level["tokens_per_chunk"], found.level["reasoning_tokens"]) == ("kernel", 3, 110 * 6)
    hold(found, SLOS, per_chunk=3)


def test_a_rate_with_events_in_two_segments_and_comments(seen: Look) -> None:
    found = seen(options={"split": 1, "ping": 1, "reasoning": 3, "reasoning_field": "reasoning_content"}, rates=[100.0], requests=110)
    assert found.level["load"] == "open" and found.level["errors"] == 0
    hold(found, SLOS)


def test_requests_that_fail_are_cut_or_stall_with_our_own_stamps(seen: Look) -> None:
    found = seen(own_stamps=True, options={"fail_every": 9, "cut_every": 7, "stall_every": 10, "stall_ms": 500}, concurrencies=[8], requests=130)
    assert found.level["stamps"] == "own" and set(found.level["errors_by_kind"]) == {"http", "cut"} and "errors" in found.level["marks"]
    assert 0 < found.level["goodput_s"] < found.level["steady_requests_s"]  # those that stalled met no limit of their latency
    hold(found, SLOS)


@pytest.mark.slow
@pytest.mark.parametrize("own_stamps", [False, True], ids=["kernel", "own"])
@pytest.mark.parametrize("asked", [{"concurrencies": [2]}, {"concurrencies": [24]}, {"rates": [60.0]}, {"rates": [120.0], "max_in_flight": 9}],
                         ids=["c2", "c24", "r60", "r120-capped"])
@pytest.mark.parametrize("options", [
    {}, {"reasoning": 4, "per_chunk": 2, "role": 0}, {"split": 1, "ping": 1, "role": 2, "sync": 1}, {"pad": 3000, "reasoning": 1},
    {"fail_every": 6, "stall_every": 9, "stall_ms": 400}, {"cut_every": 5, "split": 1},
], ids=["plain", "reasoning", "split", "padded", "failing", "cut"])
def test_every_number_of_a_paced_level_is_the_servers_own(seen: Look, options: dict[str, Any], asked: dict[str, Any], own_stamps: bool) -> None:
    found = seen(own_stamps=own_stamps, options={"ttft_ms": 20, **options}, requests=150, **asked)
    assert found.level["stamps"] == ("own" if own_stamps else "kernel")
    hold(found, SLOS, per_chunk=options.get("per_chunk", 1))
