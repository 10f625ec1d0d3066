"""The practice box: a whole little GPU server to try things on, made in a folder, and put back to its first day on demand.

    <root>/box.json      speed, port, faults: read by the practice server when it starts; in_place, whether the box is changed where it lies
    <root>/ready.json    written last by `set_up` and `reset`; without it the next `set_up` builds everything anew
    <root>/wheelhouse/   the practice wheels: what the channel `practice` installs from
    <root>/models/       the model folder
    <root>/tmp/          what stands for /tmp: the debug leftovers
    <root>/shm/          what stands for /dev/shm
    <root>/cores/        core dumps
    <root>/gpus/         simulated GPU memory: holder files of running servers
    <root>/cache/        compiled graphs, FlashInfer's files
    <root>/uv-cache/     uv's cache for the first release
    <root>/environment/  only of a box that is changed in place: what its releases are links to

The node's own folders (services/kimi-k25, services.d, node.toml) are those of the `NodePaths` given. Everything but the numbers is
real: wheels, environments, processes, files.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from ops.agent.config import NodePaths
from ops.jobs.errors import BadInput, OpsError
from ops.practice import hand_patches, leftovers, model_folder, wheels
from ops.records import Channel, ServiceRecord

NODE = "practice"
SERVICE = "kimi-k25"
CHANNEL = "practice"
FIRST_RELEASE = {
    "vllm": "0.16.0rc2.dev313", "flashinfer-python": "0.6.3", "flashinfer-cubin": "0.6.3", "torch": "2.9.1", "transformers": "4.57.3",
    "compressed-tensors": "0.13.0", "xgrammar": "0.1.29", "mistral-common": "1.8.8", "nvidia-cutlass-dsl": "4.3.4", "apache-tvm-ffi": "0.1.6",
    "fastapi": "0.128.0",
}
"""What the box's service runs on its first day."""

FAULTS = frozenset({"crash_at", "stall_at", "leave_worker", "ignore_sigterm", "gibberish", "version"})
"""Faults that the practice server knows; stack/vllm/vllm/platforms/practice.py says what each does."""

_READY = "ready.json"
_SETTINGS = "box.json"
_DEFAULTS: dict[str, Any] = {"speed": 1.0, "port": None, "faults": {}, "in_place": False}


def set_up(paths: NodePaths, root: Path, *, speed: float = 1.0, port: int, in_place: bool | None = None) -> ServiceRecord:
    """Makes the practice box, or finds it: gives its service's record. Starts nothing.

    A box that is there stays as it is, whatever was redeployed in it and whichever guards and smoke questions were set, except for wheels of an
    older Roundhouse, launch settings, `speed` and `port`. A half-made one is made anew, and so is one that is to be `in_place` and was not (None:
    as it was): its service's environment may not move then, as where people have adopted one. Raises BadInput for a speed or port that cannot be,
    OpsError where a folder cannot be written or uv fails.
    """
    root = root.resolve()
    paths.make()
    with _locked(root):
        before = settings(root)["in_place"] if (root / _SETTINGS).exists() else False
        in_place = before if in_place is None else in_place
        if in_place != before:
            (root / _READY).unlink(missing_ok=True)
        write_settings(root, speed=speed, port=port, in_place=in_place)
        wheelhouse = wheels.build(root / "wheelhouse")
        stored = None
        if _is_whole(paths, root):
            stored = _stored(paths)
        else:
            _build(paths, root, wheelhouse)
        record = _record(paths, root, port)
        if stored is not None:  # flags and variables are the box's own again: with wrong ones it would not come up
            record.guards, record.smoke_tests, record.smoke_without = stored.guards, stored.smoke_tests, stored.smoke_without
        _announce(paths, root, record)
        _write(root / _READY, {"release": _current(record)})
    return record


def reset(paths: NodePaths, root: Path) -> ServiceRecord:
    """Puts the box back to its first day: the first release with its patches, the 35 leftovers, the model folder; gives the record.

    The caller has stopped the service. Releases made since, and compiled graphs, go; shelved patches, logs, runs and settings stay.
    Killed at any moment, it can be called again (or `set_up`) and ends the same. Raises OpsError as `set_up` does.
    """
    root = root.resolve()
    with _locked(root):
        known = settings(root)
        (root / _READY).unlink(missing_ok=True)
        wheelhouse = wheels.build(root / "wheelhouse")
        _build(paths, root, wheelhouse)
        record = _record(paths, root, known["port"])
        _announce(paths, root, record)
        _write(root / _READY, {"release": _current(record)})
    return record


def settings(root: Path) -> dict[str, Any]:
    """`speed`, `port`, `faults` and `in_place` of the box. Raises OpsError if there is no box in `root`."""
    path = Path(root) / _SETTINGS
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise OpsError(f"There is no practice box in `{root}`", hint="`make demo` makes one") from error
    except (OSError, ValueError) as error:
        raise OpsError(f"The practice box's settings `{path}` cannot be read", why=str(error),
                       hint="Move the file away: defaults are written anew") from error
    return {**_DEFAULTS, **known}


def write_settings(root: Path, **changes: Any) -> dict[str, Any]:
    """Changes some of the settings and gives all. A running server has read them at its start. Raises BadInput."""
    try:
        known = settings(root)
    except OpsError:
        if (Path(root) / _SETTINGS).exists():
            raise
        known = dict(_DEFAULTS)
    if unknown := sorted(set(changes) - set(known)):
        raise BadInput(f"The practice box has no setting `{unknown[0]}`", hint=f"Known: {', '.join(sorted(known))}")
    changed = known | changes
    if not 0 < changed["speed"] <= 1000:
        raise BadInput(f"A practice box cannot run at speed {changed['speed']}", hint="Use a number above 0, at most 1000; 1 is the story's own")
    if changed["port"] is not None and not 0 < changed["port"] < 65536:
        raise BadInput(f"`{changed['port']}` is no port", hint="Use a number from 1 to 65535")
    if unknown := sorted(set(changed["faults"]) - FAULTS):
        raise BadInput(f"The practice server has no fault `{unknown[0]}`", hint=f"Known: {', '.join(sorted(FAULTS))}")
    if changed != known or not (Path(root) / _SETTINGS).exists():
        _write(Path(root) / _SETTINGS, changed)
    return changed


def channel(root: Path) -> Channel:
    """The channel that installs from the box's wheelhouse."""
    folder = Path(root).resolve() / "wheelhouse"
    return Channel(name=CHANNEL, kind="wheelhouse", wheelhouse=str(folder), requirements=["vllm"], prerelease=True, practice=True)


def _record(paths: NodePaths, root: Path, port: int) -> ServiceRecord:
    flags = ["--served-model-name", model_folder.NAME, "--host", "127.0.0.1", "--port", str(port), "--tensor-parallel-size", "8",
             "--max-model-len", "131072", "--gpu-memory-utilization", "0.92", "--trust-remote-code", "--disable-custom-all-reduce",
             "--reasoning-parser", "kimi_k2", "--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2"]
    in_place = (root / _SETTINGS).exists() and bool(settings(root)["in_place"])
    return ServiceRecord(
        name=SERVICE, manager="process", root=str(paths.services / SERVICE), model_path=str(root / "models" / model_folder.NAME),
        served_model_name=model_folder.NAME, base_url=f"http://127.0.0.1:{port}", flags=flags, env={"PRACTICE_BOX": str(root)}, gpus=list(range(8)),
        guards=[dict(guard) for guard in model_folder.GUARDS], artifact_roots=[str(root / "tmp")], target_tok_s=[40.0, 50.0], practice=True,
        environment=str(root / "environment") if in_place else "", in_place=in_place,
    )


def _is_whole(paths: NodePaths, root: Path) -> bool:
    """Whether the box was made to its end, and its service has a release to run."""
    record = _record(paths, root, 1)
    return (root / _READY).exists() and (record.current / "bin" / "vllm").exists() and (Path(record.model_path) / "config.json").exists()


def _build(paths: NodePaths, root: Path, wheelhouse: wheels.Wheelhouse) -> None:
    """The first day: model folder, leftovers, first release with its patches; then everything older goes."""
    record = _record(paths, root, 1)
    model_folder.write(root / "models")
    for name in ("tmp", *leftovers.OTHERS):
        shutil.rmtree(root / name, ignore_errors=True)
    leftovers.write(root / "tmp")
    leftovers.write_others(root, flashinfer=FIRST_RELEASE["flashinfer-python"])
    (root / "gpus").mkdir(mode=0o755, exist_ok=True)
    if record.in_place:
        _first_environment(record, root, wheelhouse)
    else:
        release = _first_release(record, root, wheelhouse)
        _switch_and_tidy(record, release)
        for folder in _environments(root):
            shutil.rmtree(folder)


def _environments(root: Path) -> list[Path]:
    """The environment of a box that is changed in place, and the copies of it that redeploys made."""
    return sorted(folder for folder in root.glob("environment*") if folder.name == "environment" or folder.name.startswith("environment.roundhouse-"))


def _first_environment(record: ServiceRecord, root: Path, wheelhouse: wheels.Wheelhouse) -> None:
    """A box that is changed in place: an environment that was there before Roundhouse, adopted. Releases of another day go."""
    from ops.environments import releases
    from ops.services import state

    environment = Path(record.environment)
    for old in [*_environments(root), record.releases]:
        if old.exists():
            shutil.rmtree(old)
    record.current.unlink(missing_ok=True)
    _install(environment, root, wheelhouse)
    (environment / releases.LOCK_FILE).unlink()  # whoever made it by hand left none
    release = releases.adopt(record)

    def first_day(known: dict[str, Any]) -> None:
        known.pop("previous", None)
        known["last_good"] = release.name

    state.change(record, first_day)


def _first_release(record: ServiceRecord, root: Path, wheelhouse: wheels.Wheelhouse) -> Path:
    """Builds the first release with real uv, patches it, and gives its folder."""
    from ops.environments import releases

    version = FIRST_RELEASE["vllm"] + wheels.SUFFIX
    name = stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{version}"
    number = 1
    while (record.releases / name).exists():
        number += 1
        name = f"{stem}-{number}"
    release = record.releases / name
    release.mkdir(mode=0o755, parents=True)
    (release / releases.MARKER).write_text(json.dumps({"plan": None, "job": None, "since": time.time()}) + "\n")
    _install(release, root, wheelhouse)
    releases.write_manifest(record, release, channel=channel(root).as_dict(), verified=True,
                            note="The practice box's first release; patched by hand since")
    (release / releases.MARKER).unlink()
    return release


def _install(environment: Path, root: Path, wheelhouse: wheels.Wheelhouse) -> None:
    """The first day's packages, and what somebody had typed into them since."""
    from ops.environments import packages, releases
    from ops.environments.uv import Uv

    environment.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = environment / releases.LOCK_FILE
    lock.write_text("".join(_locked_line(wheelhouse, name, version) for name, version in sorted(FIRST_RELEASE.items())))
    uv = Uv(cache=root / "uv-cache")
    uv.venv(environment, python=sys.executable)
    uv.install(environment, lock, channel(root))
    hand_patches.apply(packages.site_packages(environment)[0])


def _locked_line(wheelhouse: wheels.Wheelhouse, name: str, version: str) -> str:
    wheel = next(wheel for wheel in wheels.catalogue() if (wheel.name, wheel.version) == (name, version + wheels.SUFFIX))
    digest = hashlib.sha256((wheelhouse.folder / wheel.filename).read_bytes()).hexdigest()
    return f"{name}=={wheel.version} --hash=sha256:{digest}\n"


def _switch_and_tidy(record: ServiceRecord, release: Path) -> None:
    """Makes `release` the one in use and the last good one, forgets what pointed to others, and removes them."""
    from ops.environments import releases
    from ops.services import state

    releases.switch(record, release)

    def first_day(known: dict[str, Any]) -> None:
        known.pop("previous", None)
        known["last_good"] = release.name

    state.change(record, first_day)
    for other in record.releases.iterdir():
        if other.name == release.name:
            continue
        if other.is_symlink() or not other.is_dir():  # of an adopted environment
            other.unlink()
        else:
            shutil.rmtree(other)


def _stored(paths: NodePaths) -> ServiceRecord | None:
    """The service's stored record, with the guards and smoke questions that people set. None where there is none to read."""
    try:
        return ServiceRecord.from_dict(json.loads((paths.announced / f"{SERVICE}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, BadInput):
        return None


def _announce(paths: NodePaths, root: Path, record: ServiceRecord) -> None:
    """node.toml, the launcher and its files, and the record in services.d; files that are right already stay untouched."""
    from ops.services import launch

    limits: dict[str, Any] = {
        "name": NODE, "practice": True, "gpu_source": "practice", "practice_root": str(root),
        "service_roots": [str(paths.services)], "model_roots": [str(root / "models")], "wheelhouse_roots": [str(root / "wheelhouse")],
        "artifact_roots": [str(root / name) for name in ("tmp", *leftovers.OTHERS)],
        "environment_roots": [str(root)] if record.in_place else [], "index_urls": [], "units": [],
    }
    _write_text(paths.node_toml, "# The practice node's own limits, written by Roundhouse.\n" + tomli_w.dumps(limits))
    launch.write(record)
    _write(paths.announced / f"{SERVICE}.json", record.as_dict())


def _current(record: ServiceRecord) -> str:
    return record.current.resolve().name


def _write(path: Path, value: object) -> None:
    _write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    """Replaces the file in one step, unless it holds that text already."""
    from ops.services import state

    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        state.write_file(path, text)
    except OSError as error:
        raise OpsError(f"`{path}` cannot be written", why=str(error)) from error


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One `set_up` or `reset` at a time; the second waits for the first."""
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (root / "box.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise OpsError(f"The practice box's folder `{root}` cannot be written", why=str(error)) from error
