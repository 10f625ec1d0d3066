"""A purge's manifest as a file to take along: CSV, JSON or Markdown, from the lines that the console keeps (at most 100,000; the node has all)."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard import job_story, purge_story
from dashboard.cleanup_story import age_words
from dashboard.models import Job, PurgedArtifact
from dashboard.templatetags.roundhouse import size
from ops.artifacts import manifest
from ops.artifacts.found import Entry
from ops.benchmark import harmless

FORMATS = {"csv": ("text/csv; charset=utf-8", "CSV"), "json": ("application/json", "JSON"), "md": ("text/markdown; charset=utf-8", "Markdown")}
AT_ONCE = 2000  # rows of one query


def text(job: Job, fmt: str) -> Iterator[str]:
    """The manifest in pieces. Raises KeyError for a format that is none of FORMATS."""
    at = job.created_at.timestamp()
    if fmt == "csv":
        return manifest.to_csv(entries(job), at=at)
    return {"json": _json, "md": _markdown}[fmt](job, at)


def entries(job: Job) -> Iterator[Entry]:
    for line in PurgedArtifact.objects.filter(job=job).order_by("number").iterator(AT_ONCE):
        yield Entry(number=line.number, path=line.path, kind=line.kind, size_bytes=line.size_bytes, files=line.files,
                    mtime_ns=round(line.newest.timestamp() * 1e9), owner=line.owner, reason=line.reason, result=line.result, why=line.why,
                    freed_bytes=line.freed_bytes, deleted_files=line.deleted_files, service=line.service)


def _json(job: Job, at: float) -> Iterator[str]:
    told = purge_story.purged(job) or {}
    return manifest.to_json(entries(job), at=at, head={
        "format": manifest.FORMAT, "job": str(job.pk), "number": job.number, "node": job.node.name, "at": job.created_at.isoformat(),
        "by": job.by.get_username() if job.by else None, "practice": job.practice, "state": str(job.state),
        **{name: told.get(name) for name in ("chosen", "deleted", "kept", "freed_bytes", "cancelled")}})


def _markdown(job: Job, at: float) -> Iterator[str]:
    told = purge_story.purged(job) or {}
    freed = f", {size(told['freed_bytes'])} freed" if told.get("freed_bytes") is not None else ""
    others = (("kept", "kept"), ("gone", "gone before"), ("left", "not looked at"))
    rest = "".join(f"; {told[part]:,} {words}" for part, words in others if told.get(part))
    yield (f"# Manifest of {harmless.markdown(job_story.title(job))} #{job.number}\n\n{job.node.name}, {job.created_at:%Y-%m-%d %H:%M} UTC"
           f"{', PRACTICE' if job.practice else ''}: {harmless.markdown(told.get('words') or 'nothing')} deleted{freed}{rest}.\n\n"
           "| Result | Path | Kind | Size | Freed | Age | Owner | Why it was a leftover | Why it stayed |\n"
           "| --- | --- | --- | ---: | ---: | ---: | --- | --- | --- |\n")
    for entry in entries(job):
        cells = (entry.result, entry.path, entry.kind, size(entry.size_bytes), size(entry.freed_bytes), age_words(at - entry.mtime_ns / 1e9),
                 entry.owner, entry.reason, entry.why)
        yield f"| {' | '.join(harmless.markdown(cell) for cell in cells)} |\n"
