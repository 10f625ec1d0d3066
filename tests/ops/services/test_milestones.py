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
    ("INFO 12-19 22:58:27 model_runner.py:1415] Capturing cudagraphs for decoding. This may lead to unexpected consequences", "capture"),
    ("INFO 11-02 10:00:00 model_runner.py:1518] Graph capturing finished in 14 secs.", "capture"),
    ("INFO 03-21 20:15:45 [worker.py:267] Memory profiling takes 34.26 seconds", "kv_cache"),
    ("INFO:     Waiting for application startup.", "listening"),
    ("Loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.0s/it]", "load"),
    ("Loading safetensors using Fastsafetensor loader:  33% Completed | 1/3 [00:01<00:03,  1.2s/it]", "load"),
    ("Multi-thread loading shards:  47% Completed | 15/32 [00:21<00:20,  1.23s/it]", "load"),
    ("model-00001-of-00004.safetensors:  21%|##1       | 1.05G/4.98G [00:12<00:45, 86.2MB/s]", "load"),
    ("(EngineCore pid=1) INFO 05-03 17:50:21 [weight_utils.py:851] Prefetching checkpoint files: 10% (1/3)", "load"),
    ("(RayWorkerProc pid=2, ip=10.0.0.4) (Worker pid=2) INFO 08-19 17:59:46 [model_runner.py:284] Loading model from scratch...", "load"),
    ("(Worker_TP0 pid=1) INFO 03-13 17:30:51 [monitor.py:76] Initial profiling/warmup run took 0.06 s", "compile"),
    ("DeepGEMM warmup:  53%|#####3    | 1124/2116 [02:23<01:24, 11.74it/s]", "autotune"),
    ("DeepGemm(fp8_gemm_nt) warmup (W=torch.Size([36864, 7168])) [relaxed]:  10%|#   | 28/288 [00:00<00:00, 222it/s]", "autotune"),
    ("node7 (Worker_TP0 pid=1) INFO 03-02 04:11:08 [x.py:9] Available KV cache memory: 3.10 GiB", "kv_cache"),  # VLLM_LOGGING_PREFIX
    ('{"timestamp": "x", "level": "INFO", "message": "Starting to load model /m..."}', "load"),
    ("2026-11-29T23:44:38.123456+0000 gpu1 vllm[7]: (Worker pid=9) INFO 11-29 23:44:38 [g.py:1] Starting to load model /m...", "load"),
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


def test_graphs_that_are_captured_to_measure_them_are_no_capture_yet() -> None:
    parser = Parser()
    head = "(Worker_TP0 pid=447) INFO 08-14 14:07:20 [gpu_model_runner.py:6681] "
    for at, said in enumerate(["Model loading took 7.1 GiB memory and 3.5 seconds", "Profiling CUDA graph memory: PIECEWISE=16 (largest=16)",
                               "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|x| 8/16 [x]",
                               "Estimated CUDA graph memory: 0.36 GiB total", "Available KV cache memory: 6.87 GiB",
                               "Capturing CUDA graphs (decode, FULL):  50%|x| 8/16 [x]"]):
        parser.feed(head + said, float(at))
    assert [(phase.phase, phase.began_s) for phase in parser.phases] == [("start", 0), ("load", 0), ("compile", 0), ("kv_cache", 4), ("capture", 5)]


def test_another_rank_of_the_first_engine_that_has_loaded_does_not_end_loading() -> None:
    parser = Parser()
    parser.feed("Loading safetensors checkpoint shards:  93% Completed | 28/30 [x]", 1)
    assert parser.feed("(VllmWorkerProcess pid=479247) INFO 10-28 11:14:51 model_runner.py:1067] Loading model weights took 65.7407 GB", 2) == []
    parser.feed("INFO 10-28 11:14:53 model_runner.py:1067] Loading model weights took 65.7407 GB", 3)
    assert phases(parser) == ["start", "load", "compile"] and parser.phases[1].ended_s == 3


def test_much_progress_is_no_milestone() -> None:
    parser = Parser()
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Starting to load model /m...", 1)
    for percent in range(1, 100):
        [change] = parser.feed(f"model-00001-of-00004.safetensors:  {percent}%|#  | 1.05G/4.98G [x]", 2)
        assert not change.milestone
    assert parser.current.detail == "downloading model-00001-of-00004.safetensors: 99 %" and parser.current.done is None


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
