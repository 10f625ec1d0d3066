"""A real systemd for a test, in namespaces of its own (systemd_sandbox.sh), and in it the whole product: console, agent, jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("systemd_sandbox.sh")
REPOSITORY = Path(__file__).resolve().parents[2]


class Sandbox:
    """`folder` is the same inside and outside; all else that is written inside is gone afterwards. The network is the host's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, re.sub(r"[^a-z0-9]+", "-", f"rh-{os.getpid()}-{folder.name[-8:]}".lower()).strip("-")  # a hostname too
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_")) and name != "TMPDIR"}
        self.environment = {**kept, "SYSTEMD_SANDBOX_STATE": str(folder / "sandbox")}

    def run(self, *argv: object, timeout: float = 120, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([SCRIPT, "exec", self.name, *(str(word) for word in argv)], cwd=REPOSITORY, env={**self.environment, **variables},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout)
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done

    def write_unit(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        self.run("cp", self.folder / name, "/etc/systemd/system/")
        self.run("systemctl", "daemon-reload")

    def shows(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, as `systemctl show` says them."""
        done = self.run("systemctl", "show", *(f"--property={name}" for name in properties), unit)
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--all", f"--unit={unit}").stdout


@contextmanager
def sandbox(folder: Path) -> Iterator[Sandbox]:
    """A systemd that is up; skips where none can be made. `folder` must be short."""
    if not (Path("/lib/systemd/systemd").exists() and shutil.which("unshare") and os.geteuid() == 0):
        pytest.skip("a real systemd needs root, unshare and Debian's package systemd")
    made = Sandbox(folder)
    up = subprocess.run([SCRIPT, "start", made.name, "--share", str(folder)], env=made.environment, capture_output=True, text=True, check=False,
                        timeout=60)
    if up.returncode:
        pytest.skip(f"no sandbox with systemd can be made here: {up.stderr.strip()[-300:]}")
    try:
        yield made
    finally:
        subprocess.run([SCRIPT, "stop", made.name], env=made.environment, capture_output=True, check=False, timeout=60)


class Product:
    """Roundhouse inside of a sandbox: `python -m ops` as an admin runs it, and `manage.py up` as a unit. Its state lies in `folder`/s."""

    def __init__(self, box: Sandbox, port: int) -> None:
        self.box, self.port, self.state = box, port, box.folder / "s"
        self.node, self.address = self.state / "node", f"http://127.0.0.1:{port}"
        self.said = box.folder / "said.txt"

    def allow(self, name: str, **lists: list[object]) -> None:
        """Writes node.toml."""
        self.node.mkdir(parents=True, mode=0o700, exist_ok=True)
        self.state.chmod(0o700)
        lines = [f"{key} = {json.dumps([str(value) for value in values])}"
                 for key, values in {"service_roots": [self.node / "services"], **lists}.items()]
        (self.node / "node.toml").write_text("\n".join([f'name = "{name}"', 'gpu_source = "nvml"', *lines]) + "\n")

    def ops(self, *argv: object, timeout: float = 120) -> str:
        return self.box.run(sys.executable, "-m", "ops", *argv, timeout=timeout, ROUNDHOUSE_STATE=str(self.state)).stdout

    def up(self) -> None:
        self.said.touch()
        self.box.run("systemd-run", "--quiet", "--unit=roundhouse", f"--working-directory={REPOSITORY}", "--property=KillMode=mixed",
                     f"--setenv=ROUNDHOUSE_STATE={self.state}", f"--property=StandardOutput=append:{self.said}",
                     f"--property=StandardError=append:{self.said}", "--setenv=PYTHONUNBUFFERED=1", sys.executable, "manage.py", "up",
                     f"--port={self.port}")

    def is_up(self) -> bool:
        state = self.box.shows("roundhouse", "ActiveState")["ActiveState"]
        assert state == "active", self.said.read_text()
        return "Ctrl-C ends it" in self.said.read_text()

    @property
    def sign_in_link(self) -> str:
        return str(re.findall(r"http://127\.0\.0\.1:\d+/sign-in/\S+", self.said.read_text())[-1])
