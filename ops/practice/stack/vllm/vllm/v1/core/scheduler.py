"""Which requests run and when each of their tokens is due: the practice server's whole sense of time.

Throughput is a function of how many requests run (continuous batching): THROUGHPUT, interpolated on log-log axes, times the
box's speed. All running requests share it equally, so with n running each gets T(n)/n tokens a second. The scheduler keeps
one number, `clock`: how many tokens a request that had always been running would have got by now. A request that joins at
clock c has its k-th token due at c + k. Deadlines follow from that number alone, so lateness of the event loop never adds
up: a late tick hands out all tokens that have become due, and a request that should have ended in between ended then.

Joining is rounded up to an eighth of a token, so that many streams share one wake-up of the event loop.
"""

import asyncio
import bisect
import heapq
import math
import time
from collections import deque
from collections.abc import Callable

THROUGHPUT = ((1, 61.0), (2, 112.0), (4, 178.0), (8, 277.0), (16, 441.0), (32, 688.0), (64, 945.0), (128, 1239.0))
"""Requests running, output tokens a second of all of them together, at speed 1."""

PREFILL_TOKENS_S = 8000.0
FREE_PREFILL_TOKENS = 512  # prompts up to here start at once: the table above was measured with short prompts
_GRID = 8
_SHORTEST_TICK_S = 0.001
_LOGS = [math.log(n) for n, _ in THROUGHPUT]
_VALUES = [math.log(rate) for _, rate in THROUGHPUT]


def throughput(running: int) -> float:
    """Output tokens a second with that many requests running, at speed 1. Beyond 128 the last slope goes on."""
    if running <= 0:
        return 0.0
    x = math.log(running)
    right = min(max(bisect.bisect_left(_LOGS, x), 1), len(_LOGS) - 1)
    left = right - 1
    slope = (_VALUES[right] - _VALUES[left]) / (_LOGS[right] - _LOGS[left])
    return math.exp(_VALUES[left] + slope * (x - _LOGS[left]))


class Sequence:
    """One request in the scheduler. `deliver(first, last)` is called with the half-open range of tokens that have become due."""

    __slots__ = ("arrived", "begun", "clock", "deliver", "end", "ended", "first_token", "last", "prompt_tokens", "sent", "state", "tokens")

    def __init__(self, prompt_tokens: int, tokens: int, deliver: Callable[[int, int], None]) -> None:
        self.prompt_tokens, self.tokens, self.deliver = prompt_tokens, tokens, deliver
        self.sent = 0
        self.arrived = time.monotonic()  # the event loop's clock is the same
        self.begun = self.first_token = self.ended = 0.0  # loop time, as `arrived`
        self.last = 0.0  # seconds from arrival to the token handed out last
        self.clock = self.end = 0.0
        self.state = "waiting"


class Scheduler:
    """Runs at most `max_running` requests; the rest waits in order. `on_tick(tokens)` is told how many tokens each tick gave."""

    def __init__(self, speed: float, max_running: int, on_tick: Callable[[int], None]) -> None:
        self.speed, self.max_running, self.on_tick = speed, max_running, on_tick
        self.loop = asyncio.get_running_loop()
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.kv_tokens = 0  # of all requests that run
        self._clock = 0.0
        self._stamp = self.loop.time()
        self._rate = 0.0  # tokens a second for each running request
        self._ends: list[tuple[float, int, Sequence]] = []
        self._order = 0
        self._handle: asyncio.TimerHandle | None = None

    def add(self, sequence: Sequence) -> None:
        """Starts a request, after the prefill of a long prompt, and as soon as there is room."""
        prefill = max(0, sequence.prompt_tokens - FREE_PREFILL_TOKENS) / PREFILL_TOKENS_S / self.speed
        self.waiting.append(sequence)
        if prefill:
            self.loop.call_later(prefill, self._admit)
        else:
            self._admit()

    def abort(self, sequence: Sequence) -> None:
        """Takes a request out; its remaining tokens are never delivered."""
        if sequence.state == "waiting":
            self.waiting.remove(sequence)
        elif sequence.state == "running":
            self._advance(self.loop.time())
            if sequence.state == "running":
                self._leave(sequence)
                self._admit()
        sequence.state = "ended"

    def _admit(self) -> None:
        """Moves waiting requests whose prefill is over into the running batch, then plans the next tick."""
        now = self.loop.time()
        self._advance(now)
        for sequence in list(self.waiting):
            if len(self.running) >= self.max_running:
                break
            ready = sequence.arrived + max(0, sequence.prompt_tokens - FREE_PREFILL_TOKENS) / PREFILL_TOKENS_S / self.speed
            if ready > now + 0.001:
                continue
            self.waiting.remove(sequence)
            if not self.running:
                self._clock = 0.0
            sequence.state = "running"
            sequence.begun = now
            sequence.clock = math.ceil(self._clock * _GRID - 1e-9) / _GRID
            sequence.end = sequence.clock + sequence.tokens
            self.running[sequence] = None
            self.kv_tokens += sequence.prompt_tokens
            self._order += 1
            heapq.heappush(self._ends, (sequence.end, self._order, sequence))
            self._rate = throughput(len(self.running)) / len(self.running) * self.speed
        self._plan(now)

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self.kv_tokens -= sequence.prompt_tokens + sequence.sent
        sequence.ended = time.monotonic()
        if sequence.state == "running":
            sequence.state = "ended"
        count = len(self.running)
        self._rate = throughput(count) / count * self.speed if count else 0.0

    def _advance(self, now: float) -> None:
        """Brings the clock up to `now`, request by request that ends on the way, and hands out every token that is due."""
        if not self.running:
            self._stamp = now
            return
        ended: list[Sequence] = []
        given = 0
        while self.running:
            while self._ends and self._ends[0][2].state != "running":
                heapq.heappop(self._ends)
            end = self._ends[0][0]
            due = self._stamp + (end - self._clock) / self._rate
            if due > now + 1e-6:
                self._clock += (now - self._stamp) * self._rate
                break
            self._clock, self._stamp = end, due
            sequence = heapq.heappop(self._ends)[2]
            given += sequence.tokens - sequence.sent
            sequence.first_token = sequence.first_token or now
            self._leave(sequence)
            ended.append(sequence)
        self._stamp = now
        for sequence in self.running:
            due_tokens = int(self._clock - sequence.clock + 1e-6)
            first = sequence.sent
            if due_tokens > first:
                sequence.sent = due_tokens
                self.kv_tokens += due_tokens - first
                given += due_tokens - first
                sequence.first_token = sequence.first_token or now
                sequence.deliver(first, due_tokens)
        for sequence in ended:
            first, sequence.sent = sequence.sent, sequence.tokens
            sequence.deliver(first, sequence.tokens)
        if given:
            self.on_tick(given)

    def _tick(self) -> None:
        self._handle = None
        self._admit()

    def _plan(self, now: float) -> None:
        """Sets the timer to when the next token is due."""
        if self._handle:
            self._handle.cancel()
            self._handle = None
        if not self.running:
            return
        next_clock = min(sequence.clock + sequence.sent + 1 for sequence in self.running)
        due = self._stamp + (next_clock - self._clock) / self._rate
        self._handle = self.loop.call_at(max(due, now + _SHORTEST_TICK_S), self._tick)
