"""`python -m ops convert`: files in, another form out."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops.command_line.main import main
from tests.ops.benchmark.formats import samples
from tests.ops.benchmark.formats.test_exports import records

VLLM = str(samples.FOLDER / samples.VLLM)


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "vllm"])
def test_each_form(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", VLLM, "--to", form]) == 0
    printed = capsys.readouterr()
    assert "note: The file's time names no zone" in printed.err
    if form == "json":
        assert json.loads(printed.out)["tool"] == "vllm bench serve"
    elif form == "csv":
        assert [row["value"] for row in csv.DictReader(io.StringIO(printed.out))] == ["4.0"]
    elif form == "markdown":
        assert printed.out.startswith("# org/model-a")
    else:
        assert json.loads(printed.out)["max_concurrency"] == 4


def test_files_that_belong_together_are_one_run_and_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for concurrency in (1, 8):
        (tmp_path / f"c{concurrency}.json").write_text(json.dumps(samples.value(samples.VLLM) | {"max_concurrency": concurrency}))
    output = tmp_path / "all.csv"
    assert main(["convert", str(tmp_path), "--to", "csv", "--output", str(output)]) == 0
    assert capsys.readouterr().out == "" and len(output.read_text().splitlines()) == 3
    with pytest.raises(SystemExit):
        main(["convert"])
    assert main(["convert", str(tmp_path / "c1.json"), "--output", str(output)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_a_runs_folder_gives_single_requests_where_they_were_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ops.benchmark import column_file

    assert main(["convert", VLLM]) == 0
    (tmp_path / "result.json").write_text(capsys.readouterr().out)
    column_file.write(tmp_path / "c4.npz", records(), t0=0, head={"load": "closed", "value": 4, "requests": 9, "started_at": 0.0, "seed": 1,
                                                                  "stopped": "", "schema": column_file.SCHEMA})
    assert main(["convert", str(tmp_path), "--to", "vllm"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["ttfts"]) == 9 and told["ttfts"][0] == pytest.approx(0.342502)


@pytest.mark.parametrize(("name", "code", "word"), [("x.json", 1, "is no result that is known here"), ("none.json", 1, "cannot be read"),
                                                    ("empty", 2, "There is no result in"), ("/dev/zero", 1, "is larger than 64 MiB")])
def test_what_cannot_be_read_is_told(name: str, code: int, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    (tmp_path / "empty").mkdir()
    assert main(["convert", str(tmp_path / name), "--json"]) == code
    printed = capsys.readouterr()
    assert word in json.loads(printed.out)["error"]["what"] and printed.err.startswith("error: ")


def test_a_disk_without_room_for_the_output_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(samples.raw(samples.VLLM))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "ops", "convert", str(tmp_path / "run.json")], stdout=full, stderr=subprocess.PIPE, text=True,
                              check=False)
    assert done.returncode == 1 and done.stderr.endswith("error: The output cannot be written\nNo space left on device\n")
