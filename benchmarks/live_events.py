"""How long an event takes from its XADD on the agent's side to every page that looks, and what that costs.

    python -m benchmarks.live_events [--clients 1,50,500] [--seconds 10] [--rate 20] [--rounds 3]

Real parts: Redis, uvicorn with the whole console (sessions, SQLite), the recorder, the agent's publisher; raw clients on loopback, in this
process. Each client holds one `/live/?job=` stream. Delay: from just before the publisher's MULTI to the bytes' arrival in the client.
Everything shares this machine's cores, the clients too, so these are upper bounds. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import uvloop

from dashboard.embedded_redis import EmbeddedRedis
from ops.jobs import streams
from ops.jobs.events import Event, EventType
from tests.dashboard.real_console import RealConsole

SENT = re.compile(rb'"sent":(\d+)')


class Page(asyncio.Protocol):
    """One open stream. It only looks for the times in what arrives."""

    def __init__(self, request: bytes, delays: list[int]) -> None:
        self.request, self.delays = request, delays
        self.greeted, self.failed, self.left = False, "", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter_ns()
        data = self.left + data
        if not self.greeted:
            self.greeted = b"event: jobs" in data
            if b"HTTP/1.1 200" not in data and b"HTTP/1.1 " in data:
                self.failed = data[:300].decode(errors="replace")
        found = list(SENT.finditer(data))
        self.delays.extend(now - int(one.group(1)) for one in found)
        self.left = data[found[-1].end():][-64:] if found else data[-64:]


@dataclass
class Measured:
    clients: int
    expected: int
    delivered: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    cpu_us: float  # of the web process, for one delivery
    cpu_share: float  # of one core


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(console: RealConsole, clients: int, *, rate: float, seconds: float) -> Measured:
    """One round, over a job of its own."""
    job, delays, everyone = str(uuid.uuid4()), [], []
    with streams.connect() as client:
        publisher = streams.Publisher(client, "practice")
        claimed = Event(job=job, seq=1, at=time.time(), type=EventType.JOB_CLAIMED, data={"type": "redeploy", "service": "kimi-k25", "steps": []})
        publisher.send(job, [(1, claimed.to_json())])
        await asyncio.sleep(2)  # the recorder makes the job's row
        loop = asyncio.get_running_loop()
        request = (f"GET /live/?job={job} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
                   f"Cookie: roundhouse_session={console.sessions[0]}\r\n\r\n").encode()
        for start in range(0, clients, 25):
            made = [loop.create_connection(lambda: Page(request, delays), "127.0.0.1", console.port) for _ in range(min(25, clients - start))]
            everyone += [page for _, page in await asyncio.gather(*made)]
            for _ in range(600):
                if all(page.greeted or page.failed for page in everyone):
                    break
                await asyncio.sleep(0.05)
        if wrong := [page.failed or "no answer" for page in everyone if not page.greeted]:
            raise SystemExit(f"{len(wrong)} of {clients} clients got no stream, for example:\n{wrong[0]}")
        await asyncio.sleep(1)
        web, count = console.processes["web"].pid, int(rate * seconds)
        before, began = cpu_seconds(web), time.perf_counter()

        def say(number: int) -> None:
            data = {"step": "build", "text": "x" * 100 + "\n", "dropped_bytes": 0, "sent": time.perf_counter_ns()}
            publisher.send(job, [(number, Event(job=job, seq=number, at=time.time(), type=EventType.STEP_LOG, data=data).to_json())])

        for number in range(count):
            await asyncio.to_thread(say, number + 2)
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))
        for _ in range(100):
            if len(delays) >= clients * count:
                break
            await asyncio.sleep(0.05)
        used, took = cpu_seconds(web) - before, time.perf_counter() - began
        for page in everyone:
            page.transport.abort()  # type: ignore[attr-defined]
        done = Event(job=job, seq=count + 2, at=time.time(), type=EventType.JOB_FINISHED, data={"state": "succeeded"})
        publisher.send(job, [(count + 2, done.to_json())])
    await asyncio.sleep(1)
    delays.sort()

    def at(share: float) -> float:
        return delays[min(int(len(delays) * share), len(delays) - 1)] / 1e6 if delays else float("nan")

    return Measured(clients=clients, expected=clients * count, delivered=len(delays), p50_ms=at(0.5), p99_ms=at(0.99), max_ms=at(1),
                    cpu_us=used / max(len(delays), 1) * 1e6, cpu_share=used / took)


def table(rounds: dict[int, list[Measured]]) -> str:
    """Medians over the rounds; deliveries are sums."""
    lines = ["| clients | delivered | p50 ms | p99 ms | max ms | CPU of web per delivery | CPU of web, one core |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    names = ("p50_ms", "p99_ms", "max_ms", "cpu_us", "cpu_share")
    middle = {clients: {name: statistics.median(getattr(one, name) for one in found) for name in names} for clients, found in rounds.items()}
    for clients, found in rounds.items():
        row = middle[clients]
        lines.append(f"| {clients} | {sum(one.delivered for one in found):,} of {sum(one.expected for one in found):,} | {row['p50_ms']:.1f} | "
                     f"{row['p99_ms']:.1f} | {row['max_ms']:.1f} | {row['cpu_us']:.0f} µs | {row['cpu_share']:.0%} |")
    if {50, 500} <= set(middle):
        lines += ["", f"p99 at 500 clients is {middle[500]['p99_ms'] / middle[50]['p99_ms']:.1f} times that at 50."]
    return "\n".join(lines)


def main() -> int:
    """0 if every event reached every client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,50,500", help="how many streams at once, separated by commas (at most 900)")
    parser.add_argument("--seconds", type=float, default=10, help="length of a round (at most 60)")
    parser.add_argument("--rate", type=float, default=20, help="events a second (at most 200)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print every round as JSON instead")
    asked = parser.parse_args()
    counts = [int(text) for text in asked.clients.split(",")]
    if max(counts) > 900 or asked.seconds > 60 or asked.rate > 200 or asked.rounds > 10:
        parser.error("beyond the limits of this benchmark")
    folder = Path(tempfile.mkdtemp(prefix="rh-bench-"))
    server = EmbeddedRedis(folder / "redis").start()
    os.environ["ROUNDHOUSE_REDIS_URL"] = server.url()
    console = None
    try:
        (folder / "state").mkdir()
        console = RealConsole(folder / "state", server.url(), users=1, ROUNDHOUSE_STREAMS_PER_USER="1000")
        console.start_web()
        console.start_recorder()
        rounds: dict[int, list[Measured]] = {clients: [] for clients in counts}
        for number in range(asked.rounds):
            for clients in counts:
                print(f"round {number + 1}, {clients} clients; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the clients must not be what is measured
                    rounds[clients].append(runner.run(measure(console, clients, rate=asked.rate, seconds=asked.seconds)))
        if asked.json:
            print(json.dumps([vars(one) for found in rounds.values() for one in found], indent=1))
        else:
            print(table(rounds))
        return 0 if all(one.delivered == one.expected for found in rounds.values() for one in found) else 1
    finally:
        if console is not None:
            console.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
