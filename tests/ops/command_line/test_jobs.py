"""Jobs from the command line, on a practice box: real plans, builds, switches, locks and journals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from ops.agent.config import NodePaths
from ops.environments import releases
from ops.gpus import processes
from ops.jobs import claim
from ops.jobs.journal import journal_path, read
from ops.practice import box
from ops.records import ServiceRecord
from ops.services import launch
from ops.services.process import MARK, ProcessManager
from tests.fakes.node import NAME, FakeNode, until
from tests.ops.command_line.run import REPOSITORY, error_of, ops
from tests.ops.services.conftest import free_port


@dataclass
class Box:
    paths: NodePaths
    root: Path
    record: ServiceRecord

    @property
    def channel(self) -> list[str]:
        return ["--service", self.record.name, "--channel", f"wheelhouse:{self.root}/wheelhouse"]

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return ops(*arguments, ROUNDHOUSE_NODE_STATE=str(self.paths.root), **options)

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return dict(json.loads(done.stdout))

    def types(self, job: str) -> list[str]:
        return [event.type for event in read(journal_path(self.paths, job))]

    @property
    def current(self) -> str:
        found = releases.current(self.record)
        assert found is not None
        return found.name


def make_box(root: Path) -> Box:
    paths = NodePaths(root / "n")
    return Box(paths, root / "box", box.set_up(paths, root / "box", speed=100, port=free_port()))


def end_of_box(record: ServiceRecord) -> None:
    """No process of its service is left."""
    ProcessManager(record).kill()
    file = record.folder / "process.json"
    if file.exists():
        mark = json.loads(file.read_text())["invocation"]
        until(lambda: not processes.marked_with(MARK, mark), 20, "the practice service's processes ended")


@pytest.fixture(scope="module")
def practice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box for the story below, whose tests follow one another."""
    made = make_box(tmp_path_factory.mktemp("b"))
    yield made
    end_of_box(made.record)


def test_a_plan_says_what_would_change_and_changes_nothing(practice: Box) -> None:
    before = practice.current
    made = practice.json("plan", *practice.channel)
    assert {one["name"]: one["new"] for one in made["packages"]}["flashinfer-cubin"] == "0.6.4+practice" and made["hash"]
    plain = practice.run("plan", *practice.channel)
    assert plain.returncode == 0 and "10 of 11 packages change" in plain.stdout and "Preflight: done" in plain.stderr
    assert "Leftovers that go with it: 35 of kind debug-tensor, 65.1 MB" in plain.stdout
    assert practice.current == before


def test_a_redeploy_asks_a_person_or_wants_yes(practice: Box) -> None:
    assert "takes the service down" in error_of("redeploy", *practice.channel, code=2, ROUNDHOUSE_NODE_STATE=str(practice.paths.root))["what"]


@pytest.mark.slow
def test_build_redeploy_and_back(practice: Box, tmp_path: Path) -> None:
    first = practice.current
    built = practice.json("build", *practice.channel)
    assert built["state"] == "succeeded" and practice.current == first
    listed = practice.json("releases", "--service", practice.record.name)
    assert listed["current"] == first and len(listed["releases"]) == 2

    plan = tmp_path / "plan.json"
    plan.write_text(practice.run("plan", *practice.channel, "--json").stdout)
    done = practice.json("redeploy", *practice.channel, "--plan", str(plan), "--yes", "--no-sweep")
    assert done["state"] == "succeeded" and done["plan"]["hash"] == json.loads(plan.read_text())["hash"]
    assert practice.current == done["plan"]["release"] and {one["path"].rsplit("/")[-1] for one in done["shelf"]} == {
        "gguf_loader.py", "weight_utils.py", "deepseek_v2.py", "config.py"}
    types = practice.types(done["job"])
    assert types[0] == "job.claimed" and types[-1] == "job.finished" and "downtime.ended" in types

    assert practice.run("fingerprint", "--service", practice.record.name, "--since-good").stdout.endswith("Nothing differs\n")
    recipe = tmp_path / "recipe.json"
    assert practice.run("recipe", "make", "--service", practice.record.name, "--label", "good", "--output", str(recipe)).returncode == 0
    assert "vllm" in practice.run("recipe", "show", str(recipe)).stdout
    recipe.write_text(recipe.read_text().replace("0.6.4+practice", "0.6.5+practice"))
    assert practice.run("recipe", "show", str(recipe)).returncode == 1, "its hash does not fit any more"

    back = practice.run("rollback", "--service", practice.record.name, "--no-smoke")
    assert back.returncode == 0 and practice.current == first, back.stderr
    assert "Switch: done" in back.stderr


@pytest.mark.slow
def test_the_shelf_shows_and_forgets(practice: Box) -> None:
    shelf = practice.json("shelf", "--service", practice.record.name)["shelf"]
    patch = next(one for one in shelf if one["path"].endswith("deepseek_v2.py"))
    assert patch["debris"] and "debug code" in practice.run("shelf", "--service", practice.record.name).stdout
    show = ["shelf", "--service", practice.record.name, "--show", patch["folder"], patch["path"]]
    assert "torch.save" in practice.run(*show).stdout
    assert practice.json("shelf", "--service", practice.record.name, "--forget", patch["folder"], patch["path"])["state"] == "succeeded"
    assert practice.run(*show).returncode == 1 and len(practice.json("shelf", "--service", practice.record.name)["shelf"]) == len(shelf) - 1


def test_guards_fail_and_are_applied(practice: Box) -> None:
    config = Path(practice.record.model_path, "config.json")
    good = json.loads(config.read_text())
    config.write_text(json.dumps(good | {"quantization_config": {**good["quantization_config"], "kv_cache_scheme": {"num_bits": 8}}}))
    told = practice.json("guards", "--service", practice.record.name, code=1)
    assert [one["holds"] for one in told["guards"]] == [False, True] and not told["holds"]
    assert practice.run("plan", *practice.channel).returncode == 1
    stopped = practice.run("redeploy", *practice.channel, "--yes")
    assert stopped.returncode == 1 and "The plan does not allow it" in stopped.stderr
    done = practice.json("guards", "--service", practice.record.name, "--apply")
    assert done["guards"]["applied"][0]["diff"] and "kv_cache_scheme" not in json.loads(config.read_text())["quantization_config"]
    assert practice.run("guards", "--service", practice.record.name).returncode == 0
    preset = practice.json("guards", "--service", practice.record.name, "--preset", "sm120")
    assert preset["holds"] and preset["guards"]
    assert error_of("guards", "--service", practice.record.name, "--preset", "x", code=2, ROUNDHOUSE_NODE_STATE=str(practice.paths.root))


def test_guards_are_set_and_removed_by_a_job(practice: Box) -> None:
    name, state = practice.record.name, {"ROUNDHOUSE_NODE_STATE": str(practice.paths.root)}
    own = practice.json("guards", "--service", name)["guards"]
    done = practice.json("guards", "--service", name, "--preset", "sm120", "--set")
    assert (done["type"], done["state"], len(done["guards"]["results"])) == ("guards-set", "succeeded", 3), done
    told = practice.json("guards", "--service", name)["guards"]
    assert [one["guard"] for one in told][:2] == [one["guard"] for one in own] and told[2]["guard"]["file"] == "hf_quant_config.json"
    assert practice.run("guards", "--service", name).stdout.splitlines()[2].startswith(" 3 ok     There is no `hf_quant_config.json`")
    assert "guards-set of" in practice.run("guards", "--service", name, "--remove", "3").stdout
    assert practice.json("guards", "--service", name)["guards"] == own
    for wrong in (["--set"], ["--remove", "3"], ["--remove", "0"], ["--remove", "1", "--preset", "sm120"], ["--preset", "x", "--set"]):
        assert error_of("guards", "--service", name, *wrong, code=2, **state)
    assert practice.json("guards", "--service", name)["guards"] == own


def test_a_busy_service_is_told_with_the_job_that_holds_it(practice: Box) -> None:
    lock = f"service:{practice.record.name}"
    holder = claim.stored_fence(practice.paths, lock)[1]
    held = claim.lock_all(practice.paths, [lock])
    try:
        told = error_of("rollback", "--service", practice.record.name, "--release", "x", ROUNDHOUSE_NODE_STATE=str(practice.paths.root))
    finally:
        claim.release(held)
    assert told["kind"] == "busy" and holder and holder in told["why"]


@pytest.mark.slow
def test_ctrl_c_cancels_and_undoes(practice: Box) -> None:
    before, kept = practice.current, set(practice.record.releases.iterdir())
    process = subprocess.Popen([sys.executable, "-m", "ops", "redeploy", *practice.channel, "--yes", "--json", "--no-smoke"], cwd=REPOSITORY,
                               env={**os.environ, "ROUNDHOUSE_NODE_STATE": str(practice.paths.root)}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    until(lambda: _redeploying(practice) or process.poll() is not None, 60, "the redeploy's first events")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    told = json.loads(out)
    assert told["state"] == "cancelled" and practice.current == before
    new = {folder for folder in practice.record.releases.iterdir() if not folder.name.startswith(".")} - kept
    assert all(releases.manifest(folder) for folder in new), "nothing half built is left"


def test_a_build_that_was_killed_is_put_right_by_the_next_command_where_no_agent_does_it(practice: Box) -> None:
    before, kept = practice.current, set(practice.record.releases.iterdir())
    killed = practice.run("build", *practice.channel, CRASH_AT="build:after")
    assert killed.returncode != 0
    (half,) = set(practice.record.releases.iterdir()) - kept
    (half / "of-the-killed-one").touch()  # by its name alone it could be the new one: both may begin within one second
    told = practice.run("build", *practice.channel)
    assert told.returncode == 0, told.stderr
    assert "was killed half way: what it had begun is undone first" in told.stderr
    assert practice.current == before and not (half / "of-the-killed-one").exists()
    assert all(releases.manifest(folder) for folder in practice.record.releases.iterdir() if not folder.name.startswith("."))


def _redeploying(practice: Box) -> bool:
    """Whether a redeploy is under way that has ended its first step."""
    for folder in practice.paths.jobs.iterdir():
        envelope, types = folder / "envelope.json", practice.types(folder.name)
        if envelope.exists() and json.loads(envelope.read_text())["type"] == "redeploy" and "job.finished" not in types:
            return "step.finished" in types
    return False


def test_a_machine_that_is_no_node_is_told(tmp_path: Path, practice: Box) -> None:
    paths = NodePaths(tmp_path / "n").make()
    (paths.announced / "kimi-k25.json").write_text(json.dumps(practice.record.as_dict()))
    told = error_of("rollback", "--service", "kimi-k25", "--release", "x", ROUNDHOUSE_NODE_STATE=str(paths.root))
    assert "has no `" in told["what"] and "make up" in told["hint"]


def test_a_unit_that_no_systemd_here_can_start_is_neither_built_for_nor_stopped(practice: Box, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()  # a PATH without systemctl, on any machine
    for name in ("env", "sh", "uname"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    paths = NodePaths(tmp_path / "n").make()
    paths.node_toml.write_text(practice.paths.node_toml.read_text().replace(str(practice.paths.services), str(paths.services))
                               .replace("units = []", 'units = ["kimi.service"]'))
    raw = practice.record.as_dict() | {"manager": "systemd", "unit": "kimi.service", "root": str(paths.services / "kimi-k25"),
                                       "environment": str(practice.record.current.resolve())}
    record = ServiceRecord.from_dict(raw)
    launch.write(record)
    releases.adopt(record)
    (paths.announced / "kimi-k25.json").write_text(json.dumps(raw))
    state = str(paths.root)
    where = {"ROUNDHOUSE_NODE_STATE": state, "PATH": str(tmp_path / "bin")}
    plan = ops("plan", *practice.channel, **where)
    assert plan.returncode == 1 and "There is no systemctl on this machine" in plan.stderr
    assert "There is no systemctl on this machine" in json.dumps(error_of("redeploy", *practice.channel, "--yes", **where))
    assert [one.name for one in record.releases.iterdir() if not one.name.startswith(".")] == ["adopted"], "nothing was built"


def test_the_companion_brings_a_job_of_the_command_line_to_the_console(short_path: Path, redis_url: str) -> None:
    node = FakeNode(short_path)
    model, services = short_path / "model", node.paths.services
    model.mkdir()
    (model / "config.json").write_text('{"quantization_config": {"kv_cache_scheme": {}}}')
    node.paths.node_toml.write_text(f'name = "{NAME}"\nservice_roots = ["{services}"]\nmodel_roots = ["{model}"]\n')
    guard = {"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_scheme", "value": None}
    record = ServiceRecord(name="a", root=str(services / "a"), model_path=str(model), served_model_name="a", base_url="http://127.0.0.1:1",
                           guards=[guard])
    (node.paths.announced / "a.json").write_text(json.dumps(record.as_dict()))
    node.start_agent(redis_url)
    try:
        done = ops("guards", "--service", "a", "--apply", "--json", ROUNDHOUSE_NODE_STATE=str(node.paths.root))
        assert done.returncode == 0, done.stderr
        stream = f"job:{json.loads(done.stdout)['job']}:events"
        with redis.Redis.from_url(redis_url) as client:
            until(lambda: any(b"job.finished" in entry[b"e"] for _, entry in client.xrange(stream)), 30, "the job's last event in Redis")
    finally:
        node.close()
