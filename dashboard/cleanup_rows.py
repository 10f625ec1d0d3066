"""What a node says of its leftovers, as rows: scans, the artifacts that they list, and manifests of purges.

The node is not believed: texts are cut, numbers must be what a column can hold, lists have a most, and whatever is not of the form that
`ops/artifacts/found.py` promises is left out, with a line in the log. The functions named keep_* want to be called once for each event, in the
transaction of its job.

Beside what the node said, `ArtifactScan.summary` holds what purges changed since: `purges` (ids of their jobs), of each kind `gone` {count, files,
size_bytes} (artifacts of which nothing is left), `offered_gone_bytes` and `choosable_gone_bytes`. A purge of one preview also tells of things that
other scans of the node list: those are marked by kind and path.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, Sum
from django.utils import timezone

from dashboard.from_a_node import BYTES_MOST, COUNT_MOST, items, number, text, texts, when, whole
from dashboard.models import ArtifactKind, ArtifactScan, Job, Node, PurgedArtifact, ScannedArtifact
from ops.artifacts import kinds as known
from ops.artifacts.found import GONE, KEPT, OFFERED, OPTIONAL, PARTS, RESULTS
from ops.artifacts.kinds import KIND_NAME, UNITS
from ops.jobs.errors import BadInput
from ops.records import NAME

logger = logging.getLogger(__name__)

SCAN = "artifact-scan"
STATES = (OFFERED, OPTIONAL, KEPT)
SCANS_KEPT = 3  # of a node keep the artifacts that they list; of older ones only the totals stay
FOUND_MOST, ENTRIES_MOST = 500, 1000  # in one event
LISTED_MOST = 200_000  # rows of one scan: the node lists at most 2,000 of each kind
LINES_MOST = 200_000  # rows of one manifest: the node tells at most 100,000
AT_ONCE = 500  # values in one condition: databases take a limited number of parameters
ONE_BYTES_MOST = 2**44  # of one leftover: sums of all rows stay what a database can add up
PATH_MAX = 16 * 1024  # 4,096 bytes, each of which may stand as \xNN
SENTENCE_MAX = 1000
KINDS_MOST, PLACES_MOST, GAUGES_MOST, LARGEST_MOST, PROBLEMS_MOST, WHY_MOST = 200, 200, 40, 200, 200, 50
SUMMARY_BYTES = 1024 * 1024
M = TypeVar("M", bound=Model)


def known_kinds() -> set[str]:
    """Names of all kinds of leftovers: the built-in ones and those that admins added."""
    return {kind.name for kind in known.builtin()} | set(ArtifactKind.objects.values_list("name", flat=True))


def own_kinds() -> list[dict[str, Any]]:
    """The records of the kinds that admins added, as orders carry them: those that this version takes. Settings says what is wrong with others."""
    taken = []
    for kind in ArtifactKind.objects.all():
        try:
            known.own([kind.record])
        except BadInput as error:
            logger.warning("the kind of leftover `%s` is left out: %s", kind.name, error)
            continue
        taken.append(kind.record)
    return taken


# ---- scans ----


def keep_found(job: Job, data: dict[str, Any], at: datetime) -> int:
    """The artifacts of an artifacts.found, as rows of the job's scan; gives how many. A number that is there already is left out.

    Raises ValueError where the event is of another job's scan.
    """
    scan = _own_scan(job, data, at)
    rows = _fresh(scan.artifacts.all(), _each(job, data.get("artifacts"), FOUND_MOST, lambda raw: _artifact(scan, raw)), LISTED_MOST, job)
    ScannedArtifact.objects.bulk_create(rows)
    return len(rows)


def keep_scan(job: Job, data: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The totals of an artifacts.scanned, into the job's scan; artifacts of the node's older scans go. Gives what lists show of it: `files`,
    `size_bytes` (all that was looked at), `count` (leftovers), `kinds`, `offered_bytes`, `choosable_bytes`, `kept`, `problems` (how many).

    Raises ValueError where the event is of another job's scan, or of one that has ended already, or larger than any scan can be.
    """
    scan = _own_scan(job, data, at)
    if scan.finished:  # what purges changed since would be forgotten
        raise ValueError("a scan that has told its totals already")
    summary = summary_of(data)
    if len(json.dumps(summary)) > SUMMARY_BYTES:
        raise ValueError("a scan of that size")
    preview = data["preview"] if isinstance(data.get("preview"), dict) else {}
    digest = preview.get("digest")
    scan.summary, scan.finished, scan.took_s = summary, True, number(data.get("took_s"))
    scan.digest = digest if isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef") else ""
    scan.offered_bytes, scan.choosable_bytes = whole(data.get("offered_bytes")) or 0, whole(data.get("choosable_bytes")) or 0
    told_at = number(data.get("at"))
    scan.at = min(when(told_at) if told_at is not None else at, timezone.now())
    scan.save()
    _forget_older(scan)
    counts = {state: sum(kind[state]["count"] for kind in summary["kinds"]) for state in STATES}
    return {"files": summary["files"], "size_bytes": summary["size_bytes"], "count": sum(counts.values()), "kept": counts[KEPT],
            "kinds": len(summary["kinds"]), "offered_bytes": scan.offered_bytes, "choosable_bytes": scan.choosable_bytes,
            "problems": len(summary["problems"])}


def summary_of(data: dict[str, Any]) -> dict[str, Any]:
    """The data of an artifacts.scanned in a form that pages can rely on; keys as in ops/jobs/events.py. Of a kind that is told twice the first
    counts."""
    kinds: dict[str, dict[str, Any]] = {}
    for raw in items(data.get("kinds"), KINDS_MOST):
        name = raw.get("kind")
        if isinstance(name, str) and KIND_NAME.match(name):
            kinds.setdefault(name, _kind(name, raw))
    preview = data["preview"] if isinstance(data.get("preview"), dict) else {}
    return {
        "took_s": number(data.get("took_s")),
        "preview": {"path": text(preview.get("path"), PATH_MAX), "size_bytes": whole(preview.get("size_bytes"))},
        "places": [{"path": text(raw.get("path"), PATH_MAX), "what": text(raw.get("what"), 200), "files": whole(raw.get("files")),
                    "size_bytes": whole(raw.get("size_bytes")), "problem": text(raw.get("problem"), SENTENCE_MAX)}
                   for raw in items(data.get("places"), PLACES_MOST)],
        "kinds": list(kinds.values()),
        "gauges": gauges(data.get("gauges")),
        "largest": [{"path": text(raw.get("path"), PATH_MAX), "size_bytes": whole(raw.get("size_bytes")) or 0, "files": whole(raw.get("files"))}
                    for raw in items(data.get("largest"), LARGEST_MOST)],
        "files": whole(data.get("files")), "size_bytes": whole(data.get("size_bytes")),
        "problems": [one[:SENTENCE_MAX] for one in texts(data.get("problems"), PROBLEMS_MOST)],
        "offered_bytes": whole(data.get("offered_bytes")) or 0, "choosable_bytes": whole(data.get("choosable_bytes")) or 0,
        "open_checked": data.get("open_checked") is not False,
        "purges": [], "offered_gone_bytes": 0, "choosable_gone_bytes": 0,
    }


def gauges(raw: Any) -> list[dict[str, Any]]:
    """[{path, what, total_bytes, used_bytes, free_bytes, inodes, inodes_free}], one a file system; what is not known is None."""
    told = ("total_bytes", "used_bytes", "free_bytes", "inodes", "inodes_free")
    rows = [{"path": text(one.get("path"), PATH_MAX), "what": text(one.get("what"), 200), **{name: whole(one.get(name)) for name in told}}
            for one in items(raw, GAUGES_MOST)]
    return list({row["path"]: row for row in rows if row["path"]}.values())


def _kind(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    unit = raw.get("unit")
    found: dict[str, Any] = {
        "kind": name, "title": text(raw.get("title"), 120) or name, "one": text(raw.get("one"), 120) or name,
        "unit": unit if unit in UNITS else UNITS[0], "leftover": text(raw.get("leftover"), SENTENCE_MAX),
        "keeping": text(raw.get("keeping"), SENTENCE_MAX), "listed": whole(raw.get("listed"), COUNT_MOST) or 0,
        "why_kept": [{"why": text(one.get("why"), SENTENCE_MAX), "count": whole(one.get("count"), COUNT_MOST) or 0,
                      "size_bytes": whole(one.get("size_bytes")) or 0} for one in items(raw.get("why_kept"), WHY_MOST)],
        "gone": dict.fromkeys(PARTS, 0),
    }
    found |= {flag: raw.get(flag) is True for flag in ("offered_by_default", "with_redeploy", "own")}
    for state in STATES:
        part = raw[state] if isinstance(raw.get(state), dict) else {}
        found[state] = {name: whole(part.get(name)) or 0 for name in PARTS} | {name: whole(part.get(name)) for name in ("oldest_ns", "newest_ns")}
    return found


def _artifact(scan: ArtifactScan, raw: dict[str, Any]) -> ScannedArtifact:
    """Raises ValueError, naming what is wrong."""
    state, unit = raw.get("state"), raw.get("unit")
    if state not in STATES or unit not in UNITS:
        raise ValueError(f"state {str(state)[:20]!r}, unit {str(unit)[:20]!r}")
    open_by = [{"pid": whole(one.get("pid"), COUNT_MOST), "name": text(one.get("name"), 200), "service": _service(one.get("service"))}
               for one in items(raw.get("open_by"), 5)]
    return ScannedArtifact(scan=scan, unit=unit, state=state, why=text(raw.get("why"), SENTENCE_MAX), open_by=open_by, **_common(raw))


def _common(raw: dict[str, Any]) -> dict[str, Any]:
    """What artifacts and lines of a manifest have alike. Raises ValueError, naming what is wrong."""
    place, size, files = whole(raw.get("number"), COUNT_MOST), whole(raw.get("size_bytes"), ONE_BYTES_MOST), whole(raw.get("files"), COUNT_MOST)
    kind, path, changed = raw.get("kind"), raw.get("path"), number(raw.get("mtime_ns"))
    if not place or size is None or files is None or changed is None:
        raise ValueError("no number, size, count of files or time of change")
    if not isinstance(kind, str) or not KIND_NAME.match(kind) or not isinstance(path, str) or not path:
        raise ValueError(f"no kind, or no path: {str(kind)[:40]!r}")
    return {"number": place, "kind": kind, "path": path[:PATH_MAX], "size_bytes": size, "files": files, "newest": when(changed / 1e9),
            "owner": text(raw.get("owner"), 64), "service": _service(raw.get("service"))}


def _service(value: Any) -> str:
    return value if isinstance(value, str) and NAME.match(value) else ""


def _own_scan(job: Job, data: dict[str, Any], at: datetime) -> ArtifactScan:
    if data.get("scan") != str(job.pk):
        raise ValueError(f"job {job.pk} tells of another scan: {str(data.get('scan'))[:40]!r}")
    scan, _ = ArtifactScan.objects.get_or_create(job=job, defaults={"node": job.node, "at": min(at, timezone.now()), "practice": job.practice})
    return scan


def _forget_older(scan: ArtifactScan) -> None:
    """Of the node's scans (those of plans apart) only the newest keep the artifacts that they list, and the one that says what can be given back."""
    alike = ArtifactScan.objects.filter(node=scan.node, job__type=scan.job.type)
    kept = [*alike.filter(finished=True).order_by("-at").values_list("pk", flat=True)[:SCANS_KEPT], scan.pk,
            *(one.pk for one in newest_scans([scan.node]).values())]
    unended = alike.filter(finished=False, at__gte=scan.at).values_list("pk", flat=True)
    old = alike.exclude(pk__in=[*kept, *unended]).filter(artifacts__isnull=False).values_list("pk", flat=True).distinct()
    for pk in list(old):
        ScannedArtifact.objects.filter(scan=pk).delete()


# ---- purges ----


def keep_entries(job: Job, data: dict[str, Any], at: datetime) -> int:
    """Lines of a manifest, as rows, and what they mean for the node's scans; gives how many lines were new. A number that is there already is left
    out."""
    rows = _fresh(PurgedArtifact.objects.filter(job=job), _each(job, data.get("entries"), ENTRIES_MOST, lambda raw: _line(job, raw)),
                  LINES_MOST, job)
    if not rows:
        return 0
    scan = purged_scan(job, data)
    if scan is not None:
        _mark_own(scan, job, rows)
    PurgedArtifact.objects.bulk_create(rows)
    for other in _listing_scans(job.node, before=at).exclude(pk=scan.pk if scan else None):
        _mark_other(other, rows)
    return len(rows)


def keep_purge(job: Job, data: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The data of a purge.result in a form that pages can rely on; keys as in ops/jobs/events.py. What the node freed without telling each line of
    it is added to the scan. What a node of an earlier version told (`deleted` and `kept`, a list of files each) is kept as it is, to be read by
    dashboard/purge_story.py. Raises ValueError where the job has told a result before."""
    if job.result.get("purge"):
        raise ValueError("a purge that has told its result already")  # what no line tells of would be counted again
    if isinstance(data.get("deleted"), list) or isinstance(data.get("kept"), list):
        return data
    manifest = data["manifest"] if isinstance(data.get("manifest"), dict) else {}
    kept = data["kept"] if isinstance(data.get("kept"), dict) else {}
    freed, deleted = whole(data.get("freed_bytes")) or 0, _part(data.get("deleted"))
    result = {
        "scan": text(data.get("scan"), 40), "chosen": _part(data.get("chosen")), "deleted": deleted,
        "kept": {"count": whole(kept.get("count"), COUNT_MOST) or 0},
        "kinds": [{"kind": text(one.get("kind"), 40), "title": text(one.get("title"), 120) or text(one.get("kind"), 40),
                   "one": text(one.get("one"), 120), "freed_bytes": whole(one.get("freed_bytes")) or 0,
                   **{name: whole(one.get(name), COUNT_MOST) or 0 for name in ("chosen", "deleted", "kept")}}
                  for one in items(data.get("kinds"), KINDS_MOST)],
        "why_kept": [{"why": text(one.get("why"), SENTENCE_MAX), "count": whole(one.get("count"), COUNT_MOST) or 0,
                      "example": text(one.get("example"), 500)} for one in items(data.get("why_kept"), WHY_MOST)],
        "freed_bytes": freed,
        "manifest": {"path": text(manifest.get("path"), 4096), **{name: whole(manifest.get(name), COUNT_MOST) or 0 for name in ("entries", "told")}},
        "took_s": number(data.get("took_s")), "cancelled": data.get("cancelled") is True, "gauges": gauges(data.get("gauges")),
        "problems": [one[:SENTENCE_MAX] for one in texts(data.get("problems"), PROBLEMS_MOST)],
    }
    scan = purged_scan(job, data)
    if scan is not None:
        lines = PurgedArtifact.objects.filter(job=job)
        more = max(0, freed - (lines.aggregate(freed=Sum("freed_bytes"))["freed"] or 0))
        more_deleted = max(0, deleted["count"] - lines.filter(result="deleted").count())
        if more or more_deleted:  # of which kind, and what of it was offered, is not told: it counts as offered, so that nothing is promised twice
            scan.summary |= {name: scan.summary.get(name, 0) + more for name in ("offered_gone_bytes", "choosable_gone_bytes")}
            _add_to(scan, more, more_deleted)
    return result


def purged_scan(job: Job, data: dict[str, Any]) -> ArtifactScan | None:
    """The scan of the same node whose preview a purge took; None if the console does not know it (a command line's, a plan's)."""
    try:
        wanted = uuid.UUID(str(data.get("scan")))
    except ValueError:
        return None
    return ArtifactScan.objects.filter(job_id=wanted, node=job.node).first()


def _part(raw: Any) -> dict[str, int]:
    raw = raw if isinstance(raw, dict) else {}
    return {name: whole(raw.get(name)) or 0 for name in PARTS}


def _line(job: Job, raw: dict[str, Any]) -> PurgedArtifact:
    """Raises ValueError, naming what is wrong."""
    result = raw.get("result")
    freed, files = whole(raw.get("freed_bytes"), ONE_BYTES_MOST), whole(raw.get("deleted_files"), COUNT_MOST)
    if result not in RESULTS or freed is None or files is None:
        raise ValueError(f"result {str(result)[:20]!r}, or no count of what went")
    return PurgedArtifact(job=job, reason=text(raw.get("reason"), SENTENCE_MAX), result=result, why=text(raw.get("why"), SENTENCE_MAX),
                          freed_bytes=freed, deleted_files=files, **_common(raw))


def _mark_own(scan: ArtifactScan, job: Job, rows: Sequence[PurgedArtifact]) -> None:
    """Before the lines are stored: what they say of the scan that was previewed, found by number."""
    purges = scan.summary.setdefault("purges", [])
    earlier = [one for one in purges if one != str(job.pk)]
    if str(job.pk) not in purges:
        purges.append(str(job.pk))
    for some in _parts(rows):
        by_number = {row.number: row for row in some}
        listed = {row.number: row for row in scan.artifacts.filter(number__in=by_number).only("number", "kind", "state", "size_bytes", "files",
                                                                                              "result")}
        gone = set(PurgedArtifact.objects.filter(job__in=earlier, number__in=by_number, result__in=GONE).values_list("number", flat=True)) \
            if earlier else set()
        by_default = {kind["kind"]: OFFERED if kind.get("offered_by_default") else OPTIONAL for kind in scan.summary.get("kinds", [])}
        for place, line in by_number.items():
            of = listed.get(place)
            if place in gone or (of is not None and of.result in GONE):
                continue
            _count(scan, line, of.state if of is not None else by_default.get(line.kind, OPTIONAL), of or line)
        _set_results(scan, ((line.result, row.pk) for place, row in listed.items() if (line := by_number[place]).result != row.result
                            and row.result not in GONE))
    _add_to(scan, sum(row.freed_bytes for row in rows), sum(1 for row in rows if row.result == "deleted"))


def _mark_other(scan: ArtifactScan, rows: Sequence[PurgedArtifact]) -> None:
    """What the lines say of a scan that listed the same things: what is gone is gone for it, too."""
    changed = False
    for some in _parts([row for row in rows if row.result in GONE or row.freed_bytes]):
        by_path = {(row.kind, row.path): row for row in some}
        listed = {row.pk: (row, line) for row in scan.artifacts.filter(path__in=[row.path for row in some]).exclude(result__in=GONE).defer("open_by")
                  if (line := by_path.get((row.kind, row.path))) is not None}
        for row, line in listed.values():
            _count(scan, line, row.state, row)
        _set_results(scan, ((line.result, pk) for pk, (_, line) in listed.items()))
        changed = changed or bool(listed)
    if changed:
        scan.save(update_fields=["summary"])


def _count(scan: ArtifactScan, line: PurgedArtifact, state: str, of: ScannedArtifact | PurgedArtifact) -> None:
    """Adds to the scan's summary what a line took away. `of`: the artifact as the scan counted it."""
    whole_one = line.result in GONE
    went = of.size_bytes if whole_one else line.freed_bytes
    if state == KEPT or (not whole_one and not went):
        return
    summary = scan.summary
    for name in ("choosable_gone_bytes", *(["offered_gone_bytes"] if state == OFFERED else [])):
        summary[name] = summary.get(name, 0) + went
    kind = next((kind for kind in summary.get("kinds", []) if kind["kind"] == of.kind), None)
    if kind is not None and whole_one:
        gone = kind.setdefault("gone", dict.fromkeys(PARTS, 0))
        gone["count"] += 1
        gone["files"] += of.files
        gone["size_bytes"] += of.size_bytes


def _set_results(scan: ArtifactScan, results: Iterable[tuple[str, int]]) -> None:
    by_result: dict[str, list[int]] = defaultdict(list)
    for result, pk in results:
        by_result[result].append(pk)
    for result, pks in by_result.items():
        scan.artifacts.filter(pk__in=pks).update(result=result)


def _add_to(scan: ArtifactScan, freed: int, count: int) -> None:
    scan.freed_bytes, scan.purged_count = min(scan.freed_bytes + freed, BYTES_MOST), min(scan.purged_count + count, COUNT_MOST)
    scan.save(update_fields=["summary", "freed_bytes", "purged_count"])


def _listing_scans(node: Node, *, before: datetime) -> Any:
    """Scans of the node that looked before that time, and still have their artifacts."""
    newest = ArtifactScan.objects.filter(node=node, finished=True, job__type=SCAN, at__lte=before).order_by("-at").values_list("pk", flat=True)
    return ArtifactScan.objects.filter(pk__in=list(newest[:SCANS_KEPT]))


# ---- what can be given back ----


def newest_scans(nodes: Sequence[Node]) -> dict[int, ArtifactScan]:
    """Of each node (by its key) the scan that says what can be given back: the newest one that has ended and looked at everything; if none did, the
    newest of a part."""
    found: dict[int, ArtifactScan] = {}
    partial: dict[int, ArtifactScan] = {}
    for node in nodes:
        for scan in ArtifactScan.objects.filter(node=node, finished=True, job__type=SCAN).select_related("job").order_by("-at")[:10]:
            if is_whole(scan):
                found[node.pk] = scan
                break
            partial.setdefault(node.pk, scan)
    return partial | found


def is_whole(scan: ArtifactScan) -> bool:
    """Whether a scan looked at everything, not only below some folders or for some kinds."""
    asked = scan.job.params if isinstance(scan.job.params, dict) else {}
    return asked.get("roots") is None and asked.get("kinds") is None


def left(scan: ArtifactScan) -> dict[str, int]:
    """`offered_bytes`, `choosable_bytes`: what a purge could still free of this scan, less what was freed since."""
    gone = {name: whole(scan.summary.get(f"{name}_gone_bytes")) or 0 for name in ("offered", "choosable")}
    return {"offered_bytes": max(0, scan.offered_bytes - gone["offered"]), "choosable_bytes": max(0, scan.choosable_bytes - gone["choosable"])}


def _parts(rows: Sequence[PurgedArtifact]) -> Iterator[Sequence[PurgedArtifact]]:
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start:start + AT_ONCE]


def _each(job: Job, raw: Any, most: int, make: Callable[[dict[str, Any]], M]) -> list[M]:
    """A row of each object of a list, as far as it has the form; one line in the log says what was left out."""
    made, left_out, first = [], 0, ""
    told = raw if isinstance(raw, list) else []
    for one in told[:most]:
        try:
            if not isinstance(one, dict):
                raise ValueError(f"no object: {type(one).__name__}")
            made.append(make(one))
        except ValueError as error:
            left_out, first = left_out + 1, first or str(error)
    if left_out or len(told) > most:
        logger.warning("job #%s: %d of %d leftovers that its node told are left out: %s", job.number, len(told) - len(made), len(told),
                       first or f"more than {most} at once")
    return made


def _fresh(stored: Any, rows: Sequence[Any], most: int, job: Job) -> list[Any]:
    """Those rows whose number is not stored yet, each once, as long as there are not too many."""
    by_number: dict[int, Any] = {}
    for row in rows:
        by_number.setdefault(row.number, row)
    numbers = list(by_number)
    for start in range(0, len(numbers), AT_ONCE):
        for known_number in stored.filter(number__in=numbers[start:start + AT_ONCE]).values_list("number", flat=True):
            del by_number[known_number]
    room = most - stored.count() if by_number else 0
    fresh = list(by_number.values())[:max(room, 0)]
    if len(fresh) < len(rows):
        logger.warning("job #%s: %d leftovers are left out: told twice, or more than %d", job.number, len(rows) - len(fresh), most)
    return fresh
