"""A release that passed everything, in one file: what to install, how it was started, and what it did. Another node can build it again.

The file is JSON. It holds the full lock (each wheel by name, version, file and SHA-256), the interpreter and platform, flags, environment variables,
guards, reference numbers and the fingerprint. Secrets are left out: their names stand where somebody has to set them. `hash` is the SHA-256 over all
the rest in its canonical form (ops/environments/fingerprint.py). A recipe comes from elsewhere: `read` believes nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ops.environments import fingerprint, integrity, model_files, packages, releases, wheelhouse
from ops.gpus.source import GpuSnapshot
from ops.jobs.errors import BadInput, OpsError, Refused
from ops.records import NEVER_IN_TEXT, Channel, Guard, ServiceRecord
from ops.services import state

SCHEMA = "roundhouse.recipe/1"
FILE_LIMIT = 4 * 1024 * 1024  # bytes; 200 packages with their fingerprint make 100 kB
PACKAGES_MAX = 2000
FLAGS_MAX = 500
ENV_MAX = 500
GUARDS_MAX = 500
LEVELS_MAX = 200
PHASES_MAX = 50
LARGEST = 1e300
TEXT_MAX = 4096
LABEL_MAX = 120
# What of a level goes into a recipe: the numbers that people compare
LEVEL_NUMBERS = ("concurrency", "requests", "finished", "errors", "output_tok_s", "output_tok_s_per_gpu", "scaling_x", "ttft_p50_ms", "ttft_p99_ms",
                 "tpot_p50_ms", "tpot_p99_ms", "e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "power_mean_w")
COUNTS = ("requests", "finished", "errors")
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,3})?([a-z0-9.+-]{0,20})\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_FLAG = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9_.-]{0,100}\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}\Z")
_ADDRESS = re.compile(r"(public|https?://[^\s/@?#]{1,300}(/[^\s@?#]{0,300})?)?\Z")


# Making one


def make(record: ServiceRecord, release: Path, *, reference: Mapping[str, Any] | None = None, label: str = "", told_to: bool = False,
         node: str | None = None, gpus: GpuSnapshot | None = None, report: integrity.IntegrityReport | None = None) -> dict[str, Any]:
    """The recipe of a release.

    `reference`: {"sweep": {"run_id", "preset", "at", "levels": [LevelMetrics.as_dict()]} or null, "warmup": {"total_s", "cache", "phases"} or null};
    by default the release's own last warmup. `told_to`: also of a release that is not the last good one. `report`: an integrity check made before.

    Raises BadInput for a release that did not pass everything, that somebody edited or changed since it was built, or whose wheels are not known.
    """
    manifest = releases.manifest(release)
    if release.name != releases.last_good(record) and not told_to:
        raise BadInput(f"The release `{release.name}` is not the last good one", why="A recipe is made of what passed everything",
                       hint="Redeploy with smoke tests first, or say that it is meant all the same")
    installed = packages.read(release)
    lock = _lock(release, manifest, installed)
    found = report or integrity.check(release)
    if found.findings:
        files = "1 file differs" if len(found.findings) == 1 else f"{len(found.findings):,} files differ"
        raise BadInput(f"{files} from what was installed in `{release.name}`: a recipe would not hold those edits",
                       why=", ".join(f"`{finding.path}`" for finding in found.findings[:3]),
                       hint="Redeploy first: the edits are kept on the patch shelf")
    told = _fingerprint(record, release, gpus, found)
    env = fingerprint.hide_env(record.env)
    flags, flags_to_set = _without_secrets(record.flags)
    channel = (manifest or {}).get("channel") or {}
    made: dict[str, Any] = {
        "schema": SCHEMA, "label": label.strip() or f"vllm {installed.version('vllm') or 'without a version'}", "made_at": time.time(),
        "practice": record.practice, "from": {"service": record.name, "node": node or platform.node() or None, "release": release.name},
        "python": {"version": installed.python_version, "implementation": "cpython"},
        "platform": {"system": platform.system().lower(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver()).strip() or None},
        "version": installed.version("vllm"), "packages": lock,
        "channel": {"kind": channel.get("kind") or None, "preset": channel.get("preset") or None, "wheelhouse": channel.get("wheelhouse") or "",
                    "index_url": channel.get("index_url") or "", "extra_index_urls": list(channel.get("extra_index_urls") or []),
                    "variant": channel.get("variant") or ""},
        "flags": flags, "flags_to_set": flags_to_set,
        "env": {name: value for name, value in env.items() if value == record.env[name]},
        "env_to_set": sorted(name for name, value in env.items() if value != record.env[name]),
        "env_files": [path.removeprefix("-") for path in record.env_files],
        "guards": [Guard.from_dict(raw).as_dict() for raw in record.guards],
        "reference": _reference(reference, record, release), "fingerprint": told,
    }
    made["hash"] = digest(made)
    return read(made)


def _lock(release: Path, manifest: Mapping[str, Any] | None, installed: packages.EnvironmentPackages) -> list[dict[str, Any]]:
    """Every package with its wheel. Raises BadInput where one is not known, or is another one now."""
    known = {package["name"]: package for package in (manifest or {}).get("packages", [])}
    lock, unknown, other = [], [], []
    for name, version in installed.versions().items():
        package = known.get(name) or {}
        if package.get("version") != version and package:
            other.append(f"`{name}` {version}")
        elif not package.get("sha256") or not package.get("file"):
            unknown.append(f"`{name}`")
        else:
            lock.append({"name": name, "version": version, "file": package["file"], "sha256": package["sha256"],
                         "size_bytes": package.get("size_bytes")})
    if other or (gone := sorted(f"`{name}`" for name in known.keys() - installed.versions().keys())):
        raise BadInput(f"The release `{release.name}` is not what was built any more", why=f"Changed since: {', '.join((other or gone)[:5])}",
                       hint="Redeploy first")
    if unknown:
        raise BadInput(f"The release `{release.name}` has packages of which no wheel is known", why=", ".join(unknown[:5]),
                       hint="Roundhouse knows the wheels of what it installed itself, not of what was there before and was copied: build a full "
                            "release from a channel, and go to that one")
    return lock


def _fingerprint(record: ServiceRecord, release: Path, gpus: GpuSnapshot | None, report: integrity.IntegrityReport) -> dict[str, Any]:
    """Taken now; of the GPUs what was read at this release's last good start, if nobody gives a reading."""
    told = fingerprint.fingerprint(record, release=release, gpus=gpus, report=report)
    kept = fingerprint.last_good_start(record)
    if gpus is None and kept is not None and kept.get("release") == release.name:
        told["gpus"] = kept["fingerprint"].get("gpus")
        told["hash"] = fingerprint.digest(told)
    return told


def _without_secrets(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags that may go along, and the names of those whose values somebody has to set: a flag goes with all of its values."""
    kept: list[str] = []
    to_set: list[str] = []
    group: list[str] = []
    secret = False
    for flag, shown in [*zip(flags, fingerprint.hide_flags(list(flags)), strict=True), ("--", "--")]:
        if flag.startswith("--") and group:
            if secret:
                to_set.append(group[0].partition("=")[0])
            else:
                kept += group
            group, secret = [], False
        group.append(flag)
        secret = secret or shown != flag
    return kept, [name for name in dict.fromkeys(to_set) if _FLAG.match(name)]


def _reference(given: Mapping[str, Any] | None, record: ServiceRecord, release: Path) -> dict[str, Any]:
    sweep, warmup = (given or {}).get("sweep"), (given or {}).get("warmup")
    if warmup is None:
        warmup = next((one for one in reversed(state.warmups(record)) if one.get("release") == release.name), None)
    told: dict[str, Any] = {"sweep": None, "warmup": None}
    if isinstance(sweep, Mapping) and sweep.get("levels"):
        told["sweep"] = {
            "run_id": sweep.get("run_id"), "preset": sweep.get("preset"), "at": sweep.get("at") or sweep.get("started_at"),
            "short": bool(sweep.get("short")), **({"runs": int(runs)} if (runs := _number(sweep.get("runs"))) and runs > 1 else {}),
            "levels": [{**{name: _number(level.get(name)) for name in LEVEL_NUMBERS}, "marks": [str(mark) for mark in level.get("marks") or []],
                        **({"load": "open", "value": _number(level.get("value"))} if level.get("load") == "open" else {})}
                       for level in sweep["levels"][:LEVELS_MAX]]}
    if isinstance(warmup, Mapping):
        phases = warmup.get("phases")
        pairs = phases.items() if isinstance(phases, Mapping) else [(one.get("phase"), one.get("took_s")) for one in phases or []]
        told["warmup"] = {"total_s": _number(warmup.get("total_s")), "cache": warmup.get("cache"),
                          "phases": {str(name): _number(seconds) for name, seconds in list(pairs)[:PHASES_MAX]}}
    return told


def _number(value: Any) -> float | int | None:
    """A finite number; an integer may be beyond every float."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST else None


def reference_from(record: ServiceRecord, release: Path, runs: Path) -> dict[str, Any] | None:
    """Reference numbers out of the node's own runs (`runs/<id>/result.json`): the newest whole sweep of that release; one with few requests only if
    there is no other. Of a sweep that was repeated (one group), the median of its whole runs for each level. None: there was none."""
    best: tuple[bool, float, dict[str, Any]] | None = None
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in runs.glob("*/result.json"):
        try:
            raw = json.loads(model_files.read_limited(path))
        except (OSError, OpsError, ValueError, RecursionError):  # one run of many that cannot be read: it is no reference, and no obstacle
            continue
        told = raw.get("fingerprint") if isinstance(raw, dict) else None
        if not isinstance(told, dict) or (told.get("service"), told.get("release")) != (record.name, release.name) or raw.get("state") != "done":
            continue
        if raw.get("practice") is not record.practice or not isinstance(raw.get("levels"), list):
            continue
        rank = (not raw.get("short"), float(_number(raw.get("started_at")) or 0))
        levels = [{name: level.get(name) for name in (*LEVEL_NUMBERS, "load", "value", "marks", "state")} for level in raw["levels"][:LEVELS_MAX]
                  if isinstance(level, dict)]
        group = raw.get("group") if isinstance(raw.get("group"), str) else None
        sweep = {"run_id": raw.get("run_id"), "preset": raw.get("preset"), "at": raw.get("started_at"), "short": raw.get("short"), "levels": levels}
        if group is not None:
            groups.setdefault(group, []).append(sweep)
        if best is None or rank > best[:2]:
            best = (*rank, sweep | {"group": group})
    if best is None:
        return None
    newest = best[2]
    together = [one for one in groups.get(newest.pop("group") or "", []) if bool(one["short"]) is bool(newest["short"])]
    return {"sweep": newest if len(together) < 2 else newest | {"levels": _medians(newest, together), "runs": len(together)}}


def _medians(newest: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The levels of the newest run with the median over all runs that ended the level; what counts is of all of them together, and so are marks."""
    def at(level: Mapping[str, Any]) -> tuple[Any, Any]:
        return level.get("load") or "closed", level.get("value") if level.get("load") == "open" else level.get("concurrency")

    made = []
    for level in newest["levels"]:
        same = [one for run in runs for one in run["levels"] if at(one) == at(level) and (one.get("state") or "done") == "done"] or [level]
        merged = dict(level)
        for name in LEVEL_NUMBERS:
            numbers = [found for one in same if (found := _number(one.get(name))) is not None]
            if name != "concurrency":
                merged[name] = None if not numbers else sum(numbers) if name in COUNTS else statistics.median(numbers)
        merged["marks"] = list(dict.fromkeys(str(mark) for one in same for mark in (one.get("marks") or [] if isinstance(one.get("marks"), list)
                                                                                    else [])))
        made.append(merged)
    return made


def save(record: ServiceRecord, recipe: Mapping[str, Any]) -> Path:
    """Writes it to `services/<name>/recipes/`, in one step, mode 0600; the same recipe is kept once. Raises OpsError where that cannot be done."""
    folder = record.folder / "recipes"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(recipe["made_at"]))
    words = re.sub(r"[^a-z0-9.]+", "-", recipe["label"].lower()).strip("-.")[:40] or "recipe"
    path = folder / f"{stamp}-{words}-{recipe['hash'][:8]}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.write_file(path, json.dumps(recipe, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise OpsError(f"The recipe cannot be saved in `{folder}`", why=error.strerror or str(error)) from error
    return path


# Reading one


def digest(recipe: Mapping[str, Any]) -> str:
    """SHA-256 over all but `hash`."""
    return hashlib.sha256(fingerprint.canonical({key: value for key, value in recipe.items() if key != "hash"}).encode()).hexdigest()


def read(source: Path | str | Mapping[str, Any]) -> dict[str, Any]:
    """The recipe in a file, or in an object from JSON, with every field checked. Raises BadInput naming what is wrong."""
    raw = dict(source) if isinstance(source, Mapping) else _load(Path(source))
    if raw.get("schema") != SCHEMA:
        raise BadInput("This is no recipe", why=f"Its schema is {str(raw.get('schema'))[:60]!r}", hint=f"A recipe has the schema `{SCHEMA}`")
    if unknown := sorted(str(key) for key in raw.keys() - _FIELDS.keys()):
        raise BadInput(f"The recipe has an unknown field `{unknown[0][:60]}`", hint="It may come from a newer Roundhouse")
    if missing := sorted(_FIELDS.keys() - raw.keys()):
        raise BadInput(f"The recipe has no `{missing[0]}`", why="It is cut off, or was edited")
    _size(raw)
    for name, check in _FIELDS.items():
        try:
            check(raw[name])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"The field `{name}` of the recipe has the wrong form", why=str(error)[:300]) from error
    if len({package["name"] for package in raw["packages"]}) != len(raw["packages"]):
        raise BadInput("The recipe names a package twice")
    if raw["version"] != next((package["version"] for package in raw["packages"] if package["name"] == "vllm"), None):
        raise BadInput("The recipe's version is not that of its vllm")
    if digest(raw) != raw["hash"]:
        raise BadInput("The recipe was changed after it was made", why="Its hash does not fit its content",
                       hint="Get the file again from where it was made")
    return raw


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(model_files.read_limited(path, FILE_LIMIT), parse_constant=_no_constant)
    except FileNotFoundError as error:
        raise BadInput(f"There is no recipe `{path}`") from error
    except OpsError as error:
        raise BadInput(error.what, why=error.why, hint=error.hint) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` is not JSON", why=str(error)[:200]) from error
    if not isinstance(raw, dict):
        raise BadInput(f"`{path}` holds no recipe", why="A recipe is a JSON object")
    return raw


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _size(raw: Mapping[str, Any]) -> None:
    try:
        size = len(json.dumps(raw))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput("The recipe is no JSON object", why=str(error)[:200]) from error
    if size > FILE_LIMIT:
        raise BadInput("The recipe is too large", why=f"{size:,} bytes; the limit is {FILE_LIMIT:,}")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _text(value: Any, limit: int = TEXT_MAX, *, empty: bool = True) -> None:
    _expect(isinstance(value, str), f"{str(value)[:60]!r} is no text")
    _expect(len(value) <= limit and not NEVER_IN_TEXT.search(value) and (empty or bool(value)), f"{value[:60]!r} is too long, empty, or no text")


def _line(value: Any, limit: int, *, empty: bool = True) -> None:
    _text(value, limit, empty=empty)
    _expect(value.isprintable(), f"{value[:60]!r} has characters that do not print")


def _optional(check: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda value: None if value is None else check(value)


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        _text(value)
        _expect(bool(pattern.match(value)), f"{value[:80]!r} is none")

    return check


def _moment(value: Any) -> None:
    _expect(_number(value) is not None and 0 <= value < 1e11, f"{str(value)[:60]!r} is no time")


def _figure(value: Any) -> None:
    _expect(value is None or _number(value) is not None, f"{str(value)[:60]!r} is no number")


def _keys(value: Any, names: Iterable[str]) -> None:
    _expect(isinstance(value, dict), "it is no object")
    _expect(set(value) == set(names), f"it must have exactly {', '.join(sorted(names))}")


def _list(value: Any, limit: int) -> None:
    _expect(isinstance(value, list), "it is no list")
    _expect(len(value) <= limit, f"it has {len(value):,} entries; the limit is {limit:,}")


def _from(value: Any) -> None:
    _keys(value, ("service", "node", "release"))
    _matching(_WORD)(value["service"])
    _optional(lambda text: _line(text, 255))(value["node"])
    _line(value["release"], 200, empty=False)


def _python(value: Any) -> None:
    _keys(value, ("version", "implementation"))
    _matching(_PYTHON)(value["version"])
    _expect(value["implementation"] == "cpython", "only CPython is known")


def _platform(value: Any) -> None:
    _keys(value, ("system", "machine", "libc"))
    _matching(_WORD)(value["system"])
    _matching(_WORD)(value["machine"])
    _optional(lambda text: _line(text, 80))(value["libc"])


def _packages(value: Any) -> None:
    _list(value, PACKAGES_MAX)
    _expect(bool(value), "it is empty")
    for package in value:
        _keys(package, ("name", "version", "file", "sha256", "size_bytes"))
        name, version, file = package["name"], package["version"], package["file"]
        for text in (name, version, file):
            _line(text, 300, empty=False)
        _expect(bool(re.match(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z", name)), f"{name!r} is no normalized name")
        try:
            _expect(str(Version(version)) is not None, version)
            wheel_name, wheel_version, _, _ = parse_wheel_filename(file)
        except (InvalidVersion, InvalidWheelFilename) as error:
            raise ValueError(str(error)) from error
        _expect(wheel_name == canonicalize_name(name) and wheel_version == Version(version), f"{file!r} is no wheel of {name} {version}")
        _matching(_HEX)(package["sha256"])
        size = package["size_bytes"]
        _expect(size is None or (isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**50), f"{size!r} is no size")


def _channel(value: Any) -> None:
    _keys(value, ("kind", "preset", "wheelhouse", "index_url", "extra_index_urls", "variant"))
    _optional(_matching(_WORD))(value["kind"])
    _optional(_matching(_WORD))(value["preset"])
    _text(value["wheelhouse"])
    _expect(value["wheelhouse"] == "" or value["wheelhouse"].startswith("/"), "the wheelhouse is no absolute path")
    _list(value["extra_index_urls"], 20)
    for address in (value["index_url"], *value["extra_index_urls"]):
        _matching(_ADDRESS)(address)
    _expect(value["variant"] == "" or bool(_WORD.match(value["variant"])), "the variant is no word")


def _flags(value: Any) -> None:
    _list(value, FLAGS_MAX)
    for flag in value:
        _text(flag)


def _flag_names(value: Any) -> None:
    _list(value, FLAGS_MAX)
    for name in value:
        _matching(_FLAG)(name)


def _env(value: Any) -> None:
    _expect(isinstance(value, dict), "it is no object")
    _expect(len(value) <= ENV_MAX, f"it has {len(value):,} variables")
    for name, text in value.items():
        _variable(name)
        _text(text, 32_768)


def _variable(name: Any) -> None:
    _matching(_VARIABLE)(name)
    _expect(not name.startswith("ROUNDHOUSE_"), f"{name} is a variable of Roundhouse itself")


def _env_names(value: Any) -> None:
    _list(value, ENV_MAX)
    for name in value:
        _variable(name)


def _paths(value: Any) -> None:
    _list(value, 50)
    for path in value:
        _text(path)
        _expect(path.startswith("/"), f"{path[:60]!r} is no absolute path")


def _guards(value: Any) -> None:
    _list(value, GUARDS_MAX)
    for raw in value:
        try:
            Guard.from_dict(raw)
        except BadInput as error:
            raise ValueError(error.what) from error


def _references(value: Any) -> None:
    _keys(value, ("sweep", "warmup"))
    sweep, warmup = value["sweep"], value["warmup"]
    if sweep is not None:
        _keys(sweep, ("run_id", "preset", "at", "short", "levels", *(("runs",) if "runs" in sweep else ())))  # of a single run there is none
        _expect("runs" not in sweep or (type(sweep["runs"]) is int and 1 < sweep["runs"] <= 1000), "`runs` is no number of runs")
        _optional(_matching(_WORD))(sweep["run_id"])
        _optional(_matching(_WORD))(sweep["preset"])
        _optional(_moment)(sweep["at"])
        _expect(isinstance(sweep["short"], bool), "`short` is neither true nor false")
        _list(sweep["levels"], LEVELS_MAX)
        for level in sweep["levels"]:
            rate = isinstance(level, dict) and "load" in level  # requests a second; a level without it is a concurrency
            _keys(level, (*LEVEL_NUMBERS, "marks", *(("load", "value") if rate else ())))
            _expect(not rate or (level["load"] == "open" and _number(level["value"]) is not None), "a level of a rate has none")
            for name in LEVEL_NUMBERS:
                _figure(level[name])
            _list(level["marks"], 50)
            for mark in level["marks"]:
                _line(mark, 80)
    if warmup is not None:
        _keys(warmup, ("total_s", "cache", "phases"))
        _figure(warmup["total_s"])
        _optional(_matching(_WORD))(warmup["cache"])
        _expect(isinstance(warmup["phases"], dict) and len(warmup["phases"]) <= PHASES_MAX, "the phases are no object, or too many")
        for name, seconds in warmup["phases"].items():
            _line(name, 80, empty=False)
            _figure(seconds)


def _told(value: Any) -> None:
    """The fingerprint is shown and compared, nothing is built from it: its form is that of JSON, with bounds, and its hash must fit."""
    _expect(isinstance(value, dict) and _depth(value) <= 12, "it is no object, or nested too deep")
    _expect(value.get("hash") == fingerprint.digest(value), "its own hash does not fit")


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


_FIELDS: dict[str, Callable[[Any], None]] = {
    "schema": lambda value: _text(value, 60), "label": lambda value: _line(value, LABEL_MAX, empty=False), "made_at": _moment,
    "practice": lambda value: _expect(isinstance(value, bool), "it is neither true nor false"), "from": _from, "python": _python,
    "platform": _platform, "version": lambda value: _line(value, 200, empty=False), "packages": _packages, "channel": _channel, "flags": _flags,
    "flags_to_set": _flag_names, "env": _env, "env_to_set": _env_names, "env_files": _paths, "guards": _guards, "reference": _references,
    "fingerprint": _told, "hash": _matching(_HEX),
}


# Using one


def as_channel(recipe: Mapping[str, Any], *, name: str, wheelhouse: str = "", index_url: str = "",
               extra_index_urls: Sequence[str] = ()) -> Channel:
    """A channel that installs just this recipe, from that folder or those indexes. Where the recipe's own release came from is not taken over: an
    admin says where wheels come from. Raises BadInput."""
    checked = read(recipe)
    # Each package stands in one version with its hash, so it does not matter which of the indexes has it
    return Channel.from_dict(Channel(
        name=name, kind="recipe", preset="recipe", wheelhouse=wheelhouse, index_url=index_url, extra_index_urls=list(extra_index_urls),
        index_strategy="first-index" if wheelhouse else "unsafe-first-match", requirements=[], variant=checked["channel"]["variant"],
        recipe=checked, practice=checked["practice"]).as_dict())


def problems(recipe: Mapping[str, Any], record: ServiceRecord, *, python_version: str) -> list[str]:
    """What keeps the recipe from being built for that service with that interpreter on this machine, in sentences; empty if nothing does."""
    found = []
    if recipe["practice"] != record.practice:
        found.append("It comes from a practice service, and this one is real" if recipe["practice"] else
                     "It comes from a real service, and this one is for practice")
    made_for = ".".join(recipe["python"]["version"].split(".")[:2])
    if made_for != ".".join(python_version.split(".")[:2]):
        found.append(f"It was made for Python {made_for}, and the interpreter is {python_version}")
    unfit = [package["file"] for package in recipe["packages"] if wheelhouse.best([package["file"]], python_version) is None]
    if unfit:
        found.append(f"{len(unfit):,} of its wheels do not fit this machine, such as `{unfit[0]}`")
    return found


def require_fit(recipe: Mapping[str, Any], record: ServiceRecord, *, python_version: str) -> None:
    """Raises Refused if the recipe cannot be built for that service."""
    if wrong := problems(recipe, record, python_version=python_version):
        raise Refused(f"The recipe `{recipe['label']}` does not fit service `{record.name}`", why="; ".join(wrong))


def held_against(recipe: Mapping[str, Any], record: ServiceRecord) -> list[str]:
    """What of the service's settings differs from the recipe's, in sentences: a channel installs packages, the rest is for a person to set."""
    told = []
    mine, theirs = fingerprint.parsed_flags(fingerprint.hide_flags(record.flags)), fingerprint.parsed_flags(recipe["flags"])
    for name in sorted(theirs.keys() - mine.keys()):
        told.append(f"the recipe has the flag {name}" + (f" {theirs[name]}" if theirs[name] else ""))
    for name in sorted(mine.keys() - theirs.keys() - set(recipe["flags_to_set"])):
        told.append(f"the recipe does not have the flag {name}")
    told += [f"the recipe has {name} {theirs[name]}, the service {mine[name]}" for name in sorted(theirs.keys() & mine.keys())
             if theirs[name] != mine[name]]
    told += [f"the recipe sets {name}={value}" for name, value in sorted(recipe["env"].items()) if record.env.get(name) != value]
    told += [f"{name} is to be set: the recipe leaves its value out" for name in (*recipe["flags_to_set"], *recipe["env_to_set"])
             if name not in mine and name not in record.env]
    own = [Guard.from_dict(raw) for raw in record.guards]
    told += [f"the recipe has the guard {guard.kind} of `{guard.file}`" + (f" ({guard.key})" if guard.key else "")
             for guard in map(Guard.from_dict, recipe["guards"]) if guard not in own]
    return told
