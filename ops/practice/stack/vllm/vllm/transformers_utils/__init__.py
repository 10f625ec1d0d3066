"""Reading a model folder."""
