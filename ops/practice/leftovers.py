"""The story's 35 debug tensors, 65 MB in all: files named `.pt` that a forgotten patch left behind over some days; and smaller things beside them.

The tensors look like what torch.save writes from outside (a zip's first bytes, names inside), and hold nothing that could be unpickled.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

COUNT = 35
SETTLED_S = 2.5  # more than ops/artifacts/conditions.py allows for clocks that differ
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


# ---- what else lies about on such a server ----

OTHERS = ("cache", "shm", "cores")  # folders of the box that `write_others` fills, and that a reset makes anew
STALE_GRAPHS = ("3f9a1c77d2", "a81be04c5e", "d90c62f1b7")  # compile caches of versions that are gone
OLD_FLASHINFER = "0.6.2"
AUTOTUNED = "5be2a90c" * 8
CORES = ("core.41822", "core.57310")  # the second is the newer one
SEGMENTS = ("psm_1f0c9a3e", "psm_c47d20b8", "nccl-Xk3fQz", "sem.mp-7h2kd0aw")
SOCKETS = ("0b8f6c1e-5d0a-4c39-9c55-6b1f1f1a7d02", "9d2e7f40-1b6c-4a8e-8f27-3c5ad0e4b911")
_DAY = 24 * _HOUR
_KIB = 1024


def write_others(root: Path, *, flashinfer: str) -> None:
    """What a server leaves that no redeploy takes along by itself, a few MB: stale compile caches, FlashInfer's files of a version that is gone and
    of `flashinfer` (that of the release in use), its autotune cache, two core dumps, and shared memory and sockets of processes that are gone."""
    now = time.time()
    for number, key in enumerate(STALE_GRAPHS):
        folder = root / "cache" / "torch_compile_cache" / key / "rank_0_0"
        age = (34 - 9 * number) * _DAY
        _fill(folder / "backbone" / "computation_graph.py", 24 * _KIB, now - age)
        for part in range(3):
            _fill(folder / "inductor_cache" / f"g{part}" / f"c{key}{part}.so", 120 * _KIB, now - age)
    for version, age in ((OLD_FLASHINFER, 41 * _DAY), (flashinfer, 6 * _DAY)):
        folder = root / "cache" / "flashinfer" / version / "120f"
        for name in ("batch_decode_with_kv_cache", "fused_moe_120", "sampling"):
            _fill(folder / "cached_ops" / name / f"{name}.so", 180 * _KIB, now - age)
        _fill(folder / "cached_ops" / "flashinfer_jit.log", 4 * _KIB, now - age)
    tuned = root / "cache" / "flashinfer_autotune_cache" / flashinfer / "120f" / AUTOTUNED
    _fill(tuned / "autotune_configs.json", 12 * _KIB, now - 6 * _DAY)
    for number, name in enumerate(CORES):
        _fill(root / "cores" / name, 700 * _KIB, now - (12 - 5 * number) * _DAY, mode=0o600)
    for name, size in zip(SEGMENTS, (256 * _KIB, 256 * _KIB, 96 * _KIB, 4 * _KIB), strict=True):
        _fill(root / "shm" / name, size, now - 5 * _DAY, mode=0o600)
    for name in SOCKETS:
        _socket(root / "tmp", name, now - 5 * _DAY)


def _fill(path: Path, size: int, at: float, *, mode: int = 0o644) -> None:
    """A file of that size, written at that time (seconds since the epoch); its folders look as old."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_bytes(bytes((7 * number + 3) & 0xFF for number in range(_KIB)) * (size // _KIB))
    path.chmod(mode)
    os.utime(path, (at, at))
    os.utime(path.parent, (at, at))


def _socket(folder: Path, name: str, at: float) -> None:
    """A socket that a process had bound and left; by way of a descriptor, because an address holds no more than 107 bytes."""
    path = folder / name
    path.unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
    os.utime(path, (at, at))


def settle(root: Path) -> None:
    """Waits, for some seconds at most, until what lies in `root`/shm is surely older than a service that starts now. If it were not by more than what
    the clocks of files and processes may differ, it would count as made by that service, and stay."""
    made = max((path.lstat().st_ctime for path in (root / "shm").iterdir()), default=0.0)
    time.sleep(min(SETTLED_S, max(0.0, made + SETTLED_S - time.time())))
