"""The manifest of a purge: what was chosen, and what became of each, written so that nothing ever goes that is not in it.

JSON lines, `roundhouse.manifest/1`. A header; before some artifacts are touched, one line that names them (`next`), forced to the disk; of each one
line as soon as it is done (`entry`); the result as a footer. So a purge that was killed, or whose machine lost its power, leaves a manifest that says
of everything that went that it went, or that it may have gone. Names keep their bytes, as in a preview.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted  # what json.dumps does with a string, a quarter of the time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ops.artifacts.found import Artifact, Entry, shown
from ops.benchmark import harmless
from ops.gpus.processes import boot_id
from ops.jobs.errors import BadInput, OpsError

FORMAT = "roundhouse.manifest/1"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
INTERRUPTED = "The purge was interrupted at this one: it may be gone, or a part of it"
COLUMNS = ("number", "path", "kind", "service", "size_bytes", "files", "last_change", "age_s", "owner", "reason", "result", "why", "freed_bytes",
           "deleted_files")
_LONGEST_LINE = 64 << 20


class ManifestWriter:
    """Writes a manifest while a purge runs. `problem`: why lines are not on the disk, "" as long as they are; those are kept and tried again.

    `scan`, `digest`: of the preview that the purge is made of. Raises OpsError if the file cannot be made, or is there already.
    """

    def __init__(self, path: Path | str, *, scan: str = "", digest: str = "", node: str = "") -> None:
        self.path = Path(path)
        self.entries = 0
        self.problem = ""
        self.full = False  # the problem is that there is no room
        self._waiting = bytearray()
        self._heads: dict[str, str] = {}  # of each path that was announced: how its line begins
        self._size = 0  # bytes of whole lines in the file
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self.device = os.fstat(self._file).st_dev
        except OSError as error:
            raise OpsError(f"The manifest `{shown(str(self.path))}` cannot be made", why=error.strerror or str(error),
                           hint="Nothing is deleted without one: make room there, or name another file") from error
        self._line(json.dumps({"format": FORMAT, "at": time.time(), "scan": scan, "digest": digest, "node": node, "boot_id": boot_id()}))

    def announce(self, artifacts: Sequence[Artifact]) -> bool:
        """Whether it is on the disk, as is all before it, that these are looked at next, in this order. If not, none of them may go unless the caller
        knows why (`problem`)."""
        heads = [f"[{artifact.number},{quoted(artifact.path)},{quoted(artifact.kind)},{artifact.size_bytes},{artifact.files},{artifact.mtime_ns},"
                 f"{quoted(artifact.owner)}," for artifact in artifacts]
        self._heads = {artifact.path: head for artifact, head in zip(artifacts, heads, strict=True)}
        named = ",".join(f"{head}{quoted(artifact.service)}]" for artifact, head in zip(artifacts, heads, strict=True))
        before = len(self._waiting)
        self._waiting += f'{{"next":[{named}]}}\n'.encode("ascii")
        if self._flush(sync=True):
            return True
        del self._waiting[before:]
        return False

    def add(self, entry: Entry) -> None:
        """What became of one; of what it was, the entry says what its artifact said. Written at once; what cannot be is tried again with the
        next."""
        self.entries += 1
        self._told("entry", entry)

    def amend(self, entry: Entry) -> None:
        """The same artifact once more, with what became known since: this line counts."""
        self._told("amended", entry)

    def finish(self, result: dict[str, Any]) -> None:
        """Ends the manifest. `problem` says whether all of it is on the disk."""
        self._line(json.dumps({"end": FORMAT, "entries": self.entries, "result": result}))
        self._flush(sync=True)

    def close(self) -> None:
        if self._file >= 0:
            self._flush(sync=False)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _told(self, what: str, entry: Entry) -> None:
        head = self._heads.pop(entry.path, "")
        if not head.startswith(f"[{entry.number},"):
            head = (f"[{entry.number},{quoted(entry.path)},{quoted(entry.kind)},{entry.size_bytes},{entry.files},{entry.mtime_ns},"
                    f"{quoted(entry.owner)},")
        self._line(f'{{"{what}":{head}{quoted(entry.reason)},"{entry.result}",{quoted(entry.why)},{entry.freed_bytes},{entry.deleted_files},'
                   f"{quoted(entry.service)}]}}")

    def _line(self, text: str) -> None:
        line = f"{text}\n".encode("ascii")
        if not self._waiting:
            try:
                done = os.write(self._file, line)
            except OSError:  # told by the second try, below
                done = 0
            if done == len(line):
                self._size += done
                return
            if done:  # torn: it is written once more, whole
                self._back()
        self._waiting += line
        self._flush(sync=False)

    def _flush(self, *, sync: bool) -> bool:
        """Writes what waits, whole or not at all."""
        try:
            done = 0
            while done < len(self._waiting):
                done += os.write(self._file, memoryview(self._waiting)[done:] if done else self._waiting)
            if sync:
                os.fdatasync(self._file)
        except OSError as error:
            self.problem, self.full = error.strerror or str(error), error.errno in NO_ROOM
            self._back()
            return False
        self._size += len(self._waiting)
        self._waiting.clear()
        self.problem, self.full = "", False
        return True

    def _back(self) -> None:
        """To the end of the last whole line: a torn one, and those that did not reach the disk, are written again."""
        try:
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
        except OSError as error:
            self.problem, self.full = error.strerror or str(error), False


class Manifest:
    """A manifest as it stands on the disk, of a purge that ended or that did not. Raises BadInput if it is none."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise BadInput(f"The manifest `{shown(str(path))}` cannot be read", why=getattr(error, "strerror", None) or str(error)) from error
        self._file = os.fdopen(descriptor, "rb")
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._none("It is no file")
            head = self._parsed(self._file.readline(_LONGEST_LINE))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise self._none("It does not begin as one")
            self.at = float(head["at"]) if isinstance(head.get("at"), int | float) else None  # when the purge began, seconds since the epoch
            self.scan, self.digest, self.node = (str(head.get(name, "")) for name in ("scan", "digest", "node"))
            self._boot = str(head.get("boot_id", ""))
            self._amended: dict[int, Entry] = {}
            self.result: dict[str, Any] | None = None  # None: the purge did not end, or its end could not be written
            for form, raw in self._lines():
                if form == "amended":
                    self._amended[raw[0]] = self._entry(raw)
                elif form == "result":
                    self.result = raw
        except BaseException:
            self._file.close()
            raise

    @property
    def finished(self) -> bool:
        return self.result is not None

    def entries(self) -> Iterator[Entry]:
        """What became of each artifact, in the order of the purge.

        Of a purge that did not end, the last ones may have been named but not told: they are told as "partly", with `INTERRUPTED`. Of those only the
        first can have been touched if the machine has not been started anew since; then the others were not reached, and are left out.
        """
        named: dict[int, list[Any]] = {}
        for form, raw in self._lines():
            if form == "next":
                named = {one[0]: one for one in raw}
            elif form == "entry":
                named.pop(raw[0], None)
                yield self._amended.get(raw[0]) or self._entry(raw)
        if self.result is None:
            left = list(named.values())
            for number, path, kind, size_bytes, files, mtime_ns, owner, service in left[:1] if self._boot == boot_id() else left:
                yield Entry(number, path, kind, size_bytes, files, mtime_ns, owner, "", "partly", INTERRUPTED, service=service)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lines(self) -> Iterator[tuple[str, Any]]:
        """("next" | "entry" | "amended", its list) and at most one ("result", dict). The last line may be torn: it is left out."""
        self._file.seek(0)
        self._file.readline(_LONGEST_LINE)
        at = self._file.tell()
        while (line := self._file.readline(_LONGEST_LINE)).endswith(b"\n"):
            at += len(line)
            raw = self._parsed(line)
            if not isinstance(raw, dict):
                raise self._none("A line of it has the wrong form")
            if raw.get("end") == FORMAT and isinstance(raw.get("result"), dict):
                yield "result", raw["result"]
            elif len(raw) == 1 and (form := next(iter(raw))) in ("next", "entry", "amended") and _fits(form, raw[form]):
                yield form, raw[form]
            else:
                raise self._none("A line of it has the wrong form")
            self._file.seek(at)  # whoever reads the same manifest in turn with this one

    def _entry(self, raw: list[Any]) -> Entry:
        return Entry(*raw)

    def _parsed(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._none("A line of it is no JSON") from error

    def _none(self, why: str) -> BadInput:
        return BadInput(f"`{shown(str(self.path))}` is no manifest of a purge", why=why)


def _fits(form: str, raw: Any) -> bool:
    if form == "next":
        return isinstance(raw, list) and all(_row(one, "nttnnntt") for one in raw)
    return _row(raw, "nttnnnttttnnt")


def _row(raw: Any, forms: str) -> bool:
    return isinstance(raw, list) and len(raw) == len(forms) and all(type(value) is (int if form == "n" else str)
                                                                    for value, form in zip(raw, forms, strict=True))


def read(path: Path | str) -> Iterator[Entry]:
    """What became of each artifact of a purge. Raises BadInput if it is no manifest."""
    with Manifest(path) as manifest:
        yield from manifest.entries()


def to_csv(entries: Iterable[Entry], *, at: float | None = None) -> Iterator[str]:
    """Lines of a table that any sheet can open; no cell is a formula. `at`: when the purge was, for the ages (seconds)."""
    yield _csv(COLUMNS)
    for entry in entries:
        row = _told(entry, at)
        yield _csv([harmless.cell(row[name]) for name in COLUMNS])


def to_json(entries: Iterable[Entry], *, at: float | None = None, head: dict[str, Any] | None = None) -> Iterator[str]:
    """One JSON object in pieces: what `head` has, and `entries`, a row an artifact."""
    yield "{" + "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in (head or {}).items()) + '"entries": ['
    for number, entry in enumerate(entries):
        yield f"{',' if number else ''}\n{json.dumps(_told(entry, at))}"
    yield "\n]}\n"


def _told(entry: Entry, at: float | None) -> dict[str, Any]:
    changed = datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC).isoformat(timespec="seconds") if 0 <= entry.mtime_ns < 2e20 else ""
    age = None if at is None else round(at - entry.mtime_ns / 1e9)
    row = asdict(entry) | {"path": shown(entry.path), "last_change": changed, "age_s": age}
    return {name: row[name] for name in COLUMNS}


def _csv(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
