"""Wheels whose own RECORD does not say what is in them: as installed, and yet not as RECORD has it.

A publisher who strips or repairs libraries after RECORD was written ships such a wheel; installers do not look. Known ones stand in
`faulty_wheels.toml`. Others are learned when a release is verified (verifying.py): a file that comes out with the same content again, from a
wheel with the asserted hash that was unpacked anew, is the wheel's. That is kept in the release's manifest.

What is excused is exact: one path, what RECORD says of it, and one content. Any other content there is an edit.
"""

from __future__ import annotations

import base64
import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ops.jobs.errors import OpsError

KEY = "unlike_record"  # of a release's manifest: what was learned, as a list of [path, recorded, actual]

# (path relative to site-packages, what RECORD says: "sha256=<urlsafe base64>") -> what the wheel holds, in the same form
Known = Mapping[tuple[str, str], str]


@cache
def table() -> dict[tuple[str, str], str]:
    """The known ones. Raises OpsError if the table cannot be read."""
    path = Path(__file__).with_name("faulty_wheels.toml")
    try:
        raw = tomllib.loads(path.read_text())
        return {(str(name), str(recorded)): str(actual) for wheel in raw["wheel"] for name, recorded, actual in wheel["files"]}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise OpsError("The table of faulty wheels cannot be read", why=f"{path}: {error!r}") from error


def learned(release: Path | str) -> list[list[str]]:
    """What was learned when the release was verified; empty for an environment of somebody else."""
    from ops.environments import releases

    told: Any = (releases.manifest(Path(release)) or {}).get(KEY)
    return [list(row) for row in told if _is_row(row)] if isinstance(told, list) else []


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(isinstance(one, str) for one in row)


def known(env: Path | str) -> Known:
    """All that is known for the environment: the table, and what its release has learned. Raises OpsError for a manifest that cannot be read."""
    return {**table(), **{(path, recorded): actual for path, recorded, actual in learned(env)}}


def named(key: str, expected: str | None) -> tuple[str, str]:
    """How a file is named in what is known. `key`: its path relative to the environment; `expected`: what RECORD says."""
    return inside(key), expected or ""


def inside(key: str) -> str:
    """The path relative to site-packages (`lib/python3.12/site-packages/x` is `x`)."""
    head, found, tail = key.partition(f"{os.sep}site-packages{os.sep}")
    return tail if found and head.startswith("lib") else key


def as_recorded(sha256: str | None) -> str:
    """A SHA-256 in hex as RECORD writes it; None (not hashed) is like no content."""
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode() if sha256 else "none"
