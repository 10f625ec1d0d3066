"""The loop that serves streaming sockets itself, and the kernel's stamps: real sockets, real clocks."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from ops.benchmark.chat_client import ChatClient
from ops.benchmark.chat_stream import events
from ops.benchmark.kernel_stamps import KernelClock
from ops.benchmark.socket_loop import SocketLoop, new_event_loop
from ops.benchmark.stamped_connection import PlainConnection, RawResponse
from tests.fakes.paced_server import paced
from tests.fakes.scripted_server import good_stream, response, scripted


def run(work: Callable[[SocketLoop], Coroutine[Any, Any, Any]]) -> Any:
    """`work(loop)` in a loop of its own."""

    async def inside() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SocketLoop)
        return await asyncio.wait_for(work(loop), 30)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(inside())


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection: ours (not blocking), theirs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


async def answered(connection: PlainConnection, theirs: socket.socket, *parts: bytes) -> RawResponse:
    ended: asyncio.Future[RawResponse] = asyncio.get_running_loop().create_future()
    connection.send(b"POST / HTTP/1.1\r\n\r\n", ended.set_result)
    for part in parts:
        theirs.sendall(part)
        await asyncio.sleep(0.005)
    return await ended


def test_streams_are_stamped_by_the_kernel_between_their_leaving_and_our_reading(rig: Path) -> None:
    """The server's own times stand in the tokens: no stamp may be before them."""

    async def work(loop: SocketLoop) -> tuple[list[int], list[int]]:
        client = ChatClient(url, "paced")
        connections = await client.open(8)
        ended: list[RawResponse] = []
        over = asyncio.Event()

        def on_end(raw: RawResponse) -> None:
            ended.append(raw)
            if len(ended) == len(connections):
                over.set()

        for connection in connections:
            assert isinstance(connection, PlainConnection) and connection.kernel_stamps
            connection.send(client.request_bytes({"stream": True, "max_tokens": 20, "messages": []}), on_end)
        await over.wait()
        for connection in connections:
            connection.close()
        delays = [stamp - int(data[data.index(b'" ') + 2:][:16], 16) for raw in ended for stamp, data in events(raw) if b'"content":" ' in data]
        return delays, list(loop.direct.delays)

    with paced(rig, rate=400, ttft_ms=5, sync=1) as url:
        delays, waited = run(work)
    assert len(delays) == 8 * 20 and min(delays) > -20_000  # clocks' distance is known to a few microseconds
    assert waited and min(waited) >= 0  # a busy machine reads several at once


def test_without_kernel_stamps_the_stamps_are_our_own() -> None:
    async def work(loop: SocketLoop) -> RawResponse:
        with pair() as (ours, theirs):
            connection = PlainConnection(ours, loop.direct, kernel_stamps=False)
            before = perf_counter_ns()
            raw = await answered(connection, theirs, response(200, {"a": 1}))
            assert before < raw.stamps[0] < perf_counter_ns() and not connection.kernel_stamps and not loop.direct.delays
            connection.close()
            return raw

    assert run(work).complete


def test_a_request_larger_than_the_socket_takes_is_sent_whole() -> None:
    async def work(loop: SocketLoop) -> tuple[int, bool]:
        with pair() as (ours, theirs):
            connection = PlainConnection(ours, loop.direct)
            ended: asyncio.Future[RawResponse] = loop.create_future()
            connection.send(b"x" * 20_000_000, ended.set_result)

            def take() -> int:
                taken = 0
                while taken < 20_000_000:
                    taken += len(theirs.recv(1 << 20))
                theirs.sendall(response(200, {}))
                return taken

            taken = await asyncio.to_thread(take)
            raw = await ended
            connection.close()
            return taken, raw.complete

    assert run(work) == (20_000_000, True)


def test_the_next_request_leaves_from_within_the_end_of_the_last_one_and_timers_go_on() -> None:
    """Streaming never lets other work of the loop starve: a timer and a thread's call come through while chunks flow."""

    async def work(loop: SocketLoop) -> tuple[int, int, list[str]]:
        heard: list[str] = []
        client = ChatClient(server.url, "m")
        connection = await client.connect()
        over: asyncio.Future[None] = loop.create_future()
        count = 0

        def on_end(raw: RawResponse) -> None:
            nonlocal count
            count += raw.complete
            if count == 50:
                over.set_result(None)
            else:
                connection.send(client.request_bytes({}), on_end)

        loop.call_later(0.01, heard.append, "timer")
        threading.Timer(0.01, loop.call_soon_threadsafe, (heard.append, "thread")).start()
        connection.send(client.request_bytes({}), on_end)
        await over
        await asyncio.sleep(0.05)
        connection.close()
        return count, len(loop.direct.get_map()), sorted(heard)

    with scripted(lambda n, body: good_stream(5)) as server:
        count, _, heard = run(work)
    assert (count, heard) == (50, ["thread", "timer"])


def test_a_lost_connection_is_told_once_and_its_descriptor_given_back() -> None:
    async def work(loop: SocketLoop) -> tuple[RawResponse, bool, int]:
        with pair() as (ours, theirs):
            connection = PlainConnection(ours, loop.direct)
            ended: asyncio.Future[RawResponse] = loop.create_future()
            connection.send(b"x", ended.set_result)
            theirs.close()
            raw = await ended
            return raw, connection.closed, ours.fileno()

    raw, closed, descriptor = run(work)
    assert raw.failure is not None and raw.failure[0] == "cut" and closed and descriptor == -1


@pytest.mark.parametrize("how", ["fail", "close"])
def test_whoever_ends_a_request_in_flight_has_it_told_once_on_a_connection_that_is_closed(how: str) -> None:
    async def work(loop: SocketLoop) -> list[tuple[str, bool]]:
        told: list[tuple[str, bool]] = []
        with pair() as (ours, _):
            connection = PlainConnection(ours, loop.direct)
            connection.send(b"x", lambda raw: told.append((raw.failure[0] if raw.failure else "", connection.closed)))
            if how == "fail":
                connection.fail("timeout", "too long")
            else:
                connection.close()
            connection.close()
            await asyncio.sleep(0)
        return told

    assert run(work) == [("timeout" if how == "fail" else "cut", True)]


def test_an_idle_connection_that_the_server_closes_is_told() -> None:
    async def work(loop: SocketLoop) -> bool:
        with pair() as (ours, theirs):
            connection = PlainConnection(ours, loop.direct)
            lost: asyncio.Future[None] = loop.create_future()
            connection.on_lost = lambda: lost.set_result(None)
            theirs.close()
            await lost
            return connection.closed

    assert run(work)


def test_a_callback_that_fails_is_the_loops_affair_and_the_others_go_on() -> None:
    async def work(loop: SocketLoop) -> tuple[list[str], bool]:
        told: list[str] = []
        loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        with pair() as (ours, theirs):
            connection = PlainConnection(ours, loop.direct)
            connection.send(b"x", lambda raw: 1 // 0)
            theirs.sendall(response(200, {}))
            await asyncio.sleep(0.05)
            raw = await answered(connection, theirs, response(200, {}))
            connection.close()
            return told, raw.complete

    told, complete = run(work)
    assert told == ["ZeroDivisionError('integer division or modulo by zero')"] and complete


def test_timers_are_finer_than_epolls_milliseconds() -> None:
    """An open loop's arrivals hang on it. The best of many tries, so that a busy machine does not decide."""

    async def work(loop: SocketLoop) -> int:
        best = 1 << 62
        for _ in range(40):
            due: asyncio.Future[int] = loop.create_future()
            wanted = perf_counter_ns() + 400_000
            loop.call_later(0.0004, lambda due=due: due.set_result(perf_counter_ns()))
            best = min(best, abs(await due - wanted))
        return best

    assert run(work) < 400_000


def test_a_wall_clock_that_was_set_is_noticed_and_stamps_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = KernelClock()
    now = perf_counter_ns()
    assert abs(time.time_ns() - clock.offset - perf_counter_ns()) < 1_000_000
    monkeypatch.setattr("ops.benchmark.kernel_stamps.time_ns", lambda: time.time_ns() + 3_600_000_000_000)
    stamp = clock.corrected(time.time_ns() + 3_600_000_000_000, now)
    assert clock.steps == 1 and 0 <= abs(now - stamp) < 1_000_000_000
    assert clock.corrected(time.time_ns() + 7_200_000_000_000, now) == now  # a stamp after the read cannot be


def test_the_loop_does_what_other_loops_do() -> None:
    """Processes, servers, name look-ups, writers: through the same selector."""

    async def work(loop: SocketLoop) -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(-1))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"y" * 5_000_000)
        await writer.drain()
        writer.write_eof()
        got = await reader.read(-1)
        writer.close()
        server.close()
        await server.wait_closed()
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        return got

    assert len(run(work)) == 5_000_000


def test_a_clock_that_was_set_back_right_after_a_look_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = KernelClock()
    monkeypatch.setattr("ops.benchmark.kernel_stamps.LOOK_NS", 1 << 60)  # as if the last look had been this very moment
    monkeypatch.setattr("ops.benchmark.kernel_stamps.time_ns", lambda: time.time_ns() - 3_600_000_000_000)
    now = perf_counter_ns()
    stamp = clock.corrected(time.time_ns() - 3_600_000_000_000, now)
    assert clock.steps == 1 and abs(now - stamp) < 1_000_000_000
