"""The request function of `vllm bench serve` itself, out of an installed vLLM's file, on asyncio's own loop as that tool runs.

It keeps times relative to a request's start and no ids, so its delays can be told against the server's times in the text, its TTFT error cannot.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from typing import Any

from benchmarks.clients.measured import Measured, body

DIGITS = 17  # of a token's text: a space and 16


def measure(url: str, streams: int, tokens: int, file: str) -> Measured:
    """`file`: vllm/benchmarks/lib/endpoint_request_func.py."""
    found = importlib.util.spec_from_file_location("endpoint_request_func", file)
    if found is None or found.loader is None:
        raise FileNotFoundError(file)
    theirs = importlib.util.module_from_spec(found)
    sys.modules[found.name] = theirs  # its dataclasses look themselves up there
    found.loader.exec_module(theirs)
    return asyncio.run(_load(theirs, url, streams, tokens))


async def _load(theirs: Any, url: str, streams: int, tokens: int) -> Measured:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=streams, limit_per_host=streams, keepalive_timeout=60)
    prompt = body(tokens)["messages"][0]["content"]
    asked = theirs.RequestFuncInput(prompt=prompt, api_url=f"{url}/v1/chat/completions", prompt_len=8, output_len=tokens, model="paced")
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*(_get(session, f"{url}/health") for _ in range(streams)))
        cpu = time.process_time()
        outputs = await asyncio.gather(*(theirs.async_request_openai_chat_completions(asked, session) for _ in range(streams)))
        cpu = time.process_time() - cpu
    measured = Measured(cpu)
    for output in outputs:
        if not output.success or len(output.itl) != tokens:  # the event with the role counts as its first token
            raise RuntimeError(f"A request went wrong: {output.error or len(output.itl)}")
        at = output.start_time + output.ttft
        for i, gap in enumerate(output.itl):
            at += gap
            measured.add_chunk(int(at * 1e9), int(output.generated_text[DIGITS * i:DIGITS * (i + 1)], 16))
    return measured


async def _get(session: Any, url: str) -> None:
    async with session.get(url) as response:
        await response.read()
