"""The engine's process: starts the workers, has them load and warm up, and then watches that they live."""

import os
import signal
import sys
import time
from typing import Any

from vllm.config.model import BLOCK_TOKENS, KV_BYTES_PER_TOKEN, VllmConfig
from vllm.logger import log
from vllm.platforms.practice import Box
from vllm.utils.system_utils import die_with_parent, set_process_title
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, send
from vllm.v1.worker import phases
from vllm.version import __version__


class EngineCoreProc:
    """The engine. What it learns goes to the API server through the pipe `report`."""

    def __init__(self, config: VllmConfig, box: Box, report: int) -> None:
        self.config, self.box, self.report = config, box, report
        log.info("core.py:97", f"Initializing a V1 LLM engine (v{__version__}) with config: {_described(config)}")
        self.model_executor = MultiprocExecutor(config, box, lambda mib: send(report, {"memory": mib}),
                                                lambda pids: send(report, {"workers": pids}), [report])
        try:
            self.kv_tokens = self._initialize_kv_caches()
        except Exception:
            self.model_executor.shutdown()
            raise
        send(report, {"ready": {"kv_tokens": self.kv_tokens}})

    def _initialize_kv_caches(self) -> int:
        """Profiles, sizes the cache, warms up; gives the cache's size in tokens. Raises ValueError where it is too small."""
        begun = time.monotonic()
        available = self.model_executor.collective_rpc("determine_available_memory")
        if available <= 0:
            raise ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.")
        tokens = available // KV_BYTES_PER_TOKEN // BLOCK_TOKENS * BLOCK_TOKENS
        if tokens < self.config.max_model_len:
            need = self.config.max_model_len * KV_BYTES_PER_TOKEN / 1024**3
            raise ValueError(
                f"To serve at least one request with the models's max seq len ({self.config.max_model_len}), ({need:.2f} GiB KV cache is needed, "
                f"which is larger than the available KV cache memory ({available / 1024**3:.2f} GiB). Based on the available memory, the estimated "
                f"maximum model length is {tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
            )
        log.info("kv_cache_utils.py:1305", f"GPU KV cache size: {tokens:,} tokens")
        log.info("kv_cache_utils.py:1310", f"Maximum concurrency for {self.config.max_model_len:,} tokens per request: "
                                           f"{tokens / self.config.max_model_len:.2f}x")
        self.model_executor.collective_rpc("initialize_from_config", available)
        log.info("core.py:273", f"init engine (profile, create kv cache, warmup model) took {time.monotonic() - begun:.2f} seconds")
        return tokens

    def run_busy_loop(self) -> None:
        """Returns never: ends by SIGTERM, or by the error that a worker has died."""
        rank = self.model_executor.wait_for_death()
        log.error("multiproc_executor.py:231", f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor.")
        raise RuntimeError(f"Worker proc VllmWorker-{rank} died unexpectedly")


def run_engine_core(config: VllmConfig, box: Box, report: int) -> None:
    """The engine from its first line to its last. Raises what made it fail."""
    engine: EngineCoreProc | None = None
    try:
        box.reaches("engine")
        engine = EngineCoreProc(config, box, report)
        engine.run_busy_loop()
    except SystemExit:
        if engine:
            engine.model_executor.shutdown()
    except Exception as e:
        if engine is None:
            log.exception("core.py:946", "EngineCore failed to start.")
        else:
            log.exception("core.py:955", "EngineCore encountered a fatal error.")
            engine.model_executor.shutdown()
        raise e


def start_engine_core(config: VllmConfig, box: Box, close_in_child: list[int]) -> tuple[int, int]:
    """Forks the engine; gives its pid and the reading end of its pipe."""
    server = os.getpid()
    reading, report = os.pipe()
    pid = os.fork()
    if pid:
        os.close(report)
        return pid, reading
    code = 1
    try:
        for fd in (reading, *close_in_child):
            os.close(fd)
        die_with_parent(server)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        set_process_title("VLLM::EngineCore")
        log.become("EngineCore_DP0")
        box.sleep(phases.ENGINE)
        run_engine_core(config, box, report)
        code = 0
    except SystemExit:
        code = 0
    except Exception:
        import traceback

        log.raw(f"Process EngineCore_DP0:\n{traceback.format_exc()}")
    finally:
        os._exit(code)


def _described(config: VllmConfig) -> str:
    facts: dict[str, Any] = {
        "model": repr(config.model), "speculative_config": None, "tokenizer": repr(config.model), "dtype": "torch.bfloat16",
        "max_seq_len": config.max_model_len, "load_format": "auto", "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": 1, "data_parallel_size": 1, "quantization": config.quantization, "enforce_eager": config.enforce_eager,
        "kv_cache_dtype": config.kv_cache_dtype, "device_config": "cuda", "reasoning_parser": repr(config.reasoning_parser or ""),
        "seed": config.seed, "served_model_name": config.served_names[0], "enable_prefix_caching": config.prefix_caching, "enable_chunked_prefill": True,
    }
    return ", ".join(f"{name}={value}" for name, value in facts.items())
