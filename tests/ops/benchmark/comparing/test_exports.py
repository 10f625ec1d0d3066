"""A comparison as a file, safe to open in a spreadsheet and to paste into a ticket."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from ops.benchmark.comparing.exports import to_csv, to_json, to_markdown
from ops.benchmark.comparing.sides import Comparison, Side, compare
from tests.ops.benchmark.comparing.documents import level, run, side


def made(name: str = "B", **more: Any) -> Comparison:
    return compare([Side("A", side([277, 280, 274], **more)), Side(name, side([250, 252, 248], start=30))])


def test_json_is_the_whole_comparison() -> None:
    assert json.loads(to_json(made())) == made().as_dict()


def test_csv_has_a_row_for_each_level_metric_and_side_and_leaves_the_unknown_empty() -> None:
    found = list(csv.DictReader(io.StringIO(to_csv(compare([Side("A", side([277])), Side("B", [run(level(8, None))])])))))
    assert len(found) == 12
    assert (found[0]["mean"], found[0]["ratio_to_baseline"], found[1]["mean"], found[1]["verdict"]) == ("277.0", "", "", "no verdict")
    assert {row["practice"] for row in found} == {"no"}


def test_one_run_is_written_as_its_own_number_and_practice_stands_in_every_row() -> None:
    of_one = compare([Side("A", side([61.0], practice=True)), Side("B", side([1239.0], practice=True))])
    assert [made["peak_tok_s"] for made in of_one.as_dict()["sides"]] == [61.0, 1239.0]
    found = list(csv.DictReader(io.StringIO(to_csv(of_one))))
    assert (found[0]["mean"], found[1]["mean"]) == ("61.0", "1239.0")
    assert {row["practice"] for row in found} == {"yes"}


def test_no_cell_of_csv_becomes_a_formula() -> None:
    found = list(csv.DictReader(io.StringIO(to_csv(made("=cmd|' /C calc'!A0")))))
    assert found[1]["side"] == "'=cmd|' /C calc'!A0"


def test_markdown_says_verdict_interval_and_practice_and_escapes_what_others_wrote() -> None:
    text = to_markdown(made(model="<img src=x>|[a](http://x)"))
    assert "| C=8 | 277.0 tok/s | 250.0 tok/s | −9.7 % (−11.7 % to −7.7 %) | worse |" in text
    assert "<img" not in text.replace(r"\<", "")
    assert r"\<img src=x\>\|\[a\](http://x)" in text
    assert "PRACTICE" not in text
    assert "**PRACTICE**" in to_markdown(compare([Side("A", side([1], practice=True)), Side("B", side([1], practice=True))]))
