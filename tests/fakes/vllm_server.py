"""A stand-in for `vllm serve`: does what the JSON in FAKE_VLLM says, to provoke what a real server cannot be made to do on demand.

    {"log": [[delay_s, "line"], ...],   written one after the other (text as it is: "\\r" and missing newlines included);
                                        a third value is how many times
     "serve": true,                     then answers /health and /v1/chat/completions on --port
     "exit": 1,                         or ends with this code
     "hang": true,                      or just waits
     "ignore_term": true,               SIGTERM does nothing
     "children": ["plain", "setsid", "stubborn", "bare"]}   processes beside it; stubborn: own session, ignores SIGTERM;
                                        bare: no environment; lost: own session, no environment
     "health": 200, "chat": 200,        status codes
     "body": "text",                    what /health says; "slow": seconds that it takes to
     "dribble": "head",                 each GET is answered a little at a time, without end: "head", "body", or "continue" (100s)
     "after": "path",                   does nothing before this file is there
     "runs": [{...}, {...}]}            another of these for each start (the last for all that follow); counted in the file `runs`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PLAN = json.loads(os.environ.get("FAKE_VLLM", "{}"))
if "runs" in PLAN:
    COUNTED = Path("runs")
    number = int(COUNTED.read_text()) if COUNTED.exists() else 0
    COUNTED.write_text(str(number + 1))
    PLAN = PLAN["runs"][min(number, len(PLAN["runs"]) - 1)]
CHILD = "import signal, time, sys\nif 'stubborn' in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(120)"


DRIBBLES = {"head": (b"HTTP/1.1 200 OK\r\n", b"X"), "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", b" "),
            "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n")}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def dribble(self, first: bytes, again: bytes) -> None:
        try:
            self.wfile.write(first)
            while True:
                self.wfile.write(again)
                time.sleep(0.02)
        except OSError:
            self.close_connection = True  # whoever asked has given up

    def do_GET(self) -> None:
        time.sleep(PLAN.get("slow", 0))
        if "dribble" in PLAN:
            self.dribble(*DRIBBLES[PLAN["dribble"]])
            return
        if self.path == "/v1/models" and "--served-model-name" in sys.argv:
            name = sys.argv[sys.argv.index("--served-model-name") + 1]
            self.answer(200, json.dumps({"object": "list", "data": [{"id": name, "object": "model"}]}).encode())
            return
        self.answer(PLAN.get("health", 200) if self.path == "/health" else 404, PLAN.get("body", "").encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = PLAN.get("chat", 200)
        told = {"error": {"message": "no"}} if status != 200 else {"choices": [{"message": {"content": "OK"}}], "model": asked["model"]}
        self.answer(status, json.dumps(told).encode())


def main() -> None:
    if PLAN.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if PLAN.get("tell"):
        Path(PLAN["tell"]).write_text(json.dumps({"argv": sys.argv, "env": dict(os.environ)}))
    for kind in PLAN.get("children", []):
        child = subprocess.Popen([sys.executable, "-c", CHILD, kind], start_new_session=kind in {"setsid", "stubborn", "lost"},
                                 env={} if kind in {"bare", "lost"} else None, stdout=subprocess.PIPE)
        child.stdout.readline()
    while "after" in PLAN and not Path(PLAN["after"]).exists():
        time.sleep(0.02)
    for delay, text, *times in PLAN.get("log", []):
        time.sleep(delay)
        for _ in range(times[0] if times else 1):
            sys.stdout.write(text)
        sys.stdout.flush()
    if "exit" in PLAN:
        sys.exit(PLAN["exit"])
    if PLAN.get("hang"):
        time.sleep(120)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.serve_forever()


main()
