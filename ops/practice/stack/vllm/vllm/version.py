"""The version of this distribution."""

__version__ = "@VERSION@"
