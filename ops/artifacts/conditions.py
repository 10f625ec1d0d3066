"""Whether a leftover is safe to delete at this moment: the conditions that kinds name, looked at by a scan, and again right before a deletion.

    service-stopped        every service that could use it is stopped, and no other vLLM server of the same user runs
    older-than-runs        it was there before the oldest of these that runs was started: each run makes its own under new names
    version-not-installed  no release of the services that share the cache has that version of FlashInfer (the folder's name)
    hash-not-in-use        the logs of their last starts name other folders, and it is not the newest of its folder
    not-newest             a newer one of its kind lies beside it
    not-bound              no process listens on the socket
    all-processes-seen     every process that could have it open could be looked into

Beside these, of an admin's own kind the newest core dump and the newest log of a folder stay, whatever that kind says of itself.

What cannot be told counts as in use, and the sentence says what could not be told.
"""
# ruff: noqa: PTH118, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import re
import stat as stat_words
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Protocol

from ops.agent.config import NodeConfig, NodePaths
from ops.artifacts import kinds as known
from ops.artifacts.kinds import Kind, age
from ops.artifacts.places import Places
from ops.gpus import processes
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import listeners
from ops.services.manager import manager_for
from ops.services.status import ServiceState, ServiceStatus

FRESH_S = 1.0  # for what a start or an end of a process changes
INSTALLED_FRESH_S = 30.0  # for what a build changes
HEAD_BYTES = 16 << 20  # of a log: a start's own lines are among the first few thousand
HEAD_LINES = 50_000
FOLDERS_REMEMBERED = 10_000
FLASHINFER = "flashinfer-python"
_COMPILED = re.compile(r"torch_compile_cache/(?:torch_aot_compile/)?([0-9a-f]{10}|[0-9a-f]{64})\b|torch_aot_compile/([0-9a-f]{64})\b")
_SERVER = re.compile(r"(?:VLLM|sglang)::|ray::\S*Worker|(?:\S*/)?(?:vllm|sglang)(?:\s|$)|\S*python[\d.]*\s(?:-\S+\s)*-m\s(?:vllm|sglang)[.\s]"
                     r"|\S*python[\d.]*\s(?:-\S+\s)*(?:\S*/)?(?:vllm|sglang)\s")
# Programs that hide what they have open although they are of our own user, and hold no shared memory of servers
_HARMLESS = frozenset({"(sd-pam)", "sshd", "sshd-session", "sshd-auth", "ssh-agent"})
# What a crash leaves to be read: a core dump by the names that the built-in kinds know, and logs
_LOG = re.compile(r"(?i).*(?:\.log(?:[.-]?\d[\d.:_-]*)?(?:\.(?:gz|xz|zst|bz2))?|\.(?:err|out|stderr|stdout)|crash.*\.(?:txt|json))\Z")
_UNTOUCHED = frozenset({"--enforce-eager", "-O0", "-O.mode=0"})


class HoldersLike(Protocol):
    """What is needed of ops/artifacts/holders.py."""

    @property
    def complete(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A running vLLM or SGLang server that is no service of this node."""

    pid: int
    uid: int | None
    started_at: float


class Conditions:
    """Built once a scan or purge. What can change meanwhile (a service that is started, a socket that is bound) is looked at again, at most once a
    second."""

    def __init__(self, config: NodeConfig | None, paths: NodePaths | None, records: Sequence[ServiceRecord], holders: HoldersLike | None = None, *,
                 places: Places | None = None, now: Callable[[], int] = time.time_ns) -> None:
        """`config`, `paths`: None on a machine without a node state. `holders`: None where it is not looked at who has what open. `places`: of the
        same scan; without them any service could use anything. `now`: nanoseconds since the epoch."""
        self.config, self.paths, self.records, self.holders, self.places, self.now = config, paths, list(records), holders, places, now
        self._practice = config is not None and config.practice
        self._by_name = {record.name: record for record in self.records}
        self._statuses: dict[str, tuple[float, ServiceStatus]] = {}
        self._strangers: tuple[float, list[_Stranger]] = (float("-inf"), [])
        self._bound: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
        self._closed: tuple[float, str | None] = (float("-inf"), None)
        self._newest: dict[tuple[str, str, int], str] = {}
        self._cores = [pattern for kind in known.builtin() if "core-dump" in kind.name for pattern in kind.patterns] + ["*.core"]
        self._read: dict[tuple[int, int, int], set[str]] = {}
        self._users_of: dict[tuple[str, str], list[str]] = {}
        self._versions: dict[str, tuple[float, frozenset[str], str | None]] = {}
        self._used: dict[str, tuple[float, frozenset[str], str | None]] = {}
        self._checks: dict[str, Callable[[Kind, str, os.stat_result, int], str | None]] = {
            "service-stopped": self._stopped, "older-than-runs": self._older_than_runs, "version-not-installed": self._not_installed,
            "hash-not-in-use": self._not_in_use, "not-newest": self._not_newest, "not-bound": self._not_bound,
            "all-processes-seen": self._all_seen}

    def verdict(self, kind: Kind, artifact_path: str, *, stat: os.stat_result, service: str = "", folder_newest_ns: int | None = None) -> str | None:
        """Why the artifact is not safe to delete now, as a sentence; None if it is.

        `service`: that of its place, if it is one. `folder_newest_ns`: mtime of the newest file in a folder artifact.
        """
        newest = stat.st_mtime_ns if folder_newest_ns is None else folder_newest_ns
        if kind.min_age_s and self.now() - newest < kind.min_age_s * 1e9:
            return f"It is younger than {age(kind.min_age_s)}, and may still be written"
        for name in kind.conditions:
            if (why := self._checks[name](kind, artifact_path, stat, newest)) is not None:
                return why
        return self._record_of_a_crash(path=artifact_path, uid=stat.st_uid) if kind.own else None

    # ---- services and other servers ----

    def _stopped(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        del newest_ns
        for name in self.services_of(kind, path):
            status = self._status(name)
            if status.state not in (ServiceState.STOPPED, ServiceState.FAILED) or status.ending or status.restarting:
                return f"`{name}` runs, and may use it" if status.runs else f"It cannot be told that `{name}` is stopped: {status.detail}"
        stranger = next((one for one in self._others() if one.uid in (None, state.st_uid)), None)
        return None if stranger is None else f"A server that is no service here (pid {stranger.pid}) runs, and may use it"

    def _older_than_runs(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        """What stands in the way is a run of the file's own owner (or of one that is not known) that began before the file was made."""
        made = max(newest_ns, state.st_ctime_ns, state.st_mtime_ns) / 1e9 + 2.0  # clocks of files and processes differ a little
        users = self.places.users if self.places is not None else {}
        for name in self.services_of(kind, path):
            if users.get(name) not in (None, state.st_uid):
                continue
            status = self._status(name)
            if status.state in (ServiceState.STOPPED, ServiceState.FAILED) and not status.ending and not status.restarting:
                continue
            if status.started_at is None:
                return f"It cannot be told whether the run of `{name}` made it: {status.detail}"
            if made > status.started_at:
                return f"`{name}` runs, and may have made it"
        stranger = next((one for one in self._others() if one.uid in (None, state.st_uid) and made > one.started_at), None)
        return None if stranger is None else f"A server that is no service here (pid {stranger.pid}) runs, and may have made it"

    def services_of(self, kind: Kind, path: str) -> list[str]:
        """Those that could use what lies at `path`: the same for all that lies in one folder."""
        key = (kind.name, os.path.dirname(path))
        if (known := self._users_of.get(key)) is None:
            if len(self._users_of) > FOLDERS_REMEMBERED:
                self._users_of.clear()
            found = self.places.services_of(kind, path) if self.places is not None else list(self._by_name)
            known = self._users_of[key] = [name for name in found if name in self._by_name]
        return known

    def _status(self, name: str) -> ServiceStatus:
        known = self._statuses.get(name)
        if known is None or time.monotonic() - known[0] > FRESH_S:
            try:
                status = manager_for(self._by_name[name], health_every_s=3600).status()  # whether it answers is of no interest
            except OpsError as error:
                status = ServiceStatus(state=ServiceState.UNKNOWN, detail=error.what)
            known = self._statuses[name] = (time.monotonic(), status)
        return known[1]

    def _others(self) -> list[_Stranger]:
        """Servers beside the services; on a practice node none count, since all that is there is the box's own."""
        if self._practice:
            return []
        if time.monotonic() - self._strangers[0] > FRESH_S:
            found, ours = [], self._pids_of_services()
            for process in processes.all_processes():
                if process.state in "ZX" or process.pid in ours or not _SERVER.match(_title(process.pid)):
                    continue
                if "PRACTICE_BOX" in (processes.environment(process.pid) or {}):  # it writes nowhere but into its box
                    continue
                found.append(_Stranger(process.pid, processes.real_uid(process.pid), processes.started_at(process.start_ticks)))
            self._strangers = (time.monotonic(), found)
        return self._strangers[1]

    def _pids_of_services(self) -> set[int]:
        found: set[int] = set()
        for record in self.records:
            with contextlib.suppress(OpsError):  # its own state says so, and keeps what it could use
                found |= manager_for(record).pids()
        return found

    # ---- caches ----

    def _not_installed(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        del state, newest_ns
        wanted = os.path.basename(path).partition("+")[0]
        services = self.services_of(kind, path)
        for name in services:
            versions, problem = self._installed(self._by_name[name])
            if wanted in versions:
                return f"A release of `{name}` has FlashInfer {wanted} installed"
            if problem is not None:
                return f"It cannot be told which FlashInfer `{name}` has: {problem}"
        return None if services else "No service is known here, so it cannot be told which versions are in use"

    def _installed(self, record: ServiceRecord) -> tuple[frozenset[str], str | None]:
        """Versions of FlashInfer in the environments of a service, and why one of them could not be read."""
        known = self._versions.get(record.name)
        if known is not None and time.monotonic() - known[0] < INSTALLED_FRESH_S:
            return known[1], known[2]
        versions, problem = _installed_in(record)
        self._versions[record.name] = (time.monotonic(), versions, problem)
        return versions, problem

    def _not_in_use(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        del newest_ns
        key, folder = os.path.basename(path), os.path.dirname(path)
        services = self.services_of(kind, path)
        for name in services:
            used, problem = self._named(self._by_name[name])
            if key in used:
                return f"`{name}` used it in one of its last starts"
            if problem is not None:
                return f"It cannot be told which compile cache `{name}` uses: {problem}"
        if not services:
            return "No service is known here, so it cannot be told which of them is in use"
        if self._newest_in(folder, kind, state.st_uid) in ("", key):
            return "It is the newest here: the next start may use it"
        stranger = next((one for one in self._others() if one.uid in (None, state.st_uid)), None)
        return None if stranger is None else f"A server that is no service here (pid {stranger.pid}) runs, and may use it"

    def _named(self, record: ServiceRecord) -> tuple[frozenset[str], str | None]:
        """The compile caches that the logs of the service's last starts name, and why that says nothing."""
        known = self._used.get(record.name)
        if known is not None and time.monotonic() - known[0] < INSTALLED_FRESH_S:
            return known[1], known[2]
        used: set[str] = set()
        problem = None
        try:
            used |= self._in_log_files(record) if record.manager == "process" else _in_journal(record)
        except (OpsError, OSError) as error:
            problem = error.what if isinstance(error, OpsError) else error.strerror or str(error)
        if not used and problem is None and not _UNTOUCHED & set(record.flags) and self._status(record.name).runs:
            problem = "the log of its run names none"
        self._used[record.name] = (time.monotonic(), frozenset(used), problem)
        return frozenset(used), problem

    def _in_log_files(self, record: ServiceRecord) -> set[str]:
        """Of all starts whose logs are kept. What was read of a log is not read again. Raises OSError."""
        logs, used = record.folder / "logs", set[str]()
        for path in sorted(logs.glob("*.log")) if logs.is_dir() else ():
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                key = (state.st_dev, state.st_ino, min(state.st_size, HEAD_BYTES))
                if key not in self._read:
                    self._read[key] = _keys(file.read(HEAD_BYTES).decode(errors="replace").split("\n"))
            used |= self._read[key]
        return used

    # ---- files beside it ----

    def _not_newest(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        del newest_ns
        newest = self._newest_in(os.path.dirname(path), kind, state.st_uid)
        return f"It is the newest {kind.one} here, and stays" if newest in ("", os.path.basename(path)) else None

    def _record_of_a_crash(self, path: str, uid: int) -> str | None:
        folder, name = os.path.split(path)
        for word, fits in (("core dump", self._is_core), ("log", _is_log)):
            if fits(name) and self._newest_of(word, folder, uid, fits) in ("", name):
                return f"It is the newest {word} here, and stays"
        return None

    def _is_core(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._cores)

    def _newest_in(self, folder: str, kind: Kind, uid: int) -> str:
        """The name of that user's newest artifact of that kind in the folder, as of the last look, but there right now; "" if there is none. (What
        another user puts beside it, in /tmp perhaps, takes nothing of its worth.)"""
        ends = [pattern.rpartition("/")[2] for pattern in kind.patterns]
        return self._newest_of(kind.name, folder, uid, lambda name: any(fnmatchcase(name, end) for end in ends), unit=kind.unit)

    def _newest_of(self, what: str, folder: str, uid: int, fits: Callable[[str], bool], *, unit: str = "file") -> str:
        key = (what, folder, uid)
        name = self._newest.get(key)
        if name is None or not os.path.lexists(os.path.join(folder, name)):
            if len(self._newest) > FOLDERS_REMEMBERED:
                self._newest.clear()
            name = self._newest[key] = _newest(folder, fits, uid, unit)
        return name

    # ---- processes ----

    def _not_bound(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        """By its name: a server may have bound it by another path to the same folder."""
        del kind, state, newest_ns
        if time.monotonic() - self._bound[0] > FRESH_S:
            try:
                self._bound = (time.monotonic(), listeners.unix_names())
            except OSError as error:
                return f"It cannot be told whether a process listens on it: {error.strerror or error}"
        return "A process listens on it" if os.path.basename(path) in self._bound[1] else None

    def _all_seen(self, kind: Kind, path: str, state: os.stat_result, newest_ns: int) -> str | None:
        del kind, path, newest_ns
        if self.holders is None:
            return "It was not looked at which processes have it open"
        if self.holders.complete:
            return None
        if state.st_uid != os.geteuid() or state.st_mode & 0o066:
            return "Processes of other users, which cannot be looked into from here, may have it open"
        if time.monotonic() - self._closed[0] > FRESH_S:
            self._closed = (time.monotonic(), _closed_process())
        return self._closed[1]


def _title(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _installed_in(record: ServiceRecord) -> tuple[frozenset[str], str | None]:
    from ops.environments import packages, releases

    folders = {os.path.realpath(release.path): release.name for release in releases.listing(record)}
    for path in (record.environment, str(record.current)):
        if path and os.path.isdir(path):  # noqa: PTH112
            folders.setdefault(os.path.realpath(path), os.path.basename(path))
    if not folders:
        return frozenset(), "it has no release, and names no environment"
    versions: set[str] = set()
    for folder, name in folders.items():
        try:
            found = packages.read(folder)
        except (OpsError, OSError) as error:
            if releases.is_unfinished(Path(folder)) and not releases.is_being_built(Path(folder)):
                continue  # it is no environment yet, and nobody makes it one
            return frozenset(versions), f"the release {name} cannot be read ({error.what if isinstance(error, OpsError) else error})"
        versions |= {one.version.partition("+")[0] for one in (*found.distributions.values(), *found.duplicates) if one.name == FLASHINFER}
    return frozenset(versions), None


def _in_journal(record: ServiceRecord) -> set[str]:
    """Of the current (else the last) run, and of those before it that are remembered. Raises OpsError where one may not be read."""
    from ops.services import state

    manager, used = manager_for(record), set[str]()
    remembered = [str(run.get("invocation") or "") for run in state.read(record).get("runs") or [] if isinstance(run, dict)]
    for invocation in dict.fromkeys(["", *reversed(remembered)]):
        used |= _keys(islice(manager.log_lines(invocation), HEAD_LINES))
    return used


def _keys(lines: Iterable[str]) -> set[str]:
    """The compile caches that a log names."""
    return {found[1] or found[2] for line in lines if "torch_" in line and (found := _COMPILED.search(line)) is not None}


def _is_log(name: str) -> bool:
    return _LOG.match(name) is not None


def _newest(folder: str, fits: Callable[[str], bool], uid: int, unit: str) -> str:
    """An empty file is newer than none that says something: a full disk leaves core dumps of no length."""
    best = (False, -1, "")
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not fits(entry.name):
                    continue
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                wanted = stat_words.S_ISDIR if unit == "folder" else stat_words.S_ISREG
                if wanted(state.st_mode) and state.st_uid == uid:
                    best = max(best, (unit == "folder" or state.st_size > 0, state.st_mtime_ns, entry.name))
    except OSError:
        return ""
    return best[2]


def _closed_process() -> str | None:
    """A process of our own user that cannot be looked into, as the sentence that says so; None if all could be."""
    mine = os.geteuid()
    for process in processes.all_processes():
        if process.state in "ZX" or processes.real_uid(process.pid) != mine:
            continue
        try:
            os.listdir(f"/proc/{process.pid}/fd")
        except PermissionError:
            name = processes.short_name(process.pid)
            if name not in _HARMLESS:
                return f"The process {name or '?'} (pid {process.pid}) cannot be looked into, and may have it open"
        except OSError:  # ended meanwhile
            continue
    return None
