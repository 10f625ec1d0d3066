"""Our transport, as a sweep uses it: connections opened before, all requests handed over at once, read after the streams' end."""

from __future__ import annotations

import asyncio
import time

from benchmarks.clients.measured import Measured, body


def measure(url: str, streams: int, tokens: int, stamps: str = "kernel") -> Measured:
    from ops.benchmark.socket_loop import new_event_loop

    if stamps == "uvloop":
        from uvloop import new_event_loop  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_load(url, streams, tokens, stamps == "kernel"))


async def _load(url: str, streams: int, tokens: int, kernel: bool) -> Measured:
    from ops.benchmark.chat_client import ChatClient
    from ops.benchmark.chat_stream import events, read_in_steps
    from ops.benchmark.stamped_connection import RawResponse

    client = ChatClient(url, "paced", kernel_stamps=kernel)
    connections = await client.open(streams)
    request = client.request_bytes(body(tokens))
    ended: list[tuple[int, RawResponse]] = []
    over = asyncio.Event()
    await asyncio.sleep(0.1)
    cpu = time.process_time()

    def start(index: int) -> None:
        def on_end(raw: RawResponse) -> None:
            ended.append((sent, raw))
            if len(ended) == streams:
                over.set()

        sent = connections[index].send(request, on_end)

    for index in range(streams):
        start(index)
    await over.wait()
    for _, raw in ended:
        for _ in read_in_steps(raw):
            pass
    cpu = time.process_time() - cpu
    measured = Measured(cpu)
    for sent, raw in ended:
        measured.add_stream(sent, events(raw))
    for connection in connections:
        connection.close()
    return measured
