"""What is worth knowing about a model folder before a server reads it: code that it brings, files that are not whole.

A model folder is untrusted. Its JSON is parsed, up to a size; nothing in it is imported, run or unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ops.environments import model_files
from ops.environments.model_files import Memory
from ops.jobs.errors import OpsError

# Files that can name classes in Python files beside them: `auto_map`, {"AutoModel": "file.Class"} or "repository--file.Class"
WITH_AUTO_MAP = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json",
                 "image_processor_config.json", "generation_config.json")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
PLUGIN_FLAGS = ("--reasoning-parser-plugin", "--tool-parser-plugin")  # vLLM imports the file
NAMED = 5
DEPTH = 3  # folders below the model folder in which Python files are looked for

_MEMORY = Memory()  # of this process: the folder is looked at again and again


def look(path: str | Path, flags: Sequence[str] = (), *, memory: Memory | None = None) -> list[dict[str, Any]]:
    """Findings, worst first: {"kind", "level" ("stop" | "warning" | "note"), "title", "why", "fix"}. Empty for a folder of weights and settings only.

    `kind`: "folder", "code" (auto_map, trust_remote_code, Python files), "pointer", "shards", "settings". `flags`: the service's, for
    --trust-remote-code. `memory`: what is known of the shards; that of this process if None.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            return [_finding("folder", "stop", f"The model folder `{folder}` does not exist", fix="Mount or restore it")]
        names = sorted(model_files.names(folder))
    except OSError as error:
        return [_finding("folder", "stop", f"The model folder `{folder}` cannot be read", why=error.strerror or str(error))]
    findings: list[dict[str, Any]] = []
    pointers = _pointers(folder, names)
    if pointers:
        findings.append(_finding("pointer", "stop", f"Only Git LFS pointers, not the files themselves: {_named(pointers)}",
                                 why="Git leaves a few lines of text where large files were not fetched",
                                 fix=f"Run `git lfs pull` in `{folder}`, or download the model again"))
    findings += _shards(folder, names, memory or _MEMORY, set(pointers))
    code = list(_code(folder, names, findings))
    python = _python_files(folder, names)
    findings += _about_code(code, python, trusts(flags))
    findings += _plugins(folder, flags)
    order = {"stop": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding["level"]])


def trusts(flags: Sequence[str]) -> bool:
    """Whether the flags have vLLM run code of the model folder. The last one counts; vLLM takes underscores as well."""
    trusted = False
    for flag in flags:
        name, _, value = flag.partition("=")
        name = name.replace("_", "-")
        if name == "--trust-remote-code":
            trusted = value.lower() not in ("false", "0", "no")
        elif name == "--no-trust-remote-code":
            trusted = False
    return trusted


def _plugins(folder: Path, flags: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Parsers that the server imports from a file of the model folder: some models bring their own, and auto_map does not name them."""
    words = [part for flag in flags for part in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    for name, value in pairwise(words):
        if name.replace("_", "-") not in PLUGIN_FLAGS:
            continue
        path = Path(os.path.normpath(folder / value))
        if Path(os.path.normpath(folder)) in path.parents:
            yield _finding("code", "warning", f"The server runs `{path.name}` of the model folder ({name})", why="The flag names it",
                           fix="Read it after every change of the model folder, and guard it with its SHA-256")


def _finding(kind: str, level: str, title: str, *, why: str = "", fix: str = "") -> dict[str, Any]:
    return {"kind": kind, "level": level, "title": model_files.as_text(title), "why": model_files.as_text(why), "fix": model_files.as_text(fix)}


def _named(names: Sequence[str]) -> str:
    return ", ".join(f"`{name[:120]}`" for name in names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def _pointers(folder: Path, names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        try:
            if model_files.is_lfs_pointer(folder / name):
                found.append(name)
        except OSError:  # a broken link, a pipe: whoever needs the file says so
            continue
    return found


def _shards(folder: Path, names: Sequence[str], memory: Memory, pointers: set[str]) -> Iterator[dict[str, Any]]:
    index = next((name for name in INDEXES if name in names and name not in pointers), None)
    singles = [name for name in names if name.endswith((".safetensors", ".gguf")) and name not in pointers]
    if index is None and not singles:
        return
    for source in [index] if index else singles:
        try:
            found = model_files.shards(folder, source, memory)
        except (OSError, OpsError) as error:
            why = error.why if isinstance(error, OpsError) else error.strerror or str(error)
            yield _finding("shards", "warning", error.what if isinstance(error, OpsError) else f"`{source}` cannot be read", why=why)
            continue
        wrong = [text for text in found.wrong if "LFS pointer" not in text]  # told already
        if wrong:
            more = f"; and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
            yield _finding("shards", "stop", f"{len(wrong):,} of {len(found.names):,} weight files are not whole",
                           why="; ".join(wrong[:NAMED]) + more,
                           fix=f"Download the model into `{folder}` again: what is whole already is kept")


def _code(folder: Path, names: Sequence[str], findings: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """(file, where in it, class) of each entry of each auto_map; a file that cannot be read goes to `findings`."""
    for name in WITH_AUTO_MAP:
        if name not in names:
            continue
        try:
            document = json.loads(model_files.read_limited(folder / name))
        except FileNotFoundError:
            findings.append(_finding("settings", "warning", f"`{name}` is a link to nothing"))
            continue
        except OpsError as error:
            findings.append(_finding("settings", "warning", error.what, why=error.why))
            continue
        except (ValueError, RecursionError) as error:
            findings.append(_finding("settings", "warning", f"`{name}` is not JSON", why=str(error)[:200]))
            continue
        yield from ((name, where, value) for where, value in _auto_maps(document))


def _auto_maps(document: Any) -> Iterator[tuple[str, str]]:
    """Entries of `auto_map` wherever it stands: multimodal models have one in text_config, or in vision_config, as well."""
    pending: list[tuple[Any, str, int]] = [(document, "", 0)]
    while pending:
        value, where, depth = pending.pop()
        if not isinstance(value, dict) or depth > 4:
            continue
        for key, inner in value.items():
            if key == "auto_map":
                yield from ((f"{where}auto_map.{name}", str(one)) for name, one in _entries(inner))
            elif isinstance(inner, dict):
                pending.append((inner, f"{where}{key}.", depth + 1))


def _entries(auto_map: Any) -> Iterator[tuple[str, Any]]:
    """A tokenizer's entry is a list of two classes, slow and fast, either of which may be null."""
    pairs = auto_map.items() if isinstance(auto_map, dict) else [("", auto_map)]
    for name, value in pairs:
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                yield str(name)[:80], one


def _python_files(folder: Path, names: Sequence[str]) -> list[str]:
    found = [name for name in names if name.endswith((".py", ".pth", ".so"))]
    pending = [(folder, "", 0)]
    looked = 0
    while pending:
        place, prefix, depth = pending.pop()
        try:
            entries = sorted(place.iterdir())
        except OSError:  # not for us to read: nor for the server, then
            continue
        for entry in entries:
            looked += 1
            if looked > model_files.LISTED:
                return sorted(found)
            if entry.is_dir() and not entry.is_symlink():
                if depth < DEPTH and not entry.name.startswith("."):
                    pending.append((entry, f"{prefix}{entry.name}/", depth + 1))
            elif prefix and entry.name.endswith((".py", ".pth", ".so")):
                found.append(prefix + entry.name)
    return sorted(found)


def _about_code(code: Sequence[tuple[str, str, str]], python: Sequence[str], trusted: bool) -> Iterator[dict[str, Any]]:
    elsewhere = sorted({value.partition("--")[0] for _, _, value in code if "--" in value})
    classes = sorted({value for _, _, value in code})
    places = sorted({f"{file}: {where}" for file, where, _ in code})
    if trusted and code:
        yield _finding("code", "warning", f"The server runs code that the model brings: {_named(classes)}",
                       why=f"--trust-remote-code is set, and auto_map names it ({'; '.join(places[:NAMED])}). "
                           "It runs with all that the service's user may do",
                       fix="Read these files after every change of the model folder, and guard them with their SHA-256")
    elif code:
        yield _finding("code", "note", f"The model names code of its own (auto_map): {_named(classes)}",
                       why="Without --trust-remote-code it is not run: vLLM takes its own implementation, or refuses the model",
                       fix="Read the code before you add the flag")
    elif trusted:
        yield _finding("code", "note", "--trust-remote-code is set, and nothing in the model folder asks for it",
                       why="A changed file could bring code, and the server would run it", fix="Remove the flag")
    if trusted and elsewhere:
        yield _finding("code", "warning", f"auto_map names code of another repository: {_named(elsewhere)}",
                       why="It is fetched from the hub when the server starts, in whatever form it has then",
                       fix="Download it into the model folder, and name it there; or set HF_HUB_OFFLINE=1")
    if python and not code:
        yield _finding("code", "note", f"The model folder holds Python files that nothing names: {_named(python)}")
    elif python:
        yield _finding("code", "note", f"The model folder holds {len(python):,} Python file{'s' if len(python) > 1 else ''}: {_named(python)}")
