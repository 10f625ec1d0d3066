"""aiohttp on uvloop, as cheap as it goes: `iter_any`, one stamp for each piece, events cut by their blank line, no JSON."""

from __future__ import annotations

import asyncio
import json
import time
from time import perf_counter_ns

from benchmarks.clients.measured import Measured, body


def measure(url: str, streams: int, tokens: int) -> Measured:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load(url, streams, tokens))


async def _load(url: str, streams: int, tokens: int) -> Measured:
    import aiohttp

    got: list[tuple[int, list[tuple[int, bytes]]]] = []
    payload = json.dumps(body(tokens)).encode()
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def connect() -> None:
            async with session.get(f"{url}/health") as response:
                await response.read()
                await everyone.wait()  # each keeps its connection until all have one

        async def one() -> None:
            events: list[tuple[int, bytes]] = []
            rest = b""
            sent = perf_counter_ns()
            async with session.post(f"{url}/v1/chat/completions", data=payload, headers=headers) as response:
                async for piece in response.content.iter_any():
                    stamp = perf_counter_ns()
                    *whole, rest = (rest + piece).split(b"\n\n") if rest else piece.split(b"\n\n")
                    for event in whole:
                        events.append((stamp, event))
            got.append((sent, events))

        everyone = asyncio.Event()
        opening = [asyncio.create_task(connect()) for _ in range(streams)]
        await asyncio.sleep(1.0)
        everyone.set()
        await asyncio.gather(*opening)
        cpu = time.process_time()
        await asyncio.gather(*(one() for _ in range(streams)))
        cpu = time.process_time() - cpu
    measured = Measured(cpu)
    for sent, events in got:
        measured.add_stream(sent, events)
    return measured
