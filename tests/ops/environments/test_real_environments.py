"""Popular distributions from the registry, installed by uv and by pip: no false alarm, and every edit found exactly.

Network and real installers only. The large set is `slow`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uv

from ops.environments import cuda_builds, integrity, kernels, packages, requirements_check
from tests.ops.environments.conftest import library

# console scripts, C extensions, bundled libraries, data files below share/, headers below include/, namespace packages, a .pth file,
# a module at the root of site-packages
EIGHT = ["requests", "pyyaml", "jupyterlab-pygments", "numpy", "protobuf", "zope-interface", "greenlet", "setuptools"]
MANY = [*EIGHT, "aiohttp", "azure-identity", "babel", "black", "bokeh", "boto3", "celery", "cffi", "cmake", "cryptography", "cython", "dask",
        "debugpy", "distributed", "django", "docutils", "fastapi", "flask", "gevent", "google-cloud-storage", "grpcio", "h5py", "hatchling",
        "httpx", "hypothesis", "jinja2", "jupyterlab", "lxml", "matplotlib", "mypy", "ninja", "nltk", "numba", "opencv-python-headless", "pandas",
        "paste", "pillow", "poetry-core", "psutil", "pybind11", "pydantic", "pytest", "pyzmq", "rich", "ruamel.yaml", "ruff", "scikit-learn",
        "scipy", "sphinx", "sqlalchemy", "sympy", "tokenizers", "tornado", "twine", "uvicorn", "virtualenv", "xarray"]


def by_uv(env: Path, names: list[str], *, cache: Path, seed: bool = False, link_mode: str = "copy") -> None:
    run_uv("venv", *(["--seed"] if seed else []), "--python", sys.executable, env, cache=cache)
    if names:
        run_uv("pip", "install", "--only-binary", ":all:", "--link-mode", link_mode, "--python", env, *names, cache=cache)


def run_uv(*arguments: str | Path, cache: Path) -> None:
    subprocess.run([uv.find_uv_bin(), *arguments, "-q", "--cache-dir", cache], check=True)


def run_pip(env: Path, *arguments: str | Path) -> None:
    subprocess.run([env / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def eight_by_uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("by-uv")
    by_uv(root / "env", EIGHT, cache=root / "cache")
    return root / "env"


@pytest.fixture(scope="module")
def eight_by_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pip compiles what it installs, and lists the compiled files."""
    root = tmp_path_factory.mktemp("by-pip")
    by_uv(root / "env", [], cache=root / "cache", seed=True)
    run_pip(root / "env", "install", "--only-binary", ":all:", *EIGHT)
    return root / "env"


@pytest.fixture(params=["uv", "pip"])
def eight(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(f"eight_by_{request.param}")
    return found


def test_eight_popular_distributions_are_clean(eight: Path):
    report = integrity.check(eight)
    assert report.clean, report.as_plain()
    assert report.distributions >= 12 and report.checked_files > 1500
    for path in ("share/jupyter/labextensions", "include/site", "bin/f2py"):
        assert (eight / path).exists()


def test_eight_popular_distributions_have_all_that_they_need(eight: Path):
    installed = packages.read(eight)
    assert requirements_check.check(installed) == [] and cuda_builds.findings(installed, "12.8") == []
    assert {found.installer for found in installed.distributions.values()} <= {"uv", "pip"}
    assert installed.problems == [] and all(size > 1000 for size in packages.sizes(installed).values())


def test_running_and_compiling_them_makes_no_finding(eight: Path, tmp_path: Path):
    copy = tmp_path / "env"  # of its own: pip leaves behind what -O compiled
    subprocess.run(["cp", "-a", eight, copy], check=True)
    compiling = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for arguments in ([], ["-O"]):
        subprocess.run([copy / "bin/python", *arguments, "-c", "import requests, yaml, numpy, google.protobuf, greenlet"], check=True, env=compiling)
    assert any(library(copy).rglob("*.opt-1.pyc"))
    assert integrity.check(copy).clean


@pytest.mark.parametrize("seed", range(3))
def test_random_edits_are_found_exactly(eight: Path, seed: int):
    with edited(eight, count=24, seed=seed) as edits:
        report = integrity.check(eight)
        assert told(report) == edits.expected, edits.expected
    assert integrity.check(eight).clean


def test_editable_installs_by_uv_and_pip_are_clean(eight: Path, tmp_path: Path):
    """Flat: setuptools puts a finder module and a .pth file there; src: a .pth file."""
    flat, src = tmp_path / "flat", tmp_path / "src"
    for project, package in ((flat, flat / "editable_flat"), (src, src / "src/editable_src")):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("def main():\n    print('here')\n")
        (project / "pyproject.toml").write_text(
            f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n[project]\nname = "{package.name}"\n'
            f'version = "1.0"\n\n[project.scripts]\n{package.name} = "{package.name}:main"\n')
    copy = tmp_path / "env"
    subprocess.run(["cp", "-a", eight, copy], check=True)
    if (library(copy) / "pip").exists():
        run_pip(copy, "install", "--no-build-isolation", "--no-index", "--no-deps", "-e", flat, "-e", src)
    else:
        run_uv("pip", "install", "--no-build-isolation", "--offline", "--no-deps", "--python", copy, "-e", flat, "-e", src, cache=tmp_path / "cache")
    assert subprocess.run([copy / "bin/editable_flat"], capture_output=True, text=True, check=True).stdout == "here\n"
    report = integrity.check(copy)
    assert report.clean, report.as_plain()
    found = packages.read(copy).distributions
    assert packages.source(found["editable-flat"]) == f"editable {flat}" and packages.source(found["editable-src"]) == f"editable {src}"
    next(library(copy).glob("__editable__*src*.pth")).write_text("/somewhere/else\n")
    assert [path.rsplit("/", 1)[-1] for path in integrity.check(copy).as_plain()["changed"]] == ["__editable__.editable_src-1.0.pth"]


@pytest.mark.parametrize("link_mode", ["hardlink", "symlink", "clone"])
def test_whatever_way_uv_links_files_is_clean(tmp_path: Path, link_mode: str):
    by_uv(tmp_path / "env", ["rich", "pyyaml"], cache=tmp_path / "cache", link_mode=link_mode)
    report = integrity.check(tmp_path / "env")
    assert report.clean, report.as_plain()


def test_an_upgrade_and_a_removal_by_pip_over_uv_leave_it_clean(eight_by_pip: Path, tmp_path: Path):
    copy = tmp_path / "env"
    subprocess.run(["cp", "-a", eight_by_pip, copy], check=True)
    run_pip(copy, "install", "--only-binary", ":all:", "--upgrade", "idna<3.10", "pip<26")
    run_pip(copy, "uninstall", "-y", "requests", "pyyaml")
    report = integrity.check(copy)
    assert report.clean, report.as_plain()
    assert [(found.package, found.kind) for found in requirements_check.check(packages.read(copy))] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_more_than_forty_distributions_by_uv_and_pip_are_clean_and_random_edits_are_found(tmp_path: Path):
    by_uv(tmp_path / "uv", MANY, cache=tmp_path / "cache")
    lock = tmp_path / "lock.txt"
    lock.write_text(subprocess.run([uv.find_uv_bin(), "pip", "freeze", "-q", "--python", tmp_path / "uv"], capture_output=True, text=True,
                                   check=True).stdout)
    by_uv(tmp_path / "pip", [], cache=tmp_path / "cache", seed=True)
    run_pip(tmp_path / "pip", "install", "--only-binary", ":all:", "--no-deps", "-r", lock)
    for env in (tmp_path / "uv", tmp_path / "pip"):
        report = integrity.check(env)
        assert report.clean, report.as_plain()
        assert report.distributions >= 100 and report.checked_bytes > 500_000_000
        assert requirements_check.check(packages.read(env)) == []
        for seed in range(5):
            with edited(env, count=120, seed=seed) as edits:
                assert told(integrity.check(env)) == edits.expected
        assert integrity.check(env).clean
    subprocess.run([tmp_path / "uv/bin/python", "-m", "compileall", "-q", "-x", "/(test|tests|bad)", library(tmp_path / "uv")], check=False,
                   stdout=subprocess.DEVNULL)
    assert integrity.check(tmp_path / "uv").clean


@pytest.mark.slow
def test_an_environment_by_virtualenv_is_clean(tmp_path: Path):
    """It seeds pip from an image of its own, whose RECORD lists compiled files and folders that never were."""
    by_uv(tmp_path / "tool", ["virtualenv"], cache=tmp_path / "cache")
    subprocess.run([tmp_path / "tool/bin/virtualenv", "-q", "--no-download", "--app-data", tmp_path / "data", tmp_path / "env"], check=True)
    report = integrity.check(tmp_path / "env")
    assert report.clean and report.distributions >= 1, report.as_plain()
    assert packages.read(tmp_path / "env").python_version == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_real_torch_without_cuda_tells_so(tmp_path: Path):
    by_uv(tmp_path / "env", [], cache=tmp_path / "cache")
    wheels = [folder for folder in os.environ.get("PIP_FIND_LINKS", "").split() if list(Path(folder).glob("torch-*+cpu-*.whl"))]
    if not wheels:
        pytest.skip("no wheel of a torch without CUDA is at hand (PIP_FIND_LINKS)")
    version = next(Path(wheels[0]).glob("torch-*+cpu-*.whl")).name.split("-")[1]
    run_uv("pip", "install", "--find-links", wheels[0], "--python", tmp_path / "env", f"torch=={version}", cache=tmp_path / "cache")
    report = kernels.check(tmp_path / "env", ["12.0"], timeout_s=170)
    assert report.problem == f"torch {version} is built without CUDA" and report.missing == ["12.0"]
    assert cuda_builds.findings(packages.read(tmp_path / "env"), "12.8") == []


# Edits


@dataclass
class Edits:
    """What was done to an environment, and how to undo it."""

    env: Path
    changed: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    extra: set[str] = field(default_factory=set)
    kept: dict[Path, tuple[bytes, os.stat_result]] = field(default_factory=dict)

    @property
    def expected(self) -> dict[str, list[str]]:
        return {"changed": sorted(self.changed), "missing": sorted(self.missing), "extra": sorted(self.extra)}

    def __enter__(self) -> Edits:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self.extra:
            (self.env / path).unlink()
        for path, (content, state) in self.kept.items():
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            path.chmod(state.st_mode)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def told(report: integrity.IntegrityReport) -> dict[str, list[str]]:
    plain = report.as_plain()
    return {kind: plain[kind] for kind in ("changed", "missing", "extra")}


def edited(env: Path, *, count: int, seed: int) -> Edits:
    """Changes, deletes and adds `count` files at random: any file that a RECORD has with a hash, anything new beside them."""
    chance = random.Random(seed)
    edits = Edits(env)
    listed = sorted(hashed_files(env))
    folders = sorted({path.parent for path in listed if path.is_relative_to(library(env)) and not path.parent.name.endswith(".dist-info")})
    kinds = [change_a_byte, keep_size_and_mtime, append, empty, delete, replace_by_a_link, add_a_module, add_a_pth, add_an_orphan,
             add_beside_metadata, add_a_script]
    for number in range(count):
        kind = kinds[number] if number < len(kinds) else chance.choice(kinds)
        if kind.__name__.startswith("add"):
            folder = chance.choice(folders)
            path = kind(env, folder, chance, number)
            edits.extra.add(str(path.relative_to(env)))
            continue
        target = chance.choice([path for path in listed if path not in edits.kept and path.stat().st_size > 1])
        edits.kept[target] = (target.read_bytes(), target.stat())
        kind(env, target, chance, number)
        (edits.missing if kind is delete else edits.changed).add(str(target.relative_to(env)))
    return edits


def hashed_files(env: Path) -> Iterator[Path]:
    """Files that a RECORD has with a hash, once each; not METADATA, whose name or version an edit could take away."""
    counted: dict[Path, int] = {}
    for found in packages.read(env).distributions.values():
        for path, digest in integrity.rows(found):
            absolute = Path(os.path.normpath(library(env) / path))
            if digest and absolute.name != "METADATA":
                counted[absolute] = counted.get(absolute, 0) + 1
    yield from (path for path, times in counted.items() if times == 1)


def change_a_byte(env: Path, path: Path, chance: random.Random, number: int) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def keep_size_and_mtime(env: Path, path: Path, chance: random.Random, number: int) -> None:
    state = path.stat()
    change_a_byte(env, path, chance, number)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def append(env: Path, path: Path, chance: random.Random, number: int) -> None:
    with path.open("ab") as file:
        file.write(b"\n# edited\n")


def empty(env: Path, path: Path, chance: random.Random, number: int) -> None:
    path.write_bytes(b"")


def delete(env: Path, path: Path, chance: random.Random, number: int) -> None:
    path.unlink()


def replace_by_a_link(env: Path, path: Path, chance: random.Random, number: int) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def add_a_module(env: Path, folder: Path, chance: random.Random, number: int) -> Path:
    return made(folder / chance.choice([f"zz_debug_{number}.py", f"zz_data_{number}.bin", f"zz_lib_{number}.so", f".zz_{number}"]))


def add_a_pth(env: Path, folder: Path, chance: random.Random, number: int) -> Path:
    return made(library(env) / f"zz_{number}.pth")


def add_an_orphan(env: Path, folder: Path, chance: random.Random, number: int) -> Path:
    name = f"zz_gone_{number}.cpython-{sys.version_info[0]}{sys.version_info[1]}{chance.choice(['', '.opt-1'])}.pyc"
    return made(folder / "__pycache__" / name if chance.random() < 0.7 else folder / f"zz_gone_{number}.pyc")


def add_beside_metadata(env: Path, folder: Path, chance: random.Random, number: int) -> Path:
    return made(chance.choice(sorted(library(env).glob("*.dist-info"))) / f"zz_{number}.txt")


def add_a_script(env: Path, folder: Path, chance: random.Random, number: int) -> Path:
    return made(env / "bin" / f"python-{number}")


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"anything\n")
    return path


def test_edits_are_undone(eight_by_uv: Path, tmp_path: Path):
    """Of the tests themselves: what they leave is what they found."""
    copy = tmp_path / "env"
    shutil.copytree(eight_by_uv, copy, symlinks=True)
    with edited(copy, count=11, seed=9) as edits:
        assert len(edits.changed) == 5 and len(edits.missing) == 1 and len(edits.extra) == 5
    assert integrity.check(copy).clean
