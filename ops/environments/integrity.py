"""Are the installed files those of their wheels? Every file of every distribution is held against its RECORD.

Changed, missing and extra files are patches (or debris of them): nobody can tell a model bug from a patch without this list.
All content is hashed: sizes miss edits of the same length, and mtimes and inodes lie (uv keeps both when it reinstalls from its
cache). A few processes hash (`hashing`) while this one looks for files that no RECORD names; benchmarks/integrity_speed.py holds
it against `openssl`.

Paths are text here: building a `Path` for each of 30,000 files costs more than hashing the small ones.
"""
# ruff: noqa: PTH113, PTH114, PTH118, PTH119, PTH120

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ops.environments import faulty_wheels, hash_worker, packages
from ops.environments.hashing import Hashing
from ops.environments.packages import Distribution, EnvironmentPackages
from ops.jobs.errors import OpsError

LARGE_LISTS = 256 * 1024  # bytes of RECORDs (some 2,500 files) from which on processes are started before the lists are read
LARGE_FILE = 1_000_000  # bytes
LONGER = 1_000_000_000  # bytes above what RECORD says: such a file is another one, and need not be read to its end (it may be sparse and endless)
STRAY_LIMIT = 4_000_000_000  # bytes of a stray that are hashed; a core dump may have hundreds of GB
HASHES = hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}  # wheels use sha256; what installers once wrote had md5 too
ROWS_LIMIT = 1_000_000  # lines of one RECORD: each costs 200 bytes of memory, and torch has 15,000
LISTED = 200  # findings of a kind in as_dict; the rest is a count

# Installers write these beside what the wheel has; where RECORD does not list one, it is no stray.
_INSTALLER_FILES = {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
# What venv, virtualenv and uv put into bin/ themselves (Python 3.14's venv has a `𝜋thon`).
_BIN = re.compile(r"(python|pypy|graalpy|𝜋thon)(\d+(\.\d+)?t?)?(-config)?|(de)?activate(\.(bat|csh|fish|nu|ps1|xsh))?|activate_this\.py|"
                  r"Activate\.ps1|pydoc\.bat")
_COMPILED = re.compile(r"(?P<module>.+?)\.(cpython|pypy|graalpy)[a-z0-9-]*(-pytest-[\w.]+)?(\.opt-\w+)?\.pyc(\.\d+)?")  # .N: half written
_NUMBA = (".nbi", ".nbc")  # numba's cache beside Python's: <file>-<line>.py311.nbi
_EDITABLE_BY_PATH = "easy-install.pth"  # setuptools before 64 names the folders of editable installs in it, pip listed it nowhere
_PLAIN = re.compile(r"(?!/)(?!.*(//|/\.|\.\.|\0))(?!\./).+[^/]", re.DOTALL)  # a path that needs no normalizing

Progress = Callable[[int, int], None]  # files done, files in all


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One file that is not as installed. `path` is relative to the environment; `package` is "" where no distribution owns it.

    `change`: "changed", "missing" or "extra". `sha256` is the file's content now (hex), None if missing or not hashed. `mtime`: when
    its content was last written (seconds since the epoch, as the file says), None if it is missing or was not opened.
    """

    package: str
    path: str
    change: str
    sha256: str | None = None
    size_bytes: int | None = None
    expected: str | None = None  # what RECORD says: "sha256=<urlsafe base64>"
    note: str = ""
    mtime: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"package": self.package, "path": shown(self.path), "change": self.change, "sha256": self.sha256, "size_bytes": self.size_bytes,
                "note": self.note, "mtime": self.mtime}


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """All that differs from what was installed. `problems`: what could not be checked, in words.

    `as_in_wheel`: differs from RECORD, but that is how its wheel has it (faulty_wheels.py), so it is as installed.
    """

    path: Path
    distributions: int
    checked_files: int
    checked_bytes: int
    unhashed: int  # listed without a hash, so only their presence is known
    changed: list[FileFinding] = field(default_factory=list)
    missing: list[FileFinding] = field(default_factory=list)
    extra: list[FileFinding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    as_in_wheel: list[FileFinding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing differs, and nothing was left unchecked."""
        return not (self.changed or self.missing or self.extra or self.problems)

    @property
    def findings(self) -> list[FileFinding]:
        return [*self.changed, *self.missing, *self.extra]

    def digest(self) -> str:
        """SHA-256 over all findings with their content: the same patches give the same digest."""
        total = hashlib.sha256()
        for finding in sorted(self.findings, key=lambda f: (f.path, f.change)):
            total.update(f"{finding.change}\0{finding.path}\0{finding.sha256}\n".encode(errors="surrogateescape"))
        for problem in sorted(self.problems):
            total.update(f"problem\0{problem}\n".encode(errors="surrogateescape"))
        return total.hexdigest()

    def as_dict(self, limit: int = LISTED) -> dict[str, Any]:
        """JSON; at most `limit` findings of a kind, `more` says how many are left out of each."""
        kinds = {"changed": self.changed, "missing": self.missing, "extra": self.extra}
        return {
            "path": str(self.path), "distributions": self.distributions, "files": self.checked_files, "bytes": self.checked_bytes,
            "unhashed": self.unhashed, "clean": self.clean, "digest": self.digest(),
            **{kind: [finding.as_dict() for finding in found[:limit]] for kind, found in kinds.items()},
            "more": {kind: max(0, len(found) - limit) for kind, found in kinds.items()},
            "problems": self.problems[:limit],
        }

    def as_plain(self) -> dict[str, Any]:
        """The command line's JSON: every finding, as its path relative to the environment. `problems`: what could not be checked, in words."""
        return {"distributions": self.distributions, "files": self.checked_files, "changed": [shown(found.path) for found in self.changed],
                "missing": [shown(found.path) for found in self.missing], "extra": [shown(found.path) for found in self.extra],
                "problems": list(self.problems)}


def shown(path: str) -> str:
    """The path as text that every page and database can hold: bytes that are no UTF-8, and NUL, are replaced."""
    return os.fsencode(path).decode(errors="replace").replace("\0", "\ufffd")


def newer_than(report: IntegrityReport, started_at: float) -> set[str]:
    """Paths of changed and extra files that were written after a process had started (seconds since the epoch): not what is running.

    By mtime, which an editor sets and a hard link does not; a file that was put there with an older mtime is not seen.
    """
    return {found.path for found in report.findings if found.mtime is not None and found.mtime > started_at}


@dataclass(slots=True)
class _Listed:
    """One row of a RECORD; `hashed` is what it says as (algorithm, expected).

    `others`: what further RECORDs say of the same file. Namespace packages and duplicates share files; the last one installed wins.
    """

    package: str
    hashed: tuple[str, str]
    size: int
    others: list[tuple[str, str]] | None = None


def check(env: Path | str, *, progress: Progress | None = None, only: Iterable[str] | None = None) -> IntegrityReport:
    """Holds the environment at `env` against its RECORDs. Raises BadInput if it is no environment.

    `only`: names of distributions to look at; extra files are then those inside of their own folders.
    `progress` is called in the calling thread, some 60 to 200 times; what it raises (a cancelled job) ends the check.
    """
    installed = packages.read(env)
    wanted = None if only is None else {str(canonicalize_name(name)) for name in only}
    everything = [*installed.distributions.values(), *installed.duplicates]
    chosen = [found for found in everything if wanted is None or found.name in wanted]
    root = os.path.realpath(installed.path)
    problems: list[str] = list(installed.problems) if wanted is None else []
    with Hashing() as hashing:
        if sum(_size_of_record(found) for found in chosen) > LARGE_LISTS:
            hashing.start()
        lists = _Lists(root, problems, wanted)
        result = _Result(root, lists.files, problems, progress)
        names = {found.name for found in chosen}
        for distribution in everything:
            large = lists.add(distribution)
            if wanted is None and large and hashing.started:  # they are hashed while the other lists are read
                result.queue(hashing, large)
        result.queue(hashing, [key for key, row in lists.files.items() if row.package in names])
        strays = []
        for stray in _strays(installed, root, lists, names if wanted is not None else None, problems):
            strays.append(stray)
            result.take(hashing, wait=False)
        result.take(hashing, wait=True)
        result.tell_unreadable()
        extra = _hash_strays(hashing, root, strays, len(result.keys))
    excused = _excused(installed.path, result)
    keys, order = result.keys, lambda finding: finding.path
    return IntegrityReport(
        path=installed.path, distributions=len(chosen), checked_files=len(keys), checked_bytes=result.bytes, unhashed=result.unhashed,
        changed=sorted(result.changed, key=order), missing=sorted(result.missing, key=order), extra=sorted(extra, key=order), problems=problems,
        as_in_wheel=sorted(excused, key=order))


def _excused(env: Path, result: _Result) -> list[FileFinding]:
    """Takes out of the result what is as its wheel has it, although RECORD says otherwise, and gives it."""
    if not result.changed:
        return []
    try:
        known = faulty_wheels.known(env)
    except OpsError as error:  # a manifest that somebody spoiled: what it excused shows then
        result.problems.append(f"{error.what}: {error.why}" if error.why else error.what)
        known = faulty_wheels.table()
    taken = [one for one in result.changed if known.get(faulty_wheels.named(one.path, one.expected)) == faulty_wheels.as_recorded(one.sha256)]
    result.changed = [one for one in result.changed if one not in taken]
    return taken


def rows(distribution: Distribution) -> list[tuple[str, str]]:
    """(path relative to site-packages, "algorithm=hash" or "") of each line of its RECORD; empty if there is none to read."""
    try:
        return [(row[0], row[1] if len(row) > 1 else "") for row in record_lines(distribution) if row and row[0]]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


# The lists


def record_lines(distribution: Distribution) -> list[list[str]]:
    """The lines of its RECORD, in cells. Raises OSError (also for one that is too long, or no regular file), UnicodeDecodeError, or csv.Error."""
    content = packages.content(distribution.record, packages.RECORD_LIMIT + 1)
    if len(content) > packages.RECORD_LIMIT:
        raise OSError(0, f"it has more than {packages.RECORD_LIMIT:,} bytes")
    if content.count(b"\n") + content.count(b"\r") > ROWS_LIMIT:
        raise OSError(0, f"it has more than {ROWS_LIMIT:,} lines")
    return list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))


def _size_of_record(distribution: Distribution) -> int:
    try:
        return os.stat(distribution.record).st_size  # noqa: PTH116
    except OSError:  # told when it is read
        return 0


class _Lists:
    """What all RECORDs say. `files`: path relative to the environment's real root -> row; `unlisted`: what distributions without one may own."""

    def __init__(self, root: str, problems: list[str], wanted: set[str] | None) -> None:
        self.root, self.problems, self.wanted = root, problems, wanted
        self.files: dict[str, _Listed] = {}
        self.unlisted: set[str] = set()
        self._inside = f"{root}{os.sep}"
        self._real: dict[str, str] = {}

    def add(self, distribution: Distribution) -> list[str]:
        """Takes a distribution's rows that lie in the environment; gives the large files among them. What cannot be read is told in `problems`."""
        told = self.wanted is None or distribution.name in self.wanted
        problems = self.problems if told else []
        lines = self._lines(distribution, problems)
        if lines is None:
            self.unlisted |= _top_levels(distribution)
            return []
        library = os.path.realpath(distribution.location.parent)
        prefix = library[len(self._inside):] + os.sep if library.startswith(self._inside) else None
        name, files, plain = distribution.name, self.files, _PLAIN.fullmatch
        outside: list[str] = []
        large: list[str] = []
        for line in lines:
            if not line or not line[0]:
                continue
            path = line[0]
            key = prefix + path if prefix is not None and plain(path) else self._key(library, path)
            if key is None:
                outside.append(path)
                continue
            algorithm, _, expected = (line[1] if len(line) > 1 else "").partition("=")
            hashed = (algorithm if algorithm == "sha256" else algorithm.lower(), expected.rstrip("="))
            size = int(line[2]) if len(line) > 2 and line[2].isdecimal() and len(line[2]) < 16 else 0
            known = files.get(key)
            if known is None:
                files[key] = _Listed(name, hashed, size)
                if size > LARGE_FILE:
                    large.append(key)
                continue
            known.others = [*(known.others or []), hashed]
            if self.wanted is not None and told:
                known.package = name
        for path in outside[:5]:
            problems.append(f"The RECORD of `{name}` names a file outside of the environment: `{shown(path[:200])}`")
        if len(outside) > 5:
            problems.append(f"The RECORD of `{name}` names {len(outside) - 5:,} more files outside of the environment")
        return large

    def _lines(self, distribution: Distribution, problems: list[str]) -> list[list[str]] | None:
        try:
            return record_lines(distribution)
        except FileNotFoundError:
            problems.append(f"`{distribution.name}` {distribution.version} has no RECORD: its files cannot be checked")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            problems.append(f"The RECORD of `{distribution.name}` cannot be read: {why}; its files cannot be checked")
        return None

    def _key(self, library: str, path: str) -> str | None:
        """The path relative to the root, or None where it lies outside. `lib64` may be a link to `lib`: folders of the way up are resolved."""
        if "\0" in path:
            return None
        folder, name = os.path.split(os.path.normpath(os.path.join(library, path)))
        if folder not in self._real:
            self._real[folder] = _resolved(self.root, folder)
        absolute = os.path.join(self._real[folder], name)
        return absolute[len(self._inside):] if absolute.startswith(self._inside) and name else None


def _resolved(root: str, folder: str) -> str:
    """The folder, with `lib64` as the `lib` that it links to; no other link is followed, so a linked folder shows as what it is."""
    lib64 = f"{root}{os.sep}lib64"
    if (folder == lib64 or folder.startswith(lib64 + os.sep)) and os.path.islink(lib64):
        target = os.path.realpath(lib64)
        if target.startswith(root + os.sep):
            return target + folder[len(lib64):]
    return folder


def _top_levels(distribution: Distribution) -> set[str]:
    """What a distribution without RECORD owns at the root of site-packages, and scripts ("bin/NAME"), as far as it tells."""
    names = _words(distribution.location / "top_level.txt") or [distribution.name.replace("-", "_")]
    lines = _text(distribution.location / "entry_points.txt").splitlines()
    scripts = {f"bin/{line.partition('=')[0].strip()}" for line in lines if "=" in line}
    return {*names, *(f"{name}.py" for name in names), distribution.location.name, *scripts}


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """A small optional file; "" where there is none to read."""
    try:
        return packages.content(path, 1_000_000).decode(errors="replace")
    except OSError:
        return ""


# Hashing


class _Result:
    """Collects what the listed files turned out to be."""

    def __init__(self, root: str, files: dict[str, _Listed], problems: list[str], progress: Progress | None) -> None:
        self.root, self.files, self.problems, self.progress = root, files, problems, progress
        self.keys: list[str] = []  # in the order in which they were queued
        self._queued: set[str] = set()
        self.changed: list[FileFinding] = []
        self.missing: list[FileFinding] = []
        self.unhashed = self.bytes = self.done = 0
        self._unreadable: dict[tuple[str, str], list[str]] = {}

    def queue(self, hashing: Hashing, keys: list[str]) -> None:
        """Queues those that are not yet."""
        inside = f"{self.root}{os.sep}"
        rows, sizes = [], []
        new = [key for key in keys if key not in self._queued] if self._queued else keys
        for key in new:
            row = self.files[key]
            algorithm, expected = row.hashed
            if expected and algorithm not in HASHES:
                self.problems.append(f"`{shown(key)}` is listed with an unknown hash, `{algorithm[:20]}`")
                expected = ""
            if not expected:
                self.unhashed += 1
            rows.append((inside + key, algorithm, expected, row.size + LONGER if row.size else sys.maxsize))
            sizes.append(row.size if expected else 0)
        hashing.add(rows, sizes)
        self._queued.update(new)
        self.keys += new

    def take(self, hashing: Hashing, *, wait: bool) -> None:
        """Takes the answers that are there, with `wait` all of them."""
        for indexes, answer in hashing.answers(wait=wait):
            self.bytes += answer["bytes"]
            self.done += len(indexes)
            for place, what, sha256, size, mtime, why in answer["differ"]:
                self._add(self.keys[indexes[place]], what, sha256, size, mtime, why)
            if self.progress:
                self.progress(self.done, len(self.keys))

    def _add(self, key: str, what: str, sha256: str | None, size: int | None, mtime: float | None, why: str) -> None:
        row = self.files[key]
        algorithm, expected = row.hashed
        told = f"{algorithm}={expected}" if expected else None
        if what == "unreadable":
            self._unreadable.setdefault((row.package, why), []).append(key)
        elif what == "missing":
            # Python makes compiled files again, and installers list those that they made; virtualenv lists the folders, and some that never were
            if expected or not (key.endswith((".pyc", f"{os.sep}__pycache__")) or f"{os.sep}__pycache__{os.sep}" in key):
                self.missing.append(FileFinding(row.package, key, "missing", expected=told))
        elif not (sha256 and row.others and self._fits_another(key, row.others)):
            self.changed.append(FileFinding(row.package, key, "changed", sha256, size, told, why, mtime))

    def _fits_another(self, key: str, others: list[tuple[str, str]]) -> bool:
        """Whether a file that several distributions list is as one of the others has it."""
        path = os.path.join(self.root, key)
        try:
            return any(expected and algorithm in HASHES and hash_worker.as_recorded(hash_worker.hash_file(path, algorithm)[0]) == expected
                       for algorithm, expected in others)
        except (OSError, ValueError):  # gone or replaced since it was hashed; an algorithm that this host forbids
            return False

    def tell_unreadable(self) -> None:
        for (package, why), keys in self._unreadable.items():
            more = f" and {len(keys) - 1:,} more files of `{package}` cannot" if len(keys) > 1 else f" of `{package}` cannot"
            self.problems.append(f"`{shown(min(keys))}`{more} be read: {why}")


def hash_file(path: str | Path, algorithm: str = "sha256") -> tuple[bytes, int]:
    """Digest and size of a regular file (links are followed). Raises OSError, also for what is no regular file; never waits on a FIFO."""
    digest, size, _ = hash_worker.hash_file(path, algorithm)
    return digest, size


# Files that no RECORD names


@dataclass(frozen=True, slots=True)
class _Stray:
    package: str
    key: str
    note: str
    is_folder_link: bool


def _strays(installed: EnvironmentPackages, root: str, lists: _Lists, names: set[str] | None, problems: list[str]) -> Iterator[_Stray | None]:
    """Strays; with None after each folder, so that the caller can look at something else meanwhile."""
    listed = lists.files
    owners = _Owners(listed)
    inside_root = len(f"{root}{os.sep}")
    metadata_of = {os.path.realpath(found.location): found.name for found in (*installed.distributions.values(), *installed.duplicates)}
    editable_by_path = _editable_by_path(installed)
    for library in (os.path.realpath(found) for found in installed.site_packages):
        if not library.startswith(root + os.sep):
            problems.append(f"`{library}` lies outside of the environment: strays in it were not looked for")
            continue
        prefix = library[inside_root:] + os.sep
        for folder, entries in _walk(library, problems, lists.unlisted):
            inside = folder[inside_root:] + os.sep
            for entry in entries:
                key = inside + entry.name
                if key in listed:
                    continue
                at_root = inside == prefix
                if at_root and (entry.name in lists.unlisted or entry.name in editable_by_path):
                    continue
                if _is_expected(folder, entry, inside, listed, metadata_of, at_root, venv=installed.is_venv):
                    continue
                package = "" if at_root else metadata_of.get(folder) or owners.of(key)
                if names is not None and package not in names:
                    continue
                is_link = entry.is_symlink() and _is_folder(entry)
                yield _Stray(package, key, _note(key, is_link), is_link)
            yield None
    if names is None and installed.is_venv:
        yield from _stray_scripts(root, lists, editable_by_path, problems)


def _stray_scripts(root: str, lists: _Lists, editable_by_path: set[str], problems: list[str]) -> Iterator[_Stray]:
    try:
        entries = sorted(os.scandir(os.path.join(root, "bin")), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"`bin` cannot be read: {error.strerror or error}")
        return
    for entry in entries:
        key = f"bin{os.sep}{entry.name}"
        if key in lists.files or key in lists.unlisted or _BIN.fullmatch(entry.name) or entry.is_dir(follow_symlinks=False):
            continue
        if editable_by_path and b"EASY-INSTALL-" in _head(entry.path):
            continue
        yield _Stray("", key, _note(key, is_folder_link=False), entry.is_symlink() and _is_folder(entry))


def _head(path: str) -> bytes:
    try:
        return packages.content(Path(path), 2000)
    except OSError:
        return b""


def _walk(library: str, problems: list[str], unlisted: set[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Every folder below `library` with what in it is no folder; a link to a folder is given, not followed."""
    pending = [library]
    while pending:
        folder = pending.pop()
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if folder != library or entry.name not in unlisted:
                            pending.append(entry.path)
                    else:
                        found.append(entry)
        except FileNotFoundError:  # gone in the meantime: what is listed in there shows as missing
            continue
        except OSError as error:
            problems.append(f"The folder `{shown(folder)}` cannot be read: {error.strerror or error}")
            continue
        yield folder, found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def _is_expected(folder: str, entry: os.DirEntry[str], inside: str, listed: dict[str, _Listed], metadata_of: dict[str, str], at_root: bool, *,
                 venv: bool) -> bool:
    """Whether a file that no RECORD names belongs there even so."""
    name = entry.name
    if folder in metadata_of:
        return name in _INSTALLER_FILES
    if folder.endswith(f"{os.sep}__pycache__"):
        # the source may itself be a stray: it is reported then, its compiled form need not be
        above, above_key = os.path.dirname(folder), os.path.dirname(inside[:-1])
        return any(os.path.join(above_key, source) in listed or os.path.isfile(os.path.join(above, source)) for source in _sources(name))
    if at_root and name in ("_virtualenv.pth", "_virtualenv.py"):  # virtualenv, and uv until 0.9, put them there
        return _text(Path(folder, "_virtualenv.pth")).strip() == "import _virtualenv"
    return at_root and not venv and name == "README.txt"  # Python's own installation has one


def _sources(name: str) -> list[str]:
    """The sources that a compiled file may come from; none if it is no compiled file."""
    if compiled := _COMPILED.fullmatch(name):
        return [f"{compiled['module']}.py"]
    if name.endswith(_NUMBA):  # <file>.<function>-<line>.py311.nbi, and a file or function may hold dots
        parts = name.split(".")
        return [".".join(parts[:count]) + ".py" for count in range(1, len(parts))]
    return []


def _editable_by_path(installed: EnvironmentPackages) -> set[str]:
    """Files of editable installs that setuptools before 64 made: an .egg-link each, and one easy-install.pth with exactly their folders."""
    found: set[str] = set()
    for library in installed.site_packages:
        links = {path.name: _text(path).split("\n", 1)[0].strip() for path in library.glob("*.egg-link")}
        lines = [line.strip() for line in _text(library / _EDITABLE_BY_PATH).splitlines() if line.strip()]
        if links and all(line in links.values() for line in lines):
            found |= {*links, _EDITABLE_BY_PATH}
    return found


class _Owners:
    """Which distribution a stray lies in: the one with files in its folder, else in the nearest folder above. A shared folder: the first one."""

    def __init__(self, listed: dict[str, _Listed]) -> None:
        self._listed = listed
        self._folders: dict[str, str] | None = None

    def of(self, key: str) -> str:
        if self._folders is None:  # only where there is a stray: 45,000 paths take 40 ms
            self._folders = {}
            for path, row in self._listed.items():
                self._folders.setdefault(os.path.dirname(path), row.package)
        folder = os.path.dirname(key)
        while folder and os.path.basename(folder) != "site-packages":
            if folder in self._folders:
                return self._folders[folder]
            folder = os.path.dirname(folder)
        return ""


def _note(key: str, is_folder_link: bool) -> str:
    name = os.path.basename(key)
    if is_folder_link:
        return "a link to a folder"
    if key.endswith(".pth"):
        return "a .pth file: Python runs or follows it at every start"
    if name.endswith(".pyc"):
        return "compiled code without its source"
    if name in ("sitecustomize.py", "usercustomize.py"):
        return "Python imports it at every start"
    return ""


def _hash_strays(hashing: Hashing, root: str, strays: list[_Stray | None], before: int) -> list[FileFinding]:
    """Findings with the content of each stray: `hash_files` tells it where the expected hash is none that could fit. `before`: rows added so far."""
    files = [stray for stray in strays if stray is not None]
    found = []
    hashed = [stray for stray in files if not stray.is_folder_link]
    paths = [os.path.join(root, stray.key) for stray in hashed]
    hashing.add([(path, "sha256", "-", STRAY_LIMIT) for path in paths], [_length(path) for path in paths])
    for indexes, answer in hashing.answers():
        for place, what, sha256, size, mtime, why in answer["differ"]:
            stray = hashed[indexes[place] - before]
            if what != "missing":  # gone in the meantime
                found.append(FileFinding(stray.package, stray.key, "extra", sha256, size, note=stray.note or why, mtime=mtime))
    return found + [FileFinding(stray.package, stray.key, "extra", note=stray.note) for stray in files if stray.is_folder_link]


def _length(path: str) -> int:
    try:
        state = os.stat(path)  # noqa: PTH116
        return min(state.st_size, STRAY_LIMIT) if stat.S_ISREG(state.st_mode) else 0
    except OSError:  # hashing it will tell
        return 0
