"""Which process is this, does it still live, and whose is it? All from /proc; a pid alone is never trusted, since pids come back.

A process is named by its pid *and* its start time in clock ticks since boot (field 22 of /proc/PID/stat), within one boot.
"""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ops.gpus.source import GpuProcess, GpuSnapshot
from ops.jobs.redact import hide_in_command, plain_text

PROC = Path("/proc")
COMMAND_LENGTH = 4000  # characters: a program may have megabytes of arguments, and telemetry tells this every second
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `state` is the letter of /proc/PID/stat (Z: ended, not yet collected)."""

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    cpu_ticks: int  # user + system time


def look(pid: int) -> Process | None:
    """The process with this pid, or None if there is none."""
    try:
        raw = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name stands in brackets and may itself hold brackets and blanks: the fields begin after the last one.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return Process(pid=pid, state=fields[0].decode(), parent=int(fields[1]), session=int(fields[3]),
                   start_ticks=int(fields[19]), cpu_ticks=int(fields[11]) + int(fields[12]))


def all_processes() -> Iterator[Process]:
    """Every process of this machine that can be seen, at about one moment."""
    for name in os.listdir(PROC):  # noqa: PTH208  (Path.iterdir makes an object for each of some hundred entries, once a second)
        if name.isdigit() and (found := look(int(name))) is not None:
            yield found


def short_name(pid: int, proc: str | Path = PROC) -> str:
    """The name that the kernel knows a process by (/proc/PID/comm), as printable text; "" if there is no such process."""
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return "".join(letter for letter in file.read(64).rstrip("\n") if letter.isprintable())
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Clock ticks since boot at which the process started (field 22 of /proc/PID/stat), or None if there is no such process."""
    found = look(pid)
    return found.start_ticks if found else None


def is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process still runs. One that has ended and only waits to be collected (a zombie) does not."""
    found = look(pid)
    return found is not None and found.start_ticks == ticks and found.state not in "ZX"


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The kernel's random name of this boot (/proc/sys/kernel/random/boot_id)."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


@lru_cache(maxsize=1)
def _booted_at() -> float:
    for line in (PROC / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise RuntimeError("/proc/stat has no btime line")


def started_at(ticks: int) -> float:
    """Seconds since the epoch at which a process with this start time began; exact to about a second (btime is whole seconds)."""
    return _booted_at() + ticks / _TICKS_PER_SECOND


def cpu_seconds(pid: int) -> float | None:
    """Processor time used so far, user and system; None if there is no such process."""
    found = look(pid)
    return found.cpu_ticks / _TICKS_PER_SECOND if found else None


def describe(pid: int) -> tuple[str | None, str | None, float | None]:
    """(user, command line, started at in seconds since the epoch); each None where it cannot be read (gone, or another's process).

    The command line goes to pages and logs: secrets in it (`--api-key X`) are hidden here already, and it is plain text of bounded length.
    """
    found = look(pid)
    if found is None:
        return None, None, None
    folder = PROC / str(pid)
    user: str | None
    command: str | None
    try:
        uid = folder.stat().st_uid
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
    except OSError:
        user = None
    try:
        with (folder / "cmdline").open("rb") as file:
            words = [word.decode(errors="replace") for word in file.read(4 * COMMAND_LENGTH).split(b"\0") if word]
        # A process that renamed itself (VLLM::Worker_TP0) has its title as the one and only word.
        shown = hide_in_command(words)
        command = shown[0] if len(shown) == 1 else shlex.join(shown)
        command = plain_text(command or f"[{(folder / 'comm').read_text().strip()}]").replace("\n", " ")[:COMMAND_LENGTH]
    except OSError:
        command = None
    return user, command, started_at(found.start_ticks)


def environment(pid: int) -> dict[str, str] | None:
    """The environment that the process was started with; None if it may not be read or the process is gone.

    Empty where the process wrote its title over it: setproctitle, which vLLM uses, does that unless SPT_NOENV is set.
    """
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in pairs}


def real_uid(pid: int) -> int | None:
    """Who started the process, also where its program runs as another user (setuid), or hides what it may (then /proc shows it as root's). None if
    there is no such process."""
    try:
        text = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Uid:")), None)


def control_group(pid: int) -> str | None:
    """The path of the process's control group below the root of the hierarchy that systemd uses; None if the process is gone."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    # version 2, then the hierarchy of its own that systemd has beside version 1: with both mounted either may be the one in use
    paths = [path for number, controllers, path in rows if number == "0" and not controllers]
    paths += [path for _, controllers, path in rows if controllers == "name=systemd"]
    return next((path for path in paths if unit_in(path) is not None), paths[0] if paths else None)


def unit_in(path: str) -> str | None:
    """The innermost systemd unit in the path of a control group (`/system.slice/kimi.service/worker`: `kimi.service`); None if it names none."""
    return next((part for part in reversed(path.split("/")) if part.endswith((".service", ".scope"))), None)


def unit_of(pid: int) -> str | None:
    """The systemd unit (a service or a scope) that the process belongs to; None if it belongs to none, or that cannot be read."""
    path = control_group(pid)
    return unit_in(path) if path is not None else None


def marked_with(name: str, value: str) -> list[int]:
    """Pids of all living processes that were started with NAME=VALUE in their environment, whatever session or parent they have now."""
    mark = f"{name}={value}".encode()
    found = []
    for entry in os.listdir(PROC):  # noqa: PTH208  (as in all_processes)
        if not entry.isdigit():
            continue
        try:
            raw = (PROC / entry / "environ").read_bytes()
        except OSError:
            continue  # ended meanwhile, or another user's: not ours
        if mark in raw.split(b"\0"):
            found.append(int(entry))
    return sorted(found)


def claim(snapshot: GpuSnapshot, services: Mapping[str, Set[int]]) -> GpuSnapshot:
    """The snapshot with `GpuProcess.service` filled in: `services` gives each service's pids. What nobody claims stays None."""
    owner = {pid: name for name, pids in services.items() for pid in pids}
    gpus = [replace(gpu, processes=[replace(process, service=owner.get(process.pid)) for process in gpu.processes]) for gpu in snapshot.gpus]
    return replace(snapshot, gpus=gpus)


def described(pid: int, used_bytes: int | None) -> GpuProcess:
    """A GPU's process with its user, command and start time looked up."""
    user, command, began = describe(pid)
    return GpuProcess(pid=pid, used_bytes=used_bytes, user=user, command=command, started_at=began)
