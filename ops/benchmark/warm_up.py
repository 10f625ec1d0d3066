"""The requests before a level: they fill what a server fills once, tell how long one takes, and are thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

from ops.benchmark.chat_client import ChatClient
from ops.benchmark.load import POLL_S, Level
from ops.benchmark.metrics import S
from ops.benchmark.presets import LevelPlan, SweepSettings
from ops.benchmark.prompts import Prompts
from ops.benchmark.request_record import ErrorKind, RequestRecord
from ops.jobs.errors import OpsError

DAY_S = 86_400.0
RETRY_AFTER_MOST_S = 120.0  # waited for in one level's warm-up


@dataclass(slots=True)
class WarmUp:
    """What a warm-up showed: mean time of a request in ns (None if none ended well), errors."""

    typical_ns: float | None
    sent: int
    records: list[RequestRecord] = field(default_factory=list)


async def warm_up(client: ChatClient, settings: SweepSettings, plan: LevelPlan, *, cancel: Callable[[], bool],
                  prompts: Prompts | None = None) -> WarmUp:
    """Sends the level's warm-up requests, with prompts of their own; they are thrown away. Raises OpsError if every one failed.

    A server that answers 429 with Retry-After gets that time, at most `RETRY_AFTER_MOST_S` in all, and is asked again; in the level itself it is
    an error like others: a pause there would hide what the server does under this load.
    """
    count = settings.warmup_requests(plan)
    if not count:
        return WarmUp(None, 0)
    slots = min(plan.concurrency or settings.warmup_slots, settings.warmup_slots)
    patience, first = RETRY_AFTER_MOST_S, -1
    while True:
        level = Level(client, settings, LevelPlan("closed", slots, count), prompts=prompts, seed_key=plan.key, first_index=first, step=-1,
                      cancel=cancel)
        outcome = await level.run()
        good = [record for record in outcome.records if record.ok]
        failed = [record for record in outcome.records if record.error_kind]
        wait = max((record.retry_after_s for record in failed if record.retry_after_s is not None), default=None)
        if good or not failed or wait is None or wait > patience or cancel():
            break
        pause = max(wait, 0.5)
        patience -= pause
        first -= count
        until = perf_counter_ns() + int(pause * S)
        while perf_counter_ns() < until and not cancel():
            await asyncio.sleep(min(POLL_S, max(0.0, (until - perf_counter_ns()) / S)))
    if cancel():
        return WarmUp(None, len(outcome.records))
    if failed and not good:
        raise every_request_failed(settings, failed, f"in the warm-up of {plan.name}")
    if outcome.stopped == "time" and not good:  # the level would only wait as long for the same
        raise OpsError(f"No request of the warm-up of {plan.name} ended within {settings.level_seconds + settings.drain_seconds:g} s",
                       kind="nothing_measured", hint="Is the server stuck? Else ask for fewer tokens or more time: --max-tokens, --level-seconds")
    return WarmUp(sum(r.times[-1] - r.t_send for r in good) / len(good) if good else None, len(outcome.records), outcome.records)


def every_request_failed(settings: SweepSettings, failed: list[RequestRecord], when: str) -> OpsError:
    """The error for a server that answers nothing rightly: the first failure tells why."""
    first = failed[0]
    hint = ""
    if first.error_kind == ErrorKind.HTTP and first.status in (400, 422) and settings.output_mode == "fixed":
        hint = "If the server does not know `ignore_eos` and `min_tokens`, measure with natural output length (--natural)"
    elif first.error_kind == ErrorKind.HTTP and first.status in (401, 403):
        hint = "Put the key into an environment variable and name it: --api-key-env NAME"
    elif first.error_kind == ErrorKind.RATE_LIMITED:
        said = f"in {first.retry_after_s:.0f} s" if first.retry_after_s is not None and first.retry_after_s < DAY_S else "later"
        hint = f"The server limits how often it may be asked: try again {said}, or measure it where that limit does not stand in between"
    elif first.error_kind == ErrorKind.NOT_A_STREAM:
        hint = "Does something between here and the server turn streams into plain answers?"
    elif first.error_kind in (ErrorKind.STREAM_ERROR, ErrorKind.CUT):
        hint = "Look at the server's log: it failed while it was answering"
    return OpsError(f"All {len(failed)} requests to {settings.base_url} failed ({when}): {first.error_kind}", why=first.error, hint=hint,
                    kind=f"request_{first.error_kind}", status=first.status)
