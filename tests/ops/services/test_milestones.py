"""The same phases in real and synthetic logs, whatever wraps their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.services.log_lines import Splitter, parse
from ops.services.milestones import PHASES, Parser

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ALL = [name for name, _ in PHASES]


def read(path: str) -> Parser:
    parser, splitter = Parser(), Splitter()
    for number, line in enumerate(splitter.feed((FIXTURES / path).read_bytes()) + splitter.rest()):
        parser.feed(line, float(number))
    return parser


def phases(parser: Parser) -> list[str]:
    return [phase.phase for phase in parser.phases]


CPU = ["start", "load", "kv_cache", "listening", "healthy"]  # there is no graph capture on a CPU


@pytest.mark.parametrize(("log", "seen", "cache"), [
    ("vllm/startup-cold-compile.log", ["start", "load", "compile", "kv_cache", "listening", "healthy"], "miss"),
    ("vllm/startup-recipe.log", CPU, "unknown"),
    ("vllm/startup-eager.log", CPU, "unknown"),
    ("vllm/startup-reasoning-tools.log", ["start", "load", "compile", "kv_cache", "listening", "healthy"], "miss"),
    ("logs/cases/90-healthy-slow-start.log", ALL, "miss"),
    ("logs/cases/92-healthy-autotuner-skips.log", ALL, "hit"),
    ("logs/cases/11-oom-graph-capture.log", ["start", "load", "compile", "kv_cache", "autotune", "capture"], "miss"),
    ("logs/cases/12-no-kv-memory.log", ["start", "load", "compile"], "miss"),
])
def test_phases_of_a_log(log: str, seen: list[str], cache: str) -> None:
    parser = read(log)
    assert (phases(parser), parser.cache) == (seen, cache)


def test_progress_and_detail_inside_a_phase() -> None:
    parser = read("logs/cases/90-healthy-slow-start.log")
    told = {phase.phase: (phase.detail, phase.done, phase.total) for phase in parser.phases}
    assert told["load"] == ("73.40 GiB on each GPU", 64, 64)
    assert told["capture"] == ("1.42 GiB", 51, 51)
    assert told["kv_cache"][0] == "196,608 tokens"
    assert told["compile"][0] == "torch.compile took 66.60 s"


def test_each_phase_ends_where_the_next_begins() -> None:
    parser = read("logs/cases/90-healthy-slow-start.log")
    for before, after in zip(parser.phases, parser.phases[1:], strict=False):
        assert before.ended_s == after.began_s
    assert parser.current.took_s is None


@pytest.mark.parametrize(("line", "phase"), [
    # 0.6 to 0.33, one wording each
    ("INFO 03-02 04:11:08 model_runner.py:1072] Starting to load model /m...", "load"),
    ("INFO 03-02 04:11:08 model_runner.py:1077] Loading model weights took 14.9 GB", "compile"),
    ("INFO 03-02 04:11:08 gpu_executor.py:122] # GPU blocks: 27896, # CPU blocks: 2048", "kv_cache"),
    ("INFO 03-02 04:11:08 model_runner.py:1404] Capturing the model for CUDA graphs. This may lead to unexpected consequences", "capture"),
    ("Capturing CUDA graph shapes:  29%|███       | 10/35 [00:05<00:12]", "capture"),
    ("(VllmWorker rank=0 pid=12) INFO 03-02 04:11:08 [backends.py:1] Compiling a graph for general shape takes 21.3 s", "compile"),
    ("(Worker_TP0 pid=1) INFO 03-02 04:11:08 [monitor.py:9] [backbone] torch.compile took 12.1 s in total", "compile"),
    ("(Worker_TP0 pid=1) INFO 03-02 04:11:08 [decorators.py:9] Directly load AOT compilation from path /x", "compile"),
    ("(EngineCore pid=1) INFO 03-02 04:11:08 [kv_cache_utils.py:9] GPU + host KV cache size: 1,000 tokens, Maximum concurrency 2.00x", "kv_cache"),
    ("(Worker_TP0 pid=1) INFO 03-02 04:11:08 [x.py:9] Using FlashInfer autotune cache file /x/y.json", "autotune"),
    ("(EngineCore pid=1) INFO 03-02 04:11:08 [c.py:9] init engine (profile, create kv cache, warmup model) took 8.1 s (x: 2 s)", "listening"),
    ("(APIServer pid=1) INFO 03-02 04:11:08 [api_server.py:9] Starting vLLM API server 0 on http://0.0.0.0:8000", "listening"),
    ("INFO:     Application startup complete.", "healthy"),
])
def test_wordings_of_all_versions(line: str, phase: str) -> None:
    parser = Parser()
    parser.feed(line, 1.0)
    assert parser.current.phase == phase


def test_eager_servers_do_not_compile() -> None:
    parser = Parser()
    parser.feed("(EngineCore pid=1) INFO 03-02 04:11:08 [core.py:1] Initializing a V1 LLM engine (v0.16.0) with config: enforce_eager=True", 1)
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Model loading took 7.1 GiB memory and 3.5 seconds", 2)
    assert phases(parser) == ["start", "load", "kv_cache"]


def test_other_ranks_and_later_compilations_do_not_go_back() -> None:
    parser = read("logs/cases/90-healthy-slow-start.log")
    before = phases(parser)
    assert parser.feed("(Worker_TP3 pid=1) INFO 03-02 04:11:08 [x.py:1] Model loading took 7.1 GiB memory and 3.5 seconds", 999) == []
    assert phases(parser) == before


def test_lines_that_say_nothing_change_nothing() -> None:
    parser = Parser()
    for line in ("", "No available shared memory broadcast block found in 60 seconds.", "GET /health 200", "x" * 100_000):
        assert parser.feed(line, 5) == []
    assert phases(parser) == ["start"]


@pytest.mark.parametrize("line", [
    "(Worker pid=12) (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    "Mar  2 04:11:28 gpu07 vllm[99]: (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    "2026-03-02T04:11:28+0000 gpu07 python3[99]: (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    "2026-03-02T04:11:28.123456+0000 gpu07 vllm[99]: (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [v1/multiproc_executor.py:754] RuntimeError: x",
    "vllm03-1  | (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    "2026-03-02T04:11:07.123456789Z stdout F (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    "15:46:31.075 (Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x\r",
    "\x1b[0;36m(Worker_TP3 pid=12)\x1b[0;0m ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x",
    '{"MESSAGE": "(Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x", "_PID": "99", "SYSLOG_IDENTIFIER": "vllm"}',
    '{"log": "(Worker_TP3 pid=12) ERROR 03-02 04:11:28 [multiproc_executor.py:754] RuntimeError: x\\n", "stream": "stderr"}',
])
def test_one_line_in_every_layout(line: str) -> None:
    found = parse(line, 7)
    assert (found.number, found.message, found.process, found.pid, found.level, found.source, found.stamp, found.rank) == (
        7, "RuntimeError: x", "Worker_TP3", 12, "ERROR", "multiproc_executor.py", "03-02 04:11:28", 3)


def test_a_binary_journal_entry_is_a_list_of_numbers() -> None:
    text = '{"MESSAGE": ' + str(list(b"a\rLoading safetensors checkpoint shards:  50% Completed | 2/4 [x]")) + ', "_PID": "1"}'
    assert parse(text).message == "Loading safetensors checkpoint shards:  50% Completed | 2/4 [x]"


def test_indentation_of_tracebacks_is_kept() -> None:
    line = '(Worker pid=1) ERROR 03-02 04:11:28 [x.py:1]   File "/x.py", line 1, in f'
    assert parse(line).message.startswith("  File ")


def test_lines_are_split_at_newlines_and_carriage_returns_and_bounded() -> None:
    splitter = Splitter(limit=100)
    assert splitter.feed(b"a\r\nb\rc\n\nd") == ["a", "b", "c"]
    assert splitter.feed(b"e\n") == ["de"]
    assert splitter.feed(b"x" * 1000) == ["x" * 100]
    assert splitter.feed(b"y\n") == ["y"] and splitter.rest() == []
    assert splitter.feed(b"\r 50% 1/2") == [] and splitter.unfinished == " 50% 1/2"
