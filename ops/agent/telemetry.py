"""What a node says about itself: once a second how its GPUs and services are (telemetry), now and then what it has (announcement).

Nothing here may hold up the companion: each source is read by a thread of its own into a slot, and telemetry takes what the slots
hold. A source that hangs (a lost GPU, a service that does not answer) grows old visibly instead of stopping the rest.
"""

from __future__ import annotations

import json
import logging
import platform
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.agent.config import NodeConfig, NodePaths
from ops.agent.inventory import Inventory
from ops.gpus.source import GpuSnapshot
from ops.jobs import redact
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord
from ops.services import failures

if TYPE_CHECKING:
    from ops.services.manager import Manager
    from ops.services.status import ServiceStatus

log = logging.getLogger("roundhouse.telemetry")

VERSIONS = ("vllm", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "torch", "transformers")
OLD_S = 6.0  # a reading older than this is not shown as the present
INTEGRITY_EVERY_S = 30 * 60.0  # hashing every file of an environment costs a processor second a gigabyte
MODELS_EVERY_S = 10.0
PACKAGES_EVERY_S = 2.0  # a look at folders' times; the packages are read only when these changed
UNIT_EVERY_S = 15.0  # facts of a unit that did not change its state meanwhile
HEALTH_EVERY_S = 5.0  # a healthy service is asked; its process is looked at each second
DISKS_EVERY_S = 10.0
REMEMBER_EVERY_S = 15.0  # pids of a service whose processes did not change meanwhile


@dataclass
class Slot:
    """The last value of a source, and when it was had (monotonic)."""

    value: Any = None
    at: float | None = None

    def put(self, value: Any) -> None:
        self.value, self.at = value, time.monotonic()

    def fresh(self, old_s: float | None = None) -> Any:
        """The value, or None if there is none or it is too old: than `old_s`, if given."""
        return self.value if self.at is not None and time.monotonic() - self.at <= (OLD_S if old_s is None else old_s) else None


class Loop:
    """Calls `work` every `every_s` seconds in a daemon thread until `stop` is set. A failure is told once, not every time."""

    def __init__(self, name: str, work: Callable[[], None], every_s: float, stop: threading.Event) -> None:
        self._name, self._work, self._every_s, self._stop = name, work, every_s, stop
        self._told = ""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._work()
                self._told = ""
            except Exception as error:
                if (words := f"{type(error).__name__}: {error}") != self._told:
                    log.warning("%s: %s", self._name, error, exc_info=not isinstance(error, OpsError))
                    self._told = words
            self._stop.wait(max(0.05, self._every_s - (time.monotonic() - began)))


class Telemetry:
    """Reads all sources from `start` to `stop`; `sample` and `announcement` never wait for one."""

    def __init__(self, paths: NodePaths, config: NodeConfig) -> None:
        self.paths, self.config = paths, config
        self._stop = threading.Event()
        self._gpus, self._disk, self._disks = Slot(), Slot(), Slot()
        self._services: dict[str, Slot] = {}  # ServiceStatus.as_dict()
        self._pids: dict[str, set[int]] = {}
        self._units: dict[str, dict[str, Any]] = {}
        self._due: dict[tuple[str, str], tuple[Any, float]] = {}  # (what, service) -> (what it depends on, when it was last done, monotonic)
        self._settings_key: str | None = None
        self._packages: dict[str, dict[str, Any]] = {}
        self._patched: dict[str, dict[str, Any]] = {}
        self._integrity_of: dict[str, tuple[Any, float]] = {}  # service -> (stamp of its environment, monotonic time) of the last check
        self._stamps: dict[str, Any] = {}
        self._channels: list[dict[str, Any]] = []
        self._packages_read = False
        self._source: Any = None
        self._problem: str | None = None
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="service-status")
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        self.inventory = Inventory(lambda: records(self.paths), self._gpus.fresh)
        self.failures = failures.Watch()

    def start(self) -> Telemetry:
        self.failures.start()
        Loop("gpus", self._read_gpus, 1.0, self._stop)
        Loop("services", self._read_services, 1.0, self._stop)
        Loop("disks", self._read_disks, DISKS_EVERY_S, self._stop)
        Loop("packages", self._read_packages, PACKAGES_EVERY_S, self._stop)
        Loop("integrity", self._check_integrity, 1.0, self._stop)
        Loop("environments", self.inventory.read_environments, PACKAGES_EVERY_S, self._stop)
        Loop("models", self.inventory.read_models, MODELS_EVERY_S, self._stop)
        Loop("kernels", self.inventory.read_kernels, PACKAGES_EVERY_S, self._stop)
        Loop("changes", self.inventory.read_changes, PACKAGES_EVERY_S, self._stop)
        Loop("memory", self.inventory.read_memory, 1.0, self._stop)
        return self

    def stop(self) -> None:
        self._stop.set()
        self.failures.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def sample(self) -> dict[str, Any]:
        """Telemetry as JSON: GPUs and services as they were read within the last seconds; None or `unknown` where they were not. `disks`: a gauge of
        each file system (ops/artifacts/gauges.py), read now and then."""
        services = {}
        for record in records(self.paths):
            slot = self._services.get(record.name)
            status = slot.fresh() if slot else None
            services[record.name] = status or {
                "state": "unknown", "pid": None, "start_ticks": None, "started_at": None, "release": None, "exit_code": None, "log_path": None,
                "detail": "Its state could not be read within the last seconds"}
            services[record.name] = {**services[record.name], "failure": failures.key(self._failures(record.name) or [])}
        snapshot: GpuSnapshot | None = self._gpus.fresh()
        if snapshot is None:
            snapshot = GpuSnapshot(gpus=[], source=self.config.gpu_source, problem=self._problem or "No reading of the GPUs within the last seconds")
        return {"node": self.config.name, "at": time.time(), "gpus": snapshot.as_dict(), "services": services, "disk": self._disk.fresh(),
                "disks": self._disks.fresh(3 * DISKS_EVERY_S)}

    def is_ready(self) -> bool:
        """Whether everything was read once (or could not be): an announcement before that would say less than the node has."""
        return self._packages_read and (self._gpus.at is not None or self._problem is not None)

    def announcement(self) -> dict[str, Any]:
        """What the node has, as JSON. What of a service was not read yet is null (`packages`, and see `Inventory.of`), or not there (`unit`)."""
        snapshot: GpuSnapshot | None = self._gpus.fresh()
        facts = {
            "driver": snapshot.driver if snapshot else None, "cuda": snapshot.cuda if snapshot else None,
            "gpus": [{"index": gpu.index, "name": gpu.name, "total_bytes": gpu.total_bytes} for gpu in snapshot.gpus] if snapshot else [],
            "kernel": platform.release(), "python": platform.python_version(), "roundhouse": version(),
            "problem": snapshot.problem if snapshot else self._problem, "settings_key": self._sealing_key(),
        }
        services = []
        for record in records(self.paths):
            packages = self._packages.get(record.name)
            told = {**packages, "patched": self._patched.get(record.name)} if packages else None
            # Secrets stay here: a job's order brings the record back as it was announced, and the runner takes the whole one from services.d.
            shown = redact.hide_in_record(record.as_dict())
            found = self.inventory.of(record.name)
            found["failures"] = self._failures(record.name)
            if record.manager != "systemd" or record.name in self._units:
                found["unit"] = self._units.get(record.name)
            services.append({"record": shown, "packages": told, **found, "launch": self._launch(record, shown)})
        return {"node": self.config.name, "at": time.time(), "practice": self.config.practice, "facts": facts, "services": services,
                "channels": self._channels}

    def _failures(self, name: str) -> list[dict[str, Any]] | None:
        """The last failures of a service, oldest first; None until they were read."""
        known = self.inventory.of(name)["failures"]
        return None if known is None else failures.merged(known, self.failures.unsaved(name))

    def _launch(self, record: ServiceRecord, shown: dict[str, Any]) -> dict[str, Any]:
        """What the next start will be given; `shown` is the record with its secrets hidden."""
        from ops import launch_settings

        return {"mark": launch_settings.mark(record), "flags": shown["flags"], "env": shown["env"], "env_files": record.env_files,
                "secret_names": sorted(name for name, value in shown["env"].items() if value == redact.HIDDEN),
                "pending": self.failures.is_pending(record)}

    def _sealing_key(self) -> str | None:
        """The public half of the node's key for secret settings; None if it cannot be made or read (a full disk), which is told once."""
        from ops import sealed

        if self._settings_key is None:
            try:
                self._settings_key = sealed.public_key(self.paths)
            except OpsError as error:
                if self._is_due("settings key", "", error.what, 600.0):
                    log.error("launch settings cannot be set from the console: %s", error)
        return self._settings_key

    def _is_due(self, what: str, service: str, depends_on: Any, every_s: float) -> bool:
        """Whether something is to be done again: what it depends on is new, or it is long ago."""
        known, at = self._due.get((what, service), (None, -1e9))
        if known == depends_on and time.monotonic() - at < every_s:
            return False
        self._due[what, service] = (depends_on, time.monotonic())
        return True

    def _read_gpus(self) -> None:
        from ops.gpus.open_source import open_source
        from ops.gpus.processes import claim

        usage = shutil.disk_usage(self.paths.root)
        self._disk.put({"path": str(self.paths.root), "total_bytes": usage.total, "used_bytes": usage.used, "free_bytes": usage.free})
        try:
            if self._source is None:
                self._source = open_source(self.config)
            self._gpus.put(claim(self._source.read(), dict(self._pids)))
            self._problem = None
        except OpsError as error:
            self._problem = error.what
            raise

    def _read_disks(self) -> None:
        from ops.artifacts import gauges

        self._disks.put(gauges.of_node(self.config, self.paths, records(self.paths)))

    def _read_services(self) -> None:
        for record in records(self.paths):
            with self._lock:
                if record.name in self._asked:
                    continue  # still being asked: it hangs, and its slot grows old
                self._asked.add(record.name)
            self._pool.submit(self._read_service, record)

    def _read_service(self, record: ServiceRecord) -> None:
        from ops.services.manager import manager_for
        from ops.services.status import ServiceState, ServiceStatus

        try:
            manager = None
            try:
                manager = manager_for(record, health_every_s=HEALTH_EVERY_S)
                status = manager.status()
                pids = manager.pids()
            except OpsError as error:
                status, pids = ServiceStatus(state=ServiceState.UNKNOWN, detail=error.what), set()
            self._services.setdefault(record.name, Slot()).put(status.as_dict())
            self._pids[record.name] = pids
            if manager is not None:
                self._read_more(record, manager, status, pids)
        except Exception:  # an executor would swallow it
            log.exception("the status of service `%s` cannot be read", record.name)
        finally:
            with self._lock:
                self._asked.discard(record.name)

    def _read_more(self, record: ServiceRecord, manager: Manager, status: ServiceStatus, pids: set[int]) -> None:
        """What follows from a service's state: ends that nobody asked for, its processes to be known again later, facts of its unit."""
        from ops.services import ownership
        from ops.services.systemd import SystemdManager

        self.failures.look(record, status, manager)
        if pids and self._is_due("pids", record.name, frozenset(pids), REMEMBER_EVERY_S):
            ownership.remember(record, status, pids)
        if isinstance(manager, SystemdManager):
            if self._is_due("unit", record.name, (record.unit, status.state, status.invocation, status.restarts), UNIT_EVERY_S):
                self._units[record.name] = manager.facts()
        else:
            self._units.pop(record.name, None)

    def _read_packages(self) -> None:
        if self.config.practice:
            self._channels = practice_channels(self.config)
        for record in records(self.paths):
            try:
                stamp = environment_stamp(record)
                if self._stamps.get(record.name) != stamp:
                    self._packages[record.name] = packages_of(record)
                    self._stamps[record.name] = stamp
            except OpsError as error:  # no environment any more, or a broken one: said in its place, the other services are read all the same
                self._stamps.pop(record.name, None)
                self._packages[record.name] = {**unread_packages(), "problem": error.what}
            except Exception as error:  # a fault of ours met by one environment; the node must announce itself and its other services all the same
                if (self._packages.get(record.name) or {}).get("problem") != (told := f"It could not be read: {type(error).__name__}: {error}"[:500]):
                    log.exception("the packages of service `%s` cannot be read", record.name)
                self._stamps.pop(record.name, None)
                self._packages[record.name] = {**unread_packages(), "problem": told}
        self._packages_read = True

    def _check_integrity(self) -> None:
        from ops.environments import integrity, releases

        for record in records(self.paths):
            stamp = self._stamps.get(record.name)
            done, at = self._integrity_of.get(record.name, (None, -1e9))
            if stamp is None or (done == stamp and time.monotonic() - at < INTEGRITY_EVERY_S):
                continue
            current = releases.current(record)
            if current is None:
                self._patched.pop(record.name, None)
            else:
                report = integrity.check(current)
                self.inventory.checked(record.name, current, report)
                files = [{"package": found.package, "path": found.path, "change": found.change}
                         for found in [*report.changed, *report.missing, *report.extra]]
                self._patched[record.name] = {"files": files[:200], "count": len(files), "checked_at": time.time()}
            self._integrity_of[record.name] = (stamp, time.monotonic())


def records(paths: NodePaths) -> list[ServiceRecord]:
    """The services that this node announces (`services.d`), by name. A record that cannot be read is told and left out."""
    found = []
    for path in sorted(paths.announced.glob("*.json")):
        try:
            found.append(_record(path, path.stat().st_mtime_ns))
        except (OSError, ValueError, RecursionError, BadInput) as error:
            if _told.get(path) != str(error):
                log.error("the service record `%s` cannot be read: %s", path, error)
                _told[path] = str(error)
    return found


_told: dict[Path, str] = {}
_records: dict[Path, tuple[int, ServiceRecord]] = {}


def _record(path: Path, mtime_ns: int) -> ServiceRecord:
    known = _records.get(path)
    if known is None or known[0] != mtime_ns:
        known = _records[path] = (mtime_ns, ServiceRecord.from_dict(json.loads(path.read_text())))
    return known[1]


def environment_stamp(record: ServiceRecord) -> Any:
    """Changes whenever a package of the current release, a guard, or a guarded file changes: names and times, no file is opened."""
    from ops.environments import guards, packages, releases

    current = releases.current(record)
    guarded = (record.guards, guards.stamp(record))
    if current is None:
        return (None, guarded)
    libraries = packages.site_packages(current)
    infos = [(str(entry), _mtime(entry)) for library in libraries for entry in sorted(library.glob("*.dist-info"))]
    return (str(current), infos, guarded)


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def packages_of(record: ServiceRecord) -> dict[str, Any]:
    """Versions, coupling and guards of the service's current release; `release` is null and versions are empty where there is none."""
    from ops.environments import coupling, guards, packages, releases

    current = releases.current(record)
    found = packages.read(current) if current else None
    return {
        "versions": {name: found.version(name) if found else None for name in VERSIONS},
        "coupling": [finding.as_dict() for finding in coupling.findings(found, env=record.env)] if found else [],
        "release": current.name if current else None,
        "guards": [result.as_dict() for result in guards.check(record)],
    }


def unread_packages() -> dict[str, Any]:
    """What stands for packages that could not be read."""
    return {"versions": dict.fromkeys(VERSIONS), "coupling": [], "release": None, "guards": []}


def practice_channels(config: NodeConfig) -> list[dict[str, Any]]:
    """The practice box's channel."""
    from ops.practice import box

    return [box.channel(Path(config.practice_root)).as_dict()]


def version() -> str | None:
    """Roundhouse's own version: of the installed package, else of the pyproject.toml beside the code."""
    import tomllib

    from ops.agent.config import REPOSITORY

    try:
        return str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        try:
            return metadata.version("roundhouse")
        except metadata.PackageNotFoundError:
            return None
