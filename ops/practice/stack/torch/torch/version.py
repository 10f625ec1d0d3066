"""The version of this distribution."""

__version__ = "@VERSION@"
cuda = "13.0"
