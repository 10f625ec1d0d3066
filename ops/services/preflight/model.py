"""Looks at the model folder: is it whole, can it be split as the flags say, and can the service get what it names by a hub name?

Nothing of it is imported or run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.environments import model_files
from ops.jobs.errors import BadInput, OpsError
from ops.records import ServiceRecord
from ops.services import vllm_arguments
from ops.services.preflight.looks import GIB, Looks
from ops.services.surroundings import Surroundings

_CONFIG_LIMIT = 16 << 20
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII)
_NAMING = ("--tokenizer", "--hf-config-path", "--config-format", "--generation-config")
_LISTED = 5


class Model:
    """The model folder, read once. `config` is {} and `bytes` None where they cannot be had."""

    def __init__(self, record: ServiceRecord) -> None:
        self.folder = Path(record.model_path)
        self.config: dict[str, Any] = {}
        self.bytes: int | None = None
        self.problem: OpsError | None = None
        try:
            self.config = _config(self.folder / "config.json")
        except (FileNotFoundError, NotADirectoryError):
            pass  # the looks say so
        except OpsError as error:
            self.problem = error

    @property
    def inner(self) -> Mapping[str, Any]:
        """What describes the text model: of a model with more than text, a part of the configuration."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config


def folder(looks: Looks, record: ServiceRecord, model: Model) -> None:
    if not model.folder.is_dir():
        looks.add("stop", f"The model folder `{model.folder}` does not exist",
                  why="vLLM would take the path for a name on the hub and say something else", fix="Mount or restore it")
        return
    if model.problem is not None:
        raise model.problem
    if not (model.folder / "config.json").exists():
        looks.add("stop", f"The model folder has no `{model.folder / 'config.json'}`", fix="Restore it: the download is not complete")
        return
    _weights(looks, record, model)
    _heads(looks, record, model)
    if "auto_map" in model.config and not any(vllm_arguments.name_of(flag) == "--trust-remote-code" for flag in record.flags):
        looks.add("warning", "The model brings Python code of its own (auto_map), and --trust-remote-code is not set",
                  why="vLLM may refuse to load it", fix="Read that code; if you trust it, add the flag")


def _weights(looks: Looks, record: ServiceRecord, model: Model) -> None:
    if vllm_arguments.value(record.flags, "--load-format") == "dummy":
        looks.add("note", "No weights are read (--load-format dummy)")
        return
    memory = model_files.Memory.of(record.folder)
    index = next((name for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json") if (model.folder / name).exists()), None)
    names = [index] if index else sorted(
        path.name for pattern in ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth") for path in model.folder.glob(pattern))
    if not names:
        looks.add("stop", f"The model folder `{model.folder}` holds no weights", fix="Download them again")
        return
    wrong: list[str] = []
    shards: list[str] = []
    size = 0
    for name in names:
        found = model_files.shards(model.folder, name, memory)
        wrong += found.wrong
        shards += found.names
        size += found.bytes
    memory.save()
    if wrong:
        looks.add("stop", f"{len(wrong)} of {len(shards)} weight files are not whole: {', '.join(wrong[:_LISTED])}",
                  why="The start would fail after minutes of loading", fix="Download just these files again")
        return
    model.bytes = size
    whole = f"({size / GIB:,.1f} GiB)"
    looks.add("ok", f"All {len(shards)} weight files of the index are whole {whole}" if index else
              f"The model folder has {len(shards)} weight files, each whole by itself {whole}; there is no index to hold them against")


def _heads(looks: Looks, record: ServiceRecord, model: Model) -> None:
    heads = model.inner.get("num_attention_heads")
    parts = vllm_arguments.number(record.flags, "--tensor-parallel-size") or 1
    if isinstance(heads, int) and heads % parts:
        looks.add("stop", f"{heads} attention heads cannot be split over {parts} GPUs",
                  fix=f"Choose a --tensor-parallel-size that divides {heads}, or combine it with --pipeline-parallel-size")


def hub(looks: Looks, record: ServiceRecord, found: Surroundings) -> None:
    """What flags name on the hub, and so has to be fetched, or to be in the service's own cache."""
    offline = any(found.variables.get(name, "").lower() in ("1", "true", "yes", "on") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    home = found.variables.get("HF_HOME") or f"{found.variables.get('XDG_CACHE_HOME') or f'{found.home}/.cache'}/huggingface"
    cache = Path(found.variables.get("HF_HUB_CACHE") or found.variables.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub")
    token = any(found.variables.get(name) for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"))
    for flag, name in _hub_names(record):
        try:
            there = any((cache / f"models--{name.replace('/', '--')}" / "snapshots").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            there = False
        except OSError as error:
            looks.add("note", f"Whether `{name}` ({flag}) is in the cache `{cache}` cannot be told from here", why=error.strerror or str(error))
            continue
        if there:
            looks.add("ok", f"`{name}` ({flag}) is in the service's cache")
        elif offline:
            looks.add("stop", f"`{name}` ({flag}) is not in the cache `{cache}`, and the service is offline (HF_HUB_OFFLINE)",
                      why="The start would end: it cannot be fetched", fix="Fetch it into that cache first, or name a folder")
        else:
            looks.add("note" if token else "warning", f"`{name}` ({flag}) is fetched from the hub at the start",
                      why="The start needs the network for that" + ("" if token else ", and there is no HF_TOKEN: a gated one answers 401"),
                      fix="Fetch it beforehand, and name its folder; then set HF_HUB_OFFLINE=1")


def _hub_names(record: ServiceRecord) -> list[tuple[str, str]]:
    """(flag, name) of what is named like `owner/name` and is no path that exists."""
    named: list[tuple[str, str]] = [(flag, value) for flag in _NAMING if (value := vllm_arguments.value(record.flags, flag))]
    adapters = vllm_arguments.values(record.flags, "--lora-modules") or []
    named += [("--lora-modules", word.partition("=")[2]) for word in adapters if not word.startswith("{")]
    try:
        draft = json.loads(vllm_arguments.value(record.flags, "--speculative-config") or "{}")
    except (ValueError, RecursionError):
        draft = {}  # vLLM itself says what is wrong with it
    if isinstance(draft, dict) and isinstance(draft.get("model"), str):
        named.append(("--speculative-config", draft["model"]))
    return [(flag, name) for flag, name in named if _HUB_NAME.match(name) and not Path(name).exists()]


def _config(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises FileNotFoundError, BadInput if it is none or too large."""
    text = model_files.read_limited(path, _CONFIG_LIMIT)
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"`{path}` is not valid JSON", why=str(error), hint=f"python3 -m json.tool {path} names the position") from error
    if not isinstance(raw, dict):
        raise BadInput(f"`{path}` does not hold a JSON object")
    return raw
