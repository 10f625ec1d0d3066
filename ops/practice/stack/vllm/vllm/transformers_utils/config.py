"""Reads what a model folder says about its model."""

import json
from pathlib import Path
from typing import Any

_MODEL_TYPES = {"kimi_k25", "kimi_k2", "deepseek_v2", "deepseek_v3", "qwen2", "qwen3", "qwen3_moe", "llama", "glm4_moe", "minimax_m2"}


def get_config(model: str) -> dict[str, Any]:
    """config.json of a model folder.

    Raises ValueError where there is none or its model type is unknown, OSError where it is not JSON; the words are those of
    the real libraries.
    """
    path = Path(model) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"Invalid repository ID or local directory specified: '{model}'.\n"
            "Please verify the following requirements:\n"
            "1. Provide a valid Hugging Face repository ID.\n"
            "2. Specify a local directory that contains a recognized configuration file.\n"
            "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
        )
    try:
        config = json.loads(path.read_text())
    except ValueError:
        raise OSError(f"It looks like the config file at '{path}' is not a valid JSON file.") from None
    model_type = config.get("model_type", "")
    if model_type not in _MODEL_TYPES:
        raise ValueError(
            f"The checkpoint you are trying to load has model type `{model_type}` but Transformers does not recognize this architecture. "
            "This could be because of an issue with the checkpoint, or because your version of Transformers is out of date."
        )
    return config


def get_text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a multi-modal config, or the config itself."""
    return config.get("text_config") or config


def get_max_model_len(config: dict[str, Any]) -> int:
    """The longest context that the model was trained for, in tokens."""
    text = get_text_config(config)
    return int(text.get("max_position_embeddings", 8192))


def get_kv_cache_dtype(config: dict[str, Any]) -> str:
    """What the checkpoint wants its KV cache to be: "auto", or "fp8_e4m3" if it was calibrated for that."""
    quantization = config.get("quantization_config") or {}
    if quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo"):
        return "fp8_e4m3"
    return "auto"
