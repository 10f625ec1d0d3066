"""Wheel files on this machine: what they hold, without unpacking them. Used for sizes, progress and pristine files."""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from packaging import tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ops.jobs.errors import OpsError

RECORD_LIMIT = 64 * 1024 * 1024  # bytes; torch's has 1.5 MB
# RuntimeError: an encrypted entry; the last four: content that is not what its header says (UnicodeDecodeError is a ValueError)
_DAMAGE = (OSError, zipfile.BadZipFile, RuntimeError, ValueError, EOFError, zlib.error, lzma.LZMAError)
_DATA_FOLDERS = ("purelib", "platlib")  # below NAME.data, unpacked into site-packages like the rest


@dataclass(frozen=True, slots=True)
class WheelContents:
    """How much a wheel installs: number of files and their size unpacked."""

    files: int
    size_bytes: int


def contents(wheel: Path) -> WheelContents:
    """Raises OpsError if the file is no wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            return WheelContents(len(entries), sum(entry.file_size for entry in entries))
    except _DAMAGE as error:
        raise OpsError(f"The wheel `{wheel}` cannot be read", why=str(error)) from error


def pristine(wheel: Path, inside: str, *, limit: int = 8 * 1024 * 1024) -> bytes | None:
    """The file that the wheel installs at `inside` (relative to site-packages); None if it has none, or one larger than `limit`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            stem = "-".join(wheel.name.split("-")[:2])
            for name in (inside, *(f"{stem}.data/{folder}/{inside}" for folder in _DATA_FOLDERS)):
                if name in names:
                    if archive.getinfo(name).file_size > limit:
                        return None
                    return archive.read(name)
    except _DAMAGE as error:
        raise OpsError(f"The wheel `{wheel}` cannot be read", why=str(error)) from error
    return None


def record_rows(wheel: Path) -> dict[str, str]:
    """What the wheel's own RECORD says of the files that it puts into site-packages: path to hash ("sha256=..."), the RECORD itself left out,
    and what it lists without having it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((name for name in archive.namelist() if name.endswith(".dist-info/RECORD") and name.count("/") == 1), None)
            if name is None:
                raise OpsError(f"The wheel `{wheel}` has no RECORD")
            if archive.getinfo(name).file_size > RECORD_LIMIT:
                raise OpsError(f"The RECORD of the wheel `{wheel}` is too large", why=f"At most {RECORD_LIMIT:,} bytes are read")
            rows = list(csv.reader(io.StringIO(archive.read(name).decode("utf-8"), newline="")))
            there = set(archive.namelist())
    except (*_DAMAGE, csv.Error) as error:
        raise OpsError(f"The wheel `{wheel}` cannot be read", why=str(error)) from error
    return {row[0]: row[1] for row in rows if len(row) > 1 and row[1] and row[0] in there and ".data/" not in row[0]}


def sha256(wheel: Path) -> str:
    """Hex digest of the file. Raises OpsError if it cannot be read."""
    try:
        with wheel.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise OpsError(f"The wheel `{wheel}` cannot be read", why=error.strerror or str(error)) from error


def best(files: list[str], python_version: str) -> str | None:
    """Which of one package's wheels an interpreter of that version takes on this machine; None if none of them fits."""
    parts = tuple(int(part) for part in python_version.split(".")[:2] if part.isdecimal())
    if len(parts) != 2:
        return files[0] if files else None
    platforms = list(tags.platform_tags())
    order = {tag: rank for rank, tag in enumerate([
        *tags.cpython_tags(parts, platforms=platforms),
        *tags.compatible_tags(parts, f"cp{parts[0]}{parts[1]}", platforms),
    ])}
    ranked = []
    for file in files:
        try:
            _, _, build, found = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        ranks = [order[tag] for tag in found if tag in order]
        if ranks:
            ranked.append((min(ranks), tuple(-number for number in build[:1] if isinstance(number, int)), file))
    return min(ranked)[2] if ranked else None
