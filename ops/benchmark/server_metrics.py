"""What the server says of itself while it is measured: vLLM's `/metrics`, read once a second beside the load.

The text is some 60 to 200 kB, of which ten numbers matter. They are found by their names with a scan in C, because the reading thread shares
the interpreter with the event loop that stamps chunks: a look costs well under a millisecond. Names differ between vLLM's engines
(`gpu_cache_usage_perc` became `kv_cache_usage_perc`, `gpu_prefix_cache_hits` became `prefix_cache_hits`), and a counter may or may not end in
`_total`; the newest name that the server has is the one that counts, since releases in between reported both. V0's hit rate is a gauge over the
server's whole life, which says nothing of a level: it is not read.
"""

from __future__ import annotations

import http.client
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from ops.benchmark.endpoint import normalise, tls_context

TIMEOUT_S = 2.0
MAX_BYTES = 8 * 1024 * 1024
MAX_READ = 65_536

# Field of a snapshot: the families that may hold it, newest name first, and how the series of several engines make one number.
_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[list[float]], float]]] = {
    "running": (("vllm:num_requests_running",), sum),
    "waiting": (("vllm:num_requests_waiting",), sum),
    "kv_use": (("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), max),
    "preemptions": (("vllm:num_preemptions",), sum),
    "prompt_tokens": (("vllm:prompt_tokens",), sum),
    "output_tokens": (("vllm:generation_tokens",), sum),
    "prefix_queries": (("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"), sum),
    "prefix_hits": (("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"), sum),
    "drafted": (("vllm:spec_decode_num_draft_tokens",), sum),
    "accepted": (("vllm:spec_decode_num_accepted_tokens",), sum),
    "started_at": (("process_start_time_seconds",), max),
}
_COUNTERS = ("preemptions", "prompt_tokens", "output_tokens", "prefix_queries", "prefix_hits", "drafted", "accepted")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server's numbers at one moment (`at`: perf_counter_ns). What it does not report is None.

    `running`, `waiting`, `kv_use` (share, 0 to 1, of the fullest engine) are gauges; the rest counts since the server's start.
    """

    at: int
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    started_at: float | None = None

    @property
    def empty(self) -> bool:
        """Nothing of vLLM's is in it."""
        return all(getattr(self, name) is None for name in _FAMILIES if name != "started_at")


@dataclass(frozen=True, slots=True)
class Difference:
    """What happened between two snapshots. None where the server does not report it, was started anew in between, or nothing was asked.

    `prefix_hit_rate`: cached of all prompt tokens that were looked up; `spec_acceptance`: accepted of all drafted tokens; both shares, 0 to 1.
    """

    prefix_hit_rate: float | None = None
    spec_acceptance: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None


def parse(text: bytes, at: int | None = None) -> Snapshot:
    """The snapshot in a text of Prometheus' exposition format. Never raises: a line that cannot be read is passed over."""
    found: dict[str, float] = {}
    for field, (families, together) in _FAMILIES.items():
        for family in families:
            values = list(_series(text, family.encode()))
            if values and math.isfinite(number := float(together(values))):
                found[field] = number
                break
    return Snapshot(perf_counter_ns() if at is None else at, **found)


def _series(text: bytes, name: bytes) -> Iterator[float]:
    """The values of a family's series: lines that begin with `name`, or `name_total`, and then `{` or a space."""
    at = 0 if text.startswith(name) else text.find(b"\n" + name)
    while at >= 0:
        start = at + 1 if text[at:at + 1] == b"\n" else at
        end = text.find(b"\n", start)
        line = text[start:len(text) if end < 0 else end]
        rest = line[len(name):].removeprefix(b"_total")
        if rest[:1] in (b"{", b" ", b"\t"):
            value = _value(rest)
            if value is not None:
                yield value
        at = text.find(b"\n" + name, start + len(line)) if end >= 0 else -1


def _value(rest: bytes) -> float | None:
    """The number after a series' labels; a label's value is quoted and may hold braces, so the last one closes. A time stamp may follow."""
    words = (rest[rest.rfind(b"}") + 1:] if rest[:1] == b"{" else rest).split()
    if not words or (rest[:1] == b"{" and b"}" not in rest):
        return None
    try:
        value = float(words[0])
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None  # nothing that is read here can be less


def between(before: Snapshot | None, after: Snapshot | None) -> Difference:
    """Counters of two looks, as shares. A server that was started anew in between begins at 0: then nothing is known."""
    if before is None or after is None:
        return Difference()
    if before.started_at is not None and after.started_at is not None and abs(after.started_at - before.started_at) > 1.0:
        return Difference()
    grown: dict[str, float] = {}
    for name in _COUNTERS:
        first, last = getattr(before, name), getattr(after, name)
        if first is None and last is not None and name in ("drafted", "accepted"):
            first = 0.0  # these appear with the first draft
        if first is not None and last is not None:
            if last < first:
                return Difference()
            grown[name] = last - first
    return Difference(
        prefix_hit_rate=_share(grown.get("prefix_hits"), grown.get("prefix_queries")),
        spec_acceptance=_share(grown.get("accepted"), grown.get("drafted")),
        preemptions=grown.get("preemptions"), prompt_tokens=grown.get("prompt_tokens"), output_tokens=grown.get("output_tokens"))


def _share(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


class ServerMetrics:
    """Reads `<base_url>/metrics`, over one connection that is kept. Not for several threads at once. `close` it.

    A server without such a page (any other answer than 200, or nothing of vLLM's in it) is asked no more: `absent` says so. Nor is one
    that was ended (`end`).
    """

    def __init__(self, base_url: str, api_key: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(normalise(base_url))
        self._path = f"{parts.path}/metrics"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls: ssl.SSLContext | None = tls_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self.absent = False

    def read(self) -> Snapshot | None:
        """The numbers now; None where the server did not give them (it is busy, gone, or has no such page)."""
        if self.absent:
            return None
        for kept in (True, False):
            if self._connection is None:
                kept = False
                self._connection = self._connect()
            try:
                self._connection.request("GET", self._path, headers=self._headers)
                answer = self._connection.getresponse()
                text = _text(answer)
            except (OSError, ValueError, AttributeError, http.client.HTTPException):  # ValueError: a chunk's size; AttributeError: `end` was called
                # the last answer's connection may have been closed meanwhile: once more
                self.close()
                if kept and not self.absent:
                    continue
                return None
            at = perf_counter_ns()
            if len(text) > MAX_BYTES:
                self.close()
                self.absent = True
                return None
            if answer.status != 200:
                self.absent = answer.status < 500  # 5xx: it may be a moment's trouble
                return None
            snapshot = parse(text, at)
            self.absent = snapshot.empty
            return None if snapshot.empty else snapshot
        return None

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def end(self) -> None:
        """From another thread: ends a read that goes on and on (a byte now and then is no time-out); nothing is asked any more."""
        self.absent = True
        connection = self._connection
        if connection is not None and (raw := connection.sock) is not None:
            with suppress(OSError):  # it has ended meanwhile
                raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _text(answer: http.client.HTTPResponse) -> bytes:
    """The body, at most one byte more than MAX_BYTES. By pieces where it is in chunks: their sizes are the server's word."""
    if not answer.chunked:
        return answer.read(MAX_BYTES + 1)
    text = bytearray()
    while len(text) <= MAX_BYTES and (piece := answer.read1(MAX_READ)):
        text += piece
    return bytes(text)


def live(snapshot: Snapshot | None, since: Snapshot | None) -> dict[str, Any] | None:
    """The `server` part of a live second: gauges now, shares since `since` (the level's start)."""
    if snapshot is None:
        return None
    grown = between(since, snapshot)
    return {"running": snapshot.running, "waiting": snapshot.waiting, "kv_use": snapshot.kv_use,
            "prefix_hit_rate": grown.prefix_hit_rate, "spec_acceptance": grown.spec_acceptance}


def of_level(snapshots: list[Snapshot]) -> dict[str, float | None] | None:
    """The `server` part of a level's numbers, from all looks in it, the first and last of which are at its edges. None without any."""
    if not snapshots:
        return None
    grown = between(snapshots[0], snapshots[-1]) if len(snapshots) > 1 else Difference()

    def most(name: str) -> float | None:
        return max((value for one in snapshots if (value := getattr(one, name)) is not None), default=None)

    return {"prefix_hit_rate": grown.prefix_hit_rate, "spec_acceptance": grown.spec_acceptance, "kv_use_max": most("kv_use"),
            "running_max": most("running"), "waiting_max": most("waiting"), "preemptions": grown.preemptions}
