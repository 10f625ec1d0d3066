"""The compiler's front: its logger, and the paths that it works with."""

import logging

from . import env as jit_env

logger = logging.getLogger("flashinfer.jit")


def workspace() -> str:
    """Where compiled kernels would be kept."""
    return str(jit_env.FLASHINFER_CUBIN_DIR)
