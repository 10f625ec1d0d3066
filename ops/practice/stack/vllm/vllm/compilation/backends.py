"""torch.compile's stand-in: what is compiled once lies in the box's cache under a hash, and is found there the next time."""

import hashlib
import json
import time
from pathlib import Path

from vllm.config.model import VllmConfig
from vllm.logger import log
from vllm.platforms.practice import Box
from vllm.version import __version__


def cache_key(config: VllmConfig) -> str:
    """Ten hex digits over all that would change the compiled graph: version, model config, split, batch size."""
    facts = [__version__, config.hf_config, config.tensor_parallel_size, config.max_num_batched_tokens, config.max_model_len]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10]


def compile_model(config: VllmConfig, box: Box, *, dynamo_s: float, graph_s: float, load_s: float) -> None:
    """Traces the model, then compiles its graph or loads it from the cache; the times are those of a server at speed 1."""
    begun = time.monotonic()
    compiled = f"compile range (1, {config.max_num_batched_tokens})"
    folder = (box.cache or Path("/nonexistent")) / cache_key(config) / "rank_0_0" / "backbone"
    graph = folder / "computation_graph.py"
    log.info("backends.py:812", f"Using cache directory: {folder} for vLLM's torch.compile")
    box.sleep(dynamo_s)
    log.info("backends.py:872", f"Dynamo bytecode transform time: {time.monotonic() - begun:.2f} s")
    step = time.monotonic()
    if graph.is_file():
        box.sleep(load_s)
        log.info("backends.py:267", f"Directly load the compiled graph(s) for {compiled} from the cache, took {time.monotonic() - step:.3f} s")
    else:
        box.sleep(graph_s * 0.7)
        log.info("backends.py:302", f"Cache the graph of {compiled} for later use")
        box.sleep(graph_s * 0.3)
        if box.cache:
            folder.mkdir(parents=True, exist_ok=True)
            graph.write_text(f'"""Practice: the graph of {config.architecture} for {compiled} would be here."""\n')
        log.info("backends.py:319", f"Compiling a graph for {compiled} takes {time.monotonic() - step:.2f} s")
    log.info("monitor.py:34", f"torch.compile takes {time.monotonic() - begun:.2f} s in total")
