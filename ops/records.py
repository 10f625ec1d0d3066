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


@dataclass(kw_only=True)
class Guard(Record):
    """A fact that must hold in the model folder.

    `kind` is "key_absent" or "key_equals"; `file` is relative to the model folder; `key` is a dotted path into its JSON
    (`quantization_config.kv_cache_scheme`); `value` is compared by "key_equals".
    """

    kind: str
    file: str
    key: str
    value: Any = None

    def check(self) -> None:
        if self.kind not in {"key_absent", "key_equals"}:
            raise BadInput(f"Unknown guard kind `{self.kind}`", hint="Use key_absent or key_equals")
        if self.file.startswith("/") or ".." in Path(self.file).parts:
            raise BadInput(f"A guard's file must lie in the model folder: `{self.file}`")


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


@dataclass(kw_only=True)
class Channel(Record):
    """Where wheels come from. `kind`: "wheelhouse" (a local folder, offline) or "index" (index addresses, admins only)."""

    name: str
    kind: str
    wheelhouse: str = ""  # absolute path, kind "wheelhouse"
    index_url: str = ""
    extra_index_urls: list[str] = field(default_factory=list)
    requirements: list[str] = field(default_factory=lambda: ["vllm"])  # what the channel installs, as PEP 508
    prerelease: bool = True
    practice: bool = False

    def check(self) -> None:
        if not NAME.match(self.name):
            raise BadInput(f"`{self.name[:80]}` is not a channel name")
        if self.kind not in {"wheelhouse", "index"}:
            raise BadInput(f"Unknown channel kind `{self.kind}`", hint="Use wheelhouse or index")
        if self.kind == "wheelhouse" and not self.wheelhouse.startswith("/"):
            raise BadInput(f"The wheelhouse of channel `{self.name}` must be an absolute path")
        if self.kind == "index" and not self.index_url:  # uv would ask its own default index instead, which no node's owner has allowed
            raise BadInput(f"Channel `{self.name}` names no index", hint="Give it an index address")
