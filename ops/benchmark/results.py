"""What a sweep gives back, and where its requests are stored.

A run's folder (`<runs>/<run id>/`) holds `result.json` and one column file a level: `c8.npz` for concurrency 8, `r2.5.npz` for 2.5 requests/s
(ops/benchmark/column_file.py says what is in it). Older runs have `c8.jsonl.gz`: a first line that describes the level, then a line a request,
`RequestRecord.as_dict`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ops.benchmark import column_file
from ops.benchmark.load import LevelOutcome
from ops.benchmark.request_record import RequestRecord
from ops.jobs.errors import BadInput

SCHEMA = "roundhouse.sweep/2"
OLD_SCHEMA = "roundhouse.sweep/1"  # before there were rates, repeats and imports

HEADINGS = ["concurrency", "output tok/s", "scaling", "mean latency s", "P50 s", "P99 s", "P99/P50", "TTFT P50 ms", "TPOT P50 ms", "n", "errors",
            "marks"]


@dataclass(kw_only=True)
class SweepResult:
    """One sweep. `state`: "done", "failed" (`reason` says why; what was measured is kept) or "cancelled".

    `levels` are `LevelMetrics.as_dict()` with `"state"` ("done", "failed", "cancelled") and `"started_at"`; times are seconds since the
    epoch. `endpoint` is `Endpoint.as_dict()`; `settings` is `SweepSettings.as_dict()`.
    """

    run_id: str
    state: str
    reason: str
    preset: str
    model: str
    base_url: str
    practice: bool
    short: bool
    started_at: float
    finished_at: float
    duration_s: float
    levels: list[dict[str, Any]]
    settings: dict[str, Any]
    endpoint: dict[str, Any]
    fingerprint: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    origin: str = "roundhouse"  # "roundhouse", "imported", "practice-reference"
    tool: str = "roundhouse"
    tool_version: str = ""
    sweep_key: str = ""  # ops.benchmark.comparing.keys.sweep_key(settings)
    group: str | None = None  # of repeats: the id of those that were measured together
    group_index: int = 0
    repeats: int = 1
    label: str = ""
    notes: str = ""
    tags: list[str] = field(default_factory=list)
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def without_detail(self) -> dict[str, Any]:
        """As an event holds it: the levels' `detail` has been told with each."""
        return {**asdict(replace(self, levels=[])), "levels": [{n: v for n, v in level.items() if n != "detail"} for level in self.levels]}

    @classmethod
    def from_dict(cls, raw: Any) -> SweepResult:
        """Reads this schema and the one before. Raises BadInput on something else."""
        if not isinstance(raw, dict) or raw.get("schema") not in (SCHEMA, OLD_SCHEMA):
            raise BadInput(f"This is not a sweep result of schema `{SCHEMA}`")
        if not isinstance(raw.get("levels"), list) or not all(isinstance(level, dict) for level in raw["levels"]):
            raise BadInput("The sweep result is incomplete", why="`levels` is not a list of objects")
        raw = {**raw, "schema": SCHEMA, "levels": [{"load": "closed", "value": level.get("concurrency"), **level} for level in raw["levels"]]}
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{name: value for name, value in raw.items() if name in known})
        except TypeError as error:
            raise BadInput("The sweep result is incomplete", why=str(error)) from error

    def to_markdown_table(self) -> str:
        """The levels as a Markdown table, with n, errors and marks; says PRACTICE where it is."""
        lines = ["| " + " | ".join(self.headings()) + " |", "|" + " ---: |" * (len(HEADINGS) - 1) + " --- |"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        if self.practice:
            lines = ["**PRACTICE**: numbers of the practice box, not of a GPU", "", *lines]
        return "\n".join(lines) + "\n"

    def headings(self) -> list[str]:
        """Of `rows`: the first column is the concurrency, or the rate."""
        return ["requests/s" if self.levels and all(level.get("load") == "open" for level in self.levels) else HEADINGS[0], *HEADINGS[1:]]

    def rows(self) -> list[list[str]]:
        """Cells of the table, as text; "n/a" where there is no measurement."""
        return [[
            place(level), number(level.get("output_tok_s"), 1), number(level.get("scaling_x"), 2, "x"), number(level.get("e2e_mean_s"), 2),
            number(level.get("e2e_p50_s"), 2), number(level.get("e2e_p99_s"), 2), number(level.get("spread_p99_p50"), 2),
            number(level.get("ttft_p50_ms"), 1), number(level.get("tpot_p50_ms"), 2), number(level.get("finished"), 0),
            number(level.get("errors"), 0), ", ".join(level.get("marks") or []),
        ] for level in self.levels]


def place(level: Mapping[str, Any]) -> str:
    """A level for a table's first column: `8` (concurrency) or `2.5/s`."""
    value = level.get("value", level.get("concurrency"))
    if not isinstance(value, int | float):
        return "n/a"
    return f"{value:g}/s" if level.get("load") == "open" else f"{value:g}"


def number(value: float | None, digits: int, unit: str = "") -> str:
    """A number with thousands separators and its unit; "n/a" for None."""
    return "n/a" if value is None else f"{value:,.{digits}f}{unit}"


def store_level(folder: Path, outcome: LevelOutcome, seed: int) -> Path:
    """Writes the level's requests as a column file; it appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {**outcome.plan.as_dict(), "requests": outcome.plan.requests, "started_at": outcome.started_at, "seed": seed, "stopped": outcome.stopped}
    return column_file.write(folder / f"{outcome.plan.file_stem}{column_file.SUFFIX}", outcome.records, t0=outcome.t0, head=head)


def read_level(path: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """The level's head and its requests, times from its start. Raises BadInput on a file that is none."""
    if path.suffix == column_file.SUFFIX:
        return column_file.read(path)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        head = json.loads(lines[0])
        if head.get("schema") != OLD_SCHEMA:
            raise BadInput(f"`{path}` is not a level of schema `{OLD_SCHEMA}`")
        return {"load": "closed", "value": head.get("concurrency"), **head}, [RequestRecord.from_dict(json.loads(line)) for line in lines[1:]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise BadInput(f"`{path}` cannot be read as a level's requests", why=f"{type(error).__name__}: {error}") from error


def store_result(folder: Path, result: SweepResult) -> Path:
    """Writes `result.json` beside the levels."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    part = folder / "result.part"
    try:
        part.write_text(json.dumps(result.as_dict(), indent=1) + "\n")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return path
