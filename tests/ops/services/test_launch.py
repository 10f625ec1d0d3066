from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ops.jobs.errors import BadInput
from ops.records import ServiceRecord
from ops.services import env_files, launch

STRANGE = ["--port", "1", "--name", "a b", "it's", '"q"', "$(touch x)", "*", "--json={\"a\": [1, 2]}", "back\\slash", "line\nbreak", "ü", ""]


def test_arguments_and_variables_arrive_exactly_as_given(make_record: Callable[..., ServiceRecord], tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    record = make_record(flags=STRANGE, env={"FAKE_VLLM": json.dumps({"tell": str(told), "exit": 0}), "MINE": "a 'b' \"c\" $HOME\n"})
    launcher = launch.write(record)
    subprocess.run([str(launcher)], env={"PATH": "/usr/bin:/bin"}, cwd="/", check=True, timeout=30)
    seen = json.loads(told.read_text())
    release = record.current.resolve()
    assert seen["argv"] == [str(release / "bin/vllm"), "serve", record.model_path, *STRANGE]
    assert seen["env"]["MINE"] == "a 'b' \"c\" $HOME\n"
    assert seen["env"]["PATH"] == f"{release}/bin:/usr/bin:/bin", "ninja of the environment is found"


def started(record: ServiceRecord, tmp_path: Path, **env: str) -> dict[str, str]:
    """The environment that the server gets."""
    told = tmp_path / "told.json"
    record.env = {**record.env, "FAKE_VLLM": json.dumps({"tell": str(told), "exit": 0})}
    subprocess.run([str(launch.write(record))], env={"PATH": "/usr/bin:/bin", **env}, cwd="/", check=True, timeout=30)
    return dict(json.loads(told.read_text())["env"])


def test_environment_files_are_read_at_each_start_and_override(make_record: Callable[..., ServiceRecord], tmp_path: Path) -> None:
    file = tmp_path / "vllm.env"
    file.write_text("# tokens\nHF_TOKEN='can ary'\nMINE=\"from \\\nfile\"\nROUNDHOUSE_JOB=x\n")
    record = make_record(env={"MINE": "from the record"}, env_files=[str(file), f"-{tmp_path}/missing.env"])
    seen = started(record, tmp_path)
    assert (seen["HF_TOKEN"], seen["MINE"]) == ("can ary", "from file") and "ROUNDHOUSE_JOB" not in seen
    file.write_text("HF_TOKEN=new\n")
    assert started(record, tmp_path)["HF_TOKEN"] == "new"
    assert not [path for path in record.folder.iterdir() if path.is_file() and "can ary" in path.read_text()], "secrets stay in their file"
    assert launch.variables(record)["HF_TOKEN"] == "new"


def test_secrets_of_earlier_settings_stay_known(make_record: Callable[..., ServiceRecord]) -> None:
    """A run that goes on, and older logs, still hold them."""
    first = make_record(flags=["--api-key", "first-key"], env={"HF_TOKEN": "first-token", "URL": "http://u:first-password@h/"})
    launch.write(first)
    assert not (first.folder / "former-secrets.json").exists()
    second = replace(first, flags=["--api-key", "second-key"], env={"HF_TOKEN": "second-token"})
    launch.write(second)
    launch.write(replace(second, env={}))
    kept = first.folder / "former-secrets.json"
    assert {"first-key", "first-token", "first-password", "second-token"} <= set(launch.secrets(replace(second, env={})))
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text("spoilt")
    assert launch.secrets(second) == ["second-token", "second-key"]


def test_a_missing_environment_file_is_said_clearly(make_record: Callable[..., ServiceRecord], tmp_path: Path) -> None:
    record = make_record(env_files=[f"{tmp_path}/missing.env"])
    done = subprocess.run([str(launch.write(record))], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 127
    assert done.stderr == f"launch: the environment file {tmp_path}/missing.env cannot be read: No such file or directory\n"


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/usr/bin/python3").exists(), reason="needs root, and an interpreter that every user can run")
def test_below_systemd_a_file_that_only_root_may_read_was_read_before(tmp_path: Path) -> None:
    file = tmp_path / "secret.env"
    file.write_text("HF_TOKEN=x\n")
    file.chmod(0o600)
    program = f"{Path(env_files.__file__).read_text()}\noverlay({{}}, [{str(file)!r}])\n"

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["/usr/bin/python3", "-I", "-"], input=program, env=env, cwd="/", capture_output=True, text=True, check=False,
                              timeout=30, user=65534, extra_groups=[])

    assert run().returncode == 127 and "permission denied" in run().stderr
    assert run(INVOCATION_ID="1").returncode == 0


def test_files_with_variables_are_private(make_record: Callable[..., ServiceRecord]) -> None:
    record = make_record(env={"HF_TOKEN": "secret"})
    launch.write(record)
    assert {name: (record.folder / name).stat().st_mode & 0o777 for name in ("launch", "env.json", "record.json", "launch.json")} == {
        "launch": 0o755, "env.json": 0o600, "record.json": 0o600, "launch.json": 0o600}
    assert "secret" not in (record.folder / "launch").read_text()


def test_writing_again_leaves_what_is_the_same(make_record: Callable[..., ServiceRecord]) -> None:
    record = make_record()
    before = launch.write(record).stat().st_ino
    record.flags.append("--more")
    assert launch.write(record).stat().st_ino == before
    assert json.loads((record.folder / "flags.json").read_text()) == record.flags


def test_no_release_is_said_clearly(make_record: Callable[..., ServiceRecord]) -> None:
    record = make_record()
    launcher = launch.write(record)
    record.current.unlink()
    record.current.symlink_to("/nonexistent/release")
    done = subprocess.run([str(launcher)], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 127 and "current points nowhere" in done.stderr


@pytest.mark.parametrize("env", [{"ROUNDHOUSE_JOB": "x"}, {"A=B": "x"}, {"A": "x\0y"}])
def test_variables_that_cannot_be_are_refused(make_record: Callable[..., ServiceRecord], env: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        launch.write(make_record(env=env))
