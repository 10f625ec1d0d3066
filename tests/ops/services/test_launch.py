from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.jobs.errors import BadInput
from ops.records import ServiceRecord
from ops.services import launch

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
