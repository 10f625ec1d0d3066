"""Practice flashinfer-cubin: a version and an empty kernel store."""

import pathlib

__version__ = "@VERSION@"


def get_cubin_dir() -> str:
    """The folder in which kernels would lie."""
    return str(pathlib.Path(__file__).parent / "cubins")
