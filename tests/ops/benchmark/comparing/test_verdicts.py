"""The rule that says better, worse, same or not decided: on cases worked by hand, and on simulated sweeps whose truth is known."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from typing import Any

import pytest

from ops.benchmark.comparing.floors import Floors, floor_from_runs, floor_rows
from ops.benchmark.comparing.verdicts import METRICS, compare_errors, compare_values
from tests.ops.benchmark.comparing.documents import level, side


def test_a_difference_beyond_floor_and_luck_is_worse_or_better_by_the_metrics_direction() -> None:
    slower = compare_values([277, 280, 274], [250, 252, 248], "output_tok_s")
    assert (slower.word, slower.n_a, slower.n_b) == ("worse", 3, 3)
    assert slower.ratio == pytest.approx(0.9025, abs=0.0001)
    assert slower.low is not None and slower.high is not None and slower.low < 0.9025 < slower.high < 0.95
    assert compare_values([277, 280, 274], [250, 252, 248], "tpot_p50_ms").word == "better"
    assert compare_values([250, 252, 248], [277, 280, 274], "output_tok_s").word == "better"


def test_what_lies_wholly_within_the_least_that_counts_is_the_same() -> None:
    found = compare_values([100, 100.5, 99.5], [101, 101.5, 100.5], "output_tok_s")
    assert (found.word, found.more_runs) == ("same", None)


def test_a_certain_difference_smaller_than_the_floor_is_not_decided_and_more_runs_do_not_help() -> None:
    found = compare_values([100, 100.1, 99.9], [110, 110.1, 109.9], "output_tok_s", 0.15)
    assert (found.word, found.floor_from, found.more_runs) == ("not decided", "measured", None)
    assert "within the noise floor" in found.note


def test_a_wide_interval_is_not_decided_and_says_how_many_more_runs_would_do() -> None:
    """A spread of 5 % in the logs: three runs a side reach ±11 %, four ±8.5 %, five ±7.2 %; the effect is 8 %."""
    logs = (-0.05, 0.0, 0.05)
    found = compare_values([math.exp(one) for one in logs], [0.92 * math.exp(one) for one in logs], "output_tok_s")
    assert (found.word, found.more_runs) == ("not decided", 2)
    assert found.note == "2 more runs a side would decide"


@pytest.mark.parametrize(("a", "b", "note", "more"), [
    ([100.0], [98.0], "within the noise floor", 2),
    ([100.0], [94.0], "outside it (−6.0 %), not tested", 2),
    ([100.0, 100.0], [94.0, 94.0, 94.0], "outside it (−6.0 %), not tested", 1),
])
def test_fewer_than_three_runs_a_side_are_not_tested(a: list[float], b: list[float], note: str, more: int) -> None:
    found = compare_values(a, b, "output_tok_s")
    assert (found.word, found.note, found.more_runs, found.p) == ("not tested", note, more, None)


def test_what_is_no_number_is_no_value() -> None:
    found = compare_values([100, None, float("nan"), True, "9", -1, 0, 10**400], [float("inf")], "output_tok_s")
    assert (found.n_a, found.n_b, found.ratio, found.word, found.note) == (1, 0, None, "no verdict", "not reported on both sides")


def test_a_verdict_can_be_withheld_and_the_ratio_stands() -> None:
    found = compare_values([100, 101, 99], [80, 81, 79], "output_tok_s", withheld="another tool")
    assert (found.word, found.note, found.p) == ("no verdict", "another tool", None)
    assert found.ratio == pytest.approx(0.8, abs=0.001)


def test_swapping_sides_turns_the_ratio_over() -> None:
    one, other = compare_values([96, 100, 104], [86, 90, 91], "output_tok_s"), compare_values([86, 90, 91], [96, 100, 104], "output_tok_s")
    assert one.ratio is not None and other.ratio is not None and one.low is not None and other.high is not None
    assert one.ratio * other.ratio == pytest.approx(1)
    assert one.low * other.high == pytest.approx(1)


def test_swapping_sides_mirrors_every_word() -> None:
    """Runs whose effect lies around the least that counts and around a floor: no word may depend on which side was named first."""
    mirrored = {"better": "worse", "worse": "better"}
    chance, seen = random.Random(7), Counter[str]()
    for _ in range(800):
        effect, luck, floor = chance.uniform(-0.12, 0.12), chance.choice([1e-4, 0.004, 0.02]), chance.choice([None, 0.01, 0.08])
        count = chance.choice([1, 2, 3, 3, 3, 4])
        a, b = ([100 * math.exp(shift + chance.gauss(0, luck)) for _ in range(count)] for shift in (0, effect))
        for metric in ("output_tok_s", "tpot_p50_ms", "ttft_p99_ms"):
            one, other = compare_values(a, b, metric, floor), compare_values(b, a, metric, floor)
            assert one.word == mirrored.get(other.word, other.word), (a, b, metric, floor)
            assert (one.more_runs, one.note.startswith("outside")) == (other.more_runs, other.note.startswith("outside"))
            seen[one.word] += 1
    assert all(seen[word] > 30 for word in ("better", "worse", "same", "not decided", "not tested"))


def test_a_slowdown_by_which_the_other_side_is_more_than_the_least_that_counts_is_worse() -> None:
    """100 to 95.1 is −4.9 %, and back it is +5.2 %."""
    a, b = [100.0, 100.01, 99.99], [95.1, 95.11, 95.09]
    assert (compare_values(a, b, "output_tok_s").word, compare_values(b, a, "output_tok_s").word) == ("worse", "better")


# Errors


def failing(errors: int, kind: str = "http_500", finished: int = 100) -> dict[str, Any]:
    return level(errors=errors, finished=finished, errors_by_kind={kind: errors} if errors else {})


def test_a_new_class_of_error_is_worse_however_rare() -> None:
    found = compare_errors([failing(0)] * 3, [failing(0), failing(0), failing(1)])
    assert (found.word, found.new_kinds) == ("worse", ["http_500"])
    assert "1 of 301 requests failed, 0 of 300 in the baseline" in found.note


def test_a_higher_rate_of_a_known_error_is_worse_by_fishers_test_only() -> None:
    assert compare_errors([failing(1)] * 3, [failing(2)] * 3).word is None
    assert compare_errors([failing(1)] * 3, [failing(9)] * 3).word == "worse"
    assert compare_errors([failing(9)] * 3, [failing(1)] * 3).word == "better"


def test_errors_of_too_few_runs_are_told_and_not_tested() -> None:
    found = compare_errors([failing(0)], [failing(5)])
    assert (found.word, found.new_kinds) == ("not tested", ["http_500"])


# The noise floor


def test_the_floor_is_half_of_the_interval_of_three_runs_against_three() -> None:
    values = [100.0, 101.0, 102.0, 99.0, 98.0, 100.0]
    spread = statistics.stdev(map(math.log, values))
    assert floor_from_runs(values) == pytest.approx(2.776445 * spread * math.sqrt(2 / 3), rel=1e-6)
    assert floor_from_runs([100.0, 101.0]) is None


def test_floors_of_runs_are_found_again_by_level_and_metric() -> None:
    floors = Floors(floor_rows(side([100.0, 101.0, 102.0])))
    half_width, source = floors.lookup("closed", 8, "output_tok_s")
    assert (source, half_width) == ("measured", pytest.approx(0.0224, abs=0.0005))
    assert floors.lookup("closed", 16, "output_tok_s") == (0.03, "default")


def test_a_level_of_which_too_many_requests_failed_is_no_measure_of_luck() -> None:
    runs = side([100.0, 101.0, 102.0, 40.0])
    runs[3]["levels"][0] |= {"errors": 30, "errors_by_kind": {"http": 30}}
    assert floor_rows(runs) == floor_rows(runs[:3]) != []


def test_rows_from_elsewhere_that_are_none_are_left_out() -> None:
    row = {"load": "closed", "value": 8, "metric": "output_tok_s", "half_width": 0.02}
    bad = [None, 1, {}, row | {"metric": "x"}, row | {"half_width": float("nan")}, row | {"half_width": -1}, row | {"value": "8"}, row | {"load": []}]
    assert len(Floors([*bad, row])) == 1


# Simulated sweeps


def simulated(chance: random.Random, slower: float, luck: float) -> float:
    """The median TPOT of one sweep of 60 requests that share the run's luck; 50 ms a token when nothing is slower."""
    run = 50 * slower * math.exp(chance.gauss(0, luck))
    return statistics.median(run * math.exp(chance.gauss(0, 0.05)) for _ in range(60))


def verdicts(slower: float, luck: float, pairs: int = 1000, runs: int = 3) -> Counter[str]:
    """Of so many comparisons, each of three sweeps a side."""
    chance = random.Random(20260301)
    return Counter(compare_values([simulated(chance, 1, luck) for _ in range(runs)], [simulated(chance, slower, luck) for _ in range(runs)],
                                  "tpot_p50_ms").word for _ in range(pairs))


@pytest.mark.parametrize("luck", [0.01, 0.02, 0.03])
def test_of_a_thousand_comparisons_of_equal_sides_at_most_two_in_a_hundred_say_otherwise(luck: float) -> None:
    found = verdicts(1, luck)
    assert (found["better"] + found["worse"]) / found.total() <= 0.02
    assert "not tested" not in found


def test_of_a_thousand_comparisons_with_one_that_is_ten_percent_slower_nearly_all_say_worse() -> None:
    found = verdicts(1 / 0.9, 0.01)
    assert found["worse"] / found.total() >= 0.99
    assert found["better"] == found["same"] == 0


def test_every_metric_has_a_direction_a_floor_and_a_least_that_counts() -> None:
    assert [(one.floor, one.minimum_effect) for one in METRICS.values()] == [
        (0.03, 0.05), (0.03, 0.05), (0.1, 0.1), (0.2, 0.1), (0.03, 0.05), (0.2, 0.05)]
    assert [name for name, one in METRICS.items() if one.higher_is_better] == ["output_tok_s"]
