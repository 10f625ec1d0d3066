"""What a scan of leftovers, a choice of it and a manifest mean to a reader: groups of rows, totals, gauges before and after, words.

Everything here reads rows and gives plain data for templates; nothing writes. Whatever stands in a summary was said by a node, so nothing of it is
relied on: what is no number counts as none, what is no text is not shown. A scan may list 40,000 artifacts; a page holds some hundreds of them, and
all else (filters, orders, sums) is asked of the database.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Case, CharField, Count, F, IntegerField, Max, Min, Q, QuerySet, Sum, Value, When
from django.http.request import QueryDict
from django.urls import reverse
from django.utils import timezone

from dashboard import cleanup_choice, cleanup_rows, job_story, purge_story
from dashboard.from_a_node import items, text, whole
from dashboard.models import ArtifactScan, Job, Node, PurgedArtifact, ScannedArtifact
from dashboard.templatetags.roundhouse import as_datetime, size
from ops.artifacts.found import CHOSEN_MOST, GONE, KEPT, OFFERED, OPTIONAL, PARTS, Choice
from ops.artifacts.kinds import counted
from ops.artifacts.places import is_inside

FIRST, MORE, ROWS_MOST = 6, 50, 2000  # rows of a kind: at first, at each click, at most
OPENED = 3  # kinds that are open at first
ROWS_OF_A_FORM = 700  # of all kinds together on a whole page: each is a field of its form, of which a request may hold 900
WORDS = 8  # of a search
LARGEST_SHOWN, PROBLEMS_SHOWN, HOLDERS_SHOWN = 8, 20, 5
SCAN_JOBS, PURGE_JOBS = ("artifact-scan",), ("purge",)
STATES = {"choosable": "can be chosen", OFFERED: "chosen at first", OPTIONAL: "only if you choose it", KEPT: "kept", "purged": "purged since"}
LARGER = {"1000000": "1 MB", "10000000": "10 MB", "100000000": "100 MB", "1000000000": "1 GB", "10000000000": "10 GB"}
OLDER = {"3600": "an hour", "86400": "a day", "604800": "7 days", "1209600": "14 days", "2592000": "30 days"}
ORDERS = {"size": ("size_bytes", "Size"), "age": ("newest", "Age"), "path": ("path", "Path"), "owner": ("owner", "Owner")}
FALLING = ("size", "age")  # the first click orders from the largest, and from the oldest
USUAL = "-size"
RESULTS = {"deleted": ("done", "Deleted"), "partly": ("partial", "Partly"), "kept": ("partial", "Kept"), "gone": ("skipped", "Was gone")}


# ---- what is shown: filters, order, open kinds ----


@dataclass(slots=True)
class Shown:
    """Filters as they were asked for ("" for none; anything unknown is left out), the order ("-size"), and how many rows of which kinds."""

    q: str = ""
    kind: str = ""
    state: str = ""
    service: str = ""
    larger: str = ""
    older: str = ""
    sort: str = USUAL
    open: dict[str, int] | None = None  # None: as a page opens
    last: str = ""  # the kind of which rows were asked for by a button

    NAMES = ("q", "kind", "state", "service", "larger", "older")

    @classmethod
    def of(cls, asked: QueryDict) -> Shown:
        made = cls()
        for name in cls.NAMES:
            setattr(made, name, asked.get(name, "").replace("\x00", "").strip()[:200])
        made.state = made.state if made.state in STATES else ""
        made.larger = made.larger if made.larger in LARGER else ""
        made.older = made.older if made.older in OLDER else ""
        for sort in (asked.get("sort", ""), asked.get("order", "")):
            if sort.removeprefix("-") in ORDERS:
                made.sort = sort
                break
        told = [*asked.getlist("open")[:100], *asked.getlist("show")[:1]]
        made.last = asked.get("show", "").partition(":")[0][:40]
        if told:
            made.open = {}
            for one in told:
                kind, _, count = one.partition(":")
                if kind:
                    made.open[kind[:40]] = min(int(count), ROWS_MOST) if count.isascii() and count.isdigit() and len(count) < 6 else FIRST
        return made

    def fit_a_form(self) -> None:
        """Leaves so many rows unfolded as one form can send, first of the kind that was asked for last."""
        room, opened = ROWS_OF_A_FORM, self.open or {}
        for kind in sorted(opened, key=lambda one: one != self.last):
            opened[kind] = min(opened[kind], room)
            room -= opened[kind]

    @property
    def filtered(self) -> bool:
        return any(getattr(self, name) for name in self.NAMES)

    @property
    def folded(self) -> bool:
        """Whether one of the filters that are folded away is in use."""
        return any((self.service, self.larger, self.older))

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.NAMES} | {"sort": self.sort}

    @property
    def query(self) -> str:
        """As an address has it: only what differs from a page as it opens."""
        made = QueryDict(mutable=True)
        made.update({name: value for name, value in self.as_dict().items() if value and not (name == "sort" and value == USUAL)})
        return made.urlencode()


def headings(shown: Shown) -> dict[str, dict[str, str]]:
    """For each column that orders: its title, the order that a click asks for, and how it is ordered now."""
    told = {}
    for name, (_, title) in ORDERS.items():
        current = shown.sort.removeprefix("-") == name
        falling = not shown.sort.startswith("-") if current else name in FALLING
        told[name] = {"title": title, "next": f"-{name}" if falling else name,
                      "sorted": ("descending" if shown.sort.startswith("-") else "ascending") if current else ""}
    return told


def _filtered(scan: ArtifactScan, shown: Shown, now: datetime) -> QuerySet[ScannedArtifact]:
    found = scan.artifacts.all()
    if shown.kind:
        found = found.filter(kind=shown.kind)
    if shown.service:
        found = found.filter(service=shown.service)
    if shown.state == "choosable":
        found = found.exclude(state=KEPT).exclude(result__in=GONE)
    elif shown.state == "purged":
        found = found.exclude(result="")
    elif shown.state:
        found = found.filter(state=shown.state)
    if shown.larger:
        found = found.filter(size_bytes__gte=int(shown.larger))
    if shown.older:
        found = found.filter(newest__lte=now - timedelta(seconds=int(shown.older)))
    for word in shown.q.split()[:WORDS]:
        found = found.filter(path__icontains=word)
    return found


def _ordered(found: QuerySet[ScannedArtifact], sort: str) -> QuerySet[ScannedArtifact]:
    name = sort.removeprefix("-")
    column = ORDERS[name][0]
    # The oldest come first where ages fall: the smallest time of the last change
    falling = sort.startswith("-") != (name == "age")
    return found.order_by(F(column).desc() if falling else F(column).asc(), "number")


# ---- groups and rows ----


def groups(scan: ArtifactScan, shown: Shown, *, now: datetime | None = None, disks: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The kinds of a scan with the rows that are shown of each: those that are offered first (before all, what goes with a redeploy), those of which
    all is kept last."""
    now = now or timezone.now()
    kinds = kinds_of(scan)
    listed: dict[str, Any] = {row["kind"]: row for row in scan.artifacts.order_by().values("kind").annotate(
        count=Count("pk"), size=Sum("size_bytes"), owners=Count("owner", distinct=True), owner=Max("owner"),
        oldest=Min("newest"), newest_at=Max("newest"), purged=Count("pk", filter=~Q(result="")),
        left=Count("pk", filter=~Q(state=KEPT) & ~Q(result__in=GONE)))}
    for name, row in listed.items():  # told of, but not in the summary
        if name not in kinds:
            kinds[name] = _kind({"kind": name, "offered": {"count": row["count"], "size_bytes": row["size"] or 0}})
    hits: dict[str, Any] = {}
    if shown.filtered:
        by_kind = _filtered(scan, shown, now).order_by().values("kind")
        hits = {row["kind"]: row for row in by_kind.annotate(count=Count("pk"), size=Sum("size_bytes"))}
    places = _places(scan, disks)
    told = []
    for name, kind in kinds.items():
        here = listed.get(name, {})
        if not kind["count"] or (shown.filtered and name not in hits):
            continue
        in_rows = here.get("count", 0)
        unlisted = max(0, kind["count"] - in_rows)
        told.append(kind | {
            "age": age_range(now, here.get("oldest") or kind["oldest"], here.get("newest_at") or kind["newest"]),
            "owner": here.get("owner", "") if here.get("owners") == 1 else f"{here['owners']} users" if here.get("owners") else "",
            "in_rows": in_rows, "purged": here.get("purged", 0), "unlisted": unlisted, "left_listed": here.get("left", 0),
            "unlisted_bytes": max(0, kind["size_bytes"] - (here.get("size") or 0)) if unlisted else 0,
            "hits": hits.get(name, {}).get("count", in_rows), "hit_bytes": hits.get(name, {}).get("size"), "on": places.get(name, []),
        })
    told.sort(key=lambda one: (0 if one["offered"]["count"] else 1 if one["optional"]["count"] else 2, not one["with_redeploy"], -one["size_bytes"],
                               one["kind"]))
    opened = shown.open
    if opened is None:
        opened = {one["kind"]: FIRST for one in (told if shown.filtered else [one for one in told if one["offered"]["count"]][:OPENED])}
    for one in told:
        count = opened.get(one["kind"], 0)
        one["open"] = count > 0
        one["rows"] = rows(scan, one, shown, now=now, count=count, disks=disks) if count else []
        one["more"] = max(0, one["hits"] - len(one["rows"]))
        one["next"] = count + MORE
        one["more_bytes"] = _more_bytes(one)
    return told


def _more_bytes(group: Mapping[str, Any]) -> int:
    whole = group["hit_bytes"] if group["hit_bytes"] is not None else group["size_bytes"] - group["unlisted_bytes"]
    return max(0, int(whole) - sum(row["artifact"].size_bytes for row in group["rows"]))


def rows(scan: ArtifactScan, kind: Mapping[str, Any], shown: Shown, *, now: datetime | None = None, start: int = 0, count: int = MORE,
         disks: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Some rows of one kind, in the order asked for."""
    now = now or timezone.now()
    found = _ordered(_filtered(scan, shown, now).filter(kind=kind["kind"]), shown.sort)
    checked = scan.summary.get("open_checked") is not False
    return [_row(artifact, kind, now, checked, disks) for artifact in found[start:start + count]]


def _row(artifact: ScannedArtifact, kind: Mapping[str, Any], now: datetime, checked: bool, disks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    holders = [one for one in artifact.open_by if isinstance(one, dict)][:HOLDERS_SHOWN] if isinstance(artifact.open_by, list) else []
    said = artifact.why if artifact.why not in (kind.get("leftover"), kind.get("keeping")) else ""
    folder, name = parted(artifact.path)
    return {
        "artifact": artifact, "folder": folder, "name": name, "age": age_words((now - artifact.newest).total_seconds()),
        "holders": [_holder(one) for one in holders[:1]],
        "more_holders": len(holders) - 1, "not_all_holders": len(holders) == HOLDERS_SHOWN,  # a node tells no more of them, there may be
        "all_holders": ", ".join(_holder(one) for one in holders),
        "nobody": "nobody" if checked else "nobody seen", "why": said, "kept": artifact.state == KEPT, "can": can_choose(artifact),
        "result": RESULTS.get(artifact.result), "disk": _disk_of(artifact.path, disks),
    }


def parted(path: str) -> tuple[str, str]:
    """The folder of a path with its slash, and the name: read apart, they are quicker to tell apart."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}", name


def can_choose(artifact: ScannedArtifact) -> bool:
    return artifact.state != KEPT and artifact.result not in GONE


def _holder(one: Mapping[str, Any]) -> str:
    name, pid = one.get("name"), one.get("pid")
    words = [*([name[:60]] if isinstance(name, str) and name else []), *([f"pid {pid}"] if isinstance(pid, int) else [])]
    return ", ".join(words) or "a process"


def numbers(scan: ArtifactScan, shown: Shown, disks: Sequence[Mapping[str, Any]] = ()) -> dict[str, list[list[int]]]:
    """All that can be chosen of what a filter finds: of each kind [number, bytes, files, disk] lists. For the page's script."""
    found: dict[str, list[list[int]]] = {}
    listed = _filtered(scan, shown, timezone.now()).exclude(state=KEPT).exclude(result__in=GONE).order_by("number")
    for number, kind, path, bytes_, files in listed.values_list("number", "kind", "path", "size_bytes", "files")[:CHOSEN_MOST]:
        found.setdefault(kind, []).append([number, bytes_, files, _disk_of(path, disks)])
    return found


def kinds_of(scan: ArtifactScan) -> dict[str, dict[str, Any]]:
    """The kinds of a scan's summary by name, in its order."""
    told = scan.summary.get("kinds")
    return {one["kind"]: _kind(one) for one in told if isinstance(one, dict) and isinstance(one.get("kind"), str)} if isinstance(told, list) else {}


def _kind(raw: Mapping[str, Any]) -> dict[str, Any]:
    states = {state: _counted(raw.get(state)) for state in (OFFERED, OPTIONAL, KEPT, "gone")}
    choosable = {part: max(0, states[OFFERED][part] + states[OPTIONAL][part] - states["gone"][part]) for part in PARTS}
    why_kept = [one for one in raw["why_kept"] if isinstance(one, dict) and isinstance(one.get("why"), str)] \
        if isinstance(raw.get("why_kept"), list) else []
    title = text(raw.get("title"), 80) or str(raw["kind"])
    return {
        "kind": str(raw["kind"])[:40], "title": title, "one": text(raw.get("one"), 80) or title, "unit": raw.get("unit"),
        "leftover": text(raw.get("leftover"), 300), "keeping": text(raw.get("keeping"), 300), "own": raw.get("own") is True,
        "with_redeploy": raw.get("with_redeploy") is True,
        "offered_by_default": raw.get("offered_by_default") is not False, **states, "choosable": choosable, "why_kept": why_kept[:5],
        **{part: sum(states[state][part] for state in (OFFERED, OPTIONAL, KEPT)) for part in PARTS},
        "oldest": _moment([states[s]["oldest_ns"] for s in (OFFERED, OPTIONAL, KEPT)], min),
        "newest": _moment([states[s]["newest_ns"] for s in (OFFERED, OPTIONAL, KEPT)], max),
        "things": things(raw.get("unit"), sum(states[state]["count"] for state in (OFFERED, OPTIONAL, KEPT))),
    }


def things(unit: Any, count: int) -> str:
    one, many = ("folder", "folders") if unit == "folder" else ("file", "files") if unit == "file" else ("item", "items")
    return f"{count:,} {one if count == 1 else many}"


def _counted(raw: Any) -> dict[str, Any]:
    told = raw if isinstance(raw, dict) else {}
    return {part: whole(told.get(part)) or 0 for part in PARTS} | {at: whole(told.get(at)) for at in ("oldest_ns", "newest_ns")}


def _moment(told: Sequence[int | None], of: Any) -> datetime | None:
    known = [one for one in told if one is not None and one < 2**62]
    return as_datetime(of(known) / 1e9) if known else None


# ---- ages ----


def age_words(passed_s: float) -> str:
    """3 min, 6 h, 11 d, 14 months."""
    passed = max(0.0, passed_s)
    for limit, one, unit in ((5400, 60, "min"), (172_800, 3600, "h"), (86_400 * 730, 86_400, "d")):
        if passed < limit:
            return f"{max(1, round(passed / one))} {unit}"
    return f"{round(passed / (365.25 * 86_400))} years"


def age_range(now: datetime, oldest: datetime | None, newest: datetime | None) -> str:
    """From the youngest to the oldest: `3 to 11 d`."""
    if oldest is None or newest is None:
        return ""
    young, old = age_words((now - newest).total_seconds()), age_words((now - oldest).total_seconds())
    if young == old:
        return old
    return f"{young.split()[0]} to {old}" if young.split()[1] == old.split()[1] else f"{young} to {old}"


# ---- disks ----


def disks(node: Node, scan: ArtifactScan | None = None) -> list[dict[str, Any]]:
    """The node's file systems: as its agent last told them, else as the scan found them. Numbers that were not read are None."""
    telemetry = node.telemetry if isinstance(node.telemetry, dict) else {}
    for told in (telemetry.get("disks"), scan.summary.get("gauges") if scan is not None else None):
        found = [_disk(one) for one in told if isinstance(one, dict) and isinstance(one.get("path"), str)][:32] if isinstance(told, list) else []
        if found:
            return found
    return []


def _disk(raw: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"path": text(raw["path"], 300), "what": text(raw.get("what"), 200)}
    made |= {f"{name}_bytes": whole(raw.get(f"{name}_bytes")) for name in ("total", "used", "free")}
    inodes, left = whole(raw.get("inodes")), whole(raw.get("inodes_free"))
    of_inodes = (inodes - left) / inodes if inodes and left is not None and left <= inodes else None
    made["inodes_share"], made["inodes_full"] = of_inodes, of_inodes is not None and of_inodes > 0.9
    used, free = made["used_bytes"], made["free_bytes"]
    # as df has it: of what users may fill, for what a file system keeps for root is neither in use nor free
    made["usable_bytes"] = used + free if used is not None and free is not None else made["total_bytes"]
    made["share"] = used / made["usable_bytes"] if made["usable_bytes"] and used is not None else None
    made["full"] = made["share"] is not None and made["share"] > 0.9
    return made


def with_freed(found: Sequence[dict[str, Any]], freed: Mapping[int, int]) -> list[dict[str, Any]]:
    """Each disk with its bar: what stays in use, what a choice would give back, and how much is free then."""
    shown = []
    for index, one in enumerate(found):
        gives = min(freed.get(index, 0), one["used_bytes"] or 0)
        total = one["usable_bytes"]
        parts = [] if not total or one["used_bytes"] is None else [
            {"kind": "b-service", "share": (one["used_bytes"] - gives) / total, "title": f"stays in use: {size(one['used_bytes'] - gives)}"},
            {"kind": "b-other", "share": gives / total, "title": f"chosen: {size(gives)}"}]
        shown.append(one | {"index": index, "gives": gives, "parts": parts,
                            "after_bytes": None if one["free_bytes"] is None else one["free_bytes"] + gives,
                            "percent": None if one["share"] is None else round(100 * one["share"])})
    return shown


def _disk_of(path: str, found: Sequence[Mapping[str, Any]]) -> int:
    """Which of the disks a path lies on: the one with the longest mount point above it; -1 if none is known."""
    best, length = -1, -1
    for index, one in enumerate(found):
        if is_inside(path, one["path"]) and len(one["path"]) > length:
            best, length = index, len(one["path"])
    return best


def _places(scan: ArtifactScan, found: Sequence[Mapping[str, Any]]) -> dict[str, list[list[int]]]:
    """Of each kind [disk, bytes that can be chosen]: of what is listed by its path, of what is not where most of the listed lies."""
    kinds = kinds_of(scan)
    if len(found) == 1:
        return {name: [[0, kind["choosable"]["size_bytes"]]] for name, kind in kinds.items()}
    if not found:
        return {}
    order = sorted(range(len(found)), key=lambda index: -len(found[index]["path"]))
    whens = [When(Q() if found[index]["path"] == "/" else Q(path=found[index]["path"]) | Q(path__startswith=f"{found[index]['path']}/"),
                  then=Value(index)) for index in order if found[index]["path"] != "/"]
    root = next((index for index in order if found[index]["path"] == "/"), -1)
    disk = Case(*whens, default=Value(root), output_field=IntegerField()) if whens else Value(root, output_field=IntegerField())
    summed: dict[str, list[list[int]]] = {}
    listed = scan.artifacts.exclude(state=KEPT).exclude(result__in=GONE).order_by().annotate(disk=disk)
    for row in listed.values("kind", "disk").annotate(size=Sum("size_bytes")):
        summed.setdefault(row["kind"], []).append([row["disk"], row["size"] or 0])
    for name, of in summed.items():
        of.sort(key=lambda one: -one[1])
        if name in kinds:
            of[0][1] += max(0, kinds[name]["choosable"]["size_bytes"] - sum(one[1] for one in of))
    return summed


# ---- choices ----


def chosen(posted: QueryDict) -> Choice:
    """The choice of a form. `kinds`: whole ones; `number`: ticked rows; `shown`: numbers of all rows that had a box, with commas between, by kind in
    `shown-KIND`; `numbers`, `without`: what was chosen and left out of rows that are not on the page."""
    kinds = list(dict.fromkeys(posted.getlist("kinds")))[:200]
    ticked = _numbers(",".join(posted.getlist("number")))
    carried, without = _numbers(posted.get("numbers", "")), _numbers(posted.get("without", ""))
    shown = {name.removeprefix("shown-"): _numbers(",".join(posted.getlist(name))) for name in posted if name.startswith("shown-")}
    of_whole = set().union(*(told for kind, told in shown.items() if kind in kinds)) if shown else set()
    on_page = set().union(*shown.values()) if shown else set()
    without = (without - on_page) | (of_whole - ticked)
    return Choice(kinds=kinds, numbers=sorted(((carried - on_page) | (ticked - of_whole)) - without), without=sorted(without))


def _numbers(text: str) -> set[int]:
    return {int(one) for one in text.split(",") if one.isascii() and one.isdigit() and len(one) < 11}


def first_choice(scan: ArtifactScan) -> Choice:
    """What is chosen when a preview opens: all that is offered; nothing once something of it was purged."""
    return Choice() if scan.purged_count or scan.freed_bytes else cleanup_choice.all_offered(scan)


def pressed(scan: ArtifactScan, choice: Choice, press: str, shown: Shown) -> Choice:
    """A choice after one of the buttons "all", "none", "offered", which act on what the filter finds."""
    if press == "offered":
        return cleanup_choice.all_offered(scan)
    if not shown.filtered:
        return Choice(kinds=[name for name, kind in kinds_of(scan).items() if kind["choosable"]["count"]]) if press == "all" else Choice()
    found = {number for of in numbers(scan, shown).values() for number, *_ in of}
    if press == "all":
        return Choice(kinds=choice.kinds, numbers=sorted(set(choice.numbers) | found), without=sorted(set(choice.without) - found))
    return Choice(kinds=choice.kinds, numbers=sorted(set(choice.numbers) - found), without=sorted(set(choice.without) | found))


def empty(choice: Choice) -> bool:
    return not choice.kinds and not choice.numbers


def totals(scan: ArtifactScan, choice: Choice) -> dict[str, Any]:
    """`count`, `files`, `size_bytes` of what a choice would delete now (what a purge of this scan has deleted does not count), `kinds` with the same
    of each and its words. Raises BadInput for a choice that is none of this scan."""
    if empty(choice):
        return {"count": 0, "files": 0, "size_bytes": 0, "kinds": [], "words": ""}
    told = cleanup_choice.totals(scan, choice)
    known = kinds_of(scan)
    found = []
    for row in told["kinds"]:
        left = {part: max(0, row[part] - row["gone"][part]) for part in PARTS}
        if left["count"]:
            kind = known.get(row["kind"]) or _kind(row)
            found.append({**left, "kind": row["kind"], "title": kind["title"], "one": kind["one"], "keeping": kind["keeping"],
                          "unit": kind["unit"], "own": kind["own"], "whole": left["count"] == kind["choosable"]["count"],
                          "of": kind["choosable"]["count"], "offered_by_default": kind["offered_by_default"],
                          "words": counted(left["count"], kind["one"], kind["title"])})
    return {**{part: sum(row[part] for row in found) for part in PARTS}, "kinds": found, "words": words(found)}


def words(kinds: Sequence[Mapping[str, Any]]) -> str:
    """`35 debug tensors and 3 stale compile caches`; of more than three kinds only how many. cleanup_page.js does the same."""
    named = [str(row["words"]) for row in kinds]
    if len(named) > 3:
        return f"{sum(row['count'] for row in kinds):,} items of {len(named)} kinds"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def told(scan: ArtifactScan, groups_: Iterable[Mapping[str, Any]], choice: Choice, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the page's script needs to count exactly: of every kind what can be chosen, where it lies, and what is chosen of it."""
    wanted = sorted(set(choice.numbers) | set(choice.without))
    details: dict[str, dict[str, list[list[int]]]] = {}
    left_out = set(choice.without)
    for at in range(0, len(wanted), cleanup_choice.AT_ONCE):
        part = scan.artifacts.filter(number__in=wanted[at:at + cleanup_choice.AT_ONCE]).exclude(state=KEPT).exclude(result__in=GONE)
        for number, kind, path, bytes_, files in part.values_list("number", "kind", "path", "size_bytes", "files"):
            of = details.setdefault(kind, {"minus": [], "plus": []})
            of["minus" if number in left_out else "plus"].append([number, bytes_, files, _disk_of(path, found)])
    places = _places(scan, found)
    kinds = {}
    for name, of_kind in kinds_of(scan).items():
        if there := of_kind["choosable"]["count"]:
            kinds[name] = {"one": of_kind["one"], "many": counted(2, of_kind["one"], of_kind["title"])[2:], "count": there,
                           "files": of_kind["choosable"]["files"], "bytes": of_kind["choosable"]["size_bytes"], "on": places.get(name, []),
                           "whole": name in choice.kinds, **details.get(name, {"minus": [], "plus": []})}
    order = [one["kind"] for one in groups_]
    return {"kinds": kinds, "order": [*order, *(name for name in kinds if name not in order)], "purged": scan.purged_count,
            "disks": [{"path": one["path"], "free": one["free_bytes"], "used": one["used_bytes"], "total": one["total_bytes"]} for one in found]}


def freed_on(scan: ArtifactScan, choice: Choice, found: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Bytes that a choice gives back, by disk."""
    data = told(scan, [], choice, found)
    freed: dict[int, int] = {}
    for kind in data["kinds"].values():
        for disk, bytes_ in kind["on"] if kind["whole"] else []:
            freed[disk] = freed.get(disk, 0) + bytes_
        for sign, rows_ in ((-1, kind["minus"] if kind["whole"] else []), (1, [] if kind["whole"] else kind["plus"])):
            for _, bytes_, _, disk in rows_:
                freed[disk] = freed.get(disk, 0) + sign * bytes_
    return freed


def main_disk(scan: ArtifactScan, found: Sequence[Mapping[str, Any]]) -> int | None:
    """The disk whose room the page's strip tells: the one on which most of what can be chosen lies. None if none is known."""
    summed: dict[int, int] = {}
    for of in _places(scan, found).values():
        for disk, bytes_ in of:
            summed[disk] = summed.get(disk, 0) + bytes_
    known = {disk: bytes_ for disk, bytes_ in summed.items() if disk >= 0}
    return max(known, key=lambda disk: known[disk]) if known else 0 if found else None


# ---- scans and purges of nodes ----


def newest_scan(node: Node) -> ArtifactScan | None:
    """The newest scan of a node that looked for leftovers and ended (a plan's scan of one service is shown with the plan)."""
    return ArtifactScan.objects.filter(node=node, finished=True, job__type__in=SCAN_JOBS).select_related("job", "node").order_by("-at").first()


def address(node: Node, scan: ArtifactScan | None) -> str:
    """Of the page of a node whose numbers are those of `scan`: what lists say is what a click shows, also where a scan of a part is newer."""
    newest = newest_scan(node) if scan is not None else None
    return reverse("cleanup_node", args=[node.name]) + (f"?scan={scan.job.number}" if scan is not None and newest != scan else "")


def open_job(node: Node) -> Job | None:
    """A scan or a purge of the node that waits or runs."""
    return Job.objects.filter(node=node, type__in=(*SCAN_JOBS, *PURGE_JOBS), state__in=job_story.OPEN_STATES).prefetch_related("steps") \
        .order_by("-number").first()


def failed_scan(node: Node, scan: ArtifactScan | None) -> Job | None:
    """The newest scan, where it failed: nothing newer is known."""
    job = Job.objects.filter(node=node, type__in=SCAN_JOBS).order_by("-number").first()
    return job if job is not None and job.state in ("failed", "interrupted", "cancelled", "lost") and (
        scan is None or job.number > scan.job.number) else None


def running(job: Job) -> dict[str, Any]:
    """How far a scan or a purge is."""
    step = next((one for one in job.steps.all() if one.state == "running"), None)
    progress = (step.progress or {}) if step else {}
    done, total = whole(progress.get("done")), whole(progress.get("total"))
    share = min(1.0, done / total) if done is not None and total else None
    return {"job": job, "scan": job.type in SCAN_JOBS, "step": step, "text": text(progress.get("text"), 300), "done": done, "total": total,
            "unit": text(progress.get("unit"), 20), "share": share, "percent": None if share is None else round(share * 100),
            "parts": [{"kind": "b-now", "share": share or 0}], "since": job.claimed_at or job.created_at}


def found_facts(scan: ArtifactScan) -> dict[str, Any]:
    """How much a scan found, and how much of it is kept."""
    kinds = [kind for kind in kinds_of(scan).values() if kind["count"]]
    kept = sum(kind[KEPT]["count"] for kind in kinds)
    reasons = sorted((one for kind in kinds for one in kind["why_kept"]), key=lambda one: -(whole(one.get("count")) or 0))
    return {"count": sum(kind["count"] for kind in kinds), "size_bytes": sum(kind["size_bytes"] for kind in kinds), "kinds": len(kinds),
            "kept": kept, "kept_bytes": sum(kind[KEPT]["size_bytes"] for kind in kinds),
            "why": text(reasons[0].get("why"), 120) if reasons else "", "reasons": len(reasons)}


def largest(scan: ArtifactScan) -> list[dict[str, Any]]:
    """The folders in which most lies."""
    found: list[dict[str, Any]] = [{"path": text(one.get("path"), 500), "size_bytes": whole(one.get("size_bytes")),
                                    "files": whole(one.get("files"))} for one in items(scan.summary.get("largest"), cleanup_rows.LARGEST_MOST)]
    found = [one for one in found if one["path"] and one["size_bytes"] is not None][:LARGEST_SHOWN]
    most = max((one["size_bytes"] or 0 for one in found), default=0)
    return [one | {"parts": [{"kind": "b-service", "share": (one["size_bytes"] or 0) / most if most else 0}]} for one in found]


def problems(scan: ArtifactScan) -> dict[str, Any]:
    """What could not be read, as sentences."""
    told_ = scan.summary.get("problems")
    found = [one[:500] for one in told_ if isinstance(one, str)] if isinstance(told_, list) else []
    places = [{"path": text(one.get("path"), 300), "problem": text(one.get("problem"), 300)}
              for one in items(scan.summary.get("places"), cleanup_rows.PLACES_MOST)
              if isinstance(one.get("problem"), str) and one["problem"]]
    return {"sentences": found[:PROBLEMS_SHOWN], "more": max(0, len(found) - PROBLEMS_SHOWN),
            "places": [one for one in places if not any(one["problem"] in sentence for sentence in found)][:PROBLEMS_SHOWN]}


def roots_words(scan: ArtifactScan, most: int = 5) -> dict[str, Any]:
    """The folders that were looked through, for a line: below a folder that all have in common without it. `more`: how many are not named."""
    found = roots(scan)
    above = os.path.commonpath(found) if len(found) > 1 and all(one.startswith("/") for one in found) else "/"
    named = [os.path.relpath(one, above) if above.count("/") > 1 else one for one in found[:most]]
    return {"words": (f"{above}: " if above.count("/") > 1 else "") + ", ".join(named), "more": max(0, len(found) - most)}


def roots(scan: ArtifactScan) -> list[str]:
    """The folders that were looked through."""
    return list(dict.fromkeys(text(one.get("path"), 300) for one in items(scan.summary.get("places"), cleanup_rows.PLACES_MOST) if one.get("path")))


# ---- manifests ----


def purges(count: int, node: Node | None = None) -> list[dict[str, Any]]:
    """The newest jobs that purged something, each with what came of it."""
    found = Job.objects.filter(type__in=("purge", "redeploy")).select_related("service", "node", "by").order_by("-number")
    if node is not None:
        found = found.filter(node=node)
    told_ = []
    for job in found[:200]:
        said = purge_story.summary(job)
        if said is not None or job.type in PURGE_JOBS:
            told_.append({"job": job, "title": job_story.title(job), **(said or {"deleted": None, "freed_bytes": None, "kept": None, "words": ""})})
        if len(told_) == count:
            break
    with_lines = set(PurgedArtifact.objects.filter(job__in=[one["job"].pk for one in told_]).order_by().values_list("job", flat=True).distinct())
    return [one | {"manifest": one["job"].pk in with_lines} for one in told_]


@dataclass(slots=True)
class Lines:
    """Which lines of a manifest are shown."""

    q: str = ""
    result: str = ""
    kind: str = ""

    NAMES = ("q", "result", "kind")

    @classmethod
    def of(cls, asked: QueryDict) -> Lines:
        made = cls()
        for name in cls.NAMES:
            setattr(made, name, asked.get(name, "").replace("\x00", "").strip()[:200])
        made.result = made.result if made.result in RESULTS else ""
        return made

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.NAMES}


def lines(job: Job, shown: Lines) -> QuerySet[PurgedArtifact]:
    """The lines of a manifest that were asked for: what stayed first."""
    found = PurgedArtifact.objects.filter(job=job)
    if shown.result:
        found = found.filter(result=shown.result)
    if shown.kind:
        found = found.filter(kind=shown.kind)
    for word in shown.q.split()[:WORDS]:
        found = found.filter(Q(path__icontains=word) | Q(why__icontains=word))
    last = Case(When(result="deleted", then=Value("2")), When(result="gone", then=Value("1")), default=Value("0"), output_field=CharField())
    return found.order_by(last, "number")


def usual_reasons(job: Job, kinds: Iterable[str]) -> dict[str, str]:
    """Why the things of each kind were leftovers: what its first line says, and nearly always all."""
    first = PurgedArtifact.objects.filter(job=job).order_by("number")
    return {kind: reason for kind in kinds if (reason := first.filter(kind=kind).values_list("reason", flat=True).first())}
