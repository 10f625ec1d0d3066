"""Where leftovers of this node can lie: the folders behind the names that kinds.toml uses, and the folders that are never entered.

Resolved for this node from node.toml and from what each service would be started with: its unit's user and HOME, its environment, its environment
files. All but a service's own folder must lie in `artifact_roots` of node.toml. A practice node's places all lie below its practice root.

The names, and where the programs write (their own sources say so; kinds.toml names the files):

    scratch            `artifact_roots` of a service's record: where its debug code writes
    tmp                /tmp, /var/tmp, and TMPDIR of a service
    shm                /dev/shm
    service-folder     the working directory of a service: core dumps, and dumps to relative paths
    cores              the folder of kernel.core_pattern; systemd-coredump's or apport's, if the kernel hands core dumps to it
    gpu-cores          the folder of CUDA_COREDUMP_FILE
    vllm-cache         VLLM_CACHE_ROOT, else vllm in XDG_CACHE_HOME, else ~/.cache/vllm
    vllm-dump          VLLM_DEBUG_DUMP_PATH; debug_dump_path of the compilation config in a service's flags
    flashinfer-cache   .cache/flashinfer in FLASHINFER_WORKSPACE_BASE, else in HOME
    flashinfer-dump    FLASHINFER_DUMP_DIR
    autotune-cache     VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR
    triton-cache       TRITON_CACHE_DIR, else .triton/cache in TRITON_HOME, else in HOME
    torch-cache        torch in XDG_CACHE_HOME, else ~/.cache/torch; the folder of TORCH_FR_DUMP_TEMP_FILE
    nv-cache           the folder that ComputeCache lies in: ~/.nv, or as CUDA_CACHE_PATH says
    rpc                VLLM_RPC_BASE_PATH
    releases           releases/ of a service
    pip-cache          PIP_CACHE_DIR, else pip in XDG_CACHE_HOME, else ~/.cache/pip
    uv-cache           the cache of the uv that builds releases
"""
# ruff: noqa: PTH110, PTH111, PTH112, PTH113, PTH116, PTH118, PTH119, PTH120

from __future__ import annotations

import json
import os
import pwd
import stat as stat_words
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ops.agent.config import REPOSITORY, NodeConfig, NodePaths, state_folder
from ops.artifacts.found import shown
from ops.artifacts.kinds import NEVER_BESIDE, Kind, kernel_says
from ops.artifacts.walk import mounts, unescaped
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import ServiceRecord
from ops.services import surroundings, unit_files
from ops.services.surroundings import Surroundings
from ops.services.unit_files import Unit

MADE_FOR_TEMPORARY_FILES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  (the places themselves)
SHARED_MEMORY = "/dev/shm"  # noqa: S108
# Programs that the kernel may hand core dumps to (core_pattern begins with `|`), and where they keep them
_COREDUMPS = {"systemd-coredump": "/var/lib/systemd/coredump", "apport": "/var/lib/apport/coredump"}
FLASHINFER_DUMPS = "flashinfer_dumps"
NOT_LOOKED = "was not looked into"
NAMED = "named for this scan"  # and known as nothing else: no record says what lies in it
# Folders of the operating system. Of the first nothing is a leftover, of the others not the folder itself.
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr")
_TOP = ("/home", "/lost+found", "/media", "/mnt", "/opt", "/root", "/srv", "/var", "/var/lib", "/var/log", "/var/cache", "/var/spool")
# Flags of vLLM, and keys in their JSON, that name a folder with weights or a tokenizer (an adapter: name=path, or {"path": ...})
DEBUG_DUMPS = "debug_dump_path"  # of a compilation config: vLLM writes there
_MODELS = frozenset({"download-dir", "hf-config-path", "lora-modules", "model", "model-path", "path", "speculative-model", "tokenizer"})
_CACHES = frozenset({"vllm-cache", "flashinfer-cache", "autotune-cache", "triton-cache", "torch-cache", "nv-cache"})


@dataclass(frozen=True, slots=True)
class Place:
    """A folder in which the kinds that name it are looked for.

    `path`: absolute, no link on the way. `services`: all that could use it; `service`: the one that it belongs to, "" if several do, or none. `why`:
    what it is, in words.
    """

    name: str
    path: str
    service: str = ""
    why: str = ""
    services: tuple[str, ...] = ()


@dataclass(slots=True)
class Never:
    """Folders that are never entered, and files that are never taken, by what they are (device and inode) and by where they are (resolved path), with
    why."""

    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    files: dict[tuple[int, int], str] = field(default_factory=dict)
    only: dict[str, frozenset[str]] = field(default_factory=dict)  # folders of which no other folder than these is entered

    def add(self, path: str | Path, why: str) -> None:
        """A folder or file that may not be there at the moment: then its path counts alone."""
        resolved = os.path.realpath(path)
        if resolved == "/":
            return
        self.paths.setdefault(resolved, why)
        try:
            state = os.stat(resolved)
        except OSError:
            return
        (self.identities if stat_words.S_ISDIR(state.st_mode) else self.files).setdefault((state.st_dev, state.st_ino), why)

    def takes(self, state: os.stat_result, path: str) -> str | None:
        """Why the file `path` with this `state` is never taken; None: it may be. (A model can be a single file.)"""
        why = self.files.get((state.st_dev, state.st_ino)) or self.paths.get(path)
        return None if why is None else f"It is {why}"

    def enters(self, state: os.stat_result, path: str) -> str | None:
        """Why the folder `path` (absolute, reached without links) with this `state` is not entered; None: it may be."""
        why = self.identities.get((state.st_dev, state.st_ino)) or self.paths.get(path)
        if why is not None:
            return f"It is {why}"
        if self.only:
            above, _, name = path.rpartition("/")
            allowed = self.only.get(above)
            if allowed is not None and name not in allowed:
                return "It is a folder of Roundhouse's own"
        if state.st_uid != os.geteuid() and not state.st_mode & 0o004 and os.geteuid() != 0 and not _group_reads(state):
            return f"It belongs to another user (uid {state.st_uid}), who keeps others out"
        return None

    def covers(self, path: str, *, below: str = "") -> str | None:
        """Why `path` itself, or a folder that it lies in, is never entered; None if none is. `below`: no folder above this one counts."""
        while path != below:
            if (why := self.paths.get(path)) is not None:
                return why
            above, _, name = path.rpartition("/")
            if name not in self.only.get(above, (name,)):
                return "a folder of Roundhouse's own"
            if path == "/":
                break
            path = above or "/"
        return None


def _group_reads(state: os.stat_result) -> bool:
    return bool(state.st_mode & 0o040) and state.st_gid in (os.getegid(), *os.getgroups())


@dataclass(slots=True)
class Places:
    """All that a scan of this node looks into. `problems`: sentences about what it does not look into, and the line that would change that.

    `unknown`: services of which it cannot be told which caches they use; any could be theirs. `users`: service -> uid that it runs as, None where
    that is not known. `refused`: folders that somebody named and that can be none of leftovers (a link, the root folder, one that is not there): they
    are left out, and what is told of the others is not the whole. `origins`: path of a place -> where that lies on its file system, whatever it is
    mounted as: two paths to one folder have the same.
    """

    places: list[Place]
    never: Never
    problems: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    users: dict[str, int | None] = field(default_factory=dict)
    refused: dict[str, OpsError] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def of(self, kind: Kind) -> list[Place]:
        """The places that a kind is looked for in."""
        return [place for place in self.places if place.name in kind.places]

    def services_of(self, kind: Kind, path: str) -> list[str]:
        """Services that could use what lies at `path` (in a place of that kind), by name; among them all of which that cannot be told. A service
        may know the folder under another path (bound from elsewhere), and have a place of its own within it."""
        around = [place for place in self.of(kind) if is_inside(path, place.path)]
        origins = {self.origin(place) + path[len(place.path):] for place in around}
        around += [place for place in self.of(kind) if any(is_inside(origin, self.origin(place)) for origin in origins)]
        around += [place for place in self.places if any(is_inside(self.origin(place), origin) for origin in (*origins, path))]
        return sorted({service for place in around for service in place.services} | set(self.unknown))

    def origin(self, place: Place) -> str:
        return self.origins.get(place.path, place.path)


def is_inside(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or lies below it, by the letter."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def of_node(config: NodeConfig | None, paths: NodePaths | None, records: Sequence[ServiceRecord], *, kinds: Sequence[Kind],
            roots: Sequence[str] | None = None, look: Callable[[ServiceRecord], Surroundings] = surroundings.of) -> Places:
    """The places of `kinds` on this node. `roots`: only what lies in one of these.

    Without a node (`config` None) the roots are all that is looked into: as the place that they lie in, else as scratch folders. A root that cannot
    be one (`check_root`) is left out, and told. Raises BadInput where there is neither a node nor a root.
    """
    if config is None and not roots:
        raise BadInput("No folder was named to look into", hint="Name one with --root")
    refused: dict[str, OpsError] = {}
    for root in roots or ():
        try:
            check_root(root, config=config, paths=paths)
        except OpsError as error:
            refused[root] = error
    made = _Collector(config, paths, kinds)
    own = [record for record in records if record.practice == (config is not None and config.practice)]
    if config is not None and config.practice:
        made.practice(config, own)
    else:
        made.machine(own, look)
    for record in own:
        made.service(record)
    for kind in kinds:
        if kind.own:
            made.own_kind(kind)
    places = Places(made.places(), made.never, made.problems, made.unknown, made.users, made.refused)
    if roots is not None:
        places.places = _within(places.places, [os.path.normpath(root) for root in roots if root not in refused])
        places.problems = [text for text in places.problems if NOT_LOOKED not in text]  # of other folders than those that were asked for
        places.problems += [f"A folder that was named {NOT_LOOKED}: {error.what}" for error in refused.values()]
        places.refused = refused
        places.places = [place for place in places.places if made.outside_of_zones(place.path, place, places.refused)]
    places.origins = _origins({place.path for place in places.places})
    return places


def _origins(paths: Iterable[str], table: str = "/proc/self/mountinfo") -> dict[str, str]:
    """Where each folder lies on its file system: `device:path`. Empty where the kernel does not say; then only its path tells a folder."""
    try:
        lines = Path(table).read_bytes().split(b"\n")[:-1]
    except OSError:
        return {}
    mounted: dict[str, tuple[str, str]] = {}
    for line in lines:
        _, _, device, root, point, _ = line.split(b" ", 5)
        mounted[unescaped(point)] = device.decode(), unescaped(root)  # the later one lies on top
    found = {}
    for path in paths:
        at = path
        while at not in mounted and at != "/":
            at = os.path.dirname(at)
        if at in mounted:
            number, within = mounted[at]
            found[path] = f"{number}:{within.rstrip('/')}/{path[len(at):].lstrip('/')}".rstrip("/")
    return found


def coredump_folder(core_pattern: str) -> tuple[str, str] | None:
    """Where the kernel's core_pattern puts core dumps, and who says so; None for the working directory of each process, and for unknown programs."""
    if core_pattern.startswith("/"):
        return os.path.dirname(core_pattern.partition("%")[0] + "x"), "as the kernel's core_pattern says"
    if not core_pattern.startswith("|"):
        return None
    program = os.path.basename(core_pattern[1:].strip().partition(" ")[0])
    return (_COREDUMPS[program], f"kept by {program}") if program in _COREDUMPS else None


def default_roots() -> list[str]:
    """`artifact_roots` of a new node: the folders for temporary files, and the caches that this user's servers compile into. Models lie in others."""
    ours = _ours()
    below = ours.variables.get("XDG_CACHE_HOME") or f"{ours.home}/.cache"
    in_home = [f"{ours.home}/{name}" for name in (".cache/flashinfer", ".triton", ".nv")]
    return [*MADE_FOR_TEMPORARY_FILES, *([f"{below}/vllm", f"{below}/pip", *in_home]
                                         if ours.home.startswith("/") else [])]


def _within(places: list[Place], roots: list[str]) -> list[Place]:
    chosen: dict[tuple[str, str], Place] = {}
    for root in roots:
        inside = [place if is_inside(place.path, root) else replace(place, path=root) for place in places
                  if is_inside(place.path, root) or (is_inside(root, place.path) and place.name not in ("releases", "uv-cache"))]
        for place in inside or [Place("scratch", root, why=NAMED)]:
            chosen.setdefault((place.name, place.path), place)
    return list(chosen.values())


class _Collector:
    """Gathers the places, each once, with all the services that use it."""

    def __init__(self, config: NodeConfig | None, paths: NodePaths | None, kinds: Sequence[Kind]) -> None:
        self.config, self.paths = config, paths
        self.wanted = {name for kind in kinds for name in kind.places}
        self.never = Never()
        self.problems: list[str] = []
        self.unknown: dict[str, str] = {}
        self.users: dict[str, int | None] = {}
        self.refused: dict[str, OpsError] = {}
        self._found: dict[tuple[str, str], tuple[str, list[str]]] = {}
        self._own: set[tuple[str, str]] = set()
        self._service_roots: list[str] = []
        self._practice_root = os.path.realpath(config.practice_root) if config is not None and config.practice and config.practice_root else ""
        self._allowed = None if config is None else [os.path.realpath(root) for root in _roots_of(config)]
        self._told: set[str] = set()
        _zones(self.never, config, paths)

    def places(self) -> list[Place]:
        everybodys = tuple(self.unknown)
        made = []
        for (name, path), (why, services) in self._found.items():
            if (name, path) not in self._own and not self._outside(name, path, why):
                continue
            users = tuple(dict.fromkeys([*services, *(everybodys if name in _CACHES else ())]))
            made.append(Place(name=name, path=path, service=users[0] if len(users) == 1 else "", why=why, services=users))
        return made

    def add(self, name: str, path: str, why: str, services: Iterable[str] = (), *, own: bool = False) -> None:
        """A place, if a kind wants it, it is there, and it may be looked into. `own`: a service's own folder, which needs no line in node.toml."""
        if name not in self.wanted or not path.startswith("/"):
            return
        try:
            is_folder = stat_words.S_ISDIR(os.stat(path).st_mode)
        except PermissionError:
            self._tell(f"`{shown(path)}` ({why}) {NOT_LOOKED}: this user may not enter a folder on the way")
            return
        except OSError:  # not there
            return
        real = os.path.realpath(path)
        if not is_folder or real == "/":
            return
        if (known := self._found.get((name, real))) is not None:
            known[1].extend(service for service in services if service not in known[1])
            return
        if not own and not self._may(real, why):
            return
        if own:
            self._own.add((name, real))
        self._found[name, real] = (why, list(services))

    def _outside(self, name: str, real: str, why: str) -> bool:
        """Whether it lies in no folder that is never entered; asked when all of these are known: the model of one service may hold a folder of
        another. That a service's folder with its scratch lies in the state folder does not matter."""
        below = max((root for root in self._service_roots if name == "scratch" and is_inside(real, root)), key=len, default=self._practice_root)
        if (zone := self.never.covers(real, below=below)) is None:
            return True
        self._tell(f"`{shown(real)}` ({why}) {NOT_LOOKED}: it is, or lies in, {zone}")
        return False

    def outside_of_zones(self, path: str, place: Place, refused: dict[str, OpsError]) -> bool:
        """The same of a root that somebody named, which may lie deep in a place; one that does not is told."""
        if (place.name, path) in self._own or self._outside(place.name, path, place.why):
            return True
        refused[path] = Refused(self.problems[-1])
        return False

    def _may(self, real: str, why: str) -> bool:
        if real in _TOP or real in _SYSTEM:
            self._tell(f"`{shown(real)}` ({why}) {NOT_LOOKED}: it is a folder of the operating system")
            return False
        if _is_home(real):
            return False
        if self._allowed is None or any(is_inside(real, root) for root in self._allowed):
            return True
        self._tell(f"`{shown(real)}` ({why}) {NOT_LOOKED}: " + (
            "a practice node looks into its box alone" if self._practice_root else "`artifact_roots` in node.toml does not name it"))
        return False

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.problems.append(text)

    # ---- where ----

    def practice(self, config: NodeConfig, records: Sequence[ServiceRecord]) -> None:
        """All below the practice root, whatever the machine has."""
        root, names = self._practice_root, [record.name for record in records]
        for record in records:
            self.users[record.name] = os.geteuid()
        if not root:  # a practice node without a box has its services alone
            return
        for name, folder, why in (
                ("tmp", "tmp", "temporary files"), ("shm", "shm", "shared memory"), ("cores", "cores", "core dumps"),
                ("gpu-cores", "cores", "GPU core dumps"), ("vllm-cache", "cache", "vLLM's cache"), ("vllm-cache", "cache/vllm", "vLLM's cache"),
                ("flashinfer-cache", "cache/flashinfer", "FlashInfer's cache"), ("triton-cache", "cache/triton", "Triton's cache"),
                ("nv-cache", "cache/nv", "the CUDA driver's cache"), ("torch-cache", "cache/torch", "PyTorch's cache")):
            self.add(name, os.path.join(root, folder), why, names)
        for folder in ("models", "wheelhouse", "gpus", "environment", "uv-cache"):
            self.never.add(os.path.join(root, folder), _ZONE_WORDS.get(folder, "a folder of the practice box"))

    def machine(self, records: Sequence[ServiceRecord], look: Callable[[ServiceRecord], Surroundings]) -> None:
        """This machine's own places, and what each service's start would use."""
        names = [record.name for record in records]
        for path, why in (("/tmp", "temporary files"), ("/var/tmp", "temporary files that outlive a restart")):  # noqa: S108
            self.add("tmp", path, why, names)
        self.add("shm", SHARED_MEMORY, "shared memory", names)
        if found := coredump_folder(kernel_says("core_pattern")):
            self.add("cores", found[0], f"core dumps, {found[1]}", names)
        for record in records:
            self._started(record, look(record))
        if not records:
            self._caches("", _ours())

    def _started(self, record: ServiceRecord, found: Surroundings) -> None:
        self.users[record.name] = found.uid
        if found.problem is not None:
            self.unknown[record.name] = found.problem.what
            self._tell(f"What `{record.name}` is started with cannot be told, so any cache may be its own: {found.problem.what}")
        for path, why in [*found.unreadable, *_hidden_files(record, found)]:
            self.unknown[record.name] = f"its environment file `{path}` cannot be read"
            self._tell(f"The environment file `{shown(path)}` of `{record.name}` cannot be read ({why}), so any cache may be its own")
        self._caches(record.name, found)

    def _caches(self, service: str, found: Surroundings) -> None:
        given, home = found.variables, found.home
        services = [service] if service else []
        whose = f" of `{service}`" if service else ""
        below = given.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")

        def add(name: str, path: str, why: str) -> None:
            self.add(name, f"{home}{path[1:]}" if path.startswith("~/") and home else path, f"{why}{whose}", services)

        def in_home(path: str) -> str:
            return f"{home}/{path}" if home else ""

        add("vllm-cache", given.get("VLLM_CACHE_ROOT") or (below and f"{below}/vllm"), "vLLM's cache")
        add("torch-cache", below and f"{below}/torch", "PyTorch's cache")
        add("pip-cache", given.get("PIP_CACHE_DIR") or (below and f"{below}/pip"), "pip's cache")
        base = given.get("FLASHINFER_WORKSPACE_BASE")
        add("flashinfer-cache", f"{base}/.cache/flashinfer" if base else in_home(".cache/flashinfer"), "FlashInfer's cache")
        triton = given.get("TRITON_HOME")
        add("triton-cache", given.get("TRITON_CACHE_DIR") or (f"{triton}/.triton/cache" if triton else in_home(".triton/cache")), "Triton's cache")
        cuda = given.get("CUDA_CACHE_PATH", "").rstrip("/")
        if not cuda or os.path.basename(cuda) == "ComputeCache":  # one of another name cannot be told from anything else
            add("nv-cache", os.path.dirname(cuda) if cuda else in_home(".nv"), "the CUDA driver's cache")
        for variable, name, why in (
                ("TMPDIR", "tmp", "temporary files"), ("VLLM_RPC_BASE_PATH", "rpc", "sockets"), ("VLLM_DEBUG_DUMP_PATH", "vllm-dump", "graph dumps"),
                ("FLASHINFER_DUMP_DIR", "flashinfer-dump", "FlashInfer dumps"),
                ("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "autotune-cache", "the autotune cache"),
                ("FLASHINFER_AUTOTUNE_CACHE_DIR", "autotune-cache", "the autotune cache")):
            add(name, given.get(variable, ""), f"{why}, as {variable} says")
        for variable, name, why in (("CUDA_COREDUMP_FILE", "gpu-cores", "GPU core dumps"), ("TORCH_FR_DUMP_TEMP_FILE", "torch-cache", "NCCL traces"),
                                    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "torch-cache", "NCCL traces")):
            if given.get(variable, "").startswith("/"):
                add(name, os.path.dirname(given[variable].partition("%")[0] + "x"), f"{why}, as {variable} says")
        _hub_zones(self.never, given, home, below)

    def service(self, record: ServiceRecord) -> None:
        """What the record itself names, and the service's own folder."""
        from ops.environments.plan import default_uv

        root = os.path.realpath(record.root)
        scratch = [os.path.realpath(path) for path in record.artifact_roots]
        inside = {path[len(root) + 1:].partition("/")[0] for path in scratch if is_inside(path, root) and path != root}
        self._service_roots.append(root)
        self.never.only[root] = frozenset({FLASHINFER_DUMPS, *inside})
        for path in (record.model_path, record.environment):
            if path:
                self.never.add(path, f"the {'model' if path == record.model_path else 'environment'} of `{record.name}`")
        for path in _named_in(record.flags):
            self.never.add(path, f"named by the flags of `{record.name}`")
        for name in ("releases", "shelf", "logs"):
            self.never.add(record.folder / name, f"the {name} of `{record.name}`")
        self.never.add(record.current, f"the environment that `{record.name}` runs from")
        for named, path in zip(record.artifact_roots, scratch, strict=True):
            if self._is_link(named):
                self.refused[named] = BadInput(f"`{shown(named)}` is a link, or reached through one", hint=f"Name the folder itself: {shown(path)}")
                self._tell(f"`{shown(named)}` (where debug code of `{record.name}` writes) {NOT_LOOKED}: it is a link, or reached through one")
                continue
            self.add("scratch", path, f"where debug code of `{record.name}` writes", [record.name])
        for path in _dumps_of(record.flags):
            self.add("vllm-dump", path, f"graph dumps, as the flags of `{record.name}` say", [record.name])
        self.add("service-folder", root, f"the folder of `{record.name}`", [record.name], own=True)
        if folder := _working_folder(record):
            self.add("service-folder", folder, f"the working directory of `{record.name}`", [record.name])
        self.add("releases", str(record.releases), f"the releases of `{record.name}`", [record.name], own=True)
        self.add("uv-cache", str(default_uv(record).cache), "the cache of the uv that builds releases", [record.name], own=True)

    def _is_link(self, path: str) -> bool:
        """Whether a folder that a service's record names is a link, or lies behind one below the root of node.toml that allows it. (How that root is
        reached is its owner's matter: a home may lie behind a link.)"""
        path = os.path.normpath(path)
        if Path(path).is_symlink():
            return True
        allowed = _roots_of(self.config) if self.config is not None else []
        above = max((root for root in map(os.path.normpath, allowed) if is_inside(path, root)), key=len, default="")
        return bool(above) and os.path.realpath(path) != os.path.normpath(os.path.realpath(above) + path[len(above.rstrip("/")):])

    def own_kind(self, kind: Kind) -> None:
        for path in kind.places:
            try:
                check_root(path, config=self.config, paths=self.paths)
            except OpsError as error:
                self._tell(f"`{shown(path)}` (for “{kind.title}”) {NOT_LOOKED}: {error.what}")
                if isinstance(error, BadInput) and os.path.lexists(path):  # a kind is for all nodes: not each has the folder, or allows it
                    self.refused[path] = error
                continue
            self.add(path, path, f"named by the kind “{kind.title}”")


def _roots_of(config: NodeConfig) -> list[str]:
    """The folders in which a node may clean up: those that its owner allows; of a practice node its box alone."""
    return [config.practice_root] if config.practice and config.practice_root else [root for root in config.artifact_roots if root.startswith("/")]


_ZONE_WORDS = {"models": "the model folders", "wheelhouse": "the wheelhouse", "environment": "an environment"}


def _zones(never: Never, config: NodeConfig | None, paths: NodePaths | None) -> None:
    """What is never entered, whatever services there are."""
    for root in config.model_roots if config is not None else ():
        never.add(root, "a model folder")
    for root in config.wheelhouse_roots if config is not None else ():
        never.add(root, "a wheelhouse")
    for root in config.environment_roots if config is not None and not config.practice else ():
        never.add(root, "a folder of environments")
    if paths is not None:
        never.add(paths.root, "the state folder of this node")
    never.add(state_folder(), "the state folder of Roundhouse")
    never.add(REPOSITORY, "Roundhouse itself")
    for folder in _SYSTEM:
        if folder != "/dev":
            never.add(folder, "a folder of the operating system")
    for folder in ("/var/lib/systemd/linger", "/var/log", "/var/lib/docker", "/var/lib/containerd"):
        never.add(folder, "a folder of the operating system")
    ours = _ours()
    _hub_zones(never, ours.variables, ours.home, ours.variables.get("XDG_CACHE_HOME") or f"{ours.home}/.cache")
    if ours.home:
        never.add(f"{ours.home}/.config", "a folder of settings")


def _hub_zones(never: Never, given: dict[str, str], home: str, below: str) -> None:
    """Caches of models, by the variables that the hubs' libraries read."""
    if below:
        for name in ("huggingface", "modelscope", "torch/hub"):
            never.add(f"{below}/{name}", "a cache of models")
    for variable in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "MODELSCOPE_CACHE", "TORCH_HOME"):
        if (value := given.get(variable, "")).startswith("/"):
            never.add(value, f"a cache of models ({variable})")
    if home:
        never.add(f"{home}/.config/systemd", "units")


def _ours() -> Surroundings:
    """What a start by hand would find, as this process's own user."""
    try:
        user = pwd.getpwuid(os.geteuid())
        home, name = user.pw_dir, user.pw_name
    except KeyError:
        home, name = os.environ.get("HOME", ""), ""
    variables = {"HOME": home}
    for variable in ("XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TRITON_HOME", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH",
                     "PIP_CACHE_DIR", "TMPDIR", "HF_HOME", "HF_HUB_CACHE"):
        if value := os.environ.get(variable):
            variables[variable] = value
    return Surroundings(variables=variables, user=name, uid=os.geteuid())


def _unit(record: ServiceRecord) -> Unit | None:
    """The service's unit as its files have it; None where there is none, or it cannot be read."""
    if record.manager != "systemd":
        return None
    try:
        return unit_files.read(unit_files.unit_name(record.unit), user=record.unit_scope == "user")
    except OpsError:  # what it starts with cannot be told then, and that is said
        return None


def _hidden_files(record: ServiceRecord, found: Surroundings) -> list[tuple[str, str]]:
    """Environment files that the unit itself names and systemd reads as root, but this user may not: with why."""
    unit = _unit(record)
    told = {path.removeprefix("-") for path, _ in found.unreadable}
    return [(path, "permission denied") for named in (unit.environment_files() if unit is not None else ())
            for path in unit_files.matching(named.removeprefix("-"))
            if path not in told and os.path.exists(path) and not os.access(path, os.R_OK)]


def _working_folder(record: ServiceRecord) -> str:
    """WorkingDirectory= of a unit; "" where it is the root folder, or cannot be told."""
    unit = _unit(record)
    value = unit.value("WorkingDirectory").removeprefix("-") if unit is not None else ""
    return value if value.startswith("/") and os.path.normpath(value) != "/" else ""


def _dumps_of(flags: Sequence[str]) -> Iterator[str]:
    """Folders that flags name for dumps of compilation: `--compilation-config {"debug_dump_path": ...}`, `-O.debug_dump_path=...`."""
    yield from (text for name, text in _values(flags) if name.rpartition(".")[2].replace("-", "_") == DEBUG_DUMPS)


def _named_in(flags: Sequence[str]) -> Iterator[str]:
    """Files that a service's flags name, and folders that they name as a model, a tokenizer or an adapter. Others may be for what it writes."""
    for name, text in _values(flags):
        if text.startswith("/") and "\0" not in text and (
                os.path.isfile(text) or (name.rpartition(".")[2].replace("_", "-") in _MODELS and os.path.isdir(text))):
            yield text


def _values(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, text) of all that flags say, with what JSON in them says."""
    key = ""
    for flag in flags:
        value = flag
        if flag.startswith(("--", "-O")):
            key, _, value = flag.lstrip("-").partition("=")
        try:
            yield from _texts(key, json.loads(value)) if value[:1] in ("{", "[") else [(key, value), (key, value.partition("=")[2])]
        except (ValueError, RecursionError):  # no JSON: vLLM will say so itself
            continue


def _texts(key: str, value: object) -> Iterator[tuple[str, str]]:
    """(key, text) of all texts in a value of JSON."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(key, one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _texts(name, one)


# Roots that somebody names


def check_root(path: str, *, config: NodeConfig | None, paths: NodePaths | None = None) -> None:
    """Raises BadInput for a folder that can be no root of a scan or purge, and Refused for one that this node's owner does not allow."""
    told = shown(path)[:300]
    root = _usual(path)
    _check_name(root, told)
    practice_root = config.practice_root if config is not None and config.practice else ""
    never = Never()
    _zones(never, config, paths)
    if (zone := never.covers(root, below=os.path.realpath(practice_root) if practice_root else "")) is not None:
        raise Refused(f"`{told}` is, or lies in, {zone}", why="Nothing is ever deleted there", hint="Name another folder")
    # Before anything is looked at: who may start a scan is not told what lies elsewhere on the node, and where its links lead
    if config is not None and not any(is_inside(root, one) for allowed in _roots_of(config) for one in (allowed, os.path.realpath(allowed))):
        raise Refused(f"This node does not allow to clean up in `{told}`", why=f"Allowed: {', '.join(_roots_of(config)) or 'no folder'}",
                      hint=f"The node's owner can add \"{told}\" to `artifact_roots` in node.toml")
    state = _state_of(root, told)
    if _is_home(root):
        raise BadInput(f"`{told}` is somebody's home", why="What lies there is not for others to judge", hint="Name a folder in it, such as a cache")
    if root not in MADE_FOR_TEMPORARY_FILES and is_mount_point(root, state):
        raise BadInput(f"`{told}` is a mount point", why="A whole file system is no folder of leftovers", hint="Name a folder in it")
    if (beside := next((name for name in NEVER_BESIDE if os.path.lexists(os.path.join(root, name))), None)) is not None:
        what = {"pyvenv.cfg": "an environment", **dict.fromkeys(("refs", "blobs", "snapshots"), "a cache of models")}.get(beside, "a model folder")
        raise BadInput(f"`{told}` is {what}: it holds {beside}", hint="Name the folder that leftovers are written into")


def check_root_by_name(path: str) -> str:
    """What can be said of a root without its machine at hand; gives it in its usual form. Raises BadInput."""
    root = _usual(path)
    _check_name(root, shown(path)[:300])
    return root


def _usual(path: str) -> str:
    told = shown(path)[:300]
    if not path.startswith("/") or "\0" in path:
        raise BadInput(f"`{told}` is no absolute path", hint="Begin it with a slash")
    root = os.path.normpath(path)
    root = root[1:] if root.startswith("//") else root
    if ".." in path.split("/"):
        raise BadInput(f"`{told}` has `..` in it", hint="Write the path without it")
    if root == "/":
        raise BadInput("The root of the file system can be no root of a scan", why="Everything lies in it", hint="Name the folder that is full")
    return root


def _check_name(root: str, told: str) -> None:
    if root in _TOP or any(is_inside(root, folder) for folder in _SYSTEM if folder != "/dev") or (
            is_inside(root, "/dev") and not is_inside(root, SHARED_MEMORY)):
        raise BadInput(f"`{told}` is a folder of the operating system", hint="Name a folder for temporary files, a cache, or one of your own in it")
    if os.path.dirname(root) == "/home":
        raise BadInput(f"`{told}` is somebody's home", why="What lies there is not for others to judge", hint="Name a folder in it, such as a cache")


def _state_of(root: str, told: str) -> os.stat_result:
    """Of a folder that is there, with no link on the way."""
    at = ""
    for part in root.split("/")[1:]:
        at = f"{at}/{part}"
        try:
            state = os.lstat(at)
        except FileNotFoundError:
            raise BadInput(f"There is no folder `{told}`", hint="It may have been removed: look again") from None
        except OSError as error:
            raise BadInput(f"`{told}` cannot be looked at", why=error.strerror or str(error)) from error
        if stat_words.S_ISLNK(state.st_mode):
            where = "is a link" if at == root else f"is reached through a link (`{shown(at)[:200]}`)"
            raise BadInput(f"`{told}` {where}", why="A link can lead elsewhere a moment later",
                           hint=f"Name the folder itself: {shown(os.path.realpath(root))}")
    if not stat_words.S_ISDIR(state.st_mode):
        raise BadInput(f"`{told}` is no folder")
    return state


def is_mount_point(root: str, state: os.stat_result) -> bool:
    """Whether a file system is mounted there, also a part of the same one (bind)."""
    above, _, name = root.rpartition("/")
    try:
        return os.stat(above or "/").st_dev != state.st_dev or name in mounts().get(above or "/", ())
    except OSError:
        return os.path.ismount(root)


def _is_home(path: str) -> bool:
    if path == os.path.realpath(os.path.expanduser("~")):
        return True
    try:
        return path == os.path.realpath(pwd.getpwuid(os.stat(path).st_uid).pw_dir)
    except (KeyError, OSError):
        return False
