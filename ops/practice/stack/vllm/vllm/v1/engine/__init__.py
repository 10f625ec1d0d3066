"""The engine: its process, its client, its answers."""
