"""Clients that read the paced server's streams, each in the way of its kind, for `benchmarks/client_cost.py`: one module, one client.

`python -m benchmarks.clients NAME URL STREAMS TOKENS` runs one and prints what it measured as JSON. None of them imports the console.
"""
