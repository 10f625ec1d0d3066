"""What is installed in an environment, read from its metadata on disk.

Nothing of the environment is imported or run in our process: names, versions and requirements come from `*.dist-info`, the
interpreter's version from `pyvenv.cfg`. So a broken, foreign or hostile environment can be read like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.jobs.errors import BadInput

METADATA_LIMIT = 4 * 1024 * 1024  # bytes; the headers of the largest METADATA seen are under 50 kB, the rest is a README
_LIBRARY = re.compile(r"python3\.\d+t?\Z")


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution. `name` is normalized (PEP 503); `location` is its `.dist-info` (or `.egg-info`) folder."""

    name: str
    version: str
    location: Path
    installer: str | None = None
    requires: list[str] = field(default_factory=list)
    direct_url: dict[str, Any] | None = None  # PEP 610: where it came from, if not from an index
    requested: bool = False  # somebody named it in an install command; it is not only a dependency

    @property
    def record(self) -> Path:
        """The list of its files; may not exist."""
        return self.location / "RECORD"

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, "installer": self.installer, "requested": self.requested,
                "direct_url": self.direct_url}


@dataclass(frozen=True, slots=True)
class EnvironmentPackages:
    """An environment and its distributions by name. `duplicates` has the further copies of a name, `problems` what could not be read."""

    path: Path
    python_version: str | None
    site_packages: list[Path]
    distributions: dict[str, Distribution]
    duplicates: list[Distribution] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def version(self, name: str) -> str | None:
        """None: not installed."""
        found = self.distributions.get(canonicalize_name(name))
        return found.version if found else None

    def versions(self) -> dict[str, str]:
        """Name to version, sorted by name."""
        return {name: found.version for name, found in sorted(self.distributions.items())}

    @property
    def python(self) -> Path:
        """The environment's interpreter, as its own path (links not followed)."""
        return self.path / "bin" / "python"

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path), "python": self.python_version,
            "distributions": [found.as_dict() for _, found in sorted(self.distributions.items())],
            "duplicates": [found.as_dict() for found in self.duplicates], "problems": list(self.problems),
        }


def read(env: Path | str) -> EnvironmentPackages:
    """Every distribution of the environment at `env`. Raises BadInput if that is no Python environment."""
    root = Path(env)
    settings = pyvenv(root)
    libraries = site_packages(root, settings)
    distributions: dict[str, Distribution] = {}
    duplicates: list[Distribution] = []
    problems: list[str] = []
    for library in libraries:
        for location in _metadata_folders(library, problems):
            found = _read_one(location, problems)
            if found is None:
                continue
            if found.name in distributions:
                duplicates.append(found)
                problems.append(f"`{found.name}` is there twice: {distributions[found.name].version} and {found.version}")
            else:
                distributions[found.name] = found
    version = settings.get("version_info") or settings.get("version") or libraries[0].parent.name.removeprefix("python")
    return EnvironmentPackages(root, version, libraries, distributions, duplicates, problems)


def pyvenv(root: Path) -> dict[str, str]:
    """The keys of `pyvenv.cfg`; empty where there is none (a conda environment, say)."""
    try:
        text = (root / "pyvenv.cfg").read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"`{root / 'pyvenv.cfg'}` cannot be read", why=str(error)) from error
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def site_packages(root: Path, settings: dict[str, str] | None = None) -> list[Path]:
    """The folders that the environment's interpreter imports from: one, or two where `lib64` is a folder of its own.

    An environment whose interpreter was upgraded keeps the older `lib/python3.X`; `pyvenv.cfg` says which one counts.
    """
    if not root.is_dir():
        raise BadInput(f"`{root}` is no Python environment", why="It is a file" if root.exists() else "There is no such folder",
                       hint="Give the folder that holds bin/python, such as /opt/vllm-env")
    settings = pyvenv(root) if settings is None else settings
    version = settings.get("version_info") or settings.get("version") or ""
    wanted = "python" + ".".join(version.split(".")[:2]) if version else None
    found: list[Path] = []
    seen: set[Path] = set()
    for library in ("lib", "lib64"):
        folders = sorted((root / library).glob("python3*"), reverse=True) if (root / library).is_dir() else []
        folders = [folder for folder in folders if _LIBRARY.match(folder.name) and (folder / "site-packages").is_dir()]
        chosen = [folder for folder in folders if wanted and folder.name.removesuffix("t") == wanted] or folders[:1]
        for folder in chosen[:1]:
            packages = folder / "site-packages"
            if packages.resolve() not in seen:
                seen.add(packages.resolve())
                found.append(packages)
    if not found or not (settings or (root / "bin" / "python").exists()):
        raise BadInput(f"`{root}` is no Python environment", why="It has no pyvenv.cfg or bin/python with lib/python3.*/site-packages beside it",
                       hint="Give the folder that holds bin/python, such as /opt/vllm-env")
    return found


def _metadata_folders(library: Path, problems: list[str]) -> Iterator[Path]:
    try:
        folders = sorted(library.iterdir())
    except OSError as error:
        raise BadInput(f"`{library}` cannot be read", why=str(error)) from error
    for folder in folders:
        if folder.suffix not in (".dist-info", ".egg-info") or not folder.is_dir():
            continue
        if folder.name.startswith("~"):  # pip renames so while it uninstalls; it stays when pip is killed
            problems.append(f"`{folder}` is left over from an uninstall that did not end")
            continue
        yield folder


def _read_one(location: Path, problems: list[str]) -> Distribution | None:
    stem, version_in_name = _name_and_version(location)
    headers_file = location / ("METADATA" if location.suffix == ".dist-info" else "PKG-INFO")
    try:
        with headers_file.open(encoding="utf-8", errors="replace") as file:
            headers = HeaderParser().parsestr(file.read(METADATA_LIMIT))
        name, version = str(headers.get("Name") or stem), str(headers.get("Version") or version_in_name)
        requires = [str(value) for value in headers.get_all("Requires-Dist") or []]
    except OSError as error:
        problems.append(f"`{headers_file}` cannot be read: {error.strerror or error}")
        name, version, requires = stem, version_in_name, []
    try:
        Version(version)
    except InvalidVersion:
        if not version:
            problems.append(f"`{location}` tells no version")
            return None
        problems.append(f"`{name}` has a version that is none: `{version[:80]}`")
    return Distribution(
        name=canonicalize_name(name), version=version, location=location, installer=_line(location / "INSTALLER"), requires=requires,
        direct_url=_direct_url(location / "direct_url.json", problems), requested=(location / "REQUESTED").exists(),
    )


def _name_and_version(location: Path) -> tuple[str, str]:
    stem = location.name.rsplit(".", 1)[0]
    name, _, version = stem.partition("-")
    return name, version.split("-")[0]


def _line(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(200).strip() or None
    except OSError:  # an optional file: not recorded
        return None


def _direct_url(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_bytes()[:65536])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"`{path}` cannot be read: {error}")
        return None
    if not isinstance(raw, dict):
        return None
    if isinstance(raw.get("url"), str):
        raw["url"] = re.sub(r"//[^/@]*@", "//", raw["url"])  # no password in what we show
    return raw
