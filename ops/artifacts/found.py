"""What a scan finds, what a person chooses of it, and what became of it: the forms that scan, preview, purge, events and pages share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ops.jobs.errors import BadInput
from ops.records import Record

OFFERED, OPTIONAL, KEPT = "offered", "optional", "kept"
RESULTS = ("deleted", "partly", "kept", "gone")  # of a purge, for one artifact
GONE, STAYED = ("deleted", "gone"), ("kept", "partly")  # those after which nothing of it is left, and something
PARTS = ("count", "files", "size_bytes")  # of a total of artifacts
CHOSEN_MOST = 50_000  # numbers in one choice: a whole kind is chosen by its name


@dataclass(slots=True)
class Artifact:
    """One leftover as it was seen: a file, or a folder with all that is in it.

    `state`: "offered" (safe, chosen when the preview opens), "optional" (safe, but a person must choose it: `why` says what keeping is worth), "kept"
    (cannot be chosen: `why` says what is in the way). `size_bytes`: allocated, a hard link counted once. `device`, `inode`, `mtime_ns` are its
    identity; `mtime_ns` of a folder is that of the newest file in it (nanoseconds since the epoch). `open_by`: at most 5 of {pid, name, service}.
    """

    number: int  # its place in the preview, from 1
    kind: str
    unit: str  # "file" or "folder"
    path: str  # bytes that are no UTF-8 stand as lone surrogates (os.fsdecode); `shown` is for people and databases
    size_bytes: int
    files: int  # 1, or how many a folder holds
    mtime_ns: int
    uid: int
    owner: str  # the user's name, or the number as text
    device: int
    inode: int
    state: str
    why: str  # one sentence
    open_by: list[dict[str, Any]] = field(default_factory=list)
    service: str = ""  # the service that it came from, where that is known

    def as_dict(self) -> dict[str, Any]:
        """For events and pages: with `path` in a form that every database takes."""
        return asdict(self) | {"path": shown(self.path)}

    @property
    def choosable(self) -> bool:
        return self.state != KEPT


def shown(path: str) -> str:
    """A path for people, events and databases: what is no UTF-8, and control characters (a newline), as `\\xNN`. Not to be opened again."""
    return "".join(character if character.isprintable() else _escaped(character) for character in path)


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "replace"))


@dataclass(kw_only=True)
class Choice(Record):
    """What a person wants gone of one preview: all that can be chosen of `kinds`, and of other kinds the artifacts `numbers`; never `without`."""

    kinds: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    without: list[int] = field(default_factory=list)

    def check(self) -> None:
        if len(self.numbers) + len(self.without) > CHOSEN_MOST:
            raise BadInput(f"More than {CHOSEN_MOST:,} artifacts were chosen one by one", hint="Choose whole kinds, and leave out what is to stay")
        if not self.kinds and not self.numbers:
            raise BadInput("Nothing was chosen", hint="Choose kinds, or single artifacts, of the preview")

    def takes(self, artifact: Artifact) -> bool:
        """Whether it is chosen (one that is kept never is)."""
        return artifact.choosable and artifact.number not in self._without and (artifact.kind in self._kinds or artifact.number in self._numbers)

    def __post_init__(self) -> None:
        self._kinds, self._numbers, self._without = frozenset(self.kinds), frozenset(self.numbers), frozenset(self.without)


@dataclass(slots=True)
class Entry:
    """A line of a purge's manifest: one chosen artifact and what became of it.

    `result`: "deleted" (all of it), "partly" (of a folder: something in it stayed), "kept", "gone" (it was not there any more). `why`: in the way;
    `reason`: why it was a leftover. `freed_bytes`: allocated bytes that went.
    """

    number: int
    path: str
    kind: str
    size_bytes: int
    files: int
    mtime_ns: int
    owner: str
    reason: str
    result: str
    why: str = ""
    freed_bytes: int = 0
    deleted_files: int = 0
    service: str = ""

    @classmethod
    def of(cls, artifact: Artifact, reason: str, result: str = "kept", why: str = "", *, freed_bytes: int = 0, deleted_files: int = 0) -> Entry:
        return cls(artifact.number, artifact.path, artifact.kind, artifact.size_bytes, artifact.files, artifact.mtime_ns, artifact.owner, reason,
                   result, why, freed_bytes, deleted_files, artifact.service)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"path": shown(self.path)}
