"""Whole sides held against each other: what pairs, what is withheld and why, and what stands above the curves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ops.benchmark.comparing import exports
from ops.benchmark.comparing.floors import Floors
from ops.benchmark.comparing.sides import Side, compare
from ops.benchmark.comparing.verdicts import in_words
from ops.jobs.errors import BadInput
from tests.ops.benchmark.comparing.documents import level, run, side


def against(a: list[dict[str, Any]], b: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return compare([Side("A", a), Side("B", b)], **more).as_dict()


def word(told: dict[str, Any], metric: str = "output_tok_s", at: int = 0) -> tuple[str, str]:
    one = told["levels"][at]["verdicts"][1][metric]
    return one["word"], one["note"]


def test_three_runs_a_side_get_a_verdict_and_a_headline() -> None:
    told = against(side([277, 280, 274]), side([250, 252, 248], start=30))
    assert word(told) == ("worse", "")
    headline = told["headlines"][1]
    assert headline["ratio"] == pytest.approx(0.9025, abs=0.0001)
    assert (headline["levels"], headline["pairs"], headline["counts"]["output_tok_s"]["worse"]) == (1, 3, 1)
    assert "worse: Output throughput at C=8" in headline["words"]
    assert told["notes"] == []


def test_the_headline_is_the_geometric_mean_of_the_ratios_with_an_interval_over_pairs_of_runs() -> None:
    """Ratios 1.1 and 0.9 in each pair: √0.99, and no spread between the pairs."""
    a = [run(level(1, 60.0), level(8, 277.0), started_at=float(i + 1)) for i in range(3)]
    b = [run(level(1, 66.0), level(8, 249.3), started_at=float(i + 1)) for i in range(3)]
    headline = against(a, b)["headlines"][1]
    assert headline["ratio"] == pytest.approx(math.sqrt(0.99))
    assert headline["low"] == pytest.approx(headline["high"])


def test_a_level_that_one_run_lacks_is_not_in_the_headline_and_a_run_without_any_is_no_pair() -> None:
    a = [run(level(1, 60.0), level(8, 277.0), started_at=float(i + 1)) for i in range(3)]
    b = [run(level(1, 60.0), level(8, 249.3), started_at=1.0), run(level(8, 249.3), started_at=2.0), run(started_at=3.0)]
    headline = against(a, b)["headlines"][1]
    assert (headline["levels"], headline["pairs"], headline["ratio"]) == (1, 2, pytest.approx(0.9))


def test_one_run_a_side_is_a_difference_that_was_not_tested() -> None:
    told = against(side([277]), side([250]))
    assert word(told) == ("not tested", "outside it (−9.7 %), not tested")
    assert "not tested: a verdict needs three runs a side" in told["headlines"][1]["words"]
    assert told["headlines"][1]["more_runs"] == 2


def test_levels_without_a_partner_are_listed() -> None:
    told = against([run(level(1, 60.0), level(8, 277.0))], [run(level(8, 270.0), level(16, 441.0))])
    assert [(one["side"], one["label"], one["where"]) for one in told["unpaired"]] == [
        ("A", "C=1", "baseline only"), ("B", "C=16", "not in the baseline")]
    assert [one["verdicts"][1] is None for one in told["levels"]] == [True, False, True]


def test_another_length_is_drawn_and_named_and_only_the_verdict_is_withheld() -> None:
    told = against(side([277, 280, 274]), side([250, 252, 248], settings={"max_tokens": 512}))
    assert word(told) == ("no verdict", "not comparable: output tokens asked for (128 against 512)")
    assert told["levels"][0]["verdicts"][1]["output_tok_s"]["ratio"] == pytest.approx(0.9025, abs=0.0001)
    assert told["key_differences"] == [{"name": "max_tokens", "title": "output tokens asked for", "values": ["128", "512"], "levels": ["C=8"]}]


@pytest.mark.parametrize(("other", "why"), [
    ({"practice": True}, "practice is never held against real"),
    ({"tool": "guidellm", "origin": "imported"}, "measured by guidellm, the baseline by roundhouse: no verdict across tools"),
    ({"origin": "imported"}, "imported runs get no verdict against measured ones")], ids=["practice", "tool", "origin"])
def test_some_sides_never_get_a_verdict(other: dict[str, Any], why: str) -> None:
    told = against(side([277, 280, 274]), side([250, 252, 248], **other))
    assert told["sides"][1]["blocked"] == why
    assert word(told) == ("no verdict", why)
    assert f"B gets no verdict: {why}" in told["notes"]


def test_two_imports_of_the_same_tool_do_get_one() -> None:
    told = against(side([277, 280, 274], tool="guidellm", origin="imported"), side([250, 252, 248], tool="guidellm", origin="imported"))
    assert word(told) == ("worse", "")


def test_sides_that_were_measured_one_after_the_other_are_said_to_be_not_interleaved() -> None:
    assert against(side([1, 2, 3]), side([1, 2, 3], start=1000))["notes"] == ["A and B were not interleaved: all runs of A came first"]


def test_a_new_class_of_error_beats_a_better_throughput() -> None:
    a, b = side([250, 252, 248]), side([277, 280, 274])
    b[1]["levels"][0] |= {"errors": 1, "errors_by_kind": {"stalled": 1}}
    told = against(a, b)
    assert word(told)[0] == "worse"
    assert told["levels"][0]["verdicts"][1]["output_tok_s"]["by_errors"] is True
    assert "worse: errors at C=8" in told["headlines"][1]["words"]


def test_errors_and_counts_that_a_tool_does_not_report_are_not_zero() -> None:
    silent: dict[str, Any] = {"errors": None, "finished": None}
    told = against([run(level(8, 277.0, **silent))] * 3, [run(level(8, 277.0, errors=1, errors_by_kind={"http_500": 1}))] * 3)
    assert [side["errors"] for side in told["sides"]] == [None, 3]
    assert [(one["errors"], one["requests"], one["error_rate"]) for one in told["levels"][0]["sides"]] == [(None, None, None), (3, 300, 3 / 303)]
    assert told["levels"][0]["errors"][1]["word"] is None  # nothing says that the others had fewer
    assert (told["headlines"][1]["errors"], told["headlines"][1]["errors_worse"]) == (3, [])
    found = compare([Side("A", [run(level(8, 277.0, **silent))]), Side("B", [run(level(8, 277.0))])])
    assert found.as_dict()["headlines"][1]["errors"] is None
    assert "| not reported |" in exports.to_markdown(found)


def test_more_than_one_percent_of_errors_on_both_sides_leaves_nothing_to_compare() -> None:
    told = against(*([run(level(8, tok, errors=5, errors_by_kind={"http_500": 5}), started_at=float(i + 1)) for i, tok in enumerate(side_of)]
                     for side_of in ([277, 280, 274], [250, 252, 248])))
    assert word(told) == ("no verdict", "more than 1 % of the requests failed in A")


def test_a_level_of_which_too_many_requests_failed_is_not_in_the_mean_of_the_headline() -> None:
    told = against(*([run(level(8, tok), level(32, 4 * tok * odd, errors=5, errors_by_kind={"http_500": 5}), started_at=float(i + 1))
                      for i, tok in enumerate(side_of)] for side_of, odd in (([277, 280, 274], 1), ([250, 252, 248], 9))))["headlines"][1]
    assert (told["levels"], told["ratio"]) == (1, pytest.approx((250 * 252 * 248 / 277 / 280 / 274) ** (1 / 3)))
    assert "at C=8, 3 pairs of runs" in told["words"]


def test_sides_that_were_warmed_up_otherwise_say_so() -> None:
    a, b = ({"warmup_per_slot": per_slot, "warmup_slots": slots} for per_slot, slots in ((2.0, 32), (1.0, 4)))
    told = against(side([1, 2], settings=a), side([1, 2], settings=b))
    assert "B was warmed up with another number of requests than A" in told["notes"]


def test_a_level_that_was_broken_off_is_not_counted() -> None:
    a, b = side([277, 280, 274]), side([276, 279, 20])
    b[2]["levels"][0]["state"] = "cancelled"
    told = against(a, b)
    assert told["levels"][0]["sides"][1]["values"]["output_tok_s"]["values"] == [276, 279]
    assert word(told)[0] == "not tested"
    assert "B: a level that did not run to its end is not counted at C=8" in told["notes"]


def test_runs_of_one_side_that_were_not_asked_the_same_are_no_side() -> None:
    odd = side([277, 280]) + side([274], settings={"max_tokens": 64})
    assert word(against(odd, side([250, 252, 248])))[1] == "the runs of A differ among themselves: output tokens asked for (128 against 64)"


def test_a_decision_that_falls_to_holms_correction_counts_as_not_decided_in_the_headline() -> None:
    """One of many levels at p just below 0.05 is what luck alone brings."""
    a, b = [], []
    for i, luck in enumerate((-0.03, 0.0, 0.03)):
        a.append(run(*(level(c, 100 * math.exp(luck)) for c in (1, 2, 4, 8)), started_at=float(i + 1)))
        b.append(run(level(1, 92 * math.exp(luck)), *(level(c, 100 * math.exp(luck)) for c in (2, 4, 8)), started_at=float(i + 1)))
    told = against(a, b)
    one = told["levels"][0]["verdicts"][1]["output_tok_s"]
    assert (one["word"], one["holds"]) == ("worse", False)
    assert told["headlines"][1]["counts"]["output_tok_s"] == {"better": 0, "worse": 0, "same": 0, "not decided": 4, "not tested": 0, "no verdict": 0}


def test_a_measured_floor_above_the_effect_keeps_the_verdict_back() -> None:
    floors = Floors([{"load": "closed", "value": 8, "metric": "output_tok_s", "half_width": 0.12}])
    assert word(against(side([277, 280, 274]), side([250, 252, 248]), floors=floors))[0] == "not decided"


def test_fingerprints_stand_beside_each_other_and_only_what_differs_is_marked() -> None:
    one: dict[str, Any] = {"packages": {"vllm": "0.16.0", "torch": "2.9.1"}, "patched": {"files": 0},
                           "flags": ["--gpu-memory-utilization", "0.92"], "env": {"A": "1"}}
    other = one | {"packages": {"vllm": "0.17.0", "torch": "2.9.1"}, "flags": ["--gpu-memory-utilization", "0.90", "--seed", "1"], "env": {}}
    rows = against(side([1], fingerprint=one), side([1], fingerprint=other))["fingerprints"]["rows"]
    assert [(row["group"], row["name"], row["values"]) for row in rows if row["differs"]] == [
        ("Packages", "vllm", ["0.16.0", "0.17.0"]), ("Launch", "--gpu-memory-utilization", ["0.92", "0.90"]), ("Launch", "--seed", ["not set", "1"]),
        ("Launch", "A", ["1", "not set"])]


@pytest.mark.parametrize("sides", [[], [Side("A", side([1]))], [Side("A", [])] * 2, [Side("A", side([1]))] * 9, [Side("A", [run()])] * 2],
                         ids=["none", "one", "empty", "nine", "no levels"])
def test_what_cannot_be_compared_is_refused_in_words(sides: list[Side]) -> None:
    with pytest.raises(BadInput):
        compare(sides)


def test_documents_of_nonsense_are_compared_without_a_crash_and_without_a_number_that_is_none() -> None:
    odd = {"levels": [{"concurrency": 8, "output_tok_s": "fast", "finished": "many", "errors": float("nan"), "marks": 3, "errors_by_kind": [1]},
                      {"concurrency": None}, 7, {"value": float("inf")}, {"value": 10**400}], "settings": [], "fingerprint": "x", "started_at": "now"}
    told = against([odd, *side([277])], [odd, {"levels": None}, *side([1e308, 5e-324])])
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_marks_of_either_side_stand_beside_the_word_in_the_headline_and_in_every_file() -> None:
    a, b = side([277, 280, 274]), side([250, 252, 248], start=30)
    a[1]["levels"][0]["marks"], b[0]["levels"][0]["marks"] = ["client-bound", "bunched"], ["short"]
    found = compare([Side("A", a), Side("B", b)])
    told = found.as_dict()
    assert told["levels"][0]["verdicts"][1]["output_tok_s"]["doubts"] == ["client-bound", "short"]
    assert "worse: Output throughput at C=8 (client-bound, short)" in told["headlines"][1]["words"]
    assert "| worse (client-bound, short) |" in exports.to_markdown(found)
    assert "client-bound; short" in exports.to_csv(found)


@pytest.mark.parametrize(("verdict", "words"), [
    ({"word": "better", "holds": True, "doubts": ["short"]}, "better (short)"),
    ({"word": "better", "holds": False, "note": "by itself, not after the correction"}, "better, by itself: not after the correction"),
    ({"word": "not tested", "note": "outside it (−9.7 %), not tested"}, "not tested: outside it (−9.7 %)"),
    ({"word": "no verdict", "note": "another tool", "doubts": ["short"]}, "no verdict (short): another tool"),
], ids=["doubted", "by-itself", "too-few", "withheld"])
def test_one_function_says_every_verdict(verdict: dict[str, Any], words: str) -> None:
    assert in_words(verdict) == words
