"""Which requests run, and how fast."""
