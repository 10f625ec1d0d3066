from __future__ import annotations

import dataclasses
import json
import random
import threading
import uuid
from collections.abc import Iterator

import pytest
import redis

from dashboard import recorder
from dashboard.models import BenchmarkRun, Job, JobEvent, JobLock, LockFence, Service
from dashboard.recorder import Recorder, parse, record
from ops.jobs import streams
from ops.jobs.events import Event, EventType, JobState
from tests.dashboard.conftest import Speaker, fresh, new_job

pytestmark = pytest.mark.django_db(transaction=True)


def seqs(job: Job) -> list[int]:
    return list(JobEvent.objects.filter(job=job).values_list("seq", flat=True))


# ---- events to rows ----


def test_a_job_goes_from_queued_to_its_end(told: tuple[Job, Speaker]) -> None:
    job, node = told
    states = []
    for event in (node.claimed(), node.event(EventType.JOB_STARTED, pid=1, start_time=1), node.finished(duration_s=3.5)):
        record([event])
        states.append(fresh(job).state)
    assert states == ["claimed", "running", "succeeded"]
    assert (fresh(job).duration_s, fresh(job).last_seq) == (3.5, 3)


def test_storing_events_again_changes_nothing(told: tuple[Job, Speaker]) -> None:
    job, node = told
    said = [node.claimed(), node.log(), node.log(), node.finished()]
    record(said)
    record(said)
    record(said[1:3])
    assert seqs(job) == [1, 2, 3, 4] and fresh(job).state == "succeeded"


def test_events_beyond_a_gap_wait(told: tuple[Job, Speaker]) -> None:
    job, node = told
    one, two, three = node.claimed(), node.log(), node.log()
    done = record([three, one])
    assert (seqs(job), done.gaps, done.stored) == ([1], {str(job.pk)}, {str(job.pk): 1})
    record([two, three])
    assert seqs(job) == [1, 2, 3]


def test_any_order_and_any_repetition_gives_the_same_rows(told: tuple[Job, Speaker]) -> None:
    job, node = told
    said = [node.claimed(), *(node.log(f"{n}\n") for n in range(30)), node.finished()]
    chance = random.Random(3)
    while fresh(job).last_seq < len(said):
        record(chance.sample(said, 20))
    assert seqs(job) == list(range(1, 33))


def test_steps_are_projected(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.STEP_STARTED, step="plan", title="Plan", index=0, deadline_s=None),
            node.event(EventType.STEP_PROGRESS, step="plan", done=3, total=9, unit="files", text="3 of 9", estimate=False)])
    plan = job.steps.get(name="plan")
    assert (plan.state, plan.progress["done"]) == ("running", 3)
    record([node.event(EventType.STEP_FINISHED, step="plan", outcome="done", duration_s=1.25, note="163 packages change")])
    plan.refresh_from_db()
    assert (plan.state, plan.duration_s, plan.note) == ("done", 1.25, "163 packages change")
    assert [(step.name, step.state, step.downtime) for step in job.steps.all()] == [("plan", "done", False), ("stop", "todo", True)]


def test_an_undone_step_and_a_failed_one_read_differently(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(),
            node.event(EventType.STEP_FINISHED, step="plan", outcome="done", duration_s=1, note=""),
            node.event(EventType.STEP_FINISHED, step="stop", outcome="failed", duration_s=1, note="no"),
            node.event(EventType.STEP_UNDOING, step="stop", title="Stop"),
            node.event(EventType.STEP_UNDONE, step="stop", outcome="done", duration_s=2, note="started again"),
            node.event(EventType.STEP_UNDOING, step="plan", title="Plan"),
            node.event(EventType.STEP_UNDONE, step="plan", outcome="done", duration_s=0, note="")])
    assert {step.name: (step.state, step.undo_note) for step in job.steps.all()} == {"plan": ("done", ""), "stop": ("failed", "started again")}


def test_a_step_that_still_ran_when_the_job_ended_is_interrupted(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.STEP_STARTED, step="plan", title="Plan", index=0, deadline_s=None), node.finished("interrupted")])
    assert job.steps.get(name="plan").state == "interrupted"


def test_downtime_is_what_the_node_measured(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.DOWNTIME_STARTED, service="kimi-k25")])
    assert fresh(job).downtime_since is not None
    record([node.event(EventType.DOWNTIME_ENDED, service="kimi-k25", seconds=12.5, release="r")])
    assert (fresh(job).downtime_s, fresh(job).downtime_since) == (12.5, None)


def test_results_are_kept_with_the_job(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.PLAN_MADE, hash="abc"),
            node.event(EventType.FINDING, subject="plan", level="note", title="t", why="", fix=""),
            node.event(EventType.WARMUP_PHASE, phase="load", title="Load", state="running", took_s=None),
            node.event(EventType.WARMUP_PHASE, phase="load", title="Load", state="done", took_s=2.0),
            node.event(EventType.WARMUP_DONE, total_s=3.0, cache="hit"), node.event(EventType.SMOKE_RESULT, name="factual", outcome="passed"),
            node.event(EventType.REPORT, markdown="# Report")])
    result = fresh(job).result
    assert result["plan"] == {"hash": "abc"} and result["findings"][0]["title"] == "t" and result["report"]["markdown"] == "# Report"
    assert result["warmup"]["total_s"] == 3.0 and [phase["took_s"] for phase in result["warmup"]["phases"]] == [2.0]
    assert [smoke["name"] for smoke in result["smoke"]] == ["factual"]


def sweep(node: Speaker, run_id: str, *, end: bool = True) -> list[Event]:
    said = [node.claimed(type="sweep"),
            node.event(EventType.SWEEP_STARTED, run_id=run_id, preset="quick", concurrencies=[1, 8], max_tokens=64, requests=[2, 16], model="kimi",
                       endpoint="http://127.0.0.1:8000", practice=True, short=True, fingerprint={"release": "r1", "packages": {"vllm": "0.16"}}),
            node.event(EventType.LEVEL_STARTED, run_id=run_id, concurrency=1, requests=2, started_at=1.0),
            node.event(EventType.LEVEL_FINISHED, run_id=run_id, metrics={"concurrency": 1, "requests": 2, "finished": 2, "errors": 0,
                                                                        "output_tok_s": 61.0, "e2e_mean_s": 8.4, "e2e_p99_s": None}),
            node.event(EventType.LEVEL_STARTED, run_id=run_id, concurrency=8, requests=16, started_at=2.0)]
    if end:
        said += [node.event(EventType.SWEEP_FINISHED, run_id=run_id, result={"state": "done", "warnings": ["short"]})]
    return said


def test_a_sweep_becomes_a_run_with_levels(told: tuple[Job, Speaker]) -> None:
    _, node = told
    run_id = str(uuid.uuid4())
    record(sweep(node, run_id))
    run = BenchmarkRun.objects.get(pk=run_id)
    assert (run.state, run.practice, run.short, run.warnings, run.vllm_version, run.release) == ("done", True, True, ["short"], "0.16", "r1")
    level = run.levels.get(concurrency=1)
    assert (level.state, level.output_tok_s, level.e2e_mean_s, level.e2e_p99_s, level.finished) == ("done", 61.0, 8.4, None, 2)


def test_a_sweep_cut_short_by_its_job_is_no_running_run(told: tuple[Job, Speaker]) -> None:
    _, node = told
    run_id = str(uuid.uuid4())
    record([*sweep(node, run_id, end=False), node.finished("cancelled")])
    run = BenchmarkRun.objects.get(pk=run_id)
    assert (run.state, [level.state for level in run.levels.all()]) == ("cancelled", ["done", "failed"])


def test_a_job_cannot_write_into_the_run_of_another(told: tuple[Job, Speaker], service: Service) -> None:
    job, node = told
    run_id = str(uuid.uuid4())
    record(sweep(node, run_id))
    thief = Speaker(new_job(service))
    record(sweep(thief, run_id))
    assert BenchmarkRun.objects.get(pk=run_id).job_id == job.pk
    assert JobEvent.objects.filter(job_id=thief.job).count() == 6  # what it said is kept, what it meant is not


def test_an_event_of_the_wrong_form_holds_up_nothing(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.STEP_FINISHED, nonsense=1), node.event(EventType.LEVEL_FINISHED, run_id="no", metrics=[]),
            node.event("job.dreamed", of="sheep"), node.event(EventType.JOB_FINISHED, state="happy"), node.log(), node.finished()])
    assert fresh(job).state == "succeeded" and len(seqs(job)) == 7


# ---- locks ----


def test_a_claimed_job_holds_its_locks_until_it_ends(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed()])
    assert [lock.held for lock in job.locks.all()] == [True]
    record([node.finished("failed")])
    assert [lock.held for lock in job.locks.all()] == [False]


def test_a_failed_rollback_keeps_the_lock(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed(), node.finished("failed", rollback="failed")])
    assert [lock.held for lock in job.locks.all()] == [True]


def test_a_repair_that_fails_gives_the_lock_back_and_one_that_succeeds_frees_it(told: tuple[Job, Speaker], service: Service) -> None:
    """The node keeps it as long: a job that the console let through would wait there without an end."""
    _, node = told
    record([node.claimed(), node.finished("failed", rollback="failed")])
    for fence, end, held_by in ((8, "failed", [1]), (9, "cancelled", [1]), (10, "succeeded", []), (11, "failed", [])):
        repair = Speaker(new_job(service, type="restart"))
        record([repair.claimed(type="restart", fence={"service:kimi-k25": fence})])
        assert list(JobLock.objects.filter(held=True).values_list("fence", flat=True)) == [fence]
        record([repair.finished(end)])
        assert list(JobLock.objects.filter(held=True).values_list("job__number", flat=True)) == held_by


def test_a_stop_is_let_in_on_a_kept_lock_and_leaves_it_kept_however_it_ends(told: tuple[Job, Speaker], service: Service) -> None:
    _, node = told
    record([node.claimed(), node.finished("failed", rollback="failed")])
    for fence, type, end, held_by in ((8, "stop", "succeeded", [1]), (9, "end-leftovers", "partial", [1]), (10, "restart", "failed", [1]),
                                      (11, "start", "succeeded", [])):
        job = Speaker(new_job(service, type=type))
        record([job.claimed(type=type, fence={"service:kimi-k25": fence}), job.finished(end)])
        assert list(JobLock.objects.filter(held=True).values_list("job__number", flat=True)) == held_by


def test_the_higher_fence_has_the_lock(told: tuple[Job, Speaker], service: Service) -> None:
    """The first job's end was not told yet, but the node gave the lock to the second: it knows."""
    _, node = told
    later = Speaker(new_job(service))
    record([node.claimed()])
    record([later.claimed(fence={"service:kimi-k25": 8})])
    assert list(JobLock.objects.filter(held=True).values_list("job__number", flat=True)) == [2]
    record([node.log(), node.finished()])
    assert list(JobLock.objects.filter(held=True).values_list("job__number", flat=True)) == [2]


def test_an_old_claim_that_comes_late_takes_nothing_away(told: tuple[Job, Speaker], service: Service) -> None:
    job, node = told
    later = Speaker(new_job(service))
    record([later.claimed(fence={"service:kimi-k25": 8})])
    record([node.claimed()])  # an IntegrityError inside, rolled back alone
    assert list(JobLock.objects.filter(held=True).values_list("job__number", flat=True)) == [2]
    assert fresh(job).state == "claimed"


def test_the_console_counts_on_from_the_command_lines_fence(told: tuple[Job, Speaker]) -> None:
    _, node = told
    record([node.claimed(fence={"service:kimi-k25": 4_000_000_000})])
    assert LockFence.objects.get().last == 4_000_000_000


# ---- the console's own conclusions ----


@pytest.mark.parametrize("state", [JobState.LOST, JobState.INTERRUPTED, JobState.CANCELLED])
def test_a_node_that_speaks_again_takes_back_what_its_silence_seemed_to_say(told: tuple[Job, Speaker], state: str) -> None:
    job, node = told
    record([node.claimed(), node.event(EventType.JOB_STARTED, pid=1, start_time=1),
            node.event(EventType.STEP_STARTED, step="plan", title="Plan", index=0, deadline_s=None)])
    Job.objects.update(state=state, reason="silence")
    record([node.log()])
    assert (fresh(job).state, fresh(job).reason) == ("running", "")


def test_a_cancelled_job_that_is_claimed_all_the_same_is_cancelling(told: tuple[Job, Speaker], operator: object, redis_client: redis.Redis) -> None:
    from dashboard import dispatch

    job, node = told
    assert dispatch.cancel(job, None).state == "cancelled"
    record([node.claimed()])
    assert fresh(job).state == "cancelling"


def test_a_job_of_the_command_line_gets_a_row_from_when_it_began(service: Service) -> None:
    node = Speaker()
    record([dataclasses.replace(node.claimed(type="integrity", by="root", locks=[], fence={}), at=1_700_000_000.0)])
    job = Job.objects.get()
    assert (str(job.pk), job.type, job.service, job.by, job.number) == (node.job, "integrity", service, None, 1)
    assert job.created_at.timestamp() == 1_700_000_000.0


def test_a_job_that_never_said_who_it_is_makes_no_row(service: Service) -> None:
    node = Speaker()
    node.claimed()
    done = record([node.log()])
    assert done.unknown == {node.job} and not Job.objects.exists()


# ---- what nodes may send ----


def line(**more: object) -> str:
    # one id for all: workers of pytest-xdist must collect tests of the same names
    return json.dumps({"job": "8c1f0f0e-6a0b-4c55-9a53-0c6f0d7a2b11", "seq": 1, "at": 1.0, "type": "step.log", "data": {}, **more})


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"job": 1}', line(job="../../etc"), line(seq=0), line(seq=2**40), line(at="soon"),
                                  line(at=10**400), line(seq=10**400),
                                  line(data="x"), "[" * 100_000])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse(text)


def test_text_that_no_database_takes_is_made_storable(told: tuple[Job, Speaker]) -> None:
    job, node = told
    record([node.claimed()])
    data = {"text": "a\x00b\ud800c", "n": float("nan"), "m": float("inf")}
    nasty = json.dumps({"job": str(job.pk), "seq": 2, "at": 1.0, "type": "step.log", "data": data})
    record([parse(nasty), parse(nasty.replace('"seq": 2', '"seq": 3').replace("Infinity", "1e999"))])
    assert JobEvent.objects.get(seq=2).data == {"text": "a\ufffdb?c", "n": None, "m": None}
    assert JobEvent.objects.get(seq=3).data["m"] is None


CANARIES = ["hf_CANARYcanaryCANARYcanary1234", "sk-canaryCANARYcanaryCANARY1234", "canary-bearer-CANARY-9876", "canaryUrlPassword77",
            "canaryNamedValue88", "canaryVllmKey99"]


def test_secrets_do_not_reach_the_database(told: tuple[Job, Speaker]) -> None:
    """S12, the second line: nodes redact at the source."""
    job, node = told
    said = [
        node.claimed(params={"hf_token": CANARIES[4]}),
        node.log(f"token {CANARIES[0]} and {CANARIES[1]}\nAuthorization: Bearer {CANARIES[2]}\nhttps://user:{CANARIES[3]}@host/simple\n"),
        node.event(EventType.FINDING, subject="x", level="note", title=f"see https://user:{CANARIES[3]}@host/", why=CANARIES[0], fix=""),
        node.log(f"args: {{'api_key': ['{CANARIES[5]}'], 'hf_token': '{CANARIES[4]}'}}\n"),
        node.event(EventType.PLAN_MADE, deep=[{"env": {"HF_TOKEN": CANARIES[4], "note": f"Bearer {CANARIES[2]}"}}]),
        node.finished("failed", reason=f"cannot read with {CANARIES[0]}",
                      error={"what": CANARIES[1], "why": "", "hint": "", "facts": {}, "kind": "x"}),
    ]
    record([parse(event.to_json()) for event in said])
    from django.db import connection

    with connection.cursor() as cursor:
        dump = []
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')
            dump.append(str(cursor.fetchall()))
    assert [canary for canary in CANARIES if canary in "".join(dump)] == []
    assert fresh(job).state == "failed"


def test_a_big_event_is_stored(told: tuple[Job, Speaker]) -> None:
    job, node = told
    said = [node.claimed(), node.event(EventType.INTEGRITY, changed=["x" * 100] * 10_000), node.log("y" * 65_536)]
    record([parse(event.to_json()) for event in said])
    assert seqs(job) == [1, 2, 3] and len(fresh(job).result["integrity"]["changed"]) == 10_000


# ---- the loop ----


@pytest.fixture
def running(redis_client: redis.Redis) -> Iterator[Recorder]:
    stop = threading.Event()
    one = Recorder(stop)
    yield one
    stop.set()


def turns(one: Recorder, client: redis.Redis, count: int = 2) -> None:
    one._due.clear()
    for _ in range(count):
        one.turn(client)
        one._due.clear()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BLOCK_MS", 20)


def stored(client: redis.Redis, job: Job) -> int:
    return int(client.hget("stored", str(job.pk)) or 0)


def test_a_batch_of_large_events_is_stored_in_portions_and_taken_out_of_redis_whole(
        told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    job, node = told
    monkeypatch.setattr(recorder, "PORTION_BYTES", 3000)
    portions: list[int] = []

    def counted(events: list[Event], *, node_of: dict[str, str]) -> recorder.Recorded:
        portions.append(len(events))
        return record(events, node_of=node_of)
    monkeypatch.setattr(recorder, "record", counted)
    node.claimed()
    for _ in range(5):
        node.log("x" * 1200)
    node.publish(redis_client)
    running.begin(redis_client)
    turns(running, redis_client)
    assert seqs(job) == [1, 2, 3, 4, 5, 6] and stored(redis_client, job) == 6 and max(portions) <= 3
    assert redis_client.xlen("events") == 0 and redis_client.xpending("events", "recorder")["pending"] == 0


def test_what_is_stored_is_told_and_taken_out_of_redis(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    node.claimed()
    node.log()
    node.finished()
    node.publish(redis_client)
    running.begin(redis_client)
    turns(running, redis_client)
    assert (seqs(job), stored(redis_client, job), redis_client.xlen("events")) == ([1, 2, 3], 3, 0)
    assert redis_client.xpending("events", "recorder")["pending"] == 0
    changes = [json.loads(fields[b"c"]) for _, fields in redis_client.xrange("changes")]
    assert changes[0] == {"id": str(job.pk), "job": str(job.pk), "number": 1, "type": "redeploy", "state": "succeeded"}


def test_a_recorder_that_died_before_storing_reads_again(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    node.claimed()
    node.log()
    node.publish(redis_client)
    recorder.ensure_group(redis_client)
    redis_client.xreadgroup(recorder.GROUP, recorder.CONSUMER, {"events": ">"})  # taken, never acknowledged
    running.begin(redis_client)
    assert seqs(job) == [1, 2] and redis_client.xpending("events", "recorder")["pending"] == 0


def test_a_gap_is_filled_from_the_jobs_own_stream(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    said = [node.claimed(), node.log(), node.log(), node.log()]
    node.publish(redis_client)
    redis_client.delete("events")
    redis_client.xadd("events", {"e": said[3].to_json()})
    running.begin(redis_client)
    turns(running, redis_client)
    assert seqs(job) == [1, 2, 3, 4]


def test_after_redis_was_emptied_the_node_sends_on(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    node.claimed()
    node.log()
    node.publish(redis_client)
    running.begin(redis_client)
    turns(running, redis_client)
    node.log()
    redis_client.flushall()  # the third event's first sending is lost with it
    turns(running, redis_client, 3)
    assert stored(redis_client, job) == 2
    node.finished()
    node.publish(redis_client)  # the companion: skips what is stored
    assert redis_client.xlen(streams.job_stream(node.job)) == 2
    turns(running, redis_client)
    assert seqs(job) == [1, 2, 3, 4] and fresh(job).state == "succeeded"


def test_nonsense_in_the_stream_is_left_out(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    redis_client.xadd("events", {"e": "{"})
    redis_client.xadd("events", {"x": "y"})
    node.claimed()
    node.publish(redis_client)
    running.begin(redis_client)
    turns(running, redis_client)
    assert seqs(job) == [1] and redis_client.xlen("events") == 0


def test_a_jobs_stream_is_trimmed_but_for_a_tail(told: tuple[Job, Speaker], running: Recorder, redis_client: redis.Redis) -> None:
    job, node = told
    node.claimed()
    for _ in range(999):
        node.log("x\n")
    node.publish(redis_client)
    running.begin(redis_client)
    turns(running, redis_client, 6)
    assert fresh(job).last_seq == 1000
    assert recorder.KEPT_BELOW_STORED <= redis_client.xlen(streams.job_stream(node.job)) < 600


def test_the_recorder_waits_for_a_redis_that_is_away(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setenv("ROUNDHOUSE_REDIS_URL", "redis://127.0.0.1:1/0")
    stop = threading.Event()
    thread = threading.Thread(target=Recorder(stop).run)
    thread.start()
    stop.wait(0.3)
    assert thread.is_alive()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
