"""How long each phase of a start takes, in seconds at speed 1: about 25 s in all (22 s when the compiled graph is cached).

Real starts of this size take minutes; the shares are kept roughly, the order exactly.
"""

IMPORT = 1.5  # the API server's imports, silent
CONFIG = 0.7
ENGINE = 2.3  # the engine's imports, silent
WORKERS = 2.0  # eight processes, NCCL
LOAD = 7.5
DYNAMO = 1.4
GRAPH = 3.6  # compile, on a cache miss
GRAPH_CACHED = 0.8
KV = 0.8
AUTOTUNE = 1.8
CAPTURE = 2.8
SERVE = 0.6

PHASES = ("config", "engine", "workers", "load", "compile", "kv", "autotune", "capture", "serve")
"""Names for the box's faults, in order."""
