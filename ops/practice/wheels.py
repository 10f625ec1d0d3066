"""Builds the practice stack's wheels: which files lie in the wheelhouse, and what is in each?

A wheel is a zip with metadata, so no build backend is needed: `build` writes 21 of them in some 30 ms, without network. The
same sources give the same bytes (fixed times, sorted names), and a wheel that is there already is left alone, so its mtime, by
which uv knows its cached copy, changes only with its content.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.jobs.errors import BadInput

STACK = Path(__file__).parent / "stack"
SUFFIX = "+practice"
TAG = "py3-none-any"
_TIME = (2026, 3, 1, 0, 0, 0)  # one time for all members: equal sources give equal bytes


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of `wheels.toml`. `version` has the local suffix."""

    name: str
    version: str
    source: str = ""
    module: str = ""
    summary: str = ""
    requires: tuple[str, ...] = ()
    scripts: dict[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """`flashinfer_cubin-0.6.4+practice`, the front of the file name and of the .dist-info folder."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.stem}-{TAG}.whl"


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A folder of wheels. `files` are absolute paths, sorted by name."""

    folder: Path
    files: list[Path]


def catalogue() -> list[Wheel]:
    """Every wheel that `stack/wheels.toml` names, in its order."""
    wheels = []
    for entry in tomllib.loads((STACK / "wheels.toml").read_text())["wheel"]:
        raw: dict[str, Any] = dict(entry)
        raw["version"] += SUFFIX
        raw["requires"] = tuple(raw.get("requires", ()))
        wheels.append(Wheel(**raw))
    return wheels


def build(folder: Path) -> Wheelhouse:
    """Makes `folder` hold exactly the practice wheels; wheels that are right already stay untouched.

    Wheels of an earlier practice stack are removed, other files are left alone. Raises BadInput if the folder cannot be written.
    """
    files = []
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for wheel in catalogue():
            path = folder / wheel.filename
            content = pack(wheel)
            if not path.exists() or path.read_bytes() != content:
                half = folder / f".{wheel.filename}.{os.getpid()}"
                half.write_bytes(content)
                half.replace(path)
            files.append(path)
        for other in folder.glob(f"*{SUFFIX}-{TAG}.whl*"):
            if other not in files:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"The practice wheelhouse `{folder}` cannot be written", why=str(error)) from error
    return Wheelhouse(folder, sorted(files))


def pack(wheel: Wheel) -> bytes:
    """The bytes of a wheel: its files, METADATA, WHEEL, entry points, and RECORD with each file's sha256 and size."""
    members = dict(_sources(wheel))
    info = f"{wheel.stem}.dist-info"
    members[f"{info}/METADATA"] = _metadata(wheel).encode()
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: roundhouse-practice\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode()
    if wheel.scripts:
        lines = "".join(f"{name} = {target}\n" for name, target in sorted(wheel.scripts.items()))
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in sorted(members.items()))
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, content in sorted(members.items()):
            member = zipfile.ZipInfo(path, date_time=_TIME)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return packed.getvalue()


def _sources(wheel: Wheel) -> Iterator[tuple[str, bytes]]:
    """Path in the wheel and content of each file of a distribution, its version filled in."""
    if not wheel.source:
        text = f'"""Practice stand-in for {wheel.name}: it has a version and nothing else."""\n\n__version__ = "{wheel.version}"\n'
        yield f"{wheel.module}/__init__.py", text.encode()
        return
    root = STACK / wheel.source
    for path in sorted(root.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        content = path.read_bytes()
        if path.suffix == ".py":
            content = content.replace(b"@VERSION@", wheel.version.encode())
        yield path.relative_to(root).as_posix(), content


def _metadata(wheel: Wheel) -> str:
    summary = wheel.summary or f"Practice stand-in for {wheel.name}"
    lines = ["Metadata-Version: 2.1", f"Name: {wheel.name}", f"Version: {wheel.version}", f"Summary: {summary}", "License: Apache-2.0",
             "Requires-Python: >=3.11", *(f"Requires-Dist: {requirement}" for requirement in wheel.requires)]
    return "\n".join(lines) + f"\n\n{summary}. Part of Roundhouse's practice box; it never runs on a real node.\n"


def _digest(content: bytes) -> str:
    """sha256 in RECORD's form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
