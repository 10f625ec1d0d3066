"""`convert`: results of this and other tools, read into the one form of docs/reference/formats.md and written in another."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ops.benchmark.request_record import RequestRecord
from ops.command_line.output import from_arguments, read_whole
from ops.jobs.errors import BadInput, OpsError

MOST_FILES = 200  # of a folder
ENDINGS = (".json", ".jsonl", ".gz")
LEVEL_ENDINGS = (".npz", ".jsonl.gz")  # a level's single requests, beside our own result.json


def convert(arguments: argparse.Namespace) -> int:
    from ops.benchmark.formats import detect
    from ops.benchmark.formats.source import MAX_BYTES

    with from_arguments():
        paths = [path for text in arguments.file for path in _paths(Path(text))]
    contents = {str(path): read_whole(path, MAX_BYTES) for path in paths}
    first, *_ = contents
    documents = detect.read(first, contents[first], beside={name: content for name, content in contents.items() if name != first})
    for word in dict.fromkeys(word for document in documents for word in document["warnings"]):
        print(f"note: {word}", file=sys.stderr)
    _give(_written(documents, arguments.to, _level_files(paths)), arguments.output)
    return 0


def _written(documents: list[dict[str, Any]], form: str, levels: list[Path]) -> str:
    from ops.benchmark.formats import exports

    if form == "csv":
        return exports.to_csv(*documents)
    if form == "markdown":
        return "\n".join(map(exports.to_markdown, documents))
    if form == "vllm":
        records = _records(levels) if len(documents) == 1 else {}
        lines = [exports.to_vllm_bench(document, level, records.get((level["load"], level["value"])))
                 for document in documents for level in document["levels"]]
        return "".join(json.dumps(line) + "\n" for line in lines)
    return exports.to_json(documents[0] if len(documents) == 1 else documents)


def _give(text: str, output: str | None) -> None:
    if output is None:
        print(text, end="")
        return
    try:
        with Path(output).open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadInput(f"`{output}` is there already", hint="Remove it first, or give another name") from error
    except OSError as error:
        raise BadInput(f"`{output}` cannot be written", why=error.strerror or str(error)) from error


def _paths(path: Path) -> list[Path]:
    """A file; of a folder our own `result.json`, else every result in it."""
    if not path.is_dir():
        return [path]
    own = path / "result.json"
    found = [own] if own.is_file() else sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(ENDINGS))
    if not found:
        raise BadInput(f"There is no result in `{path}`", hint=f"Files that end with {', '.join(ENDINGS)} are read")
    if len(found) > MOST_FILES:
        raise BadInput(f"`{path}` holds {len(found):,} files", hint=f"At most {MOST_FILES}: only the results")
    return found


def _level_files(paths: list[Path]) -> list[Path]:
    """Single requests beside one `result.json` of our own."""
    if len(paths) != 1 or paths[0].name != "result.json":
        return []
    return sorted(one for one in paths[0].parent.iterdir() if one.name.endswith(LEVEL_ENDINGS))


def _records(levels: list[Path]) -> dict[tuple[str, float], list[RequestRecord]]:
    """Requests by load and value; a file that cannot be read is said, and its level is written without them."""
    from ops.benchmark import results

    found = {}
    for path in levels:
        try:
            head, records = results.read_level(path)
        except OpsError as error:
            print(f"note: {error.what}", file=sys.stderr)
            continue
        found[str(head.get("load") or "closed"), float(head.get("value") or head.get("concurrency") or 0)] = records
    return found
