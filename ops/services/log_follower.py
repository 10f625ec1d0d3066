"""A service's log while it grows: handed on to the job's page in pieces of bounded size and rate, and line by line to whoever watches."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
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
    """

    CHUNK, EVERY_S, RATE = 64_000, 0.25, 1_000_000

    def __init__(self, context: Context, log: RunLog, secrets: Sequence[str], *, journal: bool = False) -> None:
        self._context, self._log, self._secrets, self._journal = context, log, secrets, journal
        self._splitter = log_lines.Splitter()
        self._waiting: list[str] = []
        self._size = self._dropped = self._sent = 0
        self._last = self._second = time.monotonic()

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

    def _add(self, line: str) -> None:
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
