"""What would go wrong, found before anything is stopped: first on the host, then with the built release.

Each look gives findings (ok, note, warning, stop) with why and fix, and all looks run, so that one run shows all that is wrong. Only then
does a `stop` end the job. Nothing here changes anything, and nothing of the model folder is run.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ops.gpus import processes
from ops.gpus.source import MIB, GpuSnapshot
from ops.jobs.errors import BadInput, CommandFailed, OpsError, Timeout
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from ops.services import health, listeners
from ops.services.manager import manager_for
from ops.services.spawner import clean_environment

GIB = 1 << 30
HELP_LIMIT_S = 300.0  # `vllm serve --help` imports all of vLLM: 17 s on an idle machine, 50 s on a busy one
_JSON_LIMIT = 64 * MIB  # the index of a model with a million tensors is some 60 MB

Findings = list[dict[str, Any]]


class _Looks:
    """Collects findings, and tells each at once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.found: Findings = []

    def add(self, level: str, title: str, *, why: str = "", fix: str = "") -> None:
        self._context.finding("preflight", level, title, why=why, fix=fix)
        self.found.append({"subject": "preflight", "level": level, "title": title, "why": why, "fix": fix})

    def run(self, looks: Iterable[Callable[[], None]]) -> Findings:
        """All looks; one that fails with an expected error is a finding itself. Raises OpsError if any finding is `stop`."""
        for look in looks:
            self._context.check()
            try:
                look()
            except OpsError as error:
                self.add("stop", error.what, why=error.why, fix=error.hint)
        stops = [one for one in self.found if one["level"] == "stop"]
        if stops:
            more = "" if len(stops) == 1 else f" ({len(stops) - 1} more: {'; '.join(one['title'] for one in stops[1:4])})"
            raise OpsError(f"Preflight: {stops[0]['title']}{more}", why=stops[0]["why"], hint=stops[0]["fix"], kind="preflight",
                           findings=[one for one in self.found if one["level"] in {"stop", "warning"}])
        return self.found


def host(context: Context, record: ServiceRecord, plan: Mapping[str, Any] | None) -> Findings:
    """Looks at this machine: environment, launcher, port, guards, model files, GPUs, disk, limits, caches.

    `plan` is the redeploy's plan, or None where the release that runs stays. Emits a `finding` each. Raises OpsError if any is `stop`.
    """
    looks = _Looks(context)
    snapshot = _gpus(context)
    return looks.run([
        lambda: _environment(looks, record, plan),
        lambda: _launcher(looks, record),
        lambda: _port(looks, record),
        lambda: _guards(looks, record) if plan is None else None,  # a plan has looked at them, and has said so
        lambda: _model(looks, record),
        lambda: _gpu_count(looks, record, snapshot),
        lambda: _gpu_memory(looks, record, snapshot),
        lambda: _disk(looks, record, plan),
        lambda: _shared_memory(looks, record),
        lambda: _limits(looks),
        lambda: _caches(looks, record),
    ])


def release(context: Context, record: ServiceRecord, release: Path, plan: Mapping[str, Any] | None) -> Findings:
    """Looks at the built release: coupled packages, CUDA against the driver, and whether it knows the service's flags and parsers.

    Emits a `finding` each. Raises OpsError if any is `stop`. A plan that was confirmed without coupling only gets a warning for it.
    """
    looks = _Looks(context)
    return looks.run([
        lambda: _coupling(looks, record, release, plan),
        lambda: _driver(looks, release, _gpus(context)),
        lambda: _flags(looks, context, record, release),
        lambda: _tools(looks, record, release),
    ])


# ---- the host ----


def _environment(looks: _Looks, record: ServiceRecord, plan: Mapping[str, Any] | None) -> None:
    if not record.current.exists():
        if plan is None:
            looks.add("stop", f"Service `{record.name}` has no release", why=f"`{record.current}` points nowhere", fix="Redeploy it")
        else:
            looks.add("note", "There is no release yet: this is the first one", why="There is nothing to go back to if it fails")
        return
    live = record.current.resolve()
    missing = [name for name in ("bin/python", "bin/vllm") if not os.access(live / name, os.X_OK)]
    if not missing:
        looks.add("ok", f"Release {live.name} has its interpreter and vLLM")
    elif plan is None:
        looks.add("stop", f"Release {live.name} is not whole: {' and '.join(missing)} cannot be run", fix="Redeploy the service")
    else:
        looks.add("warning", f"The release in use, {live.name}, is not whole: {' and '.join(missing)} cannot be run",
                  why="If the new one fails, there is nothing to go back to")


def _launcher(looks: _Looks, record: ServiceRecord) -> None:
    folder = record.folder
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)  # a record written by hand: the first release makes the folder
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        looks.add("stop", f"The service's folder `{folder}` cannot be {'written' if there == folder else 'made'}",
                  why="" if there == folder else f"`{there}` is no folder that this user may write to",
                  fix="Correct its owner: the agent's user writes the launcher's files there")
        return
    for name in ("launch.json", "flags.json", "env.json"):
        path = folder / name
        if path.exists():
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                looks.add("warning", f"`{path}` cannot be read: {error}", why="It was changed by hand, or not by this user",
                          fix="It is written anew from the service's record at the start")
    looks.add("ok", f"The launcher's files in `{folder}` can be written" if there == folder else f"The service's folder `{folder}` can be made")


def _port(looks: _Looks, record: ServiceRecord) -> None:
    port = health.port_of(record.base_url)
    for index, flag in enumerate(record.flags):
        given = flag.partition("=")[2] if flag.startswith("--port=") else record.flags[index + 1] if flag == "--port" and index + 1 < len(
            record.flags) else None
        if given is not None and given != str(port):
            looks.add("stop", f"The flags say port {given}, but the service's address is {record.base_url}",
                      fix="Make the two agree: a start would be watched at a port where nobody listens")
            return
    if not listeners.inodes(port):
        looks.add("ok", f"Port {port} is free")
        return
    if record.manager != "process":
        looks.add("note", f"Port {port} is in use", why=f"By the unit `{record.unit}` if it runs; whose processes a unit's are is not looked at yet")
        return
    holders = listeners.pids(port)
    if holders & manager_for(record).pids():
        looks.add("ok", f"Port {port} is held by this service")
        return
    named = ", ".join(f"pid {pid} ({processes.describe(pid)[1] or 'unknown'})" for pid in sorted(holders)) or "a process of another user"
    looks.add("stop", f"Port {port} is held by something else: {named[:300]}", why="The service could not open it",
              fix=f'ss -ltnp "sport = :{port}" names it: stop it, or give the service another port')


def _guards(looks: _Looks, record: ServiceRecord) -> None:
    from ops.environments import guards

    results = guards.check(record)
    for result in results:
        if not result.holds:
            looks.add("stop", f"A guard does not hold: {result.explains}", why="The service would start with another model configuration",
                      fix=result.fix)
    if results and all(result.holds for result in results):
        looks.add("ok", {1: "The guard holds", 2: "Both guards hold"}.get(len(results), f"All {len(results)} guards hold"))


def _model(looks: _Looks, record: ServiceRecord) -> None:
    folder = Path(record.model_path)
    if not folder.is_dir():
        looks.add("stop", f"The model folder `{folder}` does not exist", why="vLLM would take the path for a name on the hub and say something else",
                  fix="Mount or restore it")
        return
    try:
        config = _json(folder / "config.json")
    except FileNotFoundError:
        looks.add("stop", f"The model folder has no `{folder / 'config.json'}`", fix="Restore it: the download is not complete")
        return
    _shards(looks, folder)
    _heads(looks, record, config)
    if "auto_map" in config and not _has_flag(record, "--trust-remote-code"):
        looks.add("warning", "The model brings Python code of its own (auto_map), and --trust-remote-code is not set",
                  why="vLLM may refuse to load it", fix="Read that code; if you trust it, add the flag")


def _shards(looks: _Looks, folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    try:
        names = sorted({str(name) for name in _json(index).get("weight_map", {}).values()})
    except FileNotFoundError:
        names = []
    if not names:
        whole = [path for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt") for path in folder.glob(pattern)]
        if whole:
            looks.add("ok", f"The model folder has {len(whole)} weight files and no index to hold them against")
        else:
            looks.add("stop", f"The model folder `{folder}` holds no weights", fix="Download them again")
        return
    wrong, size = [], 0
    for name in names:
        path = folder / name
        try:
            length = path.stat().st_size
        except OSError:
            wrong.append(f"{name} is missing")
            continue
        size += length
        if problem := _header_problem(path, length):
            wrong.append(f"{name} {problem}")
    if wrong:
        looks.add("stop", f"{len(wrong)} of {len(names)} weight files are not whole: {', '.join(wrong[:5])}",
                  why="The start would fail after minutes of loading", fix="Download just these files again")
    else:
        looks.add("ok", f"All {len(names)} weight files of the index are whole ({size / GIB:,.1f} GiB)")


def _header_problem(path: Path, length: int) -> str:
    """What is wrong with a safetensors file by its header: 8 bytes of length, JSON, then exactly the data that it names. "" if nothing."""
    if path.suffix != ".safetensors":
        return "" if length else "is empty"
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if length < 10 or size > min(length - 8, _JSON_LIMIT):
                return f"is no safetensors file ({length} bytes)"
            header = json.loads(file.read(size))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        return f"has a header that cannot be read ({type(error).__name__})"
    wanted = 8 + size + max(ends, default=0)
    return "" if wanted == length else f"has {length} bytes instead of {wanted}"


def _heads(looks: _Looks, record: ServiceRecord, config: Mapping[str, Any]) -> None:
    inner = config.get("text_config")
    heads = (inner if isinstance(inner, dict) else config).get("num_attention_heads")
    split = _number(record, "--tensor-parallel-size", "-tp") or 1
    if isinstance(heads, int) and heads % split:
        looks.add("stop", f"{heads} attention heads cannot be split over {split} GPUs",
                  fix=f"Choose a --tensor-parallel-size that divides {heads}, or combine it with --pipeline-parallel-size")


def _gpus(context: Context) -> GpuSnapshot:
    from ops.gpus.open_source import open_source

    return open_source(context.config).read()


def _gpu_count(looks: _Looks, record: ServiceRecord, snapshot: GpuSnapshot) -> None:
    needed = (_number(record, "--tensor-parallel-size", "-tp") or 1) * (_number(record, "--pipeline-parallel-size", "-pp") or 1)
    if not record.gpus:
        looks.add("note", "No GPU is listed for this service", why=snapshot.problem or "Its record names none: its memory cannot be watched")
        return
    if snapshot.problem and not snapshot.gpus:
        looks.add("stop", f"The service's GPUs cannot be read: {snapshot.problem}", fix="Run nvidia-smi; after a driver upgrade restart the machine")
        return
    present = {gpu.index: gpu for gpu in snapshot.gpus}
    if absent := [index for index in record.gpus if index not in present]:
        looks.add("stop", f"GPU {', '.join(map(str, absent))} is not there: {len(present)} GPUs answer",
                  fix="Look at the kernel log for Xid 79 (fallen off the bus), or correct the service's list of GPUs")
    lost = [gpu for index in record.gpus if (gpu := present.get(index)) is not None and gpu.error]
    for gpu in lost:
        looks.add("stop", f"GPU {gpu.index} does not answer: {gpu.error}", fix="Drain the node and restart it; a new start cannot help")
    if needed > len(record.gpus):
        looks.add("stop", f"The flags ask for {needed} GPUs, and the service has {len(record.gpus)}",
                  fix="Lower --tensor-parallel-size (or pipeline), or give the service more GPUs")
    elif not absent and not lost:
        idle = "" if needed == len(record.gpus) else f"; the flags use {needed} of them"
        looks.add("ok", f"All {len(record.gpus)} GPUs of the service answer{idle}")


def _gpu_memory(looks: _Looks, record: ServiceRecord, snapshot: GpuSnapshot) -> None:
    """What others hold on the service's GPUs. More than *GPUs free* will allow means downtime for nothing, so it stops the job here."""
    from ops.services import state, stopping

    if record.manager != "process":
        return  # the unit's own processes would be taken for somebody else's
    own, known = manager_for(record).pids(), state.baseline(record) or {}
    for gpu in snapshot.gpus:
        if gpu.index not in record.gpus:
            continue
        others = [process for process in gpu.processes if process.pid not in own and process.used_bytes]
        too_much = sum(process.used_bytes or 0 for process in others) > known.get(gpu.index, 0) + stopping.TOLERANCE_BYTES
        for process in others:
            if too_much or (process.used_bytes or 0) > stopping.TOLERANCE_BYTES:
                looks.add(
                    "stop" if too_much else "note",
                    f"GPU {gpu.index} is also used by pid {process.pid} (user {process.user or 'unknown'}, "
                    f"`{(process.command or 'unknown')[:100]}`): {(process.used_bytes or 0) / MIB:,.0f} MiB",
                    why="The GPU would not be free after the stop" if too_much else "As when it was last looked at with the service down",
                    fix="End that process first, if it may be ended" if too_much else "",
                )


def _disk(looks: _Looks, record: ServiceRecord, plan: Mapping[str, Any] | None) -> None:
    place = _existing(record.releases)
    state = os.statvfs(place)
    free, inodes = state.f_bavail * state.f_frsize, state.f_favail
    needed = ((plan or {}).get("disk") or {}).get("needed_bytes")
    if needed is not None and free < needed + GIB:
        looks.add("stop", f"There is not enough disk below `{place}`: {needed / GIB:.1f} GiB needed and 1 GiB to spare, {free / GIB:.1f} GiB free",
                  fix="Remove an old release, or free disk elsewhere")
    elif free < 2 * GIB:
        looks.add("warning", f"Only {free / GIB:.1f} GiB are free below `{place}`", why="Caches and logs grow while the service runs",
                  fix="Remove an old release, or free disk elsewhere")
    else:
        looks.add("ok", f"{free / GIB:,.0f} GiB are free below `{place}`")
    if state.f_files and inodes < 50_000:  # some file systems (Btrfs) count none
        looks.add("warning", f"Only {inodes:,} inodes are free below `{place}`", why="A release has some 30,000 files", fix="Remove an old release")


def _shared_memory(looks: _Looks, record: ServiceRecord) -> None:
    if (_number(record, "--tensor-parallel-size", "-tp") or 1) < 2:
        return
    try:
        state = os.statvfs("/dev/shm")  # noqa: S108  (the file system that ranks talk through, not a temporary file)
    except FileNotFoundError:
        looks.add("warning", "There is no /dev/shm", why="Ranks exchange data there")
        return
    free = state.f_bavail * state.f_frsize
    if free < 256 * MIB:
        looks.add("warning", f"Only {free / MIB:,.0f} MiB of shared memory (/dev/shm) are free",
                  why="NCCL needs some 33 MB for each pair of ranks there",
                  fix="With the service stopped, remove unowned psm_*, nccl-* and vllm_offload_* files; give a container more shared memory")


def _limits(looks: _Looks) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        looks.add("warning", f"Only {hard} files may be open at once (hard limit)", why="Under load vLLM needs some for each connection",
                  fix="Raise the limit (LimitNOFILE=65536 of a unit)")


def _caches(looks: _Looks, record: ServiceRecord) -> None:
    environment = clean_environment(record.env)
    places = {name: environment[name] for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE",
                                                    "HF_HOME", "XDG_CACHE_HOME") if environment.get(name)}
    if "VLLM_CACHE_ROOT" not in places:
        places["HOME"] = str(Path(environment.get("HOME") or "/nonexistent", ".cache"))
    bad = [
        (name, path) for name, path in places.items() if not os.access(_existing(Path(path)), os.W_OK | os.X_OK)
    ]
    for name, path in bad:
        looks.add("stop", f"The service may not write its cache `{path}` ({name})", why="Compiled kernels go there; the start would fail late",
                  fix=f"Correct the folder's owner, or set {'VLLM_CACHE_ROOT' if name == 'HOME' else name} in the service's environment")
    if not bad:
        looks.add("ok", "Cache folders can be written")


# ---- the release ----


def _coupling(looks: _Looks, record: ServiceRecord, release: Path, plan: Mapping[str, Any] | None) -> None:
    from ops.environments import coupling, packages

    found = coupling.findings(packages.read(release), env=record.env)
    chosen = plan is not None and plan.get("coupling") is False
    for one in found:
        level = "warning" if chosen else one.level
        why = f"Coupling was switched off in the plan. {one.why}" if chosen else one.why
        looks.add(level, one.title, why=why, fix=one.fix)
    if not found:
        looks.add("ok", "Coupled packages agree")


def _driver(looks: _Looks, release: Path, snapshot: GpuSnapshot) -> None:
    from ops.environments import packages

    wanted = packages.read(release).version("torch") or ""
    built = re.search(r"\+cu(\d{2})(\d)", wanted)
    if built is None or snapshot.cuda is None:
        return  # a CPU build, a build without a suffix, or no driver to hold it against
    has = tuple(int(part) for part in snapshot.cuda.split(".")[:2])
    if int(built[1]) > has[0]:
        looks.add("stop", f"torch {wanted} is built for CUDA {built[1]}.{built[2]}, and driver {snapshot.driver or ''} supports {snapshot.cuda}",
                  why="The service would say that the driver is too old", fix="Upgrade the driver, or install a build for its CUDA release")
    else:
        looks.add("ok", f"The driver (CUDA {snapshot.cuda}) suits torch {wanted}")


def _flags(looks: _Looks, context: Context, record: ServiceRecord, release: Path) -> None:
    text = _help(looks, context, record, release)
    if text is None:
        return
    known = set(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", text))
    if len([name for name in known if name.startswith("--")]) < 10:
        looks.add("note", "`vllm serve --help` of the release lists no options", why="The service's flags could not be held against it")
        return
    unknown = []
    for flag in record.flags:
        name = _flag_name(flag)
        if name is not None and name not in known and not (len(name) > 2 and not name.startswith("--") and name[:2] in known):
            unknown.append(name)
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1, 0.75)
        looks.add("stop", f"The release does not know the flag `{name}`", why="vLLM would end at once: unrecognized arguments",
                  fix=f"Did you mean `{near[0]}`? Correct the service's flags" if near else "Remove it from the service's flags")
    if not unknown:
        looks.add("ok", "The release knows all flags of the service")
    for option in ("--tool-call-parser", "--reasoning-parser"):
        _parser_name(looks, record, text, option)


def _help(looks: _Looks, context: Context, record: ServiceRecord, release: Path) -> str | None:
    """What the release says about its options. Newer ones list them only for `--help=all`, which older ones do not know."""
    from ops.jobs import commands

    environment = {**record.env, "PATH": f"{release / 'bin'}{os.pathsep}{clean_environment(record.env)['PATH']}", "VIRTUAL_ENV": str(release),
                   "COLUMNS": "200"}
    for word in ("--help=all", "--help"):
        try:
            done = commands.run([release / "bin" / "vllm", "serve", word], context=context, env=environment, cwd=release, timeout_s=HELP_LIMIT_S)
        except CommandFailed as error:
            last = error
            continue
        except Timeout as error:
            if context.deadline is not None:
                context.check()
            looks.add("warning", f"`vllm serve --help` of the release did not end within {HELP_LIMIT_S:.0f} s", why=error.what)
            return None
        if done.stdout.count("--") >= 10 or word == "--help":
            return done.stdout
    tail = str(last.facts.get("tail", "")).strip()
    looks.add("warning", "`vllm serve --help` of the release fails", why=tail[-600:] or last.what,
              fix="What it says now is likely what the service will say at its start")
    return None


def _parser_name(looks: _Looks, record: ServiceRecord, text: str, option: str) -> None:
    given = _value(record, option)
    listed = re.search(rf"{option}[ =]\{{([^}}]*)\}}", text)
    if given is None or listed is None:
        return  # without choices in the help the name cannot be checked
    names = [name.strip() for name in listed[1].split(",") if name.strip()]
    if given in names or _value(record, "--tool-parser-plugin") is not None:
        looks.add("ok", f"The release has the parser `{given}` ({option})")
        return
    near = difflib.get_close_matches(given, names, 1, 0.5)
    looks.add("stop", f"The release has no parser `{given}` for {option}",
              fix=f"{f'Did you mean `{near[0]}`? ' if near else ''}It has: {', '.join(names)}")


def _tools(looks: _Looks, record: ServiceRecord, release: Path) -> None:
    """Compilers that a GPU build runs at start, with the service's own PATH (an operator's shell has another one)."""
    import shutil

    from ops.environments import packages

    if record.practice or packages.read(release).version("flashinfer-python") is None:
        return
    path = f"{release / 'bin'}{os.pathsep}{clean_environment(record.env)['PATH']}"
    missing = [name for name in ("ninja", "gcc") if shutil.which(name, path=path) is None]
    cuda = record.env.get("CUDA_HOME") or "/usr/local/cuda"
    if shutil.which("nvcc", path=path) is None and not os.access(Path(cuda, "bin", "nvcc"), os.X_OK):
        missing.append("nvcc")
    if missing:
        looks.add("warning", f"Not on the service's PATH: {', '.join(missing)}", why="Kernels that are compiled at start need them",
                  fix="Install them, or set PATH and CUDA_HOME in the service's environment; flashinfer-jit-cache makes nvcc unnecessary")
    else:
        looks.add("ok", "Compilers are on the service's PATH")


# ---- what several looks need ----


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises FileNotFoundError, BadInput if it is none or too large."""
    if path.stat().st_size > _JSON_LIMIT:
        raise BadInput(f"`{path}` is too large to be read ({path.stat().st_size / MIB:,.0f} MiB)")
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` is not valid JSON", why=str(error), hint=f"python3 -m json.tool {path} names the position") from error
    if not isinstance(raw, dict):
        raise BadInput(f"`{path}` does not hold a JSON object")
    return raw


def _existing(path: Path) -> Path:
    """The path itself, else its nearest parent that exists: where it would be made."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _flag_name(flag: str) -> str | None:
    """`--name` of `--name=value`, `--name.key` and `--some_name`; None for a value."""
    if not re.match(r"--?[A-Za-z]", flag):
        return None
    name = re.split(r"[=.]", flag, maxsplit=1)[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _value(record: ServiceRecord, *names: str) -> str | None:
    for index, flag in enumerate(record.flags):
        for name in names:
            if flag.startswith(f"{name}="):
                return flag.partition("=")[2]
            if flag == name and index + 1 < len(record.flags):
                return record.flags[index + 1]
    return None


def _number(record: ServiceRecord, *names: str) -> int | None:
    given = _value(record, *names)
    return int(given) if given is not None and given.isdigit() else None


def _has_flag(record: ServiceRecord, name: str) -> bool:
    return any(flag == name or flag.startswith(f"{name}=") for flag in record.flags)
