"""How long the pages of runs take with 100 runs and with 10,000, and how large they are.

    .venv/bin/python -m benchmarks.pages [--few 100] [--many 10000] [--requests 60]

Two real consoles (uvicorn, SQLite, Redis) beside each other, one with few runs and one with many, each run with four levels and a fingerprint of
700 packages. Each page is asked of both in turn, over one kept connection, so that what else the machine does falls on both; the processor time of
the web process, which other load changes least, stands beside. Then a comparison of six runs with everything measured, and one run's page. Prints
Markdown; exit 1 if the p95 of a full list with many is above 1.5 times that with few, or a page is larger than 300 kB (Plotly is a file of its own
and not counted).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from dashboard.embedded_redis import EmbeddedRedis  # noqa: E402
from tests.dashboard.real_console import RealConsole  # noqa: E402

RATIO, BYTES = 1.5, 300_000
SEED = """
import json, os, django
django.setup()
from dashboard.models import BenchmarkRun
from tests.dashboard.pages import factory
story = factory.Story()
story.node()
story.service()
story.many_runs(int(os.environ["RUNS"]))
BenchmarkRun.objects.update(fingerprint={"packages": {f"package-{n}": "1.2.3" for n in range(700)}})
six = story.measured(ago_s=86400, repeats=3) + story.measured(ago_s=3600, repeats=3, scale=0.9)
print(json.dumps([str(run.pk) for run in six]))
"""
FULL = ("the list", "by peak", "by P99, the slowest first")  # with as many rows either way; the others draw more where there are more runs
LISTS = {
    "the list": "/benchmarks/", "its last page": "/benchmarks/?page=9999", "by peak": "/benchmarks/?sort=-peak",
    "by P99, the slowest first": "/benchmarks/?sort=-p99", "a search": "/benchmarks/?q=night+7",
    "a search without a hit": "/benchmarks/?q=nothing-like-it",
    "filters and an order": "/benchmarks/?service=practice/kimi-k25&model=glm-5&state=done&kind=practice&tag=nightly&sort=single",
}


class Console:
    """A console with so many runs, and a kept connection to it."""

    def __init__(self, folder: Path, redis: str, runs: int) -> None:
        folder.mkdir()
        self.real = RealConsole(folder, redis, users=1)
        done = subprocess.run([sys.executable, "-c", SEED], cwd=REPOSITORY, env={**self.real.environment, "RUNS": str(runs)}, capture_output=True,
                              text=True, timeout=900, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        self.six: list[str] = json.loads(done.stdout.splitlines()[-1])
        self._static()
        self.real.start_web()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.real.port, timeout=60)

    def _static(self) -> None:
        left_out = [word for name in ("datasets", "widgetbundle.js", "templates") for word in ("-i", name)]
        subprocess.run([sys.executable, "manage.py", "collectstatic", "--noinput", "-v0", *left_out], cwd=REPOSITORY, env=self.real.environment,
                       check=True, timeout=120)

    def get(self, path: str) -> tuple[float, int]:
        """Milliseconds to the last byte, and how many bytes the page has."""
        begun = time.perf_counter()
        self.connection.request("GET", path, headers={"Cookie": f"roundhouse_session={self.real.sessions[0]}"})
        answer = self.connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - begun) * 1000
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {answer.getheader('Location')}")
        return took, len(body)

    def cpu(self) -> float:
        """Milliseconds of processor time that the web process has had."""
        fields = Path(f"/proc/{self.real.processes['web'].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.connection.close()
        self.real.stop()


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=60)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rh-runs-"))
    server = EmbeddedRedis(folder / "redis").start()
    consoles: list[Console] = []
    good = True
    try:
        consoles = [Console(folder / name, server.url(), runs) for name, runs in (("few", asked.few), ("many", asked.many))]
        print(f"| page | {asked.few:,} runs p50 / p95 ms | {asked.many:,} runs p50 / p95 ms | ratio of p95 | processor time ms | its ratio | kB |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for name, path in LISTS.items():
            took: list[list[float]] = [[], []]
            size, cpu = 0, [0.0, 0.0]
            for n in range(asked.requests + 5):
                if n == 5:  # the first ones fill caches of templates and of the database
                    cpu, took = [console.cpu() for console in consoles], [[], []]
                for index in (0, 1) if n % 2 else (1, 0):
                    milliseconds, size = consoles[index].get(path)
                    took[index].append(milliseconds)
            ratio = p95(took[1]) / p95(took[0])
            good = good and (ratio <= RATIO or name not in FULL) and size < BYTES
            each = [(console.cpu() - before) / asked.requests for console, before in zip(consoles, cpu, strict=True)]
            shown = [f"{statistics.median(one):.0f} / {p95(one):.0f}" for one in took]
            print(f"| {name} | {shown[0]} | {shown[1]} | {ratio:.2f} | {each[0]:.0f}, {each[1]:.0f} | {each[1] / each[0]:.2f} | "
                  f"{size / 1000:.0f} |", flush=True)
        many = consoles[1]
        sides = "&".join(f"side={','.join(many.six[n:n + 3])}" for n in (0, 3))
        for name, path in {"a comparison of six runs": f"/benchmarks/compare/?{sides}", "one run": f"/benchmarks/{many.six[0]}/",
                           "a service over time": "/services/practice/kimi-k25/trend/"}.items():
            told = [many.get(path) for _ in range(25)][5:]
            good = good and told[0][1] < BYTES
            took = [[one for one, _ in told]]
            print(f"| {name} | | {statistics.median(took[0]):.0f} / {p95(took[0]):.0f} | | | | {told[0][1] / 1000:.0f} |", flush=True)
    finally:
        for console in consoles:
            console.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
