"""The API server's process: binds the port, starts the engine, serves, and stops on SIGTERM."""

import argparse
import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from vllm.config.model import VllmConfig, create_engine_config, validate_parsers
from vllm.engine.arg_utils import non_default
from vllm.entrypoints.openai.http_server import Connection, Request
from vllm.entrypoints.openai.protocol import ApiError
from vllm.entrypoints.openai.serving import Serving
from vllm.logger import log
from vllm.platforms.practice import Box, SharedSegment
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.worker import phases
from vllm.version import __version__

_DRAIN_S = 0.5  # how long open answers may go on after SIGTERM


async def run_server(args: argparse.Namespace) -> None:
    """From the first log line to the last. While the engine starts SIGTERM to this process has no effect, as with real vLLM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    box = Box.load()
    box.sleep(phases.IMPORT)
    log.info("__init__.py:217", "Automatically detected platform cuda.")
    log.info("utils.py:293", f"vLLM server version {__version__}, serving model {args.model_tag}")
    log.info("utils.py:229", f"non-default args: {non_default(args)}")
    listening = setup_server(args)
    await run_server_worker(args, box, listening)


def setup_server(args: argparse.Namespace) -> socket.socket:
    """Checks the parsers and takes the port, before anything slow. Raises KeyError, or OSError (Errno 98) if it is in use."""
    validate_parsers(args)
    return create_server_socket((args.host or "", args.port))


def create_server_socket(address: tuple[str, int]) -> socket.socket:
    """A bound socket that does not listen yet: connections are refused until the server is ready."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # with the protocol named, asyncio turns Nagle off
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    return sock


async def run_server_worker(args: argparse.Namespace, box: Box, listening: socket.socket) -> None:
    """Starts the engine, then serves until it is told to stop or the engine dies."""
    async with build_async_engine_client(args, box, listening) as (config, engine):
        log.info("api_server.py:977", "Supported tasks: ['generate']")
        box.reaches("serve")
        box.sleep(phases.SERVE)
        if config.tool_call_parser:
            log.info("serving.py:147", '"auto" tool choice has been enabled.')
        host = args.host or "0.0.0.0"
        log.info("api_server.py:1344", f"Starting vLLM API server 0 on http://{host}:{args.port}")
        server = ApiServer(args, box, config, engine)
        await server.serve(listening)


@asynccontextmanager
async def build_async_engine_client(args: argparse.Namespace, box: Box, listening: socket.socket) -> AsyncIterator[tuple[VllmConfig, AsyncLLM]]:
    """A running engine; it has ended when this is left."""
    box.reaches("config")
    box.sleep(phases.CONFIG)
    config = create_engine_config(args)
    segment = SharedSegment(box)
    try:
        engine = AsyncLLM.from_vllm_config(config, box, [listening.fileno()])
        try:
            yield config, engine
        finally:
            engine.shutdown()
    finally:
        segment.close()


class ApiServer:
    """Routes, access log, HTTP metrics, start and stop."""

    def __init__(self, args: argparse.Namespace, box: Box, config: VllmConfig, engine: AsyncLLM) -> None:
        self.args, self.box, self.config, self.engine = args, box, config, engine
        self.keys = set(args.api_key or [])
        self.serving = Serving(config, engine, force_usage=args.enable_force_include_usage)
        self.connections: set[Connection] = set()
        self.stopping = asyncio.Event()
        self.engine_died = False
        self.routes: dict[str, dict[str, Callable[[Request, Connection], None]]] = {
            "/health": {"GET": self._empty}, "/load": {"GET": self._load}, "/ping": {"GET": self._empty, "POST": self._empty},
            "/version": {"GET": self._version}, "/metrics": {"GET": self._metrics}, "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": self.serving.chat}, "/v1/completions": {"POST": self.serving.complete},
        }

    async def serve(self, listening: socket.socket) -> None:
        """Listens, says that it is ready, and returns after the last answer."""
        log.info("launcher.py:38", "Available routes are:")
        for path, methods in self.routes.items():
            log.info("launcher.py:46", f"Route: {path}, Methods: {', '.join(methods)}")
        log.raw(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.\n")
        loop = asyncio.get_running_loop()
        listening.listen(2048)
        listening.setblocking(False)
        server = await loop.create_server(lambda: Connection(self.handle, self.done, self.connections), sock=listening, start_serving=False)
        self.engine.died = self._engine_is_dead
        self.engine.watch()
        if not self.box.faults.get("ignore_sigterm"):
            loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        loop.add_signal_handler(signal.SIGINT, self.stopping.set)
        await server.start_serving()
        log.raw("INFO:     Application startup complete.\n")
        await self.stopping.wait()
        server.close()
        log.info("launcher.py:110", "Shutting down FastAPI HTTP server.")
        log.raw("INFO:     Shutting down\n")
        deadline = time.monotonic() + _DRAIN_S
        while self.serving.open and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.transport.abort() if connection.request else connection.transport.close()
        log.raw("INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n"
                f"INFO:     Finished server process [{os.getpid()}]\n")

    def _engine_is_dead(self) -> None:
        """The engine's process ended unasked: clients are told, and the server ends, with exit code 0 as the real one does."""
        if self.stopping.is_set():
            return
        log.error("core_client.py:600", "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.")
        try:
            raise EngineDeadError
        except EngineDeadError:
            log.exception("async_llm.py:706", "AsyncLLM output_handler failed.")
        self.engine_died = True
        self.serving.engine_died()
        asyncio.get_running_loop().call_later(1.0 / self.box.speed, self.stopping.set)

    def handle(self, request: Request, connection: Connection) -> None:
        """Answers a request or starts to. An error that it did not expect is a 500, and its traceback is logged."""
        methods = self.routes.get(request.path)
        try:
            if methods is None:
                self._json(connection, 404, {"detail": "Not Found"})
            elif request.method not in methods and not (request.method == "HEAD" and "GET" in methods):
                self._json(connection, 405, {"detail": "Method Not Allowed"})
            elif self.keys and request.path.startswith("/v1") and request.headers.get("authorization", "").removeprefix("Bearer ") not in self.keys:
                self._json(connection, 401, {"error": "Unauthorized"})
            elif self.engine_died and request.path != "/metrics":
                connection.respond(503)
            else:
                methods[request.method if request.method in methods else "GET"](request, connection)
        except ApiError as error:
            self._json(connection, error.status, error.body)
        except Exception:
            log.exception("launcher.py:152", f"Error in {request.method} {request.path}")
            self._json(connection, 500, {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}})

    def done(self, request: Request, status: int, sent: int, peer: str) -> None:
        """An answer has left: access log and HTTP metrics (the latter not for the endpoints that machines poll)."""
        if not self.args.disable_uvicorn_access_log:
            log.raw(f'INFO:     {peer} - "{request.method} {request.path} HTTP/1.1" {status} {HTTPStatus(status).phrase}\n')
        if request.path in {"/health", "/metrics", "/ping", "/version", "/load"}:
            return
        metrics, took = self.engine.metrics, time.monotonic() - request.begun
        handler = request.path if request.path in self.routes else "none"
        metrics.add("http_requests_total", 1, (handler, request.method, f"{status // 100}xx"))
        metrics.observe("http_request_size_bytes", len(request.body), (handler,))
        metrics.observe("http_response_size_bytes", sent, (handler,))
        metrics.observe("http_request_duration_highr_seconds", took)
        metrics.observe("http_request_duration_seconds", took, (handler, request.method))

    def _json(self, connection: Connection, status: int, value: object) -> None:
        connection.respond(status, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())

    def _empty(self, request: Request, connection: Connection) -> None:
        connection.respond(200)

    def _version(self, request: Request, connection: Connection) -> None:
        self._json(connection, 200, {"version": __version__})

    def _load(self, request: Request, connection: Connection) -> None:
        self._json(connection, 200, {"server_load": len(self.serving.open) if self.args.enable_server_load_tracking else 0})

    def _metrics(self, request: Request, connection: Connection) -> None:
        self.engine.gauges()
        connection.respond(200, self.engine.metrics.render().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _models(self, request: Request, connection: Connection) -> None:
        now = int(time.time())
        permission = {"object": "model_permission", "created": now, "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
                      "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None,
                      "is_blocking": False}
        models = [{"id": name, "object": "model", "created": now, "owned_by": "vllm", "root": self.config.model, "parent": None,
                   "max_model_len": self.config.max_model_len, "permission": [{"id": f"modelperm-{os.urandom(8).hex()}", **permission}]}
                  for name in self.config.served_names]
        self._json(connection, 200, {"object": "list", "data": models})
