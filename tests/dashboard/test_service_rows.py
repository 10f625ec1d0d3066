"""What events about services mean for rows, and the one line that lists show of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboard import job_story
from dashboard.models import Job, Service
from dashboard.recorder import record
from ops.jobs.events import EventType
from ops.jobs.kinds import KINDS
from tests.dashboard.conftest import Speaker, fresh, new_job

pytestmark = pytest.mark.django_db(transaction=True)

PROCESS = {"pid": 41, "start_ticks": 541, "user": "vllm", "command": "VLLM::Worker", "gpus": [{"index": 0, "used_bytes": 1}], "own": True}
LEFT: dict[str, Any] = {"service": "kimi-k25", "processes": [PROCESS, {**PROCESS, "own": False}], "gpus": [{"index": 0}], "ports": [],
                        "shm": [{"path": "/dev/shm/psm_a", "size_bytes": 5}] * 3, "ipc": [], "problems": [], "running": False, "at": 1.0}
SETTINGS: dict[str, Any] = {"flags": {"before": ["--port", "1"], "after": ["--port", "2"]}, "files": ["flags.json"], "applies": "at the next start",
                            "env": [{"name": "HF_TOKEN", "change": "set", "secret": True, "before": "", "after": ""}]}


def ended(service: Service, type: str, *events: tuple[str, dict[str, Any]], params: dict[str, Any] | None = None, **finished: Any) -> Job:
    """A job of this type that said these events and then succeeded."""
    job = new_job(service, type=type, params=params or {})
    node = Speaker(job)
    done = record([node.claimed(type=type, fence={}, locks=[]), *(node.event(name, **data) for name, data in events), node.finished(**finished)])
    assert not done.gaps
    return fresh(job)


def test_every_kind_of_job_has_a_title_and_words(service: Service) -> None:
    assert set(job_story.TITLES) == set(job_story.TYPE_WORDS) == set(KINDS)
    assert job_story.title(new_job(service, type="switch", params={"to": "glm-5"})) == "Switch kimi-k25 to glm-5"


@pytest.mark.parametrize(("type", "events", "params", "line"), [
    ("leftovers", [(EventType.LEFTOVERS, LEFT)], {}, "1 GPU is not free, 1 process that can be ended, 1 process of others, 3 files in shared memory"),
    ("leftovers", [(EventType.LEFTOVERS, {**LEFT, "processes": [], "gpus": [], "shm": []})], {}, "nothing is left over"),
    ("leftovers", [(EventType.LEFTOVERS, {"problems": ["/proc could not be read"]})], {}, "not wholly known"),
    ("settings-set", [(EventType.SETTINGS_CHANGED, SETTINGS)], {}, "flags and 1 variable changed, for the next start"),
    ("settings-set", [(EventType.SETTINGS_CHANGED, {"flags": {"before": [], "after": []}, "env": []})], {}, "nothing was changed"),
    ("diagnose", [(EventType.DIAGNOSIS, {"fault": True, "text": "CUDA error", "diagnosis": "A GPU failed"})], {}, "A GPU failed"),
    ("diagnose", [(EventType.DIAGNOSIS, {"fault": True, "text": "CUDA error", "diagnosis": ""})], {}, "CUDA error"),
    ("diagnose", [(EventType.DIAGNOSIS, {"fault": False, "state": "serving"})], {}, "no fault: it serves"),
    ("smoke-set", [], {"tests": [{}], "without": ["code", "tool"]}, "1 own question, 2 built-in left out"),
    ("switch", [], {"to": "glm-5"}, "on glm-5, down 1:23 min"),
    ("start", [(EventType.WARMUP_DONE, {"total_s": 81.5, "phases": []})], {}, "answers after 1:22 min"),
    ("stop", [(EventType.STEP_FINISHED, {"step": "stop", "outcome": "done", "duration_s": 1.0, "note": "stopped in 4 s"})], {}, "stopped in 4 s"),
])
def test_a_list_says_in_one_line_what_came_out(service: Service, type: str, events: Any, params: dict[str, Any], line: str) -> None:
    job = ended(service, type, *events, params=params, downtime_s=83.0 if type == "switch" else None)
    assert job_story.result_line(job) == line


def test_a_row_keeps_counts_and_the_event_what_they_are_of(service: Service) -> None:
    job = ended(service, "stop", (EventType.LEFTOVERS, LEFT), (EventType.SETTINGS_CHANGED, SETTINGS))
    assert job.result["leftovers"] == {"service": "kimi-k25", "running": False, "own": 1, "others": 1, "gpus": 1, "ports": 0, "shm": 3, "ipc": 0,
                                       "problems": 0}
    assert job.result["settings"] == {"flags": True, "env": 1, "applies": "at the next start"}
    assert "VLLM::Worker" not in json.dumps(job.result)


def test_a_crash_in_a_restart_loop_begins_the_phases_anew_and_a_stall_does_not(told: tuple[Job, Speaker]) -> None:
    job, node = told
    phase = {"title": "Load", "state": "running", "took_s": None, "detail": "", "done": None, "total": None}
    record([node.claimed(), node.event(EventType.WARMUP_PHASE, phase="load", **phase),
            node.event(EventType.WARMUP_TROUBLE, kind="stall", text="Nothing moves", diagnosis=None, **{"try": 1})])
    assert [one["phase"] for one in fresh(job).result["warmup"]["phases"]] == ["load"]
    record([node.event(EventType.WARMUP_TROUBLE, kind="crash", text="It crashed", diagnosis={"fault": True}, **{"try": 1})])
    warmup = fresh(job).result["warmup"]
    assert warmup["phases"] == [] and [(one["kind"], one["try"]) for one in warmup["troubles"]] == [("stall", 1), ("crash", 1)]
    record([node.event(EventType.WARMUP_DONE, total_s=5.0, phases=[], cache="hit")])
    assert len(fresh(job).result["warmup"]["troubles"]) == 2


def test_a_smoke_test_keeps_what_was_asked_and_answered(told: tuple[Job, Speaker]) -> None:
    job, node = told
    said = {"name": "fact", "title": "A fact", "outcome": "passed", "summary": "", "took_s": 1.0, "detail": "", "kind": "factual",
            "prompt": "What is the capital of France?", "answer": "x" * 9000, "reasoning": None, "cut": True, "finish_reason": "stop"}
    record([node.claimed(), node.event(EventType.SMOKE_RESULT, **said)])
    kept, = fresh(job).result["smoke"]
    assert kept == {**said, "answer": "x" * 4000}


@pytest.mark.parametrize("type", [EventType.LEFTOVERS, EventType.SETTINGS_CHANGED, EventType.WARMUP_TROUBLE, EventType.SMOKE_RESULT,
                                  EventType.DIAGNOSIS])
@pytest.mark.parametrize("odd", [{}, {"processes": 7, "flags": [], "env": {}, "kind": 1, "text": None, "service": []},
                                 {"processes": [None, 1, {"own": "yes"}], "shm": {"a": 1}, "problems": "x", "flags": {"before": None}}])
def test_what_a_node_of_another_version_says_harms_nothing(told: tuple[Job, Speaker], type: str, odd: dict[str, Any]) -> None:
    job, node = told
    record([node.claimed(), node.event(type, **odd), node.finished()])
    assert fresh(job).is_final
    for kind in ("leftovers", "diagnose", "settings-set", "start", "switch"):
        Job.objects.filter(pk=job.pk).update(type=kind)
        assert isinstance(job_story.result_line(fresh(job)), str)
