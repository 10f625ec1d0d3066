"""Practice vLLM: it speaks vLLM's API and writes vLLM's log, holds simulated GPU memory, and computes nothing."""

from vllm.version import __version__ as __version__
