"""`bench`, `smoke`: measure a server, and ask it, or a service of this node, questions that show whether it is sane."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ops.benchmark.marks import MARKS
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
    from ops.benchmark.comparing.sides import Comparison
    from ops.benchmark.presets import SweepSettings
    from ops.benchmark.results import SweepResult
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
        raise argparse.ArgumentTypeError(f"`{text[:80]}` is not a list of whole numbers such as 1,8,32") from error


def _api_key(arguments: argparse.Namespace) -> str:
    if not arguments.api_key_env:
        return ""
    key = os.environ.get(arguments.api_key_env, "")
    if not key:
        raise WrongArguments(f"The environment variable `{arguments.api_key_env}` is not set", hint="It should hold the API key")
    return key


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text[:80]}` is not a list of numbers such as 0.5,1,2") from error


def objective(text: str) -> tuple[str, float]:
    name, _, limit = text.partition("=")
    try:
        return name.strip(), float(limit)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}` is not an objective such as ttft_ms=500") from error


def bench(arguments: argparse.Namespace) -> int:
    from ops.benchmark import repeats

    key = _api_key(arguments)
    settings = _settings_of(arguments, arguments.url, arguments.model, key)
    other = _settings_of(arguments, arguments.against, arguments.against_model or arguments.model, key) if arguments.against else None
    line, folder = StatusLine(), Path(arguments.save).resolve() if arguments.save else None
    results: list[SweepResult] = []
    emit = _show_sweep(line, runs=settings.repeats * (2 if other else 1))
    line.say(_size_words(settings, sides=2 if other else 1))
    if few := settings.never_full():
        line.say(f"warning: {few}")
    stopped: OpsError | None = None
    with interruptible() as interrupted:
        try:
            if other is not None:
                repeats.interleaved(settings, other, settings.repeats, emit=emit, cancel=interrupted, runs_folder=folder, api_keys=(key, key),
                                    finished=results.append)
            else:
                repeats.run_repeats(settings, emit=emit, cancel=interrupted, runs_folder=folder, api_key=key, finished=results.append)
        except OpsError as error:
            if not results:
                raise
            stopped = error
    line.clear()
    failure = stopped or next((found for result in results if (found := _failure_of(result)) is not None), None)
    compared = _comparison(results) if other is not None else None
    _print_results(arguments, results, folder, failure, compared)
    if failure is not None:
        tell(failure, json_output=False)
    if any(result.state == "cancelled" for result in results) or interrupted():
        measured = any(result.levels for result in results)
        print("Interrupted: what was measured is above" if measured else "Interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    return 1 if failure else 0


def _settings_of(arguments: argparse.Namespace, url: str, model: str | None, key: str) -> SweepSettings:
    """What the command line asks for. Raises WrongArguments before anybody is asked anything; then the server says its model, if need be."""
    from ops.benchmark import endpoint, presets

    if arguments.completions:
        url = url.strip().rstrip("/").removesuffix("/v1/completions")
    if arguments.rate and arguments.concurrency:
        raise WrongArguments("A sweep is over concurrencies or over rates, not both", hint="Leave out --concurrency or --rate")
    with from_arguments():
        if arguments.prompts:
            from ops.benchmark.prompts import read_file

            read_file(Path(arguments.prompts), 0)
        settings = presets.settings(
            arguments.preset, base_url=url, model=model or "-", concurrencies=arguments.concurrency, rates=arguments.rate,
            max_in_flight=arguments.max_in_flight, max_tokens=arguments.max_tokens, requests=arguments.requests,
            output_mode="natural" if arguments.natural else None, burst=arguments.burst, prompt_words=arguments.prompt_words,
            prompt_tokens=arguments.prompt_tokens, prompt_source="file" if arguments.prompts else None,
            prompt_file=str(Path(arguments.prompts).resolve()) if arguments.prompts else None,
            endpoint_kind="completions" if arguments.completions else None, slos=dict(arguments.slo) if arguments.slo else None,
            repeats=arguments.repeats, order="shuffled" if arguments.shuffle else None, reasoning=arguments.reasoning,
            temperature=arguments.temperature, level_seconds=arguments.level_seconds, request_timeout_s=arguments.timeout, seed=arguments.seed,
            gpu_count=arguments.gpus)
        settings.check()
    if not model:
        settings.model = endpoint.only_model(endpoint.inspect(settings.base_url, api_key=key))
    return settings


def _size_words(settings: SweepSettings, *, sides: int) -> str:
    size = settings.size()
    runs = sides * settings.repeats
    return (f"{f'{runs} runs: ' if runs > 1 else ''}{sides * size['requests']:,.0f} requests, about {sides * size['input_tokens']:,.0f} input and at "
            f"most {sides * size['output_tokens']:,.0f} output tokens, at most {sides * size['minutes']:.0f} min of load")


def _show_sweep(line: StatusLine, *, runs: int = 1) -> Reporter:
    """Tells the progress on stderr: a bar that grows on a terminal, a line a level elsewhere."""
    from ops.jobs.events import EventType

    run, planned, done, asked = 0, [0], 0, 0

    def name(data: dict[str, Any]) -> str:
        return f"{data['value']:g} requests/s" if data["load"] == "open" else f"concurrency {data['value']:g}"

    def bar(within: float) -> str:
        share = min(1.0, (done + within * asked) / max(1, sum(planned)))
        return f"{'#' * round(20 * share):.<20} {100 * share:3.0f} %{f' of run {run} of {runs}' if runs > 1 else ''}"

    def emit(type: str, data: dict[str, Any]) -> None:
        nonlocal run, planned, done, asked
        if type == EventType.SWEEP_STARTED:
            run, planned, done = run + 1, list(data["requests"]), 0
            practice = "PRACTICE: " if data["practice"] else ""
            values = data["rates"] if data["load"] == "open" else data["concurrencies"]
            levels = ", ".join(f"{value:g} x {n}" for value, n in zip(values, data["requests"], strict=True))
            line.say(f"{f'run {run} of {runs}: ' if runs > 1 else ''}{practice}{data['model']} at {data['endpoint']}, {data['max_tokens']} "
                     f"output tokens, {'requests/s' if data['load'] == 'open' else 'concurrency'} x requests: {levels}")
        elif type == EventType.LEVEL_STARTED:
            asked = data["requests"]
            line.show(f"{bar(0)}  {name(data)}")
        elif type == EventType.LEVEL_SECOND:
            line.show(f"{bar((data['finished'] + data['errors']) / max(1, asked))}  {name(data)}: {data['second']} s, "
                      f"{data['output_tok_s']:,.0f} tok/s, {data['in_flight']} in flight, {data['finished']} finished, {data['errors']} errors")
        elif type == EventType.LEVEL_FINISHED:
            done += asked
            metrics = data["metrics"]
            rate = "nothing measured" if metrics["output_tok_s"] is None else f"{metrics['output_tok_s']:,.1f} tok/s"
            line.say(f"{name(metrics)}: {rate}, {metrics['finished']} finished, {metrics['errors']} errors")

    return emit


def _print_results(arguments: argparse.Namespace, results: list[SweepResult], folder: Path | None, failure: OpsError | None,
                   compared: Comparison | None) -> None:
    """One run as its own document; several as a list of them; against another server as both sides and what came of them."""
    told = {"error": failure.as_dict()} if failure else {}
    if arguments.json:
        if compared is not None:
            print_json({"runs": [result.as_dict() for result in results], "comparison": compared.as_dict(), **told})
        elif len(results) == 1:
            print_json({**results[0].as_dict(), **told})
        else:
            print_json([result.as_dict() for result in results])
        return
    for number, result in enumerate(results, 1):
        if len(results) > 1:
            print(f"{'' if number == 1 else chr(10)}run {number} of {len(results)}")
        _print_sweep(result)
        if folder is not None and (folder / result.run_id / "result.json").is_file():
            print(f"stored in {folder / result.run_id}")
    _print_marks(results)
    if len(results) > 1 and compared is None:
        _print_summary(results, folder)
    if compared is not None:
        from ops.benchmark.comparing import exports

        print(f"\nA is {arguments.url}, B is {arguments.against}\n")
        print(exports.to_markdown(compared), end="")


def _comparison(results: list[SweepResult]) -> Comparison | None:
    """Both servers' runs held together: A is --url, B --against. None where B has none."""
    from ops.benchmark.comparing import sides

    a = [result.as_dict() for result in results if result.group == results[0].group]
    b = [result.as_dict() for result in results if result.group != results[0].group]
    return sides.compare([sides.Side("A", a), sides.Side("B", b)]) if a and b else None


def _print_sweep(result: SweepResult) -> None:
    print(f"{'PRACTICE: ' if result.practice else ''}{result.model} at {result.base_url}"
          f"{', version ' + result.endpoint['version'] if result.endpoint['version'] else ''}")
    if result.levels:
        headings = result.headings()
        table(headings, result.rows(), left={len(headings) - 1})
        by_chunks = " (counted by chunks: the server sent no usage)" if any(level["counted_by"] == "chunks" for level in result.levels) else ""
        print(f"output tok/s over the steady window where there is one{by_chunks}; P99 needs 100 requests, else n/a")
    for level in result.levels:
        if level["slos"]:
            limits = ", ".join(f"{name} {limit:g}" for name, limit in level["slos"].items())
            good = "n/a" if level["goodput_s"] is None else f"{level['goodput_s']:.3g} requests/s"
            print(f"goodput at {_place(level)}: {good}{_of_all(level)} within {limits}")
    for warning in result.warnings:
        print(f"note: {warning}")


def _of_all(level: dict[str, Any]) -> str:
    """What goodput is a part of: all requests that came back in the same window."""
    window = "steady" if level["window"] == "steady" else "whole"
    everything = level["achieved_s"] if level["load"] == "open" else level[f"{window}_requests_s"]
    if everything is None or level["goodput_s"] is None:
        return ""
    offered = "" if level["load"] != "open" or level["offered_s"] is None else f", {level['offered_s']:.3g} offered"
    return f" of {everything:.3g} that came back{offered},"


def _print_marks(results: list[SweepResult]) -> None:
    """What the marks mean that occurred, each once."""
    for mark in dict.fromkeys(mark for result in results for level in result.levels for mark in level["marks"]):
        if mark in MARKS:
            print(f"{mark}: {MARKS[mark]}")


def _print_summary(results: list[SweepResult], folder: Path | None) -> None:
    """Of repeats: for each level the median of the runs and what they lie between; then how they are held against others."""
    from ops.benchmark.results import number, place

    levels: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for result in results:
        for level in result.levels:
            levels.setdefault((level["load"], level["value"]), []).append(level)

    def spread(found: list[dict[str, Any]], name: str, digits: int) -> str:
        values = [level[name] for level in found if level[name] is not None]
        return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})" if values else number(None, digits)

    print(f"\nover {len(results)} runs: the median, and the lowest to the highest")
    table([results[0].headings()[0], "output tok/s", "P50 s", "TTFT P50 ms", "TPOT P50 ms", "runs"],
          [[place(found[0]), spread(found, "output_tok_s", 1), spread(found, "e2e_p50_s", 2), spread(found, "ttft_p50_ms", 1),
            spread(found, "tpot_p50_ms", 2), str(len(found))] for found in levels.values()], left=set())
    if folder is None:
        print("With --save FOLDER the runs are kept, and can be held against others: python -m ops compare FOLDER OTHER")
    elif {path.parent.name for path in folder.glob("*/result.json")} == {result.run_id for result in results}:
        print(f"To hold them against others: python -m ops compare {shlex.quote(str(folder))} OTHER")
    else:
        print(f"{folder} holds other runs, too. To hold these against others, give each side a folder of its own, then: python -m ops compare A B")


def _place(level: dict[str, Any]) -> str:
    return f"{level['value']:g} requests/s" if level["load"] == "open" else f"concurrency {level['value']:g}"


def _failure_of(result: SweepResult) -> OpsError | None:
    """A sweep with failed requests is no success: told, and exit 1."""
    errors = sum(level["errors"] for level in result.levels)
    if result.state == "failed":
        return OpsError("The sweep stopped early", why=result.reason, hint="What was measured until then is kept", kind="sweep_failed")
    if errors:
        first = next(level for level in result.levels if level["errors"])
        sent = sum(level["errors"] + level["finished"] for level in result.levels)
        return OpsError(f"{errors} of {sent} requests failed", kind="requests_failed",
                        why=f"At {_place(first)}: {', '.join(first['errors_by_kind'])}: {first['first_error']}",
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
