"""The story's 35 debug tensors, 65 MB in all: files named `.pt` that a forgotten patch left behind over some days.

They look like what torch.save writes from outside (a zip's first bytes, names inside), and hold nothing that could be unpickled.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

COUNT = 35
TOTAL_BYTES = 65_000_000
_PARTS = ("in", "attn", "mlp", "router", "logits")
_LAYERS = (0, 1, 2, 15, 30, 59, 60)
_HOUR = 3600


def names() -> list[str]:
    """The 35 file names: five parts of seven layers."""
    return [f"kimi_dbg_layer{layer:02d}_{part}_call{1000 + 37 * index:05d}.pt"
            for index, (layer, part) in enumerate((layer, part) for layer in _LAYERS for part in _PARTS)]


def write(folder: Path) -> list[Path]:
    """Makes the files, aged between one and five days; those that are there in full already stay as they are."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    now = time.time()
    paths = []
    for index, (name, size) in enumerate(zip(names(), _sizes(), strict=True)):
        path = folder / name
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(_content(name, size))
        age = (26 + 2.7 * (COUNT - index)) * _HOUR
        os.utime(path, (now - age, now - age))
        paths.append(path)
    return paths


def _sizes() -> list[int]:
    """Sizes that differ by part and add up to TOTAL_BYTES exactly."""
    shares = [(3, 3, 4, 1, 2)[index % len(_PARTS)] for index in range(COUNT)]
    sizes = [TOTAL_BYTES * share // sum(shares) for share in shares]
    sizes[-1] += TOTAL_BYTES - sum(sizes)
    return sizes


def _content(name: str, size: int) -> bytes:
    """A zip's local header for `<name>/data/0`, stored, then numbers that mean nothing."""
    inner = f"{name.removesuffix('.pt')}/data/0".encode()
    header = struct.pack("<4s5H3I2H", b"PK\x03\x04", 10, 0, 0, 0, 0x21, 0, 0, 0, len(inner), 0) + inner
    block = bytes((7 * number + 3) & 0xFF for number in range(4096))
    body = block * ((size - len(header)) // len(block) + 1)
    return header + body[: size - len(header)]
