"""Cleanup as jobs: look for leftovers, and delete what was chosen of what was found.

A scan leaves a preview on the node (`previews/<job>.jsonl`) and tells totals, and of each kind the largest. A purge is made of that preview and
of nothing else: what has changed since is kept, told and counted, and the job ends `partial`. What went stands in the manifest
(`manifests/<job>.jsonl`), line by line as it goes, so that nothing is to be undone and nothing unknown when the runner is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.agent.config import NodePaths
from ops.artifacts import kinds
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, Artifact, Choice, Entry, shown
from ops.jobs.envelope import check_job_id
from ops.jobs.errors import BadInput, Busy, Cancelled, OpsError, Refused
from ops.jobs.events import EventType
from ops.jobs.journal import Tail, journal_path
from ops.jobs.pipeline import Context, Step
from ops.records import NAME, NEVER_IN_TEXT, ServiceRecord

if TYPE_CHECKING:
    from ops.artifacts.places import Place
    from ops.artifacts.purge import KindSum
    from ops.artifacts.scan import ScanResult

SCAN_DEADLINE_S = 4 * 3600
PURGE_DEADLINE_S = 4 * 3600
WAITS_MOST_S = 600.0  # for another job that deletes leftovers
ROOTS_MOST = 100
PROGRESS_EVERY_S = 0.25
EVENT_BYTES = 400_000  # of the longest list of an event: paths may be long, and a line of the journal stays below 1 MB
FOUND_MOST = 500  # artifacts in one event
ENTRIES_MOST = 1000  # lines of a manifest in one event
MANIFEST_TOLD = 100_000  # lines of a manifest that are told; the file on the node has all
LOGGED_MOST = 200  # artifacts of a purge that are logged one by one; of a larger one the first that were kept
PLAN_LISTED = 1000  # artifacts that a plan lists one by one, and how much room they may take: the plan comes back in the order that confirms it
PLAN_BYTES = 300_000
PREVIEWS_KEPT = 5
SMALL_BYTES = 1 << 20  # a preview below that (of a plan, mostly) is kept longer: nobody's confirmed plan loses it to some large scans
SMALL_KEPT = 30
PREVIEWS_BYTES = 1_000_000_000  # of all that are kept
PROBLEMS_TOLD, PLACES_TOLD, WHYS_TOLD, LARGEST_TOLD = 100, 200, 20, 50
SENTENCE_MOST = 1000  # characters of a problem
DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def scan_steps(context: Context) -> list[Step]:
    """Of a scan. Params: `roots` (absolute folders, or null for all places), `kinds` (names, or null for all), `open_check` (false: it is not
    looked at who has what open); the snapshot's `kinds`: an admin's own kinds. Raises BadInput, before anything is claimed."""
    wanted_kinds(context)
    wanted_roots(context.params)
    if not isinstance(context.params.get("open_check", True), bool):
        raise BadInput("`open_check` of a scan is true or false")
    return [Step(name="scan", title="Scan", do=scan_node, deadline_s=SCAN_DEADLINE_S)]


def purge_steps(context: Context) -> list[Step]:
    """Of a purge. Params: `scan` (the job's id), `digest` (of its preview), `choice`, `services` (that are locked meanwhile); the snapshot's `kinds`:
    an admin's own kinds as they are now (none: as the preview has them). Raises BadInput or Refused, before anything is claimed."""
    check_purge(context.params)
    if not isinstance(own := context.snapshot.get("kinds", []), list):
        raise BadInput("The order's own kinds have the wrong form")
    kinds.own(own)
    return [Step(name="purge", title="Purge", do=purge_previewed, undo=tell_what_went, deadline_s=PURGE_DEADLINE_S)]


def locks(params: dict[str, Any]) -> list[str]:
    """Of a purge: one at a time on a node, and nobody starts or changes a service whose leftovers go."""
    services = params.get("services")
    named = [name for name in services if isinstance(name, str)] if isinstance(services, list) else []
    return ["node:purge", *sorted({f"service:{name}" for name in named})]


def wanted_kinds(context: Context) -> list[kinds.Kind]:
    """The kinds that a scan looks for. Raises BadInput for one that there is not, and for an own kind that could do harm."""
    own = context.snapshot.get("kinds")
    if own is not None and not isinstance(own, list):
        raise BadInput("The order's own kinds have the wrong form")
    known = kinds.all_kinds(own or [])
    names = context.params.get("kinds")
    if names is None:
        return list(known)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadInput("The kinds to look for must be a list of names", hint="null stands for all kinds")
    if unknown := sorted(set(names) - {kind.name for kind in known}):
        raise BadInput(f"There is no kind of leftover called `{unknown[0][:60]}`", hint=f"Known: {', '.join(kind.name for kind in known)}"[:2000])
    return [kind for kind in known if kind.name in names]


def wanted_roots(params: dict[str, Any]) -> list[str] | None:
    """The folders that a scan is limited to, None if it is not. Raises BadInput for what is no list of absolute paths."""
    roots = params.get("roots")
    if roots is None:
        return None
    if not isinstance(roots, list) or not 0 < len(roots) <= ROOTS_MOST:
        raise BadInput(f"The folders to look into must be a list of at most {ROOTS_MOST}", hint="null stands for all places of leftovers")
    for root in roots:
        if not isinstance(root, str) or not root.startswith("/") or NEVER_IN_TEXT.search(root):
            raise BadInput(f"`{str(root)[:200]}` is no absolute path")
    return list(roots)


def check_purge(params: dict[str, Any]) -> Choice:
    """What a purge is asked for. Raises BadInput or Refused for an order that names no preview, no choice, or no services."""
    check_job_id(params.get("scan"))
    if not isinstance(digest := params.get("digest"), str) or not DIGEST.match(digest):
        raise BadInput("A purge must name the digest of its preview", why="It deletes what was previewed, and nothing else",
                       hint="Scan, look at the preview, and choose from it")
    services = params.get("services")
    if not isinstance(services, list) or not all(isinstance(name, str) and NAME.match(name) for name in services):
        raise Refused("A purge must say which services are locked meanwhile", why="`services` is a list of names, and may be empty")
    return Choice.from_dict(params.get("choice"))


# ---- scan ----


@dataclass(frozen=True, slots=True)
class Looked:
    """What a scan found, and its preview: {path, digest, size_bytes}."""

    result: ScanResult
    preview: dict[str, Any]


def scan_node(context: Context) -> str:
    """Looks through all places, leaves the preview, and says what there is."""
    found = look(context, wanted_kinds(context), roots=wanted_roots(context.params))
    for part in parts((artifact.as_dict() for artifact in found.result.listed), FOUND_MOST):
        context.emit(EventType.ARTIFACTS_FOUND, {"scan": context.job, "artifacts": part})
    told = bounded({"scan": context.job, "preview": found.preview, **found.result.as_dict()})
    context.emit(EventType.ARTIFACTS_SCANNED, told)
    if found.result.partial:
        context.facts["partial"] = f"Not everything could be looked at: {shown(found.result.why_partial)[:SENTENCE_MOST]}"
    counted = sum(kind[state]["count"] for kind in told["kinds"] for state in (OFFERED, OPTIONAL, KEPT))
    return f"{counted:,} leftovers among {told['files']:,} files; {size(told['offered_bytes'])} can be given back"


def look(context: Context, wanted: Sequence[kinds.Kind], *, roots: Sequence[str] | None = None,
         only: Callable[[Place], bool] | None = None) -> Looked:
    """Scans this node for these kinds, below `roots` if given, and in those places only that `only` takes; the preview is named after the job."""
    from ops.artifacts import gauges, methods, places, preview, scan
    from ops.artifacts.conditions import Conditions
    from ops.artifacts.holders import Holders, of_services

    failed: list[str] = []

    def others() -> Iterator[Artifact]:
        for kind in wanted:
            for place in where.of(kind) if kind.method != "files" else ():
                yield from methods.find(kind, place, conditions=conditions, check=context.check, problem=failed.append)
        where.problems += failed

    records = node_records(context.paths)
    where = places.of_node(context.config, context.paths, records, kinds=wanted, roots=roots)
    if only is not None:
        where.places = [place for place in where.places if only(place)]
    conditions = Conditions(context.config, context.paths, records, Holders(service_of=of_services(records)), places=where)
    prune_previews(context.paths.previews, keep=PREVIEWS_KEPT - 1)
    path = context.paths.previews / f"{context.job}.jsonl"
    pace = Pace(context)
    header = preview.Header.now(context.config.name, list(roots or []), list(wanted))
    with preview.PreviewWriter(path, header) as writer:
        result = scan.scan(where, wanted, conditions=conditions, preview=writer, progress=pace.files, check=context.check, log=context.log,
                           open_check=context.params.get("open_check") is not False, found=others(),
                           gauges=gauges.of_node(context.config, context.paths, records))
        result.partial, result.why_partial = result.partial or bool(failed), result.why_partial or next(iter(failed), "")
        digest = writer.finish(result.as_dict())
    return Looked(result, {"path": str(path), "digest": digest, "size_bytes": path.stat().st_size})


def prune_previews(folder: Path, *, keep: int = PREVIEWS_KEPT) -> None:
    """Of the previews the newest `keep` stay, of small ones more, as far as all together are not too large. What a scan that was killed had half
    written goes after a day."""
    found = []
    for entry in os.scandir(folder):
        try:
            state = entry.stat(follow_symlinks=False)
            if entry.name.endswith(".jsonl"):
                found.append((state.st_mtime, state.st_size, entry.path))
            elif entry.name.endswith(".part") and time.time() - state.st_mtime > 86400:
                Path(entry.path).unlink()
        except FileNotFoundError:  # another scan tidies up as well
            continue
    kept, total = {True: 0, False: 0}, 0
    for _, size_bytes, path in sorted(found, reverse=True):
        small = size_bytes < SMALL_BYTES
        kept[small] += 1
        total += size_bytes
        if kept[small] > (SMALL_KEPT if small else keep) or total > PREVIEWS_BYTES:
            Path(path).unlink(missing_ok=True)
            total -= size_bytes


# ---- with a redeploy ----


def for_plan(context: Context) -> dict[str, Any]:
    """What a redeploy of the job's service could delete on its way: its own leftovers, and what lies in folders that no service owns. Releases and
    uv's cache are no part of it: a redeploy tidies its releases up by itself, and needs the cache. As ops/environments/outlook.py cleanup says."""
    name = context.the_service.name
    wanted = [kind for kind in kinds.all_kinds(context.snapshot.get("kinds") or []) if kind.method == "files"]
    found = look(context, wanted, only=lambda place: not place.services or name in place.services)
    told = bounded(found.result.as_dict())
    offered = {kind["kind"] for kind in told["kinds"] if kind["with_redeploy"]}
    listed = sorted(found.result.listed, key=lambda artifact: (artifact.kind not in offered, -artifact.size_bytes, artifact.number))
    return {"scan": context.job, "digest": found.preview["digest"], "problems": told["problems"],
            "kinds": [kind for kind in told["kinds"] if any(kind[state]["count"] for state in (OFFERED, OPTIONAL, KEPT))],
            "listed": next(parts((artifact.as_dict() for artifact in listed), PLAN_LISTED, PLAN_BYTES), [])}


def wanted_with_redeploy(params: dict[str, Any]) -> list[str] | None:
    """The kinds that a redeploy's params ask for; None: those that the plan offers. Raises BadInput for what is no list of names."""
    names = params.get("purge_kinds")
    if names is not None and (not isinstance(names, list) or not all(isinstance(name, str) for name in names)):
        raise BadInput("The kinds to purge must be a list of names", hint="null stands for what the plan offers")
    return None if names is None else list(dict.fromkeys(names))


def choice_of_plan(context: Context) -> Choice | None:
    """What a redeploy deletes of its plan's preview; None: nothing. Raises BadInput for a kind that the plan found nothing of, and for a plan that
    does not say which preview it is."""
    wanted = wanted_with_redeploy(context.params)
    try:
        found = context.facts["plan"].get("cleanup") or {}
        known = {kind["kind"]: kind for kind in found.get("kinds") or []}
        there = {name for name, kind in known.items() if any(kind[state]["count"] for state in (OFFERED, OPTIONAL))}
        if wanted is None:
            wanted = [name for name, kind in known.items() if kind["with_redeploy"] and kind["offered_by_default"]]
        elif unknown := sorted(set(wanted) - known.keys()):
            raise BadInput(f"The plan found no leftovers of a kind `{unknown[0][:60]}`", hint="Choose among those of the plan, or make a new one")
        chosen = Choice(kinds=[name for name in wanted if name in there])
        if chosen.kinds:
            check_purge({"scan": found["scan"], "digest": found["digest"], "services": [], "choice": chosen.as_dict()})
    except (KeyError, TypeError, AttributeError, Refused) as error:
        raise BadInput("What the plan says of leftovers has the wrong form", why=error.what if isinstance(error, Refused) else repr(error)[:200],
                       hint="Nothing was changed. Make a new plan, or redeploy without a purge") from error
    return chosen if chosen.kinds else None


def purge_planned(context: Context) -> str:
    """The step of a redeploy: deletes what was chosen of the plan's preview. The service answers by now; nothing here puts that at risk."""
    choice, found = choice_of_plan(context), context.facts["plan"].get("cleanup") or {}
    if choice is None:
        return "nothing was chosen"
    try:
        return _purge(context, scan=str(found["scan"]), digest=str(found["digest"]), choice=choice, locked=frozenset({context.the_service.name}))
    except (OpsError, OSError) as error:  # a disk that is full, say: what serves is not rolled back for it
        what, why, fix = (error.what, error.why, error.hint) if isinstance(error, OpsError) else (error.strerror or str(error),
                                                                                                 shown(str(error.filename or "")), "")
        context.finding("purge", "warning", f"Leftovers were not deleted: {what}", why=why, fix=fix or "Purge on the node's page")
        context.facts["partial"] = f"Leftovers were not deleted: {what}"
        tell_what_went(context)  # of one that was cut off by its deadline
        return "not all of it was deleted"


# ---- purge ----


def purge_previewed(context: Context) -> str:
    """Deletes what was chosen of a preview, as far as it is what it was."""
    choice = check_purge(context.params)
    return _purge(context, scan=context.params["scan"], digest=context.params["digest"], choice=choice, locked=frozenset(context.params["services"]))


def _purge(context: Context, *, scan: str, digest: str, choice: Choice, locked: frozenset[str]) -> str:
    """Deletes what `choice` takes of the preview of that scan; `locked`: services whose locks this job holds. Raises BadInput where the preview is
    gone or another one, Cancelled after its result was told."""
    from ops.artifacts import places, purge
    from ops.artifacts.conditions import Conditions
    from ops.artifacts.holders import Holders, of_services
    from ops.artifacts.manifest import ManifestWriter
    from ops.artifacts.preview import Preview

    path = context.paths.previews / f"{scan}.jsonl"
    if not path.exists():
        raise BadInput("The preview is not here any more", why=f"`{path}` is gone: the newest few are kept", hint="Scan again")
    records = node_records(context.paths)
    with one_at_a_time(context), Preview.open(path) as preview:
        if preview.digest != digest:
            raise BadInput("The preview is not the one that was chosen from", why="It was made anew since", hint="Look at it, and choose again")
        if preview.header.node != context.config.name:
            raise BadInput(f"The preview is of node `{shown(preview.header.node)[:60]}`, this is `{context.config.name}`", hint="Scan this node")
        known = purge.kinds_of(preview, context.snapshot.get("kinds"))
        where = places.of_node(context.config, context.paths, records, kinds=known, roots=preview.header.roots or None)
        conditions = Conditions(context.config, context.paths, records, Holders(service_of=of_services(records)), places=where)
        teller = Teller(context, scan)
        with ManifestWriter(context.paths.manifests / f"{context.job}.jsonl", scan=scan, digest=digest, node=context.config.name) as written:
            result = purge.purge(preview, choice, places=where, conditions=conditions, manifest=written, kinds=known, locked_services=locked,
                                 progress=Pace(context).artifacts, check=context.check, on_entry=teller)
    teller.flush()
    told = _tell_result(context, scan, result.as_dict(), teller.told)
    if result.cancelled:
        raise Cancelled(context.step)
    stayed, why = result.kept, f": {told['why_kept'][0]['why']}" if told["why_kept"] else ""
    if result.partial:
        context.facts["partial"] = f"{stayed:,} of {result.chosen.count:,} stayed{why}" if stayed else result.problems[0]
    return f"{result.deleted.files:,} files, {size(result.freed_bytes)} freed" + (f"; {stayed:,} stayed" if stayed else "")


@contextmanager
def one_at_a_time(context: Context) -> Iterator[None]:
    """Waits until no other job of this node deletes leftovers. A redeploy deletes as one of many steps and does not hold `node:purge`, which would
    keep every purge waiting for it, from its build on; without this it could delete beside a purge, and each would tell of things that were gone.
    Raises Busy after WAITS_MOST_S."""
    path = context.paths.locks / "deleting.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until, told = time.monotonic() + WAITS_MOST_S, False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    context.log("Another job of this node deletes leftovers at the moment: this one waits")
                told = True
            if time.monotonic() > until:
                raise Busy("Another job of this node deletes leftovers, and has not ended yet", hint="Purge on the node's page, when it has ended")
            context.sleep(0.2)
        yield
    finally:
        os.close(descriptor)


def _tell_result(context: Context, scan: str, result: dict[str, Any], told: int) -> dict[str, Any]:
    from ops.artifacts import gauges

    whole = bounded_result({"scan": scan, **result, "manifest": {**result["manifest"], "told": told},
                            "gauges": gauges.of_node(context.config, context.paths, node_records(context.paths))})
    context.emit(EventType.PURGE_RESULT, whole)
    context.facts["purge_told"] = True
    return whole


def tell_what_went(context: Context) -> str:
    """Undo of a purge, which has none: what went is gone. A purge that was killed could not tell how far it came; the manifest, written line by line,
    tells it here. Gives no note: nothing was put back."""
    from ops.artifacts.manifest import Manifest

    path = context.paths.manifests / f"{context.job}.jsonl"
    if context.facts.get("purge_told") or not path.exists():
        return ""
    known: set[int] = set()
    tail = Tail(journal_path(context.paths, context.job))
    while events := tail.read():
        for event in events:
            if event.type == EventType.PURGE_RESULT:
                return ""
            if event.type == EventType.PURGE_ENTRIES:
                known |= {line["number"] for line in event.data["entries"]}
    try:
        with Manifest(path) as written:
            teller, counted = Teller(context, written.scan, told=len(known), logs=False), Counted(context, written.scan, written.digest)
            for entry in written.entries():
                counted.add(entry)
                if entry.number not in known:
                    teller(entry)
            teller.flush()
            _tell_result(context, written.scan, written.result or counted.result(path), teller.told)
    except OpsError as error:  # no reason to keep the locks for: whoever wants to know can read what there is
        context.log(f"What the purge had deleted cannot be told: {error}")
    return ""


class Counted:
    """The result of a purge that did not come to its end, from its manifest, and from its preview where that is still here."""

    def __init__(self, context: Context, scan: str, digest: str) -> None:
        from ops.artifacts.preview import Preview
        from ops.artifacts.purge import KindSum, PurgeResult, Sum

        self._made, self._sum = PurgeResult(cancelled=True), KindSum
        self._titles = {kind.name: kind for kind in kinds.builtin()}
        self._whys: dict[str, list[Any]] = {}
        self._seen, self._chosen = Sum(), False
        choice = choice_of_plan(context) if "plan" in context.facts else check_purge(context.params)
        path = context.paths.previews / f"{scan}.jsonl"
        if choice is None or not path.exists():
            return
        with Preview.open(path) as preview:
            if preview.digest != digest:
                return
            self._chosen = True
            self._titles.update(preview.kinds)
            for artifact, _ in preview.artifacts(choice):
                self._add_chosen(artifact)

    def add(self, entry: Entry) -> None:
        made = self._made
        if not self._chosen:
            self._add_chosen(entry)
        kind = made.kinds.setdefault(entry.kind, self._kind(entry.kind))
        kind.freed_bytes += entry.freed_bytes
        made.deleted.files += entry.deleted_files
        made.deleted.size_bytes += entry.freed_bytes
        made.entries += 1
        if entry.result == "deleted":
            made.deleted.count += 1
            kind.deleted += 1
        elif entry.result != "gone":
            made.kept += 1
            kind.kept += 1
            self._whys.setdefault(entry.why, [0, shown(entry.path)])[0] += 1

    def result(self, path: Path) -> dict[str, Any]:
        """As ops/artifacts/purge.py PurgeResult.as_dict."""
        made = self._made
        made.manifest_path = str(path)
        made.why_kept = [{"why": why, "count": count, "example": example} for why, (count, example) in
                         sorted(self._whys.items(), key=lambda row: -row[1][0])[:WHYS_TOLD]]
        return made.as_dict() | {"took_s": None}

    def _add_chosen(self, one: Artifact | Entry) -> None:
        chosen = self._made.chosen
        chosen.count += 1
        chosen.files += one.files
        chosen.size_bytes += one.size_bytes
        self._made.kinds.setdefault(one.kind, self._kind(one.kind)).chosen += 1

    def _kind(self, name: str) -> KindSum:
        known = self._titles.get(name)
        return self._sum(known.title if known else name, known.one if known else name)


class Teller:
    """Says a manifest's lines as events, in parts, and logs what a person may want to read while it goes on: of a small purge every artifact, of a
    large one what was kept, as far as that is not too much."""

    def __init__(self, context: Context, scan: str, *, told: int = 0, logs: bool = True) -> None:
        self.context, self.scan, self.told, self._logs = context, scan, told, logs
        self._lines: list[dict[str, Any]] = []
        self._bytes = self._logged = 0
        self._since = time.monotonic()

    def __call__(self, entry: Entry) -> None:
        line = entry.as_dict()
        self._log(line)
        if self.told + len(self._lines) >= MANIFEST_TOLD:
            return
        self._lines.append(line)
        self._bytes += weight(line)
        if len(self._lines) >= ENTRIES_MOST or self._bytes >= EVENT_BYTES or time.monotonic() - self._since > 1:
            self.flush()

    def flush(self) -> None:
        if self._lines:
            self.context.emit(EventType.PURGE_ENTRIES, {"scan": self.scan, "entries": self._lines})
        self.told += len(self._lines)
        self._lines, self._bytes, self._since = [], 0, time.monotonic()

    def _log(self, line: dict[str, Any]) -> None:
        if not self._logs:
            return
        self._logged += 1
        if self._logged > LOGGED_MOST:
            if self._logged == LOGGED_MOST + 1:
                self.context.log("More is not logged one by one: the manifest has all")
            return
        became = f"{line['result']} {line['path']}"
        self.context.log(f"{became}: {shown(line['why'])}" if line["why"] else f"{became} ({size(line['freed_bytes'])})")


class Pace:
    """Progress at most a few times a second, whatever the work's own pace."""

    def __init__(self, context: Context) -> None:
        self._context, self._at = context, float("-inf")

    def files(self, done: int, where: str = "") -> None:
        """Of a scan: files that were looked at, and the folder that it is in."""
        self._tell(done, None, "files", where)

    def artifacts(self, done: int, total: int, freed_bytes: int = 0) -> None:
        """Of a purge."""
        self._tell(done, total, "artifacts", f"{size(freed_bytes)} freed")

    def _tell(self, done: int, total: int | None, unit: str, text: str) -> None:
        now = time.monotonic()
        if now - self._at >= PROGRESS_EVERY_S or done == total:
            self._at = now
            self._context.progress(done, total, unit, text)


# ---- what both need ----


def node_records(paths: NodePaths) -> list[ServiceRecord]:
    """All services of this node, whole."""
    from ops.agent import telemetry

    return telemetry.records(paths)


def parts(rows: Iterable[dict[str, Any]], most: int, most_bytes: int = EVENT_BYTES) -> Iterator[list[dict[str, Any]]]:
    """`rows` in lists of at most `most`, and of at most about `most_bytes` as JSON: paths may be long."""
    part: list[dict[str, Any]] = []
    heavy = 0
    for row in rows:
        weighs = weight(row)
        if part and (len(part) >= most or heavy + weighs > most_bytes):
            yield part
            part, heavy = [], 0
        part.append(row)
        heavy += weighs
    if part:
        yield part


def weight(value: Any) -> int:
    """Bytes of it as JSON."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"))


def bounded(told: dict[str, Any]) -> dict[str, Any]:
    """The summary of a scan in a form that one event can hold: of long lists the first, with a problem sentence that says how many were left out."""
    problems = [shown(str(one))[:SENTENCE_MOST] for one in told["problems"][:PROBLEMS_TOLD]]
    if len(told["problems"]) > PROBLEMS_TOLD:
        problems.append(f"{len(told['problems']) - PROBLEMS_TOLD:,} more problems were met")
    rest = {**told, "problems": problems, "places": told["places"][:PLACES_TOLD],
            "kinds": [{**kind, "why_kept": kind["why_kept"][:WHYS_TOLD]} for kind in told["kinds"]]}
    rest["largest"] = next(parts(told["largest"], LARGEST_TOLD, EVENT_BYTES // 4), [])
    return rest


def bounded_result(told: dict[str, Any]) -> dict[str, Any]:
    """The result of a purge in a form that one event can hold."""
    return {**told, "why_kept": next(parts(told["why_kept"], WHYS_TOLD, EVENT_BYTES // 2), [])}


def size(count: float) -> str:
    """`65.2 MB`."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,.0f} bytes"
