"""Paths of the kernel store. The version check runs when this module is imported, before anything touches a GPU."""

import importlib.util
import os
import pathlib

from ..version import __version__ as flashinfer_version


def has_flashinfer_cubin() -> bool:
    """Whether flashinfer-cubin is installed at all: without it there is nothing to compare."""
    return importlib.util.find_spec("flashinfer_cubin") is not None


def _get_cubin_dir() -> pathlib.Path:
    """The folder of flashinfer-cubin if that is installed, else FLASHINFER_CUBIN_DIR, else the user's cache.

    The versions are compared as text, local suffix included, as the real 0.6.4 does.
    """
    if has_flashinfer_cubin():
        import flashinfer_cubin

        cubin_version = flashinfer_cubin.__version__
        if not os.getenv("FLASHINFER_DISABLE_VERSION_CHECK") and flashinfer_version != cubin_version:
            raise RuntimeError(
                f"flashinfer-cubin version ({cubin_version}) does not match "
                f"flashinfer version ({flashinfer_version}). "
                "Please install the same version of both packages. "
                "Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass this check."
            )
        return pathlib.Path(flashinfer_cubin.get_cubin_dir())
    if folder := os.getenv("FLASHINFER_CUBIN_DIR"):
        return pathlib.Path(folder)
    return pathlib.Path.home() / ".cache" / "flashinfer" / "cubins"


FLASHINFER_CUBIN_DIR: pathlib.Path = _get_cubin_dir()
