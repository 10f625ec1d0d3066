"""torch.compile's stand-in and its cache."""
