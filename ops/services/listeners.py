"""Who listens on a TCP port, and which Unix sockets are bound? From /proc: TCP sockets by their inode, and the process that holds it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ops.gpus import processes

_LISTEN, _ESTABLISHED = "0A", "01"


def _sockets(state: str) -> Iterator[tuple[int, str]]:
    """(local port, inode) of each TCP socket in this state (IPv4 and IPv6) in this network namespace."""
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # no IPv6
        for row in rows:
            fields = row.split()
            if fields[3] == state:
                yield int(fields[1].rsplit(":", 1)[1], 16), fields[9]


def inodes(port: int) -> set[str]:
    """Inodes of the sockets that listen on `port` (IPv4 and IPv6) in this network namespace; empty: nobody does."""
    return {inode for local, inode in _sockets(_LISTEN) if local == port}


def connections(port: int) -> int:
    """How many clients are connected to `port` here. A connection that its server has let go of already does not count."""
    return sum(1 for local, inode in _sockets(_ESTABLISHED) if local == port and inode != "0")


def ports_of(some: Iterable[int]) -> list[tuple[int, int]]:
    """(port, pid) of every port that one of these processes listens on, as far as this user may see."""
    known = {f"socket:[{inode}]": port for port, inode in _sockets(_LISTEN)}
    found = set()
    for pid in some if known else ():
        try:
            names = [os.readlink(descriptor) for descriptor in Path("/proc", str(pid), "fd").iterdir()]  # noqa: PTH115
        except OSError:
            continue
        found |= {(known[name], pid) for name in names if name in known}
    return sorted(found)


def foreign(port: int, own: set[int]) -> str | None:
    """Who else listens on `port`, in words; None if one of `own` does, nobody does (an address of another machine), or nobody can tell."""
    sockets = inodes(port)
    if not sockets or _hold(own, sockets):
        return None
    others = pids(port)
    if not others or others & own:  # another user's, or it has just been opened
        return None
    return ", ".join(f"pid {pid} ({(processes.describe(pid)[1] or 'unknown')[:100]})" for pid in sorted(others))


def _hold(some: set[int], sockets: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in sockets}
    for pid in some:
        try:
            if any(os.readlink(descriptor) in wanted for descriptor in Path("/proc", str(pid), "fd").iterdir()):  # noqa: PTH115
                return True
        except OSError:
            continue
    return False


def pids(port: int) -> set[int]:
    """Processes that listen on `port`, as far as this user may see: another user's process is not in it, though `inodes` names its socket."""
    wanted = {f"socket:[{inode}]" for inode in inodes(port)}
    if not wanted:
        return set()
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            for descriptor in Path("/proc", name, "fd").iterdir():
                if os.readlink(descriptor) in wanted:  # noqa: PTH115  (a socket's link is a name, not a path)
                    found.add(int(name))
                    break
        except OSError:
            continue  # it ended meanwhile, or belongs to another user
    return found


def unix_names() -> frozenset[str]:
    """Names (without their folder: a server may have bound one by another path to it) of the Unix sockets that are bound, in every network namespace
    that can be seen (a container may share the folder). Raises OSError."""
    found = _unix_names("/proc/net/unix")
    seen = {os.readlink("/proc/self/ns/net")}  # noqa: PTH115
    for process in processes.all_processes():
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            space = os.readlink(f"/proc/{process.pid}/ns/net")  # noqa: PTH115
            if space not in seen:
                seen.add(space)
                found |= _unix_names(f"/proc/{process.pid}/net/unix")
    return frozenset(found)


def _unix_names(table: str) -> set[str]:
    return {os.fsdecode(line.rpartition(b"/")[2]) for line in Path(table).read_bytes().split(b"\n") if b"/" in line}
