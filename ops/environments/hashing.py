"""Hashes many files with a few processes of `hash_worker`, chunk by chunk, the largest first.

One thread for each process hands it a chunk and waits for the answer, so nothing here is bound by the GIL. A process that dies
(somebody ends it, memory runs out) costs nothing but its speed: its chunk is hashed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ops.environments import hash_worker
from ops.environments.hash_worker import Row
from ops.jobs import marks

CHUNKS = 64
MOST_PROCESSES = 4  # a disk or the page cache gives no more, and a service is running beside us
COST_OF_A_FILE = 12_000  # opening a file costs about as much as hashing so many bytes
LEAST_CHUNK = 2_000_000  # bytes, counted so: handing one over costs 1 ms
WORTH_A_PROCESS = 48_000_000  # bytes, files counted with their cost: below this one loop here is sooner done than processes are started
END_S = 5

Answer = tuple[Sequence[int], dict[str, Any]]  # the rows' indexes as they were added, and what `hash_worker.hash_files` gives


def processes() -> int:
    """How many to use on this machine."""
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0))))


class Hashing:
    """Use as a context manager: `add` rows, then take the `answers`; leaving it ends the processes at once."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Future[Answer]] = queue.SimpleQueue()
        self._here: list[tuple[list[int], list[Row]]] = []
        self._open = self._added = 0
        self._ended = False

    @property
    def started(self) -> bool:
        """Whether processes hash; else it is done by whoever takes the answers."""
        return self._pool is not None

    def start(self) -> None:
        """Starts the processes, so that they come up while the caller still collects rows. Nothing where one loop is as good."""
        count = processes()
        if self._pool is not None or count < 2:
            return
        environment = {name: os.environ[name] for name in (marks.JOB_MARK,) if name in os.environ}
        for _ in range(count):
            try:
                # a session of its own: Ctrl-C in a terminal is for us, and our end is theirs
                worker = subprocess.Popen([sys.executable, "-I", "-S", str(Path(hash_worker.__file__))], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True)
            except OSError:  # no process to be had: the ones there are, or this one, do the work
                break
            self._workers.append(worker)
            self._idle.put(worker)
        if self._workers:
            self._pool = ThreadPoolExecutor(len(self._workers), thread_name_prefix="hashing")

    def add(self, rows: Sequence[Row], sizes: Sequence[int]) -> None:
        """Queues rows; `sizes` are what is known of their lengths in bytes, for an even split.

        Each row is answered once, by its place among all that were ever added.
        """
        work = sum(sizes) + COST_OF_A_FILE * len(rows)
        if self._pool is None and work > WORTH_A_PROCESS:
            self.start()
        before, self._added = self._added, self._added + len(rows)
        for chosen_ones in chunks(rows, sizes):
            chosen = [rows[index] for index in chosen_ones]
            indexes = [before + index for index in chosen_ones]
            self._open += 1
            if self._pool is None:
                self._here.append((indexes, chosen))
            else:
                self._pool.submit(self._ask, indexes, chosen).add_done_callback(self._ready.put)

    def answers(self, *, wait: bool = True) -> Iterator[Answer]:
        """The answers of all that was added, as they come; without `wait` only those that are there by now."""
        while self._open:
            if self._here:
                if not wait:
                    return
                indexes, rows = self._here.pop()
                self._open -= 1
                yield indexes, hash_worker.hash_files(rows)
                continue
            try:
                future = self._ready.get(block=wait)
            except queue.Empty:
                return
            self._open -= 1
            yield future.result()

    def _ask(self, indexes: list[int], rows: list[Row]) -> Answer:
        """In a thread of the pool: one chunk through an idle process."""
        worker = self._idle.get()
        try:
            answer = _answer(worker, rows)
        except (OSError, ValueError):  # it is gone: a broken pipe, or no answer
            if self._ended:
                return indexes, {"bytes": 0, "differ": []}  # nobody waits for it any more
            answer = hash_worker.hash_files(rows)
        finally:
            self._idle.put(worker)
        return indexes, answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended = True
        for worker in self._workers:
            worker.kill()  # they hold nothing
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not yet written finds nobody
                        pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel, on a disk that does not answer
                worker.wait(END_S)


def _answer(worker: subprocess.Popen[bytes], rows: list[Row]) -> dict[str, Any]:
    """Raises OSError or ValueError if the process is gone."""
    if worker.stdin is None or worker.stdout is None:
        raise OSError("no pipes")
    worker.stdin.write(json.dumps(rows).encode() + b"\n")
    worker.stdin.flush()
    answer: dict[str, Any] = json.loads(worker.stdout.readline())
    return answer


def chunks(rows: Sequence[Row], sizes: Sequence[int]) -> Iterator[list[int]]:
    """At most some 64 lists of indexes with about the same work, the large files first so that the last chunk is not one huge library."""
    target = max(LEAST_CHUNK, (sum(sizes) + COST_OF_A_FILE * len(rows)) / CHUNKS)
    chunk: list[int] = []
    work = 0.0
    large = hash_worker.BLOCK
    for index in sorted(range(len(rows)), key=lambda index: (-sizes[index] if sizes[index] > large else 0, index)):
        chunk.append(index)
        work += sizes[index] + COST_OF_A_FILE
        if work >= target:
            yield chunk
            chunk, work = [], 0.0
    if chunk:
        yield chunk
