"""A comparison as a file: JSON (all of it), CSV (a row for each level, metric and side) and Markdown (for a ticket or a chat).

Names, labels and releases come from files of other people: a cell of CSV cannot become a formula, and text of Markdown cannot become a link or a tag.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ops.benchmark import harmless
from ops.benchmark.comparing.sides import Comparison
from ops.benchmark.comparing.verdicts import in_words, percent

CSV_HEAD = ("load", "value", "metric", "unit", "side", "baseline", "runs", "mean", "low", "high", "ratio_to_baseline", "ratio_low", "ratio_high",
            "verdict", "note", "p", "p_holm", "more_runs", "noise_floor", "noise_floor_from", "minimum_effect", "requests", "errors",
            "withheld", "marks", "practice", "doubts")


def to_json(comparison: Comparison) -> str:
    return json.dumps(comparison.as_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Unknown is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    writer.writerows(_rows(comparison.as_dict()))
    return out.getvalue()


def _rows(told: Mapping[str, Any]) -> Iterator[list[Any]]:
    for level in told["levels"]:
        for metric in told["metrics"]:
            for index, side in enumerate(told["sides"]):
                has = level["sides"][index]
                if has is None:
                    continue
                value = has["values"][metric["name"]]
                one = (level["verdicts"][index] or {}).get(metric["name"]) or {}
                yield [harmless.cell(cell) for cell in (
                    level["load"], level["value"], metric["name"], metric["unit"], side["name"], side["baseline"], has["runs"], value["mean"],
                    value["low"], value["high"], one.get("ratio"), one.get("low"), one.get("high"), one.get("word"), one.get("note"), one.get("p"),
                    one.get("p_holm"), one.get("more_runs"), one.get("floor"), one.get("floor_from"), one.get("minimum_effect"), has["requests"],
                    has["errors"], has["withheld"], "; ".join(has["marks"]), side["practice"], "; ".join(one.get("doubts") or ()))]


def to_markdown(comparison: Comparison) -> str:
    told = comparison.as_dict()
    sides, base = told["sides"], told["sides"][0]
    lines = ["# Comparison", ""]
    if told["practice"]:
        lines += ["**PRACTICE**: numbers of the practice box, not of a GPU", ""]
    lines += ["| side | model | release | runs | measured by | single stream | most | errors |",
              "| --- | --- | --- | ---: | --- | ---: | ---: | ---: |"]
    lines += [_line(side["name"] + (" (baseline)" if side["baseline"] else ""), ", ".join(filter(None, side["models"])) or "not reported",
                    ", ".join(filter(None, side["releases"])) or side["vllm"] or "not reported", side["count"], ", ".join(side["tools"]),
                    number(side["single_tok_s"], "tok/s"), f"{number(side['peak_tok_s'], 'tok/s')} {side['peak_at'] or ''}".strip(),
                    "not reported" if side["errors"] is None else side["errors"])
              for side in sides]
    lines += ["", *(f"- {harmless.markdown(headline['words'])}" for headline in told["headlines"] if headline is not None), ""]
    if told["key_differences"]:
        lines += ["## Not asked the same", "", _line("what", *(side["name"] for side in sides), "at"), "|" + " --- |" * (len(sides) + 2)]
        lines += [_line(row["title"], *row["values"], ", ".join(row["levels"])) for row in told["key_differences"]]
        lines.append("")
    for metric in told["metrics"]:
        lines += _metric_lines(told, metric, base["name"])
    if told["unpaired"]:
        lines += ["## Levels of one side only", "",
                  *(f"- {harmless.markdown(one['side'])}: {one['label']}, {one['where']}" for one in told["unpaired"]), ""]
    differing = [row for row in told["fingerprints"]["rows"] if row["differs"]]
    if differing:
        lines += ["## What differed", "", _line("fact", *(side["name"] for side in sides)), "|" + " --- |" * (len(sides) + 1)]
        lines += [_line(row["name"], *("not known" if value is None else value for value in row["values"])) for row in differing]
        lines.append("")
    if told["notes"]:
        lines += ["## Notes", "", *(f"- {harmless.markdown(note)}" for note in told["notes"]), ""]
    lines += ["A verdict needs three runs a side: Welch's t on the logs of one value a run, 95 %, against the noise floor and the least that counts.",
              ""]
    return "\n".join(lines)


def _metric_lines(told: Mapping[str, Any], metric: Mapping[str, Any], baseline: str) -> list[str]:
    """A table of one metric; nothing where no side has it."""
    sides, name, unit = told["sides"], metric["name"], metric["unit"]
    levels = [level for level in told["levels"] if any(has is not None and has["values"][name]["mean"] is not None for has in level["sides"])]
    if not levels:
        return []
    head = [_line("level", *(side["name"] for side in sides), *(f"{side['name']} to {baseline}" for side in sides[1:]),
                  *(f"verdict on {side['name']}" for side in sides[1:])),
            "|" + " --- |" + " ---: |" * (2 * len(sides) - 1) + " --- |" * (len(sides) - 1)]
    rows = []
    for level in levels:
        found = [(one or {}).get(name) for one in level["verdicts"][1:]]
        rows.append(_line(level["label"], *(number(has["values"][name]["mean"] if has else None, unit) for has in level["sides"]),
                          *(ratio_words(one) for one in found), *(verdict_words(one) for one in found)))
    return [f"## {metric['title']}", "", *head, *rows, ""]


def ratio_words(verdict: Mapping[str, Any] | None) -> str:
    """"+3.9 % (+2.7 % to +5.1 %)"; "n/a" where there is no ratio."""
    if verdict is None or verdict["ratio"] is None:
        return "n/a"
    between = f" ({percent(verdict['low'])} to {percent(verdict['high'])})" if verdict["low"] is not None else ""
    return percent(verdict["ratio"]) + between


def verdict_words(verdict: Mapping[str, Any] | None) -> str:
    """The verdict as pages say it, with the marks of its level and its note; "n/a" where there is none."""
    return "n/a" if verdict is None else in_words(verdict)


def number(value: float | None, unit: str) -> str:
    """Three significant digits at least, with its unit; "n/a" for None."""
    if value is None:
        return "n/a"
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 4
    return f"{value:,.{digits}f} {unit}"


def _line(*cells: Any) -> str:
    return "| " + " | ".join(harmless.markdown(str(cell)) for cell in cells) + " |"
