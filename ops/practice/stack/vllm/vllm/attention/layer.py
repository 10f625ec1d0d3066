"""An attention layer: which backend it uses is settled when it is built."""

import torch
from torch import nn

from vllm.attention.selector import get_attn_backend


class MLAAttention(nn.Module):
    """Multi-head latent attention: one compressed key-value vector for all heads."""

    def __init__(self, kv_lora_rank: int, rope_dim: int, kv_cache_dtype: str) -> None:
        self.head_size = kv_lora_rank + rope_dim
        self.attn_backend = get_attn_backend(head_size=self.head_size, dtype=torch.bfloat16, kv_cache_dtype=kv_cache_dtype, use_mla=True)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The shape stays; there are no numbers to change."""
        return hidden_states
