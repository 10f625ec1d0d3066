"""Chooses an attention backend for a model on this box's GPUs (compute capability 12.0)."""

_MLA_REASONS = {
    "FLASHMLA": "compute capability not supported",
    "FLASHINFER_MLA": "compute capability not supported",
    "CUTLASS_MLA": "compute capability not supported",
}


def get_attn_backend(*, head_size: int, dtype: str, kv_cache_dtype: str, use_mla: bool) -> str:
    """The backend's name. Raises ValueError where none will do: an fp8 KV cache with MLA, on these GPUs."""
    if not use_mla:
        return "FLASHINFER"
    if kv_cache_dtype in {"auto", "bfloat16"}:
        return "TRITON_MLA"
    reasons = ", ".join(f"{name}: [{why}]" for name, why in {**_MLA_REASONS, "TRITON_MLA": "kv_cache_dtype not supported"}.items())
    raise ValueError(
        f"No valid attention backend found for cuda with AttentionSelectorConfig(head_size={head_size}, dtype={dtype}, "
        f"kv_cache_dtype={kv_cache_dtype}, use_mla={use_mla}). Reasons: {{{reasons}}}."
    )
