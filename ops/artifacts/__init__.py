"""Leftover files: which kinds there are, where they lie, and how they are deleted safely."""
