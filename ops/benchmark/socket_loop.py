"""An event loop whose selector serves streaming sockets itself, at the price of a plain loop around epoll.

An event loop has a price for each thing that becomes readable: a handle, a queue, a turn. For thousands of chunks a second that is most of
a client's work, and each chunk waits for the turns of those before it. Here the sockets of streams stand in the selector's own epoll with a
callable beside them, and `select` calls it at once and goes on waiting; only what concerns the rest of the program (a response ended, another
descriptor, a timer) lets the loop have its turn. Everything else of asyncio works as ever.

    with asyncio.Runner(loop_factory=socket_loop.new_event_loop) as runner: ...
    asyncio.get_running_loop().direct.add(raw_socket, serve)       # serve(events) -> whether other code was called
"""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from ops.benchmark.kernel_stamps import KernelClock

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
BATCH = 1024  # descriptors a poll
FINE_S = 0.002  # epoll counts in whole milliseconds; a wait shorter than this goes through select(), which counts in microseconds

Serve = Callable[[int], bool]


class DirectSelector(selectors.BaseSelector):
    """A selector with direct sockets. `delays` collects, in ns, how long each stamped segment had waited for us in the kernel."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._direct: dict[int, Serve] = {}
        self.clock = KernelClock()
        self.delays: array[int] = array("q")
        self.failed: Callable[[Exception], None] | None = None

    # -- direct sockets -----------------------------------------------------------------------------------------------------

    def add(self, descriptor: int, serve: Serve) -> None:
        """`serve(events)` is called whenever the socket is readable (or writable, if asked); it says whether it called code of others."""
        self._poll.register(descriptor, READ)
        self._direct[descriptor] = serve

    def watch_writing(self, descriptor: int, wanted: bool) -> None:
        self._poll.modify(descriptor, READ | WRITE if wanted else READ)

    def remove(self, descriptor: int) -> None:
        """To be called before the socket is closed."""
        if self._direct.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # -- the selector of the loop ---------------------------------------------------------------------------------------------

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        poll, direct = self._poll.poll, self._direct.get
        deadline = None if timeout is None else time.monotonic() + timeout
        others: list[tuple[selectors.SelectorKey, int]] = []
        leave = False
        while True:
            if deadline is None:
                ready = poll(-1, BATCH)
            else:
                left = deadline - time.monotonic()
                if left <= 0:
                    ready, leave = poll(0, BATCH), True
                elif left > FINE_S:
                    ready = poll(left - 0.001, BATCH)
                else:
                    self._wait_finely(left)
                    ready = poll(0, BATCH)
            for descriptor, events in ready:
                serve = direct(descriptor)
                if serve is not None:
                    try:
                        if serve(events):
                            leave = True
                    except Exception as error:  # of a callback: the loop's business, as with any other callback
                        if self.failed is None:
                            raise
                        self.failed(error)
                        leave = True
                elif (key := self._keys.get(descriptor)) is not None:
                    wanted = (selectors.EVENT_WRITE if events & ~select.EPOLLIN else 0) | (selectors.EVENT_READ if events & ~select.EPOLLOUT else 0)
                    if wanted & key.events:
                        others.append((key, wanted & key.events))
            if leave or others:
                return others

    def _wait_finely(self, seconds: float) -> None:
        number = self._poll.fileno()
        if number < 1024:  # FD_SETSIZE
            select.select([number], [], [], seconds)
        else:
            self._poll.poll(seconds, 1)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = _number(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} (descriptor {descriptor}) is registered already")
        key = selectors.SelectorKey(fileobj, descriptor, events, data)
        self._poll.register(descriptor, _epoll_events(events))
        self._keys[descriptor] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        descriptor = _number(fileobj)
        key = self._keys.pop(descriptor)
        try:
            self._poll.unregister(descriptor)
        except OSError:
            pass  # it was closed first, and the kernel has forgotten it then
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        old = self._keys[_number(fileobj)]
        if events != old.events:
            self._poll.modify(old.fd, _epoll_events(events))
        self._keys[old.fd] = changed = selectors.SelectorKey(old.fileobj, old.fd, events, data)
        return changed

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_number(fileobj)]

    def close(self) -> None:
        self._poll.close()
        self._keys.clear()
        self._direct.clear()


class SocketLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a DirectSelector, to be had as `direct`."""

    def __init__(self) -> None:
        self.direct = DirectSelector()
        super().__init__(self.direct)
        self.direct.failed = lambda error: self.call_exception_handler({"message": "A stream's callback failed", "exception": error})


def new_event_loop() -> SocketLoop:
    return SocketLoop()


def _number(fileobj: Any) -> int:
    number = fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
    if number < 0:
        raise ValueError(f"Not an open descriptor: {fileobj!r}")
    return number


def _epoll_events(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0)
