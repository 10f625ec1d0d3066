"""The systemd manager, against the double; and once more, all of it, against a real systemd in a sandbox of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.jobs.errors import OpsError
from ops.services import launch, systemctl, systemd
from ops.services.manager import manager_for
from ops.services.systemd import SystemdManager
from tests.ops.services.conftest import free_port, wait_for
from tests.ops.services.systemd_box import INSIDE, SystemdBox, box, is_real

__all__ = ["box"]
REPOSITORY = Path(__file__).resolve().parents[3]
SANDBOX = REPOSITORY / "tests" / "fakes" / "systemd_sandbox.sh"
SERVES = "echo ready; exec {python} -IS -m http.server {port} --bind 127.0.0.1 --directory {folder}"
STUBBORN = 'trap "" TERM; echo deaf; while :; do sleep 0.05; done'
GOES_ON = "echo up; exec sleep 1000"


def serving(box: SystemdBox, name: str, *settings: str) -> SystemdManager:
    port = free_port()
    (box.folder / "www").mkdir(exist_ok=True)
    (box.folder / "www" / "health").touch()
    box.write(name, SERVES.format(python=sys.executable, port=port, folder=box.folder / "www"), *settings)
    return box.manager(name, base_url=f"http://127.0.0.1:{port}")


def test_a_unit_starts_answers_and_is_stopped(box: SystemdBox) -> None:
    manager = serving(box, "rh-serve")
    assert manager_for(manager.record).status().state == "stopped"
    began = manager.start()
    assert began.pid and began.start_ticks and began.state in ("starting", "healthy") and began.log_path is None
    healthy = box.until(manager, lambda status: status.state == "healthy")
    assert (healthy.pid, healthy.invocation, healthy.restarts) == (began.pid, began.invocation, 0)
    assert manager.pids() == {began.pid} and abs((healthy.started_at or 0) - time.time()) < 60 and healthy.since
    assert manager.start().pid == began.pid, "a start of what runs changes nothing"
    manager.terminate()
    ended = box.until(manager, lambda status: status.state not in ("healthy", "unknown"))
    assert (ended.state, ended.detail, ended.pid) == ("stopped", "It was stopped", None)
    assert manager.pids() == set() and ended.invocation == began.invocation


def test_a_stop_by_hand_is_a_stop_and_an_end_with_code_0_is_a_failure(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-hand", GOES_ON, "Restart=on-failure"))
    manager.start()
    box.systemctl("stop", "rh-hand.service")
    assert manager.status().state == "stopped"
    box.write("rh-ignored", "", text="[Service]\nExecStart=-/bin/sh -c 'exit 7'\n[Install]\nWantedBy=sandbox.target\n")
    ignored = box.manager("rh-ignored")
    if box.real:
        box.systemctl("enable", "rh-ignored.service")  # by a target that is there; else it is forgotten at once
        ignored.start()
        assert box.until(ignored, lambda status: status.exit_code == 7).state == "failed", "systemd was told to call it a success"
        box.systemctl("disable", "rh-ignored.service")
    box.write("rh-zero", "echo Engine core died; exit 0", "Restart=on-failure")
    manager = box.manager("rh-zero")
    manager.start()
    ended = box.until(manager, lambda status: status.pid is None)
    assert (ended.state, ended.exit_code) == ("failed", None) and "exit code 0 most likely" in ended.detail, "it was forgotten at once"
    box.write("rh-zero", "", text="[Service]\nExecStart=/bin/sh -c 'sleep 0.1'\n[Install]\nWantedBy=sandbox.target\n")
    if box.real:
        box.systemctl("enable", "rh-zero.service")
    manager.start()
    ended = box.until(manager, lambda status: status.exit_code is not None)
    assert (ended.state, ended.detail) == ("failed", "It ended without being asked to, with exit code 0"), "one that is enabled is not"
    if box.real:
        box.systemctl("disable", "rh-zero.service")


def test_a_crash_is_failed_with_its_code_until_it_is_reset(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-crash", "echo trouble; exit 3"))
    manager.start()
    crashed = box.until(manager, lambda status: status.pid is None and status.exit_code is not None)
    assert (crashed.state, crashed.exit_code) == ("failed", 3) and crashed.ended_at and "with exit code 3" in crashed.detail
    assert any("trouble" in line for line in manager.log_lines())
    manager.reset_failed()
    assert manager.status().state in ("stopped", "failed")
    manager.reset_failed()  # of a unit that has nothing to be reset


def test_a_killed_unit_that_is_restarted_has_another_invocation(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-again", GOES_ON, "Restart=on-failure", "RestartSec=0.1"))
    first = manager.start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    second = box.until(manager, lambda status: status.pid not in (None, first.pid))
    assert second.restarts == 1 and second.invocation != first.invocation
    assert second.detail.startswith("It starts (systemd has started it again once)")


def test_a_restart_loop_is_failed_between_two_tries_and_ends_at_the_start_limit(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-loop", "exit 4", "Restart=always", "RestartSec=0.3",
                                    unit="StartLimitBurst=3\nStartLimitIntervalSec=60"))
    manager.start()
    waiting = box.until(manager, lambda status: "restart loop" in status.detail)
    assert waiting.state == "failed" and waiting.restarts and waiting.exit_code == 4 and "will do so again" in waiting.detail
    over = box.until(manager, lambda status: manager.facts()["state"] == "failed")
    assert over.restarts in (2, 3) and manager.facts()["restarts"] in (2, 3)
    assert "and does so no more" in manager.status().detail
    manager.reset_failed()
    assert manager.start().invocation != over.invocation
    box.until(manager, lambda status: manager.facts()["state"] == "failed")
    over = manager.status()
    assert manager.start().invocation != over.invocation, "who starts it by hand is let through the limit"
    box.until(manager, lambda status: "will" in status.detail)
    manager.terminate()
    assert box.until(manager, lambda status: status.state == "stopped").exit_code in (4, None)


def test_a_server_that_ignores_sigterm_is_killed_after_the_units_own_time(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-deaf", STUBBORN, "TimeoutStopSec=1"))
    manager.start()
    wait_for(lambda: any("deaf" in line for line in manager.log_lines()))
    assert manager.stop_limit_s() == 11
    manager.terminate()
    assert "being stopped" in manager.status().detail and manager.pids()
    ended = box.until(manager, lambda status: status.pid is None and status.state != "unknown")
    assert ended.state == "stopped" and "SIGKILL" in ended.detail and ended.exit_code == -9 and manager.pids() == set()


@pytest.mark.parametrize("asked", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_kill_ends_every_process_and_nothing_brings_it_back(box: SystemdBox, asked: bool) -> None:
    name = box.write("rh-kill", "sleep 1000 & (setsid sleep 1000 &) ; trap : TERM; while :; do sleep 0.1; done", "Restart=always", "RestartSec=0.1")
    manager = box.manager(name)
    manager.start()
    wait_for(lambda: len(manager.pids()) >= 3)
    if asked:
        manager.terminate()
    manager.kill()
    wait_for(lambda: not manager.pids())
    ended = box.until(manager, lambda status: status.state == "stopped")
    assert ended.pid is None
    time.sleep(0.4)
    assert manager.pids() == set() and manager.status().state == "stopped"


def test_the_log_of_a_run_is_followed_from_its_beginning_and_without_the_runs_before(box: SystemdBox) -> None:
    (box.folder / "emit").write_text("echo run $$; printf '1%%\\r2%%\\r3%%\\n\\377x\\n'; sleep 0.4; echo late; exec sleep 1000\n")
    manager = box.manager(box.write("rh-log", f". {box.folder}/emit"))
    assert manager.run_log() is None and list(manager.log_lines()) == []
    for _ in range(2):
        manager.start()
        log = manager.run_log()
        assert log is not None
        text = b""

        def read(log=log) -> bool:  # type: ignore[no-untyped-def]
            nonlocal text
            text += log.read()
            return b"late" in text

        wait_for(read)
        manager.terminate()
        box.until(manager, lambda status: status.state == "stopped")
        wait_for(lambda log=log: b"Stopped" in log.read())
        log.close()
    lines = text.decode().split("\n")
    assert any("systemd[1]: Started" in line for line in lines) and sum("run " in line for line in lines) == 1
    assert any(line.endswith("1%\r2%\r3%") for line in lines), lines
    assert any("\N{REPLACEMENT CHARACTER}x" in line for line in lines)
    assert [line for line in manager.log_lines() if "run " in line] == [line for line in lines if "run " in line]


def test_what_cannot_be_controlled_says_why(box: SystemdBox) -> None:
    absent = box.manager("rh-absent")
    assert absent.status().state == "unknown" and absent.status().detail == "There is no unit `rh-absent.service`"
    assert absent.facts()["problem"] == "There is no unit `rh-absent.service`"
    (box.units / "rh-masked.service").symlink_to("/dev/null")
    box.systemctl("daemon-reload")
    masked = box.manager("rh-masked")
    for manager, kind in ((absent, "no_unit"), (masked, "masked")):
        with pytest.raises(OpsError) as caught:
            manager.start()
        assert caught.value.kind == kind and caught.value.hint
    assert masked.status().state == "stopped" and "masked" in masked.status().detail and "masked" in masked.facts()["problem"]
    (box.units / "rh-masked.service").unlink()


def test_what_a_start_would_give_the_launcher(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    (box.folder / "a.env").write_text("A=file\nTOKEN='x y'\n")
    name = box.write("rh-env", GOES_ON, "User=daemon", 'Environment=A=1 "B=two words" C=3', f"EnvironmentFile=-{box.folder}/none.env",
                     f"EnvironmentFile={box.folder}/*.env", "UnsetEnvironment=C LANG")
    if not box.real:
        monkeypatch.setattr(systemd.unit_files, "search_path", lambda **_: [box.units])
    manager = box.manager(name)
    found = manager.variables()
    assert {name: found.get(name) for name in ("A", "B", "C", "TOKEN", "USER", "LOGNAME", "LANG")} == {
        "A": "file", "B": "two words", "C": None, "TOKEN": "x y", "USER": "daemon", "LOGNAME": "daemon", "LANG": None}
    assert found["HOME"] and found["SHELL"] and found["PATH"].startswith("/usr/local/sbin:")
    assert manager.open_files_limit() == 524288


def test_the_launcher_counts_as_installed_once_the_unit_starts_it(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-launch", GOES_ON))
    assert manager.launcher_installed() is False and manager.facts()["launcher_installed"] is False
    path = launch.launch_path(manager.record)
    box.write("rh-launch", "", text=f"[Service]\nExecStart=/usr/bin/env -u X {path}\n")
    assert manager.launcher_installed() is True
    box.write("rh-launch", "", text=f"[Service]\nExecStart={path}-other\n")
    assert manager.launcher_installed() is False


def test_the_release_is_known_from_the_process_and_stays_known_after_its_end(box: SystemdBox) -> None:
    manager = box.manager("rh-release")
    release = manager.record.releases / "20260101-000000-0.1"
    release.mkdir()
    box.write("rh-release", f"VIRTUAL_ENV={release} exec sleep 1000")
    began = manager.start()
    assert box.until(manager, lambda status: bool(status.release)).release == release.name
    manager.terminate()
    ended = box.until(manager, lambda status: status.state == "stopped")
    assert (ended.release, ended.invocation) == (release.name, began.invocation)


@pytest.mark.skipif(not is_real(), reason="the double has no managers of users")
def test_a_unit_of_a_users_own_manager_is_controlled_and_read_like_any_other(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/0")
    assert box.systemctl("start", "user@0.service").returncode == 0
    units = Path.home() / ".config" / "systemd" / "user"
    units.mkdir(parents=True, exist_ok=True)
    (units / "rh-own.service").write_text("[Service]\nExecStart=/bin/sh -c 'echo mine; exec sleep 1000'\n")
    box.systemctl("--user", "daemon-reload")
    manager = box.manager("rh-own", unit_scope="user")
    began = manager.start()
    assert manager.pids() == {began.pid} and manager.variables()["HOME"] == str(Path.home())
    wait_for(lambda: {"mine", "Started"} <= {line.partition("]: ")[2].split(" ")[0] for line in manager.log_lines()})
    manager.terminate()
    assert box.until(manager, lambda status: status.pid is None and status.state != "unknown").detail == "It was stopped"
    box.systemctl("stop", "user@0.service")


# ---- what a real systemd does not do on demand ----


@pytest.mark.skipif(is_real(), reason="refusals of the bus are made by the double")
def test_a_missing_bus_and_missing_rights_are_told(box: SystemdBox) -> None:
    manager = box.manager(box.write("rh-bus", GOES_ON))
    refuse = box.folder / "double" / "not-permitted"
    refuse.touch()
    with pytest.raises(OpsError) as caught:
        manager.start()
    assert caught.value.kind == "not_permitted" and "polkit" in caught.value.hint and "authentication required" in manager.permission()
    refuse.unlink()
    assert manager.permission() == ""
    (box.folder / "double" / "no-bus").touch()
    with pytest.raises(OpsError) as caught:
        manager.start()
    assert caught.value.kind == "no_systemd"
    assert manager.status().state == "unknown" and "does not answer" in manager.status().detail and "does not answer" in manager.facts()["problem"]


@pytest.mark.skipif(is_real(), reason="without the double")
def test_a_machine_without_systemctl_says_so(box: SystemdBox, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = box.manager("rh-none")
    monkeypatch.setenv("PATH", str(box.folder))
    assert manager.status().detail.startswith("There is no systemctl on this machine")


@pytest.mark.parametrize("told, seconds", [
    ("1min 30s", 90), ("45s", 45), ("1h 2min", 3720), ("100ms", 0.1), ("0", 0), ("infinity", None), ("", None)])
def test_spans_of_time_are_read(told: str, seconds: float | None) -> None:
    assert systemctl.seconds(told) == (pytest.approx(seconds) if seconds is not None else None)


@pytest.mark.parametrize("told, kind", [
    ("Failed to connect to bus: No such file or directory", "no_systemd"), ("Call failed: Access denied", "not_permitted"),
    ("Failed to start x.service: Unit x.service not found.", "no_unit"), ("Failed to start x.service: Unit x.service is masked.", "masked"),
    ("Job for x.service failed because start of the service was attempted too often.", "start_limit"), ("Something new", "failed")])
def test_each_refusal_has_its_kind(told: str, kind: str) -> None:
    error = systemctl.refusal(["start", "--", "x.service"], 1, told)
    assert error.kind == kind and error.hint and told in error.why


def test_an_environment_with_odd_values_is_read() -> None:
    assert systemd.manager_environment("A=1\nB=$'two words\\t\\'x\\''\nC=\nnot one\n") == {"A": "1", "B": "two words\t'x'", "C": ""}


def test_slices_lie_in_each_other() -> None:
    assert [systemd._slice_path(name) for name in ("system.slice", "a-b-c.slice", "-.slice")] == [
        "/system.slice", "/a.slice/a-b.slice/a-b-c.slice", ""]


# ---- the same in a real systemd ----


def in_sandbox(tmp_path: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs tests inside of a real systemd of their own."""
    env = {**os.environ, "SYSTEMD_SANDBOX_STATE": str(tmp_path / "state"), INSIDE: "1", **variables}
    up = subprocess.run([SANDBOX, "start", name], env=env, capture_output=True, text=True, check=False, timeout=60)
    if up.returncode:
        pytest.skip(f"no sandbox with systemd can be made here: {up.stderr.strip()[-300:]}")
    try:
        env.pop("TMPDIR", None)
        return subprocess.run([SANDBOX, "exec", name, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *arguments], env=env,
                              cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=180)
    finally:
        subprocess.run([SANDBOX, "stop", name], env=env, capture_output=True, check=False, timeout=60)


@pytest.mark.skipif(is_real(), reason="this is the inside")
def test_a_real_systemd_does_the_same(short_path: Path) -> None:
    done = in_sandbox(short_path, f"rh-{os.getpid()}", "tests/ops/services/test_systemd.py", "tests/ops/services/test_journal.py",
                      "tests/ops/services/test_stopping_systemd.py", "tests/ops/services/test_failures_systemd.py",
                      "tests/ops/services/test_warmup_systemd.py")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
