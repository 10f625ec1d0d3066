"""Starts a program that outlives us: not our child, in a session of its own, knowing nothing of us.

`spawn` runs this same file with a bare interpreter (one thread, so forking is safe whatever threads the caller has). That process
forks and ends, so what it leaves behind is reparented:

    caller -> starter (ends at once) -> keeper (own session) -> the program (own session)

The keeper exists only if `exit_path` is given: it waits for the program and writes how it ended, which would otherwise be lost with
the parent. It holds no file, no lock and no terminal, and ends with the program. Killing it costs the exit code, nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BASE = ("PATH", "HOME", "LANG")  # all that a service takes over from us
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LIMIT_S = 30.0


def clean_environment(given: Mapping[str, str]) -> dict[str, str]:
    """PATH, HOME and LANG of ours, and what is given over them. Raises BadInput for a name that starts with ROUNDHOUSE_."""
    from ops.jobs.errors import BadInput

    for name, value in given.items():
        if name.startswith("ROUNDHOUSE_"):
            raise BadInput(f"A service may not have the variable `{name}`", why="Variables of Roundhouse itself stay with Roundhouse")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise BadInput(f"`{name[:80]}` is not an environment variable")
    base = {name: os.environ[name] for name in _BASE if name in os.environ}
    return {"PATH": _DEFAULT_PATH, **base, **given}


def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | str, log_path: Path, exit_path: Path | None = None) -> tuple[int, int]:
    """(pid, start time in clock ticks since boot) of the program `argv`, started detached.

    `argv[0]` is a path: nothing is looked up. stdin is null, stdout and stderr go to `log_path` (appended, mode 0600 if new), every other
    descriptor is closed. With `exit_path`, `{"pid", "start_ticks", "code", "at"}` is written there when the program ends; `code` is
    negative for a signal. Raises OpsError if it cannot be started: no such file, no permission, a log that cannot be opened.
    """
    from ops.jobs.errors import OpsError

    order = {
        "argv": list(argv), "env": clean_environment(env), "cwd": str(cwd), "log": str(log_path), "exit": str(exit_path) if exit_path else None,
    }
    try:
        # -S -E: no site-packages and no PYTHON* variables are read; close_fds leaves lock descriptors behind.
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-s", str(Path(__file__).resolve()), Path(argv[0]).name], input=json.dumps(order), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, cwd="/", env=clean_environment({}), close_fds=True, start_new_session=True, timeout=_LIMIT_S,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise OpsError(f"`{argv[0]}` could not be started within {_LIMIT_S:.0f} s", why="The starter did not answer") from error
    except ValueError as error:
        raise OpsError(f"`{argv[0]}` could not be started", why=f"The starter ended with code {done.returncode} and said nothing") from error
    if "error" in answer:
        raise OpsError(f"`{argv[0]}` could not be started", why=answer["error"], hint=answer.get("hint", ""))
    return answer["pid"], answer["start_ticks"]


# ---- from here on: in the starter. Standard library only, nothing of ours. ----


def _start_ticks(pid: int) -> int:
    raw = Path(f"/proc/{pid}/stat").read_bytes()
    return int(raw[raw.rindex(b")") + 2 :].split()[19])


def _program(order: dict[str, Any], log: int, failed: int) -> None:
    """The child that becomes the program. On failure it writes why to `failed`, which an exec closes."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.chdir(order["cwd"])
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, failed)
        os.closerange(failed + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # noqa: PTH208
        os.execve(order["argv"][0], order["argv"], order["env"])  # noqa: S606
    except OSError as error:
        named = f" `{error.filename}`" if error.filename else ""
        os.write(failed, f"{error.strerror}{named}".encode())
    finally:
        os._exit(127)


def _answer(what: dict[str, Any]) -> None:
    """Says it to the caller, and lets go of the pipe: the caller waits for its end."""
    os.write(1, json.dumps(what).encode())
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _starter() -> None:
    order = json.loads(sys.stdin.buffer.read())
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _answer({"error": f"The log `{order['log']}` cannot be opened: {error.strerror}"})
        return
    if os.fork():
        os._exit(0)  # whoever started us may go on; the rest belongs to init from here
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    told, failed = os.pipe()  # both closed by an exec
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _program(order, log, failed)
    os.close(failed)
    os.close(log)
    ticks = _start_ticks(pid)  # an exec does not change it, and the child is not collected before we wait for it
    reason = b""
    while part := os.read(told, 4096):
        reason += part
    if reason:
        os.waitpid(pid, 0)
        hint = "The environment or its files are missing" if b"No such file" in reason else ""
        _answer({"error": reason.decode(errors="replace"), "hint": hint})
        return
    os.chdir("/")
    _answer({"pid": pid, "start_ticks": ticks})
    if order["exit"]:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if ended is not None:  # it stays a zombie until its end is written down: who finds neither knows that it was not seen
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            _write_exit(order["exit"], {"pid": pid, "start_ticks": ticks, "code": code})
        os.waitpid(pid, 0)


def _write_exit(path: str, what: dict[str, Any]) -> None:
    import time

    with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123  (-S: as little as possible is imported)
        json.dump({**what, "at": time.time()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)  # noqa: PTH105


if __name__ == "__main__":
    _starter()
    os._exit(0)
