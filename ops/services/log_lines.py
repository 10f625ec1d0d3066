"""A line of a server's log, whatever wraps it: what was said, by which process, at which level.

vLLM's own form is `(NAME pid=N) LEVEL MM-DD HH:MM:SS [file.py:LINE] message`; older versions and raw prints lack parts of it. Around it may stand
what a journal (short, ISO or JSON), docker (JSON), compose, kubernetes or a recorder added. Colours and carriage returns are taken out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

LINE_LIMIT = 32_768  # characters kept of one line: no fact stands further right

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\[0;\d\dm\(|\x1b|ESC\[[\d;]*m")

# What stands before the program's own text: the characters that it may begin with ("9" any digit, "A" any letter), and its form. Each is tried
# once, in this order.
_WRAPPERS = [
    ("9", re.compile(r"(?P<recorder>\d\d:\d\d:\d\d\.\d{3}) (?=\S|\s|$)")),
    # kubectl --prefix, stern: [pod/vllm-0/vllm] text
    ("[", re.compile(r"\[(?:pod/)?[\w.-]+/[\w./-]+\] ")),
    # kubernetes (CRI): 2026-03-02T04:11:07.123456789Z stdout F text
    ("9", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] ?")),
    # compose: service-1  | text
    ("9A", re.compile(r"[A-Za-z0-9][\w.-]*\s*\| ?")),
    # journal, export or verbose: MESSAGE=text
    ("A \t", re.compile(r"\s*MESSAGE=")),
    # journal, short: Mar  2 04:11:07 host ident[pid]: text; short-full and with-unit begin with the weekday
    ("A", re.compile(
        r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [A-Z+-][\w+:-]{1,5})"
        r" [\w.-]+ (?P<ident1>[\w.@:/-]+?)(?:\[(?P<ident1_pid>\d+)\])?: ?")),
    # syslog (RFC 5424): <30>1 2026-03-02T04:11:07Z host ident pid id - text
    ("<", re.compile(r"<\d{1,3}>1 \S+ \S+ (?P<ident4>\S+) (?P<ident4_pid>\d+|-) \S+ (?:-|\[[^\]]*\]) ?")),
    # journal, ISO: 2026-03-02T04:11:07+0000 host ident[pid]: text
    ("9", re.compile(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? [\w.-]+ (?P<ident2>[\w.@:/-]+?)(?:\[(?P<ident2_pid>\d+)\])?: ?")),
    # journal, monotonic or unix: [  123.456789] host ident[pid]: text, 1772420467.123456 host ident[pid]: text
    ("[9", re.compile(
        r"(?:\[ *\d+\.\d{6}(?: <[ \d.+-]+>)?\]|\d{10}\.\d{6}) [\w.-]+ (?P<ident3>[\w.@:/-]+?)(?:\[(?P<ident3_pid>\d+)\])?: ?")),
    # dmesg: [  123.456789] text, [Mon Mar  2 04:11:07 2026] text
    ("[", re.compile(r"\[(?: *\d+\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")),
    ("9", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d) ")),  # a bare time (docker logs -t)
]
_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w.-]*) (?:[\w=]+ ){0,2}pid=(?P<pid>\d+)(?:, ip=[\d.:a-f]+)?\)\s?")
_HEAD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<date>\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d) (?:\[?(?P<source>[\w./<>-]+\.\w+|\S+?):\d+\]) ?"
)
_PYTHON_HEAD = re.compile(
    r"(?:\d{4}-)?(?P<date>\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:[,.]\d+)? - (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) - "
    r"(?:(?P<source>\S+?):\d+ - )?"
)
# VLLM_LOGGING_PREFIX stands before everything that a logger writes, and may be any text.
_PREFIXED = re.compile(
    r"\S.{0,119}?(?=\([A-Za-z][\w.-]* (?:rank=\d+ )?pid=\d+(?:, ip=[\d.:a-f]+)?\)|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[)"
)
_TORCH_RANK = re.compile(r"\[rank(\d+)\]: ?")  # torch.distributed, before each line of a traceback
_LEVEL = re.compile(r"(?:INFO|ERROR|WARNING|DEBUG|CRITICAL) \d\d-\d\d ")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*\Z")  # Ray says the same line of many workers once


class LogLine(NamedTuple):
    """One line. `number` counts from 1 in the text as it came; `message` is without everything that stands before it."""

    number: int
    message: str
    process: str = ""  # "APIServer", "EngineCore_DP0", "Worker_TP3"; "" where none is named
    pid: int | None = None
    level: str = ""
    source: str = ""  # file name, "core.py"
    stamp: str = ""  # "MM-DD HH:MM:SS" of vLLM's own head
    ident: str = ""  # who the journal says it was: "systemd", "kernel", "vllm"
    ident_pid: int | None = None

    @property
    def rank(self) -> int:
        """3 worker, 2 engine, 1 API server, 0 none named: the lowest process is nearest to the cause."""
        name = self.process.lower()
        return 3 if "worker" in name else 2 if "engine" in name else 1 if name else 0


def parse(text: str, number: int = 0) -> LogLine:
    """One line without its newline. Of carriage-return progress the last state counts, unless it is empty."""
    if len(text) > LINE_LIMIT:
        text = text[:LINE_LIMIT]
    if text.startswith("{"):
        text = unwrapped(text).partition("\n")[0]
    if "\x1b" in text or text.startswith("ESC["):
        text = _ANSI.sub("", text)
    text = text.rstrip()
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    ident, ident_pid = "", None
    if not text.startswith("("):  # what vLLM's own processes write begins so: nothing wraps it
        letter = text[:1]
        kind = "9" if letter.isdigit() else "A" if letter.isalpha() else letter
        for first, wrapper in _WRAPPERS:
            if kind not in first or (found := wrapper.match(text)) is None:
                continue
            text = text[found.end() :]
            letter = text[:1]
            kind = "9" if letter.isdigit() else "A" if letter.isalpha() else letter
            for name, value in found.groupdict().items():
                if name.startswith("ident") and value:
                    if not name.endswith("pid"):
                        ident = value
                    elif value.isdigit():
                        ident_pid = int(value)
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    process, pid = "", None
    head = None
    # The process may be named twice (`(Worker pid=1) (Worker_TP0 pid=1)`), and a level may stand before a name.
    for _ in range(4):
        if (found := _PROCESS.match(text)) is not None:
            process, pid = found["name"], int(found["pid"])
            text = text[found.end() :]
        elif head is None and (found := _HEAD.match(text) or _PYTHON_HEAD.match(text)) is not None:
            head = found
            text = text[found.end() :]
        elif head is None and not process and (" pid=" in text or _LEVEL.search(text, 0, 160)) and (found := _PREFIXED.match(text)) is not None:
            text = text[found.end() :]
        else:
            break
    if text.startswith("[rank") and (found := _TORCH_RANK.match(text)) is not None:
        process, text = process or f"Worker_rank{found[1]}", text[found.end() :]
    if "across cluster]" in text:
        text = _REPEATED.sub("", text)
    if head is None:
        return LogLine(number, text, process, pid, ident=ident, ident_pid=ident_pid)
    return LogLine(number, text, process, pid, head["level"], (head["source"] or "").rsplit("/", 1)[-1], f"{head['date']} {head['time']}",
                   ident, ident_pid)


def unwrapped(text: str, depth: int = 0) -> str:
    """The message in a line of journald (-o json), docker (json-file) or a JSON logger; the text itself if it is none of them."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):  # the latter: brackets in brackets, thousands deep
        return text
    if not isinstance(raw, dict):
        return text
    message = raw.get("MESSAGE", raw.get("log", raw.get("message", raw.get("msg"))))
    if isinstance(message, list):  # a journal entry with control characters comes as numbers
        message = bytes(number & 0xFF for number in message if isinstance(number, int)).decode(errors="replace")
    if not isinstance(message, str):
        return text
    if "_PID" in raw or "SYSLOG_IDENTIFIER" in raw:
        head = f"Jan  1 00:00:00 host {raw.get('SYSLOG_IDENTIFIER') or 'unknown'}[{raw.get('_PID') or 0}]: "
        return "\n".join(head + line for line in message.rstrip("\n").split("\n"))
    if message.startswith("{") and depth < 3:  # a JSON logger's line that docker wrapped
        return unwrapped(message, depth + 1)
    for name in ("exc_info", "exc_text", "exception", "stack_trace", "traceback"):  # where JSON loggers put a traceback
        if isinstance(more := raw.get(name), str) and more.strip():
            message += "\n" + more
    level = str(raw.get("levelname") or raw.get("level") or "").upper()
    if level in {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}:  # what its own head would tell stands before each line
        process = raw.get("processName")
        who = f"({process} pid={raw.get('process') or 0}) " if isinstance(process, str) and re.fullmatch(r"[A-Za-z][\w.-]*", process) else ""
        head = f"{who}{level} 01-01 00:00:00 [{raw.get('filename') or 'json'}:{raw.get('lineno') or 0}] "
        return "\n".join(head + line for line in message.rstrip("\n").split("\n"))
    return message


_JOURNAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d:?\d\d ")


def journal_time(line: str) -> float | None:
    """Seconds since the epoch of a line as `journal.lines` gives it; None for one without a time."""
    if (found := _JOURNAL_TIME.match(line)) is None:
        return None
    try:
        return datetime.fromisoformat(found[0].strip()).timestamp()
    except (ValueError, OverflowError):  # no such day
        return None


def lines(text: Iterable[str] | str) -> Iterator[LogLine]:
    """Every line of a text (or of something that gives lines), numbered from 1. Only a newline ends a line: others count as part of it."""
    for number, line in enumerate(text.split("\n") if isinstance(text, str) else text, start=1):
        yield parse(line.rstrip("\n"), number)


class Splitter:
    """Cuts a growing stream of bytes into lines at newlines and carriage returns. A line that never ends is cut at `limit` bytes."""

    def __init__(self, limit: int = 65_536) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Complete lines, without their ends; empty ones left out."""
        data = self._rest + data
        parts = re.split(rb"[\r\n]+", data)
        self._rest = parts.pop()
        if len(self._rest) > self._limit:
            parts.append(self._rest)
            self._rest = b""
        return [part[: self._limit].decode(errors="replace") for part in parts if part.strip()]

    @property
    def unfinished(self) -> str:
        """What follows the last line end. A progress bar is drawn as `\\rSTATE`, so its newest state stands here."""
        return self._rest.decode(errors="replace")

    def rest(self) -> list[str]:
        """The line that was not ended, at the end of everything."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest.strip() else []
