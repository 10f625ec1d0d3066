"""A sweep several times, and two servers in turn: a run is the unit of a comparison, so one of each side decides nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.benchmark import sweep
from ops.benchmark.beside import Gpus
from ops.benchmark.presets import MAX_REPEATS, SweepSettings
from ops.benchmark.results import SweepResult
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.pipeline import Reporter

SEED_STEP = 1000  # between repeats: every run has prompts of its own, and anybody can make them again


def run_repeats(settings: SweepSettings, *, emit: Reporter, cancel: Callable[[], bool] = lambda: False, runs_folder: Path | None = None,
                fingerprint: dict[str, Any] | None = None, gpus: Gpus | None = None, api_key: str = "",
                group: str | None = None, group_from: int = 0,
                finished: Callable[[SweepResult], None] = lambda result: None) -> list[SweepResult]:
    """`settings.repeats` runs of the same sweep, one after the other: the same order of levels, new prompts each; `group` is theirs.

    `group_from`: how many runs the group had before, so that these continue it, with prompts that none of them used.

    Ends after a run that failed or was cancelled; what was measured is in the list. `finished` is told each result as soon as there is one.
    Raises as `sweep.run` does: what earlier runs measured has been told by then.
    """
    settings.check()
    together = group or (str(uuid.uuid4()) if settings.repeats > 1 else None)
    results: list[SweepResult] = []
    for index in range(group_from, group_from + settings.repeats):
        if results and (cancel() or results[-1].state != "done"):
            break
        results.append(_run(settings, index, group_from + settings.repeats, together, finished, emit=emit, cancel=cancel, runs_folder=runs_folder,
                            fingerprint=fingerprint, gpus=gpus, api_key=api_key))
    return results


def interleaved(settings_a: SweepSettings, settings_b: SweepSettings, repeats: int, *, emit: Reporter, cancel: Callable[[], bool] = lambda: False,
                runs_folder: Path | None = None, fingerprints: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None),
                gpus: tuple[Gpus | None, Gpus | None] = (None, None), api_keys: tuple[str, str] = ("", ""),
                finished: Callable[[SweepResult], None] = lambda result: None) -> tuple[list[SweepResult], list[SweepResult]]:
    """`repeats` runs of each side in the order A B B A A B ..., so that a drift of the machine meets both alike. Ends and raises as `run_repeats`."""
    if not isinstance(repeats, int) or not 1 <= repeats <= MAX_REPEATS:
        raise BadInput(f"Repeats are a whole number from 1 to {MAX_REPEATS}, not `{str(repeats)[:40]}`")
    sides, results = (settings_a, settings_b), ([], [])  # type: tuple[SweepSettings, SweepSettings], tuple[list[SweepResult], list[SweepResult]]
    for settings in sides:
        settings.check()
    groups = (str(uuid.uuid4()), str(uuid.uuid4()))
    for side, index in order(repeats):
        if cancel() or any(result.state != "done" for result in (*results[0], *results[1])):
            break
        results[side].append(_run(sides[side], index, repeats, groups[side], finished, emit=emit, cancel=cancel, runs_folder=runs_folder,
                                  fingerprint=fingerprints[side], gpus=gpus[side], api_key=api_keys[side]))
    return results


def order(repeats: int) -> list[tuple[int, int]]:
    """(side, its how-manieth run) of an interleaved comparison: A B, B A, A B, ..."""
    return [(side, index) for index in range(repeats) for side in ((0, 1) if index % 2 == 0 else (1, 0))]


def _run(settings: SweepSettings, index: int, repeats: int, group: str | None, finished: Callable[[SweepResult], None], *, emit: Reporter,
         **options: Any) -> SweepResult:
    try:
        result = sweep.run(replace(settings, seed=settings.seed + SEED_STEP * index), emit=emit, group=group, group_index=index, repeats=repeats,
                           **options)
    except OpsError as error:
        if index:
            error.hint = f"{error.hint} {index} of {repeats} runs were measured before, and are kept".strip()
        raise
    finished(result)
    return result
