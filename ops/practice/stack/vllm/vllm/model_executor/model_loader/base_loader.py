"""Builds the model, then loads its weights: the order that every loader keeps."""

from vllm.config.model import VllmConfig
from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM


def initialize_model(config: VllmConfig) -> DeepseekV2ForCausalLM:
    """The model without weights. Raises ValueError where no attention backend serves it."""
    return DeepseekV2ForCausalLM(config)
