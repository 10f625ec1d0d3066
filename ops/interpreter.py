"""Whether this Python can run Roundhouse, told in one sentence. Parsed by Python 3.7 too, so it uses nothing newer."""

from __future__ import annotations

import sys
from pathlib import Path

OLDEST = (3, 11)
REPOSITORY = Path(__file__).resolve().parent.parent


def require(command: str) -> None:
    """Ends the process with 1 if this Python is too old for `command` (as it follows the interpreter on the command line)."""
    if sys.version_info < OLDEST:
        sys.exit(f"error: Roundhouse needs Python {OLDEST[0]}.{OLDEST[1]} or newer; {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}\n"
                 f"{_how(command)}")


def lacks(error: ModuleNotFoundError, command: str) -> str:
    """What to tell when one of the pinned requirements is not installed where this Python looks. Raises the error again if it is our own module."""
    if (error.name or "").partition(".")[0] in ("", "ops", "dashboard"):
        raise error
    return f"error: `{error.name}` is not installed for {sys.executable}\n{_how(command)}"


def _how(command: str) -> str:
    ours = REPOSITORY / ".venv" / "bin" / "python"
    if ours.exists() and Path(sys.executable) != ours:
        shown = ours.relative_to(REPOSITORY) if Path.cwd() == REPOSITORY else ours
        return f"hint: Use the environment of this checkout: {shown} {command}"
    return f"hint: `make environment` makes .venv with all that is needed; then use .venv/bin/python {command}"
