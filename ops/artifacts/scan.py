"""Which leftovers lie in the places of this node? Everything is looked at by name and metadata only: never opened, never unpickled.

One walk through all places (one that lies inside another is walked once), with the memory of the largest artifacts only: what was found goes to the
preview as it is met. A folder artifact is walked to its ground, since a purge takes nothing that a scan did not see.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ops.artifacts import gauges as disks
from ops.artifacts.conditions import Conditions
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, shown
from ops.artifacts.holders import Holders
from ops.artifacts.kinds import Kind, shape
from ops.artifacts.methods import measure
from ops.artifacts.places import NAMED, Place, Places
from ops.artifacts.preview import PreviewWriter, Row, type_of
from ops.artifacts.recognise import Match, Picker, Pickers
from ops.artifacts.walk import Frame, open_folder, walk

LISTED = 2000  # of each kind, its largest
LARGEST = 20  # folders
DOMINATED = 0.9  # a folder is not told as a large one if a single folder in it holds so much of it: that one is
LINKS_MOST = 2_000_000  # files with several names that are remembered, some 100 bytes each
WHYS_MOST = 50  # reasons told of a kind, the most frequent first
TOLD_EVERY_S = 0.5
_LOOK_AGAIN_S = 5.0  # who has what open: a purge looks more often

Progress = Callable[[int, str], None]


@dataclass(slots=True)
class Sum:
    """Artifacts of one kind and state. Times in nanoseconds since the epoch, None where there is no artifact."""

    count: int = 0
    files: int = 0
    size_bytes: int = 0
    oldest_ns: int | None = None
    newest_ns: int | None = None

    def add(self, artifact: Artifact) -> None:
        self.count += 1
        self.files += artifact.files
        self.size_bytes += artifact.size_bytes
        when = artifact.mtime_ns
        if self.oldest_ns is None or when < self.oldest_ns:
            self.oldest_ns = when
        if self.newest_ns is None or when > self.newest_ns:
            self.newest_ns = when

    def as_dict(self) -> dict[str, Any]:
        return {"count": self.count, "files": self.files, "size_bytes": self.size_bytes, "oldest_ns": self.oldest_ns, "newest_ns": self.newest_ns}


class KindSum:
    """All that was found of one kind; `largest`: at most so many artifacts as are to be listed."""

    def __init__(self, kind: Kind, listed: int) -> None:
        self.kind, self._listed = kind, listed
        self.sums = {OFFERED: Sum(), OPTIONAL: Sum(), KEPT: Sum()}
        self.largest: list[tuple[int, int, Artifact]] = []  # a heap of (bytes, number with a minus, artifact)
        self._whys: dict[str, list[int]] = {}
        self._others = [0, 0]

    def add(self, artifact: Artifact, reason: str) -> None:
        """`reason`: why it is kept, without what is this artifact's alone (a pid)."""
        self.sums[artifact.state].add(artifact)
        if artifact.state == KEPT:
            if (row := self._whys.get(reason)) is None:
                row = self._whys.setdefault(reason, [0, 0]) if len(self._whys) < 20 * WHYS_MOST else self._others
            row[0] += 1
            row[1] += artifact.size_bytes
        if len(self.largest) < self._listed:
            heapq.heappush(self.largest, (artifact.size_bytes, -artifact.number, artifact))
        elif self.largest and artifact.size_bytes > self.largest[0][0]:
            heapq.heapreplace(self.largest, (artifact.size_bytes, -artifact.number, artifact))

    def as_dict(self) -> dict[str, Any]:
        kind, whys = self.kind, sorted(self._whys.items(), key=lambda row: (-row[1][0], row[0]))
        told = [{"why": why, "count": count, "size_bytes": size} for why, (count, size) in whys[:WHYS_MOST]]
        rest = [*(row for _, row in whys[WHYS_MOST:]), self._others]
        if count := sum(row[0] for row in rest):
            told.append({"why": "For other reasons", "count": count, "size_bytes": sum(row[1] for row in rest)})
        return {"kind": kind.name, "title": kind.title, "one": kind.one, "unit": kind.unit, "leftover": kind.leftover, "keeping": kind.keeping,
                "offered_by_default": kind.offered, "with_redeploy": kind.with_redeploy, "own": kind.own,
                **{state: found.as_dict() for state, found in self.sums.items()}, "listed": len(self.largest), "why_kept": told}


@dataclass(slots=True)
class ScanResult:
    """What a scan found. `listed`: of each kind its largest artifacts, largest first. `partial`: something could not be looked at."""

    at: float  # seconds since the epoch
    took_s: float
    places: list[dict[str, Any]]
    kinds: list[dict[str, Any]]
    gauges: list[dict[str, Any]]
    largest: list[dict[str, Any]]
    files: int
    size_bytes: int
    problems: list[str]
    offered_bytes: int
    choosable_bytes: int
    open_checked: bool
    listed: list[Artifact]
    partial: bool
    vanished: list[str] = field(default_factory=list)  # places that are not there
    why_partial: str = ""  # a sentence: the first of what could not be looked at

    def as_dict(self) -> dict[str, Any]:
        """The data of `artifacts.scanned`, less scan and preview."""
        names = ("at", "took_s", "places", "kinds", "gauges", "largest", "files", "size_bytes", "problems", "offered_bytes", "choosable_bytes",
                 "open_checked")
        return {name: getattr(self, name) for name in names}


def scan(places: Places, kinds: Sequence[Kind], *, conditions: Conditions | None = None, preview: PreviewWriter, progress: Progress | None = None,
         check: Callable[[], None] | None = None, log: Callable[[str], None] | None = None, open_check: bool = True, listed: int = LISTED,
         owner_uid: int | None = None, found: Iterable[Artifact] = (), gauges: Sequence[dict[str, Any]] | None = None) -> ScanResult:
    """Looks for `kinds` in `places`, writes each artifact to `preview` (the caller finishes it, with this result as its summary), and sums up.

    `progress` gets the number of files looked at so far and the folder that is being looked at. `check` may raise to end the scan. `owner_uid`: whose
    files may be deleted, ours if None. `found`: artifacts of kinds with a method of their own (ops/artifacts/methods); they are numbered here.
    `gauges`: how full the disks are, those of the places if None. What cannot be read is told in `problems`, and the scan goes on.
    """
    started, clock = time.time(), time.monotonic()
    held = conditions.holders if conditions is not None else None
    holders = (held if isinstance(held, Holders) else Holders()) if open_check else None
    work = _Scan(places, kinds, conditions, holders, preview, progress, check, log, listed, os.geteuid() if owner_uid is None else owner_uid)
    work.look_again(at_once=True)
    work.walk_all()
    for artifact in found:
        work.add_other(artifact)
    sums = [work.sums[kind.name] for kind in kinds]
    offered = sum(one.sums[OFFERED].size_bytes for one in sums)
    if holders is None:
        work.problems.append("It was not looked at which files are open in a process")
    elif (unseen := holders.problem) is not None:
        work.problems.append(unseen)
    rows = work.place_rows()
    missing = [f"{error.what}, so that it was not looked into" for error in places.refused.values()] + work.not_seen()
    return ScanResult(
        at=started, took_s=time.monotonic() - clock, places=rows, kinds=[one.as_dict() for one in sums],
        gauges=list(gauges) if gauges is not None else disks.read([(place.path, place.why or place.name) for place in places.places]),
        largest=work.largest_rows(), files=work.files, size_bytes=work.size_bytes, problems=[*places.problems, *work.told_problems()],
        offered_bytes=offered, choosable_bytes=offered + sum(one.sums[OPTIONAL].size_bytes for one in sums),
        open_checked=holders is not None and holders.complete, partial=bool(missing), why_partial=next(iter(missing), ""),
        listed=[artifact for one in sums for _, _, artifact in sorted(one.largest, key=lambda row: (-row[0], -row[1]))],
        vanished=[row["path"] for row in rows if row["problem"] == _NOT_THERE])


_NOT_THERE = "It is not there"
_ONLY_ITS_NAME = "No service says that its debug code writes here, so only its name speaks for it: it may be somebody's checkpoint"
_WRITTEN = "It was written to while the scan ran, or its time lies ahead"


class _Group:
    """A folder artifact while it is walked. `obstacle`: why it cannot go as a whole, as (sentence, the same without names)."""

    __slots__ = ("files", "frame", "links", "match", "newest_ns", "obstacle", "pids", "prefix", "size_bytes")

    def __init__(self, match: Match, frame: Frame) -> None:
        self.match, self.frame = match, frame
        self.prefix = len(frame.path) + 1
        self.files = self.size_bytes = self.links = 0
        self.newest_ns: int | None = None
        self.obstacle: tuple[str, str] | None = None
        self.pids: set[int] = set()


class _Folder:
    """What is known of a folder on the way down. `size_bytes`: of it and all that lies in it, as `du` counts: a file with several names once.
    `stays`: it is part of a folder artifact, and something in it stays when that goes (a link), so that it gives nothing back itself."""

    __slots__ = ("below_most", "files", "group", "picker", "places", "size_bytes", "stays")

    def __init__(self, picker: Picker, group: _Group | None, places: list[Place], own_bytes: int) -> None:
        self.picker, self.group, self.places = picker, group, places
        self.files = self.below_most = 0
        self.size_bytes = own_bytes
        self.stays = False


class _Scan:
    """The visitor of the walk."""

    def __init__(self, places: Places, kinds: Sequence[Kind], conditions: Conditions | None, holders: Holders | None, preview: PreviewWriter,
                 progress: Progress | None, check: Callable[[], None] | None, log: Callable[[str], None] | None, listed: int, owner: int) -> None:
        self._places, self._conditions, self._holders, self._preview = places, conditions, holders, preview
        self._progress, self._check, self._log, self._owner = progress, check, log, owner
        self.sums = {kind.name: KindSum(kind, listed) for kind in kinds}
        self.files = self.size_bytes = self._seen = 0
        self.problems: list[str] = []
        self._not_seen: list[str] = []
        self._pickers = Pickers()
        walked: list[Place] = []
        for kind in kinds:
            for place in places.of(kind) if kind.method == "files" else ():
                self._pickers.look_for(kinds, kind, place)
                if place not in walked:
                    walked.append(place)
        self._walked = sorted(walked, key=lambda place: (place.path.count("/"), place.path))  # outer ones first
        self._roots: dict[tuple[int, int], list[Place]] = {}
        self._rows: dict[Place, dict[str, Any]] = {}
        self._linked: dict[int, set[int]] = {}
        self._linked_count = 0
        self._largest: list[tuple[int, str, int]] = []
        self._unread: dict[str, list[Any]] = {}
        self._owners: dict[int, str] = {}
        self._services: dict[tuple[tuple[str, ...], int], str] = {}
        self._started_ns = time.time_ns()
        self._told_at = self._looked_at = float("-inf")
        self._look_every_s = _LOOK_AGAIN_S
        self._at = ""

    # The whole

    def walk_all(self) -> None:
        for place in self._walked:
            try:
                state = os.lstat(place.path)
            except OSError:  # told when it is walked
                continue
            self._roots.setdefault((state.st_dev, state.st_ino), []).append(place)
        for place in self._walked:
            if place in self._rows:
                continue
            self._at = place.path
            try:
                descriptor = open_folder(place.path)
            except FileNotFoundError:
                self._row(place, problem=_NOT_THERE)
            except OSError as error:
                link = error.errno in (errno.ELOOP, errno.ENOTDIR)
                why = "It is no folder, or a link lies on the way to it" if link else (error.strerror or str(error))
                self._row(place, problem=why)
                self._problem(f"{shown(place.path)} could not be looked into: {why}")
            else:
                walk(place.path, self, check=self._pause, descriptor=descriptor)
        if self._linked_count >= LINKS_MOST:
            self.problems.append(f"There are more than {LINKS_MOST:,} files with several names: those beyond were counted once for each name")

    def place_rows(self) -> list[dict[str, Any]]:
        return [self._rows[place] for place in self._walked if place in self._rows]

    def largest_rows(self) -> list[dict[str, Any]]:
        return [{"path": shown(path), "size_bytes": size, "files": files} for size, path, files in sorted(self._largest, reverse=True)]

    def not_seen(self) -> list[str]:
        """What could not be looked at, in sentences: then the scan is not whole."""
        return [*self._not_seen, *self._unread_words()]

    def told_problems(self) -> list[str]:
        return [*self.problems, *self._unread_words()]

    def _unread_words(self) -> list[str]:
        return [f"{count:,} folders and files could not be looked at: {why} ({first}, ...)" if count > 1 else f"{first} could not be looked at: {why}"
                for why, (count, first) in self._unread.items()]

    def add_other(self, artifact: Artifact) -> None:
        artifact.number = self._preview.count + 1
        self._preview.add(artifact)
        self.sums[artifact.kind].add(artifact, artifact.why)

    def _problem(self, text: str) -> None:
        self._not_seen.append(text)
        self.problems.append(text)

    # What the walk tells

    def enter(self, frame: Frame) -> bool:
        above = cast("_Folder | None", frame.above.data if frame.above is not None else None)
        group = above.group if above is not None else None
        roots = self._roots.get((frame.state.st_dev, frame.state.st_ino), [])
        why = self._places.never.enters(frame.state, frame.path) or shape(frame.descriptor)
        if why is not None:
            if group is not None:
                self._hinder(group, f"{why}: {self._inside(group, frame.path)}", why)
            for place in roots:
                self._row(place, problem=f"It is never looked into. {why}")
            return False
        self._at = frame.path
        states = above.picker.below(frame.name) if above is not None else frozenset()
        for place in roots:
            states = states | self._pickers.begin(place)
        if group is None and above is not None and (match := above.picker.folders.first(frame.name)) is not None:
            group = _Group(match, frame)
        if above is None:
            self._links = self._linked.setdefault(frame.state.st_dev, set())
        frame.data = _Folder(self._pickers.of(states), group, roots, frame.state.st_blocks * 512)
        if group is not None:
            self._examine(group, frame.path, frame.state)
        return True

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        folder = cast("_Folder", frame.data)
        self._seen += 1
        size = state.st_blocks * 512
        if state.st_nlink != 1 and not self._first_name(state.st_ino):
            size = 0
        folder.files += 1
        folder.size_bytes += size
        if folder.group is not None:
            self._grouped(folder.group, frame, name, state, size)
            return
        form = state.st_mode & 0o170000
        if form == stat.S_IFREG:
            match = folder.picker.files.first(name)
        elif form == stat.S_IFSOCK:
            match = folder.picker.sockets.first(name)
        else:
            return
        if match is not None:
            self._found(match, f"{frame.path}/{name}", state, size)

    def leave(self, frame: Frame) -> None:
        folder = cast("_Folder", frame.data)
        group = folder.group
        if group is not None:
            own_bytes = 0 if folder.stays else frame.state.st_blocks * 512
            group.size_bytes += own_bytes
            self._preview.add_row(Row.of(frame.path[group.prefix:], frame.state, own_bytes))
            if group.frame is not frame and folder.stays:
                cast("_Folder", cast(Frame, frame.above).data).stays = True
            if group.frame is frame:
                self._found_folder(group)
        for place in folder.places:
            self._row(place, folder.files, folder.size_bytes)
        if frame.above is not None:
            above = cast("_Folder", frame.above.data)
            above.files += folder.files
            above.size_bytes += folder.size_bytes
            above.below_most = max(above.below_most, folder.size_bytes)
        else:
            self.files += folder.files
            self.size_bytes += folder.size_bytes
        if folder.size_bytes and folder.below_most < DOMINATED * folder.size_bytes:
            row = (folder.size_bytes, frame.path, folder.files)
            if len(self._largest) < LARGEST:
                heapq.heappush(self._largest, row)
            elif row > self._largest[0]:
                heapq.heapreplace(self._largest, row)

    def mount(self, frame: Frame, name: str) -> None:
        if (group := cast("_Folder", frame.data).group) is not None:
            why = "Something is mounted in it"
            self._hinder(group, f"{why}: {self._inside(group, f'{frame.path}/{name}')}", why)

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        why = error.strerror or str(error)
        row = self._unread.setdefault(why, [0, shown(path)])
        row[0] += 1
        if frame is not None and (group := cast("_Folder", frame.data).group) is not None:
            self._hinder(group, f"Not all of it could be looked at: {why}", "Not all of it could be looked at")

    # One artifact

    def _found(self, match: Match, path: str, state: os.stat_result, size: int) -> None:
        kind, holders = match.kind, self._holders
        pids = holders.seen(state.st_dev, state.st_ino, path) if holders is not None else []
        told: tuple[str, str] | None
        if (why := self._places.never.takes(state, path)) is not None:
            told = why, why
        elif state.st_uid != self._owner and not kind.any_owner:
            told = self._of_another(state.st_uid)
        elif state.st_nlink != 1:
            told = f"It has {state.st_nlink:,} names (hard links)", "It has several names (hard links)"
        elif pids:
            told = self._open(pids)
        elif state.st_mtime_ns >= self._started_ns:
            told = _WRITTEN, _WRITTEN
        else:
            told = self._verdict(kind, path, state, match.place, None)
        self._add(match, path, size, 1, state.st_mtime_ns, state, told, pids, Row.of("", state, size))

    def _found_folder(self, group: _Group) -> None:
        frame, match = group.frame, group.match
        newest = frame.state.st_mtime_ns if group.newest_ns is None else group.newest_ns
        if self._holders is not None:
            group.pids.update(self._holders.below(frame.path))
        told = group.obstacle
        if told is None and group.pids:
            told = self._open(sorted(group.pids), "Something in it is ")
        if told is None and newest >= self._started_ns:
            told = _WRITTEN, _WRITTEN
        if told is None:
            told = self._verdict(match.kind, frame.path, frame.state, match.place, newest)
        self._add(match, frame.path, group.size_bytes, group.files, newest, frame.state, told, sorted(group.pids), None, group.links)

    def _add(self, match: Match, path: str, size: int, files: int, mtime_ns: int, state: os.stat_result, told: tuple[str, str] | None,
             pids: Sequence[int], row: Row | None, links: int = 0) -> None:
        kind = match.kind
        if told is not None:
            standing, (why, reason) = KEPT, told
        elif match.place.why == NAMED and kind.places == ["scratch"]:
            standing, why, reason = OPTIONAL, _ONLY_ITS_NAME, _ONLY_ITS_NAME
        else:
            standing, why = (OFFERED, kind.leftover) if kind.offered else (OPTIONAL, kind.keeping)
            reason = why
            if links:
                why = f"{why.rstrip('.')}. {links:,} link{'s' * (links != 1)} or special file{'s' * (links != 1)} in it will stay"
        opened = self._holders.told(pids) if pids and self._holders is not None else []
        artifact = Artifact(self._preview.count + 1, kind.name, kind.unit, path, size, files, mtime_ns, state.st_uid, self._owner_of(state.st_uid),
                            state.st_dev, state.st_ino, standing, why, opened,
                            match.place.service or self._service_of(match.place, state.st_uid))
        self._preview.add(artifact, row)
        self.sums[kind.name].add(artifact, reason)

    def _grouped(self, group: _Group, frame: Frame, name: str, state: os.stat_result, size: int) -> None:
        """Something in a folder artifact that is no folder."""
        path = f"{frame.path}/{name}"
        form = type_of(state.st_mode)
        self._preview.add_row(Row.of(path[group.prefix:], state, size))
        if form != "file":
            group.links += 1
            cast("_Folder", frame.data).stays = True
            return
        group.files += 1
        group.size_bytes += size
        if group.newest_ns is None or state.st_mtime_ns > group.newest_ns:
            group.newest_ns = state.st_mtime_ns
        self._examine(group, path, state)

    def _examine(self, group: _Group, path: str, state: os.stat_result) -> None:
        """Notes what would be in the way of a file or folder of a folder artifact."""
        if self._holders is not None and (pids := self._holders.seen(state.st_dev, state.st_ino, path)):
            group.pids.update(pids)
        if group.obstacle is None:
            never = self._places.never
            if never.files and (why := never.takes(state, path)) is not None:
                self._hinder(group, f"{why}: {self._inside(group, path)}", why)
            elif state.st_uid != self._owner and not group.match.kind.any_owner:
                self._hinder(group, *self._of_another(state.st_uid, "Something in it belongs"))
            elif state.st_nlink != 1 and stat.S_ISREG(state.st_mode):
                why = "A file in it has several names (hard links)"
                self._hinder(group, f"{why}: {self._inside(group, path)}", why)

    # Small things

    def _verdict(self, kind: Kind, path: str, state: os.stat_result, place: Place, newest_ns: int | None) -> tuple[str, str] | None:
        if self._conditions is None:
            return None
        why = self._conditions.verdict(kind, path, stat=state, service=place.service, folder_newest_ns=newest_ns)
        return None if why is None else (why, why)

    def _open(self, pids: Sequence[int], words: str = "") -> tuple[str, str]:
        assert self._holders is not None  # noqa: S101  (pids come from it)
        said = words + self._holders.words(pids)
        return said[:1].upper() + said[1:], f"{words}open in a process".capitalize()

    def _of_another(self, uid: int, words: str = "It belongs") -> tuple[str, str]:
        return f"{words} to another user ({self._owner_of(uid)})", f"{words} to another user"

    @staticmethod
    def _hinder(group: _Group, why: str, reason: str) -> None:
        if group.obstacle is None:
            group.obstacle = why, reason

    @staticmethod
    def _inside(group: _Group, path: str) -> str:
        return shown(path[group.prefix:]) or "itself"

    def _first_name(self, inode: int) -> bool:
        """Whether this file of several names is met for the first time."""
        if inode in self._links:
            return False
        if self._linked_count < LINKS_MOST:
            self._links.add(inode)
            self._linked_count += 1
        return True

    def _owner_of(self, uid: int) -> str:
        if (name := self._owners.get(uid)) is None:
            name = self._owners[uid] = measure.owner(uid)
        return name

    def _service_of(self, place: Place, uid: int) -> str:
        """In a folder that several services share: the only one of them that runs as the owner; "" if that is not known."""
        key = place.services, uid
        if (name := self._services.get(key)) is None:
            users = [(service, self._places.users.get(service)) for service in place.services]
            his = [service for service, user in users if user == uid]
            name = self._services[key] = his[0] if len(his) == 1 and all(user is not None for _, user in users) else ""
        return name

    def _row(self, place: Place, files: int = 0, size: int = 0, problem: str = "") -> None:
        self._rows[place] = {"path": shown(place.path), "what": place.why or place.name, "files": files, "size_bytes": size, "problem": problem}
        if self._log is not None:
            self._log(f"{shown(place.path)}: {problem or f'{files:,} files, {size:,} bytes'}")

    def _pause(self) -> None:
        if self._check is not None:
            self._check()
        now = time.monotonic()
        if self._progress is not None and now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._progress(self._seen, shown(self._at))
        self.look_again()

    def look_again(self, *, at_once: bool = False) -> None:
        """Who has what open: again and again in a long scan, but at most 5 % of its time."""
        now = time.monotonic()
        if self._holders is None or (not at_once and now - self._looked_at < self._look_every_s):
            return
        self._holders.refresh()
        self._looked_at = time.monotonic()
        self._look_every_s = max(_LOOK_AGAIN_S, 20 * (self._looked_at - now))
