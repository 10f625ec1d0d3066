"""What does the build of a redeploy that changes nothing cost, next to the same uv commands by hand?

    python -m benchmarks.rebuild [--rounds 5] [--packages flashinfer-cubin==0.6.4,pyarrow,...]

An environment of more than 1 GB of real packages, everything in uv's cache. By hand: `uv venv`, then `uv pip install --link-mode copy` of the
same lock file with the same cache. Ours: a `build` job, of which the step *Build* is held against that, and *Verify* (every file hashed, vLLM
started twice) is told apart. Rounds alternate; what was built is removed between them, untimed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.real_service import PACKAGES, channel_of, make_node, run_uv, size
from ops.environments import releases
from ops.jobs.events import JobState


def by_hand(target: Path, cache: Path, lock: Path, extra_index: str) -> float:
    """Seconds for a new environment out of the cache, as a person would make it."""
    os.sync()  # what the round before left to be written is not this one's cost
    began = time.monotonic()
    run_uv(cache, "venv", "--python", sys.executable, target)
    run_uv(cache, "pip", "install", "--python", target / "bin" / "python", "--link-mode", "copy", "--no-deps", "--require-hashes", "--index",
           extra_index, "--requirement", lock)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rh-rebuild-"))
    try:
        with channel_of(root, given.packages.split(",")) as channel:
            node = make_node(root / "n", channel, cache=root / "cache")
            files, length = size(node.current.resolve())
            print(f"{files:,} files, {length / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f}", flush=True)
            lock = root / "lock.txt"
            rows: list[tuple[float, float, float, float]] = []
            for number in range(given.rounds + 1):  # the first one is not counted: it writes the lock, and compiles what it imports
                os.sync()
                told = node.run("build", channel)
                if told.outcome.state != JobState.SUCCEEDED:
                    raise SystemExit(f"{told.outcome}")
                release = next(release for release in releases.listing(node.record) if not release.is_current)
                shutil.copyfile(release.path / releases.LOCK_FILE, lock)
                releases.remove(node.record, release.path)
                target = root / "by-hand"
                hand = by_hand(target, node.cache, lock, channel.extra_index_urls[0])
                shutil.rmtree(target)
                if number:
                    rows.append((hand, told.took("build"), told.took("verify"), told.took("build") / hand))
            print("| round | by hand s | Build s | Build / by hand | Verify s (apart) |\n| --- | --- | --- | --- | --- |")
            for number, (hand, build, verify, ratio) in enumerate(rows, 1):
                print(f"| {number} | {hand:.2f} | {build:.2f} | {ratio:.2f} | {verify:.2f} |")
            hand, build, verify, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"| median | {hand:.2f} | {build:.2f} | {ratio:.2f} | {verify:.2f} |")
            print(f"load {os.getloadavg()[0]:.1f}; the aim is at most 1.3")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
