"""One worker: what a process does with its GPU, in the order in which the executor asks for it."""

import importlib
from collections.abc import Callable

from vllm.config.model import VllmConfig
from vllm.logger import log
from vllm.platforms.practice import Box


class Worker:
    """The worker of one rank."""

    def __init__(self, config: VllmConfig, box: Box, rank: int, port: int, report: Callable[[float], None]) -> None:
        self.config, self.box, self.rank, self.port, self.report = config, box, rank, port, report

    def init_device(self) -> None:
        """Joins the other ranks, then imports the runner, and with it flashinfer."""
        world = self.config.tensor_parallel_size
        log.info("parallel_state.py:1219", f"world_size={world} rank={self.rank} local_rank={self.rank} "
                                           f"distributed_init_method=tcp://127.0.0.1:{self.port} backend=nccl")
        if self.rank == 0:
            self.box.reaches("workers")
            if world > 1:
                log.info("pynccl.py:111", "vLLM is using nccl==2.27.5")
        log.info("parallel_state.py:1590", f"rank {self.rank} in world size {world} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
                                           f"TP rank {self.rank}, EP rank N/A")
        if self.rank == 0 and world > 2:
            log.warning("custom_all_reduce.py:144", "Custom allreduce is disabled: more than two PCIe-only GPUs. "
                                                    "Set disable_custom_all_reduce=True to silence this.")
        runner = importlib.import_module("vllm.v1.worker.gpu_model_runner")
        self.model_runner = runner.GPUModelRunner(self.config, self.box, self.rank, self.report)

    def load_model(self) -> None:
        self.model_runner.load_model()

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache on this GPU."""
        self.model_runner.profile_run()
        available = self.model_runner.available_kv_bytes()
        log.info("gpu_worker.py:358", f"Available KV cache memory: {available / 1024**3:.2f} GiB")
        return available

    def initialize_from_config(self, kv_bytes: int) -> None:
        """Takes the KV cache, tunes kernels, captures graphs."""
        self.model_runner.allocate_kv_cache(kv_bytes)
        self.model_runner.autotune()
        self.model_runner.capture_model()
