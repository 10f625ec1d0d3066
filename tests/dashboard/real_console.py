"""The console's real processes (uvicorn, recorder) with a state folder and a database of their own, and a client for their live stream."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

SEED = """
import json, os, uuid, django
django.setup()
from django.contrib.auth.models import User
from django.contrib.auth import SESSION_KEY, BACKEND_SESSION_KEY, HASH_SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from dashboard.models import Job, Node, Service
node = Node.objects.create(name="practice", practice=True)
service = Service.objects.create(node=node, name="kimi-k25", record={}, practice=True)
sessions = []
for index in range(int(os.environ["USERS"])):
    user = User.objects.create_user(f"user{index}")
    session = SessionStore()
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = str(user.pk), "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    sessions.append(session.session_key)
jobs = [str(Job.objects.create(type="redeploy", node=node, service=service, number=number).pk) for number in range(1, 4)]
print(json.dumps({"sessions": sessions, "jobs": jobs}))
"""


FILL = """
import django
django.setup()
from pathlib import Path
from django.conf import settings
from django.core.management import call_command
from dashboard.launcher.start import static_fingerprint
call_command("migrate", interactive=False, verbosity=0)
call_command("collectstatic", interactive=False, verbosity=0)
(Path(settings.STATIC_ROOT) / ".roundhouse-collected").write_text(static_fingerprint())
"""


def fill_state(state: Path) -> None:
    """Gives a new state folder an empty database of the newest schema, and static files: what every start would make anew, made once for all the
    consoles of a run. What makes them is what a launcher calls; tests of launchers begin without."""
    sources = [path for folder in ("static", "dashboard/migrations") for path in sorted((REPOSITORY / folder).rglob("*")) if path.is_file()]
    of = hashlib.sha256("".join(f"{path} {path.stat().st_mtime_ns}\n" for path in sources).encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"filled-state-{of}"  # by a script of another day too: never older than what it is made of
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the workers of a run share the folder for temporary files
        if not made.exists():
            making = Path(tempfile.mkdtemp(prefix="filling-"))
            cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
            done = subprocess.run([sys.executable, "-c", FILL], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
                                  env={**cleaned, "ROUNDHOUSE_STATE": str(making), "DJANGO_SETTINGS_MODULE": "dashboard.settings"})
            assert done.returncode == 0, done.stderr
            making.rename(made)
    state.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "db.sqlite3", state)
    shutil.copytree(made / "static", state / "static", copy_function=os.link)


def wait_until(what: Callable[[], Any], seconds: float = 30) -> Any:
    """Polls until `what` gives something true, and gives that; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


class RealConsole:
    """Its processes die with `stop`. Paths must be short only for Redis, which is the caller's."""

    def __init__(self, state: Path, redis_url: str, *, users: int = 2, **settings: str) -> None:
        self.state = state
        cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
        self.environment = {**cleaned, "ROUNDHOUSE_STATE": str(state), "ROUNDHOUSE_REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1",
                            "DJANGO_SETTINGS_MODULE": "dashboard.settings", **settings}
        fill_state(state)
        done = subprocess.run([sys.executable, "-c", SEED], cwd=REPOSITORY, env={**self.environment, "USERS": str(users)}, capture_output=True,
                              text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        seeded = json.loads(done.stdout)
        self.sessions, self.jobs = seeded["sessions"], seeded["jobs"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def database(self) -> Path:
        return self.state / "db.sqlite3"

    def start_web(self) -> None:
        self._start("web", [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--host", "127.0.0.1", "--port", str(self.port),
                            "--log-level", "warning", "--no-access-log", "--timeout-graceful-shutdown", "20"])

        def answers() -> bool:
            assert self.processes["web"].poll() is None, self.log("web")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(answers)

    def start_recorder_soon(self) -> None:
        """Without waiting until it is ready: it may have to wait for the database."""
        self._start("recorder", [sys.executable, "manage.py", "record_events"])

    def start_recorder(self) -> None:
        self.start_recorder_soon()
        wait_until(lambda: b"ready" in (self.state / "recorder.log").read_bytes())

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.state / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(argv, cwd=REPOSITORY, env=self.environment, stdout=log, stderr=subprocess.STDOUT,
                                                    stdin=subprocess.DEVNULL)

    def log(self, name: str) -> str:
        return (self.state / f"{name}.log").read_text()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(30)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name, signal.SIGTERM if name == "recorder" else signal.SIGKILL)


@dataclass
class Listener:
    """A page's EventSource: comes back with Last-Event-ID until it is closed. `seqs` is all that it got of its job, in order."""

    port: int
    session: str
    job: str | None = None
    seqs: list[int] = field(default_factory=list)
    events: list[tuple[str, Any]] = field(default_factory=list)
    connects: int = 0
    status: int = 0
    ended: bool = False
    _socket: socket.socket | None = None

    def get(self, *, more: str = "") -> socket.socket:
        """Opens the stream and reads its head."""
        query = f"?job={self.job}" if self.job else ""
        last = f"Last-Event-ID: {self.seqs[-1]}\r\n" if self.seqs else ""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        opened.sendall(f"GET /live/{query} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAccept: text/event-stream\r\n"
                       f"Cookie: roundhouse_session={self.session}\r\n{last}{more}\r\n".encode())
        self.connects += 1
        return opened

    def run(self, until: Callable[[], bool]) -> None:
        """Reads, and comes back when the stream ends, until `until` says that it is enough."""
        while not until():
            try:
                self._read(until)
            except OSError:
                time.sleep(0.1)

    def _read(self, until: Callable[[], bool]) -> None:
        with self.get() as opened:
            opened.settimeout(0.3)
            buffered, body = b"", b""
            while not until():
                try:
                    received = opened.recv(1 << 16)
                except TimeoutError:
                    continue
                if not received:
                    return
                buffered += received
                if not self.status or not body:
                    head, found, rest = buffered.partition(b"\r\n\r\n")
                    if not found:
                        continue
                    self.status = int(head.split()[1])
                    if self.status != 200:
                        return
                    buffered, body = rest, b"open"
                buffered = self._chunks(buffered)

    _text: bytes = b""

    def _chunks(self, data: bytes) -> bytes:
        """Takes whole chunks of the chunked transfer coding; gives what is left."""
        while True:
            size, found, rest = data.partition(b"\r\n")
            if not found or len(rest) < int(size, 16) + 2:
                return data
            self._text += rest[:int(size, 16)]
            data = rest[int(size, 16) + 2:]
            *whole, self._text = self._text.split(b"\n\n")
            for event in whole:
                self._take(event.decode())

    def _take(self, text: str) -> None:
        fields = dict(line.partition(": ")[::2] for line in text.split("\n"))
        if "event" not in fields:
            return
        if fields["event"] == "job":
            self.seqs.append(int(fields["id"]))
        self.events.append((fields["event"], json.loads(fields["data"])))
