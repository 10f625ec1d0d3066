"""What does our load client cost, next to the same loop with httpx `aiter_lines` and JSON per line? Both in one run, as a ratio.

    python benchmarks/client_cost.py [--concurrency 32,128] [--rate 20] [--tokens 60] [--rounds 3] [--realtime]

Each client runs in a process of its own, pinned to one core; the rig (benchmarks/rig/paced_server.c, compiled here) is pinned to another. All
streams send on one common tick, as an engine step does. For each chunk: delay = client's stamp - the server's own, which stands in the token.
CPU is the client process's, over the load only. Rounds alternate the clients. The figures are of this machine: look at the ratios. On a machine
that does other work too, `--realtime` (needs root) puts server and client before everything else; without it the delays are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from ops.benchmark.metrics import percentile  # noqa: E402
from tests.fakes.paced_server import compile_rig, paced  # noqa: E402


async def with_ours(url: str, concurrency: int, tokens: int) -> dict[str, Any]:
    """Our client: the segments are read after the load, as a sweep does."""
    from ops.benchmark.chat_client import ChatClient
    from ops.benchmark.chat_stream import events
    from ops.benchmark.stamped_connection import RawResponse

    client = ChatClient(url, "paced")
    connections = await client.open(concurrency)
    request = client.request_bytes(body(tokens))
    ended: list[tuple[int, RawResponse]] = []
    over = asyncio.Event()
    cpu = time.process_time()

    def start(index: int) -> None:
        def on_end(raw: RawResponse) -> None:
            ended.append((sent, raw))
            if len(ended) == concurrency:
                over.set()

        sent = connections[index].send(request, on_end)

    for index in range(concurrency):
        start(index)
    await over.wait()
    delays, ttfts = [], []
    for sent, raw in ended:  # within the CPU that is counted: it is part of the work
        first = True
        for stamp, data in events(raw):
            if b'"content":" ' not in data:
                continue
            truth, arrival = truth_in(data)
            delays.append(stamp - truth)
            if first:
                ttfts.append((stamp - sent) - (truth - arrival))
                first = False
    cpu = time.process_time() - cpu
    for connection in connections:
        connection.close()
    return {"cpu_s": cpu, "delays": delays, "ttft_errors": ttfts}


async def with_httpx(url: str, concurrency: int, tokens: int) -> dict[str, Any]:
    """The loop that one writes first: `aiter_lines`, `json.loads` for each line, the stamp when the line has come out."""
    import httpx

    delays: list[int] = []
    ttfts: list[int] = []
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:
        await asyncio.gather(*(client.get(f"{url}/health") for _ in range(concurrency)))

        async def one() -> None:
            first = True
            sent = time.perf_counter_ns()
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body(tokens)) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    stamp = time.perf_counter_ns()
                    event = json.loads(line[6:])
                    if not event["choices"] or not event["choices"][0]["delta"].get("content"):
                        continue
                    truth, arrival = int(event["choices"][0]["delta"]["content"].split()[0], 16), int(event["id"][9:], 16)
                    delays.append(stamp - truth)
                    if first:
                        ttfts.append((stamp - sent) - (truth - arrival))
                        first = False

        cpu = time.process_time()
        await asyncio.gather(*(one() for _ in range(concurrency)))
        cpu = time.process_time() - cpu
    return {"cpu_s": cpu, "delays": delays, "ttft_errors": ttfts}


def body(tokens: int) -> dict[str, Any]:
    return {"model": "paced", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens,
            "messages": [{"role": "user", "content": "x" * 200}]}


def truth_in(data: bytes) -> tuple[int, int]:
    """(when the first token of this event left, when the request had been read), both from the event."""
    at = data.index(b'"content":" ') + 12
    identity = data.index(b"chatcmpl-") + 9
    return int(data[at:at + 16], 16), int(data[identity:identity + 16], 16)


CLIENTS = {"ours": with_ours, "httpx": with_httpx}


def client_process(name: str, url: str, concurrency: int, tokens: int, realtime: bool) -> None:
    """One measurement, in its own process: prints JSON."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        measured = runner.run(CLIENTS[name](url, concurrency, tokens))
    delays, errors = sorted(measured["delays"]), sorted(measured["ttft_errors"])
    print(json.dumps({
        "chunks": len(delays), "cpu_s": measured["cpu_s"], "delay_p50_ms": (percentile(delays, 50) or 0) / 1e6,
        "delay_p99_ms": (percentile(delays, 99) or 0) / 1e6, "ttft_error_p50_ms": (percentile(errors, 50) or 0) / 1e6,
        "ttft_error_p99_ms": (percentile(errors, 99) or 0) / 1e6,
    }))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="32,128")
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--realtime", action="store_true", help="real-time class for server and client (root)")
    parser.add_argument("--client", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        client_process(given.client[0], given.client[1], int(given.concurrency), given.tokens, given.realtime)
        return
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program = compile_rig(Path(folder))
        os.sched_setaffinity(0, {cores[0]})  # the rig inherits both; each client pins itself to another core
        if given.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(30))
        with paced(program, rate=given.rate, tokens=given.tokens, ttft_ms=50, sync=1) as url:
            os.sched_setaffinity(0, set(cores))
            if given.realtime:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            print(f"rate {given.rate:g} chunks/s a stream, {given.tokens} chunks, all streams on one tick, median of {given.rounds} rounds\n")
            print("| C | client | CPU s per 1M chunks | delay p50 / p99 ms | TTFT error p50 / p99 ms |\n| ---: | --- | ---: | ---: | ---: |")
            for concurrency in (int(part) for part in given.concurrency.split(",")):
                table(url, concurrency, given)


def table(url: str, concurrency: int, given: argparse.Namespace) -> None:
    """Rows of one concurrency: each client, then ours as a share of httpx."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
    for i in range(given.rounds):
        for name in CLIENTS if i % 2 == 0 else reversed(list(CLIENTS)):
            done = subprocess.run([sys.executable, __file__, "--client", name, url, "--concurrency", str(concurrency), "--tokens", str(given.tokens),
                                   *(["--realtime"] if given.realtime else [])],
                                  capture_output=True, text=True, check=True)
            rounds[name].append(json.loads(done.stdout))
    middle = {name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in rounds.items()}
    for values in middle.values():
        values["cpu"] = values["cpu_s"] / values["chunks"] * 1e6
    for name, values in middle.items():
        print(f"| {concurrency} | {name} | {values['cpu']:.0f} | {values['delay_p50_ms']:.2f} / {values['delay_p99_ms']:.2f} | "
              f"{values['ttft_error_p50_ms']:.2f} / {values['ttft_error_p99_ms']:.2f} |")
    ours, httpx = middle["ours"], middle["httpx"]
    print(f"| {concurrency} | ours / httpx | {ours['cpu'] / httpx['cpu']:.2f} | {ours['delay_p50_ms'] / httpx['delay_p50_ms']:.3f} / "
          f"{ours['delay_p99_ms'] / httpx['delay_p99_ms']:.3f} | "
          f"{ours['ttft_error_p50_ms'] / httpx['ttft_error_p50_ms']:.3f} / {ours['ttft_error_p99_ms'] / httpx['ttft_error_p99_ms']:.3f} |")


if __name__ == "__main__":
    main()
