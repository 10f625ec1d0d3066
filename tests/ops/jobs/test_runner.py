from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ops.gpus.processes import environment, look
from ops.jobs import checker, claim, commands, marks, reconcile, redact, runner
from ops.jobs.errors import Busy, OpsError, Refused
from ops.jobs.pipeline import Context
from ops.records import ServiceRecord
from tests.fakes import job_kinds
from tests.fakes.node import FakeNode, until


def test_a_job_runs_to_its_end_in_a_process_of_its_own(node: FakeNode) -> None:
    order = node.order(seconds=1)
    assert runner.start(node.paths, order) == "claimed"
    process = look(node.runner(order.job).pid)
    assert process is not None
    assert process.parent != os.getpid()
    assert process.session == process.pid
    assert node.finished(order.job)["state"] == "succeeded"
    assert node.types(order.job)[:3] == ["job.claimed", "job.started", "step.started"]
    assert checker.check(node.paths) == []


def test_a_runner_has_a_clean_environment(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    monkeypatch.setenv("UV_INDEX_URL", "leak")
    monkeypatch.setenv("ROUNDHOUSE_STATE", str(node.paths.root))
    order = node.order(seconds=2)
    runner.start(node.paths, order)
    found = environment(node.runner(order.job).pid)
    assert found is not None
    assert {name for name in found if name.startswith("ROUNDHOUSE")} == {"ROUNDHOUSE_JOB", "ROUNDHOUSE_NODE_STATE", "ROUNDHOUSE_STATE"}
    assert "UV_INDEX_URL" not in found
    node.finished(order.job)


def test_the_second_of_two_orders_attaches(node: FakeNode) -> None:
    order = node.order()
    assert [runner.start(node.paths, order), runner.start(node.paths, order)] == ["claimed", "attached"]
    node.finished(order.job)
    assert runner.start(node.paths, order) == "attached"


def test_a_busy_lock_and_a_refusal_come_back_as_what_they_are(node: FakeNode) -> None:
    fds = claim.lock_all(node.paths, ["service:a"])
    with pytest.raises(Busy):
        runner.start(node.paths, node.order())
    claim.release(fds)
    with pytest.raises(Refused, match="knows no job type"):
        runner.start(node.paths, node.order("format-disk"))


def test_a_kind_that_takes_other_locks_than_the_order_says_is_refused(node: FakeNode) -> None:
    order = node.order(on="a")
    order.params["on"] = "b"
    with pytest.raises(Refused, match="declares the locks"):
        runner.start(node.paths, order)
    assert not node.folder(order.job).exists()


def test_a_runner_that_cannot_start_says_why(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COMMAND", ["/bin/sh", "-c", "echo no interpreter; exit 1"])
    with pytest.raises(OpsError) as caught:
        runner.start(node.paths, node.order())
    assert "no interpreter" in caught.value.why


@pytest.mark.parametrize("how", ["flag", "signal"])
def test_cancel_ends_the_step_undoes_and_says_who(node: FakeNode, how: str) -> None:
    order = node.order(seconds=30)
    runner.start(node.paths, order)
    node.in_step(order.job, "talk")
    if how == "flag":
        runner.write_cancel(node.folder(order.job), "eva")
    else:
        os.kill(node.runner(order.job).pid, signal.SIGTERM)
    said = node.finished(order.job, 10)
    assert (said["state"], said["rollback"]) == ("cancelled", "done")
    assert [event.data["by"] for event in node.events(order.job) if event.type == "job.cancelling"] == ["eva" if how == "flag" else "shutdown"]
    assert (node.paths.root / f"undone-{order.job}").read_text() == "was here"


def test_a_failed_step_is_undone_and_told(node: FakeNode) -> None:
    order = node.order(argv=["/bin/sh", "-c", "echo because; exit 4"])
    runner.start(node.paths, order)
    said = node.finished(order.job)
    assert (said["state"], said["rollback"], said["reason_kind"]) == ("failed", "done", "expected")
    assert said["error"]["facts"]["code"] == 4
    until(lambda: not node.busy(), 5)  # it lets go of the lock after it has said that it is over


def test_a_failed_undo_keeps_the_lock_until_a_repair_succeeds(node: FakeNode) -> None:
    order = node.order(argv=["/bin/false"], undo_fails=True)
    runner.start(node.paths, order)
    assert node.finished(order.job)["rollback"] == "failed"
    with pytest.raises(Busy, match="a person"):
        runner.start(node.paths, node.order())
    repair = node.order("restart")
    assert runner.start(node.paths, repair) == "claimed"
    assert node.finished(repair.job)["state"] == "succeeded"
    after = node.order()
    assert runner.start(node.paths, after) == "claimed"
    node.finished(after.job)


def test_what_a_step_left_running_is_ended_before_the_lock_goes(node: FakeNode) -> None:
    order = node.order(argv=["/bin/sh", "-c", "setsid sleep 90 >/dev/null 2>&1 &"])
    runner.start(node.paths, order)
    assert node.finished(order.job)["state"] == "succeeded"
    assert marks.marked(order.job) <= {node.runner(order.job).pid}
    until(lambda: not node.busy(), 5)


def test_a_service_that_a_job_starts_is_not_the_jobs_child(node: FakeNode) -> None:
    order = node.order(spawn=True)
    runner.start(node.paths, order)
    assert node.finished(order.job)["state"] == "succeeded"
    pid = int((node.paths.root / "service.pid").read_text().split()[0])
    assert not marks.ended(pid)
    assert [name for name in environment(pid) or {} if name.startswith("ROUNDHOUSE")] == []
    until(lambda: not node.busy(), 5)


def test_the_command_line_runs_a_job_in_its_own_process(node: FakeNode) -> None:
    said: list[str] = []
    outcome = runner.run_here(node.paths, node.order(), on_event=lambda type, data: said.append(type))
    assert outcome.state == "succeeded"
    assert "step.log" in said
    assert not node.busy()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_refused_job_gets_a_final_state_once(node: FakeNode) -> None:
    order = node.order()
    for _ in range(2):
        runner.refuse(node.paths, order, Refused("This node does not allow it"))
    assert [(event.type, event.data["state"], event.data["reason"]) for event in node.events(order.job)] == [
        ("job.finished", "failed", "This node does not allow it")]
    assert runner.start(node.paths, order) == "attached"


def test_a_runner_survives_the_death_of_who_started_it(node: FakeNode, tmp_path: Path) -> None:
    order = node.order(seconds=2)
    (tmp_path / "order.json").write_text(order.to_json())
    program = (f"import sys; sys.path.insert(0, {str(job_kinds.REPOSITORY)!r})\nfrom tests.fakes import job_kinds; job_kinds.use()\n"
               "import os\nfrom ops.jobs import runner\nfrom ops.jobs.envelope import Envelope\nfrom ops.agent.config import NodePaths\n"
               f"runner.start(NodePaths.default(), Envelope.from_json(open({str(tmp_path / 'order.json')!r}).read()))\nos.kill(os.getpid(), 9)")
    done = subprocess.run([*job_kinds.HERE[:1], "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert node.finished(order.job)["state"] == "succeeded"


def test_commands_of_a_step_hold_the_lock_while_the_runner_is_dead(node: FakeNode) -> None:
    order = node.order(argv=["/bin/sleep", "20"])
    runner.start(node.paths, order)
    node.in_step(order.job, "child")
    until(lambda: len(marks.marked(order.job)) == 2, 10)
    os.kill(node.runner(order.job).pid, signal.SIGKILL)
    until(lambda: len(marks.marked(order.job)) == 1, 10)
    assert node.busy()
    assert marks.end_marked(order.job) == set()
    assert not node.busy()


def test_steps_get_what_the_envelope_carries(node: FakeNode) -> None:
    order = node.order(x=1)
    context: Context = runner.context_for(node.paths, runner.NodeConfig.load(node.paths.node_toml), order, lambda type, data: None)
    assert (context.params, context.folder, context.service) == ({"x": 1}, node.folder(order.job), None)
    assert commands.clean_environment(job=order.job)["ROUNDHOUSE_JOB"] == order.job


def announced(node: FakeNode, **changes: object) -> ServiceRecord:
    """A service as the node has it, with a secret in a variable and one in a flag."""
    node.paths.node_toml.write_text(f'name = "n1"\nservice_roots = ["{node.paths.services}"]\nmodel_roots = ["/m"]\n')
    record = ServiceRecord(**{"name": "a", "root": str(node.paths.services / "a"), "model_path": "/m", "served_model_name": "m", "base_url": "http://x",
                              "env": {"HF_TOKEN": "value-of-token", "A": "b"}, "flags": ["--api-key", "value-of-key", "--port", "1"], **changes})
    (node.paths.announced / "a.json").write_text(json.dumps(record.as_dict()))
    return record


def test_secrets_of_a_service_stay_on_its_node_and_reach_its_steps(node: FakeNode) -> None:
    record = announced(node)
    shown = redact.hide_in_record(record.as_dict())
    assert "value-of" not in json.dumps(shown)
    order = replace(node.order(argv=["/bin/echo", "value-of-token", "value-of-key"]), service=shown)
    assert runner.service_of(node.paths, order) == record
    runner.start(node.paths, order)
    node.finished(order.job)
    said = "".join(path.read_text() for path in node.folder(order.job).iterdir())
    assert "[redacted] [redacted]" in said
    params_only = (node.folder(order.job) / "envelope.json").read_text()
    assert said.count("value-of") == params_only.count("value-of")  # the test's own argv


def test_a_job_hides_also_what_environment_files_hold_and_the_secrets_of_every_service_that_it_locks(node: FakeNode) -> None:
    file = node.paths.root / "secret.env"
    file.write_text("MY_TOKEN=value-of-file\n")
    other = replace(announced(node), name="b", env={"B_PASSWORD": "value-of-other"}, env_files=[str(file)], flags=[])
    (node.paths.announced / "b.json").write_text(json.dumps(other.as_dict()))
    order = replace(node.order(), locks=["env:/x", "service:a", "service:b", "service:gone"])
    record = announced(node)
    assert set(runner.secrets_of(node.paths, order, record)) == {"value-of-token", "value-of-key", "value-of-other", "value-of-file"}
    assert runner.secrets_of(node.paths, replace(order, locks=[]), None) == []


def test_an_order_for_a_record_that_has_changed_is_refused(node: FakeNode) -> None:
    shown = redact.hide_in_record(announced(node).as_dict())
    announced(node, model_path="/other")
    with pytest.raises(Refused, match="not the node's any more"):
        runner.start(node.paths, replace(node.order(), service=shown))


def test_an_order_that_waited_while_settings_were_changed_gets_those_of_now(node: FakeNode) -> None:
    shown = redact.hide_in_record(announced(node, env={"A": "b"}, flags=["--port", "1"]).as_dict())
    now = announced(node, env={"A": "c", "HF_TOKEN": "value-of-token"}, flags=["--port", "2"], base_url="http://x:2", guards=[])
    assert runner.service_of(node.paths, replace(node.order(), service=shown)) == now


def test_a_shut_down_asks_the_runner_and_leaves_nothing(node: FakeNode) -> None:
    order = node.order(seconds=60, argv=None)
    runner.start(node.paths, order)
    node.in_step(order.job, "talk")
    reconcile.shut_down(node.paths, order.job)
    assert (node.finished(order.job, 1)["state"], node.finished(order.job, 1)["rollback"]) == ("cancelled", "done")
    assert marks.marked(order.job) == set()


def test_a_shut_down_that_may_not_take_long_leaves_the_rest_to_the_next_agent(node: FakeNode) -> None:
    order = node.order(argv=["/bin/sleep", "60"])
    runner.start(node.paths, order)
    until(lambda: len(marks.marked(order.job)) == 2, 10)
    reconcile.shut_down(node.paths, order.job, grace_s=0)
    assert marks.marked(order.job) == set()
    assert "job.finished" not in node.types(order.job)
    assert reconcile.reconcile(node.paths) == [order.job]
