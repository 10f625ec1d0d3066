"""`python -m ops`: the same work by hand, on any machine, without the console.

Exit codes: 0 done, and nothing wrong; 1 something is wrong (what was looked at is not as it should be, or an expected failure, told on
stderr as what, why, hint; with `--json` also as `{"error": {...}}` on stdout); 2 wrong arguments; 130 interrupted (a sweep's partial result
is still printed, a job is undone). Parts are imported when their command is used, so a machine that lacks one part's libraries can still
use the others.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.command_line.output import INTERRUPTED, WRONG_ARGUMENTS, WrongArguments, printable, tell
from ops.command_line.targets import channel_options, service_option, target_options
from ops.jobs.errors import OpsError

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. argparse ends the process with 2 for wrong arguments."""
    arguments = parser().parse_args(argv)
    sys.stdout = printable(sys.stdout)
    try:
        code = int(arguments.command(arguments))
        sys.stdout.flush()
        return code
    except OpsError as error:
        tell(error, arguments.json)
        return WRONG_ARGUMENTS if isinstance(error, WrongArguments) else 1
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone (`| head`): nothing is wrong, and nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be written would only fail again
        tell(OpsError("The output cannot be written", why=error.strerror or ""), json_output=False)
        return 1


def _lazy(place: str) -> Command:
    """`module:function` of this package, imported when the command runs."""
    module, _, name = place.partition(":")

    def command(arguments: argparse.Namespace) -> int:
        return int(getattr(importlib.import_module(f"ops.command_line.{module}"), name)(arguments))

    return command


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    made = argparse.ArgumentParser(prog="python -m ops", description="Look at GPUs and environments, change services, measure and test servers, "
                                   "explain crashes.")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, place: str, text: str, among: argparse._SubParsersAction[argparse.ArgumentParser] = commands) -> argparse.ArgumentParser:
        one = among.add_parser(name, help=text, description=text)
        one.add_argument("--json", action="store_true", help="print JSON on stdout")
        one.set_defaults(command=_lazy(place))
        return one

    _look(add)
    _control(add)
    _change(add)
    _records(add, commands)
    _clean(add, commands)
    _measure(add)
    return made


Add = Callable[..., argparse.ArgumentParser]


def _look(add: Add) -> None:
    add("gpus", "looking:gpus", "GPUs of this machine: memory, load, temperature, power, processes")
    packages = add("packages", "environments:packages",
                   "packages of an environment: versions, sizes, sources; unmet requirements, CUDA builds, coupled packages")
    target_options(packages)
    packages.add_argument("--search", metavar="TEXT", help="only packages whose names hold this")
    coupling = add("coupling", "environments:coupling", "whether packages that must agree do agree")
    target_options(coupling)
    integrity = add("integrity", "environments:integrity", "installed files held against each package's RECORD")
    target_options(integrity)
    integrity.add_argument("--only", action="append", metavar="PACKAGE", help="only this package (may be repeated)")
    verify = add("verify", "environments:verify", "whether an environment is whole: files, requirements, coupling, interpreter, vllm")
    target_options(verify)
    verify.add_argument("--release", metavar="RELEASE", help="of the service (default: the one in use)")
    releases = add("releases", "environments:releases", "releases of a service")
    service_option(releases)
    releases.add_argument("--remove", metavar="RELEASE", help="remove this one, as a job")
    shelf = add("shelf", "environments:shelf", "the patch shelf of a service: edits that were saved before they were replaced")
    service_option(shelf)
    shelf.add_argument("--show", nargs=2, metavar=("FOLDER", "PATH"), help="print the diff of one file")
    shelf.add_argument("--forget", nargs=2, metavar=("FOLDER", "PATH"), help="delete one file from the shelf, as a job")


def _control(add: Add) -> None:
    status = add("status", "control:status", "services of this node: state, since when, restarts, unit, last failure; exit 1 if one has failed")
    service_option(status, required=False)
    log = add("log", "control:log", "the log of a service's current (else its last) run, without secrets; with --json an object a line")
    service_option(log)
    log.add_argument("--follow", action="store_true", help="go on until the run has ended and nothing starts it again")
    log.add_argument("--lines", type=int, metavar="N", help="of what is there already only the last N lines")
    for name, text, smokes in (
            ("start", "preflight, start, warm up, test; ends what it started if it fails", True),
            ("stop", "ask it to end, use force after its own time limit, wait until its GPUs are free", False),
            ("restart", "preflight, stop, GPUs free, start, warm up, test", True),
            ("switch", "stop a service and start another one of this node in its place; brings the first one back if that fails", True),
            ("warmup", "watch a start until the first answer, phase by phase; nothing is changed", False),
            ("reset-failed", "forget the failed state of a unit, and a start limit that was hit", False),
            ("leftovers", "what a stop or a crash left behind: processes, GPU memory, port, shared memory; exit 1 if something is in the way", False),
            ("end-leftovers", "end processes that a stop or a crash left behind, if they are proven to be the service's", False)):
        one = add(name, f"control:{name.replace('-', '_')}", text)
        service_option(one)
        one.add_argument("--verbose", action="store_true", help="show what the steps say")
        if smokes:
            one.add_argument("--no-smoke", action="store_true", help="leave the smoke tests out")
        if name == "switch":
            one.add_argument("--to", required=True, metavar="NAME", help="the service that is to run in its place")
        elif name == "end-leftovers":
            one.add_argument("--pid", type=int, action="append", metavar="PID", help="only this process (may be repeated; default: all of its own)")
            one.add_argument("--yes", action="store_true", help="do not ask")


def _change(add: Add) -> None:
    plan = add("plan", "jobs:plan", "what a redeploy would change, package by package; nothing is changed")
    target_options(plan)
    channel_options(plan)
    build = add("build", "jobs:build", "build and verify a release beside the live one; the service is not touched")
    redeploy = add("redeploy", "jobs:redeploy", "plan, build, verify, stop, switch, start, warm up, test; rolls back by itself if it fails")
    for one in (build, redeploy):
        service_option(one)
        channel_options(one)
        one.add_argument("--plan", metavar="FILE", help="build exactly this plan (of `plan --json`), or fail")
        one.add_argument("--verbose", action="store_true", help="show what the steps say")
    redeploy.add_argument("--yes", action="store_true", help="do not ask")
    redeploy.add_argument("--preset", choices=("quick", "story"), default="quick", help="of the sweep (default: quick)")
    for name, text in (("smoke", "leave the smoke tests out"), ("sweep", "leave the sweep out"), ("purge", "delete no leftovers"),
                       ("rollback", "leave a failed release where it is")):
        redeploy.add_argument(f"--no-{name}", action="store_true", help=text)
    redeploy.add_argument("--purge-kind", metavar="KIND", action="append",
                          help="delete leftovers of this kind, not those that the plan offers (more than once: all of them)")
    redeploy.add_argument("--accept-no-rollback", action="store_true", help="go on where the plan says that there is no way back")
    rollback = add("rollback", "jobs:rollback", "switch to a kept release, offline: stop, switch, start, warm up, test")
    service_option(rollback)
    rollback.add_argument("--release", metavar="RELEASE", help="default: the last good one, else the one before")
    rollback.add_argument("--no-smoke", action="store_true", help="leave the smoke tests out")
    rollback.add_argument("--verbose", action="store_true", help="show what the steps say")


def _records(add: Add, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    guards = add("guards", "records:guards", "what must hold in the model folder, and whether it does")
    service_option(guards)
    guards.add_argument("--preset", metavar="NAME", help="check these guards instead of the service's own (sm120)")
    change = guards.add_mutually_exclusive_group()
    change.add_argument("--apply", action="store_true", help="edit the files so that they hold, each with a backup, as a job")
    change.add_argument("--set", action="store_true", help="make the guards of --preset the service's own, beside those it has, as a job")
    change.add_argument("--remove", type=int, metavar="N", help="take the service's guard of this number away, as a job")
    prints = add("fingerprint", "records:fingerprint", "all that could explain a number or a crash, in one record; exit 1 if two differ")
    target = prints.add_mutually_exclusive_group()
    target.add_argument("--env", metavar="PATH", help="an environment's folder")
    service_option(target, required=False)
    prints.add_argument("--since-good", action="store_true", help="what changed since the service's last good start, in words")
    prints.add_argument("--diff", nargs=2, metavar=("A", "B"), help="the difference of two fingerprints in files")
    recipe = commands.add_parser("recipe", help="one file that another node can build the same release from",
                                 description="one file that another node can build the same release from").add_subparsers(
        title="recipe", required=True, metavar="make|show")
    make = add("make", "records:recipe_make", "save a service's release as a recipe", among=recipe)
    service_option(make)
    make.add_argument("--release", metavar="RELEASE", help="default: the one in use")
    make.add_argument("--label", metavar="TEXT", help="what it is called")
    make.add_argument("--output", metavar="FILE", help="write it here as well")
    show = add("show", "records:recipe_show", "what is in a recipe", among=recipe)
    show.add_argument("file", metavar="FILE")
    adopt = add("adopt", "records:adopt", "make an existing systemd unit a service of this node, without changing the unit")
    adopt.add_argument("--unit", required=True, metavar="UNIT", help="its name (vllm, vllm@kimi.service), or the path of a unit file")
    adopt.add_argument("--apply", action="store_true", help="store it (default: only say what it would be)")
    adopt.add_argument("--install", action="store_true", help="install the drop-in that makes the unit start the launcher; for an admin, once")
    adopt.add_argument("--name", metavar="NAME", help="of the service (default: the unit's)")
    adopt.add_argument("--environment", metavar="PATH", help="instead of the one that the unit's command line names")
    adopt.add_argument("--in-place", action="store_true", help="its environment may not move: a redeploy changes it where it is")
    adopt.add_argument("--manager", choices=("systemd", "process"), default="systemd",
                       help="process: Roundhouse starts the server itself, and the unit is disabled (default: systemd)")
    adopt.add_argument("--user", action="store_true", help="a unit of your own manager (systemctl --user)")
    adopt.add_argument("--unit-path", action="append", metavar="FOLDER", type=Path, help="search units here only (may be repeated; first wins)")


def _clean(add: Add, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "leftover files: find them, look at what was found, delete exactly what was chosen of it"
    artifacts = commands.add_parser("artifacts", help=text, description=text).add_subparsers(title="artifacts", required=True,
                                                                                             metavar="kinds|scan|show|purge")
    own = "kinds of your own beside the built-in ones: a JSON list"
    kinds = add("kinds", "artifacts:kinds", "which kinds of leftovers are known: what each is, when deleting it is safe, what keeping it is worth",
                among=artifacts)
    kinds.add_argument("--kinds", metavar="FILE", help=own)
    kinds.add_argument("--kind", action="append", metavar="NAME", help="this kind in full (may be repeated)")
    scan = add("scan", "artifacts:scan", "look for leftovers and write down what was found; nothing is changed, no file is opened", among=artifacts)
    scan.add_argument("--root", action="append", metavar="DIR", help="look only here (may be repeated); needed on a machine that is no node")
    scan.add_argument("--kind", action="append", metavar="NAME", help="only this kind (may be repeated)")
    scan.add_argument("--kinds", metavar="FILE", help=own)
    scan.add_argument("--no-open-check", action="store_true", help="do not ask which process has what open: faster; a purge asks all the same")
    scan.add_argument("--out", metavar="PREVIEW", required=True, help="write the preview there: show and purge take it; nothing is overwritten")
    scan.add_argument("--verbose", action="store_true", help="show what the scan says")
    show = add("show", "artifacts:show", "what is in a preview", among=artifacts)
    purge = add("purge", "artifacts:purge", "delete what was chosen of a preview, each thing looked at again first; there is no undo",
                among=artifacts)
    for one in (show, purge):
        one.add_argument("preview", metavar="PREVIEW", help="the file that a scan wrote")
    show.add_argument("--kind", action="append", metavar="NAME", help="only this kind (may be repeated)")
    show.add_argument("--state", choices=("offered", "optional", "kept"), help="only what is in this state")
    show.add_argument("--sort", choices=("size", "age", "path", "owner", "number"), default="size",
                      help="largest, oldest, ... first (default: size)")
    show.add_argument("--limit", type=int, default=20, metavar="N", help="list at most N artifacts; 0: all (default: 20)")
    purge.add_argument("--all-offered", action="store_true", help="choose all that the preview offers")
    purge.add_argument("--kind", action="append", metavar="NAME", help="choose all of this kind that can be chosen (may be repeated)")
    purge.add_argument("--only", action="append", type=int, metavar="N", help="choose the artifact of this number (may be repeated)")
    purge.add_argument("--without", action="append", type=int, metavar="N", help="but not the artifact of this number (may be repeated)")
    purge.add_argument("--dry-run", action="store_true", help="say exactly what would go; delete nothing")
    purge.add_argument("--manifest", metavar="FILE", help="write what became of each there, too: CSV if it ends so, else JSON; nothing "
                       "is overwritten")
    purge.add_argument("--yes", action="store_true", help="do not ask (asked is only at a terminal)")
    purge.add_argument("--verbose", action="store_true", help="name each file as it goes")


def _measure(add: Add) -> None:
    from ops.command_line.measuring import numbers, objective, server_options, whole_numbers

    bench = add("bench", "measuring:bench", "measure a chat (or completions) endpoint over concurrencies or rates")
    server_options(bench)
    bench.add_argument("--preset", choices=("quick", "story", "capacity", "latency", "custom"), default="custom",
                       help="what the other options start from (default: custom)")
    bench.add_argument("--concurrency", type=whole_numbers, metavar="1,8,32", help="levels: requests in flight (closed loop)")
    bench.add_argument("--rate", type=numbers, metavar="0.5,1,2", help="levels: requests a second, whatever is in flight (open loop)")
    bench.add_argument("--max-in-flight", type=int, metavar="N", help="of an open loop: others wait, which is their queue delay (default: no cap)")
    bench.add_argument("--max-tokens", type=int, metavar="N", help="output tokens of each request")
    bench.add_argument("--requests", type=whole_numbers, metavar="N[,N]", help="requests of each level, one number for all or one each")
    bench.add_argument("--natural", action="store_true", help="let the model end when it wants (default: exactly N tokens, for capacity)")
    bench.add_argument("--burst", action="store_true", default=None, help="start all slots at once (default: staggered over one request)")
    bench.add_argument("--shuffle", action="store_true", help="levels in an order drawn by seed (default: ascending)")
    lengths = bench.add_mutually_exclusive_group()
    lengths.add_argument("--prompt-words", type=int, metavar="N", help="length of the synthetic prompts in words")
    lengths.add_argument("--prompt-tokens", type=int, metavar="N", help="length of the synthetic prompts in tokens, measured on the server")
    lengths.add_argument("--prompts", metavar="FILE", help="prompts of a JSONL file: prompt, messages, conversations (ShareGPT), or a text a line")
    bench.add_argument("--completions", action="store_true", help="measure /v1/completions: hides a reasoning model's thinking")
    bench.add_argument("--reasoning", choices=("on", "off"), help="switch it in the chat template (default: as the server has it)")
    bench.add_argument("--temperature", type=float, metavar="T", help="default: 0")
    bench.add_argument("--slo", type=objective, action="append", metavar="NAME=LIMIT",
                       help="an objective for goodput: ttft_ms, tpot_ms or e2e_s (may be repeated)")
    bench.add_argument("--repeats", type=int, metavar="N", help="run it so many times, each with prompts of its own (three a side decide)")
    bench.add_argument("--against", metavar="URL", help="another server, run in turn (A B B A A B) and compared")
    bench.add_argument("--against-model", metavar="NAME", help="its model (default: --model, or its only one)")
    bench.add_argument("--level-seconds", type=float, metavar="S", help="time limit of a level")
    bench.add_argument("--timeout", type=float, metavar="S", help="time limit of one request")
    bench.add_argument("--seed", type=int, metavar="N", help="seed of the prompts and arrivals (default: drawn, and stored)")
    bench.add_argument("--gpus", type=int, metavar="N", help="how many GPUs the server holds, for numbers per GPU")
    bench.add_argument("--save", metavar="FOLDER", help="store every request and the result below this folder")
    compare = add("compare", "comparing:compare", "runs against the first of them: ratios with intervals, verdicts from three runs a side; exit 1 if "
                  "one is worse")
    compare.add_argument("file", metavar="FILE", nargs="+", help="a side each: a result, several in one file, or a folder of runs; the first is the "
                         "baseline")
    compare.add_argument("--floor", metavar="FILE", help="a noise floor, or three runs or more of one configuration (default: the usual floors)")
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV: a row for each level, metric and side")
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    convert = add("convert", "converting:convert", "results of this and other tools (vllm bench, guidellm, aiperf, inference-perf, SGLang, "
                  "InferenceX), read and written in another form")
    convert.add_argument("file", metavar="FILE", nargs="+", help="results that belong together (points of one sweep, stages of one run), a zip of "
                         "them, or a run's folder")
    convert.add_argument("--to", choices=("json", "csv", "markdown", "vllm"), default="json", help="vllm: a line a level, as `vllm bench serve "
                         "--append-result` writes (default: json)")
    convert.add_argument("--output", metavar="FILE", help="write it there instead of printing it; nothing that is there is overwritten")
    smoke = add("smoke", "measuring:smoke", "ask a server questions, or a service its own suite (as a job): facts, code, reasoning, tool calls")
    server_options(smoke, or_service=True)
    smoke.add_argument("--only", action="append", metavar="NAME", help="only this test (may be repeated)")
    smoke.add_argument("--suite", metavar="FILE", help="a JSON list of tests to ask instead")
    diagnose = add("diagnose", "looking:diagnose", "the root cause of a crash, from a log file, or from a service's own log")
    of = diagnose.add_mutually_exclusive_group(required=True)
    of.add_argument("file", metavar="FILE", nargs="?", help="a log of any layout, also packed with gzip; - is stdin")
    service_option(of, required=False)
    of.add_argument("--unit", metavar="UNIT", help="the last run of a systemd unit, from the journal, with the kernel's log beside it")
    diagnose.add_argument("--user", action="store_true", help="a unit of your own manager (systemctl --user)")
