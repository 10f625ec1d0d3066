"""How wrong is the estimate of a warmup half way through it?

    python -m benchmarks.warmup_estimate [--speed 1] [--trials 2000] [--real 8] [--real-speed 5] [--seed 1]

The practice server is started twice (its compile cache cold, then warm), and every line of its log kept with its time: two real timelines. From
these, warmups are made that differ as real ones do, by stretching time by 10 %, and are replayed by clock, line by line, through the parser and
the estimate that a job uses. Half way through such a warmup the estimate of what is left is held against what was left, with one and with five
earlier warmups known, all drawn anew in each trial.

Then whole warmups of real servers, watched as a job watches them, each at a speed of its own (within 10 %): the error of what the job's page said
half way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.pipeline import Context
from ops.practice import box
from ops.records import ServiceRecord
from ops.services import log_lines, starting, state, stopping, warmup
from ops.services.estimate import estimate_s
from ops.services.log_follower import BAR
from ops.services.milestones import Parser
from ops.services.process import ProcessManager
from tests.fakes.real_node import free_port, until

JITTER = 0.10
LIMITS = {5: 0.15, 1: 0.30}  # of the remaining time, with so many earlier warmups
Stretch = Callable[[random.Random], Callable[[int], float]]  # a warmup's factor for the n-th phase


@dataclass(frozen=True)
class Timeline:
    """A warmup: its log's lines (with the states of progress bars between them) and when each was written, in seconds since process start."""

    lines: list[tuple[float, str]]
    total_s: float

    def bounds(self) -> list[float]:
        """When each phase began, and the end of the last."""
        parser = self._parsed()
        return [*(phase.began_s for phase in parser.phases), self.total_s]

    def stretched(self, factor: Callable[[int], float]) -> Timeline:
        """The same warmup with each phase taking `factor` times as long."""
        bounds = self.bounds()
        begun = [0.0]
        for number, (start, end) in enumerate(pairwise(bounds)):
            begun.append(begun[-1] + (end - start) * factor(number))

        def moved(at: float) -> float:
            number = max(i for i, start in enumerate(bounds[:-1]) if start <= at)
            return begun[number] + (at - bounds[number]) * factor(number)

        return Timeline([(moved(at), line) for at, line in self.lines], begun[-1])

    def _parsed(self, until_s: float = float("inf")) -> Parser:
        parser = Parser()
        for at, line in self.lines:
            if at > until_s:
                break
            parser.feed(line, at)
        return parser

    def remembered(self) -> dict[str, Any]:
        """As state.json keeps it."""
        parser = self._parsed()
        parser.answered(self.total_s)
        parser.finish(self.total_s)
        return {"total_s": self.total_s, "cache": parser.cache, "phases": {phase.phase: phase.took_s for phase in parser.phases},
                "bars": {phase.phase: phase.bars for phase in parser.phases if phase.bars}}

    def error_at(self, share: float, history: Sequence[dict[str, Any]]) -> float:
        """The relative error of the estimated remaining time when `share` of the warmup has passed. No estimate counts as wholly wrong."""
        now = share * self.total_s
        guess = estimate_s(self._parsed(now), now, history)
        left = self.total_s - now
        return 1.0 if guess is None else abs(guess - now - left) / left


def record_one(context: Context, record: ServiceRecord) -> Timeline:
    """Starts the practice service and keeps each line of its log with its time until it answers; stops it again."""
    lines: list[tuple[float, str]] = []
    over = threading.Event()
    starting.start(context, record)
    manager = ProcessManager(record)
    zero = time.monotonic() - warmup.age_s(manager.status())
    path = manager.log_path()
    assert path is not None

    def read() -> None:
        splitter = log_lines.Splitter()
        with path.open("rb") as file:
            while not over.is_set():
                if data := file.read(1 << 20):
                    at = time.monotonic() - zero
                    lines.extend((at, line) for line in splitter.feed(data))
                if BAR.match(splitter.unfinished):
                    lines.append((time.monotonic() - zero, splitter.unfinished))
                time.sleep(0.01)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        result = warmup.watch(context, record)
    finally:
        over.set()
        reader.join()
    stopping.stop(context, record)
    return Timeline(lines, result.total_s)


def each_phase(random_: random.Random) -> Callable[[int], float]:
    """Every phase by itself, evenly between 10 % shorter and 10 % longer."""
    factors = [random_.uniform(1 - JITTER, 1 + JITTER) for _ in range(20)]
    return factors.__getitem__


def whole(random_: random.Random) -> Callable[[int], float]:
    """The whole warmup by one factor."""
    factor = random_.uniform(1 - JITTER, 1 + JITTER)
    return lambda number: factor


def each_phase_normal(random_: random.Random) -> Callable[[int], float]:
    """Every phase by itself, normally distributed with a standard deviation of 10 %: now and then much more."""
    factors = [max(0.5, random_.gauss(1, JITTER)) for _ in range(20)]
    return factors.__getitem__


WAYS: dict[str, Stretch] = {
    "each phase, evenly ±10%": each_phase, "the whole warmup, evenly ±10%": whole, "each phase, normal, σ 10%": each_phase_normal,
}


def errors(base: Timeline, stretch: Stretch, earlier: int, trials: int, seed: int) -> list[float]:
    """Of each trial, the error half way."""
    random_ = random.Random(seed)
    pool = [base.stretched(stretch(random_)) for _ in range(max(40, earlier * 8))]
    known = [one.remembered() for one in pool]
    found = []
    for _ in range(trials):
        chosen = random_.sample(range(len(pool)), earlier + 1)
        found.append(pool[chosen[0]].error_at(0.5, [known[i] for i in chosen[1:]]))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def real_errors(context: Context, events: list[tuple[str, dict[str, Any]]], record: ServiceRecord, root: Path, speed: float, count: int,
                random_: random.Random) -> dict[int, list[float]]:
    """Watches `count` + 5 warmups of real servers. Errors half way with one, and with five earlier ones."""
    found: dict[int, list[float]] = {1: [], 5: []}
    for number in range(count + 5):
        box.write_settings(root, speed=speed * random_.uniform(1 - JITTER, 1 + JITTER))
        history = state.warmups(record)
        for earlier in (1, 5) if number >= 5 else ():
            state.change(record, lambda known, kept=history[-earlier:]: known.update(warmups=kept))
            events.clear()
            starting.start(context, record)
            result = warmup.watch(context, record)
            stopping.stop(context, record)
            told = [data for kind, data in events if kind == "step.progress" and data.get("total") is not None]
            half = min(told, key=lambda data: abs(data["done"] - result.total_s / 2))
            left = result.total_s - half["done"]
            found[earlier].append(abs(half["total"] - half["done"] - left) / left)
        if number < 5:
            starting.start(context, record)
            warmup.watch(context, record)
            stopping.stop(context, record)
        else:
            state.change(record, lambda known, kept=history: known.update(warmups=kept))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=1.0, help="of the practice server whose log is replayed")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--real", type=int, default=8, help="warmups of real servers that are estimated, after five that are learned from")
    parser.add_argument("--real-speed", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    events: list[tuple[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="rh-estimate-") as name:
        folder = Path(name)
        paths = NodePaths(folder / "node").make()
        record = box.set_up(paths, folder / "box", speed=asked.speed, port=free_port())
        root = folder / "box"
        context = Context(job="benchmark", params={}, paths=paths, folder=folder, service=record, step="warmup",
                          config=NodeConfig(name="practice", practice=True, gpu_source="practice", practice_root=str(root)),
                          emit=lambda kind, data: events.append((str(kind), json.loads(json.dumps(data)))))
        try:
            bases = {"cold": record_one(context, record), "warm": record_one(context, record)}
            print(f"Two timelines: {bases['cold'].total_s:.1f} s with a cold cache, {bases['warm'].total_s:.1f} s with a warm one, "
                  f"{len(bases['cold'].lines)} lines; load {os.getloadavg()[0]:.1f}\n")
            print(f"| jitter | cache | earlier | median | 90 of 100 | 99 of 100 | worst | within the aim |\n|{' --- |' * 8}")
            for title, way in WAYS.items():
                for cache, base in bases.items():
                    for earlier, limit in LIMITS.items():
                        row(title, cache, earlier, limit, errors(base, way, earlier, asked.trials, asked.seed))
            state.change(record, lambda known: known.pop("warmups", None))
            found = real_errors(context, events, record, root, asked.real_speed, asked.real, random.Random(asked.seed))
            for earlier, limit in LIMITS.items():
                if found[earlier]:
                    row(f"real servers at speed {asked.real_speed:g} ±10%", "warm", earlier, limit, found[earlier])
        finally:
            manager = ProcessManager(record)
            manager.kill()
            until(lambda: not manager.pids(), 30)


def row(title: str, cache: str, earlier: int, limit: float, found: list[float]) -> None:
    """One line of the table."""
    inside = sum(error <= limit for error in found)
    print(f"| {title} | {cache} | {earlier} | {statistics.median(found):.1%} | {percentile(found, 0.9):.1%} | {percentile(found, 0.99):.1%} | "
          f"{max(found):.1%} | {inside / len(found):.1%} of {len(found):,} (aim {limit:.0%}) |", flush=True)


if __name__ == "__main__":
    main()
