"""Our whole load engine, one level of a sweep: live seconds, lag probe, records; all requests at once, each stream read to its last field."""

from __future__ import annotations

import asyncio
import time

from benchmarks.clients.measured import Measured


def measure(url: str, streams: int, tokens: int, stamps: str = "kernel") -> Measured:
    from ops.benchmark.socket_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_load(url, streams, tokens, stamps == "kernel"))


async def _load(url: str, streams: int, tokens: int, kernel: bool) -> Measured:
    from ops.benchmark.chat_client import ChatClient
    from ops.benchmark.chat_stream import events
    from ops.benchmark.load import Level
    from ops.benchmark.presets import LevelPlan, SweepSettings
    from ops.benchmark.request_record import RequestRecord
    from ops.benchmark.stamped_connection import RawResponse

    read: list[tuple[RequestRecord, RawResponse]] = []

    class Kept(Level):
        """A level that also keeps its raw responses, for the server's times in them, and when its first request was about to leave."""

        def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
            self.cpu = time.process_time()
            super()._fill(loop)

        def _note(self, record: RequestRecord, raw: RawResponse, events: int) -> None:
            super()._note(record, raw, events)
            read.append((record, raw))

    plan = LevelPlan("closed", streams, streams)
    settings = SweepSettings(preset="custom", base_url=url, model="paced", concurrencies=[streams], requests=[streams], max_tokens=tokens, burst=True)
    level = Kept(ChatClient(url, "paced", kernel_stamps=kernel), settings, plan, live=lambda second: None)
    outcome = await level.run()
    cpu = time.process_time() - level.cpu
    measured = Measured(cpu, more={"stamps": outcome.client.stamps, "lag_p99_ms": outcome.client.lag_p99_ms,
                                   "kernel_delay_p99_us": outcome.client.kernel_delay_p99_us, "cpu_share": outcome.client.cpu_share})
    for record, raw in read:
        texts = [data for _, data in events(raw) if b'"content":" ' in data]
        if not record.ok or len(texts) != len(record.times):
            raise RuntimeError(f"Request {record.index} went wrong: {record.error_kind} {record.error}")
        measured.add_stream(record.t_send, zip(record.times, texts, strict=True))
    return measured
