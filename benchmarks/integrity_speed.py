"""What does an integrity check cost, next to `openssl dgst -sha256` over the same files in two processes? Both in one run, as a ratio.

    .venv/bin/python -m benchmarks.integrity_speed [--env PATH] [--rounds 9]

Without `--env` an environment of more than 1 GB is built from the public index with uv, in a temporary folder. The files are those that the RECORDs
list with a hash; openssl gets them through `xargs -0`, split over two processes by size (largest first, each to the process with less), which is the
best that it can do. Ours is the whole command, `python -m ops integrity --env PATH --json`, from start to exit: it also reads every RECORD, looks for
files that none lists, and compares. One untimed round warms the page cache, then both run in turn. Prints JSON and a row of a table; exit 1 if the
median ratio is above 1.5. The figures are of this machine: look at the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uv

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from ops.environments import integrity, packages  # noqa: E402

PACKAGES = ["pyarrow", "scipy", "polars", "opencv-python-headless", "llvmlite", "numba", "pandas", "scikit-learn", "transformers", "matplotlib",
            "sympy", "jupyterlab", "duckdb", "django", "boto3", "flashinfer-cubin==0.6.3", "ray"]
AT_MOST = 1.5
OPENSSL_PROCESSES = 2
COST_OF_A_FILE = 20_000  # bytes: so that two halves with the same bytes have about the same number of files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, help="an environment of 1 GB or more; default: one is built")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="integrity-speed-") as folder:
        env = arguments.env or built(Path(folder))
        files = hashed_files(env)
        size = sum(length for _, length in files)
        if size < 1_000_000_000:
            print(f"note: only {size / 1e9:.2f} GB; the aim is for 1 GB or more", file=sys.stderr)
        lists = split(files, Path(folder))
        result = measure(env, lists, arguments.rounds) | {"files": len(files), "bytes": size, "distributions": len(packages.read(env).distributions)}
    print(json.dumps(result, indent=1))
    print("\n| files | GB | openssl, 2 processes, s | ours, the whole command, s | ours / openssl | ratio by round | CPU, ours / openssl |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(f"| {result['files']:,} | {size / 1e9:.2f} | {result['openssl_s']:.2f} | {result['ours_s']:.2f} | {result['ratio']:.2f} | "
          f"{min(result['ratios']):.2f} to {max(result['ratios']):.2f} | {result['cpu_ratio']:.2f} |")
    return 0 if result["ratio"] <= AT_MOST else 1


def built(folder: Path) -> Path:
    """An environment by uv; wheels only."""
    env = folder / "env"
    for words in (["venv", "--python", sys.executable, env],
                  ["pip", "install", "--only-binary", ":all:", "--link-mode", "copy", "--python", env, *PACKAGES]):
        subprocess.run([uv.find_uv_bin(), *words, "-q"], check=True)
    return env


def hashed_files(env: Path) -> list[tuple[str, int]]:
    """(path, length) of each file that a RECORD lists with a hash, once."""
    installed = packages.read(env)
    library = packages.site_packages(env)[0]
    paths = {os.path.normpath(library / path) for found in installed.distributions.values() for path, digest in integrity.rows(found) if digest}
    return [(path, Path(path).stat().st_size) for path in sorted(paths)]


def split(files: list[tuple[str, int]], folder: Path) -> list[Path]:
    """Lists for `xargs -0`, of about the same work each."""
    shares: list[list[str]] = [[] for _ in range(OPENSSL_PROCESSES)]
    work = [0] * OPENSSL_PROCESSES
    for path, length in sorted(files, key=lambda file: -file[1]):
        least = work.index(min(work))
        shares[least].append(path)
        work[least] += length + COST_OF_A_FILE
    lists = []
    for number, share in enumerate(shares):
        lists.append(folder / f"files-{number}")
        lists[-1].write_bytes(b"".join(os.fsencode(path) + b"\0" for path in sorted(share)))
    return lists


Took = tuple[float, float]  # seconds of the clock, and of CPU of all processes


def measure(env: Path, lists: list[Path], rounds: int) -> dict[str, Any]:
    """Both in turn; the first round is not counted."""
    theirs: list[Took] = []
    ours: list[Took] = []
    loads = []
    for _ in range(rounds + 1):
        theirs.append(timed(lambda: openssl(lists)))
        ours.append(timed(lambda: command(env)))
        loads.append(os.getloadavg()[0])
    pairs = list(zip(ours[1:], theirs[1:], strict=True))
    return {
        "rounds": rounds, "openssl_s": statistics.median(took for took, _ in theirs[1:]), "ours_s": statistics.median(took for took, _ in ours[1:]),
        "ratio": statistics.median(one[0] / other[0] for one, other in pairs), "ratios": [round(one[0] / other[0], 3) for one, other in pairs],
        "cpu_ratio": statistics.median(one[1] / other[1] for one, other in pairs),
        "cores": len(os.sched_getaffinity(0)), "load": [round(min(loads), 1), round(max(loads), 1)], "python": sys.version.split()[0],
        "openssl": subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.strip()}


def timed(work: Callable[[], None]) -> Took:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    work()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def openssl(lists: list[Path]) -> None:
    running = []
    for path in lists:
        with path.open("rb") as file:
            running.append(subprocess.Popen(["xargs", "-0", "openssl", "dgst", "-sha256"], stdin=file, stdout=subprocess.DEVNULL))
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"openssl ended with {codes}")


def command(env: Path) -> None:
    argv = [sys.executable, "-m", "ops", "integrity", "--env", str(env), "--json"]
    done = subprocess.run(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, check=False)
    told = json.loads(done.stdout)
    if done.returncode or told["changed"] or told["missing"] or told["extra"]:
        raise SystemExit(f"the environment is not clean: {str(told)[:500]}")


if __name__ == "__main__":
    sys.exit(main())
