"""What each service of the node has, beside its versions: all installed packages with what is wrong with them, the kept releases, what changed since
the last good start, what its model folder brings along, and its last failures and warmups.

Every part is read in a thread of its own and only when a stamp (names and times; nothing is opened for it) says that it may have changed: an
environment of 10 GB with 200 distributions is read once, not at every look. Whether its kernels fit the GPUs is asked of its own torch, in a
subprocess with a time limit, once a release.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.jobs.errors import OpsError
from ops.records import ServiceRecord

if TYPE_CHECKING:
    from ops.environments.integrity import IntegrityReport
    from ops.environments.packages import EnvironmentPackages
    from ops.gpus.source import GpuSnapshot

log = logging.getLogger("roundhouse.inventory")

DISTRIBUTIONS_MAX = 2000  # announced; a serving environment has about 200
FINDINGS_MAX = 500  # of each kind
RELEASES_MAX = 200
TEXT_MAX = 400  # characters of one text
CHANGED_MAX_BYTES = 200_000  # more differences than that explain nothing: the words are kept
REST = 10.0  # an environment that changes all the time (an install) is read again after this many times what reading took
MODEL_EVERY_S = 600
KERNELS_S = 180.0  # importing torch takes 17 s from a cold disk on an idle machine

Stamp = Any


class Inventory:
    """The newest reading of each service. `of` never waits."""

    def __init__(self, records: Callable[[], list[ServiceRecord]], gpus: Callable[[], GpuSnapshot | None]) -> None:
        self._records, self._gpus = records, gpus
        self._environments: dict[str, dict[str, Any]] = {}
        self._releases: dict[str, list[dict[str, Any]]] = {}
        self._changed: dict[str, dict[str, Any] | None] = {}
        self._models: dict[str, list[dict[str, Any]]] = {}
        self._memory: dict[str, dict[str, list[dict[str, Any]] | None]] = {}
        self._kernels: dict[str, dict[str, Any]] = {}
        self._stamps: dict[tuple[str, str], Stamp] = {}  # (part, service)
        self._not_before: dict[tuple[str, str], float] = {}  # monotonic
        self._reports: dict[str, tuple[Path, IntegrityReport]] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> dict[str, Any]:
        """`environment`, `releases`, `changed`, `model`, `failures` and `warmups` of a service, as JSON. `environment`, `failures` and `warmups` are
        null until they were read."""
        environment = self._environments.get(name)
        if environment is not None:
            environment = {**environment, "kernels": self._kernels.get(name)}
        return {"environment": environment, "releases": self._releases.get(name, []), "changed": self._changed.get(name),
                "model": self._models.get(name, []), **self._memory.get(name, {"failures": None, "warmups": None})}

    def checked(self, name: str, environment: Path, report: IntegrityReport) -> None:
        """Takes the result of an integrity check, so that a fingerprint needs no second one."""
        self._reports[name] = (environment, report)

    def read_environments(self) -> None:
        """One look at the packages and releases of all services."""
        for record in self._records():
            self._look(record, "environment", environment_stamp, self._read_environment)
            self._look(record, "releases", releases_stamp, self._read_releases)
        self._forget_gone()

    def read_models(self) -> None:
        """One look at the model folders; they may lie on another machine, and hang."""
        for record in self._records():
            self._look(record, "model", model_stamp, self._read_model)

    def read_kernels(self) -> None:
        """Asks the environments whose release (or torch) is new since the last look."""
        snapshot = self._gpus()
        if snapshot is None:
            return
        for record in self._records():
            capabilities = sorted({gpu.compute_capability for gpu in snapshot.gpus
                                   if gpu.compute_capability and (not record.gpus or gpu.index in record.gpus)})
            if capabilities:
                self._look(record, "kernels", partial(kernels_stamp, capabilities=capabilities),
                           partial(self._read_kernels, capabilities=capabilities))
            else:
                self._kernels.pop(record.name, None)

    def read_changes(self) -> None:
        """Holds what runs now against the last good start, wherever one of the two is new."""
        snapshot = self._gpus()
        if snapshot is None:
            return  # without the GPUs everything would look as if the driver had gone
        for record in self._records():
            self._look(record, "changed", partial(self._changes_stamp, snapshot=snapshot), partial(self._read_changes, snapshot=snapshot))

    def read_memory(self) -> None:
        """One look at what the node remembers of all services (`state.json`)."""
        for record in self._records():
            self._look(record, "memory", memory_stamp, self._read_memory)

    # ---- parts ----

    def _look(self, record: ServiceRecord, part: str, stamp_of: Callable[[ServiceRecord], Stamp], read: Callable[[ServiceRecord], None]) -> None:
        """Reads a part if its stamp is another than at the last reading. What cannot be read is told once and tried again when it changes."""
        key = (part, record.name)
        began = time.monotonic()
        if began < self._not_before.get(key, 0.0):
            return
        try:
            stamp = stamp_of(record)
        except OSError as error:
            stamp = ("unreadable", str(error))
        if key in self._stamps and self._stamps[key] == stamp:
            return
        try:
            read(record)
        except OpsError as error:
            log.warning("service `%s`: its %s cannot be read: %s", record.name, part, error)
        finally:
            self._stamps[key] = stamp
            self._not_before[key] = time.monotonic() + REST * (time.monotonic() - began)

    def _read_environment(self, record: ServiceRecord) -> None:
        self._environments[record.name] = environment_of(record, self._gpus())

    def _read_releases(self, record: ServiceRecord) -> None:
        from ops.environments import releases

        self._releases[record.name] = [release.as_dict() for release in releases.listing(record)[:RELEASES_MAX]]

    def _read_model(self, record: ServiceRecord) -> None:
        from ops.environments import model_folder

        self._models[record.name] = _listed(model_folder.look(Path(record.model_path), record.flags))

    def _read_kernels(self, record: ServiceRecord, capabilities: list[str]) -> None:
        from ops.environments import kernels

        self._kernels.pop(record.name, None)  # another environment's answer is none
        environment = folder_of(record)
        if environment is None:
            return
        try:
            self._kernels[record.name] = _plain(kernels.check(environment, capabilities, timeout_s=KERNELS_S))
        except OpsError as error:  # a Python that does not run, a torch that cannot be imported: worth knowing, too
            said = f"{error.what}: {error.why}" if error.why else error.what
            self._kernels[record.name] = {"torch": None, "cuda": None, "architectures": [], "covered": {}, "missing": [], "findings": [],
                                          "problem": said[:TEXT_MAX]}

    def _read_memory(self, record: ServiceRecord) -> None:
        from ops.services import failures, state

        known = state.read(record)
        warmups = known.get("warmups")
        self._memory[record.name] = {"failures": failures.kept(known),
                                     "warmups": [one for one in warmups if isinstance(one, dict)] if isinstance(warmups, list) else []}

    def _changes_stamp(self, record: ServiceRecord, snapshot: GpuSnapshot) -> Stamp:
        report = self._reports.get(record.name)
        gpus = [(gpu.index, gpu.name, gpu.total_bytes, gpu.power_limit_w) for gpu in snapshot.gpus]
        return (environment_stamp(record), id(report[1]) if report else None, snapshot.driver, gpus, record.as_dict(),
                _mtime(record.folder / "state.json"), _mtime(Path(record.model_path, "config.json")))

    def _read_changes(self, record: ServiceRecord, snapshot: GpuSnapshot) -> None:
        from ops.environments import fingerprint

        environment, report = folder_of(record), self._reports.get(record.name)
        if environment is None or report is None or report[0] != environment or fingerprint.last_good_start(record) is None:
            self._changed[record.name] = None  # nothing to compare, or not yet
            return
        made = fingerprint.fingerprint(record, release=environment, gpus=snapshot, report=report[1])
        found = fingerprint.changed_since_good(record, made)
        self._changed[record.name] = _cut_changed(found) if found else None

    def _forget_gone(self) -> None:
        names = {record.name for record in self._records()}
        for kept in (self._environments, self._releases, self._changed, self._models, self._kernels, self._reports, self._memory):
            for name in set(kept) - names:
                kept.pop(name, None)
        for stamps in (self._stamps, self._not_before):
            for key in [key for key in list(stamps) if key[1] not in names]:
                stamps.pop(key, None)


def folder_of(record: ServiceRecord) -> Path | None:
    """The environment that the service runs from: its current release, else the one that is to be adopted; None if there is neither."""
    from ops.environments import releases

    current = releases.current(record)
    if current is None and record.environment and Path(record.environment).is_dir():
        return Path(record.environment)
    return current


def environment_of(record: ServiceRecord, snapshot: GpuSnapshot | None = None) -> dict[str, Any]:
    """All that is installed, and what does not fit, as JSON. A part that cannot be read is said in `problems`; the others stay."""
    from ops.environments import packages, releases

    current, folder = releases.current(record), folder_of(record)
    told: dict[str, Any] = {
        "release": current.name if current else None, "path": str(folder) if folder else None,
        "adopted": str(releases.environment(record)) if record.environment else None,  # what a job in place has to name
        "python": None, "distributions": [], "duplicates": [], "problems": [], "requirements": [], "cuda": [], "coupling": [], "at": time.time()}
    if folder is None:
        return told
    try:
        found = packages.read(folder)
    except OpsError as error:
        return {**told, "problems": [error.what]}
    problems = list(found.problems)
    told["python"] = found.python_version
    told["distributions"] = _distributions(found, folder, problems)
    told["duplicates"] = [_cut(one.as_dict()) for one in found.duplicates[:FINDINGS_MAX]]
    for part, read in _findings(record, found, snapshot).items():
        try:
            told[part] = _listed(read())
        except OpsError as error:
            problems.append(f"{error.what}: {error.why}" if error.why else error.what)
    told["problems"] = [problem[:TEXT_MAX] for problem in problems[:FINDINGS_MAX]]
    return told


def _findings(record: ServiceRecord, found: EnvironmentPackages, snapshot: GpuSnapshot | None) -> Mapping[str, Callable[[], list[Any]]]:
    from ops.environments import coupling, cuda_builds, requirements_check

    return {
        "requirements": lambda: requirements_check.check(found),
        "cuda": lambda: cuda_builds.findings(found, driver_cuda=snapshot.cuda if snapshot else None),
        "coupling": lambda: coupling.findings(found, env=record.env),
    }


def _distributions(found: EnvironmentPackages, folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    from ops.environments import packages, releases

    manifest: dict[str, Any] | None = None
    try:
        manifest = releases.manifest(folder)
    except OpsError as error:
        problems.append(error.what)
    if len(found.distributions) > DISTRIBUTIONS_MAX:
        problems.append(f"{len(found.distributions):,} distributions are installed; the first {DISTRIBUTIONS_MAX:,} by name are told")
        found = replace(found, distributions=dict(sorted(found.distributions.items())[:DISTRIBUTIONS_MAX]))
    return [_cut(one) for one in packages.describe(found, manifest)]


# ---- stamps ----


def environment_stamp(record: ServiceRecord) -> Stamp:
    """Changes whenever a distribution of the service's environment comes, goes or is written anew, or the record's own say changes."""
    found = _metadata_stamp(record, "*.dist-info", "*.egg-info")
    return None if found is None else (*found, record.environment, sorted(record.env.items()))


def _metadata_stamp(record: ServiceRecord, *patterns: str) -> tuple[Any, ...] | None:
    """The service's environment, with names and times of the metadata folders that fit a pattern; None where it has none."""
    from ops.environments import packages

    folder = folder_of(record)
    if folder is None:
        return None
    try:
        libraries = packages.site_packages(folder)
    except OpsError as error:
        return (str(folder), error.what)
    found = sorted(entry for library in libraries for pattern in patterns for entry in library.glob(pattern))
    return (str(folder), os.path.realpath(folder), [(entry.name, _mtime(entry)) for entry in found])


def releases_stamp(record: ServiceRecord) -> Stamp:
    """Changes when a release comes, goes, is finished or verified, or another one is current or the last good one."""
    try:
        link: str | None = str(record.current.readlink())
    except OSError:
        link = None
    try:
        entries = sorted(record.releases.iterdir())
    except FileNotFoundError:
        entries = []
    inside = ("roundhouse-building", "roundhouse-release.json")  # a release's own marker and manifest; of a linked one the manifest lies beside it
    return (link, _mtime(record.folder / "state.json"),
            [(entry.name, _mtime(entry), *(_mtime(entry / name) for name in inside)) for entry in entries])


def model_stamp(record: ServiceRecord) -> Stamp:
    """Changes with the files that lie in the model folder itself, with the flags, and now and then for what lies deeper."""
    folder = Path(record.model_path)
    try:
        files = [(entry.name, _mtime(entry)) for entry in sorted(folder.iterdir())]
    except OSError as error:
        return (str(folder), type(error).__name__, record.flags)
    return (str(folder), files, record.flags, int(time.time() // MODEL_EVERY_S))


def memory_stamp(record: ServiceRecord) -> Stamp:
    """Changes with every write of what the node remembers of the service."""
    found = (record.folder / "state.json").stat()
    return (found.st_mtime_ns, found.st_ino, found.st_size)


def kernels_stamp(record: ServiceRecord, capabilities: list[str]) -> Stamp:
    """Changes with the release, where that is changed in place with its torch, and with the GPUs."""
    found = _metadata_stamp(record, "torch-*.dist-info")
    return None if found is None else (*found, capabilities)


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


# ---- sizes ----


def _listed(found: list[Any]) -> list[dict[str, Any]]:
    return [_cut(_plain(one)) for one in found[:FINDINGS_MAX]]


def _plain(found: Any) -> dict[str, Any]:
    if isinstance(found, Mapping):
        return dict(found)
    if hasattr(found, "as_dict"):
        return dict(found.as_dict())
    if is_dataclass(found) and not isinstance(found, type):
        return asdict(found)
    raise TypeError(f"no finding: {type(found).__name__}")


def _cut(told: dict[str, Any]) -> dict[str, Any]:
    """The same with long texts cut."""
    return {name: value[:TEXT_MAX] if isinstance(value, str) else value for name, value in told.items()}


def _cut_changed(found: dict[str, Any]) -> dict[str, Any]:
    words = [str(one)[:TEXT_MAX] for one in found.get("words") or []]
    cut = {**found, "words": words[:FINDINGS_MAX]}
    if len(json.dumps(cut)) > CHANGED_MAX_BYTES:
        cut["differences"] = None
    return cut
