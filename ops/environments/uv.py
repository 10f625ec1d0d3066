"""The one place that runs uv.

uv never sees our configuration or a person's: `--no-config`, a clean environment (PATH, HOME, certificates and proxies only), no
builds (`--no-build`: a source distribution runs code, even in a dry run), and requirements that were parsed and written anew here.
Files are copied out of uv's cache, not hard-linked: an edit in an environment then cannot reach the cache, other environments or
the next reinstall.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uv as uv_package
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.jobs import commands
from ops.jobs.errors import BadInput, CommandFailed, OpsError
from ops.jobs.pipeline import Context
from ops.records import Channel

INDEX_STRATEGIES = ("first-index", "unsafe-first-match")  # never best-match: it takes a final release of another CUDA before a nightly
TEXT_LIMIT = 200  # characters of a requirement
ENVIRONMENT = {"NO_COLOR": "1"}  # beside what ops/jobs/commands.py lets through, which is nothing of UV_* or PIP_*
COMPILE_S = 300
VENV_S = 120
INSTALL_S = 3600


class NoSolution(BadInput):
    """The channel has no set of versions that fits; `why` says what conflicts with what."""

    kind = "no_solution"


@dataclass(frozen=True, slots=True)
class LockedWheel:
    """One wheel file as the resolver saw it. `size_bytes` is None where the index does not tell."""

    file: str
    url: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a resolution: every wheel of it that the interpreter can use."""

    name: str
    version: str
    wheels: list[LockedWheel]


def requirement(text: str) -> str:
    """The requirement, parsed and written anew. Raises BadInput for anything but a name, extras and version specifiers."""
    try:
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise BadInput(f"`{text[:60]}` is no requirement", why="It is too long, or has characters that do not print")
        parsed = Requirement(text)
    except InvalidRequirement as error:
        raise BadInput(f"`{text[:60]}` is no requirement", why=str(error).splitlines()[0], hint="Write it like vllm==0.16.0") from error
    if parsed.url or parsed.marker:
        raise BadInput(f"`{text[:60]}` may not name an address or a marker", why="Wheels come from the channel only")
    return str(parsed)


def version(text: str) -> str:
    """The version in its normal form. Raises BadInput if it is none."""
    try:
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise InvalidVersion(text)
        return str(Version(text))
    except InvalidVersion as error:
        raise BadInput(f"`{text[:60]}` is no version", hint="Write it like 0.16.0 or 0.16.0rc2.dev344") from error


def index_url(text: str) -> str:
    """An index address. Raises BadInput unless it is http(s) without credentials (they would stand in everybody's `ps`)."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or any(character.isspace() for character in text):
        raise BadInput(f"`{text[:80]}` is no index address", hint="An index address starts with https://")
    if parts.username is not None or parts.password is not None:
        raise BadInput("An index address may not hold a user name or password", hint="Put them into the agent user's ~/.netrc")
    return text


def source(channel: Channel, *, strategy: str = "first-index") -> list[str]:
    """uv's options for where wheels come from: offline from the wheelhouse, or the channel's indexes in their order."""
    if channel.kind == "wheelhouse":
        folder = Path(channel.wheelhouse)
        if not folder.is_absolute() or not folder.is_dir():
            raise BadInput(f"The wheelhouse `{channel.wheelhouse}` of channel `{channel.name}` does not exist")
        if "," in str(folder):
            raise BadInput(f"The wheelhouse `{folder}` has a comma in its path", why="uv takes it for two places", hint="Move it to another path")
        return ["--offline", "--no-index", "--find-links", str(folder)]
    if strategy not in INDEX_STRATEGIES:
        raise BadInput(f"Unknown index strategy `{strategy[:40]}`", hint=f"Use one of {', '.join(INDEX_STRATEGIES)}")
    options = ["--default-index", index_url(channel.index_url)]  # always: without one uv asks its own default
    for extra in channel.extra_index_urls:  # asked before the default one, in this order
        options += ["--index", index_url(extra)]
    return [*options, "--index-strategy", strategy]


@dataclass(frozen=True, kw_only=True)
class Uv:
    """uv with a cache folder of ours. With `context`, lines go to the step's log and a cancelled job ends the program."""

    cache: Path
    context: Context | None = None
    log: Callable[[str], None] | None = None
    on_line: Callable[[str], None] | None = field(default=None, compare=False)

    def lock(self, requirements: Sequence[str], channel: Channel, *, python: str, no_deps: bool = False,
             strategy: str = "first-index") -> list[LockedPackage]:
        """What the channel gives for `requirements` on that interpreter. Raises NoSolution, or OpsError where an index does not answer."""
        text = self._compile(requirements, channel, python, strategy, ["--format", "pylock.toml", *(["--no-deps"] if no_deps else [])])
        return read_pylock(text)

    def parents(self, requirements: Sequence[str], channel: Channel, *, python: str, strategy: str = "first-index") -> dict[str, list[str]]:
        """For each package of the resolution the packages that need it; empty for those that were asked for."""
        text = self._compile(requirements, channel, python, strategy, ["--annotation-style", "split"])
        return read_annotations(text)

    def venv(self, path: Path, *, python: str) -> None:
        """Makes an environment at `path`, which may hold files already (our marker)."""
        self._run(["venv", "--no-project", "--allow-existing", "--no-python-downloads", "--python", python, "--", str(path)], VENV_S)

    def install(self, env: Path, lock: Path, channel: Channel, *, strategy: str = "first-index") -> None:
        """Installs exactly the lock file's wheels into `env`; each must have the hash that the lock names."""
        self._run(["pip", "install", "--python", str(env / "bin" / "python"), "--no-build", "--no-deps", "--require-hashes", "--link-mode", "copy",
                   "--no-python-downloads", *source(channel, strategy=strategy), "--requirement", str(lock)], INSTALL_S)

    def _compile(self, requirements: Sequence[str], channel: Channel, python: str, strategy: str, options: list[str]) -> str:
        with tempfile.TemporaryDirectory(prefix="roundhouse-plan-") as folder:
            asked, given = Path(folder, "asked.txt"), Path(folder, "pylock.toml" if "--format" in options else "given.txt")
            asked.write_text("".join(f"{requirement(text)}\n" for text in requirements))
            self._run(["pip", "compile", "--no-build", "--no-header", "--no-python-downloads", "--python", python,
                       "--prerelease", "allow" if channel.prerelease else "if-necessary",
                       *source(channel, strategy=strategy), *options, "--output-file", str(given), "--", str(asked)], COMPILE_S, channel=channel.name)
            try:
                return given.read_text()
            except OSError as error:
                raise OpsError("uv left no resolution behind", why=str(error)) from error

    def _run(self, arguments: list[str], timeout_s: float, *, channel: str = "") -> None:
        argv = [uv_package.find_uv_bin(), "--no-config", "--no-progress", "--color", "never", "--cache-dir", str(self.cache), *arguments]
        if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
            argv.insert(1, "--system-certs")
        self.cache.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []

        def take(line: str) -> None:
            if not line.strip():
                return
            lines.append(line.rstrip())
            del lines[:-200]
            if self.on_line:
                self.on_line(line.rstrip())
            if self.context:
                self.context.log(line.rstrip())
            elif self.log:
                self.log(line.rstrip())

        try:
            commands.run(argv, context=self.context, on_line=take, env=ENVIRONMENT, timeout_s=timeout_s)
        except CommandFailed as error:
            raise explain(lines, error, channel=channel) from error


def explain(lines: Sequence[str], error: CommandFailed, *, channel: str = "") -> OpsError:
    """uv's own error, told in our three parts. `lines` are what it printed."""
    start = next((index for index, line in enumerate(lines) if line.startswith("error:")), None)
    if start is None:
        killed = error.facts.get("code") == -signal.SIGKILL
        return CommandFailed(
            "uv was killed" if killed else error.what, why="\n".join(lines[-5:]) or error.why,
            hint="Look at the kernel's log: it kills programs when memory runs out" if killed else "The step's log has all that it printed",
            **error.facts)
    title = lines[start].removeprefix("error:").strip()
    causes = [re.sub(r"^\s*(cause:|hint:)?\s*", "", line).strip() for line in lines[start + 1:]]
    why = " ".join(cause for cause in causes if cause)
    told = f"channel `{channel}`" if channel else "channel"
    if "No solution found" in title:
        return NoSolution(_conflict(why, told), why=why, hint="Choose another version or another channel; nothing has been changed")
    if "Failed to fetch" in why or "Request failed" in title or "client error" in why:
        return OpsError(f"An index of the {told} does not answer", why=f"{title}. {why}", kind="index_unreachable",
                        hint="One index that does not answer fails the whole plan: try again, or ask an admin to look at the channel")
    if "No space left" in why or "No space left" in title:
        return OpsError("The disk is full", why=f"{title}. {why}", kind="disk_full", hint="Free some room, then run the job again")
    return CommandFailed(f"uv failed: {title}", why=why, **error.facts)


def _conflict(why: str, channel: str) -> str:
    """One sentence that names the packages; uv's full reasoning goes beside it."""
    if missing := re.search(r"there (?:is|are) no versions? of (\S+?)(==|>=|<=|~=|<|>|!=)(\S+?),? (?:and|we|which)", why):
        name, relation, wanted = missing.groups()
        return f"The {channel} has no `{name}` {wanted}" if relation == "==" else f"The {channel} has no `{name}{relation}{wanted}`"
    if unknown := re.search(r"(\S+) was not found in (?:the package registry|the provided package locations|the cache)", why):
        return f"The {channel} has no package `{unknown.group(1)}`"
    spec_at_end = r"((?:==|>=|<=|~=|!=|<|>)\S+?)(?=[,.]?(?:\s|$))"  # the sentence's own comma or full stop does not belong to it
    depends = re.findall(rf"(\S+) depends on ([\w.-]+?){spec_at_end}", why)
    asked = re.findall(rf"you require ([\w.-]+?){spec_at_end}", why)
    for parent, name, spec in depends:
        for other_name, other in asked:
            if canonicalize_name(other_name) == canonicalize_name(name) and other != spec:
                return f"`{parent}` needs `{name}{spec}`, but `{name}{other}` is asked for"
    for index, (parent, name, spec) in enumerate(depends):
        for other_parent, other_name, other in depends[index + 1:]:
            if canonicalize_name(name) == canonicalize_name(other_name) and spec != other:
                return f"`{parent}` needs `{name}{spec}`, but `{other_parent}` needs `{other_name}{other}`"
    return f"The {channel} has no set of versions that fits together"


def read_pylock(text: str) -> list[LockedPackage]:
    """The packages of a pylock.toml (PEP 751). Raises OpsError for a package without a wheel."""
    try:
        raw = tomllib.loads(text)
        found = [_locked(package) for package in raw.get("packages", [])]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise OpsError("uv's resolution cannot be read", why=repr(error)) from error
    for package in found:
        if not package.wheels:
            raise BadInput(f"The channel has `{package.name}` {package.version} only as source", why="Building it would run its code",
                           hint="Put a wheel of it into the channel")
    return sorted(found, key=lambda package: package.name)


def _locked(raw: dict[str, Any]) -> LockedPackage:
    wheels = []
    for wheel in raw.get("wheels", []):
        address = str(wheel.get("url") or wheel.get("path") or "")
        parts = urlsplit(address)
        path = unquote(parts.path) if parts.scheme else address
        file = Path(path)
        size = wheel.get("size")
        if size is None and parts.scheme == "file" and file.is_file():
            size = file.stat().st_size
        wheels.append(LockedWheel(file.name, address, str(wheel.get("hashes", {}).get("sha256", "")), size))
    return LockedPackage(canonicalize_name(raw["name"]), str(raw.get("version", "")), wheels)


def read_annotations(text: str) -> dict[str, list[str]]:
    """Package name to its parents, from a requirements file with `# via` comments."""
    parents: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            name = re.split(r"[=<>!~ \[;]", line, maxsplit=1)[0]
            current = parents.setdefault(canonicalize_name(name), [])
            continue
        told = line.strip().removeprefix("#").strip().removeprefix("via").strip()
        if told and not told.startswith("-r "):
            current += [canonicalize_name(part.strip()) for part in told.split(",")]
    return parents
