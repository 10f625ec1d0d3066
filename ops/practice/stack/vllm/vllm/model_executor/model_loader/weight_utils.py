"""Finds a checkpoint's files and reads their headers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path


class SafetensorError(Exception):
    """A weight file that is not whole."""


SafetensorError.__module__ = "safetensors._safetensors_rust"


def filter_duplicate_safetensors_files(folder: Path) -> list[Path]:
    """The shards that the index names, or every .safetensors file of the folder where there is no index, sorted by name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / name for name in names]
    return sorted(folder.glob("*.safetensors"))


def read_safetensors_header(path: Path) -> dict[str, dict]:
    """Tensor names with dtype, shape and offsets. Raises SafetensorError if the file ends before its last tensor does."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > size:
            raise SafetensorError("Error while deserializing header: header too large")
        header = json.loads(file.read(length))
    tensors = {name: info for name, info in header.items() if name != "__metadata__"}
    end = max((info["data_offsets"][1] for info in tensors.values()), default=0)
    if 8 + length + end != size:
        raise SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")
    return tensors


def safetensors_weights_iterator(files: list[Path]) -> Iterator[tuple[Path, dict[str, dict]]]:
    """Each shard with its header, in order."""
    for path in files:
        yield path, read_safetensors_header(path)


def maybe_remap_kv_scale_name(name: str, parameters: set[str]) -> str | None:
    """The parameter that a checkpoint's KV scale belongs to, or None if the model has no such parameter."""
    if not name.endswith((".k_scale", ".v_scale", ".kv_scale")):
        return name
    remapped = name.replace(".self_attn.", ".self_attn.attn.")
    return remapped if remapped in parameters else None
