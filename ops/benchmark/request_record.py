"""What is kept of one measured request: when it was wanted, sent and answered, chunk by chunk, and how it ended.

All times are integer nanoseconds of `time.perf_counter_ns()` (CLOCK_MONOTONIC on Linux); a level's wall-clock anchor is stored beside
its records. On disk a record is one line of JSON (`as_dict`): times relative to the level's start, chunk times as gaps, because small
numbers compress well.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

CONTENT, REASONING, TOOL = "c", "r", "t"  # letters of `RequestRecord.kinds`


class ErrorKind(StrEnum):
    """Why a request counts as an error: stable words, in records, events and results."""

    CONNECT = "connect"  # no connection
    HTTP = "http"  # status 400 and above, or a redirect
    RATE_LIMITED = "rate_limited"  # status 429
    CUT = "cut"  # the connection ended before the response did
    TIMEOUT = "timeout"  # no end within the request's time
    STREAM_ERROR = "stream_error"  # an `error` object inside the stream
    NO_DONE = "no_done"  # the stream ended without `[DONE]`
    NO_FINISH = "no_finish_reason"  # the stream ended without a finish_reason
    NO_CHUNK = "no_chunk"  # the stream ended well, with no text at all
    NOT_A_STREAM = "not_a_stream"  # 200, but not text/event-stream
    PROTOCOL = "protocol"  # not HTTP/1.1, or an event that is not JSON


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request.

    `t_sched`: when the schedule wanted it out. `t_send`: just before its first byte was handed to the socket. `t_end`: when the last
    byte of the response was in (or the failure was seen); None while in flight. `times`: when each chunk was in; `kinds`: its letter
    (`c` content, `r` reasoning, `t` a tool call's arguments). `chunk_tokens`: tokens of each chunk where the server reports usage in
    every event, else None. Token counts are the server's `usage`, None if it sent none. `error_kind` "" means no error; `unfinished`
    means that we ended it (time limit, cancel): neither an error nor a measurement.
    """

    index: int
    slot: int
    t_sched: int
    t_send: int = 0
    t_end: int | None = None
    times: array[int] = field(default_factory=lambda: array("q"))
    kinds: str = ""
    chunk_tokens: list[int] | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error_kind: str = ""
    error: str = ""
    retry_after_s: float | None = None  # of a 429 that says when to come again; not stored
    unfinished: bool = False
    connected: bool = False  # a connect stood between t_sched and t_send
    retried: bool = False  # the server had closed the idle connection: sent again on a new one

    @property
    def ok(self) -> bool:
        """It ended, and well: only these enter latency and throughput."""
        return self.t_end is not None and not self.error_kind and not self.unfinished

    def fail(self, kind: str, text: str) -> None:
        """Keeps the first failure: what came later follows from it."""
        if not self.error_kind:
            self.error_kind, self.error = str(kind), " ".join(text.split())[:500]

    def as_dict(self, origin: int) -> dict[str, Any]:
        """JSON form, times relative to `origin` (the level's start). `gaps_ns`: first chunk after t_send, then chunk after chunk."""
        gaps, before = [], self.t_send
        for at in self.times:
            gaps.append(at - before)
            before = at
        return {
            "index": self.index, "slot": self.slot, "sched_ns": self.t_sched - origin, "send_ns": self.t_send - origin,
            "end_ns": None if self.t_end is None else self.t_end - origin, "gaps_ns": gaps, "kinds": self.kinds,
            "chunk_tokens": self.chunk_tokens, "output_tokens": self.output_tokens, "reasoning_tokens": self.reasoning_tokens,
            "prompt_tokens": self.prompt_tokens, "finish_reason": self.finish_reason, "status": self.status, "error_kind": self.error_kind,
            "error": self.error, "unfinished": self.unfinished, "connected": self.connected, "retried": self.retried,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any], origin: int = 0) -> RequestRecord:
        """The reverse of `as_dict`; raises KeyError or TypeError on something else."""
        rest = dict(raw)
        sent = rest.pop("send_ns") + origin
        times, at = array("q"), sent
        for gap in rest.pop("gaps_ns"):
            at += gap
            times.append(at)
        end = rest.pop("end_ns")
        return cls(t_sched=rest.pop("sched_ns") + origin, t_send=sent, t_end=None if end is None else end + origin, times=times, **rest)
