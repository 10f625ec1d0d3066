"""The practice model: a folder with the files and keys of Kimi-K2.5 in NVFP4, and shards that hold next to nothing.

Its config has the two keys of the story (`kv_cache_scheme`, `kv_cache_quant_algo`) taken out, as the engineer had it: with them
this box's GPUs have no attention backend. The service's guards watch that they stay out.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

NAME = "Kimi-K2.5-NVFP4"
SHARDS = 64
WEIGHT_BYTES = 588_000_000_000  # what the real checkpoint takes; the index says so, the practice shards do not
_LAYERS = 61

GUARDS: list[dict[str, Any]] = [
    {"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_scheme", "value": None},
    {"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_quant_algo", "value": None},
]


def config() -> dict[str, Any]:
    """config.json, without the two keys."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "bos_token_id": 163584,
        "eos_token_id": 163586,
        "pad_token_id": 163839,
        "text_config": {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "num_hidden_layers": _LAYERS, "num_attention_heads": 64, "num_key_value_heads": 64,
            "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827,
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "max_position_embeddings": 262144, "rms_norm_eps": 1e-05, "rope_theta": 50000.0, "vocab_size": 163840,
        },
        "quantization_config": {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.41.0"},
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16},
                                          "input_activations": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}},
            "ignore": ["lm_head", "re:.*self_attn.*", "re:vision_tower.*", "re:mm_projector.*"],
        },
        "practice": "This folder belongs to Roundhouse's practice box; it holds no weights.",
    }


def write(root: Path) -> Path:
    """Makes the model folder `root`/NAME anew, whole or not at all, and gives its path."""
    folder = root / NAME
    half = root / f".{NAME}.new"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(mode=0o755, parents=True)
    _json(half / "config.json", config())
    _json(half / "generation_config.json", {"max_length": 262144, "eos_token_id": 163586, "temperature": 1.0, "top_p": 0.95})
    _json(half / "tokenizer_config.json", {"model_max_length": 1000000000, "tokenizer_class": "TikTokenTokenizer",
                                           "bos_token": "[BOS]", "eos_token": "[EOS]"})
    names = {f"language_model.model.layers.{layer}.self_attn.o_proj.weight": f"model-{1 + layer % SHARDS:05d}-of-{SHARDS:05d}.safetensors"
             for layer in range(_LAYERS)}
    for number in range(_LAYERS, SHARDS):
        names[f"practice.filler.{number}"] = f"model-{1 + number:05d}-of-{SHARDS:05d}.safetensors"
    _json(half / "model.safetensors.index.json", {"metadata": {"total_size": WEIGHT_BYTES}, "weight_map": names})
    for name, file in names.items():
        (half / file).write_bytes(_shard(name))
    old = root / f".{NAME}.old"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    half.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return folder


def _shard(name: str) -> bytes:
    """A whole safetensors file with one tensor of eight bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, name: {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
