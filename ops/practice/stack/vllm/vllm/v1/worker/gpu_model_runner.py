"""Runs a model on one simulated GPU: loads, compiles, tunes, captures; each with the log lines and the time of its kind.

Importing this module imports flashinfer, whose version check is what fails in the story.
"""

import time
from collections.abc import Callable

import flashinfer

from vllm.compilation.backends import compile_model
from vllm.config.model import VllmConfig
from vllm.logger import log
from vllm.model_executor.model_loader.base_loader import initialize_model
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms.practice import GPU_MIB, Box
from vllm.v1.worker import phases

CONTEXT_MIB = 624.0
WEIGHTS_MIB = 73.40 * 1024
_WORKSPACE_MIB = 1180.0
_GRAPHS_MIB = 1.42 * 1024
_CAPTURE_SIZES = 51
_TUNED_PROFILES = 22


class GPUModelRunner:
    """The runner of one rank. Rank 0 takes the time and writes the lines, the others only build the model.

    `report` gets the MiB that each GPU holds, whenever that changes.
    """

    def __init__(self, config: VllmConfig, box: Box, rank: int, report: Callable[[float], None]) -> None:
        self.config, self.box, self.rank, self.report = config, box, rank, report

    def load_model(self) -> None:
        """Raises ValueError where no attention backend serves the model, SafetensorError for a broken shard."""
        if self.rank:
            initialize_model(self.config)
            return
        log.info("gpu_model_runner.py:4021", f"Starting to load model {self.config.model}...")
        self.box.reaches("load")
        begun = time.monotonic()
        self.report(CONTEXT_MIB)
        due = begun

        def wait(index: int, total: int) -> None:
            nonlocal due
            due += phases.LOAD / total / self.box.speed
            time.sleep(max(0.0, due - time.monotonic()))

        DefaultModelLoader().load_model(self.config, wait, lambda share: self.report(CONTEXT_MIB + WEIGHTS_MIB * share))
        took = time.monotonic() - begun
        log.info("gpu_model_runner.py:4118", f"Model loading took {WEIGHTS_MIB / 1024:.2f} GiB memory and {took:.6f} seconds")

    def profile_run(self) -> None:
        """One pass with the largest batch; compiles on the way unless the server runs in eager mode."""
        self.box.reaches("compile")
        if not self.config.enforce_eager:
            compile_model(self.config, self.box, dynamo_s=phases.DYNAMO, graph_s=phases.GRAPH, load_s=phases.GRAPH_CACHED)
        self.report(CONTEXT_MIB + WEIGHTS_MIB + _WORKSPACE_MIB)

    def available_kv_bytes(self) -> int:
        """What is left for the KV cache below the memory utilization asked for."""
        self.box.reaches("kv")
        self.box.sleep(phases.KV)
        budget = GPU_MIB * self.config.gpu_memory_utilization
        return int((budget - CONTEXT_MIB - WEIGHTS_MIB - _WORKSPACE_MIB - _GRAPHS_MIB) * 1024 * 1024)

    def allocate_kv_cache(self, kv_bytes: int) -> None:
        """Takes the memory that `available_kv_bytes` found."""
        self.kv_mib = kv_bytes / 1024 / 1024
        self.report(CONTEXT_MIB + WEIGHTS_MIB + _WORKSPACE_MIB + self.kv_mib)

    def autotune(self) -> None:
        """FlashInfer tries its kernels on this GPU."""
        self.box.reaches("autotune")
        self._flashinfer("autotuner.py:256", "[Autotuner]: Autotuning process starts ...")
        begun = time.monotonic()
        step = phases.AUTOTUNE / _TUNED_PROFILES
        for done in range(0, _TUNED_PROFILES + 1):
            if done:
                self.box.sleep(step)
            log.raw(_bar("[AutoTuner]: Tuning flashinfer::cutlass_fused_moe", done, _TUNED_PROFILES, time.monotonic() - begun, "profile"))
        log.raw("\n")
        self._flashinfer("autotuner.py:262", "[Autotuner]: Autotuning process ends")

    def capture_model(self) -> None:
        """Captures CUDA graphs for the usual batch sizes."""
        self.box.reaches("capture")
        if self.config.enforce_eager:
            return
        begun = time.monotonic()
        for kind in ("mixed prefill-decode, PIECEWISE", "decode, FULL"):
            start = time.monotonic()
            for done in range(0, _CAPTURE_SIZES + 1):
                if done:
                    self.box.sleep(phases.CAPTURE / 2 / _CAPTURE_SIZES)
                log.raw(_bar(f"Capturing CUDA graphs ({kind})", done, _CAPTURE_SIZES, time.monotonic() - start, "it"))
            log.raw("\n")
        self.report(CONTEXT_MIB + WEIGHTS_MIB + _WORKSPACE_MIB + self.kv_mib + _GRAPHS_MIB)
        took = time.monotonic() - begun
        log.info("gpu_model_runner.py:5063", f"Graph capturing finished in {took:.0f} secs, took {_GRAPHS_MIB / 1024:.2f} GiB")

    def _flashinfer(self, place: str, text: str) -> None:
        """A line of FlashInfer's own logger."""
        file, _, line = place.partition(":")
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f",{int(now * 1000) % 1000:03d}"
        log.raw(f"{stamp} - INFO - {file}:{line} - {flashinfer.jit.__name__}: {text}\n")


def _bar(title: str, done: int, total: int, elapsed: float, unit: str) -> str:
    """One step of an ordinary tqdm bar: it overwrites its line."""
    filled = 10 * done // total
    clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
    if not done:
        return f"\r{title}:   0%|          | 0/{total} [00:00<?, ?{unit}/s]"
    each = max(elapsed / done, 1e-9)
    left = each * (total - done)
    rate = f"{each:.2f}s/{unit}" if each > 1 else f"{1 / each:.2f}{unit}/s"
    return (f"\r{title}: {100 * done // total:3d}%|{'█' * filled:<10}| {done}/{total} "
            f"[{clock}<{int(left) // 60:02d}:{int(left) % 60:02d}, {rate}]")
