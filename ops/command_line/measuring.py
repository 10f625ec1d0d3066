"""`bench`, `smoke`: measure a server, and ask it, or a service of this node, questions that show whether it is sane."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.command_line import targets
from ops.command_line.output import (
    INTERRUPTED,
    StatusLine,
    WrongArguments,
    from_arguments,
    interruptible,
    print_json,
    read_end,
    table,
    tell,
)
from ops.jobs.errors import BadInput, OpsError
from ops.jobs.pipeline import Reporter

if TYPE_CHECKING:
    from ops.services.smoke import SmokeTest


def server_options(parser: argparse.ArgumentParser, *, or_service: bool = False) -> None:
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--url", help="the server's address, such as http://127.0.0.1:8000")
    if or_service:
        targets.service_option(of, required=False)
    parser.add_argument("--model", help="the served model's name (default: the only one)")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")


def whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of whole numbers such as 1,8,32") from error


def _api_key(arguments: argparse.Namespace) -> str:
    if not arguments.api_key_env:
        return ""
    key = os.environ.get(arguments.api_key_env, "")
    if not key:
        raise WrongArguments(f"The environment variable `{arguments.api_key_env}` is not set", hint="It should hold the API key")
    return key


def bench(arguments: argparse.Namespace) -> int:
    from ops.benchmark import endpoint, presets, sweep

    key = _api_key(arguments)
    with from_arguments():  # before anybody is asked anything
        settings = presets.settings(
            arguments.preset, base_url=arguments.url, model=arguments.model or "-", concurrencies=arguments.concurrency,
            max_tokens=arguments.max_tokens, requests=arguments.requests, output_mode="natural" if arguments.natural else None,
            burst=arguments.burst, prompt_words=arguments.prompt_words, level_seconds=arguments.level_seconds,
            request_timeout_s=arguments.timeout, seed=arguments.seed, gpu_count=arguments.gpus)
    if not arguments.model:
        settings.model = endpoint.only_model(endpoint.inspect(settings.base_url, api_key=key))
    line = StatusLine()
    with interruptible() as interrupted:
        result = sweep.run(settings, emit=_show_sweep(line, quiet=arguments.json), cancel=interrupted,
                           runs_folder=Path(arguments.save).resolve() if arguments.save else None, api_key=key)
    line.clear()
    failure = _failure_of(result)
    if arguments.json:
        print_json({**result.as_dict(), **({"error": failure.as_dict()} if failure else {})})
    else:
        _print_sweep(result)
        if arguments.save:
            print(f"stored in {Path(arguments.save).resolve() / result.run_id}")
    if failure is not None:
        tell(failure, json_output=False)
    if result.state == "cancelled":
        print("Interrupted: what was measured is above" if result.levels else "Interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    return 1 if failure else 0


def _show_sweep(line: StatusLine, *, quiet: bool) -> Reporter:
    """Tells the sweep's progress on stderr: a line that changes on a terminal, a line a level elsewhere."""
    from ops.jobs.events import EventType

    def emit(type: str, data: dict[str, Any]) -> None:
        if type == EventType.SWEEP_STARTED and not quiet:
            practice = "PRACTICE: " if data["practice"] else ""
            levels = ", ".join(f"{c} x {n}" for c, n in zip(data["concurrencies"], data["requests"], strict=True))
            line.say(f"{practice}{data['model']} at {data['endpoint']}, {data['max_tokens']} output tokens, concurrency x requests: {levels}")
        elif type == EventType.LEVEL_SECOND:
            line.show(f"concurrency {data['concurrency']}: {data['second']} s, {data['output_tok_s']:,.0f} tok/s, {data['in_flight']} in flight, "
                      f"{data['finished']} finished, {data['errors']} errors")
        elif type == EventType.LEVEL_FINISHED and not quiet:
            metrics = data["metrics"]
            rate = "nothing measured" if metrics["output_tok_s"] is None else f"{metrics['output_tok_s']:,.1f} tok/s"
            line.say(f"concurrency {metrics['concurrency']}: {rate}, {metrics['finished']} finished, {metrics['errors']} errors")

    return emit


def _print_sweep(result: Any) -> None:
    from ops.benchmark.results import HEADINGS

    print(f"{'PRACTICE: ' if result.practice else ''}{result.model} at {result.base_url}"
          f"{', version ' + result.endpoint['version'] if result.endpoint['version'] else ''}")
    if result.levels:
        table(result.headings(), result.rows(), left={len(HEADINGS) - 1})
        by_chunks = " (counted by chunks: the server sent no usage)" if any(level["counted_by"] == "chunks" for level in result.levels) else ""
        print(f"output tok/s over the steady window where there is one{by_chunks}; P99 needs 100 requests, else n/a")
    for warning in result.warnings:
        print(f"note: {warning}")


def _failure_of(result: Any) -> OpsError | None:
    """A sweep with failed requests is no success: told, and exit 1."""
    errors = sum(level["errors"] for level in result.levels)
    if result.state == "failed":
        return OpsError("The sweep stopped early", why=result.reason, hint="What was measured until then is kept", kind="sweep_failed")
    if errors:
        first = next(level for level in result.levels if level["errors"])
        sent = sum(level["errors"] + level["finished"] for level in result.levels)
        return OpsError(f"{errors} of {sent} requests failed", kind="requests_failed",
                        why=f"At concurrency {first['concurrency']}: {', '.join(first['errors_by_kind'])}: {first['first_error']}",
                        hint="Failed requests are in no latency and no throughput")
    if not any(level["finished"] for level in result.levels) and result.state == "done":
        return OpsError("No request ended within the time limit", why="; ".join(result.warnings),
                        hint="Ask for fewer tokens or give more time: --max-tokens, --level-seconds", kind="nothing_measured")
    return None


def smoke(arguments: argparse.Namespace) -> int:
    from ops.benchmark import endpoint
    from ops.services import smoke

    if arguments.service:
        return _smoke_of_service(arguments)
    with from_arguments():
        endpoint.normalise(arguments.url)
    suite = _suite(arguments, smoke.SUITE)
    line = StatusLine()

    def emit(type: str, data: dict[str, Any]) -> None:
        if not arguments.json:
            print(f"{data['outcome']:<7} {data['name']:<10} {data['took_s']:6.1f} s  {data['summary']}")
            print(f"        came back: {' '.join(data['detail'].split())}")

    results = smoke.check_url(arguments.url, arguments.model, suite=suite, api_key=_api_key(arguments), emit=emit)
    line.clear()
    try:
        smoke.require_passed(results)
    except OpsError as error:
        if arguments.json:
            print_json({"results": [result.as_dict() for result in results], "error": error.as_dict()})
            tell(error, json_output=False)
        else:
            print(f"error: {error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    if arguments.json:
        return print_json({"results": [result.as_dict() for result in results]})
    print(f"{len(results)} of {len(results)} passed")
    return 0


def _smoke_of_service(arguments: argparse.Namespace) -> int:
    """As a job: with its own suite, its own model and key."""
    from ops.command_line import jobs
    from ops.services import smoke

    if arguments.model or arguments.api_key_env:
        raise WrongArguments("A service has its own model and key", hint="--model and --api-key-env belong to --url")
    record = targets.service(arguments.service)
    chosen = None
    if arguments.suite or arguments.only:
        chosen = [test.as_dict() for test in _suite(arguments, smoke.suite_of(record)[0])]
    return jobs.run(arguments, "smoke", record, {}, None if chosen is None else {"suite": chosen})


def _suite(arguments: argparse.Namespace, suite: Sequence[SmokeTest]) -> Sequence[SmokeTest]:
    """What --suite and --only choose; `suite` is asked without them. Raises BadInput, WrongArguments."""
    from ops.services import smoke

    if arguments.suite:
        try:
            raw = json.loads(read_end(arguments.suite).decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"`{arguments.suite}` is not JSON", why=str(error)) from error
        if not isinstance(raw, list) or not raw:
            raise BadInput(f"`{arguments.suite}` must hold a JSON list of tests")
        suite = [smoke.SmokeTest.from_dict(entry) for entry in raw]
    if arguments.only:
        if unknown := sorted(set(arguments.only) - {test.name for test in suite}):
            raise WrongArguments(f"There is no smoke test `{unknown[0]}`", hint=f"Tests: {', '.join(test.name for test in suite)}")
        suite = [test for test in suite if test.name in arguments.only]
    return suite
