"""What is in the way of a folder that goes as a whole, by another way than file by file: all in it is looked at first, links are not followed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ops.artifacts.conditions import Conditions
from ops.artifacts.found import shown
from ops.artifacts.holders import Holders
from ops.artifacts.methods import measure
from ops.artifacts.walk import Frame, walk


@dataclass(slots=True)
class Found:
    """`why`: a sentence, "" if nothing is in the way. `pids`: who has something of it open."""

    why: str = ""
    pids: Sequence[int] = field(default_factory=list)


def obstacle(folder: str, *, conditions: Conditions, check: Callable[[], None]) -> Found:
    """Something mounted in it, of another user, open in a process (also as its working folder), or that could not be looked at. `folder`: absolute,
    no link on the way. Raises FileNotFoundError if it is gone, another OSError if it cannot be opened (a link lies on the way)."""
    held = conditions.holders
    look = _Look(folder, held if isinstance(held, Holders) else None, check)
    if look.holders is not None:
        _ = look.holders.complete  # brings the look up to date
    walk(folder, look, check=check)
    if not look.found.why and look.holders is not None and (pids := look.holders.below(folder)):
        look.opened(pids)
    return look.found


class _Look:
    """The visitor of the walk."""

    def __init__(self, folder: str, holders: Holders | None, check: Callable[[], None]) -> None:
        self.found, self.holders = Found(), holders
        self._folder, self._check, self._owner = folder, check, os.geteuid()

    def opened(self, pids: Sequence[int]) -> None:
        assert self.holders is not None  # noqa: S101  (pids come from it)
        self.found = self.found if self.found.why else Found(f"Something in it is {self.holders.words(pids)}", pids)

    def enter(self, frame: Frame) -> bool:
        self._check()
        self._examine(frame.path, frame.state)
        return not self.found.why

    def file(self, frame: Frame, name: str, state: os.stat_result) -> None:
        if not self.found.why:
            self._examine(f"{frame.path}/{name}", state)

    def leave(self, frame: Frame) -> None:
        """Nothing is summed up."""

    def mount(self, frame: Frame, name: str) -> None:
        self._stays(f"Something is mounted in it: {self._inside(f'{frame.path}/{name}')}")

    def unreadable(self, path: str, error: OSError, frame: Frame | None) -> None:
        self._stays(f"Not all of it could be looked at: {self._inside(path)}: {error.strerror or error}")

    def _examine(self, path: str, state: os.stat_result) -> None:
        if state.st_uid != self._owner:
            self._stays(f"Something in it belongs to another user ({measure.owner(state.st_uid)}): {self._inside(path)}")
        elif self.holders is not None and (pids := self.holders.seen(state.st_dev, state.st_ino, path)):
            self.opened(pids)

    def _stays(self, why: str) -> None:
        self.found = self.found if self.found.why else Found(why)

    def _inside(self, path: str) -> str:
        return shown(path[len(self._folder) + 1:]) or "itself"
