"""Loads a folder of safetensors shards, and shows how far it is."""

import time
from collections.abc import Callable
from pathlib import Path

from vllm.logger import log
from vllm.model_executor.model_loader.base_loader import initialize_model
from vllm.model_executor.model_loader.weight_utils import filter_duplicate_safetensors_files, safetensors_weights_iterator
from vllm.config.model import VllmConfig


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def shard_line(done: int, total: int, elapsed: float) -> str:
    """One step of tqdm's bar, as vLLM formats it: its own line, led by a carriage return."""
    if not done:
        return f"\rLoading safetensors checkpoint shards:   0% Completed | 0/{total} [00:00<?, ?it/s]\n"
    each = max(elapsed / done, 1e-9)
    rate = f"{each:5.2f}s/it" if each > 1 else f"{1 / each:5.2f}it/s"
    left = _clock(each * (total - done))
    return f"\rLoading safetensors checkpoint shards: {100 * done // total:3d}% Completed | {done}/{total} [{_clock(elapsed)}<{left}, {rate}]\n"


class DefaultModelLoader:
    """Reads shard after shard. `each` is called with the share done, 0 to 1, after every shard."""

    def load_model(self, config: VllmConfig, wait: Callable[[int, int], None], each: Callable[[float], None]) -> None:
        """Builds the model and reads every shard's header; `wait(index, total)` takes the time that the shard's bytes would."""
        initialize_model(config)
        files = filter_duplicate_safetensors_files(Path(config.model))
        if not files:
            raise RuntimeError(f"Cannot find any model weights with `{config.model}`")
        begun = time.monotonic()
        log.raw(shard_line(0, len(files), 0.0))
        for index, (path, _) in enumerate(safetensors_weights_iterator(files), start=1):
            wait(index, len(files))
            log.raw(shard_line(index, len(files), time.monotonic() - begun))
            each(index / len(files))
        log.raw("\n")
        log.info("default_loader.py:291", f"Loading weights took {time.monotonic() - begun:.2f} seconds")
