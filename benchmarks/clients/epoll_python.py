"""Plain sockets and one epoll, nothing else: what Python can do at best."""

from __future__ import annotations

import select
import socket
import time
from time import perf_counter_ns
from urllib.parse import urlsplit

from benchmarks.clients.measured import Measured, request_bytes


def measure(url: str, streams: int, tokens: int) -> Measured:
    request, port = request_bytes(url, tokens), urlsplit(url).port
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(streams):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
        sockets[one.fileno()] = one
        poll.register(one.fileno(), select.EPOLLIN)
    time.sleep(0.1)
    sent: dict[int, int] = {}
    reads: dict[int, list[tuple[int, bytes]]] = {number: [] for number in sockets}
    cpu = time.process_time()
    for number, one in sockets.items():
        sent[number] = perf_counter_ns()
        one.send(request)
    left = streams
    while left:
        for number, _ in poll.poll():
            data = sockets[number].recv(65536)
            if not data:
                raise ConnectionError("a stream was cut")
            reads[number].append((perf_counter_ns(), data))
            if data.endswith(b"0\r\n\r\n"):
                left -= 1
    cut = {number: list(events(of)) for number, of in reads.items()}
    cpu = time.process_time() - cpu
    measured = Measured(cpu)
    for number, chunks in cut.items():
        measured.add_stream(sent[number], chunks)
    for one in sockets.values():
        one.close()
    return measured


def events(reads: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """(stamp of the read that brought its end, event)."""
    found, rest = [], b""
    for stamp, data in reads:
        *whole, rest = (rest + data).split(b"\n\n")
        found += [(stamp, event) for event in whole]
    return found
