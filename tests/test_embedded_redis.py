"""The embedded Redis: persistent, private, one server a folder, and gone when its parent is."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dashboard.embedded_redis import EmbeddedRedis
from ops.gpus.processes import start_ticks
from ops.jobs.errors import OpsError

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(short_path: Path) -> Iterator[Path]:
    yield short_path / "redis"
    kept = short_path / "redis" / "redis.json"
    if kept.exists():  # the socket's folder lies elsewhere
        socket = Path(json.loads(kept.read_text())["socket"])
        socket.unlink(missing_ok=True)
        if socket.parent.exists():
            socket.parent.rmdir()


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url())


def test_data_and_address_survive_a_kill(folder: Path) -> None:
    first = EmbeddedRedis(folder).start()
    with client(first) as connection:
        connection.set("kept", "yes")
    os.kill(first.process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    first.process.wait()  # type: ignore[union-attr]
    second = EmbeddedRedis(folder).start()
    assert second.url() == first.url()
    with client(second) as connection:
        assert connection.get("kept") == b"yes"
    second.stop()
    assert not second.socket.parent.exists()


def test_without_the_password_nothing_is_told(folder: Path) -> None:
    server = EmbeddedRedis(folder).start()
    with redis.Redis(unix_socket_path=str(server.socket)) as stranger, pytest.raises(redis.exceptions.AuthenticationError):
        stranger.get("kept")
    assert server.password not in Path(f"/proc/{server.pid}/cmdline").read_text()
    assert stat.S_IMODE((folder / "redis.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    server.stop()


def test_a_second_server_on_the_same_folder_is_refused(folder: Path) -> None:
    server = EmbeddedRedis(folder).start()
    with pytest.raises(OpsError, match="Another Redis server uses"):
        EmbeddedRedis(folder).start(timeout=0.5)
    with client(server) as connection:
        assert connection.ping()
    server.stop()


def test_a_torn_address_file_is_made_anew(folder: Path) -> None:
    folder.mkdir()
    (folder / "redis.json").write_text('{"password": "abc", "so')
    server = EmbeddedRedis(folder).start()
    assert json.loads((folder / "redis.json").read_text())["socket"] == str(server.socket)
    server.stop()


def test_a_socket_folder_open_to_others_is_not_used_again(folder: Path) -> None:
    first = EmbeddedRedis(folder)
    first.socket.parent.chmod(0o777)
    second = EmbeddedRedis(folder)
    assert second.socket.parent != first.socket.parent
    assert second.password == first.password
    first.socket.parent.rmdir()


def test_a_server_that_cannot_start_is_told_with_its_log(folder: Path) -> None:
    server = EmbeddedRedis(folder)
    server.password = '"'  # breaks the configuration
    with pytest.raises(OpsError, match="did not start") as caught:
        server.start()
    assert "server.log" in caught.value.why
    assert server.pid is None


def test_the_server_ends_when_its_parent_is_killed(folder: Path) -> None:
    program = ("import time; from dashboard.embedded_redis import EmbeddedRedis\n"
               f"print(EmbeddedRedis({str(folder)!r}).start().pid, flush=True); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    ticks = start_ticks(pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while start_ticks(pid) == ticks and time.monotonic() < deadline:
        time.sleep(0.02)
    assert start_ticks(pid) != ticks
