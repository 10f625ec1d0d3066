"""`python -m ops`: commands for people and programs on a node; each prints JSON with `--json`."""
