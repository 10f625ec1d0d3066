"""GPUs: here, simulated ones."""
