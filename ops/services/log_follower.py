"""A service's log while it grows: handed on to the job's page in pieces of bounded size and rate, and line by line to whoever watches."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime

from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.jobs.redact import log_text
from ops.services import log_lines
from ops.services.manager import RunLog

# How a journal's entries come (manager.RunLog): 2026-11-29T23:44:38.123456+0000 host ident[pid]: message
_JOURNAL_HEAD = re.compile(r"(?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d{4}|Z)) \S+ (?P<ident>[^\s\[:]+)(?:\[\d+\])?: ?")
_BARE_PREFIX = re.compile(r"(\s*\((?:APIServer|EngineCore|Worker|VllmWorker|MainProcess)[\w ,=-]*\))+\s*")
BAR = re.compile(r"(?P<label>.{3,200}?): +\d+%\D")
_MANAGERS = ("systemd", "kernel", "systemd-coredump")  # whose lines among the service's own are told with their name


class LogFollower:
    """Reads what a log grew by, and hands it on as step.log events: at most 64 KB or 250 ms each, and at most 1 MB a second.

    `keep`: the lines are kept aside as well (`kept`), for a log that is about to become another run's: at most KEPT_BYTES from its beginning, in a
    file without a name in the job's folder, and the last KEPT_LINES.
    """

    CHUNK, EVERY_S, RATE = 64_000, 0.25, 1_000_000
    KEPT_BYTES, KEPT_LINES = 64 << 20, 5000

    def __init__(self, context: Context, log: RunLog, secrets: Sequence[str], *, journal: bool = False, keep: bool = False) -> None:
        self._context, self._log, self._secrets, self._journal = context, log, secrets, journal
        self._splitter = log_lines.Splitter()
        self._waiting: list[str] = []
        self._size = self._dropped = self._sent = self._kept_size = 0
        self._last = self._second = time.monotonic()
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8", dir=context.folder, newline="\n") if keep else None  # noqa: SIM115
        self._writes = self._file is not None
        self._tail: deque[str] = deque(maxlen=self.KEPT_LINES)

    def read(self, limit: int = 1 << 20) -> list[str]:
        """New complete lines, at most about `limit` bytes of them."""
        data = self._log.read(limit)
        lines = self._splitter.feed(data) if data else []
        for line in lines:
            self._add(line)
        self.flush()
        return lines

    @property
    def unfinished(self) -> str:
        return self._splitter.unfinished

    def rest(self) -> list[str]:
        """What was written without a line end, at the end of everything."""
        lines = self._splitter.rest()
        for line in lines:
            self._add(line)
        self.flush(now=True)
        return lines

    def kept(self) -> Iterator[str]:
        """The lines so far, of a follower that keeps them."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: what it refuses is in the tail
                self._file.flush()
            self._file.seek(0)
            for line in self._file:
                yield line.rstrip("\n")
            self._file.seek(0, 2)
        yield from self._tail

    def _keep(self, line: str) -> None:
        if self._writes and self._file is not None:
            try:
                self._file.write(line + "\n")
            except OSError:
                self._writes = False
            else:
                self._kept_size += len(line) + 1
                self._writes = self._kept_size < self.KEPT_BYTES
                return
        if self._file is not None:
            self._tail.append(line)

    def _add(self, line: str) -> None:
        self._keep(line)
        if self._journal:
            line = shown(line)
        # vLLM writes its process prefix, then the bar's own carriage return: a terminal shows the bar over it, and so does this log.
        if _BARE_PREFIX.fullmatch(line):
            return
        # Of a progress bar that is redrawn, only the newest state is worth a line.
        bar = BAR.match(line)
        if bar and self._waiting and (before := BAR.match(self._waiting[-1])) and before["label"] == bar["label"]:
            self._size -= len(self._waiting.pop()) + 1
        self._waiting.append(line)
        self._size += len(line) + 1
        if self._size >= self.CHUNK:
            self.flush(now=True)

    def flush(self, *, now: bool = False) -> None:
        clock = time.monotonic()
        if not self._waiting or not (now or clock - self._last >= self.EVERY_S):
            return
        text = log_text("\n".join(self._waiting), self._secrets) + "\n"
        self._waiting, self._size, self._last = [], 0, clock
        if clock - self._second >= 1:
            self._second, self._sent = clock, 0
        if self._sent + len(text) > self.RATE:
            self._dropped += len(text.encode())
            return
        for start in range(0, len(text), self.CHUNK):
            part = text[start : start + self.CHUNK]
            self._sent += len(part)
            self._context.emit(EventType.STEP_LOG, {"step": self._context.step, "text": part, "dropped_bytes": self._dropped})
            self._dropped = 0

    def close(self) -> None:
        self.flush(now=True)
        if self._dropped:
            self._context.emit(EventType.STEP_LOG, {"step": self._context.step, "text": "", "dropped_bytes": self._dropped})
            self._dropped = 0
        self._log.close()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def shown(line: str) -> str:
    """A journal's entry as a job's log shows it: without its head; systemd's and the kernel's own lines with their name."""
    found = _JOURNAL_HEAD.match(line)
    if found is None:
        return line
    rest = line[found.end() :]
    return f"{found['ident']}: {rest}" if found["ident"] in _MANAGERS else rest


def journal_time(line: str) -> float | None:
    """When a journal's entry was written, in seconds since the epoch; None for a line of another form."""
    found = _JOURNAL_HEAD.match(line)
    if found is None:
        return None
    text = found["when"].replace("Z", "+0000")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z" if "." in text else "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None
