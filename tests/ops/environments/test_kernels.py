from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import uv

from ops.environments import kernels
from ops.jobs.errors import BadInput, OpsError, Timeout
from tests.fakes.wheels import make_wheel
from tests.ops.environments.conftest import library

TORCH = """\
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return {flags!r}

class version:
    cuda = {cuda!r}
    hip = None

__version__ = "2.9.0+cu128"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kernels")
    make_wheel(root / "wheels", "torch", "2.9.0+cu128")
    quiet = ["-q", "--no-config", "--offline", "--cache-dir", root / "cache"]
    subprocess.run([uv.find_uv_bin(), "venv", *quiet, "--python", sys.executable, root / "env"], check=True)
    subprocess.run([uv.find_uv_bin(), "pip", "install", *quiet, "--no-index", "--find-links", root / "wheels", "--python", root / "env", "torch"],
                   check=True)
    return root / "env"


@pytest.fixture
def env(built: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", built, tmp_path / "env"], check=True)
    return tmp_path / "env"


def torch(env: Path, text: str) -> None:
    (library(env) / "torch/__init__.py").write_text(text)


@pytest.mark.parametrize(("flags", "capability", "how"), [
    ("sm_80 sm_86 sm_90", "8.6", "binary"),
    ("sm_80 sm_90", "8.6", "binary"),  # later minors of a major run it
    ("sm_86", "8.0", "missing"),  # earlier ones do not
    ("sm_80 sm_90", "12.0", "missing"),  # the report of every RTX PRO 6000 with an older wheel
    ("sm_80 sm_90 compute_90", "12.0", "ptx"),
    ("sm_80 sm_90 compute_90", "8.9", "binary"),
    ("compute_90", "8.9", "missing"),
    ("sm_75 sm_80 sm_90 sm_100 sm_120 compute_120", "12.0", "binary"),
    ("sm_120", "12.1", "binary"),
    ("sm_90a", "9.0", "binary"), ("sm_90a", "10.0", "missing"), ("compute_90a", "9.0", "ptx"), ("compute_90a", "12.0", "missing"),
    ("sm_100a", "10.3", "missing"), ("sm_100f", "10.3", "binary"), ("sm_100f", "12.0", "missing"), ("compute_100f", "10.3", "ptx"),
    ("sm_120a", "12.0", "binary"), ("sm_120a", "12.1", "missing"), ("sm_121f", "12.0", "missing"),
    ("", "9.0", "missing"), ("gfx942 sm_ sm_x", "9.4", "missing"), ("sm_90", "nine", "missing"),
])
def test_architectures_cover_capabilities_as_nvidia_says(flags: str, capability: str, how: str):
    assert kernels.covers(flags.split(), capability) == how


def test_the_environments_torch_is_asked(env: Path):
    torch(env, "print('a banner')\n" + TORCH.format(flags="sm_80 sm_90 compute_90", cuda="12.8"))
    report = kernels.check(env, ["12.0", "9.0", "8.0", "9.0", "?"])
    assert (report.torch, report.cuda, report.architectures) == ("2.9.0+cu128", "12.8", ["sm_80", "sm_90", "compute_90"])
    assert report.covered == {"8.0": "binary", "9.0": "binary", "12.0": "ptx"} and report.missing == [] and report.problem is None
    assert [found["level"] for found in report.findings] == ["warning"]


def test_a_capability_without_kernels_is_a_finding(env: Path):
    torch(env, TORCH.format(flags="sm_80 sm_90", cuda="12.8"))
    report = kernels.check(env, ["12.0"])
    assert report.missing == ["12.0"] and report.as_dict()["findings"][0]["title"] == "torch 2.9.0+cu128 has no kernels for compute capability 12.0"
    assert "no kernel image is available" in report.findings[0]["why"] and report.findings[0]["fix"] == "Install a build that lists sm_120"


@pytest.mark.parametrize(("text", "problem"), [
    ("__version__ = '2.9.0'\nclass version:\n    cuda = None\n", "torch 2.9.0 is built without CUDA"),
    ("__version__ = '2.9.0'\nclass version:\n    cuda = '12.8'\n", "torch 2.9.0 does not tell what it was built for"),
    ("", "torch does not tell what it was built for"),
    ("__version__ = '2.9.0'\nclass version:\n    cuda = None\n    hip = '6.4'\n", "torch 2.9.0 is built for ROCm")])
def test_a_torch_that_cannot_tell_is_unknown_and_not_missing(env: Path, text: str, problem: str):
    torch(env, text)
    report = kernels.check(env, ["12.0"])
    assert report.problem == problem and report.covered == {} and report.findings == []


def test_without_torch_nothing_is_asked(env: Path):
    (library(env) / "torch-2.9.0+cu128.dist-info/METADATA").unlink()
    (library(env) / "torch-2.9.0+cu128.dist-info").rename(library(env) / "other-1.dist-info")
    (env / "bin/python").unlink()
    assert kernels.check(env, ["12.0"]).problem == "torch is not installed"


def test_a_torch_that_hangs_is_ended(env: Path, tmp_path: Path):
    torch(env, f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    with pytest.raises(Timeout, match="did not tell its architectures"):
        kernels.check(env, ["12.0"], timeout_s=1.5)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


@pytest.mark.parametrize(("text", "why"), [("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
                                           ("import os\nos._exit(7)", "7"), ("import os\nos.abort()", "-6")])
def test_a_torch_that_cannot_be_imported_is_an_error(env: Path, text: str, why: str):
    torch(env, text)
    with pytest.raises(OpsError, match="import torch") as caught:
        kernels.check(env, ["12.0"])
    assert why in caught.value.why


def test_it_sees_no_gpu_none_of_our_variables_and_writes_nothing(env: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    before = sorted(str(path) for path in env.rglob("*"))
    torch(env, "import os\n__version__ = ' '.join([os.environ['CUDA_VISIBLE_DEVICES'] or 'none', os.environ.get('HF_TOKEN', 'none'),"
          " os.environ.get('PYTHONPATH', 'none')])\nclass version:\n    cuda = None\n")
    assert kernels.check(env, []).torch == "none none none"
    assert sorted(str(path) for path in env.rglob("*")) == before


def test_a_python_that_is_gone_is_an_error(env: Path):
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to("/opt/removed/python")
    with pytest.raises(OpsError, match="cannot be started"):
        kernels.check(env, ["12.0"])


def test_what_is_no_environment_is_an_error(tmp_path: Path):
    with pytest.raises(BadInput):
        kernels.check(tmp_path / "nothing", ["12.0"])


def test_no_folder_stays(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch(env, TORCH.format(flags="sm_80", cuda="12.8"))
    kernels.check(env, ["8.0"])
    assert list(tmp_path.glob("roundhouse*")) == []
