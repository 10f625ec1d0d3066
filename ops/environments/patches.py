"""The patch shelf: what somebody typed into a release is saved before another release takes its place.

    services/<name>/shelf/<YYYYmmdd-HHMMSS in UTC>-<release>/
        manifest.json       what was saved, when, by which job, from where, in which version, with hashes
        files/<path>        each changed or extra file, as it was
        diffs/<path>.diff   unified diff against the pristine file, where that is at hand and it is text

The same edits are saved once; other ones get a folder of their own. Nothing on the shelf is ever written over: a file goes only by `forget`.
What leaves the node (events, plans) has secrets hidden; the copies on the node are as they were.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ops.environments import integrity, packages, text_diff
from ops.environments.integrity import FileFinding, IntegrityReport
from ops.environments.pristine import Fetch, Pristine, caches_of, environments_beside
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.journal import sync_folder
from ops.jobs.pipeline import Reporter
from ops.jobs.redact import record_secrets, redact
from ops.records import ServiceRecord
from ops.services import state

SHOWN_LINES, SHOWN_WIDTH, SHOWN_SIZE = 200, 400, 256 * 1024  # of diffs that are only shown: lines a file, characters a line, characters in all
TOLD_DIFF = 256 * 1024  # bytes of one diff in an event
TOLD_DIFFS = 16 * 1024 * 1024  # bytes of all diffs in the events of one save
TOLD_FILES = 500  # events of one save
TOLD_DEBRIS = 20  # findings of debris a file
_BLOCK = 1024 * 1024
_FOLDER = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9A-Za-z][0-9A-Za-z.+_!-]{0,140}\Z")


def keep_edits(record: ServiceRecord, release: Path, *, job: str | None = None, emit: Reporter | None = None,
               progress: integrity.Progress | None = None) -> int:
    """Holds a release that is about to be removed against its RECORDs and saves what somebody edited in it; gives the number of files saved.

    Edits made while it was in use are on the shelf since it was replaced, and are not saved twice. A folder that is no environment any more
    has nothing to compare with: 0. Raises OpsError if a file cannot be saved: then the release may not be removed.
    """
    try:
        report = integrity.check(release, progress=progress)
    except BadInput:  # half deleted, or never one
        return 0
    return len(save_to_shelf(record, release, report, job=job, emit=emit)) if report.changed or report.extra else 0


def save_to_shelf(record: ServiceRecord, release: Path, report: IntegrityReport, *, wheels: Path | None = None, job: str | None = None,
                  emit: Reporter | None = None, fetch: Fetch | None = None) -> list[Path]:
    """Saves every changed and extra file of the report; gives the copies, which lie below one folder of the shelf.

    Pristine files come from `wheels` (a wheelhouse; by default that of the channel which the release was built from), from other releases, from
    uv's caches, and, if `fetch` is given, from what it brings into them. `emit` gets `shelf.saved` for each file, at most `TOLD_FILES`. The same
    edits of the same release are saved once: a second call gives the first one's copies. Raises OpsError if a file cannot be saved: then nothing
    may overwrite it.
    """
    findings = [*report.changed, *report.extra]
    if not findings and not report.missing:
        return []
    shelf_folder = record.folder / "shelf"
    digest = report.digest()
    if (known := _saved_before(shelf_folder, release.name, digest)) is not None:
        folder, manifest = known
        _tell(record, folder, manifest, emit)  # a job that was killed right after saving had not told
        return [folder / "files" / entry["path"] for entry in manifest["files"] if entry.get("saved")]
    moment = time.time()
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(moment))}-{release.name}"
    folder = shelf_folder / f".{name}-{os.getpid()}"
    try:
        for left in shelf_folder.glob(".[0-9]*"):  # of a save that was killed: what it copied is still in its place
            shutil.rmtree(left)
        folder.mkdir(mode=0o700, parents=True)
        pristine = _pristine(release, wheels=wheels, record=record, fetch=fetch)
        note = _bring(pristine, report.changed)
        saved = [_save(finding, release, folder, pristine) for finding in findings]
        saved += [{"path": finding.path, "package": finding.package, "change": "missing", "original": str(release / finding.path), "saved": False,
                   "note": finding.note} for finding in report.missing]
        versions = packages.read(release).versions()
        manifest = {"release": release.name, "service": record.name, "saved_at": moment, "job": job, "digest": digest, "note": note,
                    "environment": os.path.realpath(release), "versions": versions,
                    "files": [{**entry, "version": versions.get(entry["package"])} for entry in saved]}
        _write_manifest(folder, manifest)
        final = _free(shelf_folder / name)
        folder.rename(final)
        sync_folder(shelf_folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OpsError(f"The edited files of `{release.name}` cannot be saved", why=error.strerror or str(error),
                       hint=f"Make room below `{shelf_folder}`: nothing is overwritten before they are safe") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _tell(record, final, manifest, emit)
    return [final / "files" / entry["path"] for entry in saved if entry["saved"]]


def shown_differences(release: Path, found: list[FileFinding], *, wheels: Path | None = None,
                      record: ServiceRecord | None = None) -> dict[str, dict[str, Any]]:
    """To look at, not to apply: path to {"diff", "diff_lines", "added", "removed", "debris"} of the changed and extra files.

    `diff` has at most `SHOWN_LINES` lines, the counts are of the whole. Not in it: files without a pristine text to hold them against, and
    those after the first `SHOWN_SIZE` characters (a plan travels in one message). `record`: of the service, so that pristine files are also found
    in the node's cache and the service's secrets are hidden.
    Raises OpsError if a wheel cannot be read.
    """
    pristine = _pristine(release, wheels=wheels, record=record)
    secrets = record_secrets(record.as_dict()) if record else []
    told: dict[str, dict[str, Any]] = {}
    left = SHOWN_SIZE
    for finding in found:
        source = release / finding.path
        if left <= 0 or finding.change == "missing" or source.is_symlink():
            continue
        original = pristine.find(finding)
        try:
            with _open(release, finding.path) as reader:
                content = reader.read(text_diff.COMPARED_BYTES + 1)
        except OSError:  # gone, not for us to read, or behind a link: the finding itself stays, without its lines
            continue
        if len(content) > text_diff.COMPARED_BYTES or (original is None and finding.change != "extra"):
            continue
        diff = text_diff.unified(original[0] if original else None, content, finding.path)
        if not diff:
            continue
        lines = diff.splitlines()
        body = lines[2:]  # after the two names
        shown = "\n".join(line[:SHOWN_WIDTH] for line in _hidden(lines[:SHOWN_LINES], secrets))[:left]
        left -= len(shown)
        told[finding.path] = {"diff": shown, "diff_lines": len(lines), "added": sum(line.startswith("+") for line in body),
                              "removed": sum(line.startswith("-") for line in body), "debris": _debris(diff, content, secrets)}
    return told


# What lies on the shelf


def entries(record: ServiceRecord) -> list[dict[str, Any]]:
    """All that is on the shelf, newest first: each manifest with its `folder`. Raises OpsError for a manifest that cannot be read."""
    found = []
    for folder in _folders(record.folder / "shelf"):
        manifest = state.read_json(folder / "manifest.json")
        if manifest is not None:
            found.append({**manifest, "folder": str(folder)})
    return found


def shelf(record: ServiceRecord) -> list[dict[str, Any]]:
    """Each file on the shelf, newest first; what was forgotten is left out.

    {folder (its name), path, package, version, release, change, size_bytes, sha256, pristine_sha256, has_diff, debris, note, where, saved_at, job}.
    """
    found = []
    for manifest in entries(record):
        folder = Path(manifest["folder"])
        for entry in manifest["files"]:
            if not entry.get("forgotten_at"):
                found.append({**_told(folder, manifest, entry), "has_diff": bool(entry.get("diff")), "saved_at": manifest["saved_at"],
                              "job": manifest["job"]})
    return found


def view(record: ServiceRecord, folder: str, path: str) -> dict[str, Any]:
    """One file of the shelf, as `shelf` tells it, with `diff` (the whole text, or None). Raises BadInput if it is not there."""
    place, manifest, entry = _entry(record, folder, path)
    if entry.get("forgotten_at"):
        raise BadInput(f"`{path[:200]}` was forgotten: it is not on the shelf any more")
    diff = None
    if entry.get("diff"):
        try:
            diff = (place / entry["diff"]).read_text(encoding="utf-8")
        except OSError as error:
            raise OpsError(f"The diff of `{path}` cannot be read", why=error.strerror or str(error)) from error
    return {**_told(place, manifest, entry), "has_diff": diff is not None, "saved_at": manifest["saved_at"], "job": manifest["job"], "diff": diff}


def forget(record: ServiceRecord, folder: str, path: str) -> bool:
    """Deletes one file's copy and diff from the disk, for good; the manifest keeps that it was there. False if it was gone already.

    Raises BadInput for what is not on the shelf, OpsError if it cannot be deleted.
    """
    place, manifest, entry = _entry(record, folder, path)
    if entry.get("forgotten_at"):
        return False
    try:
        for name in ("files/" + entry["path"], *([entry["diff"]] if entry.get("diff") else [])):
            _delete(place, name)
        entry |= {"saved": False, "diff": None, "debris": [], "forgotten_at": time.time()}
        _write_manifest(place, manifest)
    except OSError as error:
        raise OpsError(f"`{path}` cannot be deleted from the shelf", why=error.strerror or str(error)) from error
    return True


def _entry(record: ServiceRecord, folder: str, path: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The folder, its manifest and the file's entry in it. Raises BadInput for names that are none, or that are not there."""
    parts = PurePosixPath(path).parts
    if not _FOLDER.match(folder) or not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise BadInput(f"`{folder[:80]}/{path[:200]}` names no file on the shelf")
    place = record.folder / "shelf" / folder
    manifest = None if place.is_symlink() else state.read_json(place / "manifest.json")
    for entry in manifest["files"] if manifest else []:
        if entry["path"] == path and manifest is not None:
            return place, manifest, entry
    raise BadInput(f"There is no `{path[:200]}` in `{folder}` on the shelf of `{record.name}`", hint="`shelf` lists what is there")


def _delete(place: Path, name: str) -> None:
    """Unlinks `name` below `place` without following a link on the way, and the folders that are empty then. A file that is gone is no error."""
    *folders, last = PurePosixPath(name).parts
    opened = [os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)]
    try:
        for part in folders:
            opened.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened[-1]))
        os.unlink(last, dir_fd=opened[-1])
        for part, outer in zip(reversed(folders), reversed(opened[:-1]), strict=True):
            os.rmdir(part, dir_fd=outer)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # other files of this folder stay
            raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _folders(shelf_folder: Path) -> list[Path]:
    """Folders of the shelf, the newest first."""
    return sorted((folder for folder in shelf_folder.glob("[0-9]*") if _FOLDER.match(folder.name) and not folder.is_symlink()), reverse=True)


def _saved_before(shelf_folder: Path, release: str, digest: str) -> tuple[Path, dict[str, Any]] | None:
    """Where just these edits lie whole; not where one of them was forgotten, or is gone."""
    for folder in _folders(shelf_folder):
        manifest = state.read_json(folder / "manifest.json")
        if not manifest or (manifest.get("release"), manifest.get("digest")) != (release, digest):
            continue
        if all(not entry.get("forgotten_at") and (not entry.get("saved") or os.path.lexists(folder / "files" / entry["path"]))
               for entry in manifest["files"]):
            return folder, manifest
    return None


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    state.write_file(folder / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def _free(folder: Path) -> Path:
    number = 1
    while os.path.lexists(candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return candidate


# Saving


def _pristine(release: Path, *, wheels: Path | None, record: ServiceRecord | None, fetch: Fetch | None = None) -> Pristine:
    cache = None
    if record is not None:
        from ops.environments import plan

        cache = plan.default_uv(record).cache
    return Pristine(release, wheels=wheels, caches=caches_of(cache), others=environments_beside(release), fetch=fetch)


def _bring(pristine: Pristine, changed: Sequence[FileFinding]) -> str:
    """Fetches what is missing for the diffs; a channel that does not answer costs the diffs, not the copies: its words become the folder's note."""
    try:
        pristine.bring(changed)
    except OpsError as error:
        return f"Not every file has a diff: {error.what}"
    return ""


def _save(finding: FileFinding, release: Path, folder: Path, pristine: Pristine) -> dict[str, Any]:
    source = release / finding.path
    copy = folder / "files" / finding.path
    entry: dict[str, Any] = {"path": finding.path, "package": finding.package, "change": finding.change, "original": str(source),
                             "note": finding.note}
    if any(outer.is_symlink() for outer in copy.parents if folder in outer.parents):  # a link that was saved: never written through
        return {**entry, "saved": False, "note": "it lies behind a link, which is saved itself"}
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if source.is_symlink():
        link = source.readlink()
        if (saved := not os.path.lexists(copy)):  # else what RECORD lists below it has a folder there
            copy.symlink_to(link)
        return {**entry, "saved": saved, "link": str(link)}
    try:
        reader = _open(release, finding.path)
    except _Elsewhere as error:  # nothing that we do to the environment touches it there
        return {**entry, "saved": False, "note": str(error.strerror)}
    except FileNotFoundError:
        return {**entry, "saved": False, "note": finding.note or "it is gone"}
    except _NoFile:
        return {**entry, "saved": False, "note": finding.note or "it is no regular file"}
    with reader:
        mtime = os.fstat(reader.fileno()).st_mtime
        digest, size = _copy(reader, copy)
    entry |= {"saved": True, "sha256": digest, "size_bytes": size, "mtime": mtime, "pristine_sha256": None, "diff": None}
    try:
        original = pristine.find(finding)
    except OpsError as error:  # a damaged wheel: the copy is what counts
        original, entry["note"] = None, finding.note or error.what
    if original is not None:
        entry |= {"pristine_sha256": hashlib.sha256(original[0]).hexdigest(), "pristine_from": original[1]}
    if original is None and finding.change != "extra":
        return {**entry, "note": entry["note"] or "the pristine file is not at hand, so there is no diff"}
    content = copy.read_bytes() if size <= text_diff.COMPARED_BYTES else None
    if content is None or (diff := text_diff.unified(original[0] if original else None, content, finding.path)) is None:
        return {**entry, "note": entry["note"] or "it is no text, or too long to be compared"}
    path = folder / "diffs" / f"{finding.path}.diff"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = path.open("x", encoding="utf-8", newline="")
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        return {**entry, "note": entry["note"] or "its name leaves no room for a diff beside it"}
    with opened as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(diff)
        file.flush()
        os.fsync(file.fileno())
    return {**entry, "diff": f"diffs/{finding.path}.diff", "debris": _debris(diff, content, [])}


class _Elsewhere(OSError):
    """A link leads out of the environment."""


class _NoFile(OSError):
    """A pipe, a device, a folder."""


def _open(release: Path, path: str) -> BinaryIO:
    """A regular file of the environment. Raises OSError; never waits on a pipe, and gives nothing that lies outside of the environment."""
    root = os.path.realpath(release)
    descriptor = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)  # noqa: PTH118
    try:
        opened = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # what was opened, whatever the links on the way say by now
        if not opened.startswith(root + os.sep):
            raise _Elsewhere(errno.EXDEV, f"it lies outside of the environment: a link leads to `{opened[:200]}`")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _NoFile(errno.EINVAL, "it is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _copy(reader: BinaryIO, target: Path) -> tuple[str, int]:
    """Copies the content; gives its sha256 and size."""
    total = hashlib.sha256()
    size = 0
    with target.open("xb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        while block := reader.read(_BLOCK):
            total.update(block)
            writer.write(block)
            size += len(block)
        writer.flush()
        os.fsync(writer.fileno())
    return total.hexdigest(), size


def _debris(diff: str, content: bytes, secrets: Iterable[str]) -> list[dict[str, Any]]:
    from ops.environments import debris

    return [{**found, "text": redact(str(found["text"])[:SHOWN_WIDTH], secrets)} for found in debris.look(diff, content=content)[:TOLD_DEBRIS]]


# Telling


def _tell(record: ServiceRecord, folder: Path, manifest: dict[str, Any], emit: Reporter | None) -> None:
    """Says each file once, with bounds; the manifest remembers that it was said."""
    if emit is None or manifest.get("told_at"):
        return
    secrets = record_secrets(record.as_dict())
    left = TOLD_DIFFS
    for entry in manifest["files"][:TOLD_FILES]:
        told = {**_told(folder, manifest, entry), "diff": None, "diff_cut": False}
        told["debris"] = [{**found, "text": redact(found["text"], secrets)} for found in told["debris"]]
        if entry.get("diff"):
            content = (folder / entry["diff"]).read_bytes()
            room = min(TOLD_DIFF, left)
            shown, told["diff_cut"] = text_diff.cut(content.decode("utf-8"), room) if room > 0 else ("", True)
            shown = "".join(_hidden(shown.splitlines(keepends=True), secrets))
            told["diff"] = shown or None
            left -= len(shown.encode("utf-8"))
        emit(EventType.SHELF_SAVED, told)
    if (more := len(manifest["files"]) - TOLD_FILES) > 0:
        emit(EventType.FINDING, {"subject": "shelf", "level": "note", "title": f"{more:,} more files were put on the shelf than are listed here",
                                 "why": f"{len(manifest['files']):,} files differ from what was installed", "fix": f"All of them: `{folder}`"})
    manifest["told_at"] = time.time()
    try:
        _write_manifest(folder, manifest)
    except OSError as error:
        raise OpsError(f"`{folder / 'manifest.json'}` cannot be written", why=error.strerror or str(error)) from error


def _told(folder: Path, manifest: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """One file as events and lists have it, without its diff."""
    return {"folder": folder.name, "path": entry["path"], "package": entry["package"], "version": entry.get("version"),
            "release": manifest["release"], "change": entry["change"], "size_bytes": entry.get("size_bytes"), "sha256": entry.get("sha256"),
            "pristine_sha256": entry.get("pristine_sha256"), "debris": entry.get("debris") or [], "note": entry.get("note") or "",
            "where": str(folder / "files" / entry["path"]) if entry.get("saved") else ""}


def _hidden(lines: Iterable[str], secrets: Sequence[str]) -> list[str]:
    return [redact(line, secrets) for line in lines]
