"""One client, one load, in this process: `python -m benchmarks.clients NAME URL STREAMS TOKENS [PRIORITY CORE]`."""

from __future__ import annotations

import importlib
import os
import resource
import sys


def main() -> None:
    name, url, streams, tokens, priority, core = sys.argv[1:7]
    module, _, argument = name.partition(":")
    os.sched_setaffinity(0, {int(core)})
    if int(priority):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(priority)))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    measure = importlib.import_module(f"benchmarks.clients.{module}").measure
    measured = measure(url, int(streams), int(tokens), *([argument] if argument else []))
    print(measured.as_json())


main()
