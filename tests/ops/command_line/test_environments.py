"""`packages`, `coupling`, `integrity`, `verify`, `fingerprint` of real environments, made by uv from small wheels."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from tests.fakes.wheels import make_wheel
from tests.ops.command_line.run import error_of, ops


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with a pair of coupled packages that agree. Tests do not change it."""
    return make(tmp_path_factory.mktemp("clean"), cubin="0.6.4")


def make(folder: Path, *, cubin: str) -> Path:
    wheels, env = folder / "wheels", folder / "env"
    make_wheel(wheels, "vllm", "0.17.1", requires=["flashinfer-python==0.6.4"], files={"vllm/__init__.py": "def main():\n    print('0.17.1')\n"},
               entry_points="[console_scripts]\nvllm = vllm:main\n")
    make_wheel(wheels, "flashinfer-python", "0.6.4", requires=["tiny-base>=2; python_version >= '3'"])
    make_wheel(wheels, "flashinfer-cubin", cubin)
    make_wheel(wheels, "tiny-base", "2.0")
    program = uv.find_uv_bin()
    for argv in (["venv", "-q", "--python", sys.executable, str(env)],
                 ["pip", "install", "-q", "--python", str(env), "--no-index", "--find-links", str(wheels), "--link-mode", "copy", "--cache-dir",
                  str(folder / "cache"), "vllm", "flashinfer-cubin"]):
        subprocess.run([program, *argv], check=True, timeout=60)
    return env


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """An environment with coupled packages that differ, a requirement that is not met, an edited, a missing and an extra file."""
    env = make(tmp_path, cubin="0.6.3")
    site = next(env.glob("lib/python3*/site-packages"))
    (site / "vllm" / "__init__.py").write_text((site / "vllm" / "__init__.py").read_text() + "# by hand\n")
    (site / "vllm" / "stray.py").touch()
    (site / "flashinfer_cubin" / "__init__.py").unlink()
    subprocess.run([uv.find_uv_bin(), "pip", "uninstall", "-q", "--python", str(env), "tiny-base"], check=True, timeout=60)
    return env


def test_a_whole_environment_is_all_well(environment: Path) -> None:
    read = json.loads(ops("packages", "--env", str(environment), "--json").stdout)
    assert {one["name"]: one["version"] for one in read["distributions"]} == {
        "flashinfer-cubin": "0.6.4", "flashinfer-python": "0.6.4", "tiny-base": "2.0", "vllm": "0.17.1"}
    assert all(one["size_bytes"] > 0 and one["installer"] == "uv" for one in read["distributions"])
    assert (read["coupling"], read["requirements"], read["cuda"], read["kernels"]) == ([], [], [], None)
    for command in ("packages", "coupling", "integrity", "verify"):
        assert ops(command, "--env", str(environment)).returncode == 0
    assert "Coupled packages agree: flashinfer-python, flashinfer-cubin" in ops("coupling", "--env", str(environment)).stdout


def test_integrity_json_has_five_keys_and_relative_paths(environment: Path, broken: Path) -> None:
    clean = json.loads(ops("integrity", "--env", str(environment), "--json").stdout)
    assert clean == {"distributions": 4, "files": clean["files"], "changed": [], "missing": [], "extra": []} and clean["files"] > 15
    done = ops("integrity", "--env", str(broken), "--json")
    found = json.loads(done.stdout)
    library = f"lib/python3.{sys.version_info.minor}/site-packages"
    assert done.returncode == 1 and set(found) == {"distributions", "files", "changed", "missing", "extra"}
    assert (found["changed"], found["missing"], found["extra"]) == (
        [f"{library}/vllm/__init__.py"], [f"{library}/flashinfer_cubin/__init__.py"], [f"{library}/vllm/stray.py"])
    only = json.loads(ops("integrity", "--env", str(broken), "--only", "vllm", "--json").stdout)
    assert (len(only["changed"]), len(only["missing"])) == (1, 0)


def test_what_is_wrong_exits_1_with_its_words(broken: Path) -> None:
    packages = ops("packages", "--env", str(broken))
    assert packages.returncode == 1 and "`flashinfer-python` 0.6.4 needs `tiny-base>=2`" in packages.stdout
    coupling = ops("coupling", "--env", str(broken), "--json")
    assert coupling.returncode == 1 and "flashinfer-cubin" in json.loads(coupling.stdout)["coupling"][0]["title"]
    verify = ops("verify", "--env", str(broken), "--json")
    told = json.loads(verify.stdout)
    assert verify.returncode == 1 and {check["name"]: check["holds"] for check in told["checks"]} == {
        "files": False, "requirements": False, "coupling": False, "interpreter": True, "vllm": True}


def test_the_programs_of_a_folder_that_was_copied_are_not_taken_for_its_own(environment: Path, tmp_path: Path) -> None:
    """`bin/vllm` names its interpreter by its whole path: it would start what lies in the old place, and say that all is well."""
    copied = tmp_path / "copied"
    shutil.copytree(environment, copied, symlinks=True)
    told = {check["name"]: check for check in json.loads(ops("verify", "--env", str(copied), "--json").stdout)["checks"]}
    assert told["files"]["holds"] and not told["vllm"]["holds"]
    assert f"`bin/vllm` starts `{environment}/bin/python" in told["vllm"]["detail"] and "copied or renamed" in told["vllm"]["detail"]
    (tmp_path / "link").symlink_to(environment)
    assert ops("verify", "--env", str(tmp_path / "link")).returncode == 0


def test_two_fingerprints_differ_in_words(environment: Path, broken: Path, tmp_path: Path) -> None:
    for name, env in (("a", environment), ("b", broken)):
        done = ops("fingerprint", "--env", str(env), "--json")
        assert done.returncode == 0
        (tmp_path / name).write_text(done.stdout)
    differ = ops("fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert differ.returncode == 1 and "flashinfer-cubin" in differ.stdout
    assert ops("fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "a")).stdout == "Nothing differs\n"
    assert error_of("fingerprint", "--diff", str(tmp_path / "a"), str(tmp_path / "none"), code=2)["kind"] == "bad_input"


def test_a_plan_for_a_lone_environment(environment: Path, tmp_path: Path) -> None:
    wheels = environment.parent / "wheels"
    make_wheel(wheels, "vllm", "0.17.2", requires=["flashinfer-python==0.6.4"])
    done = ops("plan", "--env", str(environment), "--channel", f"wheelhouse:{wheels}", "--json", TMPDIR=str(tmp_path))
    made = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [(one["name"], one["old"], one["new"]) for one in made["packages"] if one["change"] != "same"] == [("vllm", "0.17.1", "0.17.2")]
    assert "1 of" in ops("plan", "--env", str(environment), "--channel", f"wheelhouse:{wheels}", TMPDIR=str(tmp_path)).stdout
    told = error_of("plan", "--env", str(environment), "--channel", "fashion")
    assert "is no channel" in told["what"]
    told = error_of("plan", "--env", str(environment), "--channel", f"wheelhouse:{wheels}", "--python", "3.99", TMPDIR=str(tmp_path))
    assert told["what"] == "This machine has no Python 3.99"


def test_a_service_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "services.d").mkdir()
    (tmp_path / "services.d" / "kimi.json").write_text("{}")
    told = error_of("packages", "--service", "glm", ROUNDHOUSE_NODE_STATE=str(tmp_path))
    assert (told["what"], told["hint"]) == ("This node has no service `glm`", "It has: kimi")
    assert "incomplete" in error_of("packages", "--service", "kimi", ROUNDHOUSE_NODE_STATE=str(tmp_path))["what"]


@pytest.mark.parametrize("command", ["packages", "coupling", "integrity", "verify"])
def test_what_is_no_environment_is_told(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in ((".", "It has no pyvenv.cfg"), ("nothing", "There is no such folder"), ("file", "It is a file")):
        told = error_of(command, "--env", str(tmp_path / name))
        assert "no Python environment" in told["what"] and told["why"].startswith(why) and "bin/python" in told["hint"]
