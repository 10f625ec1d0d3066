"""What nodes say that a service has, as the console keeps it: complete where it is right, nothing strange where it is not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard import from_a_node, inventories
from dashboard.announcements import apply_announcement
from dashboard.models import Service
from ops.services import failures
from tests.dashboard.conftest import SERVICE

pytestmark = pytest.mark.django_db(transaction=True)

ENVIRONMENT: dict[str, Any] = {
    "release": "r1", "path": "/srv/a/releases/r1", "adopted": "/opt/vllm", "python": "3.12.1",
    "distributions": [{"name": "vllm", "version": "0.16.0", "installer": "uv", "requested": True, "size_bytes": 4_000_000_000,
                       "source": "not recorded"}],
    "duplicates": [{"name": "numpy", "version": "1.26", "installer": None, "requested": False, "size_bytes": None, "source": ""}],
    "problems": ["`numpy` is there twice"],
    "requirements": [{"package": "torch", "needs": "sympy>=1.13", "found": None, "kind": "missing", "marker": ""}],
    "cuda": [{"kind": "mixed", "level": "warning"}], "kernels": {"covered": {"12.0": "binary"}, "problem": None},
    "coupling": [{"level": "stop", "title": "t"}], "at": 5.0}
RELEASE: dict[str, Any] = {
    "name": "r1", "path": "/srv/a/releases/r1", "kind": "adopted", "version": "0.16.0", "built_at": 4.0, "size_bytes": None, "verified": True,
    "is_current": True, "is_last_good": False, "unfinished": False}
CHANGED: dict[str, Any] = {"since": 3.0, "release": "r0", "job": "j", "words": ["torch 2.9 -> 2.10"],
                           "differences": {"packages": {"torch": ["2.9", "2.10"]}}}
MODEL: list[dict[str, Any]] = [{"kind": "code", "level": "warning", "title": "auto_map", "why": "", "fix": ""}]
DIAGNOSIS: dict[str, Any] = {
    "fault": True, "line": 3, "lines": 9, "preflight": None, "text": "CUDA error", "diagnosis": "A GPU failed", "fix": "Restart it",
    "action_hint": "",
    "kind": "gpu", "rule": "generic", "state": "failed", "family": "cuda", "source": "log", "action": "restart",
    "context": [{"number": 3, "text": "CUDA error"}]}
FAILURE: dict[str, Any] = {
    "at": 6.0, "ended_at": 5.5, "release": "r1", "invocation": "8f", "exit_code": 0, "restarts": 2, "detail": "It ended without being asked to",
    "where": "journalctl --all _SYSTEMD_INVOCATION_ID=8f", "problem": "", "diagnosis": DIAGNOSIS,
    "kernel": {"problem": "the journal: it may not be read"}}
WARMUP: dict[str, Any] = {"at": 4.0, "release": "r1", "total_s": 81.5, "cache": "hit", "phases": {"load": 40.0, "capture": 12.5}}
UNIT: dict[str, Any] = {"name": "vllm.service", "scope": "system", "state": "failed", "sub": "auto-restart", "result": "exit-code", "restarts": 3,
                        "enabled": "enabled", "needs_reload": False, "launcher_installed": True, "problem": None,
                        "file": "/etc/systemd/system/vllm.service", "user": "vllm",
                        "restart": "always", "kill_mode": "mixed", "stop_limit_s": 90.0, "start_limit_s": None, "memory_max": None,
                        "notes": ["vLLM exits with code 0 when its engine dies"]}
LAUNCH: dict[str, Any] = {"mark": "ab12", "flags": ["--port", "8000"], "env": {"HF_TOKEN": "[redacted]", "VLLM_USE_V1": "1"},
                          "env_files": ["-/etc/default/vllm"], "secret_names": ["HF_TOKEN"], "pending": True}
WHOLE = {"environment": ENVIRONMENT, "releases": [RELEASE], "changed": CHANGED, "model": MODEL, "failures": [FAILURE], "warmups": [WARMUP],
         "unit": UNIT, "launch": LAUNCH}


def said(**inventory: Any) -> dict[str, Any]:
    return {"node": "practice", "practice": True, "facts": {}, "services": [{"record": SERVICE, "packages": {}, **inventory}], "channels": []}


def kept() -> dict[str, Any]:
    service = Service.objects.get()
    return {name: getattr(service, name) for name in WHOLE}


def test_what_a_node_tells_is_kept_as_it_is() -> None:
    apply_announcement(said(**WHOLE))
    assert kept() == WHOLE


def test_what_is_not_told_stays_as_it_was() -> None:
    apply_announcement(said(**WHOLE))
    apply_announcement(said())  # an older node
    apply_announcement(said(environment=None, releases=None, model=None, failures=None, launch=None))  # one that has not read it yet
    assert kept() == WHOLE
    apply_announcement(said(changed=None, releases=[], model=[], failures=[], unit=None))
    assert kept() == {**WHOLE, "releases": [], "changed": None, "model": [], "failures": [], "unit": None}


def test_the_same_again_is_not_written_again() -> None:
    apply_announcement(said(**WHOLE))
    with CaptureQueriesContext(connection) as queries:
        apply_announcement(said(**WHOLE))
    assert not [query["sql"] for query in queries if query["sql"].startswith("UPDATE") and '"environment" =' in query["sql"]]


@pytest.mark.parametrize("field", sorted(ENVIRONMENT))
@pytest.mark.parametrize("odd", [None, 7, "text", [], {}, [None, 1, "x", []], {"a": {"b": 1}}, True])
def test_a_part_of_another_form_is_left_out(field: str, odd: Any) -> None:
    found = inventories.environment({**ENVIRONMENT, field: odd})
    assert set(found) == set(ENVIRONMENT)
    assert {name: value for name, value in found.items() if name != field} == {name: value for name, value in ENVIRONMENT.items() if name != field}
    assert type(found[field]) in (type(ENVIRONMENT[field]), type(None))


def test_too_much_is_cut() -> None:
    many = {**ENVIRONMENT, "distributions": [{"name": f"p{n}", "version": "1" * 900} for n in range(5000)], "problems": ["x" * 9000] * 5000,
            "cuda": [{"why": "x" * 100_000}], "kernels": {"problem": "x" * 100_000}}
    found = inventories.environment(many)
    assert (len(found["distributions"]), len(found["problems"]), len(found["problems"][0])) == (2000, 500, 2000)
    assert (found["cuda"], found["kernels"], len(found["distributions"][0]["version"])) == ([], None, 200)
    huge = inventories.changed({"since": 1, "words": ["a"], "differences": {"x": "y" * 1_000_000}})
    assert huge == {"since": 1.0, "release": None, "job": None, "words": ["a"], "differences": None}


@pytest.mark.parametrize(("whole", "form"), [(FAILURE, inventories.failure), (WARMUP, inventories.warmup), (UNIT, inventories.unit),
                                             (LAUNCH, inventories.launch), (DIAGNOSIS, inventories.diagnosis)])
def test_a_part_of_a_failure_a_warmup_a_unit_or_of_settings_that_has_another_form_is_left_out(whole: dict[str, Any], form: Any) -> None:
    for field in whole:
        for odd in (None, 7, 2**80, [], {}, [None, 1, "x"], {"a": {"b": 1}}, True):
            found = form({**whole, field: odd})
            if found is None:  # without a word on whether there is a fault, it is no diagnosis
                assert field == "fault"
                continue
            assert {name: value for name, value in found.items() if name != field} == {n: value for n, value in whole.items() if n != field}
            json.dumps(found)


def test_the_newest_failures_and_warmups_are_kept_and_their_texts_cut() -> None:
    many = {"failures": [{**FAILURE, "at": n, "detail": "x" * 9000, "diagnosis": {**DIAGNOSIS, "text": "y" * 9000, "context": [
        {"number": n, "text": "z" * 9000} for n in range(90)]}} for n in range(50)], "warmups": [{**WARMUP, "at": n} for n in range(50)]}
    found = inventories.fields_of(many)
    assert [one["at"] for one in found["failures"]] == [one["at"] for one in found["warmups"]] == [float(n) for n in range(30, 50)]
    assert (len(found["failures"][0]["detail"]), len(found["failures"][0]["diagnosis"]["text"])) == (2000, 2000)
    assert len(json.dumps(found)) < 500_000


def test_a_page_knows_a_failure_by_the_same_key_as_the_nodes_telemetry() -> None:
    for told in ([], [FAILURE], [FAILURE, {**FAILURE, "at": 1700000000.1239996, "diagnosis": None}]):
        apply_announcement(said(failures=told))
        assert Service.objects.get().failure_key == failures.key(told)
    assert Service(failures={"x": 1}).failure_key == Service(failures=["x"]).failure_key == ""


def test_unknown_is_none_and_never_zero() -> None:
    assert inventories.failure({})["exit_code"] is None
    assert inventories.launch({})["pending"] is None
    assert inventories.distribution({"name": "a"})["size_bytes"] is None
    assert inventories.release({"name": "a"})["built_at"] is None
    assert inventories.environment({})["at"] is None


def test_random_json_never_stops_an_announcement() -> None:
    chance = random.Random(11)

    def value(depth: int) -> Any:
        kind = chance.randint(0, 8 if depth < 4 else 5)
        if kind < 6:
            return [None, True, -1, 2**80, "x\u2028\u202e", 1.5][kind]
        if kind == 6:
            return [value(depth + 1) for _ in range(chance.randint(0, 4))]
        return {name: value(depth + 1) for name in chance.sample([*ENVIRONMENT, *RELEASE, *CHANGED, *FAILURE, *WARMUP, *LAUNCH, "x"], 5)}

    for _ in range(200):
        apply_announcement(from_a_node.read(json.dumps(said(**{name: value(0) for name in WHOLE}))))
    now = kept()
    assert isinstance(now["releases"], list) and isinstance(now["model"], list)
