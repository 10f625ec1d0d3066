"""Measurement: load on an OpenAI-compatible endpoint, and the numbers that come out of it."""
