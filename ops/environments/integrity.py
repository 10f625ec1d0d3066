"""Are the installed files those of their wheels? Every file of every distribution is held against its RECORD.

Changed, missing and extra files are patches (or debris of them): nobody can tell a model bug from a patch without this list.
All content is hashed: sizes miss edits of the same length, and mtimes and inodes lie (uv keeps both when it reinstalls from its
cache). Measured with a warm page cache: 2 threads and 64 chunks hash 1.16 GB/s on 2 cores, a task per file half of that.

Paths are text here: building a `Path` for each of 30,000 files costs more than hashing the small ones.
"""
# ruff: noqa: PTH113, PTH118, PTH119, PTH120

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from ops.environments import packages
from ops.environments.packages import Distribution, EnvironmentPackages

CHUNKS = 64
THREADS = 2
BLOCK = 1024 * 1024
RECORD_LIMIT = 64 * 1024 * 1024  # bytes; torch's RECORD has 1.5 MB
HASHES = {"sha256": 32, "sha384": 48, "sha512": 64}
LISTED = 200  # findings of a kind in as_dict; the rest is a count

# Installers write these, and rewrite them when they touch the package; they hold no code.
_INSTALLER_FILES = {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}
# What venv, virtualenv and uv put into bin/ themselves.
_BIN_PREFIXES = ("python", "pypy", "activate", "Activate.ps1", "deactivate", "pydoc.bat")
_CACHED = (".pyc", ".nbi", ".nbc")  # compiled from a source beside __pycache__: by Python, by numba

Progress = Callable[[int, int], None]  # files done, files in all


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One file that is not as installed. `path` is relative to the environment; `package` is "" where no distribution owns it.

    `change`: "changed", "missing" or "extra". `sha256` is the file's content now (hex), None if missing or not hashed.
    """

    package: str
    path: str
    change: str
    sha256: str | None = None
    size_bytes: int | None = None
    expected: str | None = None  # what RECORD says: "sha256=<urlsafe base64>"
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"package": self.package, "path": self.path, "change": self.change, "sha256": self.sha256, "size_bytes": self.size_bytes,
                "note": self.note}


@dataclass(frozen=True, slots=True)
class IntegrityReport:
    """All that differs from what was installed. `problems`: what could not be checked, in words."""

    path: Path
    distributions: int
    checked_files: int
    checked_bytes: int
    unhashed: int  # listed without a hash, so only their presence is known
    changed: list[FileFinding] = field(default_factory=list)
    missing: list[FileFinding] = field(default_factory=list)
    extra: list[FileFinding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

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
            total.update(f"{finding.change}\0{finding.path}\0{finding.sha256}\n".encode())
        for problem in sorted(self.problems):
            total.update(f"problem\0{problem}\n".encode())
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


@dataclass(slots=True)
class _Listed:
    """One row of a RECORD. `key` is the path relative to the environment's real root.

    `others`: what further RECORDs say of the same file. Namespace packages and duplicates share files; the last one installed wins.
    """

    package: str
    key: str
    absolute: str
    algorithm: str
    expected: str
    size: int
    others: list[tuple[str, str]] = field(default_factory=list)


def check(env: Path | str, *, progress: Progress | None = None, only: Iterable[str] | None = None) -> IntegrityReport:
    """Holds the environment at `env` against its RECORDs. Raises BadInput if it is no environment.

    `only`: names of distributions to look at; extra files are then those inside of their own top-level folders.
    `progress` is called in the calling thread, about 64 times; what it raises (a cancelled job) ends the check.
    """
    installed = packages.read(env)
    wanted = None if only is None else {canonicalize_name(name) for name in only}
    root = Path(os.path.realpath(installed.path))
    problems: list[str] = list(installed.problems) if wanted is None else []
    listed: dict[str, _Listed] = {}
    unlisted_tops: set[str] = set()
    chosen = [found for found in (*installed.distributions.values(), *installed.duplicates) if wanted is None or found.name in wanted]
    for distribution in (*installed.distributions.values(), *installed.duplicates):
        listing = _read_record(distribution, root, problems if wanted is None or distribution.name in wanted else [])
        if listing is None:
            unlisted_tops |= _top_levels(distribution)
            continue
        for row in listing:
            first = listed.setdefault(row.key, row)
            if first is not row:
                first.others.append((row.algorithm, row.expected))
                if wanted is not None and distribution.name in wanted:
                    first.package = distribution.name
    names = {found.name for found in chosen}
    rows_to_check = [row for row in listed.values() if row.package in names]
    changed, missing, unhashed, size = _hash_all(rows_to_check, progress, problems)
    extra = list(_extra(installed, root, listed, unlisted_tops, names if wanted is not None else None))
    order = lambda finding: finding.path  # noqa: E731
    return IntegrityReport(
        path=installed.path, distributions=len(chosen), checked_files=len(rows_to_check), checked_bytes=size, unhashed=unhashed,
        changed=sorted(changed, key=order), missing=sorted(missing, key=order), extra=sorted(extra, key=order), problems=problems)


def rows(distribution: Distribution) -> list[tuple[str, str]]:
    """(path relative to site-packages, "algorithm=hash" or "") of each line of its RECORD; empty if there is none to read."""
    try:
        return [(row[0], row[1] if len(row) > 1 else "") for row in _csv(distribution) if row and row[0]]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _csv(distribution: Distribution) -> list[list[str]]:
    return list(csv.reader(io.StringIO(distribution.record.read_bytes().decode("utf-8"), newline="")))


def _read_record(distribution: Distribution, root: Path, problems: list[str]) -> list[_Listed] | None:
    """The rows that lie in the environment; None if there is no RECORD to read (told in `problems`)."""
    try:
        state = distribution.record.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > RECORD_LIMIT:
            problems.append(f"The RECORD of `{distribution.name}` is no file of a usual size: its files cannot be checked")
            return None
        lines = _csv(distribution)
    except FileNotFoundError:
        problems.append(f"`{distribution.name}` {distribution.version} has no RECORD: its files cannot be checked")
        return None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(f"The RECORD of `{distribution.name}` cannot be read: {error}")
        return None
    library = os.path.realpath(distribution.location.parent)
    found = []
    inside = f"{root}{os.sep}"
    for row in lines:
        if not row or not row[0]:
            continue
        absolute = os.path.normpath(os.path.join(library, row[0]))
        if not absolute.startswith(inside) or "\0" in row[0]:
            problems.append(f"The RECORD of `{distribution.name}` names a file outside of the environment: `{row[0][:200]}`")
            continue
        algorithm, _, expected = (row[1] if len(row) > 1 else "").partition("=")
        size = int(row[2]) if len(row) > 2 and row[2].isdecimal() else 0
        found.append(_Listed(distribution.name, absolute[len(inside):], absolute, algorithm.lower(), expected, size))
    return found


def _top_levels(distribution: Distribution) -> set[str]:
    """What a distribution without RECORD owns at the root of site-packages, and scripts ("bin/NAME"), as far as it tells."""
    try:
        names = (distribution.location / "top_level.txt").read_text(errors="replace").split()
    except OSError:
        names = [distribution.name.replace("-", "_")]
    try:
        lines = (distribution.location / "entry_points.txt").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    scripts = {f"bin/{line.partition('=')[0].strip()}" for line in lines if "=" in line}
    return {*names, *(f"{name}.py" for name in names), distribution.location.name, *scripts}


# Hashing


def _hash_all(rows: list[_Listed], progress: Progress | None,
              problems: list[str]) -> tuple[list[FileFinding], list[FileFinding], int, int]:
    changed: list[FileFinding] = []
    missing: list[FileFinding] = []
    unhashed = done_files = done_bytes = 0
    with ThreadPoolExecutor(THREADS, thread_name_prefix="integrity") as pool:
        futures = [pool.submit(_hash_chunk, chunk) for chunk in _chunks(rows)]
        try:
            for future in as_completed(futures):
                result = future.result()
                changed += result.changed
                missing += result.missing
                problems += result.problems
                unhashed += result.unhashed
                done_files += result.files
                done_bytes += result.bytes
                if progress:
                    progress(done_files, len(rows))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return changed, missing, unhashed, done_bytes


def _chunks(rows: list[_Listed]) -> Iterator[list[_Listed]]:
    """At most 64 lists of about the same work, the largest files first so that the last chunk is not one huge library."""
    cost = lambda row: row.size + 20_000  # noqa: E731  # opening a file costs about as much as hashing 20 kB
    target = sum(map(cost, rows)) / CHUNKS
    chunk: list[_Listed] = []
    work = 0.0
    for row in sorted(rows, key=lambda row: (-row.size if row.size > BLOCK else 0, row.absolute)):
        chunk.append(row)
        work += cost(row)
        if work >= target:
            yield chunk
            chunk, work = [], 0.0
    if chunk:
        yield chunk


@dataclass(slots=True)
class _Hashed:
    files: int = 0
    bytes: int = 0
    unhashed: int = 0
    changed: list[FileFinding] = field(default_factory=list)
    missing: list[FileFinding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _hash_chunk(rows: list[_Listed]) -> _Hashed:
    result = _Hashed()
    buffer = bytearray(BLOCK)
    for row in rows:
        _hash_row(row, result, buffer)
    result.files = len(rows)
    return result


def _hash_row(row: _Listed, result: _Hashed, buffer: bytearray) -> None:
    told = f"{row.algorithm}={row.expected}" if row.algorithm else None
    compiled = os.sep + "__pycache__" + os.sep in row.key
    folder, name = os.path.split(row.key)
    metadata = name in _INSTALLER_FILES and folder.endswith(".dist-info")
    try:
        if not row.expected or metadata:
            result.unhashed += 1
            if not os.path.lexists(row.absolute) and not compiled and not metadata:
                result.missing.append(FileFinding(row.package, row.key, "missing"))
            return
        if row.algorithm not in HASHES:
            result.unhashed += 1
            result.problems.append(f"`{row.key}` is listed with an unknown hash, `{row.algorithm[:20]}`")
            return
        digest, size = hash_file(row.absolute, row.algorithm, buffer)
    except FileNotFoundError:
        if not compiled:
            result.missing.append(FileFinding(row.package, row.key, "missing", expected=told))
        return
    except OSError as error:
        result.changed.append(FileFinding(row.package, row.key, "changed", expected=told, note=error.strerror or str(error)))
        return
    result.bytes += size
    if _text(digest) != row.expected.rstrip("=") and not any(
            expected and algorithm in HASHES and _text(hash_file(row.absolute, algorithm, buffer)[0]) == expected.rstrip("=")
            for algorithm, expected in row.others):
        content = digest if row.algorithm == "sha256" else hash_file(row.absolute, "sha256", buffer)[0]
        result.changed.append(FileFinding(row.package, row.key, "changed", content.hex(), size, told))


def _text(digest: bytes) -> str:
    """As RECORD writes it."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def hash_file(path: str | Path, algorithm: str = "sha256", buffer: bytearray | None = None) -> tuple[bytes, int]:
    """Digest and size of a regular file (links are followed). Raises OSError, also for what is no regular file; never blocks on a FIFO."""
    buffer = buffer if buffer is not None else bytearray(BLOCK)
    view = memoryview(buffer)
    total = hashlib.new(algorithm)
    size = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "is no regular file", str(path))
        while count := os.readv(descriptor, [view]):
            total.update(view[:count])
            size += count
    finally:
        os.close(descriptor)
    return total.digest(), size


# Files that no RECORD names


def _extra(installed: EnvironmentPackages, root: Path, listed: dict[str, _Listed], unlisted_tops: set[str],
           names: set[str] | None) -> Iterator[FileFinding]:
    owners = _folder_owners(listed)
    inside_root = len(f"{root}{os.sep}")
    metadata_of = {os.path.realpath(found.location): found.name for found in (*installed.distributions.values(), *installed.duplicates)}
    for library in (os.path.realpath(found) for found in installed.site_packages):
        for path, is_folder_link in _walk(library):
            key = path[inside_root:]
            if key in listed:
                continue
            inside = path[len(library) + 1:]
            if inside.split(os.sep, 1)[0] in unlisted_tops or _is_expected(path, key, listed, metadata_of, library):
                continue
            package = metadata_of.get(os.path.dirname(path)) or owners.get(os.path.dirname(key)) or _nearest(owners, key)
            if names is not None and package not in names:
                continue
            yield _extra_finding(package or "", path, key, is_folder_link)
    if names is None and (root / "bin").is_dir():
        for entry in sorted(os.scandir(root / "bin"), key=lambda entry: entry.name):
            key = os.path.join("bin", entry.name)
            known = key in listed or key in unlisted_tops or entry.name.startswith(_BIN_PREFIXES)
            if not known and not entry.is_dir(follow_symlinks=False):
                yield _extra_finding("", entry.path, key, False)


def _walk(library: str) -> Iterator[tuple[str, bool]]:
    """Every path below `library` that is no folder, in order; a link to a folder is given, not followed."""
    pending = [library]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # gone or closed in the meantime: what is listed in there shows as missing
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            else:
                yield entry.path, entry.is_symlink() and entry.is_dir()


def _is_expected(path: str, key: str, listed: dict[str, _Listed], metadata_of: dict[str, str], library: str) -> bool:
    folder, name = os.path.split(path)
    if folder in metadata_of:
        return name in _INSTALLER_FILES
    if os.path.basename(folder) == "__pycache__":
        source = os.path.join(os.path.dirname(folder), name.split(".", 1)[0] + ".py")
        if not name.endswith(_CACHED):
            return ".pyc." in name  # Python's own temporary name while it writes one
        # the source may itself be extra: it is reported then, its compiled form need not be
        return os.path.join(os.path.dirname(os.path.dirname(key)), os.path.basename(source)) in listed or os.path.isfile(source)
    if folder == library and name in ("_virtualenv.pth", "_virtualenv.py"):  # virtualenv, and uv until 0.9, put them there
        try:
            return Path(library, "_virtualenv.pth").read_text(errors="replace").strip() == "import _virtualenv"
        except OSError:
            return False
    return False


def _folder_owners(listed: dict[str, _Listed]) -> dict[str, str]:
    """Folder to the distribution that has files in it; a folder shared by several (a namespace) belongs to the first."""
    owners: dict[str, str] = {}
    for row in listed.values():
        owners.setdefault(os.path.dirname(row.key), row.package)
    return owners


def _nearest(owners: dict[str, str], key: str) -> str | None:
    folder = os.path.dirname(key)
    while folder and os.path.basename(folder) != "site-packages":
        if folder in owners:
            return owners[folder]
        folder = os.path.dirname(folder)
    return None


def _extra_finding(package: str, path: str, key: str, is_folder_link: bool) -> FileFinding:
    note = ""
    if is_folder_link:
        note = "a link to a folder"
    elif key.endswith(".pth"):
        note = "a .pth file: Python runs or follows it at every start"
    elif os.path.basename(os.path.dirname(key)) == "__pycache__":
        note = "compiled code without its source"
    elif os.path.basename(key) in ("sitecustomize.py", "usercustomize.py"):
        note = "Python imports it at every start"
    if os.path.dirname(key).endswith("site-packages") and package:
        package = ""  # at the root of site-packages a neighbour is no owner
    try:
        digest, size = (None, None) if is_folder_link else hash_file(path)
    except OSError as error:
        return FileFinding(package, key, "extra", note=note or error.strerror or str(error))
    return FileFinding(package, key, "extra", digest.hex() if digest else None, size, note=note)
