"""One process for each GPU. A worker talks to the engine by two pipes with JSON lines: calls in, answers out."""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.config.model import VllmConfig
from vllm.logger import log
from vllm.platforms.practice import Box
from vllm.utils.system_utils import die_with_parent, set_process_title
from vllm.v1.worker import phases
from vllm.v1.worker.gpu_worker import Worker

_LEFT_WORKER = 3  # the rank that outlives the server with the fault `leave_worker`
_LEFT_WORKER_S = 600


def send(fd: int, message: dict[str, Any]) -> None:
    """One JSON line; below PIPE_BUF, so it is written whole."""
    os.write(fd, json.dumps(message).encode() + b"\n")


@dataclass
class WorkerHandle:
    """The engine's end of one worker."""

    rank: int
    pid: int
    calls: int
    answers: int
    buffer: bytes = b""

    def read(self) -> list[dict[str, Any]]:
        """Complete messages that have arrived; raises EOFError once the worker is gone."""
        data = os.read(self.answers, 65536)
        if not data:
            raise EOFError(f"worker {self.rank} ended")
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]


class WorkerProc:
    """The worker's process: builds the worker, then does what it is asked."""

    def __init__(self, config: VllmConfig, box: Box, rank: int, port: int, answers: int) -> None:
        self.worker = Worker(config, box, rank, port, lambda mib: send(answers, {"memory": mib}))
        self.worker.init_device()
        self.worker.load_model()

    @staticmethod
    def worker_main(config: VllmConfig, box: Box, rank: int, port: int, calls: int, answers: int) -> int:
        """The life of a worker; gives its exit code."""
        try:
            proc = WorkerProc(config, box, rank, port, answers)
        except Exception:
            log.exception("multiproc_executor.py:754", "WorkerProc failed to start.")
            send(answers, {"status": "FAILED"})
            return 1
        send(answers, {"status": "READY"})
        proc.worker_busy_loop(calls, answers)
        return 0

    def worker_busy_loop(self, calls: int, answers: int) -> None:
        """Answers calls until the engine hangs up."""
        with os.fdopen(calls, "rb") as lines:
            for line in lines:
                call = json.loads(line)
                try:
                    result = getattr(self.worker, call["method"])(*call["args"])
                except Exception as error:
                    log.exception("multiproc_executor.py:822", "WorkerProc hit an exception.")
                    send(answers, {"error": str(error)})
                else:
                    send(answers, {"result": result})

    @staticmethod
    def wait_for_ready(workers: list[WorkerHandle], box: Box, report: Callable[[float], None]) -> list[WorkerHandle]:
        """Returns when all are ready. Raises Exception as soon as one has failed."""
        failed = Exception("WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.")
        waiting = {worker.answers: worker for worker in workers}
        poller = select.poll()
        for fd in waiting:
            poller.register(fd, select.POLLIN)
        while waiting:
            for fd, _ in poller.poll():
                try:
                    messages = waiting[fd].read()
                except EOFError:
                    raise failed from None
                for message in messages:
                    if "memory" in message:
                        report(message["memory"])
                    elif message["status"] == "READY":
                        poller.unregister(fd)
                        del waiting[fd]
                    else:
                        box.sleep(0.4)  # the other ranks are about to meet the same fault
                        raise failed from None
        return workers


class MultiprocExecutor:
    """All workers of this server. `report` gets the MiB that each GPU holds; `close_in_child` are descriptors of the engine."""

    def __init__(self, config: VllmConfig, box: Box, report: Callable[[float], None], started: Callable[[list[int]], None],
                 close_in_child: list[int]) -> None:
        self.config, self.box, self.report, self.started = config, box, report, started
        self.close_in_child = close_in_child
        self.workers: list[WorkerHandle] = []
        self._init_executor()

    def _init_executor(self) -> None:
        world = self.config.tensor_parallel_size
        with socket.socket() as probe:  # a free port, for the log's sake
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.workers = [self._start(rank, port) for rank in range(world)]
        self.started([worker.pid for worker in self.workers])
        try:
            self.workers = WorkerProc.wait_for_ready(self.workers, self.box, self.report)
        except Exception:
            log.info("multiproc_executor.py:404", f"[shutdown] Executor: waiting for worker exit count={world}")
            self.shutdown()
            raise

    def _start(self, rank: int, port: int) -> WorkerHandle:
        engine = os.getpid()
        calls, answers = os.pipe(), os.pipe()
        pid = os.fork()
        if pid:
            os.close(calls[0])
            os.close(answers[1])
            return WorkerHandle(rank, pid, calls[1], answers[0])
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for fd in (*self.close_in_child, calls[1], answers[0], *(fd for worker in self.workers for fd in (worker.calls, worker.answers))):
                os.close(fd)
            left = bool(self.box.faults.get("leave_worker")) and rank == min(_LEFT_WORKER, self.config.tensor_parallel_size - 1)
            if not left:
                die_with_parent(engine)
            set_process_title(f"VLLM::Worker_TP{rank}")
            log.become(f"Worker_TP{rank}")
            self.box.sleep(phases.WORKERS * (0.5 + 0.5 * rank / max(1, self.config.tensor_parallel_size)))
            code = WorkerProc.worker_main(self.config, self.box, rank, port, calls[0], answers[1])
            if left and code == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(_LEFT_WORKER_S)
        except Exception:
            log.exception("multiproc_executor.py:770", "WorkerProc died.")
        finally:
            os._exit(code)

    def collective_rpc(self, method: str, *args: Any) -> Any:
        """Rank 0's answer; in this simulation the other ranks have nothing to say. Raises RuntimeError if it failed."""
        worker = self.workers[0]
        send(worker.calls, {"method": method, "args": args})
        while True:
            try:
                messages = worker.read()
            except EOFError:
                raise RuntimeError("Worker proc VllmWorker-0 died unexpectedly, shutting down executor.") from None
            for message in messages:
                if "memory" in message:
                    self.report(message["memory"])
                elif "error" in message:
                    raise RuntimeError(f"Worker failed with error '{message['error']}', please check the stack trace above for the root cause")
                else:
                    return message["result"]

    def wait_for_death(self) -> int:
        """Blocks until a worker ends, and gives its rank. The engine does nothing else: the API server paces the tokens."""
        pid, _ = os.wait()
        return next((worker.rank for worker in self.workers if worker.pid == pid), 0)

    def shutdown(self) -> None:
        """Ends all workers: SIGTERM, then SIGKILL after a second. A worker that is to be left behind is left."""
        stay = min(_LEFT_WORKER, self.config.tensor_parallel_size - 1) if self.box.faults.get("leave_worker") else None
        ending = {worker.pid for worker in self.workers if worker.rank != stay}
        for pid in ending:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 1.0
        while ending:
            for pid in list(ending):
                try:
                    gone, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    gone = pid
                if gone:
                    ending.discard(pid)
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
