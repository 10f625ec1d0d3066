"""Measuring a service of this node as a step of a job: its sweep, the watch against its pinned baseline, and its noise floor.

A sweep may be repeated: the runs are one side of a later comparison. What it is held against came with the job, because a node has no database.
"""

from __future__ import annotations

from typing import Any

from ops.benchmark import presets, repeats
from ops.benchmark.beside import GpuSample
from ops.benchmark.comparing import floors, keys, regression
from ops.benchmark.presets import NODE_SAYS, SweepSettings
from ops.benchmark.results import SweepResult
from ops.environments import fingerprint, releases
from ops.gpus.open_source import open_source
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.services import health

NOISE_RUNS = 6
STEP_S = 6 * 3600.0  # the least that a step of sweeps may take


def settings_of(context: Context, *, default_repeats: int = 1) -> SweepSettings:
    """What the job's params ask for, of this service. Raises BadInput."""
    record, asked = context.the_service, context.params.get("sweep_settings", {})
    if not isinstance(asked, dict):
        raise BadInput("`sweep_settings` must be an object of settings")
    if own := sorted(set(asked) & NODE_SAYS):
        raise BadInput(f"A job cannot be told `{own[0]}` among its sweep's settings", why="That is the service's own to say")
    if asked.get("prompt_file") or asked.get("prompt_source", "synthetic") != "synthetic":
        raise BadInput("A job reads no prompts from a file of this machine", hint="Use `python -m ops bench --prompts FILE` here")
    return presets.settings(
        context.params.get("preset", "quick"), base_url=record.base_url, model=record.served_model_name, practice=record.practice,
        gpu_count=len(record.gpus) or None, **{"repeats": default_repeats, **asked})


def deadline_s(context: Context, *, default_repeats: int = 1) -> float:
    """Of a step that measures: longer than the longest that its settings allow, warm-up included. Settings that cannot be fail in the step itself."""
    try:
        return max(STEP_S, 90 * settings_of(context, default_repeats=default_repeats).most_minutes() + 3600)
    except OpsError:
        return STEP_S


def run_sweep(context: Context) -> str:
    """Params: `preset`, `sweep_settings` (with `repeats`), `group` and `group_from` of runs that belong to earlier ones."""
    results = _measure(context, settings_of(context))
    _watch(context, results)
    best = max((level["output_tok_s"] or 0 for result in results for level in result.levels), default=0)
    return f"up to {best:,.0f} tok/s" + (f" in {len(results)} runs" if len(results) > 1 else "")


def measure_noise_floor(context: Context) -> str:
    """The same sweep several times, to know by how much the service differs from itself. Params as of a sweep; six runs unless told otherwise."""
    settings = settings_of(context, default_repeats=NOISE_RUNS)
    if settings.repeats < floors.MIN_RUNS:
        raise BadInput(f"A noise floor needs {floors.MIN_RUNS} runs, not {settings.repeats}", hint=f"Ask for {NOISE_RUNS} repeats")
    settings.check_floor()
    results = _measure(context, settings)
    rows = floors.floor_rows([result.as_dict() for result in results])
    if not rows:
        raise OpsError("No level was measured often enough for a noise floor", why=f"It takes {floors.MIN_RUNS} runs with the same level",
                       hint="Look at the warnings of the runs: what was measured is kept with them")
    context.emit(EventType.NOISE_FLOOR, {
        "service": context.the_service.name, "sweep_key": keys.sweep_key(results[0].settings), "stack": str(results[0].fingerprint.get("hash") or ""),
        "run_ids": [result.run_id for result in results], "floors": rows})
    widest = max((row for row in rows if row["metric"] == "output_tok_s"), key=lambda row: row["half_width"], default=None)
    return f"{len(results)} runs" + (f"; throughput differs from itself by up to ±{100 * widest['half_width']:.1f} %" if widest else "")


def _measure(context: Context, settings: SweepSettings) -> list[SweepResult]:
    """All runs. Raises OpsError where one stopped early: what was measured until then is kept and told."""
    from ops import redeploy

    record, source = context.the_service, open_source(context.config)
    current = releases.current(record)

    def gpus() -> list[GpuSample]:
        return [GpuSample(gpu.index, gpu.power_w, gpu.utilization, gpu.used_bytes, gpu.clock_mhz) for gpu in source.read().gpus
                if gpu.index in record.gpus]

    told = fingerprint.fingerprint(record, release=current, gpus=source.read(), report=redeploy.look_at_files(context, current) if current else None)
    params = context.params
    results = repeats.run_repeats(settings, emit=context.emit, cancel=context.cancel_wanted, runs_folder=context.paths.runs, gpus=gpus,
                                  api_key=health.api_key(record), fingerprint=told, group=params.get("group") or None,
                                  group_from=_whole(params.get("group_from")))
    context.check()
    failed = next((result for result in results if result.state == "failed"), None)
    if failed is not None:
        raise OpsError("The sweep stopped early", why=failed.reason, hint="What was measured is kept with the run")
    return results


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10_000 else 0


def _watch(context: Context, results: list[SweepResult]) -> None:
    """Says how the runs stand to the baseline that came with the job, if there is one."""
    baseline = context.snapshot.get("baseline") or context.params.get("baseline")
    if not isinstance(baseline, dict) or not results:
        return
    documents = [one for one in baseline.get("documents") or [] if isinstance(one, dict)]
    found = regression.watch([result.as_dict() for result in results], documents, baseline.get("floors") or [],
                             label=str(baseline.get("label") or "")[:200])
    context.emit(EventType.REGRESSION, found)
    for sentence in found["words"]:
        context.log(sentence)
