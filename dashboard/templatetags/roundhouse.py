"""What templates say again and again: icons, states, bars, times and numbers with their units.

The content security policy forbids style attributes, so whatever has a measured width is an SVG whose rectangles carry it as an attribute.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from dashboard import by_hand as commands

register = template.Library()

MINUS = "−"
STATES: dict[str, tuple[str, str, str]] = {  # word of the data: (tone, icon, word for people)
    # jobs
    "queued": ("idle", "todo", "Queued"), "claimed": ("run", "run", "Starting"), "running": ("run", "run", "Running"),
    "cancelling": ("warn", "run", "Cancelling"), "lost": ("warn", "warn", "Lost contact"), "succeeded": ("ok", "ok", "Succeeded"),
    "partial": ("warn", "warn", "Partly done"), "failed": ("fail", "fail", "Failed"), "cancelled": ("idle", "off", "Cancelled"),
    "interrupted": ("fail", "fail", "Interrupted"),
    # steps and levels
    "todo": ("idle", "todo", "To come"), "done": ("ok", "ok", "Done"), "skipped": ("idle", "skip", "Skipped"),
    "undoing": ("run", "run", "Undoing"), "undone": ("idle", "rollback", "Undone"), "not reached": ("idle", "skip", "Not reached"),
    "passed": ("ok", "ok", "Passed"), "left out": ("idle", "skip", "Left out"),
    # services and nodes
    "healthy": ("ok", "ok", "Healthy"), "starting": ("run", "run", "Starting"), "stopped": ("idle", "off", "Stopped"),
    "unknown": ("idle", "question", "Unknown"), "online": ("ok", "ok", "Online"), "silent": ("warn", "warn", "Silent"),
}
SPINNING = frozenset({"claimed", "running", "cancelling", "starting", "undoing"})
LEVELS = {"stop": ("fail", "fail"), "warning": ("warn", "warn"), "note": ("faint", "info"), "ok": ("ok", "ok")}


@register.simple_tag
def by_hand(command: str, public: bool = False) -> str:
    """A command for this console's host, ready to paste. `public`: on a page that people see before they sign in."""
    return commands.by_hand(command, tell_paths=not public)


@register.simple_tag
def icon(name: str, classes: str = "", label: str = "") -> SafeString:
    """An icon of icons.svg. With `label` it is an image of its own, else decoration."""
    named = format_html('role="img" aria-label="{}"', label) if label else mark_safe('aria-hidden="true"')
    return format_html('<svg class="icon {}" {}><use href="{}#{}"/></svg>', classes, named, static("icons.svg"), name)


@register.simple_tag
def state(word: str, said: str = "", classes: str = "") -> SafeString:
    """A state as shape, word and colour. `said` replaces the word."""
    tone, shape, text = STATES.get(word, ("idle", "question", word or "Unknown"))
    spin = "spin" if word in SPINNING else ""
    return format_html('<span class="state state-{} {}">{}{}</span>', tone, classes, icon(shape, spin), said or text)


@register.simple_tag
def state_icon(word: str, classes: str = "") -> SafeString:
    """Only the shape, labelled with the word: for step lists and titles."""
    tone, shape, text = STATES.get(word, ("idle", "question", word or "Unknown"))
    return icon(shape, f"c-{tone} {'spin' if word in SPINNING else ''} {classes}", text.lower())


@register.simple_tag
def finding_icon(level: str) -> SafeString:
    tone, shape = LEVELS.get(level, ("faint", "info"))
    return icon(shape, tone if tone == "faint" else f"c-{tone}", {"stop": "blocking", "warning": "warning", "ok": "fine"}.get(level, "note"))


@register.simple_tag
def practice_tag() -> SafeString:
    return mark_safe(
        '<span class="tag tag-practice" title="Simulated GPUs and a practice serving stack. Never mixed with real numbers.">PRACTICE</span>')


@register.simple_tag
def idempotency() -> SafeString:
    """A hidden field: pressing the button twice makes one job."""
    return format_html('<input type="hidden" name="idempotency_key" value="{}">', uuid.uuid4().hex)


@register.simple_tag
def bar(parts: Sequence[dict[str, Any]], height: int = 8, gap: float = 0, label: str = "", value: Any = None, maximum: Any = None,
        role: str = "", hook: str = "") -> SafeString:
    """A horizontal bar of parts to scale: each `{"kind", "share"}` with `share` of the whole, 0 to 1, and optional `filled` (0 to 1) of that part.

    `kind` is a class of base.css (b-service, b-other, b-done, b-now, b-down, b-part-1 …, b-none: only space). `role` makes it a meter or progressbar.
    """
    return _bar(parts, height=height, gap=gap, label=label, value=value, maximum=maximum, role=role, hook=hook)


@register.simple_tag
def whole_bar(kind: str) -> SafeString:
    """A bar of one part that fills it: a plan's parts, each in a column of its share."""
    return _bar([{"kind": kind, "share": 1}], height=10, gap=0, label="", value=None, maximum=None, role="", hook="")


@register.simple_tag
def memory_bar(gpu: dict[str, Any]) -> SafeString:
    """The meter of one GPU's memory (views/fleet.py `gpu_row`), in GiB."""
    used, total = gpu.get("used"), gpu.get("total")
    return _bar(gpu.get("parts") or [], height=8, gap=1, label=f"GPU {gpu['index']} memory in GiB", value=gib(used) or None, maximum=gib(total) or 0,
                role="meter" if used is not None and total else "", hook="memory")


def _bar(parts: Iterable[dict[str, Any]], *, height: int, gap: float, label: str, value: Any, maximum: Any, role: str, hook: str) -> SafeString:
    rects: list[SafeString] = []
    at = 0.0
    for n, part in enumerate(parts):
        share = max(0.0, min(1.0 - at, float(part.get("share") or 0)))
        if share <= 0:
            continue
        kind, filled = str(part["kind"]), part.get("filled")
        paint = mark_safe(' fill="url(#hatch-other)"') if kind == "b-other" else mark_safe(' fill="url(#hatch-down)"') if kind == "b-down" else ""
        shown = share if filled is None else share * max(0.0, min(1.0, float(filled)))
        if shown and kind != "b-none":
            title = format_html("<title>{}</title>", part["title"]) if part.get("title") else ""
            if part.get("grows"):  # clock.js lets it grow: since when, how long it usually takes, how wide it may become
                paint = format_html('{} data-grow-since="{}" data-grow-seconds="{}" data-grow-most="{}"', paint, _n(part["grows"]["since"]),
                                    _n(part["grows"]["seconds"]), _n(share * 97))
            rects.append(format_html('<rect class="{}" x="{}%" width="{}%" height="100%"{}>{}</rect>', kind, _n(at * 100), _n(shown * 100), paint,
                                     title))
        at += share
        if gap and n and at - share > 0:
            rects.append(format_html('<rect class="b-gap" x="{}%" width="{}" height="100%"/>', _n((at - share) * 100), gap))
    described = mark_safe('aria-hidden="true"')
    if role:
        described = format_html('role="{}" aria-label="{}" aria-valuemin="0" aria-valuemax="{}"', role, label, maximum if maximum is not None
                                else 100)
        if value is not None:
            described = format_html('{} aria-valuenow="{}"', described, value)
    elif label:
        described = format_html('role="img" aria-label="{}"', label)
    hooked = format_html(' data-bar="{}"', hook) if hook else ""
    return format_html('<svg class="bar" width="100%" height="{}" {}{}>{}</svg>', height, described, hooked,
                       format_html_join("", "{}", ((r,) for r in rects)))


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


# ---- numbers ----

@register.filter
def clock(seconds: Any) -> str:
    """Seconds as 0:04, 12:58 or 1:02:03; nothing for an unknown."""
    if seconds is None or seconds == "":
        return ""
    whole = round(float(seconds))
    sign, whole = (MINUS, -whole) if whole < 0 else ("", whole)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{sign}{hours}:{minutes:02d}:{secs:02d}" if hours else f"{sign}{minutes}:{secs:02d}"


@register.filter
def clock_unit(seconds: Any) -> str:
    """The unit that goes with `clock`."""
    return "" if seconds is None or seconds == "" else "h" if abs(float(seconds)) >= 3600 else "min"


@register.filter
def duration(seconds: Any) -> str:
    """A length of time in words: 2.4 s, 12:58 min."""
    if seconds is None or seconds == "":
        return ""
    return f"{float(seconds):.1f} s" if float(seconds) < 60 else f"{clock(seconds)} {clock_unit(seconds)}"


@register.filter
def about(seconds: Any) -> str:
    """An estimate, with no more digits than it deserves: 25 s, 12:58 min."""
    if seconds is None or seconds == "":
        return ""
    return f"{max(1, round(float(seconds)))} s" if float(seconds) < 60 else f"{clock(seconds)} {clock_unit(seconds)}"


@register.filter
def took(seconds: Any) -> str:
    """How long something took, for columns: 0.4 s, 30 s, 42:54."""
    if seconds is None or seconds == "":
        return ""
    number = float(seconds)
    return f"{number:.1f} s" if number < 10 else f"{number:.0f} s" if number < 60 else str(clock(number))


@register.filter
def package_path(path: Any) -> str:
    """A file's path from its package on: what stands before site-packages/ is the same for all."""
    return str(path or "").rsplit("site-packages/", 1)[-1]


@register.filter
def words(slug: Any) -> str:
    return str(slug or "").replace("-", " ").replace("_", " ")


@register.filter
def signed_clock(seconds: Any) -> str:
    if seconds is None:
        return ""
    return f"+{clock(seconds)}" if float(seconds) >= 0 else str(clock(seconds))


@register.filter
def seconds(value: Any) -> str:
    """Seconds with as many digits as are known to matter: 0.21, 8.4, 52.8, 133."""
    if value is None or value == "":
        return ""
    number = float(value)
    if abs(number) < 0.005:
        return "<0.01" if number else "0"
    return f"{number:.2f}" if abs(number) < 1 else f"{number:.1f}" if abs(number) < 100 else f"{number:,.0f}"


@register.filter
def signed_seconds(value: Any) -> str:
    """A difference in seconds, to a tenth: +0.4, −2.8, 0.0."""
    if value is None or value == "":
        return ""
    number = round(float(value), 1)
    return f"{MINUS}{-number:,.1f}" if number < 0 else f"+{number:,.1f}" if number else "0.0"


@register.filter
def rate(value: Any) -> str:
    """Tokens a second to three figures: 61, 57.3, 277, 1,239."""
    if value is None or value == "":
        return ""
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 99.95 or abs(number - round(number)) < 0.05 else f"{number:.1f}"


@register.filter
def whole(value: Any) -> str:
    return "" if value is None or value == "" else f"{float(value):,.0f}"


@register.filter
def gib(value: Any) -> str:
    return "" if value is None or value == "" else f"{float(value) / 2**30:,.1f}"


@register.filter
def mib(value: Any) -> str:
    """A limit that was chosen in binary units: 64 MiB."""
    return "" if value is None or value == "" else f"{float(value) / 2**20:,.4g}\u202fMiB"


@register.filter
def percent(share: Any) -> str:
    """A share of one as a percentage, without its sign: 31, 0.4."""
    if share is None or share == "":
        return ""
    number = 100 * float(share)
    return f"{number:,.0f}" if abs(number) >= 9.95 or number == 0 else f"{number:.1f}"


@register.filter
def kilowatt(watts: Any) -> str:
    return "" if watts is None or watts == "" else f"{float(watts) / 1000:.2f}"


_FORMS = {"rate": rate, "seconds": seconds, "whole": whole, "gib": gib, "percent": percent, "kilowatt": kilowatt}


@register.simple_tag
def na(value: Any, form: str) -> SafeString:
    """A number by one of this module's filters; "n/a", faint, for what was not measured or not reported."""
    if value is None or value == "":
        return mark_safe('<span class="faint">n/a</span>')
    return format_html("{}", _FORMS[form](value))


@register.filter
def size(value: Any) -> str:
    """Bytes in decimal units: 65 MB, 1.6 GB (with a narrow no-break space before the unit)."""
    if value is None or value == "":
        return ""
    number = float(value)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 999.5 or unit == "TB":
            digits = 0 if unit == "B" or abs(number) >= 99.95 else 1
            return f"{number:,.{digits}f}\u202f{unit}"
        number /= 1000
    return ""


@register.filter
def plural(count: Any, words: str) -> str:
    """`3|plural:"file,files"` is "3 files"."""
    one, many = words.split(",")
    number = int(count or 0)
    return f"{number:,} {one if number == 1 else many}"


_BUILT_IN = {"factual": "a fact", "code": "code", "reasoning": "reasoning", "tool": "a tool call", "stream": "the same answer streamed"}


@register.filter
def smoke_questions(service: Any) -> str:
    """What the smoke tests of a service ask it, in a few words: the built-in questions that it is asked, and how many of its own."""
    record = service.record if isinstance(service.record, dict) else {}
    own, without = ([] if not isinstance(told := record.get(name), list) else told for name in ("smoke_tests", "smoke_without"))
    replaced = [one.get("name") for one in own if isinstance(one, dict)]
    asked = [words for name, words in _BUILT_IN.items() if name not in replaced and name not in without]
    return ", ".join([*asked, *([plural(len(own), "own question,own questions")] if own else [])]) or "all questions are switched off"


_RELEASE = re.compile(r"(?<![\w/.-])\d{8}-\d{6}-([0-9A-Za-z_.]+)(?:[+-]practice)?(?![\w/+-])")  # alone: never a part of a path


def short_release(name: str) -> str:
    """The version in a release's name: `0.16.0rc2.dev344` of `20260302-102208-0.16.0rc2.dev344-practice`. Any other text stays."""
    return _RELEASE.sub(r"\1", name)


@register.simple_tag
def release(name: Any, other: Any = None) -> SafeString:
    """A release by its version, its whole name on hover; whole where `other` would read the same."""
    whole_name = str(name or "")
    short = short_release(whole_name)
    if other and str(other) != whole_name and short_release(str(other)) == short:
        short = whole_name
    return format_html('<span class="mono nowrap-l" title="{}">{}</span>', whole_name, short)


@register.filter
def version(text: Any) -> str:
    """A version for reading: without the mark of practice packages, which the PRACTICE tag beside it says already."""
    return str(text or "").removesuffix("+practice")


@register.filter
def ticks(text: Any) -> SafeString:
    """Text whose `backticked` parts are names, paths and commands: those in monospace. Release names are shortened; everything is escaped."""
    text = short_release(str(text or ""))
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick: not ours to read
        return format_html("{}", text)
    return format_html_join("", "{}", ((format_html('<span class="mono">{}</span>', part) if n % 2 else part,) for n, part in enumerate(parts)))


@register.filter
def no_ticks(text: Any) -> str:
    return short_release(str(text or "")).replace("`", "")


@register.filter
def get(mapping: Any, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, dict) else None


@register.filter
def basename(path: Any) -> str:
    return str(path or "").rstrip("/").rsplit("/", 1)[-1]


# ---- times ----

def as_datetime(value: Any) -> datetime | None:
    """A datetime from a datetime, an ISO text or seconds since the epoch; None from anything else."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str) and value:
        read = parse_datetime(value)
        return read.replace(tzinfo=UTC) if read and read.tzinfo is None else read
    return None


@register.simple_tag
def when(value: Any, form: str = "full") -> SafeString:
    """A time as `<time>`, written in the server's zone; clock.js writes it again in the reader's.

    `form`: "clock" 10:22:08, "minute" 10:22, "full" 2 Mar 10:22:08, "short" 2 Mar 10:22 (today 10:22 on the day itself), "date" 2 Mar.
    """
    moment = as_datetime(value)
    if moment is None:
        return mark_safe("")
    local = timezone.localtime(moment)
    return format_html('<time datetime="{}" data-time="{}">{}</time>', moment.isoformat(), form, _written(local, form))


def _written(local: datetime, form: str) -> str:
    day = f"{local.day} {local:%b}" + (f" {local.year}" if local.year != timezone.localtime().year else "")
    if form == "clock":
        return f"{local:%H:%M:%S}"
    if form == "minute":
        return f"{local:%H:%M}"
    if form == "date":
        return day
    if form == "short":
        return f"today {local:%H:%M}" if local.date() == timezone.localtime().date() else f"{day} {local:%H:%M}"
    return f"{day} {local:%H:%M:%S}"


@register.simple_tag
def elapsed(since: Any, until: Any = None) -> SafeString:
    """Time since a moment, ticking by clock.js on the server's clock."""
    start = as_datetime(since)
    if start is None:
        return mark_safe("")
    end = as_datetime(until)
    passed = ((end or timezone.now()) - start).total_seconds()
    if end is not None:
        return format_html("<span>{}</span>", clock(max(0, passed)))
    return format_html('<span data-since="{}">{}</span>', start.timestamp(), clock(max(0, passed)))


@register.simple_tag
def ago(value: Any) -> SafeString:
    """How long ago, in words, ticking: "seen 3 s ago"."""
    moment = as_datetime(value)
    if moment is None:
        return mark_safe("never")
    return format_html('<time datetime="{}" data-ago="{}">{}</time>', moment.isoformat(), moment.timestamp(),
                       ago_words((timezone.now() - moment).total_seconds()))


def ago_words(passed: float) -> str:
    passed = max(0, passed)
    for limit, one, unit in ((90, 1, "s"), (5400, 60, "min"), (129600, 3600, "h")):
        if passed < limit:
            return f"{round(passed / one)} {unit} ago"
    return f"{round(passed / 86400)} d ago"
