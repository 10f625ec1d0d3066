"""Records that an envelope carries as a snapshot: the agent has no database, so a job gets all it needs with it.

All are plain dataclasses with `as_dict` and `from_dict`; `from_dict` refuses unknown and missing fields with `BadInput`.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from ops.jobs.errors import BadInput

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
NEVER_IN_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and halves of characters: no path, argument or variable can hold them
BASE_URL = re.compile(r"https?://[^\s/?#]{1,300}(?:/[^\s?#]{0,300})?\Z")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON has the form that a field says: `str`, `list[int]`, `dict[str, str]` and so on."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())
    if hint is Any:
        return True
    if origin is UnionType:  # `bool | None`
        return any(_fits(value, one) for one in inner)
    if hint is str:
        return isinstance(value, str) and not NEVER_IN_TEXT.search(value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@dataclass(kw_only=True)
class Record:
    """Base of all records: to and from JSON, with clear errors."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Raises BadInput naming the field that is missing, unknown or of the wrong form."""
        if not isinstance(raw, dict):
            raise BadInput(f"A {cls.__name__} must be a JSON object, not {type(raw).__name__}")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(raw) - known):
            raise BadInput(f"A {cls.__name__} has no field `{unknown[0]}`", hint=f"Known fields: {', '.join(sorted(known))}")
        try:
            made = cls(**raw)
        except TypeError as error:
            raise BadInput(f"A {cls.__name__} is incomplete", why=str(error)) from error
        hints = _hints(cls)  # type: ignore[arg-type]  # a class can be hashed
        for name, value in raw.items():
            if not _fits(value, hints[name]):
                raise BadInput(f"The field `{name}` of a {cls.__name__} has the wrong form", why=f"It holds {str(value)[:100]!r}")
        made.check()
        return made

    def check(self) -> None:
        """Raises BadInput if a value cannot be right."""


GUARD_KINDS = ("key_absent", "key_equals", "file_hash", "file_present", "shards_complete", "not_lfs_pointer")


@dataclass(kw_only=True)
class Guard(Record):
    """A fact that must hold in the model folder. `file` is relative to it.

    `kind`: "key_absent" and "key_equals" look at the dotted path `key` in the JSON of `file` (`quantization_config.kv_cache_scheme`;
    `value` is compared by "key_equals"); "file_hash" compares the file's SHA-256 with `value` (hex); "file_present" wants the file
    there; "shards_complete" wants every shard that the index `file` names (`model.safetensors.index.json`); "not_lfs_pointer" wants
    content, not the few lines that git leaves where large files were not fetched (`file` may be a pattern such as `*.safetensors`).
    """

    kind: str
    file: str
    key: str = ""
    value: Any = None

    def check(self) -> None:
        if self.kind not in GUARD_KINDS:
            raise BadInput(f"Unknown guard kind `{self.kind}`", hint=f"Use one of {', '.join(GUARD_KINDS)}")
        if not self.file or self.file.startswith("/") or ".." in Path(self.file).parts:
            raise BadInput(f"A guard's file must lie in the model folder: `{self.file}`")
        if self.kind.startswith("key_") and not self.key:
            raise BadInput(f"A guard of kind `{self.kind}` needs a key", hint="Write it like quantization_config.kv_cache_scheme")
        if self.kind == "file_hash" and not (isinstance(self.value, str) and re.fullmatch(r"[0-9a-f]{64}", self.value)):
            raise BadInput("A guard of kind `file_hash` needs the SHA-256 of the file as its value", hint="64 digits, as sha256sum prints")


@dataclass(kw_only=True)
class ServiceRecord(Record):
    """One vLLM server on a node. All paths are absolute."""

    name: str
    manager: str = "process"  # "process" (plain-process manager) or "systemd"
    unit: str = ""  # systemd only
    root: str  # services/<name>: releases/, current, launch, logs/, files that the launcher reads
    model_path: str
    served_model_name: str
    base_url: str  # http://127.0.0.1:8000, without /v1
    flags: list[str] = field(default_factory=list)  # after `vllm serve MODEL`
    env: dict[str, str] = field(default_factory=dict)
    gpus: list[int] = field(default_factory=list)  # indexes that it uses
    guards: list[dict[str, Any]] = field(default_factory=list)
    artifact_roots: list[str] = field(default_factory=list)  # where its debug leftovers lie
    target_tok_s: list[float] = field(default_factory=list)  # single-stream target range, e.g. [40, 50]
    practice: bool = False
    environment: str = ""  # the environment that adoption found, absolute; "" where Roundhouse built every release itself
    in_place: bool = False  # that environment may not move: a redeploy changes it where it is
    env_files: list[str] = field(default_factory=list)  # the unit's EnvironmentFile= (`-/path`: may be missing), read at each start, never copied
    keep_releases: int = 5  # at most so many releases stay, the live and the last good one among them
    keep_bytes: int | None = None  # and at most so many bytes of them
    unit_scope: str = "system"  # systemd only: "system", or "user" for a unit of the agent's own user manager
    smoke_tests: list[dict[str, Any]] = field(default_factory=list)  # own questions, after the built-in ones: ops/services/smoke.py SmokeTest
    smoke_without: list[str] = field(default_factory=list)  # names of built-in questions that this service is not asked

    def check(self) -> None:
        if not NAME.match(self.name):
            raise BadInput(f"`{self.name[:80]}` is not a service name", hint="Lower-case letters, digits, dot, dash, underscore")
        if self.manager not in {"process", "systemd"}:
            raise BadInput(f"Unknown service manager `{self.manager}`", hint="Use process or systemd")
        for name in ("root", "model_path"):
            if not str(getattr(self, name)).startswith("/"):
                raise BadInput(f"`{name}` of service `{self.name}` must be an absolute path")
        if not BASE_URL.match(self.base_url):
            raise BadInput(f"`{self.base_url[:80]}` of service `{self.name}` is no address", hint="Write it like http://127.0.0.1:8000")
        for path in (*([self.environment] if self.environment else []), *(path.removeprefix("-") for path in self.env_files)):
            if not path.startswith("/"):
                raise BadInput(f"`{path[:200]}` of service `{self.name}` must be an absolute path")
        if self.in_place and not self.environment:
            raise BadInput(f"Service `{self.name}` is to be changed in place, but names no environment", hint="Set `environment`")
        if self.unit_scope not in {"system", "user"}:
            raise BadInput(f"Unknown scope of the unit of service `{self.name}`: `{self.unit_scope[:40]}`", hint="Use system or user")
        if self.keep_releases < 2:
            raise BadInput(f"Service `{self.name}` must keep at least two releases", why="The live one, and the way back")

    @property
    def folder(self) -> Path:
        return Path(self.root)

    @property
    def releases(self) -> Path:
        """Where releases are built: `<time>-<version>/` each."""
        return self.folder / "releases"

    @property
    def current(self) -> Path:
        """The link to the release in use."""
        return self.folder / "current"

    def release_in_use(self) -> Path | None:
        """The release that `current` points at (its folder below `releases`), or None if there is none or the link points nowhere."""
        try:
            target = self.current.readlink()
        except OSError:  # no link, or a folder of another kind: no release of ours
            return None
        release = Path(os.path.normpath(self.folder / target))
        return release if release.is_dir() else None


PUBLIC_INDEX = "public"  # as an index address: the public package index, which is the installer's own default
INDEX_STRATEGIES = ("first-index", "unsafe-first-match")  # never best-match: it takes a final release of another CUDA before a nightly
CHANNEL_KINDS = ("wheelhouse", "index", "recipe")
CHANNEL_ARGUMENTS = ("torch-backend", "exclude-newer")  # further arguments for uv; each value is checked by ops/environments/channels.py


@dataclass(kw_only=True)
class Channel(Record):
    """Where wheels come from; set by an admin only.

    `kind`: "wheelhouse" (a local folder, offline), "index" (index addresses), or "recipe" (the full lock of a release that passed
    everything, from that folder or those indexes). `preset` says what it was made from (ops/environments/channels.py): "stable",
    "nightly", "commit", "wheelhouse", "recipe", or "" for one that was written by hand.
    """

    name: str
    kind: str
    preset: str = ""
    wheelhouse: str = ""  # absolute path
    index_url: str = ""  # PUBLIC_INDEX, or an http(s) address
    extra_index_urls: list[str] = field(default_factory=list)  # asked first, in this order
    index_strategy: str = "first-index"
    arguments: dict[str, str] = field(default_factory=dict)  # of CHANNEL_ARGUMENTS
    requirements: list[str] = field(default_factory=lambda: ["vllm"])  # what the channel installs, as PEP 508
    constraints: list[str] = field(default_factory=list)  # name==version, for what may come along
    without: list[str] = field(default_factory=list)  # packages that are left out, although something says that it needs them
    variant: str = ""  # the build that must come out ("cu129", "cpu"); "": as installed today
    commit: str = ""  # kind "index", preset "commit": the full commit of vLLM
    prerelease: bool = True
    recipe: dict[str, Any] = field(default_factory=dict)  # kind "recipe": ops/environments/recipe.py
    practice: bool = False

    def check(self) -> None:
        if not NAME.match(self.name):
            raise BadInput(f"`{self.name[:80]}` is not a channel name")
        if self.kind not in CHANNEL_KINDS:
            raise BadInput(f"Unknown channel kind `{self.kind}`", hint=f"Use one of {', '.join(CHANNEL_KINDS)}")
        if (self.wheelhouse and not self.wheelhouse.startswith("/")) or (self.kind == "wheelhouse" and not self.wheelhouse):
            raise BadInput(f"The wheelhouse of channel `{self.name}` must be an absolute path")
        if not self.wheelhouse and not self.index_url:  # uv would ask its own default index instead, which no node's owner has allowed
            raise BadInput(f"Channel `{self.name}` names no index", hint=f"Give it an index address, or `{PUBLIC_INDEX}` for the public index")
        if self.index_strategy not in INDEX_STRATEGIES:
            raise BadInput(f"Unknown index strategy `{self.index_strategy[:40]}`", hint=f"Use one of {', '.join(INDEX_STRATEGIES)}")
        if unknown := sorted(set(self.arguments) - set(CHANNEL_ARGUMENTS)):
            raise BadInput(f"Channel `{self.name}` has an unknown argument `{unknown[0][:40]}`", hint=f"Known: {', '.join(CHANNEL_ARGUMENTS)}")
        if self.commit and not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise BadInput(f"`{self.commit[:60]}` is no full commit", hint="40 hexadecimal digits, as `git rev-parse` prints")
        if self.kind == "recipe" and not self.recipe:
            raise BadInput(f"Channel `{self.name}` has no recipe")
