"""Runs a program for a step: an argument list in, lines out; never a shell.

A child gets a clean environment with the job's mark, no stdin, its own session, the job's lock descriptors (so that an orphaned
installer keeps the service locked), and files for its output: a runner's death does not break its pipe. Secrets belong into
`env`, never into `argv`, which everybody can read.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import pwd
import select
import shlex
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ops.jobs import marks
from ops.jobs.errors import CommandFailed, OpsError, Timeout
from ops.jobs.pipeline import Context

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "TMPDIR", "TZ")
TICK_S = 0.1  # output, cancel and deadlines are looked at this often
A_SIP = 4 * 1024 * 1024  # bytes of output read between two looks at them
LONGEST_LINE = 16 * 1024  # bytes; a longer one is cut into several, so that a program cannot fill our memory with one line
KEPT = 8 * 1024 * 1024  # bytes of each output stream kept in `Completed`: the end of it
COMMAND_MARK = "ROUNDHOUSE_COMMAND"

_libc = ctypes.CDLL(None)


def clean_environment(*, job: str | None = None) -> dict[str, str]:
    """The environment of every program that we start: fixed PATH, the user, UTF-8, certificates and proxies; nothing else from outside."""
    user = pwd.getpwuid(os.getuid())
    made = {"PATH": PATH, "HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    made.update({name: os.environ[name] for name in PASSED_ON if name in os.environ})
    if job:
        made[marks.JOB_MARK] = job
    return made


@dataclass(frozen=True, slots=True)
class Completed:
    """A program that ended. `output` has both streams' lines as they came (to about 0.1 s); `stdout` and `stderr` each alone.

    Each holds at most the last `KEPT` bytes.
    """

    argv: list[str]
    code: int  # negative: ended by this signal
    output: str
    stdout: str
    stderr: str
    duration_s: float


def run(argv: Sequence[str | os.PathLike[str]], *, context: Context | None = None, on_line: Callable[[str], None] | None = None,
        env: Mapping[str, str] | None = None, cwd: str | os.PathLike[str] | None = None, timeout_s: float | None = None,
        check: bool = True, stdout_is_data: bool = False) -> Completed:
    """Runs `argv` to its end. `on_line` gets each line (cut at CR and LF, without them) of both streams, within about 0.1 s;
    with `stdout_is_data` (a result that the caller reads at the end, and no log) of standard error alone.

    `env` is added to the clean environment. With a `context` the program can be cancelled: TERM to all of the job's processes,
    KILL after 10 s, also when its deadline or `timeout_s` passes. Raises CommandFailed (if `check`), Cancelled, Timeout, OpsError
    if the program cannot be started.
    """
    words = [os.fspath(word) for word in argv]
    job = context.job if context else None
    command = uuid.uuid4().hex
    environment = {**clean_environment(job=job), **(env or {}), COMMAND_MARK: command}
    began = time.monotonic()
    with _OutputFile(context, "out") as out, _OutputFile(context, "err") as err:
        try:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out.file, stderr=err.file, env=environment, cwd=cwd,
                                       start_new_session=True, pass_fds=context.lock_fds if context else ())
        except (OSError, ValueError) as error:
            raise OpsError(f"`{words[0]}` cannot be started", why=str(error), argv=words) from error
        both = _Kept()

        # A job's log takes any number of lines at once: one call for each read instead of each line is what keeps up with a flood.
        whole = context is not None and on_line == context.log

        def take(*, last: bool = False) -> bool:
            for stream in (out, err):
                for lines in stream.read_lines(last=last):
                    text = "\n".join(lines) + "\n"
                    stream.kept.add(text)
                    both.add(text)
                    if on_line is None or (stdout_is_data and stream is out):
                        continue
                    if whole:
                        on_line(text)
                    else:
                        for line in lines:
                            on_line(line)
            return out.more or err.more

        try:
            _wait(process, take, context, began + timeout_s if timeout_s else None, words)
        except BaseException:
            _end(process, job, command)
            raise
        take(last=True)
        done = Completed(argv=words, code=process.returncode, output=both.text(), stdout=out.kept.text(), stderr=err.kept.text(),
                         duration_s=time.monotonic() - began)
    if check and done.code != 0:
        raise failed(done)
    return done


def failed(done: Completed) -> CommandFailed:
    """The error that says how a program ended."""
    tail = "\n".join(done.output.splitlines()[-20:])
    how = f"exit code {done.code}" if done.code >= 0 else f"signal {-done.code}"
    return CommandFailed(f"`{Path(done.argv[0]).name}` failed with {how}", why=tail, argv=done.argv, code=done.code, tail=tail)


def _wait(process: subprocess.Popen[bytes], take: Callable[[], bool], context: Context | None, deadline: float | None, words: list[str]) -> None:
    pidfd = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        more = False
        while not poller.poll(0 if more else TICK_S * 1000):
            more = take()
            if context is not None:
                context.check()
            if deadline is not None and time.monotonic() > deadline:
                raise Timeout(f"`{Path(words[0]).name}` did not end in time", why=shlex.join(words)[:500])
        process.wait()
    finally:
        os.close(pidfd)


def _end(process: subprocess.Popen[bytes], job: str | None, command: str) -> None:
    """Ends the program and all that it started. Raises OpsError if something is left even so."""
    if job is not None:
        left = marks.end_marked(job)
    else:
        left = marks.end(lambda: set(marks.marked_with(COMMAND_MARK, command)), lambda pid: pid in marks.marked_with(COMMAND_MARK, command))
    if not marks.ended(process.pid):  # it wrote over its environment, so that the mark did not show it
        process.kill()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        left.add(process.pid)
    if left:
        raise OpsError(f"Processes could not be ended: {marks.tell(left)}", why="They did not react to SIGKILL",
                       hint="Look at them with ps; a reboot may be needed")


class _OutputFile:
    """One output stream in a file that the child writes and we follow; removed at the end."""

    def __init__(self, context: Context | None, name: str) -> None:
        self.kept = _Kept()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._forgotten = 0
        self.more = False  # there is more to read at once
        folder = context.folder if context is not None else None
        # Delete-on-close by hand: the name stays when the runner is killed, for whoever looks what its child went on to say.
        descriptor, self.path = tempfile.mkstemp(prefix=f"command-{name}-", suffix=".txt", dir=folder)
        os.set_inheritable(descriptor, False)
        self.file: IO[bytes] = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb", buffering=0)
        self._reader = os.fdopen(descriptor, "rb", buffering=0)

    def __enter__(self) -> _OutputFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.file.close()
        self._reader.close()
        Path(self.path).unlink(missing_ok=True)

    def read_lines(self, *, last: bool = False) -> Iterator[list[str]]:
        """Complete lines since the last call: of at most `A_SIP` bytes (then `more` is true), or all that is left with `last`."""
        taken = 0
        while True:
            data = self._reader.read(128 * 1024)
            taken += len(data)
            ends = last and not data
            text = self._rest + self._decoder.decode(data, final=ends)
            # "\r\n" is one end of line: a "\r" that came last may be half of it, so it waits.
            waits = "\r" if text.endswith("\r") and not ends else ""
            *complete, rest = text.removesuffix(waits).replace("\r\n", "\n").replace("\r", "\n").split("\n")
            if ends and rest:
                complete.append(rest)
                rest = ""
            while len(rest) > LONGEST_LINE:
                complete.append(rest[:LONGEST_LINE])
                rest = rest[LONGEST_LINE:]
            self._rest = rest + waits
            if complete:
                yield [line[start : start + LONGEST_LINE] for line in complete for start in range(0, max(len(line), 1), LONGEST_LINE)]
            self.more = bool(data) and taken >= A_SIP and not last
            if not data or self.more:
                self._forget()
                return
            if last:
                self._forget()

    def _forget(self) -> None:
        """Gives the disk space of what was read back, so that a flood does not fill the disk (not every file system can)."""
        read_up_to = self._reader.tell() & ~4095
        if read_up_to - self._forgotten >= 8 * 1024 * 1024:
            _libc.fallocate(self._reader.fileno(), 3, ctypes.c_int64(0), ctypes.c_int64(read_up_to))  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
            self._forgotten = read_up_to


class _Kept:
    """The last `KEPT` characters of a text that comes in pieces."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size > 2 * KEPT:
            kept = "".join(self._parts)[-KEPT:]
            self._parts, self._size = [kept], len(kept)

    def text(self) -> str:
        return "".join(self._parts)[-KEPT:]

