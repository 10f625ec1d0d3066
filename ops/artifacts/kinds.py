"""Which leftovers are known: a name pattern, where they lie, and why deleting one is safe.

A suffix is no proof (model folders and hub caches hold `.pt` files too), so a kind also says in which folders it never looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of leftover. `pattern` matches the file's name; `depth` is how many folders below a root are looked at."""

    name: str
    title: str
    pattern: str
    where: str
    why_safe: str
    depth: int = 4

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern)


KINDS: tuple[Kind, ...] = (
    Kind(
        name="debug-tensor",
        title="Debug tensor",
        pattern="*.pt",
        where="The service's scratch folders: patches write per-layer dumps there with torch.save",
        why_safe="Written by debug code, read by nobody: no service loads .pt files from a scratch folder",
    ),
)

# A folder with one of these is a model, an environment or a hub cache: never a place of leftovers, whatever lies in it.
NEVER_BESIDE = ("config.json", "pyvenv.cfg", "model.safetensors.index.json", "tokenizer.json", "refs", "blobs", "snapshots")


def kind_of(name: str) -> Kind | None:
    """The first kind that a file of that name could be."""
    return next((kind for kind in KINDS if kind.matches(name)), None)
