"""The loop that one writes first: httpx `aiter_lines`, `json.loads` for each line, the stamp when the line has come out."""

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
    import httpx

    got: list[tuple[int, list[tuple[int, bytes]]]] = []
    limits = httpx.Limits(max_connections=streams, max_keepalive_connections=streams)
    async with httpx.AsyncClient(limits=limits, timeout=600, trust_env=False) as client:
        await asyncio.gather(*(client.get(f"{url}/health") for _ in range(streams)))

        async def one() -> None:
            chunks: list[tuple[int, bytes]] = []
            sent = perf_counter_ns()
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body(tokens)) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    stamp = perf_counter_ns()
                    event = json.loads(line[6:])
                    if event["choices"] and event["choices"][0]["delta"].get("content"):
                        chunks.append((stamp, line.encode()))
            got.append((sent, chunks))

        cpu = time.process_time()
        await asyncio.gather(*(one() for _ in range(streams)))
        cpu = time.process_time() - cpu
    measured = Measured(cpu)
    for sent, chunks in got:
        measured.add_stream(sent, chunks)
    return measured
