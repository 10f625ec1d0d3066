"""The preview of a scan: a file on the node that says of everything found what it was, so that a purge deletes exactly that and nothing else.

JSON lines, `roundhouse.preview/1`. A header; one line for each artifact, numbered from 1, which names by number the line before it that says what it
has in common with others (`alike`); the entries of a folder artifact come before its own line, each after what lies in it, so that neither the
writer nor a reader holds a tree; the summary; a footer with counts and the SHA-256 of all that stands before it. So a file that was cut or changed is
noticed, and a purge can name the very preview that a person looked at. Names keep their bytes (os.fsdecode: what is no UTF-8 stands as a lone
surrogate, which JSON can hold).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted  # what json.dumps does with a string, a quarter of the time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Choice
from ops.artifacts.kinds import UNITS, Kind
from ops.gpus.processes import boot_id
from ops.jobs.errors import BadInput, OpsError

FORMAT = "roundhouse.preview/1"
FILE, FOLDER, SOCKET, LINK, OTHER = "file", "folder", "socket", "link", "other"  # types of an entry
_TYPES = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFSOCK: SOCKET, stat.S_IFLNK: LINK}
_ROW = (str, str, int, int, int, int, int, int, int)  # the values of a Row
_LONGEST_LINE = 8 << 20
_BLOCK = 1 << 18
_USUAL_LINE = 200
_LARGEST = 2**63  # of a number of bytes or files
_ALIKE_MOST = 10_000  # lines of what artifacts have in common that are remembered: from then on the last one is used for each that is new
_ALIKE = (str, str, int, str, int, str, str, str)  # kind, unit, uid, owner, device, state, why, service
_WORDS = (str, int, int, str, int, int, int, int, list, int)
_ARTIFACT = ((*_WORDS, list), (*_WORDS, type(None)))  # with its own row, and without
_DECODE = json.JSONDecoder().raw_decode
_ODD = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)").search  # of a path: a part that is empty, `.` or `..`
_LATEST = 2e11  # seconds since the epoch: some year that a calendar still has
_AGAIN = "Scan again: a purge takes only what a scan wrote"


class Row(NamedTuple):
    """One entry as it was seen: a file that is an artifact (`path` is ""), or something in the tree of a folder artifact.

    `path` is relative to the artifact's folder, "" for that folder itself. `length`: st_size; `size_bytes`: allocated, and 0 for a file whose blocks
    were counted under another name already, or a folder that stays. An artifact's size is the sum of its rows' (files and folders; a link or special
    file in it stays, and so do the folders around it).
    """

    path: str
    type: str
    device: int
    inode: int
    mtime_ns: int
    length: int
    size_bytes: int
    uid: int
    ctime_ns: int = 0  # of the last change of anything, which nobody can put back: a new file can have the number and the times of an old one

    @classmethod
    def of(cls, path: str, state: os.stat_result, size_bytes: int | None = None) -> Self:
        size = state.st_blocks * 512 if size_bytes is None else size_bytes
        return cls(path, type_of(state.st_mode), state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size, size, state.st_uid,
                   state.st_ctime_ns)


def type_of(mode: int) -> str:
    return _TYPES.get(mode & 0o170000, OTHER)


@dataclass(frozen=True, slots=True)
class Header:
    """Where and when a scan was made, of what. `at`: seconds since the epoch; `boot_id`: of the machine's start that it was made in."""

    node: str
    at: float
    roots: list[str]
    kinds: list[Kind]
    boot_id: str

    @classmethod
    def now(cls, node: str, roots: list[str], kinds: list[Kind]) -> Header:
        return cls(node=node, at=time.time(), roots=roots, kinds=kinds, boot_id=boot_id())

    def as_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "node": self.node, "at": self.at, "roots": self.roots, "kinds": [kind.as_dict() for kind in self.kinds],
                "boot_id": self.boot_id}


class PreviewWriter:
    """Writes a preview, line by line, beside its place; `finish` puts it there. One that is left unfinished leaves nothing.

    `add_row` the entries of a folder artifact, each after what lies in it and the folder itself last, then `add` the artifact; `add` a file artifact
    with its own row. Artifacts of other methods (a release) have no rows. Raises OpsError if it cannot be written (a full disk).
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.count = 0  # artifacts so far: the next one's number is one more
        self.size_bytes = 0  # of the file
        self._rows = self._all_rows = 0
        self._alike: dict[tuple[Any, ...], int] = {}
        self._digest = hashlib.sha256()
        self._lines: list[bytes] = []
        self._part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
        try:
            self._file = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._cannot(error) from error
        self._open = True
        self._line(json.dumps(header.as_dict()))

    def add(self, artifact: Artifact, row: Row | None = None) -> None:
        if artifact.number != self.count + 1:
            raise ValueError(f"artifact {artifact.number} after {self.count}")
        if row is not None and self._rows:
            raise ValueError("an artifact has either a row of its own or a tree")
        self.count += 1
        if row is None:
            own = "null"
        elif row[2:8] == (artifact.device, artifact.inode, artifact.mtime_ns, row.length, artifact.size_bytes, artifact.uid):
            own = f'["{row.type}",{row.length},{row.ctime_ns}]'
        else:
            raise ValueError(f"artifact {artifact.number} and its row are not the same file")
        alike = (artifact.kind, artifact.unit, artifact.uid, artifact.owner, artifact.device, artifact.state, artifact.why, artifact.service)
        if (of := self._alike.get(alike)) is None:
            of = len(self._alike)
            if of < _ALIKE_MOST:
                self._alike[alike] = of
            self._line(f'["alike",{of},{json.dumps(alike)}]')
        opened = json.dumps(artifact.open_by) if artifact.open_by else "[]"
        self._line(f'["artifact",{artifact.number},{of},{quoted(artifact.path)},{artifact.size_bytes},{artifact.files},{artifact.mtime_ns},'
                   f"{artifact.inode},{opened},{self._rows},{own}]")
        self._rows = 0

    def add_row(self, row: Row) -> None:
        self._rows += 1
        self._all_rows += 1
        self._line(f'["entry",{quoted(row.path)},"{row.type}",{row.device},{row.inode},{row.mtime_ns},{row.length},{row.size_bytes},{row.uid},'
                   f"{row.ctime_ns}]")

    def finish(self, summary: dict[str, Any]) -> str:
        """Puts the preview in its place; gives its digest (SHA-256, hexadecimal)."""
        if self._rows:
            raise ValueError("entries of a folder that is no artifact")
        self._line(json.dumps({"summary": summary}))
        self._flush()
        digest = self._digest.hexdigest()
        self._lines.append(json.dumps({"end": FORMAT, "artifacts": self.count, "entries": self._all_rows, "digest": digest}).encode() + b"\n")
        self._flush()
        try:
            self._part.replace(self.path)  # not forced onto the disk: one that a power cut left incomplete is noticed, and a scan is soon made again
        except OSError as error:
            raise self._cannot(error) from error
        os.close(self._file)
        self._open = False
        return digest

    def abort(self) -> None:
        """Leaves nothing behind; does nothing after `finish`."""
        if self._open:
            os.close(self._file)
            self._open = False
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()

    def _line(self, text: str) -> None:
        self._lines.append(text.encode("ascii") + b"\n")
        if len(self._lines) >= 1000:
            self._flush()

    def _flush(self) -> None:
        block = b"".join(self._lines)
        self._lines.clear()
        self._digest.update(block)
        self.size_bytes += len(block)
        rest = memoryview(block)
        try:
            while rest:
                rest = rest[os.write(self._file, rest):]
        except OSError as error:
            raise self._cannot(error) from error

    def _cannot(self, error: OSError) -> OpsError:
        return OpsError(f"The preview `{self.path}` cannot be written", why=error.strerror or str(error),
                        hint="It needs about 200 bytes for each leftover; make room there, or scan fewer kinds or folders")


class Tree:
    """The rows of one artifact, read from the preview when they are asked for: each entry after what lies in it, the artifact itself last."""

    __slots__ = ("_offset", "_preview", "_rows", "own")

    def __init__(self, preview: Preview, offset: int, rows: int, own: Row | None) -> None:
        self._preview, self._offset, self._rows = preview, offset, rows
        self.own = own  # of a file artifact: its only one

    def __len__(self) -> int:
        return self._rows if self.own is None else 1

    def __iter__(self) -> Iterator[Row]:
        if self.own is not None:
            yield self.own
            return
        left = self._rows
        for lines in self._preview._blocks(self._offset, min(_BLOCK, _USUAL_LINE * left)):
            for raw in self._preview._parsed_together([line for _, line in lines[:left]]):
                yield _row(raw[1:])
            left -= len(lines)
            if left <= 0:
                return


class Preview:
    """A preview that was written in full and never changed. Keep it open (`with`) while its artifacts and their trees are read."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._file = descriptor
        self.size_bytes = os.fstat(descriptor).st_size
        self.digest, self.summary, end = self._checked()
        self.count, self.rows = end["artifacts"], end["entries"]
        self.header = self._header()
        self.kinds = {kind.name: kind for kind in self.header.kinds}

    @classmethod
    def open(cls, path: Path | str) -> Preview:
        """Raises BadInput if it is none, was cut or changed, or belongs to another user than us or root."""
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise BadInput(f"The preview `{path}` cannot be read", why=why or str(error), hint=_AGAIN) from error
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise BadInput(f"`{path}` is no preview: it is no file", hint=_AGAIN)
            if state.st_uid not in (os.geteuid(), 0) or state.st_mode & 0o022:
                raise BadInput(f"The preview `{path}` could have been written by somebody else",
                               why="It belongs to another user, or others may write to it", hint=_AGAIN)
            return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def artifacts(self, choice: Choice | None = None) -> Iterator[tuple[Artifact, Tree | None]]:
        """All artifacts in order, or those that `choice` takes, each with its rows; None for one of another method (a release, uv's cache)."""
        start, rows, number, ended = -1, 0, 0, False
        alike: dict[int, list[Any]] = {}
        for lines in self._blocks(0):
            wanted: list[bytes] = []
            trees: list[tuple[int, int]] = []  # of each: where its entries begin, and how many
            for offset, line in lines:
                if line.startswith(b'["entry"'):
                    start, rows = (offset, 1) if rows == 0 else (start, rows + 1)
                elif line.startswith(b'["artifact"'):
                    wanted.append(line)
                    trees.append((start, rows))
                    start, rows = -1, 0
                elif line.startswith(b'["alike"'):
                    wanted.append(line)
                    trees.append((-1, 0))
                elif line.startswith(b'{"summary"'):
                    ended = True
                    break
            for raw, (first, count) in zip(self._parsed_together(wanted), trees, strict=True):
                if raw[0] == "alike":
                    _, of, words = self._of(raw, str, int, list)
                    alike[of] = self._checked_alike(words)
                    continue
                artifact, own = self._artifact(raw, alike)
                number += 1
                if artifact.number != number:
                    raise self._no_preview("its artifacts are not numbered in order")
                if raw[9] != count or (own is not None and count):
                    raise self._no_preview("a folder's entries do not fit")
                if choice is None or choice.takes(artifact):
                    yield artifact, Tree(self, first, count, own) if count or own is not None else None
            if ended:
                break
        if number != self.count:
            raise self._no_preview("it has not the artifacts that its end tells of")

    def check_summary(self) -> None:
        """Raises BadInput if the summary has not what people are shown of it: somebody made this preview by hand."""
        if not _is_summary(self.summary):
            raise self._no_preview("its summary has the wrong form")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lines(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """(where it begins, line) from `offset` on; its own position, so that several readers do not disturb each other."""
        for lines in self._blocks(offset):
            yield from lines

    def _blocks(self, offset: int, first: int = _BLOCK) -> Iterator[list[tuple[int, bytes]]]:
        """The same, as many at once as are read at once: of so many bytes the first time."""
        rest, at, step = b"", offset, first
        while block := os.pread(self._file, step, at + len(rest)):
            step = _BLOCK
            *lines, rest = (rest + block).split(b"\n")
            found = []
            for line in lines:
                found.append((at, line))
                at += len(line) + 1
            yield found
            if len(rest) > _LONGEST_LINE:
                raise self._no_preview("one of its lines is too long")
        if rest or at != self.size_bytes:  # it was cut since it was opened
            raise self._no_preview("its end is missing")

    def _checked(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """(digest, summary, footer). Lines are told apart at the end alone: what stands before is read in blocks."""
        _, first = next(self._lines(0), (0, b""))
        if f'"format": "{FORMAT}"'.encode() not in first:
            raise self._no_preview("it does not begin as one")
        tail, start = b"", self.size_bytes
        while start and tail.count(b"\n") < 3:
            if len(tail) > _LONGEST_LINE:
                raise self._no_preview("one of its lines is too long")
            step = min(_BLOCK, start)
            tail, start = os.pread(self._file, step, start - step) + tail, start - step
        *_, summary, last, rest = (b"", b"", *tail.split(b"\n"))
        if rest:
            raise self._no_preview("its end is missing")
        end = self._parsed(last, dict)
        if end.get("end") != FORMAT or type(end.get("artifacts")) is not int or type(end.get("entries")) is not int:
            raise self._no_preview("its end is missing")
        digest, at, footer = hashlib.sha256(), 0, self.size_bytes - len(last) - 1
        while block := os.pread(self._file, min(_BLOCK, footer - at), at):
            digest.update(block)
            at += len(block)
        if end.get("digest") != digest.hexdigest():
            raise self._no_preview("it was changed after the scan wrote it")
        found = self._parsed(summary, dict).get("summary")
        if not isinstance(found, dict):
            raise self._no_preview("its summary is missing")
        return digest.hexdigest(), found, end

    def _header(self) -> Header:
        _, line = next(self._lines(0))
        raw = self._parsed(line, dict)
        try:
            if not 0 <= (at := float(raw["at"])) < _LATEST:
                raise ValueError("time")
            return Header(node=str(raw["node"]), at=at, roots=[str(root) for root in raw["roots"]],
                          kinds=[Kind.from_dict(kind) for kind in raw["kinds"]], boot_id=str(raw["boot_id"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise self._no_preview(f"its header has no {error}") from error

    def _parsed(self, line: bytes, form: type = list) -> Any:
        try:
            text = str(line, "ascii")
            found, end = _DECODE(text)  # json.loads looks for spaces around first, which takes as long again
        except (ValueError, RecursionError) as error:
            raise self._no_preview("a line of it is no JSON") from error
        if end != len(text) or not isinstance(found, form):
            raise self._no_preview("a line of it has the wrong form")
        return found

    def _parsed_together(self, lines: list[bytes]) -> list[list[Any]]:
        """Lines that each hold a list: parsed at once, they take a third of the time. (A list that somebody divided into two lines, and another that
        shares its line with a third, pass: what they hold is looked at all the same.)"""
        found = self._parsed(b"[%b]" % b",".join(lines))
        if len(found) != len(lines) or not all(type(raw) is list and raw for raw in found):
            raise self._no_preview("a line of it has the wrong form")
        return found

    def _checked_alike(self, words: list[Any]) -> list[Any]:
        kind, unit, *_, state, _, _ = self._of(words, *_ALIKE)
        if kind not in self.kinds or unit not in UNITS or state not in (OFFERED, OPTIONAL, KEPT):
            raise self._no_preview("an artifact has the wrong form")
        return words

    def _artifact(self, raw: list[Any], alike: dict[int, list[Any]]) -> tuple[Artifact, Row | None]:
        if tuple(map(type, raw)) not in _ARTIFACT or (words := alike.get(raw[2])) is None:
            raise self._no_preview("a line of it has the wrong form")
        _, number, _, path, size_bytes, files, mtime_ns, inode, open_by, _, own = raw
        if not path.startswith("/") or "\0" in path or (_is_suspect(path[1:] or "/") and _ODD(path[1:])):
            raise self._no_preview("an artifact has the wrong form")
        if not (0 <= size_bytes < _LARGEST and 0 <= files < _LARGEST):
            raise self._no_preview("a size in it is none")
        kind, unit, uid, owner, device, state, why, service = words
        artifact = Artifact(number, kind, unit, path, size_bytes, files, mtime_ns, uid, owner, device, inode, state, why, open_by, service)
        if own is None:
            return artifact, None
        form, length, ctime_ns = self._of(own, str, int, int)
        return artifact, Row("", form, device, inode, mtime_ns, length, size_bytes, uid, ctime_ns)

    def _of(self, raw: list[Any], *forms: type) -> list[Any]:
        """The values of a line, if they have these forms."""
        if tuple(map(type, raw)) != forms:
            raise self._no_preview("a line of it has the wrong form")
        return raw

    def _no_preview(self, why: str) -> BadInput:
        return BadInput(f"`{self.path}` is no preview of a scan", why=f"{why[:1].upper()}{why[1:]}", hint=_AGAIN)


def _is_summary(found: Any) -> bool:
    """Whether it has what is shown of it (ops/artifacts/scan.py ScanResult)."""
    if not isinstance(found, dict) or not isinstance(found.get("kinds"), list) or not _texts(found.get("problems")):
        return False
    return all(isinstance(kind, dict) and all(isinstance(kind.get(name), str) for name in ("kind", "title", "one", "leftover", "keeping"))
               and all(_is_sum(kind.get(state)) for state in (OFFERED, OPTIONAL, KEPT)) and isinstance(kind.get("why_kept"), list)
               and all(isinstance(row, dict) and isinstance(row.get("why"), str) and type(row.get("count")) is int for row in kind["why_kept"])
               for kind in found["kinds"])


def _is_sum(found: Any) -> bool:
    return isinstance(found, dict) and all(type(found.get(name)) is int for name in ("count", "files", "size_bytes")) and all(
        found.get(name) is None or (type(found[name]) is int and abs(found[name]) < _LATEST * 1e9) for name in ("oldest_ns", "newest_ns"))


def _texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _row(raw: list[Any]) -> Row:
    if tuple(map(type, raw)) == _ROW:
        row = Row(*raw)
        if not (path := row.path) or ("\0" not in path and not (_is_suspect(path) and _ODD(path))):
            return row
    raise BadInput("An entry of a preview has the wrong form", hint=_AGAIN)


def _is_suspect(path: str) -> bool:
    """Whether a path may have a part that is empty, `.` or `..`: a quick look that most names do not need more than."""
    return path[0] in "/." or path[-1] == "/" or "//" in path or "/." in path
