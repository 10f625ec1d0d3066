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
# ruff: noqa: PTH116, PTH123, PTH208

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.artifacts import gauges as disks
from ops.artifacts import kinds as known
from ops.artifacts import methods
from ops.artifacts.conditions import Conditions
from ops.artifacts.found import OFFERED, OPTIONAL, Artifact, Choice, Entry, shown
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import NEVER_BESIDE, Kind
from ops.artifacts.manifest import ManifestWriter
from ops.artifacts.places import Place, Places, is_inside
from ops.artifacts.preview import FILE, FOLDER, SOCKET, Preview, Row, Tree
from ops.artifacts.recognise import Match, Picker, Pickers
from ops.artifacts.walk import Frame, open_folder, walk
from ops.jobs.errors import Cancelled, OpsError

Progress = Callable[[int, int, int], None]

FRESH_S = 1.0  # how old the last look at who has what open, and at a folder that is held, may be
LOOKS_PART = 2  # but on a host where a look takes seconds, twice as long as it takes: a third of the time
ANNOUNCED = 1000  # artifacts that the manifest names before they are touched: one forced write for all, which may wait for the whole disk
ANNOUNCED_MOST = 16_000  # and of so many once a thousand takes less than a second
ANNOUNCED_BYTES = 4 << 20  # of their paths
UNTOLD_MOST = 100  # artifacts that may go while the manifest's own disk is so full that their lines cannot be written
_REMEMBERED = 10_000  # entries of a folder that stayed, so that what is new can be told from them
DEEPEST = 200  # folders held open one in the other: a folder artifact that is deeper stays
CHECKED_EVERY_S = 0.05
WHYS_MOST = 100  # reasons told one by one, the most frequent first
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FORMS = {"regular": (stat.S_IFREG, "regular file"), "socket": (stat.S_IFSOCK, "socket")}
_OTHERS = "For other reasons"
_CANCELLED = "The purge was cancelled before it went"
_GONE = "It was not there any more"
_CHANGED = "It was written to since the preview"
_ANOTHER = "It is another one than the one in the preview"
_IN_THE_WAY = {
    errno.EPERM: "The file system does not let it go: it may be immutable (lsattr shows an `i`), or the folder keeps it for its owner",
    errno.EACCES: "Its folder may not be written to, or not be looked into",
    errno.EBUSY: "It is in use by the kernel: something is mounted on it",
    errno.EROFS: "Its file system is read-only",
    errno.ELOOP: "A link lies on the way to it",
    errno.ENOTDIR: "A link, or something that is no folder, lies on the way to it",
}


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


def kinds_of(preview: Preview) -> tuple[Kind, ...]:
    """The kinds that a preview names, as they are known here: of the built-in ones only the name counts, an admin's own are checked as if they were
    new. Raises BadInput for one of these that could do harm."""
    builtin = {kind.name: kind for kind in known.builtin()}
    own = {kind.name: kind for kind in known.own([kind.as_dict() for kind in preview.header.kinds if kind.own])}
    return tuple(found for kind in preview.header.kinds if (found := (own if kind.own else builtin).get(kind.name)) is not None)


class _Stays(Exception):
    """Something stays, and why; `reason`: the same without what is this one's alone (a pid)."""

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.why, self.reason = why, reason or why


@dataclass(slots=True)
class _Reached:
    """A folder in a place, held by its descriptor."""

    path: str
    descriptor: int
    device: int
    inode: int
    mount: int
    since: float
    picker: Picker


class _Purge:
    def __init__(self, preview: Preview, choice: Choice, places: Places, conditions: Conditions, manifest: ManifestWriter, kinds: Sequence[Kind],
                 owner: int, locked: frozenset[str], log: Callable[[str], None] | None, progress: Progress | None,
                 check: Callable[[], None] | None, on_entry: Callable[[Entry], None] | None) -> None:
        self._preview, self._choice, self._places, self._conditions = preview, choice, places, conditions
        self._manifest, self._owner, self._locked = manifest, owner, locked
        self._log, self._progress, self._check, self._on_entry = log, progress, check, on_entry
        self._kinds = {kind.name: kind for kind in kinds}
        held = conditions.holders
        self._holders = held if isinstance(held, Holders) else Holders()
        self._pickers = Pickers()
        self._roots: dict[str, list[Place]] = {}
        for kind in kinds:
            for place in places.of(kind) if kind.method == "files" else ():
                self._pickers.look_for(kinds, kind, place)
                self._roots.setdefault(place.path, [])
                if place not in self._roots[place.path]:
                    self._roots[place.path].append(place)
        self._me = os.getpid()
        self._reached: _Reached | None = None
        self._result = PurgeResult(manifest_path=str(manifest.path))
        self._whys: dict[str, list[Any]] = {}
        self._looked_at = self._checked_at = float("-inf")
        self._fresh_s = FRESH_S
        self._gone: list[tuple[int, int, int, Entry]] = []  # (device, inode, bytes) of what went since the last look, and its entry
        self._waiting: list[tuple[Entry, str]] = []  # told to the manifest, not yet to on_entry; with why it stayed, in general
        self._now: Entry | None = None  # not yet told to the manifest
        self._untold = 0
        self._stopped = ""
        self._done = self._freed = 0

    # The whole

    def run(self) -> PurgeResult:
        started = time.monotonic()
        total = self._total()
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
                    if not self._go_on():
                        break
                    self._take(artifact, tree, announced=announced)
                    self._done += 1
                    if self._progress is not None:
                        self._progress(self._done, max(total, self._done), self._freed)
                if time.monotonic() - began < 1:
                    most = min(2 * most, ANNOUNCED_MOST)
        finally:
            self._leave()
            try:
                self._look()
            except OpsError as error:  # everything else is told all the same
                if self._gone:
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
        kind = self._preview.kinds[artifact.kind]
        self._result.kinds.setdefault(artifact.kind, KindSum(kind.title, kind.one)).chosen += 1

    def _go_on(self) -> bool:
        """False once it was cancelled."""
        if self._check is not None and time.monotonic() - self._checked_at > CHECKED_EVERY_S:
            try:
                self._check()
            except Cancelled:
                self._result.cancelled = True
            self._checked_at = time.monotonic()
        return not self._result.cancelled

    def _take(self, artifact: Artifact, tree: Tree | None, *, announced: bool) -> None:
        kind = self._kinds.get(artifact.kind)
        entry = Entry.of(artifact, kind.leftover if kind is not None else artifact.why)
        self._now, reason = entry, ""
        try:
            if kind is None:
                raise _Stays("Its kind is not known here any more")
            if not announced:
                self._without_announcement(artifact)
            entry = self._one(artifact, kind, tree, entry)
        except _Stays as stays:
            entry.why, reason = stays.why, stays.reason
        except Cancelled:
            self._result.cancelled = True
            entry.why = _CANCELLED
        except FileNotFoundError:
            entry.result, entry.why = "gone", _GONE
        except OSError as error:
            entry.why = _in_the_way(error)
        except OpsError as error:
            entry.why = error.what
        self._freed += entry.freed_bytes
        self._manifest.add(entry)
        self._now = None
        self._waiting.append((entry, reason or entry.why))
        if not self._manifest.problem:
            self._untold = 0
        if self._log is not None:
            self._log(f"{entry.result} {shown(entry.path)}" + (f": {shown(entry.why)}" if entry.why else f" ({entry.freed_bytes:,} bytes)"))

    def _without_announcement(self, artifact: Artifact) -> None:
        """On a full disk: it may still go if that makes room for the manifest, and if its line is told at once to whoever listens."""
        if self._stopped:
            raise _Stays(self._stopped)
        if self._manifest.announce([artifact]):
            return
        why = f"The manifest cannot be written ({self._manifest.problem})"
        if not self._manifest.full or artifact.device != self._manifest.device or self._untold >= UNTOLD_MOST:
            self._stopped = f"{why}, and nothing goes that is not in it"
            raise _Stays(self._stopped)
        self._untold += 1
        self._deliver()

    def _one(self, artifact: Artifact, kind: Kind, tree: Tree | None, entry: Entry) -> Entry:
        if artifact.service and artifact.service not in self._locked:
            raise _Stays(f"It belongs to `{artifact.service}`, which this purge does not lock")
        if kind.method != "files":
            if artifact.unit != kind.unit or not any(is_inside(artifact.path, place.path) for place in self._places.of(kind)):
                raise _Stays("It lies outside of the folders that a purge may touch")
            return methods.purge(artifact, kind, conditions=self._conditions, log=self._log, check=self._check)
        if time.monotonic() - self._looked_at > self._fresh_s:
            self._look()
        folder, _, name = artifact.path.rpartition("/")
        reached = self._reach(folder or "/")
        row = _row_of(artifact, kind, tree)
        if row is not None:
            self._file(artifact, kind, row, reached, name, entry)
        elif tree is not None:
            self._folder(artifact, kind, tree, reached, name, entry)
        return entry

    # The way to it

    def _reach(self, path: str) -> _Reached:
        """The folder of an artifact. One that is held already counts if it is still what is found at its path, for a second."""
        held = self._reached
        if held is not None and held.path == path and time.monotonic() - held.since < FRESH_S:
            try:
                state = os.stat(path, follow_symlinks=False)
                if (state.st_dev, state.st_ino) == (held.device, held.inode):
                    return held
            except OSError:  # told when it is opened anew
                pass
        self._leave()
        self._reached = self._open(path)
        return self._reached

    def _open(self, path: str) -> _Reached:
        """From the outermost place that it lies in down to it; where that way is closed (a mount, a folder that is never entered), from one further
        in, as the scan goes. Raises _Stays or OSError."""
        roots = sorted((root for root in self._roots if is_inside(path, root)), key=len)
        if os.path.normpath(path) != path:
            roots = []
        closed = _Stays("It lies outside of the folders that a purge may touch")
        for named, error in self._places.refused.items() if not roots else ():
            if is_inside(path, named):
                os.lstat(named)  # FileNotFoundError: then it is gone, with all that was in it
                closed = _Stays(f"The folder that it was found in can be none of leftovers any more: {error.what}")
        for root in roots:
            try:
                return self._descend(root, path)
            except _Stays as stays:
                closed = stays
        raise closed

    def _descend(self, root: str, path: str) -> _Reached:
        descriptor = open_folder(root)
        try:
            first = state = os.fstat(descriptor)
            mount, here, states = _mount(descriptor), root, self._begin(root)
            self._enter(descriptor, state, here)
            for part in path[len(root):].strip("/").split("/") if path != root else ():
                below = os.open(part, _FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
                here = f"{here.rstrip('/')}/{part}"
                state = os.fstat(descriptor)
                if state.st_dev != first.st_dev or _mount(descriptor) != mount:
                    raise _Stays("It lies on another file system than the folder that it was found below: something is mounted on the way")
                self._enter(descriptor, state, here)
                states = self._pickers.of(states).below(part) | self._begin(here)
            return _Reached(path, descriptor, state.st_dev, state.st_ino, mount, time.monotonic(), self._pickers.of(states))
        except BaseException:
            os.close(descriptor)
            raise

    def _begin(self, path: str) -> frozenset[Any]:
        found: frozenset[Any] = frozenset()
        for place in self._roots.get(path, ()):
            found |= self._pickers.begin(place)
        return found

    def _enter(self, descriptor: int, state: os.stat_result, path: str) -> None:
        """Raises _Stays for a folder that is never entered."""
        if (why := self._places.never.enters(state, path) or _shape(descriptor)) is not None:
            raise _Stays(f"It lies in a folder that is never entered: {why}")

    def _leave(self) -> None:
        if self._reached is not None:
            os.close(self._reached.descriptor)
            self._reached = None

    def _match(self, found: Match | None, kind: Kind) -> Match:
        if found is None or found.kind.name != kind.name:
            raise _Stays("No kind of leftover recognises it there any more" if found is None else
                         f"It is recognised as another kind now: {found.kind.title}")
        service = found.place.service
        if service and service not in self._locked:
            raise _Stays(f"It belongs to `{service}`, which this purge does not lock")
        return found

    # One file

    def _file(self, artifact: Artifact, kind: Kind, row: Row, reached: _Reached, name: str, entry: Entry) -> None:
        picker = reached.picker
        match = self._match((picker.sockets if kind.file_type == "socket" else picker.files).first(name), kind)
        descriptor = reached.descriptor
        if kind.conditions or kind.min_age_s:
            state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            self._same(row, state, reached.device, kind, artifact.path)  # what is wrong with the file itself is said first
            why = self._conditions.verdict(kind, artifact.path, stat=state, service=match.place.service, folder_newest_ns=None)
            if why is not None:
                raise _Stays(why)
        entry.freed_bytes = self._unlink(name, descriptor, row, reached.device, kind, artifact.path, entry)
        entry.result, entry.deleted_files = "deleted", 1

    def _unlink(self, name: str, folder: int, row: Row, device: int, kind: Kind, path: str, entry: Entry) -> int:
        """The last look and the unlinking: two system calls with nothing between them but comparisons (the module says what that leaves open).
        Gives the bytes that went. Raises _Stays or OSError."""
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self._same(row, state, device, kind, path)
        os.unlink(name, dir_fd=folder)
        size = state.st_blocks * 512
        self._gone.append((state.st_dev, state.st_ino, size, entry))
        return size

    def _same(self, row: Row, state: os.stat_result, device: int, kind: Kind, path: str) -> None:
        """Raises _Stays unless it is the file that was previewed, and nobody has it open."""
        form, words = _FORMS[kind.file_type]
        if state.st_mode & 0o170000 != form:  # said first: a link made a moment ago may have the old file's inode number
            raise _Stays(f"It is no {words} any more")
        if state.st_dev != device:
            raise _Stays("Something is mounted on it")
        if (state.st_dev, state.st_ino) != (row.device, row.inode):
            raise _Stays(_ANOTHER)
        if (why := self._places.never.takes(state, path)) is not None:
            raise _Stays(why)
        if state.st_mtime_ns != row.mtime_ns or state.st_size != row.length:
            raise _Stays(_CHANGED)
        if state.st_uid != row.uid or (state.st_uid != self._owner and not kind.any_owner):
            raise _Stays(f"It belongs to another user (uid {state.st_uid})", "It belongs to another user")
        if state.st_nlink != 1:
            raise _Stays(f"It has {state.st_nlink:,} names (hard links)", "It has several names (hard links)")
        if pids := self._holders.seen(state.st_dev, state.st_ino, path):
            raise self._open_in(pids, "")

    def _others(self, state: os.stat_result, path: str) -> list[int]:
        """Who has a folder open, or works in it, but for ourselves: we hold it while we take it apart."""
        return [pid for pid in self._holders.seen(state.st_dev, state.st_ino, path) if pid != self._me]

    def _open_in(self, pids: Sequence[int], words: str) -> _Stays:
        return _Stays(_sentence(words + self._holders.words(pids)), _sentence(f"{words}open in a process"))

    # A folder with all that is in it

    def _folder(self, artifact: Artifact, kind: Kind, tree: Tree, reached: _Reached, name: str, entry: Entry) -> None:
        match = self._match(reached.picker.folders.first(name), kind)
        look = _Look(self, artifact, kind, reached.mount)
        try:
            walk(artifact.path, look, check=self._between)
            if look.obstacle is not None:
                raise look.obstacle
            if pids := self._holders.below(artifact.path):
                raise self._open_in(pids, "something in it is ")
            if kind.conditions or kind.min_age_s:
                state = os.stat(name, dir_fd=reached.descriptor, follow_symlinks=False)
                why = self._conditions.verdict(kind, artifact.path, stat=state, service=match.place.service, folder_newest_ns=look.newest_ns)
                if why is not None:
                    raise _Stays(why)
        except Cancelled:
            self._result.cancelled = True
            raise _Stays(_CANCELLED) from None
        with _Clearing(self, artifact, kind, reached, name, entry) as clearing:
            clearing.run(tree)
            clearing.tell()

    def _between(self) -> None:
        """Between two files of a folder. Raises Cancelled."""
        now = time.monotonic()
        if now - self._looked_at > self._fresh_s:
            self._look()
        if self._check is not None and now - self._checked_at > CHECKED_EVERY_S:
            self._checked_at = now
            self._check()

    # Afterwards

    def _look(self) -> None:
        """Looks again who has what open: for what comes next, and for what has gone since the last look."""
        began = time.monotonic()
        self._holders.refresh()
        self._looked_at = time.monotonic()
        self._fresh_s = max(FRESH_S, LOOKS_PART * (self._looked_at - began))
        for device, inode, size, entry in self._gone:
            for pid in self._holders.seen(device, inode, ""):
                if _still_has(pid, device, inode):
                    self._opened_meanwhile(entry, pid, size)
                    break
        self._gone.clear()
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


class _Look:
    """A look at a folder artifact as it is now, before anything in it is touched. `obstacle`: why it has to stay whole. What is new or has changed
    is none: that stays for itself, unless the kind's conditions say more of a folder in which something is so young."""

    def __init__(self, purge: _Purge, artifact: Artifact, kind: Kind, mount: int) -> None:
        self._purge, self._artifact, self._kind, self._mount = purge, artifact, kind, mount
        self.obstacle: _Stays | None = None
        self.newest_ns: int | None = None

    def enter(self, frame: Frame) -> bool:
        state = frame.state
        if frame.above is None and (state.st_dev, state.st_ino) != (self._artifact.device, self._artifact.inode):
            return self._stays(_ANOTHER)
        if frame.depth > DEEPEST:
            return self._stays(f"Its folders go deeper than {DEEPEST}")
        if _mount(frame.descriptor) != self._mount:
            return self._stays("Another file system is mounted in it")
        if (why := self._purge._places.never.enters(state, frame.path) or _shape(frame.descriptor)) is not None:
            return self._stays(f"A folder in it is never entered: {why}")
        self._examine(frame.path, state)
        return self.obstacle is None

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        if self.obstacle is None and stat.S_ISREG(state.st_mode):
            if self.newest_ns is None or state.st_mtime_ns > self.newest_ns:
                self.newest_ns = state.st_mtime_ns
            self._examine(f"{frame.path}/{name}", state)

    def leave(self, frame: Frame) -> None:
        """Nothing is summed up."""

    def mount(self, frame: Frame, name: str) -> None:
        self._stays("Another file system is mounted in it")

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        self._stays(f"Not all of it could be looked at: {error.strerror or error}")

    def _examine(self, path: str, state: os.stat_result) -> None:
        purge = self._purge
        if (why := purge._places.never.takes(state, path)) is not None:
            self._stays(why)
        elif state.st_uid != purge._owner and not self._kind.any_owner:
            self._stays(f"Something in it belongs to another user (uid {state.st_uid})", "Something in it belongs to another user")
        elif state.st_nlink != 1 and stat.S_ISREG(state.st_mode):
            self._stays("A file in it has several names (hard links)")
        elif pids := purge._others(state, path) if stat.S_ISDIR(state.st_mode) else purge._holders.seen(state.st_dev, state.st_ino, path):
            self.obstacle = self.obstacle or purge._open_in(pids, "something in it is ")

    def _stays(self, why: str, reason: str = "") -> bool:
        self.obstacle = self.obstacle or _Stays(why, reason)
        return False


class _Clearing:
    """Takes a folder artifact apart, entry by entry as the preview has them, and each folder once it is empty."""

    def __init__(self, purge: _Purge, artifact: Artifact, kind: Kind, reached: _Reached, name: str, entry: Entry) -> None:
        self._purge, self._artifact, self._kind, self._reached, self._name, self._entry = purge, artifact, kind, reached, name, entry
        self._chain: list[tuple[str, int, int, int]] = []  # (path below the artifact, descriptor, device, inode), each in the one before
        self._stayed: set[str] = set()
        self._whys: dict[str, list[Any]] = {}
        self._new: list[Any] = [0, ""]
        self._folders = 0
        self._whole = False

    def __enter__(self) -> _Clearing:
        return self

    def __exit__(self, *_: object) -> None:
        self._up(0)

    def run(self, tree: Tree) -> None:
        self._into("", self._name, self._reached.descriptor)
        for row in tree:
            try:
                self._purge._between()
            except Cancelled:
                self._purge._result.cancelled = True
                self._stay("the purge was cancelled", row.path)
                return
            try:
                self._entry_of(row)
            except FileNotFoundError:  # it went by itself: nothing of it is left
                continue
            except _Stays as stays:
                self._stay(stays.why, row.path)
            except OSError as error:
                self._stay(_in_the_way(error), row.path)

    def tell(self) -> None:
        """What became of the artifact, in its entry."""
        entry = self._entry
        if self._whole:
            entry.result = "deleted"
            return
        entry.result = "partly" if entry.deleted_files or self._folders else "kept"
        words = [f"`{example}` stays: {why[:1].lower()}{why[1:]}" if count == 1 else f"{count:,} entries stay, such as `{example}`: "
                 f"{why[:1].lower()}{why[1:]}" for why, (count, example) in sorted(self._whys.items(), key=lambda row: -row[1][0])[:3]]
        if count := self._new[0]:
            first = f"`{self._new[1]}`"
            words.insert(0, f"{first} is new since the preview" if count == 1 else f"{count:,} entries are new since the preview, such as {first}")
        told = "; ".join(words) or "It is not empty"
        entry.why = f"{told}; {entry.why}" if entry.why else told

    def _entry_of(self, row: Row) -> None:
        if row.path == "":
            self._up(0)
            self._rmdir(self._reached.descriptor, self._name, row)
            return
        parent, _, name = row.path.rpartition("/")
        folder = self._down(parent)
        if row.type == FOLDER:
            self._rmdir(folder, name, row)
        elif row.type == FILE:
            entry = self._entry
            entry.freed_bytes += self._purge._unlink(name, folder, row, self._reached.device, self._kind, f"{self._artifact.path}/{row.path}", entry)
            entry.deleted_files += 1
        else:
            raise _Stays("It is no regular file")

    def _rmdir(self, folder: int, name: str, row: Row) -> None:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(state.st_mode) or (state.st_dev, state.st_ino) != (row.device, row.inode):
            raise _Stays(_ANOTHER)
        path = f"{self._artifact.path}/{row.path}".rstrip("/")
        if pids := self._purge._others(state, path):
            raise self._purge._open_in(pids, "")
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._note_new(folder, name, row.path)
            return
        self._folders += 1
        self._whole = row.path == ""
        self._entry.freed_bytes += state.st_blocks * 512

    def _note_new(self, folder: int, name: str, path: str) -> None:
        """What lies in a folder that is not empty, beyond what is known to have stayed."""
        self._stayed.add(path)
        if len(self._stayed) > _REMEMBERED:
            return
        descriptor = os.open(name, _FLAGS, dir_fd=folder)
        try:
            with os.scandir(descriptor) as entries:
                for one in entries:
                    if (below := f"{path}/{one.name}".lstrip("/")) not in self._stayed:
                        self._new[0] += 1
                        self._new[1] = self._new[1] or shown(below)
        finally:
            os.close(descriptor)

    def _stay(self, why: str, path: str) -> None:
        if len(self._stayed) <= _REMEMBERED:
            self._stayed.add(path)
        self._whys.setdefault(why, [0, shown(path) or "itself"])[0] += 1

    def _down(self, path: str) -> int:
        """The descriptor of a folder of the artifact; one that is held counts if it is still what is found at its path."""
        chain = self._chain
        while chain and not (chain[-1][0] == "" or is_inside(path, chain[-1][0])):
            self._up(len(chain) - 1)
        if not chain:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        rest = path[len(chain[-1][0]):].strip("/")
        for part in rest.split("/") if rest else ():
            self._into(f"{chain[-1][0]}/{part}".lstrip("/"), part, chain[-1][1])
        held, descriptor, device, inode = chain[-1]
        state = os.stat(f"{self._artifact.path}/{held}".rstrip("/"), follow_symlinks=False)
        if (state.st_dev, state.st_ino) != (device, inode):
            raise _Stays("A folder on its way was moved, or something else has taken its place")
        return descriptor

    def _into(self, path: str, name: str, above: int) -> None:
        descriptor = os.open(name, _FLAGS, dir_fd=above)
        state = os.fstat(descriptor)
        self._chain.append((path, descriptor, state.st_dev, state.st_ino))
        if path == "" and (state.st_dev, state.st_ino) != (self._artifact.device, self._artifact.inode):
            raise _Stays(_ANOTHER)
        if state.st_dev != self._reached.device or _mount(descriptor) != self._reached.mount:
            self._up(len(self._chain) - 1)
            raise _Stays("Another file system is mounted in it")

    def _up(self, length: int) -> None:
        while len(self._chain) > length:
            os.close(self._chain.pop()[1])


def _row_of(artifact: Artifact, kind: Kind, tree: Tree | None) -> Row | None:
    """The row of a file artifact; None for a folder, which has a tree."""
    if tree is None or artifact.unit != kind.unit:
        raise _Stays("The preview does not say what it was")
    if kind.unit == "folder":
        return None
    rows = iter(tree)
    row = next(rows, None)
    if row is None or row.path != "" or next(rows, None) is not None or row.type != (SOCKET if kind.file_type == "socket" else FILE):
        raise _Stays("The preview does not say what it was")
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


def _shape(descriptor: int) -> str | None:
    """Why a folder is never entered for what lies in it."""
    for name in NEVER_BESIDE:
        if os.access(name, os.F_OK, dir_fd=descriptor, follow_symlinks=False):
            return f"It holds `{name}`, so it is a model, an environment or a hub cache"
    return None


def _mount(descriptor: int) -> int:
    """The mount that an open folder lies in (mnt_id of /proc/self/fdinfo): one folder bound over another has the same device. Raises OSError."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    raise OSError(errno.ENOTSUP, "The kernel does not say which mount a folder lies in")


def _still_has(pid: int, device: int, inode: int) -> bool:
    """Whether a process holds a file that has no name any more: its inode number may belong to a new file by now."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                state = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:  # closed meanwhile
                continue
            if (state.st_dev, state.st_ino, state.st_nlink) == (device, inode, 0):
                return True
        number = f" {inode} ".encode()
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(line.endswith(b" (deleted)\n") and number in line for line in file)
    except OSError:  # it has ended, or may not be looked into
        return False


def _in_the_way(error: OSError) -> str:
    return _IN_THE_WAY.get(error.errno or 0) or error.strerror or str(error)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
