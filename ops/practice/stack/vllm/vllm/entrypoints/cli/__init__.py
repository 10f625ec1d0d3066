"""The `vllm` command."""
