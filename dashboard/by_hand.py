"""Commands that a person runs on the console's host, written so that they work when they are pasted there, in the repository's folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ops.agent.config import REPOSITORY, state_folder


def by_hand(command: str, *, tell_paths: bool = True) -> str:
    """`command` as it follows the interpreter (`manage.py sign_in_link`, `-m ops gpus`), for this console's interpreter and state folder.

    `tell_paths` False, for those who have not signed in: a folder outside of the repository is named by what it is, not where.
    """
    return f"{_state(tell_paths)}{_python(tell_paths)} {command}"


def _python(tell_paths: bool) -> str:
    python = Path(sys.executable)
    if python.is_relative_to(REPOSITORY):
        return shlex.quote(str(python.relative_to(REPOSITORY)))
    return shlex.quote(str(python)) if tell_paths else "python3"


def _state(tell_paths: bool) -> str:
    state = state_folder()
    if state == REPOSITORY / "var":
        return ""
    if state.is_relative_to(REPOSITORY):
        return f"ROUNDHOUSE_STATE={shlex.quote(str(state.relative_to(REPOSITORY)))} "
    return f"ROUNDHOUSE_STATE={shlex.quote(str(state)) if tell_paths else 'STATE_FOLDER'} "
