"""`vllm serve`: from parsed arguments to a running server."""

import argparse
import asyncio

from vllm.entrypoints.openai.api_server import run_server


def cmd(args: argparse.Namespace) -> None:
    """Serves until SIGTERM."""
    asyncio.run(run_server(args))
