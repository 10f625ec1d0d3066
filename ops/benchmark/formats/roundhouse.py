"""Our own runs (`result.json`, `bench --json`, an exported run, a list of them, `bench --against --json`), from another console or the command line.

They are read as strictly as everybody else's files: every field by its name and form, nothing else. A file can be edited, a run that a job
measured cannot: a console stores what comes out of here as imported, whatever origin the file names.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ops.benchmark.formats.levels import (
    ECDFS,
    LEVELS_MOST,
    NAMESPACE,
    NUMBERS,
    PARTS,
    RUNS_MOST,
    SECONDS_MOST,
    SPREADS,
    TIMELINE_MOST,
    blank,
)
from ops.benchmark.formats.source import Content, Fields, Notes, clean, number, whole
from ops.benchmark.results import SweepResult
from ops.jobs.errors import BadInput

TOOL = "roundhouse"
SCHEMAS = ("roundhouse.sweep/1", "roundhouse.sweep/2")
ORIGINS = ("roundhouse", "imported", "practice-reference")
STATES = ("done", "failed", "cancelled")
FACTS_BYTES = 200_000  # of settings, of a fingerprint
WORDS = {"stopped": 20, "prompt_source": 20, "stamps": 20, "endpoint_kind": 40, "output_mode": 20, "reasoning": 20, "counted_by": 20}
SERVER = ("prefix_hit_rate", "spec_acceptance", "kv_use_max", "running_max", "waiting_max", "preemptions")
GPU = ("index", "power_mean_w", "utilization_mean", "used_bytes_max", "clock_mean_mhz")
_NO_TEXT = re.compile("[\\x00\\ud800-\\udfff]")
MARKS_MOST, WARNINGS_MOST, TAGS_MOST = 20, 100, 20


def fits(value: dict[str, Any]) -> bool:
    schema = value.get("schema")
    return (isinstance(schema, str) and schema.startswith("roundhouse.sweep/")) or bool(_held(value))


def _held(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs in what `bench --against --json` prints: {runs, comparison}."""
    runs = value.get("runs") if "schema" not in value else None
    return [one for one in runs if isinstance(one, dict) and "schema" in one and fits(one)] if isinstance(runs, list) else []


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """The runs of the file. Raises BadInput for a schema that is newer than this version, or a run without levels."""
    notes = Notes()
    content.note(notes)
    runs = [run for one in content.objects if fits(one) for run in (_held(one) or [one])]
    if len(runs) > RUNS_MOST:
        raise BadInput(f"This file holds {len(runs):,} runs", hint=f"At most {RUNS_MOST} can be imported at once: split it")
    return [_document(one, notes) for one in runs]


def _document(value: dict[str, Any], notes: Notes) -> dict[str, Any]:
    told = Fields(value, notes)
    schema = told.text("schema", 60)
    if schema not in SCHEMAS:
        raise BadInput(f"This run has the schema `{schema}`", why=f"Known here: {', '.join(SCHEMAS)}", hint="Update this console first")
    raw_levels = told.list("levels") or []
    if not raw_levels:
        raise BadInput("This run has no level", why="It ended before one was measured")
    if len(raw_levels) > LEVELS_MOST:
        raise BadInput(f"This run has {len(raw_levels)} levels", hint=f"At most {LEVELS_MOST} can be shown together")
    levels: list[dict[str, Any]] = []
    for one in told.objects("levels"):
        level = _level(one)
        if any((level["load"], level["value"]) == (other["load"], other["value"]) for other in levels):
            notes.add(f"The level {level['value']:g} stands twice: the first one is kept")
            continue
        levels.append(level)
    state, origin = told.text("state", 20), told.text("origin", 40) or ORIGINS[0]
    settings, found, endpoint = (_facts(told, name) for name in ("settings", "fingerprint", "endpoint"))
    started, ended = told.measured("started_at"), told.measured("finished_at")
    result = SweepResult(
        run_id=_id(value.get("run_id")), state=state if state in STATES else "done", reason=told.text("reason", 500), preset=told.text("preset", 40),
        model=told.text("model", 300), base_url=told.text("base_url", 300), practice=value.get("practice") is True,
        short=value.get("short") is True or any("short" in level["marks"] for level in levels), started_at=started or 0.0,
        finished_at=ended or 0.0, duration_s=told.number("duration_s") or 0.0, levels=levels, settings=settings, endpoint=endpoint, fingerprint=found,
        warnings=[*_words(told, "warnings", WARNINGS_MOST, 500), *notes.told()],
        origin=origin if origin in ORIGINS else "imported", tool=told.text("tool", 40) or TOOL,
        tool_version=told.text("tool_version", 80), sweep_key=_sweep_key(settings),
        group=_group(value.get("group")), group_index=min(told.count("group_index") or 0, 1000), repeats=min(told.count("repeats") or 1, 1000),
        label=told.text("label", 120), notes=_text(told, "notes"), tags=_words(told, "tags", TAGS_MOST, 40))
    return result.as_dict() | {"started_at": started, "finished_at": ended, "duration_s": told.number("duration_s")}


def _level(told: Fields) -> dict[str, Any]:
    """Raises BadInput for one whose load is not told."""
    load = told.text("load", 8) or "closed"
    value = told.number("value") if "value" in told else told.number("concurrency")
    if load not in ("closed", "open") or not value or (load == "closed" and value != int(value)):
        raise BadInput("A level of this run does not say its load", why=f"Its load is `{load}` and its value {_plain(told.raw.get('value'))}")
    level = blank(load, value)
    names = (*NUMBERS, *(f"{name}_{part}_{unit}" for name, unit in SPREADS for part in PARTS), *(f"{name}_n" for name, _ in SPREADS))
    counts = {name for name, _ in SPREADS for name in (f"{name}_n",)} | {"requests", "sent", "finished", "errors", "unfinished"}
    for name in names:
        if name in told:
            value = told.count(name) if name in counts else told.number(name)
            level[name] = int(value) if value is not None and isinstance(told.raw[name], int) else value
    for name, most in WORDS.items():
        if name in told:
            level[name] = told.text(name, most)
    level["streaming"] = told.raw.get("streaming") if isinstance(told.raw.get("streaming"), bool) else None
    level["window"] = "steady" if told.raw.get("window") == "steady" else "whole"
    level["state"] = told.text("state", 12) or "done"
    level["first_error"] = told.text("first_error", 500)
    level["marks"] = _words(told, "marks", MARKS_MOST, 40)
    level["errors_by_kind"] = {clean(name, 80): count for name, one in list(told.inner("errors_by_kind").raw.items())[:50]
                               if (count := whole(one)) is not None}
    level["slos"] = _numbers(told.raw.get("slos"), ("ttft_ms", "tpot_ms", "e2e_s")) if "slos" in told else None
    level["server"] = {name: number(told.raw["server"].get(name)) for name in SERVER} if isinstance(told.raw.get("server"), dict) else None
    gpus = told.raw.get("gpus")
    level["gpus"] = [_numbers(one, GPU) for one in gpus[:64] if isinstance(one, dict)] if isinstance(gpus, list) else None
    level["reported"] = {clean(name, 60): one for name, raw in list(told.inner("reported").raw.items())[:100] if (one := number(raw)) is not None}
    level["detail"] = _detail(told.inner("detail"))
    return level


def _detail(told: Fields) -> dict[str, Any]:
    """Curves by their form: 101 rising values, seconds, bars."""
    if not told.raw:
        return {}
    detail: dict[str, Any] = {}
    curves = told.inner("ecdf")
    if curves.raw:
        detail["ecdf"] = {}
        for name, unit in ECDFS.items():
            values = curves.raw.get(f"{name}_{unit}")
            right = isinstance(values, list) and len(values) == 101 and all(number(one) is not None for one in values)
            detail["ecdf"][f"{name}_{unit}"] = [float(one) for one in values] if right and isinstance(values, list) else None
    seconds = told.inner("seconds")
    rates = seconds.raw.get("tok_s")
    if isinstance(rates, list):
        detail["seconds"] = {"tok_s": [number(one) or 0.0 for one in rates[:SECONDS_MOST]], "step_s": seconds.count("step_s") or 1,
                             "from_s": seconds.number("from_s"), "to_s": seconds.number("to_s")}
    bars = told.raw.get("timeline")
    if isinstance(bars, list):
        detail["timeline"] = [{**{name: number(one.get(name)) for name in "qsfce"}, "err": clean(one.get("err"), 80)}
                              for one in bars[:TIMELINE_MOST] if isinstance(one, dict) and number(one.get("s")) is not None]
    return detail


def _numbers(value: Any, names: Iterable[str]) -> dict[str, Any]:
    facts: Mapping[str, Any] = value if isinstance(value, dict) else {}
    return {name: found for name in names if (found := number(facts.get(name))) is not None}


def _words(told: Fields, name: str, most: int, length: int) -> list[str]:
    return [word for one in (told.list(name) or [])[:most] if (word := clean(one, length))]


def _text(told: Fields, name: str) -> str:
    """A text of several lines."""
    value = told.raw.get(name)
    return "\n".join(clean(line, 500) for line in value[:10_000].splitlines()[:200]) if isinstance(value, str) else ""


def _facts(told: Fields, name: str) -> dict[str, Any]:
    """An object of any form, bounded."""
    value = told.raw.get(name)
    if not isinstance(value, dict):
        return {}
    if len(json.dumps(value)) > FACTS_BYTES:
        told.notes.add(f"`{name}` is larger than {FACTS_BYTES // 1000} kB: not imported")
        return {}
    kept = _storable(value)
    return kept if isinstance(kept, dict) else {}


def _storable(value: Any) -> Any:
    """As it is, but for what no database and no page can hold: halves of surrogate pairs, NUL, numbers beyond all measure."""
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_storable(key): _storable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_storable(inner) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if number(value) is not None or (isinstance(value, int) and -(2**63) <= value < 2**63) else None
    return value


def _id(value: Any) -> str:
    """The run's own id where it is one, else one that follows from it."""
    try:
        return str(uuid.UUID(value)) if isinstance(value, str) else str(uuid.uuid4())
    except ValueError:
        return str(uuid.uuid5(NAMESPACE, clean(value, 200)))


def _group(value: Any) -> str | None:
    try:
        return str(uuid.UUID(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _plain(value: Any) -> str:
    return "not told" if value is None else f"`{clean(str(value), 40)}`"


def _sweep_key(settings: dict[str, Any]) -> str:
    from ops.benchmark.comparing import keys

    return keys.sweep_key(settings) if settings else ""
