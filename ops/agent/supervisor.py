"""Keeps one companion running for the agent: starts it, starts it again when it dies, ends it with the agent."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

from ops.agent.config import REPOSITORY

COMMAND = [sys.executable, "-m", "ops.agent.companion"]
log = logging.getLogger("roundhouse.agent")


class Supervisor:
    """`start` returns at once. The companion ends with this process, however it ends (PR_SET_PDEATHSIG).

    The kernel sends that signal when the *thread* that started the child ends, so one thread starts it and waits for it.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="companion-supervisor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the companion; waits at most 10 s for it."""
        self._stop.set()
        if (process := self._process) is not None:
            process.terminate()
        self._thread.join(10)

    def _keep(self) -> None:
        pause = 1.0
        while not self._stop.is_set():
            began = time.monotonic()
            self._process = subprocess.Popen([*COMMAND, "--parent", str(os.getpid())], stdin=subprocess.DEVNULL, cwd=REPOSITORY)
            if self._stop.is_set():  # stop() came between the look and the start
                self._process.terminate()
            try:
                code = self._process.wait(None)
            finally:
                if self._stop.is_set() and self._process.poll() is None:
                    self._process.kill()
            if self._stop.is_set():
                return
            pause = 1.0 if time.monotonic() - began > 30 else min(pause * 2, 30)
            log.error("the companion ended with code %s; it is started again in %.0f s", code, pause)
            self._stop.wait(pause)
