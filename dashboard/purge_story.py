"""What a purge did, what a scan found, and what a redeploy of a plan would purge, each in one form for pages.

Nodes of earlier versions told purges and plans in another form (lists of paths instead of kinds and a manifest). Their jobs are kept, so both forms
are read here, and nowhere else. Nothing writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Case, Count, IntegerField, Sum, Value, When

from dashboard import from_a_node
from dashboard.from_a_node import whole
from dashboard.models import ArtifactScan, Job, PurgedArtifact
from dashboard.templatetags.roundhouse import size
from ops.artifacts.found import KEPT, OFFERED, OPTIONAL, PARTS, STAYED
from ops.artifacts.kinds import builtin, counted

LINES_SHOWN = 200  # of an old result's paths
STAYED_SHOWN = 20  # manifest lines of what was not deleted; the manifest's page has all
PATHS_OF_A_KIND = 200  # that a plan's page carries
PROBLEMS_MOST = 20
KINDS_MOST = 250  # rows of one table
ROWS_MOST = 20_000  # of one list that a node told
TEXT_MOST = 4096


def told(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[dict[str, Any]]:
    return from_a_node.items(value, ROWS_MOST)


def text(value: Any) -> str:
    return from_a_node.text(value, TEXT_MOST).strip()


def purged(found: Job) -> dict[str, Any] | None:
    """What a purge, or the purge of a redeploy, came to; None if it told nothing.

    `deleted` (artifacts), `files`, `freed_bytes`, `kept`, `gone` (they were not there any more), `left` (chosen, but not looked at before it was
    cancelled), `chosen` (each None: not known), `kinds` [{kind, title, chosen, deleted, kept, gone, freed_bytes, words}], those that gave back most
    first, `words` ("35 debug tensors and 3 compile caches"), `why_kept` [{why, count, example}], `lines` (how many lines the manifest has here),
    `cancelled`, `took_s`, `whole` (its result was told: False where the runner died first), `problems` (sentences about the manifest), `old` (told by
    an earlier version), `paths` and `kept_paths` (of an old one only).
    """
    raw = told((found.result or {}).get("purge"))
    if _is_old(raw):
        return _old(raw)
    if not raw:
        return _from_lines(found)
    deleted, chosen = told(raw.get("deleted")), told(raw.get("chosen"))
    manifest = told(raw.get("manifest"))
    kinds = _kinds(raw)
    count, stayed, of, seen = whole(deleted.get("count")), whole(told(raw.get("kept")).get("count")), whole(chosen.get("count")), whole(
        manifest.get("entries"))
    results = dict(PurgedArtifact.objects.filter(job=found).order_by().values_list("result").annotate(number=Count("id")))
    lines = sum(results.values())
    gone = dict(PurgedArtifact.objects.filter(job=found, result="gone").order_by().values_list("kind").annotate(number=Count("id")))
    kinds = [row | {"gone": gone.get(row["kind"], 0) if lines == seen else None} for row in kinds]
    return {
        "deleted": count, "files": whole(deleted.get("files")), "freed_bytes": whole(raw.get("freed_bytes")), "kept": stayed, "chosen": of,
        "chosen_bytes": whole(chosen.get("size_bytes")), "gone": results.get("gone", 0) if lines == seen else None,
        "left": max(0, of - seen) if of is not None and seen is not None else None, "kinds": kinds, "words": _sentence(kinds),
        "why_kept": [{"why": text(row.get("why")), "count": whole(row.get("count")), "example": text(row.get("example"))}
                     for row in listed(raw.get("why_kept"))],
        "lines": lines, "manifest_path": text(manifest.get("path")), "entries": seen, "cancelled": raw.get("cancelled") is True,
        "took_s": raw.get("took_s") if isinstance(raw.get("took_s"), int | float) else None, "whole": True, "old": False, "paths": [],
        "kept_paths": [], "gauges": gauges(raw.get("gauges")), "problems": from_a_node.texts(raw.get("problems"), PROBLEMS_MOST)}


def _is_old(raw: dict[str, Any]) -> bool:
    return isinstance(raw.get("deleted"), list) or isinstance(raw.get("kept"), list)


def _kind(row: dict[str, Any]) -> dict[str, Any]:
    number = whole(row.get("deleted")) or 0
    name, one, title = _names(row)
    return {"kind": name, "title": title, "chosen": whole(row.get("chosen")), "deleted": number, "kept": whole(row.get("kept")),
            "freed_bytes": whole(row.get("freed_bytes")), "words": counted(number, one, title)}


def _kinds(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """What gave back most first."""
    return sorted((_kind(row) for row in listed(raw.get("kinds"))[:KINDS_MOST]), key=lambda row: -(row["freed_bytes"] or 0))


def _names(row: dict[str, Any]) -> tuple[str, str, str]:
    """(name, word for one, title) of a kind as a node told it, cut: they stand in sentences."""
    name = text(row.get("kind"))[:40]
    return name, text(row.get("one"))[:80] or name, text(row.get("title"))[:80] or name


def _sentence(kinds: Iterable[dict[str, Any]]) -> str:
    return joined([row["words"] for row in kinds if row["deleted"]])


def joined(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def _from_lines(found: Job) -> dict[str, Any] | None:
    """Of a purge whose end was never told: what the lines of its manifest that came here say."""
    lines = PurgedArtifact.objects.filter(job=found)
    if not lines.exists():
        return None
    rows: dict[tuple[str, str], Any] = {(row["kind"], row["result"]): row for row in lines.order_by().values("kind", "result").annotate(
        number=Count("id"), freed=Sum("freed_bytes"), deleted=Sum("deleted_files"))}

    def total(what: str, *, kind: str | None = None, results: tuple[str, ...] = ()) -> int:
        return sum(row[what] for (name, result), row in rows.items() if kind in (None, name) and (not results or result in results))

    kinds = []
    for name in dict.fromkeys(name for name, _ in rows):
        known = kind_of_name(name)
        number = total("number", kind=name, results=("deleted",))
        kinds.append({"kind": name, "title": known[1], "chosen": None, "deleted": number, "kept": total("number", kind=name, results=STAYED),
                      "gone": total("number", kind=name, results=("gone",)), "freed_bytes": total("freed", kind=name),
                      "words": counted(number, *known)})
    whys = lines.order_by().exclude(why="").values("why").annotate(number=Count("id")).order_by("-number")[:20]
    return {
        "deleted": total("number", results=("deleted",)), "files": total("deleted"), "freed_bytes": total("freed"),
        "kept": total("number", results=STAYED), "chosen": None, "chosen_bytes": None, "gone": total("number", results=("gone",)), "left": None,
        "kinds": kinds, "words": _sentence(kinds), "why_kept": [{"why": row["why"], "count": row["number"], "example": ""} for row in whys],
        "lines": lines.count(), "manifest_path": "", "entries": None, "cancelled": False, "took_s": None, "whole": False, "old": False, "paths": [],
        "kept_paths": [], "gauges": [], "problems": []}


def _old(raw: dict[str, Any]) -> dict[str, Any]:
    """As versions before the manifest told it: `deleted` and `kept`, a list of files each."""
    rows = [row if isinstance(row, dict) else {"path": row} for row in raw.get("deleted") or []] if isinstance(raw.get("deleted"), list) else []
    kept = listed(raw.get("kept"))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(text(row.get("kind")), []).append(row)
    kinds = []
    for name, mine in by_kind.items():
        one, title = kind_of_name(name) if name else ("file", "Files")
        sizes = [whole(row.get("size_bytes")) for row in mine]
        kinds.append({"kind": name, "title": title, "chosen": None, "deleted": len(mine), "kept": None, "gone": None,
                      "freed_bytes": sum(size or 0 for size in sizes) if None not in sizes else None, "words": counted(len(mine), one, title)})
    return {
        "deleted": len(rows), "files": len(rows), "freed_bytes": whole(raw.get("freed_bytes")), "kept": len(kept), "chosen": None,
        "chosen_bytes": None, "gone": None, "left": None, "kinds": kinds, "words": _sentence(kinds), "why_kept": [], "lines": 0, "entries": None,
        "manifest_path": "", "cancelled": False, "took_s": None, "whole": True, "old": True, "gauges": [], "problems": [],
        "paths": [{"path": text(row.get("path")), "size_bytes": whole(row.get("size_bytes"))} for row in rows],
        "kept_paths": [{"path": text(row.get("path")), "why": text(row.get("why"))} for row in kept]}


def kind_of_name(name: str) -> tuple[str, str]:
    """(word for one, title) of a kind that only its name is known of."""
    known = next((kind for kind in builtin() if kind.name == name), None)
    return (known.one, known.title) if known else (name.replace("-", " "), f"{name.replace('-', ' ').capitalize()}s")


def summary(found: Job) -> dict[str, Any] | None:
    """`deleted`, `freed_bytes`, `kept` (each None: not known) and `words` of its purge, without a look at its manifest; None without one."""
    raw = told((found.result or {}).get("purge"))
    if not raw:
        return None
    return _old(raw) if _is_old(raw) else {
        "deleted": whole(told(raw.get("deleted")).get("count")), "freed_bytes": whole(raw.get("freed_bytes")),
        "kept": whole(told(raw.get("kept")).get("count")), "words": _sentence(_kinds(raw))}


def line(found: Job) -> str:
    """A purge in the words of a list of jobs: `35 debug tensors, 65.2 MB freed; 2 stayed`."""
    done = summary(found)
    if done is None:
        return ""
    freed = f"{size(done['freed_bytes'])} freed" if done["freed_bytes"] is not None else ""
    what = ", ".join(filter(None, (done["words"] or "nothing deleted", freed)))
    return f"{what}; {done['kept']:,} stayed" if done["kept"] else what


def purge_panel(found: Job) -> dict[str, Any] | None:
    """What its page shows of a purge: `purged`, with the first lines of its manifest that say why something is still there."""
    done = purged(found)
    if done is None:
        return None
    last = Case(When(result="gone", then=Value(1)), default=Value(0), output_field=IntegerField())  # what needs a look stands first
    stayed = PurgedArtifact.objects.filter(job=found).exclude(result="deleted").order_by(last, "number")
    return done | {"stayed": list(stayed[:STAYED_SHOWN]), "stayed_more": max(0, stayed.count() - STAYED_SHOWN),
                   "paths_more": max(0, len(done["paths"]) - LINES_SHOWN), "paths": done["paths"][:LINES_SHOWN]}


def report_part(found: Job) -> dict[str, Any] | None:
    """The cleanup of a redeploy's report: `purged`, with the first lines of its manifest (`shown`, how many there are `more`) and their `roots`."""
    done = purged(found)
    if done is None:
        return None
    lines = PurgedArtifact.objects.filter(job=found).order_by("number")
    shown: list[dict[str, Any]] = [{"path": one.path, "size_bytes": one.size_bytes, "result": one.result} for one in lines[:LINES_SHOWN]]
    if done["old"]:
        shown = [{**row, "result": "deleted"} for row in done["paths"][:LINES_SHOWN]]
    stayed = [{"path": one.path, "why": one.why} for one in lines.filter(result__in=STAYED)[:STAYED_SHOWN]] or done["kept_paths"][:STAYED_SHOWN]
    every = done["lines"] or len(done["paths"])
    return done | {"shown": shown, "more": max(0, every - len(shown)), "stayed": stayed, "stayed_more": max(0, (done["kept"] or 0) - len(stayed)),
                   "roots": sorted({row["path"].rpartition("/")[0] or "/" for row in shown if row["path"].startswith("/")})}


# ---- a scan ----


def scan_panel(found: Job) -> dict[str, Any] | None:
    """What a scan's own page shows: totals by kind, places, problems, gauges; the preview has a page of its own. None before its end."""
    scan = ArtifactScan.objects.filter(job=found).first()
    raw = told(scan.summary) if scan is not None and scan.finished else told((found.result or {}).get("scan"))
    if not raw:
        return None
    kinds: list[dict[str, Any]] = []
    for row in listed(raw.get("kinds"))[:KINDS_MOST]:
        name, one, title = _names(row)
        states = {state: _total(row.get(state)) for state in (OFFERED, OPTIONAL, KEPT)}
        every = _sum(states.values())
        kinds.append({"kind": name, "title": title, "leftover": text(row.get("leftover")), "keeping": text(row.get("keeping")),
                      **states, "all": every, "words": counted(every["count"], one, title),
                      "why_kept": [text(why.get("why")) for why in listed(row.get("why_kept"))][:3]})
    kinds = [row for row in kinds if row["all"]["count"]]
    totals = {state: _sum(row[state] for row in kinds) for state in (OFFERED, OPTIONAL, KEPT)}
    return {
        "kinds": kinds, **totals, "choosable": _sum([totals[OFFERED], totals[OPTIONAL]]), "all": _sum(totals.values()),
        "places": _places(raw),
        "problems": [text(one) for one in raw.get("problems") or [] if isinstance(one, str)] if isinstance(raw.get("problems"), list) else [],
        "files": whole(raw.get("files")), "size_bytes": whole(raw.get("size_bytes")), "gauges": gauges(raw.get("gauges")),
        "open_checked": raw.get("open_checked") is not False, "freed_bytes": scan.freed_bytes if scan is not None else 0,
        "purges": list(Job.objects.filter(type="purge", params__scan=str(found.pk)).order_by("number")[:20])}


def _places(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each folder that was looked into; one that is the place of several sorts says all of them."""
    rows: dict[str, dict[str, Any]] = {}
    for row in listed(raw.get("places"))[:PATHS_OF_A_KIND]:
        path, what = text(row.get("path")), text(row.get("what"))
        known = rows.setdefault(path, {"path": path, "what": what, "files": whole(row.get("files")), "size_bytes": whole(row.get("size_bytes")),
                                       "problem": text(row.get("problem"))})
        if what and what not in known["what"].split(", "):
            known["what"] = f"{known['what']}, {what}".removeprefix(", ")
    return list(rows.values())


def gauges(raw: Any) -> list[dict[str, Any]]:
    """File systems with what is free; a reading that cannot be had is None."""
    return [{"path": text(row.get("path")), "what": text(row.get("what")), **{name: whole(row.get(name)) for name in (
        "total_bytes", "used_bytes", "free_bytes", "inodes", "inodes_free")}} for row in listed(raw)]


def _total(raw: Any) -> dict[str, int]:
    return {part: whole(told(raw).get(part)) or 0 for part in PARTS}


def _sum(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    rows = list(rows)
    return {part: sum(row[part] for row in rows) for part in PARTS}


# ---- a plan ----


def planned(made: dict[str, Any]) -> dict[str, Any]:
    """What a redeploy by this plan can purge: `kinds` [{kind, title, words, count, files, size_bytes, why, ticked, kept, rows, more}], only those
    with something that can be chosen; `kept` [{words, why}] of kinds with nothing but what must stay; `words`, `size_bytes` of what is ticked;
    `problems`; `old`: planned by an earlier version, whose list no node purges any more. `first`: the kinds that are ticked, or all where none is;
    `further`, `further_bytes`: the others, which a page folds.
    """
    cleanup = told(made.get("cleanup"))
    if not cleanup:
        return _planned_before(made)
    rows = listed(cleanup.get("listed"))
    kinds: list[dict[str, Any]] = []
    stay: list[dict[str, Any]] = []
    for row in listed(cleanup.get("kinds"))[:KINDS_MOST]:
        name, one, title = _names(row)
        there = _sum([_total(row.get(OFFERED)), _total(row.get(OPTIONAL))])
        must_stay = _total(row.get(KEPT))["count"]
        whys = [text(why.get("why")) for why in listed(row.get("why_kept"))]
        if not there["count"]:
            if must_stay:
                stay.append({"words": counted(must_stay, one, title), "why": "; ".join(whys[:3])})
            continue
        mine = [{"path": text(of.get("path")), "size_bytes": whole(of.get("size_bytes"))} for of in rows
                if of.get("kind") == name and of.get("state") in (OFFERED, OPTIONAL)][:PATHS_OF_A_KIND]
        ticked = ticks_by_itself(row)
        kinds.append({"kind": name, "title": title, "words": counted(there["count"], one, title), **there, "ticked": ticked,
                      "folders": row.get("unit") == "folder", "why": text(row.get("leftover")), "keeping": text(row.get("keeping")),
                      "kept": must_stay, "rows": mine, "more": there["count"] - len(mine)})
    chosen = [row for row in kinds if row["ticked"]]
    problems = [one for one in cleanup.get("problems") or [] if isinstance(one, str)] if isinstance(cleanup.get("problems"), list) else []
    further = [row for row in kinds if chosen and not row["ticked"]]
    return {"kinds": kinds, "kept": stay, "words": joined([row["words"] for row in chosen]), "size_bytes": sum(row["size_bytes"] for row in chosen),
            "first": chosen or kinds, "further": further, "further_bytes": sum(row["size_bytes"] for row in further), "problems": problems,
            "old": False}


def ticks_by_itself(row: dict[str, Any]) -> bool:
    """Whether a kind of a plan is chosen unless a person says otherwise: it is made to go with a redeploy, and something of it is offered."""
    return row.get("with_redeploy") is True and row.get("offered_by_default") is True and _total(row.get(OFFERED))["count"] > 0


def kinds_of_plan(made: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(names of the kinds that a redeploy by this plan can purge, those of them that it purges if nobody says otherwise)."""
    known = planned(made)
    names = [] if known["old"] else [row["kind"] for row in known["kinds"]]
    return names, [row["kind"] for row in known["kinds"] if row["ticked"] and not known["old"]]


def _planned_before(made: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in listed(made.get("artifacts")) if row.get("safe") is not False]
    kinds: list[dict[str, Any]] = []
    for name in dict.fromkeys(text(row.get("kind")) for row in rows):
        mine = [row for row in rows if text(row.get("kind")) == name]
        one, title = kind_of_name(name) if name else ("file", "Files")
        paths = [{"path": text(row.get("path")), "size_bytes": whole(row.get("size_bytes"))} for row in mine]
        kinds.append({"kind": name, "title": title, "words": counted(len(mine), one, title), "count": len(mine), "files": len(mine), "ticked": False,
                      "size_bytes": sum(row["size_bytes"] or 0 for row in paths), "folders": False, "why": "", "keeping": "", "kept": 0,
                      "rows": paths[:PATHS_OF_A_KIND], "more": max(0, len(paths) - PATHS_OF_A_KIND)})
    return {"kinds": kinds, "kept": [], "words": "", "size_bytes": 0, "first": kinds, "further": [], "further_bytes": 0, "problems": [],
            "old": bool(kinds)}
