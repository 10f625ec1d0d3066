"""Where this node's GPU readings come from."""

from __future__ import annotations

from pathlib import Path

from ops.agent.config import NodeConfig
from ops.gpus.source import GpuSource
from ops.jobs.errors import BadInput


def open_source(config: NodeConfig) -> GpuSource:
    """NVML, or the practice box's simulated GPUs. Raises BadInput if node.toml names neither, or no practice folder."""
    if config.gpu_source == "nvml":
        from ops.gpus.nvml import NvmlSource

        return NvmlSource()
    if config.gpu_source == "practice":
        if not config.practice_root:
            raise BadInput("node.toml has `gpu_source = \"practice\"` but no `practice_root`", hint="Name the practice box's folder there")
        from ops.practice.gpus import PracticeSource

        return PracticeSource(Path(config.practice_root))
    raise BadInput(f"node.toml has an unknown `gpu_source`: `{config.gpu_source}`", hint="Use \"nvml\" or \"practice\"")
