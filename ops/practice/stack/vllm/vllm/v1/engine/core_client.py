"""The API server's end of the engine: starts it, waits for it, notices its death, stops it."""

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.config.model import VllmConfig
from vllm.platforms.practice import Box, GpuHolder
from vllm.v1.engine.core import start_engine_core


class EngineCoreClient:
    """Makes clients."""

    @staticmethod
    def make_async_mp_client(config: VllmConfig, box: Box, holder: GpuHolder, close_in_child: list[int]) -> "AsyncMPClient":
        """Starts an engine and gives its client once it is ready. Raises RuntimeError if it fails."""
        return AsyncMPClient(config, box, holder, close_in_child)


class AsyncMPClient:
    """A running engine. `reading` becomes readable (end of file) when it dies."""

    def __init__(self, config: VllmConfig, box: Box, holder: GpuHolder, close_in_child: list[int]) -> None:
        self.holder = holder
        self.kv_tokens = 0
        self._buffer = b""
        with launch_core_engines(self, config, box, close_in_child):
            pass

    def take(self) -> bool:
        """Handles what the engine has said; False once it is gone."""
        data = os.read(self.reading, 65536)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return True

    def _handle(self, message: dict[str, Any]) -> None:
        if "workers" in message:
            self.holder.set_workers(message["workers"])
        elif "memory" in message:
            self.holder.set_memory(message["memory"])
        else:
            self.kv_tokens = message["ready"]["kv_tokens"]
            self.holder.write()

    def shutdown(self, wait_s: float = 3.0) -> None:
        """Ends the engine and with it the workers."""
        try:
            os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + wait_s
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.005)
        except (ProcessLookupError, ChildProcessError):
            pass  # it had ended already, and was waited for


@contextmanager
def launch_core_engines(client: AsyncMPClient, config: VllmConfig, box: Box, close_in_child: list[int]) -> Iterator[None]:
    """Forks the engine, and on leaving waits until it is ready."""
    client.pid, client.reading = start_engine_core(config, box, close_in_child)
    yield
    wait_for_engine_startup(client)


def wait_for_engine_startup(client: AsyncMPClient) -> None:
    """Blocks until the engine is ready. Raises RuntimeError, with words that hide the cause as the real ones do, if it ends first."""
    while not client.kv_tokens:
        if client.holder.unwritten and not select.select([client.reading], [], [], 0.1)[0]:
            client.holder.write()
        elif not client.take():
            _, status = os.waitpid(client.pid, 0)
            client.holder.release()
            raise RuntimeError("Engine core initialization failed. See root cause above. "
                               f"Failed core proc(s): {{'EngineCore_DP0': {os.waitstatus_to_exitcode(status)}}}")
