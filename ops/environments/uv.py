"""The one place that runs uv.

uv never sees our configuration or a person's: `--no-config`, a clean environment (PATH, HOME, certificates and proxies only), no
builds (`--no-build`: a source distribution runs code, even in a dry run), and requirements that were parsed and written anew here.
Files are copied out of uv's cache, not hard-linked: an edit in an environment then cannot reach the cache, other environments or
the next reinstall.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import uv as uv_package
from packaging.utils import canonicalize_name

from ops.environments import channels
from ops.environments.channels import index_url, requirement, version
from ops.jobs import commands
from ops.jobs.errors import BadInput, CommandFailed, OpsError
from ops.jobs.pipeline import Context
from ops.records import PUBLIC_INDEX, Channel

# Beside what ops/jobs/commands.py lets through, which is nothing of UV_* or PIP_*. An index that says nothing for so many seconds has not answered;
# with the retries that is a minute or two, not the five that a plan may take in all.
ENVIRONMENT = {"NO_COLOR": "1", "UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "2"}
COMPILE_S = 900  # an index that tells no hashes (vLLM's nightly one) has its wheel fetched for the plan: some 300 MB
VENV_S = 120
INSTALL_S = 3600
CLEAN_S = 600
KEPT_LINES = 20  # of uv's own output, in an error that we cannot explain
CONFLICTS_TOLD = 8
_FETCHING = "fetch-"  # folders in the cache while wheels are fetched
_CACHE_HINT = "It must be a folder that the agent's user may write to; whatever is in it may be removed"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_DAMAGED = ("has an invalid package format", "Failed to deserialize cache entry", "Missing .dist-info directory")
_LONG_STEM = 60  # characters of "<version>-<tags>" from about which on uv's cache has a digest in the place of the tags

__all__ = ["INSTALL_S", "LockedPackage", "LockedWheel", "NoSolution", "Origin", "Uv", "explain", "index_url", "read_annotations", "read_pylock",
           "requirement", "source", "version"]


class NoSolution(BadInput):
    """The channel has no set of versions that fits; `why` says what conflicts with what, `facts["conflicts"]` the same, one sentence each."""

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

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Why a package is in a resolution (`parents` need it; none: it was asked for), and the index or folder that it comes from."""

    parents: list[str]
    index: str | None


def source(channel: Channel) -> list[str]:
    """uv's options for where wheels come from: offline from the wheelhouse, or the channel's indexes in their order. Raises BadInput for a channel
    with a value that may not reach uv."""
    channels.check(channel)
    if channel.wheelhouse:
        if not Path(channel.wheelhouse).is_dir():
            raise BadInput(f"The wheelhouse `{channel.wheelhouse}` of channel `{channel.name}` does not exist")
        return ["--offline", "--no-index", "--find-links", channel.wheelhouse]
    # An index of our own is always named: without one uv asks the public index, which node.toml then has to allow by that word.
    options = [] if channel.index_url == PUBLIC_INDEX else ["--default-index", channel.index_url]
    for extra in channel.extra_index_urls:  # asked before the default one, in this order
        options += ["--index", extra]
    options += ["--index-strategy", channel.index_strategy]
    for name, value in sorted(channel.arguments.items()):
        options += [f"--{name}", value]
    return options


@dataclass(frozen=True, kw_only=True)
class Uv:
    """uv with a cache folder of ours. With `context`, lines go to the step's log and a cancelled job ends the program."""

    cache: Path
    context: Context | None = None
    log: Callable[[str], None] | None = None
    on_line: Callable[[str], None] | None = field(default=None, compare=False)

    def lock(self, requirements: Sequence[str], channel: Channel, *, python: str, no_deps: bool = False,
             among: Iterable[LockedPackage] = ()) -> list[LockedPackage]:
        """What the channel gives for `requirements` on that interpreter. Raises NoSolution, or OpsError where an index does not answer.

        `among`: a resolution made just now that the answer must agree with; what it looked up is in the cache, so that the network is
        asked for news only where it does not agree.
        """
        options = ["--format", "pylock.toml", *(["--no-deps"] if no_deps else [])]
        pins = [package.pin for package in among]
        if pins and not channel.wheelhouse:
            try:
                return read_pylock(self._compile(requirements, channel, python, options, pins=pins, from_cache=True))
            except OpsError:  # something more is needed: another version, or a listing that is not in the cache
                pass
        return read_pylock(self._compile(requirements, channel, python, options))

    def origins(self, locked: Sequence[LockedPackage], requirements: Sequence[str], channel: Channel, *, python: str) -> dict[str, Origin]:
        """Why each package of a resolution made just now is in it, and where it comes from. Read from the cache (uv tells hashes and reasons in two
        forms, so it is asked twice); the network is asked again only if the cache does not have it."""
        options = ["--annotation-style", "split", "--emit-index-annotation"]
        pins = [package.pin for package in locked]
        if not channel.wheelhouse:
            try:
                return read_annotations(self._compile(requirements, channel, python, options, pins=pins, from_cache=True))
            except OpsError:  # an index that forbids to keep its answers
                pass
        return read_annotations(self._compile(requirements, channel, python, options, pins=pins))

    def find_python(self, version: str) -> str:
        """Path of an interpreter of that version ("3.12") on this machine: on the fixed PATH, or one that uv manages. Raises BadInput if there is
        none."""
        if not re.fullmatch(r"3\.\d{1,2}", version, re.ASCII):
            raise BadInput(f"`{version[:20]!r}` is no version of Python", hint="Write it like 3.12")
        try:
            said = self._run(["python", "find", "--no-project", "--system", "--no-python-downloads", "--", version], VENV_S, quiet=True)
        except OpsError as error:
            raise BadInput(f"This machine has no Python {version}", why=error.what,
                           hint=f"Install python{version}, then make the plan again") from error
        return os.path.realpath(said.strip().splitlines()[-1])

    def venv(self, path: Path, *, python: str) -> None:
        """Makes an environment at `path`, which may hold files already (our marker)."""
        self._run(["venv", "--no-project", "--allow-existing", "--no-python-downloads", "--python", python, "--", str(path)], VENV_S)

    def install(self, env: Path, lock: Path, channel: Channel, *, reinstall: bool = False, offline: bool = False) -> None:
        """Installs exactly the lock file's wheels into `env`; each must have the hash that the lock names. `reinstall`: also those that are there."""
        self._run(["pip", "install", "--python", str(env / "bin" / "python"), "--no-deps", *self._exactly(channel, reinstall, offline),
                   "--requirement", str(lock)], INSTALL_S, channel=channel.name)

    def sync(self, env: Path, lock: Path, channel: Channel, *, reinstall: bool = True, offline: bool = False) -> None:
        """Makes `env` hold exactly the lock file's packages: others are removed, all are installed anew from wheels with the hashes of the lock.

        `offline`: from uv's cache alone, after `fetch`: the service is down meanwhile, and no index can keep it down.
        """
        self._run(["pip", "sync", "--python", str(env / "bin" / "python"), *self._exactly(channel, reinstall, offline), "--", str(lock)], INSTALL_S,
                  channel=channel.name)

    def fetch(self, lock: Path, channel: Channel, python: str) -> None:
        """Brings the lock file's wheels into the cache, unpacked and checked, without installing them anywhere."""
        # uv fetches only to install. Links beside the cache take no room and go at once; the files in the cache stay.
        with self._folder_in_cache() as folder:
            self._run(["pip", "install", "--python", python, "--target", str(folder), "--no-deps",
                       *self._exactly(channel, False, False, link="hardlink"), "--requirement", str(lock)], INSTALL_S, channel=channel.name)

    @contextmanager
    def _folder_in_cache(self) -> Iterator[Path]:
        """A folder on the cache's file system that is gone afterwards. What a killed process left is taken away: its lock is free."""
        self._make_cache()
        try:
            for left in self.cache.glob(f"{_FETCHING}*"):
                with suppress(FileNotFoundError, BlockingIOError), _alone_in(left, wait=False):
                    shutil.rmtree(left, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=_FETCHING, dir=self.cache))
        except OSError as error:
            raise OpsError(f"uv's cache `{self.cache}` cannot be written", why=error.strerror or str(error), hint=_CACHE_HINT) from error
        with _alone_in(folder, wait=True):
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def clean_cache(self, names: Iterable[str]) -> None:
        """Drops everything that the cache knows of these packages, and nothing else: the next install unpacks their wheels anew."""
        wanted = sorted({channels.names([requirement(name)])[0] for name in names})
        if wanted:  # without a name uv would clean everything
            self._run(["cache", "clean", "--", *wanted], CLEAN_S)

    def prune(self) -> None:
        """Takes out of the cache what uv itself says nothing needs any more; waits for other uv processes that use it."""
        self._run(["cache", "prune"], CLEAN_S)

    def at_hand(self, name: str, file: str) -> Path | None:
        """Where the cache has that wheel unpacked; None: it would have to be fetched. uv's own layout, looked at without knowing more of it than
        that a wheel lies below its package's name, under its version and tags, or under a digest of the tags where they are long."""
        stem = file.removesuffix(".whl").split("-", 1)[-1]
        patterns = [stem, f"{stem.split('-')[0]}-{'[0-9a-f]' * 16}"] if len(stem) > _LONG_STEM else [stem]
        for below in ("*", "*/*"):  # the public index; another one
            for pattern in patterns:
                for folder in self.cache.glob(f"wheels-v*/{below}/{name}/{pattern}"):
                    if folder.is_dir():
                        return folder.resolve()
        return None

    @staticmethod
    def _exactly(channel: Channel, reinstall: bool, offline: bool, *, link: str = "copy") -> list[str]:
        there = source(channel)
        return ["--no-build", "--require-hashes", "--link-mode", link, "--no-python-downloads", *(["--reinstall"] if reinstall else []),
                *(["--offline"] if offline and "--offline" not in there else []), *there]

    def _compile(self, requirements: Sequence[str], channel: Channel, python: str, options: list[str], *, pins: Sequence[str] = (),
                 from_cache: bool = False) -> str:
        there = source(channel)
        if not from_cache:
            self._drop_damaged(self._damaged())
        with tempfile.TemporaryDirectory(prefix="roundhouse-plan-") as folder:
            asked, given = Path(folder, "asked.txt"), Path(folder, "pylock.toml" if "--format" in options else "given.txt")
            asked.write_text("".join(f"{requirement(text)}\n" for text in requirements))
            limits = [f"{one.name}=={one.version}" for one in channels.constraints(channel)]
            without = [f'{channels.left_out(name)}; sys_platform == "never"' for name in channel.without]
            named = {}
            for count, (option, texts) in enumerate((("--constraints", limits), ("--constraints", pins), ("--overrides", without))):
                if texts:
                    file = Path(folder, f"limits-{count}.txt")
                    file.write_text("".join(f"{text}\n" for text in texts))
                    named[str(file)] = option
            self._run(["pip", "compile", "--no-build", "--no-header", "--no-python-downloads", "--python", python,
                       "--prerelease", "allow" if channel.prerelease else "if-necessary", *there,
                       *(["--offline"] if from_cache and "--offline" not in there else []), *options,
                       *(word for file, option in named.items() for word in (option, file)), "--output-file", str(given), "--", str(asked)],
                      COMPILE_S, channel=channel.name, quiet=from_cache, stdout_is_data=True)
            try:
                return given.read_text()
            except OSError as error:
                raise OpsError("uv left no resolution behind", why=str(error)) from error

    def _make_cache(self) -> None:
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OpsError(f"uv's cache `{self.cache}` cannot be made", why=error.strerror or str(error), hint=_CACHE_HINT) from error

    def _run(self, arguments: list[str], timeout_s: float, *, channel: str = "", quiet: bool = False, stdout_is_data: bool = False) -> str:
        """uv's standard output. What lies damaged in the cache (a wheel that was unpacked half) is dropped from it, and uv asked again: else nothing
        but a person's shell would ever mend it. Not where nothing could be fetched anew."""
        dropped: set[str] = set()
        while True:
            try:
                return self._run_once(arguments, timeout_s, channel=channel, quiet=quiet, stdout_is_data=stdout_is_data)
            except OpsError as error:
                damaged = set(error.facts.get("damaged", [])) - dropped
                if not damaged or arguments[0] == "cache" or ("--offline" in arguments and "--no-index" not in arguments):
                    raise
                dropped |= damaged
                self._drop_damaged(damaged)

    def _damaged(self) -> set[str]:
        """Packages whose unpacked wheel in the cache has lost its metadata, or is gone. uv takes such a version for one that does not exist, and
        would plan an older one without a word."""
        return {link.parent.name for below in ("*/*/*", "*/*/*/*") for link in self.cache.glob(f"wheels-v*/{below}")
                if link.is_symlink() and not all(any(link.glob(f"*.dist-info/{name}")) for name in ("METADATA", "RECORD", "WHEEL"))}

    def _drop_damaged(self, names: set[str]) -> None:
        if names:
            self._say(f"uv's cache is damaged: dropped {', '.join(sorted(names))} from it")
            self.clean_cache(names)

    def _say(self, text: str) -> None:
        if self.context:
            self.context.log(text)
        elif self.log:
            self.log(text)

    def _run_once(self, arguments: list[str], timeout_s: float, *, channel: str, quiet: bool, stdout_is_data: bool) -> str:
        """`stdout_is_data`: it does not go to the log: a resolution of a serving stack has thousands of lines, and uv prints it although it also
        writes the file."""
        argv = [uv_package.find_uv_bin(), "--no-config", "--no-progress", "--color", "never", "--cache-dir", str(self.cache), *arguments]
        if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
            argv.insert(1, "--system-certs")
        self._make_cache()
        lines: list[str] = []

        def take(line: str) -> None:
            if not line.strip():
                return
            lines.append(line.rstrip())
            del lines[:-200]
            if quiet:
                return
            if self.on_line:
                self.on_line(line.rstrip())
            self._say(line.rstrip())

        try:
            return commands.run(argv, context=self.context, on_line=take, env=ENVIRONMENT, timeout_s=timeout_s, stdout_is_data=stdout_is_data).stdout
        except CommandFailed as error:
            told = explain(lines, error, channel=channel)
            if damaged := damaged_packages(lines, self.cache):
                told.facts["damaged"] = damaged
            raise told from error


@contextmanager
def _alone_in(folder: Path, *, wait: bool) -> Iterator[None]:
    """Raises BlockingIOError if another process has it locked, and does not `wait`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


# What uv says when it fails


def damaged_packages(lines: Sequence[str], cache: Path) -> list[str]:
    """Packages that uv could not take out of its cache because of what lies there; empty if it failed for another reason."""
    text = " ".join(line.strip() for line in lines)
    inside = rf"failed to open file `?{re.escape(str(cache))}/(?:archive|wheels)-v"
    if "No space left" in text or not (re.search(inside, text) or any(sign in text for sign in _DAMAGED)):
        return []
    found = re.findall(rf"({_NAME})==[^\s`)]+ has an invalid package format", text)
    found += re.findall(rf"(?:Failed to (?:install|download|read|fetch)[^()`]*[(`])({_NAME})==", text)
    return sorted({canonicalize_name(name) for name in found})


def explain(lines: Sequence[str], error: CommandFailed, *, channel: str = "") -> OpsError:
    """uv's own error, told in our three parts. `lines` are what it printed."""
    start = next((index for index, line in enumerate(lines) if line.startswith("error:")), None)
    if start is None:
        return _unexplained(lines, error)
    title = lines[start].removeprefix("error:").strip()
    causes: list[str] = []
    hints: list[str] = []
    for line in lines[start + 1:]:
        text = re.sub(r"^\s*(cause:)?\s*", "", line).strip()
        (hints if text.startswith("hint:") else causes).append(text)
    why = " ".join(cause for cause in causes if cause)
    told = f"channel `{channel}`" if channel else "channel"
    whole = f"{title}. {why}" if why else title
    if "No solution found" in title:
        if refused := re.search(r"An index (?:URL )?\((\S+)\) (?:returned a|could not be queried due to a lack of valid authentication credentials) "
                                r"\(?(\d+ \w+)", " ".join(hints)):
            return OpsError(f"An index of the {told} refuses: {refused[2]}", why=f"{refused[1]}. {why}", kind="index_unreachable",
                            hint="Look at the address; credentials belong into the agent user's ~/.netrc")
        hint = "Choose another version or another channel; nothing has been changed"
        if "Python version" in why or "requires Python" in why:
            hint = "Choose another interpreter for the release, another version or another channel; nothing has been changed"
        if earlier := re.search(r"`([^`]+)` was found on \S+, but not at the requested version", " ".join(hints)):
            # uv's own advice is a best match over all indexes, which takes a final release of another CUDA before a nightly.
            hint = (f"`{earlier[1]}` is in an index that is asked earlier, in another version only. Let an admin choose `unsafe-first-match` for the "
                    "channel: a package then comes from the first index that has a version that fits")
            hints = [text for text in hints if "unsafe-best-match" not in text]
        return NoSolution(_conflict(why, told), why="\n".join([why, *hints]), conflicts=_conflicts(why), hint=hint)
    if mismatch := re.search(r"Hash mismatch for `([^`]+)`", whole):
        return OpsError(f"A file of `{mismatch[1]}` is not the one that was planned", why=f"{whole}", kind="hash_mismatch",
                        hint="The channel gives other bytes under the same name: make a new plan, and find out why")
    if answered := _index_failure(whole, told):
        return answered
    if "No space left" in whole:
        return OpsError("The disk is full", why=whole, kind="disk_full", hint="Free some room, then run the job again")
    return CommandFailed(f"uv failed: {title}", why=why or "\n".join(lines[-KEPT_LINES:]), **error.facts)


def _unexplained(lines: Sequence[str], error: CommandFailed) -> CommandFailed:
    """uv ended without an `error:` line (killed, a panic, a refused argument): all that it said last, and where to look."""
    killed = error.facts.get("code") == -signal.SIGKILL
    said = "\n".join(lines[-KEPT_LINES:]) or error.why
    command = " ".join(str(word) for word in error.facts.get("argv", []))[:2000]
    return CommandFailed(
        "uv was killed" if killed else error.what,
        why=(said or "It printed nothing") + (f"\nThe command was: {command}" if command else ""),
        hint="Look at the kernel's log: it kills programs when memory runs out" if killed else "The step's log has all that it printed",
        **error.facts)


def _index_failure(text: str, told: str) -> OpsError | None:
    """An index that does not answer, answers with an error, or with something that is no index; None: it is something else."""
    place = re.search(r"(?:Failed to fetch: |for url \(|Failed to download )`?(https?://[^\s`)]+)", text)
    where = f" ({place[1]})" if place else ""
    again = "One index that does not answer fails the whole plan: try again, or ask an admin to look at the channel"
    if "operation timed out" in text:
        return OpsError(f"An index of the {told} did not answer within {ENVIRONMENT['UV_HTTP_TIMEOUT']} s{where}", why=text, hint=again,
                        kind="index_unreachable")
    if status := re.search(r"HTTP status (?:server|client) error \((\d{3}[^)]*)\)", text):
        return OpsError(f"An index of the {told} answers {status[1]}{where}", why=text, hint=again, kind="index_unreachable")
    if "unexpected JSON" in text or "`Content-Type`" in text or "unexpected HTML" in text:
        return OpsError(f"An index of the {told} answers with something that is no package index", why=text, kind="bad_index",
                        hint="Look at the address: a log-in page or a proxy may stand in its place")
    if "Failed to fetch" in text or "Request failed" in text or "client error" in text:
        return OpsError(f"An index of the {told} does not answer", why=text, hint=again, kind="index_unreachable")
    return None


_SPEC = r"((?:==|>=|<=|~=|!=|<|>)\S+?)(?=[,.]?(?:\s|$))"  # the sentence's own comma or full stop does not belong to it


def _depends(why: str) -> list[tuple[str, str, str]]:
    why = re.sub(r"all versions of (\S+) depend on", r"\1 depends on", why)
    return re.findall(rf"([^\s,]+) depends on ([\w.\[\]-]+?){_SPEC}", why)


def _required(why: str) -> list[tuple[str, str]]:
    """What was asked for by hand, as uv repeats it: `you require vllm==0.25.1 and numpy<1`; not what it concludes from that."""
    stated = re.sub(r"we can conclude that you require .*?(?=\.(?:\s|$))", "", why)
    found: list[tuple[str, str]] = []
    for part in re.findall(r"you require ((?:[\w.\[\]-]+(?:==|>=|<=|~=|!=|<|>)\S+?(?: and )?)+)(?=[,.]?(?:\s|$))", stated):
        found += re.findall(rf"([\w.\[\]-]+?){_SPEC}", part)
    return found


def _conflicts(why: str) -> list[str]:
    """Each thing that takes part in the conflict, in a sentence of its own: what needs what, and what was asked for."""
    told = [f"`{parent}` needs `{name}{spec}`" for parent, name, spec in _depends(why)]
    told += [f"`{name}{spec}` is asked for" for name, spec in _required(why)]
    return list(dict.fromkeys(told))[:CONFLICTS_TOLD]


def _conflict(why: str, channel: str) -> str:
    """One sentence that names the packages; uv's full reasoning goes beside it."""
    if missing := re.search(r"there (?:is|are) no versions? of (\S+?)(==|>=|<=|~=|<|>|!=)(\S+?),? (?:and|we|which)", why):
        name, relation, wanted = missing.groups()
        return f"The {channel} has no `{name}` {wanted}" if relation == "==" else f"The {channel} has no `{name}{relation}{wanted}`"
    if unknown := re.search(r"(\S+) was not found in (?:the package registry|the provided package locations|the cache)", why):
        return f"The {channel} has no package `{unknown.group(1)}`"
    if empty := re.search(r"there are no versions of ([\w.\[\]-]+) and", why):
        return f"The {channel} lists no version of `{empty.group(1)}`"
    if python := re.search(r"([^\s,]+) requires Python ?(\S+?),? (?:and|which|we)", why):
        return f"`{python[1]}` needs Python {python[2]}, which this interpreter is not"
    if python := re.search(r"the \w+ Python version \(([\d.]+)\) does not satisfy .*? and (\S+) depends on (?:one of: )?Python", why):
        return f"`{python[2]}` does not support Python {python[1]}, which is the interpreter"
    if sources := re.search(r"(\S+) has no usable wheels", why):
        return f"The {channel} has `{sources.group(1)}` only as source, and building it would run its code"
    if tags := re.search(rf"(?:Because|and|because) ([\w.\[\]-]+?){_SPEC}? has no wheels with a matching (Python \w+|platform) tag", why):
        machine = "this machine" if tags[3] == "platform" else "this Python"
        return f"The {channel} has no wheel of `{tags[1]}{tags[2] or ''}` for {machine}"
    depends, asked = _depends(why), _required(why)
    for parent, name, spec in depends:
        for other_name, other in asked:
            if _bare(other_name) == _bare(name) and other != spec:
                return f"`{parent}` needs `{name}{spec}`, but `{other_name}{other}` is asked for"
    for index, (parent, name, spec) in enumerate(depends):
        for other_parent, other_name, other in depends[index + 1:]:
            if _bare(name) == _bare(other_name) and spec != other and parent != other_parent:
                return f"`{parent}` needs `{name}{spec}`, but `{other_parent}` needs `{other_name}{other}`"
    if only := re.search(rf"only ([\w.\[\]-]+?){_SPEC} is available and you require (\S+?)(?=[,.]?(?:\s|$))", why):
        return f"The {channel} has no `{only[3]}`, only `{only[1]}{only[2]}`"
    for name, spec in re.findall(rf"only ([\w.\[\]-]+?){_SPEC} is available", why):
        for parent, needed, wanted in depends:
            if _bare(needed) == _bare(name):
                return f"`{parent}` needs `{needed}{wanted}`, but the {channel} has only `{name}{spec}`"
    return f"The {channel} has no set of versions that fits together"


def _bare(name: str) -> str:
    return canonicalize_name(name.partition("[")[0])


# What uv writes


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


def read_annotations(text: str) -> dict[str, Origin]:
    """Package name to its parents and its index, from a requirements file with `# via` and `# from` comments."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    parents: list[str] = []
    indexes: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            name = re.split(r"[=<>!~ \[;]", line, maxsplit=1)[0]
            parents, indexes = found.setdefault(canonicalize_name(name), ([], []))
            continue
        told = line.strip().removeprefix("#").strip()
        if told.startswith("from "):
            indexes.append(told.removeprefix("from ").strip())
            continue
        told = told.removeprefix("via").strip()
        if told and not told.startswith("-"):  # -r, -c: a file of ours
            parents += [canonicalize_name(part.strip()) for part in told.split(",")]
    return {name: Origin(parents, indexes[0] if indexes else None) for name, (parents, indexes) in found.items()}
