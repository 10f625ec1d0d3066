"""`vllm bench sweep serve`: `summary.json` is a list of `vllm bench serve` results without single requests, each with `run_number` and the keys
that were swept; `run=N.json` is one of them. Runs of one point are items of their own: they become repeats. Points with other server settings
become runs of their own, labelled with what was swept.
"""

from __future__ import annotations

from typing import Any

from ops.benchmark.formats import vllm_bench
from ops.benchmark.formats.levels import documents
from ops.benchmark.formats.source import Content, Notes
from ops.jobs.errors import BadInput


def fits(value: dict[str, Any]) -> bool:
    return "run_number" in value and vllm_bench.fits(value)


def read(content: Content, raw: bytes) -> list[dict[str, Any]]:
    """Runs of the file, by the tool's name of the single results: it is the same measuring program. Raises BadInput as that does."""
    notes = Notes()
    content.note(notes)
    items = [one for one in content.objects if vllm_bench.fits(one)]
    measured = [one for one in items if one.get("run_number") != -1]  # the sweep's own warm-up has the number -1
    if items and not measured:
        raise BadInput("This file holds only the sweep's warm-up run", hint="Give the `summary.json` beside it")
    varied = {name for name in {key for one in measured for key in vllm_bench.metadata(one)}
              if len({str(one.get(name)) for one in measured}) > 1}
    points = []
    for one in measured:
        made = vllm_bench.point(one, notes)
        swept = {name: text for name, text in vllm_bench.metadata(one).items() if name in varied}
        if swept and not one.get("label"):
            made.label = ", ".join(f"{name}={text}" for name, text in swept.items())[:120]
        points.append(made)
    return documents(points, tool=vllm_bench.TOOL, notes=notes, raw=raw)
