"""DeepSeek V2/V3 and its relatives, Kimi K2 and K2.5 among them: latent attention and a mixture of experts."""

from typing import Any

import torch
from torch import nn

from vllm.attention.layer import MLAAttention
from vllm.config.model import VllmConfig


class DeepseekV2MLP(nn.Module):
    """The dense feed-forward part of the first layers."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size


class DeepseekV2MoE(nn.Module):
    """Routed experts plus a shared one."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.n_routed_experts = int(config.get("n_routed_experts") or 0)
        self.top_k = int(config.get("num_experts_per_tok") or 1)
        self.routed_scaling_factor = float(config.get("routed_scaling_factor") or 1.0)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Routes each token to its experts; here, the shape only."""
        return hidden_states


class DeepseekV2MLAAttention(nn.Module):
    """Latent attention of one layer."""

    def __init__(self, config: dict[str, Any], kv_cache_dtype: str) -> None:
        self.kv_lora_rank = int(config.get("kv_lora_rank") or 512)
        self.qk_rope_head_dim = int(config.get("qk_rope_head_dim") or 64)
        self.mla_attn = MLAAttention(self.kv_lora_rank, self.qk_rope_head_dim, kv_cache_dtype)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Projects down, attends, projects up."""
        return self.mla_attn(hidden_states)


class DeepseekV2DecoderLayer(nn.Module):
    """Attention, then experts (or, in the first layers, a dense part), each with a residual."""

    def __init__(self, config: dict[str, Any], layer_idx: int, kv_cache_dtype: str) -> None:
        self.layer_idx = layer_idx
        self.self_attn = DeepseekV2MLAAttention(config, kv_cache_dtype)
        if layer_idx >= int(config.get("first_k_dense_replace") or 0):
            self.mlp: nn.Module = DeepseekV2MoE(config)
        else:
            self.mlp = DeepseekV2MLP(int(config.get("hidden_size", 7168)), int(config.get("intermediate_size", 18432)))

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and residual for the next layer."""
        residual = hidden_states if residual is None else residual
        hidden_states = self.self_attn(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return hidden_states, residual


class DeepseekV2Model(nn.Module):
    """All layers in order."""

    def __init__(self, config: dict[str, Any], kv_cache_dtype: str) -> None:
        self.layers = [DeepseekV2DecoderLayer(config, index, kv_cache_dtype) for index in range(int(config.get("num_hidden_layers", 61)))]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The last layer's hidden states."""
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden_states, residual = layer(hidden_states, residual)
        return hidden_states


class DeepseekV2ForCausalLM(nn.Module):
    """The whole model. Building it settles the attention backend, so an impossible KV cache type fails here."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        config = vllm_config.hf_config.get("text_config") or vllm_config.hf_config
        self.model = DeepseekV2Model(config, vllm_config.kv_cache_dtype)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Hidden states of every token."""
        return self.model(hidden_states)
