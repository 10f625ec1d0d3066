"""`compare`: sides of runs out of files, held against the first of them."""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.command_line.output import WrongArguments, read_whole, table
from ops.jobs.errors import BadInput

if TYPE_CHECKING:
    from ops.benchmark.comparing.floors import Floors
    from ops.benchmark.comparing.sides import Comparison

FILE_LIMIT = 64 * 1024 * 1024  # bytes
MOST_FILES = 200  # of a folder
NAMES = "ABCDEFGH"


def compare(arguments: argparse.Namespace) -> int:
    """Exit code 1 where some side is worse than the first: what was looked at is not as it should be."""
    from ops.benchmark.comparing import exports, sides

    if len(arguments.file) > sides.MAX_SIDES:
        raise WrongArguments(f"{len(arguments.file)} sides cannot be compared", hint=f"Give at most {sides.MAX_SIDES}")
    given = [_of(file) for file in arguments.file]
    if len(given) == 1:
        given = _groups(given[0])
        if not sides.MIN_SIDES <= len(given) <= sides.MAX_SIDES:
            raise WrongArguments(f"{len(given)} {'side' if len(given) == 1 else 'sides'} cannot be compared",
                                 hint=f"Give {sides.MIN_SIDES} to {sides.MAX_SIDES} files, a side each, or one with the runs of `bench --against`")
    else:
        for file, runs in zip(arguments.file, given, strict=True):
            _require_one_side(file, runs)
    found = sides.compare([sides.Side(name, runs) for name, runs in zip(NAMES, given, strict=False)], floors=_floors(arguments.floor))
    if arguments.json:
        print(exports.to_json(found), end="")
    elif arguments.csv:
        print(exports.to_csv(found), end="")
    elif arguments.markdown:
        print(exports.to_markdown(found), end="")
    else:
        _print(found)
    return 1 if any(_worse(headline) for headline in found.as_dict()["headlines"] if headline is not None) else 0


def _worse(headline: dict[str, Any]) -> bool:
    return bool(headline["errors_worse"]) or any(count["worse"] for count in headline["counts"].values())


def _of(file: str) -> list[dict[str, Any]]:
    """The runs of a file: one or several (a list, a run a line). Of a folder: each `result.json` in it or right below it, else all of its files
    together, as other tools write one a level."""
    path = Path(file)
    if not path.is_dir():
        return _runs(path)
    if results := sorted([*path.glob("result.json"), *path.glob("*/result.json")])[:MOST_FILES]:
        return [run for one in results for run in _runs(one)]
    found = sorted(one for one in path.iterdir() if one.suffix in (".json", ".jsonl") and one.is_file())[:MOST_FILES]
    if not found:
        raise BadInput(f"There is no result in `{file}`", hint="Give a run's folder, a folder of runs, or a file")
    return _runs(*found)


def _groups(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Runs that were measured together (of those alone: of one server and model) are one side; the one that began first is the baseline."""
    from ops.benchmark.comparing import readings

    found: dict[Any, list[dict[str, Any]]] = {}
    for run in readings.by_time(runs):
        found.setdefault(run.get("group") or (run.get("base_url"), run.get("model")), []).append(dict(run))
    return list(found.values())


def _require_one_side(file: str, runs: list[dict[str, Any]]) -> None:
    """Raises BadInput where groups were measured in turn: these are two sides, and both together are none."""
    from ops.benchmark.comparing import readings

    spans = []
    for group in _groups([run for run in runs if run.get("group")]):
        times = [time for run in group if (time := readings.started_at(run)) is not None]
        if times:
            spans.append((min(times), max(times)))
    if any(later[0] < earlier[1] for earlier, later in pairwise(sorted(spans))):
        raise BadInput(f"`{file}` holds both sides of `bench --against`", hint="Give it alone, or the folders of one side's runs")


def _runs(path: Path, *beside: Path) -> list[dict[str, Any]]:
    from ops.benchmark.formats import detect

    return list(detect.read(path.name, read_whole(path, FILE_LIMIT), beside={one.name: read_whole(one, FILE_LIMIT) for one in beside}))


def _floors(file: str | None) -> Floors:
    """Of a file that holds what NOISE_FLOOR says, its rows alone, or runs of one configuration that are held against themselves."""
    from ops.benchmark.comparing.floors import Floors, floor_rows

    if file is None:
        return Floors()
    content = read_whole(Path(file), FILE_LIMIT)
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        raw = None  # several runs, one a line
    rows = raw.get("floors") if isinstance(raw, dict) else raw
    floors = Floors(rows if isinstance(rows, list) else (), label=file)
    if not len(floors):
        floors = Floors(floor_rows(_runs(Path(file))), label=file)
    if not len(floors):
        raise BadInput(f"`{file}` holds no noise floor", why="It has neither rows of load, value, metric and half_width, nor three runs",
                       hint="Save the rows that the job noise-floor says, or give a file with three runs or more of one configuration")
    return floors


def _print(found: Comparison) -> None:
    told = found.as_dict()
    if told["practice"]:
        print("PRACTICE: numbers of the practice box, not of a GPU")
    for side in told["sides"]:
        runs = "1 run" if side["count"] == 1 else f"{side['count']} runs"
        print(f"{side['name']}{' (baseline)' if side['baseline'] else ''}: {', '.join(filter(None, side['models'])) or 'model not reported'}"
              f"{', ' + ', '.join(filter(None, side['releases'])) if any(side['releases']) else ''}, {runs}, measured by {', '.join(side['tools'])}")
    for row in told["key_differences"]:
        print(f"not asked the same: {row['title']}: {' | '.join(row['values'])} at {', '.join(row['levels'])}")
    for metric in told["metrics"]:
        _print_metric(told, metric)
    print()
    for headline in told["headlines"]:
        if headline is not None:
            print(headline["words"])
    for one in told["unpaired"]:
        print(f"note: {one['label']} of {one['side']} is {one['where']}")
    for note in told["notes"]:
        print(f"note: {note}")
    differing = [row for row in told["fingerprints"]["rows"] if row["differs"]]
    if differing:
        print(f"\nWhat differed ({len(differing)} of {told['fingerprints']['count']} facts):")
        table(["fact", *(side["name"] for side in told["sides"])],
              [[row["name"], *("not known" if value is None else value for value in row["values"])] for row in differing],
              left=set(range(len(told["sides"]) + 1)))
    print(f"\nnoise floor: {_floor_words(told)}")


def _print_metric(told: dict[str, Any], metric: dict[str, Any]) -> None:
    from ops.benchmark.comparing.exports import number, ratio_words, verdict_words

    name, sides = metric["name"], told["sides"]
    rows = []
    for level in told["levels"]:
        if all(has is None or has["values"][name]["mean"] is None for has in level["sides"]):
            continue
        found = [(one or {}).get(name) for one in level["verdicts"][1:]]
        rows.append([level["label"], *(number(has["values"][name]["mean"] if has else None, metric["unit"]) for has in level["sides"]),
                     *(cell for one in found for cell in (ratio_words(one), verdict_words(one)))])
    if rows:
        print(f"\n{metric['title']}")
        held = [cell for side in sides[1:] for cell in (f"{side['name']} to {sides[0]['name']}", "verdict")]
        head = ["level", *(side["name"] for side in sides), *held]
        table(head, rows, left={0, *(len(sides) + 2 * (i + 1) for i in range(len(sides) - 1))})


def _floor_words(told: dict[str, Any]) -> str:
    """Whose floor it was, in words."""
    floors = told["floors"]
    return f"measured, {floors['label']}" if floors["measured"] else "by default (3 % for throughput, TPOT and median latency, 10 % TTFT, 20 % P99s)"
