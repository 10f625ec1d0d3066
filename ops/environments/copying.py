"""Installed packages, taken over from one environment into another without their wheels: file by file, as their RECORDs list them.

What an installer does at the new place is done here too: the first line of scripts names the new interpreter, paths into the old
environment (of editable installs) name the new one, and RECORD gets the hashes of what was rewritten. Everything else is copied as it is,
hashed on its way: a file that is not as its RECORD says is not taken over. Compiled code stays behind; Python makes it anew.
"""
# ruff: noqa: PTH112, PTH113, PTH118, PTH119, PTH120  paths are text here: a `Path` for each of 30,000 files costs more than copying the small ones

from __future__ import annotations

import base64
import csv
import fcntl
import hashlib
import io
import os
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from ops.environments import faulty_wheels, integrity, packages
from ops.environments.packages import Distribution, EnvironmentPackages
from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord

THREADS = 2
CHUNKS = 64
BLOCK = 1024 * 1024
FICLONE = 0x40049409  # ioctl: share the blocks of another file (Btrfs, XFS); an edit of either copies first, so nothing can leak
SHEBANG_LIMIT = 127  # bytes of a script's first line that every kernel reads
REWRITTEN_LIMIT = 1024 * 1024  # bytes; files that name paths are small
_METADATA = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})


@dataclass(frozen=True, slots=True)
class Copied:
    """How much was taken over."""

    distributions: int
    files: int
    size_bytes: int


@dataclass(slots=True)
class _File:
    """One file to copy. `key`: its path relative to the environment; `expected`: hashes of which it must have one ("algorithm=text")."""

    key: str
    package: str
    size: int
    expected: list[str] = field(default_factory=list)
    digest: str = ""  # of the copy, as RECORD writes it, and its size: known once it was copied
    length: int = 0
    rewritten: bool = False


class _Place:
    """The old environment and the new one, and how paths of the one become paths of the other."""

    def __init__(self, source: Path, target: Path, record: ServiceRecord | None) -> None:
        self.root = os.path.realpath(source)
        self.target = os.path.realpath(target)
        told = {str(source), self.root}
        if record is not None and record.environment and os.path.realpath(record.environment) == self.root:
            told.add(record.environment.rstrip("/"))
        self.names = sorted((name.encode() for name in told), key=len, reverse=True)  # the longest first: one may begin with another

    def interpreter(self, told: str) -> str | None:
        """The new environment's interpreter for one of the old one's; None for any other program."""
        folder, name = os.path.split(told)
        if os.path.basename(folder) != "bin" or not name.startswith(("python", "pypy")) or os.path.realpath(os.path.dirname(folder)) != self.root:
            return None
        return os.path.join(self.target, "bin", name)

    def require_inside(self, folder: str) -> None:
        """Raises OpsError where a link that was copied leads the folder (relative to the new environment) out of it: nothing is written there."""
        real = os.path.realpath(os.path.join(self.target, folder))
        if real != self.target and not real.startswith(self.target + os.sep):
            raise OpsError(f"`{folder}` lies outside of the environment `{self.target}`", why=f"A link leads to `{real}`",
                           hint="Choose the full clean redeploy")

    def rewrite(self, key: str, content: bytes) -> bytes:
        """The content for the new place."""
        folder, name = os.path.split(key)
        if folder == "bin":
            return self._script(content)
        if name.endswith(".pth") or name == "direct_url.json" or name.startswith("__editable__"):
            return self._paths(content)
        return content

    def may_change(self, key: str) -> bool:
        folder, name = os.path.split(key)
        return folder == "bin" or name.endswith(".pth") or name == "direct_url.json" or name.startswith("__editable__")

    def _script(self, content: bytes) -> bytes:
        head, body = _split_script(content)
        if head is None:
            return content
        new = self.interpreter(head)
        return content if new is None else shebang(new).encode() + body

    def _paths(self, content: bytes) -> bytes:
        new, done = self.target.encode(), []
        rest = content
        while rest:
            found = min(((rest.find(name), -len(name), name) for name in self.names if name in rest), default=None)
            if found is None:
                break
            at, name = found[0], found[2]
            after = rest[at + len(name):]
            ends = not after or after[:1] in b"/\n\r\"' \t:;,"
            done.append(rest[:at] + (new if ends else name))
            rest = after
        return b"".join(done) + rest


def shebang(interpreter: str) -> str:
    """The first line (or lines) of a script for that interpreter, with the newline: a kernel cannot take a path with a space or a long one, so
    such a script is one for sh too, as pip and uv write it."""
    if len(interpreter.encode()) + 3 <= SHEBANG_LIMIT and " " not in interpreter:
        return f"#!{interpreter}\n"
    return f"#!/bin/sh\n'''exec' {shlex.quote(interpreter)} \"$0\" \"$@\"\n' '''\n"


def _split_script(content: bytes) -> tuple[str | None, bytes]:
    """The interpreter that a script names, and what follows its head; (None, ...) for what is no script of one of the two forms."""
    if not content.startswith(b"#!"):
        return None, content
    first, _, rest = content.partition(b"\n")
    try:
        if first == b"#!/bin/sh" and rest.startswith(b"'''exec' "):
            second, _, after = rest.partition(b"\n")
            words = shlex.split(second.decode().removeprefix("'''exec' "))
            third, _, body = after.partition(b"\n")
            return (words[0], body) if words and third == b"' '''" else (None, content)
        return first[2:].decode().strip(), rest
    except (UnicodeDecodeError, ValueError):
        return None, content


def foreign_interpreter(env: Path, script: str) -> str | None:
    """The Python of another environment that `bin/<script>` starts; None where it starts its own, or is no script that names a Python.

    So it is in a folder that was copied or renamed: scripts name the interpreter by its whole path, and no RECORD tells.
    """
    try:
        head, _ = _split_script(packages.content(env / "bin" / script, REWRITTEN_LIMIT))
    except OSError:  # not there: told where it is needed
        return None
    if head is None or not os.path.basename(head).startswith(("python", "pypy")):
        return None
    return None if os.path.realpath(os.path.dirname(head)) == os.path.realpath(env / "bin") else head


def copy(context: Context, source: Path, target: Path, names: Collection[str], *, names_of: ServiceRecord | None = None) -> Copied:
    """Copies the distributions `names` from the environment `source` into the new, empty environment `target`.

    Raises OpsError for a file that is not as its RECORD says (nothing that was edited is taken over), for one that a link leads out of the
    environment, for a distribution without a readable RECORD, and for environments of two different Pythons. Raises OSError where the disk refuses.
    """
    installed = packages.read(source)
    place = _Place(source, target, names_of)
    wanted = [_wanted(installed, name) for name in names]
    old, new = (os.path.relpath(os.path.realpath(packages.site_packages(env)[0]), os.path.realpath(env)) for env in (source, target))
    if old != new:
        raise OpsError("The two environments have different Pythons", why=f"`{old}` and `{new}`", hint="Choose the full clean redeploy")
    files: dict[str, _File] = {}
    faulty = faulty_wheels.known(source)
    tables = [(distribution, _table(distribution, place, files, faulty)) for distribution in wanted]
    for distribution in wanted:
        _editable(distribution, place)
    for folder in sorted({os.path.dirname(key) for key in files}):
        place.require_inside(folder)
        os.makedirs(os.path.join(place.target, folder), exist_ok=True)  # noqa: PTH103
    size = _copy_all(context, place, list(files.values()))
    for distribution, table in tables:
        _write_record(distribution, place, table, files)
    return Copied(len(wanted), len(files), size)


def _wanted(installed: EnvironmentPackages, name: str) -> Distribution:
    found = installed.distributions.get(canonicalize_name(name))
    if found is None:
        raise OpsError(f"`{name}` is not in the release in use any more", hint="Make a new plan")
    if any(other.name == found.name for other in installed.duplicates):
        raise OpsError(f"`{name}` is installed twice in the release in use", hint="Choose the full clean redeploy")
    return found


def _table(distribution: Distribution, place: _Place, files: dict[str, _File], faulty: faulty_wheels.Known) -> list[tuple[str, list[str]]]:
    """(key, row) of each line of its RECORD that is taken over; the files are added to `files`."""
    try:
        rows = integrity.record_lines(distribution)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OpsError(f"The RECORD of `{distribution.name}` cannot be read, so its files cannot be copied", why=str(error),
                       hint="Choose the full clean redeploy") from error
    library = os.path.realpath(distribution.location.parent)
    metadata = os.path.relpath(os.path.realpath(distribution.location), place.root)
    inside = place.root + os.sep
    table: list[tuple[str, list[str]]] = []
    for row in rows:
        if not row or not row[0] or "/__pycache__/" in f"/{row[0]}":
            continue
        path = os.path.normpath(os.path.join(library, row[0]))
        if not path.startswith(inside) or "\0" in row[0]:
            raise OpsError(f"The RECORD of `{distribution.name}` names a file outside of the environment: `{row[0][:200]}`",
                           hint="Choose the full clean redeploy")
        key = path[len(inside):]
        table.append((key, row))
        if key == os.path.join(metadata, "RECORD"):
            continue
        told = row[1] if len(row) > 1 else ""
        size = int(row[2]) if len(row) > 2 and row[2].isdecimal() and len(row[2]) < 16 else 0
        one = files.setdefault(key, _File(key, distribution.name, size))
        if told:
            one.expected.append(told)
            if (actual := faulty.get(faulty_wheels.named(key, told))) is not None:
                one.expected.append(actual)
    listed = {key for key, _ in table}
    for name in _METADATA - {"RECORD"}:  # what an installer notes beside, without listing it
        key = os.path.join(metadata, name)
        if key not in listed and os.path.isfile(os.path.join(place.root, key)):
            files.setdefault(key, _File(key, distribution.name, 0))
    return table


def _editable(distribution: Distribution, place: _Place) -> None:
    """The source of an editable install that lies in the old environment (`<env>/src/NAME`, where pip puts it) goes along."""
    told = distribution.direct_url or {}
    url = str(told.get("url") or "")
    if not (told.get("dir_info") or {}).get("editable") or not url.startswith("file://"):
        return
    project = os.path.realpath(url.removeprefix("file://"))
    if not project.startswith(place.root + os.sep) or not os.path.isdir(project):
        return
    target = os.path.join(place.target, os.path.relpath(project, place.root))
    try:
        # Only into a folder of its own: among what the new environment has already, a file could be written through one of its links
        shutil.copytree(project, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    except (FileExistsError, shutil.Error) as error:
        raise OpsError(f"The project of `{distribution.name}` cannot be copied from `{project}`", why=str(error)[:500],
                       hint="Choose the full clean redeploy") from error


def _copy_all(context: Context, place: _Place, files: list[_File]) -> int:
    done = size = 0
    with ThreadPoolExecutor(THREADS, thread_name_prefix="copying") as pool:
        futures = [pool.submit(_copy_chunk, chunk, place) for chunk in _chunks(files)]
        try:
            for future in as_completed(futures):
                count, length = future.result()
                done, size = done + count, size + length
                context.progress(done, len(files), "files", f"{done:,} files, {size / 1e6:,.0f} MB copied from the release in use")
                context.check()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return size


def _chunks(files: list[_File]) -> Iterator[list[_File]]:
    """At most 64 lists of about the same work, large files first (as integrity.py has it)."""
    cost = lambda file: file.size + 40_000  # noqa: E731
    target = sum(map(cost, files)) / CHUNKS
    chunk: list[_File] = []
    work = 0.0
    for file in sorted(files, key=lambda file: (-file.size if file.size > BLOCK else 0, file.key)):
        chunk.append(file)
        work += cost(file)
        if work >= target:
            yield chunk
            chunk, work = [], 0.0
    if chunk:
        yield chunk


def _copy_chunk(files: list[_File], place: _Place) -> tuple[int, int]:
    buffer = bytearray(BLOCK)
    return len(files), sum(_copy_file(file, place, buffer) for file in files)


def _copy_file(file: _File, place: _Place, buffer: bytearray) -> int:
    source, target = os.path.join(place.root, file.key), os.path.join(place.target, file.key)
    try:
        reader = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _changed(file, error.strerror or str(error)) from error
    try:
        # What was opened, whatever the links on the way say by now. With a hash (uv can link files to its cache) its content is known beforehand.
        opened = os.readlink(f"/proc/self/fd/{reader}")  # noqa: PTH115
        if not file.expected and not opened.startswith(place.root + os.sep):
            raise _changed(file, f"It lies outside of the environment: a link leads to `{opened[:200]}`")
        known = os.fstat(reader)
        if not stat.S_ISREG(known.st_mode):
            raise _changed(file, "It is no regular file")
        writer = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stat.S_IMODE(known.st_mode) & 0o777)
        try:
            if place.may_change(file.key) and known.st_size <= REWRITTEN_LIMIT:
                _rewrite(file, reader, writer, place)
            else:
                _plain(file, reader, writer, buffer)
            os.utime(writer, ns=(known.st_atime_ns, known.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return file.length


def _rewrite(file: _File, reader: int, writer: int, place: _Place) -> None:
    with os.fdopen(os.dup(reader), "rb") as opened:
        content = opened.read()
    if file.expected and not any(text(hashlib.new(_algorithm(file, told), content).digest()) == told.partition("=")[2].rstrip("=")
                                 for told in file.expected):
        raise _changed(file)
    new = place.rewrite(file.key, content)
    file.rewritten, file.length, file.digest = new != content, len(new), text(hashlib.sha256(new).digest())
    with os.fdopen(os.dup(writer), "wb") as opened:
        opened.write(new)


def _plain(file: _File, reader: int, writer: int, buffer: bytearray) -> None:
    algorithms = {_algorithm(file, told) for told in file.expected} or {"sha256"}
    totals = {name: hashlib.new(name) for name in algorithms}
    view, size = memoryview(buffer), 0
    cloned = clone(reader, writer)
    while count := os.readv(writer if cloned else reader, [view]):
        for total in totals.values():
            total.update(view[:count])
        size += count
        written = 0 if not cloned else count
        while written < count:
            written += os.write(writer, view[written:count])
    file.length = size
    found = {name: text(total.digest()) for name, total in totals.items()}
    if file.expected and not any(found[_algorithm(file, told)] == told.partition("=")[2].rstrip("=") for told in file.expected):
        raise _changed(file)
    file.digest = found.get("sha256", "")


def _algorithm(file: _File, told: str) -> str:
    name = told.partition("=")[0].lower()
    if name not in integrity.HASHES:
        raise OpsError(f"`{file.key}` of `{file.package}` is listed with an unknown hash, `{name[:20]}`", hint="Choose the full clean redeploy")
    return name


def clone(reader: int, writer: int) -> bool:
    """Whether the file system could share the blocks instead of copying them."""
    try:
        fcntl.ioctl(writer, FICLONE, reader)
        return True
    except OSError:  # this file system cannot: the bytes are copied
        return False


def _changed(file: _File, why: str = "Its content is not what its RECORD says") -> OpsError:
    return OpsError(f"`{file.key}` of `{file.package}` cannot be copied from the release in use", why=why,
                    hint="It was edited since the plan was made: make a new plan")


def text(digest: bytes) -> str:
    """A digest as RECORD writes it."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _write_record(distribution: Distribution, place: _Place, table: list[tuple[str, list[str]]], files: dict[str, _File]) -> None:
    record = os.path.join(place.target, os.path.relpath(os.path.realpath(distribution.location), place.root), "RECORD")
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for key, row in table:
        file = files.get(key)
        if file is not None and file.rewritten and len(row) > 1 and row[1]:
            row = [row[0], f"sha256={file.digest}", str(file.length)]
        writer.writerow(row)
    Path(record).write_text(written.getvalue(), encoding="utf-8")


def uninstall(installed: EnvironmentPackages, name: str) -> int:
    """Deletes the files of a distribution as its RECORD lists them (what others list too stays), their compiled forms, and its metadata; gives
    how many. Raises OpsError where a file cannot be deleted."""
    found = installed.distributions.get(canonicalize_name(name))
    if found is None:
        return 0
    root = os.path.realpath(installed.path)
    library = os.path.realpath(found.location.parent)
    others = {_absolute(os.path.realpath(other.location.parent), path) for other in installed.distributions.values() if other is not found
              for path, _ in integrity.rows(other)}
    removed = 0
    folders: set[str] = set()
    known: dict[str, bool] = {}
    try:
        for path, _ in integrity.rows(found):
            absolute = _absolute(library, path)
            if absolute in others or not _lies_in(root, absolute, known):
                continue
            folder, base = os.path.split(absolute)
            compiled = Path(folder, "__pycache__").glob(f"{base.removesuffix('.py')}.*.pyc") if base.endswith(".py") else ()
            for one in (Path(absolute), *compiled):
                if _lies_in(root, str(one), known) and (one.is_symlink() or one.is_file()):
                    one.unlink()
                    removed += 1
            folders |= {folder, os.path.join(folder, "__pycache__")}
        if found.location.is_dir():
            shutil.rmtree(found.location)
        remove_empty(folders, root)
    except OSError as error:
        raise OpsError(f"`{name}` cannot be taken out of `{installed.path}`", why=error.strerror or str(error)) from error
    return removed


def _lies_in(root: str, path: str, known: dict[str, bool]) -> bool:
    """Whether the path's folder lies in the real folder `root` with all links followed. `known`: what was found out about folders before."""
    folder = os.path.dirname(path)
    if folder not in known:
        real = os.path.realpath(folder)
        known[folder] = "\0" not in path and (real == root or real.startswith(root + os.sep))
    return known[folder]


def _absolute(library: str, path: str) -> str:
    return os.path.normpath(os.path.join(library, path))


def remove_empty(folders: Collection[str], root: str) -> None:
    """Removes the folders that are empty now, and their parents, up to site-packages and bin."""
    for folder in sorted(folders, key=len, reverse=True):
        while folder.startswith(root + os.sep) and os.path.basename(folder) not in ("site-packages", "bin"):
            try:
                os.rmdir(folder)  # noqa: PTH106
            except OSError:  # something is in it, or it is gone
                break
            folder = os.path.dirname(folder)
