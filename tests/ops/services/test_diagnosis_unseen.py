"""Further synthetic logs (tests/fixtures/logs/unseen): other versions, layouts, words and causes than those of test_diagnosis.py, and healthy ones
that look alarming. `also_accept_kinds` of a case are kinds that are right too where one fact has several names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ops.services.diagnosis import ACTIONS, Diagnosis, Rule, diagnose, diagnose_file, rules

FOLDER = Path(__file__).resolve().parents[2] / "fixtures/logs/unseen"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())["cases"]
FAULTY = [case for case in CASES if case["fault"]]
HEALTHY = [case for case in CASES if not case["fault"]]
WORDS: list[dict[str, str]] = json.loads((FOLDER / "words.json").read_text())["lines"]
FAMILIES = sorted({rule.family for rule in rules()})


@cache
def answer(name: str, without: str = "") -> Diagnosis:
    known: list[Rule] | None = None if not without else [rule for rule in rules() if without not in {"everything", rule.family}]
    return diagnose_file(FOLDER / name, known=known)


def accepted(case: dict[str, Any]) -> set[int]:
    return {case["decisive_line"], *case["equivalent_lines"], *case["also_accept_lines"]}


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case["id"])
def test_the_decisive_line_and_its_kind_are_named(case: dict[str, Any]) -> None:
    found = answer(case["file"])
    assert found.fault and found.line in accepted(case), f"{found.line}: {found.text}"
    assert found.kind in {case["kind"], *case.get("also_accept_kinds", [])}
    assert found.diagnosis and found.fix and found.rule and "{" not in found.diagnosis + found.fix + found.action_hint


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case["id"])
def test_nothing_is_found_in_healthy_logs_with_alarming_lines(case: dict[str, Any]) -> None:
    found = answer(case["file"])
    assert not found.fault, f"{found.rule}, line {found.line}: {found.text}"
    assert found.state == case["state"]


@pytest.mark.parametrize("family", FAMILIES)
def test_without_its_family_of_rules_the_generic_search_names_the_line_mostly(family: str) -> None:
    """Only the logs that a rule of the family explains: to the others it makes no difference."""
    mine = {rule.id for rule in rules() if rule.family == family}
    concerned = [case for case in FAULTY if answer(case["file"]).rule in mine]
    wrong = [case["id"] for case in concerned if answer(case["file"], family).line not in accepted(case)]
    assert len(wrong) <= 0.2 * len(concerned), wrong  # seen: none, or one


def test_without_any_rule_the_generic_search_names_the_line_mostly() -> None:
    wrong = [case["id"] for case in FAULTY if answer(case["file"], "everything").line not in accepted(case)]
    assert len(wrong) <= 0.1 * len(FAULTY), wrong  # seen: one
    assert not any(answer(case["file"], "everything").fault for case in HEALTHY)


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row["kind"])
def test_one_line_is_enough_to_know_its_kind(row: dict[str, str]) -> None:
    head = "(Worker_TP0 pid=5) ERROR 05-14 09:20:01 [multiproc_executor.py:870] "
    printed = not row["line"].split(":")[0].endswith(("Error", "Exception")) and not row["line"].startswith("Error while")
    before = "" if printed else f'{head}Traceback (most recent call last):\n{head}  File "/x/y.py", line 1, in f\n'
    found = diagnose(f"{before}{'' if printed else head}{row['line']}\n")
    assert found.fault and found.text == row["line"].removeprefix("ERROR 01-02 03:04:05 multiproc_worker_utils.py:123] ")
    assert found.kind == row["kind"] or (row["kind"] == "oom" and found.kind.startswith("oom-"))


def test_a_healthy_log_is_no_fault_wherever_it_is_cut_off() -> None:
    for case in HEALTHY:
        if "crash" in case["id"] or "reboot" in case["id"] or "silent" in case["id"]:
            continue  # a fault, or a stall, while it is all that there is
        lines = (FOLDER / case["file"]).read_bytes().decode().split("\n")
        for number in range(5, len(lines), 9):
            found = diagnose("\n".join(lines[:number]) + "\n")
            assert not found.fault, f"{case['id']}, first {number} lines: {found.rule}, {found.text}"


# What a start says and survives, on one machine or another.
NOISE = [
    "gpu4:4100:4100 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed",
    "/bin/sh: 1: ibstat: not found",
    "(APIServer pid=1) WARNING 05-14 09:20:01 [ops.py:20] Failed to import from vllm._rocm_C: ModuleNotFoundError: No module named 'vllm._rocm_C'",
    "(APIServer pid=1) ERROR 05-14 09:20:01 [repo_utils.py:65] Error retrieving safetensors: Repo id must be in the form 'repo_name': '/x', retrying",
    "(Worker_TP0 pid=5) WARNING 05-14 09:20:01 [utils.py:77] ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c10, falling back",
    "2026-05-14 09:24:01,011 - WARNING - autotuner.py:496 - flashinfer.jit: [Autotuner]: Skipping tactic 3, due to failure: CUDA out of memory",
]
PLAIN = [case for case in CASES if case["layout"].endswith("/plain")]


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["id"])
def test_noise_that_was_survived_is_not_taken_for_the_cause(case: dict[str, Any]) -> None:
    lines = (FOLDER / case["file"]).read_text().split("\n")
    found = diagnose("\n".join(lines[:3] + NOISE + lines[3:]))
    if not case["fault"]:
        assert not found.fault, found.text
        return
    assert found.line is not None and (found.line if found.line <= 3 else found.line - len(NOISE)) in accepted(case), found.text


@pytest.mark.parametrize("case", [case for case in PLAIN if case["fault"]], ids=lambda case: case["id"])
def test_a_crash_above_a_healthy_start_is_no_fault(case: dict[str, Any]) -> None:
    healthy = next(one for one in HEALTHY if one["id"] == "z20-tool-parser-errors")
    assert not diagnose((FOLDER / case["file"]).read_text() + (FOLDER / healthy["file"]).read_text()).fault


def test_the_logs_are_of_many_kinds_and_layouts() -> None:
    assert len(FAULTY) >= 60 and len(HEALTHY) >= 15
    assert len({case["layout"].split("/")[1] for case in CASES}) >= 12 and len({case["kind"] for case in FAULTY}) >= 45
    assert {path.name for path in (FOLDER / "cases").iterdir()} == {Path(case["file"]).name for case in CASES}


def test_every_rule_says_whether_it_could_have_been_found_before_and_what_a_button_may_start() -> None:
    for rule in rules():
        assert rule.preflight in {True, False}, rule.id
        assert rule.action in ACTIONS
        assert not rule.action_hint or rule.action, f"{rule.id} hints at a button that it has not"
