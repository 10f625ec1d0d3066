"""One systemd for a test: a real one, where this run is inside of the sandbox, or the double. The same tests run against both."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.records import ServiceRecord
from ops.services import systemd
from ops.services.status import ServiceStatus
from ops.services.systemd import SystemdManager
from tests.fakes.systemd_double import SystemdDouble
from tests.ops.services.conftest import wait_for

INSIDE = "ROUNDHOUSE_TESTS_IN_SANDBOX"  # set where the machine's systemd is a sandbox that a test may do everything with


def is_real() -> bool:
    return bool(os.environ.get(INSIDE))


class SystemdBox:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.real = folder, is_real()
        self._names: list[str] = []
        self._double = None if self.real else SystemdDouble(folder / "double")
        self.units = Path("/etc/systemd/system") if self.real else folder / "double" / "units"
        if self._double is not None:
            monkeypatch.setenv("PATH", f"{self._double.folder / 'bin'}:{os.environ['PATH']}")
            monkeypatch.setattr(systemd, "_CGROUP", self._double.folder / "cgroup")
            (self._double.folder / "cgroup" / "cgroup.procs").touch()

    def write(self, name: str, command: str, *settings: str, unit: str = "", text: str = "") -> str:
        """A unit of this name that runs the shell command; `settings` are lines of [Service]."""
        lines = ["[Unit]", *unit.split("\n"), "[Service]", f"ExecStart=/bin/sh -c '{command}'", *settings]
        (self.units / f"{name}.service").write_text(text or "\n".join(lines) + "\n")
        self._names.append(name)
        self.systemctl("daemon-reload")
        return name

    def systemctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=30)

    def record(self, name: str, **fields: Any) -> ServiceRecord:
        root = self.folder / "services" / name
        (root / "releases").mkdir(parents=True, exist_ok=True)
        return ServiceRecord(**{"name": name, "manager": "systemd", "unit": f"{name}.service", "root": str(root), "model_path": "/m",
                                "served_model_name": "m", "base_url": "http://127.0.0.1:9", **fields})

    def manager(self, name: str, **fields: Any) -> SystemdManager:
        return SystemdManager(self.record(name, **fields))

    def until(self, manager: SystemdManager, what: Callable[[ServiceStatus], bool], seconds: float = 20) -> ServiceStatus:
        """The first status for which `what` holds."""
        seen: list[ServiceStatus] = []

        def look() -> ServiceStatus | None:
            seen.append(manager.status())
            return seen[-1] if what(seen[-1]) else None

        try:
            found: ServiceStatus = wait_for(look, seconds)
        except AssertionError as error:
            raise AssertionError(f"did not happen; last: {seen[-1]}") from error
        return found

    def close(self) -> None:
        if self._double is not None:
            self._double.close()
            return
        for name in self._names:
            self.systemctl("kill", "--signal=SIGKILL", f"{name}.service")
            self.systemctl("stop", f"{name}.service")
            self.systemctl("reset-failed", f"{name}.service")
            (self.units / f"{name}.service").unlink(missing_ok=True)
        self.systemctl("daemon-reload")


@pytest.fixture
def box(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemdBox]:
    made = SystemdBox(short_path, monkeypatch)
    yield made
    made.close()
