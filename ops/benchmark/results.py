"""What a sweep gives back, and where its requests are stored.

A run's folder (`<runs>/<run id>/`) holds `result.json` and one `c<concurrency>.jsonl.gz` a level. That file's first line describes the
level, every further line is a request: `{"index", "slot", "sched_ns", "send_ns", "end_ns", "gaps_ns", "kinds", ...}` with times relative to
the level's start and chunk times as gaps (the first one after send), as `RequestRecord.as_dict` has them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ops.benchmark.load import LevelOutcome
from ops.benchmark.request_record import RequestRecord
from ops.jobs.errors import BadInput

SCHEMA = "roundhouse.sweep/1"

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

    @classmethod
    def from_dict(cls, raw: Any) -> SweepResult:
        """Raises BadInput on something that is not a result of this schema."""
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise BadInput(f"This is not a sweep result of schema `{SCHEMA}`")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{name: value for name, value in raw.items() if name in known})
        except TypeError as error:
            raise BadInput("The sweep result is incomplete", why=str(error)) from error

    def to_markdown_table(self) -> str:
        """The levels as a Markdown table, with n, errors and marks; says PRACTICE where it is."""
        lines = ["| " + " | ".join(HEADINGS) + " |", "|" + " ---: |" * (len(HEADINGS) - 1) + " --- |"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        if self.practice:
            lines = ["**PRACTICE**: numbers of the practice box, not of a GPU", "", *lines]
        return "\n".join(lines) + "\n"

    def rows(self) -> list[list[str]]:
        """Cells of the table, as text; "n/a" where there is no measurement."""
        return [[
            str(level["concurrency"]), number(level["output_tok_s"], 1), number(level["scaling_x"], 2, "x"), number(level["e2e_mean_s"], 2),
            number(level["e2e_p50_s"], 2), number(level["e2e_p99_s"], 2), number(level["spread_p99_p50"], 2), number(level["ttft_p50_ms"], 1),
            number(level["tpot_p50_ms"], 2), str(level["finished"]), str(level["errors"]), ", ".join(level["marks"]),
        ] for level in self.levels]


def number(value: float | None, digits: int, unit: str = "") -> str:
    """A number with thousands separators and its unit; "n/a" for None."""
    return "n/a" if value is None else f"{value:,.{digits}f}{unit}"


def store_level(folder: Path, outcome: LevelOutcome, seed: int) -> Path:
    """Writes the level's requests; the file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.plan.file_stem}.jsonl.gz"
    part = path.with_suffix(".part")
    head = {"schema": SCHEMA, **outcome.plan.as_dict(), "requests": outcome.plan.requests, "started_at": outcome.started_at, "seed": seed,
            "stopped": outcome.stopped, "clock": "CLOCK_MONOTONIC", "unit": "ns"}
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=5) as file:
        file.write(json.dumps(head) + "\n")
        for record in outcome.records:
            file.write(json.dumps(record.as_dict(outcome.t0), separators=(",", ":")) + "\n")
    part.replace(path)
    return path


def read_level(path: Path) -> tuple[dict[str, Any], list[RequestRecord]]:
    """The level's head and its requests. Raises BadInput on a file that is none."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        head = json.loads(lines[0])
        if head.get("schema") != SCHEMA:
            raise BadInput(f"`{path}` is not a level of schema `{SCHEMA}`")
        return head, [RequestRecord.from_dict(json.loads(line)) for line in lines[1:]]
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise BadInput(f"`{path}` cannot be read as a level's requests", why=f"{type(error).__name__}: {error}") from error


def store_result(folder: Path, result: SweepResult) -> Path:
    """Writes `result.json` beside the levels."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    part = folder / "result.part"
    part.write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    part.replace(path)
    return path


def all_errors(levels: Sequence[dict[str, Any]]) -> int:
    """Failed requests of all levels."""
    return sum(int(level["errors"]) for level in levels)
