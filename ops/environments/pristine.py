"""Where the unedited form of an installed file can be had: from its wheel, from another release, from what uv keeps unpacked.

Whatever the place, a file counts as pristine only if it is the one that RECORD names (a cache can hold the very edit in question: uv hard-links),
or if it comes out of a wheel with the hash that the release was built from.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from ops.environments import packages, releases, text_diff, wheelhouse
from ops.environments.integrity import FileFinding

LIMIT = text_diff.COMPARED_BYTES  # a larger file is not compared
HASHES = ("sha256", "sha384", "sha512")  # that a RECORD may name
ARCHIVES = 20_000  # unpacked wheels of a cache that are looked through

# Brings the wheels of these packages (name, version, sha256 or None) within reach: into uv's cache or the wheelhouse. Raises OpsError.
Fetch = Callable[[list[tuple[str, str, str | None]]], None]


class Pristine:
    """Looks for pristine files of one environment.

    `wheels`: a wheelhouse; by default that of the channel which the release was built from. `caches`: folders of uv. `others`: environments that may
    hold the same file. `fetch` is called at most once, if files are not to be had otherwise.
    """

    def __init__(self, environment: Path, *, wheels: Path | None = None, caches: Sequence[Path] = (), others: Sequence[Path] = (),
                 fetch: Fetch | None = None) -> None:
        manifest = releases.manifest(environment) or {}
        channel = manifest.get("channel") or {}
        installed = packages.read(environment)
        self.environment = environment
        self.library = installed.site_packages[0].relative_to(environment)
        self.versions = installed.versions()
        self.folder = wheels or (Path(channel["wheelhouse"]) if channel.get("wheelhouse") else None)
        self.built = {package["name"]: package for package in manifest.get("packages", [])}
        self.caches, self.others, self.fetch = caches, others, fetch
        self.metadata = {name: found.location.name for name, found in installed.distributions.items()}
        self.wheels: dict[str, Path | None] = {}
        self.unpacked: dict[str, list[Path]] | None = None

    def bring(self, findings: Sequence[FileFinding]) -> None:
        """Fetches the wheels of those changed files that are not within reach, if the caller allowed it. Raises OpsError as `fetch` does."""
        if self.fetch is None:
            return
        wanted = sorted({finding.package for finding in findings if finding.change == "changed" and finding.package and self.find(finding) is None})
        if not wanted:
            return
        self.fetch([(name, self.versions.get(name, ""), self.built.get(name, {}).get("sha256")) for name in wanted])
        self.wheels, self.unpacked = {}, None

    def find(self, finding: FileFinding) -> tuple[bytes, str] | None:
        """Content of a changed file as it was installed, and in words where that was found; None where it is not to be had. Raises OpsError for a
        wheel that cannot be read."""
        if finding.change != "changed" or not finding.package:
            return None
        inside = os.path.relpath(finding.path, self.library) if finding.path.startswith(f"{self.library}/") else None
        if inside and self.folder is not None and (wheel := self._wheel(finding.package, self.folder)) is not None:
            content = wheelhouse.pristine(wheel, inside, limit=LIMIT)
            if content is not None and (self._is_of_manifest(finding.package, wheel) or _is_recorded(content, finding)):
                return content, f"the wheel `{wheel.name}`"
        for path, where in self._places(finding, inside):
            if (content := _read(path)) is not None and _is_recorded(content, finding):
                return content, where
        return None

    def _places(self, finding: FileFinding, inside: str | None) -> Iterator[tuple[Path, str]]:
        for other in self.others:
            yield other / finding.path, f"the release `{other.name}`"
        if inside is not None:
            for archive in self._archives().get(self.metadata.get(finding.package, ""), []):
                yield archive / inside, "uv's cache"

    def _archives(self) -> dict[str, list[Path]]:
        """Name of a metadata folder to the unpacked wheels of uv's caches that have it."""
        if self.unpacked is None:
            self.unpacked = {}
            names = set(self.metadata.values())
            for cache in self.caches:
                for archive in _unpacked(cache):
                    try:
                        found = names.intersection(entry.name for entry in archive.iterdir())
                    except OSError:  # cleaned meanwhile, or not for us to read
                        continue
                    for name in found:
                        self.unpacked.setdefault(name, []).append(archive)
        return self.unpacked

    def _wheel(self, package: str, folder: Path) -> Path | None:
        if package not in self.wheels:
            self.wheels[package] = self._find_wheel(package, folder)
        return self.wheels[package]

    def _find_wheel(self, package: str, folder: Path) -> Path | None:
        known = self.built.get(package, {})
        if known.get("file"):
            wheel = folder / Path(known["file"]).name
            return wheel if wheel.is_file() and wheelhouse.sha256(wheel) == known.get("sha256") else None
        # no manifest: the wheel of that version, if there is exactly one
        version = self.versions.get(package, "")
        found = sorted(wheel for wheel in folder.glob("*.whl") if wheel.name.split("-")[1:2] == [version]
                       and canonicalize_name(wheel.name.partition("-")[0]) == package)
        return found[0] if len(found) == 1 else None

    def _is_of_manifest(self, package: str, wheel: Path) -> bool:
        return self.built.get(package, {}).get("file") == wheel.name


def _unpacked(cache: Path) -> Iterator[Path]:
    """Unpacked wheels of a cache of uv (`archive-v0/<id>/`)."""
    count = 0
    for folder in sorted(cache.glob("archive-v*")):
        try:
            entries: list[os.DirEntry[str]] = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > ARCHIVES:
                return
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _read(path: Path) -> bytes | None:
    """A regular file's content, if it is there and not too large to be compared."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # one of several places: it is not here
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LIMIT:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LIMIT + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_recorded(content: bytes, finding: FileFinding) -> bool:
    """Whether the content is what RECORD says of the file."""
    algorithm, _, expected = (finding.expected or "").partition("=")
    if algorithm not in HASHES or not expected:
        return False
    digest = hashlib.new(algorithm, content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected.rstrip("=")


def caches_of(cache: Path | None) -> list[Path]:
    """Folders of uv that may hold unpacked wheels: the node's own, and that of the user we run as (an adopted environment came from there)."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path(os.environ.get("HOME") or "/nonexistent", ".cache"))
    found = [*([cache] if cache else []), Path(home, "uv")]
    return [folder for folder in dict.fromkeys(found) if folder.is_absolute()]


def environments_beside(environment: Path) -> list[Path]:
    """Other releases beside that one, the newest first."""
    try:
        folders = sorted(environment.parent.iterdir(), key=lambda folder: folder.name, reverse=True)
    except OSError:
        return []
    real = os.path.realpath(environment)
    return [folder for folder in folders
            if not folder.name.startswith(".") and (folder / "pyvenv.cfg").is_file() and os.path.realpath(folder) != real]


