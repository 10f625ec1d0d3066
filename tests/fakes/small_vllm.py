"""The `vllm` of an environment that is real otherwise: a wheel with `vllm serve`, `vllm --version` and nothing to compute.

`IMPORTS` of the wheel are imported at start, as a real server imports its stack: so a start costs what reading those packages costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fakes.wheels import make_wheel

SOURCE = '''\
"""A server with vLLM's command line and the first lines of its log; answers are fixed."""

import argparse
import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vllm.model import ANSWER

__version__ = "@VERSION@"
IMPORTS = @IMPORTS@


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, b"{}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": ANSWER}
        self.answer(200, json.dumps({"model": asked["model"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode())


def main():
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    parser = argparse.ArgumentParser("vllm serve")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="127.0.0.1")
    for name in ("served-model-name", "tensor-parallel-size", "max-model-len", "dtype", "seed", "tokenizer", "revision", "quantization",
                 "kv-cache-dtype", "max-num-seqs"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args(sys.argv[2:])
    print(f"INFO 01-01 00:00:00 [utils.py:1] vLLM server version {__version__}, serving model {given.model}", flush=True)
    for name in IMPORTS:
        importlib.import_module(name)
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    server.daemon_threads = True
    print(f"INFO 01-01 00:00:00 [api_server.py:1] Starting vLLM server on http://{given.host}:{given.port}", flush=True)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()
'''


def make_small_vllm(folder: Path, version: str, *, requires: Sequence[str] = (), imports: Sequence[str] = (), answer: str = "OK") -> Path:
    """The path of the wheel in `folder`; `requires` are its dependencies, `imports` the modules that a start imports."""
    text = SOURCE.replace("@VERSION@", version).replace("@IMPORTS@", repr(tuple(imports)))
    return make_wheel(folder, "vllm", version, requires=requires, entry_points="[console_scripts]\nvllm = vllm:main\n", files={
        "vllm/__init__.py": text, "vllm/model.py": f"ANSWER = {answer!r}\n\n\ndef forward(x):\n    return x\n",
        "vllm/config.py": "DEBUG = False\n"})
