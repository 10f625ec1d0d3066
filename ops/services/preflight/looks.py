"""What all looks have in common: findings are collected, each is told at once, and all looks run before one of them ends the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ops.jobs.errors import OpsError
from ops.jobs.pipeline import Context

GIB = 1 << 30

Findings = list[dict[str, Any]]  # [{subject, level, title, why, fix, part, look}], as they are told


class Looks:
    """Collects the findings of one part ("host" or "release"), and tells each at once."""

    def __init__(self, context: Context, part: str) -> None:
        self.context = context
        self.part = part
        self.found: Findings = []
        self._look = ""

    def add(self, level: str, title: str, *, why: str = "", fix: str = "") -> None:
        """`level`: "ok", "note", "warning" or "stop"."""
        self.context.finding("preflight", level, title, why=why, fix=fix, part=self.part, look=self._look)
        self.found.append({"subject": "preflight", "level": level, "title": title, "why": why, "fix": fix, "part": self.part, "look": self._look})

    def run(self, looks: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """All looks, each under its name. One that fails with an expected error is a finding itself; what the system does not let us see is a
        warning, for it says nothing of what is there."""
        for name, look in looks:
            self.context.check()
            self._look = name
            try:
                look()
            except OpsError as error:
                self.add("stop", error.what, why=error.why, fix=error.hint)
            except OSError as error:
                self.add("warning", f"`{error.filename or name}` could not be looked at", why=error.strerror or str(error))


def conclude(parts: Sequence[Looks]) -> Findings:
    """All findings of all parts. Raises OpsError (kind "preflight") if any of them is a `stop`: it names the first and counts the others."""
    found = [one for part in parts for one in part.found]
    stops = [one for one in found if one["level"] == "stop"]
    if stops:
        more = "" if len(stops) == 1 else f" ({len(stops) - 1} more: {'; '.join(one['title'] for one in stops[1:4])})"
        raise OpsError(f"Preflight: {stops[0]['title']}{more}", why=stops[0]["why"], hint=stops[0]["fix"], kind="preflight",
                       findings=[one for one in found if one["level"] in {"stop", "warning"}])
    return found
