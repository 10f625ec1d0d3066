"""Where a node keeps its state, and what its owner allows: folders, `node.toml`.

The console's state folder is `var/` beside the code, or `ROUNDHOUSE_STATE`. The node's part is `<state>/node`, or
`ROUNDHOUSE_NODE_STATE`. Both are made with mode 0700.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.jobs.errors import BadInput, Refused

REPOSITORY = Path(__file__).resolve().parents[2]
# By any of these a folder is known as Roundhouse's own: the console's, or a node's
STATE_NAMES = frozenset({"secret_key", "db.sqlite3", "launcher.lock", "redis", "node", "box", "node.toml", "jobs", "services.d", "companion.lock",
                         "practice"})


def state_folder() -> Path:
    """The console's state folder, absolute; not made here."""
    return Path(os.environ.get("ROUNDHOUSE_STATE") or REPOSITORY / "var").resolve()


def make_private(folder: Path) -> None:
    """Makes the folder with mode 0700, or brings one of ours back to it: keys, passwords and sessions lie in it. Raises BadInput if other users can
    enter it and that is not ours to change: another user's folder, or one that holds other things (a home, /tmp). Raises OSError as mkdir does."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    ours = found.st_uid == os.geteuid()
    if not stat.S_IMODE(found.st_mode) & (0o077 if ours else 0o007):
        return
    if not ours:
        raise BadInput(f"The state folder `{folder}` belongs to another user", why="Everybody can look into it",
                       hint="Choose another folder with ROUNDHOUSE_STATE")
    names = {entry.name for entry in folder.iterdir()}
    if names - {"lost+found"} and not names & STATE_NAMES:
        raise BadInput(f"The state folder `{folder}` holds other things, and other users can look into it",
                       hint="Choose an empty folder with ROUNDHOUSE_STATE, or take their access away (`chmod 700`)")
    folder.chmod(0o700)


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Every place that the node's part of Roundhouse reads and writes."""

    root: Path

    @classmethod
    def default(cls) -> NodePaths:
        return cls(Path(os.environ.get("ROUNDHOUSE_NODE_STATE") or state_folder() / "node").resolve())

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def announced(self) -> Path:
        """`services.d`: service records as JSON, announced to the console by the agent."""
        return self.root / "services.d"

    @property
    def runs(self) -> Path:
        """Benchmark runs: per-request columns, one compressed file a level."""
        return self.root / "runs"

    @property
    def previews(self) -> Path:
        """What scans for leftovers found: `<job id>.jsonl` each, which a purge is made of. The newest few are kept."""
        return self.root / "previews"

    @property
    def manifests(self) -> Path:
        """What purges did: `<job id>.jsonl` each, kept for good."""
        return self.root / "manifests"

    @property
    def node_toml(self) -> Path:
        return self.root / "node.toml"

    @property
    def nudge_socket(self) -> Path:
        """Datagram socket by which a runner tells the companion that its journal grew."""
        return self.root / "nudge.sock"

    def make(self) -> NodePaths:
        """Makes all folders, mode 0700. Raises BadInput if that cannot be done."""
        try:
            if state_folder() in self.root.parents:
                make_private(state_folder())
            make_private(self.root)
            for folder in (self.jobs, self.locks, self.services, self.announced, self.runs, self.previews, self.manifests):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"The state folder `{self.root}` cannot be used", why=str(error), hint="Choose another with ROUNDHOUSE_STATE") from error
        return self


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`node.toml`: the node's name and its own limits. Whatever an envelope asks for outside of them is refused."""

    name: str
    practice: bool = False
    gpu_source: str = "nvml"  # "nvml" or "practice"
    practice_root: str = ""  # the practice box's folder, with its simulated GPUs
    service_roots: list[str] = field(default_factory=list)
    model_roots: list[str] = field(default_factory=list)
    wheelhouse_roots: list[str] = field(default_factory=list)
    artifact_roots: list[str] = field(default_factory=list)
    environment_roots: list[str] = field(default_factory=list)  # where environments lie that may be changed in place
    # "public" for the public package index, or addresses; what ends with a slash allows all below it (each commit has an index of its own)
    index_urls: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> NodeConfig:
        """Raises BadInput if the file is missing, is not TOML, or has an unknown key."""
        try:
            raw: dict[str, Any] = tomllib.loads(path.read_text())
        except FileNotFoundError as error:
            raise BadInput(f"This node has no `{path}`", hint="`make demo` and `make up` write one; docs/guides/nodes.md describes it") from error
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"`{path}` cannot be read", why=str(error)) from error
        try:
            return cls(**raw)
        except TypeError as error:
            raise BadInput(f"`{path}` has an unknown or missing key", why=str(error)) from error

    def require_inside(self, path: str | Path, roots: list[str], what: str) -> Path:
        """The resolved path, if it lies below one of `roots`; raises Refused otherwise. Follows links first."""
        resolved = Path(path).resolve()
        for root in roots:
            if resolved == Path(root).resolve() or Path(root).resolve() in resolved.parents:
                return resolved
        raise Refused(f"This node does not allow the {what} `{path}`", why=f"Allowed: {', '.join(roots) or 'none'}",
                      hint="The node's owner sets this in node.toml")
