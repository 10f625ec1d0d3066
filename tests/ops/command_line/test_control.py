"""Services controlled from the command line: a practice service, and a unit of the double of systemd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops.agent.config import NodePaths
from ops.command_line import control
from ops.command_line.main import main
from ops.records import ServiceRecord
from ops.services import state
from ops.services.process import MARK
from ops.services.status import ServiceStatus
from tests.fakes.node import until
from tests.ops.command_line.run import REPOSITORY, ops
from tests.ops.command_line.said import Said
from tests.ops.command_line.test_jobs import Box, end_of_box, make_box
from tests.ops.services.systemd_box import SystemdBox, is_real

SERVICE = "kimi-k25"
SECRET = "hf_canary0123456789abcdef"


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box for the story below, whose tests follow one another."""
    made = make_box(tmp_path_factory.mktemp("c"))
    yield made
    end_of_box(made.record)


Here = Callable[..., Said]


@pytest.fixture
def here(practice: Box, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs a command that starts no job in this very process: the same code, without a new interpreter."""
    monkeypatch.setenv("ROUNDHOUSE_NODE_STATE", str(practice.paths.root))

    def run(*arguments: str) -> Said:
        code = main(arguments)
        return Said(code, *capsys.readouterr())

    return run


def follow(paths: NodePaths, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "ops", "log", "--service", SERVICE, "--follow", *more], cwd=REPOSITORY, text=True,
                            env={**os.environ, "ROUNDHOUSE_NODE_STATE": str(paths.root)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_service_that_never_ran_is_stopped_and_has_no_log(here: Here) -> None:
    told = here("status", "--service", SERVICE, "--json").json
    assert (told["state"], told["since"], told["uptime_s"], told["unit"], told["last_failure"]) == ("stopped", None, None, None, None)
    assert "stopped" in here("status").out
    log = here("log", "--service", SERVICE)
    assert (log.code, log.out) == (1, "") and "hint: Start it: python -m ops start" in log.err


def test_wrong_arguments_and_unknown_services_are_told_before_anything_begins(here: Here, practice: Box) -> None:
    of = ("--service", SERVICE)
    for code, words, argv in ((1, "has no service `x`", ("stop", "--service", "x")), (1, "has no service `x`", ("switch", *of, "--to", "x")),
                              (2, "switched to itself", ("switch", *of, "--to", SERVICE)), (2, "--lines", ("log", *of, "--lines", "-1")),
                              (2, "There is no smoke test `x`", ("smoke", *of, "--only", "x")), (2, "own model", ("smoke", *of, "--model", "m"))):
        said = here(*argv)
        assert (said.code, said.out) == (code, "") and words in said.err
    refused = practice.run("end-leftovers", *of)
    assert refused.returncode == 2 and "Say --yes if nobody is there to ask" in refused.stderr


def test_a_start_is_a_job_whose_service_and_log_can_be_looked_at(practice: Box, here: Here) -> None:
    done = practice.json("start", "--service", SERVICE, "--no-smoke")
    assert (done["type"], done["state"]) == ("start", "succeeded") and done["warmup"]["phases"]
    assert [one["step"] for one in done["steps"]] == ["preflight", "start", "warmup"] and practice.types(done["job"])[-1] == "job.finished"
    told = here("status", "--service", SERVICE, "--json").json
    assert told["state"] == "healthy" and told["pid"] and told["uptime_s"] >= 0 and told["since"] and told["release"] == practice.current
    plain = here("status", "--service", SERVICE)
    assert plain.code == 0 and f"pid {told['pid']}, for " in plain.out and told["log_where"] in plain.out
    log = here("log", "--service", SERVICE, "--lines", "3")
    assert len(log.out.splitlines()) == 3 and told["log_where"] in log.err
    assert all(set(json.loads(line)) == {"text"} for line in here("log", "--service", SERVICE, "--json").out.splitlines())


def test_the_smoke_suite_of_a_service_is_a_job_and_can_be_narrowed(practice: Box) -> None:
    done = practice.json("smoke", "--service", SERVICE, "--only", "factual")
    assert (done["type"], [one["name"] for one in done["smoke"]], done["smoke"][0]["outcome"]) == ("smoke", ["factual"], "passed")


def test_a_warmup_that_is_over_is_told_phase_by_phase(practice: Box) -> None:
    plain = practice.run("warmup", "--service", SERVICE)
    assert plain.returncode == 0 and "Load weights" in plain.stdout and "median" in plain.stdout, plain.stderr


def test_a_followed_log_ends_with_ctrl_c_or_with_its_run(practice: Box, here: Here) -> None:
    with follow(practice.paths, "--lines", "1") as interrupted, follow(practice.paths) as following:
        for one in (interrupted, following):
            assert one.stdout is not None and one.stdout.readline(), "what is there comes at once"
        interrupted.send_signal(signal.SIGINT)
        _, err = interrupted.communicate(timeout=30)
        assert interrupted.returncode == 130 and err.endswith("Interrupted\n")
        stopped = practice.run("stop", "--service", SERVICE)
        assert stopped.returncode == 0 and "GPUs free: done" in stopped.stderr
        out, err = following.communicate(timeout=30)
    assert following.returncode == 0 and "Its run is over: It was stopped" in err and "Finished server process" in out
    assert here("status", "--service", SERVICE, "--json").json["state"] == "stopped"


def test_a_log_is_followed_into_the_next_run_that_its_manager_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LOOK_S", 0.01)
    monkeypatch.setattr(control, "STATUS_S", 0.05)
    first, second = (ServiceStatus(state="healthy", pid=1, invocation=name) for name in "ab")
    between = ServiceStatus(state="failed", invocation="a", restarting=True, exit_code=1, detail="It crashed")
    over = ServiceStatus(state="stopped", invocation="b", detail="It was stopped")
    manager = Managed([first, first, between, between, second, second, over], {"a": [b"one\nCanary-1234\n", b"", b"tw", b"o"], "b": [b"three\n"]})
    control._follow(ServiceRecord(name="a", root="/r", model_path="/m", served_model_name="m", base_url="http://127.0.0.1:9"), manager,
                    control._Printer(["Canary-1234"], as_json=False, last=None))
    said = capsys.readouterr()
    assert said.out.splitlines() == ["one", "[redacted]", "two", "three"] and manager.closed == ["a", "b"]
    assert said.err.splitlines() == ["Log of a: log of a", "Its run is over, and another one has begun", "Log of a: log of b",
                                     "Its run is over: It was stopped"]


class Managed:
    """A manager whose statuses come in this order, the last one for ever; of each run the pieces that its log grows by."""

    def __init__(self, statuses: list[ServiceStatus], logs: dict[str, list[bytes]]) -> None:
        self._statuses, self._logs, self.closed = statuses, logs, list[str]()

    def status(self) -> ServiceStatus:
        self._now = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return self._now

    def run_log(self) -> Any:
        run = self._now.invocation
        pieces = list(self._logs[run])
        return SimpleNamespace(where=f"log of {run}", read=lambda: pieces.pop(0) if pieces else b"", close=lambda: self.closed.append(run))


def test_only_leftovers_of_the_service_can_be_ended(practice: Box) -> None:
    invocation = json.loads((practice.record.folder / "process.json").read_text())["invocation"]
    left = subprocess.Popen(["sleep", "1000"], env={MARK: invocation}, start_new_session=True)
    try:
        own = [one["pid"] for one in practice.json("leftovers", "--service", SERVICE, code=1)["leftovers"]["processes"] if one["own"]]
        assert own == [left.pid]
        strange = practice.run("end-leftovers", "--service", SERVICE, "--yes", "--pid", str(os.getpid()))
        assert strange.returncode == 1 and "is no leftover" in strange.stderr and left.poll() is None
        assert practice.json("end-leftovers", "--service", SERVICE, "--yes")["state"] == "succeeded"
        assert until(lambda: left.poll() is not None, 10)
    finally:
        left.kill()
        left.wait()
    assert "Nothing of kimi-k25 is left" in practice.run("end-leftovers", "--service", SERVICE, "--yes").stdout


def test_the_last_failure_is_told_with_its_diagnosis_and_a_broken_record_hides_no_service(practice: Box, here: Here) -> None:
    found = {"fault": True, "line": 76, "text": "RuntimeError: cubin", "diagnosis": "Versions differ.", "fix": "install it"}
    failure = {"at": 1.0, "ended_at": 1.0, "detail": "It ended by SIGKILL", "invocation": "a", "problem": "", "diagnosis": found}
    state.change(practice.record, lambda known: known.update(failures=[failure]))
    (practice.paths.announced / "broken.json").write_text("{")
    try:
        plain, both = here("status", "--service", SERVICE).out, here("status", "--json")
    finally:
        (practice.paths.announced / "broken.json").unlink()
    assert "It ended by SIGKILL" in plain and "line 76: RuntimeError: cubin" in plain and "fix: install it" in plain
    services = {one["service"]: one for one in both.json["services"]}
    assert both.code == 1 and services["broken"]["problem"] and services[SERVICE]["last_failure"] == failure


@pytest.mark.skipif(is_real(), reason="the double's unit")
def test_a_failed_unit_is_told_with_its_facts_and_its_log_without_secrets(
        short_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    box = SystemdBox(short_path, monkeypatch)
    try:
        box.write("rh-cli", f"echo the token is {SECRET}; exit 3", "Restart=on-failure", "RestartSec=1000")
        paths = NodePaths(short_path / "n").make()
        paths.node_toml.write_text(f'name = "n1"\nunits = ["rh-cli.service"]\nservice_roots = ["{short_path}"]\nmodel_roots = ["/m"]\n')
        (paths.announced / "rh-cli.json").write_text(json.dumps(box.record("rh-cli", env={"HF_TOKEN": SECRET}).as_dict()))
        manager = box.manager("rh-cli")
        manager.start()
        box.until(manager, lambda status: status.exit_code == 3)
        monkeypatch.setenv("ROUNDHOUSE_NODE_STATE", str(paths.root))
        told = here("status", "--service", "rh-cli")
        assert told.code == 1 and "rh-cli.service, system unit" in told.out and "with exit code 3" in told.out
        assert "it does not start Roundhouse's launcher" in told.out
        log = here("log", "--service", "rh-cli")
        assert log.code == 0 and "the token is [redacted]" in log.out and SECRET not in log.out
        reset = ops("reset-failed", "--service", "rh-cli", ROUNDHOUSE_NODE_STATE=str(paths.root))
        assert reset.returncode == 0 and "it was failed" in reset.stdout, reset.stderr
    finally:
        box.close()


def test_a_state_of_another_user_is_not_touched(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    for command in (("status",), ("log", "--service", SERVICE)):
        said = here(*command)
        assert said.code == 1 and "belongs to the user" in said.err
