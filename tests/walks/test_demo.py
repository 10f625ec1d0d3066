"""`make demo` and `make demo-once` on a checkout in a new folder: what they did is checked on disk and in the process table."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.agent.config import NodePaths
from ops.environments import guards, integrity, packages, releases
from ops.gpus.processes import environment, is_alive, marked_with
from ops.jobs import journal
from ops.jobs.events import EventType
from ops.practice import model_folder
from ops.records import ServiceRecord

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 150  # nothing here is about speed: a busy machine may take its time

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, in a new folder: a file that was forgotten in a commit is missing here too."""
    folder = tmp_path_factory.mktemp("checkout") / "roundhouse"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what()}"
        time.sleep(0.02)


@dataclass
class Demo:
    """One `make demo` (or demo-once) in a checkout, with the environment that the tests run in."""

    checkout: Path
    state: Path
    port: int
    service_port: int
    speed: str = "25"

    def start(self, target: str = "demo") -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("ROUNDHOUSE_", "DJANGO_", "MAKE", "MFLAGS"))}
        with self.said.open("wb") as said:
            return subprocess.Popen(
                ["make", "--no-print-directory", target, f"VENV={sys.prefix}", f"PORT={self.port}", f"PYTHON={sys.executable}"], cwd=self.checkout,
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
                env={**clean, "ROUNDHOUSE_STATE": str(self.state), "ROUNDHOUSE_PRACTICE_SPEED": self.speed,
                     "ROUNDHOUSE_PRACTICE_PORT": str(self.service_port)})

    @property
    def said(self) -> Path:
        return self.state.parent / f"{self.state.name}.said"

    def text(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def told(self) -> str:
        logs = "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.state.glob("logs/*.log")))
        return self.text() + logs

    @property
    def paths(self) -> NodePaths:
        return NodePaths(self.state / "node")

    def launcher(self) -> int | None:
        """Pid of the launcher, which is what make runs; None before it has said who it is."""
        try:
            known = json.loads((self.state / "launcher.json").read_text())
        except (OSError, ValueError):
            return None
        return int(known["pid"]) if is_alive(known["pid"], known["start_ticks"]) else None

    def record(self) -> ServiceRecord:
        return ServiceRecord.from_dict(json.loads((self.paths.announced / "kimi-k25.json").read_text()))

    def service(self) -> tuple[int, int] | None:
        """The practice service's process, if it lives."""
        try:
            known = json.loads((self.paths.services / "kimi-k25/process.json").read_text())
        except (OSError, ValueError):
            return None
        pid, ticks = known["pid"], known["start_ticks"]
        return (pid, ticks) if pid is not None and is_alive(pid, ticks) else None

    def open_jobs(self) -> set[str]:
        folders = self.paths.jobs.iterdir() if self.paths.jobs.exists() else []
        return {folder.name for folder in folders if (folder / "journal.jsonl").exists() and journal.final_event(folder / "journal.jsonl") is None}

    def left(self) -> set[int]:
        """Every process of this state folder: the console's, jobs', services'."""
        return set(marked_with("ROUNDHOUSE_START", str(self.state))) | self.of_jobs() | set(marked_with("PRACTICE_BOX", str(self.state / "box")))

    def of_jobs(self) -> set[int]:
        folders = self.paths.jobs.iterdir() if self.paths.jobs.exists() else []
        return {pid for folder in folders for pid in marked_with("ROUNDHOUSE_JOB", folder.name)}


@pytest.fixture
def demo(checkout: Path, short_path: Path) -> Iterator[Demo]:
    made = Demo(checkout, short_path / "state", free_port(), free_port())
    yield made
    if (pid := made.launcher()) is not None:
        os.kill(pid, signal.SIGINT)
        wait_for(lambda: made.launcher() is None, 60, made.told)
    for pid in made.left():
        os.kill(pid, signal.SIGKILL)


def check_redeployed(demo: Demo) -> None:
    """What the main job must have done, looked up on disk."""
    record = demo.record()
    current = releases.current(record)
    assert current is not None and current.name.endswith("0.16.0rc2.dev344+practice")
    versions = packages.read(current)
    assert versions.version("flashinfer-python") == versions.version("flashinfer-cubin") == "0.6.4+practice"
    found = integrity.check(current)
    assert found.clean and found.checked_files > 100, found.as_dict()
    assert all(guard.holds for guard in guards.check(record))
    fresh = model_folder.write(demo.state.parent / "fresh")
    assert folder_bytes(Path(record.model_path)) == folder_bytes(fresh), "nobody touched the model folder"
    assert list((demo.state / "box/tmp").rglob("*.pt")) == []
    shelf = {path.name for path in (record.folder / "shelf").rglob("*.py")}
    assert shelf >= {"config.py", "deepseek_v2.py", "gguf_loader.py", "weight_utils.py"}, "what was typed by hand is kept"


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_demo_once_redeploys_prints_the_report_and_leaves_no_process(demo: Demo) -> None:
    process = demo.start("demo-once")
    wait_for(lambda: "starts, pid" in demo.text() or process.poll() is not None, START_S, demo.told)
    before = demo.service()
    assert before is not None, demo.told()
    first = releases.current(demo.record())
    assert first is not None
    patched = [Path(finding.path).name for finding in integrity.check(first).changed]
    assert sorted(patched) == ["config.py", "deepseek_v2.py", "gguf_loader.py", "weight_utils.py"]
    assert len(list((demo.state / "box/tmp").rglob("*.pt"))) == 35

    assert process.wait(START_S) == 0, demo.told()
    text = demo.text()
    assert re.findall(r"^## \d .*", text, re.M) == [
        "## 1 Reinstall", "## 2 Cleanup", "## 3 Service verified", "## 4 Benchmark (PRACTICE: simulated GPUs and model)"]
    levels = re.findall(r"^\| (\d+) \| ([\d,]+) \| [\d.]+ s \|.*\| 0 \|[^|]*\|$", text, re.M)
    assert [int(concurrency) for concurrency, _ in levels] == [1, 8, 32, 128]
    assert all(float(rate.replace(",", "")) > 0 for _, rate in levels)
    assert "Traceback" not in text and "✗" not in text
    check_redeployed(demo)
    after = json.loads((demo.paths.services / "kimi-k25/process.json").read_text())
    assert after["pid"] != before[0]
    assert demo.left() == set()
    assert not (demo.checkout / "var").exists(), "everything went into the state folder that was asked for"


def kill_and_start_again(demo: Demo, moment: Callable[[], bool], *, at_once: bool) -> bool:
    """SIGKILL to the launcher at a moment, then a second start, until it stays: nothing is lost and nothing is done twice.

    Gives whether the second start found a job running (one may end in between)."""
    process = demo.start()
    wait_for(lambda: moment() or process.poll() is not None, START_S, demo.told)
    pid = demo.launcher()
    if pid is None:  # killed before it had the folder: make is what runs
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
    process.wait(30)
    service, jobs = demo.service(), demo.open_jobs()
    if not at_once:  # two kinds are left, and no other: a job's processes, and the service's
        console = lambda: [one for one in marked_with("ROUNDHOUSE_START", str(demo.state)) if not (environment(one) or {}).get("ROUNDHOUSE_JOB")]  # noqa: E731
        wait_for(lambda: not console(), 30, lambda: f"left: {console()}")
        if not jobs:
            assert demo.service() == service

    process = demo.start()
    wait_for(lambda: "Ctrl-C ends it" in demo.text() or process.poll() is not None, START_S, demo.told)
    assert process.poll() is None, demo.told()
    text = demo.text()
    assert "Traceback" not in text and "✗" not in text, demo.told()
    assert demo.open_jobs() == set()
    for job in demo.paths.jobs.iterdir():  # each ran once, to its end
        events = journal.read(job / "journal.jsonl")
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.type for event in events].count(EventType.JOB_CLAIMED) == 1
        begun = [event.data["step"] for event in events if event.type == EventType.STEP_STARTED]
        assert len(begun) == len(set(begun))
        assert events[-1].data["state"] == "succeeded", demo.told()
    if not jobs and service is not None:
        assert f"kimi-k25 runs since an earlier start, pid {service[0]}" in text
    check_redeployed(demo)
    with sqlite3.connect(demo.state / "db.sqlite3") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        stored = dict(database.execute("SELECT id, last_seq FROM dashboard_job"))
    database.close()
    for job in demo.paths.jobs.iterdir():  # all that the jobs said is in the database
        assert stored[job.name.replace("-", "")] == journal.read(job / "journal.jsonl")[-1].seq
    running = demo.service()
    assert running is not None

    launcher = demo.launcher()
    assert launcher is not None
    os.kill(launcher, signal.SIGINT)
    process.wait(60)
    assert demo.left() == set()
    return re.search(r"Job #\d+ \((plan|redeploy)\) goes on where it is", text) is not None


@pytest.mark.slow
def test_killed_in_the_middle_of_the_downtime_the_job_goes_on_and_is_found(demo: Demo) -> None:
    demo.speed = "3"  # slow enough to be running still when the second start looks
    assert kill_and_start_again(demo, lambda: "✓ GPUs free" in demo.text(), at_once=True), demo.told()


@pytest.mark.slow
def test_killed_while_it_starts_the_service_is_found_as_it_was(demo: Demo) -> None:
    assert not kill_and_start_again(demo, lambda: "starts, pid" in demo.text(), at_once=False)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_at_a_random_moment(demo: Demo, number: int, record_property: Callable[[str, object], None]) -> None:
    demo.speed = "5"
    delay = random.Random(f"{os.getpid()} {number}").uniform(0.2, 40)
    record_property("delay_s", delay)
    began = time.monotonic()
    try:
        kill_and_start_again(demo, lambda: time.monotonic() - began > delay, at_once=number % 2 == 0)
    except AssertionError as error:
        raise AssertionError(f"killed after {delay:.2f} s: {error}") from error
