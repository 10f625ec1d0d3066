"""What can go wrong, told so that a person can act: what happened, why, what to do.

`OpsError` is an expected failure (a wrong URL, a full disk, a crashed service). Anything else that escapes a step is a bug
of ours: it is reported with its traceback and reads differently (`reason_kind: bug`).
"""

from __future__ import annotations

from typing import Any


class OpsError(Exception):
    """An expected failure.

    `what` happened in one sentence naming the thing (URL, unit, GPU index, path); `why`, if known; `hint`, the thing to do.
    `kind` is a stable word for programs.
    """

    kind = "failed"

    def __init__(self, what: str, *, why: str = "", hint: str = "", kind: str | None = None, **facts: Any) -> None:
        super().__init__(what)
        self.what, self.why, self.hint, self.facts = what, why, hint, facts
        if kind:
            self.kind = kind

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(self.why)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The one JSON shape of an error: in events, on pages, in the API and from the command line."""
        return {"kind": self.kind, "what": self.what, "why": self.why, "hint": self.hint, "facts": self.facts}


class BadInput(OpsError):
    """What was asked for cannot be done as asked; nothing has been changed."""

    kind = "bad_input"


class Refused(OpsError):
    """The node's own limits, or the protocol, forbid it (bad envelope, unknown type, outside node.toml)."""

    kind = "refused"


class Busy(OpsError):
    """Another job holds a lock that this one needs."""

    kind = "busy"


class CommandFailed(OpsError):
    """A program that we ran ended with an exit code other than 0. `facts` has `argv`, `code`, `tail`."""

    kind = "command_failed"


class Timeout(OpsError):
    """A deadline passed."""

    kind = "timeout"


class Cancelled(Exception):
    """Raised inside a step when the job's cancel flag was seen. Not an error."""
