"""Which process has a file or folder open, mapped, as its working folder or as its program? All from /proc; nothing else is asked.

By device and inode, and what is mapped by path as well: an overlay or btrfs shows other numbers in /proc/PID/maps than in `stat`. Only root sees all
processes. For anybody else, `complete` is false and `problem` says so: that a file was not seen open is then no proof that it is not.
Not seen: a descriptor on its way between two processes, and threads that parted from their process's descriptors.
"""
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import os
import re
import stat
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import ownership
from ops.services.manager import manager_for

FRESH_S = 1.0  # one look costs some 20 ms on a small host, 1 s on a large one
TOLD = 5  # processes told of one file
KERNEL = 0  # the pid that stands for swap files and loop devices
_MAPPED = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*) +(/[^\n]*)$", re.MULTILINE)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of the flags in /proc/PID/stat
_HIDING = re.compile(r" - proc \S+ \S*\bhidepid=(?!0|off)\w+")


class Holders:
    """Who holds what, as of the last `refresh`; read for the first time when it is first asked.

    `complete`: every process could be looked into. `hidden`: how many could not. `service_of`: pid -> the service that it belongs to, "" for none.
    """

    def __init__(self, *, fresh_s: float = FRESH_S, service_of: Callable[[int], str] | None = None, proc: str = "/proc") -> None:
        self._proc, self._fresh_s, self._service_of = proc, fresh_s, service_of
        self._looked_at = float("-inf")
        self._files: dict[tuple[int, int], set[int]] = {}
        self._paths: dict[str, set[int]] = {}
        self._sorted: list[str] = []
        self._hidden, self._hiding = 0, False
        self._me = os.getpid()

    @property
    def complete(self) -> bool:
        self._fresh()
        return not self._hidden and not self._hiding

    @property
    def hidden(self) -> int:
        self._fresh()
        return self._hidden

    @property
    def problem(self) -> str | None:
        """What the look could not see, as a sentence; None if it saw all."""
        self._fresh()
        if self._hiding:
            return "Processes of other users are hidden here (hidepid): what only they have open was not seen"
        if self._hidden:
            many = "process" if self._hidden == 1 else "processes"
            return f"{self._hidden:,} {many} of other users could not be looked into: what only they have open was not seen"
        return None

    def pids(self, state: os.stat_result, path: str) -> list[int]:
        """Who holds this file or folder, as of at most `fresh_s` ago; 0 stands for the kernel (a swap file, a loop device)."""
        self._fresh()
        return self.seen(state.st_dev, state.st_ino, path)

    def seen(self, device: int, inode: int, path: str) -> list[int]:
        """The same as of the last look, however old."""
        found, mapped = self._files.get((device, inode)), self._paths.get(_as_mapped(path))
        if found is None and mapped is None:
            return []
        return sorted((found or set()) | (mapped or set()))

    def among(self, files: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those (device, inode) of `files` that somebody has open, as of the last look."""
        return self._files.keys() & files

    def below(self, folder: str) -> list[int]:
        """Who has something mapped whose path lies in `folder`, as of the last look."""
        first, found = _as_mapped(folder.rstrip("/")) + "/", set()
        for path in self._sorted[bisect_left(self._sorted, first):]:
            if not path.startswith(first):
                break
            found |= self._paths[path]
        return sorted(found)

    def told(self, pids: Sequence[int]) -> list[dict[str, Any]]:
        """[{pid, name, service}] of the first few."""
        return [{"pid": pid, "name": self.name(pid), "service": self._service_of(pid) if self._service_of and pid else ""} for pid in pids[:TOLD]]

    def words(self, pids: Sequence[int]) -> str:
        """`open in python3 (pid 12) and 2 more`."""
        first = self.name(pids[0])
        more = f" and {len(pids) - 1:,} more" if len(pids) > 1 else ""
        return f"open in {first} (pid {pids[0]}){more}" if pids[0] else f"in use by the kernel (swap or a loop device){more}"

    def name(self, pid: int) -> str:
        """The process's short name; "" if it is gone."""
        return processes.short_name(pid, self._proc) if pid else "kernel"

    def refresh(self) -> None:
        """Looks again. Raises OpsError where there is no /proc: then nothing can be said to be closed."""
        try:
            names = os.listdir(self._proc)
        except OSError as error:
            raise OpsError("It cannot be told which files are open", why=f"{self._proc}: {error.strerror}", hint="Mount /proc") from error
        files: dict[tuple[int, int], set[int]] = {}
        paths: dict[str, set[int]] = {}
        hidden = 0
        for name in names:
            if not name.isdecimal():
                continue
            pid, denied = int(name), False
            try:
                try:
                    for key in _opened(f"{self._proc}/{name}"):
                        files.setdefault(key, set()).add(pid)
                except PermissionError:
                    denied = True
                for key, path in _mapped(f"{self._proc}/{name}"):
                    files.setdefault(key, set()).add(pid)
                    paths.setdefault(path, set()).add(pid)
            except PermissionError:
                denied = True
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                pass
            hidden += denied and _matters(f"{self._proc}/{name}")
        for key in _kernels(self._proc):
            files.setdefault(key, set()).add(KERNEL)
        self._files, self._paths, self._sorted, self._hidden = files, paths, sorted(paths), hidden
        self._hiding = os.geteuid() != 0 and _hides(self._proc)
        self._looked_at = time.monotonic()

    def _fresh(self) -> None:
        if time.monotonic() - self._looked_at > self._fresh_s:
            self.refresh()


def of_services(records: Sequence[ServiceRecord]) -> Callable[[int], str]:
    """pid -> the service whose running processes it is one of. Asked of their managers once, at the first question."""
    known: dict[int, str] = {}
    asked = False

    def service_of(pid: int) -> str:
        nonlocal asked
        if not asked:
            asked = True
            for record in records:
                try:
                    known.update(dict.fromkeys(ownership.of_running(manager_for(record)), record.name))
                except OpsError:  # its manager cannot be asked: the process keeps its name, and is told without a service
                    continue
        return known.get(pid, "")

    return service_of


def _opened(folder: str) -> Iterator[tuple[int, int]]:
    """(device, inode) of the files and folders that a process has open, and of its working folder, root and program. Raises PermissionError after the
    last one that may be looked at (a FUSE mount of another user answers not even root)."""
    denied: PermissionError | None = None
    for name in [f"{folder}/fd/{name}" for name in os.listdir(f"{folder}/fd")] + [f"{folder}/cwd", f"{folder}/root", f"{folder}/exe"]:
        try:
            state = os.stat(name)
        except PermissionError as error:
            denied = error
            continue
        except OSError:  # closed meanwhile; a program that is gone; a file of a network server that does not answer for it
            continue
        if stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode):
            yield state.st_dev, state.st_ino
    if denied is not None:
        raise denied


def _mapped(folder: str) -> Iterator[tuple[tuple[int, int], str]]:
    """((device, inode), path) of the files that a process has mapped."""
    with open(f"{folder}/maps", "rb") as file:
        lines = file.read()
    for major, minor, inode, path in {match.groups() for match in _MAPPED.finditer(lines)}:
        yield (os.makedev(int(major, 16), int(minor, 16)), int(inode)), os.fsdecode(path)


def _as_mapped(path: str) -> str:
    """A path as /proc/PID/maps writes it. (A name that holds these four characters itself looks the same there, and is taken to be the other.)"""
    return path.replace("\n", "\\012") if "\n" in path else path


def _matters(folder: str) -> bool:
    """Whether a process that may not be looked into could hold a file: it has not ended, and is none of the kernel's own."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            raw = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    fields = raw[raw.rindex(b")") + 2:].split()
    return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _KERNEL_THREAD


def _kernels(proc: str) -> Iterator[tuple[int, int]]:
    """(device, inode) of swap files and of what loop devices show: no process has them open."""
    names: list[str] = []
    try:
        with open(f"{proc}/swaps", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split()[0] for line in file.read().split("\n")[1:] if line.startswith("/")]
        names += [_ESCAPED.sub(lambda match: chr(int(match[1], 8)), line) for line in lines]
        for block in os.listdir("/sys/block"):
            if block.startswith("loop") and os.path.exists(backing := f"/sys/block/{block}/loop/backing_file"):  # noqa: PTH110
                with open(backing, encoding="utf-8", errors="surrogateescape") as file:
                    names.append(file.read().rstrip("\n"))
    except (FileNotFoundError, PermissionError):  # a container, or a loop device that went meanwhile
        pass
    for name in names:
        try:
            state = os.stat(name)
        except OSError:
            continue
        yield state.st_dev, state.st_ino


def _hides(proc: str) -> bool:
    try:
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return _HIDING.search(file.read()) is not None
    except OSError:
        return False
