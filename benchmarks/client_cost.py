"""What does our load client cost, and how late are its stamps, next to others? All in one run, as ratios, against what is aimed at.

    python -m benchmarks.client_cost [--rounds 5] [--realtime] [--vllm-file PATH] [--only tick,same-instant,capacity] [--quick]

The rig (benchmarks/rig/paced_server.c, compiled here) sends on an exact schedule and writes its own clock into each token. Each client
(benchmarks/clients, benchmarks/rig/epoll_client.c) runs in a process of its own, pinned to one core, the rig to another, in turns. delay: a
chunk's stamp - the server's. CPU: the client process's, from its first request until all streams have been read (ours: usage and all). The
others' packages are installed into a virtual environment of their own (`--venv`). `--vllm-file`: vllm/benchmarks/lib/endpoint_request_func.py of
an installed or unpacked vLLM 0.32; without it its row is left out. On a machine that does other work too, `--realtime` (needs root) puts rig and
client before everything else; without it the delays are the machine's. The figures are of this machine: look at the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from ops.benchmark.metrics import percentile  # noqa: E402
from tests.fakes.paced_server import compile_rig, paced  # noqa: E402

PACKAGES = ["aiohttp==3.14.5", "httpx==0.28.1", "regex", "tqdm", "uvloop==0.23.0"]
TITLES = {
    "ours:kernel": "ours, kernel stamps", "ours:own": "ours, own stamps", "engine:kernel": "our whole load engine, kernel stamps",
    "aiohttp_split": "aiohttp + uvloop, split only", "vllm_request": "request function of vllm bench serve",
    "httpx_lines": "httpx aiter_lines, JSON a line", "epoll_python": "plain sockets, epoll, Python", "epoll_c": "C, epoll",
}
HELD_MS = 5.0
SERVER_PRIORITY, CLIENT_PRIORITY = 30, 20


@dataclass(slots=True)
class Bench:
    """How clients are started."""

    venv: Path
    c_client: Path
    vllm_file: str
    realtime: bool
    load: list[float] = field(default_factory=list)

    def measure(self, name: str, url: str, streams: int, tokens: int) -> dict[str, float]:
        """One load by one client: medians and percentiles in ms, CPU s per million chunks, chunks a second."""
        cores = sorted(os.sched_getaffinity(0))
        priority = str(CLIENT_PRIORITY if self.realtime else 0)
        if name == "epoll_c":
            command = [str(self.c_client), url.rsplit(":", 1)[1], str(streams), str(tokens), priority, str(cores[-1])]
        else:
            ours = name.startswith(("ours", "engine", "epoll"))
            python = sys.executable if ours else str(self.venv / "bin" / "python")
            called = f"{name}:{self.vllm_file}" if name == "vllm_request" else name
            command = [python, "-m", "benchmarks.clients", called, url, str(streams), str(tokens), priority, str(cores[-1])]
        self.load.append(os.getloadavg()[0])
        with tempfile.TemporaryFile("w+") as output:
            subprocess.run(command, stdout=output, check=True, cwd=REPOSITORY, timeout=600)
            output.seek(0)
            told: dict[str, Any] = json.load(output)
        delays, errors = sorted(told["delays"]), sorted(told["ttft_errors"])
        return {"cpu": told["cpu_s"] / len(delays) * 1e6,
                "p50": _ms(percentile(delays, 50)), "p99": _ms(percentile(delays, 99)), "max": _ms(delays[-1]),
                "ttft50": _ms(percentile(errors, 50)), "ttft99": _ms(percentile(errors, 99)), "ttft_max": _ms(errors[-1] if errors else None),
                "rate": len(delays) / (told["span_ns"] / 1e9)}

    def rounds(self, names: list[str], url: str, streams: int, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
        """Medians over rounds; each round has every client, in turning order."""
        kept: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for i in range(rounds):
            for name in names if i % 2 == 0 else reversed(names):
                kept[name].append(self.measure(name, url, streams, tokens))
        return {name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in kept.items()}


def _ms(value: float | None) -> float:
    return float("nan") if value is None else value / 1e6


@contextmanager
def rig(program: Path, realtime: bool, **options: float) -> Iterator[str]:
    """The paced server on the first core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})  # inherited
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(SERVER_PRIORITY))
    with paced(program, **options) as url:
        os.sched_setaffinity(0, set(cores))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        yield url
        with urllib.request.urlopen(f"{url}/stats", timeout=10) as answer:
            stats = json.load(answer)
        if stats["blocked_sends"]:
            print(f"\n(the rig had to wait for a slow client {stats['blocked_sends']} times in {stats['chunks']} chunks)")


@dataclass(slots=True)
class Aims:
    """What is aimed at, with what came out."""

    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def at_most(self, what: str, value: float, limit: float, *, other: float | None = None, share: float | None = None) -> None:
        """`value` at most `limit`; or, where `other` is given, at most `share` of it."""
        if other is None or share is None:
            self.rows.append((f"{what}: at most {limit:g}", f"{value:.3g}", value <= limit))
            return
        self.rows.append((f"{what}: at most {limit:g} ms, or {share:g} of aiohttp's", f"{value:.3g} ms, {value / other:.3f} of it",
                          value <= limit or value <= share * other))

    def more_than(self, what: str, value: float, limit: float) -> None:
        self.rows.append((f"{what}: more than {limit:g}", f"{value:.3g}", value > limit))

    def show(self) -> None:
        print("\n| aim | measured | holds |\n| --- | --- | --- |")
        for what, value, holds in self.rows:
            print(f"| {what} | {value} | {'yes' if holds else '**no**'} |")


def tick(bench: Bench, program: Path, rounds: int, aims: Aims) -> None:
    """All streams on one common tick, 20 chunks a second each: CPU and delays at 128 and 1,024 streams."""
    at_128 = ["ours:kernel", "ours:own", "engine:kernel", "aiohttp_split", *(["vllm_request"] if bench.vllm_file else []), "httpx_lines",
              "epoll_python", "epoll_c"]
    at_1024 = ["ours:kernel", "ours:own", "engine:kernel", "aiohttp_split", "epoll_python", "epoll_c"]
    print("All streams on one tick, 20 chunks a second a stream, 60 chunks each.\n")
    print("| streams | client | CPU s per 1M chunks | delay p50 / p99 / max ms |\n| ---: | --- | ---: | ---: |")
    found: dict[int, dict[str, dict[str, float]]] = {}
    with rig(program, bench.realtime, rate=20, ttft_ms=50, sync=1) as url:
        for streams, names in ((128, at_128), (1024, at_1024)):
            found[streams] = bench.rounds(names, url, streams, 60, rounds)
            for name, of in found[streams].items():
                print(f"| {streams:,} | {TITLES[name]} | {of['cpu']:.1f} | {of['p50']:.3f} / {of['p99']:.3f} / {of['max']:.3f} |", flush=True)
    for streams, own_limit in ((128, 1.0), (1024, 3.0)):
        of = found[streams]
        theirs = of["aiohttp_split"]["p99"]
        aims.at_most(f"delay p99, own stamps, {streams:,} streams", of["ours:own"]["p99"], own_limit, other=theirs, share=0.5)
        aims.at_most(f"delay p99, kernel stamps, {streams:,} streams", of["ours:kernel"]["p99"], 0.2, other=theirs, share=0.1)
    of = found[128]
    for name, share in (("aiohttp_split", 0.8), ("vllm_request", 0.4), ("httpx_lines", 0.2)):
        if name in of:
            for mine in ("ours:kernel", "ours:own"):
                aims.at_most(f"CPU a chunk, {TITLES[mine]} / {TITLES[name]}", of[mine]["cpu"] / of[name]["cpu"], share)
    for streams, of in found.items():  # live seconds, lag probe, records and all
        whole = of["engine:kernel"]["cpu"] / of["aiohttp_split"]["cpu"]
        aims.at_most(f"CPU a chunk at {streams:,} streams, {TITLES['engine:kernel']} / {TITLES['aiohttp_split']}", whole, 0.8)


def same_instant(bench: Bench, program: Path, rounds: int, aims: Aims) -> None:
    """1,024 requests handed over at once, the first token 50 ms after each was read."""
    names = ["ours:kernel", "ours:own", "engine:kernel", "aiohttp_split", "epoll_python", "epoll_c"]
    print("\n1,024 requests at the same instant; first token 50 ms after the server had read the request.\n")
    print("| client | TTFT error p50 / p99 / max ms |\n| --- | ---: |")
    with rig(program, bench.realtime, rate=20, ttft_ms=50, sync=0) as url:
        found = bench.rounds(names, url, 1024, 10, rounds)
    for name, of in found.items():
        print(f"| {TITLES[name]} | {of['ttft50']:.3f} / {of['ttft99']:.3f} / {of['ttft_max']:.3f} |", flush=True)
    for mine in ("ours:kernel", "ours:own"):
        aims.at_most(f"TTFT error p99, {TITLES[mine]} / C, epoll", found[mine]["ttft99"] / found["epoll_c"]["ttft99"], 2)
        aims.at_most(f"TTFT error max, {TITLES[mine]} / C, epoll", found[mine]["ttft_max"] / found["epoll_c"]["ttft_max"], 3)


def capacity(bench: Bench, program: Path, rounds: int, aims: Aims) -> None:
    """The most chunks a second over 128 streams for which the p99 delay stays under HELD_MS: by halving between steps of 10 %."""
    print(f"\nChunks a second over 128 streams with p99 delay under {HELD_MS:g} ms (steps of 10 %; best of {rounds} tries each).\n")
    print("| client | chunks/s held | CPU s per 1M chunks there |\n| --- | ---: | ---: |")
    held: dict[str, float] = {}
    for name in ("ours:own", "aiohttp_split", "epoll_python", "epoll_c"):
        held[name], cpu = most_held(lambda rate, name=name: _try(bench, program, name, rate, rounds))  # type: ignore[misc]
        print(f"| {TITLES[name]} | {held[name]:,.0f} | {cpu:.1f} |", flush=True)
    aims.more_than("chunks/s held, ours (own stamps) / aiohttp + uvloop", held["ours:own"] / held["aiohttp_split"], 1.3)


def _try(bench: Bench, program: Path, name: str, rate: float, rounds: int) -> dict[str, float] | None:
    for _ in range(rounds):
        with rig(program, bench.realtime, rate=rate, ttft_ms=50) as url:
            found = bench.measure(name, url, 128, int(2 * rate))
        if found["p99"] < HELD_MS:
            return found
    return None


def most_held(attempt: Callable[[float], dict[str, float] | None]) -> tuple[float, float]:
    """(chunks a second as they really came, CPU there) at the highest step that holds."""
    steps = [100 * 1.1 ** i for i in range(32)]  # of one stream, a second: to 245,000 over 128
    low, high, best = -1, len(steps), {"rate": 0.0, "cpu": float("nan")}
    while high - low > 1:
        middle = (low + high) // 2
        found = attempt(steps[middle])
        if found is None:
            high = middle
        else:
            low = middle
            best = found if found["rate"] > best["rate"] else best
    return best["rate"], best["cpu"]


def make_venv(venv: Path) -> None:
    """The others' packages, once."""
    mark = venv / "packages"
    if mark.exists() and mark.read_text() == "\n".join(PACKAGES):
        return
    if venv.exists() and not mark.exists() and any(venv.iterdir()):
        raise SystemExit(f"{venv} is not empty and was not made by this benchmark: name another folder with --venv")
    print(f"installing {', '.join(PACKAGES)} into {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    mark.write_text("\n".join(PACKAGES))


PARTS = {"tick": tick, "same-instant": same_instant, "capacity": capacity}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--realtime", action="store_true", help="real-time class for rig and clients (root)")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache" / "roundhouse-client-cost")
    parser.add_argument("--vllm-file", default="")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="one round")
    given = parser.parse_args()
    make_venv(given.venv)
    rounds, aims = 1 if given.quick else given.rounds, Aims()
    with tempfile.TemporaryDirectory() as folder:
        program, c_client = compile_rig(Path(folder)), Path(folder) / "epoll_client"
        subprocess.run(["gcc", "-O2", "-o", str(c_client), str(REPOSITORY / "benchmarks" / "rig" / "epoll_client.c")], check=True)
        bench = Bench(given.venv, c_client, given.vllm_file, given.realtime)
        for part in given.only.split(","):
            PARTS[part](bench, program, min(rounds, 2) if part == "capacity" else rounds, aims)
    aims.show()
    print(f"\n{rounds} rounds in turn, medians; load {min(bench.load):.1f} to {max(bench.load):.1f}; "
          f"{'real-time class' if given.realtime else 'no real-time class'}; {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
