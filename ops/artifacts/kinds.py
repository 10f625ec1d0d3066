"""Which leftovers are known: where each kind lies, how it is recognised, when deleting one is safe, and what keeping it is worth.

The built-in kinds are data: kinds.toml. Admins add their own, as records that a job's envelope brings along. A suffix is no proof (model folders
and hub caches hold `.pt` files too), so a kind is a place, a pattern, an owner and conditions together.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ops.jobs.errors import BadInput
from ops.records import Record

BUILTIN = Path(__file__).with_name("kinds.toml")
KIND_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")
UNITS = ("file", "folder")
# How a kind goes, and what must hold then, in words
METHODS = {"files": "nobody has it open", "release": "Roundhouse's own rules for releases allow it",
           "uv-cache": "uv itself says that nothing needs it"}
FILE_TYPES = ("regular", "socket")
# What ops/artifacts/conditions.py can look at, in words, and of these what an own kind may name
CONDITIONS = {
    "service-stopped": "every service that could use it is stopped, and no other server of its user runs",
    "older-than-runs": "it is older than every server that runs",
    "version-not-installed": "no release of a service has that version",
    "hash-not-in-use": "the last starts of the services named other folders, and it is not the newest",
    "not-newest": "a newer one lies beside it",
    "not-bound": "no process listens on it",
    "all-processes-seen": "every process could be asked what it has open",
}
OWN_CONDITIONS = ("service-stopped", "older-than-runs", "not-newest", "all-processes-seen")
OWN_MIN_AGE_S = 3600.0
_SET = re.compile(r"\[!?\]?[^\]]*\]")  # of a shell pattern: a bracket right at its beginning belongs to it
_SAYS_SOMETHING = re.compile(r"\w[^*?]|[^*?]\w")  # two characters in a row that are no wildcards, one of them of a word
_PARTS = {"hex": "[0-9a-f]", "digit": "[0-9]", "base32": "[A-Z2-7]"}
_UUID4 = "-".join(("[0-9a-f]" * 8, "[0-9a-f]" * 4, "4" + "[0-9a-f]" * 3, "[89ab]" + "[0-9a-f]" * 3, "[0-9a-f]" * 12))


@dataclass(kw_only=True)
class Kind(Record):
    """One kind of leftover; the same form for built-in kinds and those that an admin adds (`own`).

    `unit`: what is listed and chosen as one: a "file", or a "folder" with all that is in it (a compile cache of one hash). `method`: how it goes:
    "files" (one by one, each looked at again), "release" (as Roundhouse removes a release), "uv-cache" (uv's own command).
    `places`: names that ops/artifacts/places.py knows ("tmp", "shm", "scratch", "vllm-cache", ...), or absolute folders (own kinds).
    `patterns`: shell patterns of the path below the place (`fits`). `conditions`: of CONDITIONS, all must hold (ops/artifacts/conditions.py).
    `offered`: chosen when a preview opens; a kind that is worth keeping never is. `with_redeploy`: a redeploy's plan offers it.
    `any_owner`: also files of other users than the agent's (own kinds only; the operating system must allow it as well).
    """

    name: str
    title: str  # "Debug tensors"
    one: str  # "debug tensor"
    leftover: str  # one sentence: why it is a leftover
    keeping: str  # one sentence: what keeping it is worth
    places: list[str]
    patterns: list[str]
    unit: str = "file"
    method: str = "files"
    file_type: str = "regular"
    depth: int = 4
    min_age_s: float = 0.0
    conditions: list[str] = field(default_factory=list)
    offered: bool = True
    with_redeploy: bool = False
    any_owner: bool = False
    own: bool = False

    def check(self) -> None:
        if not KIND_NAME.match(self.name):
            raise BadInput(f"`{self.name[:60]}` is not the name of a kind", hint="Lower-case letters, digits, dash; at most 40")
        if not self.title or not self.one:
            raise BadInput(f"The kind `{self.name}` needs a title, and a word for one of it")
        for value, known, what in ((self.unit, UNITS, "unit"), (self.method, METHODS, "method"), (self.file_type, FILE_TYPES, "file type")):
            if value not in known:
                raise BadInput(f"The kind `{self.name}` has an unknown {what} `{value[:40]}`", hint=f"Use one of {', '.join(known)}")
        if not self.places or not self.patterns:
            raise BadInput(f"The kind `{self.name}` needs at least one place and one pattern")
        if odd := sorted(set(self.conditions) - set(CONDITIONS)):
            raise BadInput(f"The kind `{self.name}` has an unknown condition `{odd[0][:60]}`", hint=f"Known: {', '.join(CONDITIONS)}")
        if not 0 <= self.depth <= 32 or not 0 <= self.min_age_s <= 10 * 365 * 86400:
            raise BadInput(f"The kind `{self.name}` has a depth or an age that cannot be")

    def fits(self, relative: str) -> bool:
        """Whether the path `relative` (below the place, no slash at either end) is one of this kind, by its name alone.

        A pattern without a slash is for the last part, at most `depth` folders below the place (0: directly in it). One with slashes is for the whole
        path, part by part: `*` never crosses a slash. A leading dot is nothing special.
        """
        parts = relative.split("/")
        for pattern in self.patterns:
            if "/" in pattern:
                wanted = pattern.split("/")
                if len(wanted) == len(parts) and all(fnmatchcase(part, one) for part, one in zip(parts, wanted, strict=True)):
                    return True
            elif len(parts) <= self.depth + 1 and fnmatchcase(parts[-1], pattern):
                return True
        return False

    @property
    def needs_all_stopped(self) -> bool:
        """Every service that could use it must be stopped while it goes, so a purge locks them all: none may start in the middle of a cache."""
        return "service-stopped" in self.conditions

    def count(self, number: int) -> str:
        """`35 debug tensors`."""
        return counted(number, self.one, self.title)


def counted(number: int, one: str, title: str) -> str:
    """`1 debug tensor`, `35 debug tensors`; a title that begins with a name (`NCCL dumps`, `FlashInfer kernels`) keeps its capital."""
    first = title.split(" ")[0]
    many = title if any(letter.isupper() for letter in first[1:]) else title[:1].lower() + title[1:]
    return f"{number:,} {one if number == 1 else many}"


def age(seconds: float) -> str:
    """`an hour`, `6 hours`, `14 days`."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            number = round(seconds / length)
            return f"{'an' if unit == 'hour' else 'a'} {unit}" if number == 1 else f"{number:,} {unit}s"
    return f"{seconds:,.0f} s"


# A folder with one of these is a model, an environment or a hub cache: never a place of leftovers, whatever lies in it.
NEVER_BESIDE = ("config.json", "pyvenv.cfg", "model.safetensors.index.json", "tokenizer.json", "refs", "blobs", "snapshots")


def shape(descriptor: int) -> str | None:
    """Why an open folder is never entered, by what lies in it; None if it may be.

    Where everybody may write (/tmp), anybody could shut a cleanup out with one file: there only files of root, of the folder's owner and of this
    process's user count, and `config.json` alone, the most common name of them, does not make a model.
    """
    state = os.fstat(descriptor)
    shared = bool(state.st_mode & stat.S_IWOTH)
    for name in NEVER_BESIDE:
        try:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:  # not there; a folder that may not be searched is told by the walk
            continue
        if shared and (name == "config.json" or found.st_uid not in (0, os.geteuid(), state.st_uid)):
            continue
        return f"It holds `{name}`, so it is a model, an environment or a hub cache"
    return None


@cache
def builtin() -> tuple[Kind, ...]:
    """The built-in kinds, in the order of kinds.toml: where two fit one file, the first is its kind. Raises BadInput for a broken kinds.toml."""
    raw = tomllib.loads(BUILTIN.read_text(encoding="utf-8"))
    made = tuple(Kind.from_dict({**one, "patterns": [made for pattern in one.get("patterns", []) for made in _expanded(pattern)]})
                 for one in raw["kind"])
    if len({kind.name for kind in made}) != len(made):
        raise BadInput("Two built-in kinds have one name")
    return made


def builtin_named(name: str) -> Kind:
    """Raises KeyError for a name that no built-in kind has."""
    return {kind.name: kind for kind in builtin()}[name]


def own(raw: Sequence[Any]) -> tuple[Kind, ...]:
    """An admin's kinds, from their records. Raises BadInput for one that could do harm, and says what is wrong with it.

    An own kind is files below absolute folders, each deleted after a look at it; never folders as a whole, never a method of another kind.
    """
    made: list[Kind] = []
    taken = {kind.name for kind in builtin()}
    for one in raw:
        kind = Kind.from_dict({**one, "own": True} if isinstance(one, dict) else one)
        if kind.name in taken:
            raise BadInput(f"There is a kind `{kind.name}` already", hint="Give it another name")
        _check_own(kind)
        taken.add(kind.name)
        made.append(kind)
    return tuple(made)


def all_kinds(raw: Sequence[Any] = ()) -> tuple[Kind, ...]:
    """The built-in kinds, and after them an admin's own."""
    return (*builtin(), *own(raw))


def _check_own(kind: Kind) -> None:
    told = f"The kind `{kind.name}`"
    if (kind.method, kind.unit, kind.file_type) != ("files", "file", "regular"):
        raise BadInput(f"{told} must be of single files", why="Folders as a whole, sockets and other methods are for built-in kinds")
    for place in kind.places:
        if not place.startswith("/") or os.path.normpath(place) != place.rstrip("/") or len(place) > 4096:
            raise BadInput(f"{told} needs absolute folders without `..`, not `{place[:100]}`")
    for pattern in kind.patterns:
        if pattern.startswith("/") or any(part in ("", ".", "..", "**") for part in pattern.split("/")) or len(pattern) > 255:
            raise BadInput(f"{told} has a pattern that cannot be: `{pattern[:100]}`", why="A pattern is for a name, or for a path below the folder",
                           hint="Write it like `dump_*.bin`, or `dumps/*/part_*.bin`")
        name = pattern.rpartition("/")[2]
        if re.search(r"[*?\[]", name) and not _SAYS_SOMETHING.search(_SET.sub("*", name)):  # (nearly) nothing but wildcards
            raise BadInput(f"{told} takes every file: `{pattern[:100]}`", why="A name that fits anything says nothing about what a file is",
                           hint="Name a part of the file's name, or its ending: `*.dump`")
    if kind.min_age_s < OWN_MIN_AGE_S:
        raise BadInput(f"{told} needs a minimum age of at least an hour", why="A younger file may still be written")
    if odd := sorted(set(kind.conditions) - set(OWN_CONDITIONS)):
        raise BadInput(f"{told} cannot have the condition `{odd[0][:60]}`", hint=f"Known: {', '.join(OWN_CONDITIONS)}")
    if kind.with_redeploy:
        raise BadInput(f"{told} cannot be part of a redeploy", why="A redeploy cleans up after its own service only")


# Patterns


def _expanded(pattern: str) -> list[str]:
    """A pattern of kinds.toml as shell patterns: none for `{core_pattern}` where the kernel's says too little."""
    if pattern == "{core_pattern}":
        made = core_names()
        return [made] if made else []
    for name, part in _PARTS.items():
        pattern = re.sub(rf"\{{{name}:(\d+)\}}", lambda found, part=part: part * int(found[1]), pattern)  # type: ignore[misc]
    pattern = pattern.replace("{uuid4}", _UUID4)
    return [pattern.replace("{pid}", "[0-9]" * length) for length in range(1, 8)] if "{pid}" in pattern else [pattern]


def core_names(core_pattern: str | None = None, *, uses_pid: bool | None = None) -> str | None:
    """The shell pattern of the names that the kernel gives core dumps (core(5)), by default this machine's; None where it hands them to a program,
    where they are named `core` (which needs no more patterns), or where a name says too little to be known by it."""
    if core_pattern is None:
        core_pattern = kernel_says("core_pattern")
    if core_pattern.startswith("|") or not core_pattern:
        return None
    if uses_pid is None:
        uses_pid = kernel_says("core_uses_pid") not in ("", "0")
    made = ""
    rest = core_pattern.rpartition("/")[2]
    while rest:
        if rest[0] != "%":
            made += f"[{rest[0]}]" if rest[0] in "*?[" else rest[0]
            rest = rest[1:]
            continue
        made += {"%": "%", **dict.fromkeys("pPiIugst", "[0-9]*"), **dict.fromkeys("ehEcd", "*")}.get(rest[1:2], "")
        rest = rest[2:]
    if uses_pid and "%p" not in core_pattern:
        made += ".[0-9]*"
    literal = re.sub(r"\[[^\]]*\]|[*]", "", made)
    return made if "core" in literal and made not in ("core", "core.[0-9]*") else None  # those two are in kinds.toml


def kernel_says(name: str) -> str:
    """A value below /proc/sys/kernel, "" where there is none."""
    try:
        return Path("/proc/sys/kernel", name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
