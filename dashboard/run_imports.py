"""Runs that other tools measured, brought by people: read by ops/benchmark/formats, stored beside our own, and the file kept whole.

An imported run says whose it is, has no service and no stack, and gets no verdict against one that was measured here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import uuid
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from dashboard import permissions, run_summaries
from dashboard.models import AuditEntry, BenchmarkLevel, BenchmarkRun, ImportedFile
from dashboard.run_documents import LEVEL_COLUMNS
from ops.benchmark.formats import detect
from ops.benchmark.formats.source import clean, number, shown_name, whole
from ops.jobs.errors import BadInput

FILE_BYTES = 64 << 20  # of all files of one import together, as they come
TOOL_SEVERAL = "several tools"
LATEST = 4_102_444_800.0  # the year 2100: no benchmark has been run beyond it
COUNTS = ("requests", "finished", "errors")
MOST = 2**31 - 1  # of the columns that count


class Stored(list[BenchmarkRun]):
    """The runs of a file. `new` False: it had been imported before, and these are the runs that came of it then. `words` says so."""

    new: bool = True
    words: str = ""


def store(name: str, content: bytes, user: User, *, beside: Mapping[str, bytes] | None = None) -> Stored:
    """The runs of a file, with those that belong to it `beside` it; several are kept together as one zip.

    The same file twice makes no second run: what came of it the first time is returned. Raises BadInput for a file that cannot be read, in words
    for the person; PermissionDenied for somebody who may not.
    """
    permissions.require(user, "benchmark.import")
    if len(content) + sum(map(len, (beside or {}).values())) > FILE_BYTES:
        raise BadInput(f"This is larger than {FILE_BYTES >> 20} MiB", hint="Leave the texts of the responses out of it, or pack it with gzip")
    kept_name, kept = _together(name, content, beside or {})
    digest = hashlib.sha256(kept).hexdigest()
    before = ImportedFile.objects.defer("content").filter(sha256=digest).first()
    if before is not None and before.runs.exists():
        return _known(before)
    documents = detect.read(kept_name, kept)
    tools = sorted({str(one["tool"])[:40] for one in documents})
    packed = gzip.compress(kept, 6, mtime=0)  # seconds for a large file: before the database waits for us alone
    with transaction.atomic():
        file, new = ImportedFile.objects.get_or_create(sha256=digest, defaults={
            "name": shown_name(kept_name)[:200], "tool": tools[0] if len(tools) == 1 else TOOL_SEVERAL, "size_bytes": len(kept),
            "content": packed, "imported_at": timezone.now(), "imported_by": user})
        if not new and file.runs.exists():  # somebody else was quicker by a moment
            return _known(file)
        made, here = Stored(), []
        for one in documents:
            run, is_new = _run(one, file)
            made.append(run)
            if not is_new:
                here.append(run)
        if len(here) == len(made):
            file.delete()
            made.new = False
            made.words = "This run is here already" if len(here) == 1 else "These runs are here already"
            return made
        AuditEntry.objects.create(by_id=user.pk, action="benchmark.import", subject=file.name, data={
            "file": file.pk, "sha256": digest, "runs": [str(run.pk) for run in made], "tool": file.tool})
    made.words = f"{len(made)} runs of {file.tool} were imported" if len(made) > 1 else f"A run of {file.tool} was imported"
    return made


def _known(file: ImportedFile) -> Stored:
    """The runs of a file that is here already."""
    found = Stored(file.runs.order_by("group_index", "started_at"))
    found.new = False
    found.words = f"This file was imported on {timezone.localtime(file.imported_at):%Y-%m-%d %H:%M} already, as {file.name}"
    return found


def _together(name: str, content: bytes, beside: Mapping[str, bytes]) -> tuple[str, bytes]:
    """One file as it came; several as one zip, always the same bytes for the same files, whichever of them is called the first."""
    others = {other: found for other, found in beside.items() if other != name}
    if not others:
        return name, content
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, data in sorted({name: content, **others}.items()):
            archive.writestr(zipfile.ZipInfo(one.replace("\\", "/").lstrip("/") or "file", (1980, 1, 1, 0, 0, 0)), data)
    return "files.zip", packed.getvalue()


def _run(told: dict[str, Any], file: ImportedFile) -> tuple[BenchmarkRun, bool]:
    """A document as rows; False with a run that has the same id: it was measured here, or came in another file."""
    started, ended = _at(told["started_at"]), _at(told["finished_at"])
    now = timezone.now()
    warnings = [clean(word, 500) for word in told["warnings"]]
    if started is None:
        warnings.append("When it was measured is not reported: its time is that of the import")
    fingerprint = told["fingerprint"] if isinstance(told["fingerprint"], dict) else {}
    packages = fingerprint.get("packages")
    group = told["group"]
    run, new = BenchmarkRun.objects.get_or_create(id=uuid.UUID(told["run_id"]), defaults={
        "model": told["model"][:300], "endpoint": told["base_url"][:300], "preset": told["preset"][:40], "origin": "imported", "imported": file,
        "tool": told["tool"][:40], "tool_version": told["tool_version"][:80], "practice": told["practice"] is True, "short": told["short"] is True,
        "state": told["state"] if told["state"] in run_summaries.STATES - {"running"} else "done", "started_at": started or now,
        "finished_at": ended or started, "settings": told["settings"], "fingerprint": fingerprint, "warnings": warnings,
        "release": clean(fingerprint.get("release"), 120), "vllm_version": clean(packages.get("vllm"), 80) if isinstance(packages, dict) else "",
        "label": told["label"][:120], "notes": told["notes"][:4000], "tags": told["tags"], "group": uuid.UUID(group) if group else None,
        "group_index": told["group_index"], "sweep_key": told["sweep_key"][:64]})
    if new:
        BenchmarkLevel.objects.bulk_create(_level(run, level) for level in told["levels"])
        run_summaries.summarise(run)
    return run, new


def _level(run: BenchmarkRun, told: dict[str, Any]) -> BenchmarkLevel:
    counts = {name: min(found, MOST) for name in COUNTS if (found := whole(told.get(name))) is not None}
    return BenchmarkLevel(
        run=run, load=told["load"], value=told["value"], concurrency=told["concurrency"], state=told.get("state") or "done",
        metrics={name: value for name, value in told.items() if name != "detail"}, detail=told.get("detail") or {},
        **counts, **{name: number(told.get(name)) for name in LEVEL_COLUMNS})


def _at(seconds: Any) -> datetime | None:
    """Seconds since the epoch as a time; None for what can be none of a benchmark."""
    found = number(seconds)
    return datetime.fromtimestamp(found, UTC) if found is not None and 0 < found < LATEST else None
