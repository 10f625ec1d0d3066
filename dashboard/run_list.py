"""Runs as a list: which are chosen, in which order, and one page of them, however many there are.

A run's row holds its fingerprint (20 KB) and its settings, so a list reads rows only of the page that it shows. What it chooses and orders by
stands in one index (`list_of_runs` of the model), which holds all of these columns: 10,000 runs are then some megabytes of index, and any mixture
of filters costs one pass over it. Keep its fields and the columns that are used here the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from django.core.paginator import Page, Paginator
from django.db.models import F, QuerySet, TextField
from django.db.models.functions import Cast
from django.http.request import QueryDict
from django.utils import timezone

from dashboard.models import BenchmarkRun, Service

PAGE = 50
WORDS = 8  # of a search
CHOICES = 200  # of a filter, the newest first
STATES = ("done", "running", "failed", "cancelled")
KINDS = ("real", "practice")
SHOWN = ("id", "job__number", "service__baseline", "node_name", "service_name", "model", "endpoint", "preset", "release", "vllm_version", "origin",
         "tool", "tool_version", "practice", "short", "state", "started_at", "finished_at",
         "label", "tags", "group", "group_index", "single_tok_s", "peak_tok_s",
         "peak_at", "peak_p99_s", "errors", "levels_measured")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list. `order`: what it is ordered by; `falling`: the first click orders from the largest; `narrow`: also on a phone."""

    name: str
    title: str
    order: str
    unit: str = ""
    falling: bool = False
    number: bool = False
    narrow: bool = False


COLUMNS = (
    Column("state", "State", "state"), Column("run", "Run", "service_name", narrow=True), Column("model", "Model", "model"),
    Column("release", "Release", "release"), Column("preset", "Preset", "preset"),
    Column("single", "Single stream", "single_tok_s", "tok/s", falling=True, number=True, narrow=True),
    Column("peak", "Peak", "peak_tok_s", "tok/s", falling=True, number=True, narrow=True),
    Column("p99", "P99 at peak", "peak_p99_s", "s", number=True), Column("errors", "Errors", "errors", falling=True, number=True),
    Column("started", "Started", "started_at", falling=True, number=True),
)
ORDERS = {column.name: column for column in COLUMNS}
USUAL = "-started"


@dataclass(slots=True)
class Chosen:
    """What a list shows: filters as they were asked for (""; anything unknown is left out) and the order ("peak", "-peak")."""

    q: str = ""
    service: str = ""
    model: str = ""
    release: str = ""
    tool: str = ""
    tag: str = ""
    kind: str = ""
    state: str = ""
    since: str = ""
    until: str = ""
    sort: str = ""
    problems: list[str] = field(default_factory=list)

    NAMES = ("q", "service", "model", "release", "tool", "tag", "kind", "state", "since", "until", "sort")

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Chosen:
        made = cls()
        for name in cls.NAMES:
            setattr(made, name, str(asked.get(name, "")).replace("\x00", "").strip()[:300])
        made.kind = made.kind if made.kind in KINDS else ""
        made.state = made.state if made.state in STATES else ""
        made.sort = made.sort if made.sort.removeprefix("-") in ORDERS and made.sort != USUAL else ""
        for name in ("since", "until"):
            if getattr(made, name) and day(getattr(made, name)) is None:
                made.problems.append(f"`{getattr(made, name)[:40]}` is no date; write it as 2026-03-02")
                setattr(made, name, "")
        return made

    def as_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.NAMES}

    @property
    def more(self) -> bool:
        """Whether one of the filters that are folded away is in use."""
        return any((self.release, self.tool, self.tag, self.state, self.since, self.until))


def day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def runs(chosen: Chosen) -> QuerySet[BenchmarkRun, Any]:
    """The runs that were chosen, in order. Only columns of the index `list_of_runs` are touched."""
    found = BenchmarkRun.objects.all()
    if chosen.service:
        node, _, name = chosen.service.partition("/")
        found = found.filter(node_name=node, service_name=name)
    for name in ("model", "release", "tool", "state"):
        if value := getattr(chosen, name):
            found = found.filter(**{name: value})
    if chosen.kind:
        found = found.filter(practice=chosen.kind == "practice")
    if chosen.tag:
        found = found.annotate(tags_text=Cast("tags", TextField())).filter(tags_text__contains=json.dumps(chosen.tag))
    if (first := day(chosen.since)) is not None:
        found = found.filter(started_at__gte=_morning(first))
    if (last := day(chosen.until)) is not None and last < date.max:
        found = found.filter(started_at__lt=_morning(last + timedelta(days=1)))
    for word in chosen.q.lower().split()[:WORDS]:
        found = found.filter(search__contains=word)
    sort = chosen.sort or USUAL
    column = ORDERS[sort.removeprefix("-")]
    order = F(column.order).desc(nulls_last=True) if sort.startswith("-") else F(column.order).asc(nulls_last=True)
    return found.order_by(*([order] if column.name != "started" else [column.order if sort == "started" else f"-{column.order}"]),
                          *(["-started_at"] if column.name != "started" else []), "pk")


def _morning(of: date) -> datetime:
    return timezone.make_aware(datetime.combine(of, time.min))


def page(chosen: Chosen, number: Any) -> tuple[Page[Any], list[BenchmarkRun]]:
    """One page of the list: where it stands among the others, and its runs with what a row shows."""
    found: Page[Any] = Paginator(runs(chosen).values_list("pk", flat=True), PAGE).get_page(number)
    keys = list(found.object_list)
    rows = BenchmarkRun.objects.only(*SHOWN).select_related("job", "service").in_bulk(keys)
    return found, [rows[key] for key in keys if key in rows]


def headings(chosen: Chosen) -> list[dict[str, Any]]:
    """The columns with the address that orders by each: the other way round where it is the order already."""
    query = QueryDict(mutable=True)
    query.update({name: value for name, value in chosen.as_dict().items() if value and name != "sort"})
    now = chosen.sort or USUAL
    told = []
    for column in COLUMNS:
        current = now.removeprefix("-") == column.name
        falling = not now.startswith("-") if current else column.falling
        query["sort"] = f"-{column.name}" if falling else column.name
        told.append({"column": column, "query": query.urlencode(),
                     "sorted": ("descending" if now.startswith("-") else "ascending") if current else ""})
    return told


def choices() -> dict[str, list[Any]]:
    """What the filters offer: everything that some run is of, services that were never measured too."""
    seen = list(BenchmarkRun.objects.order_by().values_list("node_name", "service_name", "model", "tool", "tags", "release").distinct())
    services = {f"{node}/{name}" for node, name, *_ in seen if name}
    services.update(f"{one.node.name}/{one.name}" for one in Service.objects.select_related("node"))
    tags = {tag for *_, told, _ in seen for tag in (told if isinstance(told, list) else []) if isinstance(tag, str)}
    return {
        "services": sorted(services)[:CHOICES], "models": sorted({model for _, _, model, *_ in seen if model})[:CHOICES],
        "releases": sorted({release for *_, release in seen if release}, reverse=True)[:CHOICES],
        "tools": sorted({tool for _, _, _, tool, *_ in seen if tool})[:CHOICES], "tags": sorted(tags)[:CHOICES], "states": list(STATES),
    }


def tags() -> list[str]:
    """All tags that some run has."""
    seen = BenchmarkRun.objects.order_by().values_list("tags", flat=True).distinct()
    return sorted({tag for told in seen for tag in (told if isinstance(told, list) else []) if isinstance(tag, str)})[:CHOICES]
