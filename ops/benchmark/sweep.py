"""A sweep: is this the right model, then level after level of load, told as it goes, and kept whatever happens.

`run` is what a job's step and the command line call. It blocks; the event loop lives inside (uvloop where there is one).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.benchmark.beside import Gpus, GpusAndServer
from ops.benchmark.chat_client import ChatClient
from ops.benchmark.endpoint import Endpoint, inspect, require_model, require_practice
from ops.benchmark.live_view import LiveSecond
from ops.benchmark.load import Level, LevelOutcome, every_request_failed, warm_up
from ops.benchmark.metrics import LevelMetrics, level_metrics, steady_window
from ops.benchmark.presets import LevelPlan, SweepSettings
from ops.benchmark.results import SweepResult, store_level, store_result
from ops.benchmark.server_metrics import ServerMetrics
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Reporter

QUEUE_WARNING_MS = 1.0


def run(settings: SweepSettings, *, emit: Reporter, cancel: Callable[[], bool] = lambda: False, runs_folder: Path | None = None,
        fingerprint: dict[str, Any] | None = None, gpus: Gpus | None = None, api_key: str = "",
        run_id: str | None = None) -> SweepResult:
    """Measures and returns the result; `state` is "failed" or "cancelled" where it ended early, with all that was measured.

    `emit` gets the sweep.* events of ops/jobs/events.py. `gpus` reads the service's GPUs (ops/benchmark/beside.py; it may block). With
    `runs_folder` every request is stored under `<runs_folder>/<run id>/`. Raises BadInput for settings beyond the limits and a wrong model,
    OpsError for a server that does not answer, is not an OpenAI-compatible one, contradicts the record on practice, or fails every request at
    the start.
    """
    settings.check()
    endpoint = inspect(settings.base_url, api_key=api_key)
    require_model(endpoint, settings.model)
    settings = replace(settings, practice=require_practice(endpoint, settings.practice))
    _require_context(endpoint, settings)
    sweep = _Sweep(settings, endpoint, emit, cancel, runs_folder, fingerprint or {}, gpus, api_key, run_id or str(uuid.uuid4()))
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(sweep.run())
    finally:
        sweep.beside.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _require_context(endpoint: Endpoint, settings: SweepSettings) -> None:
    context = endpoint.max_model_len.get(settings.model)
    if context is not None and settings.max_tokens >= context:
        raise BadInput(f"{settings.max_tokens} output tokens do not fit into the context of `{settings.model}` ({context} tokens)",
                       hint="Ask for fewer: --max-tokens")


class _Sweep:
    def __init__(self, settings: SweepSettings, endpoint: Endpoint, emit: Reporter, cancel: Callable[[], bool], runs_folder: Path | None,
                 fingerprint: dict[str, Any], gpus: Gpus | None, api_key: str, run_id: str) -> None:
        self.settings, self.endpoint, self.emit, self.cancel = settings, endpoint, emit, cancel
        self.folder = runs_folder / run_id if runs_folder is not None else None
        self.fingerprint, self.run_id = fingerprint, run_id
        self.beside = GpusAndServer(gpus, ServerMetrics(settings.base_url, api_key))
        self.client = ChatClient(settings.base_url, settings.model, api_key=api_key)
        self.levels: list[dict[str, Any]] = []
        self.base_tok_s: float | None = None
        self.warnings: list[str] = []

    async def run(self) -> SweepResult:
        settings = self.settings
        started_at, began = time.time(), time.monotonic()
        self.emit(EventType.SWEEP_STARTED, {
            "run_id": self.run_id, "preset": settings.preset, "load": settings.load,
            "concurrencies": [plan.concurrency for plan in settings.levels() if plan.concurrency is not None],
            "rates": [plan.value for plan in settings.levels()] if settings.load == "open" else [], "max_tokens": settings.max_tokens,
            "requests": [plan.requests for plan in settings.levels()], "model": settings.model, "endpoint": settings.base_url,
            "practice": bool(settings.practice), "short": settings.short, "started_at": started_at, "settings": settings.as_dict(),
            "fingerprint": self.fingerprint,
        })
        state, reason, failure = "done", "", None
        for plan in settings.levels():
            if self.cancel():
                state, reason = "cancelled", f"Cancelled before {plan.name}"
                break
            try:
                stopped = await self._level(plan)
            except OpsError as error:
                state, reason, failure = "failed", f"{error.what}: {error.why}" if error.why else error.what, error
                break
            if stopped == "cancelled":
                state, reason = "cancelled", f"Cancelled at {plan.name}"
                break
            if stopped:
                state, reason = "failed", stopped
                break
        result = SweepResult(
            run_id=self.run_id, state=state, reason=reason, preset=settings.preset, model=settings.model, base_url=settings.base_url,
            practice=bool(settings.practice), short=any("short" in level["marks"] for level in self.levels), started_at=started_at,
            finished_at=time.time(), duration_s=time.monotonic() - began, levels=self.levels, settings=settings.as_dict(),
            endpoint=self.endpoint.as_dict(), fingerprint=self.fingerprint, warnings=self.warnings,
        )
        if self.folder is not None:
            store_result(self.folder, result)
        self.emit(EventType.SWEEP_FINISHED, {"run_id": self.run_id, "result": result.as_dict()})
        if failure is not None and not any(level["finished"] for level in self.levels):
            raise failure  # nothing was measured: the error says it all
        return result

    async def _level(self, plan: LevelPlan) -> str:
        """Warm-up and load of one level. "" if it ran to its end or its time limit, "cancelled", or the reason to stop the sweep."""
        settings = self.settings
        warm = await warm_up(self.client, settings, plan, cancel=self.cancel)
        named = {"run_id": self.run_id, **plan.as_dict()}
        self.emit(EventType.LEVEL_STARTED, {**named, "requests": plan.requests, "started_at": time.time()})

        def live(second: LiveSecond) -> None:
            self.emit(EventType.LEVEL_SECOND, {**named, **second.as_dict()})

        level = Level(self.client, settings, plan, typical_ns=warm.typical_ns, live=live, cancel=self.cancel, beside=self.beside)
        outcome = await level.run()
        window = steady_window(outcome.records, plan.load, plan.value) or (outcome.t0, outcome.ended)
        beside = self.beside.summary(*window)
        metrics = level_metrics(
            outcome.records, load=plan.load, value=plan.value, requests=plan.requests, client=outcome.client, gpu_count=settings.gpu_count,
            fixed_tokens=settings.max_tokens if settings.output_mode == "fixed" else None,
            power_mean_w=beside.get("power_mean_w"), base_tok_s=self.base_tok_s)
        if plan.concurrency == 1 and metrics.output_tok_s:
            self.base_tok_s = metrics.output_tok_s
            metrics = replace(metrics, scaling_x=1.0)
        self._keep(outcome, metrics, beside)
        if outcome.stopped == "errors":
            if not metrics.finished:
                raise every_request_failed(settings, [r for r in outcome.records if r.error_kind], f"at {plan.name}")
            return f"{metrics.errors} of {metrics.errors + metrics.finished} requests failed at {plan.name}: {metrics.first_error}"
        if outcome.stopped != "cancelled" and not metrics.finished and metrics.errors:
            raise every_request_failed(settings, [r for r in outcome.records if r.error_kind], f"at {plan.name}")
        return outcome.stopped if outcome.stopped == "cancelled" else ""

    def _keep(self, outcome: LevelOutcome, metrics: LevelMetrics, beside: dict[str, Any]) -> None:
        """Stores and tells the level."""
        state = {"cancelled": "cancelled", "errors": "failed"}.get(outcome.stopped, "done" if metrics.finished else "failed")
        level = {**metrics.as_dict(), **beside, "state": state, "stopped": outcome.stopped, "started_at": outcome.started_at}
        self.levels.append(level)
        at = outcome.plan.name.capitalize()
        if outcome.stopped == "time":
            self.warnings.append(f"{at}: the time limit came after {metrics.sent} of {metrics.requests} requests")
        if not metrics.finished:
            self.warnings.append(f"{at}: no request ended {'within the time limit' if outcome.stopped == 'time' else 'well'}")
        if metrics.errors:
            self.warnings.append(f"{at}: {metrics.errors} of {metrics.errors + metrics.finished} requests failed: {metrics.first_error}")
        if "bunched" in level["marks"]:
            self.warnings.append(f"{at}: {100 * level['bunched_share']:.0f} % of the chunks came in one read with the one before: something between "
                                 "the engine and here collects them, so TTFT, ICL and TPOT tell when bunches came, not tokens")
        if level["queue_p50_ms"] is not None and level["queue_p50_ms"] > QUEUE_WARNING_MS:
            self.warnings.append(f"{at}: requests left {level['queue_p50_ms']:.1f} ms late at the median (queue delay); latencies do not include it")
        if self.folder is not None:
            store_level(self.folder, outcome, self.settings.seed)
        self.emit(EventType.LEVEL_FINISHED, {"run_id": self.run_id, "metrics": level})
