"""How often is the cause of a crash named right, and how long does a log of a million lines take, next to grep? One run, in turn.

    .venv/bin/python -m benchmarks.diagnosis [--lines 1000000] [--rounds 5] [--only scores|speed]

Scores: the synthetic logs of tests/fixtures/logs (40 faulty, 5 healthy) and, where it is there, of tests/fixtures/logs/unseen: the right line is the
decisive one or one that cases.json accepts in its place; a fault told of a healthy log is a false alarm. Then each family of rules is taken out in
turn, and at last all rules: the generic search must still name the line of most.

Speed: logs of several kinds are written to a temporary folder; each is read by `python -m ops diagnose FILE --json` (whole process) and by
`LC_ALL=C grep -ciE 'error|exception|traceback'`; page cache warm, median of the rounds in turn, processor time (which other load changes least) and
peak memory of ours. Prints JSON and tables; exit 1 if fewer than 38 lines or 36 kinds are right, a healthy log gets a fault, fewer than 25 lines are
right without a family, or a ratio is above 30.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from ops.services.diagnosis import Rule, diagnose_file, rules  # noqa: E402

LOGS = REPOSITORY / "tests" / "fixtures" / "logs"
REAL = REPOSITORY / "tests" / "fixtures" / "vllm"
AT_MOST = 30.0
GREP = ["grep", "-ciE", "error|exception|traceback"]


# ---- scores ----


def cases(folder: Path) -> list[dict[str, Any]]:
    return [case | {"path": folder / case["file"]} for case in json.loads((folder / "cases.json").read_text())["cases"]]


def score(among: list[dict[str, Any]], known: Sequence[Rule] | None = None) -> dict[str, int]:
    """How many lines and kinds are right of the faulty ones, how many healthy ones got a fault."""
    told = {"faulty": 0, "lines": 0, "kinds": 0, "healthy": 0, "false_alarms": 0}
    for case in among:
        found = diagnose_file(case["path"], known=known)
        if not case["fault"]:
            told["healthy"] += 1
            told["false_alarms"] += found.fault
            continue
        told["faulty"] += 1
        told["lines"] += found.line in {case["decisive_line"], *case["equivalent_lines"], *case["also_accept_lines"]}
        told["kinds"] += found.kind == case["kind"]
    return told


def scores() -> tuple[dict[str, Any], bool]:
    result: dict[str, Any] = {}
    good = True
    for name, folder in (("known", LOGS), ("unseen", LOGS / "unseen")):
        if not (folder / "cases.json").exists():
            continue
        among = cases(folder)
        families = sorted({rule.family for rule in rules()})
        one: dict[str, Any] = {"all rules": score(among)}
        for family in families:
            one[f"without {family}"] = score(among, [rule for rule in rules() if rule.family != family])
        one["no rule at all"] = score(among, [])
        result[name] = one
        if name == "known":
            whole = one["all rules"]
            good = whole["lines"] >= 38 and whole["kinds"] >= 36 and all(each["lines"] >= 25 for each in one.values())
        good = good and not any(each["false_alarms"] for each in one.values())
    return result, good


# ---- speed ----


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").split("\n")[:-1]


def serving(chance: random.Random) -> Iterator[str]:
    """A start, then requests and throughput, now and then a client's mistake with its traceback."""
    yield from _lines(REAL / "startup-recipe.log")
    for second in range(1 << 40):
        at = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        kind = chance.random()
        if kind < 0.97:
            yield (f'(APIServer pid=4711) INFO:     10.0.{chance.randrange(255)}.{chance.randrange(255)}:{chance.randrange(65535)} - '
                   '"POST /v1/chat/completions HTTP/1.1" 200 OK')
        elif kind < 0.99:
            yield (f"(APIServer pid=4711) INFO 03-02 {at} [loggers.py:257] Engine 000: Avg prompt throughput: {chance.random() * 1e4:.1f} tokens/s, "
                   f"Avg generation throughput: {chance.random() * 1e3:.1f} tokens/s, Running: {chance.randrange(64)} reqs, Waiting: 0 reqs, GPU KV "
                   f"cache usage: {chance.random() * 100:.1f}%, Prefix cache hit rate: 51.3%")
        else:
            yield f"(APIServer pid=4711) ERROR 03-02 {at} [serving_chat.py:200] Error in preprocessing prompt inputs"
            yield "(APIServer pid=4711) Traceback (most recent call last):"
            yield '(APIServer pid=4711)   File "/opt/venv/lib/python3.12/site-packages/vllm/entrypoints/openai/serving_chat.py", line 200, in create'
            yield (f"(APIServer pid=4711) ValueError: This model's maximum context length is 4096 tokens. However, you requested "
                   f"{chance.randrange(99999)} tokens")


def kinds(count: int) -> dict[str, Iterator[str]]:
    """Logs of `count` lines."""
    chance = random.Random(4)
    crash = _lines(LOGS / "cases" / "01-flashinfer-cubin-mismatch.log")
    real = [line for path in sorted(REAL.glob("*.log")) for line in _lines(path)]
    every = [line for case in cases(LOGS) for line in _lines(case["path"])]
    death = _lines(LOGS / "cases" / "39-illegal-memory-access-runtime.log")
    tracebacks = [line for line in _lines(REAL / "crash-flashinfer-mismatch-in-worker.log") if "ERROR" in line or "File" in line]
    errors = (f"(EngineCore pid=4711) ERROR 03-02 04:{number // 60 % 60:02d}:{number % 60:02d} [core.py:{number % 900}] Request {number} failed: "
              f"RuntimeError: step {number * 7919 % 100_003} of the scheduler was late" for number in range(1 << 40))
    startup = _lines(REAL / "startup-recipe.log")[:-8]
    progress = (line for number in range(1 << 40) for line in (
        f"\rLoading safetensors checkpoint shards:  {number % 100}% Completed | {number % 64}/64 [00:{number % 60:02d}<00:10,  1.{number % 99}it/s]",
        f"(Worker_TP0 pid=77) INFO 03-02 04:11:{number % 60:02d} [backends.py:{number % 400}] Compiling a graph for compile range ({number}, "
        f"{number + 9}) takes {number % 77}.{number % 10} s",
        f"(Worker_TP0 pid=77) WARNING 03-02 04:11:{number % 60:02d} [fused_moe.py:88] Using default MoE config. Performance might be sub-optimal! "
        f"Config file not found at ['/opt/venv/E={number}.json']"))
    return {
        "serving, healthy": islice(serving(chance), count),
        "serving, then a crash": _then(islice(serving(chance), count - len(death)), death),
        "serving, as the journal's JSON": (json.dumps({
            "__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + number), "_HOSTNAME": "gpu", "_PID": "4711", "SYSLOG_IDENTIFIER": "vllm",
            "PRIORITY": "6", "MESSAGE": line}) for number, line in enumerate(islice(serving(chance), count))),
        "all 45 logs, over and over": islice(cycle(every), count),
        "real crashes and starts, over and over": islice(cycle(real), count),
        "one crash of the same processes, over and over": islice(cycle(crash), count),
        "tracebacks only": islice(cycle(tracebacks), count),
        "different error lines only": islice(errors, count),
        "a start that goes on and on": islice(_then(startup, progress), count),
    }


def _then(first: Iterator[str] | list[str], second: Iterator[str] | list[str]) -> Iterator[str]:
    yield from first
    yield from second


def cost(argv: list[str]) -> tuple[float, int, bytes]:
    """Processor seconds of a command, its peak memory in MiB, and what it printed."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=REPOSITORY, env=os.environ | {"LC_ALL": "C"})
    assert process.stdout is not None
    said = process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stdout.close()
    return used.ru_utime + used.ru_stime, used.ru_maxrss // 1024, said


def speed(count: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="diagnosis-speed-") as folder:
        for name, lines in kinds(count).items():
            path = Path(folder) / "log"
            with path.open("w") as file:
                file.writelines(line + "\n" for line in lines)
            ours, theirs, peak, told = [], [], 0, {}
            for number in range(rounds + 1):
                grep, _, _ = cost([*GREP, str(path)])
                used, memory, said = cost([sys.executable, "-m", "ops", "diagnose", str(path), "--json"])
                if number:  # the first one warms the page cache
                    theirs.append(grep)
                    ours.append(used)
                    peak, told = max(peak, memory), json.loads(said)
            rows.append({
                "log": name, "lines": told["lines"], "mb": round(path.stat().st_size / 1e6), "grep_s": round(statistics.median(theirs), 3),
                "ours_s": round(statistics.median(ours), 2), "ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 1),
                "peak_mib": peak, "answer": f"line {told['line']}: {told['kind']}" if told["fault"] else told["state"],
            })
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("scores", "speed"))
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    good = True
    if arguments.only != "speed":
        result["scores"], good = scores()
    if arguments.only != "scores":
        result["speed"] = speed(arguments.lines, arguments.rounds)
        good = good and all(row["ratio"] <= AT_MOST for row in result["speed"])
    print(json.dumps(result, indent=1))
    for name, one in result.get("scores", {}).items():
        print(f"\n| {name} logs | right line | right kind | false alarms |\n| --- | --- | --- | --- |")
        for what, told in one.items():
            print(f"| {what} | {told['lines']} of {told['faulty']} | {told['kinds']} | {told['false_alarms']} of {told['healthy']} |")
    if rows := result.get("speed"):
        print("\n| log | lines | MB | grep s | ours s | ours / grep | peak MiB | answer |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
        for row in rows:
            print(f"| {row['log']} | {row['lines']:,} | {row['mb']} | {row['grep_s']:.2f} | {row['ours_s']:.2f} | {row['ratio']:.1f} | "
                  f"{row['peak_mib']} | {row['answer']} |")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
