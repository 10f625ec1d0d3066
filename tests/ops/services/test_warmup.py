"""Warmups of real processes that log as vLLM does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ops.gpus.source import GpuReading, GpuSnapshot
from ops.jobs.errors import Cancelled, OpsError, Timeout
from ops.records import ServiceRecord
from ops.services import estimate, health, launch, run_log, starting, state, warmup
from ops.services.log_follower import journal_time, shown
from ops.services.milestones import Parser
from ops.services.process import ProcessManager
from ops.services.status import ServiceState, ServiceStatus
from tests.ops.services.conftest import Job, wait_for

Make = Callable[..., ServiceRecord]

START = [
    [0.05, "(APIServer pid=1) INFO 11-29 15:46:31 [u.py:1] vLLM API server version 0.16.0\n"],
    [0.05, "(Worker_TP0 pid=3) INFO 11-29 15:46:32 [g.py:1] Starting to load model /models/tiny...\n"],
    [0.05, "\rLoading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.0s/it]"],
    [0.05, "\rLoading safetensors checkpoint shards: 100% Completed | 4/4 [00:04<00:00,  1.0s/it]\n"],
    [0.02, "(Worker_TP0 pid=3) INFO 11-29 15:46:36 [g.py:1] Model loading took 7.00 GiB memory and 4.0 seconds\n"],
    [0.02, "(Worker_TP0 pid=3) INFO 11-29 15:46:37 [b.py:1] Directly load the compiled graph(s) for dynamic shape from the cache, took 1.0 s\n"],
    [0.02, "(Worker_TP0 pid=3) INFO 11-29 15:46:38 [w.py:1] Available KV cache memory: 10.00 GiB\n"],
    [0.02, "(EngineCore_DP0 pid=2) INFO 11-29 15:46:39 [c.py:1] init engine (profile, create kv cache, warmup model) took 3.00 seconds\n"],
    [0.02, "INFO:     Application startup complete.\n"],
]
CRASH = [
    *START[:2],
    [0.05, "(Worker_TP0 pid=3) ERROR 11-29 15:46:33 [m.py:1] WorkerProc failed to start.\n"
           "(Worker_TP0 pid=3) ERROR 11-29 15:46:33 [m.py:1] Traceback (most recent call last):\n"
           "(Worker_TP0 pid=3) ERROR 11-29 15:46:33 [m.py:1]   File \"/e/lib/python3.12/site-packages/flashinfer/jit/env.py\", line 1, in <module>\n"
           "(Worker_TP0 pid=3) ERROR 11-29 15:46:33 [m.py:1] RuntimeError: "
           "flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).\n"
           "(EngineCore_DP0 pid=2) ERROR 11-29 15:46:34 [c.py:1] EngineCore failed to start.\n"
           "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"],
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes, but no pauses that only people or big servers need."""
    monkeypatch.setattr(starting, "_LOOK_S", 0.1)
    monkeypatch.setattr(warmup, "_LAST_WORDS_S", 0.2)
    monkeypatch.setattr(warmup, "_JOURNAL_LIMIT_S", 0.4)


class Gpus:
    def __init__(self, utilization: float | None) -> None:
        self.utilization = utilization

    def read(self) -> GpuSnapshot:
        return GpuSnapshot(gpus=[GpuReading(index=0, uuid="u", name="GPU", utilization=self.utilization)])


def watched(job: Job, record: ServiceRecord, **named: Any) -> warmup.WarmupResult:
    starting.start(job.context, record)
    return warmup.watch(job.context, record, source=Gpus(50.0), **named)


def test_a_warmup_is_told_phase_by_phase(make_record: Make, job: Job) -> None:
    record = make_record({"log": START, "serve": True})
    result = watched(job, record)
    assert [one["phase"] for one in result.phases] == ["start", "load", "compile", "kv_cache", "listening", "healthy"]
    assert all(one["state"] == "done" and one["took_s"] is not None for one in result.phases)
    assert sum(one["took_s"] for one in result.phases) == pytest.approx(result.total_s, abs=0.01)
    assert result.cache == "hit" and result.release == record.current.resolve().name
    told = [(one["phase"], one["state"]) for one in job.of("warmup.phase")]
    assert told[0] == ("start", "running") and told[-1] == ("healthy", "done")
    assert told.index(("load", "running")) < told.index(("load", "done")) < told.index(("compile", "running"))
    [done] = job.of("warmup.done")
    assert done["total_s"] == pytest.approx(result.total_s, abs=0.01) and done["cache"] == "hit"


def test_the_log_comes_as_events_in_order_and_whole(make_record: Make, job: Job) -> None:
    record = make_record({"log": START, "serve": True})
    watched(job, record)
    text = "".join(one["text"] for one in job.of("step.log"))
    assert "Starting to load model" in text and "4/4" in text and text.index("vLLM API server version") < text.index("Application startup complete")
    assert "1/4" not in text or text.index("1/4") < text.index("4/4")
    assert all(one["dropped_bytes"] == 0 and len(one["text"].encode()) <= 65536 for one in job.of("step.log"))


def test_secrets_of_its_environment_do_not_reach_the_events(make_record: Make, job: Job) -> None:
    plan = {"log": [*START, [0, "api_key CANARY-one and hf_CANARYabcdefghijklmnop\n"]], "serve": True}
    record = make_record(env={"FAKE_VLLM": json.dumps(plan), "VLLM_API_KEY": "CANARY-one"})
    watched(job, record)
    assert "CANARY" not in json.dumps([data for _, data in job.events])


def test_it_is_remembered_and_the_next_one_has_an_estimate(make_record: Make, job: Job) -> None:
    record = make_record({"log": START, "serve": True})
    assert state.warmups(record) == []
    watched(job, record)
    [known] = state.warmups(record)
    assert known["cache"] == "hit" and set(known["phases"]) == {"start", "load", "compile", "kv_cache", "listening", "healthy"}
    assert all(one["estimate_s"] is None for one in job.of("warmup.phase"))
    assert "no estimate yet" in job.of("step.progress")[0]["text"]
    ProcessManager(record).kill()
    wait_for(lambda: not ProcessManager(record).pids())
    job.events.clear()
    watched(job, record)
    assert job.of("warmup.phase")[0]["estimate_s"] is not None
    assert "left" in job.of("step.progress")[0]["text"]
    assert len(state.warmups(record)) == 2


def test_progress_is_told_at_most_every_half_second(make_record: Make, job: Job) -> None:
    record = make_record({"log": [*START[:2], *[[0.05, f"\rLoading safetensors checkpoint shards:  1% Completed | {n}/40 [x]"] for n in range(1, 31)],
                                  *START[4:]], "serve": True})
    result = watched(job, record)
    assert 2 <= len(job.of("step.progress")) <= result.total_s / 0.5 + 1
    assert any("shards" in one["text"] for one in job.of("step.progress"))


def test_a_crash_ends_the_watch_with_its_root_cause(make_record: Make, job: Job) -> None:
    record = make_record({"log": CRASH, "exit": 1})
    with pytest.raises(warmup.ServiceCrashed, match="flashinfer-cubin version") as caught:
        watched(job, record)
    assert 'flashinfer-cubin==0.6.4"' in caught.value.hint and "/e " in caught.value.hint and "exit code 1" in caught.value.why
    [told] = job.of("diagnosis")
    assert (told["fault"], told["kind"], told["rule"]) == (True, "flashinfer-cubin-mismatch", "flashinfer-cubin")
    assert (told["exit_code"], told["phase"]) == (1, "load")
    assert told["context"] and set(told) >= {"line", "text", "diagnosis", "fix", "lines"}
    assert "Engine core initialization failed" in "".join(one["text"] for one in job.of("step.log")), "the rest of the log was read"
    assert state.warmups(record) == []


def test_an_end_with_code_0_and_an_empty_log_is_a_crash_too(make_record: Make, job: Job) -> None:
    record = make_record({"log": [[0.3, "hello\n"]], "exit": 0})
    with pytest.raises(warmup.ServiceCrashed, match="with exit code 0"):
        watched(job, record)
    assert job.of("diagnosis")[0]["fault"] is False


def test_an_engine_that_failed_below_a_main_process_that_waits_is_a_crash(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "_FAILED_LIMIT_S", 0.3)
    with pytest.raises(warmup.ServiceCrashed, match="flashinfer-cubin") as caught:
        watched(job, make_record({"log": CRASH, "hang": True}))
    assert "still waits" in caught.value.why


def test_a_silent_start_with_idle_gpus_is_a_stall(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": START[:3], "hang": True})
    starting.start(job.context, record)
    monkeypatch.setattr(warmup._Watch, "STALL_LOOK_S", 0.1)
    with pytest.raises(OpsError, match="hangs in phase `Load weights`, at 1 of 4") as caught:
        warmup.watch(job.context, record, source=Gpus(0.0), stall_s=0.8)
    assert caught.value.kind == "stalled" and "GPUs are idle" in caught.value.why


def test_silence_with_busy_gpus_is_no_stall(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": [*START[:-1], [2.0, START[-1][1]]], "serve": True})
    starting.start(job.context, record)
    monkeypatch.setattr(warmup._Watch, "STALL_LOOK_S", 0.1)
    assert warmup.watch(job.context, record, source=Gpus(90.0), stall_s=0.5).total_s > 2


def test_without_gpu_readings_processor_time_tells_a_stall(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": START[:3], "hang": True})
    starting.start(job.context, record)
    monkeypatch.setattr(warmup._Watch, "STALL_LOOK_S", 0.1)
    with pytest.raises(OpsError, match="hangs in phase") as caught:
        warmup.watch(job.context, record, source=Gpus(None), stall_s=0.5)
    assert "processes are idle" in caught.value.why


def test_a_deadline_ends_the_watch(make_record: Make, job: Job) -> None:
    with pytest.raises(Timeout, match="did not answer in time"):
        watched(job, make_record({"log": START[:2], "hang": True}), deadline_s=0.5)


def test_a_cancel_ends_the_watch_and_leaves_the_service(make_record: Make, job: Job) -> None:
    record = make_record({"log": START[:2], "hang": True})
    threading.Timer(1.0, lambda: setattr(job, "cancel", True)).start()
    with pytest.raises(Cancelled):
        watched(job, record)
    assert ProcessManager(record).status().state == "starting"


def test_healthy_but_not_answering_is_an_error(make_record: Make, job: Job) -> None:
    with pytest.raises(OpsError, match="does not answer a chat request for model `tiny`") as caught:
        watched(job, make_record({"log": START, "serve": True, "chat": 404}))
    assert "404" in caught.value.why and "/v1/models" in caught.value.hint


def test_another_program_that_answers_at_its_port_is_not_the_service(make_record: Make, job: Job) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    record = make_record({"hang": True})
    with ThreadingHTTPServer(("127.0.0.1", health.port_of(record.base_url)), Answers) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.05,))
        thread.start()
        try:
            launch.write(record)
            manager = ProcessManager(record)
            manager.start()
            status = manager.status()
            assert status.state == "starting" and f"answered by something else: pid {os.getpid()}" in status.detail
            with pytest.raises(OpsError, match=f"is answered by something else: pid {os.getpid()}"):
                warmup.watch(job.context, record)
        finally:
            other.shutdown()
            thread.join()


def test_a_service_that_does_not_run_cannot_be_watched(make_record: Make, job: Job) -> None:
    with pytest.raises(OpsError, match="does not run"):
        warmup.watch(job.context, make_record(), source=Gpus(0.0))


def test_a_stop_by_somebody_else_is_no_crash(make_record: Make, job: Job) -> None:
    record = make_record({"log": START[:2], "hang": True})
    starting.start(job.context, record)
    threading.Timer(0.5, ProcessManager(record).terminate).start()
    with pytest.raises(OpsError, match="was stopped while it was starting") as caught:
        warmup.watch(job.context, record, source=Gpus(0.0))
    assert caught.value.kind == "stopped" and job.of("diagnosis") == []


def test_a_service_that_is_killed_while_it_starts_is_said_so(make_record: Make, job: Job) -> None:
    record = make_record({"log": START[:2], "hang": True})
    starting.start(job.context, record)
    pid = ProcessManager(record).status().pid
    assert pid is not None
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(warmup.ServiceCrashed, match="SIGKILL"):
        warmup.watch(job.context, record, source=Gpus(0.0))


def test_a_service_that_dies_without_a_word_on_a_full_disk_is_said_so(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": START[:2], "hang": True})
    starting.start(job.context, record)
    pid = ProcessManager(record).status().pid
    assert pid is not None
    monkeypatch.setattr(warmup.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 0))  # type: ignore[attr-defined]
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(warmup.ServiceCrashed, match=r"the disk below .* is full"):
        warmup.watch(job.context, record, source=Gpus(0.0))


def test_a_flood_of_log_is_cut_with_a_mark(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup.LogFollower, "RATE", 100_000)  # bytes a second; the true one is ten times that
    flood = "x" * 1000 + "\n"
    record = make_record({"log": [[0.1, flood, 5000], *START], "serve": True})
    watched(job, record)
    events = job.of("step.log")
    sent, dropped = sum(len(one["text"]) for one in events), sum(one["dropped_bytes"] for one in events)
    assert dropped > 500_000 and sent + dropped >= 5_005_000, "what is left out is counted"
    assert [one["phase"] for one in job.of("warmup.done")[0]["phases"]][1] == "load", "milestones in what was left out are seen"


def test_a_bar_drawn_over_its_process_prefix_is_one_line_in_the_log(make_record: Make, job: Job) -> None:
    bars = [[0.0, f"(Worker_TP0 pid=3) \rLoading safetensors checkpoint shards: {n * 25:3d}% Completed | {n}/4 [00:01<00:0]", 1] for n in range(1, 5)]
    watched(job, make_record({"log": [*START[:2], *bars, [0.0, "\n"], *START[4:]], "serve": True}))
    text = "".join(one["text"] for one in job.of("step.log"))
    assert "(Worker_TP0 pid=3) \n" not in text
    assert 1 <= text.count("Loading safetensors") < 4


def known(cache: str, **phases: float) -> dict[str, Any]:
    return {"cache": cache, "phases": phases, "total_s": sum(phases.values())}


def test_estimates_come_from_warmups_with_the_same_cache_state() -> None:
    history = [known("miss", start=10, load=100, compile=200, healthy=10), known("hit", start=10, load=100, compile=20, healthy=10),
               known("hit", start=12, load=120, compile=30, healthy=10)]
    parser = Parser()
    assert warmup.estimate_s(parser, 0, []) is None
    assert warmup.estimate_s(parser, 5, history) == pytest.approx(11 + 110 + 25 + 10), "the last one's state, as long as it is not known"
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Starting to load model /m...", 11)
    parser.feed("Loading safetensors checkpoint shards:  50% Completed | 2/4 [x]", 57)
    left = (46 + 55) / 2 - 4  # half of the shards after 46 s: what is left goes by this run's speed and the usual one in equal parts
    assert warmup.estimate_s(parser, 61, history) == pytest.approx(61 + left + 25 + 10)
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Cache the graph of compile range (1, 8192) for later use", 110)
    assert warmup.estimate_s(parser, 120, history) == pytest.approx(120 + 190 + 10)
    assert warmup.estimate_s(parser, 120, history[1:]) is None, "no warmup with a cold cache is known"


@pytest.mark.parametrize(("began", "pace"), [(110, 1.0), (121, 1.1 ** 0.25), (99, 0.9 ** 0.25), (1000, 1.25 ** 0.25)])
def test_a_start_that_is_slower_than_usual_is_expected_to_stay_a_little_slower(began: float, pace: float) -> None:
    parser = Parser()
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Starting to load model /m...", 10)
    parser.feed("(Worker pid=1) INFO 03-02 04:11:08 [x.py:1] Cache the graph of compile range (1, 8192) for later use", began)
    history = [known("miss", start=10, load=100, compile=200, healthy=10)]
    assert warmup.estimate_s(parser, began, history) == pytest.approx(began + pace * 210)


def test_a_watch_that_comes_late_takes_the_times_from_the_log(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"serve": True})
    starting.start(job.context, record)
    manager = ProcessManager(record)
    began = time.time() - 600
    lines = [(5, START[1][1]), (65, START[4][1]), (70, START[5][1]), (80, START[6][1]), (85, START[7][1]), (90, START[8][1])]
    log = manager.log_path()
    assert log is not None
    with log.open("a") as file:
        for after, text in lines:
            file.write(text.replace("11-29 15:46", time.strftime("%m-%d %H:%M", time.localtime(began + after))).replace(
                text[text.index("15:46:") + 6 : text.index("15:46:") + 8] + " [", time.strftime("%S", time.localtime(began + after)) + " [", 1)
                if "15:46:" in text else text)
    monkeypatch.setattr(warmup, "age_s", lambda status: 600.0)
    result = warmup.watch(job.context, record, source=Gpus(1.0))
    took = {one["phase"]: one["took_s"] for one in result.phases}
    assert took["start"] == pytest.approx(5, abs=1.1) and took["load"] == pytest.approx(60, abs=1.1)
    assert result.total_s == pytest.approx(90, abs=6), "not the ten minutes until somebody looked"
    assert state.warmups(record) == [], "only what was seen from the beginning is remembered"


# ---- a manager that starts a crashed service again ----


class Restarting(ProcessManager):
    """Starts a service that ended by itself again, as systemd does with Restart=always, `limit` times; its log is not the file of one run."""

    def __init__(self, record: ServiceRecord, limit: int = 10) -> None:
        super().__init__(record)
        self.left, self.over = limit, threading.Event()
        self.logs: dict[str, Path] = {}
        self.lock = threading.RLock()
        self.thread = threading.Thread(target=self._keep_it_running)

    def _keep_it_running(self) -> None:
        while not self.over.wait(0.05):
            if super().status().state == ServiceState.FAILED and self.left:
                self.over.wait(0.6)
                with self.lock:
                    super().start()
                self.left -= 1

    def status(self) -> ServiceStatus:
        with self.lock:  # no start is seen half done
            found = super().status()
        return replace(found, restarting=found.state == ServiceState.FAILED and self.left > 0)

    def log_path(self) -> None:  # type: ignore[override]
        return None

    def run_log(self) -> run_log.FileLog | None:
        with self.lock:
            path, known = super().log_path(), self._known()
        if path is None or known is None:
            return None
        self.logs[known["invocation"]] = path
        return run_log.FileLog(path)

    def log_lines(self, invocation: str = "") -> Iterator[str]:
        yield from run_log.lines(self.logs[invocation])


Watched = Callable[..., warmup.WarmupResult]


@pytest.fixture
def restarted(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    managers: list[Restarting] = []

    def watch(*runs: dict[str, Any], limit: int = 10) -> warmup.WarmupResult:
        record = make_record({"runs": list(runs)})
        managers.append(Restarting(record, limit))
        monkeypatch.setattr(warmup, "manager_for", lambda record: managers[0])
        launch.write(record)
        managers[0].start()
        managers[0].thread.start()
        return warmup.watch(job.context, record, source=Gpus(50.0))

    yield watch
    for manager in managers:
        manager.over.set()
        manager.thread.join()


OTHER = [*START[:2], [0.05, "(APIServer pid=1) OSError: [Errno 98] Address already in use\n"]]


def test_a_crash_is_told_and_the_next_try_is_watched(restarted: Watched, job: Job) -> None:
    result = restarted({"log": CRASH, "exit": 1}, {"log": START, "serve": True})
    assert result.tries == 2
    [trouble] = job.of("warmup.trouble")
    assert (trouble["kind"], trouble["try"], trouble["diagnosis"]["rule"]) == ("crash", 1, "flashinfer-cubin")
    assert "starts it again" in trouble["text"] and job.of("diagnosis") == []
    told = [(one["try"], one["phase"], one["state"]) for one in job.of("warmup.phase")]
    assert told.index((1, "load", "running")) < told.index((2, "start", "running")) < told.index((2, "healthy", "done"))
    [done] = job.of("warmup.done")
    assert done["try"] == 2 and done["total_s"] == pytest.approx(sum(one["took_s"] for one in done["phases"]), abs=0.01), "of this try alone"


def test_the_second_crash_for_the_same_reason_is_a_crash_loop(restarted: Watched, job: Job) -> None:
    with pytest.raises(warmup.ServiceCrashed, match="flashinfer-cubin version") as caught:
        restarted({"log": CRASH, "exit": 1}, {"log": OTHER, "exit": 1}, {"log": [*CRASH[:2], [0, CRASH[2][1].replace("pid=3", "pid=77")]], "exit": 1})
    assert "crash loop" in caught.value.why and caught.value.facts["loop"] and caught.value.facts["tries"] == 3
    told = [(one["try"], one["diagnosis"]["rule"]) for one in job.of("warmup.trouble")]
    assert told == [(1, "flashinfer-cubin"), (2, "port-in-use")], "another reason in between is told, and is no loop"
    assert [one["rule"] for one in job.of("diagnosis")] == ["flashinfer-cubin"]


def test_a_manager_that_gives_up_is_said_to(restarted: Watched, job: Job) -> None:
    with pytest.raises(warmup.ServiceCrashed, match="Address already in use") as caught:
        restarted({"log": CRASH, "exit": 1}, {"log": OTHER, "exit": 1}, limit=1)
    assert "starts it no more" in caught.value.why and not caught.value.facts["loop"]


# ---- an address that does not answer as vLLM does ----


@pytest.mark.parametrize(("plan", "why"), [({"body": "<html>Welcome</html>"}, "Welcome"), ({"slow": 3}, "no answer within"),
                                           ({"dribble": "head"}, "no answer within"), ({"dribble": "body"}, "did not end within"),
                                           ({"health": 503}, "503")])
def test_a_health_endpoint_that_says_nothing_sensible_ends_the_watch(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch,
                                                                    plan: dict[str, Any], why: str) -> None:
    monkeypatch.setattr(warmup, "_SILENT_LIMIT_S", 0.3)
    monkeypatch.setattr(warmup._Watch, "HEALTH_S", 0.4)
    with pytest.raises(OpsError, match=r"has started, but .*/health` gives no answer of a vLLM server") as caught:
        watched(job, make_record({"log": START, "serve": True, **plan}))
    assert caught.value.kind == "no_answer" and why in caught.value.why


# ---- stalls ----


def test_idle_gpus_and_busy_processors_are_told_and_watched_further(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": [*START[:2], [2.2, START[4][1]], *START[5:]], "serve": True})
    starting.start(job.context, record)
    monkeypatch.setattr(warmup._Watch, "STALL_LOOK_S", 0.1)
    monkeypatch.setattr(warmup._Watch, "_other_work", lambda self: "processors")
    warmup.watch(job.context, record, source=Gpus(0.0), stall_s=1.0)
    [told] = job.of("warmup.trouble")
    assert told["kind"] == "stall" and "GPUs are idle" in told["text"] and "watched further" in told["text"]


def test_what_a_process_does_is_seen(make_record: Make, job: Job) -> None:
    record = make_record({"hang": True})
    manager = ProcessManager(record)
    launch.write(record)
    manager.start()
    watch = warmup._Watch(job.context, record, manager, None, 1.0)
    wait_for(lambda: watch._other_work() == "")  # once its interpreter has read what it needs
    manager.pids = lambda: {os.getpid()}  # type: ignore[method-assign]
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert watch._other_work() == "processors"
    finally:
        over.set()
        thread.join()


# ---- clocks, and the journal's form ----


def test_a_wall_clock_that_jumps_changes_no_duration(make_record: Make, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record({"log": START, "serve": True})
    starting.start(job.context, record)
    wall, began = time.time, time.monotonic()
    monkeypatch.setattr(warmup.time, "time", lambda: wall() + (86400 if time.monotonic() - began > 0.3 else -86400))
    result = warmup.watch(job.context, record, source=Gpus(1.0))
    assert 0 < result.total_s < 30 and all(one["took_s"] >= 0 for one in result.phases)


ENTRY = "2026-11-29T23:44:38.250000+0100 gpu1 vllm[7]: (Worker pid=9) INFO 11-29 23:44:38 [g.py:1] Starting to load model /m..."


def test_entries_of_the_journal_are_shown_without_their_head() -> None:
    assert shown(ENTRY).startswith("(Worker pid=9) INFO")
    assert shown("2026-11-29T23:44:38+0000 gpu1 systemd[1]: vllm.service: Main process exited") == "systemd: vllm.service: Main process exited"
    assert shown("(Worker pid=9) x") == "(Worker pid=9) x"
    assert journal_time(ENTRY) == 1795992278.25 and journal_time("plain") is None


# ---- estimates ----


def test_the_last_warmups_are_what_a_warmup_is_compared_with(make_record: Make, job: Job) -> None:
    record = make_record({"log": START, "serve": True})
    for total in (30.0, 50.0, 41.0):
        state.add_warmup(record, {"at": 1.0, "release": "r", "total_s": total, "cache": "hit", "phases": {"start": 10.0, "load": total - 10}})
    state.add_warmup(record, {"at": 1.0, "release": "r", "total_s": 400.0, "cache": "miss", "phases": {"start": 10.0, "load": 390.0}})
    watched(job, record)
    [done] = job.of("warmup.done")
    assert done["compared"] == {"count": 3, "median_s": 41.0, "last_s": 41.0}, "those with a warm cache"
    usual = {one["phase"]: one["usual_s"] for one in done["phases"]}
    assert usual["load"] == 31.0 and usual["compile"] is None


def test_a_release_that_never_started_here_is_likely_to_compile() -> None:
    history = [{"release": release, "cache": cache, "phases": {}} for release, cache in (("a", "hit"), ("b", "miss"), ("b", "hit"), ("b", "hit"))]
    assert estimate.expected_cache(history, "b") == "hit" and estimate.expected_cache(history, "c") == "miss"
    assert estimate.expected_cache(history[:1], "c") == "hit" and estimate.expected_cache([], "c") == "unknown"


def test_several_progress_bars_of_one_phase_count_together() -> None:
    parser = Parser()
    parser.feed("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|x| 50/50 [x]", 10)
    history = [{**known("unknown", start=10, capture=20), "bars": {"capture": 2}}]
    parser.feed("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|x| 50/50 [x]", 10)
    assert estimate.estimate_s(parser, 20, history) == pytest.approx(20 + 0, abs=6)
    parser.feed("Capturing CUDA graphs (decode, FULL):  50%|x| 25/50 [x]", 25)
    assert (parser.current.bars, parser.current.done) == (2, 25)
    left = (15 + 20 / 4) / 4  # three quarters in 15 s, usually 20 s in all
    assert estimate.estimate_s(parser, 25, history) == pytest.approx(25 + left)
