"""Jobs about environments: what they are given, which locks they take, what is refused before a row is made."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from dashboard import dispatch
from dashboard.models import Channel, Job, JobLock, Service, ShelvedPatch
from dashboard.recorder import record
from ops.agent.config import NodeConfig
from ops.jobs import envelope
from ops.jobs.errors import BadInput, Busy
from ops.jobs.events import JobState
from ops.jobs.kinds import KINDS
from ops.records import ServiceRecord
from tests.dashboard.conftest import Speaker, new_job

pytestmark = pytest.mark.django_db(transaction=True)

LIVE, GOOD, OLD, TORN = "20260301-000000-dev344", "20260201-000000-dev313", "20260101-000000-dev300", "20260302-000000-dev345"


@pytest.fixture
def kept(service: Service) -> Service:
    """A service with four releases."""
    flags = {"is_current": False, "is_last_good": False, "unfinished": False, "verified": True, "kind": "built"}
    service.releases = [{**flags, "name": TORN, "unfinished": True}, {**flags, "name": LIVE, "is_current": True},
                        {**flags, "name": GOOD, "is_last_good": True}, {**flags, "name": OLD}]
    service.save()
    return service


@pytest.fixture
def in_place(kept: Service) -> Service:
    """The same service, whose environment may not move."""
    kept.record = ServiceRecord.from_dict({**kept.record, "environment": "/opt/vllm", "in_place": True}).as_dict()
    kept.environment = {"adopted": "/data/vllm-env"}
    kept.save()
    return kept


def planned(service: Service, channel: Channel, user: User, mode: str = "full", **plan: Any) -> Job:
    job = dispatch.start_plan(service=service, channel=channel, user=user, mode=mode)
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, result={"plan": {"hash": "abc", "findings": [], "packages": [], **plan}})
    return Job.objects.get(pk=job.pk)


def test_a_plan_is_made_for_the_way_that_was_chosen(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    assert dispatch.start_plan(service=service, channel=channel, user=operator).params["mode"] == "full"
    assert dispatch.start_plan(service=service, channel=channel, user=operator, mode="restore").params["mode"] == "restore"
    with pytest.raises(BadInput, match="no way to redeploy"):
        dispatch.start_plan(service=service, channel=channel, user=operator, mode="fast")


def test_a_redeploy_goes_the_way_of_its_plan(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_redeploy(plan_job=planned(service, channel, operator, mode="restore"), user=operator, options={})
    assert (job.params["mode"], job.params["accept_no_rollback"]) == ("restore", False)
    assert "in_place" not in job.params and [lock.lock for lock in job.locks.all()] == ["service:kimi-k25"]


def test_a_redeploy_without_a_way_back_needs_a_second_yes(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    plan = planned(service, channel, operator, rollback={"possible": False, "why": "The disk has no room for a copy of 10 GB"})
    for options in ({}, {"accept_no_rollback": False}, {"rollback": True}):
        with pytest.raises(BadInput, match="cannot be rolled back") as caught:
            dispatch.start_redeploy(plan_job=plan, user=operator, options=options)
        assert (caught.value.kind, caught.value.why) == ("no_rollback", "The disk has no room for a copy of 10 GB")
    assert not Job.objects.filter(type="redeploy").exists()
    assert dispatch.start_redeploy(plan_job=plan, user=operator, options={"accept_no_rollback": True}).params["accept_no_rollback"] is True


@pytest.mark.parametrize("rollback", [None, {}, {"possible": True}, {"possible": None}, "no"])
def test_a_plan_with_a_way_back_needs_no_second_yes(
        service: Service, channel: Channel, operator: User, rollback: Any, redis_client: redis.Redis) -> None:
    plan = planned(service, channel, operator, rollback=rollback)
    assert dispatch.start_redeploy(plan_job=plan, user=operator, options={}).params["accept_no_rollback"] is False


def test_a_redeploy_in_place_locks_the_environment_by_its_real_path(
        in_place: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_redeploy(plan_job=planned(in_place, channel, operator, in_place=True), user=operator, options={})
    assert (job.params["in_place"], job.params["environment"]) == (True, "/data/vllm-env")
    assert sorted(lock.lock for lock in job.locks.all()) == ["env:/data/vllm-env", "service:kimi-k25"]
    sent = envelope.Envelope.from_dict(job.envelope)
    config = NodeConfig(name="practice", service_roots=["/srv"], model_roots=["/models"], wheelhouse_roots=["/srv"],
                        environment_roots=["/data", "/opt"])
    envelope.verify(sent, config, now=sent.iat + 1, types=set(KINDS))


def test_two_services_cannot_change_one_environment_at_once(
        in_place: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    other = Service.objects.create(node=in_place.node, name="twin", practice=True, environment=in_place.environment,
                                   record={**in_place.record, "name": "twin", "root": "/srv/twin"})
    first = dispatch.start_redeploy(plan_job=planned(in_place, channel, operator, in_place=True), user=operator, options={})
    plan = planned(other, channel, operator, in_place=True)
    with pytest.raises(Busy, match=f"job #{first.number}"):
        dispatch.start_redeploy(plan_job=plan, user=operator, options={})


def test_a_build_stops_before_anything_stops(service: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_build(plan_job=planned(service, channel, operator, mode="restore"), user=operator)
    assert (job.type, job.params["mode"], job.params["plan_hash"]) == ("build", "restore", "abc")
    assert "smoke" not in job.params and job.envelope["snapshot"]["plan"]["hash"] == "abc"


def test_nothing_is_built_beside_an_environment_that_is_changed_in_place(
        in_place: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    with pytest.raises(BadInput, match="changed in place"):
        dispatch.start_build(plan_job=planned(in_place, channel, operator, in_place=True), user=operator)


@pytest.mark.parametrize("start", [dispatch.start_build, lambda **asked: dispatch.start_redeploy(options={}, **asked)], ids=["build", "redeploy"])
def test_a_plan_that_stops_starts_nothing(service: Service, channel: Channel, operator: User, start: Any, redis_client: redis.Redis) -> None:
    plan = planned(service, channel, operator, findings=[{"level": "stop", "title": "The disk is full", "why": "w", "fix": "f"}])
    with pytest.raises(BadInput, match="The disk is full"):
        start(plan_job=plan, user=operator)


def test_a_roll_back_names_a_kept_release(kept: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_rollback(service=kept, release=OLD, user=operator, smoke=False)
    assert (job.type, job.params) == ("rollback", {"release": OLD, "smoke": False})
    assert [lock.lock for lock in job.locks.all()] == ["service:kimi-k25"]


def test_a_roll_back_in_place_locks_the_environment(in_place: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start_rollback(service=in_place, release=OLD, user=operator)
    assert sorted(lock.lock for lock in job.locks.all()) == ["env:/data/vllm-env", "service:kimi-k25"]


@pytest.mark.parametrize("release", [LIVE, TORN, "nowhere", "", "../../etc", "x" * 500])
def test_a_roll_back_to_what_cannot_run_is_refused(kept: Service, operator: User, release: str) -> None:
    with pytest.raises(BadInput):
        dispatch.start_rollback(service=kept, release=release, user=operator)
    assert not Job.objects.exists()


@pytest.mark.parametrize(("release", "goes"), [(LIVE, False), (GOOD, False), (OLD, True), (TORN, True), ("nowhere", False)])
def test_neither_the_live_release_nor_the_way_back_is_removed(
        kept: Service, operator: User, release: str, goes: bool, redis_client: redis.Redis) -> None:
    if goes:
        assert dispatch.start_remove_release(service=kept, release=release, user=operator).params == {"release": release}
    else:
        with pytest.raises(BadInput):
            dispatch.start_remove_release(service=kept, release=release, user=operator)


def test_only_guards_of_the_service_are_applied(kept: Service, operator: User, redis_client: redis.Redis) -> None:
    guard = {"kind": "key_absent", "file": "config.json", "key": "quantization_config.kv_cache_scheme"}
    kept.record = {**kept.record, "guards": [guard]}
    kept.save()
    with pytest.raises(BadInput, match="not one of the service's"):
        dispatch.start_guards_apply(service=kept, user=operator, guards=[{**guard, "file": "../../etc/passwd"}])
    job = dispatch.start_guards_apply(service=kept, user=operator, guards=[guard])
    assert job.params == {"guards": [guard]}
    Job.objects.update(state=JobState.SUCCEEDED)
    assert dispatch.start_guards_apply(service=kept, user=operator).params == {"guards": None}


def test_what_is_forgotten_is_on_the_service_s_shelf(kept: Service, operator: User, redis_client: redis.Redis) -> None:
    def shelved(service: Service) -> ShelvedPatch:
        return ShelvedPatch.objects.create(service=service, folder="f", path="lib/a.py", change="changed", saved_at=timezone.now())

    other = Service.objects.create(node=kept.node, name="other", record={**kept.record, "name": "other"})
    mine, theirs = shelved(kept), shelved(other)
    for entries in ([], [theirs], [mine, theirs]):
        with pytest.raises(BadInput):
            dispatch.start_shelf_forget(service=kept, entries=entries, user=operator)
    job = dispatch.start_shelf_forget(service=kept, entries=[mine], user=operator)
    assert job.params == {"entries": [{"folder": "f", "path": "lib/a.py"}]}


def test_a_recipe_has_a_label_that_can_be_read(kept: Service, operator: User, redis_client: redis.Redis) -> None:
    for label in ("x" * 121, "a\nb", "a\x00", "\u202eevil"):
        with pytest.raises(BadInput):
            dispatch.start_recipe(service=kept, user=operator, label=label)
    assert dispatch.start_recipe(service=kept, user=operator, label="week 9").params == {"label": "week 9"}


def test_nobody_anonymous_starts_any_of_it(kept: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    plan, nobody = planned(kept, channel, operator), AnonymousUser()
    shelved = ShelvedPatch.objects.create(service=kept, folder="f", path="lib/a.py", change="changed", saved_at=timezone.now())
    before = Job.objects.count()
    for start in (lambda: dispatch.start_build(plan_job=plan, user=nobody), lambda: dispatch.start_rollback(service=kept, release=OLD, user=nobody),
                  lambda: dispatch.start_redeploy(plan_job=plan, user=nobody, options={}),
                  lambda: dispatch.start_remove_release(service=kept, release=OLD, user=nobody),
                  lambda: dispatch.start_guards_apply(service=kept, user=nobody), lambda: dispatch.start_recipe(service=kept, user=nobody),
                  lambda: dispatch.start_shelf_forget(service=kept, entries=[shelved], user=nobody)):
        with pytest.raises(PermissionDenied):
            start()
    assert Job.objects.count() == before


def failed_in_place(service: Service, user: User) -> Job:
    """A roll back in place whose own undo failed: it keeps both locks for a person."""
    job = dispatch.start_rollback(service=service, release=OLD, user=user)
    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, rollback="failed")
    JobLock.objects.filter(job=job).update(held=True)
    return job


def test_after_a_failed_rollback_in_place_only_repairs_may_start(
        in_place: Service, channel: Channel, operator: User, redis_client: redis.Redis) -> None:
    failed_in_place(in_place, operator)
    with pytest.raises(Busy) as caught:
        dispatch.start(type="sweep", node=in_place.node, service=in_place, user=operator)
    assert "restart the service, or roll it back" in caught.value.hint
    job = dispatch.start_rollback(service=in_place, release=GOOD, user=operator)
    assert sorted(lock.lock for lock in job.locks.all()) == ["env:/data/vllm-env", "service:kimi-k25"]


@pytest.mark.parametrize("repair", ["restart", "rollback"])
@pytest.mark.parametrize("locks", [["env:/data/vllm-env", "service:kimi-k25"], ["service:kimi-k25"]], ids=["both", "service"])
def test_a_repair_that_succeeds_frees_all_that_the_failed_job_kept(
        in_place: Service, operator: User, repair: str, locks: list[str], redis_client: redis.Redis) -> None:
    failed_in_place(in_place, operator)
    job = new_job(in_place, type=repair)
    node = Speaker(job)
    record([node.claimed(type=repair, locks=locks, fence=dict.fromkeys(locks, 2**40))])
    assert JobLock.objects.filter(job=job, held=True).count() == len(locks)
    record([node.finished()])
    assert not JobLock.objects.filter(held=True).exists()


def test_a_repair_that_fails_leaves_the_locks_with_the_failed_job(in_place: Service, operator: User, redis_client: redis.Redis) -> None:
    failed = failed_in_place(in_place, operator)
    node = Speaker(new_job(in_place, type="rollback"))
    locks = ["env:/data/vllm-env", "service:kimi-k25"]
    record([node.claimed(type="rollback", locks=locks, fence=dict.fromkeys(locks, 2**40)), node.finished("failed")])
    assert JobLock.objects.filter(job=failed, held=True).count() == 2


def test_a_restart_in_place_locks_the_environment(in_place: Service, operator: User, redis_client: redis.Redis) -> None:
    job = dispatch.start(type="restart", node=in_place.node, service=in_place, user=operator)
    assert sorted(lock.lock for lock in job.locks.all()) == ["env:/data/vllm-env", "service:kimi-k25"]
