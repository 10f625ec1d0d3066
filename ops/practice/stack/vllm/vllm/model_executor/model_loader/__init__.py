"""From files to weights."""
