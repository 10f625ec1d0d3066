"""Loads GGUF checkpoints: one file, its own tensor names."""

from pathlib import Path

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_exps": "mlp.experts.w1",
    "ffn_up_exps": "mlp.experts.w3",
    "ffn_down_exps": "mlp.experts.w2",
}


class GGUFModelLoader:
    """Maps a GGUF file's tensor names to the model's parameter names."""

    def find_file(self, model: str) -> Path:
        """The checkpoint: the path itself, or the only .gguf file of the folder. Raises ValueError otherwise."""
        path = Path(model)
        if path.is_file():
            return path
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ValueError(f"{model} must hold exactly one .gguf file, it holds {len(files)}")
        return files[0]

    def hf_name(self, gguf_name: str) -> str:
        """`blk.3.attn_q_a.weight` is `model.layers.3.self_attn.q_a_proj.weight`. Raises KeyError for an unknown name."""
        if gguf_name in _NAMES:
            return _NAMES[gguf_name]
        _, layer, part, kind = gguf_name.split(".")
        return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}"
