"""Channels: where wheels come from. Made from presets (`channel_presets.toml`), every field checked, held against `node.toml`.

Users choose a channel by its name; admins say what stands behind it. So each value that reaches uv is checked here, whoever wrote it:
addresses by an anchored pattern, requirements parsed and written anew, a closed set of further arguments.
"""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ops.agent.config import REPOSITORY, NodeConfig
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import CHANNEL_ARGUMENTS, INDEX_STRATEGIES, PUBLIC_INDEX, Channel

PYTORCH_INDEX = "pytorch"  # in node.toml's index_urls: PyTorch's own indexes, which uv asks when a channel names a torch-backend
SERVING_PINS = REPOSITORY / "requirements-serving.in"
SERVING_LOCK = REPOSITORY / "requirements-serving.txt"
TEXT_LIMIT = 200  # characters of a requirement, a version, an argument
ADDRESS_LIMIT = 300
LINES_LIMIT = 2000  # requirements or constraints of a channel
FILE_LIMIT = 4 * 1024 * 1024  # bytes of a channel's or a recipe's file
_ADDRESS = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:/[A-Za-z0-9._~+%@/-]*)?\Z", re.ASCII)
_VARIANT = re.compile(r"(?:cu\d{2,3}|rocm\d{1,2}(?:\.\d{1,2}){0,2}|cpu|xpu|practice)\Z", re.ASCII)
_INDEX_VARIANT = re.compile(r"(?:cu\d{3}|rocm\d{2,4}|cpu)\Z", re.ASCII)  # as it stands in the path of a published index
_TORCH_BACKEND = re.compile(r"(?:auto|cpu|xpu|cu\d{2,3}|rocm\d{1,2}\.\d{1,2}(?:\.\d{1,2})?)\Z", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2}:\d{2}(?:Z|[+-]\d{2}:\d{2}))?\Z", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})\Z")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What may come along, in one version; where `hashes` (SHA-256, hex) are known, only these files."""

    name: str
    version: str
    hashes: frozenset[str]


# What single values may be


def requirement(text: str) -> str:
    """The requirement, parsed and written anew. Raises BadInput for anything but a name, extras and version specifiers."""
    try:
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise BadInput(f"`{_shown(text)}` is no requirement", why="It is too long, or has characters that do not print")
        parsed = Requirement(text)
    except InvalidRequirement as error:
        raise BadInput(f"`{_shown(text)}` is no requirement", why=str(error).splitlines()[0], hint="Write it like vllm==0.16.0") from error
    if parsed.url or parsed.marker:
        raise BadInput(f"`{_shown(text)}` may not name an address or a marker", why="Wheels come from the channel only")
    return str(parsed)


def version(text: str) -> str:
    """The version in its normal form. Raises BadInput if it is none."""
    try:
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise InvalidVersion(text)
        return str(Version(text))
    except InvalidVersion as error:
        raise BadInput(f"`{_shown(text)}` is no version", hint="Write it like 0.16.0 or 0.16.0rc2.dev344") from error


def index_url(text: str) -> str:
    """An index address. Raises BadInput unless it is plain http(s) without credentials (they would stand in everybody's `ps`)."""
    try:
        parts = urlsplit(text) if len(text) <= ADDRESS_LIMIT and text.isprintable() else urlsplit("")
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        parts, usable = urlsplit(""), False
    if parts.username is not None or parts.password is not None:
        raise BadInput("An index address may not hold a user name or password", hint="Put them into the agent user's ~/.netrc")
    if not usable or not _ADDRESS.match(text) or _has_dots(unquote(parts.path)):
        raise BadInput(f"`{_shown(text)}` is no index address", hint=f"An index address starts with https://; the public index is `{PUBLIC_INDEX}`")
    return text


def _has_dots(path: str) -> bool:
    return any(part in {".", ".."} for part in re.split(r"[/\\]", path))


def constraint(text: str) -> Constraint:
    """One line of constraints: `name==version`, and any number of `--hash=sha256:...` after it. Raises BadInput if it is anything else."""
    words = text.split(" ") if text.isprintable() and len(text) <= 64 * 1024 else [text]
    hashes = [found[1] if (found := _HASH.match(word)) else "" for word in words[1:] if word]
    parsed = Requirement(requirement(words[0]))
    pins = list(parsed.specifier)
    if len(pins) != 1 or pins[0].operator != "==" or pins[0].version.endswith(".*") or parsed.extras or not all(hashes):
        raise BadInput(f"`{_shown(text)}` is no constraint", hint="Write it like torch==2.10.0")
    return Constraint(canonicalize_name(parsed.name), version(pins[0].version), frozenset(hashes))


def constraints(channel: Channel) -> list[Constraint]:
    """The channel's constraints, read. Raises BadInput for a name that stands there twice."""
    found = [constraint(text) for text in channel.constraints]
    seen: set[str] = set()
    for one in found:
        if one.name in seen:
            raise BadInput(f"Channel `{channel.name}` names `{one.name}` twice among its constraints")
        seen.add(one.name)
    return found


def argument(name: str, value: str) -> str:
    """The value of a further argument. Raises BadInput for an argument or a value that is not of the closed set."""
    if name == "torch-backend" and _TORCH_BACKEND.match(value):
        return value
    if name == "exclude-newer" and _MOMENT.match(value):
        try:
            datetime.datetime.fromisoformat(value)
            return value
        except ValueError:
            pass
    if name not in CHANNEL_ARGUMENTS:
        raise BadInput(f"A channel has no argument `{_shown(name)}`", hint=f"Known: {', '.join(CHANNEL_ARGUMENTS)}")
    raise BadInput(f"`{_shown(value)}` is no value for `{name}`",
                   hint="Write it like cu129, cpu or auto" if name == "torch-backend" else "Write it like 2026-11-01 or 2026-11-01T12:00:00Z")


def left_out(text: str) -> str:
    """The normalized name of a package that is left out. Raises BadInput for anything but a name."""
    parsed = Requirement(requirement(text))
    if parsed.specifier or parsed.extras:
        raise BadInput(f"`{_shown(text)}` is no name of a package", why="A package is left out in every version", hint="Write it like torchaudio")
    return canonicalize_name(parsed.name)


def variant(text: str) -> str:
    """A build, such as cu129, cpu or rocm6.4. Raises BadInput if it is none."""
    if not _VARIANT.match(text):
        raise BadInput(f"`{_shown(text)}` is no build of wheels", hint="Write it like cu129, cu130 or cpu")
    return text


def folder(text: str) -> str:
    """An absolute path without steps up. Raises BadInput if it is none; whether it is there is looked at on the node."""
    if not text.startswith("/") or len(text) > 4096 or not text.isprintable() or ".." in Path(text).parts:
        raise BadInput(f"`{_shown(text)}` is no absolute path of a folder", hint="Write it like /srv/wheels")
    if "," in text:
        raise BadInput(f"The path `{_shown(text)}` has a comma", why="uv takes it for two places", hint="Move the folder to another path")
    return text


def _shown(text: str) -> str:
    return str(text)[:60].encode("unicode_escape").decode() if not str(text)[:60].isprintable() else str(text)[:60]


# A whole channel


def check(channel: Channel) -> Channel:
    """The channel, if every value in it may reach uv. Raises BadInput naming the value that may not."""
    words = {"name": channel.name, "kind": channel.kind, "preset": channel.preset, "index_strategy": channel.index_strategy, "commit": channel.commit}
    for field, text in [*words.items(), *(("arguments", name) for name in channel.arguments)]:
        if len(text) > TEXT_LIMIT or not text.isprintable():
            raise BadInput(f"The field `{field}` of a channel has the wrong form", why=f"It holds `{_shown(text)}`")
    channel.check()
    if channel.wheelhouse:
        folder(channel.wheelhouse)
    if channel.kind == "index" and channel.wheelhouse:
        raise BadInput(f"Channel `{channel.name}` is of indexes, and names a wheelhouse", hint="Make a channel of kind wheelhouse")
    if channel.kind == "wheelhouse" and (channel.index_url or channel.extra_index_urls):
        raise BadInput(f"Channel `{channel.name}` is a wheelhouse, and names an index", why="A wheelhouse is used without any network")
    if channel.index_url and channel.index_url != PUBLIC_INDEX:
        index_url(channel.index_url)
    if channel.extra_index_urls and not channel.index_url:
        raise BadInput(f"Channel `{channel.name}` names no index that is asked last", hint=f"Give it an index address, or `{PUBLIC_INDEX}`")
    if len(channel.extra_index_urls) > 20:
        raise BadInput(f"Channel `{channel.name}` names too many indexes", why=f"{len(channel.extra_index_urls)}; at most 20")
    for address in channel.extra_index_urls:
        if address == PUBLIC_INDEX:
            raise BadInput("The public index can only be asked last", hint="Give it as the channel's package index")
        index_url(address)
    for name, value in channel.arguments.items():
        argument(name, value)
    if len(channel.requirements) > LINES_LIMIT or len(channel.constraints) > LINES_LIMIT:
        raise BadInput(f"Channel `{channel.name}` has too many requirements", why=f"At most {LINES_LIMIT:,} are taken")
    for text in channel.requirements:
        requirement(text)
    constraints(channel)
    if len(channel.without) > LINES_LIMIT:
        raise BadInput(f"Channel `{channel.name}` leaves too much out", why=f"At most {LINES_LIMIT:,} are taken")
    if asked := sorted({left_out(text) for text in channel.without} & set(names(channel.requirements))):
        raise BadInput(f"Channel `{channel.name}` installs `{asked[0]}`, and leaves it out", hint="Take it away from one of the two")
    if channel.variant:
        variant(channel.variant)
    if channel.preset == "commit" and not _COMMIT.match(channel.commit):
        raise BadInput(f"Channel `{channel.name}` names no commit", hint="40 hexadecimal digits, as `git rev-parse` prints")
    return channel


def allowed(channel: Channel, config: NodeConfig) -> None:
    """Raises Refused if `node.toml` does not allow the channel's wheelhouse or one of its indexes. An entry of `index_urls` that ends
    with a slash allows all below it; `public` stands for the public index, `pytorch` for those of a torch-backend."""
    if channel.wheelhouse:
        config.require_inside(channel.wheelhouse, config.wheelhouse_roots, "wheelhouse")
    asked = [address for address in (*channel.extra_index_urls, channel.index_url) if address]
    if asked and "torch-backend" in channel.arguments:
        asked.append(PYTORCH_INDEX)
    for address in asked:
        if not any(_allows(entry, address) for entry in config.index_urls):
            raise Refused(f"This node does not allow the index `{address}`", why=f"Allowed: {', '.join(config.index_urls) or 'none'}",
                          hint="The node's owner sets this in node.toml (index_urls)")


def _allows(entry: str, address: str) -> bool:
    if entry == address:
        return True
    if "://" not in entry or "://" not in address:
        return False
    one, other = _normal(entry), _normal(address)
    if _has_dots(unquote(urlsplit(other).path)):
        return False
    return one.rstrip("/") == other.rstrip("/") or (one.endswith("/") and other.startswith(one))


def _normal(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path or '/'}"


def source(channel: Channel) -> dict[str, Any]:
    """What of the channel decides a build, for the plan and its hash: places in the order in which they are asked, strategy, arguments."""
    return {
        "kind": channel.kind, "preset": channel.preset, "wheelhouse": channel.wheelhouse,
        "indexes": [address for address in (*channel.extra_index_urls, channel.index_url) if address], "strategy": channel.index_strategy,
        "arguments": dict(sorted(channel.arguments.items())), "prerelease": channel.prerelease, "variant": channel.variant, "commit": channel.commit,
        **({"without": sorted({left_out(text) for text in channel.without})} if channel.without else {}),
    }


def flashinfer_index(channel: Channel) -> bool:
    """Whether the channel asks FlashInfer's own wheel index."""
    base = _table()["flashinfer"]["index"]
    return any(_allows(base, address) for address in [channel.index_url, *channel.extra_index_urls] if address)


def flashinfer_address() -> str:
    """Where FlashInfer publishes its wheels itself."""
    return str(_table()["flashinfer"]["index"])


def availability(lookup: Callable[[str, str], bool]) -> Callable[[str, str], bool | None]:
    """For coupling.findings: does the channel have that wheel? `lookup` asks once for each; None where an index does not answer."""
    known: dict[tuple[str, str], bool | None] = {}

    def available(name: str, wanted: str) -> bool | None:
        if (name, wanted) not in known:
            try:
                known[name, wanted] = lookup(name, wanted)
            except OpsError as error:
                if error.kind != "index_unreachable":
                    raise
                known[name, wanted] = None
        return known[name, wanted]

    return available


# Presets


@cache
def _table() -> dict[str, Any]:
    path = Path(__file__).with_name("channel_presets.toml")
    try:
        raw = tomllib.loads(path.read_text())
        for preset in raw["preset"]:
            for name in preset["fields"]:
                _ = raw["field"][name]["title"]
        _ = raw["flashinfer"]["index"], raw["flashinfer"]["variant_index"]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise OpsError("The table of channel presets cannot be read", why=f"{path}: {error!r}") from error
    return raw


def presets() -> list[dict[str, Any]]:
    """What a channel can be made from, for a form: name, title, words, sources, and fields (name, title, kind, required, default, choices, help)."""
    told = []
    for preset in _table()["preset"]:
        described = []
        for name in preset["fields"]:
            one = _table()["field"][name]
            kind = one["kind"]
            empty: Any = [] if kind == "lines" else False if kind == "switch" else ""
            default = preset.get("index_strategy") if name == "index_strategy" and "index_strategy" in preset else one.get("default", empty)
            required = one.get("required", False) or (preset["name"] == name == "wheelhouse")
            described.append({"name": name, "title": one["title"], "kind": kind, "required": required, "default": default,
                              "choices": list(one.get("choices", [])), "help": one.get("help", "")})
        told.append({"name": preset["name"], "title": preset["title"], "words": preset["words"], "fields": described,
                     "sources": list(preset.get("sources", []))})
    return told


def make(preset: str, *, name: str, practice: bool = False, **given: Any) -> Channel:
    """A channel from a preset and what a person filled in; what is left out or empty has its default.

    Raises BadInput for a value that is not right; its `facts["field"]` names the field.
    """
    form: dict[str, Any] | None = next((one for one in presets() if one["name"] == preset), None)
    if form is None:
        raise BadInput(f"There is no channel preset `{_shown(preset)}`", hint=f"Use one of {', '.join(one['name'] for one in presets())}",
                       field="preset")
    known: dict[str, Any] = {field["name"]: field for field in form["fields"]}
    if unknown := sorted(set(given) - set(known)):
        raise BadInput(f"A channel of preset `{preset}` has no field `{_shown(unknown[0])}`", hint=f"Known: {', '.join(known)}", field=unknown[0])
    values = {str(field): _value(spec, given.get(field)) for field, spec in known.items()}
    fields = _fields(preset, values)
    try:
        made = Channel(name=name, practice=practice, **fields)
        return check(made)
    except BadInput as error:
        error.facts.setdefault("field", "name" if "channel name" in error.what else "")
        raise


def _value(spec: Mapping[str, Any], value: Any) -> Any:
    """A field's value in the form that its kind says; its default where nothing was given."""
    name, kind = str(spec["name"]), str(spec["kind"])
    if value is None or value == "" or value == []:
        if spec["required"]:
            raise BadInput(f"`{spec['title']}` is missing", hint=spec["help"], field=name)
        return list(spec["default"]) if kind == "lines" else spec["default"]
    forms: dict[str, type] = {"switch": bool, "lines": list, "json": dict}
    if kind == "lines" and isinstance(value, str):
        value = [line.strip() for line in value.splitlines() if line.strip()]
    if kind == "json" and isinstance(value, str):
        value = _json(value, spec["title"], name)
    fits = isinstance(value, forms.get(kind, str))
    if not fits or (kind == "lines" and not all(isinstance(line, str) for line in value)):
        raise BadInput(f"`{spec['title']}` has the wrong form", why=f"It holds {str(value)[:60]!r}", field=name)
    if kind == "choice" and value not in spec["choices"]:
        raise BadInput(f"`{_shown(value)}` is no choice for `{spec['title']}`", hint=f"Use one of {', '.join(spec['choices'])}", field=name)
    try:
        return _CHECKS[name](value) if name in _CHECKS else value
    except BadInput as error:
        error.facts["field"] = name
        raise


def _json(text: str, title: str, name: str) -> dict[str, Any]:
    try:
        if len(text) > FILE_LIMIT:
            raise ValueError("it is too long")
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{title}` is no JSON", why=str(error)[:200], field=name) from error
    if not isinstance(read, dict):
        raise BadInput(f"`{title}` must be a JSON object", field=name)
    return read


def _commit(text: str) -> str:
    if not _COMMIT.match(text):
        raise BadInput(f"`{_shown(text)}` is no full commit", hint="40 hexadecimal digits, as `git rev-parse` prints")
    return text


def _recipe(raw: dict[str, Any]) -> dict[str, Any]:
    from ops.environments import recipe

    return recipe.read(raw)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "index_url": lambda text: text if text == PUBLIC_INDEX else index_url(text),
    "extra_index_urls": lambda lines: [index_url(line) for line in lines],
    "requirements": lambda lines: [requirement(line) for line in lines],
    "without": lambda lines: [left_out(line) for line in lines],
    "wheelhouse": folder, "variant": variant, "commit": _commit, "recipe": _recipe,
    "torch_backend": lambda text: argument("torch-backend", text), "exclude_newer": lambda text: argument("exclude-newer", text),
}


def _fields(preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The channel's own fields from those of the form."""
    entry = next(one for one in _table()["preset"] if one["name"] == preset)
    wanted = str(values.get("variant", ""))
    first = []
    if "index" in entry:
        if wanted and not _INDEX_VARIANT.match(wanted):
            raise BadInput(f"vLLM publishes no index for the build `{wanted}`", hint="Write it like cu129, cu130 or cpu", field="variant")
        first.append(entry["index"].format(variant=f"/{wanted}" if wanted else "", commit=values.get("commit", "")))
    if values.get("flashinfer"):
        if values.get("wheelhouse"):
            raise BadInput("A wheelhouse is used without any network, FlashInfer's own index cannot be asked", field="flashinfer")
        told = _table()["flashinfer"]
        first += [told["variant_index"].format(variant=wanted)] if re.match(r"cu\d{3}\Z", wanted) else []
        first.append(told["index"])
    extra = [*first, *values.get("extra_index_urls", [])]
    wheelhouse = str(values.get("wheelhouse", ""))
    offline = bool(wheelhouse) or preset == "wheelhouse"
    if offline and extra:
        raise BadInput("A wheelhouse is used without any network, no index can be asked", field="extra_index_urls")
    arguments = {name: str(values[field]) for name, field in (("torch-backend", "torch_backend"), ("exclude-newer", "exclude_newer"))
                 if values.get(field)}
    if offline and arguments:
        raise BadInput("A wheelhouse is used without any network, this does not apply", field=next(iter(arguments)).replace("-", "_"))
    fields: dict[str, Any] = {
        "kind": "recipe" if preset == "recipe" else "wheelhouse" if offline else "index", "preset": "" if preset == "index" else preset,
        "wheelhouse": wheelhouse, "index_url": "" if offline else str(values.get("index_url") or PUBLIC_INDEX), "extra_index_urls": extra,
        "index_strategy": str(values.get("index_strategy") or entry.get("index_strategy", INDEX_STRATEGIES[0])), "arguments": arguments,
        "variant": wanted, "commit": str(values.get("commit", "")), "prerelease": bool(values.get("prerelease", preset != "stable")),
    }
    if values.get("requirements"):
        fields["requirements"] = list(values["requirements"])
    if values.get("without"):
        fields["without"] = list(values["without"])
    if preset == "stable":
        fields |= {"requirements": serving_requirements(), "constraints": serving_constraints()}
    if preset == "recipe":
        fields |= {"recipe": values["recipe"], "requirements": []}
    return fields


def serving_requirements(path: Path = SERVING_PINS) -> list[str]:
    """The pins of the stable channel, from `requirements-serving.in`."""
    lines = (line.partition(" #")[0].strip() for line in _text(path).splitlines())
    return [requirement(line) for line in lines if line and not line.startswith("#")]


def serving_constraints(path: Path = SERVING_LOCK) -> list[str]:
    """All packages of `requirements-serving.txt` with the hashes of their files, one string each."""
    joined = re.sub(r"\\\n\s*", "", _text(path))
    lines = (line.strip() for line in joined.splitlines() if line and not line[0].isspace() and not line.startswith("#"))
    found = []
    for line in lines:
        pin, *words = line.split()
        found.append(" ".join([requirement(pin), *(word for word in words if word.startswith("--hash="))]))
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
        if len(data) > FILE_LIMIT:
            raise BadInput(f"`{path}` is too large", why=f"At most {FILE_LIMIT // 1024 // 1024} MB are read")
        return data.decode()
    except OSError as error:
        raise BadInput(f"`{_shown(str(path))}` cannot be read", why=error.strerror or str(error)) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise BadInput(f"`{_shown(str(path))}` cannot be read", why=str(error)) from error


def parse(spec: str, *, config: NodeConfig | None = None) -> Channel:
    """A channel from one word, as the command line takes it: `stable`, `nightly`, `nightly:cu129`, `commit:SHA`, `commit:SHA:cu129`,
    `wheelhouse:/path`, `recipe:/file.json`, or the path of a JSON file with a channel record.

    With `config` it is one of that node (practice wheels on a practice node), and Refused is raised for what the node does not allow.
    """
    word, _, rest = spec.partition(":")
    practice = config.practice if config else False
    if spec.startswith(("/", "./")) or (spec.endswith(".json") and word != "recipe"):
        made = check(Channel.from_dict(_json(_text(Path(spec)), spec[:60], "")))
    elif word == "stable" and not rest:
        made = make("stable", name="stable")
    elif word == "nightly":
        made = make("nightly", name="nightly", variant=rest)
    elif word == "commit":
        commit, _, build = rest.partition(":")
        made = make("commit", name=f"commit-{commit[:12]}" if _COMMIT.match(commit) else "commit", commit=commit, variant=build)
    elif word == "wheelhouse":
        made = make("wheelhouse", name="wheelhouse", wheelhouse=rest, practice=practice)
    elif word == "recipe":
        raw = _json(_text(Path(rest)), "Recipe", "recipe")
        made = make("recipe", name="recipe", recipe=raw, practice=practice, **_recipe_places(raw))
    else:
        raise BadInput(f"`{_shown(spec)}` is no channel",
                       hint="Use stable, nightly[:cu129], commit:SHA[:cu129], wheelhouse:/path, recipe:/file.json, or a JSON file with a channel")
    if config is not None:
        allowed(made, config)
    return made


def _recipe_places(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Where the recipe's release came from: the command line takes its wheels from there; an admin says it in the form."""
    origin = raw.get("channel")
    if not isinstance(origin, dict):
        return {}
    if isinstance(origin.get("wheelhouse"), str) and origin["wheelhouse"]:
        return {"wheelhouse": origin["wheelhouse"]}
    places = {"index_url": origin.get("index_url"), "extra_index_urls": origin.get("extra_index_urls"),
              "index_strategy": origin.get("index_strategy")}
    return {name: value for name, value in places.items() if value}


def names(requirements: Sequence[str]) -> list[str]:
    """The normalized names of requirements."""
    return [canonicalize_name(Requirement(text).name) for text in requirements]
