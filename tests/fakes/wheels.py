"""Makes tiny real wheels, so that tests drive the real uv against them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, str | bytes] | None = None,
    entry_points: str = "",
    data: Mapping[str, str | bytes] | None = None,
    tag: str = "py3-none-any",
    requires_python: str = "",
) -> Path:
    """The path of `<name>-<version>-<tag>.whl` in `folder`.

    `files` are put at the root of site-packages (by default a module of that name with `__version__`), `data` below
    `<name>-<version>.data/data`, which lands at the root of the environment. The same input gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_").replace(".", "_")
    stem = f"{module}-{version}"
    body: dict[str, bytes] = {}
    for path, content in (files if files is not None else {f"{module}/__init__.py": f'__version__ = "{version}"\n'}).items():
        body[path] = content.encode() if isinstance(content, str) else content
    for path, content in (data or {}).items():
        body[f"{stem}.data/data/{path}"] = content.encode() if isinstance(content, str) else content
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    if requires_python:
        metadata.append(f"Requires-Python: {requires_python}")
    body[f"{stem}.dist-info/METADATA"] = ("\n".join(metadata) + "\n").encode()
    body[f"{stem}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    if entry_points:
        body[f"{stem}.dist-info/entry_points.txt"] = entry_points.encode()
    record = f"{stem}.dist-info/RECORD"
    rows = []
    for path, content in body.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    body[record] = ("\n".join([*rows, f"{record},,"]) + "\n").encode()
    wheel = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in body.items():
            entry = zipfile.ZipInfo(path, date_time=(2026, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return wheel
