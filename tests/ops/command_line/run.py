"""Runs `python -m ops` as a person and as a program do: real processes, exit codes, what stands on which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]


def ops(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ops", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "ROUNDHOUSE_NODE_STATE": "/nonexistent", **env}, input="")


def error_of(*arguments: str, code: int = 1, **env: str) -> dict[str, Any]:
    """The error of a command that must fail: the same on both streams, no traceback."""
    plain, machine = ops(*arguments, **env), ops(*arguments, "--json", **env)
    assert (plain.returncode, machine.returncode) == (code, code), plain.stderr
    assert plain.stdout == "" and "Traceback" not in plain.stderr + machine.stderr
    told: dict[str, Any] = json.loads(machine.stdout)["error"]
    assert any(line.startswith("error: ") for line in plain.stderr.splitlines()) and told["what"]
    return told
