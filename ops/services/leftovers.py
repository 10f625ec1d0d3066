"""What a stop, or a crash, left behind: processes, GPU memory, ports, shared memory, sockets. Listed; only the service's own processes may be ended.

Seen with real vLLM: a worker lives on for seconds after its main process, and for ever after a SIGKILL of that; /dev/shm/psm_* and nccl-* segments
and /tmp/vllm_dist_* files stay after every hard end. Files are listed and never deleted: no handle on a file proves nothing about its next user.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ops.artifacts import kinds
from ops.gpus import processes
from ops.gpus.source import GpuSnapshot, GpuSource
from ops.jobs import marks
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import health, launch, listeners, ownership, stopping
from ops.services.manager import Manager, manager_for

LISTED = 200  # of each sort
COMMAND_LENGTH = 500  # characters
GRACE_S = 5.0  # between SIGTERM and SIGKILL: a process whose main one is gone has no request to finish
SHM = Path("/dev/shm")  # noqa: S108  (the file system that ranks talk through, not a temporary file)


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What is left of a service at one moment. `running`: it runs (again), so what its run holds is no leftover."""

    service: str
    at: float  # seconds since the epoch
    running: bool
    processes: list[dict[str, Any]] = field(default_factory=list)  # as in the event `leftovers`; own ones first
    gpus: list[dict[str, Any]] = field(default_factory=list)  # {index, used_bytes, allowed_bytes, problem}: those of the service that are not free
    ports: list[dict[str, Any]] = field(default_factory=list)  # {port, pid, command, own}
    shm: list[dict[str, Any]] = field(default_factory=list)  # {path, size_bytes}
    ipc: list[dict[str, Any]] = field(default_factory=list)  # {path, what}
    problems: list[str] = field(default_factory=list)  # what could not be looked at, a sentence each

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def own(self) -> list[dict[str, Any]]:
        return [process for process in self.processes if process["own"]]

    @property
    def matters(self) -> bool:
        """Whether something holds what the next start needs. Rendezvous files and dead sockets, of which each hard end leaves some, hold nothing."""
        return bool(self.processes or self.gpus or self.ports or self.shm)

    def words(self) -> str:
        """One line for a step list."""
        others = len(self.processes) - len(self.own)
        said = [
            f"{len(self.own)} own process{'' if len(self.own) == 1 else 'es'}" if self.own else "",
            f"{others} of others" if others else "",
            f"{len(self.gpus)} GPU{'' if len(self.gpus) == 1 else 's'} not free" if self.gpus else "",
            f"port {', '.join(str(port) for port in sorted({one['port'] for one in self.ports}))} in use" if self.ports else "",
            f"{len(self.shm)} file{'' if len(self.shm) == 1 else 's'} in shared memory" if self.shm else "",
            f"{len(self.ipc)} socket{'' if len(self.ipc) == 1 else 's'} and rendezvous files" if self.ipc else "",
        ]
        return ", ".join(part for part in said if part) or "nothing is left"


def look(record: ServiceRecord, source: GpuSource, *, others: Sequence[ServiceRecord] = ()) -> Leftovers:
    """Looks at this machine. `others`: the node's further services, so that their processes are named as theirs. Changes nothing.

    Raises OpsError where the service's own manager cannot be asked; what else cannot be looked at is a sentence in `problems`.
    """
    manager = manager_for(record)
    status = manager.status()
    running = ownership.of_running(manager, status)
    owned = ownership.left_over(record, manager, status=status)
    problems: list[str] = []
    services = _services_of(others, problems)
    owned = {pid: one for pid, one in owned.items() if pid not in services}
    snapshot = source.read()
    if snapshot.problem and not snapshot.gpus and record.gpus:
        problems.append(f"The GPUs cannot be read: {snapshot.problem}")
    held = _held(record, snapshot, running)
    there = {pid for pid, one in owned.items() if pid in held or processes.is_alive(pid, one.start_ticks)}  # some end while one looks
    found = [_process(pid, held.get(pid, []), owned.get(pid), services.get(pid)) for pid in sorted({*there, *held})]
    uid, _ = ownership.user_of(record, manager)
    gpus = [] if running else [
        {"index": one.index, "used_bytes": one.used_bytes, "allowed_bytes": one.allowed_bytes, "problem": one.words}
        for one in stopping.not_free(record, processes.claim(snapshot, {record.name: set(owned)}))]
    return Leftovers(
        service=record.name, at=time.time(), running=bool(running), gpus=gpus,
        processes=sorted(found, key=lambda one: (not one["own"], one["pid"]))[:LISTED],
        ports=_ports(record, running, set(owned))[:LISTED], shm=_shared_memory(uid, problems)[:LISTED],
        ipc=_ipc(uid, _temporary_folders(record, manager), problems)[:LISTED], problems=problems)


def _services_of(others: Sequence[ServiceRecord], problems: list[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for other in others:
        try:
            found |= dict.fromkeys(manager_for(other).pids(), other.name)
        except OpsError as error:
            problems.append(f"The processes of service `{other.name}` cannot be told: {error.what}")
    return found


def _held(record: ServiceRecord, snapshot: GpuSnapshot, running: set[int]) -> dict[int, list[dict[str, Any]]]:
    """What processes hold on the service's GPUs, by pid; what its own run holds is as it must be."""
    held: dict[int, list[dict[str, Any]]] = {}
    for gpu in snapshot.gpus:
        for process in gpu.processes if not record.gpus or gpu.index in record.gpus else ():
            if process.pid not in running:
                held.setdefault(process.pid, []).append({"index": gpu.index, "used_bytes": process.used_bytes})
    return held


def _process(pid: int, gpus: list[dict[str, Any]], owned: ownership.Owned | None, service: str | None) -> dict[str, Any]:
    user, command, began = processes.describe(pid)
    command = command[:COMMAND_LENGTH] if command is not None else None
    return {
        "pid": pid, "start_ticks": owned.start_ticks if owned else processes.start_ticks(pid), "started_at": began, "user": user,
        "unit": processes.unit_of(pid), "command": command, "gpus": gpus, "own": owned is not None, "service": service,
        "why": owned.why if owned else f"it is service `{service}`'s" if service else "nothing shows that it was the service's",
    }


def _ports(record: ServiceRecord, running: set[int], owned: set[int]) -> list[dict[str, Any]]:
    port = health.port_of(record.base_url)
    found = {(number, pid) for number, pid in listeners.ports_of(owned)}
    if listeners.inodes(port):
        holders = listeners.pids(port)
        found |= {(port, pid) for pid in holders - running}
        if not holders and not running:
            return [{"port": port, "pid": None, "command": None, "own": False}, *_told(found, owned)]  # a process of another user
    return _told(found, owned)


def _told(found: Iterable[tuple[int, int]], owned: set[int]) -> list[dict[str, Any]]:
    return [{"port": port, "pid": pid, "command": (processes.describe(pid)[1] or "")[:COMMAND_LENGTH] or None, "own": pid in owned}
            for port, pid in sorted(found)]


# ---- files ----


def _shared_memory(uid: int, problems: list[str]) -> list[dict[str, Any]]:
    """Files of the service's user in /dev/shm that no process has open or mapped, largest first."""
    kind = kinds.builtin_named("shared-memory")
    files: dict[tuple[int, int], tuple[str, int]] = {}  # (device, inode): (path, bytes)
    try:
        with os.scandir(SHM) as entries:
            for entry in entries:
                if kind.fits(entry.name) and entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_uid == uid:
                        files[found.st_dev, found.st_ino] = (entry.path, found.st_blocks * 512)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"`{SHM}` cannot be read: {error.strerror or error}")
        return []
    if files:
        used, hidden = _in_use(uid)
        if hidden:
            problems.append(f"{hidden} processes of the service's user cannot be looked into: some of the shared memory may still be in use")
        files = {key: told for key, told in files.items() if key not in used and told[0] not in used}
    return [{"path": path, "size_bytes": size} for path, size in sorted(files.values(), key=lambda one: (-one[1], one[0]))]


def _in_use(uid: int) -> tuple[set[tuple[int, int] | str], int]:
    """(device, inode) of each file below /dev/shm that some process has open, and the path of each that one has mapped; and how many processes of
    `uid` hide that."""
    prefix, hidden = f"{SHM}/", 0
    used: set[tuple[int, int] | str] = set()
    for process in processes.all_processes():
        folder = Path("/proc", str(process.pid))
        if process.state in "ZX":
            continue
        try:
            for link in (folder / "fd").iterdir():
                if os.readlink(link).startswith(prefix):  # noqa: PTH115  (a name that may have been removed since)
                    found = link.stat()
                    used.add((found.st_dev, found.st_ino))
        except PermissionError:
            hidden += _owner(folder) == uid
        except OSError:
            continue  # it ended meanwhile
        used |= _mapped(folder, prefix)
    return used, hidden


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None


def _mapped(folder: Path, prefix: str) -> set[str]:
    """What it has mapped; the file itself may be closed by then. By path: an overlay shows other inodes here than stat does."""
    try:
        with (folder / "maps").open(errors="replace") as lines:
            paths = [fields[5].rstrip("\n") for line in lines if prefix in line and len(fields := line.split(maxsplit=5)) == 6]
    except OSError:
        return set()
    return {path for path in paths if path.startswith(prefix)}


def _temporary_folders(record: ServiceRecord, manager: Manager) -> list[Path]:
    try:
        given = {**manager.variables(), **launch.variables(record)}
    except (OSError, OpsError):
        given = launch.variables(record)
    names = [given.get("VLLM_RPC_BASE_PATH"), given.get("TMPDIR"), "/tmp"]  # noqa: S108  (looked at, never written)
    return [Path(name) for name in dict.fromkeys(names) if name and name.startswith("/")]


def _ipc(uid: int, folders: Sequence[Path], problems: list[str]) -> list[dict[str, Any]]:
    """Rendezvous files of torch, and sockets between vLLM's processes that nobody has bound any more."""
    rendezvous, socket = kinds.builtin_named("rendezvous"), kinds.builtin_named("ipc-socket")
    try:
        bound = listeners.unix_names()
    except OSError as error:
        problems.append(f"It cannot be told which sockets are bound: {error.strerror or error}")
        return []
    found = []
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not (rendezvous.fits(entry.name) or socket.fits(entry.name)):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid != uid:
                        continue
                    if rendezvous.fits(entry.name):
                        found.append({"path": entry.path, "what": "rendezvous file of torch.distributed"})
                    elif stat.S_ISSOCK(status.st_mode) and entry.name not in bound:
                        found.append({"path": entry.path, "what": "socket between vLLM's processes, bound by nobody"})
        except OSError:
            continue  # not there, or not ours to read: nothing of the service's can be told from it
    return sorted(found, key=lambda one: one["path"])


# ---- ending them ----


def chosen(raw: Any) -> list[tuple[int, int]]:
    """The (pid, start_ticks) that an order names. Raises BadInput for anything else."""
    if not isinstance(raw, list) or not raw or len(raw) > LISTED:
        raise BadInput("Nothing was chosen to be ended", hint=f"Choose processes of the last look for leftovers, at most {LISTED}")
    found = []
    for one in raw:
        pid, ticks = (one.get("pid"), one.get("start_ticks")) if isinstance(one, dict) else (None, None)
        if not all(isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in (pid, ticks)):
            raise BadInput("A process to be ended is named by its pid and its start time", why=str(one)[:200])
        found.append((int(pid or 0), int(ticks or 0)))
    return found


def end(context: Context, record: ServiceRecord, wanted: Sequence[tuple[int, int]], *, others: Sequence[ServiceRecord] = (),
        grace_s: float = GRACE_S) -> str:
    """Ends these processes: SIGTERM, after `grace_s` SIGKILL, each through a pidfd, so that no other process can be hit.

    Each must be proven to be a leftover of this service, now and again at each signal. Raises Refused (kind "not_own") before anything is ended if
    one of them is not; OpsError "not_permitted" if this user may not end one; OpsError if one does not end. Those that are gone are gone.
    """
    manager = manager_for(record)
    theirs = _services_of(others, [])
    mine = ownership.left_over(record, manager)
    running = ownership.of_running(manager)
    living = [(pid, ticks) for pid, ticks in wanted if processes.is_alive(pid, ticks)]
    for pid, ticks in living:
        if pid in running:
            raise Refused(f"Process {pid} belongs to service `{record.name}` as it runs now", why="It is no leftover",
                          hint="Stop the service instead", kind="not_own")
        if pid not in mine or mine[pid].start_ticks != ticks or pid in theirs:
            raise Refused(f"Process {pid} is not proven to be a leftover of service `{record.name}`: {marks.tell([pid])}",
                          why=f"It is service `{theirs[pid]}`'s" if pid in theirs else "Nothing shows that it was the service's", kind="not_own",
                          hint="Nothing was ended. Whoever it belongs to can end it")
    for pid, _ in living:
        context.log(f"pid {pid} ({(processes.describe(pid)[1] or '?')[:200]}): {mine[pid].why}")

    def still(pid: int) -> bool:
        found = ownership.left_over(record, manager).get(pid)
        return found is not None and (pid, found.start_ticks) in living

    left = _end(context, living, still, grace_s, manager if record.manager == "systemd" else None, record)
    if left:
        raise OpsError(f"{len(left)} processes do not end even after SIGKILL: {marks.tell(left)}",
                       why="A process that waits inside the kernel (a GPU driver, a file system) cannot be ended",
                       hint="Look at the kernel log for NVRM or Xid lines; if they stay, only a restart of the machine helps")
    gone = len(wanted) - len(living)
    return f"{len(living)} ended" + (f", {gone} had ended by themselves" if gone else "")


def _end(context: Context, living: Sequence[tuple[int, int]], still: Callable[[int], bool], grace_s: float, manager: Manager | None,
         record: ServiceRecord) -> set[int]:
    """Those that live even so. `manager`: of a unit, which may end what is in its control group where this user may not."""
    began, told = time.monotonic(), False
    while left := {pid for pid, ticks in living if processes.is_alive(pid, ticks)}:
        waited = time.monotonic() - began
        if waited > grace_s + stopping.KILL_LIMIT_S:
            return left
        number = signal.SIGKILL if waited >= grace_s else signal.SIGTERM
        if number == signal.SIGKILL or not told:
            for pid in left:
                _signal(pid, number, still, manager, record)
            told = True
        context.progress(len(living) - len(left), len(living), "processes")
        context.sleep(0.1 if waited < grace_s else 0.2)
    return set()


def _signal(pid: int, number: signal.Signals, still: Callable[[int], bool], manager: Manager | None, record: ServiceRecord) -> None:
    try:
        marks.signal_one(pid, number, still)
    except PermissionError as error:
        if manager is not None and ownership.in_unit(pid, record) and not ownership.of_running(manager):
            manager.kill()
            return
        user = processes.describe(pid)[0] or "another user"
        raise OpsError(f"Process {pid} may not be ended by this user", why=f"It runs as {user}, and the agent as another user",
                       hint=f"An admin of the machine can: sudo kill {pid}", kind="not_permitted") from error
