"""What is known of a server once its arguments and its model folder are read."""

import argparse
from dataclasses import dataclass
from typing import Any

from vllm.engine.arg_utils import REASONING_PARSERS, TOOL_PARSERS
from vllm.logger import log
from vllm.transformers_utils.config import get_config, get_kv_cache_dtype, get_max_model_len
from vllm.transformers_utils.repo_utils import get_model_path

BLOCK_TOKENS = 64
KV_BYTES_PER_TOKEN = 68_640  # MLA, 61 layers x (512 + 64) values of 2 bytes, less than 1 % of overhead left out


@dataclass(frozen=True)
class VllmConfig:
    """All that engine and API server need to know."""

    model: str
    served_names: list[str]
    architecture: str
    max_model_len: int
    tensor_parallel_size: int
    gpu_memory_utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: str
    quantization: str | None
    enforce_eager: bool
    prefix_caching: bool
    seed: int
    reasoning_parser: str | None
    tool_call_parser: str | None
    hf_config: dict[str, Any]


def validate_parsers(args: argparse.Namespace) -> None:
    """Raises KeyError with vLLM's words for a parser name that this version does not have."""
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    if args.enable_auto_tool_choice and args.tool_call_parser not in TOOL_PARSERS:
        raise KeyError(f"invalid tool call parser: {args.tool_call_parser} (chose from {{ {', '.join(TOOL_PARSERS)} }})")
    if args.reasoning_parser and args.reasoning_parser not in REASONING_PARSERS:
        raise KeyError(f"invalid reasoning parser: {args.reasoning_parser} (chose from {{ {', '.join(REASONING_PARSERS)} }})")


def create_engine_config(args: argparse.Namespace) -> VllmConfig:
    """Reads the model folder and settles every default. Raises what the readers raise, and ValueError for a bad split."""
    model = get_model_path(args.model_tag)
    config = get_config(model)
    architecture = (config.get("architectures") or ["TransformersForCausalLM"])[0]
    log.info("model.py:541", f"Resolved architecture: {architecture}")
    longest = get_max_model_len(config)
    length = args.max_model_len or longest
    if length > longest:
        raise ValueError(
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len (max_position_embeddings={longest} or "
            "model_max_length=None in model's config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    log.info("model.py:1561", f"Using max model len {length}")
    text = config.get("text_config") or config
    heads = int(text.get("num_attention_heads", 64))
    if heads % args.tensor_parallel_size:
        raise ValueError(f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({args.tensor_parallel_size}).")
    batched = args.max_num_batched_tokens or 8192
    log.info("scheduler.py:226", f"Chunked prefill is enabled with max_num_batched_tokens={batched}.")
    kv_cache_dtype = args.kv_cache_dtype if args.kv_cache_dtype != "auto" else get_kv_cache_dtype(config)
    if kv_cache_dtype.startswith("fp8"):
        log.info("cache.py:209", f"Using {kv_cache_dtype} data type to store kv cache. It reduces the GPU memory footprint.")
    quantization = (config.get("quantization_config") or {}).get("quant_method")
    return VllmConfig(
        model=model, served_names=args.served_model_name or [args.model_tag], architecture=architecture, max_model_len=length,
        tensor_parallel_size=args.tensor_parallel_size, gpu_memory_utilization=args.gpu_memory_utilization,
        max_num_seqs=args.max_num_seqs or 256, max_num_batched_tokens=batched, kv_cache_dtype=kv_cache_dtype,
        quantization=args.quantization or quantization, enforce_eager=args.enforce_eager, seed=args.seed,
        prefix_caching=args.enable_prefix_caching is not False,
        reasoning_parser=args.reasoning_parser, tool_call_parser=args.tool_call_parser if args.enable_auto_tool_choice else None, hf_config=config,
    )
