"""`gpus`, `diagnose`, and what every command has in common."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.command_line.run import REPOSITORY, error_of, ops


def test_gpus_says_why_there_are_none_or_lists_them() -> None:
    done = ops("gpus", "--json")
    snapshot = json.loads(done.stdout)
    assert done.returncode == 0 and (snapshot["gpus"] or snapshot["problem"])
    assert ops("gpus").returncode == 0


def test_diagnose_finds_the_decisive_line_of_a_recorded_crash() -> None:
    log = REPOSITORY / "tests" / "fixtures" / "vllm" / "crash-flashinfer-mismatch-in-worker.log"
    found = json.loads(ops("diagnose", str(log), "--json").stdout)
    assert "flashinfer-cubin version" in found["text"]
    assert f"line {found['line']} of" in ops("diagnose", str(log)).stdout


def test_diagnose_reads_stdin_and_gzip(tmp_path: Path) -> None:
    log = (REPOSITORY / "tests" / "fixtures" / "vllm" / "crash-port-in-use.log").read_bytes()
    packed = tmp_path / "log.1.gz"
    packed.write_bytes(gzip.compress(log))
    command = [sys.executable, "-m", "ops", "diagnose", "-", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, input=log, capture_output=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert list(found)[:7] == ["fault", "line", "text", "kind", "diagnosis", "fix", "rule"]
    assert found == json.loads(ops("diagnose", str(packed), "--json").stdout) and found["kind"] == "port-in-use"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + log)
    assert error_of("diagnose", str(packed))["why"] == "It is packed with zstd"


def test_diagnose_says_that_a_healthy_log_has_no_fault() -> None:
    log = REPOSITORY / "tests" / "fixtures" / "vllm" / "startup-eager.log"
    assert re.fullmatch(r"No failure found in this log: \d+ lines, the server serves\n", ops("diagnose", str(log)).stdout)


def test_diagnose_of_no_file_is_told() -> None:
    assert error_of("diagnose", "/nothing/here.log")["what"] == "There is no file `/nothing/here.log`"


def test_diagnose_of_what_is_no_text_is_told() -> None:
    assert error_of("diagnose", sys.executable)["what"] == f"`{sys.executable}` is no log"


def test_a_python_without_the_requirements_is_told_which_one_has_them(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    for command in (["-m", "ops", "bench", "--url", "http://127.0.0.1:9"], ["manage.py", "up"]):
        done = subprocess.run([bare / "bin" / "python", *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and done.stderr.startswith("error: `") and "is not installed for" in done.stderr
        assert ".venv" in done.stderr.splitlines()[1] and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [
    [], ["fly"], ["bench"], ["bench", "--url", "http://h", "--concurrency", "a,b"], ["packages"], ["packages", "--env", "/x", "--service", "x"],
    ["recipe"], ["adopt"], ["diagnose"], ["diagnose", "x", "--unit", "y"], ["plan", "--service", "x"], ["redeploy", "--service", "x"]])
def test_wrong_arguments_exit_2(arguments: list[str]) -> None:
    done = ops(*arguments)
    assert done.returncode == 2 and "usage:" in done.stderr and "Traceback" not in done.stderr


def test_every_command_prints_json_and_is_in_the_reference() -> None:
    commands = [line.split()[0] for line in ops("--help").stdout.splitlines() if re.match(r"    [a-z]", line)]
    reference = (REPOSITORY / "docs" / "reference" / "command-line.md").read_text()
    assert len(commands) > 15 and [name for name in commands if f"## {name}" not in reference] == []
    assert [name for name in commands if name not in ("recipe", "artifacts") and "--json" not in ops(name, "--help").stdout] == []
