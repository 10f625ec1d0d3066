"""What is stored can be read again, and nothing else is taken for it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from array import array
from pathlib import Path

import pytest

from ops.benchmark.load import LevelOutcome
from ops.benchmark.metrics import ClientCost, level_metrics
from ops.benchmark.presets import LevelPlan, settings
from ops.benchmark.request_record import RequestRecord
from ops.benchmark.results import SweepResult, number, read_level, store_level
from ops.benchmark.sweep import asked_of_level
from ops.jobs.errors import BadInput


def outcome() -> LevelOutcome:
    good = RequestRecord(index=0, slot=0, t_sched=1000, t_send=1010, t_end=5000, times=array("q", [2010, 3010, 4510]), kinds="rrc", output_tokens=3,
                         reasoning_tokens=2, prompt_tokens=9, finish_reason="length", status=200)
    bad = RequestRecord(index=1, slot=1, t_sched=1000, t_send=1020, t_end=1500, status=503, error_kind="http", error="HTTP 503: no", retried=True)
    left = RequestRecord(index=2, slot=0, t_sched=5000, t_send=5001, t_end=6000, unfinished=True)
    return LevelOutcome(LevelPlan("closed", 2, 3), [good, bad, left], t0=1000, started_at=1.5e9, client=ClientCost())


def test_a_level_comes_back_with_times_from_its_start(tmp_path: Path) -> None:
    head, records = read_level(store_level(tmp_path, outcome(), seed=7))
    assert (head["concurrency"], head["seed"], head["unit"]) == (2, 7, "ns")
    assert (records[0].t_sched, records[0].t_send, records[0].t_end, list(records[0].times)) == (0, 10, 4000, [1010, 2010, 3510])
    assert (records[1].error_kind, records[1].retried, records[2].unfinished) == ("http", True, True)
    assert [path.name for path in tmp_path.iterdir()] == ["c2.npz"]


@pytest.mark.parametrize("content", [b"", b"not gzip", *(gzip.compress(text, mtime=0) for text in (
    b"", b"{}", b"[]\n", b'{"schema": "roundhouse.sweep/1"}\n{"index": 0}\n'))])
def test_a_file_that_is_no_level_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c1.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        read_level(path)


@pytest.mark.parametrize("raw", [None, [], {}, {"schema": "other/1"}, {"schema": "roundhouse.sweep/1"}])
def test_something_else_is_no_result(raw: object) -> None:
    with pytest.raises(BadInput):
        SweepResult.from_dict(raw)


def test_a_result_of_the_schema_before_is_read_as_a_closed_loop() -> None:
    fields = {"run_id": "r", "state": "done", "reason": "", "preset": "custom", "model": "m", "base_url": "u", "practice": False, "short": True,
              "started_at": 1.0, "finished_at": 2.0, "duration_s": 1.0, "settings": {}, "endpoint": {"version": None}}
    old = SweepResult.from_dict({**fields, "schema": "roundhouse.sweep/1", "levels": [{"concurrency": 8, "output_tok_s": 5.0, "marks": ["short"]}]})
    assert (old.schema, old.levels[0]["load"], old.levels[0]["value"]) == ("roundhouse.sweep/2", "closed", 8)
    assert old.rows()[0][:3] == ["8", "5.0", "n/a"] and old.headings()[0] == "concurrency"
    with pytest.raises(BadInput):
        SweepResult.from_dict({**fields, "schema": "roundhouse.sweep/1", "levels": [5]})


def test_requests_of_the_format_before_are_read(tmp_path: Path) -> None:
    head = {"schema": "roundhouse.sweep/1", "concurrency": 2, "requests": 3}
    path = tmp_path / "c2.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(one) for one in (head, *(r.as_dict(1000) for r in outcome().records))).encode()))
    told, records = read_level(path)
    assert (told["load"], told["value"]) == ("closed", 2) and list(records[0].times) == [1010, 2010, 3510]


def test_every_field_of_a_result_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "result-schema.md").read_text()
    known = set(re.findall(r"`(\w+)`", page))
    level = level_metrics([], value=1, requests=1).as_dict() | asked_of_level(settings("custom", base_url="http://h:1", model="m"))
    spread = re.compile(r"(ttft|ttfc|e2e|icl|tpot|queue|e2e_from_schedule)_(n|(mean|p50|p90|p99)_(ms|s))")
    assert [name for name in level if name not in known and not spread.fullmatch(name)] == []
    assert [field.name for field in dataclasses.fields(SweepResult) if field.name not in known] == []


def test_unknown_is_written_as_such() -> None:
    assert (number(None, 1), number(1239.26, 1), number(2.0, 2, "x")) == ("n/a", "1,239.3", "2.00x")
