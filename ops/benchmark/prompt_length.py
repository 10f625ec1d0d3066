"""How many words make a prompt of so many tokens on this server: asked of its `/tokenize`, or read off the usage of two short requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from ops.benchmark import endpoint
from ops.benchmark.chat_client import ChatClient
from ops.benchmark.presets import SweepSettings
from ops.benchmark.prompts import Messages, SyntheticPrompts, as_text
from ops.jobs.errors import OpsError

SAMPLES = 3  # prompts of each of the two lengths: nonces differ by a token or two
ROUNDS = 2
ASK_S = 10.0
POLL_S = 0.1  # cancel
LEAST_SLOPE, MOST_SLOPE = 0.5, 20.0  # tokens for a word: what counts otherwise does not count words


@dataclass(frozen=True, slots=True)
class PromptLength:
    """`words` a prompt, expected to make `tokens` (the chat template's own included); `by`: "tokenize", "usage" or "guess"."""

    words: int
    tokens: float | None
    by: str


async def calibrate(client: ChatClient, settings: SweepSettings, *, api_key: str = "",
                    cancel: Callable[[], bool] = lambda: False) -> PromptLength | None:
    """Finds the words for `settings.prompt_tokens`; None where it was cancelled. Raises OpsError where the server refuses both ways of asking."""
    wanted = settings.prompt_tokens or 0
    with endpoint.client(api_key=api_key) as http:
        by = "tokenize" if _tokenize(http, settings, _sample(settings, 8, 0)) is not None else "usage"

        async def tokens_of(words: int) -> float | None:
            counts = []
            for i in range(SAMPLES if by == "tokenize" else 1):
                if cancel():
                    return None
                prompt = _sample(settings, words, i)
                counts.append(_tokenize(http, settings, prompt) if by == "tokenize" else await _usage(client, settings, prompt, cancel))
            known = [count for count in counts if count is not None]
            return sum(known) / len(known) if known else None

        low = max(1, wanted // 4)
        high = max(low + 8, round(wanted * 0.7))
        at_low, at_high = await tokens_of(low), await tokens_of(high)
        if cancel():
            return None
        slope = None if at_low is None or at_high is None else (at_high - at_low) / (high - low)
        if slope is None or at_high is None or not LEAST_SLOPE <= slope <= MOST_SLOPE:
            return PromptLength(max(1, round((wanted - 45) / 1.3)), None, "guess")
        words, got = high, at_high
        for _ in range(ROUNDS):
            better = min(max(1, round(words + (wanted - got) / slope)), math.ceil(wanted / LEAST_SLOPE))
            if better == words:
                break
            measured = await tokens_of(better)
            if measured is None:
                break
            words, got = better, measured
    return PromptLength(words, got, by)


def _sample(settings: SweepSettings, words: int, index: int) -> Messages:
    return SyntheticPrompts(settings.seed, words).messages("length", -1000 - 10 * words - index)


def _tokenize(http: httpx.Client, settings: SweepSettings, prompt: Messages) -> int | None:
    """The server's own count with its chat template, or None where it has no `/tokenize`."""
    body: dict[str, Any] = {"model": settings.model}
    body |= {"prompt": as_text(prompt)} if settings.endpoint_kind == "completions" else {"messages": prompt, "add_generation_prompt": True}
    try:
        status, said = endpoint.ask(http, "POST", f"{settings.base_url}/tokenize", timeout_s=ASK_S, json=body)
    except httpx.HTTPError:
        return None
    document = endpoint.as_json(said) if status == 200 else None
    count = document.get("count") if isinstance(document, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 2**31 else None


async def _usage(client: ChatClient, settings: SweepSettings, prompt: Messages, cancel: Callable[[], bool]) -> int | None:
    """`usage.prompt_tokens` of a request for one token; None where it was cancelled. Raises OpsError if the server refuses it."""
    asked: dict[str, Any] = {"prompt": as_text(prompt)} if settings.endpoint_kind == "completions" else {"messages": prompt}
    body = {**asked, "max_tokens": 1, "temperature": 0.0, "stream_options": {"include_usage": True}, **settings.extra_body}
    request = asyncio.create_task(client.complete(body, timeout_s=settings.request_timeout_s))
    while not request.done():
        await asyncio.wait([request], timeout=POLL_S)
        if cancel() and not request.done():
            request.cancel()
            await asyncio.wait([request])
            return None
    record, _ = request.result()
    if record.error_kind and record.status != 200:
        raise OpsError(f"{settings.base_url} refused a prompt of about {settings.prompt_tokens} tokens", why=record.error,
                       kind=f"request_{record.error_kind}", hint="Does it fit into the model's context?")
    return record.prompt_tokens
