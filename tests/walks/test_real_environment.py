"""The founding pair, for real: flashinfer-python 0.6.4 beside flashinfer-cubin 0.6.3, as the public index has them.

Both wheels, the exception that they raise, and everything else that flashinfer imports come from the public index; only torch is a stand-in
(tests/fakes/importable_torch.py), and the server (tests/fakes/small_vllm.py). 300 MB of downloads, so behind `make test-full`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from ops.environments import coupling, integrity, packages
from ops.jobs.events import EventType, JobState
from ops.records import Channel
from tests.fakes.importable_torch import make_importable_torch
from tests.fakes.real_node import RealNode, real_node
from tests.fakes.small_vllm import make_small_vllm
from tests.fakes.wheels import make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# what flashinfer-python 0.6.4 needs, without CUDA's own libraries
FROM_THE_INDEX = ["apache-tvm-ffi==0.1.6", "click", "einops", "filelock", "jinja2", "ninja", "numpy", "nvidia-ml-py", "packaging>=24.2", "requests",
                  "tabulate", "tqdm"]
CUDA_ONLY = {"nvidia-cudnn-frontend": "1.18.0", "nvidia-cutlass-dsl": "4.4.0"}  # needed by name; `import flashinfer` does without them


def run(*argv: object) -> str:
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an admin without a network on the GPU node would carry there."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    for wanted in (["flashinfer-python==0.6.4", "flashinfer-cubin==0.6.3"], ["flashinfer-cubin==0.6.4"]):
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, *wanted)
    run(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", folder, *FROM_THE_INDEX)
    make_importable_torch(folder, "2.9.1", requires=["filelock", "jinja2"])
    for name, version in CUDA_ONLY.items():
        make_wheel(folder, name, version)
    make_small_vllm(folder, "0.17.0", requires=["flashinfer-python==0.6.4", "torch==2.9.1"], imports=["flashinfer"])
    return folder


@pytest.fixture
def node(short_path: Path, wheelhouse: Path) -> Iterator[RealNode]:
    """A service whose environment somebody upgraded by hand: vLLM 0.17 pulled flashinfer-python 0.6.4, the cubin stayed."""
    env = short_path / "vllm-env"
    run(uv.find_uv_bin(), "venv", "--python", sys.executable, env)
    install = (uv.find_uv_bin(), "pip", "install", "--python", env / "bin" / "python")
    run(*install, "--no-deps", "flashinfer-python==0.6.4", "flashinfer-cubin==0.6.3")  # from the public index, as people do
    run(*install, "--no-index", "--find-links", wheelhouse, "vllm==0.17.0")
    with real_node(short_path / "n", wheelhouse=wheelhouse,
                   env={"HOME": str(short_path / "home"), "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}) as made:
        made.adopt(env)
        yield made


def channel(wheelhouse: Path) -> Channel:
    return Channel(name="carried", kind="wheelhouse", wheelhouse=str(wheelhouse))


def times(env: Path) -> dict[Path, int]:
    """When each file was written last; without what Python itself compiles there."""
    return {path: path.stat().st_mtime_ns for path in env.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_the_real_flashinfer_pair_is_detected_and_mended(node: RealNode, wheelhouse: Path) -> None:
    adopted = node.current.resolve()
    before = times(adopted)
    assert [found.level for found in coupling.findings(packages.read(adopted))] == ["stop"]  # fatal in 0.6.4: its import raises

    crashed = node.run("restart", smoke=False)
    assert crashed.outcome.state == JobState.FAILED
    found = crashed.of(EventType.DIAGNOSIS)[0]
    assert found["fault"] is True
    assert "flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)" in found["text"]  # FlashInfer's own words

    planned = node.run("plan", channel(wheelhouse))
    assert planned.outcome.state == JobState.SUCCEEDED, planned.outcome
    rows = {row["name"]: row for row in planned.plan["packages"]}
    assert (rows["flashinfer-cubin"]["old"], rows["flashinfer-cubin"]["new"]) == ("0.6.3", "0.6.4")
    assert "coupled" in rows["flashinfer-cubin"]["why"]
    assert (rows["flashinfer-python"]["new"], rows["vllm"]["new"]) == ("0.6.4", "0.17.0")

    mended = node.run("redeploy", channel(wheelhouse), plan=planned.plan, sweep=False, smoke=False, purge=False)
    assert mended.outcome.state == JobState.SUCCEEDED, mended.outcome
    assert node.state == "healthy"
    installed = packages.read(node.current)
    assert installed.version("flashinfer-python") == installed.version("flashinfer-cubin") == "0.6.4"
    report = integrity.check(node.current)
    assert report.clean and report.checked_files > 3000
    said = subprocess.run([node.current / "bin" / "python", "-c", "import flashinfer; print(flashinfer.__version__)"], text=True, check=True,
                          capture_output=True, env={**node.record.env, "PATH": "/usr/bin:/bin"}, timeout=120)
    assert said.stdout.split()[-1] == "0.6.4"

    assert packages.read(adopted).version("flashinfer-cubin") == "0.6.3"  # the environment that was adopted is as it was
    assert times(adopted) == before
