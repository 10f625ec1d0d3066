"""Jobs that control a service and set what it is started with: what they are given, which locks they take, what is refused before a row is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User

from dashboard import dispatch
from dashboard.models import AuditEntry, Job, Node, Service
from dashboard.recorder import record
from ops import launch_settings, sealed, smoke_set
from ops.agent.config import NodeConfig, NodePaths
from ops.jobs.errors import BadInput, Busy, OpsError
from ops.jobs.events import EventType
from ops.jobs.pipeline import Context
from ops.jobs.redact import HIDDEN
from ops.records import ServiceRecord
from tests.dashboard.conftest import Speaker, new_job

pytestmark = pytest.mark.django_db(transaction=True)

OWN, ALSO_OWN, FOREIGN = ({"pid": pid, "start_ticks": 500 + pid} for pid in (41, 42, 43))
SECRET = "hf_abcdefghijklmnopqrstuvwx"


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(tmp_path)


@pytest.fixture
def told_settings(service: Service, paths: NodePaths) -> Service:
    """A service whose node has told its settings, and the key that values are sealed with."""
    service.node.facts = {"settings_key": sealed.public_key(paths)}
    service.node.save()
    service.launch = {"mark": "m1", "flags": ["--port", "8000"], "env": {"HF_TOKEN": HIDDEN}, "env_files": [], "secret_names": ["HF_TOKEN"],
                      "pending": False}
    service.save()
    return service


def another(service: Service, name: str = "glm-5", **more: Any) -> Service:
    made = ServiceRecord.from_dict({**service.record, "name": name, "root": f"/srv/{name}"})
    return Service.objects.create(**{"node": service.node, "name": name, "record": made.as_dict(), "practice": True, **more})


def left_behind(service: Service, *processes: dict[str, Any], about: str = "kimi-k25", type: str = "stop") -> Job:
    """A job that has told leftovers."""
    job = new_job(service, type=type)
    node = Speaker(job)
    record([node.claimed(type=type, fence={}, locks=[]),
            node.event(EventType.LEFTOVERS, service=about, processes=list(processes), ports=[], shm=[], ipc=[], at=1.0), node.finished()])
    return job


# ---- control ----


@pytest.mark.parametrize("kind", dispatch.CONTROL_KINDS)
def test_a_service_is_controlled_by_one_job_each(service: Service, operator: User, kind: str, redis_client: redis.Redis) -> None:
    job = dispatch.start_control(service=service, kind=kind, user=operator)
    assert (job.type, job.params, job.by, job.envelope["service"]["name"]) == (kind, {}, operator, "kimi-k25")
    assert [lock.lock for lock in job.locks.all()] == ([] if kind in ("leftovers", "diagnose") else ["service:kimi-k25"])


@pytest.mark.parametrize(("kind", "smoke", "match"), [("kill", None, "cannot be controlled"), ("switch", None, "cannot be controlled"),
                                                      ("stop", True, "no smoke tests")])
def test_what_is_no_control_of_a_service_is_refused(service: Service, operator: User, kind: str, smoke: bool | None, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        dispatch.start_control(service=service, kind=kind, user=operator, smoke=smoke)
    assert not Job.objects.exists()


def test_a_start_says_whether_it_ends_with_smoke_tests(service: Service, operator: User, redis_client: redis.Redis) -> None:
    assert dispatch.start_control(service=service, kind="start", user=operator, smoke=False).params == {"smoke": False}


def test_a_restart_in_place_locks_the_environment_and_a_look_does_not(service: Service, operator: User, redis_client: redis.Redis) -> None:
    service.record = ServiceRecord.from_dict({**service.record, "environment": "/opt/vllm", "in_place": True}).as_dict()
    service.save()
    restart = dispatch.start_control(service=service, kind="restart", user=operator)
    assert [lock.lock for lock in restart.locks.order_by("lock")] == ["env:/opt/vllm", "service:kimi-k25"]
    assert dispatch.start_control(service=service, kind="diagnose", user=operator).params == {}


def test_a_switch_locks_both_services(service: Service, operator: User, redis_client: redis.Redis) -> None:
    other = another(service)
    job = dispatch.start_switch(service=service, to=other, user=operator)
    assert (job.type, job.service, job.params) == ("switch", service, {"to": "glm-5", "smoke": True})
    assert [lock.lock for lock in job.locks.order_by("lock")] == ["service:glm-5", "service:kimi-k25"]
    assert "glm-5" not in json.dumps(job.envelope["service"])  # the node takes the other's record from its own folder
    with pytest.raises(Busy, match="glm-5"):
        dispatch.start_control(service=other, kind="stop", user=operator)


def test_a_switch_stays_on_its_node_and_among_its_kind(service: Service, operator: User) -> None:
    away = another(service, "away", node=Node.objects.create(name="n2"))
    real = another(service, "real", practice=False)
    for to, match in ((service, "to itself"), (away, "another node"), (real, "cannot take the place")):
        with pytest.raises(BadInput, match=match):
            dispatch.start_switch(service=service, to=to, user=operator)
    assert not Job.objects.exists()


# ---- leftovers ----


def test_only_what_was_listed_as_the_services_own_can_be_ended(service: Service, operator: User, redis_client: redis.Redis) -> None:
    left_behind(service, {**OWN, "own": True}, {**FOREIGN, "own": False})
    job = dispatch.start_end_leftovers(service=service, processes=[OWN, OWN], user=operator)
    assert (job.type, job.params) == ("end-leftovers", {"processes": [OWN]})
    for strange in (FOREIGN, {**OWN, "start_ticks": 7}, ALSO_OWN):
        with pytest.raises(BadInput, match="was not found to be a leftover"):
            dispatch.start_end_leftovers(service=service, processes=[strange], user=operator)


def test_what_one_service_left_behind_is_not_anothers(service: Service, operator: User, redis_client: redis.Redis) -> None:
    other = another(service)
    left_behind(service, {**OWN, "own": True}, about="glm-5", type="switch")  # a job of one service tells of the one that it switched to
    with pytest.raises(BadInput, match="was not found to be a leftover"):
        dispatch.start_end_leftovers(service=service, processes=[OWN], user=operator)
    assert dispatch.start_end_leftovers(service=other, processes=[OWN], user=operator).service == other


def test_nodes_do_not_speak_for_each_other(service: Service, operator: User) -> None:
    away = another(service, service.name, node=Node.objects.create(name="n2"))
    left_behind(away, {**OWN, "own": True})
    assert dispatch.own_leftovers(service) == set()


@pytest.mark.parametrize("processes", [[], [{}], [{"pid": True, "start_ticks": 1}], [{"pid": 1, "start_ticks": 1}],
                                       [{"pid": "41", "start_ticks": 541}], [{"pid": -1, "start_ticks": 1}]])
def test_what_names_no_process_ends_none(service: Service, operator: User, processes: list[dict[str, Any]]) -> None:
    with pytest.raises(BadInput):
        dispatch.start_end_leftovers(service=service, processes=processes, user=operator)


# ---- launch settings ----


def test_a_value_is_sealed_for_its_node_and_stands_nowhere_in_the_console(
        told_settings: Service, operator: User, paths: NodePaths, redis_client: redis.Redis) -> None:
    job = dispatch.start_settings_set(service=told_settings, user=operator, before="m1", flags=["--port", "8000", "--api-key", HIDDEN],
                                      env={"HF_TOKEN": SECRET, "VLLM_USE_V1": "1", "OLD": None, "OTHER_TOKEN": HIDDEN})
    env = job.params["env"]
    assert job.params["flags"] == ["--port", "8000", "--api-key", HIDDEN] and job.params["before"] == "m1"
    assert (env["OLD"], env["OTHER_TOKEN"]) == (None, {"keep": True})
    assert {name: sealed.unseal(paths, env[name]["sealed"], service="kimi-k25", name=name) for name in ("HF_TOKEN", "VLLM_USE_V1")} == {
        "HF_TOKEN": SECRET, "VLLM_USE_V1": "1"}
    assert SECRET not in json.dumps([job.params, job.envelope, *AuditEntry.objects.values_list("data", flat=True)])
    assert SECRET.encode() not in b"".join(redis_client.lrange("node.practice", 0, -1))
    assert job.type == "settings-set" and [lock.lock for lock in job.locks.all()] == ["service:kimi-k25"]


def test_what_a_person_types_is_what_the_node_starts_with_and_what_it_says_names_no_secret(
        told_settings: Service, operator: User, paths: NodePaths, redis_client: redis.Redis) -> None:
    own = ServiceRecord.from_dict({**told_settings.record, "root": str(paths.services / "kimi-k25"), "flags": ["--api-key", "old-secret-1"],
                                   "env": {"HF_TOKEN": "old-secret-2", "OLD": "1"}})
    paths.announced.mkdir()
    own.folder.mkdir(parents=True)
    path = paths.announced / "kimi-k25.json"
    path.write_text(json.dumps(own.as_dict()))
    told_settings.launch = {**told_settings.launch, "mark": launch_settings.mark(own)}
    job = dispatch.start_settings_set(service=told_settings, user=operator, before=launch_settings.mark(own), env={
        "HF_TOKEN": HIDDEN, "OLD": None, "WANDB_API_KEY": SECRET, "EMPTY": ""}, flags=["--api-key", HIDDEN, "--seed", "7"])
    said: list[tuple[str, dict[str, Any]]] = []
    context = Context(job=str(job.pk), params=job.params, paths=paths, config=NodeConfig(name="practice", service_roots=[str(paths.services)]),
                      folder=paths.root, emit=lambda type, data: said.append((type, data)), service=own)
    assert launch_settings.set_settings(context) == "flags and 3 variables changed, at the next start"
    now = ServiceRecord.from_dict(json.loads(path.read_text()))
    assert now.flags == ["--api-key", "old-secret-1", "--seed", "7"]
    assert now.env == {"HF_TOKEN": "old-secret-2", "WANDB_API_KEY": SECRET, "EMPTY": ""}
    node = Speaker(job)
    record([node.claimed(type="settings-set", fence={}, locks=[], params=job.params), *(node.event(type, **data) for type, data in said),
            node.finished()])
    kept = Job.objects.get(pk=job.pk)
    assert kept.result["settings"] == {"flags": True, "env": 3, "applies": "at the next start"}
    assert not any(secret in json.dumps([said, kept.params, kept.result]) for secret in ("old-secret", SECRET))


def test_flags_alone_leave_the_variables(told_settings: Service, operator: User, redis_client: redis.Redis) -> None:
    assert dispatch.start_settings_set(service=told_settings, user=operator, before="m1", flags=[]).params == {"flags": [], "env": {}, "before": "m1"}


@pytest.mark.parametrize(("more", "match"), [
    ({}, "Nothing was changed"), ({"env": {}}, "Nothing was changed"), ({"env": {"a b": "1"}}, "not a variable"),
    ({"env": {"": "1"}}, "not a variable"), ({"env": {"ROUNDHOUSE_STATE": "/x"}}, "not a variable"), ({"env": {"A": "a\0b"}}, "hold"),
    ({"flags": ["--api-key", "x1y2z3"]}, "holds a secret"),
    ({"flags": [f"--hf-token={SECRET}"]}, "holds a secret"), ({"flags": ["a\0"]}, "not a flag"), ({"flags": [7]}, "not a flag"),
    ({"flags": ["serve"]}, "no flag"),
    ({"flags": ["--a", "--b"], "env": {"A": "x" * 300_000}}, "longer")])
def test_settings_that_cannot_be_are_refused(told_settings: Service, operator: User, more: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInput, match=match) as caught:
        dispatch.start_settings_set(service=told_settings, user=operator, before="m1", **more)
    assert SECRET not in str(caught.value)
    assert not Job.objects.exists()


def test_settings_that_somebody_else_has_changed_are_not_written_over(told_settings: Service, operator: User) -> None:
    with pytest.raises(OpsError, match="changed meanwhile") as caught:
        dispatch.start_settings_set(service=told_settings, user=operator, before="m0", flags=[])
    assert caught.value.kind == "changed"


def test_a_node_that_has_told_no_settings_or_no_key_gets_none(told_settings: Service, operator: User) -> None:
    Node.objects.update(facts={})
    told_settings.node.refresh_from_db()
    with pytest.raises(BadInput, match="has not told the key"):
        dispatch.start_settings_set(service=told_settings, user=operator, before="m1", env={"A": "1"})
    told_settings.launch = {}
    with pytest.raises(BadInput, match="not known yet"):
        dispatch.start_settings_set(service=told_settings, user=operator, before="", flags=[])


# ---- smoke suites ----


def test_a_suite_travels_with_the_one_that_was_shown(service: Service, operator: User, redis_client: redis.Redis) -> None:
    question = {"name": "capital", "kind": "contains", "title": "Capital", "prompt": "What is the capital of France?", "expect": "Paris"}
    shown = dispatch.smoke_suite(service)
    assert shown == smoke_set.announced(ServiceRecord.from_dict(service.record))  # the node compares it with this
    job = dispatch.start_smoke_set(service=service, user=operator, tests=[question], without=["code"], before=shown)
    assert (job.type, job.params) == ("smoke-set", {"tests": [question], "without": ["code"], "before": {"tests": [], "without": []}})
    assert [lock.lock for lock in job.locks.all()] == ["service:kimi-k25"]


@pytest.mark.parametrize(("tests", "without"), [([{"name": "a"}], []), ([], ["no such question"]), ("x", []), ([], "x"), ([{}] * 1000, [])])
def test_what_is_no_suite_is_refused(service: Service, operator: User, tests: Any, without: Any) -> None:
    with pytest.raises(BadInput):
        dispatch.start_smoke_set(service=service, user=operator, tests=tests, without=without, before=dispatch.smoke_suite(service))
    assert not Job.objects.exists()
