"""What a job said, on disk first: `jobs/<id>/journal.jsonl`, one event a line, numbered without a gap.

One process at a time writes a journal (the runner, or after its death the reconciler): it holds a `flock` on the file. Readers
take complete lines only, so a torn last line is as if it had not been written. The writer forces each step boundary to disk;
log and progress are forced by the companion before it publishes them, so that nothing that anybody saw can be unwritten.

Log text is bounded: an event holds at most 64 KB or 250 ms of it; a job that logs faster than `LOG_RATE` loses text there,
visibly (`dropped_bytes`), and keeps it in `jobs/<id>/log.txt`, which is bounded too.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ops.agent.config import NodePaths
from ops.jobs import redact
from ops.jobs.errors import OpsError, Refused
from ops.jobs.events import Event, EventType

CHUNK_BYTES = 64 * 1024
CHUNK_S = 0.25
LOG_RATE = 256 * 1024  # bytes a second that a job may log into its journal for long
LOG_BURST = 1024 * 1024  # and at once, after a quiet time
LOG_TOTAL = 64 * 1024 * 1024  # in the journal, per job: afterwards only how much was dropped is told
LOG_FILE_CAP = 64 * 1024 * 1024  # log.txt, per job

# Said often, and harmless to lose at a power cut before anybody saw them: not forced to disk one by one.
UNFORCED = frozenset({EventType.STEP_LOG, EventType.STEP_PROGRESS, EventType.LEVEL_SECOND, EventType.WARMUP_PHASE})


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries (new files, renames) to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole, forced to disk: a reader or a crash sees the old text or the new one. Mode 0600. Raises OpsError (a full disk)."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise OpsError(f"`{path}` cannot be written", why=error.strerror or str(error), hint="Make room on this disk", kind="disk") from error


@dataclass(frozen=True, slots=True)
class Nudge:
    """Tells the companion over a datagram socket that a journal grew. Nobody listening is fine: it looks by itself as well."""

    path: Path

    def __call__(self, job: str) -> None:
        try:
            # A socket a call: some microseconds, beside a write to disk, and nothing to close or to inherit.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender, short_address(self.path) as address:
                sender.sendto(job.encode(), address)
        except OSError:
            pass  # no companion, or its queue is full: it reads all open journals every second anyway


class short_address:
    """A name for a unix socket of any depth: through a descriptor of its folder, because a socket's path ends at 107 bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> str:
        self._folder = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{self.path.name}"

    def __exit__(self, *exc: object) -> None:
        os.close(self._folder)


class Tail:
    """Reads a journal as it grows: complete, well-formed events only, in order, from `offset` on."""

    def __init__(self, path: Path, *, offset: int = 0, after: int = 0) -> None:
        self.path, self.offset, self.last_seq = path, offset, after
        self.damaged = False  # a complete line that is no event, or the wrong number: nothing after it is read

    def read(self, limit: int = 1000, max_bytes: int = 4 * 1024 * 1024) -> list[Event]:
        """The next events, at most `limit` and of at most about `max_bytes`; [] if there are none (yet), also if there is no file."""
        return [event for event, _ in self.read_lines(limit, max_bytes)]

    def read_lines(self, limit: int = 1000, max_bytes: int = 4 * 1024 * 1024) -> list[tuple[Event, str]]:
        """As `read`, each with its line of JSON."""
        if self.damaged:
            return []
        found: list[tuple[Event, str]] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                taken = 0
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # torn, or being written
                    try:
                        event = Event.from_json(line)
                    except ValueError:
                        self.damaged = True
                        break
                    if event.seq != self.last_seq + 1:
                        self.damaged = True
                        break
                    self.offset += len(line)
                    self.last_seq = event.seq
                    found.append((event, line[:-1].decode()))
                    taken += len(line)
                    if len(found) >= limit or taken >= max_bytes:
                        break
        except FileNotFoundError:
            return []
        return found


def read(path: Path) -> list[Event]:
    """All events of a journal."""
    tail, found = Tail(path), []
    while some := tail.read():
        found += some
    return found


def journal_path(paths: NodePaths, job: str) -> Path:
    return paths.jobs / job / "journal.jsonl"


def final_event(path: Path) -> Event | None:
    """`job.finished`, if the journal ends with it. Reads the last lines only."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            step = 64 * 1024
            while True:
                start = max(0, size - step)
                file.seek(start)
                lines = file.read(size - start).split(b"\n")
                if len(lines) >= 3 or start == 0:
                    break
                step *= 4  # a report or a plan makes a long line
    except FileNotFoundError:
        return None
    if len(lines) < 2:
        return None
    try:
        event = Event.from_json(lines[-2])  # what stands after the last newline is torn, or empty
    except ValueError:
        return None
    return event if event.type == EventType.JOB_FINISHED else None


class Journal:
    """Writes one job's journal. Use `create` for a new job, `open` to go on after another writer's death.

    Thread-safe. `journal(type, data)` is the `Reporter` that steps get.
    """

    def __init__(self, job: str, folder: Path, descriptor: int, seq: int, *, nudge: Callable[[str], None] | None = None,
                 secrets: Iterable[str] = ()) -> None:
        self.job, self.folder, self.seq = job, folder, seq
        self.nudge, self.secrets = nudge, list(secrets)
        self._descriptor = descriptor
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._log = _Pending()
        self._progress: dict[str, Any] | None = None
        self._waiting_since: float | None = None
        self._last_progress = 0.0
        self._tokens, self._refilled = float(LOG_BURST), time.monotonic()
        self._logged = 0
        self._log_file = _CappedFile(folder / "log.txt", LOG_FILE_CAP)
        self._flusher: threading.Thread | None = None

    @classmethod
    def create(cls, job: str, folder: Path, *, nudge: Callable[[str], None] | None = None, secrets: Iterable[str] = ()) -> Self:
        """A new journal. Raises Refused if there is one already."""
        try:
            descriptor = os.open(folder / "journal.jsonl", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise Refused(f"Job `{job}` already has a journal", kind="attached") from error
        cls._lock_file(descriptor, job)
        return cls(job, folder, descriptor, 0, nudge=nudge, secrets=secrets)

    @classmethod
    def open(cls, job: str, folder: Path, *, nudge: Callable[[str], None] | None = None, secrets: Iterable[str] = ()) -> Self:
        """Goes on with a journal (makes it if there is none); cuts off a torn end. Raises Refused while another process writes it."""
        descriptor = os.open(folder / "journal.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # A killed process counts as gone (a zombie) while its last threads still end and hold its files: a moment's patience.
        cls._lock_file(descriptor, job, patience_s=2.0)
        tail = Tail(folder / "journal.jsonl")
        while tail.read():
            pass
        os.ftruncate(descriptor, tail.offset)
        return cls(job, folder, descriptor, tail.last_seq, nudge=nudge, secrets=secrets)

    @staticmethod
    def _lock_file(descriptor: int, job: str, patience_s: float = 0.0) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    raise Refused(f"Another process writes the journal of job `{job}`", kind="attached") from error
            time.sleep(0.05)

    def __call__(self, type: str, data: dict[str, Any]) -> None:
        """Says something. Log and progress may wait up to 250 ms, in order with the rest. Raises OpsError if the disk refuses it."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the journal of job {self.job} is closed")
            if type == EventType.STEP_LOG:
                self._take_log(str(data["step"]), str(data["text"]), int(data.get("dropped_bytes") or 0))
                return
            if type == EventType.STEP_PROGRESS:
                self._take_progress(data)
                return
            self._flush()
            self._append(type, data)

    def append_final(self, data: dict[str, Any]) -> None:
        """`job.finished`, on disk but not yet told to the companion: the caller lets go of the locks first, then calls `tell`."""
        with self._lock:
            self._flush()
            self._append(EventType.JOB_FINISHED, data, tell=False)

    def tell(self) -> None:
        """Tells the companion that the journal grew."""
        if self.nudge is not None:
            self.nudge(self.job)

    def flush(self) -> None:
        """Writes what still waits."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Writes what still waits, and lets another writer in."""
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
            finally:
                self._closed = True
                self._log_file.close()
                os.close(self._descriptor)
                self._wake.notify_all()
        if self._flusher is not None and self._flusher is not threading.current_thread():
            self._flusher.join(5)

    def _append(self, type: str, data: dict[str, Any], *, tell: bool = True) -> None:
        """Numbers the event and writes it. Raises OpsError if the disk does not take it; the number is then free again."""
        event = Event(job=self.job, seq=self.seq + 1, at=time.time(), type=str(type), data=_clean(data, self.secrets))
        line = event.to_json().encode("utf-8", "replace") + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            _write_all(self._descriptor, line)
            if type not in UNFORCED:
                os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)  # half a line would swallow the next one
            raise OpsError(f"The journal `{self.folder / 'journal.jsonl'}` cannot be written", why=str(error),
                           hint="Make room on this disk", kind="disk") from error
        self.seq = event.seq
        if tell:
            self.tell()

    def _take_log(self, step: str, text: str, dropped: int) -> None:
        if self._log.step != step and (self._log.size or self._log.dropped):
            self._flush_log()
        self._log.step = step
        if self._log_file.full and not self._may_log(0):
            self._log.dropped += len(text.encode("utf-8", "replace")) + dropped  # nobody will read it: spare the work of redacting
            self._wait_a_little()
            return
        text = redact.log_text(text, self.secrets)
        self._log_file.write(text)
        for piece in _pieces(text, CHUNK_BYTES // 4):
            size = len(piece.encode("utf-8", "replace"))
            if not self._may_log(size):
                self._log.dropped += size
                continue
            if self._log.dropped or self._log.size + size > CHUNK_BYTES:
                self._flush_log()
                self._log.step = step
            self._log.parts.append(piece)
            self._log.size += size
        self._log.dropped += dropped
        self._wait_a_little()

    def _may_log(self, size: int) -> bool:
        now = time.monotonic()
        self._tokens = min(LOG_BURST, self._tokens + (now - self._refilled) * LOG_RATE)
        self._refilled = now
        if self._tokens < max(size, 1) or self._logged + size > LOG_TOTAL:
            return False
        # After a drop, wait for a whole chunk's worth: else a flood would leave every hundredth line and a marker behind each.
        if self._log.dropped and self._tokens < CHUNK_BYTES:
            return False
        self._tokens -= size
        self._logged += size
        return True

    def _take_progress(self, data: dict[str, Any]) -> None:
        now = time.monotonic()
        if self._log.size or self._log.dropped or now - self._last_progress < CHUNK_S:
            if self._progress is not None and self._progress.get("step") != data.get("step"):
                self._flush()
            self._progress = data
            self._wait_a_little()
            return
        self._progress = None
        self._last_progress = now
        self._append(EventType.STEP_PROGRESS, data)

    def _wait_a_little(self) -> None:
        """Sees to it that what waits is written within `CHUNK_S`, by the next event or by the flusher."""
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_in_time, name="journal-flusher", daemon=True)
                self._flusher.start()
            self._wake.notify_all()
        elif now - self._waiting_since >= CHUNK_S:
            self._flush()

    def _flush(self) -> None:
        self._waiting_since = None
        self._flush_log()
        if self._progress is not None:
            data, self._progress = self._progress, None
            self._last_progress = time.monotonic()
            self._append(EventType.STEP_PROGRESS, data)

    def _flush_log(self) -> None:
        pending, self._log = self._log, _Pending()
        if pending.size or pending.dropped:
            self._log_file.flush()
            self._append(EventType.STEP_LOG, {"step": pending.step, "text": "".join(pending.parts), "dropped_bytes": pending.dropped})

    def _flush_in_time(self) -> None:
        with self._lock:
            while not self._closed:
                if self._waiting_since is None:
                    self._wake.wait()
                    continue
                left = self._waiting_since + CHUNK_S - time.monotonic()
                if left > 0:
                    self._wake.wait(left)
                    continue
                try:
                    self._flush()
                except OpsError:
                    # The disk is full. The text is in log.txt or lost; the next event of the job itself meets the same disk and says so.
                    continue


class _Pending:
    """Log text on its way: of one step, with what was left out after it."""

    def __init__(self) -> None:
        self.step, self.size, self.dropped = "", 0, 0
        self.parts: list[str] = []


class _CappedFile:
    """A text file that stops growing at `cap` bytes and says so in its last line. A disk that refuses it ends it, not the job."""

    def __init__(self, path: Path, cap: int) -> None:
        self.path, self.cap = path, cap
        self.full = False
        self._file: Any = None
        self._size = 0

    def write(self, text: str) -> None:
        if self.full:
            return
        try:
            if self._file is None:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="")
                self._size = os.fstat(descriptor).st_size
            self._size += len(text.encode("utf-8", "replace"))
            if self._size > self.cap:
                self.full = True
                text = f"[this log ends here: it reached {self.cap // (1024 * 1024)} MB]\n"
            self._file.write(text)
        except OSError:
            self.full = True

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self.full = True

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass  # the disk is full; the journal says so


def _pieces(text: str, length: int) -> Iterator[str]:
    """`text` in pieces of at most `length` characters, cut behind a line break where there is one."""
    start = 0
    while start < len(text):
        end = start + length
        if end < len(text) and (cut := text.rfind("\n", start, end)) >= start:
            end = cut + 1
        yield text[start:end]
        start = end


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _clean(value: Any, secrets: list[str]) -> Any:
    """`value` with secrets hidden in every text in it."""
    if isinstance(value, str):
        return redact.redact(value, secrets)
    if isinstance(value, dict):
        return {str(key): _clean(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, secrets) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file as a whole."""
    write_atomically(path, json.dumps(value, ensure_ascii=False))
