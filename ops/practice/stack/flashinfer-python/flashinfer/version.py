"""The version of this distribution; `jit/env.py` holds flashinfer-cubin against it."""

__version__ = "@VERSION@"
