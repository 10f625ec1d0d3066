"""The `vllm` command: parses, then serves."""

import argparse
import os
import sys
import traceback

from vllm.engine.arg_utils import add_serve_arguments, with_dashes
from vllm.version import __version__

COMMANDS = ("chat", "complete", "serve", "bench", "collect-env", "run-batch")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command; only `serve` is part of the practice stack."""
    top = argparse.ArgumentParser(prog="vllm", description="vLLM CLI (practice)", allow_abbrev=False)
    top.add_argument("-v", "--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}")
    serve = commands.add_parser("serve", allow_abbrev=False, usage="vllm serve [model_tag] [options]",
                                description="Launch a local OpenAI-compatible API server to serve LLM completions via HTTP (practice).")
    add_serve_arguments(serve)
    return top


def main() -> None:
    """Entry point of the console script. Exit code 2 for a wrong command line, 1 for a failed start, 0 after a stop."""
    top = parser()
    args = top.parse_args(with_dashes(sys.argv[1:]))
    if args.command != "serve":
        top.print_help()
        sys.exit(1 if args.command else 0)
    from vllm.entrypoints.cli import serve
    from vllm.logger import log

    try:
        serve.cmd(args)
    except Exception:
        log.raw(traceback.format_exc())
        os._exit(1)
