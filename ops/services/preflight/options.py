"""Does the release know the service's flags, and the names that they carry? Held against its own `vllm serve --help`.

The help imports all of vLLM: 17 s on an idle machine, 50 s on a busy one. So what it says is kept in `help.json` beside the launcher, and asked
again only when the files of the release that decide it have changed.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.environments import packages
from ops.jobs.errors import BadInput, CommandFailed, OpsError, Timeout
from ops.records import ServiceRecord
from ops.services import state, vllm_arguments
from ops.services.preflight.built import vllm_of
from ops.services.preflight.looks import Looks
from ops.services.surroundings import Surroundings

HELP_LIMIT_S = 300.0
KEPT = 10  # releases
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_LINE = re.compile(r"(?m)^[ \t]{1,8}(-{1,2}[A-Za-z].*)$")
_DECIDES = ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/cli/serve.py")
_PARSER_SOURCES = {
    "--reasoning-parser": ("vllm/reasoning",), "--tool-call-parser": ("vllm/tool_parsers", "vllm/entrypoints/openai/tool_parsers")}
_REGISTERED = re.compile(r"register_module\(\s*(?:name\s*=\s*)?\[?\s*[\"']([\w.-]+)[\"']")
_SOURCE_LIMIT = 1 << 20
PARSERS = {"--tool-call-parser": "--tool-parser-plugin", "--reasoning-parser": "--reasoning-parser-plugin"}  # and what may bring further names


@dataclass(frozen=True, slots=True)
class Options:
    """What a release takes: the names of all its options, and the values that it lists for some of them."""

    names: list[str]
    choices: dict[str, list[str]]


def flags(looks: Looks, record: ServiceRecord, release: Path, found: Surroundings) -> None:
    known = _known(looks, record, release, found)
    if known is not None:
        for one in problems(known, record):
            looks.add(one["level"], one["title"], why=one["why"], fix=one["fix"])


def problems(known: Options, record: ServiceRecord) -> list[dict[str, str]]:
    """[{level, title, why, fix}]: the service's flags against what a release takes."""
    told: list[dict[str, str]] = []

    def add(level: str, title: str, *, why: str = "", fix: str = "") -> None:
        told.append({"level": level, "title": title, "why": why, "fix": fix})

    if len([name for name in known.names if name.startswith("--")]) < 10:
        add("note", "`vllm serve --help` of the release lists no options", why="The service's flags could not be held against it")
        return told
    unknown = []
    for name in dict.fromkeys([*(_name(flag) for flag in record.flags), *_of_config(add, record)]):
        if not name or name in known.names or name.startswith("-O") or (not name.startswith("--") and len(name) > 2 and name[:2] in known.names):
            continue  # -O, -O3 and -O.mode=3 are taken before the parser sees them
        longer = [one for one in known.names if name.startswith("--") and one.startswith(name)]
        if len(longer) == 1:  # argparse takes the beginning of a name for the whole one
            add("note", f"`{name}` is short for `{longer[0]}`", why="Another option with this beginning would make it ambiguous",
                fix="Write the whole name in the launch settings")
            continue
        unknown.append(name)
        near = longer[:1] or difflib.get_close_matches(name, known.names, 1, 0.75)
        add("stop", f"The release does not know the flag `{name}`", why="vLLM would end at once: unrecognized arguments",
            fix=f"Did you mean `{near[0]}`? Correct the launch settings" if near else "Remove it from the launch settings")
    if not unknown:
        add("ok", "The release knows all flags of the service")
    for option, listed in known.choices.items():
        _value(add, record, option, listed)
    return told


def _value(add: Callable[..., None], record: ServiceRecord, option: str, listed: list[str]) -> None:
    given = vllm_arguments.values(record.flags, option)
    if given is None or len(given) != 1:
        return
    parser = option in PARSERS
    if given[0] in listed:
        if parser:
            add("ok", f"The release has the parser `{given[0]}` ({option})")
        return
    near = difflib.get_close_matches(given[0], listed, 1, 0.5)
    told = f"{f'Did you mean `{near[0]}`? ' if near else ''}It has: {', '.join(listed)}"
    if parser:
        if vllm_arguments.value(record.flags, PARSERS[option]) is None and vllm_arguments.value(record.flags, "--tool-parser-plugin") is None:
            add("stop", f"The release has no parser `{given[0]}` for {option}", why="vLLM would end at once: invalid parser", fix=told)
    elif not {part.lower() for part in given[0].split(",")} <= {one.lower() for one in listed} and given[0] not in ("", "None"):
        add("warning", f"The release does not list `{given[0][:80]}` for {option}", why="vLLM ends at once where it takes no other value", fix=told)


def _name(flag: str) -> str:
    """`--name` of `--name=value`, `--name.key`, `--name.list+` and `--some_name`; "" for a value."""
    name = vllm_arguments.name_of(flag)
    return re.split(r"[.+]", name, maxsplit=1)[0] if name.startswith("--") else name


def _of_config(add: Callable[..., None], record: ServiceRecord) -> list[str]:
    """The options that the file behind --config sets."""
    path = vllm_arguments.value(record.flags, "--config")
    if path is None:
        return []
    try:
        return [_name(name) for name in vllm_arguments.read_config(path) if name not in ("--model", "--model-tag")]
    except OSError as error:
        add("stop", f"The file `{path}` (--config) cannot be read", why=error.strerror or str(error), fix="Restore it, or remove the flag")
        return []


# ---- the help ----


def remembered(record: ServiceRecord, release: Path) -> Options | None:
    """What the release was found to take, without asking it again; None if it was not asked, or has changed since."""
    entry = _kept(record.folder / "help.json").get(str(release))
    if not isinstance(entry, dict) or entry.get("key") != _key(release):
        return None
    try:
        choices = {str(option): [str(one) for one in listed] for option, listed in entry["choices"].items()}
        return Options([str(name) for name in entry["names"]], choices)
    except (KeyError, TypeError, AttributeError):
        return None  # written by another version: it is asked again


def _known(looks: Looks, record: ServiceRecord, release: Path, found: Surroundings) -> Options | None:
    if (known := remembered(record, release)) is not None:
        return known
    text = _help(looks, release, found)
    if text is None:
        return None
    known, path = read(text), record.folder / "help.json"
    for option, folders in _PARSER_SOURCES.items():
        if option in known.names and option not in known.choices and (listed := _registered(release, folders)):
            known.choices[option] = listed
    memory = _kept(path)
    memory[str(release)] = {"key": _key(release), "names": known.names, "choices": known.choices}
    there = {place: one for place, one in memory.items() if Path(place).exists()}
    try:
        if record.folder.is_dir():
            state.write_file(path, json.dumps(dict(list(there.items())[-KEPT:])) + "\n")
    except OSError as error:
        looks.context.log(f"What `vllm serve --help` said is not kept: {error}")
    return known


def _kept(path: Path) -> dict[str, Any]:
    try:
        return state.read_json(path) or {}
    except OpsError:
        return {}  # torn: all of it can be asked again


def _key(release: Path) -> list[Any]:
    """What decides the help of a release: vLLM's version, its launcher, and the files that define its options."""
    try:
        installed = packages.read(release)
    except BadInput:
        return []
    vllm = vllm_of(installed)
    places = [release / "bin" / "vllm", *([vllm.record, *(vllm.location.parent / name for name in _DECIDES)] if vllm else [])]
    stamps = []
    for place in places:
        try:
            stamps.append([place.name, place.stat().st_mtime_ns, place.stat().st_size])
        except OSError:
            stamps.append([place.name])
    return [vllm.version if vllm else "", stamps]


def read(text: str) -> Options:
    """The options in a help text, each on a line of its own. Values in braces stand behind the option: `--dtype {auto,half}`."""
    names: set[str] = set()
    choices: dict[str, list[str]] = {}
    for line in _LINE.findall(text):
        head = line.partition("  ")[0]
        if "'" in head:
            continue  # an example at the end
        options = _OPTION.findall(re.sub(r"\{[^}]*\}", "", head).partition(" or name registered in ")[0])
        names.update(options)
        listed = re.search(r"\{([\w.,+ -]*)\}", head)
        if listed is not None and (values := [one.strip() for one in listed[1].split(",") if one.strip()]):
            for option in options:
                choices.setdefault(option, values)
    return Options(sorted(names), choices)


def _registered(release: Path, folders: tuple[str, ...]) -> list[str]:
    """The names of parsers in the sources of the release's vLLM, where its help lists none: keys of its table, and names given to `register_module`.
    The sources are read as text and never run. [] where they are not what is known."""
    try:
        vllm = vllm_of(packages.read(release))
    except BadInput:
        return []
    found: set[str] = set()
    for folder in folders if vllm is not None else ():
        for path in sorted((vllm.location.parent / folder).glob("*.py")) if vllm is not None else ():
            try:
                text = packages.content(path, _SOURCE_LIMIT).decode(errors="replace")
                found.update(_REGISTERED.findall(text))
                if path.name == "__init__.py":
                    found.update(_table_keys(text))
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue  # damaged: integrity says that
    return sorted(found) if len(found) >= 3 else []


def _table_keys(text: str) -> set[str]:
    """Keys of dictionaries that are written out and named like `_REASONING_PARSERS_TO_REGISTER`."""
    found = set()
    for node in ast.parse(text).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AnnAssign) else None
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id.endswith("_TO_REGISTER") and isinstance(value, ast.Dict):
            found |= {key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def _help(looks: Looks, release: Path, found: Surroundings) -> str | None:
    """What the release says about its options. Newer ones list them only for `--help=all`, which older ones do not know."""
    from ops.jobs import commands

    context = looks.context
    environment = {**found.variables, "PATH": found.path(release), "VIRTUAL_ENV": str(release), "COLUMNS": "200"}
    if found.uid != os.geteuid():  # its folders are not ours: what is compiled or cached by the way must not lie there under our name
        environment |= {"HOME": commands.clean_environment()["HOME"], "XDG_CACHE_HOME": str(context.folder / "cache")}
    for word in ("--help=all", "--help"):
        try:
            done = commands.run([release / "bin" / "vllm", "serve", word], context=context, env=environment, cwd=release, timeout_s=HELP_LIMIT_S)
        except CommandFailed as error:
            last = error
            continue
        except Timeout as error:
            if context.deadline is not None:
                context.check()
            looks.add("warning", f"`vllm serve --help` of the release did not end within {HELP_LIMIT_S:.0f} s", why=error.what)
            return None
        if done.stdout.count("--") >= 10 or word == "--help":
            return done.stdout
    tail = str(last.facts.get("tail", "")).strip()
    looks.add("warning", "`vllm serve --help` of the release fails", why=tail[-600:] or last.what,
              fix="What it says now is likely what the service will say at its start")
    return None
