"""The V1 engine."""
