"""`python -m ops compare`: sides out of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ops.command_line.main import main
from tests.ops.benchmark.comparing.documents import side


def stored(path: Path, runs: list[dict[str, Any]]) -> str:
    """Several runs in one file, a run a line."""
    path.write_text("".join(json.dumps({**run, "run_id": f"{path.stem}-{i}"}) + "\n" for i, run in enumerate(runs)))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [stored(tmp_path / "a.jsonl", side([277, 280, 274])), stored(tmp_path / "b.jsonl", side([250, 252, 248], start=30))]


def test_a_worse_side_is_printed_and_ends_with_one(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *files]) == 1
    printed = capsys.readouterr().out
    assert "C=8    277.0 tok/s  250.0 tok/s  −9.7 % (−11.7 % to −7.7 %)  worse" in printed
    assert "B to A: throughput −9.7 %" in printed
    assert "noise floor: by default" in printed


def test_equal_sides_end_with_zero(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files[0], files[0]]) == 0
    assert "same" in capsys.readouterr().out


@pytest.mark.parametrize(("form", "start"), [("--json", "{"), ("--csv", "load,value,metric"), ("--markdown", "# Comparison")])
def test_the_other_forms(files: list[str], form: str, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", *files, form])
    assert capsys.readouterr().out.startswith(start)


def test_a_floor_is_rows_or_the_runs_of_one_configuration(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "floor.json"
    rows.write_text(json.dumps({"floors": [{"load": "closed", "value": 8, "metric": name, "half_width": 0.2}
                                           for name in ("output_tok_s", "tpot_p50_ms", "ttft_p50_ms", "e2e_p50_s")]}))
    assert main(["compare", *files, "--floor", str(rows)]) == 0
    assert "not decided: within the noise floor" in capsys.readouterr().out
    assert main(["compare", *files, "--floor", files[0]]) == 1
    assert f"noise floor: measured, {files[0]}" in capsys.readouterr().out


def test_what_bench_against_prints_or_saves_is_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = [run | {"run_id": f"8c1f0f0e-6a0b-4c55-9a53-0c6f0d7a2b{i}a", "group": "8c1f0f0e-6a0b-4c55-9a53-0c6f0d7a2b10", "started_at": at}
         for i, (run, at) in enumerate(zip(side([277, 280, 274]), (1.0, 4.0, 5.0), strict=True))]
    b = [run | {"run_id": f"8c1f0f0e-6a0b-4c55-9a53-0c6f0d7a2b{i}b", "group": "8c1f0f0e-6a0b-4c55-9a53-0c6f0d7a2b20", "started_at": at}
         for i, (run, at) in enumerate(zip(side([250, 252, 248]), (2.0, 3.0, 6.0), strict=True))]
    printed, third = tmp_path / "both.json", stored(tmp_path / "c.jsonl", side([277, 280, 274]))
    printed.write_text(json.dumps({"comparison": {"schema": "roundhouse.comparison/1"}, "runs": [b[0], a[0], b[1], *a[1:], b[2]]}))
    for run in (*a, *b):
        (tmp_path / "saved" / run["run_id"]).mkdir(parents=True)
        (tmp_path / "saved" / run["run_id"] / "result.json").write_text(json.dumps(run))
    for given in (printed, tmp_path / "saved"):
        assert main(["compare", str(given), "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert [[run["run_id"] for run in one["runs"]] for one in told["sides"]] == [[run["run_id"] for run in one] for one in (a, b)]
        assert "not interleaved" not in " ".join(told["notes"])
        assert main(["compare", third, str(given)]) == 1
        assert "holds both sides" in capsys.readouterr().err
    assert main(["convert", str(printed), "--to", "csv"]) == 0
    assert capsys.readouterr().out.count("8c1f0f0e") == 6
    assert main(["compare", third]) == 2
    assert "1 side cannot be compared" in capsys.readouterr().err
    comparison = tmp_path / "comparison.json"
    comparison.write_text('{"schema": "roundhouse.comparison/1"}')
    assert main(["convert", str(comparison)]) == 1
    assert "without the runs" in capsys.readouterr().err


def test_a_folder_of_runs_is_a_side(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, run in enumerate(side([250, 252, 248])):
        (tmp_path / "runs" / str(i)).mkdir(parents=True)
        (tmp_path / "runs" / str(i) / "result.json").write_text(json.dumps(run))
    assert main(["compare", files[0], str(tmp_path / "runs"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["sides"][1]["count"] == 3


def test_what_cannot_be_read_is_said(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.json").write_text("{}")
    for wrong in ("gone.json", "empty", "no.json"):
        assert main(["compare", files[0], str(tmp_path / wrong)]) == 1
    assert main(["compare", *files, "--floor", str(tmp_path / "no.json")]) == 1
    assert main(["compare", files[0]]) == 2
    assert capsys.readouterr().err.count("error: ") == 5
