"""A sweep: is this the right model, then level after level of load, told as it goes, and kept whatever happens.

`run` is what a job's step and the command line call. It blocks; the event loop lives inside (ops/benchmark/socket_loop.py; uvloop for TLS).
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.benchmark import socket_loop
from ops.benchmark.beside import Gpus, GpusAndServer
from ops.benchmark.chat_client import ChatClient
from ops.benchmark.comparing.keys import sweep_key
from ops.benchmark.endpoint import Endpoint, inspect, require_model, require_practice
from ops.benchmark.level_detail import level_detail
from ops.benchmark.live_view import LiveSecond
from ops.benchmark.load import MAX_IN_FLIGHT, Level, LevelOutcome
from ops.benchmark.metrics import BUNCHED_LIMIT, MS, LevelMetrics, S, level_metrics, steady_window
from ops.benchmark.presets import MAX_TOKENS, LevelPlan, SweepSettings
from ops.benchmark.prompt_length import PromptLength, calibrate
from ops.benchmark.prompts import FilePrompts, Prompts, SyntheticPrompts, read_file
from ops.benchmark.results import SweepResult, store_level, store_result
from ops.benchmark.server_metrics import ServerMetrics
from ops.benchmark.warm_up import every_request_failed, warm_up
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Reporter

QUEUE_WARNING_MS = 1.0
PREFIX_HITS_LIMIT = 0.01


def run(settings: SweepSettings, *, emit: Reporter, cancel: Callable[[], bool] = lambda: False, runs_folder: Path | None = None,
        fingerprint: dict[str, Any] | None = None, gpus: Gpus | None = None, api_key: str = "",
        run_id: str | None = None, group: str | None = None, group_index: int = 0, repeats: int = 1) -> SweepResult:
    """Measures and returns the result; `state` is "failed" or "cancelled" where it ended early, with all that was measured.

    `emit` gets the sweep.* events of ops/jobs/events.py. `gpus` reads the service's GPUs (ops/benchmark/beside.py; it may block). With
    `runs_folder` every request is stored under `<runs_folder>/<run id>/`. Raises BadInput for settings beyond the limits and a wrong model,
    OpsError for a folder that takes no file, a server that does not answer, is not an OpenAI-compatible one, contradicts the record on practice,
    or fails every request at the start. This is one sweep whatever `settings.repeats` says: `group`, `group_index` and `repeats` are what
    ops/benchmark/repeats.py calls it with.
    """
    settings.check()
    prompts = read_file(Path(settings.prompt_file), settings.seed) if settings.prompt_source == "file" else None
    if prompts is not None:
        settings = replace(settings, prompt_sha256=prompts.sha256)
    endpoint = inspect(settings.base_url, api_key=api_key)
    require_model(endpoint, settings.model)
    settings = replace(settings, practice=require_practice(endpoint, settings.practice))
    _require_context(endpoint, settings)
    run_id = run_id or str(uuid.uuid4())
    if runs_folder is not None:
        _require_folder(runs_folder / run_id)
    part = Part(group, group_index, repeats) if group is not None else None
    sweep = _Sweep(settings, endpoint, emit, cancel, runs_folder, fingerprint or {}, gpus, api_key, run_id, prompts, part)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(settings.base_url)) as runner:
            return runner.run(sweep.run())
    finally:
        sweep.beside.close()


@dataclass(frozen=True, slots=True)
class Part:
    """Of runs that are measured together: their id, this one's place from 0, how many there will be."""

    group: str
    group_index: int
    repeats: int

    def as_dict(self) -> dict[str, Any]:
        return {"group": self.group, "group_index": self.group_index, "repeats": self.repeats}


def _loop_factory(base_url: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Our own loop where it can read the sockets itself (plain TCP on Linux); else uvloop, whose TLS is the cheapest; else asyncio's."""
    if base_url.startswith("http://") and sys.platform.startswith("linux"):
        return socket_loop.new_event_loop
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _require_context(endpoint: Endpoint, settings: SweepSettings) -> None:
    context = endpoint.max_model_len.get(settings.model)
    prompt = settings.prompt_tokens or 0
    if context is not None and settings.max_tokens + prompt >= context:
        both = f"{settings.max_tokens} output tokens" + (f" after {prompt} of a prompt do" if prompt else " do")
        raise BadInput(f"{both} not fit into the context of `{settings.model}` ({context} tokens)", hint="Ask for fewer: --max-tokens")


def _require_folder(folder: Path) -> None:
    """Made before any load is sent. Raises OpsError where nothing can be stored there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        raise OpsError(f"Nothing can be stored in {folder.parent}", why=error.strerror or str(error), kind="not_stored",
                       hint="Give a folder that can be written, on a disk that is not full") from error


def asked_of_level(settings: SweepSettings) -> dict[str, Any]:
    """What of the settings makes a level comparable, as the level itself carries it."""
    synthetic = settings.prompt_source == "synthetic"
    return {
        "endpoint_kind": settings.endpoint_kind, "output_mode": settings.output_mode, "max_tokens": settings.max_tokens,
        "prompt_source": settings.prompt_source, "prompt_words": settings.prompt_words if synthetic and settings.prompt_tokens is None else None,
        "prompt_tokens_asked": settings.prompt_tokens if synthetic else None, "reasoning": settings.reasoning, "streaming": True,
        "temperature": settings.temperature,
    }


class _Sweep:
    def __init__(self, settings: SweepSettings, endpoint: Endpoint, emit: Reporter, cancel: Callable[[], bool], runs_folder: Path | None,
                 fingerprint: dict[str, Any], gpus: Gpus | None, api_key: str, run_id: str, from_file: FilePrompts | None = None,
                 part: Part | None = None) -> None:
        self.settings, self.endpoint, self.emit, self.cancel = settings, endpoint, emit, cancel
        self.folder = runs_folder / run_id if runs_folder is not None else None
        self.fingerprint, self.run_id = fingerprint, run_id
        self.beside = GpusAndServer(gpus, ServerMetrics(settings.base_url, api_key))
        self.client = ChatClient(settings.base_url, settings.model, api_key=api_key, endpoint_kind=settings.endpoint_kind)
        self.api_key, self.from_file, self.part = api_key, from_file, part
        self.prompts: Prompts = from_file or SyntheticPrompts(settings.seed, settings.prompt_words)
        self.sweep_key = sweep_key(settings.as_dict())
        self.levels: list[dict[str, Any]] = []
        self.base_tok_s: float | None = None
        self.warnings: list[str] = []
        self.length: PromptLength | None = None
        self.unstored = False

    async def run(self) -> SweepResult:
        settings = self.settings
        started_at, began = time.time(), time.monotonic()
        self.emit(EventType.SWEEP_STARTED, {
            "run_id": self.run_id, "preset": settings.preset, "load": settings.load,
            "concurrencies": [plan.concurrency for plan in settings.levels() if plan.concurrency is not None],
            "rates": [plan.value for plan in settings.levels()] if settings.load == "open" else [], "max_tokens": settings.max_tokens,
            "requests": [plan.requests for plan in settings.levels()], "model": settings.model, "endpoint": settings.base_url,
            "practice": bool(settings.practice), "short": settings.short, "started_at": started_at, "settings": settings.as_dict(),
            "fingerprint": self.fingerprint, "sweep_key": self.sweep_key, **(self.part.as_dict() if self.part else {}),
        })
        self._say_of_prompts()
        state, reason, failure = "done", "", None
        for plan in settings.levels():
            if self.cancel():
                state, reason = "cancelled", f"Cancelled before {plan.name}"
                break
            try:
                await self._find_length()
                stopped = "cancelled" if self.cancel() else await self._level(plan)
            except OpsError as error:
                state, reason, failure = "failed", f"{error.what}: {error.why}" if error.why else error.what, error
                break
            if stopped == "cancelled":
                state, reason = "cancelled", f"Cancelled at {plan.name}"
                break
            if stopped:
                state, reason = "failed", stopped
                break
        self._scale()
        result = SweepResult(
            run_id=self.run_id, state=state, reason=reason, preset=settings.preset, model=settings.model, base_url=settings.base_url,
            practice=bool(settings.practice), short=any("short" in level["marks"] for level in self.levels), started_at=started_at,
            finished_at=time.time(), duration_s=time.monotonic() - began, levels=self.levels, settings=settings.as_dict(),
            endpoint=self.endpoint.as_dict(), fingerprint=self.fingerprint, warnings=self.warnings,
            sweep_key=self.sweep_key, **(self.part.as_dict() if self.part else {}),
        )
        self._store(lambda folder: store_result(folder, result))
        self.emit(EventType.SWEEP_FINISHED, {"run_id": self.run_id, "result": result.without_detail()})
        if failure is not None and not any(level["finished"] for level in self.levels):
            raise failure  # nothing was measured: the error says it all
        return result

    async def _level(self, plan: LevelPlan) -> str:
        """Warm-up and load of one level. "" if it ran to its end or its time limit, "cancelled", or the reason to stop the sweep."""
        settings = self.settings
        warm = await warm_up(self.client, settings, plan, cancel=self.cancel, prompts=self.prompts)
        if self.cancel():
            return "cancelled"
        named = {"run_id": self.run_id, **plan.as_dict()}
        self.emit(EventType.LEVEL_STARTED, {**named, "requests": plan.requests, "started_at": time.time()})

        def live(second: LiveSecond) -> None:
            self.emit(EventType.LEVEL_SECOND, {**named, **second.as_dict()})

        level = Level(self.client, settings, plan, prompts=self.prompts, typical_ns=warm.typical_ns, live=live, cancel=self.cancel,
                      beside=self.beside)
        outcome = await level.run()
        window = steady_window(outcome.records, plan.load, plan.value)
        beside = self.beside.summary(*(window or (outcome.t0, outcome.ended)))
        metrics = level_metrics(
            outcome.records, load=plan.load, value=plan.value, requests=plan.requests, client=outcome.client, gpu_count=settings.gpu_count,
            fixed_tokens=settings.max_tokens if settings.output_mode == "fixed" else None, most_tokens=settings.max_tokens,
            power_mean_w=beside.get("power_mean_w"), base_tok_s=self.base_tok_s, slos=settings.slos)
        if plan.concurrency == 1 and metrics.output_tok_s:
            self.base_tok_s = metrics.output_tok_s
            metrics = replace(metrics, scaling_x=1.0)
        self._keep(outcome, metrics, beside, level_detail(outcome.records, t0=outcome.t0, window=window))
        if outcome.stopped == "errors":
            if not metrics.finished:
                raise every_request_failed(settings, [r for r in outcome.records if r.error_kind], f"at {plan.name}")
            return f"{metrics.errors} of {metrics.errors + metrics.finished} requests failed at {plan.name}: {metrics.first_error}"
        if outcome.stopped != "cancelled" and not metrics.finished and metrics.errors:
            raise every_request_failed(settings, [r for r in outcome.records if r.error_kind], f"at {plan.name}")
        return outcome.stopped if outcome.stopped == "cancelled" else ""

    def _scale(self) -> None:
        """Levels that ran before concurrency 1 did get their scaling."""
        for level in self.levels:
            if level["scaling_x"] is None and self.base_tok_s and level["output_tok_s"] is not None and level["load"] == "closed":
                level["scaling_x"] = level["output_tok_s"] / self.base_tok_s
                level["scaling_efficiency"] = level["scaling_x"] / level["value"]

    async def _find_length(self) -> None:
        """Before the first level: how many words make the prompts as long as they were asked for."""
        if self.settings.prompt_tokens is None or self.from_file is not None or self.length is not None:
            return
        self.length = await calibrate(self.client, self.settings, api_key=self.api_key, cancel=self.cancel)
        if self.length is None:  # cancelled, which the level will see too
            return
        self.prompts = SyntheticPrompts(self.settings.seed, self.length.words)
        if self.length.by == "guess":
            self.warnings.append(f"The server does not say how long prompts are: {self.length.words} words were sent for about "
                                 f"{self.settings.prompt_tokens} tokens")

    def _say_of_prompts(self) -> None:
        settings = self.settings
        if settings.endpoint_kind == "completions":
            self.warnings.append("Completions bypass the chat template: a reasoning model's thinking is not told apart from its answer, and may not "
                                 "take place at all")
        if self.from_file is None:
            return
        have, most = len(self.from_file.prompts), max(settings.requests)
        if self.from_file.bad:
            self.warnings.append(f"{self.from_file.bad} of {self.from_file.bad + have} lines of {Path(settings.prompt_file).name} hold no prompt and "
                                 f"were passed over: {'; '.join(self.from_file.bad_lines)}")
        if have < most:
            self.warnings.append(f"{have} prompts for up to {most} requests of a level: they were sent again, each with a mark of its own in front")

    def _keep(self, outcome: LevelOutcome, metrics: LevelMetrics, beside: dict[str, Any], detail: dict[str, Any]) -> None:
        """Stores and tells the level."""
        state = {"cancelled": "cancelled", "errors": "failed"}.get(outcome.stopped, "done" if metrics.finished else "failed")
        level = {**metrics.as_dict(), **asked_of_level(self.settings), **beside, "state": state, "stopped": outcome.stopped,
                 "started_at": outcome.started_at, "max_tokens_proposed": self._more_tokens(metrics), "detail": detail}
        self.levels.append(level)
        self._warn(outcome.plan.name.capitalize(), outcome, metrics, level)
        self._store(lambda folder: store_level(folder, outcome, self.settings.seed))
        self.emit(EventType.LEVEL_FINISHED, {"run_id": self.run_id, "metrics": level})

    def _store(self, write: Callable[[Path], Any]) -> None:
        """Writes into the run's folder. A disk that does not take it costs the file, not the numbers: it is told."""
        if self.folder is None:
            return
        try:
            write(self.folder)
        except OSError as error:
            if not self.unstored:
                self.warnings.append(f"Not all of this run is stored in {self.folder}: {error.strerror or error}")
            self.unstored = True

    def _more_tokens(self, metrics: LevelMetrics) -> int | None:
        """Output tokens that a level which ended while it was reasoning should get: four times as many, as far as the context goes."""
        if "reasoning only" not in metrics.marks:
            return None
        context = self.endpoint.max_model_len.get(self.settings.model)
        used = math.ceil(metrics.prompt_tokens / metrics.finished) if metrics.prompt_tokens is not None and metrics.finished else 0
        most = min(MAX_TOKENS, context - used - 1 if context is not None else MAX_TOKENS)
        proposed = min(4 * self.settings.max_tokens, most)
        return proposed if proposed > self.settings.max_tokens else None

    def _warn(self, at: str, outcome: LevelOutcome, metrics: LevelMetrics, level: dict[str, Any]) -> None:
        """Says in words what the level's numbers are not good for."""
        say = self.warnings.append
        if outcome.stopped == "time":
            say(f"{at}: the time limit came after {metrics.sent} of {metrics.requests} requests")
        if not metrics.finished:
            say(f"{at}: no request ended {'within the time limit' if outcome.stopped == 'time' else 'well'}")
        if metrics.errors:
            say(f"{at}: {metrics.errors} of {metrics.errors + metrics.finished} requests failed: {metrics.first_error}")
        if "never full" in metrics.marks:
            say(f"{at}: never full, so this is no level of that concurrency: at no time were {metrics.value:g} requests in flight"
                + (f", since only {metrics.sent} were sent" if metrics.sent < metrics.value else ", or only for an instant"))
        if metrics.whole_answers_share is not None and metrics.whole_answers_share > BUNCHED_LIMIT:
            say(f"{at}: {100 * metrics.whole_answers_share:.0f} % of the answers came whole, all chunks at once: a proxy in between keeps "
                "streams until they end, so TTFT is the whole latency here, and ICL and TPOT say nothing")
        elif "bunched" in metrics.marks and metrics.bunched_share is not None:
            say(f"{at}: {100 * metrics.bunched_share:.0f} % of the chunks came in one read with the one before: something between the engine and "
                "here collects them, so TTFT, ICL and TPOT tell when bunches came, not tokens")
        if metrics.queue.p50 is not None and metrics.queue.p50 > QUEUE_WARNING_MS * MS:
            say(f"{at}: requests left {metrics.queue.p50 / MS:.1f} ms late at the median (queue delay); latencies do not include it"
                + (f": since they were wanted, the median is {metrics.from_schedule.p50 / S:.3g} s" if metrics.from_schedule.p50 is not None else ""))
        if outcome.waited and self.settings.max_in_flight is None:
            say(f"{at}: {outcome.waited:,} of {metrics.sent:,} requests did not leave when they were wanted, because {MAX_IN_FLIGHT:,} were in "
                "flight, the most that are at once: from then on this was no open loop, and the wait is in the queue delay only")
        if metrics.client.clock_steps:
            times = "once" if metrics.client.clock_steps == 1 else f"{metrics.client.clock_steps} times"
            say(f"{at}: this machine's wall clock was set {times} while the level ran. The kernel stamps with it, so chunks within 10 ms of that "
                "may have a wrong time")
        if "overloaded" in metrics.marks and metrics.offered_s is not None and metrics.achieved_s is not None:
            say(f"{at}: {metrics.offered_s:.3g} requests/s were offered and {metrics.achieved_s:.3g} came back: the server does not keep up, and "
                "its latencies grow for as long as this goes on")
        if "reasoning only" in metrics.marks:
            share, more = metrics.length_before_content / metrics.finished, level["max_tokens_proposed"]
            say(f"{at}: {100 * share:.0f} % of the requests ended by length before any content, so these are numbers of reasoning only"
                + (f": ask for more output tokens, such as {more:,}" if more else ""))
        if "length not obeyed" in metrics.marks and metrics.output_tokens is not None and metrics.finished:
            asked = "demanded" if self.settings.output_mode == "fixed" else "the most that was asked for"
            say(f"{at}: {self.settings.max_tokens} output tokens were {asked} and {metrics.output_tokens / metrics.finished:.0f} came at the mean: "
                "the server does not obey max_tokens or ignore_eos")
        if metrics.counted_by == "chunks" and metrics.finished:
            say(f"{at}: the server sends no usage, so chunks were counted instead of tokens: such a level is not comparable with a counted one")
        hits = (level.get("server") or {}).get("prefix_hit_rate")
        if isinstance(hits, int | float) and hits > PREFIX_HITS_LIMIT:
            say(f"{at}: {100 * hits:.0f} % of the prompt tokens came from the prefix cache")
        if metrics.goodput_left_out:
            say(f"{at}: {metrics.goodput_left_out} requests lack a measurement that an SLO needs, and are left out of goodput")
