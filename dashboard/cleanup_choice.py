"""What a choice of a scan comes to, before anything is deleted: exactly what the node will count when it takes the same choice of the same preview.

A whole kind is counted by the scan's summary (all that it found), single artifacts by their rows (of each kind the largest are listed). So only
what is listed can be chosen, or left out, one by one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dashboard import cleanup_rows
from dashboard.models import ArtifactScan, PurgedArtifact, ScannedArtifact
from ops.artifacts.found import CHOSEN_MOST, GONE, KEPT, OFFERED, OPTIONAL, PARTS, Choice
from ops.artifacts.kinds import all_kinds
from ops.jobs.errors import BadInput

AT_ONCE = 500  # numbers in one query: databases take a limited number of parameters
SERVICES_MOST = 200


def totals(scan: ArtifactScan, choice: Choice) -> dict[str, Any]:
    """`count`, `files`, `size_bytes` of what `choice` takes of this scan's preview; `gone` the same of those among it that purges of this scan have
    deleted since; `kinds` [{kind, title, one, count, files, size_bytes, gone}] (only those with something chosen, in the scan's order).

    Raises BadInput for a kind that the scan does not know, and for a number that is not listed, or cannot be chosen.
    """
    known = {kind["kind"]: kind for kind in scan.summary.get("kinds") or []}
    if strange := sorted(set(choice.kinds) - known.keys()):
        raise BadInput(f"The scan found nothing of a kind `{strange[0][:60]}`", hint="Reload the preview")
    whole = set(choice.kinds)
    without = set(choice.without)
    counted = {name: _whole(kind) if name in whole else _nothing() for name, kind in known.items()}
    for artifact in _rows(scan, without | set(choice.numbers), must=set(choice.numbers) - without):
        if artifact.state == KEPT:
            if artifact.number in without:
                continue  # it never counted
            raise BadInput(f"`{artifact.path[:200]}` cannot be chosen", why=artifact.why, hint="Choose others")
        if artifact.number in without:
            if artifact.kind in whole:
                _add(counted[artifact.kind], artifact, -1)
        elif artifact.kind not in whole:
            _add(counted.setdefault(artifact.kind, _nothing()), artifact, 1)
    rows = [{"kind": name, "title": known.get(name, {}).get("title") or name, "one": known.get(name, {}).get("one") or name} | of
            for name, of in counted.items() if of["count"] > 0]
    return {**_sum(rows), "gone": _sum([row["gone"] for row in rows]), "kinds": rows}


def less_gone(scan: ArtifactScan, choice: Choice) -> Choice:
    """`choice` without what purges have deleted since, so that a purge does not look for it and its manifest does not tell of it again: of what is
    listed by its rows, of the rest by the manifests of this scan's purges; as far as one choice can name it."""
    purges = [uuid.UUID(one) for one in scan.summary.get("purges") or []]
    gone = dict(scan.artifacts.filter(result__in=GONE).values_list("number", "kind"))
    gone |= dict(PurgedArtifact.objects.filter(job__in=purges, kind__in=choice.kinds, result__in=GONE).values_list("number", "kind"))
    numbers = [number for number in choice.numbers if number not in gone]
    left_out = set(choice.without)
    room = max(0, CHOSEN_MOST - len(numbers) - len(left_out))
    more = sorted(number for number, kind in gone.items() if kind in choice.kinds and number not in left_out)[:room]
    return Choice(kinds=choice.kinds, numbers=numbers, without=sorted({*left_out, *more}))


def services(scan: ArtifactScan, choice: Choice) -> list[str]:
    """Names of the services whose artifacts `choice` takes, sorted: a purge locks them. All services of the node where any of them may be meant: of
    a kind that is not wholly listed and of which something belongs to a service, and of a cache that several may use and that goes only while they
    are stopped."""
    known = {kind["kind"]: kind for kind in scan.summary.get("kinds") or []}
    stopped = {kind.name for kind in all_kinds(cleanup_rows.own_kinds()) if kind.needs_all_stopped}
    shared = scan.artifacts.filter(kind__in=stopped, service="").exclude(state=KEPT)
    without, found = set(choice.without), set()
    if shared.filter(kind__in=choice.kinds).exists() or any(row.kind in stopped and not row.service and row.state != KEPT
                                                            for row in _rows(scan, set(choice.numbers) - without)):
        return sorted(scan.node.services.values_list("name", flat=True))[:SERVICES_MOST]
    for name in dict.fromkeys(choice.kinds):
        of_kind = scan.artifacts.filter(kind=name).exclude(state=KEPT)
        named = dict(of_kind.exclude(service="").values_list("number", "service"))
        of = known.get(name, {})
        everything = sum(of.get(state, {}).get("count", 0) for state in (OFFERED, OPTIONAL))
        if named and everything > of_kind.count():  # also where all that is listed is left out
            found |= set(scan.node.services.values_list("name", flat=True))
        found |= {service for number, service in named.items() if number not in without}
    found |= {row.service for row in _rows(scan, set(choice.numbers) - without) if row.service and row.state != KEPT}
    return sorted(found)[:SERVICES_MOST]


def all_offered(scan: ArtifactScan) -> Choice:
    """What is chosen when the preview opens: of each kind all that is offered. A kind that also has what is only optional is chosen without that, as
    far as it is listed."""
    kinds = [kind["kind"] for kind in scan.summary.get("kinds") or [] if kind.get("offered", {}).get("count")]
    mixed = [kind["kind"] for kind in scan.summary.get("kinds") or [] if kind["kind"] in kinds and kind.get("optional", {}).get("count")]
    numbers: list[int] = []
    without = list(scan.artifacts.filter(kind__in=mixed, state=OPTIONAL).values_list("number", flat=True))
    for name in mixed:  # where not every optional one is listed, the listed offered ones are named instead: never more than what is offered
        of = next(kind for kind in scan.summary["kinds"] if kind["kind"] == name)
        if scan.artifacts.filter(kind=name, state=OPTIONAL).count() < of["optional"]["count"]:
            kinds.remove(name)
            numbers += scan.artifacts.filter(kind=name, state=OFFERED).values_list("number", flat=True)
    return Choice(kinds=kinds, numbers=sorted(numbers), without=sorted(without))


def _rows(scan: ArtifactScan, numbers: Iterable[int], must: Iterable[int] = ()) -> Iterator[ScannedArtifact]:
    """The listed artifacts of these numbers. Raises BadInput if one of `must` is not listed."""
    wanted, seen = sorted(set(numbers)), set()
    for start in range(0, len(wanted), AT_ONCE):
        for row in scan.artifacts.filter(number__in=wanted[start:start + AT_ONCE]).defer("open_by"):
            seen.add(row.number)
            yield row
    if missing := sorted(set(must) - seen):
        raise BadInput(f"The scan lists no artifact {missing[0]}", why="Only what is listed can be chosen one by one",
                       hint="Choose the whole kind, or scan again")


def _nothing() -> dict[str, Any]:
    return dict.fromkeys(PARTS, 0) | {"gone": dict.fromkeys(PARTS, 0)}


def _whole(kind: Mapping[str, Any]) -> dict[str, Any]:
    """All that can be chosen of a kind, by the summary."""
    gone = kind.get("gone") or {}
    return {part: sum(kind.get(state, {}).get(part, 0) for state in (OFFERED, OPTIONAL)) for part in PARTS} \
        | {"gone": {part: gone.get(part, 0) for part in PARTS}}


def _add(to: dict[str, Any], artifact: ScannedArtifact, sign: int) -> None:
    for of in (to, *([to["gone"]] if artifact.result in GONE else [])):
        of["count"] += sign
        of["files"] += sign * artifact.files
        of["size_bytes"] += sign * artifact.size_bytes


def _sum(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    rows = list(rows)
    return {part: sum(row[part] for row in rows) for part in PARTS}
