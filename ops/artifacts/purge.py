"""Deletes what was chosen of a preview, as far as each thing still is what was previewed, and says of the rest why it stayed.

A path is only a way to a file, and may lead elsewhere a moment later. So each folder on the way is opened in the one above without following links,
held by its descriptor, and must lie on the file system and in the mount that its place lies in, and in no folder that is never entered. Then, for
each file: regular (or the socket that was previewed), of the owner, with one name, not open in a process; device, inode, size and time as previewed;
its kind still recognises it there, and that kind's conditions hold; and it is unlinked in that very folder. Nothing is opened, nothing unpickled.

What stays possible, and why. Between the last look at a name and its unlinking lie some microseconds: two system calls with nothing but comparisons
between them. POSIX has none that unlinks a name only if it is a certain file, so who moves another file over the name just then has that one
unlinked. Only who may write to that very folder can do so (in /tmp, where the sticky bit is set, only the owner), and only to an entry of that
folder: nothing behind a link and nothing in another folder. Moving each file aside first would close that gap, at the price that a purge that is
killed leaves files under names that nobody knows, that a full disk has no room for the folder it takes, and that deleting takes some five times as
long as `rm -rf`; for leftovers of a stopped service, that is the worse bargain. And a process can open a file after the last look at who has what
open, which is about a second old at most: so it is looked again afterwards, and who was so quick is told with the artifact: its space comes back when
that process closes it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.artifacts import gauges as disks
from ops.artifacts import kinds as known
from ops.artifacts import methods
from ops.artifacts.clearing import Clearing, FolderLook
from ops.artifacts.conditions import Conditions
from ops.artifacts.found import OFFERED, OPTIONAL, Artifact, Choice, Entry, shown
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import Kind
from ops.artifacts.last_look import LastLook
from ops.artifacts.manifest import ManifestWriter
from ops.artifacts.places import Places, is_inside
from ops.artifacts.preview import FILE, SOCKET, Preview, Row, Tree
from ops.artifacts.reach import Reach, Reached, Stays, in_the_way
from ops.artifacts.recognise import Match
from ops.artifacts.walk import walk
from ops.jobs.errors import Cancelled, OpsError

Progress = Callable[[int, int, int], None]

FRESH_S = 1.0  # how old the last look at who has what open may be
LOOKS_PART = 2  # but on a host where a look takes seconds, twice as long as it takes: a third of the time
ANNOUNCED = 1000  # artifacts that the manifest names before they are touched: one forced write for all, which may wait for the whole disk
ANNOUNCED_MOST = 16_000  # and of so many once a thousand takes less than a second
ANNOUNCED_BYTES = 4 << 20  # of their paths
UNTOLD_MOST = 100  # artifacts that may go while the manifest's own disk is so full that their lines cannot be written
CHECKED_EVERY_S = 0.05
COLLECTED = 500_000  # new objects between two collections: each goes through all that wait to be told, and at 700 that is a sixth of the time
WHYS_MOST = 100  # reasons told one by one, the most frequent first
_OTHERS = "For other reasons"
_CANCELLED = "The purge was cancelled before it went"
_GONE = "It was not there any more"


@dataclass(slots=True)
class Sum:
    count: int = 0
    files: int = 0
    size_bytes: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "files": self.files, "size_bytes": self.size_bytes}


@dataclass(slots=True)
class KindSum:
    """Of one kind: artifacts that were chosen, that went whole, that stayed (in part as well)."""

    title: str
    one: str
    chosen: int = 0
    deleted: int = 0
    kept: int = 0
    freed_bytes: int = 0


@dataclass(slots=True)
class PurgeResult:
    """What went and what stayed. `deleted.count`: artifacts that went whole; its files and bytes are those of all that went. What was gone already,
    and what a cancelled purge did not reach, is neither deleted nor kept. `problems`: sentences about the manifest, if it could not be written."""

    chosen: Sum = field(default_factory=Sum)
    deleted: Sum = field(default_factory=Sum)
    kept: int = 0
    kinds: dict[str, KindSum] = field(default_factory=dict)
    why_kept: list[dict[str, Any]] = field(default_factory=list)
    manifest_path: str = ""
    entries: int = 0
    took_s: float = 0.0
    cancelled: bool = False
    gauges: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def freed_bytes(self) -> int:
        return self.deleted.size_bytes

    @property
    def partial(self) -> bool:
        """Something that was chosen stayed, or is not told as it should be."""
        return bool(self.kept or self.problems)

    def as_dict(self) -> dict[str, Any]:
        """The data of `purge.result`, less scan."""
        return {"chosen": self.chosen.as_dict(), "deleted": self.deleted.as_dict(), "kept": {"count": self.kept},
                "kinds": [{"kind": name, "title": one.title, "one": one.one, "chosen": one.chosen, "deleted": one.deleted, "kept": one.kept,
                           "freed_bytes": one.freed_bytes} for name, one in self.kinds.items()],
                "why_kept": list(self.why_kept), "freed_bytes": self.freed_bytes,
                "manifest": {"path": shown(self.manifest_path), "entries": self.entries, "told": self.entries}, "took_s": self.took_s,
                "cancelled": self.cancelled, "gauges": list(self.gauges), "problems": list(self.problems)}


def purge(preview: Preview, choice: Choice, *, places: Places, conditions: Conditions, manifest: ManifestWriter, kinds: Sequence[Kind] | None = None,
          owner_uid: int | None = None, locked_services: frozenset[str] = frozenset(), log: Callable[[str], None] | None = None,
          progress: Progress | None = None, check: Callable[[], None] | None = None, on_entry: Callable[[Entry], None] | None = None) -> PurgeResult:
    """Deletes what `choice` takes of `preview`, if it still is what was previewed and safe; goes on after what is not. Writes and finishes
    `manifest`.

    `places`: what may be touched, and what never, of this node as it is now. `kinds`: those that are known now; by default those that the preview
    names, as they are defined here (`kinds_of`). `owner_uid`: whose files may go, ours if None. `locked_services`: what belongs to any other service
    stays. `progress` gets artifacts looked at, those chosen (counted from the preview's summary) and bytes freed. `check` is called between files: if
    it raises Cancelled, the result comes back with `cancelled`; any other exception goes up, after the manifest has what went. `on_entry` gets each
    line of the manifest, at most about a second later: in case somebody opened the file meanwhile. Raises BadInput for a preview with a kind that
    could do harm.
    """
    wanted = kinds_of(preview) if kinds is None else tuple(kinds)
    owner = os.geteuid() if owner_uid is None else owner_uid
    return _Purge(preview, choice, places, conditions, manifest, wanted, owner, locked_services, log, progress, check, on_entry).run()


def kinds_of(preview: Preview, own: Sequence[Any] | None = None) -> tuple[Kind, ...]:
    """The kinds that a preview names, as they are known here: of the built-in ones only the name counts, an admin's own are checked as if they were
    new. `own`: the records of these as they are now, so that one that was removed or changed since takes no more than it says now; None: as the
    preview has them. Raises BadInput for one that could do harm."""
    builtin = {kind.name: kind for kind in known.builtin()}
    ours = {kind.name: kind for kind in known.own([kind.as_dict() for kind in preview.header.kinds if kind.own] if own is None else own)}
    return tuple(found for kind in preview.header.kinds if (found := (ours if kind.own else builtin).get(kind.name)) is not None)


class _Purge:
    def __init__(self, preview: Preview, choice: Choice, places: Places, conditions: Conditions, manifest: ManifestWriter, kinds: Sequence[Kind],
                 owner: int, locked: frozenset[str], log: Callable[[str], None] | None, progress: Progress | None,
                 check: Callable[[], None] | None, on_entry: Callable[[Entry], None] | None) -> None:
        self._preview, self._choice, self._places, self._conditions = preview, choice, places, conditions
        self._manifest, self._locked = manifest, locked
        self._log, self._progress, self._check, self._on_entry = log, progress, check, on_entry
        self._kinds = {kind.name: kind for kind in kinds}
        held = conditions.holders
        self._holders = held if isinstance(held, Holders) else Holders()
        self._reach, self._last = Reach(places, kinds), LastLook(places.never, self._holders, owner)
        self._result = PurgeResult(manifest_path=str(manifest.path))
        self._whys: dict[str, list[Any]] = {}
        self._looked_at = self._checked_at = float("-inf")
        self._fresh_s = FRESH_S
        self._waiting: list[tuple[Entry, str]] = []  # told to the manifest, not yet to on_entry; with why it stayed, in general
        self._now: Entry | None = None  # not yet told to the manifest
        self._untold = 0
        self._stopped = ""
        self._ending: Exception | None = None
        self._done = self._freed = 0

    # The whole

    def run(self) -> PurgeResult:
        started = time.monotonic()
        total = self._total()
        collected = gc.get_threshold()
        gc.set_threshold(COLLECTED, *collected[1:])
        try:
            artifacts, most = self._preview.artifacts(self._choice), ANNOUNCED
            while some := _part(artifacts, most):
                began = time.monotonic()
                for artifact, _ in some:
                    self._count(artifact)
                if self._result.cancelled:
                    continue
                announced = self._manifest.announce([artifact for artifact, _ in some])
                for artifact, tree in some:
                    if self._result.cancelled or (self._check is not None and not self._go_on()):
                        break
                    self._take(artifact, tree, announced=announced)
                    self._done += 1
                    if self._progress is not None:
                        self._progress(self._done, max(total, self._done), self._freed)
                if time.monotonic() - began < 1:
                    most = min(2 * most, ANNOUNCED_MOST)
        finally:
            gc.set_threshold(*collected)
            self._reach.leave()
            try:
                self._look()
            except OpsError as error:  # everything else is told all the same
                if self._last.gone:
                    self._result.problems.append(f"Whether a process opened what went meanwhile was not seen: {error.what}")
                self._deliver()
        result = self._result
        rows = sorted(self._whys.items(), key=lambda row: -row[1][0])
        result.why_kept = [{"why": why, "count": count, "example": example} for why, (count, example) in rows[:WHYS_MOST]]
        if rest := sum(count for _, (count, _) in rows[WHYS_MOST:]):
            result.why_kept.append({"why": _OTHERS, "count": rest, "example": rows[WHYS_MOST][1][1]})
        result.entries = self._manifest.entries
        result.gauges = disks.read([(place.path, place.why or place.name) for place in self._places.places])
        result.took_s = time.monotonic() - started
        self._manifest.finish(result.as_dict())
        if self._manifest.problem:
            result.problems.append(f"The manifest could not be written to its end: {self._manifest.problem}")
        return result

    def _total(self) -> int:
        """Artifacts that were chosen, counted from the summary: what was left out or chosen singly may belong to a kind that counts already."""
        count = len(self._choice.numbers) - len(self._choice.without)
        try:
            for row in self._preview.summary["kinds"]:
                if row["kind"] in self._choice.kinds:
                    count += int(row[OFFERED]["count"]) + int(row[OPTIONAL]["count"])
        except (KeyError, TypeError, ValueError):  # a summary of another form: as many as there can be
            count = self._preview.count
        return max(0, min(count, self._preview.count))

    def _count(self, artifact: Artifact) -> None:
        chosen = self._result.chosen
        chosen.count += 1
        chosen.files += artifact.files
        chosen.size_bytes += artifact.size_bytes
        if (of_kind := self._result.kinds.get(artifact.kind)) is None:
            kind = self._preview.kinds[artifact.kind]
            of_kind = self._result.kinds[artifact.kind] = KindSum(kind.title, kind.one)
        of_kind.chosen += 1

    def _go_on(self) -> bool:
        """False once it was cancelled."""
        try:
            self._ask()
        except Cancelled:
            self._result.cancelled = True
        return not self._result.cancelled

    def _ask(self) -> None:
        """Calls `check`, but not too often. What else than Cancelled it raises ends the purge once the manifest has what went, whoever catches it."""
        if self._check is None or time.monotonic() - self._checked_at <= CHECKED_EVERY_S:
            return
        self._checked_at = time.monotonic()
        try:
            self._check()
        except Cancelled:
            raise
        except Exception as error:
            self._ending = error
            raise

    def _take(self, artifact: Artifact, tree: Tree | None, *, announced: bool) -> None:
        kind = self._kinds.get(artifact.kind)
        entry = Entry.of(artifact, kind.leftover if kind is not None else artifact.why)
        self._now, reason = entry, ""
        try:
            if kind is None:
                raise Stays("Its kind is not known here any more")
            if not announced:
                self._without_announcement(artifact)
            entry = self._one(artifact, kind, tree, entry)
        except Stays as stays:
            entry.why, reason = stays.why, stays.reason
        except Cancelled:
            self._result.cancelled = True
            entry.why = entry.why or _CANCELLED  # of a folder it is told what stayed
        except FileNotFoundError:
            entry.result, entry.why = "gone", _GONE
        except OSError as error:
            entry.why = in_the_way(error)
        except OpsError as error:
            entry.why = entry.why or error.what
        self._freed += entry.freed_bytes
        self._manifest.add(entry)
        self._now = None
        self._waiting.append((entry, reason or entry.why))
        if not self._manifest.problem:
            self._untold = 0
        if self._log is not None:
            self._log(f"{entry.result} {shown(entry.path)}" + (f": {shown(entry.why)}" if entry.why else f" ({entry.freed_bytes:,} bytes)"))
        if self._ending is not None:
            raise self._ending

    def _without_announcement(self, artifact: Artifact) -> None:
        """On a full disk: it may still go if that makes room for the manifest, and if its line is told at once to whoever listens."""
        if self._stopped:
            raise Stays(self._stopped)
        if self._manifest.announce([artifact]):
            return
        why = f"The manifest cannot be written ({self._manifest.problem})"
        if not self._manifest.full or artifact.device != self._manifest.device or self._untold >= UNTOLD_MOST:
            self._stopped = f"{why}, and nothing goes that is not in it"
            raise Stays(self._stopped)
        self._untold += 1
        self._deliver()

    def _one(self, artifact: Artifact, kind: Kind, tree: Tree | None, entry: Entry) -> Entry:
        if artifact.service and artifact.service not in self._locked:
            raise Stays(f"It belongs to `{artifact.service}`, which this purge does not lock")
        if kind.needs_all_stopped:
            free = sorted(set(self._conditions.services_of(kind, artifact.path)) - self._locked)
            if free:
                raise Stays(f"`{free[0]}` may use it, and this purge does not lock it", "A service may use it that this purge does not lock")
        if kind.method != "files":
            if artifact.unit != kind.unit or not any(is_inside(artifact.path, place.path) for place in self._places.of(kind)):
                raise Stays("It lies outside of the folders that a purge may touch")
            return methods.purge(artifact, kind, conditions=self._conditions, log=self._log, check=self._ask)
        if time.monotonic() - self._looked_at > self._fresh_s:
            self._look()
        folder, _, name = artifact.path.rpartition("/")
        reached = self._reach.folder(folder or "/")
        row = _row_of(artifact, kind, tree)
        if row is not None:
            self._file(artifact, kind, row, reached, name, entry)
        elif tree is not None:
            self._folder(artifact, kind, tree, reached, name, entry)
        return entry

    def _match(self, found: Match | None, kind: Kind) -> Match:
        if found is None or found.kind.name != kind.name:
            raise Stays("No kind of leftover recognises it there any more" if found is None else
                         f"It is recognised as another kind now: {found.kind.title}")
        service = found.place.service
        if service and service not in self._locked:
            raise Stays(f"It belongs to `{service}`, which this purge does not lock")
        return found

    # One file

    def _file(self, artifact: Artifact, kind: Kind, row: Row, reached: Reached, name: str, entry: Entry) -> None:
        picker = reached.picker
        match = self._match((picker.sockets if kind.file_type == "socket" else picker.files).first(name), kind)
        descriptor = reached.descriptor
        if kind.conditions or kind.min_age_s:
            state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            self._last.same(row, state, reached.device, kind, artifact.path)  # what is wrong with the file itself is said first
            why = self._conditions.verdict(kind, artifact.path, stat=state, service=match.place.service, folder_newest_ns=None)
            if why is not None:
                raise Stays(why)
        entry.freed_bytes = self._last.unlink(name, descriptor, row, reached.device, kind, artifact.path, entry)
        entry.result, entry.deleted_files = "deleted", 1

    # A folder with all that is in it

    def _folder(self, artifact: Artifact, kind: Kind, tree: Tree, reached: Reached, name: str, entry: Entry) -> None:
        match = self._match(reached.picker.folders.first(name), kind)
        look = FolderLook(self._last, artifact, kind, reached.mount)
        walk(artifact.path, look, check=self._between)
        if look.obstacle is not None:
            raise look.obstacle
        if pids := self._holders.below(artifact.path):
            raise self._last.open_in(pids, "something in it is ")
        if kind.conditions or kind.min_age_s:
            state = os.stat(name, dir_fd=reached.descriptor, follow_symlinks=False)
            why = self._conditions.verdict(kind, artifact.path, stat=state, service=match.place.service, folder_newest_ns=look.newest_ns)
            if why is not None:
                raise Stays(why)
        with Clearing(self._last, artifact, kind, reached, name, entry) as clearing:
            try:
                clearing.run(tree, self._between)
            finally:
                clearing.tell()

    def _between(self) -> None:
        """Between two files of a folder. Raises Cancelled, or whatever else `check` raises."""
        if time.monotonic() - self._looked_at > self._fresh_s:
            self._look()
        self._ask()

    # Afterwards

    def _look(self) -> None:
        """Looks again who has what open: for what comes next, and for what has gone since the last look."""
        began = time.monotonic()
        self._holders.refresh()
        self._looked_at = time.monotonic()
        self._fresh_s = max(FRESH_S, LOOKS_PART * (self._looked_at - began))
        for entry, pid, size in self._last.opened_meanwhile():
            self._opened_meanwhile(entry, pid, size)
        self._deliver()

    def _opened_meanwhile(self, entry: Entry, pid: int, size: int) -> None:
        who = self._holders.name(pid) or "A process"
        words = f"{who} (pid {pid}) opened it at that very moment: its space comes back when that process closes it"
        entry.why = words if not entry.why else entry.why if words in entry.why else f"{entry.why}; {words}"
        entry.freed_bytes = max(0, entry.freed_bytes - size)
        if entry is not self._now:
            self._manifest.amend(entry)

    def _deliver(self) -> None:
        """Counts what was told to the manifest, and tells it on."""
        result = self._result
        for entry, reason in self._waiting:
            kind = result.kinds[entry.kind]
            kind.freed_bytes += entry.freed_bytes
            result.deleted.files += entry.deleted_files
            result.deleted.size_bytes += entry.freed_bytes
            if entry.result == "deleted":
                result.deleted.count += 1
                kind.deleted += 1
            elif entry.result in ("kept", "partly"):
                result.kept += 1
                kind.kept += 1
                if reason not in self._whys and len(self._whys) >= 20 * WHYS_MOST:
                    reason = _OTHERS
                self._whys.setdefault(reason, [0, shown(entry.path)])[0] += 1
            if self._on_entry is not None:
                self._on_entry(entry)
        self._waiting.clear()


def _row_of(artifact: Artifact, kind: Kind, tree: Tree | None) -> Row | None:
    """The row of a file artifact; None for a folder, which has a tree."""
    if tree is None or artifact.unit != kind.unit:
        raise Stays("The preview does not say what it was")
    if kind.unit == "folder":
        return None
    row = tree.own
    if row is None or row.type != (SOCKET if kind.file_type == "socket" else FILE):
        raise Stays("The preview does not say what it was")
    return row


def _part(artifacts: Iterator[tuple[Artifact, Tree | None]], most: int) -> list[tuple[Artifact, Tree | None]]:
    """The next of them, as many as the manifest names at once."""
    part: list[tuple[Artifact, Tree | None]] = []
    length = 0
    for one in artifacts:
        part.append(one)
        length += len(one[0].path)
        if len(part) >= most or length > ANNOUNCED_BYTES:
            break
    return part
