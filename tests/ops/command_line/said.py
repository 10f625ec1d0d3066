"""What a command printed and returned, as tests of the command line look at it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.out))
