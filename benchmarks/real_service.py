"""A service on real packages, for the benchmarks: more than a gigabyte from the public index, and a small server as its `vllm`.

Every package is a real one, resolved, fetched, hashed and installed as always; only the server does not load a model, so that what is measured
is the way of installing and not a warmup, which is the same whatever the way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uv as uv_package

from ops.jobs import commands
from ops.records import PUBLIC_INDEX, Channel
from tests.fakes.package_index import package_index
from tests.fakes.real_node import RealNode
from tests.fakes.small_vllm import make_small_vllm

PACKAGES = ["flashinfer-cubin==0.6.4", "pyarrow", "scipy", "pandas", "scikit-learn", "transformers"]  # 1.3 GB in some 15,000 files
VERSION = "0.17.0"


def run_uv(cache: Path, *arguments: object) -> None:
    """uv by hand, with that cache, in the same clean environment as in a job."""
    argv = [uv_package.find_uv_bin(), "--no-config", "--no-progress", "--cache-dir", str(cache), *map(str, arguments)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3600,
                          env=commands.clean_environment())
    if done.returncode != 0:
        raise SystemExit(f"uv {' '.join(map(str, arguments))}\n{done.stdout[-3000:]}")


@contextmanager
def channel_of(root: Path, packages: Sequence[str]) -> Iterator[Channel]:
    """A channel: the public index for the packages, a small index of our own for the server that needs them all."""
    wheels = root / "wheels"
    make_small_vllm(wheels, VERSION, requires=packages)
    with package_index(wheels) as index:
        yield Channel(name="bench", kind="index", index_url=PUBLIC_INDEX, extra_index_urls=[index.url], requirements=[f"vllm=={VERSION}"],
                      prerelease=False)


def make_environment(path: Path, cache: Path, channel: Channel) -> Path:
    """The environment that a person had made: plain uv, files copied out of the cache."""
    run_uv(cache, "venv", "--python", sys.executable, path)
    run_uv(cache, "pip", "install", "--python", path / "bin" / "python", "--link-mode", "copy", "--index", channel.extra_index_urls[0],
           *channel.requirements)
    return path


def make_node(root: Path, channel: Channel, *, cache: Path, in_place: bool = False) -> RealNode:
    """A node whose service runs on such an environment. The nodes of a benchmark share `cache`."""
    node = RealNode(root, index_urls=[PUBLIC_INDEX, *channel.extra_index_urls], keep_releases=2)
    cache.mkdir(parents=True, exist_ok=True)
    node.cache.symlink_to(cache)
    node.adopt(make_environment(root / "env", cache, channel))
    node.change(in_place=in_place)
    return node


def size(env: Path) -> tuple[int, int]:
    """Files and bytes below `env`."""
    found = [path.stat().st_size for path in env.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(found), sum(found)
