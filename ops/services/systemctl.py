"""`systemctl`, asked with argument lists alone: what it prints becomes a dict, what it refuses becomes an OpsError that says what to do.

Nothing is cached. The program is found on PATH. Units are checked by `unit_files.unit_name` before they come here, and stand after `--`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from ops.jobs.errors import OpsError, Timeout

LIMIT_S = 20.0
_KEPT = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_NO_SYSTEMD = ("Failed to connect to bus", "has not been booted with systemd", "Failed to get D-Bus connection",
               "Failed to connect to system scope bus", "Failed to connect to user scope bus")
_NOT_PERMITTED = ("Interactive authentication required", "Access denied", "Permission denied", "Operation not permitted",
                  "interactive authentication has not been enabled", "Not authorized", "Authentication is required")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w|month|y)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0, "y": 31557600.0}


def environment() -> dict[str, str]:
    """The variables with which systemd's programs are run: English texts, times in UTC, no pager, and the way to a user's own manager."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}", **kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}


def call(arguments: Sequence[str], *, user: bool = False, limit_s: float = LIMIT_S) -> str:
    """What `systemctl ARGUMENTS` prints.

    Raises OpsError of kind "no_systemd", "not_permitted", "no_unit", "masked", "start_limit", "timeout" or "failed".
    """
    program = shutil.which("systemctl")
    if program is None:
        raise OpsError("There is no systemctl on this machine", why="It is not on PATH", kind="no_systemd",
                       hint="Run the service under the process manager (`manager: process`)")
    argv = [program, *(["--user"] if user else []), "--no-ask-password", "--no-pager", *arguments]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
                              env=environment())
    except subprocess.TimeoutExpired as error:
        raise Timeout(f"`systemctl {arguments[0]}` gave no answer within {limit_s:g} s", why="The system manager, or its bus, hangs",
                      hint="`systemctl is-system-running` and `journalctl -b -p err` tell more") from error
    except OSError as error:
        raise OpsError(f"`{program}` cannot be run", why=error.strerror or str(error), kind="no_systemd") from error
    if done.returncode:
        raise refusal(arguments, done.returncode, done.stderr.strip() or done.stdout.strip(), user=user)
    return done.stdout


def refusal(arguments: Sequence[str], code: int, told: str, *, user: bool = False) -> OpsError:
    """The error that says what `told` (systemctl's own words, in English) means."""
    unit = arguments[-1]
    why = told[-1000:]
    if any(text in told for text in _NO_SYSTEMD):
        return OpsError(f"{'Your own' if user else 'The'} systemd manager does not answer", why=why, kind="no_systemd",
                        hint="A user's manager lives as long as a session: `loginctl enable-linger` keeps it" if user else
                        "Is systemd the init of this machine? In a container the process manager takes its place")
    if any(text in told for text in _NOT_PERMITTED):
        return OpsError(f"This user may not {arguments[0]} `{unit}`", why=why, kind="not_permitted",
                        hint="An admin installs the polkit rule of docs/systemd/50-roundhouse.rules with this unit in its list")
    if "is masked" in told:
        return OpsError(f"The unit `{unit}` is masked", why=why, hint=f"`systemctl unmask {unit}` first", kind="masked")
    if re.search(r"attempted too often|start-limit|request repeated too quickly", told):
        return OpsError(f"systemd starts `{unit}` no more: it failed too often in a short time", why=why, kind="start_limit",
                        hint="See why it fails, then reset its failed state and start it")
    if code == 5 or "not found" in told or "not loaded" in told or "could not be found" in told:
        return OpsError(f"There is no unit `{unit}`", why=why, kind="no_unit",
                        hint="`systemctl list-units --type=service --all` lists those that systemd knows")
    return OpsError(f"`systemctl {arguments[0]} {unit}` failed", why=why or f"Exit code {code}", hint=f"`systemctl status {unit}` tells more")


def show(unit: str, properties: Sequence[str], *, user: bool = False, limit_s: float = LIMIT_S) -> dict[str, str]:
    """The properties of a unit; those that this systemd does not know are missing. One that stands several times is joined by newlines.

    A unit that does not exist has LoadState "not-found": that is no error. Raises OpsError as `call` does.
    """
    wanted = set(properties)
    found: dict[str, str] = {}
    last = ""
    for line in call(["show", f"--property={','.join(properties)}", "--", unit], user=user, limit_s=limit_s).split("\n"):
        name, sign, value = line.partition("=")
        if sign and name in wanted:
            found[name] = f"{found[name]}\n{value}" if name in found else value
            last = name
        elif last and line:
            found[last] += "\n" + line
    return found


def seconds(text: str) -> float | None:
    """A span of time as systemctl prints it ("1min 30s"); None for "infinity" and for what is none."""
    words = text.split()
    parts = [_DURATION.fullmatch(word) for word in words]
    if text == "0":
        return 0.0
    if not words or not all(parts):
        return None
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts if part is not None)
