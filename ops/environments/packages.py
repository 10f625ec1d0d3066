"""What is installed in an environment, read from its metadata on disk.

Nothing of the environment is imported or run in our process: names, versions and requirements come from `*.dist-info`, the
interpreter's version from `pyvenv.cfg`. So a broken, foreign or hostile environment can be read like any other.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.jobs import redact
from ops.jobs.errors import BadInput

METADATA_LIMIT = 4 * 1024 * 1024  # bytes; the headers of the largest METADATA seen are under 50 kB, the rest is a README
SMALL = 65536  # bytes; of INSTALLER, direct_url.json, pyvenv.cfg
RECORD_LIMIT = 64 * 1024 * 1024  # bytes; torch's RECORD has 1.5 MB
NOT_RECORDED = "not recorded"
TEXT_LIMIT = 200  # characters of a name, a version, an installer
REQUIREMENT_LIMIT, REQUIREMENTS_LIMIT = 2000, 5000  # characters of one, and how many of a package; with all its extras one has some 500
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z", re.ASCII)
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
    requires_python: str | None = None  # a specifier such as ">=3.10,<3.14"

    @property
    def record(self) -> Path:
        """The list of its files; may not exist."""
        return self.location / "RECORD"

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its files as its RECORD tells them (read at each call); None where it has none, or tells no size."""
        try:
            lines = csv.reader(io.StringIO(content(self.record, RECORD_LIMIT).decode(errors="replace"), newline=""))
            sizes = [int(line[2]) for line in lines if len(line) > 2 and line[2].isdecimal() and len(line[2]) < 16]
        except (OSError, csv.Error):
            return None
        return sum(sizes) if sizes else None

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
    settings: dict[str, str] = field(default_factory=dict)  # of pyvenv.cfg; empty where there is none (conda, a Python's own folder)

    @property
    def is_venv(self) -> bool:
        """Whether it is a virtual environment: in another one `bin/` has programs of all kinds."""
        return bool(self.settings)

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
    if gone := _interpreter_gone(root):
        problems.append(gone)
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
    told = re.match(r"\d+(\.\d+)+([a-z]+\d+)?", settings.get("version_info") or settings.get("version") or "")  # virtualenv: 3.11.7.final.0
    version = told[0] if told else libraries[0].parent.name.removeprefix("python")
    return EnvironmentPackages(root, version, libraries, distributions, duplicates, problems, settings)


def versions_in(library: Path) -> dict[str, str]:
    """Name to version of the distributions in a folder outside of any environment; empty where it cannot be read."""
    found: dict[str, str] = {}
    try:
        for location in _metadata_folders(library, []):
            if (one := _read_one(location, [])) is not None:
                found.setdefault(one.name, one.version)
    except BadInput:
        return {}
    return found


def describe(installed: EnvironmentPackages, manifest: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Each distribution by name as pages and the announcement show it: name, version, installer, requested, size_bytes, source."""
    return [{"name": name, "version": found.version, "installer": found.installer, "requested": found.requested, "size_bytes": found.size_bytes,
             "source": source(found, manifest)} for name, found in sorted(installed.distributions.items())]


def sizes(env: EnvironmentPackages | Path | str) -> dict[str, int]:
    """Bytes of each distribution's files, by name, as its RECORD tells them; a name is missing where it tells none.

    Reads every RECORD: 0.1 s for 45,000 files.
    """
    installed = env if isinstance(env, EnvironmentPackages) else read(env)
    told = ((name, found.size_bytes) for name, found in sorted(installed.distributions.items()))
    return {name: size for name, size in told if size is not None}


def source(distribution: Distribution, manifest: Mapping[str, Any] | None = None) -> str:
    """Where it came from, in words: "wheelhouse /x", "index URL", "git+URL@commit", "editable /x", a file; else "not recorded".

    `manifest`: the release's own (`roundhouse-release.json`). What was installed by hand since has another version, or a
    `direct_url.json`, and that counts then.
    """
    if distribution.direct_url is not None and (told := _told_by_url(distribution.direct_url)):
        return told
    listed = (manifest or {}).get("packages")
    channel = (manifest or {}).get("channel")
    if not isinstance(listed, list) or not isinstance(channel, Mapping):
        return NOT_RECORDED
    for package in listed:
        if isinstance(package, Mapping) and package.get("name") == distribution.name and package.get("version") == distribution.version:
            return _told_by_channel(package, channel)
    return NOT_RECORDED


def _told_by_channel(package: Mapping[str, Any], channel: Mapping[str, Any]) -> str:
    if not package.get("file"):  # nobody installed it from that channel: it was there before
        return NOT_RECORDED
    if channel.get("wheelhouse"):
        return f"wheelhouse {channel['wheelhouse']}"
    indexes = [str(url) for url in [*(channel.get("extra_index_urls") or []), channel.get("index_url")] if url]
    if len(indexes) == 1:
        return f"index {_without_password(indexes[0])}"
    return f"channel {channel.get('name')}" if channel.get("name") else NOT_RECORDED


def _told_by_url(direct: Mapping[str, Any]) -> str | None:
    """PEP 610 in words; None if it says nothing."""
    url = direct.get("url")
    if not isinstance(url, str) or not url:
        return None
    path = url.removeprefix("file://") if url.startswith("file:///") else url
    vcs, folder = direct.get("vcs_info"), direct.get("dir_info")
    if isinstance(vcs, Mapping):
        commit = vcs.get("commit_id")
        return f"{vcs.get('vcs') or 'vcs'}+{url}" + (f"@{commit}" if isinstance(commit, str) and commit else "")
    if isinstance(folder, Mapping):
        return f"editable {path}" if folder.get("editable") is True else f"folder {path}"
    return path


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def content(path: Path | str, limit: int) -> bytes:
    """At most `limit` bytes of a regular file (links are followed). Raises OSError, also for what is no regular file; never waits on a FIFO."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:  # noqa: PTH123  # closes the descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file.read(limit)


def pyvenv(root: Path) -> dict[str, str]:
    """The keys of `pyvenv.cfg`; empty where there is none (a conda environment, say)."""
    try:
        text = content(root / "pyvenv.cfg", SMALL).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise BadInput(f"`{root / 'pyvenv.cfg'}` cannot be read", why=str(error)) from error
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def site_packages(root: Path, settings: dict[str, str] | None = None) -> list[Path]:
    """The folders that the environment's interpreter imports from: one, or two where `lib64` is a folder of its own.

    An environment whose interpreter was upgraded keeps the older `lib/python3.X`; `pyvenv.cfg` says which one counts.
    """
    _look_at(root)
    settings = pyvenv(root) if settings is None else settings
    version = settings.get("version_info") or settings.get("version") or ""
    wanted = "python" + ".".join(version.split(".")[:2]) if version else None
    found: list[Path] = []
    seen: set[str] = set()
    for library in ("lib", "lib64"):
        folders = sorted((root / library).glob("python3*"), reverse=True) if os.path.isdir(root / library) else []  # noqa: PTH112
        folders = [folder for folder in folders if _LIBRARY.match(folder.name) and os.path.isdir(folder / "site-packages")]  # noqa: PTH112
        chosen = [folder for folder in folders if wanted and folder.name.removesuffix("t") == wanted] or folders[:1]
        for folder in chosen[:1]:
            packages = folder / "site-packages"
            real = os.path.realpath(packages)
            if real not in seen:
                seen.add(real)
                found.append(packages)
    if not found or not (settings or os.path.lexists(root / "bin" / "python")):
        raise BadInput(f"`{root}` is no Python environment", why="It has no pyvenv.cfg or bin/python with lib/python3.*/site-packages beside it",
                       hint=_HINT)
    return found


_HINT = "Give the folder that holds bin/python, such as /opt/vllm-env"


def _look_at(root: Path) -> None:
    """Raises BadInput if there is no folder, or none that we may look into."""
    try:
        with os.scandir(root):
            return
    except (FileNotFoundError, ValueError) as error:
        raise BadInput(f"`{root}` is no Python environment", why="There is no such folder", hint=_HINT) from error
    except NotADirectoryError as error:
        raise BadInput(f"`{root}` is no Python environment", why="It is a file", hint=_HINT) from error
    except OSError as error:
        raise BadInput(f"`{root}` cannot be read", why=error.strerror or str(error)) from error


def _interpreter_gone(root: Path) -> str | None:
    """One sentence where `bin/python` cannot run any more: the Python that it links to was removed."""
    python = root / "bin" / "python"
    if not os.path.lexists(python) or os.access(python, os.X_OK):
        return None
    if os.path.exists(python):  # noqa: PTH110
        return f"The environment's Python no longer runs: `{python}` may not be executed"
    return f"The environment's Python no longer runs: `{python}` points at `{os.path.realpath(python)}`, which is gone"


def _metadata_folders(library: Path, problems: list[str]) -> Iterator[Path]:
    try:
        folders = sorted(library.iterdir())
    except OSError as error:
        raise BadInput(f"`{library}` cannot be read", why=str(error)) from error
    for folder in folders:
        if folder.suffix not in (".dist-info", ".egg-info") or not os.path.isdir(folder):  # noqa: PTH112
            continue
        if folder.name.startswith("~"):  # pip renames so while it uninstalls; it stays when pip is killed
            problems.append(f"`{folder}` is left over from an uninstall that did not end")
            continue
        yield folder


def _read_one(location: Path, problems: list[str]) -> Distribution | None:
    said: list[str] = []
    try:
        return _read_metadata(location, said)
    finally:
        problems += [_text(problem, 1000) for problem in said]


def _text(text: str, most: int = TEXT_LIMIT) -> str:
    """What a package says of itself, as every page, terminal and database can hold it: no control or direction characters, no half ones, not long."""
    return redact.plain_text(text[:most].encode(errors="surrogateescape").decode(errors="replace") if not text.isascii() else text[:most])


def _read_metadata(location: Path, problems: list[str]) -> Distribution | None:
    stem, version_in_name = map(_text, _name_and_version(location))
    headers_file = location / ("METADATA" if location.suffix == ".dist-info" else "PKG-INFO")
    try:
        headers = HeaderParser().parsestr(content(headers_file, METADATA_LIMIT).decode(errors="replace").partition("\n\n")[0])
        name, version = str(headers.get("Name") or stem), _text(str(headers.get("Version") or version_in_name))
        requires = [_text(str(value), REQUIREMENT_LIMIT) for value in headers.get_all("Requires-Dist") or []][:REQUIREMENTS_LIMIT]
        requires_python = _text(str(headers["Requires-Python"])) if "Requires-Python" in headers else None
        if len(name) > TEXT_LIMIT or not _NAME.match(name):
            problems.append(f"`{headers_file}` gives a name that is none: `{name[:80]}`")
            name = stem
    except OSError as error:
        problems.append(f"`{headers_file}` cannot be read: {error.strerror or error}")
        name, version, requires, requires_python = stem, version_in_name, [], None
    try:
        Version(version)
    except InvalidVersion:
        if not version:
            problems.append(f"`{location}` tells no version")
            return None
        problems.append(f"`{name}` has a version that is none: `{version[:80]}`")
    return Distribution(
        name=canonicalize_name(name), version=version, location=location, installer=_line(location / "INSTALLER"), requires=requires,
        direct_url=_direct_url(location / "direct_url.json", problems), requested=os.path.exists(location / "REQUESTED"),  # noqa: PTH110
        requires_python=requires_python,
    )


def _name_and_version(location: Path) -> tuple[str, str]:
    stem = location.name.rsplit(".", 1)[0]
    name, _, version = stem.partition("-")
    return name, version.split("-")[0]


def _line(path: Path) -> str | None:
    try:
        return _text(content(path, TEXT_LIMIT).decode(errors="replace")).strip() or None
    except OSError:  # an optional file: not recorded
        return None


def _direct_url(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        raw = json.loads(content(path, SMALL))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"`{path}` cannot be read: {error}")
        return None
    if not isinstance(raw, dict):
        return None
    if isinstance(raw.get("url"), str):
        raw["url"] = _text(_without_password(raw["url"]), 4096)  # it is shown
    return raw
