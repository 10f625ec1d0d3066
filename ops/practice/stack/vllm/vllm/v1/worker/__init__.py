"""What a worker does on its GPU."""
