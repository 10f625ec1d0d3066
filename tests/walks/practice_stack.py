"""The whole product for a walk: `manage.py up --practice` in a state folder of its own, and a browser that holds every console message."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.dashboard.real_console import fill_state

REPOSITORY = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The condition's first true value; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return value


class PracticeStack:
    """A launcher in a process of its own, whose state has a database and static files already. `speed` is the practice box's; `end` stops everything
    as Ctrl-C does."""

    def __init__(self, state: Path, *, speed: float, job: bool = False) -> None:
        self.state, self.speed, self.port = state, speed, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_"))}
        self.environment = {**kept, "ROUNDHOUSE_STATE": str(state), "ROUNDHOUSE_PRACTICE_SPEED": str(speed),
                            "ROUNDHOUSE_PRACTICE_PORT": str(free_port())}
        fill_state(state)
        self.said = state.parent / f"{state.name}-said.txt"
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--practice", "--port", str(self.port), *([] if job else ["--no-job"])], cwd=REPOSITORY,
                env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)

    def text(self) -> str:
        return self.said.read_text()

    def wait_until_up(self, seconds: float = 120) -> None:
        def up() -> bool:
            assert self.process.poll() is None, self.text()
            return "Ctrl-C ends it" in self.text()

        wait_until(up, seconds, "the launcher stays")

    @property
    def sign_in_link(self) -> str:
        found = re.findall(r"http://127\.0\.0\.1:\d+/sign-in/\S+", self.text())
        return str(found[-1])

    def kill_child(self, name: str) -> None:
        """SIGKILL to one of the launcher's children ("web", "recorder", "agent"); the launcher starts it again."""
        os.kill(int(re.findall(rf"^  {name} .*pid (\d+)", self.text(), re.M)[-1]), signal.SIGKILL)

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def practice_stack(folder: Path, *, speed: float) -> Iterator[PracticeStack]:
    """A stack that is up, and is ended as Ctrl-C does. `folder` must be short."""
    made = PracticeStack(folder / "s", speed=speed)
    try:
        made.wait_until_up()
        yield made
    finally:
        made.end()
