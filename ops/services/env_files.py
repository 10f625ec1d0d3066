"""Variables out of a file, as systemd's EnvironmentFile= reads them (systemd.exec(5); basic/env-file.c).

`KEY=VALUE` a line; lines that begin with `#` or `;` are comments; a backslash at the end of a line joins it with the next one. A value
may be quoted: nothing is special between single quotes, and between double quotes a backslash only before `"`, `\\`, a backtick and `$`.
Nothing is expanded. A path with `-` before it may be missing.

The launcher of a service holds this very text, and runs it with whatever Python the service's release has: it uses the standard library alone.
"""

from __future__ import annotations

import os
import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BLANK, _NEWLINE = " \t\n\r", "\n\r"


def parse(text: str) -> dict[str, str]:
    """The variables of such a file; of a name that stands twice the last value. What is no variable is left out, as systemd does."""
    found: dict[str, str] = {}
    key, value = "", ""
    solid = 0  # so many characters of the value stay when blanks at its end are cut
    state = "before key"

    def take() -> None:
        name = key.rstrip(_BLANK)
        if _NAME.match(name):
            found[name] = value[:solid]

    for c in text:
        if state == "before key":
            if c in "#;":
                state = "comment"
            elif c not in _BLANK:
                key, value, solid, state = c, "", 0, "key"
        elif state == "key":
            if c in _NEWLINE:
                state = "before key"
            elif c == "=":
                state = "before value"
            else:
                key += c
        elif state in ("before value", "value"):
            if c in _NEWLINE:
                take()
                state = "before key"
            elif c == "\\":
                state = "escape"
            elif state == "before value" and c in "'\"":
                state = "single" if c == "'" else "double"
            elif state == "value" or c not in _BLANK:
                value += c
                solid = solid if c in _BLANK else len(value)
                state = "value"
        elif state == "escape":
            state = "value"
            if c not in _NEWLINE:
                value += c
                solid = len(value)
        elif state == "single":
            if c == "'":
                state = "before value"
            else:
                value += c
                solid = len(value)
        elif state == "double":
            if c == '"':
                state = "before value"
            elif c == "\\":
                state = "double escape"
            else:
                value += c
                solid = len(value)
        elif state == "double escape":
            state = "double"
            if c != "\n":
                value += c if c in '"\\`$' else "\\" + c
                solid = len(value)
        elif state == "comment" and c in _NEWLINE:
            state = "before key"
    if state not in ("before key", "key", "comment"):
        take()
    return found


def read(path: str) -> dict[str, str]:
    """The variables of one file; `-` before the path: none if it is missing. Raises OSError, and ValueError for what is no UTF-8 text."""
    optional, path = path.startswith("-"), path.removeprefix("-")
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  (also runs where nothing of ours is)
            return parse(file.read())
    except FileNotFoundError:
        if optional:
            return {}
        raise


def overlay(environment: dict[str, str], paths: list[str]) -> None:
    """Puts the variables of each file over `environment`, in order. Ends the process with 127 where a needed file cannot be read.

    systemd reads the files as root before it starts the unit as its user. So a file that this user may not read is nothing wrong below
    systemd (INVOCATION_ID is set): its variables are there already.
    """
    for path in paths:
        try:
            environment.update({name: value for name, value in read(path).items() if not name.startswith("ROUNDHOUSE_")})
        except PermissionError:
            if "INVOCATION_ID" not in os.environ:
                raise SystemExit(_cannot(path, "permission denied")) from None
        except (OSError, ValueError) as error:
            raise SystemExit(_cannot(path, getattr(error, "strerror", None) or str(error))) from None


def _cannot(path: str, why: str) -> int:
    os.write(2, f"launch: the environment file {path.removeprefix('-')} cannot be read: {why}\n".encode())
    return 127
