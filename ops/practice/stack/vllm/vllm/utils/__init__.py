"""Odds and ends of processes."""
