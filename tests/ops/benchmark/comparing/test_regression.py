"""One new sweep against a pinned baseline: within the noise floor, or outside it and not tested."""

from __future__ import annotations

import math
from typing import Any

from ops.benchmark.comparing.regression import watch
from tests.ops.benchmark.comparing.documents import level, run, side


def metric(told: dict[str, Any], name: str = "output_tok_s") -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in told["levels"][0]["metrics"] if one["metric"] == name)
    return found


def test_a_sweep_within_the_floor_says_so_and_uses_no_word_of_a_verdict() -> None:
    told = watch(run(level(8, 275.0)), side([277, 280, 274]), label="r13")
    assert metric(told)["word"] == "within the noise floor"
    assert told["outside"] == 0
    assert told["baseline"]["label"] == "r13"
    assert told["baseline"]["interleaved"] is False
    assert len(told["baseline"]["run_ids"]) == 3
    assert told["words"] == ["C=8: within the noise floor (Output throughput −0.7 %, TPOT P50 +0.7 %)"]


def test_a_sweep_outside_it_says_by_how_much_and_that_nothing_was_tested() -> None:
    told = watch(run(level(8, 250.0, ttft_p50_ms=None)), side([277, 280, 274]))
    assert metric(told)["word"] == "outside it (−9.7 %), not tested"
    assert metric(told, "ttft_p50_ms")["word"] == "not reported"
    assert "outside the noise floor, not tested: Output throughput −9.7 %" in told["words"][0]
    assert not {"better", "worse", "same"} & set(" ".join(told["words"]).split())


def test_a_measured_floor_is_used_and_named() -> None:
    told = watch(run(level(8, 250.0)), side([277]), [{"load": "closed", "value": 8, "metric": "output_tok_s", "half_width": 0.11}])
    assert (metric(told)["word"], metric(told)["floor_from"]) == ("within the noise floor", "measured")


def test_a_level_that_was_asked_something_else_is_not_held_against_it() -> None:
    told = watch(run(level(8, 250.0), level(1, 60.0)), side([277], settings={"max_tokens": 512}))
    assert told["words"] == ["C=1: not held against the baseline, the baseline has no such level",
                             "C=8: not held against the baseline, not asked the same: output tokens asked for (512 then, 128 now)"]


def test_three_new_runs_against_three_get_verdicts() -> None:
    told = watch(side([250, 252, 248], start=1000), side([277, 280, 274]))
    assert metric(told)["word"] == "worse"
    assert told["words"][0].startswith("C=8: worse: Output throughput −9.7 %, TPOT P50 +10.8 %")
    assert len(told["run_ids"]) == 3


def test_new_errors_are_told() -> None:
    told = watch(run(level(8, 277.0, errors=2, errors_by_kind={"stalled": 2})), side([277]))
    assert "errors that the baseline has not: stalled" in told["words"][0]


def test_a_level_of_which_too_many_requests_failed_is_not_held_against_it_but_by_its_errors() -> None:
    told = watch(run(level(8, 100.0, errors=5, errors_by_kind={"http": 5})), side([277]))
    assert (told["levels"][0]["comparable"], told["levels"][0]["why"], told["outside"]) == (False, "more than 1 % of the requests failed", 0)
    assert told["words"][0].startswith("C=8: not held against the baseline, more than 1 % of the requests failed; errors that the baseline has not")
    decided = watch([run(level(8, 280.0, errors=5, errors_by_kind={"http": 5}), started_at=float(900 + i)) for i in range(3)], side([277, 280, 274]))
    assert metric(decided)["word"] == "worse"  # of three runs the errors decide


def test_practice_is_not_held_against_real() -> None:
    assert watch(run(level(), practice=True), side([277]))["words"] == ["Not held against the baseline: practice is never held against real"]


def test_one_verdict_of_many_levels_that_falls_to_holms_correction_is_not_told_as_one() -> None:
    """A p just below 0.05 at one of four levels is what luck alone brings."""
    a, b = [], []
    for i, luck in enumerate((-0.03, 0.0, 0.03)):
        a.append(run(*(level(c, 100 * math.exp(luck)) for c in (1, 2, 4, 8)), started_at=float(i + 1)))
        b.append(run(level(1, 92 * math.exp(luck)), *(level(c, 100 * math.exp(luck)) for c in (2, 4, 8)), started_at=float(i + 9)))
    told = watch(b, a)
    assert (metric(told)["word"], metric(told)["holds"]) == ("worse", False)
    assert told["outside"] == 0
    assert "worse" not in " ".join(told["words"])
    assert metric(watch(side([250, 252, 248], start=1000), side([277, 280, 274])))["holds"] is True
