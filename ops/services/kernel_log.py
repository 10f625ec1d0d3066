"""What the kernel said of GPUs, memory and crashed programs in a span of time: a server that it killed has no word of that in its own log.

Read from the journal where there is one and this user may read it, else from the kernel's own buffer (/dev/kmsg, then dmesg). Often none of them
may be read: then that is said, and nothing is known. Never raises.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ops.services import journal, systemctl

LINES_MAX = 1000  # the newest are kept
_LOOK_S = 15.0
_SLACK_S = 2.0  # clocks of the kernel's buffer and of the journal differ by that
_TOLD = re.compile(
    r"NVRM|nvidia|NVSwitch|oom|Out of memory|Killed process|killed by|segfault|general protection|traps: |hung task|blocked for more than|I/O error"
    r"|AER: |machine check|Hardware Error|MCE"
)
KMSG = Path("/dev/kmsg")


@dataclass(frozen=True, slots=True)
class KernelLog:
    """`lines`: `TIME host kernel: message`, oldest first, those that may matter to a server. `problem`: why nothing is known; "" if it was read."""

    lines: list[str] = field(default_factory=list)
    problem: str = ""


def read(since: float, until: float) -> KernelLog:
    """Lines of that span (seconds since the epoch)."""
    problems = []
    for name, source in (("the journal", _journal), ("/dev/kmsg", _kmsg), ("dmesg", _dmesg)):
        try:
            found = source(since - _SLACK_S, until + _SLACK_S)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")
            continue
        return KernelLog(list(found)[-LINES_MAX:])
    return KernelLog(problem="; ".join(problems))


def _line(at: float, message: str) -> str | None:
    if not _TOLD.search(message):
        return None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e6):06d}+0000"
    return f"{stamp} {socket.gethostname() or 'host'} kernel: {' '.join(message.split())[:2000]}"


def _journal(since: float, until: float) -> list[str]:
    program = shutil.which("journalctl")
    if program is None:
        raise OSError(errno.ENOENT, "there is no journalctl")
    argv = [program, "--no-pager", "--output=json", "--all", "--output-fields=MESSAGE", f"--since=@{since:.0f}", f"--until=@{until + 1:.0f}",
            "_TRANSPORT=kernel"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False, env=systemctl.environment())
    told = done.stderr.decode(errors="replace").strip()
    lines = []
    for raw in done.stdout.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # "-- No entries --", or a record that is no kernel message
            entry = json.loads(raw)
            if (line := _line(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, journal.message(entry["MESSAGE"]))) is not None:
                lines.append(line)
    if done.returncode or (not lines and re.search("insufficient permissions|not seeing messages|No journal files", told)):
        raise PermissionError(errno.EACCES, " ".join(told.split())[-200:] or f"journalctl ended with exit code {done.returncode}")
    return lines


def _booted_at() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def _of_span(records: Iterable[tuple[float, str]], since: float, until: float) -> list[str]:
    booted, lines, empty = _booted_at(), [], True
    for at, message in records:
        empty = False
        if since <= booted + at <= until and (line := _line(booted + at, message)) is not None:
            lines.append(line)
    if empty:  # each kernel says something when it starts: this is a container's view
        raise OSError(errno.ENODATA, "the kernel's buffer is empty here")
    return lines


def _kmsg(since: float, until: float) -> list[str]:
    return _of_span(_records(), since, until)


def _records() -> Iterator[tuple[float, str]]:
    """(seconds since boot, message) of the kernel's buffer: `6,339,5140900,-;message`, one record a read."""
    handle = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                raw = os.read(handle, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten while it was read: the next read goes on with what is there
                continue
            head, found, message = raw.decode(errors="replace").partition(";")
            fields = head.split(",")
            if not raw:
                return
            if found and len(fields) >= 3 and fields[2].isdigit():
                yield int(fields[2]) / 1e6, message.split("\n", 1)[0]
    finally:
        os.close(handle)


_DMESG_LINE = re.compile(r"\[ *(\d+\.\d+)\] ?(.*)")


def _dmesg(since: float, until: float) -> list[str]:
    program = shutil.which("dmesg")
    if program is None:
        raise OSError(errno.ENOENT, "there is no dmesg")
    done = subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False, env=systemctl.environment())
    if done.returncode:
        raise PermissionError(errno.EPERM, " ".join(done.stderr.decode(errors="replace").split())[-200:] or "dmesg failed")
    found = (_DMESG_LINE.match(line) for line in done.stdout.decode(errors="replace").splitlines())
    return _of_span(((float(one[1]), one[2]) for one in found if one is not None), since, until)
