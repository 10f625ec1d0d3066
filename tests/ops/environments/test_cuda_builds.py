from __future__ import annotations

from pathlib import Path

import pytest

from ops.environments import cuda_builds, packages
from tests.ops.environments.test_packages import add


@pytest.fixture
def env(tmp_path: Path) -> Path:
    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7\n")
    return tmp_path / "env"


def findings(env: Path, driver: str | None = None, **installed: str) -> list[tuple[str, str, list[str]]]:
    for name, version in installed.items():
        add(env, name, version)
    return [(found.kind, found.level, sorted(found.packages)) for found in cuda_builds.findings(packages.read(env), driver)]


def test_wheels_for_one_cuda_are_no_finding(env: Path):
    assert findings(env, "13.0", torch="2.9.0+cu130", vllm="0.16.0+cu130", nvidia_cudnn_cu13="9.1", nvidia_cuda_runtime="13.0.48", numpy="2.0",
                    flashinfer_jit_cache="0.6.4+cu130", nvidia_cufft="12.0.0.61", nvidia_ml_py="12.575.51", cuda_pathfinder="1.2") == []


def test_a_vllm_for_another_cuda_than_torch_cannot_start(env: Path):
    assert findings(env, torch="2.9.0+cu129", vllm="0.16.0+cu130", torchaudio="2.9.0+cu129") == [("mixed", "stop", ["torch", "vllm"])]
    (found,) = cuda_builds.findings(packages.read(env))
    assert found.title == ("Wheels for different CUDAs: `torch` 2.9.0+cu129 is built for CUDA 12.9, `vllm` 0.16.0+cu130 for 13.0")
    assert "libcudart.so.13" in found.why


def test_another_package_for_another_cuda_is_a_warning(env: Path):
    assert findings(env, torch="2.9.0+cu130", cupy_cuda12x="13.6") == [("mixed", "warning", ["cupy-cuda12x", "torch"])]


def test_releases_of_one_major_run_together_with_a_warning(env: Path):
    assert findings(env, torch="2.9.0+cu128", vllm="0.16.0+cu129") == [("mixed", "warning", ["torch", "vllm"])]


def test_nvidia_libraries_of_another_major_are_told(env: Path):
    assert findings(env, torch="2.9.0+cu130", nvidia_cublas_cu12="12.8.4.1", nvidia_nccl_cu12="2.27") == [
        ("library", "warning", ["nvidia-cublas-cu12", "nvidia-nccl-cu12", "torch"])]


def test_left_over_libraries_beside_the_right_ones_are_told_as_such(env: Path):
    assert findings(env, torch="2.9.0+cu130", nvidia_nccl_cu12="2.27", nvidia_nccl_cu13="2.28") == [
        ("library", "warning", ["nvidia-nccl-cu12", "torch"])]
    (found,) = cuda_builds.findings(packages.read(env))
    assert "two CUDAs" in found.title and "Remove them" in found.fix


@pytest.mark.parametrize(("line", "release"), [
    ("cuda: Optional[str] = '13.0'", (13, 0)), ('cuda = "12.8"', (12, 8)), ("cuda: str | None = '13.2'", (13, 2)),
    ("cuda: Optional[str] = None", None), ("# cuda = '12.8'", None)])
def test_a_torch_without_a_suffix_tells_it_in_its_version_file(env: Path, line: str, release: tuple[int, int] | None):
    folder = env / "lib/python3.11/site-packages/torch"
    folder.mkdir()
    (folder / "version.py").write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\ngit_version = 'abc'\nhip: Optional[str] = None\n")
    add(env, "torch", "2.13.0")
    assert cuda_builds.builds_of(packages.read(env)).get("torch") == release


def test_a_build_for_a_newer_cuda_than_the_driver_cannot_run(env: Path):
    assert findings(env, "12.8", torch="2.9.0+cu130", vllm="0.16.0+cu130") == [("driver", "stop", ["torch", "vllm"])]
    assert cuda_builds.findings(packages.read(env), "13.0") == [] == cuda_builds.findings(packages.read(env))


def test_a_later_minor_than_the_drivers_is_a_warning(env: Path):
    assert findings(env, "12.8", torch="2.9.0+cu129") == [("driver", "warning", ["torch"])]
    (found,) = cuda_builds.findings(packages.read(env), "12.8")
    assert "unsupported toolchain" in found.why and found.as_dict()["packages"] == {"torch": "2.9.0+cu129"}


def test_builds_without_cuda_and_unknown_drivers_say_nothing(env: Path):
    assert findings(env, "unknown", torch="2.10.0+practice", vllm="0.16.0rc2.dev344+practice", other="1.0+cpu") == []
    assert findings(env, "12.8", another="1.0+cu") == []


def test_suffixes_among_others_are_read(env: Path):
    for name, version in (("a", "1.0+g1234.cu129"), ("b", "1.0.dev1+cu130"), ("c", "1.0+cu1299"), ("d", "1.0+cu12"), ("e", "1+cu129.torch29")):
        add(env, name, version)
    assert cuda_builds.builds_of(packages.read(env)) == {"a": (12, 9), "b": (13, 0), "e": (12, 9)}
