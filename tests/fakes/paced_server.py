"""The measuring rig (benchmarks/rig/paced_server.c), compiled once for a test session and started by a test."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "rig" / "paced_server.c"


def compile_rig(folder: Path) -> Path:
    """The program, built with gcc."""
    program = folder / "paced_server"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program


@contextmanager
def paced(program: Path, **options: float | str) -> Iterator[str]:
    """Starts it with options (`ttft_ms=20`, `rate=100`, ...); its address. Ends it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(program), "--port", str(port)]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
