"""The pinned requirements: complete, consistent, free of machine paths; and the serving stack resolves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28")  # as in the Makefile
TRIO = ("vllm", "flashinfer-python", "flashinfer-cubin")


def pins(name: str) -> dict[str, set[str]]:
    """Package to its pinned versions (several where markers tell them apart)."""
    found: dict[str, set[str]] = {}
    for line in (REPOSITORY / name).read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line):
            found.setdefault(match[1], set()).add(match[2])
    return found


@pytest.mark.parametrize("name", ["requirements", "requirements-dev", "requirements-serving"])
def test_every_package_is_pinned_with_hashes_and_names_no_address_or_path(name: str) -> None:
    text = (REPOSITORY / f"{name}.txt").read_text()
    assert not re.search(r"://|file:|(?<![\w.-])/(?:opt|root|home|tmp|usr)/", text)
    blocks = re.split(r"\n(?=[A-Za-z])", text)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "==" not in block.splitlines()[0] or "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("name", ["requirements", "requirements-dev", "requirements-serving"])
def test_every_wish_is_met_by_its_pin(name: str) -> None:
    pinned = pins(f"{name}.txt")
    for line in (REPOSITORY / f"{name}.in").read_text().splitlines():
        if line and not line.startswith(("#", "-r")):
            wish = Requirement(line)
            assert pinned[wish.name] and all(version in wish.specifier for version in pinned[wish.name]), line


def test_tests_run_on_exactly_what_the_console_runs_on() -> None:
    dev = pins("requirements-dev.txt")
    assert {name: versions for name, versions in pins("requirements.txt").items() if dev.get(name) != versions} == {}


def test_the_console_needs_nothing_of_the_serving_stack() -> None:
    assert not {*TRIO, "torch"} & set(pins("requirements.txt"))


def test_coupled_packages_of_the_serving_stack_share_a_version_and_each_pin_has_its_reason() -> None:
    pinned = pins("requirements-serving.txt")
    assert pinned["flashinfer-python"] == pinned["flashinfer-cubin"]
    lines = (REPOSITORY / "requirements-serving.in").read_text().splitlines()
    named = {line.split("==")[0]: lines[number - 1] for number, line in enumerate(lines) if line and not line.startswith("#")}
    assert set(named) == set(TRIO)
    assert all(reason.startswith("# ") for reason in named.values())


def test_the_serving_stack_resolves_to_the_lock(tmp_path: Path) -> None:
    """Asks the package index, as a GPU node would: the three pins agree with each other and with all that they require."""
    lock = tmp_path / "lock.txt"
    lock.write_text((REPOSITORY / "requirements-serving.txt").read_text())  # uv keeps its versions where they still resolve
    done = subprocess.run(
        [UV, "pip", "compile", "--quiet", "--generate-hashes", *PLATFORM, REPOSITORY / "requirements-serving.in", "-o", lock],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert {name: versions for name, versions in pins("requirements-serving.txt").items() if name in TRIO} == \
        {name: versions for name, versions in pins(str(lock)).items() if name in TRIO}


@pytest.mark.slow
@pytest.mark.slow
def test_a_cubin_of_another_version_does_not_resolve(tmp_path: Path) -> None:
    wish = tmp_path / "serving.in"
    wish.write_text((REPOSITORY / "requirements-serving.in").read_text().replace("flashinfer-cubin==0.6.13", "flashinfer-cubin==0.6.12"))
    done = subprocess.run([UV, "pip", "compile", "--quiet", *PLATFORM, wish], capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode != 0
    assert "flashinfer-cubin==0.6.13" in done.stderr
