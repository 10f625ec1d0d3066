"""Where precompiled kernels come from."""

from .core import logger


def load_cubin(name: str) -> bytes:
    """The bytes of a precompiled kernel. A practice stack holds none, so every name is unknown."""
    logger.info("cubin %s asked for", name)
    raise FileNotFoundError(f"{name}: the practice stack holds no kernels")
