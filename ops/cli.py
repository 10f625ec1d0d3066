"""`python -m ops`: the same work by hand, on any machine, without the console.

Exit codes: 0 done; 1 an expected failure (told on stderr as what, why, hint; with `--json` also as `{"error": {...}}` on stdout);
2 wrong arguments; 130 interrupted (a sweep's partial result is still printed). Parts are imported when their command is used, so a
machine that lacks one part's libraries can still use the others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.jobs.errors import BadInput, OpsError
from ops.jobs.pipeline import Reporter

WRONG_ARGUMENTS = 2
INTERRUPTED = 130
LOG_LIMIT = 64 * 1024 * 1024  # bytes of a log that `diagnose` reads, from its end


class _WrongArguments(BadInput):
    """What stands on the command line cannot be, whatever the server or the disk says."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. argparse ends the process with 2 for wrong arguments."""
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except OpsError as error:
        _tell(error, arguments.json)
        return WRONG_ARGUMENTS if isinstance(error, _WrongArguments) else 1
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone (`| head`): nothing is wrong, and nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops", description="Look at GPUs and environments, measure and test servers, explain crashes.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", help="print JSON on stdout")
        made.set_defaults(command=command)
        return made

    add("gpus", _gpus, "GPUs of this machine: memory, load, temperature, power, processes")
    packages = add("packages", _packages, "packages of an environment, and whether the coupled ones agree")
    packages.add_argument("--env", required=True, metavar="PATH", help="the environment's folder (the one that holds bin/python)")
    packages.add_argument("--strict", action="store_true", help="exit 1 if coupled packages differ")
    integrity = add("integrity", _integrity, "installed files held against each package's RECORD")
    integrity.add_argument("--env", required=True, metavar="PATH", help="the environment's folder (the one that holds bin/python)")
    integrity.add_argument("--only", action="append", metavar="PACKAGE", help="only this package (may be repeated)")
    integrity.add_argument("--strict", action="store_true", help="exit 1 if anything differs")

    bench = add("bench", _bench, "measure a chat endpoint over concurrencies")
    _server(bench)
    bench.add_argument("--preset", choices=("quick", "story", "custom"), default="custom", help="what the other options start from (default: custom)")
    bench.add_argument("--concurrency", type=_whole_numbers, metavar="1,8,32", help="levels: requests in flight")
    bench.add_argument("--max-tokens", type=int, metavar="N", help="output tokens of each request")
    bench.add_argument("--requests", type=_whole_numbers, metavar="N[,N]", help="requests of each level, one number for all or one each")
    bench.add_argument("--natural", action="store_true", help="let the model end when it wants (default: exactly N tokens, for capacity)")
    bench.add_argument("--burst", action="store_true", default=None, help="start all slots at once (default: staggered over one request)")
    bench.add_argument("--prompt-words", type=int, metavar="N", help="length of the synthetic prompts")
    bench.add_argument("--level-seconds", type=float, metavar="S", help="time limit of a level")
    bench.add_argument("--timeout", type=float, metavar="S", help="time limit of one request")
    bench.add_argument("--seed", type=int, metavar="N", help="seed of the prompts (default: 1)")
    bench.add_argument("--gpus", type=int, metavar="N", help="how many GPUs the server holds, for numbers per GPU")
    bench.add_argument("--save", metavar="FOLDER", help="store every request and the result below this folder")

    smoke = add("smoke", _smoke, "ask a server four questions: a fact, code, reasoning, a tool call")
    _server(smoke)
    smoke.add_argument("--only", action="append", metavar="NAME", help="only this test (may be repeated)")
    smoke.add_argument("--suite", metavar="FILE", help="a JSON list of tests to ask instead")

    diagnose = add("diagnose", _diagnose, "the root cause of a crash, from a log file (- for stdin)")
    diagnose.add_argument("file", metavar="FILE")
    return parser


def _server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="the server's address, such as http://127.0.0.1:8000")
    parser.add_argument("--model", help="the served model's name (default: the only one)")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"`{text}` is not a list of whole numbers such as 1,8,32") from error


def _api_key(arguments: argparse.Namespace) -> str:
    if not arguments.api_key_env:
        return ""
    key = os.environ.get(arguments.api_key_env, "")
    if not key:
        raise _WrongArguments(f"The environment variable `{arguments.api_key_env}` is not set", hint="It should hold the API key")
    return key


@contextmanager
def _from_arguments() -> Iterator[None]:
    """What is refused within it was wrong on the command line: exit code 2."""
    try:
        yield
    except BadInput as error:
        raise _WrongArguments(error.what, why=error.why, hint=error.hint, **error.facts) from error


# ---- gpus ----


def _gpus(arguments: argparse.Namespace) -> int:
    from ops.agent.config import NodeConfig, NodePaths
    from ops.gpus.open_source import open_source

    node = NodePaths.default().node_toml
    config = NodeConfig.load(node) if node.exists() else NodeConfig(name="this-machine")
    snapshot = open_source(config).read()
    if arguments.json:
        return _print_json(snapshot.as_dict())
    if snapshot.source == "practice":
        print("PRACTICE: simulated GPUs")
    if snapshot.problem:
        print(f"No GPUs: {snapshot.problem}")
        return 0
    print(f"driver {snapshot.driver or 'unknown'}, CUDA {snapshot.cuda or 'unknown'}")
    _table(["GPU", "name", "used GiB", "total GiB", "load", "temp", "power", "limit", "PCIe", "processes"], [[
        str(gpu.index), gpu.name, _gib(gpu.used_bytes), _gib(gpu.total_bytes), _unit(gpu.utilization, "%"), _unit(gpu.temperature_c, "°C"),
        _unit(gpu.power_w, "W"), _unit(gpu.power_limit_w, "W"),
        "unknown" if gpu.pcie_gen is None or gpu.pcie_width is None else f"gen{gpu.pcie_gen} x{gpu.pcie_width}",
        gpu.error or ", ".join(f"{p.pid} {p.service or p.command or ''}".strip()[:60] for p in gpu.processes) or "-",
    ] for gpu in snapshot.gpus], left={1, 9})
    return 0


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1024**3:.1f}"


def _unit(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.0f} {unit}"


# ---- packages, integrity ----


def _packages(arguments: argparse.Namespace) -> int:
    from ops.environments import coupling, packages

    read = packages.read(Path(arguments.env))
    found = coupling.findings(read)
    code = 1 if arguments.strict and found else 0
    if arguments.json:
        _print_json({**read.as_dict(), "coupling": [finding.as_dict() for finding in found]})
        return code
    print(f"{read.path}: Python {read.python_version or 'unknown'}, {len(read.distributions)} packages")
    _table(["package", "version"], [[name, distribution.version] for name, distribution in sorted(read.distributions.items())], left={0, 1})
    for problem in read.problems:
        print(f"problem: {problem}")
    for finding in found:
        print(f"\n{finding.level}: {finding.title}\n  {finding.why}\n  fix: {finding.fix}")
    if not found:
        there = [name for name in coupling.coupled_names() if read.version(name)]
        print(f"\nCoupled packages agree: {', '.join(there)}" if len(there) > 1 else "\nNo packages here that must agree with one another "
              f"({', '.join(coupling.coupled_names())})")
    return code


def _integrity(arguments: argparse.Namespace) -> int:
    from ops.environments import integrity

    line = _StatusLine()
    report = integrity.check(Path(arguments.env), only=arguments.only, progress=lambda done, total: line.show(f"{done:,} of {total:,} files"))
    line.clear()
    code = 1 if arguments.strict and not report.clean else 0
    if arguments.json:
        _print_json(report.as_dict())
        return code
    for finding in [*report.changed, *report.missing, *report.extra]:
        print(f"{finding.change:<8} {finding.package or '-':<24} {finding.path}")
    for problem in report.problems:
        print(f"problem  {problem}")
    if report.clean:
        print(f"Clean: {report.checked_files:,} files of {report.distributions} packages are as installed")
    else:
        print(f"{len(report.changed)} changed, {len(report.missing)} missing, {len(report.extra)} extra; {report.checked_files:,} files of "
              f"{report.distributions} packages looked at")
    return code


# ---- bench ----


def _bench(arguments: argparse.Namespace) -> int:
    from ops.benchmark import endpoint, presets, sweep

    key = _api_key(arguments)
    with _from_arguments():  # before anybody is asked anything
        settings = presets.settings(
            arguments.preset, base_url=arguments.url, model=arguments.model or "-", concurrencies=arguments.concurrency,
            max_tokens=arguments.max_tokens, requests=arguments.requests, output_mode="natural" if arguments.natural else None,
            burst=arguments.burst, prompt_words=arguments.prompt_words, level_seconds=arguments.level_seconds,
            request_timeout_s=arguments.timeout, seed=arguments.seed, gpu_count=arguments.gpus)
    if not arguments.model:
        settings.model = endpoint.only_model(endpoint.inspect(settings.base_url, api_key=key))
    line = _StatusLine()
    with _interruptible() as interrupted:
        result = sweep.run(settings, emit=_show_sweep(line, quiet=arguments.json), cancel=interrupted,
                           runs_folder=Path(arguments.save).resolve() if arguments.save else None, api_key=key)
    line.clear()
    failure = _failure_of(result)
    if arguments.json:
        _print_json({**result.as_dict(), **({"error": failure.as_dict()} if failure else {})})
    else:
        _print_sweep(result)
        if arguments.save:
            print(f"stored in {Path(arguments.save).resolve() / result.run_id}")
    if failure is not None:
        _tell(failure, json_output=False)
    if result.state == "cancelled":
        print("Interrupted: what was measured is above" if result.levels else "Interrupted before anything was measured", file=sys.stderr)
        return INTERRUPTED
    return 1 if failure else 0


def _show_sweep(line: _StatusLine, *, quiet: bool) -> Reporter:
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
        _table(HEADINGS, result.rows(), left={len(HEADINGS) - 1})
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


# ---- smoke, diagnose ----


def _smoke(arguments: argparse.Namespace) -> int:
    from ops.benchmark import endpoint
    from ops.services import smoke

    with _from_arguments():
        endpoint.normalise(arguments.url)
    suite: Sequence[smoke.SmokeTest] = smoke.SUITE
    if arguments.suite:
        try:
            raw = json.loads(_read(arguments.suite).decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"`{arguments.suite}` is not JSON", why=str(error)) from error
        if not isinstance(raw, list) or not raw:
            raise BadInput(f"`{arguments.suite}` must hold a JSON list of tests")
        suite = [smoke.SmokeTest.from_dict(entry) for entry in raw]
    if arguments.only:
        if unknown := sorted(set(arguments.only) - {test.name for test in suite}):
            raise _WrongArguments(f"There is no smoke test `{unknown[0]}`", hint=f"Tests: {', '.join(test.name for test in suite)}")
        suite = [test for test in suite if test.name in arguments.only]
    line = _StatusLine()

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
            _print_json({"results": [result.as_dict() for result in results], "error": error.as_dict()})
            _tell(error, json_output=False)
        else:
            print(f"error: {error.what}\nhint: {error.hint}", file=sys.stderr)
        return 1
    if arguments.json:
        return _print_json({"results": [result.as_dict() for result in results]})
    print(f"{len(results)} of {len(results)} passed")
    return 0


def _diagnose(arguments: argparse.Namespace) -> int:
    from ops.services import diagnosis

    raw = _read(arguments.file)
    if b"\0" in raw[:8192]:
        raise BadInput(f"`{arguments.file}` is no log", why="It holds NUL bytes, so it is no text", hint="If it is compressed, unpack it first")
    text = raw.decode("utf-8", "replace")
    found = diagnosis.diagnose(text).as_dict()
    if arguments.json:
        return _print_json(found)
    if not found["text"]:
        print(found["diagnosis"] or "No failure found in this log")
        return 0
    print(f"line {found['line']} of {found['lines']}: {found['text'].strip()}")
    print(f"  {found['diagnosis']}")
    if found["fix"]:
        print(f"  fix: {found['fix']}")
    return 0


def _read(name: str) -> bytes:
    """A file's last LOG_LIMIT bytes; `-` is stdin. Raises BadInput."""
    try:
        if name == "-":
            return sys.stdin.buffer.read()[-LOG_LIMIT:]
        with Path(name).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_LIMIT))
            return file.read()
    except FileNotFoundError as error:
        raise BadInput(f"There is no file `{name}`", why="" if Path(name).is_absolute() else f"Looked for in {Path.cwd()}",
                       hint="Give the path of a log, or - to read one from stdin") from error
    except OSError as error:
        raise BadInput(f"`{name}` cannot be read", why=error.strerror or str(error)) from error


# ---- output ----


def _tell(error: OpsError, json_output: bool) -> None:
    print(f"error: {error}", file=sys.stderr)
    if json_output:
        _print_json({"error": error.as_dict()})


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=1, ensure_ascii=False))
    return 0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]) -> None:
    """Aligned columns, numbers to the right, those in `left` to the left."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        print("  ".join(cells).rstrip())


class _StatusLine:
    """One line on stderr that changes; nothing where stderr is no terminal, but for what is said."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[2K{text[:150]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown = False

    def say(self, text: str) -> None:
        self.clear()
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C only makes the given callable true, so that partial results are kept; the second one ends at once."""
    pressed = False

    def on_interrupt(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
