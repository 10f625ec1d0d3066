"""The patch shelf: what somebody typed into a release is saved before another release takes its place.

    services/<name>/shelf/<YYYYmmdd-HHMMSS in UTC>-<release>/
        manifest.json       what was saved, from where, with hashes
        files/<path>        each changed or extra file, as it was
        diffs/<path>.diff   unified diff against the pristine file, where the wheel it came from is at hand and it is text
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from ops.environments import packages, releases, wheelhouse
from ops.environments.integrity import BLOCK, FileFinding, IntegrityReport
from ops.jobs.errors import OpsError
from ops.records import ServiceRecord
from ops.services import state

DIFF_LIMIT = 4 * 1024 * 1024  # bytes; larger files are copied, not compared
SHOWN_LINES, SHOWN_WIDTH, SHOWN_SIZE = 200, 400, 256 * 1024  # of diffs that are only shown: lines a file, characters a line, characters in all


def save_to_shelf(record: ServiceRecord, release: Path, report: IntegrityReport, *, wheels: Path | None = None,
                  job: str | None = None) -> list[Path]:
    """Saves every changed and extra file of the report; gives the copies, which lie below one folder of the shelf.

    `wheels`: a wheelhouse with the pristine wheels; by default that of the channel which the release was built from. The same
    edits of the same release are saved once: a second call gives the first one's copies. Raises OpsError if a file cannot be
    saved: then nothing may overwrite it.
    """
    findings = [*report.changed, *report.extra]
    if not findings and not report.missing:
        return []
    shelf = record.folder / "shelf"
    digest = report.digest()
    if (known := _saved_before(shelf, release.name, digest)) is not None:
        return known
    moment = time.time()
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(moment))}-{release.name}"
    folder = shelf / f".{name}"
    if folder.exists():
        shutil.rmtree(folder)
    saved, entries = [], []
    try:
        folder.mkdir(mode=0o700, parents=True)
        pristine = _Pristine(release, wheels)
        for finding in findings:
            entry, copy = _save(finding, release, folder, pristine)
            entries.append(entry)
            if copy:
                saved.append(copy)
        entries += [{"path": finding.path, "package": finding.package, "change": "missing"} for finding in report.missing]
        manifest = {"release": release.name, "service": record.name, "saved_at": moment, "job": job, "digest": digest,
                    "environment": str(release), "versions": packages.read(release).versions(), "files": entries}
        state.write_file(folder / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        final = _free(shelf / name)
        folder.rename(final)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OpsError(f"The edited files of `{release.name}` cannot be saved", why=error.strerror or str(error),
                       hint=f"Make room below `{shelf}`: nothing is overwritten before they are safe") from error
    return [final / copy.relative_to(folder) for copy in saved]


def shown_differences(release: Path, found: list[FileFinding], *, wheels: Path | None = None) -> dict[str, dict[str, Any]]:
    """To look at, not to apply: path to {"diff", "diff_lines", "added", "removed"} of the changed and extra files.

    `diff` has at most `SHOWN_LINES` lines, the counts are of the whole. Not in it: files without a pristine text to hold them against, and
    those after the first `SHOWN_SIZE` characters (a plan travels in one message).
    Raises OpsError if a wheel cannot be read.
    """
    pristine = _Pristine(release, wheels)
    told: dict[str, dict[str, Any]] = {}
    left = SHOWN_SIZE
    for finding in found:
        source = release / finding.path
        if left <= 0 or finding.change == "missing" or source.is_symlink():
            continue
        original = pristine.file(finding)
        try:
            content = source.read_bytes() if source.is_file() and source.stat().st_size <= DIFF_LIMIT else None
        except OSError:  # gone, or not for us to read: the finding itself stays, without its lines
            content = None
        if content is None or (original is None and finding.change != "extra") or not (diff := _diff(original, content, finding.path)):
            continue
        lines = diff.splitlines()
        body = lines[2:]  # after the two names
        shown = "\n".join(line[:SHOWN_WIDTH] for line in lines[:SHOWN_LINES])[:left]
        left -= len(shown)
        told[finding.path] = {"diff": shown, "diff_lines": len(lines),
                              "added": sum(line.startswith("+") for line in body), "removed": sum(line.startswith("-") for line in body)}
    return told


def entries(record: ServiceRecord) -> list[dict[str, Any]]:
    """All that is on the shelf, newest first: each manifest with its `folder`."""
    found = []
    for folder in sorted((record.folder / "shelf").glob("[0-9]*"), reverse=True):
        manifest = state.read_json(folder / "manifest.json")
        if manifest is not None:
            found.append({**manifest, "folder": str(folder)})
    return found


def _saved_before(shelf: Path, release: str, digest: str) -> list[Path] | None:
    for folder in sorted(shelf.glob("[0-9]*"), reverse=True):
        manifest = state.read_json(folder / "manifest.json")
        if manifest and (manifest.get("release"), manifest.get("digest")) == (release, digest):
            return [folder / "files" / entry["path"] for entry in manifest["files"] if entry.get("saved")]
    return None


def _free(folder: Path) -> Path:
    number = 1
    while os.path.lexists(candidate := folder if number == 1 else folder.with_name(f"{folder.name}-{number}")):
        number += 1
    return candidate


def _save(finding: FileFinding, release: Path, folder: Path, pristine: _Pristine) -> tuple[dict[str, Any], Path | None]:
    source = release / finding.path
    copy = folder / "files" / finding.path
    entry: dict[str, Any] = {"path": finding.path, "package": finding.package, "change": finding.change, "original": str(source),
                             "note": finding.note}
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if source.is_symlink():
        copy.symlink_to(source.readlink())
        return {**entry, "saved": True, "link": str(source.readlink())}, copy
    if not source.is_file():
        return {**entry, "saved": False, "note": finding.note or "it is gone, or no regular file"}, None
    digest, size = _copy(source, copy)
    entry |= {"saved": True, "sha256": digest, "size_bytes": size, "mtime": source.stat().st_mtime}
    original = pristine.file(finding)
    entry["pristine_sha256"] = hashlib.sha256(original).hexdigest() if original is not None else None
    if (original is not None or finding.change == "extra") and size <= DIFF_LIMIT and (diff := _diff(original, copy.read_bytes(), finding.path)):
        path = folder / "diffs" / f"{finding.path}.diff"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(diff, encoding="utf-8")
        path.chmod(0o600)
        entry["diff"] = f"diffs/{finding.path}.diff"
    return entry, copy


def _copy(source: Path, target: Path) -> tuple[str, int]:
    """Copies the content; gives its sha256 and size."""
    total = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), 0o600)
        while block := reader.read(BLOCK):
            total.update(block)
            writer.write(block)
            size += len(block)
        writer.flush()
        os.fsync(writer.fileno())
    return total.hexdigest(), size


def _diff(before: bytes | None, after: bytes, path: str) -> str | None:
    """A unified diff (of an extra file: all of it is new); None where one of the two is no UTF-8 text."""
    try:
        old, new = (before or b"").decode("utf-8"), after.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if "\0" in old or "\0" in new:
        return None
    lines = []
    for line in difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True),
                                     f"a/{path}" if before is not None else "/dev/null", f"b/{path}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines) or None


class _Pristine:
    """Files as the release's wheels have them, from wheels that have the hash that the release's manifest names."""

    def __init__(self, release: Path, wheels: Path | None) -> None:
        manifest = releases.manifest(release) or {}
        channel = manifest.get("channel") or {}
        self.library = packages.site_packages(release)[0].relative_to(release)
        self.folder = wheels or (Path(channel["wheelhouse"]) if channel.get("wheelhouse") else None)
        self.built = {package["name"]: package for package in manifest.get("packages", [])}
        self.versions = packages.read(release).versions()
        self.wheels: dict[str, Path | None] = {}

    def file(self, finding: FileFinding) -> bytes | None:
        """The file as installed; None where its wheel is not at hand, or is another one."""
        if finding.change != "changed" or not finding.package or self.folder is None or not finding.path.startswith(f"{self.library}/"):
            return None
        wheel = self._wheel(finding.package, self.folder)
        return wheelhouse.pristine(wheel, os.path.relpath(finding.path, self.library), limit=DIFF_LIMIT) if wheel else None

    def _wheel(self, package: str, folder: Path) -> Path | None:
        if package not in self.wheels:
            self.wheels[package] = self._find(package, folder)
        return self.wheels[package]

    def _find(self, package: str, folder: Path) -> Path | None:
        known = self.built.get(package, {})
        if known.get("file"):
            wheel = folder / Path(known["file"]).name
            return wheel if wheel.is_file() and wheelhouse.sha256(wheel) == known.get("sha256") else None
        # no manifest: the wheel of that version, if there is exactly one
        found = sorted(folder.glob(f"{package.replace('-', '_')}-{self.versions.get(package, '')}-*.whl"))
        return found[0] if len(found) == 1 else None
