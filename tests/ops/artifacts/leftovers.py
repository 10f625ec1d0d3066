"""A folder of leftovers that a test made, and a scan and purge of it: nothing else on the machine is looked at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.artifacts.conditions import Conditions
from ops.artifacts.found import Artifact, Choice, Entry
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import Kind
from ops.artifacts.manifest import ManifestWriter
from ops.artifacts.places import Never, Place, Places
from ops.artifacts.preview import Header, Preview, PreviewWriter
from ops.artifacts.purge import PurgeResult, purge
from ops.artifacts.scan import scan

TENSOR = Kind(name="tensor", title="Tensors", one="tensor", leftover="Written by a test", keeping="Nothing", places=["scratch"], patterns=["*.pt"])
CACHE = Kind(name="cache", title="Caches", one="cache", leftover="Compiled by a test", keeping="A second", places=["scratch"], patterns=["cache-*"],
             unit="folder", depth=1)
SOCKET = Kind(name="socket", title="Sockets", one="socket", leftover="Bound by a test", keeping="Nothing", places=["scratch"], patterns=["*.sock"],
              file_type="socket")
KINDS = (TENSOR, CACHE, SOCKET)
ALL = Choice(kinds=[kind.name for kind in KINDS])


@dataclass
class Leftovers:
    """`root` is the only place, unless a test says otherwise."""

    folder: Path
    kinds: Sequence[Kind] = KINDS
    never: Never = field(default_factory=Never)
    service: str = ""
    proc: str = ""  # where is looked who has what open; "": at this process and those that it started, not at all of a busy machine
    told: list[Entry] = field(default_factory=list)
    purges: int = 0

    @property
    def root(self) -> Path:
        return self.folder / "scratch"

    @property
    def places(self) -> Places:
        return Places([Place("scratch", str(self.root), service=self.service, services=(self.service,) if self.service else ())], self.never)

    @property
    def conditions(self) -> Conditions:
        return Conditions(None, None, [], Holders(proc=self.proc or self._processes()), places=self.places)

    def _processes(self) -> str:
        """A /proc of the test's own processes as they are now."""
        folder, pids = self.folder / "proc", {os.getpid()}
        for task in Path("/proc/self/task").iterdir():
            pids |= set(map(int, (task / "children").read_text().split()))
        folder.mkdir(exist_ok=True)
        for pid in pids:
            if not (link := folder / str(pid)).is_symlink():
                link.symlink_to(f"/proc/{pid}")
        return str(folder)

    @property
    def manifest(self) -> Path:
        """Of the last purge."""
        return self.folder / f"manifest-{self.purges}.jsonl"

    def write(self, name: str, size: int = 100, *, age_s: float = 3600) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        written = time.time() - age_s
        os.utime(path, (written, written))
        return path

    def scan(self) -> Path:
        path = self.folder / "preview.jsonl"
        with PreviewWriter(path, Header.now("test", [], list(self.kinds))) as writer:
            found = scan(self.places, self.kinds, conditions=self.conditions, preview=writer)
            writer.finish(found.as_dict())
        return path

    def found(self) -> list[Artifact]:
        with Preview.open(self.scan()) as preview:
            return [artifact for artifact, _ in preview.artifacts()]

    def purge(self, choice: Choice = ALL, *, preview: Path | None = None, manifest: Path | None = None, **options: Any) -> PurgeResult:
        """Of the preview that `scan` wrote last."""
        self.purges += 1
        self.told = []
        listen: Callable[[Entry], None] = options.pop("on_entry", self.told.append)
        options.setdefault("conditions", self.conditions)
        options.setdefault("kinds", self.kinds)
        with Preview.open(preview or self.folder / "preview.jsonl") as opened, ManifestWriter(manifest or self.manifest) as written:
            return purge(opened, choice, places=options.pop("places", self.places), manifest=written, on_entry=listen, **options)

    def left(self) -> list[str]:
        """All that lies below the root, links not followed."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))

    def told_of(self, name: str) -> Entry:
        return next(entry for entry in self.told if entry.path.endswith(f"/{name}"))
