from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import uv

from ops.environments import packages, requirements_check
from ops.environments.requirements_check import RequirementFinding
from ops.jobs.errors import OpsError
from tests.ops.environments.test_packages import add

MARKERS = {"implementation_name": "cpython", "implementation_version": "3.10.2", "os_name": "posix", "platform_machine": "aarch64",
           "platform_python_implementation": "CPython", "platform_release": "6", "platform_system": "Linux", "platform_version": "1",
           "python_full_version": "3.10.2", "python_version": "3.10", "sys_platform": "linux"}


@pytest.fixture
def env(tmp_path: Path) -> Path:
    (tmp_path / "env/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7\n")
    return tmp_path / "env"


def needs(env: Path, name: str, version: str, *requires: str, python: str = "", extras: tuple[str, ...] = ()) -> None:
    add(env, name, version, metadata=f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Provides-Extra: {e}\n" for e in extras)
        + (f"Requires-Python: {python}\n" if python else "") + "".join(f"Requires-Dist: {text}\n" for text in requires))


def check(env: Path, markers: dict[str, str] | None = None) -> list[tuple[str, str, str | None, str]]:
    found = requirements_check.check(packages.read(env), markers=markers or MARKERS)
    return [(one.package, one.needs, one.found, one.kind) for one in found]


def test_missing_and_conflicting_requirements_are_told(env: Path):
    needs(env, "vllm", "0.16.0", "torch==2.9.1", "Flash_Infer.Python (>=0.6.4)", "numpy<3,>=1.26", "xgrammar")
    needs(env, "torch", "2.9.0+cu129")
    needs(env, "flash-infer-python", "0.6.4+cu130")
    needs(env, "numpy", "3.0.0")
    assert check(env) == [("vllm", "numpy<3,>=1.26", "3.0.0", "conflict"), ("vllm", "torch==2.9.1", "2.9.0+cu129", "conflict"),
                          ("vllm", "xgrammar", None, "missing")]


def test_a_finding_is_one_sentence(env: Path):
    needs(env, "vllm", "0.16.0", "torch==2.9.1; python_version >= '3.10'")
    (found,) = requirements_check.check(packages.read(env), markers=MARKERS)
    assert found == RequirementFinding("vllm", "torch==2.9.1", None, "missing", 'python_version >= "3.10"', "0.16.0")
    assert found.title == "`vllm` 0.16.0 needs `torch==2.9.1`, which is not installed" and found.as_dict()["title"] == found.title


def test_prereleases_and_local_builds_count_as_what_they_are(env: Path):
    needs(env, "a", "1", "torch>=2.9", "vllm<0.17", "flashinfer-python==0.6.4", "odd===2024-spring")
    for name, version in (("torch", "2.10.0.dev20260101+cu130"), ("vllm", "0.16.0rc2.dev344+gabc"), ("flashinfer-python", "0.6.4+cu130"),
                          ("odd", "2024-spring")):
        needs(env, name, version)
    assert check(env) == []


def test_markers_are_those_of_the_environments_interpreter(env: Path):
    needs(env, "a", "1", "tomli; python_version < '3.11'", "backports.x; python_version >= '3.11'", "arm-kernels; platform_machine == 'aarch64'",
          "pywin32; sys_platform == 'win32'", "pypy-only; implementation_name == 'pypy'")
    assert [found[1] for found in check(env)] == ["arm-kernels", "tomli"]
    assert [found[1] for found in check(env, {**MARKERS, "python_version": "3.12", "platform_machine": "x86_64"})] == ["backports.x"]


def test_extras_count_where_another_distribution_asks_for_them(env: Path):
    needs(env, "app", "1", "fastapi[Standard_Set]>=0.1", "uvicorn")
    needs(env, "fastapi", "0.2", "httpx; extra == 'standard-set'", "email-validator>=2; extra == 'all'",
          "uvicorn[speed]>=1; extra == 'standard-set' and python_version < '4'", extras=("standard-set", "all"))
    needs(env, "uvicorn", "0.9", "uvloop; extra == 'speed'", "watchfiles; extra == 'never'", extras=("speed", "never"))
    assert check(env) == [("fastapi", "httpx", None, "missing"), ("fastapi", "uvicorn[speed]>=1", "0.9", "conflict"),
                          ("uvicorn", "uvloop", None, "missing")]


def test_extras_that_ask_for_each_other_come_to_an_end(env: Path):
    needs(env, "a", "1", "b[x]", "a[all]; extra == 'x'", "gone; extra == 'all'", extras=("x", "all"))
    needs(env, "b", "1", "a[x]; extra == 'x'", extras=("x",))
    assert check(env) == [("a", "gone", None, "missing")]


def test_a_python_that_is_too_old_is_a_conflict(env: Path):
    needs(env, "vllm", "0.33", python=">=3.11,<3.15")
    needs(env, "fine", "1", python=">=3.8")
    needs(env, "odd", "1", python="three")
    assert check(env) == [("odd", "Python three", None, "unreadable"), ("vllm", "Python >=3.11,<3.15", "3.10.2", "conflict")]


def test_what_is_no_requirement_is_told_and_the_rest_is_checked(env: Path):
    needs(env, "a", "1", "b >= one", "c; nonsense == 'x'", "d", "e @ https://user:secret@example.org/e.whl")
    found = check(env)
    assert [(needs_, kind) for _, needs_, _, kind in found] == [
        ("b >= one", "unreadable"), ("c; nonsense == 'x'", "unreadable"), ("d", "missing"), ("e @ https://example.org/e.whl", "missing")]


def test_packages_of_the_system_count_where_the_environment_sees_them(env: Path, tmp_path: Path):
    system = tmp_path / "system/lib/python3.11/site-packages/numpy-1.26.0.dist-info"
    system.mkdir(parents=True)
    (system / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.0\n")
    needs(env, "a", "1", "numpy<3", "scipy")
    settings = f"home = {tmp_path}/system/bin\nversion_info = 3.11.7\ninclude-system-site-packages = "
    (env / "pyvenv.cfg").write_text(settings + "true\n")
    assert [found[1] for found in check(env)] == ["scipy"]
    (env / "pyvenv.cfg").write_text(settings + "false\n")
    assert [found[1] for found in check(env)] == ["numpy<3", "scipy"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = tmp_path_factory.mktemp("real") / "env"
    subprocess.run([uv.find_uv_bin(), "venv", "-q", "--no-config", "--offline", "--python", sys.executable, env], check=True)
    return env


def test_the_interpreter_is_asked_for_its_markers(real: Path):
    values, why = requirements_check.markers_of(packages.read(real))
    assert why is None and values["python_full_version"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert values.keys() == MARKERS.keys() and values["sys_platform"] == "linux"


def test_nothing_of_the_environment_runs_when_it_is_asked(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    library = next(real.glob("lib/python3*/site-packages"))
    for name, text in (("sitecustomize.py", trap), ("trap.pth", f"import os; {trap}"), ("json.py", trap), ("platform.py", trap)):
        (library / name).write_text(text)
    (tmp_path / "json.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    assert requirements_check.markers_of(packages.read(real))[1] is None
    assert not (tmp_path / "sprung").exists()


def script(env: Path, text: str) -> None:
    (env / "bin").mkdir(exist_ok=True)
    (env / "bin/python").write_text(text)
    (env / "bin/python").chmod(0o755)


@pytest.mark.parametrize(("text", "words"), [
    ("#!/bin/sh\nsleep 60\n", "does not answer"), ("#!/bin/sh\necho broken >&2; exit 3\n", "broken"), ("#!/bin/sh\necho '[1]'\n", "does not run"),
    ("#!/no/such/interpreter\n", "cannot be started"), ("#!/bin/sh\necho not json\n", "does not run")])
def test_an_interpreter_that_does_not_run_is_made_up_for_by_the_files(env: Path, text: str, words: str):
    script(env, text)
    values, why = requirements_check.markers_of(packages.read(env), timeout_s=0.3)
    assert values["python_version"] == "3.11" and values["python_full_version"] == "3.11.7" and values.keys() == MARKERS.keys()
    assert why is not None and words in why


def test_an_unknown_python_is_an_error(env: Path):
    (env / "pyvenv.cfg").write_text("home = /usr/bin\n")
    installed = packages.read(env)
    assert requirements_check.markers_of(installed)[0]["python_full_version"] == "3.11.0"
    nothing = packages.EnvironmentPackages(env, None, installed.site_packages, {})
    with pytest.raises(OpsError, match="is not known"):
        requirements_check.markers_of(nothing)
