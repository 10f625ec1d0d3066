"""Settings that were worked out from arguments and model folder."""
