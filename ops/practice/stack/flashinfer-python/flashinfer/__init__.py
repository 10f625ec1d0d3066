"""Practice FlashInfer: no kernels, but the import fails in the same place and with the same words as the real one."""

from .version import __version__ as __version__

from . import jit as jit
